"""What a decoder looked at as it spoke: words against words, words over time, words over a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import get_font_names

from dxn.explain.pictures import FONTS
from dxn.explain.plots import new_figure, save
from dxn.tokens import Tokens

WINDOW = 0.032  # seconds of sound in a column of a spectrogram
FLOOR = 70.0  # decibels below its loudest that are drawn
COLUMNS = 800  # columns of a drawn stretch of time
SIDE = 320  # pixels that a drawn picture keeps of its longer side
DIMMEST = 0.25  # of its brightness that an unread place keeps
WIDEST = 20.0  # inches
LONGEST = 24  # characters of a label


def looks_pictures(
    weights: np.ndarray,
    said: Sequence[str],
    tokens: Tokens,
    names: Sequence[str],
    raw: Mapping[str, Any],
    folder: Path,
) -> list[Path]:
    """alignment.png of text, time.png of a sound and cells.png of a picture, those that the first sample has.

    weights (T, N): how much each said token read of each column, padding too; names: of the N columns; raw: as
    token_picture takes it. Where there are several kinds of columns a title says how much was read of this one.
    """
    written, real = [], tokens.mask[0].cpu().numpy()
    several = len({span.modality for span in tokens.spans if real[span.start : span.stop].any()}) > 1
    for span in tokens.spans:
        there = real[span.start : span.stop]
        if span.modality not in raw or not there.any():
            continue
        looked, places = weights[:, span.start : span.stop][:, there], span.places[0].cpu().numpy()[there]
        title = f"{span.modality}: {looked.sum(1).mean():.0%} of what was read" if several else ""
        given = raw[span.modality]
        if span.modality == "text":
            read = [names[span.start + i] for i in there.nonzero()[0].tolist()]
            alignment_picture(looked, said, read, folder / "alignment.png", title=title)
            written.append(folder / "alignment.png")
        elif span.modality == "audio":
            time_picture(looked, said, (given[0].cpu().numpy(), given[1]), places, folder / "time.png", title=title)
            written.append(folder / "time.png")
        else:
            pixels = given.permute(1, 2, 0).cpu().numpy()
            cells_picture(looked, said, pixels, places, folder / "cells.png", title=title)
            written.append(folder / "cells.png")
    return written


def alignment_picture(
    weights: np.ndarray, said: Sequence[str], read: Sequence[str], path: Path, *, title: str = ""
) -> None:
    """Draw a translation's attention as a PNG: a row a said word, a column a read one, darker where it looked more.

    weights (T, N), a row sums to at most 1. ValueError where they do not fit the words.
    """
    _check(weights, said, read=len(read))
    names, tops = shortened(said), shortened(read)
    cell = min(0.3, WIDEST / max(len(said), len(read)))
    left, top = (0.085 * max(map(len, labels)) + 0.4 for labels in (names, tops))
    figure = new_figure(max(cell * len(read) + left, 2.4) + 1.0, max(cell * len(said) + top, 2.0))
    axis = figure.subplots()
    drawn = axis.imshow(weights, cmap="Blues", vmin=0, aspect="equal", interpolation="nearest")
    style = {"fontsize": max(min(9.0, 50 * cell), 3), "family": fonts(), "parse_math": False}
    axis.set_yticks(range(len(names)), names, **style)
    axis.set_xticks(range(len(tops)), tops, rotation=90, **style)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.set_xticks(np.arange(len(tops) + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(len(names) + 1) - 0.5, minor=True)
    axis.grid(which="minor", color="#e2e8f0", linewidth=0.5)
    axis.tick_params(which="minor", length=0)
    _title(figure, title)
    figure.colorbar(drawn, ax=axis, shrink=min(1.0, 4 / (cell * len(said))), aspect=20, pad=0.02, label="weight")
    save(figure, path)


def time_picture(
    weights: np.ndarray,
    said: Sequence[str],
    audio: tuple[np.ndarray, int],
    places: np.ndarray,
    path: Path,
    *,
    title: str = "",
) -> None:
    """Draw where in a sound each said word looked, as a PNG: the spectrogram, below it a row a word on the same axis.

    weights (T, N); audio: samples (S,) and hertz; places (N, 2): start and stop of each column in seconds, NaN
    for one that stands nowhere. Each row is coloured on its own scale. ValueError where shapes do not fit.
    """
    samples, rate = audio
    _check(weights, said, places=places, width=2)
    seconds, names = len(samples) / rate, shortened(said)
    row = min(0.22, WIDEST / len(said))
    figure = new_figure(9, 1.7 + row * len(said) + 0.7)
    _title(figure, title)
    above, below = figure.subplots(2, 1, height_ratios=[1.7, max(row * len(said), 0.3)], sharex=True)
    draw_sound(above, samples, rate)
    above.set(ylabel="kHz")
    rows = timeline(weights, places, seconds)
    rows = rows / np.maximum(rows.max(1, keepdims=True), 1e-12)
    below.imshow(
        rows,
        cmap="Blues",
        vmin=0,
        vmax=1,
        aspect="auto",
        interpolation="nearest",
        extent=(0, seconds, len(said) - 0.5, -0.5),
    )
    below.set_yticks(range(len(names)), names, fontsize=max(min(9.0, 45 * row), 3), family=fonts(), parse_math=False)
    below.tick_params(axis="y", length=0)
    below.set(xlabel="seconds", xlim=(0, seconds))
    save(figure, path)


def cells_picture(
    weights: np.ndarray,
    said: Sequence[str],
    image: np.ndarray,
    places: np.ndarray,
    path: Path,
    *,
    across: int = 6,
    title: str = "",
) -> None:
    """Draw where in a picture each said word looked, as a PNG: a small copy a word (arXiv:1502.03044, figure 3).

    weights (T, N); image uint8 (H, W) or (H, W, C); places (N, 4): (top, left, bottom, right) of each column in
    pixels, NaN for one that stands nowhere; across: copies a row. What a word looked at most keeps its
    brightness, on its own scale. ValueError where shapes do not fit.
    """
    _check(weights, said, places=places, width=4)
    height, width = image.shape[:2]
    columns = min(across, len(said))
    rows, inches = -(-len(said) // columns), 1.7
    figure = new_figure(inches * columns, (inches * min(max(height / width, 0.25), 4) + 0.3) * rows)
    _title(figure, title)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in grid:
        axis.set_axis_off()
    for axis, name, row in zip(grid, shortened(said), weights, strict=False):
        draw_cells(axis, image, places, row)
        axis.set_title(name, fontsize=9, family=fonts(), parse_math=False)
    save(figure, path)


def draw_cells(axis: Axes, image: np.ndarray, places: np.ndarray, weights: np.ndarray) -> None:
    """A picture, uint8 (H, W) or (H, W, C), dimmed but for what was read; places (N, 4) in pixels, weights (N,)."""
    step = max(-(-max(image.shape[:2]) // SIDE), 1)
    small = image[::step, ::step]
    heat = np.zeros(small.shape[:2])
    for (y0, x0, y1, x1), weight in zip(places / step, weights, strict=True):
        if not np.isnan(y0):
            box = heat[round(y0) : max(round(y1), round(y0) + 1), round(x0) : max(round(x1), round(x0) + 1)]
            np.maximum(box, weight, out=box)  # patches may overlap
    light = DIMMEST + (1 - DIMMEST) * heat / (heat.max() or 1.0)
    axis.imshow(colours(small) / 255 * light[..., None], interpolation="nearest")
    axis.set_axis_off()


def draw_sound(axis: Axes, samples: np.ndarray, rate: int, light: np.ndarray | None = None) -> None:
    """The spectrogram over seconds and kilohertz, dark where it is loud; light (columns,), 0 to 1, shades it."""
    extent = (0, len(samples) / rate, 0, rate / 2000)
    axis.imshow(
        spectrogram(samples, rate), cmap="Greys", vmin=0, vmax=255, aspect="auto", origin="lower", extent=extent
    )
    if light is not None:
        axis.imshow(light[None], cmap="Oranges", vmin=0, vmax=1, aspect="auto", alpha=0.75 * light[None], extent=extent)
    axis.set(xlim=extent[:2], ylim=extent[2:])


def colours(image: np.ndarray) -> np.ndarray:
    """A picture (H, W) or (H, W, C) as (H, W, 3): grey three times, of more channels the first three."""
    pixels = image if image.ndim == 3 else image[..., None]
    return pixels[..., :3] if pixels.shape[2] >= 3 else np.repeat(pixels[..., :1], 3, 2)


def spectrogram(samples: np.ndarray, rate: int) -> np.ndarray:
    """Samples (S,) to uint8 (F, T): decibels of a Hann window's power, lowest frequency first, 255 the loudest."""
    size = max(2 * round(WINDOW * rate / 2), 2)
    hop = max(size // 4, -(-len(samples) // COLUMNS))
    spectrum = torch.stft(
        torch.as_tensor(samples, dtype=torch.float32),
        size,
        hop,
        window=torch.hann_window(size),
        pad_mode="constant",
        return_complex=True,
    )
    level = 10 * (spectrum.abs() ** 2).clamp(min=1e-10).log10()
    return ((level - level.max() + FLOOR) / FLOOR * 255).clamp(0, 255).byte().numpy()


def timeline(weights: np.ndarray, places: np.ndarray, seconds: float) -> np.ndarray:
    """Weights (T, N) of columns at places (N, 2) to (T, 800) over 0 to `seconds`, the largest where places overlap.

    Columns of the very same place, as the bands of one frame, are added up.
    """
    there = ~np.isnan(places).any(1)
    stretches, which = np.unique(places[there], axis=0, return_inverse=True)
    summed = np.zeros((len(weights), len(stretches)))
    np.add.at(summed.T, which.reshape(-1), weights[:, there].T)
    line = np.zeros((len(weights), COLUMNS))
    for i, (start, stop) in enumerate(stretches * COLUMNS / seconds):
        part = line[:, int(start) : max(round(stop), int(start) + 1)]
        np.maximum(part, summed[:, i : i + 1], out=part)
    return line


def shortened(words: Sequence[str]) -> list[str]:
    """Words as labels: what no font shows is a space, a long one ends in an ellipsis."""
    clean = ["".join(c if c.isprintable() else " " for c in word) for word in words]
    return [word if len(word) <= LONGEST else word[: LONGEST - 1] + "…" for word in clean]


def fonts() -> list[str]:
    """The installed ones of the fonts that between them have most scripts."""
    installed = set(get_font_names())
    return [font for font in FONTS if font in installed]


def _title(figure: Figure, title: str) -> None:
    if title:
        figure.suptitle(title, fontsize=10, x=0.02, ha="left")


def _check(
    weights: np.ndarray,
    said: Sequence[str],
    *,
    read: int | None = None,
    places: np.ndarray | None = None,
    width: int = 0,
) -> None:
    if places is not None and (places.ndim != 2 or places.shape[1] != width):
        raise ValueError(f"places must be (N, {width}), got {places.shape}")
    expected = (len(said), len(places) if places is not None else read)
    if weights.shape != expected or 0 in expected:
        raise ValueError(f"weights must be {expected}, a row a said word and at least one, got {weights.shape}")
