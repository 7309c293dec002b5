"""The layout of a table in which one row is an object in a picture, or an event in a sound."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dxn.core.display import list_names
from dxn.core.errors import UserError
from dxn.core.untrusted import parsed_cell
from dxn.data.rows import AUTO, as_column, blank_to_none
from dxn.data.tables.read import Layout, Rearranging, Table, differing_values, one_value_each
from dxn.tasks.detect.objects import BOX_KEYS, CLASS_KEYS, IGNORED_KEYS, SIDE_KEYS
from dxn.tokenize.media import MEDIA_SUFFIXES, is_file_name

OBJECTS = "objects"  # the column with the list of objects of a file
UNNAMED = "object"  # the class of all objects of a table without a column of classes
# Names of a column with files, if their suffixes do not tell, as in "image_id".
IDS = re.compile(r"(image|img|picture|photo|file|video|clip|audio|recording)[ _]?(id|name)?", re.I)
MAX_SHOWN = 3  # files in a message
NUM_TRIED = 200  # cells that tell whether a column contains files
SIZES = ("width", "height", "depth", "image_width", "image_height")  # of a picture, not of a box


@dataclass(frozen=True)
class ObjectRows(Layout):
    """Several rows are one file: each row is an object in it, or says that there is none.

    Args:
        file: Column with the file of a row.
        label: Column with the class. "": all objects have the same one.
        places: Column of each number of a place, or of a list of numbers, and of flags such as
            iscrowd, by its key in an object, see `dxn.tasks.detect.objects`.
    """

    file: str
    label: str
    places: Mapping[str, str] = field(default_factory=dict)

    kind = OBJECTS

    def __post_init__(self) -> None:
        if not isinstance(self.places, Mapping):
            raise ValueError(f"places must be a mapping, got {self.places!r}")
        names = [self.file, self.label, *chain.from_iterable(self.places.items())]
        if not all(isinstance(name, str) for name in names):
            raise ValueError(f"file, label and places must be names of columns, got {names!r}")

    def rearranged(self, table: Table, use: Rearranging) -> Table:
        """Return a table with one row per file, and with the list of its objects.

        Other columns are kept if they have one value per file, such as the split. A table without
        the columns of the places, such as one to predict, gets no objects.
        """
        if self.file not in table.columns or OBJECTS in table.columns:
            return table
        rows: dict[Any, list[int]] = {}
        values = list(table.columns[self.file])
        for i, value in enumerate(values):
            if isinstance(value, list | dict):
                raise UserError(f"{table.origin(i)}: column {self.file!r} must have a file or id")
            rows.setdefault(value, []).append(i)
        object_columns = {self.label, *self.places.values()}
        names = {name.lower() for name in self.places.values()}
        columns: dict[str, Any] = {}
        unused: list[str] = []
        for name, column in table.columns.items():
            if name in object_columns:
                continue
            cells, differing = one_value_each(list(column), rows.values())
            is_size = name.lower() in SIZES and name.lower() not in names
            if name in use.required and differing is not None:
                raise differing_values(table, name, differing, "file")
            if name in use.required or (differing is None and not is_size):
                columns[name] = as_column(cells)
            else:
                unused.append(name)
        if self.file in columns:
            columns[self.file] = as_column(_files(list(rows), table.path))
        flags = {self.places[key] for key in IGNORED_KEYS if key in self.places}
        if use.with_target and object_columns - {"", *flags} <= table.columns.keys():
            cells = self._objects(table, rows.values())
            columns[OBJECTS] = as_column(cells, is_json=True)
        elif use.key:  # the table of one split has no objects, but it needs the same columns
            columns[OBJECTS] = as_column([None] * len(rows))
        use.notes.append(f"one row per object: the rows with the same {self.file} become one row")
        if unused:
            use.notes.append(
                f"not used: {', '.join(unused)} (of single objects, or the size of a file)"
            )
        first = np.array([group[0] for group in rows.values()], np.int64)
        return Table(columns, table.origins.take(first), table.notes, table.path)

    def _objects(self, table: Table, groups: Collection[Sequence[int]]) -> list[list[Any]]:
        """Return the list of objects of each file."""
        labels = list(table.columns[self.label]) if self.label else [UNNAMED] * len(table)
        columns = table.columns
        places = {key: list(columns[name]) for key, name in self.places.items() if name in columns}
        objects: list[list[Any]] = []
        for rows in groups:
            objects_of_file: list[Any] = []
            for i in rows:
                place = {key: cells[i] for key, cells in places.items() if cells[i] is not None}
                label = blank_to_none(labels[i])
                if label is None or (not self.label and not place.keys() - {*IGNORED_KEYS}):
                    continue  # the row says that there is no object
                place = {key: _numbers(value) for key, value in place.items()}
                objects_of_file.append({"label": label, **place})
            objects.append(objects_of_file)
        return objects

    def options(self) -> dict[str, Any]:
        return {self.kind: self.file}


def find_object_rows(
    table: Table, column: str, *, inputs: Sequence[str], targets: Sequence[str]
) -> ObjectRows | None:
    """Return the layout of a table whose rows are objects. None: the table has another layout.

    A table is recognized by a column of files, one of classes, and those of places.

    Args:
        table: All rows of all splits.
        column: Column with the file of a row, which the user chose, or AUTO.
        inputs: Columns that the user chose as inputs.
        targets: Possible target columns.

    Raises:
        UserError: If the chosen column does not exist, or no columns have places.
    """
    if column != AUTO:
        table.column(column, "data.objects")
    by_name = {name.lower().strip().replace(" ", "_"): name for name in table.columns}
    places: dict[str, str] = {}
    for keys in (*(keys for keys, _ in SIDE_KEYS), *((key,) for key in BOX_KEYS)):
        names = [by_name[key] for key in keys if key in by_name]
        if len(names) == len(keys) and column not in names:
            places = dict(zip(keys, names, strict=True))
            break
    flags = {key: by_name[key] for key in IGNORED_KEYS if key in by_name}
    if not places and column != AUTO:
        raise UserError(
            "data.objects: the table must have columns with the place of an object, such as xmin, "
            f"ymin, xmax and ymax, or start and stop; the columns are {', '.join(table.columns)}"
        )
    if not places:
        return None
    chosen = column if column != AUTO else _file_column(table, inputs, places.values())
    if not chosen:
        return None
    labels = [name for name in targets if name in table.columns]
    labels += [by_name[name] for name in CLASS_KEYS if name in by_name]
    label = next((name for name in labels if name not in (chosen, *places.values())), "")
    if column == AUTO and not label:
        return None
    # Lists of several boxes are a target already, so that each row is a file.
    if len(places) == 1 and not all(map(_is_flat, table.columns[next(iter(places.values()))])):
        return None
    return ObjectRows(chosen, label, places | flags)


def _file_column(table: Table, inputs: Sequence[str], places: Collection[str]) -> str:
    """Return the column with files, which is none of `places`; "" if there is none."""
    named = [name for name in inputs if name in table.columns]
    names = [name for name in named or table.columns if name not in places]
    for name in names:
        cells = [cell for cell in table.columns[name][:NUM_TRIED] if cell is not None]
        if cells and all(isinstance(cell, str) and is_file_name(cell) for cell in cells):
            return name
    return next((name for name in names if IDS.fullmatch(name)), "")


def _files(values: Sequence[Any], table: Path | None) -> list[Any]:
    """Return the paths of files whose names have no suffix, if they are below the table."""
    if table is None or all(is_file_name(str(value)) for value in values):
        return list(values)
    paths: dict[str, list[str]] = {}  # by the name without the suffix, and with its folders
    for folder, _, names in os.walk(table.parent):
        for name in sorted(names):
            if name.lower().endswith(MEDIA_SUFFIXES):
                path = Path(folder, name).relative_to(table.parent)
                for key in {path.stem, path.with_suffix("").as_posix()}:
                    paths.setdefault(key, []).append(str(path))
    files: list[Any] = []
    for value in values:
        found = [] if value is None else paths.get(str(value), [])
        if len(found) > 1:
            # A file beside the table has no folder that could be written.
            exact = [path for path in found if Path(path).with_suffix("").as_posix() == str(value)]
            found = exact if len(exact) == 1 else found
        if len(found) > 1:
            raise UserError(
                f"{table}: {value} can be {list_names(sorted(found), MAX_SHOWN)}; write the folder "
                "and the suffix too, or rename the files"
            )
        files.append(found[0] if found else value)
    return files


def _is_flat(cell: Any) -> bool:
    """Whether a cell is blank or contains the numbers of one box."""
    value = _numbers(cell)
    items = value if isinstance(value, list) else [value]
    return not any(isinstance(item, list | dict) for item in items)


def _numbers(cell: Any) -> Any:
    """Return the numbers of a box that are written as a text, or the cell as it is."""
    value = parsed_cell(cell) if isinstance(cell, str) else None
    return cell if value is None else value
