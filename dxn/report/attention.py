"""What a model attends to in a sample, drawn on its inputs as HTML."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from dxn.core.tokens import Tokens
from dxn.viz.attention import token_names
from dxn.viz.drawers import Shown
from dxn.viz.drawers.html import SMALL, escaped, reduced, text_of
from dxn.viz.numbers import percent
from dxn.viz.spans import InputTokens, drawn_inputs

MAX_BOXES = 1200  # tokens that are drawn on a picture; more make the page slow
MAX_CHARACTERS = 1500  # of a text
MAX_CELLS = 12  # tokens of a list, the most important ones


@dataclass(frozen=True)
class InputShare:
    """The attention to one input.

    Args:
        name: Name of the input.
        share: Its share of the attention.
        html: The input with its tokens colored.
    """

    name: str
    share: float
    html: Markup


def attention(tokens: Tokens, shares: np.ndarray, inputs: Mapping[str, Shown]) -> list[InputShare]:
    """Return the share of each input in the answer, and its tokens colored.

    Args:
        tokens: The encoded sample (1, N, D).
        shares: (N,). Share of each column in the answer.
        inputs: The raw inputs of the sample.
    """
    names = token_names(tokens, inputs)
    parts = drawn_inputs(tokens, inputs)
    found = [
        InputShare(part.name, float(shares[part.columns].sum()), _drawn(part, shares, names))
        for part in parts
    ]
    return [*found, *_without_input(tokens, parts, shares)]


def _without_input(
    tokens: Tokens, parts: list[InputTokens], shares: np.ndarray
) -> list[InputShare]:
    """Return the share of the tokens that belong to no input, such as class tokens."""
    used = {int(column) for part in parts for column in part.columns}
    others = [i for i in range(len(shares)) if i not in used and bool(tokens.mask[0, i])]
    share = float(shares[others].sum()) if others else 0.0
    note = Markup('<p class="note">learned tokens, which belong to no input</p>')
    return [InputShare("class tokens", share, note)] if share > 0.0005 else []


def _drawn(part: InputTokens, shares: np.ndarray, names: list[str]) -> Markup:
    """Return an input as HTML, in which tokens with a larger share have a stronger color."""
    page = part.drawer.page(part.shown)
    values = shares[part.columns]
    # Twice the mean has a middle color, so that equal shares do not look like strong attention.
    largest = max(float(values.max()), 2 * float(values.mean())) or 1.0
    placed = values[part.is_placed]
    if page["kind"] == "characters":
        spans = part.drawer.boxes(part.shown, part.placed)
        return _text(text_of(page), spans, placed, largest)
    if page["kind"] == "boxes":
        boxes = part.drawer.boxes(part.shown, part.placed)
        return _picture(page, boxes, placed, largest, part.name)
    labels = [names[int(i)] for i in part.columns]
    # A drawer that draws several inputs in one panel has names of its own.
    own = part.drawer.token_names(part.shown, part.coords)
    labels = [name or label for name, label in zip(own, labels, strict=False)]
    return _list(labels, values, largest)


def _text(text: str, spans: np.ndarray, shares: np.ndarray, largest: float) -> Markup:
    """Return a text with one colored part per token."""
    heat = np.zeros(min(len(text), MAX_CHARACTERS))
    edges = {0, len(heat)}
    for (start, stop), share in zip(spans.astype(int), shares, strict=True):
        # A token without characters, such as the start of a text, has no place.
        if start < stop and start < len(heat):
            heat[start:stop] = np.maximum(heat[start:stop], share)
            edges |= {int(start), min(int(stop), len(heat))}
    parts: list[str] = []
    ordered = sorted(edges)
    for start, stop in itertools.pairwise(ordered):
        share = float(heat[start])
        piece = escaped(text[start:stop])
        parts.append(
            f'<span class="heat" style="--h:{share / largest:.2f}" title="{percent(share)}">'
            f"{piece}</span>"
            if share
            else piece
        )
    rest = "…" if len(text) > MAX_CHARACTERS else ""
    return Markup(f'<p class="text" dir="auto">{"".join(parts)}{rest}</p>')


def _picture(
    page: Mapping[str, Any], boxes: np.ndarray, shares: np.ndarray, largest: float, name: str
) -> Markup:
    """Return a picture with one colored box per token, as SVG."""
    width, height = float(page["width"]), float(page["height"])
    # A spectrogram has units of seconds and bins, so its sides have no common scale.
    ratio = min(max(height / width, 0.3), 1.4) if not page.get("x_ticks") else 0.45
    size = (320, round(320 * ratio))
    # The pixels of a small picture are visible, as in the examples.
    small = " pixels" if max(width, height) < SMALL and not page.get("x_ticks") else ""
    scale = np.array([size[1] / height, size[0] / width] * 2)
    order = np.argsort(-shares)[:MAX_BOXES]
    rects: list[str] = []
    for i in order:
        if np.isnan(boxes[i]).any() or shares[i] < 0.02 * largest:
            continue
        top, left, bottom, right = (boxes[i] * scale).tolist()
        rects.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
            f'height="{bottom - top:.1f}" fill-opacity="{0.65 * shares[i] / largest:.2f}">'
            f"<title>{percent(float(shares[i]))}</title></rect>"
        )
    return Markup(
        f'<svg class="overlay{small}" viewBox="0 0 {size[0]} {size[1]}" role="img" '
        f'aria-label="{escaped(name)} with the attention to its parts">'
        f'<image href="{reduced(page["source"])}" width="{size[0]}" height="{size[1]}" '
        f'preserveAspectRatio="none"/>{"".join(rects)}</svg>'
    )


def _list(labels: list[str], shares: np.ndarray, largest: float) -> Markup:
    """Return the most important tokens of a list."""
    order = np.argsort(-shares)[:MAX_CELLS]
    items = [
        f'<li><span class="heat" style="--h:{shares[i] / largest:.2f}">{escaped(labels[i])}</span> '
        f'<span class="note">{percent(float(shares[i]))}</span></li>'
        for i in order
        if labels[i]
    ]
    more = len(labels) - len(order)
    rest = f'<li class="note">and {more} more</li>' if more > 0 else ""
    return Markup(f'<ul class="heats">{"".join(items)}{rest}</ul>')
