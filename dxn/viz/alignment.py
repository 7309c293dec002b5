"""Pictures of the cross-attention of a decoder: what each generated token attends to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dxn.core.tokens import Tokens
from dxn.viz.drawers import InputAttention, Shown
from dxn.viz.labels import file_names
from dxn.viz.numbers import percent
from dxn.viz.spans import InputTokens, drawn_inputs


def cross_attention_pictures(
    weights: np.ndarray,
    words: Sequence[str],
    tokens: Tokens,
    names: Sequence[str],
    inputs: Mapping[str, Shown],
    folder: Path,
    *,
    about: str = "",
) -> list[Path]:
    """Write one picture per input of the first sample.

    The drawer of an input chooses the kind of picture and its file name. If several inputs have the
    same file name, the name of the input is put in front.

    Args:
        weights: (T, N). Attention weight of each generated token on each column, padding included.
        words: The T generated tokens as strings.
        tokens: Encoded tokens that the decoder attends to.
        names: Names of the N columns, see `dxn.viz.attention.token_names`.
        inputs: The inputs by name.
        folder: Folder to write to.
        about: Line below the titles, such as the answer of the model.

    Returns:
        The files that were written.
    """
    parts = drawn_inputs(tokens, inputs)
    files = _files(parts)
    # With several kinds of columns, such as a class token and an input, the title of each picture
    # says which share of the attention it shows.
    is_real = tokens.mask[0].cpu().numpy()
    num_real_spans = sum(is_real[span.start : span.stop].any() for span in tokens.spans)
    written: list[Path] = []
    for part in parts:
        part_weights = weights[:, part.columns]
        share = percent(float(part_weights.sum(1).mean()))
        attention = InputAttention(
            weights=part_weights,
            words=words,
            names=[names[int(i)] for i in part.columns],
            coords=part.coords,
        )
        path = folder / files[part.name]
        title = f"What each word of the answer attends to in {part.name}"
        if num_real_spans > 1:
            title += f" ({share} of its attention)"
        part.drawer.draw_reading(part.shown, attention, path, title=title, about=about)
        written.append(path)
    return written


def _files(parts: Sequence[InputTokens]) -> dict[str, str]:
    """Return the file name of each input."""
    inputs_by_file: dict[str, list[str]] = {}
    for part in parts:
        inputs_by_file.setdefault(part.drawer.reading_file, []).append(part.name)
    # Inputs of the same modality have the same drawer, and thus the same file name.
    files: dict[str, str] = {}
    for file, sharing in inputs_by_file.items():
        files |= file_names(sharing, file)
    return files
