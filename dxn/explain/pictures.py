"""One sample as its model sees it: the raw input with its tokens marked, and the D×N matrix."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_rgb
from matplotlib.font_manager import get_font_names
from matplotlib.patches import Rectangle

from dxn.explain.plots import BLUE, ORANGE, new_figure, save
from dxn.tokens import Tokens

SOFT = ("#bee3f8", "#fefcbf", "#c6f6d5", "#fed7d7", "#e9d8fd")
COLUMNS = 64  # characters a line of drawn text
MAX_LINES = 24  # lines of text drawn
MAX_STRETCHES = 120  # token stretches marked on a sound
# The first has Latin, Cyrillic, Greek, Arabic and Hebrew; the others, where installed, help out.
FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans Devanagari", "Arial Unicode MS", "Malgun Gothic")


def token_picture(raw: Mapping[str, Any], tokens: Tokens, path: Path) -> None:
    """Draw the first sample as a PNG: each modality's raw input with its tokens marked, below them the matrix.

    raw: text str or words, image uint8 Tensor (C, H, W), audio (Tensor (T,), hertz); a modality missing
    in it is in the matrix only.
    """
    spans = [span for span in tokens.spans if span.modality in raw]
    heights = [raw_height(span.modality, raw[span.modality]) for span in spans]
    figure = new_figure(9, sum(heights) + 3.2)
    axes = figure.subplots(len(spans) + 1, 1, height_ratios=[*heights, 3], squeeze=False)[:, 0]
    drawers = {"text": _text, "image": _image, "audio": _audio}
    for axis, span in zip(axes, spans, strict=False):
        real = tokens.mask[0, span.start : span.stop]
        places = span.places[0][real].cpu().numpy()
        note = drawers[span.modality](axis, raw[span.modality], places[~np.isnan(places).any(1)])
        axis.set_title(f"{span.modality}: {len(places)} tokens{note}", loc="left", fontsize=10)
    _matrix(axes[-1], tokens)
    save(figure, path)


def raw_height(modality: str, raw: Any) -> float:
    if modality == "text":
        return 0.5 + 0.42 * min(-(-len(_joined(raw)) // COLUMNS), MAX_LINES)
    return 3.2 if modality == "image" else 1.8


def draw_raw(axis: Axes, modality: str, raw: Any, places: np.ndarray, shares: np.ndarray) -> None:
    """One raw input, each token's place shaded by its share, 0 to 1."""
    if modality == "text":
        _text(axis, raw, places, [(*to_rgb(ORANGE), 0.9 * float(share)) for share in shares])
    elif modality == "image":
        _image(axis, raw, places[:0])
        boxes = [Rectangle((x0 - 0.5, y0 - 0.5), x1 - x0, y1 - y0) for y0, x0, y1, x1 in places]
        # What counts is left as it is, the rest goes under.
        veils = [(1.0, 1.0, 1.0, 0.85 * (1 - float(share))) for share in shares]
        axis.add_collection(PatchCollection(boxes, facecolors=veils, edgecolors="none"), autolim=False)
    else:
        _audio(axis, raw, places[:0])
        for (start, stop, *_), share in zip(places, shares, strict=True):
            axis.axvspan(start, stop, color=ORANGE, alpha=0.8 * float(share), linewidth=0)


def _joined(raw: Any) -> str:
    return raw if isinstance(raw, str) else " ".join(raw)


