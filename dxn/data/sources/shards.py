"""Rows that are read one after another from shards, such as tar or Parquet files, by `datasets`."""

from __future__ import annotations

import logging
import math
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from dxn.core.display import count, track
from dxn.core.errors import UserError
from dxn.core.randomness import spaced_rows
from dxn.data.formats import SPLIT_NAMES
from dxn.data.rows import Column, Origins, Rows, as_column, blank_to_none
from dxn.data.sources.parquet_features import common_features, with_rows
from dxn.data.sources.tar_rows import join_tables, names_of_kinds, rows_of_tar, to_cells, with_kinds
from dxn.data.tables.read import Table
from dxn.tokenize.cells.cell_values import plain_value

if TYPE_CHECKING:
    from datasets import IterableDataset

MAX_REASON = 300  # characters; error messages of `datasets` can be pages long
# The number of a row is that of its shard times this, plus its index in the shard.
SHARD_ROWS = 2**31
# Rows that `datasets` returns together. Those of large photos take 12 MB, and up to ten shards are
# read at the same time.
PIECE = 32
TAR, PARQUET = "webdataset", "parquet"  # names of the formats in `datasets`
# Formats of shards whose paths or URLs the user names, by the end of their names.
FORMATS = {
    ".tar": TAR,
    ".tar.gz": TAR,
    ".tgz": TAR,
    ".parquet": PARQUET,
}
SAVED = ("state.json", "dataset_dict.json")  # files that only `save_to_disk` writes
BLOCK = tarfile.BLOCKSIZE  # bytes
GZIP = b"\x1f\x8b"  # start of a compressed file
ADVICE = "replace the file, or remove it from the data set"


class SampledRows(NamedTuple):
    """Some rows of a split, and what they tell about the whole split.

    Attributes:
        table: The rows.
        num_rows: Number of rows of the split.
        is_exact: Whether this number is not an estimate.
        num_shards: Number of shards that have been read.
        without_rows: Names of those that have no rows.
    """

    table: Table
    num_rows: int
    is_exact: bool
    num_shards: int
    without_rows: Sequence[str]


class Shards:
    """One split as `datasets` streams it.

    Args:
        rows: A `datasets.IterableDataset`. None for tar files, see `TarShards`.
        names: Path or URL of each shard.
    """

    def __init__(self, rows: Any, names: Sequence[str]):
        self.names = names
        if rows is None:
            return
        self.rows = rows.decode(False)  # the readers decode files, and apply their limits
        # The number of row groups or of files inside of an archive can differ from that of files.
        if len(names) != rows.num_shards:
            self.names = [f"shard {i + 1}" for i in range(rows.num_shards)]

    def __len__(self) -> int:
        return len(self.names)

    def pieces(self, shard: int) -> Iterator[Table]:
        """Yield the rows of a shard, a few at a time.

        Args:
            shard: Index of the shard.

        Raises:
            UserError: If the shard is missing or damaged.
        """
        name, start = self.names[shard], 0
        try:
            for columns in self._pieces(shard):
                size = len(next(iter(columns.values())))
                lines = np.arange(start + 1, start + size + 1)
                yield Table(columns, Origins([Path(name)], lines))
                start += size
        except UserError:
            raise
        # The file systems and formats of `datasets` have errors of many classes.
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON]
            raise UserError(
                f"{name}: cannot be read after row {start} ({reason}); {ADVICE}"
            ) from error

    def _pieces(self, shard: int) -> Iterator[dict[str, Column]]:
        for batch in self.rows.shard(len(self), shard).iter(batch_size=PIECE):
            yield to_columns(self.rows.features or {}, batch)

    def settle(self, sample: Table, known: Collection[str]) -> Table:
        """Decide the columns of all rows from a sample, and return the sample with them.

        Args:
            sample: The rows.
            known: Columns of the training split, or of the data set of a trained model.
        """
        return sample

    def sample(self, num_rows: int, num_shards: int, known: Collection[str] = ()) -> SampledRows:
        """Read whole shards, and keep some of their rows.

        Args:
            num_rows: Maximum number of rows.
            num_shards: Maximum number of shards, which are spread over all of them.
            known: Columns of the training split.
        """
        chosen = spaced_rows(len(self), num_shards)
        quota = math.ceil(num_rows / len(chosen))
        tables: list[Table] = []
        without_rows: list[str] = []
        total = 0
        for shard in track(chosen, len(chosen), "reading shards"):
            # The number of rows is unknown, so each row draws a number, and those stay whose number
            # is below a limit, which falls. With a constant distance, all rows could be of one
            # class if the classes take turns.
            rand = np.random.default_rng(shard)
            limit, kept, drawn = 1.0, list[Table](), np.zeros(0)
            for piece in self.pieces(shard):
                numbers = rand.random(len(piece))
                total += len(piece)
                is_drawn = numbers < limit
                kept.append(piece.take(np.flatnonzero(is_drawn)))
                drawn = np.concatenate([drawn, numbers[is_drawn]])
                while len(drawn) > 2 * quota:
                    limit /= 2
                    kept = [join_tables(kept).take(np.flatnonzero(drawn < limit))]
                    drawn = drawn[drawn < limit]
            if kept:
                table = join_tables(kept)
                tables.append(table.take(spaced_rows(len(table), quota)))
            else:
                without_rows.append(self.names[shard])
        if not tables:
            raise UserError(
                f"{self.names[chosen[0]]}: there are no rows in {count(len(chosen), 'file')} of "
                f"{len(self):,}; raise data.sample_shards, or choose other files"
            )
        is_exact = len(chosen) == len(self)
        if not is_exact:
            total = round(total / len(chosen) * len(self))
        table = join_tables(tables)
        table = self.settle(table.take(spaced_rows(len(table), num_rows)), known)
        return SampledRows(table, total, is_exact, len(chosen), without_rows)

    def row_numbers(self, origins: Origins) -> np.ndarray:
        """Return the number of each row that `sample` returned, int64."""
        shard_of = {Path(name): i for i, name in enumerate(self.names)}
        shards = [shard_of[origins.file(i)] for i in range(len(origins))]
        return np.array(shards, np.int64) * SHARD_ROWS + origins.lines - 1

    def origins(self, row_numbers: np.ndarray) -> Origins:
        """Return the origins of rows with these numbers, int64."""
        shard_of, index = np.divmod(row_numbers, SHARD_ROWS)
        shards, file_of = np.unique(shard_of, return_inverse=True)
        files = [Path(self.names[int(shard)]) for shard in shards]
        return Origins(files, index + 1, file_of)


