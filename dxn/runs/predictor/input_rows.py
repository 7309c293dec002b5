"""Open the option `input` of a command as many samples: a table, a folder or a pattern of files."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.data.columns.infer import infer_modality
from dxn.data.reading import Opened
from dxn.data.rows import TARGET, InputSpec, OnBad, Rows
from dxn.data.sources.confine import confined
from dxn.data.sources.detect import table_format, tables_in
from dxn.data.sources.table import rows_of_table, table
from dxn.runs.evaluation.printing import print_line
from dxn.runs.plan import by_modality
from dxn.runs.predictor.input_groups import named
from dxn.runs.predictor.predictor import Predictor
from dxn.tokenize.base import Reader

WILDCARDS = "*?["
MAX_NAMES = 3  # files in a message
MAX_PRINTED_COLUMNS = 12


def has_many_samples(value: Any) -> bool:
    """Whether the option `input` is a table, a folder, or a pattern that matches files."""
    # input.NAME=... describes one sample.
    if isinstance(value, Mapping):
        return False
    path = str(value)
    return _is_folder(path) or table_format(path) is not None or _is_pattern(path)


def is_table(value: Any) -> bool:
    """Whether the option `input` is a table, or a folder that contains a table."""
    if isinstance(value, Mapping):
        return False
    path = Path(str(value))
    return bool(tables_in(path)) if _is_folder(path) else table_format(path) is not None


def _is_folder(path: str | Path) -> bool:
    """Whether a path is a folder. A text can be no path at all: too long, or with a NUL."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def open_input(values: Mapping[str, Any], predictor: Predictor) -> Opened:
    """Open all samples of the option `input`.

    The inputs of a table are read from the columns that the model was trained on. A public
    checkpoint has no such columns, so they are inferred.

    Args:
        values: Values of the options input, columns, keep, sep, encoding, sheet, on_bad and
            confine.
        predictor: The model.

    Raises:
        UserError: If there are no such files, a column is missing, or a sample cannot be read.
    """
    path = str(values["input"])
    if _is_pattern(path):
        files = _matches(path)
        if not files:
            raise UserError(f"input: no file matches {path} (current directory: {Path.cwd()})")
        # The folder in front of the first wildcard.
        first = min(path.index(each) for each in WILDCARDS if each in path)
        root = Path(f"{path[:first]}x").parent
        rows = _rows_of_files(files, predictor, path, root if values["confine"] else None)
    elif not is_table(path):
        # Sorted: the file system returns files in any order.
        found = sorted(file for file in Path(path).rglob("*") if file.is_file())
        is_hidden = [any(p.startswith(".") for p in f.relative_to(path).parts) for f in found]
        files = [str(file) for file, hidden in zip(found, is_hidden, strict=True) if not hidden]
        rows = _rows_of_files(files, predictor, path, Path(path) if values["confine"] else None)
    else:
        # A table of queries, for example, need not have the columns of the other inputs.
        rows = read_table_rows(values, predictor, with_target=False, only=values.get("only"))
        # A target column in a new table has no effect on predictions.
        cells = {name: column for name, column in rows.cells.items() if name != TARGET}
        rows = replace(rows, cells=cells)
    return open_rows_for_use(rows, predictor, values["on_bad"])


def read_table_rows(
    values: Mapping[str, Any],
    predictor: Predictor,
    *,
    with_target: bool = True,
    only: Sequence[str] | None = None,
) -> Rows:
    """Read all rows of the table `input` with their targets, and print the columns that are used.

    Args:
        values: Values of the options input, columns, keep, sep, encoding, sheet and confine.
        predictor: The model, which knows the columns of its training.
        with_target: Whether the rows are used with their targets. False: they are predicted.
        only: Names of the inputs that are used. The table may lack the others. Default: all.
    """
    readers = by_modality(predictor.readers)
    specs = _trained_specs(predictor) or _inferred_specs(values, predictor)
    renamed: Mapping[str, str] = values["columns"]
    notes: list[str] = []
    rows = rows_of_table(
        values["input"],
        specs,
        readers,
        target=predictor.target,
        columns=renamed,
        keep=values.get("keep", ()),  # `dxn embed` has no such option
        sep=values["sep"],
        encoding=values["encoding"],
        sheet=values["sheet"],
        layout=predictor.layout,
        with_target=with_target,
        optional=() if only is None else specs.keys() - set(only),
        confine=values["confine"],
        notes=notes,
    )
    # A column can be mapped by the name of its input or by its name in the training.
    trained = {name: spec.column for name, spec in specs.items() if name in rows.cells}
    print_columns({name: renamed.get(name, renamed.get(old, old)) for name, old in trained.items()})
    for note in notes:
        print_line(f"note: {note}")
    return rows


def open_rows_for_use(
    rows: Rows, predictor: Predictor, on_bad: OnBad, *, with_target: bool = False
) -> Opened:
    """Read the files of rows for prediction or evaluation.

    Args:
        rows: The rows.
        predictor: The model.
        on_bad: What to do with rows that cannot be read: "error", "skip" or "missing".
        with_target: Whether every row needs a target.

    Raises:
        UserError: If a row cannot be read and on_bad is "error", or no row is left.
    """
    opened = predictor.survey(rows, on_bad=on_bad, with_target=with_target)
    first = min(opened.bad, key=lambda fault: fault.row, default=None)
    if not len(opened):
        reason = "there are no rows" if first is None else f"{first.origin}: {first}"
        raise UserError(f"input: no row can be used: {reason}; choose other data")
    if first is not None and on_bad == "error":
        more = f" ({len(opened.bad) - 1} more cannot be read)" if len(opened.bad) > 1 else ""
        raise UserError(
            f"{first.origin}: {first}{more}; set on_bad=skip to leave out such rows, or "
            "on_bad=missing to use their other inputs"
        )
    return opened


