"""The raw inputs of one sample and its tokens, for drawings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dxn import viz
from dxn.core.tokens import Tokens
from dxn.viz.drawers import Shown, is_file

MAX_TEXT = 60  # characters of a text in the description of a sample
MAX_DESCRIBED = 8  # inputs in the description of a sample


def draw_tokens(
    adapters: Mapping[str, Any],
    raws: Mapping[str, Any],
    tokens: Tokens,
    path: Path,
    *,
    about: str = "",
    sources: Mapping[str, Any] | None = None,
) -> None:
    """Draw the raw inputs of one sample with their tokens, and the D×N matrix.

    Args:
        adapters: Adapter of each input, by input name.
        raws: Raw value of each input, by input name.
        tokens: Tokens of the sample.
        path: File to write.
        about: Name of the sample or the model, for the title.
        sources: What the inputs were read from, by input name.
    """
    viz.pictures.token_picture(
        shown_inputs(adapters, raws, sources=sources), tokens, path, about=about
    )


def shown_inputs(
    adapters: Mapping[str, Any],
    raws: Mapping[str, Any],
    *,
    sources: Mapping[str, Any] | None = None,
) -> dict[str, Shown]:
    """Return the raw inputs of one sample for the drawers, without those that are missing."""
    shown: dict[str, Shown] = {}
    for name, raw in raws.items():
        if raw is not None and name in adapters:
            prepare = adapters[name].prepare
            source = (sources or {}).get(name)
            shown[name] = Shown(prepare.modality, raw, prepare, adapters[name], source, name)
    return shown


def describe_sample(sample: Mapping[str, Any]) -> str:
    """Describe a sample in one line: its first texts, and the names of its files."""
    parts: list[str] = []
    for name, value in sample.items():
        text = " ".join(map(str, value)) if isinstance(value, list) else value
        if isinstance(text, str | Path) and is_file(text):
            parts.append(f"{name}: {Path(text).name}")
        elif isinstance(text, str):
            short = text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
            parts.append(f"{name}: “{short}”")
    if len(parts) > MAX_DESCRIBED + 1:
        parts[MAX_DESCRIBED:] = [f"{len(parts) - MAX_DESCRIBED} more"]
    return "; ".join(parts)
