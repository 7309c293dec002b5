"""A convolution in the embedding: a grid of features in place of flattened patches."""

import math
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn


class ConvStem(nn.Module):
    """Convolutions of width 3, each halving the grid, then a projection to D (arXiv:2106.14881, 3).

    Normalised over channels at each cell, and cleared outside the picture after every layer, so neither
    padding nor another sample can change a real cell (a batch norm would break both).

    Args:
        in_channels: channels C of the grid.
        dim: width D of a token.
        stride: 2, 4, 8 or 16, cells of the grid a token.
        width: channels after the first convolution; each further one doubles them in a grid of two axes.
        axes: 2 halves height and width; 1 halves height alone, and the width stays as it is.
    """

    def __init__(self, *, in_channels: int, dim: int, stride: int, width: int = 48, axes: Literal[1, 2] = 2):
        super().__init__()
        steps = int(math.log2(stride))
        if 2**steps != stride or steps < 1:
            raise ValueError(f"stride of a convolutional stem must be 2, 4, 8 or 16, got {stride}")
        widths = [in_channels, *(width * axes**i for i in range(steps))]
        self.axes = axes
        size, step, pad = ((3, 3), (2, 2), (1, 1)) if axes == 2 else ((3, 1), (2, 1), (1, 0))
        self.convs = nn.ModuleList(nn.Conv2d(a, b, size, step, pad, bias=False) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.LayerNorm(w) for w in widths[1:])
        self.proj = nn.Linear(widths[-1], dim)

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        """x (B, C, H, W), zero outside each sample's sizes (B, 2), to (B, ceil(H/s), ceil(W/s) or W, D)."""
        x = x.contiguous(memory_format=torch.channels_last)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = conv(x)
            # What a convolution of width 3 and stride 2, padded by 1, leaves.
            sizes = torch.cat([sizes[:, : self.axes].add(1) // 2, sizes[:, self.axes :]], 1)
            inside = grid_mask(sizes, x.shape[2], x.shape[3])
            x = rearrange(F.gelu(norm(rearrange(x, "b c h w -> b h w c"))), "b h w c -> b c h w")
            x = x * rearrange(inside, "b h w -> b 1 h w")
        return self.proj(rearrange(x, "b c h w -> b h w c"))


class WhisperStem(nn.Module):
    """Two convolutions of width 3 over frames, the second of stride 2, each before a GELU (arXiv:2212.04356, 2.2)."""

    def __init__(self, n_mels: int, dim: int):
        super().__init__()
        self.conv1 = nn.Conv1d(n_mels, dim, 3, padding=1)
        self.conv2 = nn.Conv1d(dim, dim, 3, stride=2, padding=1)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """x (B, T, F), zero beyond each sample's lengths (B,), to (B, ceil(T / 2), D)."""
        inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        x = F.gelu(self.conv1(rearrange(x, "b t f -> b f t"))) * rearrange(inside, "b t -> b 1 t")
        return rearrange(F.gelu(self.conv2(x)), "b d t -> b t d")


def grid_mask(sizes: Tensor, height: int, width: int) -> Tensor:
    """sizes (B, 2) to (B, height, width) bool, True inside each sample's own grid."""
    rows = torch.arange(height, device=sizes.device) < sizes[:, :1]
    columns = torch.arange(width, device=sizes.device) < sizes[:, 1:]
    return rows[:, :, None] & columns[:, None, :]
