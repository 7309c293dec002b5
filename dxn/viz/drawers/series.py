"""Draw series: one curve per channel, with their patches marked or colored."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from dxn.viz.drawers.drawer import Shown
from dxn.viz.drawers.panel import Panel, PanelDrawer, round_steps
from dxn.viz.drawers.strip import value_range
from dxn.viz.figure import new_figure

MAX_CHANNELS = 16  # curves in one picture; further channels would be too flat
INCHES = 5.2  # width of the picture of the curves
PIXELS = 160  # per inch
COLOR = "#2c5282"
MAX_POINTS = 120  # time steps; the points of a longer series would touch each other
MARKER = 4.0  # size of a point in points
MISSING_COLOR = "#e2e8f0"  # time steps at which a channel has no value


class SeriesDrawer(PanelDrawer):
    """Draws a series (T, C). Coordinates are (start, stop) in time steps, and the channel."""

    unit = "patch"
    max_marks = 120
    is_drawing = True
    time_unit = "time steps"

    def size(self, shown: Shown) -> tuple[float, float]:
        return INCHES, _height(shown) + 0.7

    def panel(self, shown: Shown) -> Panel:
        return series_panel(shown)

    def note(self, shown: Shown, coords: np.ndarray) -> str:
        hidden = shown.raw.shape[1] - MAX_CHANNELS
        return f", {hidden} more channels are not drawn" if hidden > 0 else ""

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        names: list[str | None] = []
        for row in coords.tolist():
            if np.isnan(row[0]):
                names.append(None)  # a code or padding has no time
                continue
            channel = f", channel {int(row[2]) + 1}" if len(row) > 2 else ""
            # Counted from 1, and the last step is included.
            # A patch can start with padding in front of the series.
            first, last = max(int(row[0]), 0) + 1, int(row[1])
            steps = f"step {last}" if first == last else f"steps {first} to {last}"
            names.append(f"{steps}{channel}")
        return names

    def boxes(self, shown: Shown, coords: np.ndarray) -> np.ndarray:
        """Return the boxes (N, 4) in time steps and in channels from the top."""
        count = min(shown.raw.shape[1], MAX_CHANNELS)
        if coords.shape[1] > 2:
            top = coords[:, 2]
            bottom = top + 1
        else:
            top = np.where(np.isnan(coords[:, 0]), np.nan, 0.0)
            bottom = top + count
        boxes = np.stack([top, coords[:, 0], bottom, coords[:, 1]], 1)
        boxes[boxes[:, 0] >= count] = np.nan  # channels that are not drawn
        return boxes

    def describe(self, shown: Shown) -> str:
        steps, channels = shown.raw.shape
        return f"{shown.name or 'series'}: {steps} time steps, {channels} channels"


def series_panel(shown: Shown) -> Panel:
    """Return one curve per channel as a panel, in time steps and channels from the top.

    Each channel fills its own height, from the smallest to the largest value of all series that are
    drawn in the same range. Where a value is missing, the background is grey.
    """
    values = shown.raw.numpy(force=True)[:, :MAX_CHANNELS]
    others = [other.numpy(force=True) for other in shown.like]
    steps, channels = values.shape
    height = _height(shown)
    figure = new_figure(INCHES, height)
    figure.set_layout_engine("none")
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_axis_off()
    axis.set(xlim=(0, steps), ylim=(channels, 0))
    time = np.arange(steps) + 0.5
    for i, channel in enumerate(values.T):
        for start, stop in _runs(np.isnan(channel)):
            axis.fill_between((start, stop), i, i + 1, color=MISSING_COLOR, linewidth=0)
        low, high = value_range(channel, *(other[:, i] for other in others))
        # Divided first: the range of huge values exceeds float32.
        scaled = channel / (high - low) - low / (high - low)
        # 10% of the height stay free above and below the curve.
        curve = i + 0.9 - 0.8 * scaled
        marker = MARKER if steps <= MAX_POINTS else 0
        axis.plot(time, curve, ".-", color=COLOR, linewidth=1, markersize=marker)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=PIXELS)
    file.seek(0)
    pixels = np.asarray(Image.open(file).convert("RGB"))
    # Whole numbers of steps.
    ticks = [(tick, f"{tick:g}") for tick in round_steps(steps, count=min(steps, 6))]
    names = [(i + 0.5, str(i + 1)) for i in range(channels)]
    return Panel(
        pixels,
        steps,
        channels,
        x_ticks=ticks,
        y_ticks=names if channels > 1 else (),
        x_label="time steps",
        y_label="channel" if channels > 1 else "",
    )


def _height(shown: Shown) -> float:
    """Return the height of all curves in inches."""
    channels = min(shown.raw.shape[1], MAX_CHANNELS)
    return max(1.2, min(0.5 * channels, 4.0))


def _runs(mask: np.ndarray) -> Sequence[tuple[int, int]]:
    """Return start and stop of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(int)))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]
