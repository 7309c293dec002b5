"""The head of segmentation: tokens and pixels become logits of each pixel."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.core.dropout import Dropout
from dxn.core.tokens import Tokens
from dxn.tasks.space import Batch
from dxn.tokenize.patches import grid_mask
from dxn.tokenize.statistics import normalize_pixels


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
        pooled_dim: int = 0,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.input = input
        self.grid = adapter.grid
        # Copies, because those of the adapter change in a model that is only used.
        self.register_buffer("mean", adapter.mean.detach().clone())
        self.register_buffer("std", adapter.std.detach().clone())
        self.context = nn.Linear(pooled_dim, dim) if pooled_dim else None
        self.dropout = Dropout(dropout)
        stride = self.grid.stride
        self.features = nn.Linear(dim, channels * stride[0] * stride[1])
        width = channels + len(self.mean)
        self.hidden = nn.Conv2d(width, channels, 3, padding=1)
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
        x = F.gelu(self.hidden(x)) * inside
        x = self.out(x)
        return x.new_zeros(batch["#size"], *x.shape[1:]).index_copy(0, rows, x)

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