def inputs_beside(
    name: str,
    values: Sequence[Any],
    readers: Mapping[str, Reader],
    columns: Mapping[str, str],
) -> list[str]:
    """Return an input, and the other inputs that read the same values.

    A model can read several inputs from one column, such as the pictures and the sound of a video.

    Args:
        name: Name of the input.
        values: Values of the input.
        readers: Reader of each input, by input name.
        columns: Column of the training table that each input was read from, by input name.
    """
    present = [value for value in values if value is not None]
    others = [
        other
        for other, reader in readers.items()
        if other != name
        and columns.get(other, other) == columns.get(name, name)
        and reader.score(present)
    ]
    return [name, *others]


def print_columns(columns: Mapping[str, str]) -> None:
    """Print the column that each input is read from."""
    pairs = [name if name == column else f"{name}={column}" for name, column in columns.items()]
    print_line(f"columns: {named(pairs, MAX_PRINTED_COLUMNS)}")


def _trained_specs(predictor: Predictor) -> dict[str, InputSpec]:
    """Return the columns that the model was trained on; none for a public checkpoint."""
    return {
        name: InputSpec(column, predictor.readers[name].modality)
        for name, column in predictor.columns.items()
    }


def _inferred_specs(values: Mapping[str, Any], predictor: Predictor) -> Mapping[str, InputSpec]:
    """Return the columns of a table that fit the inputs of a public checkpoint.

    Raises:
        UserError: If several columns fit an input.
    """
    readers = predictor.readers
    named = {readers[n].modality: c for n, c in values["columns"].items() if n in readers}
    source = table(
        values["input"],
        readers=by_modality(readers),
        fractions=None,
        sep=values["sep"],
        encoding=values["encoding"],
        sheet=values["sheet"],
        confine=values["confine"],
        **named,
    )
    # If several columns fit a modality, the inputs have the names of these columns.
    if unknown := [name for name in source.inputs if name not in readers]:
        raise UserError(
            f"input: several columns fit the inputs of this model ({', '.join(readers)}): "
            f"{', '.join(unknown)}; choose one, columns.{next(iter(readers))}={unknown[0]}"
        )
    return source.inputs


def _rows_of_files(
    files: Sequence[str], predictor: Predictor, path: str, root: Path | None
) -> Rows:
    """Return one row per file, for the input that reads files of its kind.

    Args:
        files: The files.
        predictor: The model.
        path: The option that names them, for messages.
        root: Folder that links may not lead out of. None: they may.

    Raises:
        UserError: If no input reads them, or several inputs read the same kind of files.
    """
    readers = {name: reader for name, reader in predictor.readers.items() if reader.files}
    modalities = [infer_modality([file], by_modality(readers)) for file in files]
    used = [file for file, modality in zip(files, modalities, strict=True) if modality]
    if not used:
        inputs = ", ".join(f"{n} ({p.modality})" for n, p in predictor.readers.items())
        raise UserError(
            f"input: no input of this model reads any of the {count(len(files), 'file')} of "
            f"{path}; its inputs are {inputs}"
        )
    cells: dict[str, list[str | None]] = {}
    for modality in dict.fromkeys(m for m in modalities if m):
        names = [name for name, p in readers.items() if p.modality == modality]
        if len(names) > 1:
            raise UserError(
                f"input: the files of {path} fit several inputs ({', '.join(names)}); write a "
                "table with one column per input, and set input to the table"
            )
        kept = [m for m in modalities if m]
        values = [f if m == modality else None for f, m in zip(used, kept, strict=True)]
        if root is not None:
            values = [f if f is None else confined(f, root, "confine") for f in values]
        for name in inputs_beside(names[0], values, readers, predictor.columns):
            cells[name] = values
    others = [file for file, modality in zip(files, modalities, strict=True) if not modality]
    if others:
        more = ", ..." if len(others) > MAX_NAMES else ""
        names = ", ".join(Path(file).name for file in others[:MAX_NAMES])
        print_line(f"note: not used: {count(len(others), 'file')} of another kind ({names}{more})")
    return Rows(cells, used)


def _is_pattern(path: str) -> bool:
    """Whether a value is a pattern such as photos/*.jpg, and not a text or the name of a file."""
    if not any(character in path for character in WILDCARDS) or Path(path).exists():
        return False
    # A text such as "who?" is a pattern only if it matches a file. A name without spaces but with a
    # suffix cannot be meant as a text, so that a wrong pattern is an error.
    looks_like_file = Path(path).suffix != "" and " " not in path
    return looks_like_file or bool(_matches(path))


def _matches(pattern: str) -> list[str]:
    # Not Path.glob: it accepts no absolute patterns, and raises errors for some texts.
    found = glob.glob(pattern, recursive=True)  # noqa: PTH207
    return sorted(path for path in found if Path(path).is_file())