class TarShards(Shards):
    """One split of tar files, which `datasets` would read only if all rows have the same files.

    Args:
        names: Path or URL of each file.
        files: Where they are on this machine, if they were downloaded.
    """

    def __init__(self, names: Sequence[str], files: Sequence[str] = ()):
        super().__init__(None, names)
        self.files = files or names
        self.checked: set[int] = set()  # shards that are known to be complete
        self.kinds: dict[str, str] = {}  # the column of each kind of file
        self.columns: list[str] = []

    def _pieces(self, shard: int) -> Iterator[dict[str, Column]]:
        from datasets import StreamingDownloadManager

        name, file = self.names[shard], self.files[shard]
        # Once per process: it takes a fifth of the time of reading small pictures.
        if shard not in self.checked:
            check_archive(name, file)
            self.checked.add(shard)
        rows = rows_of_tar(name, StreamingDownloadManager().iter_archive(file))
        while batch := list(islice(rows, PIECE)):
            cells = {name: [None] * len(batch) for name in self.columns}
            cells |= to_cells(batch, self.kinds)
            yield {name: as_column(column) for name, column in cells.items()}

    def settle(self, sample: Table, known: Collection[str]) -> Table:
        self.kinds = names_of_kinds(sample, known)
        sample = with_kinds(sample, self.kinds)
        self.columns = [*sample.columns]
        return sample


