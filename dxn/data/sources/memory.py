"""Data in the memory of a Python program: data frames of pandas and data sets of `datasets`."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dxn.core.errors import UserError
from dxn.core.files import replace_folder
from dxn.data.formats import SPLIT_NAMES
from dxn.data.rows import Origins, as_column, blank_to_none
from dxn.data.sources.hub import to_table
from dxn.data.splits.split import UNDIVIDED
from dxn.data.tables.csv import filled_names
from dxn.data.tables.read import Table
from dxn.tokenize.cells.cell_values import is_null, plain_value
from dxn.tokenize.media import MEDIA_SUFFIXES
from dxn.tokenize.series.values import SUFFIXES

if TYPE_CHECKING:
    import pandas

FRAME = "DataFrame"  # name of the table in messages, such as "DataFrame row 17"
MAX_TRIED = 20  # cells of a column that are looked up on the disk
MAX_NAME = 255  # characters; no path component is longer
PICTURE_AXES = (2, 3)  # height and width, and channels


def is_frame(value: Any) -> bool:
    """Whether a value is a data frame of pandas."""
    return _is_instance(value, "pandas", "DataFrame")


def is_series(value: Any) -> bool:
    """Whether a value is a series of pandas: a column or a row of a data frame."""
    return _is_instance(value, "pandas", "Series")


def is_dataset(value: Any) -> bool:
    """Whether a value is a `datasets.Dataset`."""
    return _is_instance(value, "datasets", "Dataset")


def _is_instance(value: Any, module: str, name: str) -> bool:
    # Without an import of the library, nobody can have made one.
    library = sys.modules.get(module)
    kind = None if library is None else vars(library).get(name)
    return kind is not None and isinstance(value, kind)


def is_in_memory(value: Any) -> bool:
    """Whether `tables_of` accepts a value."""
    if isinstance(value, Mapping):
        return bool(value) and all(map(is_in_memory, value.values()))
    return is_frame(value) or is_dataset(value)


def table_of(value: Any) -> Table:
    """Return a data frame or data set as a table. Paths in its cells start in the working folder.

    Raises:
        UserError: If two columns have the same name.
    """
    if is_dataset(value):
        return to_table(value, Path("Dataset"))
    frame: pandas.DataFrame = value
    names = filled_names("" if is_null(name) else str(name) for name in frame.columns)
    if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UserError(f"data: two columns are called {repeated[0]!r}; rename one of them")
    # By position: the names of columns can be numbers.
    columns = {name: as_column(_cells(frame.iloc[:, i])) for i, name in enumerate(names)}
    notes: list[str] = []
    # Other indices number the rows, which says nothing about new ones.
    if any(_is_instance(frame.index, "pandas", kind) for kind in ("DatetimeIndex", "PeriodIndex")):
        notes.append(
            "not used: the times in the index of the data frame; frame.reset_index() makes them a "
            "column"
        )
    elif index := [str(name) for name in frame.index.names if name is not None]:
        notes.append(
            f"not used: the index of the data frame ({', '.join(index)}); frame.reset_index() "
            "makes it a column"
        )
    return Table(columns, Origins([Path(FRAME)], np.arange(1, len(frame) + 1)), notes)


def tables_of(value: Any) -> dict[str, Table]:
    """Return the tables by split, or one table with the key "all".

    Args:
        value: A data frame or data set, or a mapping from names of splits to them.

    Raises:
        UserError: If the name of a split is unknown, or there is no training split.
    """
    if not isinstance(value, Mapping):
        return {UNDIVIDED: table_of(value)}
    tables: dict[str, Table] = {}
    for name, part in value.items():
        split = SPLIT_NAMES.get(str(name).lower())
        if split is None:
            raise UserError(
                f"data: {name!r} is not the name of a split; use train, validation and test"
            )
        if split in tables:
            raise UserError(
                f"data: two parts are the {split} split, the second one is {name!r}; concatenate "
                "them, or remove one of them"
            )
        tables[split] = table_of(part)
    if "train" not in tables:
        raise UserError(f"data: a training split is required, got only {', '.join(tables)}")
    return tables


def write_tables(tables: Mapping[str, Table], folder: Path) -> tuple[dict[str, Path], bool]:
    """Write tables to a folder that `data=table` reads.

    Args:
        tables: Tables by split, see `tables_of`.
        folder: Folder to write. It is replaced if it exists.

    Returns:
        The file of each split, and whether cells are paths of files that are somewhere else.

    Raises:
        UserError: If a column contains values that a table file cannot store.
    """
    import pyarrow
    import pyarrow.parquet

    has_paths = False
    written: dict[str, Any] = {}
    for split, table in tables.items():
        arrays = {}
        for name, values in table.columns.items():
            absolute = _absolute(values)
            has_paths |= absolute is not None
            cells = [_storable(value) for value in absolute or values]
            # Arrow would store days only, if the first cell is one.
            if {datetime.date, datetime.datetime} <= set(map(type, cells)):
                cells = [_as_moment(cell) for cell in cells]
            try:
                arrays[name] = pyarrow.array(cells)
            except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise UserError(_not_storable(name, cells)) from error
        written[split] = pyarrow.table(arrays)
    with replace_folder(folder) as new:
        for split, rows in written.items():
            pyarrow.parquet.write_table(rows, new / f"{split}.parquet")
    return {split: folder / f"{split}.parquet" for split in written}, has_paths


def _cells(column: pandas.Series) -> list[Any]:
    missing = column.isna().tolist()
    return [None if m else _plain(v) for m, v in zip(missing, column.tolist(), strict=True)]


def _plain(value: Any) -> Any:
    """Return a value of a data frame as a table file has it."""
    pandas = sys.modules["pandas"]
    if isinstance(value, pandas.Period):  # the date on which it starts
        value = value.to_timestamp()
    if isinstance(value, pandas.Timestamp):  # a datetime with another text
        return value.to_pydatetime(warn=False)
    if isinstance(value, pandas.Interval):  # one word, as that of a category
        return str(value).replace(" ", "")
    if isinstance(value, Path):
        return str(value)
    value = plain_value(value)
    return blank_to_none(value) if isinstance(value, str | float) else value


def _absolute(values: Sequence[Any]) -> list[Any] | None:
    """Return absolute paths for a column of paths of files, None for another column.

    Files can be missing. The rows of these are reported when they are read.
    """
    present = [value for value in values if value is not None]
    tried = present[:MAX_TRIED]
    names = [value for value in tried if _is_file(value) or _is_name_of_media(value)]
    if 2 * len(names) <= len(tried):
        return None
    # Names that repeat can be classes: a folder of this machine is no part of them.
    if 2 * len(set(map(str, present))) <= len(present) and not any(map(_is_file, tried)):
        return None
    return [str(Path(v).absolute()) if isinstance(v, str | Path) else v for v in values]


def _is_name_of_media(value: Any) -> bool:
    # A URL starts nowhere on this disk, and a text of several words can end in the name of a file.
    text = str(value) if isinstance(value, str | Path) else ""
    is_path = "://" not in text and len(text.split()) == 1
    return is_path and text.lower().endswith((*MEDIA_SUFFIXES, *SUFFIXES))


def _is_file(value: Any) -> bool:
    if isinstance(value, str) and (len(Path(value).name) > MAX_NAME or "\0" in value):
        return False
    try:
        return isinstance(value, str | Path) and Path(value).is_file()
    except OSError:  # a text that is too long for a path
        return False


def _storable(value: Any) -> Any:
    """Return a value as Parquet can store it: arrays, pictures and sounds as files or lists."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.ndarray):
        is_picture = value.dtype == np.uint8 and value.ndim in PICTURE_AXES
        return _picture(value) if is_picture else value.tolist()
    # An array and its sample rate.
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], np.ndarray):
        return _sound(*value)
    return _encoded(value) if _is_instance(value, "PIL.Image", "Image") else value


def _as_moment(value: Any) -> Any:
    """Return the start of a day, or another value as it is."""
    is_day = type(value) is datetime.date
    return datetime.datetime.combine(value, datetime.time.min) if is_day else value


def _picture(pixels: np.ndarray) -> bytes:
    from PIL import Image

    return _encoded(Image.fromarray(pixels))


def _encoded(picture: Any) -> bytes:
    file = BytesIO()
    picture.save(file, "PNG")  # PNG keeps every pixel
    return file.getvalue()


def _sound(samples: np.ndarray, sample_rate: int) -> bytes:
    import soundfile

    file = BytesIO()
    # Channels first in dxn and torchaudio, last in soundfile.
    soundfile.write(file, np.asarray(samples).T, int(sample_rate), "FLOAT", format="WAV")
    return file.getvalue()


def _not_storable(name: str, cells: Sequence[Any]) -> str:
    kinds = sorted({type(value).__name__ for value in cells if value is not None})
    return (
        f"data: column {name!r} contains values that cannot be written to a table "
        f"({', '.join(kinds)}); use one type per column, such as .astype(str), or drop the column"
    )
