"""Patches of the cells of frames: each one is a group of channels of a series."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Without an option, a frame has at most this many patches of cells: attention is quadratic in them.
USUAL_PATCHES = 64


@dataclass(frozen=True)
class CellPatches:
    """Square patches that cover frames of H×W cells, which are the channels of a series.

    Args:
        grid_size: Height H and width W of a frame.
        size: Height and width of a patch in cells.
        margin: Number of cells beyond each side of a patch that its token reads, too.
        periodic: Whether the opposite border follows beyond a border of a frame.
    """

    grid_size: tuple[int, int]
    size: int
    margin: int = 0
    periodic: bool = False

    @classmethod
    def of(
        cls, grid_size: tuple[int, int], size: int | None, margin: int | None, *, periodic: bool
    ) -> CellPatches:
        """Return the patches of the given sizes, or of the usual ones."""
        if size is None:
            size = 1
            while len(cls(grid_size, size)) > USUAL_PATCHES:
                size *= 2
        return cls(grid_size, size, size if margin is None else margin, periodic)

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of patches along the height and the width, rounded up."""
        return -(-self.grid_size[0] // self.size), -(-self.grid_size[1] // self.size)

    def __len__(self) -> int:
        return self.counts[0] * self.counts[1]

    @property
    def width(self) -> int:
        """Number of cells that a token reads along each axis."""
        return self.size + 2 * self.margin

    def order(self) -> Tensor:
        """Return the cells that each token reads (n * width * width,), H * W beyond the frame.

        Patches and their cells are ordered row by row.
        """
        rows, columns = map(self._along, self.grid_size)  # (patches, width)
        cells = rows[:, None, :, None] * self.grid_size[1] + columns[None, :, None, :]
        inside = (rows >= 0)[:, None, :, None] & (columns >= 0)[None, :, None, :]
        return cells.masked_fill(~inside, self.grid_size[0] * self.grid_size[1]).flatten()

    def places(self) -> Tensor:
        """Return the place of each cell (H * W,) in the patches without their margins."""
        order = CellPatches(self.grid_size, self.size).order()
        return order.argsort(stable=True)[: self.grid_size[0] * self.grid_size[1]]

    def _along(self, length: int) -> Tensor:
        """Return the cells of each patch along one axis (n, width), -1 beyond the frame."""
        starts = torch.arange(0, length, self.size) - self.margin
        index = starts[:, None] + torch.arange(self.width)
        if self.periodic:
            return index % length
        return index.masked_fill((index < 0) | (index >= length), -1)

    def codes(self, dim: int) -> Tensor:
        """Return a code of the place of each patch (n, dim), with which the training starts.

        Codes consist of sines and cosines with whole periods per frame, so their inner product
        depends on the distance of two patches, also across the borders of a periodic grid.
        """
        axes: list[Tensor] = []
        for count in self.counts:
            angle = 2 * torch.pi * torch.arange(count) / count
            # A multiple from the half of the count on repeats a smaller one.
            multiples = torch.arange(1, dim // 4 + 1) % max(count // 2 + 1, 1)
            angles = angle[:, None] * multiples
            axes.append(torch.cat([angles.sin(), angles.cos()], 1))
        down, across = self.counts
        rows, columns = axes[0].repeat_interleave(across, 0), axes[1].repeat(down, 1)
        return F.pad(torch.cat([rows, columns], 1), (0, dim % 4))

    def boxes(self) -> Tensor:
        """Return top, left, bottom and right of each patch in cells (n, 4)."""
        down, across = self.counts
        start = torch.cartesian_prod(torch.arange(down), torch.arange(across)) * self.size
        stop = torch.minimum(start + self.size, torch.tensor(self.grid_size))
        return torch.cat([start, stop], 1)


def divided(x: Tensor, order: Tensor) -> Tensor:
    """Return cells (..., H * W) patch by patch, 0 beyond the frame.

    Args:
        x: The cells of frames.
        order: See `CellPatches.order`.
    """
    return F.pad(x, (0, 1))[..., order]
