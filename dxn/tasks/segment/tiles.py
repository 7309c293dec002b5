"""Large pictures, which are divided into tiles that overlap."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dxn.tasks.segment.target import tile_of
from dxn.tasks.space import Batch
from dxn.tokenize.base import pad

KEYS = ("pixels", "sizes", "pixel_map")  # of a prepared picture
MAX_TILES = 16  # that are encoded at once
MIN_OVERLAP = 0.25  # of neighbouring tiles, as a fraction of their length
EPSILON = 1e-6  # of the weights, where a picture is padding


class TiledHead(nn.Module):
    """A head of which large pictures are divided into tiles outside of a training.

    Args:
        input: Name of the input with the pictures.
        tile: Height and width of the parts of a picture that are encoded alone. 0: pictures are not
            divided.
    """

    min_overlap = MIN_OVERLAP

    def __init__(self, input: str, tile: int):
        super().__init__()
        self.input = input
        self.tile = tile

    def over_parts(self, batch: Batch, output_of: Callable[[Batch], Tensor]) -> Tensor:
        """Return logits (B, K, H, W), outside of a training as means over tiles that overlap.

        Args:
            batch: Whole pictures.
            output_of: Function that returns the logits of a batch.
        """
        if self.training or not self.tile:
            return output_of(batch)
        part = batch[self.input]
        height, width = part["pixels"].shape[-2:]
        if max(height, width) <= self.tile:
            return output_of(batch)
        sizes = part["sizes"].tolist()
        places = [
            (i, top, left)
            for i, (h, w) in enumerate(sizes)
            for top in starts(h, self.tile, self.min_overlap)
            for left in starts(w, self.tile, self.min_overlap)
        ]
        total = weights = None
        for first in range(0, len(places), MAX_TILES):
            chosen = places[first : first + MAX_TILES]
            samples = []
            for i, top, left in chosen:
                own = {key: part[key][i] for key in KEYS}
                # Without the padding of the batch.
                own["pixels"] = own["pixels"][:, : sizes[i][0], : sizes[i][1]]
                samples.append(tile_of(own, top, left, self.tile))
            tiles = pad(samples, {})
            tiles["rows"] = torch.arange(len(samples), device=part["rows"].device)
            logits = output_of({"#size": len(samples), self.input: tiles})
            if total is None or weights is None:
                total = logits.new_zeros(batch["#size"], logits.shape[1], height, width)
                weights = logits.new_full((batch["#size"], 1, height, width), EPSILON)
            for (i, top, left), sample, own in zip(chosen, samples, logits, strict=True):
                h, w = sample["pixels"].shape[-2:]
                row = part["rows"][i]
                weight = (self.tile_weight(h, own)[:, None] * self.tile_weight(w, own))[None]
                total[row, :, top : top + h, left : left + w] += weight * own[:, :h, :w]
                weights[row, :, top : top + h, left : left + w] += weight
        assert total is not None and weights is not None
        return total / weights

    def tile_weight(self, length: int, like: Tensor) -> Tensor:
        """Return the weight (length,) of the pixels of a tile: those in the middle know more."""
        index = torch.arange(length, device=like.device)
        return torch.minimum(index + 1, length - index).to(like.dtype) / length


def starts(length: int, tile: int, min_overlap: float = MIN_OVERLAP) -> list[int]:
    """Return where tiles start that cover a length and overlap by at least a share of a tile."""
    if length <= tile:
        return [0]
    count = math.ceil((length - tile) / (tile * (1 - min_overlap))) + 1
    return [i * (length - tile) // (count - 1) for i in range(count)]
