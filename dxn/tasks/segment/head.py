"""The head of segmentation: tokens and pixels become logits of each pixel."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.core.dropout import Dropout
from dxn.core.tokens import Tokens
from dxn.tasks.segment.target import tile_of
from dxn.tasks.space import Batch
from dxn.tokenize.base import pad
from dxn.tokenize.patches import PatchGrid, ResidualConv, activated, grid_mask
from dxn.tokenize.statistics import normalize_pixels

MAX_LEVELS = 2  # halvings of the resolution of the features of pixels
BLOCKS = 2  # residual convolutions at each lower resolution
KEYS = ("pixels", "sizes", "frame")  # of a prepared picture
MAX_TILES = 16  # that are encoded at once
MIN_OVERLAP = 0.25  # of neighbouring tiles, as a fraction of their length
EPSILON = 1e-6  # of the weights, where a picture is padding


class SegmentHead(nn.Module):
    """Maps the tokens of pictures to logits of classes at each pixel.

    Convolutions of the pixels have features at 1, 1/2 and 1/4 of the resolution. Each token is
    mapped to features of the cells of its patch at the lowest resolution, which are added. From
    there to the pixels, the features are doubled in height and width, and those of the pixels are
    added again, as in a U-Net (arXiv:1505.04597). So the edges of areas are as sharp as those of
    the picture, and each token needs few features.

    Args:
        dim: Width D of a token.
        num_classes: Number K of classes.
        input: Name of the input.
        adapter: Adapter of the input.
        channels: Number of features of a pixel. It doubles with each halving of the resolution.
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
        channels: int = 16,
        tile: int = 0,
        pooled_dim: int = 0,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.input = input
        self.tile = tile
        self.grid = adapter.grid
        # Copies, because those of the adapter change in a model that is only used.
        self.register_buffer("mean", adapter.mean.detach().clone())
        self.register_buffer("std", adapter.std.detach().clone())
        self.context = nn.Linear(pooled_dim, dim) if pooled_dim else None
        self.dropout = Dropout(dropout)
        self.levels = levels_of(self.grid)
        widths = [channels * 2**level for level in range(self.levels + 1)]
        self.cells = (self.grid.stride[0] >> self.levels, self.grid.stride[1] >> self.levels)
        self.features = nn.Linear(dim, widths[-1] * self.cells[0] * self.cells[1])
        # The bias keeps the brightness, which a norm alone would remove.
        self.down = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=2 if i else 1, padding=1)
            for i, (a, b) in enumerate(pairwise([len(self.mean), *widths]))
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths)
        self.blocks = nn.ModuleList(
            nn.ModuleList(ResidualConv(width, (3, 3), (1, 1)) for _ in range(BLOCKS if i else 1))
            for i, width in enumerate(widths)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairwise(widths))
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
        p, q = self.cells
        x = rearrange(x, "b (h w) (p q c) -> b c (h p) (w q)", h=down, p=p, q=q)
        plain = normalize_pixels(pixels, self.mean, self.std)
        # Padding is 0 in each layer, so that other samples have no effect.
        inside = grid_mask(sizes, height, width)[:, None]
        y = (plain * inside).to(x.dtype).contiguous(memory_format=torch.channels_last)
        known: list[tuple[Tensor, Tensor]] = []  # features and their mask at each level
        for level, (conv, norm) in enumerate(zip(self.down, self.norms, strict=True)):
            if level:
                sizes = (sizes + 1) // 2  # kernel size 3, stride 2 and padding 1
            y = conv(y)
            inside = grid_mask(sizes, y.shape[2], y.shape[3])[:, None]
            y = activated(y, norm, inside)
            known.append((y, inside))
        x = y + self._fitted(x, y.shape[2], y.shape[3]) * inside
        for level in reversed(range(len(known))):
            y, inside = known[level]
            if level < self.levels:
                x = self.up[level](x)[:, :, : y.shape[2], : y.shape[3]] * inside + y
            for block in cast("nn.ModuleList", self.blocks[level]):
                x = block(x, inside)
        x = self.out(x)
        return x.new_zeros(batch["#size"], *x.shape[1:]).index_copy(0, rows, x)

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
        # A graph is for pictures of any size.
        if max(height, width) <= self.tile or torch.compiler.is_exporting():
            return output_of(batch)
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
            logits = output_of({"#size": len(samples), self.input: tiles})
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
        """Return the features (B, C, height, width) of the cells at the lowest resolution.

        Overlapping patches have features at their centers, so that the edges are repeated.
        """
        pads: list[int] = []
        for axis, length in ((1, width), (0, height)):  # F.pad expects the last axis first
            before = (self.grid.size[axis] - self.grid.stride[axis]) // 2 >> self.levels
            pads += [before, max(length - before - x.shape[2 + axis], 0)]
        if any(pads):
            x = F.pad(x, pads, mode="replicate")
        return x[:, :, :height, :width]


def levels_of(grid: PatchGrid) -> int:
    """Return how often the resolution is halved: the stride of patches must be a multiple of it."""
    return next(n for n in range(MAX_LEVELS, -1, -1) if not any(s % 2**n for s in grid.stride))


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
