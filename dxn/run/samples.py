"""Read the option `input` of a command: one sample or a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dxn.data.columns import infer_modality
from dxn.data.opening import Opened, open_rows
from dxn.data.read import SUFFIXES
from dxn.data.rows import InputSpec, OnBad
from dxn.data.table import rows_of_table, table
from dxn.errors import UserError
from dxn.run import report
from dxn.run.build import by_modality
from dxn.run.predictor import Predictor
from dxn.tokenize.adapter import Preprocessor, reads_files

TEXT_SUFFIX = ".txt"


def is_table(value: Any) -> bool:
    """Whether the option `input` is the path of a table, or of a folder with a table."""
    # input.NAME=... describes one sample.
    if isinstance(value, Mapping):
        return False
    path = Path(str(value))
    return path.suffix.lower() in SUFFIXES or path.is_dir()


def read_sample(value: Any, preprocessors: Mapping[str, Preprocessor]) -> dict[str, Any]:
    """Return the inputs of one sample by name, from input.NAME=... or from a single input=...

    A single value is assigned to the input whose preprocessor accepts it best. The name of a .txt
    file is replaced by its content.

    Args:
        value: Values by input name, or a single value.
        preprocessors: Preprocessor of each input, by input name.

    Raises:
        UserError: If an input is unknown, a single value fits no input or several, or a text file
            cannot be read.
    """
    if isinstance(value, Mapping):
        if unknown := [name for name in value if name not in preprocessors]:
            raise UserError(
                f"input.{unknown[0]}: there is no such input; "
                f"the inputs are {', '.join(preprocessors)}"
            )
        present = {name: item for name, item in value.items() if item is not None}
        return {name: _content(item, preprocessors[name]) for name, item in present.items()}
    text = _read_text(str(value)) if str(value).lower().endswith(TEXT_SUFFIX) else str(value)
    modality = infer_modality([text], by_modality(preprocessors)) or _modality_of_text(
        text, preprocessors
    )
    names = [name for name, p in preprocessors.items() if p.modality == modality]
    if len(names) != 1:
        choices = " or ".join(f"input.{name}=..." for name in names or preprocessors)
        reason = "fits several inputs" if names else "fits no input"
        raise UserError(f"input: {str(value)!r} {reason}; name the input: {choices}")
    return {names[0]: text}


def open_table(path: str, predictor: Predictor, on_bad: OnBad) -> Opened:
    """Open all rows of a table for prediction.

    The inputs are read from the columns that the model was trained on. A public checkpoint has no
    such columns, so they are inferred.

    Args:
        path: Path of the table.
        predictor: The trained model.
        on_bad: What to do with rows that cannot be read: "error", "skip" or "missing".

    Raises:
        UserError: If a column is missing, or a cell cannot be read.
    """
    preprocessors = by_modality(predictor.preprocessors)
    if not predictor.columns:
        # A single fraction of 1: all rows belong to the training split.
        source = table(path, preprocessors=preprocessors, fractions=(1.0,))
        rows = source.splits["train"]
        specs = source.inputs
    else:
        specs = {
            name: InputSpec(column, predictor.preprocessors[name].modality)
            for name, column in predictor.columns.items()
        }
        rows = rows_of_table(path, specs, preprocessors)
    print_columns({name: spec.column for name, spec in specs.items()})
    return open_rows(rows, predictor.preprocessors, on_bad=on_bad, need_target=False, key="on_bad")


def print_columns(columns: Mapping[str, str]) -> None:
    """Print the column that each input is read from."""
    report.print_line(
        f"columns: {', '.join(f'{name}={column}' for name, column in columns.items())}"
    )


def _content(value: Any, prepare: Preprocessor) -> Any:
    """Replace the name of an existing .txt file by its content, if the input is a text."""
    # A preprocessor that reads files receives the path. A text that only ends in .txt is kept.
    is_text_file = isinstance(value, str) and value.lower().endswith(TEXT_SUFFIX)
    if is_text_file and not reads_files(prepare) and Path(value).is_file():
        return _read_text(value)
    return value


def _modality_of_text(text: str, preprocessors: Mapping[str, Preprocessor]) -> str | None:
    """Return the only modality that does not read files; None if there are several or none.

    A short text such as "42" is accepted by no preprocessor, but can only be meant as a text.
    """
    modalities = {p.modality for p in preprocessors.values() if not reads_files(p)}
    # A mistyped path such as "foto.jpg" must be an error instead of a text.
    looks_like_file = Path(text).suffix != "" and " " not in text.strip()
    return modalities.pop() if len(modalities) == 1 and not looks_like_file else None


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        where = f"current directory: {Path.cwd()}"
        raise UserError(f"input: file not found: {path} ({where})") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"input: {path} cannot be read as text: {error}; save the file as UTF-8"
        ) from error
