"""Data sets from table files: CSV, TSV, JSON, JSONL, Excel, Parquet and CoNLL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dxn.core.display import count, list_names
from dxn.core.errors import UserError
from dxn.core.files import CONFIG
from dxn.core.untrusted import shortened
from dxn.data.columns.chats import Chats, find_chats
from dxn.data.columns.choose import (
    USUAL_TARGETS,
    candidate_targets,
    choose_columns,
    identifying_columns,
    map_columns,
    to_rows,
)
from dxn.data.columns.infer import Readers, names_new_groups
from dxn.data.columns.object_rows import OBJECTS, ObjectRows, find_object_rows
from dxn.data.columns.sentences import find_sentences
from dxn.data.formats import CONFINE, SHARD, SPLIT_NAMES, SPLITS, TABLES, table_format
from dxn.data.rows import AUTO, InputSpec, OnBad, Rows, Source
from dxn.data.series.layouts import Long, WideColumns
from dxn.data.sources.detect import tables_in, tables_of_splits
from dxn.data.sources.shards import read_tars
from dxn.data.splits.split import (
    FRACTIONS,
    UNDIVIDED,
    add_missing_targets,
    complete_splits,
    divide_table,
    is_categorical,
    more_split_columns,
    usual_split_column,
)
from dxn.data.tables.read import Layout, Table, as_list, column_name, concatenate, read_table
from dxn.data.tables.squad import are_parts, check_texts, question_ids, with_positions

MAX_LISTED = 5  # tables in a note
JOINED = " + "  # separator of the column names in `Source.target`


@dataclass(frozen=True)
class TableOptions:
    """What the columns and rows of tables are used for.

    Args:
        columns: Columns of each modality. It and all others but `layout` are options of `table`.
        layout: How the tables are rearranged first. None: not at all, unless the columns show that
            each row is a conversation, an object in a file, or a word.
    """

    columns: Mapping[str, str | Sequence[str] | None]
    target: str | Sequence[str] | None = None
    exclude: str | Sequence[str] | None = None
    split: str | None = None
    holdout: Mapping[str, Any] | None = None
    fractions: Sequence[float] | None = FRACTIONS
    group: str | None = None
    on_bad: OnBad = "error"
    confine: bool = True
    seed: int = 0
    layout: Layout | None = None
    sentence: str | None = None
    chat: str | Sequence[str] | None = None
    objects: str | None = None

    def with_usual_names(self) -> TableOptions:
        """Return the options with the names of columns in the form in which tables have them."""
        holdout = self.holdout
        return replace(
            self,
            columns={modality: _usual(option) for modality, option in self.columns.items()},
            target=_usual(self.target),
            exclude=_usual(self.exclude),
            split=_usual(self.split),
            group=_usual(self.group),
            holdout=None if holdout is None else {_usual(name): holdout[name] for name in holdout},
        )

    def named(self, *others: Any) -> list[str]:
        """Return the columns of the inputs, and those of other options."""
        options = (*others, *self.columns.values())
        return [str(name) for option in options for name in as_list(option)]


def table(
    path: str | Sequence[str] | None = None,
    *,
    readers: Readers,
    train: str | Sequence[str] | None = None,
    validation: str | Sequence[str] | None = None,
    test: str | Sequence[str] | None = None,
    split: str | None = None,
    fractions: Sequence[float] | None = FRACTIONS,
    group: str | None = None,
    target: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    holdout: Mapping[str, Any] | None = None,
    sep: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
    wide: WideColumns | None = None,
    long: Long = Long(),
    sentence: str | None = None,
    chat: str | Sequence[str] | None = None,
    objects: str | None = None,
    on_bad: OnBad = "error",
    confine: bool = True,
    seed: int = 0,
    **columns: str | Sequence[str] | None,
) -> Source:
    """Read a data set from tables.

    Each column that a reader accepts becomes an input. If columns of a modality are set
    explicitly, only these columns of the modality become inputs.

    Args:
        path: A table, a list of tables, or a folder with one table or with train, validation and
            test tables.
        readers: Readers in use, by modality. The caller sets this argument.
        train: Table or list of tables of the training split, instead of path.
        validation: Table or list of tables of the validation split.
        test: Table or list of tables of the test split.
        split: Column with the name of each row's split. Default: a column such as "split" or
            "fold" that contains only names of splits.
        fractions: Fractions of training, validation and test rows, if the data does not define the
            splits. Null: the rows are not divided.
        group: Column such as the speaker or the patient. Rows with the same value are in the same
            split.
        target: Column to predict. Several columns become labels: the names of columns of 0 and 1,
            or of yes and no, and "colour=red" for others. Default: a column called label, target,
            class, category or answer.
        exclude: Column or list of columns that are not inputs. Default: inferred inputs are used.
        holdout: Column and value (or list of values) that select the test rows, instead of other
            splits. The column is an input only if you name it as one.
        sep: Separator of CSV cells. Default: detected from the header.
        encoding: Encoding of text files, such as cp1252. Default: UTF-8, or UTF-16 if the file
            starts with a byte order mark.
        sheet: Name of the sheet of an Excel file. Default: the first sheet with a table.
        wide: Columns that are the time steps of one series per row: a pattern such as t_*, a list,
            or a mapping from channels to their columns.
        long: Columns of a table whose rows are time steps. The rows of a series become one row.
        sentence: Column that identifies the sentence of a row, if each row is a word. The rows of a
            sentence become one row. Default: a column such as sentence_id next to one called word.
        chat: Column with the messages of a conversation, or the columns of a message of the user
            and of its answer, such as [question,answer]. "auto" recognizes them by their names, and
            is the default with head=language.
        objects: Column with the file, if each row is an object in it: a class and a place, such as
            xmin, ymin, xmax and ymax, or start and stop. The rows of a file become one row. "auto"
            recognizes it by the names of the columns, and is the default with head=detect.
        on_bad: What to do with a bad row: error (stop), skip (leave the row out) or missing (use
            its other inputs).
        confine: Refuse paths in cells that lead out of the folder of the table, also through
            symbolic links.
        seed: Random seed of the split.
        columns: Column or list of columns of a modality, such as text=title or image=[front,back].
            An empty list: no column of this modality is used. Default: columns are inferred from
            their values.

    Raises:
        UserError: If a table cannot be read, a column does not exist, or options contradict each
            other.
    """
    paths = paths_by_split(
        path,
        {"train": train, "validation": validation, "test": test},
        confine=CONFINE if confine else None,
    )
    tables: dict[str, Table] = {}
    for name, files in paths.items():
        tables[name] = _read(files, sep=sep, encoding=encoding, sheet=sheet)
    if isinstance(path, str) and Path(path).is_dir():
        others = {*tables_in(Path(path))}.difference(*paths.values())
        if others and others != {*tables_in(Path(path))}:
            first = next(iter(tables))
            listed = list_names(sorted(file.name for file in others), MAX_LISTED)
            notes = [*tables[first].notes, f"not used: tables of no split: {listed}"]
            tables[first] = replace(tables[first], notes=notes)
    layout = None
    if wide is not None or long.id is not None:
        from dxn.data.series.layouts import chosen_layout  # few tables have series

        layout = chosen_layout(wide, long)
    options = TableOptions(
        columns=columns,
        target=target,
        exclude=exclude,
        split=split,
        holdout=holdout,
        fractions=fractions,
        group=group,
        on_bad=on_bad,
        confine=confine,
        seed=seed,
        layout=layout,
        sentence=sentence,
        chat=chat,
        objects=objects,
    )
    return from_tables(tables, readers, options)


def _usual(option: Any) -> Any:
    """Return the names of columns in an option in the form in which tables have them."""
    if isinstance(option, str):
        return column_name(option)
    return option if option is None else [column_name(str(name)) for name in option]


def from_tables(tables: Mapping[str, Table], readers: Readers, options: TableOptions) -> Source:
    """Create a data set from tables by split, or from one table with the key "all".

    Args:
        tables: Tables by split, or one table with the key "all".
        readers: Readers in use, by modality.
        options: What the columns and rows are used for.
    """
    options = options.with_usual_names()
    tables = {name: with_positions(table) for name, table in tables.items()}
    if options.layout is None and len(tables) > 1:
        columns = [name for table in tables.values() for name in table.columns]
        tables = add_missing_targets(tables, _possible_targets(options, columns))
    whole = concatenate(list(tables.values()))
    if not len(whole):
        raise UserError(f"{whole.path or whole.name}: the table has no rows; choose another one")
    notes = list(whole.notes)
    layout = _find_layout(whole, readers, options)
    if layout is not None:
        tables, options = _rearranged(tables, layout, readers, options, notes)
        whole = concatenate(list(tables.values()))
    # The rows of the tables follow each other in `whole`, which has a copy of their cells.
    ends = np.cumsum([len(table) for table in tables.values()])
    starts = [0, *ends[:-1]]
    rows_of = {name: np.arange(a, b) for name, a, b in zip(tables, starts, ends, strict=True)}
    del tables
    holdout, fractions, used = options.holdout, options.fractions, options.named(options.target)
    has_files = UNDIVIDED not in rows_of
    rows_of = divide_table(
        whole,
        rows_of,
        split=options.split,
        holdout=holdout,
        fractions=fractions,
        notes=notes,
        used=used,
    )
    # Infer the columns from all splits together, so that they are the same in every split.
    split = options.split or usual_split_column(whole, used)
    layout_ids = () if layout is None else layout.ids
    used += [*_possible_targets(options, whole.columns), *as_list(options.exclude)]
    used += [name for name in (options.group, *(holdout or (split,))) if name is not None]
    decided_by = "the files" if has_files else "data.holdout" if holdout else f"column {split}"
    more_splits = more_split_columns(whole, used, rows_of, decided_by, notes)
    chosen_inputs, chosen_targets = choose_columns(
        whole,
        readers,
        named=options.columns,
        target=options.target,
        excluded=(
            *(split, options.group, *(holdout or ()), *layout_ids, *more_splits),
            *question_ids(whole.columns, _possible_targets(options, whole.columns)),
        ),
        exclude=[str(column) for column in as_list(options.exclude)],
        new_groups=_new_groups(whole, rows_of) if {"train", "test"} <= rows_of.keys() else (),
        notes=notes,
    )
    are_answers = len(chosen_targets) == 1 and are_parts(whole.columns, chosen_targets[0])
    if are_answers:
        check_texts(whole, chosen_targets[0])
    used = [*(spec.column for spec in chosen_inputs.values()), *chosen_targets, split]
    # From all splits, because the values of a small split can be distinct by chance.
    ids = list(identifying_columns(whole, used, layout_ids))
    groups = None if options.group is None else whole.column(options.group, "data.group")
    if num_empty := sum(cell is None for cell in groups or ()):
        notes.append(
            f"data.group: {count(num_empty, 'row')} without a value of {options.group}, each of "
            "which is a group of its own"
        )
    confine_key = CONFINE if options.confine else None
    rows = to_rows(whole, chosen_inputs, chosen_targets, readers, confine=confine_key)
    rows = replace(rows, ids={name: whole.columns[name] for name in ids}, groups=groups)
    by_split = {UNDIVIDED: rows}
    if UNDIVIDED not in rows_of:
        by_split = {name: rows.take(numbers) for name, numbers in rows_of.items()}
    files = [n for n, s in chosen_inputs.items() if readers[s.modality].files]
    splits = complete_splits(
        by_split,
        fractions,
        seed=options.seed,
        notes=notes,
        stratify=len(chosen_targets) == 1 and is_categorical(whole.columns[chosen_targets[0]]),
        files=files,
    )
    return Source(
        splits,
        chosen_inputs,
        target=JOINED.join(chosen_targets) or None,
        task="span" if are_answers else None,
        notes=notes,
        on_bad=options.on_bad,
        files=files,
        candidates=() if chosen_targets else candidate_targets(whole, chosen_inputs),
        layout=None if layout is None else layout.node(),
    )


def rows_of_table(
    path: str | Sequence[str] | Table,
    inputs: Mapping[str, InputSpec],
    readers: Readers,
    *,
    target: str | None = None,
    columns: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    sep: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
    layout: Layout | None = None,
    group: str | None = None,
    with_target: bool = True,
    optional: Collection[str] = (),
    confine: bool = True,
    notes: list[str] | None = None,
) -> Rows:
    """Read all rows of a table, with the inputs of the data set that a model was trained on.

    Args:
        path: A table, a list of tables, a folder with one table, or a table in memory.
        inputs: Inputs of the training data set, see `Source.inputs`.
        readers: Readers, by modality.
        target: Target of the training data set, see `Source.target`. Targets are read if the table
            has all of its columns.
        columns: Column of the table for an input, or for a column of the training data set.
            None: a program passes the table, whose columns have the names of the training data set.
        keep: Further columns to copy to `Rows.ids`.
        sep: Separator of CSV cells. Default: detected from the header.
        encoding: Encoding of text files. Default: UTF-8, or UTF-16 with a byte order mark.
        sheet: Name of the sheet of an Excel file. Default: the first sheet with a table.
        layout: Layout of the training data set, see `Source.layout`.
        group: Column of the groups of the training data set, see `Rows.groups`. The table may lack
            it.
        with_target: Whether the rows are used with their targets. False: they are predicted.
        optional: Names of the inputs whose column the table may lack.
        confine: Whether to refuse paths in cells that lead out of the folder of the table.
        notes: Sentences about how the table was read, and about columns that are not used, are
            appended to this list.

    Raises:
        UserError: If the table cannot be read, lacks the column of an input, or has no rows.
    """
    outside = "confine" if confine else None
    if isinstance(path, Table):
        whole = path
    else:
        known = [spec.column for spec in inputs.values()]
        known += [] if target is None else target.split(JOINED)
        whole = new_table(path, known, sep=sep, encoding=encoding, sheet=sheet, confine=confine)
    if not len(whole):
        raise UserError(f"{whole.path or whole.name}: the table has no rows; choose another one")
    whole = with_positions(whole)
    targets = target.split(JOINED) if target is not None else []
    if layout is not None:
        trained = [*(spec.column for spec in inputs.values()), *targets]
        required = {str((columns or {}).get(name, name)) for name in trained}
        whole = layout.apply(whole, key="", required=required, with_target=with_target, notes=notes)
        keep = [*dict.fromkeys([*layout.ids, *keep])]
    renamed = columns or {}
    inputs = {
        name: spec
        for name, spec in inputs.items()
        if name not in optional
        or renamed.get(name, renamed.get(spec.column, spec.column)) in whole.columns
    }
    inputs, new_targets = map_columns(whole, inputs, targets, columns)
    rows = to_rows(whole, inputs, new_targets, readers, targets, confine=outside)
    used = [*(spec.column for spec in inputs.values()), *new_targets]
    ids = identifying_columns(whole, used, keep)
    group = None if group is None else str(renamed.get(group, group))
    groups = None if group is None else whole.columns.get(group)
    if notes is not None:
        notes += whole.notes
        surplus = [name for name in whole.columns if name not in {*used, *ids, group}]
        if surplus:
            notes.append(f"not used: {', '.join(surplus)} (not inputs of the model)")
        if group is not None and groups is None:
            notes.append(without_groups(group))
    return replace(rows, ids=ids, groups=groups)


def new_table(
    path: str | Sequence[str],
    known: Collection[str] = (),
    *,
    sep: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
    confine: bool = True,
) -> Table:
    """Read the new rows of the option `input`, see `rows_of_table`.

    Args:
        path: A table, a list of tables, or a folder with one table.
        known: Columns of the data set that a model was trained on.
        sep: Separator of CSV cells.
        encoding: Encoding of text files.
        sheet: Name of the sheet of an Excel file.
        confine: Whether to refuse links that lead out of the folder.

    Raises:
        UserError: If the table cannot be read.
    """
    paths = paths_by_split(path, {}, "input", confine="confine" if confine else None)
    files = [*chain.from_iterable(paths.values())]
    return _read(files, known, sep=sep, encoding=encoding, sheet=sheet, prefix="")


def _possible_targets(options: TableOptions, columns: Iterable[str]) -> list[str]:
    """Return the target columns, or those with the usual name of one, the most usual one first."""
    if options.target is not None:
        return [str(name) for name in as_list(options.target)]
    usual = {name: i for i, name in enumerate(USUAL_TARGETS)}
    names = dict.fromkeys(name for name in columns if name.lower() in usual)
    return sorted(names, key=lambda name: usual[name.lower()])


def _find_layout(whole: Table, readers: Readers, options: TableOptions) -> Layout | None:
    """Return how the rows of all splits are rearranged. None: not at all."""
    layout, inputs = options.layout, options.named()
    targets = _possible_targets(options, whole.columns)
    # If the user chose texts, they are not conversations.
    has_texts = any(readers[name].words for name in readers if options.columns.get(name))
    if layout is None and options.chat is not None and not (options.chat == AUTO and has_texts):
        layout = find_chats(whole, options.chat)
    if layout is None and options.objects is not None:
        rows = find_object_rows(whole, options.objects, inputs=inputs, targets=targets)
        # A table of objects can also be used otherwise, for example to predict a size.
        is_target = options.target is None or rows is None or targets == [rows.label]
        layout = rows if is_target else None
    if layout is None:
        return find_sentences(whole, options.sentence, inputs=inputs, targets=targets)
    if options.sentence is not None:
        raise UserError(
            f"data.sentence: cannot be combined with data.{layout.kind}; remove one of them"
        )
    return layout


def _rearranged(
    tables: Mapping[str, Table],
    layout: Layout,
    readers: Readers,
    options: TableOptions,
    notes: list[str],
) -> tuple[dict[str, Table], TableOptions]:
    """Apply a layout to the table of each split, and adapt the options to the new columns.

    Columns that have several values per series in one split are left out of all splits.
    """
    if isinstance(layout, Chats):
        options = replace(options, columns=_beside_chats(layout.column, options.columns, readers))
    if isinstance(layout, ObjectRows):
        options = replace(options, target=OBJECTS)
    excluded = [str(name) for name in as_list(options.exclude)]
    required = {
        *options.named(options.target, options.split, options.group),
        *(options.holdout or ()),
    }
    # Otherwise, a single sentence or file in two splits would make all splits random.
    if UNDIVIDED in tables and options.split is None and options.holdout is None:
        split = usual_split_column(tables[UNDIVIDED], [*required, *excluded])
        required |= set() if split is None else {split}
    result: dict[str, Table] = {}
    for name, table in tables.items():
        for column in excluded:
            table.column(column, "data.exclude")
        # The notes of the first table are enough: the tables have the same columns.
        result[name] = layout.apply(table, required=required, notes=None if result else notes)
    common = set.intersection(*(set(table.columns) for table in result.values()))
    for name, table in result.items():
        columns = {column: cells for column, cells in table.columns.items() if column in common}
        result[name] = replace(table, columns=columns)
    # A column that has several values per series is left out already.
    options = replace(options, exclude=[name for name in excluded if name in common])
    if isinstance(layout, Chats):
        before = {layout.column}.union(*(table.columns for table in tables.values()))
        files = [name for name in next(iter(result.values())).columns if name not in before]
        options = replace(options, columns=_with_files(files, options.columns, readers))
    return result, options


def _read(paths: Sequence[Path], known: Collection[str] = (), **options: Any) -> Table:
    """Read tables, see `read_table`, or the rows of tar files.

    Args:
        paths: The files.
        known: Columns of the data set that a model was trained on.
        options: Options of `read_table`.
    """
    is_tar = [path.name.lower().endswith(SHARD) for path in paths]
    if all(is_tar):
        return read_tars(paths, known)
    if any(is_tar):
        tar, other = paths[is_tar.index(True)], paths[is_tar.index(False)]
        raise UserError(f"{tar}: tar files cannot be combined with tables such as {other.name}")
    return concatenate([read_table(path, **options) for path in paths])


def _beside_chats(column: str, columns: Mapping[str, Any], readers: Readers) -> dict[str, Any]:
    """Return the columns of each modality next to a column of conversations.

    Columns of files are inferred, such as pictures that the messages are about. Others are inputs
    only if the user chose them.
    """
    words = next((name for name, reader in readers.items() if reader.words), None)
    if words is None:
        raise UserError("adapters: no adapter in use reads text; set adapters=[text]")
    others = {
        name: columns.get(name, None if reader.files else []) for name, reader in readers.items()
    }
    return {**others, words: [column]}


def _with_files(
    files: Sequence[str], columns: Mapping[str, Any], readers: Readers
) -> dict[str, Any]:
    """Return the columns of each modality with those of the files in messages.

    Raises:
        UserError: If no adapter reads one of them.
    """
    for kind in files:
        if kind not in readers or not readers[kind].files:
            raise UserError(
                f"data.chat: messages have files of the type {shortened(kind)}, which no adapter "
                f"in use reads; the adapters are {', '.join(readers)}"
            )
    return {**columns, **{kind: [kind] for kind in files}}


def without_groups(group: str) -> str:
    """Return the note about a new table that lacks the groups of the training."""
    return (
        f"no column {group!r}, which the training used as data.group: the intervals of metrics "
        "count each row as independent"
    )


def _new_groups(table: Table, rows_of: Mapping[str, np.ndarray]) -> list[str]:
    """Return the columns that name groups of rows, of which the test split has only new ones."""
    groups: list[str] = []
    for name, column in table.columns.items():
        if names_new_groups(column.take(rows_of["train"]), column.take(rows_of["test"])):
            groups.append(name)
    return groups


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
    from dxn.data.cell_paths import require_inside

    for file in chain.from_iterable(by_split.values()):
        require_inside(file, paths[0], confine)
    return by_split


def _tables_by_split(folder: Path, key: str) -> dict[str, list[Path]]:
    """Return the tables called train, validation and test in a folder, or its only table."""
    tables = tables_in(folder)
    by_split: dict[str, list[Path]] = {}
    prefixes: set[str] = set()
    for file in tables:
        # Without the suffix of the format, which can be .csv.gz.
        stem = file.name.lower().removesuffix(".gz").removesuffix(table_format(file) or "")
        # Many data sets are called NAME_train.csv and NAME_test.csv.
        prefix, _, last = stem.rpartition("_")
        name = SPLIT_NAMES.get(last)
        if name is not None:
            by_split.setdefault(name, []).append(file)
            prefixes.add(prefix)
    if "train" in by_split and len(prefixes) == 1:
        for name, files in by_split.items():
            if len(files) > 1:
                raise UserError(
                    f"{folder}: {' and '.join(file.name for file in files)} are tables of the "
                    f"{name} split; keep one of them, or set data.train and data.test to the tables"
                )
        return {name: by_split[name] for name in SPLITS if name in by_split}
    if (folder / ".hydra" / CONFIG).is_file():
        raise UserError(
            f"{key}: {folder} is the folder of a run, which does not contain its data; set {key} "
            "to the table or folder of the data, or remove it to evaluate a run with its own data"
        )
    if len(tables) == 1:
        return {UNDIVIDED: tables}
    names = ", ".join(file.name for file in tables) or "no table"
    raise UserError(
        f"{folder}: the folder must contain one table, or tables called train, validation and "
        f"test, got {names}; set {key} to one table ({', '.join(TABLES)}), or rename the tables"
    )
