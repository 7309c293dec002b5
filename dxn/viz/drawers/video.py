"""Draw videos: a strip of frames, one for each time step, with a box around each token."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from dxn.tokenize.video.adapter import VideoAdapter
from dxn.tokenize.video.tokenizer import VideoTokenizer
from dxn.viz.drawers.boxes import Panel
from dxn.viz.drawers.drawer import Shown
from dxn.viz.drawers.image import grid_places, rgb
from dxn.viz.drawers.panel import PanelDrawer
from dxn.viz.media import CLIP_RATE, clip, mp4

WIDTH = 7.0  # inches of a strip
GAP = 0.06  # between frames, relative to their width
PER_ROW = 8  # frames per row of a strip
WHITE = 255
FILE_QUALITY = 12  # of H.264; differences are hardly visible


class VideoDrawer(PanelDrawer):
    """Draws a uint8 tensor (T, C, H, W), with the first frame of each tubelet.

    Coordinates are (start, stop) in frames, and (top, left, bottom, right) in pixels.
    """

    def size(self, shown: Shown) -> tuple[float, float]:
        panel = self.panel(shown)
        return WIDTH, WIDTH * panel.height / panel.width

    def panel(self, shown: Shown) -> Panel:
        """Return the first frame of each time step, in rows of PER_ROW frames."""
        frames = [rgb(shown.raw[int(start)]) for start in _starts(shown)]
        height, width = frames[0].shape[:2]
        cell_height, cell_width = _cell(shown)
        gap = cell_width - width
        shape = (-(-len(frames) // PER_ROW) * cell_height, min(len(frames), PER_ROW) * cell_width)
        pixels = np.full((shape[0] - gap, shape[1] - gap, 3), WHITE, np.uint8)
        for i, frame in enumerate(frames):
            row, column = divmod(i, PER_ROW)
            top, left = row * cell_height, column * cell_width
            pixels[top : top + height, left : left + width] = frame
        return Panel(pixels, pixels.shape[1], pixels.shape[0])

    def boxes(self, shown: Shown, coords: np.ndarray) -> np.ndarray:
        """Return the boxes (N, 4) of tokens with coords (N, 6), NaN for padding."""
        step = np.searchsorted(_starts(shown), np.nan_to_num(coords[:, 0]))
        row, column = np.divmod(step, PER_ROW)
        height, width = _cell(shown)
        return coords[:, 2:] + np.tile(np.stack([row * height, column * width], 1), 2)

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

    def file(self, shown: Shown) -> bytes:
        """Return the frames that the model reads as the content of an MP4 file."""
        prepare = shown.preprocessor
        fps = prepare.sampling.fps if isinstance(prepare, VideoTokenizer) else None
        rate = Fraction(fps or CLIP_RATE).limit_denominator(1000)
        return mp4(_frames(shown), rate=rate, quality=FILE_QUALITY)

    def fragment(self, shown: Shown) -> str:
        """Return the frames that the model reads as a short clip."""
        return clip(_frames(shown), shown.name or "video")


def _frames(shown: Shown) -> np.ndarray:
    """Return the frames uint8 (T, H, W, 3)."""
    return np.stack([rgb(frame) for frame in shown.raw])


def _starts(shown: Shown) -> np.ndarray:
    """Return the index in the raw clip of the first frame of each time step."""
    times = np.arange(len(shown.raw))
    if shown.preprocessor is not None:
        times = shown.preprocessor(shown.raw)["times"].numpy()
    return times[:: _frames_per_step(shown)]


def _cell(shown: Shown) -> tuple[int, int]:
    """Return the height and width of a frame with its gap, in pixels."""
    height, width = shown.raw.shape[2:]
    gap = max(round(GAP * width), 1)
    return height + gap, width + gap


def _frames_per_step(shown: Shown) -> int:
    return shown.adapter.tubelet_frames if isinstance(shown.adapter, VideoAdapter) else 1
