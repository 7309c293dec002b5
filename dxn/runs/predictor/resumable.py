"""Files of answers that are written as they are computed, and continued after a command was killed.

NAME.part contains the rows so far as tables of Arrow, and NAME.part.json how much of it is valid.
NAME appears at the end, with all rows.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow
import pyarrow.parquet

import dxn
from dxn.core.display import count, print_line
from dxn.core.errors import UserError
from dxn.core.files import explain_full_disk, lock, open_own, write_text
from dxn.core.printable import json_text
from dxn.core.processes import from_first
from dxn.core.schema import Strict, validated
from dxn.core.untrusted import load_json
from dxn.data.dataset import Opened, Samples
from dxn.data.raws import RawFiles
from dxn.runs.folder import model_folder
from dxn.runs.predictor.output import (
    Finish,
    Record,
    arrow_table,
    rows_text,
    write_parquet,
    write_rows,
)

if TYPE_CHECKING:
    from dxn.runs.predictor.predictor import Predictor

INTERVAL = 2.0  # seconds of work that can be lost; each record of the progress waits for the disk
LENGTH = 8  # bytes of the number in front of each table of Arrow

# The rows of a batch in the split, their records in the file, and the largest shape of an answer.
AnsweredRows = tuple[Sequence[int], Sequence[Record], Sequence[int]]
# Computes the answers of samples: model, samples, batch size, number of batches to leave out.
Answers = Callable[["Predictor", Samples, int, int], Iterator[AnsweredRows]]


class Progress(Strict):
    """The content of NAME.part.json.

    Args:
        identity: Hash of the command, the model and the input.
        batches: Number of finished batches.
        answered: Number of their rows that have an answer.
        records: Number of rows in the file.
        size: Number of valid bytes of NAME.part.
        shape: Largest shape of an answer.
    """

    identity: str
    batches: int = 0
    answered: int = 0
    records: int = 0
    size: int = 0
    shape: Sequence[int] = ()


class RowWriter:
    """Writes a file of rows batch by batch, and continues where an earlier command was killed.

    The rows of each batch are a table of Arrow in NAME.part, which `finish` converts at the end:
    only then are all columns and their types known. A file does not depend on where its commands
    were killed.

    Attributes:
        written: What the file contains.

    Args:
        path: File to write.
        identity: Hash of all that determines its rows. NAME.part of another one starts again.
        finish: Function that writes the file from its chunks.

    Raises:
        UserError: If another process writes the file, or NAME.part is not from this class.
    """

    def __init__(self, path: Path, identity: str, finish: Finish):
        self.path = path
        self.part = path.with_name(f"{path.name}.part")
        self.progress = path.with_name(f"{path.name}.part.json")
        self.finish = finish
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.part.exists() and not self.progress.exists():
            raise UserError(
                f"output: {self.part} exists, but {self.progress.name}, which describes it, does "
                "not; move or delete it"
            )
        self.written = Progress(identity=identity)
        if not self.part.exists():
            self._save()  # before the file, so that a file without it is not ours
        self.file = open_own(self.part, binary=True)
        if not lock(self.file):
            self.file.close()
            raise UserError(f"output: another process is writing {path}; wait until it ends")
        self.written = self._saved(identity)
        self.file.truncate(self.written.size)
        self.file.seek(0, os.SEEK_END)
        self.saved_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with suppress(OSError):  # the disk is full, which has been said
            self.file.close()
        if kind is None:
            return
        if self.written.size:
            print_line(f"note: {self.part} has the rows so far; the same command continues there")
        else:
            self.part.unlink(missing_ok=True)
            self.progress.unlink(missing_ok=True)

    def write(self, batch: int, answers: AnsweredRows) -> None:
        """Add answers.

        Args:
            batch: Number of the batch. All batches before it are complete.
            answers: Its answers, or a part of them.

        Raises:
            UserError: If there is no space left.
        """
        rows, records, shape = answers
        if batch > self.written.batches:
            self.written = self.written.model_copy(update={"batches": batch})
            if time.monotonic() - self.saved_at >= INTERVAL:
                self._commit()
        written = self.written
        if records:  # a batch of pictures can have no objects
            sink = pyarrow.BufferOutputStream()
            table = arrow_table(records)
            with pyarrow.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            chunk = sink.getvalue().to_pybytes()
            with explain_full_disk(self.path, self.part):
                self.file.write(len(chunk).to_bytes(LENGTH, "little") + chunk)
        largest = [max(sizes) for sizes in zip(shape, written.shape or shape, strict=True)]
        self.written = written.model_copy(
            update={
                "answered": written.answered + len(rows),
                "records": written.records + len(records),
                "shape": largest,
            }
        )

    def close(self, batches: int) -> None:
        """Put the complete file in its place.

        Args:
            batches: Number of all batches.
        """
        self.written = self.written.model_copy(update={"batches": batches})
        self._commit()
        self.finish(self._chunks, self.path)
        self.file.close()
        self.part.unlink()
        # Only now: without it, the rows so far would be lost.
        self.progress.unlink()

    def _saved(self, identity: str) -> Progress:
        """Return what NAME.part contains for this identity."""
        new = Progress(identity=identity)
        try:
            saved = validated(Progress, load_json(self.progress), self.progress)
        except UserError:  # the machine lost power while it was written
            return new
        if saved.identity != identity:
            print_line(
                f"note: {self.part} is not continued: the input, the model or an option has changed"
            )
            return new
        return saved if saved.size <= self.part.stat().st_size else new

    def _commit(self) -> None:
        """Record that all rows so far are valid."""
        with explain_full_disk(self.path, self.part):
            self.file.flush()
            os.fsync(self.file.fileno())
        self.written = self.written.model_copy(update={"size": self.file.tell()})
        self._save()

    def _save(self) -> None:
        write_text(self.progress, self.written.model_dump_json())
        self.saved_at = time.monotonic()

    def _chunks(self) -> Iterator[pyarrow.Table]:
        with self.part.open("rb") as file:
            while length := file.read(LENGTH):
                chunk = file.read(int.from_bytes(length, "little"))
                yield pyarrow.ipc.open_stream(chunk).read_all()


def write_answers(
    path: Path,
    answers: Answers,
    predictor: Predictor,
    samples: Samples,
    *,
    batch_size: int,
    identity: str,
    separator: str = "|",
    finish: Finish | None = None,
) -> tuple[str, Sequence[int]] | None:
    """Compute the answers of samples, and write them to a file, see `RowWriter`.

    The processes that torchrun started share the samples, and the first one writes.

    Args:
        path: File to write. Its suffix determines the format.
        answers: Function that computes the answers.
        predictor: The model.
        samples: The samples.
        batch_size: Number of samples per batch.
        identity: Hash of all that determines the rows of the file.
        separator: Separator of the items of a list in a CSV cell.
        finish: Function that writes the file. Default: one row per record.

    Returns:
        The number of rows and of skipped ones as text, and the largest shape of an answer. None in
        other processes than the first.

    Raises:
        UserError: If no row has an input or an answer, see also `RowWriter`.
    """
    if not len(samples):
        raise UserError(f"input: no row has any of the inputs {', '.join(samples.inputs)}")
    if finish is None:
        is_parquet = path.suffix.lower() == ".parquet"
        finish = write_parquet if is_parquet else partial(write_rows, separator=separator)
    writers: list[RowWriter] = []

    def start_writing() -> int:
        writer = RowWriter(path, identity, finish)
        writers.append(stack.enter_context(writer))
        if writer.written.batches:
            print_line(f"continuing: {writer.part} has {count(writer.written.records, 'row')}")
        return writer.written.batches

    with ExitStack() as stack:
        start = from_first(start_writing)
        batches = answers(predictor, samples, batch_size, start)
        if not writers:
            deque(batches, maxlen=0)  # its answers are sent to the first process
            return None
        (writer,) = writers
        for batch in batches:
            # The rows of samples without augmentation increase.
            first = int(np.searchsorted(samples.rows, batch[0][0]))
            writer.write(first // batch_size, batch)
        # Arrays and matrices have no size without a row, and a table has no columns.
        if not writer.written.answered:
            reasons = [str(issue) for issue in samples.opened.bad]
            reasons += samples.opened.bad_later.values()
            about = f" ({reasons[0]})" if reasons else ""
            raise UserError(
                f"input: none of the {count(len(samples), 'row')} has an answer{about}; check the "
                "files"
            )
        writer.close(-(-len(samples) // batch_size))
    written = writer.written
    skipped = samples.opened.skipped + len(samples) - written.answered
    return rows_text(written.records, skipped), written.shape


def identity_of(
    options: Mapping[str, Any], run: str | None, weights: str | None, opened: Opened
) -> str:
    """Return a hash of a command, its model and its input.

    Args:
        options: All options of the command, as plain data.
        run: Its run folder.
        weights: Its public checkpoint.
        opened: The rows of its input.
    """
    content = hashlib.sha256(json_text([dxn.__version__, options]).encode())
    content.update(identity_of_model(run, weights).encode())
    for name, column in [("#origin", opened.origin), *opened.ids.items(), *opened.cells.items()]:
        content.update(repr(name).encode())
        for cell in column:
            content.update(repr(cell).encode())
    for raws in opened.raws.values():
        if isinstance(raws.values, RawFiles):  # sizes, times and digests of the files
            content.update(raws.values.facts.tobytes())
    return content.hexdigest()


def identity_of_model(run: str | None, weights: str | None) -> str:
    """Return a hash of the sizes and times of the files of a run folder and of a checkpoint."""
    content = hashlib.sha256()
    for path in (None if run is None else model_folder(Path(run)), weights and Path(weights)):
        if path and path.exists():
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                status = file.stat()
                content.update(repr((file.name, status.st_size, status.st_mtime_ns)).encode())
    return content.hexdigest()
