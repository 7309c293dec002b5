"""One sample as its model sees it: the raw input with its tokens marked, and the D×N matrix."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from dxn.explain.plots import BLUE, ORANGE, new_figure
from dxn.tokens import Span, Tokens

SOFT = ("#bee3f8", "#fefcbf", "#c6f6d5", "#fed7d7", "#e9d8fd")
COLUMNS = 72  # characters a line of drawn text


def token_picture(raw: Mapping[str, Any], tokens: Tokens, path: Path) -> None:
    """Draw the first sample. raw: text str or words, image uint8 (C, H, W), audio (Tensor (T,), rate)."""
    spans = [s for s in tokens.spans if s.modality in raw]
    heights = [_height(s.modality, raw[s.modality]) for s in spans]
    figure = new_figure(9, sum(heights) + 3.2)
    axes = figure.subplots(len(spans) + 1, 1, height_ratios=[*heights, 3], squeeze=False)[:, 0]
    drawers = {"text": _text, "image": _image, "audio": _audio}
    for axis, span in zip(axes, spans, strict=False):
        places = span.places[0].cpu().numpy()
        drawers[span.modality](axis, raw[span.modality], places[~np.isnan(places).any(1)])
        axis.set_title(f"{span.modality}: {len(span)} tokens", loc="left", fontsize=10)
    _matrix(axes[-1], tokens, tokens.spans)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # no font has every script; the box stays
        figure.savefig(path, dpi=110)


def _height(modality: str, raw: Any) -> float:
    if modality == "text":
        return 0.5 + 0.42 * -(-len(_joined(raw)) // COLUMNS)
    return 3.2 if modality == "image" else 1.8


def _joined(raw: Any) -> str:
    return raw if isinstance(raw, str) else " ".join(raw)


def _text(axis: Axes, raw: Any, places: np.ndarray) -> None:
    """Characters in a fixed pitch, a soft box behind each token."""
    text = _joined(raw)
    lines = max(-(-len(text) // COLUMNS), 1)
    for i, (start, stop) in enumerate(places.astype(int)):
        for line in range(start // COLUMNS, max(stop - 1, start) // COLUMNS + 1):
            left, right = max(start - line * COLUMNS, 0), min(stop - line * COLUMNS, COLUMNS)
            box = Rectangle((left, line + 0.1), max(right - left, 0.15), 0.8, color=SOFT[i % len(SOFT)])
            axis.add_patch(box)
    for at, character in enumerate(text):
        if not character.isspace():
            row, column = divmod(at, COLUMNS)
            axis.text(column + 0.5, row + 0.5, character, ha="center", va="center", fontsize=9)
    axis.set(xlim=(0, COLUMNS), ylim=(lines, 0))
    axis.set_axis_off()


def _image(axis: Axes, raw: Any, places: np.ndarray) -> None:
    """The picture, a thin box around each patch."""
    pixels = raw.permute(1, 2, 0).numpy()
    axis.imshow(pixels.squeeze(-1) if pixels.shape[2] == 1 else pixels, cmap="gray", vmin=0, vmax=255)
    for top, left, bottom, right in places:
        axis.add_patch(
            Rectangle((left - 0.5, top - 0.5), right - left, bottom - top, fill=False, color=ORANGE, linewidth=0.6)
        )
    axis.set_axis_off()


def _audio(axis: Axes, raw: Any, places: np.ndarray) -> None:
    """The waveform over seconds; every other token's stretch of time is shaded, thinned where there are many."""
    samples, rate = raw
    seconds = np.arange(len(samples)) / rate
    stretches = np.unique(places, axis=0)
    stretches = stretches[:: max(len(stretches) // 120, 1)]
    for start, stop in stretches[::2]:
        axis.axvspan(start, stop, color=SOFT[0], linewidth=0)
    axis.plot(seconds, samples.numpy(), linewidth=0.5, color=BLUE)
    axis.set(xlabel="seconds", xlim=(0, max(seconds[-1], 1e-3)))
    axis.spines[["top", "right"]].set_visible(False)


def _matrix(axis: Axes, tokens: Tokens, spans: tuple[Span, ...]) -> None:
    """D×N, a column a token, blue below zero and red above."""
    matrix = tokens.matrix[0].float().cpu().numpy()
    limit = float(np.quantile(np.abs(matrix), 0.99)) or 1.0
    axis.imshow(matrix, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    for span in spans:
        if span.start:
            axis.axvline(span.start - 0.5, color="black", linewidth=1)
        middle = (span.start + span.stop - 1) / 2
        axis.text(middle, -0.03 * len(matrix), span.modality, ha="center", va="bottom", fontsize=9)
    axis.set(xlabel="N tokens", ylabel="D")
    axis.set_title(f"matrix {matrix.shape[0]}×{matrix.shape[1]}", loc="left", fontsize=10, pad=16)
