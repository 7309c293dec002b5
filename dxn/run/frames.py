"""Predictions of data frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dxn.data.memory import is_dataset, is_frame, table_of
from dxn.data.opening import Opened
from dxn.data.rows import InputSpec
from dxn.data.samples import Samples
from dxn.data.tables import rows_of_table
from dxn.errors import UserError
from dxn.run.build import by_modality
from dxn.run.input_rows import open_rows_for_use
from dxn.run.prediction_table import identify
from dxn.run.predictor import Predictor

if TYPE_CHECKING:
    from pandas import DataFrame


def predict_frame(predictor: Predictor, frame: Any, inputs: Mapping[str, Any]) -> DataFrame:
    """Predict for each row of a data frame. `Predictor.predict` describes it.

    Args:
        predictor: The model.
        frame: The data frame, or a `datasets.Dataset`.
        inputs: Inputs by name, of which there must be none beside a data frame.
    """
    import pandas

    if inputs:
        raise UserError(
            f"{next(iter(inputs))}: cannot be combined with a DataFrame; make it a column"
        )
    opened, rows, predicted = _predicted(predictor, frame)
    records: list[dict[str, Any]] = []
    labels: list[Any] = []
    for row, prediction in zip(rows, predicted, strict=True):
        cells = {name: values[row] for name, values in opened.cells.items()}
        for item, columns in enumerate(predictor.task.records(prediction, None, cells)):
            known = {} if predictor.layout is None else identify(opened, row, item)
            # The name of the data frame is not the name of a file.
            known = {name: value for name, value in known.items() if name not in ("file", "row")}
            records.append(known | columns)
            labels.append(row)
    return pandas.DataFrame(records, index=_index(predictor, frame, labels))


def predict_probabilities(predictor: Predictor, frame: Any) -> DataFrame:
    """Return the probability of each class for each row of a data frame."""
    import pandas

    opened, rows, predicted = _predicted(predictor, frame)
    answers = []
    for row, prediction in zip(rows, predicted, strict=True):
        cells = {name: values[row] for name, values in opened.cells.items()}
        answers.append(predictor.task.answer(prediction, cells).get("probabilities"))
    if not all(isinstance(answer, Mapping) for answer in answers):
        raise UserError(
            f"this model does not predict probabilities (its task is {predictor.task.name}); use "
            "predict"
        )
    return pandas.DataFrame(answers, index=_index(predictor, frame, rows))


def _predicted(predictor: Predictor, frame: Any) -> tuple[Opened, list[int], list[Any]]:
    """Return the opened rows, and the predictions with the rows that they are for, in order."""
    if not (is_frame(frame) or is_dataset(frame)):
        raise UserError(
            f"predict: must be a pandas.DataFrame or inputs by name, such as predict(text='...'), "
            f"got {type(frame).__name__}"
        )
    predictor.require_answers()
    preprocessors = predictor.preprocessors
    specs = {
        name: InputSpec(predictor.columns.get(name, name), prepare.modality)
        for name, prepare in preprocessors.items()
    }
    rows = rows_of_table(
        table_of(frame),
        specs,
        by_modality(preprocessors),
        target=predictor.target,
        layout=predictor.layout,
        with_target=False,
        # The program itself chose the paths in the cells.
        confine=False,
    )
    inputs = {name: rows.cells[name] for name in specs if name in rows.cells}
    opened = open_rows_for_use(type(rows)(inputs, rows.origin, rows.ids), predictor, "error")
    predictions = predictor.run(Samples(opened, preprocessors))
    order = sorted(range(len(predictions.rows)), key=lambda i: predictions.rows[i])
    predicted = [predictions.predicted[i] for i in order]
    return opened, [predictions.rows[i] for i in order], predicted


def _index(predictor: Predictor, frame: Any, rows: list[int]) -> Any:
    """Return the index of the rows, or None if a layout has rearranged them."""
    if predictor.layout is not None or not is_frame(frame):
        return None
    return frame.index[rows]
