"""Finite scalar quantization: vectors become whole numbers, without a table that is learned."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

MAX_CODES = 2**20  # of one stage


class FiniteScalars(nn.Module):
    """Rounds each of d numbers to one of a few levels (FSQ, arXiv:2309.15505, section 3.1).

    A number is limited to -1 to 1 by tanh, and rounded to one of L levels with equal distances.
    The levels of all numbers together are a code. Gradients pass the rounding unchanged. With
    several stages, each rounds what the previous one left over, on a grid that is finer by the
    factor L - 1, so that the first codes alone are a coarse version.

    Args:
        levels: Number of levels L of each of the d numbers.
        stages: Number R of codes per vector.

    Raises:
        ValueError: If a number of levels is below 2, or there are too many codes.
    """

    counts: Tensor
    factors: Tensor

    def __init__(self, levels: Sequence[int], *, stages: int = 1):
        super().__init__()
        check_levels(levels)
        self.stages = stages
        self.num_codes = math.prod(levels)
        steps = torch.tensor(list(levels))
        self.register_buffer("counts", steps, persistent=False)
        factors = torch.cat([torch.ones(1).long(), steps.cumprod(0)[:-1]])
        self.register_buffer("factors", factors, persistent=False)

    @property
    def width(self) -> int:
        """Number d of numbers of a vector."""
        return len(self.counts)

    def forward(self, z: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the rounded vectors (..., d), from -1 to 1, and their codes (..., R).

        Args:
            z: Any numbers (..., d).
            noise: (..., d). Numbers from -1 to 1, by which numbers are moved by up to half a level
                of the last stage before they are rounded. None: they are not moved.
        """
        x = z.tanh()
        highest = self.counts - 1
        rest = x.detach()
        if noise is not None:
            rest = (rest + noise * highest.to(x.dtype) ** -self.stages).clamp(-1, 1)
        total = torch.zeros_like(rest)
        codes: list[Tensor] = []
        for stage in range(self.stages):
            scale = highest.to(x.dtype) ** -stage
            index = ((rest / scale + 1) / 2 * highest).round()
            index = index.clamp(torch.zeros_like(highest), highest)
            value = (2 * index / highest - 1) * scale
            total, rest = total + value, rest - value
            codes.append((index.long() * self.factors).sum(-1))
        return x + (total - x.detach()), torch.stack(codes, -1)

    def distance(self, z: Tensor) -> Tensor:
        """Return the distance of each number (..., d) from its middle level, before the rounding.

        The unit is a level of the first stage, and distances are fractions of it too. The middle of
        an even number of levels is the upper one of the two in the middle.
        """
        half = (self.counts - 1) / 2
        return (z.tanh() * half - (self.counts // 2 - half)).abs()

    def vectors(self, codes: Tensor) -> Tensor:
        """Return the rounded vectors (..., d) of codes (..., R)."""
        highest = self.counts - 1
        index = codes[..., None] // self.factors % self.counts  # (..., R, d)
        stage = torch.arange(codes.shape[-1], device=codes.device)[:, None]
        scale = highest.float() ** -stage
        return ((2 * index / highest - 1) * scale).sum(-2)


def check_levels(levels: Sequence[int]) -> None:
    """Check the numbers of levels.

    Raises:
        ValueError: If a number is below 2, or there are too many codes.
    """
    if not levels or min(levels) < 2 or math.prod(levels) > MAX_CODES:
        raise ValueError(
            f"levels must be numbers of at least 2 with a product of at most {MAX_CODES:,}, got "
            f"{list(levels)}"
        )
