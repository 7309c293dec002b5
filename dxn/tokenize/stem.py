"""Convolutional stems, an alternative to the linear projection of flattened patches."""

import math
from itertools import pairwise
from typing import Literal, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.tokenize.grid import grid_mask


class ConvStem(nn.Module):
    """Convolutions of stride 2, followed by a projection to D (arXiv:2106.14881).

    Each convolution has a kernel size of 3. Its output is normalized by a layer norm over the
    channels of each cell, and set to 0 outside the image. So neither padding nor other samples can
    affect a real cell. A batch norm, as in the paper, would not have this property.

    The first convolution has a bias. Without it, the norm would remove the scale of a cell, and a
    gray area would look like a black one.

    With blocks, each of the last two convolutions is followed by residual convolutions of stride 1.

    Args:
        in_channels: Number of channels C of the grid.
        dim: Width D of a token.
        stride: Total stride of all convolutions: 2, 4, 8, 16 or 32.
        width: Number of channels after the first convolution. With axes=2, each further convolution
            doubles it.
        axes: Number of axes with a stride: 2 for height and width, 1 for the height only.
        blocks: Number of residual convolutions after each of the last two convolutions.
        merged: Number of neighbouring cells along the width that are projected to one token
            together. It must divide the number of cells along the width.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        dim: int,
        stride: int,
        width: int = 48,
        axes: Literal[1, 2] = 2,
        blocks: int = 0,
        merged: int = 1,
    ):
        super().__init__()
        num_convs = int(math.log2(stride)) if stride > 0 else 0
        if not 1 <= num_convs <= 5 or 2**num_convs != stride:
            raise ValueError(
                f"the stride of stem=conv (patch_size or frame_size) must be 2, 4, 8, 16 or 32, "
                f"got {stride}"
            )
        widths = [in_channels, *(width * axes**i for i in range(num_convs))]
        self.axes = axes
        # With one axis, the kernel size along the width is 1, so that columns never mix.
        kernel, step, pad = ((3, 3), (2, 2), (1, 1)) if axes == 2 else ((3, 1), (2, 1), (1, 0))
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, kernel, step, pad, bias=i == 0)
            for i, (a, b) in enumerate(pairwise(widths))
        )
        self.norms = nn.ModuleList(nn.LayerNorm(w) for w in widths[1:])
        counts = [blocks if i >= num_convs - 2 else 0 for i in range(num_convs)]
        self.blocks = nn.ModuleList(
            nn.ModuleList(_Residual(w, kernel, pad) for _ in range(count))
            for w, count in zip(widths[1:], counts, strict=True)
        )
        self.merged = merged
        self.proj = nn.Linear(widths[-1] * merged, dim)

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        """Embed the cells of a grid.

        Args:
            x: (B, C, H, W). It must be 0 outside the grid of each sample.
            sizes: (B, 2). Height and width of the grid of each sample.

        Returns:
            (B, ceil(H / stride), ceil(W / stride) / merged, D). With axes=1,
            (B, ceil(H / stride), W / merged, D).
        """
        # On a CPU, convolutions and norms over the channels are faster in this memory format.
        x = x.contiguous(memory_format=torch.channels_last)
        for conv, norm, blocks in zip(self.convs, self.norms, self.blocks, strict=True):
            x = conv(x)
            # ceil(size / 2): kernel size 3, stride 2 and padding 1.
            sizes = torch.cat([sizes[:, : self.axes].add(1) // 2, sizes[:, self.axes :]], 1)
            # The bias of a norm makes padding nonzero, so each layer sets it to 0 again.
            inside = rearrange(grid_mask(sizes, x.shape[2], x.shape[3]), "b h w -> b 1 h w")
            x = _activated(x, norm, inside)
            for block in cast("nn.ModuleList", blocks):
                x = block(x, inside)
        return self.proj(rearrange(x, "b c h (w m) -> b h w (m c)", m=self.merged))


class _Residual(nn.Module):
    """A convolution of stride 1 whose output is added to its input."""

    def __init__(self, width: int, kernel: tuple[int, int], pad: tuple[int, int]):
        super().__init__()
        self.conv = nn.Conv2d(width, width, kernel, padding=pad, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, inside: Tensor) -> Tensor:
        """Apply it to x (B, C, H, W), with inside (B, 1, H, W) True in the grid of a sample."""
        return x + _activated(self.conv(x), self.norm, inside)


def _activated(x: Tensor, norm: nn.Module, inside: Tensor) -> Tensor:
    """Normalize x (B, C, H, W) over C, apply GELU, and set the cells outside the grid to 0."""
    x = F.gelu(norm(rearrange(x, "b c h w -> b h w c")))
    return rearrange(x, "b h w c -> b c h w") * inside


class WhisperStem(nn.Module):
    """Whisper's two convolutions over frames (arXiv:2212.04356, section 2.2).

    The second one has a stride of 2.

    Args:
        n_mels: Number of mel bins F.
        dim: Width D of a token.
    """

    def __init__(self, n_mels: int, dim: int):
        super().__init__()
        self.conv1 = nn.Conv1d(n_mels, dim, 3, padding=1)
        self.conv2 = nn.Conv1d(dim, dim, 3, stride=2, padding=1)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Embed frames.

        Args:
            x: (B, T, F). It must be 0 beyond the length of each sample.
            lengths: (B,). Number of frames of each sample.

        Returns:
            (B, ceil(T / 2), D).
        """
        # The bias of the first convolution makes padding nonzero, so it is set to 0 again.
        inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        x = F.gelu(self.conv1(rearrange(x, "b t f -> b f t"))) * rearrange(inside, "b t -> b 1 t")
        return rearrange(F.gelu(self.conv2(x)), "b d t -> b t d")
