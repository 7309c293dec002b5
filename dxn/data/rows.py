"""The columns and rows of a data set, its inputs and its target."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from dxn.core.randomness import spaced_rows

# pyarrow takes time to import, and a single sample does not need it.
if TYPE_CHECKING:
    import pyarrow

    from dxn.data.files import Files
    from dxn.data.sources.shards import StreamedSplit

VALUES = "values"  # column with the series that a layout or a file format of series adds
TARGET = "target"  # key of the targets in Rows.cells and in batches
AUTO = "auto"  # an option that names columns: the columns with usual names
# At most so many rows, which are evenly spaced, decide what is in a column and fit a vocabulary.
FIT_ROWS = 100_000
# Of at most so many cells, Arrow arrays are built without `pyarrow.array`: it imports pandas, which
# takes a tenth of the time of `import torch`, and which nothing else needs. A conversion of an
# array would import pyarrow.compute.
FEW_CELLS = 10_000
CHUNK_ROWS = 10_000  # cells that exist as Python objects at the same time while a column is read

# What to do with a bad row: raise an error, leave the row out, or use the inputs that can be read.
OnBad = Literal["error", "skip", "missing"]


class Column(Sequence[Any]):
    """The cells of a column in some rows. A cell becomes a Python object when it is used.

    Args:
        values: An Arrow array, or a sequence of objects that Arrow cannot store.
        rows: Row numbers, int64. None: all rows of `values`.
        decode: Function that turns a value, which is not None, into a cell. None: it is the cell.
        files: What is known of the files that are `values`. Each row has the number of its file.
    """

    def __init__(
        self,
        values: pyarrow.Array | Sequence[Any],
        rows: np.ndarray | None = None,
        decode: Callable[[Any], Any] | None = None,
        files: Files | None = None,
    ):
        self.values = values
        self.rows = rows
        self.decode = decode
        self.files = files
        self.is_arrow = not isinstance(values, Sequence)

    def __len__(self) -> int:
        return len(self.values if self.rows is None else self.rows)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Column: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        value: Any = self.values[index if self.rows is None else int(self.rows[index])]
        value = value.as_py() if self.is_arrow else value
        return value if self.decode is None or value is None else self.decode(value)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), CHUNK_ROWS):
            # Several values at once, which is faster than one after another.
            part = slice(start, start + CHUNK_ROWS)
            values: Any = self.values
            if self.rows is None:
                values = values[part]
            elif self.is_arrow:
                values = values.take(_arrow_numbers(self.rows[part]))
            else:  # one after another, because they can be files
                values = (self.values[row] for row in self.rows[part].tolist())
            values = values.to_pylist() if self.is_arrow else values
            if self.decode is None:
                yield from values
            else:
                yield from (None if value is None else self.decode(value) for value in values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"Column({list(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process gets its rows only: `values` can have many more.
        values = self.array()
        if values is None and isinstance(self.values, list) and self.rows is not None:
            values = [self.values[row] for row in self.rows]
        if values is None:  # they can be files, which are not read for this
            return Column, (self.values, self.rows, self.decode)
        return Column, (values, None, self.decode)

    @classmethod
    def of(cls, cells: Sequence[Any]) -> Column:
        """Return cells as a column. A list stays one, see also `as_column`."""
        return cells if isinstance(cells, Column) else cls(cells)

    @property
    def has_only_texts(self) -> bool:
        """Whether all cells are known to be texts or None."""
        values: Any = self.values
        return self.is_arrow and self.decode is None and str(values.type) == "large_string"

    def take(self, indices: Sequence[int] | np.ndarray) -> Column:
        """Return the column of the rows at these indices, without copying any cell."""
        rows = np.asarray(indices, np.int64)
        chosen = rows if self.rows is None else self.rows[rows]
        return Column(self.values, chosen, self.decode, self.files)

    def array(self) -> pyarrow.Array | None:
        """Return the values as an Arrow array; None if they are other objects."""
        values: Any = self.values
        if not self.is_arrow or self.rows is None:
            return values if self.is_arrow else None
        return values.take(_arrow_numbers(self.rows))


def as_column(cells: Sequence[Any], *, is_json: bool = False) -> Column:
    """Return cells as a column, in Arrow if all of them have the same simple type.

    Args:
        cells: The cells; None where missing.
        is_json: Whether they are values of a JSON file, so that all others can be stored as JSON.
    """
    if isinstance(cells, Column):
        return cells
    import pyarrow

    kind = _arrow_type(cells)
    if kind is not None:
        # A number with more than 64 bits, or half of a surrogate pair.
        with suppress(pyarrow.ArrowException, OverflowError, UnicodeError):
            return Column(_arrow_array(cells, kind))
    if is_json:
        with suppress(TypeError):  # the messages of a Parquet file can have times
            texts = [None if cell is None else json.dumps(cell) for cell in cells]
            return Column(_arrow_array(texts, pyarrow.large_string()), decode=json.loads)
    return Column(list(cells))


def _arrow_array(cells: Sequence[Any], kind: pyarrow.DataType) -> pyarrow.Array:
    """Return cells as an Arrow array of this type."""
    import pyarrow

    if len(cells) <= FEW_CELLS and pyarrow.types.is_large_string(kind):
        encoded = [b"" if cell is None else cell.encode() for cell in cells]
        present = np.array([cell is not None for cell in cells], bool)
        ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        arrays = np.packbits(present, bitorder="little"), ends, b"".join(encoded)
        return pyarrow.Array.from_buffers(kind, len(cells), list(map(pyarrow.py_buffer, arrays)))
    is_number = kind in (pyarrow.int64(), pyarrow.float64())
    if len(cells) <= FEW_CELLS and is_number and all(cell is not None for cell in cells):
        return _arrow_numbers(np.array(cells, kind.to_pandas_dtype()))
    return pyarrow.array(cells, kind)


def _arrow_numbers(numbers: np.ndarray) -> pyarrow.Array:
    """Return numbers (N,), int64 or float64, as an Arrow array."""
    import pyarrow

    kind = pyarrow.from_numpy_dtype(numbers.dtype)
    buffer = pyarrow.py_buffer(np.ascontiguousarray(numbers))
    return pyarrow.Array.from_buffers(kind, len(numbers), [None, buffer])


def blank_to_none(value: Any) -> Any:
    """Convert blank strings and NaN to None. pandas writes NaN for a missing value."""
    if isinstance(value, str):
        return value if value.strip() else None
    # NaN is the only value that is not equal to itself. Arrays are compared element by element.
    return None if not isinstance(value, np.ndarray) and value != value else value


def join_columns(columns: Sequence[Column]) -> Column:
    """Return the cells of several columns as one column."""
    if len(columns) == 1:
        return columns[0]
    import pyarrow

    values, decode = columns[0].values, columns[0].decode
    if all(column.values is values and column.decode is decode for column in columns):
        every = np.arange(len(values))
        chosen = [every if column.rows is None else column.rows for column in columns]
        return Column(values, np.concatenate(chosen), decode, columns[0].files)
    arrays = [column.array() for column in columns]
    present = [array for array in arrays if array is not None]
    kinds = {array.type for array in present if not pyarrow.types.is_null(array.type)}
    is_same = all(column.decode is decode for column in columns)
    if is_same and len(present) == len(columns) and len(kinds) <= 1:
        kind = next(iter(kinds), pyarrow.null())
        typed = [a if a.type == kind else pyarrow.nulls(len(a), kind) for a in present]
        return Column(pyarrow.concat_arrays(typed), decode=decode)
    is_json = any(column.decode is json.loads for column in columns)
    return as_column(list(chain.from_iterable(columns)), is_json=is_json)


def _arrow_type(cells: Iterable[Any]) -> pyarrow.DataType | None:
    """Return the Arrow type that gives exactly the same cells back; None if there is none."""
    import pyarrow

    kinds = set(map(type, cells)) - {type(None)}
    if len(kinds) != 1:
        return None if kinds else pyarrow.null()
    (kind,) = kinds
    if kind is list:
        item = _arrow_type(list(chain.from_iterable(cell for cell in cells if cell is not None)))
        return None if item is None else pyarrow.large_list(item)
    if kind is datetime.datetime and any(cell and cell.tzinfo for cell in cells):
        return None
    return {
        str: pyarrow.large_string(),
        bytes: pyarrow.large_binary(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        bool: pyarrow.bool_(),
        datetime.date: pyarrow.date32(),
        datetime.datetime: pyarrow.timestamp("us"),
    }.get(kind)


class Origins(Sequence[str]):
    """The file and the number of each row, as texts such as "train.csv row 17".

    Args:
        files: The files.
        lines: Number of each row in its file.
        file_of: Index of the file of each row. None: all rows are from the first file.
    """

    def __init__(
        self,
        files: Sequence[Path],
        lines: Sequence[int] | np.ndarray,
        file_of: np.ndarray | None = None,
    ):
        self.files = files
        self.lines = np.asarray(lines, np.int64)
        self.file_of = np.zeros(len(self.lines), np.int32) if file_of is None else file_of

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Origins: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        return f"{self.files[self.file_of[index]].name} row {self.lines[index]}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def file(self, index: int) -> Path:
        """Return the file of a row."""
        return self.files[self.file_of[index]]

    def take(self, indices: Sequence[int] | np.ndarray) -> Origins:
        """Return the origins of the rows at these indices."""
        rows = np.asarray(indices, np.int64)
        return Origins(self.files, self.lines[rows], self.file_of[rows])


@dataclass(init=False)
class Rows:
    """One split of a data set, before files are read. Sequences become columns.

    Args:
        cells: Values by input name (or "target"), one per row; None where a value is missing. The
            values of an input are what its preprocessor reads, such as texts, paths or bytes.
            Targets are raw cells, which the task parses when the rows are opened.
        origin: Origin of each row for messages, such as "train.csv row 17".
        ids: Values that identify rows and are copied to the results, by column name. A sequence
            that is not a list, such as the times of a forecast, has one value for each item of a
            prediction.
        groups: Group of each row, such as a speaker. Drawn splits keep the rows of a group
            together. None: there are no groups.
    """

    cells: Mapping[str, Column]
    origin: Column | Origins
    ids: Mapping[str, Column]
    groups: Column | None

    def __init__(
        self,
        cells: Mapping[str, Sequence[Any]],
        origin: Sequence[str],
        ids: Mapping[str, Sequence[Any]] | None = None,
        groups: Sequence[Any] | None = None,
    ):
        self.cells = {name: Column.of(column) for name, column in cells.items()}
        self.origin = origin if isinstance(origin, Origins) else Column.of(origin)
        self.ids = {name: Column.of(column) for name, column in (ids or {}).items()}
        self.groups = None if groups is None else Column.of(groups)

    def __len__(self) -> int:
        return len(self.origin)

    def take(self, indices: Sequence[int] | np.ndarray) -> Rows:
        """Return the rows at these indices, in this order, without copying any cell."""
        rows = np.asarray(indices, np.int64)
        return Rows(
            cells={name: column.take(rows) for name, column in self.cells.items()},
            origin=self.origin.take(rows),
            ids={name: column.take(rows) for name, column in self.ids.items()},
            groups=None if self.groups is None else self.groups.take(rows),
        )


@dataclass(frozen=True)
class InputSpec:
    """An input of a data set.

    Args:
        column: Column that contains the values of the input.
        modality: Modality of the input, such as "text".
    """

    column: str
    modality: str


@dataclass(frozen=True)
class Source:
    """A data set with its splits, inputs and target.

    Args:
        splits: Rows by split: "train", and optionally "validation" and "test".
        inputs: Column and modality of each input, by input name. The order is that of the model's
            inputs.
        target: Target column, or several columns joined by " + ". None: there is no target.
        name: Default name of the folder of a run. None: the target.
        files: Names of the inputs whose cells are paths or contents of files.
        candidates: Columns that could be the target, the most likely one first. Only an error
            message about a missing target contains them.
        task: Name of the task for which the data set was designed. None: infer it from the targets.
        notes: Sentences to print about inferred columns, random splits and unused data.
        on_bad: What to do with a bad row.
        layout: How tables were rearranged, which new tables need too, as plain data, see
            `dxn.data.series.layouts`. None: not at all.
        stream: All training rows, if the splits contain only a sample of the rows.
    """

    splits: Mapping[str, Rows]
    inputs: Mapping[str, InputSpec]
    target: str | None = None
    task: str | None = None
    notes: Sequence[str] = ()
    on_bad: OnBad = "error"
    name: str | None = None
    files: Sequence[str] = ()
    candidates: Sequence[str] = ()
    layout: Mapping[str, Any] | None = None
    stream: StreamedSplit | None = None

    @property
    def num_training_rows(self) -> int:
        """Number of training rows of an epoch, which can be an estimate."""
        return len(self.splits.get("train", ())) if self.stream is None else self.stream.num_rows

    @cached_property
    def sample(self) -> list[Rows]:
        """All rows by split, or FIT_ROWS of them that are evenly spaced."""
        chosen = np.array(spaced_rows(sum(map(len, self.splits.values())), FIT_ROWS), np.int64)
        sample: list[Rows] = []
        start = 0
        for rows in self.splits.values():
            end = start + len(rows)
            sample.append(rows.take(chosen[(chosen >= start) & (chosen < end)] - start))
            start = end
        return sample

    def column(self, name: str) -> list[Any]:
        """Return the cells of an input (or "target") in `sample`, None where it is missing."""
        values: list[Any] = []
        for rows in self.sample:
            values += rows.cells.get(name, [None] * len(rows))
        return values

    def targets(self) -> tuple[list[Any], list[Any] | None, list[str]]:
        """Return the raw targets of `sample`, and the words and origins of the same rows.

        Returns:
            The target cells of the rows that have a target; and for the same rows the cells of the
            first input that contains lists of words, otherwise of the first one with texts, None if
            there is no such input; and the origins.
        """
        cells = self.column(TARGET)
        chosen = [i for i, cell in enumerate(cells) if cell is not None]
        targets = [cells[i] for i in chosen]
        every = list(chain.from_iterable(rows.origin for rows in self.sample))
        origins = [every[i] for i in chosen]
        for kind in (list, str):
            for name in self.inputs:
                values = self.column(name)
                if any(isinstance(value, kind) for value in values):
                    return targets, [values[i] for i in chosen], origins
        return targets, None, origins
