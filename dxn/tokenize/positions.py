"""Where a token stands: added to its column, or left to the backbone (rotary, ALiBi)."""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor, nn

from dxn.tokens import sinusoidal

PositionKind = Literal["learned", "sinusoidal", "none"]


def sinusoidal_2d(height: int, width: int, dim: int) -> Tensor:
    """(height, width, dim): half of each code for the row, half for the column. dim a multiple of 4."""
    if dim % 4:
        raise ValueError(f"dim must be a multiple of 4 for two-dimensional sinusoidal positions, got {dim}")
    rows = sinusoidal(torch.arange(height), dim // 2)
    columns = sinusoidal(torch.arange(width), dim // 2)
    return torch.cat([repeat(rows, "h d -> h w d", w=width), repeat(columns, "w d -> h w d", h=height)], dim=-1)


class Positions1d(nn.Module):
    """Codes of the indices 0..n-1. Learned ones raise ValueError beyond max_len, sinusoidal ones go on."""

    def __init__(self, kind: PositionKind, *, dim: int, max_len: int):
        super().__init__()
        self.kind, self.dim, self.max_len = kind, dim, max_len
        if kind == "learned":
            self.table = nn.Parameter(torch.empty(max_len, dim))
            nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, n: int, device: torch.device) -> Tensor:
        """(n, D), or a zero that broadcasts where there are no positions."""
        if self.kind == "none":
            return torch.zeros((), device=device)
        if self.kind == "sinusoidal":
            return sinusoidal(torch.arange(n, device=device), self.dim)
        if n > self.max_len:
            raise ValueError(f"learned positions reach {self.max_len} tokens, got {n}: raise max_len")
        return self.table[:n]


class Positions2d(nn.Module):
    """Codes of a grid's cells; a learned grid is interpolated to any other height and width."""

    def __init__(self, kind: PositionKind, *, dim: int, grid: tuple[int, int]):
        super().__init__()
        self.kind, self.dim = kind, dim
        if kind == "learned":
            self.table = nn.Parameter(torch.empty(*grid, dim))
            nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, height: int, width: int, device: torch.device) -> Tensor:
        """(height, width, D), or a zero that broadcasts where there are no positions."""
        if self.kind == "none":
            return torch.zeros((), device=device)
        if self.kind == "sinusoidal":
            return sinusoidal_2d(height, width, self.dim).to(device)
        if (height, width) == self.table.shape[:2]:
            return self.table
        table = rearrange(self.table, "h w d -> 1 d h w")
        table = F.interpolate(table, (height, width), mode="bicubic", antialias=True, align_corners=False)
        return rearrange(table, "1 d h w -> h w d")