def _text(axis: Axes, raw: Any, places: np.ndarray, colours: Sequence[Any] = SOFT) -> str:
    """Characters in a fixed pitch, a box behind each token, its colours in turns."""
    text = _joined(raw)
    shown = text[: COLUMNS * MAX_LINES]
    for i, (start, stop) in enumerate(places.astype(int)):
        for line in range(start // COLUMNS, min(max(stop - 1, start) // COLUMNS + 1, MAX_LINES)):
            left, right = max(start - line * COLUMNS, 0), min(stop - line * COLUMNS, COLUMNS)
            axis.add_patch(
                Rectangle(
                    (left, line + 0.1), max(right - left, 0.15), 0.8, color=colours[i % len(colours)], linewidth=0
                )
            )
    installed = set(get_font_names())
    style: dict[str, Any] = {
        "ha": "center",
        "va": "center",
        "fontsize": 9,
        "family": [font for font in FONTS if font in installed],
    }
    for at, character in enumerate(shown):
        if character.isprintable() and not character.isspace():
            row, column = divmod(at, COLUMNS)
            axis.text(column + 0.5, row + 0.5, character, **style)
    axis.set(xlim=(0, COLUMNS), ylim=(max(-(-len(shown) // COLUMNS), 1), 0))
    axis.set_axis_off()
    return "" if shown == text else f", first {len(shown):,} of {len(text):,} characters drawn"


def _image(axis: Axes, raw: Any, places: np.ndarray) -> str:
    """The picture, a thin box around each patch."""
    pixels = raw.permute(1, 2, 0).cpu().numpy()
    axis.imshow(pixels.squeeze(-1) if pixels.shape[2] == 1 else pixels, cmap="gray", vmin=0, vmax=255)
    boxes = [Rectangle((x0 - 0.5, y0 - 0.5), x1 - x0, y1 - y0) for y0, x0, y1, x1 in places]
    axis.add_collection(PatchCollection(boxes, facecolor="none", edgecolor=ORANGE, linewidth=0.8), autolim=False)
    axis.set_anchor("W")
    axis.set_axis_off()
    return ""


def _audio(axis: Axes, raw: Any, places: np.ndarray) -> str:
    """The waveform over seconds, shaded in turns from one token's start to the next; thinned where many."""
    samples, rate = raw
    starts = np.unique(places[:, 0])  # frames may overlap, and the bands of one frame share its time
    every = -(-len(starts) // MAX_STRETCHES) or 1
    edges = [*starts[::every], *places[-1:, 1]] if len(places) else []
    for start, stop in zip(edges[::2], edges[1::2], strict=False):
        axis.axvspan(start, stop, color=SOFT[0], linewidth=0)
    axis.plot(np.arange(len(samples)) / rate, samples.cpu().numpy(), linewidth=0.5, color=BLUE, alpha=0.85)
    axis.set(xlabel="seconds", xlim=(0, len(samples) / rate))
    axis.spines[["top", "right"]].set_visible(False)
    return f", a mark every {every}" if every > 1 else ""


def _scaled(matrix: np.ndarray) -> np.ndarray:
    """Divided by what 99 in 100 of its numbers stay below."""
    return matrix / (np.quantile(np.abs(matrix), 0.99) or 1.0) if matrix.size else matrix


def _matrix(axis: Axes, tokens: Tokens) -> None:
    """D×N, a real column a token, blue below zero and red above; each modality's columns marked off and named.

    Colours are on each modality's own scale: vectors of subwords are much smaller than projected pixels.
    """
    parts = [_scaled(part[0].float().cpu().numpy()) for part in (tokens.split() or [tokens])]
    matrix = np.concatenate(parts, 1)
    drawn = axis.imshow(matrix, aspect="auto", cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    several = len([part for part in parts if part.shape[1]]) > 1
    label = "value, each modality on its own scale" if several else "value, scaled"
    axis.figure.colorbar(drawn, ax=axis, pad=0.01, fraction=0.03, label=label)
    counts = {span.modality: int(tokens.mask[0, span.start : span.stop].sum()) for span in tokens.spans}
    start, width = 0, matrix.shape[1]
    for name, count in counts.items():
        if start:
            axis.axvline(start - 0.5, color="black", linewidth=1.2)
        if count >= 0.08 * width:  # narrower ones have no room for their name and stand in the title only
            axis.text(start + (count - 1) / 2, -0.6, name, ha="center", va="bottom", fontsize=9)
        start += count
    named = " + ".join(f"{name} {count}" for name, count in counts.items())
    axis.set(xlabel="N tokens", ylabel="D")
    axis.set_title(f"matrix D×N = {len(matrix)}×{width}: {named}", loc="left", fontsize=10, pad=16)
