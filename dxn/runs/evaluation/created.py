"""`dxn evaluate create=NAME`: metrics of the values that a model of head=any creates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dxn.core.display import count, print_line, track
from dxn.core.errors import UserError
from dxn.core.files import METRICS, PREDICTIONS
from dxn.core.processes import processes
from dxn.core.results import DataFacts, Figures, Results, flat
from dxn.data.dataset import Samples
from dxn.data.files import digest
from dxn.data.reading import open_rows
from dxn.data.rows import TARGET, Rows
from dxn.runs.evaluation.data import EvaluationSource
from dxn.runs.evaluation.features import (
    FRECHET,
    NEAREST,
    distance_remarks,
    feature_metrics,
    share_equal,
    words_of,
)
from dxn.runs.evaluation.figures import print_results
from dxn.runs.evaluation.judge import Judge
from dxn.runs.predictor.creating import write_values
from dxn.runs.predictor.output import Record, write_records
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.table import identify
from dxn.tasks.metric import defined
from dxn.tokenize.base import Adapter, BadMedia, Reader
from dxn.tokenize.codes import CodeAdapter

CREATED, RESTORED, TRUE = "created", "restored", "true"  # rows of the table of metrics
FILES = "created"  # folder of the created files
LOWER_IS_BETTER = (FRECHET, NEAREST)


def evaluate_created(
    predictor: Predictor,
    judging: Predictor | None,
    data: EvaluationSource,
    folder: Path,
    *,
    create: str,
    only: Sequence[str] | None,
    batch_size: int,
    **sampling: Any,
) -> None:
    """Create a value for each row, compare the values with the true ones, and write the results.

    The judge reads the created values alone, without the inputs that they were created from. It
    also reads the true values, and those that the codec restores from them, to show what it loses.

    Args:
        predictor: The model of head=any.
        judging: A model that was trained alone. None: texts are compared with the true ones.
        data: The rows.
        folder: Folder to write to.
        create: Input that is created.
        only: Inputs that values are created from. Default: all others.
        batch_size: Number of values per batch.
        **sampling: The arguments temperature, guidance and seed of `Predictor.create`.

    Raises:
        UserError: If the model, the judge and the data do not fit each other.
    """
    if processes()[1] > 1:
        raise UserError("create: a single process creates values; start dxn without torchrun")
    predictor.check_created(create)
    tokenizer = predictor.tokenizers[create]
    are_files = bool(tokenizer.reader.formats)
    judge = None
    if judging is not None:
        judge = Judge.of(judging, create, tokenizer.modality, batch_size)
    elif are_files:
        raise UserError(
            f"judge: needs the run of a model that reads {create} ({tokenizer.modality}), such as "
            "a classifier; set judge=RUN"
        )
    rows = predictor.model_inputs.of_source(data.source, data.split)
    given = _given(predictor, rows, create, only)
    cells = {name: rows.cells[name] for name in (create, *given)}
    if judge is not None:
        truths = judge.truths(rows, data, predictor, create)
        cells |= {} if truths is None else {TARGET: truths}
    rows = _complete(replace(rows, cells=cells), create, given)
    used = {name: predictor.tokenizers[name] for name in given}
    opened = open_rows(rows, used, on_bad=data.source.on_bad)
    rows = rows.take(opened.kept)
    values = predictor.create(create, Samples(opened, used), batch_size=batch_size, **sampling)
    if (folder / METRICS).exists():  # otherwise, the files are those of the user
        _remove_files(folder / FILES, folder / RESTORED)
    folder.mkdir(parents=True, exist_ok=True)
    created = values
    if are_files:
        created = [str(path) for path in write_values(tokenizer.reader, values, folder / FILES)]
    records: Sequence[Record] = [{**identify(opened, i), create: v} for i, v in enumerate(created)]
    figures: dict[str, dict[str, float]] = {}
    remarks: list[str] = []
    if judge is not None:
        adapter = predictor.adapters[create]
        true = rows.cells[create]
        columns = {TRUE: Column(true, _as_written(adapter, true, "true values"))}
        if isinstance(adapter, CodeAdapter):
            restored = columns[TRUE].written
            files = _restored_files(adapter.codec.reader, true, restored, folder / RESTORED)
            columns[RESTORED] = Column(files, restored)
            columns[CREATED] = Column(created, dict(enumerate(values)))
        else:
            columns[CREATED] = Column(values, _as_written(adapter, values, "created values"))
        training = _training_rows(predictor, data, create)
        figures, remarks, answered = _judged(judge, adapter, rows, columns, training)
        records = answered or records
    if not are_files:
        equal = share_equal(values, rows.cells[create], tokenizer)
        figures[CREATED] = {"equal_text": equal} | figures.get(CREATED, {})
    answering = predictor if judge is None else judge.model
    results = _results(figures, answering, data, given, remarks)
    print_line(f"{data.about}: {count(len(rows), f'{create} value')} from {' and '.join(given)}")
    print_results(results)
    for remark in results.remarks:
        print_line(f"note: {remark}")
    update = {"task": predictor.task.name, "evaluated": len(rows), "dtype": predictor.dtype}
    results.model_copy(update=update).write(folder)
    write_records(folder / PREDICTIONS, records)
    written = [METRICS, PREDICTIONS, *([f"{FILES}/"] if are_files else [])]
    if RESTORED in figures:
        written.append(f"{RESTORED}/")
    print_line(f"written: {folder}: {', '.join(written)}")


class Column(NamedTuple):
    """Values of the rows.

    Attributes:
        cells: What the judge reads.
        written: The values in the form in which the model writes them, see `_as_written`.
    """

    cells: Sequence[Any]
    written: Mapping[int, Any]


def _judged(
    judge: Judge,
    adapter: Adapter,
    rows: Rows,
    columns: Mapping[str, Column],
    training: Rows | None,
) -> tuple[dict[str, dict[str, float]], list[str], Sequence[Record]]:
    """Judge several columns of values of the same rows.

    Args:
        judge: The model.
        adapter: Adapter of the values.
        rows: The rows.
        columns: The columns.
        training: The training rows, with their values alone. None: there are none.

    Returns:
        The metrics of each column, remarks about them, and the answers for the last column.
    """
    figures: dict[str, dict[str, float]] = {}
    remarks: list[str] = []
    about_distances: list[str] = []
    records: Sequence[Record] = []
    known = None
    copies: set[bytes] = set()
    if training is not None:
        (values,) = training.cells.values()
        known = judge.features(judge.samples(training, values))
        copies.update(map(digest, _as_written(adapter, values, "training values").values()))
    for key, column in columns.items():
        samples = judge.samples(rows, column.cells)
        answers, records = judge.answers(samples, rows)
        features = judge.features(samples)
        figures[key] = answers | feature_metrics(features, known)
        if known is not None and column.written:
            copied = [digest(value) in copies for value in column.written.values()]
            figures[key]["copied"] = sum(copied) / len(copied)
        about_distances = distance_remarks(features, known)
        if len(samples) < len(rows):
            unread = count(len(rows) - len(samples), f"{key} value")
            remarks.append(f"the metrics are without {unread} that the judge cannot read")
    return figures, [*remarks, *about_distances], records


def _as_written(adapter: Adapter, cells: Sequence[Any], about: str) -> dict[int, Any]:
    """Return the values of cells in the form in which the model can write them, by row.

    They are what the codec restores, and the words of a text. Cells that cannot be read have none.
    """
    written: dict[int, Any] = {}
    for i, cell in enumerate(track(cells, len(cells), f"reading {about}")):
        if not isinstance(adapter, CodeAdapter):
            written[i] = " ".join(words_of(cell, adapter.tokenizer))
            continue
        with suppress(BadMedia):
            (codes,) = adapter.codec.encode([adapter.codec.reader.read(cell)])
            written[i] = adapter.codec.decode(codes)
    return written


def _restored_files(
    reader: Reader, cells: Sequence[Any], restored: Mapping[int, Any], folder: Path
) -> list[Any]:
    """Return files with what the codec restores, and cells that it cannot read as they are.

    The judge cannot read these either.
    """
    paths = write_values(reader, [*restored.values()], folder)
    files = dict(zip(restored, map(str, paths), strict=True))
    return [files.get(i, cell) for i, cell in enumerate(cells)]


def _remove_files(*folders: Path) -> None:
    """Remove the values that an earlier evaluation has written to the same folder."""
    for folder in folders:
        for path in folder.glob(f"{'[0-9]' * 6}.*"):  # see `write_values`
            path.unlink()
        with suppress(OSError):  # it has other files, or there is none
            folder.rmdir()


def _training_rows(creator: Predictor, data: EvaluationSource, create: str) -> Rows | None:
    """Return the training rows with the created input alone; None: there are none, or the same."""
    if data.split == "train" or not data.source.splits.get("train"):
        return None
    rows = creator.model_inputs.of_source(data.source, "train")
    rows = replace(rows, cells={create: rows.cells[create]})
    rows = rows.take(np.flatnonzero([value is not None for value in rows.cells[create]]))
    return rows if len(rows) else None


def _results(
    figures: Figures,
    answering: Predictor,
    data: EvaluationSource,
    given: list[str],
    remarks: list[str],
) -> Results:
    """Return the results, in which the created values are the only set of inputs.

    Raises:
        UserError: If there are no metrics of them.
    """
    shown = {key: found for key, each in figures.items() if (found := defined(each))}
    if CREATED not in shown:
        raise UserError(
            "judge: it has no answers for these rows, and a single value without training rows has "
            "no other metrics; set judge to a classifier, or data to more rows"
        )
    names = list(shown[CREATED])
    metric = answering.task.metric
    monitored = metric.monitored if metric.monitored in names else names[0]
    return Results(
        split=data.split,
        task=answering.task.name,
        monitored=monitored,
        higher_is_better=monitored not in LOWER_IS_BETTER and metric.is_higher_better(monitored),
        metrics=flat(data.split, shown),
        shown=metric.shown(names),
        inputs=given,
        subsets=[CREATED],
        references=[key for key in shown if key != CREATED],
        remarks=remarks,
        data=DataFacts(name=data.about),
    )


def _given(predictor: Predictor, rows: Rows, create: str, only: Sequence[str] | None) -> list[str]:
    """Return the inputs that values are created from.

    Raises:
        UserError: If the data or the model does not have one of them, or the created input.
    """
    known = [name for name in predictor.inputs if name in rows.cells]
    others = [name for name in known if name != create]
    if len(others) == len(known) or not others:
        raise UserError(
            f"create: needs rows with {create} and another input of the model, but the data has "
            f"{', '.join(known) or 'none of them'}"
        )
    if wrong := [name for name in only or () if name not in others]:
        raise UserError(
            f"only: {create} can be created from {', '.join(others)}, got {', '.join(wrong)}"
        )
    return [name for name in others if not only or name in only]


def _complete(rows: Rows, create: str, given: Sequence[str]) -> Rows:
    """Return the rows with a value to compare with, an input to create it from, and an answer.

    Raises:
        UserError: If there are none.
    """
    present = {name: [v is not None for v in column] for name, column in rows.cells.items()}
    has_input = np.any([present.pop(name) for name in given], axis=0)
    kept = np.flatnonzero(np.all([has_input, *present.values()], axis=0))
    if not len(kept):
        raise UserError(
            f"create: none of {count(len(rows), 'row')} has {create}, one of "
            f"{', '.join(given)}, and an answer for the judge; set split or data to other rows"
        )
    return rows.take(kept)
