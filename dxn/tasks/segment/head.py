"""The head of segmentation: tokens and pixels become logits of each pixel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.core.dropout import Dropout
from dxn.core.tokens import Tokens
from dxn.tasks.segment.target import tile_of
from dxn.tasks.space import Batch
from dxn.tokenize.base import pad
from dxn.tokenize.patches import grid_mask
from dxn.tokenize.statistics import normalize_pixels

KEYS = ("pixels", "sizes", "frame")  # of a prepared picture
MAX_TILES = 16  # that are encoded at once
MIN_OVERLAP = 0.25  # of neighbouring tiles, as a fraction of their length
EPSILON = 1e-6  # of the weights, where a picture is padding


class SegmentHead(nn.Module):
    """Maps the tokens of pictures to logits of classes at each pixel.

    Each token is mapped to features of the pixels of its patch. Convolutions join them with the
    pixels themselves, so that the edges of areas are as sharp as those of the picture.

    Args:
        dim: Width D of a token.
        num_classes: Number K of classes.
        input: Name of the input.
        adapter: Adapter of the input.
        channels: Number of features of a pixel.
        tile: Height and width of the parts of a picture that are encoded alone. 0: pictures are not
            divided.
        pooled_dim: Width of the vector of a sample, which is added to each token, so that other
            inputs also have an effect if each input is encoded alone. 0: it is not added.
        dropout: Dropout probability of the tokens.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        dim: int,
        *,
        num_classes: int,
        input: str,
        adapter: Any,
        channels: int = 32,
        tile: int = 0,
        pooled_dim: int = 0,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.input = input
        self.tile = tile
        self.tiles = tile > 0
        self.grid = adapter.grid
        # Copies, because those of the adapter change in a model that is only used.
        self.register_buffer("mean", adapter.mean.detach().clone())
        self.register_buffer("std", adapter.std.detach().clone())
        self.context = nn.Linear(pooled_dim, dim) if pooled_dim else None
        self.dropout = Dropout(dropout)
        stride = self.grid.stride
        self.features = nn.Linear(dim, channels * stride[0] * stride[1])
        width = channels + len(self.mean)
        self.convs = nn.ModuleList(
            nn.Conv2d(each, channels, 3, padding=1) for each in (width, channels)
        )
        self.out = nn.Conv2d(channels, num_classes, 3, padding=1)

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor:
        """Return logits (B, K, H, W) of each pixel of the prepared pictures."""
        part = batch[self.input]
        pixels, sizes, rows = part["pixels"], part["sizes"], part["rows"]
        height, width = pixels.shape[-2:]
        x = tokens.select(self.input).x
        if self.context is not None:
            x = x + self.context(pooled)[:, None]
        x = self.dropout(x).index_select(0, rows)
        # The patches are the last columns; there can be class tokens before them.
        down, across = self.grid.count(height, 0), self.grid.count(width, 1)
        x = self.features(x[:, x.shape[1] - down * across :])
        stride = self.grid.stride
        x = rearrange(x, "b (h w) (p q c) -> b c (h p) (w q)", h=down, p=stride[0], q=stride[1])
        x = self._fitted(x, height, width)
        inside = grid_mask(sizes, height, width)[:, None]
        plain = normalize_pixels(pixels, self.mean, self.std)
        # Padding is 0 in each layer, so that other samples have no effect.
        x = torch.cat([x, plain.to(x.dtype)], 1) * inside
        for conv in self.convs:
            x = F.gelu(conv(x)) * inside
        x = self.out(x)
        return x.new_zeros(batch["#size"], *x.shape[1:]).index_copy(0, rows, x)

    def over_tiles(self, batch: Batch, encode: Callable[[Batch], Tensor]) -> Tensor:
        """Return logits (B, K, H, W) as means over tiles that overlap.

        Args:
            batch: Whole pictures.
            encode: Function that returns the logits of a batch.
        """
        part = batch[self.input]
        height, width = part["pixels"].shape[-2:]
        # A graph is for pictures of any size.
        if max(height, width) <= self.tile or torch.compiler.is_exporting():
            return encode(batch)
        places = [
            (i, top, left)
            for i, (h, w) in enumerate(part["sizes"].tolist())
            for top in starts(h, self.tile)
            for left in starts(w, self.tile)
        ]
        total = weights = None
        for first in range(0, len(places), MAX_TILES):
            chosen = places[first : first + MAX_TILES]
            samples = [
                tile_of({key: part[key][i] for key in KEYS}, top, left, self.tile)
                for i, top, left in chosen
            ]
            tiles = pad(samples, {})
            tiles["rows"] = torch.arange(len(samples), device=part["rows"].device)
            logits = encode({"#size": len(samples), self.input: tiles})
            if total is None or weights is None:
                total = logits.new_zeros(batch["#size"], logits.shape[1], height, width)
                weights = logits.new_full((batch["#size"], 1, height, width), EPSILON)
            for (i, top, left), sample, own in zip(chosen, samples, logits, strict=True):
                h, w = sample["pixels"].shape[-2:]
                row = part["rows"][i]
                weight = (ramp(h, own)[:, None] * ramp(w, own))[None]
                total[row, :, top : top + h, left : left + w] += weight * own[:, :h, :w]
                weights[row, :, top : top + h, left : left + w] += weight
        assert total is not None and weights is not None
        return total / weights

    def _fitted(self, x: Tensor, height: int, width: int) -> Tensor:
        """Return the features (B, C, height, width) of the pixels.

        Overlapping patches have features at their centers, so that the edges are repeated.
        """
        pads: list[int] = []
        for axis, length in ((1, width), (0, height)):  # F.pad expects the last axis first
            before = (self.grid.size[axis] - self.grid.stride[axis]) // 2
            pads += [before, max(length - before - x.shape[2 + axis], 0)]
        if any(pads):
            x = F.pad(x, pads, mode="replicate")
        return x[:, :, :height, :width]


def starts(length: int, tile: int) -> list[int]:
    """Return where tiles start that cover a length and overlap by at least MIN_OVERLAP."""
    if length <= tile:
        return [0]
    count = math.ceil((length - tile) / (tile * (1 - MIN_OVERLAP))) + 1
    return [round(i * (length - tile) / (count - 1)) for i in range(count)]


def ramp(length: int, like: Tensor) -> Tensor:
    """Return the weight (length,) of the pixels of a tile: those in the middle know more."""
    index = torch.arange(length, device=like.device)
    return torch.minimum(index + 1, length - index).to(like.dtype) / length
