"""The values of the patches of a modality, and the way back from them to a raw value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from dxn.tokenize.patches import PatchGrid

# Values (G, C, H, W) of a sample, normalized, and which of them are known. None: all of them.
Contents = Callable[[Mapping[str, Tensor]], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class PatchContents:
    """The values of the patches of samples, in the order of the columns. It can be pickled.

    Args:
        grid: Patches of the adapter.
        read: Function that returns the values of a sample, such as the pixels of a picture: G
            groups, such as the frames of a clip, of C channels with H × W cells.
        channels: Number C of channels.
        shift: What is added to values times `scale`, of a shape that can be expanded to (C, H, W).
        scale: See `shift`. The result has the unit of the raw value, with pixels from 0 to 1.
        restore: Function that returns the raw value of values (G, C, H, W) in their unit. None: the
            values do not determine it.
        peak: Largest difference of two values in their unit. None: there is no such limit.
    """

    grid: PatchGrid
    read: Contents
    channels: int
    shift: Tensor
    scale: Tensor
    restore: Callable[[Tensor], Any] | None
    peak: float | None = None

    @property
    def num_outputs(self) -> int:
        """Number K of values of a patch."""
        return self.channels * math.prod(self.grid.size)

    def patches(self, sample: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the normalized values (N, K) of the columns of a sample, and which are known."""
        x, is_present = self.read(sample)
        if is_present is None:
            is_present = torch.ones_like(x, dtype=torch.bool)
        values, valid = (
            rearrange(self.grid.unfold(values), "g c h w p q -> (g h w) (c p q)")
            for values in (x, is_present)
        )
        return values, valid

    def count(self, size: tuple[int, int, int]) -> int:
        """Return the number of columns of a sample with G, H and W."""
        return size[0] * self.grid.count(size[1], 0) * self.grid.count(size[2], 1)

    def step(self, usual: tuple[int, int, int]) -> int:
        """Return the number of columns by which a shorter or longer sample differs.

        They are those of a group if there are several, and otherwise a row of patches.

        Args:
            usual: G, H and W of a sample.
        """
        groups, height, width = usual
        across = self.grid.count(width, 1)
        return self.grid.count(height, 0) * across if groups > 1 else across

    def size(self, num_columns: int, usual: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return G, H and W of a sample with a number of columns.

        Args:
            num_columns: Number of columns N, a multiple of `step`.
            usual: G, H and W of another sample. A shorter or longer one has fewer or more groups if
                there are several, and otherwise another height.
        """
        groups, height, width = usual
        if num_columns == self.count(usual):
            return usual
        count = num_columns // self.step(usual)
        if groups > 1:
            return count, height, width
        return groups, count * self.grid.size[0], width

    def joined(self, values: Tensor, size: tuple[int, int, int]) -> Tensor:
        """Return normalized values (B, G, C, H, W) of patches (B, N, K) that do not overlap.

        Args:
            values: (B, N, K).
            size: G, H and W.
        """
        groups, height, width = size
        down, across = self.grid.count(height, 0), self.grid.count(width, 1)
        x = rearrange(
            values,
            "b (g h w) (c p q) -> b g c (h p) (w q)",
            g=groups,
            h=down,
            w=across,
            p=self.grid.size[0],
            q=self.grid.size[1],
        )
        return x[..., :height, :width]

    def natural(self, x: Tensor) -> Tensor:
        """Return normalized values (..., C, H, W) in the unit of the raw value."""
        return x * self.scale.to(x.device) + self.shift.to(x.device)

    def raw(self, values: Tensor, size: tuple[int, int, int]) -> Any:
        """Return the raw value of the normalized values (N, K) of its columns."""
        assert self.restore is not None, "codecs refuse such inputs"
        return self.restore(self.natural(self.joined(values[None].float().cpu(), size)[0]))
