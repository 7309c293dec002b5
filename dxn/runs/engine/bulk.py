"""Answers for many rows, in parts: each part is computed on its own, and written when it is ready.

A folder of answers contains

- `answers/`: one Parquet file per part, whose names sort in the order of the rows;
- `bad/`: the rows that cannot be read and the reasons, in files with the same names;
- `progress/`: one small file per finished part, so that a command that was stopped continues;
- `command.json`: what is computed, so that two commands cannot mix their answers.

A part is a range of rows of one file. Its rows depend only on the command and on the input, so a
part that is computed twice, such as after the loss of a machine, replaces itself.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from dxn.core.errors import UserError
from dxn.core.files import atomic_file, write_text
from dxn.data.dataset import Opened, Samples
from dxn.data.loader import BatchOrder
from dxn.data.reading import survey_rows
from dxn.data.rows import OnBad, Rows
from dxn.runs.predictor.inputs import ModelInputs
from dxn.runs.predictor.output import (
    Record,
    common_schema,
    exact_schema,
    with_schema,
    write_records,
)
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.resumable import AnsweredRows
from dxn.runs.predictor.table import locate

# Rows of a part, as a multiple of the batch size: large enough that files and messages cost little,
# small enough that a lost part is computed again in seconds.
BATCHES = 16
FILE_BATCHES = 4  # of inputs that are files: a tokenized picture has a hundred times the bytes
ANSWERS, BAD, PROGRESS, COMMAND = "answers", "bad", "progress", "command.json"


@dataclass(frozen=True)
class Part:
    """A range of rows of one file.

    Args:
        name: Name of its files, without a suffix.
        rows: The rows.
        is_last: Whether it is the last part of the file.
        bad: Records of rows that cannot be read.
    """

    name: str
    rows: Rows
    is_last: bool
    bad: Sequence[Record] = ()


@dataclass(frozen=True)
class BulkInput:
    """A table, or rows of files such as pictures, which are divided into parts.

    Args:
        index: Position among the inputs, which is the order of the answers.
        content: Path of the table, or the rows.
        done: Indices of the parts that are finished.
    """

    index: int
    content: str | Rows
    done: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Reading:
    """How parts are read and tokenized.

    Args:
        inputs: Inputs of the model.
        batch_size: Number of samples per batch.
        part_rows: Number of rows per part.
        only: Names of the inputs that are used. None: all.
        on_bad: What to do with a row of which some inputs can be read.
        options: Options of tables, see `ModelInputs.table`. `keep` has all columns that identify
            a row.
    """

    inputs: ModelInputs
    batch_size: int
    part_rows: int
    only: Sequence[str] | None = None
    on_bad: OnBad = "skip"
    options: Mapping[str, Any] = field(default_factory=dict)

    def read(self, source: BulkInput) -> Iterator[Part]:
        """Yield the parts of an input that are not finished."""
        try:
            rows = self._rows(source.content)
        except UserError as error:
            # One damaged file of many does not stop the work.
            bad = {"file": Path(str(source.content)).name, "reason": str(error)}
            yield Part(part_name(source.index, 0), Rows({}, []), True, [bad])
            return
        count = math.ceil(len(rows) / self.part_rows)
        for index in range(count):
            if index not in source.done:
                start = index * self.part_rows
                part = rows.take(range(start, min(start + self.part_rows, len(rows))))
                yield Part(part_name(source.index, index), part, index == count - 1)

    def _rows(self, content: str | Rows) -> Rows:
        if isinstance(content, Rows):
            return content
        rows = self.inputs.rows(content, only=self.only, **self.options)
        # Other columns can be identifiers by chance in one of several files.
        return replace(rows, ids={name: rows.ids[name] for name in self.options["keep"]})

    def tokenize(self, part: Part) -> Tokenized:
        """Read the files of a part, and tokenize its rows."""
        if not len(part.rows):
            return Tokenized(part.name, part.is_last, Opened({}, None, []), [], [], part.bad)
        opened = survey_rows(
            part.rows,
            self.inputs.tokenizers,
            task=self.inputs.task,
            on_bad=self.on_bad,
            need_target=False,
            required=self.inputs.required,
        )
        samples = self.inputs.prepared(opened, self.only)
        order = BatchOrder(samples, self.batch_size)
        batches = [order.prepare(key) for key in order]
        # What the answers show of the rows, without the raw values.
        shown = Opened({}, None, opened.origin, ids=opened.ids, cells=opened.cells)
        bad: list[Record] = []
        for issue in sorted(opened.bad, key=lambda issue: issue.row):
            about = {"input": issue.input, "path": issue.path, "reason": issue.reason}
            bad.append({**locate(issue.origin), **{n: v for n, v in about.items() if v}})
        rows = samples.rows.tolist()
        return Tokenized(part.name, part.is_last, shown, rows, batches, bad)


@dataclass(frozen=True)
class Tokenized:
    """A part whose rows are batches.

    Args:
        name: Name of its files.
        is_last: Whether it is the last part of a file.
        opened: The rows, without raw values.
        rows: Row of each sample.
        batches: The batches.
        bad: Records of rows that cannot be read.
    """

    name: str
    is_last: bool
    opened: Opened
    rows: Sequence[int]
    batches: Sequence[dict[str, Any]]
    bad: Sequence[Record]


class Batches(Samples):
    """Samples that another process has tokenized."""

    def __init__(self, part: Tokenized):
        super().__init__(part.opened, {})
        self.rows = part.rows
        self.num_workers = 0
        self.batches = part.batches

    def batch(
        self, epoch: int, indices: Sequence[int], *, drop_inputs: bool = True
    ) -> dict[str, Any]:
        largest = self.batches[0]["#size"]
        batch = self.batches[indices[0] // largest]
        if len(indices) < batch["#size"]:  # the batch did not fit into the memory
            raise UserError(
                f"batch_size: out of memory with {largest} samples per batch; set a smaller one"
            )
        return batch


# The answers of samples as rows of a table, batch by batch, such as `predicted_rows`.
Answering = Callable[[Predictor, Samples, int], Iterator[AnsweredRows]]


def answer(
    part: Tokenized, predictor: Predictor, rows_of: Answering, folder: Path
) -> dict[str, int]:
    """Compute the answers of a part, and write its files. Return the numbers of rows."""
    answers: list[Record] = []
    if part.batches:
        for _, records, _ in rows_of(predictor, Batches(part), part.batches[0]["#size"]):
            answers.extend(records)
    name = f"{part.name}.parquet"
    if part.bad:
        write_records(folder / BAD / name, part.bad)
    if answers:
        write_records(folder / ANSWERS / name, answers)
    counts = {"rows": len(part.rows), "bad": len({(b["file"], b.get("row")) for b in part.bad})}
    # Last, because it says that the files are there.
    progress = {**counts, "last": part.is_last}
    write_text(folder / PROGRESS / f"{part.name}.json", json.dumps(progress))
    return counts


def part_name(source: int, index: int) -> str:
    """Return the name of the files of a part. Names sort in the order of the rows."""
    return f"part-{source:06}-{index:06}"


def read_progress(folder: Path) -> dict[str, Any]:
    """Return the finished parts of a folder of answers: the content of the file of each name."""
    files = sorted((folder / PROGRESS).glob("part-*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def unfinished(sources: Sequence[BulkInput], finished: Mapping[str, Any]) -> list[BulkInput]:
    """Return the inputs that have unfinished parts, with their finished parts."""
    done: dict[int, set[int]] = {}
    sizes: dict[int, int] = {}
    for name, part in finished.items():
        source, index = map(int, name.split("-")[1:])
        done.setdefault(source, set()).add(index)
        if part["last"]:
            sizes[source] = index + 1
    left = [item for item in sources if len(done.get(item.index, ())) != sizes.get(item.index)]
    return [replace(item, done=frozenset(done.get(item.index, ()))) for item in left]


def open_folder(folder: Path, command: Mapping[str, Any], files: Sequence[str]) -> dict[str, Any]:
    """Create a folder of answers, or return the finished parts that it contains.

    Args:
        folder: The folder.
        command: What is computed, as plain data.
        files: The input files. A changed file needs another folder.

    Raises:
        UserError: If the folder contains anything else.
    """
    content = hashlib.sha256()
    for file in files:
        status = Path(file).stat()
        content.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    described = {**command, "files": content.hexdigest()}
    file = folder / COMMAND
    if not file.exists():
        if folder.is_dir() and any(folder.iterdir()):
            raise UserError(
                f"output: {folder} is not empty, and contains no {COMMAND} of a command to "
                "continue; choose a new folder"
            )
        write_text(file, json.dumps(described, indent=1, default=str) + "\n")
        return {}
    saved = json.loads(file.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(described, default=str))
    different = [key for key in {**saved, **now} if saved.get(key) != now.get(key)]
    if different:
        reasons = {"files": "a file of the input has changed", "model": "the model has changed"}
        # A changed option is the user's, so it comes before what has changed in the files.
        key = next((name for name in different if name not in reasons), different[0])
        reason = reasons.get(key, key)
        raise UserError(
            f"output: {folder} contains the answers of another command ({reason}); choose another "
            "folder, or delete this one"
        )
    return read_progress(folder)


def unify(folder: Path) -> None:
    """Give all files of a table the same column types.

    A column without any value in a part, for example, has no type there.
    """
    for table in (folder / ANSWERS, folder / BAD):
        files = sorted(table.glob("part-*.parquet"))
        schemas = [pyarrow.parquet.read_schema(file) for file in files]
        common = common_schema(schemas)
        others = [f for f, schema in zip(files, schemas, strict=True) if not schema.equals(common)]
        whole = exact_schema(common, map(pyarrow.parquet.read_table, others))
        for file, schema in zip(files, schemas, strict=True):
            if not schema.equals(whole):
                part = pyarrow.parquet.read_table(file)
                with atomic_file(file) as partial:
                    pyarrow.parquet.write_table(with_schema(part, whole), partial)
