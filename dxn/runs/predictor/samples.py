"""Read the option `input` of a command as one sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dxn.core.errors import UserError
from dxn.data.columns.infer import infer_modality
from dxn.data.tables.decoding import read_text
from dxn.runs.plan import by_modality
from dxn.runs.predictor.input_rows import has_many_samples, inputs_beside
from dxn.tokenize.base import Reader

TEXT_SUFFIX = ".txt"


def read_sample(
    value: Any,
    readers: Mapping[str, Reader],
    columns: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the inputs of one sample by name, from input.NAME=... or from a single input=...

    A single value is assigned to the input whose reader scores it best. The name of a .txt
    file is replaced by its content.

    Args:
        value: Values by input name, or a single value.
        readers: Reader of each input, by input name.
        columns: Column of the training table that each input was read from, by input name. A single
            value is also assigned to the other inputs of its column. Default: unknown.

    Raises:
        UserError: If an input is unknown, a single value fits no input or several, it names several
            samples, such as a table, or a text file cannot be read.
    """
    if isinstance(value, Mapping):
        if unknown := [name for name in value if name not in readers]:
            raise UserError(
                f"input.{unknown[0]}: there is no such input; the inputs are {', '.join(readers)}"
            )
        present = {name: item for name, item in value.items() if item is not None}
        return {name: _content(item, readers[name]) for name, item in present.items()}
    if has_many_samples(value):
        raise UserError(
            f"input: must be one sample, got a table, a folder or several files: {value}; set "
            f"{_choices(readers)} to one of them"
        )
    is_text_file = str(value).lower().endswith(TEXT_SUFFIX)
    text = read_text(Path(value)) if is_text_file else str(value)
    modality = infer_modality([text], by_modality(readers)) or _modality_of_text(text, readers)
    names = [name for name, reader in readers.items() if reader.modality == modality]
    if len(names) == 1:
        return dict.fromkeys(inputs_beside(names[0], [text], readers, columns or {}), text)
    if not names and Path(text).is_file():
        raise UserError(
            f"input: no input of this model reads files such as {text}; set "
            f"{_choices(readers)} (the content of a .txt file is read as a text)"
        )
    reason = "fits several inputs" if names else "fits no input"
    raise UserError(f"input: {str(value)!r} {reason}; name the input: {_choices(names or readers)}")


def _choices(names: Iterable[str]) -> str:
    return " or ".join(f"input.{name}=..." for name in names)


def _content(value: Any, reader: Reader) -> Any:
    """Replace the name of an existing .txt file by its content, if the input is a text."""
    # A reader that reads files receives the path. A text that only ends in .txt is kept.
    is_text_file = isinstance(value, str) and value.lower().endswith(TEXT_SUFFIX)
    if is_text_file and not reader.files and Path(value).is_file():
        return read_text(Path(value))
    return value


def _modality_of_text(text: str, readers: Mapping[str, Reader]) -> str | None:
    """Return the only modality that does not read files; None if there are several or none.

    A short text such as "42" is accepted by no reader, but can only be meant as a text.
    """
    modalities = {reader.modality for reader in readers.values() if not reader.files}
    # A mistyped path such as "foto.jpg" must be an error instead of a text.
    looks_like_file = Path(text).suffix != "" and " " not in text.strip()
    return modalities.pop() if len(modalities) == 1 and not looks_like_file else None