@dataclass(frozen=True)
class StreamedSplit:
    """The training split of a data set that is not in memory.

    Args:
        shards: The shards.
        num_shard_rows: Number of their rows that are training rows.
        is_exact: Whether this number is not an estimate.
        shuffle_buffer: Number of rows that are shuffled together.
        split_column: Column with the name of each row's split. None: all rows are training rows.
        sampled: Numbers of the training rows in the sample, int64.
        held_out: Numbers of those that are in another split nevertheless, int64.
    """

    shards: Shards
    num_shard_rows: int
    is_exact: bool
    shuffle_buffer: int
    split_column: str | None
    sampled: np.ndarray
    held_out: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __str__(self) -> str:
        about = "" if self.is_exact else "about "
        return f"{about}{count(self.num_rows, 'row')} in {count(len(self.shards), 'shard')}"

    @property
    def num_rows(self) -> int:
        """Number of rows of an epoch, see `is_exact`."""
        return max(self.num_shard_rows - len(self.held_out), 1)

    def without_other_splits(self, splits: Mapping[str, Rows]) -> StreamedSplit:
        """Return the stream without the rows that the sample gives to other splits.

        Args:
            splits: The rows of the sample by split.
        """
        # With data.fractions=null, all rows are one split without a usual name.
        origins = splits.get("train", next(iter(splits.values()))).origin
        assert isinstance(origins, Origins)
        return replace(self, held_out=np.setdiff1d(self.sampled, self.shards.row_numbers(origins)))

    def rows(self, seed: int, reader: int = 0, num_readers: int = 1) -> IterableDataset:
        """Return the rows of an epoch in random order, with the keys "row_id" and "cells".

        As many shards as possible are divided evenly over all readers; of each of the others, a
        reader reads every n-th row.

        Args:
            seed: Seed of the order, which is another one in each epoch, see `set_epoch`.
            reader: Index of the reader among all readers, those of all processes.
            num_readers: Number of all readers.
        """
        # Importing the library takes seconds, and only a stream needs it.
        from datasets import IterableDataset

        num_shared = len(self.shards) % num_readers
        shards = range(len(self.shards) - num_shared)[reader::num_readers]
        shared = range(len(self.shards) - num_shared, len(self.shards))
        pieces = [(shard, 0, 1) for shard in shards]
        pieces += [(shard, reader, num_readers) for shard in shared]
        rows = IterableDataset.from_generator(self._rows_of, gen_kwargs={"pieces": pieces})
        return rows.shuffle(seed, buffer_size=self.shuffle_buffer)

    def _rows_of(self, pieces: Sequence[tuple[int, int, int]]) -> Iterator[dict[str, Any]]:
        """Yield every n-th row of shards. Each piece is a shard, its first row, and n."""
        for shard, first, step in pieces:
            for table in self.shards.pieces(shard):
                index = table.origins.lines - 1
                numbers = shard * SHARD_ROWS + index
                is_used = (index % step == first) & ~np.isin(numbers, self.held_out)
                if self.split_column is not None:
                    is_used &= are_training_rows(table, self.split_column)
                columns = {name: list(column) for name, column in table.columns.items()}
                for i in np.flatnonzero(is_used).tolist():
                    cells = {name: column[i] for name, column in columns.items()}
                    yield {"row_id": int(numbers[i]), "cells": cells}


def are_training_rows(table: Table, split_column: str) -> np.ndarray:
    """Return which rows of a table a column with the names of splits makes training rows, bool."""
    names = table.columns[split_column] if split_column in table.columns else [None] * len(table)
    return np.array([SPLIT_NAMES.get(str(n).strip().lower()) == "train" for n in names], bool)


def to_columns(
    features: Mapping[str, Any], batch: Mapping[str, Sequence[Any]]
) -> dict[str, Column]:
    """Return rows of `datasets` as columns, with files as bytes or paths and classes as names.

    The fields of a column of objects, such as those of the JSON files of WebDataset, become
    columns, such as "json.label".

    Args:
        features: The features of the columns, whose files are not decoded.
        batch: The values of each column.
    """
    columns: dict[str, Column] = {}
    for name, values in batch.items():
        feature = features.get(name)
        if isinstance(feature, dict):
            fields = {
                field: [None if value is None else value[field] for value in values]
                for field in feature
            }
            parts = to_columns(feature, fields)
            columns |= {f"{name}.{field}": column for field, column in parts.items()}
            continue
        convert = _converter(feature)
        cells = values if convert is None else map(convert, values)
        columns[name] = as_column([blank_to_none(plain_value(cell)) for cell in cells])
    return columns


def is_file(feature: Any) -> bool:
    """Return whether a feature of the library `datasets` is an encoded file, such as an image."""
    # Features are recognized by their attributes, because their types differ between versions.
    return hasattr(feature, "decode")


def _converter(feature: Any) -> Callable[[Any], Any] | None:
    """Return the function that converts the values of a feature; None: they stay as they are."""
    if is_file(feature):
        # A Path and no text: the library chose it, so it may be outside of the folder of the data.
        return lambda value: value and (value["bytes"] or (value["path"] and Path(value["path"])))
    if name_of := _class_names(feature):
        # -1 means that a row has no label, for example in a test split without public labels.
        return lambda value: None if value is None or value < 0 else name_of(value)
    if name_of_item := _class_names(getattr(feature, "feature", None)):  # of a list
        return lambda value: value and list(map(name_of_item, value))
    return None


def _class_names(feature: Any) -> Callable[[int], str] | None:
    """Return the function from the number of a class to its name, if the feature has classes."""
    return getattr(feature, "int2str", None)


def path_of(name: str) -> str:
    """Return a path, or the path of a URL, which can have a query such as a signature."""
    return urlsplit(name).path if "://" in name else name


def check_archive(name: str, file: str | None = None) -> None:
    """Check that a tar file is complete, because `tarfile` takes a damaged file for a shorter one.

    The headers of a local file are checked, and the end of a file that has a URL.

    Args:
        name: Path or URL. Other files than *.tar are not checked.
        file: Its copy on this machine, if there is one.

    Raises:
        UserError: If it is damaged.
    """
    if not path_of(name).lower().endswith(".tar"):
        return
    import fsspec

    opened: Any = fsspec.open(file or name, "rb")
    with opened as content:
        if "://" not in (file or name):
            problem = _damage(content)
        else:
            try:
                content.seek(max(content.seek(0, 2) - BLOCK, 0))
                end = content.read(BLOCK)
            except ValueError:  # a server that only sends whole files
                return
            problem = "is cut off" if any(end) or len(end) < BLOCK else None
    if problem is not None:
        raise UserError(f"{name}: the tar file {problem}; {ADVICE}")


