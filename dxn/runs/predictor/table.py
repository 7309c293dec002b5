"""Predictions as rows of a table, as a data frame, and as lines to read."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dxn.core.display import format_shares, join_names, number, significant
from dxn.core.errors import UserError
from dxn.data.dataset import Opened, Samples
from dxn.runs.predictor.output import Record
from dxn.tasks import Task
from dxn.training.predict import Predictions, embed, predict_batches

if TYPE_CHECKING:
    from pandas import DataFrame

    from dxn.runs.predictor.predictor import Predictor
    from dxn.runs.predictor.resumable import AnsweredRows

# Origin of a row of a table, such as "train.csv row 17". Other origins are names of files.
TABLE_ROW = re.compile(r"(?P<file>.+) row (?P<row>\d+)")
# Columns that dxn adds. A column of the user's table with such a name gets the prefix "table_".
OWN_COLUMNS = ("file", "row", "step", "target", "prediction", "confidence", "error", "entities")
Predicted: TypeAlias = Iterable[tuple[Sequence[int], Sequence[Any]]]  # rows and predictions

KEYS = ("label", "score", "segmentation")  # of an object; the others say where it is
MAX_LISTED = 5  # classes of which the probability is printed


def predicted_rows(
    predictor: Predictor, samples: Samples, batch_size: int, start: int = 0
) -> Iterator[AnsweredRows]:
    """Yield the predictions of each batch as rows, see `dxn.runs.predictor.resumable.Answers`."""
    opened, task = samples.opened, predictor.task
    shown = shown_inputs(opened)
    for rows, predicted in predicted_batches(predictor, samples, batch_size, start):
        predictions = Predictions(rows, predicted, math.nan)
        yield rows, prediction_records(predictions, opened, task, shown), ()


def predicted_batches(
    predictor: Predictor, samples: Samples, batch_size: int, start: int = 0
) -> Predicted:
    """Yield the rows and the predictions of each batch. Processes share the batches."""
    parts = predict_batches(
        predictor.network,
        predictor.task,
        samples,
        batch_size=batch_size,
        device=predictor.device,
        finite=True,
        start=start,
        divided=True,
    )
    for rows, predicted, _ in parts:
        yield rows, predicted


def embedded_rows(
    predictor: Predictor, samples: Samples, batch_size: int, start: int = 0, *, split: bool = True
) -> Iterator[AnsweredRows]:
    """Yield the embeddings of each batch as rows with their ids, see `predicted_rows`.

    With `split`, the numbers have the columns v0, v1 and so on, otherwise the column `vector`.
    """
    parts = embed(
        predictor.network,
        samples,
        batch_size=batch_size,
        device=predictor.device,
        start=start,
        divided=True,
    )
    for rows, vectors in parts:
        records: list[Record] = []
        for row, vector in zip(rows, vectors, strict=True):
            numbers: Record = {"vector": vector.numpy()}
            if split:
                numbers = {f"v{i}": significant(value) for i, value in enumerate(vector.tolist())}
            records.append({**identify(samples.opened, row), **numbers})
        yield rows, records, vectors.shape[1:]


def prediction_records(
    predictions: Predictions,
    opened: Opened,
    task: Task,
    shown: Mapping[str, Sequence[Any]] | None = None,
) -> list[Record]:
    """Return the rows of predictions, in the order of the data.

    Most tasks have one row per prediction. A forecast has one row per future step.

    Args:
        predictions: The predictions.
        opened: The opened rows.
        task: The task, which determines the columns of a prediction.
        shown: The inputs that have columns. Default: `shown_inputs`.

    Returns:
        Rows with the columns file, row, those that identify the row, the inputs, and those of the
        task, which include the target.
    """
    shown = shown_inputs(opened) if shown is None else shown
    targets = opened.targets
    records: list[Record] = []
    for row, predicted, inputs in _in_order(predictions, opened):
        target = None if targets is None else targets[row]
        for item, columns in enumerate(task.table(predicted, target, inputs)):
            record = identify(opened, row, item)
            record |= {own_name(name): cells[row] for name, cells in shown.items()}
            if not record.keys().isdisjoint(columns):  # such as an input called p(yes)
                record = {f"table_{n}" if n in columns else n: v for n, v in record.items()}
            records.append(record | columns)
    return records


def prediction_frame(predictions: Predictions, opened: Opened, task: Task, index: Any) -> DataFrame:
    """Return predictions as a data frame, whose rows are in the order of the data.

    Args:
        predictions: The predictions.
        opened: The rows of the data frame that they are for.
        task: The task, which determines the columns of a prediction.
        index: Index of this data frame. None: its rows have been rearranged by a layout, so that
            the columns that identify them are needed.
    """
    import pandas

    records: list[Record] = []
    rows: list[int] = []
    for row, predicted, inputs in _in_order(predictions, opened):
        for item, columns in enumerate(task.table(predicted, None, inputs)):
            ids = {} if index is not None else identify(opened, row, item)
            # The name of the data frame is not the name of a file.
            ids = {name: value for name, value in ids.items() if name not in ("file", "row")}
            if "prediction" in columns:
                columns = {**columns, "prediction": task.target.typed(columns["prediction"])}
            records.append(ids | columns)
            rows.append(row)
    return pandas.DataFrame(records, index=None if index is None else index[rows])


def probability_frame(
    predictions: Predictions, opened: Opened, task: Task, index: Any
) -> DataFrame:
    """Return the probability of each class for each row of a data frame, see `prediction_frame`.

    Raises:
        UserError: If the task does not predict probabilities.
    """
    import pandas

    answers = []
    rows = []
    for row, predicted, inputs in _in_order(predictions, opened):
        answers.append(task.answer(predicted, inputs).get("probabilities"))
        rows.append(row)
    if not all(isinstance(answer, Mapping) for answer in answers):
        raise UserError(
            f"this model does not predict probabilities (its task is {task.name}); use predict"
        )
    return pandas.DataFrame(answers, index=None if index is None else index[rows])


def _in_order(
    predictions: Predictions, opened: Opened
) -> Iterator[tuple[int, Any, dict[str, Any]]]:
    """Yield the row, the prediction and the inputs of each sample, in the order of the data."""
    order = sorted(range(len(predictions.rows)), key=lambda i: predictions.rows[i])
    for i in order:
        row = predictions.rows[i]
        yield row, predictions.predicted[i], {n: cells[row] for n, cells in opened.cells.items()}


def identify(opened: Opened, row: int, item: int = 0) -> Record:
    """Return the file, the number and the identifying columns of a row.

    Args:
        opened: The opened rows.
        row: Index of the row.
        item: Index of the row among those that the task writes for the prediction.
    """
    record = locate(opened.origin[row])
    for name, values in opened.ids.items():
        # An input can have the name of another column: the input called text reads title.
        value = values[row]
        # The times of a forecast, one per item.
        if isinstance(value, Sequence) and not isinstance(value, str | bytes | list):
            value = value[item] if item < len(value) else None
        record[own_name(name, taken=opened.cells)] = value
    return record


def locate(origin: str) -> Record:
    """Return the file of a row, and its number if the file is a table."""
    match = TABLE_ROW.fullmatch(origin)
    return {"file": origin} if match is None else {"file": match["file"], "row": int(match["row"])}


def answer_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return one prediction as lines to read.

    Args:
        answer: Result of `Task.answer`.
    """
    if "entities" in answer:
        return _entity_lines(answer)
    if "quantiles" in answer:
        return _step_lines(answer["quantiles"])
    if "objects_in" in answer:
        return [object_line(item) for item in answer["prediction"]] or ["no objects"]
    if "start" in answer and answer["start"] is None:
        return [f"no answer ({number(answer['score'])})"]
    lines = [f"prediction: {format_answer(answer['prediction'])}"]
    if "excerpt" in answer:
        before, excerpt, after = answer["excerpt"]
        lines.append(f"  {number(answer['score'])}  {before}[{excerpt}]{after}")
    probabilities: Mapping[str, float] = answer.get("probabilities", {})
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    lines += [f"  {number(p, 1)}  {name}" for name, p in ranked[:MAX_LISTED]]
    if len(ranked) > MAX_LISTED:
        lines.append(f"  and {len(ranked) - MAX_LISTED:,} more")
    figures: Mapping[str, float | None] = answer.get("fidelity", {})
    return lines + [f"  {n}: {number(x)}" for n, x in figures.items() if x is not None]


