"""Data sets from the Hugging Face Hub, or from a local folder or shards in the same formats."""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.data.columns.infer import Readers
from dxn.data.formats import SPLIT_NAMES, SPLITS
from dxn.data.rows import OnBad, Origins, Source
from dxn.data.sources.shards import (
    FORMATS,
    SampledRows,
    Shards,
    StreamedSplit,
    TarShards,
    are_training_rows,
    is_file,
    load_data_set,
    shard_format,
    to_columns,
)
from dxn.data.sources.table import TableOptions, from_tables
from dxn.data.sources.tar_rows import KEY, with_columns
from dxn.data.splits.split import FRACTIONS, UNDIVIDED, is_split_column, usual_split_column
from dxn.data.tables.read import Table, as_list

RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")  # such as {000..099}


def hub(
    name: str,
    *,
    readers: Readers,
    config: str | None = None,
    revision: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    streaming: bool = False,
    sample_rows: Annotated[int, Ge(1)] = 10_000,
    sample_shards: Annotated[int, Ge(1)] = 16,
    shuffle_buffer: Annotated[int, Ge(1)] = 1000,
    fractions: Sequence[float] | None = FRACTIONS,
    group: str | None = None,
    target: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    chat: str | Sequence[str] | None = None,
    on_bad: OnBad = "error",
    seed: int = 0,
    **columns: str | Sequence[str] | None,
) -> Source:
    """Read a data set with the library `datasets`.

    Files such as images are not decoded by `datasets`. The readers decode them and apply
    their size limits.

    Args:
        name: Name of the data set, path of a local folder, or paths or URLs of tar or Parquet
            files such as train-{000..099}.tar.
        readers: Readers in use, by modality. The caller sets this argument.
        config: Name of the configuration, if the data set has several.
        revision: Branch, tag or commit. A commit always has the same rows.
        validation: Tar or Parquet files of the validation split, if name is one of files.
        test: Tar or Parquet files of the test split.
        streaming: Read training rows one after another in each epoch, instead of all of them before
            the training. Other splits, vocabularies and statistics come from a sample of the rows.
        sample_rows: Maximum number of rows of this sample, per split.
        sample_shards: Maximum number of files from which the sample is drawn. They are read once
            before the training.
        shuffle_buffer: Number of streamed rows that are shuffled together, in addition to the
            order of the files.
        fractions: Fractions of training, validation and test rows, if the data set has only a
            training split. Null: the rows are not divided.
        group: Column such as the speaker or the patient. Rows with the same value are in the same
            split.
        target: Column to predict. Default: a column called label, target, class, category or
            answer.
        exclude: Column or list of columns that are not inputs. Default: inferred inputs are used.
        chat: Column with the messages of a conversation, or the columns of a message of the user
            and of its answer, such as [question,answer]. "auto" recognizes them by their names, and
            is the default with head=language.
        on_bad: What to do with a bad row: error (stop), skip (leave the row out) or missing (use
            its other inputs).
        seed: Random seed of the split.
        columns: Column or list of columns of a modality, such as text=title. An empty list: no
            column of this modality is used. Default: columns are inferred from their values.

    Raises:
        UserError: If the data set cannot be loaded, or has no column of a given name.
    """
    if streaming and group is not None:
        raise UserError(
            "data.group: cannot be combined with data.streaming, because the stream can have more "
            "rows of a group than the sample; set data.validation and data.test instead"
        )
    data_files = _data_files(name, {"validation": validation, "test": test})
    splits = load_data_set(name, config, revision, data_files, streaming=streaming)
    usual_names = {
        name: SPLIT_NAMES[name.lower()] for name in splits if name.lower() in SPLIT_NAMES
    }
    if "train" not in usual_names.values():
        raise UserError(
            f"data.name: a training split is required, but {name} has only {', '.join(splits)}"
        )
    tables: dict[str, Table] = {}
    samples: dict[str, tuple[Shards, SampledRows]] = {}
    empty: list[str] = []  # notes about files
    # The training split is the first, because it decides the columns of tar files.
    for split, usual in sorted(usual_names.items(), key=lambda names: SPLITS.index(names[1])):
        shards = splits[split]
        if not isinstance(shards, Shards):
            tables[usual] = to_table(shards, Path(name, split))
            continue
        limits = (sample_rows, sample_shards) if streaming else (sys.maxsize, len(shards))
        sample = shards.sample(*limits, [*tables["train"].columns] if tables else ())
        tables[usual] = sample.table
        if sample.without_rows:
            first = Path(sample.without_rows[0]).name
            empty.append(
                f"{usual}: {count(len(sample.without_rows), 'file')} without rows ({first})"
            )
        if streaming:
            samples[usual] = shards, sample
    every = [*dict.fromkeys(chain.from_iterable(table.columns for table in tables.values()))]
    if any(isinstance(shards, TarShards) for shards in splits.values()):
        tables = {usual: with_columns(table, every) for usual, table in tables.items()}
        if KEY not in TableOptions(columns=columns).named(target, group):
            exclude = [*as_list(exclude), KEY]  # a file name, also if it is repeated in each file
    if list(tables) == ["train"]:
        tables = {UNDIVIDED: tables["train"]}
    options = TableOptions(
        columns=columns,
        target=target,
        exclude=exclude,
        fractions=fractions,
        group=group,
        on_bad=on_bad,
        seed=seed,
        chat=chat,
    )
    source = from_tables(tables, readers, options)
    notes = [*empty, *source.notes]
    stream = None
    if streaming:
        split_column = None
        # A single fraction means that all rows are in one split.
        if UNDIVIDED in tables and (fractions is None or len(fractions) > 1):
            chosen = options.named(options.target)
            split_column = usual_split_column(tables[UNDIVIDED], chosen)
            if split_column is None:
                _require_training_rows(tables[UNDIVIDED], chosen, name)
        stream = _stream_of(source, *samples["train"], shuffle_buffer, split_column)
        for usual, (shards, sample) in samples.items():
            size = len(sample.table)
            if size < sample.num_rows:
                about = "" if sample.is_exact else "about "
                notes.append(
                    f"{usual}: a sample of {count(size, 'row')} of {about}{sample.num_rows:,}, "
                    f"drawn from {sample.num_shards:,} of {count(len(shards), 'file')}"
                )
    if others := [split for split in splits if split not in usual_names]:
        notes.append(f"not used: split {', '.join(others)}")
    return replace(source, notes=notes, stream=stream)


