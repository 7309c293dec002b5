"""The layers of wav2vec 2.0 and HuBERT before the transformer: a waveform becomes tokens."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge
from einops import rearrange
from torch import Tensor, nn

from dxn.core.schema import options
from dxn.tokenize.patches import PatchGrid

Positive = Annotated[int, Ge(1)]


@options
class WaveformOptions:
    """Options of the convolutions of stem=wav2vec. The defaults are those of the base models.

    Args:
        widths: Number of channels after each convolution.
        kernels: Size of the kernel of each convolution.
        strides: Stride of each convolution.
        bias: Add a bias to the convolutions.
        norm: Norm after the convolutions: group (each channel over the time of a clip, only after
            the first convolution) or layer (the channels at each time, after each convolution).
        proj_norm: Normalize the channels before they are projected to the width of a token.
        pos_kernel: Size of the kernel of the convolution that adds the positions.
        pos_groups: Number of groups of this convolution.
        output_norm: Normalize the tokens, for a backbone whose norm.place is post.
    """

    widths: Sequence[Positive] = (512,) * 7
    kernels: Sequence[Positive] = (10, 3, 3, 3, 3, 2, 2)
    strides: Sequence[Positive] = (5, 2, 2, 2, 2, 2, 2)
    bias: bool = False
    norm: Literal["group", "layer"] = "group"
    proj_norm: bool = True
    pos_kernel: Positive = 128
    pos_groups: Positive = 16
    output_norm: bool = False

    def __post_init__(self) -> None:
        sizes = len(self.widths), len(self.kernels), len(self.strides)
        if len(set(sizes)) > 1 or not sizes[0]:
            raise ValueError(
                "widths, kernels and strides must have one number per convolution, got "
                f"{sizes[0]}, {sizes[1]} and {sizes[2]} numbers"
            )


class WaveformStem(nn.Module):
    """Strided convolutions over the samples, and one over the tokens that adds their positions.

    See arXiv:2006.11477, section 2. No sample but those of a clip affects its tokens.

    Args:
        options: Options of the convolutions.
        dim: Width D of a token.

    Attributes:
        grid: The samples from which each token is computed, as patches.
    """

    def __init__(self, options: WaveformOptions, dim: int):
        super().__init__()
        if dim % options.pos_groups:
            raise ValueError(
                f"patch.wav2vec.pos_groups must divide dim={dim}, got {options.pos_groups}"
            )
        self.kernels, self.strides = options.kernels, options.strides
        size = 1
        for kernel, stride in zip(options.kernels[::-1], options.strides[::-1], strict=True):
            size = (size - 1) * stride + kernel
        self.grid = PatchGrid((size, 1), (prod(options.strides), 1), pad_end=False)
        widths = [1, *options.widths]
        self.convs = nn.ModuleList(
            nn.Conv1d(before, after, kernel, stride, bias=options.bias)
            for before, after, kernel, stride in zip(
                widths, options.widths, options.kernels, options.strides, strict=False
            )
        )
        is_first_only = options.norm == "group"
        kind = TimeNorm if is_first_only else ChannelNorm
        self.norms = nn.ModuleList(
            nn.Identity() if i and is_first_only else kind(width)
            for i, width in enumerate(options.widths)
        )
        self.proj_norm = nn.LayerNorm(widths[-1]) if options.proj_norm else nn.Identity()
        self.proj = nn.Linear(widths[-1], dim)
        kernel = options.pos_kernel
        self.pos_conv = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=options.pos_groups)
        self.norm = nn.LayerNorm(dim) if options.output_norm else nn.Identity()

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Embed the samples of clips.

        Args:
            x: (B, T, 1).
            lengths: (B,). Number of samples of each clip. None: they have T samples.

        Returns:
            (B, N, D). The columns beyond the tokens of a clip have arbitrary values.
        """
        x = rearrange(x, "b t 1 -> b 1 t")
        # A clip that is shorter than one token is followed by silence.
        shortest = self.grid.size[0]
        if x.shape[2] < shortest:
            x = F.pad(x, (0, shortest - x.shape[2]))
        counts = None if lengths is None else lengths.clamp(min=shortest)
        sizes = zip(self.kernels, self.strides, strict=True)
        for conv, norm, (kernel, stride) in zip(self.convs, self.norms, sizes, strict=True):
            x = conv(x)
            if counts is not None:
                counts = (counts - kernel) // stride + 1
            x = F.gelu(norm(x, counts) if isinstance(norm, TimeNorm) else norm(x))
        x = self.proj(self.proj_norm(rearrange(x, "b c n -> b n c")))
        if counts is not None:
            x = x * _inside(counts, x.shape[1])[..., None]
        positions = self.pos_conv(rearrange(x, "b n d -> b d n"))
        # An even kernel results in one column more.
        positions = rearrange(positions[..., : x.shape[1]], "b d n -> b n d")
        return self.norm(x + F.gelu(positions))


class TimeNorm(nn.Module):
    """Normalize each channel over the time of a clip: a group norm that leaves out padding.

    Args:
        channels: Number of channels C.
    """

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, counts: Tensor | None) -> Tensor:
        """Normalize x (B, C, T), of which each sample has counts (B,) real values; None: T."""
        if counts is None:
            return F.group_norm(x, len(self.weight), self.weight, self.bias)
        inside = _inside(counts, x.shape[2])[:, None]
        num_real = counts[:, None, None]
        # Sums of so many values need float32.
        values = x if x.dtype == torch.float64 else x.float()
        mean = (values * inside).sum(2, keepdim=True) / num_real
        centered = values - mean
        variance = (centered.square() * inside).sum(2, keepdim=True) / num_real
        scaled = centered * torch.rsqrt(variance + 1e-5)  # the epsilon of torch's norms
        return (scaled * self.weight[:, None] + self.bias[:, None]).to(x.dtype)


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of x (B, C, T)."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize the channels at each time."""
        return super().forward(input.transpose(1, 2)).transpose(1, 2)


def _inside(counts: Tensor, size: int) -> Tensor:
    """Return a mask (B, size), True at the first counts (B,) columns."""
    return torch.arange(size, device=counts.device) < counts[:, None]
