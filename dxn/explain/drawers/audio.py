"""Draw audio: the waveform or the spectrogram over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from PIL import Image

from dxn.explain.drawers.drawer import InputAttention, Shown, Thumbnails, check_weights
from dxn.explain.drawers.image import png_source
from dxn.explain.labels import font_size, fonts, shortened
from dxn.explain.plots import BLUE, ORANGE, new_figure, save, set_title

WINDOW = 0.032  # seconds; a usual window length for speech
DYNAMIC_RANGE = 70.0  # decibels; points that are quieter than this below the loudest are white
COLUMNS = 800  # resolution of a drawn time axis, about one column per pixel
MAX_MARKS = 120  # marks on a waveform; more would be narrower than a few pixels
MARK_COLOR = "#bee3f8"
MAX_INCHES = 20.0  # height of all rows of a `draw_rows` picture, about 2200 pixels


class AudioDrawer:
    """Draws a waveform (T,). Coordinates are (start, stop) in seconds."""

    reads_words = False
    reading_file = "time.png"
    thumbnails = Thumbnails(width=2.6, height=1.4, per_row=4, caption="seconds, kHz")

    def height(self, shown: Shown) -> float:
        return 1.8

    def draw_tokens(self, axis: Axes, shown: Shown, coords: np.ndarray) -> str:
        # Several tokens can have the same start, such as the frequency bands of one frame.
        starts = np.unique(coords[:, 0])
        every = -(-len(starts) // MAX_MARKS) or 1
        # Frames overlap, so each mark ends at the start of the next one. Every second interval is
        # shaded, which shows the edges of all of them.
        edges = [*starts[::every], *coords[-1:, 1]] if len(coords) else []
        for start, stop in zip(edges[::2], edges[1::2], strict=False):
            axis.axvspan(start, stop, color=MARK_COLOR, linewidth=0)
        _draw_waveform(axis, *waveform(shown))
        return f", a mark for every {every} tokens" if every > 1 else ""

    def draw_shares(self, axis: Axes, shown: Shown, coords: np.ndarray, shares: np.ndarray) -> None:
        _draw_waveform(axis, *waveform(shown))
        for (start, stop, *_), share in zip(coords, shares, strict=True):
            # 0.8: the waveform behind the shade stays visible.
            axis.axvspan(start, stop, color=ORANGE, alpha=0.8 * float(share), linewidth=0)

    def draw_thumbnail(
        self, axis: Axes, shown: Shown, coords: np.ndarray, weights: np.ndarray
    ) -> None:
        samples, rate = waveform(shown)
        row = timeline(weights[None], coords, len(samples) / rate)[0]
        draw_spectrogram(axis, samples, rate, row / (row.max() or 1.0))
        axis.tick_params(labelsize=6, length=2)

    def draw_reading(
        self, shown: Shown, attention: InputAttention, path: Path, *, title: str = ""
    ) -> None:
        weights, words, coords = attention.weights, attention.words, attention.coords
        draw_rows(weights, words, *waveform(shown), coords, path, title=title)

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        return [f"{start:.2f} s" for start in coords[:, 0].tolist()]

    def page(self, shown: Shown) -> dict[str, Any]:
        samples, rate = waveform(shown)
        # As in `draw_spectrogram`, loud points are dark and low frequencies are at the bottom.
        levels = 255 - spectrogram(samples, rate)[::-1]
        seconds = len(samples) / rate
        return {
            "kind": "intervals",
            "source": png_source(Image.fromarray(np.ascontiguousarray(levels))),
            "length": seconds,
            "caption": f"0 to {seconds:.2f} s, 0 to {rate / 2000:g} kHz",
        }


def draw_rows(
    weights: np.ndarray,
    words: Sequence[str],
    samples: np.ndarray,
    rate: int,
    coords: np.ndarray,
    path: Path,
    *,
    title: str = "",
) -> None:
    """Write a PNG of a spectrogram with one row of attention weights per word below it.

    Args:
        weights: (T, N). Attention weights. Each row has its own color scale.
        words: Labels of the T rows.
        samples: The waveform (S,).
        rate: Sampling rate in Hz.
        coords: (N, 2). Start and stop of each token in seconds, or NaN.
        path: File to write.
        title: Title of the picture. "": no title.

    Raises:
        ValueError: If the shapes do not match.
    """
    check_weights(weights, words, len(coords), coords=coords, coords_width=2)
    seconds = len(samples) / rate
    # Heights in inches: 1.7 for the spectrogram, 0.7 for the labels of the time axis.
    row_height = min(0.22, MAX_INCHES / len(words))
    rows_height = row_height * len(words)
    figure = new_figure(9, 1.7 + rows_height + 0.7)
    set_title(figure, title)
    ratios = [1.7, max(rows_height, 0.3)]
    top, bottom = figure.subplots(2, 1, height_ratios=ratios, sharex=True)
    draw_spectrogram(top, samples, rate)
    top.set(ylabel="kHz")
    rows = timeline(weights, coords, seconds)
    # 1e-12: a row whose weights are all 0 stays 0.
    rows = rows / np.maximum(rows.max(1, keepdims=True), 1e-12)
    bottom.imshow(
        rows,
        cmap="Blues",
        vmin=0,
        vmax=1,
        aspect="auto",
        interpolation="nearest",
        extent=(0, seconds, len(words) - 0.5, -0.5),
    )
    style: dict[str, Any] = {
        "fontsize": font_size(row_height),
        "family": fonts(),
        "parse_math": False,
    }
    bottom.set_yticks(range(len(words)), shortened(words), **style)
    bottom.tick_params(axis="y", length=0)
    bottom.set(xlabel="seconds", xlim=(0, seconds))
    save(figure, path)


def draw_spectrogram(
    axis: Axes, samples: np.ndarray, rate: int, shade: np.ndarray | None = None
) -> None:
    """Draw a spectrogram over seconds and kilohertz. Loud points are dark.

    Args:
        axis: Axis to draw in.
        samples: The waveform (S,).
        rate: Sampling rate in Hz.
        shade: (COLUMNS,). Strength of an orange shade over time, 0 to 1. None: no shade.
    """
    extent = (0, len(samples) / rate, 0, rate / 2000)
    style: dict[str, Any] = {"aspect": "auto", "extent": extent}
    levels = spectrogram(samples, rate)
    axis.imshow(levels, cmap="Greys", vmin=0, vmax=255, origin="lower", **style)
    if shade is not None:
        alpha = 0.75 * shade[None]
        axis.imshow(shade[None], cmap="Oranges", vmin=0, vmax=1, alpha=alpha, **style)
    axis.set(xlim=extent[:2], ylim=extent[2:])


def spectrogram(samples: np.ndarray, rate: int) -> np.ndarray:
    """Compute the power spectrogram of a waveform (S,) in decibels.

    Returns:
        uint8 (F, T), lowest frequency first. 255 is the loudest point, and 0 is DYNAMIC_RANGE or
        more below it.
    """
    # n_fft must be even and at least 2, also for very low sampling rates.
    n_fft = max(2 * round(WINDOW * rate / 2), 2)
    # Long recordings have a larger hop, so that the picture has at most about COLUMNS frames.
    hop_length = max(n_fft // 4, -(-len(samples) // COLUMNS))
    spectrum = torch.stft(
        torch.as_tensor(samples, dtype=torch.float32),
        n_fft,
        hop_length,
        window=torch.hann_window(n_fft),
        pad_mode="constant",  # reflection fails for waveforms that are shorter than the window
        return_complex=True,
    )
    # 1e-10: silence has a power of 0, whose logarithm is not finite.
    decibels = 10 * (spectrum.abs() ** 2).clamp(min=1e-10).log10()
    relative = (decibels - decibels.max() + DYNAMIC_RANGE) / DYNAMIC_RANGE
    return (relative * 255).clamp(0, 255).byte().numpy()


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


def waveform(shown: Shown) -> tuple[np.ndarray, int]:
    """Return the samples (S,) and the sampling rate in Hz."""
    return shown.raw.cpu().numpy(), shown.preprocessor.sample_rate


def _draw_waveform(axis: Axes, samples: np.ndarray, rate: int) -> None:
    seconds = np.arange(len(samples)) / rate
    axis.plot(seconds, samples, linewidth=0.5, color=BLUE, alpha=0.85)
    axis.set(xlabel="seconds", xlim=(0, len(samples) / rate))
    axis.spines[["top", "right"]].set_visible(False)
