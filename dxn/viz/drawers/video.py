"""Draw videos: a strip of frames, one for each time step, with a box around each token."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from dxn.viz.drawers.drawer import InputAttention, Shown, Thumbnails
from dxn.viz.drawers.html import CLIP_RATE, clip, mp4
from dxn.viz.drawers.image import draw_copies, pixels_of, rgb
from dxn.viz.drawers.panel import Panel, draw_boxes, draw_heat, page_panel

WIDTH = 7.0  # inches of a strip
COPY_WIDTH = 3.4  # inches of a small copy
PER_ROW = 8  # frames per row of a strip
GAP = 0.06  # between two frames, relative to the width of a frame
WHITE = 255
FILE_QUALITY = 12  # of H.264; differences are hardly visible


@dataclass(frozen=True)
class Strip:
    """The frames of a clip side by side.

    Args:
        panel: The picture. The units of its boxes are pixels.
        starts: Index in the raw clip of the first frame of each time step.
        cell: Height and width of a frame with its gap, in pixels.
    """

    panel: Panel
    starts: np.ndarray
    cell: tuple[float, float]

    def boxes(self, coords: np.ndarray) -> np.ndarray:
        """Return the boxes (N, 4) of tokens with coords (N, 6), NaN for padding."""
        step = np.searchsorted(self.starts, np.nan_to_num(coords[:, 0]))
        row, column = np.divmod(step, PER_ROW)
        corner = np.stack([row * self.cell[0], column * self.cell[1]], 1)
        return coords[:, 2:] + np.tile(corner, 2)


class VideoDrawer:
    """Draws a uint8 tensor (T, C, H, W), with the first frame of each tubelet.

    Coordinates are (start, stop) in frames, and (top, left, bottom, right) in pixels.
    """

    unit = "token"
    reads_words = False
    reading_file = "frames.png"
    thumbnails = Thumbnails(width=COPY_WIDTH, height=1.3, per_row=2)

    def size(self, shown: Shown, *, shaded: bool) -> tuple[float, float]:
        panel = strip_of(shown).panel
        height = WIDTH * panel.height / panel.width
        # The shaded picture has the original above it.
        return WIDTH, (2 + GAP) * height if shaded else height

    def draw_tokens(self, axis: Axes, shown: Shown, coords: np.ndarray) -> str:
        strip = strip_of(shown)
        note = draw_boxes(axis, strip.panel, strip.boxes(coords))
        axis.set_anchor("W")
        steps = len(np.unique(coords[:, 0]))
        places = len(coords) // max(steps, 1)
        frames = _frames_per_step(shown)
        of_frames = f" of {frames} frames, the first one is drawn" if frames > 1 else ""
        patches = f", {places} tokens each" if places > 1 else ""
        return f", {steps} steps{of_frames}{patches}{note}"

    def draw_shares(
        self, axis: Axes, shown: Shown, coords: np.ndarray, shares: np.ndarray, scale: Normalize
    ) -> None:
        strip = strip_of(shown)
        panel = strip.panel
        draw_heat(axis, panel, strip.boxes(coords), shares, scale)
        # The original above: the colors hide some of it.
        top = -(1 + GAP) * panel.height
        axis.imshow(panel.pixels, extent=(0, panel.width, -GAP * panel.height, top))
        axis.set(xlim=(0, panel.width), ylim=(panel.height, top), anchor="W")

    def draw_thumbnail(
        self, axis: Axes, shown: Shown, coords: np.ndarray, weights: np.ndarray, scale: Normalize
    ) -> None:
        strip = strip_of(shown)
        draw_heat(axis, strip.panel, strip.boxes(coords), weights, scale)

    def draw_reading(
        self,
        shown: Shown,
        attention: InputAttention,
        path: Path,
        *,
        title: str = "",
        about: str = "",
    ) -> None:
        strip = strip_of(shown)
        draw_copies(
            attention.weights,
            attention.words,
            strip.panel,
            strip.boxes(attention.coords),
            path,
            per_row=2,
            width=COPY_WIDTH,
            title=title,
            about=about,
        )

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        tops = np.unique(coords[np.isfinite(coords[:, 2]), 2])
        lefts = np.unique(coords[np.isfinite(coords[:, 3]), 3])
        has_patches = len(tops) * len(lefts) > 1
        names: list[str | None] = []
        for start, _, top, left, *_ in coords:
            if np.isnan(start):
                names.append(None)
                continue
            row, column = np.searchsorted(tops, top) + 1, np.searchsorted(lefts, left) + 1
            place = f", row {row}, col {column}" if has_patches else ""
            names.append(f"frame {int(start) + 1}{place}")
        return names

    def page(self, shown: Shown) -> dict[str, Any]:
        return page_panel(strip_of(shown).panel)

    def boxes(self, shown: Shown, coords: np.ndarray) -> np.ndarray:
        return strip_of(shown).boxes(coords)

    def file(self, shown: Shown) -> bytes:
        """Return the frames that the model reads as the content of an MP4 file."""
        sampling = getattr(shown.preprocessor, "sampling", None)
        rate = Fraction((sampling and sampling.fps) or CLIP_RATE).limit_denominator(1000)
        return mp4(_frames(shown), rate=rate, quality=FILE_QUALITY)

    def fragment(self, shown: Shown) -> str:
        """Return the frames that the model reads as a short clip."""
        return clip(_frames(shown), shown.name or "video")


def _frames(shown: Shown) -> np.ndarray:
    """Return the frames uint8 (T, H, W, 3)."""
    return np.stack([rgb(pixels_of(frame)) for frame in shown.raw])


def strip_of(shown: Shown) -> Strip:
    """Return the first frame of each time step of a clip, in rows of PER_ROW frames."""
    times = np.arange(len(shown.raw))
    if shown.preprocessor is not None:
        times = shown.preprocessor(shown.raw)["times"].numpy()
    starts = times[:: _frames_per_step(shown)]
    frames = [rgb(pixels_of(shown.raw[int(start)])) for start in starts]
    height, width = frames[0].shape[:2]
    gap = max(round(GAP * width), 1)
    columns = min(len(frames), PER_ROW)
    rows = -(-len(frames) // PER_ROW)
    cell = (height + gap, width + gap)
    pixels = np.full((rows * cell[0] - gap, columns * cell[1] - gap, 3), WHITE, np.uint8)
    for i, frame in enumerate(frames):
        row, column = divmod(i, PER_ROW)
        top, left = row * cell[0], column * cell[1]
        pixels[top : top + height, left : left + width] = frame
    return Strip(Panel(pixels, pixels.shape[1], pixels.shape[0]), starts, cell)


def _frames_per_step(shown: Shown) -> int:
    return getattr(shown.adapter, "tubelet_frames", 1)
