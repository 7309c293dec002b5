"""Draw videos and frames of cells as a strip of frames, with a box around each token."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction

import matplotlib as mpl
import numpy as np
from torch import Tensor

from dxn.tokenize.base import BadMedia
from dxn.tokenize.video.adapter import VideoAdapter
from dxn.tokenize.video.tokenizer import VideoTokenizer
from dxn.viz.drawers.drawer import Shown
from dxn.viz.drawers.image import grid_places, rgb
from dxn.viz.drawers.panel import Panel, PanelDrawer
from dxn.viz.media import CLIP_RATE, clip, mp4

WIDTH = 7.0  # inches of a strip
PER_ROW = 8  # frames per row of a strip
VIDEO_GAP, CELLS_GAP = 0.06, 0.08  # between frames, relative to their width
WHITE = 255
FILE_QUALITY = 12  # of H.264; differences are hardly visible
MISSING = (160, 160, 160)  # of a cell; no color of the map is grey
SIDE = 96  # pixels of the longer side of a frame of cells, at least
MAX_FRAMES = 24  # of cells


class StripDrawer(PanelDrawer):
    """Draws frames in rows of PER_ROW frames."""

    def size(self, shown: Shown) -> tuple[float, float]:
        panel = self.panel(shown)
        return WIDTH, WIDTH * panel.height / panel.width


class VideoDrawer(StripDrawer):
    """Draws a uint8 tensor (T, C, H, W), with the first frame of each tubelet.

    Coordinates are (start, stop) in frames, and (top, left, bottom, right) in pixels.
    """

    def panel(self, shown: Shown) -> Panel:
        """Return the first frame of each time step."""
        pixels = strip([rgb(shown.raw[int(start)]) for start in _starts(shown)], _gap(shown))
        return Panel(pixels, pixels.shape[1], pixels.shape[0])

    def boxes(self, shown: Shown, coords: np.ndarray) -> np.ndarray:
        """Return the boxes (N, 4) of tokens with coords (N, 6), NaN for padding."""
        step = np.searchsorted(_starts(shown), np.nan_to_num(coords[:, 0]))
        return in_strip(coords[:, 2:], step, shown.raw.shape[2:], _gap(shown))

    def note(self, shown: Shown, coords: np.ndarray) -> str:
        steps = len(np.unique(coords[:, 0]))
        places = len(coords) // max(steps, 1)
        frames = _frames_per_step(shown)
        of_frames = f" of {frames} frames, the first one is drawn" if frames > 1 else ""
        patches = f", {places} tokens each" if places > 1 else ""
        return f", {steps} steps{of_frames}{patches}"

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        places = grid_places(coords[:, 2:])
        has_patches = len(set(places) - {None}) > 1
        names: list[str | None] = []
        for start, place in zip(coords[:, 0], places, strict=True):
            if place is None:
                names.append(None)
                continue
            where = f", row {place[0]}, col {place[1]}" if has_patches else ""
            names.append(f"frame {int(start) + 1}{where}")
        return names

    def length(self, shown: Shown) -> float:
        """Return the seconds of the clip, or of its frames at their rate if the clip is gone."""
        reader = shown.preprocessor.reader
        with suppress(BadMedia):
            return reader.extent(shown.raw if shown.source is None else shown.source)[0]
        return reader.extent(shown.raw)[0]

    def file(self, shown: Shown) -> bytes:
        """Return the frames that the model reads as the content of an MP4 file."""
        prepare = shown.preprocessor
        fps = prepare.sampling.fps if isinstance(prepare, VideoTokenizer) else None
        rate = Fraction(fps or CLIP_RATE).limit_denominator(1000)
        return mp4(_pictures(shown), rate=rate, quality=FILE_QUALITY)

    def fragment(self, shown: Shown) -> str:
        """Return the frames that the model reads as a short clip."""
        return clip(_pictures(shown), shown.name or "video")


class FramesDrawer(StripDrawer):
    """Draws a series (T, H * W) whose channels are the cells of frames, its last frames.

    Each value has a color, from dark blue (low) to yellow (high).

    Coordinates are (start, stop) in time steps, and (top, left, bottom, right) in cells. A token of
    several frames is marked in its first one. Tokens of future frames are not drawn.
    """

    unit = "patch"
    is_drawing = True
    time_unit = "time steps"

    def panel(self, shown: Shown) -> Panel:
        height, width = shown.preprocessor.reader.grid_size
        frames = _frames(shown)
        limits = value_range(frames, *(_frames(shown, other) for other in shown.like))
        zoom = max(1, -(-SIDE // max(height, width)))  # pixels of the side of a cell
        pictures = [draw_frame(frame, limits).repeat(zoom, 0).repeat(zoom, 1) for frame in frames]
        pixels = strip(pictures, zoom * _gap_of_cells(shown))
        return Panel(pixels, pixels.shape[1] / zoom, pixels.shape[0] / zoom)

    def boxes(self, shown: Shown, coords: np.ndarray) -> np.ndarray:
        """Return the boxes (N, 4) of tokens with coords (N, 6), NaN if they are not drawn."""
        step = coords[:, 0] + len(_frames(shown)) - len(shown.raw)
        grid_size = shown.preprocessor.reader.grid_size
        boxes = in_strip(coords[:, 2:], step, grid_size, _gap_of_cells(shown))
        boxes[(step < 0) | (coords[:, 0] >= len(shown.raw))] = np.nan
        return boxes

    def length(self, shown: Shown) -> float:
        return float(len(shown.raw))

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


def strip(frames: Sequence[np.ndarray], gap: int) -> np.ndarray:
    """Return frames uint8 (H, W, 3) as one picture, with this number of pixels between them."""
    height, width = frames[0].shape[:2]
    down, across = -(-len(frames) // PER_ROW), min(len(frames), PER_ROW)
    size = (down * (height + gap) - gap, across * (width + gap) - gap, 3)
    pixels = np.full(size, WHITE, np.uint8)
    for i, frame in enumerate(frames):
        row, column = divmod(i, PER_ROW)
        top, left = row * (height + gap), column * (width + gap)
        pixels[top : top + height, left : left + width] = frame
    return pixels


def in_strip(boxes: np.ndarray, frames: np.ndarray, size: Sequence[int], gap: int) -> np.ndarray:
    """Return the boxes (N, 4) of frames in a strip.

    Args:
        boxes: (N, 4). Boxes in their frames.
        frames: (N,). Number of each frame in the strip.
        size: Height and width of a frame.
        gap: Distance of two frames.
    """
    row, column = np.divmod(frames, PER_ROW)
    corners = np.stack([row * (size[0] + gap), column * (size[1] + gap)], 1)
    return boxes + np.tile(corners, 2)


def _pictures(shown: Shown) -> np.ndarray:
    """Return the frames of a video, uint8 (T, H, W, 3)."""
    return np.stack([rgb(frame) for frame in shown.raw])


def _starts(shown: Shown) -> np.ndarray:
    """Return the index in the raw clip of the first frame of each time step."""
    times = np.arange(len(shown.raw))
    if shown.preprocessor is not None:
        times = shown.preprocessor(shown.raw)["times"].numpy()
    return times[:: _frames_per_step(shown)]


def _gap(shown: Shown) -> int:
    """Return the pixels between two frames of a video."""
    return max(round(VIDEO_GAP * shown.raw.shape[3]), 1)


def _frames_per_step(shown: Shown) -> int:
    return shown.adapter.tubelet_frames if isinstance(shown.adapter, VideoAdapter) else 1


def _frames(shown: Shown, values: Tensor | None = None) -> np.ndarray:
    """Return the drawn frames (T, H, W) of cells, or those of other values of the same shape."""
    raw = shown.raw if values is None else values
    frames = raw[-MAX_FRAMES:].unflatten(1, shown.preprocessor.reader.grid_size)
    return frames.numpy(force=True)


def _gap_of_cells(shown: Shown) -> int:
    """Return the cells between two frames."""
    return max(round(CELLS_GAP * shown.preprocessor.reader.grid_size[1]), 1)


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