def _require_training_rows(sample: Table, chosen: Collection[str], name: str) -> None:
    """Refuse a sample in which a column names the split of each row, but no training row is.

    Other rows of the stream would be trained on, whatever their split is.
    """
    for column in set(sample.columns) - set(chosen):
        names = {str(cell).strip().lower() for cell in sample.columns[column]}
        if is_split_column(column) and names <= set(SPLIT_NAMES):
            raise UserError(
                f"data.sample_shards: no row of the sample of {name} is a training row, because "
                f"column {column} has only {', '.join(sorted(names))}; set a larger number"
            )


def _stream_of(
    source: Source,
    shards: Shards,
    sample: SampledRows,
    shuffle_buffer: int,
    split_column: str | None,
) -> StreamedSplit:
    """Return all training rows but those that the sample gave to another split."""
    if source.layout is not None:
        raise UserError(
            "data.streaming: each row must be a sample, but these rows are the words of sentences; "
            "write one sentence per row, or set data.streaming=false"
        )
    sampled = shards.row_numbers(sample.table.origins)
    is_train = np.ones(len(sampled), bool)
    if split_column is not None:
        is_train = are_training_rows(sample.table, split_column)
    num_rows = round(sample.num_rows * float(is_train.mean()))
    is_whole = len(sampled) == sample.num_rows
    stream = StreamedSplit(
        shards,
        num_rows,
        is_exact=sample.is_exact and (is_whole or split_column is None),
        shuffle_buffer=shuffle_buffer,
        split_column=split_column,
        sampled=sampled[is_train],
    )
    return stream.without_other_splits(source.splits)


def _data_files(name: str, others: Mapping[str, str | None]) -> dict[str, list[str]] | None:
    """Return the files of each split; None if the name is that of a data set or of a folder.

    Args:
        name: The option data.name.
        others: Files of the other splits.
    """
    chosen = {split: files for split, files in others.items() if files is not None}
    kind = shard_format(name)
    if kind is None:
        if not name or Path(name).is_file():
            raise UserError(
                "data.name: must be a data set of the hub, a folder, or files that end in "
                f"{', '.join(FORMATS)}, got {name!r}"
            )
        for split in chosen:
            raise UserError(
                f"data.{split}: needs files in data.name too, such as train-{{000..099}}.tar, got "
                f"{name}"
            )
        return None
    named: dict[str, list[str]] = {}
    for split, files in {"name": name, **chosen}.items():
        if shard_format(files) != kind:
            raise UserError(
                f"data.{split}: must have the same format as data.name, got {files} and {name}"
            )
        # Not Path.glob, which takes no absolute pattern.
        is_local = "://" not in files
        if is_local and glob.has_magic(files) and not glob.glob(files, recursive=True):  # noqa: PTH207
            raise UserError(
                f"data.{split}: no file matches {files} (current directory: {Path.cwd()})"
            )
        named["train" if split == "name" else split] = list(_in_range(files))
    return named


def _in_range(name: str) -> Iterator[str]:
    """Yield the names that a name with ranges such as {000..099} stands for."""
    match = RANGE.search(name)
    if match is None:
        yield name
        return
    first, last = match.groups()
    if int(first) > int(last):
        raise UserError(f"data.name: a range must begin with its lower end, got {name}")
    for number in range(int(first), int(last) + 1):
        yield from _in_range(f"{name[: match.start()]}{number:0{len(first)}}{name[match.end() :]}")


def to_table(rows: Any, origin: Path) -> Table:
    """Return a `datasets.Dataset` as a table.

    Args:
        rows: The data set.
        origin: Name of the data set in messages.
    """
    rows = rows.with_format(None)  # such as "torch", which would give tensors as cells
    for name, feature in rows.features.items():
        if is_file(feature):
            rows = rows.cast_column(name, type(feature)(decode=False))
    columns = to_columns(rows.features, {name: rows[name] for name in rows.features})
    return Table(columns, Origins([origin], np.arange(1, len(rows) + 1)))
