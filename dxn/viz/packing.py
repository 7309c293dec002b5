"""Rows of panels: inputs of different sizes side by side, to save empty room."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dxn.viz.figures import new_figure

WIDTH = 10.4  # inches of a picture
TITLE = 0.7  # inches of the title of the figure
SPACE = (0.9, 0.7)  # inches for the labels beside a panel, and for the title above it


def pack(sizes: Sequence[tuple[float, float]], width: float = WIDTH) -> list[list[int]]:
    """Distribute panels over rows, in their order.

    Args:
        sizes: Width and height of each panel in inches.
        width: Width of a row in inches. A wider panel has a row of its own.

    Returns:
        The indices of the panels of each row.
    """
    rows: list[list[int]] = []
    room = 0.0
    for i, (needed, _) in enumerate(sizes):
        if rows and needed <= room:
            rows[-1].append(i)
        else:
            rows.append([i])
            room = width
        room -= needed
    return rows


def packed_axes(
    sizes: Sequence[tuple[float, float]], *, stretch_last: bool = False
) -> tuple[Figure, list[Axes]]:
    """Create a figure with one axis per panel, packed into rows.

    Args:
        sizes: Width and height of each panel in inches, without labels.
        stretch_last: Whether the last panel takes the rest of its row.
    """
    outer = [(width + SPACE[0], height + SPACE[1]) for width, height in sizes]
    rows = pack(outer)
    heights = [max(outer[i][1] for i in row) for row in rows]
    width = min(max(sum(outer[i][0] for i in row) for row in rows), WIDTH)
    figure = new_figure(max(width, 6.0), sum(heights) + TITLE)
    parts = figure.subfigures(len(rows), 1, height_ratios=heights, squeeze=False)[:, 0]
    axes: dict[int, Axes] = {}
    for part, row in zip(parts, rows, strict=True):
        widths = [outer[i][0] for i in row]
        # A row that is not full ends with an empty axis, so that panels keep their size.
        rest = width - sum(widths)
        if stretch_last and row is rows[-1]:
            widths[-1] += rest
        elif rest > 0.5:
            widths.append(rest)
        grid = part.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
        for axis in grid[len(row) :]:
            axis.set_axis_off()
        axes |= dict(zip(row, grid, strict=False))
    return figure, [axes[i] for i in range(len(sizes))]