def record_line(record: Mapping[str, Any]) -> str:
    """Return one row of `prediction_records` as a line to read."""
    where = f"{record['file']} row {record['row']}" if "row" in record else record["file"]
    confidence = f" ({number(record['confidence'])})" if "confidence" in record else ""
    if "entities" in record:
        named = [f"{entity['text']} ({entity['label']})" for entity in record["entities"]]
        return f"{where}: {', '.join(named) or 'no entities'}"
    if "step" in record:
        # Columns that identify the step, such as its time, are in front of its number.
        names = list(record)
        first = names.index("step")
        ids = [str(record[name]) for name in names[:first] if name not in ("file", "row")]
        values = [f"{name} {format_answer(record[name])}" for name in names[first + 1 :]]
        return f"{where}, {', '.join(ids) or record['step']}: {', '.join(values)}"
    if "prediction" not in record:  # the columns of a segmentation
        shares = {n[6:-1]: v for n, v in record.items() if n.startswith("share(")}
        return f"{where}: {format_shares(shares)}"
    if record["prediction"] == "" and record.get("start", 0) is None:
        return f"{where}: no answer"
    return f"{where}: {format_answer(record['prediction'])}{confidence}"


def format_answer(prediction: Any) -> str:
    """Return a class, labels, a number, a text or the shares of classes as one line."""
    if isinstance(prediction, float):
        return number(prediction)
    if prediction is None:  # the forecast of a channel without any value
        return "missing"
    if isinstance(prediction, list) and all(isinstance(item, str) for item in prediction):
        return join_names(prediction) or "none"
    if isinstance(prediction, Mapping):
        return format_shares(prediction)
    return str(prediction)


