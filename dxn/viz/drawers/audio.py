"""Draw audio: the spectrogram that its tokens are made of, or the waveform."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from dxn.viz.drawers.drawer import InputAttention, Shown, Thumbnails, check_weights
from dxn.viz.drawers.html import picture, player
from dxn.viz.drawers.panel import (
    Panel,
    draw_boxes,
    draw_heat,
    draw_panel,
    page_panel,
    shrink_axes,
    thinned,
)
from dxn.viz.drawers.sound import sound_panel, waveform
from dxn.viz.figures import color_bar, heat_colors, heat_scale, new_figure, save, set_title
from dxn.viz.labels import font_size, shortened

COLUMNS = 800  # resolution of a drawn time axis, about one column per pixel
MAX_INCHES = 20.0  # height of all rows of a `draw_rows` picture, about 2200 pixels
MAX_MARKS = 120  # frames with an outline; more would be narrower than a few pixels


class AudioDrawer:
    """Draws a waveform (T,). Coordinates are (start, stop) in seconds."""

    unit = "token"
    reads_words = False
    reading_file = "time.png"
    thumbnails = Thumbnails(width=2.6, height=1.6, per_row=4, caption="seconds, Hz")

    def size(self, shown: Shown, *, shaded: bool) -> tuple[float, float]:
        return 4.7, 2.6

    def draw_tokens(self, axis: Axes, shown: Shown, coords: np.ndarray) -> str:
        boxes = self.boxes(shown, coords)
        starts = np.unique(coords[:, 0])
        is_marked, left_unmarked = thinned(coords[:, 0], MAX_MARKS)
        note = draw_boxes(axis, sound_panel(shown), boxes[is_marked])
        bands = len(coords) // max(len(starts), 1)
        parts = f", {len(starts)} frames × {bands} bands" if bands > 1 else ""
        return f"{parts}{left_unmarked}{note}"

    def draw_shares(
        self, axis: Axes, shown: Shown, coords: np.ndarray, shares: np.ndarray, scale: Normalize
    ) -> None:
        draw_heat(axis, sound_panel(shown), self.boxes(shown, coords), shares, scale)

    def draw_thumbnail(
        self, axis: Axes, shown: Shown, coords: np.ndarray, weights: np.ndarray, scale: Normalize
    ) -> None:
        draw_heat(axis, sound_panel(shown), self.boxes(shown, coords), weights, scale)
        shrink_axes(axis)

    def draw_reading(
        self,
        shown: Shown,
        attention: InputAttention,
        path: Path,
        *,
        title: str = "",
        about: str = "",
    ) -> None:
        panel = sound_panel(shown)
        weights, words, coords = attention.weights, attention.words, attention.coords
        draw_rows(weights, words, panel, coords, path, title=title, about=about)

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        starts = np.unique(coords[~np.isnan(coords).any(1), 0])
        # Frames that start within the same hundredth of a second need a third decimal.
        digits = 3 if len(starts) > 1 and np.diff(starts).min() < 0.0095 else 2
        times = [f"{start:.{digits}f} s" for start in coords[:, 0].tolist()]
        bands = _bands(shown, coords)
        if bands.max(initial=0) == 0:
            return list(times)
        return [f"{time}, band {band + 1}" for time, band in zip(times, bands, strict=True)]

    def page(self, shown: Shown) -> dict[str, Any]:
        sound = base64.b64encode(self.file(shown)).decode("ascii")
        return {**page_panel(sound_panel(shown)), "sound": f"data:audio/flac;base64,{sound}"}

    def file(self, shown: Shown) -> bytes:
        """Return the sound as the content of a FLAC file."""
        samples, rate = waveform(shown)
        # FLAC is lossless, half as long as WAV, and every browser plays it.
        content = io.BytesIO()
        soundfile.write(content, np.clip(samples, -1, 1), rate, format="FLAC", subtype="PCM_16")
        return content.getvalue()

    def boxes(self, shown: Shown, coords: np.ndarray) -> np.ndarray:
        """Return the boxes (N, 4) in seconds and frequency bins from the top."""
        height = sound_panel(shown).height
        grid = getattr(shown.adapter, "grid", None)
        bands = _bands(shown, coords)
        if grid is None or bands.max(initial=0) == 0:
            low, high = np.zeros(len(coords)), np.full(len(coords), height)
        else:
            low = bands * grid.stride[1]
            high = np.minimum(low + grid.size[1], height)
        # Bins rise from the bottom, and boxes are counted from the top.
        return np.stack([height - high, coords[:, 0], height - low, coords[:, 1]], 1)

    def fragment(self, shown: Shown) -> str:
        """Return a player with the spectrogram as HTML."""
        name = shown.name or "audio"
        panel = sound_panel(shown)
        seen = picture(panel.pixels, f"spectrogram of {name}, {panel.width:.1f} seconds")
        return f'<div class="sound">{seen}{player(*waveform(shown), name)}</div>'


def draw_rows(
    weights: np.ndarray,
    words: Sequence[str],
    panel: Panel,
    coords: np.ndarray,
    path: Path,
    *,
    title: str = "",
    about: str = "",
) -> None:
    """Write a PNG of a spectrogram with one row of attention weights per word below it.

    Args:
        weights: (T, N). Attention weights.
        words: Labels of the T rows.
        panel: The spectrogram. Its width is in seconds.
        coords: (N, 2). Start and stop of each token in seconds, or NaN.
        path: File to write.
        title: Title of the picture.
        about: Line below the title.

    Raises:
        ValueError: If the shapes do not match.
    """
    check_weights(weights, words, len(coords), coords=coords, coords_width=2)
    # Heights in inches: 1.9 for the spectrogram, 1.3 for the title and the labels of the time axis.
    row_height = min(0.22, MAX_INCHES / len(words))
    rows_height = max(row_height * len(words), 0.4)
    figure = new_figure(9, 1.9 + rows_height + 1.3)
    set_title(figure, title, about)
    top, bottom = figure.subplots(2, 1, height_ratios=[1.9, rows_height], sharex=True)
    draw_panel(top, panel)
    top.set(xlabel="")
    rows = timeline(weights, coords, panel.width)
    scale = heat_scale(rows)
    bottom.imshow(
        rows,
        cmap=heat_colors(),
        norm=scale,
        aspect="auto",
        interpolation="nearest",
        extent=(0, panel.width, len(words) - 0.5, -0.5),
    )
    bottom.set_yticks(range(len(words)), shortened(words), fontsize=font_size(row_height))
    bottom.tick_params(axis="y", length=0)
    bottom.set(xlabel=panel.x_label, xlim=(0, panel.width))
    color_bar(figure, [top, bottom], scale, "attention\nweight")
    save(figure, path)


def timeline(weights: np.ndarray, coords: np.ndarray, seconds: float) -> np.ndarray:
    """Convert the weights of tokens to rows over time.

    The weights of tokens with the same interval, such as the frequency bands of one frame, are
    added up. Where different intervals overlap, the result is the maximum.

    Args:
        weights: (T, N). Attention weights of N tokens.
        coords: (N, 2). Start and stop of each token in seconds, or NaN.
        seconds: Duration of the rows.

    Returns:
        (T, COLUMNS).
    """
    is_placed = ~np.isnan(coords).any(1)
    intervals, index = np.unique(coords[is_placed], axis=0, return_inverse=True)
    summed = np.zeros((len(weights), len(intervals)))
    # `summed.T[index] += ...` would count each interval only once; add.at adds up repeated indices.
    # Some versions of NumPy return an index of shape (N, 1).
    np.add.at(summed.T, index.reshape(-1), weights[:, is_placed].T)
    rows = np.zeros((len(weights), COLUMNS))
    for i, (start, stop) in enumerate(intervals * COLUMNS / seconds):
        # A token that is shorter than a column still fills one column.
        part = rows[:, int(start) : max(round(stop), int(start) + 1)]
        np.maximum(part, summed[:, i : i + 1], out=part)
    return rows


def _bands(shown: Shown, coords: np.ndarray) -> np.ndarray:
    """Return the index (N,) of the frequency band of each token: 0 is the lowest.

    The columns are ordered by time, and at the same time from low to high bands.
    """
    bands = np.zeros(len(coords), dtype=int)
    for i in range(1, len(coords)):
        if coords[i, 0] == coords[i - 1, 0]:
            bands[i] = bands[i - 1] + 1
    return bands
