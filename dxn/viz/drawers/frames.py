"""Draw frames of cells over time: a strip of frames, with a box around each token.

Each value has a color, from dark blue (low) to yellow (high).
"""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from torch import Tensor

from dxn.viz.drawers.boxes import Panel
from dxn.viz.drawers.drawer import Shown
from dxn.viz.drawers.image import grid_places
from dxn.viz.drawers.panel import PanelDrawer

MISSING = (160, 160, 160)  # no color of the map is grey
SIDE = 96  # pixels of the longer side of a frame, at least
GAP = 0.08  # between frames, relative to their width
WIDTH = 7.0  # inches of a strip
PER_ROW = 8  # frames per row of a strip
MAX_FRAMES = 24
WHITE = 255


class FramesDrawer(PanelDrawer):
    """Draws a series (T, H * W) whose channels are the cells of frames, its last frames.

    Coordinates are (start, stop) in time steps, and (top, left, bottom, right) in cells. A token of
    several frames is marked in its first one. Tokens of future frames are not drawn.
    """

    unit = "patch"
    is_drawing = True

    def size(self, shown: Shown) -> tuple[float, float]:
        panel = self.panel(shown)
        return WIDTH, WIDTH * panel.height / panel.width

    def panel(self, shown: Shown) -> Panel:
        """Return the frames in rows of PER_ROW frames."""
        height, width = shown.preprocessor.reader.grid_size
        frames = _frames(shown)
        limits = value_range(frames, *(_frames(shown, other) for other in shown.like))
        zoom = zoom_of(height, width)
        cell = _cell(shown)
        down, across = -(-len(frames) // PER_ROW), min(len(frames), PER_ROW)
        gap = cell[1] - width
        size = (zoom * (down * cell[0] - gap), zoom * (across * cell[1] - gap), 3)
        pixels = np.full(size, WHITE, np.uint8)
        for i, frame in enumerate(frames):
            top, left = (zoom * n * step for n, step in zip(divmod(i, PER_ROW), cell, strict=True))
            colors = draw_frame(frame, limits).repeat(zoom, 0).repeat(zoom, 1)
            pixels[top : top + zoom * height, left : left + zoom * width] = colors
        return Panel(pixels, pixels.shape[1] / zoom, pixels.shape[0] / zoom)

    def boxes(self, shown: Shown, coords: np.ndarray) -> np.ndarray:
        """Return the boxes (N, 4) of tokens with coords (N, 6), NaN if they are not drawn."""
        # The coordinates count from the start of the window that the model reads. Before a shorter
        # series, it has missing frames.
        window = shown.preprocessor.history_steps or len(shown.raw)
        step = coords[:, 0] + len(_frames(shown)) - window
        row, column = np.divmod(step, PER_ROW)
        height, width = _cell(shown)
        boxes = coords[:, 2:] + np.tile(np.stack([row * height, column * width], 1), 2)
        boxes[(step < 0) | (coords[:, 0] >= window)] = np.nan
        return boxes

    def note(self, shown: Shown, coords: np.ndarray) -> str:
        hidden = len(shown.raw) - MAX_FRAMES
        return f", {hidden} earlier frames are not drawn" if hidden > 0 else ""

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        places = grid_places(coords[:, 2:])
        return [
            None if place is None else f"step {int(start) + 1}, row {place[0]}, col {place[1]}"
            for start, place in zip(coords[:, 0], places, strict=True)
        ]

    def describe(self, shown: Shown) -> str:
        height, width = shown.preprocessor.reader.grid_size
        return f"{shown.name or 'series'}: {len(shown.raw)} frames of {height}×{width} cells"


def _frames(shown: Shown, values: Tensor | None = None) -> np.ndarray:
    """Return the drawn frames (T, H, W) of the input, or of other values of the same shape."""
    raw = shown.raw if values is None else values
    frames = raw[-MAX_FRAMES:].unflatten(1, shown.preprocessor.reader.grid_size)
    return frames.numpy(force=True)


def _cell(shown: Shown) -> tuple[int, int]:
    """Return the height and width of a frame with its gap, in cells."""
    height, width = shown.preprocessor.reader.grid_size
    gap = max(round(GAP * width), 1)
    return height + gap, width + gap


def value_range(*values: np.ndarray) -> tuple[float, float]:
    """Return the lowest and the highest value of arrays without missing ones."""
    present = np.concatenate([array[np.isfinite(array)] for array in values])
    if not len(present):
        return 0.0, 1.0
    low, high = float(present.min()), float(present.max())
    # Half of a large number is more than a rounding error of it.
    around = max(abs(low) / 2, 0.5)
    return (low, high) if high > low else (low - around, high + around)


def draw_frame(values: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    """Return the cells (H, W) as a picture, uint8 (H, W, 3). Missing cells are grey."""
    low, high = limits
    scaled = (values.astype(float) - low) / (high - low)
    pixels = 255 * mpl.colormaps["viridis"](np.nan_to_num(scaled).clip(0, 1))[..., :3]
    return np.where(np.isnan(values)[..., None], MISSING, pixels).astype(np.uint8)


def zoom_of(height: int, width: int) -> int:
    """Return the number of pixels of the side of a cell."""
    return max(1, -(-SIDE // max(height, width)))