def object_line(item: Mapping[str, Any]) -> str:
    """Return an object as a line: its score, its label, and where it is."""
    places = [f"{name} {format_answer(v)}" for name, v in item.items() if name not in KEYS]
    return f"{number(item['score'], 1)}  {item['label']}: {', '.join(places)}"


def _step_lines(quantiles: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return a line per future step, with all quantiles. That of a frame has the mean median."""
    lines: list[str] = []
    if len(shape := np.shape(quantiles["0.5"])) == 3:
        frames = np.array(quantiles["0.5"], dtype=float).reshape(shape[0], -1)
        known = [row[~np.isnan(row)] for row in frames]
        return [
            f"step {step}: {shape[1]}×{shape[2]} cells, mean "
            f"{format_answer(float(cells.mean()) if cells.size else None)}"
            for step, cells in enumerate(known, start=1)
        ]
    for step, values in enumerate(zip(*quantiles.values(), strict=True), start=1):
        named = zip(quantiles, values, strict=True)
        lines.append(f"step {step}: {', '.join(f'q{q} {format_answer(v)}' for q, v in named)}")
    return lines


def _entity_lines(answer: Mapping[str, Any]) -> list[str]:
    tagged = zip(answer["words"], answer["prediction"], strict=False)
    lines = [f"tags: {' '.join(f'{word}/{tag}' for word, tag in tagged)}"]
    entities = answer["entities"]
    lines.append("entities:" if entities else "entities: none")
    return lines + [f"  {number(e['score'], 1)}  {e['label']}: {e['text']}" for e in entities]


def shown_inputs(opened: Opened) -> dict[str, Sequence[Any]]:
    """Return the inputs that have a column of their own in a table of predictions."""
    shown: dict[str, Sequence[Any]] = {}
    for name, cells in opened.cells.items():
        # Bytes and arrays are not shown. A file that is its own row is already in the column file.
        has_cells = any(cell is not None for cell in cells)
        if has_cells and any(cell != file for cell, file in zip(cells, opened.origin, strict=True)):
            shown[name] = cells
    return shown


def own_name(column: str, taken: Container[str] = ()) -> str:
    """Return the name of a column of the table, which must not be that of a column of dxn."""
    return f"table_{column}" if column in OWN_COLUMNS or column in taken else column