def _damage(file: Any) -> str | None:
    """Return what is wrong with a tar file, from its headers; None if it is complete."""
    size, place = file.seek(0, 2), 0
    while place < size:
        file.seek(place)
        header = file.read(BLOCK)
        # Blocks of zeros are the end.
        if len(header) == BLOCK and not any(header):
            return None
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            break
        has_content = not (info.isdir() or info.issym() or info.islnk())
        place += BLOCK + has_content * math.ceil(info.size / BLOCK) * BLOCK
    file.seek(0)
    if file.read(len(GZIP)) == GZIP:
        return "is compressed, and its name must end in .tar.gz"
    if place == 0 and size > 0:
        return "has no header of a tar file"
    return "is cut off" if place + BLOCK > size else f"is damaged at byte {place:,}"


def read_tars(paths: Sequence[Path], known: Collection[str] = ()) -> Table:
    """Read all rows of tar files. The files of a row have the same name, as in WebDataset.

    Args:
        paths: The tar files.
        known: Columns of the data set that a model was trained on.

    Raises:
        UserError: If one is damaged, or has no rows.
    """
    shards = TarShards([str(path) for path in paths])
    tables = [*chain.from_iterable(shards.pieces(i) for i in range(len(paths)))]
    if not tables:
        raise UserError(f"{paths[0]}: there are no rows; choose another file")
    return shards.settle(join_tables(tables), known)


def shard_format(name: str) -> str | None:
    """Return the format of files, by the end of their names; None: it is no name of files."""
    path = path_of(name).lower()
    kinds = (kind for end, kind in FORMATS.items() if path.endswith(end))
    # Some programs write a Parquet file as a folder.
    return None if Path(name).is_dir() else next(kinds, None)


def load_data_set(
    name: str,
    config: str | None,
    revision: str | None,
    data_files: Mapping[str, Sequence[str]] | None,
    *,
    streaming: bool,
) -> dict[str, Any]:
    """Return each split: its shards, or a `Dataset` if it is not streamed."""
    # Importing the library takes seconds, and only this data source needs it.
    import datasets
    from datasets.exceptions import DatasetGenerationError, DatasetsError

    path = shard_format(name) or name
    # It prints errors that are raised, too.
    logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)
    try:
        # A folder of `save_to_disk` can also contain caches, which a builder would read as rows.
        if any((Path(name) / file).is_file() for file in SAVED):
            loaded = datasets.load_from_disk(name)
            by_split = loaded if isinstance(loaded, datasets.DatasetDict) else {"train": loaded}
            if not streaming:
                return {str(split): rows for split, rows in by_split.items()}
            return {str(s): Shards(rows.to_iterable_dataset(), ()) for s, rows in by_split.items()}
        builder: Any = datasets.load_dataset_builder(
            path, config, data_files=data_files, revision=revision
        )
        files: Mapping[str, Sequence[str]] = builder.config.data_files or {}
        is_local = not any("://" in str(file) for file in chain.from_iterable(files.values()))
        if builder.name == PARQUET and builder.info.features is None and is_local:
            files = with_rows(files)
            features = common_features([*chain.from_iterable(files.values())])
            builder = datasets.load_dataset_builder(PARQUET, data_files=files, features=features)
        if builder.name == TAR:
            local: Any = {} if streaming else datasets.DownloadManager().download(dict(files))
            shards = {name: TarShards(files[name], local.get(name, ())) for name in files}
            return {str(name): split for name, split in shards.items()}
        if not streaming:
            builder.download_and_prepare()
            splits: Any = builder.as_dataset()
            return {str(split): splits[split] for split in splits}
        splits = builder.as_streaming_dataset()
        return {str(name): Shards(splits[name], files.get(name, ())) for name in splits}
    except UserError as error:
        raise UserError(f"data.name: {name} cannot be loaded: {error}") from error
    # The library and the formats that it reads have errors of many classes.
    except Exception as error:
        # The message of a DatasetGenerationError has no details; those are in its cause.
        is_wrapper = isinstance(error, DatasetGenerationError) and error.__cause__ is not None
        cause = error.__cause__ if is_wrapper else error
        reason = " ".join(str(cause).split())
        if not isinstance(cause, ValueError | OSError | DatasetsError):
            reason = f"{type(cause).__name__}: {reason}"
        raise UserError(f"data.name: {name} cannot be loaded ({reason[:MAX_REASON]})") from error
