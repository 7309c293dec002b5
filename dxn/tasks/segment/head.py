"""The head of segmentation: tokens and pixels become logits of each pixel."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.core.dropout import Dropout
from dxn.core.tokens import Tokens
from dxn.tasks.segment.tiles import TiledHead
from dxn.tasks.space import Batch
from dxn.tokenize.image.normalization import normalize_pixels
from dxn.tokenize.patches import PatchGrid, ResidualConv, activated, grid_mask

MAX_LEVELS = 2  # halvings of the resolution of the features of pixels
BLOCKS = 2  # residual convolutions at each lower resolution


class SegmentHead(TiledHead):
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
        tile: See `TiledHead`.
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
        super().__init__(input, tile)
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
