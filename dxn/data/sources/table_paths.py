"""The tables that a data set consists of: those of the options, or those of a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from dxn.core.errors import UserError
from dxn.data.sources.detect import TABLES, table_format, tables_in, tables_of_splits
from dxn.data.splits.split import SPLIT_NAMES, SPLITS, UNDIVIDED
from dxn.data.tables.read import as_list


def paths_by_split(
    path: str | Sequence[str] | None,
    splits: Mapping[str, str | Sequence[str] | None],
    key: str = "data.path",
    *,
    confine: str | None,
) -> dict[str, list[Path]]:
    """Return the paths of tables by split, or all paths with the key "all".

    Args:
        path: A table, a list of tables, or a folder.
        splits: Tables by split.
        key: Option that contains `path`, for messages.
        confine: Option that allows links out of the folder, for messages. None: they are allowed.
    """
    by_split: dict[str, list[Path]] = {}
    for name, value in splits.items():
        if value is not None:
            by_split[name] = [Path(p) for p in as_list(value)]
    first = next(iter(by_split), None)
    # data.path contains all rows, including those of data.train.
    if path is not None and first is not None:
        raise UserError(f"data.path: cannot be combined with data.{first}; remove one of them")
    if first is not None:
        if "train" not in by_split:
            raise UserError(f"data.train: must be set, because data.{first} is set")
        return by_split
    paths = [Path(p) for p in as_list(path)]
    if not paths:
        raise UserError(f"{key}: must be set, for example {key}=my.csv")
    if len(paths) > 1 or not paths[0].is_dir():
        return {UNDIVIDED: paths}
    by_split = {name: [table] for name, table in tables_of_splits(paths[0]).items()}
    if not by_split or tables_in(paths[0]):
        by_split = _tables_by_split(paths[0], key)
    if confine is None:
        return by_split
    from dxn.data.sources.confine import OutsidePath, confined

    for file in chain.from_iterable(by_split.values()):
        found = confined(file, paths[0], confine)
        if isinstance(found, OutsidePath):
            raise UserError(f"{file}: {found.reason}")
    return by_split


def _tables_by_split(folder: Path, key: str) -> dict[str, list[Path]]:
    """Return the tables called train, validation and test in a folder, or its only table."""
    tables = tables_in(folder)
    by_split: dict[str, list[Path]] = {}
    prefixes: set[str] = set()
    for file in tables:
        # Without the suffix of the format, which can be .csv.gz.
        stem = file.name.lower().removesuffix(".gz").removesuffix(table_format(file) or "")
        # Data sets of archives are called NAME_TRAIN.ts and NAME_TEST.ts.
        prefix, _, last = stem.rpartition("_")
        name = SPLIT_NAMES.get(last)
        if name is not None:
            by_split.setdefault(name, []).append(file)
            prefixes.add(prefix)
    if "train" in by_split and len(prefixes) == 1:
        return {name: by_split[name] for name in SPLITS if name in by_split}
    if len(tables) == 1:
        return {UNDIVIDED: tables}
    names = ", ".join(file.name for file in tables) or "no table"
    raise UserError(
        f"{folder}: the folder must contain one table, or tables called train, validation and "
        f"test, got {names}; set {key} to one table ({', '.join(TABLES)}), or rename the tables"
    )
