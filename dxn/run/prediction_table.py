"""Predictions as rows of a table, and as lines to read."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from dxn.data.opening import Opened
from dxn.run.report import format_number
from dxn.tasks import Task
from dxn.tasks.entities import Entity
from dxn.train.evaluate import Predictions

# Origin of a row of a table, such as "train.csv row 17". Other origins are names of files.
TABLE_ROW = re.compile(r"(?P<file>.+) row (?P<row>\d+)")
# Columns that dxn adds. A column of the user's table with such a name gets the prefix "table_".
OWN_COLUMNS = ("file", "row", "target", "prediction", "confidence", "error", "entities")
Record = dict[str, Any]  # one row: values by column

MAX_LISTED = 5  # classes of which the probability is printed


def prediction_records(predictions: Predictions, opened: Opened, task: Task) -> list[Record]:
    """Return one row per prediction, in the order of the data.

    Args:
        predictions: The predictions.
        opened: The opened rows.
        task: The task, which determines the columns of a prediction.

    Returns:
        Rows with the columns file, row, those that identify the row, the inputs, target, and those
        of the task.
    """
    shown = {name: cells for name, cells in opened.cells.items() if _is_shown(cells, opened)}
    targets = opened.targets
    order = sorted(range(len(predictions.rows)), key=lambda i: predictions.rows[i])
    records: list[Record] = []
    for i in order:
        row = predictions.rows[i]
        record = identify(opened, row)
        record |= {_own_name(name): cells[row] for name, cells in shown.items()}
        target = None if targets is None else targets[row]
        if targets is not None:
            record["target"] = target
        inputs = {name: cells[row] for name, cells in opened.cells.items()}
        records.append(record | task.fields(predictions.predicted[i], target, inputs))
    return records


def identify(opened: Opened, row: int) -> Record:
    """Return the file, the number and the identifying columns of a row."""
    match = TABLE_ROW.fullmatch(opened.origin[row])
    record: Record = {"file": opened.origin[row]}
    if match is not None:
        record = {"file": match["file"], "row": int(match["row"])}
    for name, values in opened.ids.items():
        # An input can have the name of another column: the input called text reads title.
        record[_own_name(name, taken=opened.cells)] = values[row]
    return record


def answer_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return one prediction as lines to read.

    Args:
        answer: Result of `Task.answer`.
    """
    if "entities" in answer:
        return _entity_lines(answer)
    lines = [f"prediction: {format_answer(answer['prediction'])}"]
    probabilities: Mapping[str, float] = answer.get("probabilities", {})
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    lines += [f"  {p:.4f}  {name}" for name, p in ranked[:MAX_LISTED]]
    if len(ranked) > MAX_LISTED:
        lines.append(f"  and {len(ranked) - MAX_LISTED:,} more")
    return lines


def record_line(record: Mapping[str, Any]) -> str:
    """Return one row of `prediction_records` as a line to read."""
    where = f"{record['file']} row {record['row']}" if "row" in record else record["file"]
    confidence = f" ({record['confidence']:.4f})" if "confidence" in record else ""
    if "entities" in record:
        found = [Entity(**entity) for entity in record["entities"]]
        named = [f"{entity.text} ({entity.label})" for entity in found]
        return f"{where}: {', '.join(named) or 'no entities'}"
    return f"{where}: {format_answer(record['prediction'])}{confidence}"


def format_answer(prediction: Any) -> str:
    """Return a class, labels, a number or a text as one line."""
    if isinstance(prediction, float):
        return format_number(prediction)
    if isinstance(prediction, list) and all(isinstance(item, str) for item in prediction):
        return ", ".join(prediction) or "none"
    return str(prediction)


def _entity_lines(answer: Mapping[str, Any]) -> list[str]:
    tagged = zip(answer["words"], answer["prediction"], strict=False)
    lines = [f"tags: {' '.join(f'{word}/{tag}' for word, tag in tagged)}"]
    entities = [Entity(**entity) for entity in answer["entities"]]
    lines.append("entities:" if entities else "entities: none")
    return lines + [f"  {e.score:.4f}  {e.label}: {e.text}" for e in entities]


def _is_shown(cells: Sequence[Any], opened: Opened) -> bool:
    """Whether an input has a column of its own in a table of predictions."""
    # Bytes and arrays are not shown. A file that is its own row is already in the column file.
    return any(cell is not None for cell in cells) and list(cells) != list(opened.origin)


def _own_name(column: str, taken: Container[str] = ()) -> str:
    return f"table_{column}" if column in OWN_COLUMNS or column in taken else column
