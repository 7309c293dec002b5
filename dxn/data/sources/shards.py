"""Rows that are read one after another from shards, such as tar or Parquet files, by `datasets`."""

from __future__ import annotations

import math
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from dxn.core.display import count, track
from dxn.core.errors import UserError
from dxn.core.randomness import spaced_rows
from dxn.data.rows import Column, Origins, as_column, blank_to_none
from dxn.data.tables.read import Table, concatenate

MAX_REASON = 300  # characters; error messages of `datasets` can be pages long
# The number of a row is that of its shard times this, plus its index in the shard.
SHARD_ROWS = 2**31
PIECE = 256  # rows that `datasets` returns together; those of large photos take 100 MB
BLOCK = tarfile.BLOCKSIZE  # bytes
GZIP = b"\x1f\x8b"  # start of a compressed file
ADVICE = "replace the file, or remove it from the data set"


class Sample(NamedTuple):
    """Some rows of a split, and what they tell about the whole split.

    Attributes:
        table: The rows.
        num_rows: Number of rows of the split.
        is_exact: Whether this number is not an estimate.
        num_shards: Number of shards that have been read.
    """

    table: Table
    num_rows: int
    is_exact: bool
    num_shards: int


class Shards:
    """One split as `datasets` streams it.

    Args:
        rows: A `datasets.IterableDataset`.
        names: Path or URL of each shard.
    """

    def __init__(self, rows: Any, names: Sequence[str]):
        self.rows = rows.decode(False)  # the readers decode files, and apply their limits
        self.names = names
        # The number of row groups or of files inside of an archive can differ from that of files.
        if len(names) != rows.num_shards:
            self.names = [f"shard {i + 1}" for i in range(rows.num_shards)]
        self.checked: set[int] = set()  # shards that are known to be complete

    def __len__(self) -> int:
        return len(self.names)

    def pieces(self, shard: int, start: int = 0) -> Iterator[Table]:
        """Yield the rows of a shard, a few at a time.

        Args:
            shard: Index of the shard.
            start: Index of the first row to read.

        Raises:
            UserError: If the shard is missing or damaged.
        """
        name = self.names[shard]
        try:
            # Once per process: it takes a fifth of the time of reading small pictures.
            if shard not in self.checked:
                check_archive(name)
                self.checked.add(shard)
            rows = self.rows.shard(len(self), shard).skip(start)
            for batch in rows.iter(batch_size=PIECE):
                columns = to_columns(self.rows.features or {}, batch)
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

    def sample(self, num_rows: int, num_shards: int) -> Sample:
        """Read whole shards, and keep some of their rows.

        Args:
            num_rows: Maximum number of rows.
            num_shards: Maximum number of shards, which are spread over all of them.
        """
        chosen = spaced_rows(len(self), num_shards)
        quota = math.ceil(num_rows / len(chosen))
        tables: list[Table] = []
        total = 0
        for shard in track(chosen, len(chosen), "reading shards"):
            # The number of rows is unknown, so each row draws a number, and those stay whose number
            # is below a limit, which falls. With a constant distance, all rows could be of one
            # class if the classes take turns.
            rand = np.random.default_rng(shard)
            limit, table, drawn = 1.0, None, np.zeros(0)
            for piece in self.pieces(shard):
                numbers = rand.random(len(piece))
                total += len(piece)
                kept = np.flatnonzero(numbers < limit)
                new = piece.take(kept)
                table = new if table is None else concatenate([table, new])
                drawn = np.concatenate([drawn, numbers[kept]])
                while len(drawn) > 2 * quota:
                    limit /= 2
                    kept = np.flatnonzero(drawn < limit)
                    table, drawn = table.take(kept), drawn[kept]
            if table is not None:
                tables.append(table.take(np.array(spaced_rows(len(table), quota), np.int64)))
        if not tables:
            raise UserError(
                f"{self.names[chosen[0]]}: there are no rows in {count(len(chosen), 'file')} of "
                f"{len(self):,}; raise data.sample_shards, or choose other files"
            )
        is_exact = len(chosen) == len(self)
        if not is_exact:
            total = round(total / len(chosen) * len(self))
        table = concatenate(tables)
        table = table.take(np.array(spaced_rows(len(table), num_rows), np.int64))
        return Sample(table, total, is_exact, len(chosen))

    def numbers(self, origins: Origins) -> np.ndarray:
        """Return the numbers of rows that `sample` returned, int64."""
        shard_of = {Path(name): i for i, name in enumerate(self.names)}
        # Rows of other splits are from other files.
        shards = [shard_of.get(origins.file(i), -1) for i in range(len(origins))]
        own = np.array(shards, np.int64)
        return (own * SHARD_ROWS + origins.lines - 1)[own >= 0]

    def describe(self, number: int) -> str:
        """Return the shard and the row of a number, such as "train-003.tar row 17"."""
        shard, row = divmod(number, SHARD_ROWS)
        return f"{Path(self.names[shard]).name} row {row + 1}"


@dataclass(frozen=True)
class Stream:
    """The training rows of a data set that are not in memory.

    Args:
        shards: The shards.
        held_out: Numbers of the rows that are in the validation or the test split, int64.
        num_rows: Number of training rows.
        is_exact: Whether this number is not an estimate.
        shuffle_buffer: Number of rows that are shuffled together.
    """

    shards: Shards
    held_out: np.ndarray
    num_rows: int
    is_exact: bool
    shuffle_buffer: int

    def __str__(self) -> str:
        about = "" if self.is_exact else "about "
        return f"{about}{count(self.num_rows, 'row')} in {count(len(self.shards), 'shard')}"


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
        columns[name] = as_column([blank_to_none(cell) for cell in cells])
    return columns


def is_file(feature: Any) -> bool:
    """Return whether a feature of the library `datasets` is an encoded file, such as an image."""
    # Features are recognized by their attributes, because their types differ between versions.
    return hasattr(feature, "decode")


def _converter(feature: Any) -> Callable[[Any], Any] | None:
    """Return the function that converts the values of a feature; None: they stay as they are."""
    if is_file(feature):
        return lambda value: value and (value["bytes"] or _cached(value["path"]))
    if name_of := _class_names(feature):
        # -1 means that a row has no label, for example in a test split without public labels.
        return lambda value: None if value is None or value < 0 else name_of(value)
    if name_of_item := _class_names(getattr(feature, "feature", None)):  # of a list
        return lambda value: value and list(map(name_of_item, value))
    return None


def _class_names(feature: Any) -> Callable[[int], str] | None:
    """Return the function from the number of a class to its name, if the feature has classes."""
    return getattr(feature, "int2str", None)


def _cached(path: str | None) -> Path | None:
    # A Path and no text: the library chose it, so it may be outside of the folder of the data set.
    return None if path is None else Path(path)


def path_of(name: str) -> str:
    """Return a path, or the path of a URL, which can have a query such as a signature."""
    return urlsplit(name).path if "://" in name else name


def check_archive(name: str) -> None:
    """Check that a tar file is complete, because `tarfile` takes a damaged file for a shorter one.

    The headers of a local file are checked, and the end of a file that has a URL.

    Args:
        name: Path or URL. Other files than *.tar are not checked.

    Raises:
        UserError: If it is damaged.
    """
    if not path_of(name).endswith(".tar"):
        return
    import fsspec

    opened: Any = fsspec.open(name, "rb")
    with opened as file:
        if "://" not in name:
            problem = _damage(file)
        else:
            try:
                file.seek(max(file.seek(0, 2) - BLOCK, 0))
                end = file.read(BLOCK)
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
    return "is cut off" if place + BLOCK > size else f"is damaged at byte {place:,}"
