"""Predictions of data frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dxn.core.errors import UserError
from dxn.data.dataset import Samples
from dxn.data.reading import Opened
from dxn.data.rows import InputSpec
from dxn.data.sources.memory import is_dataset, is_frame, is_series, table_of
from dxn.data.sources.table import rows_of_table
from dxn.runs.plan import by_modality
from dxn.runs.predictor.input_rows import open_rows_for_use
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.table import identify

if TYPE_CHECKING:
    from pandas import DataFrame


def plain_data(predictor: Predictor, data: Any, inputs: Mapping[str, Any]) -> Any:
    """Return the argument of `Predictor.predict` as a frame, a list of samples, or one sample.

    Args:
        predictor: The model.
        data: The argument.
        inputs: Inputs by name, of which there must be none beside it.

    Raises:
        UserError: If there are inputs by name too, or a value without the name of its input.
    """
    if inputs:
        raise UserError(
            f"{next(iter(inputs))}: cannot be combined with a positional argument such as a "
            "DataFrame; make it a column"
        )
    if is_frame(data) or is_dataset(data):
        return data
    columns = {name: predictor.columns.get(name, name) for name in predictor.inputs}
    if is_series(data):
        # A row of a data frame has its columns as labels; otherwise it is a column.
        labels = set(map(str, data.index))
        if labels & set(columns.values()):
            return {name: data[column] for name, column in columns.items() if column in labels}
        return data.to_frame(columns[_only_input(predictor)])
    if isinstance(data, list):
        return [_sample(predictor, value) for value in data]
    return _sample(predictor, data)


def _sample(predictor: Predictor, value: Any) -> dict[str, Any]:
    """Return a sample by the names of its inputs."""
    if isinstance(value, Mapping):
        return dict(value)
    return {_only_input(predictor): value}


def _only_input(predictor: Predictor) -> str:
    if len(predictor.inputs) > 1:
        raise UserError(
            f"this model has the inputs {', '.join(predictor.inputs)}; name them, such as "
            f"{{{predictor.inputs[0]!r}: ...}}, or pass a DataFrame"
        )
    return predictor.inputs[0]


def predict_frame(predictor: Predictor, frame: Any) -> DataFrame:
    """Predict for each row of a data frame. `Predictor.predict` describes it.

    Args:
        predictor: The model.
        frame: The data frame, or a `datasets.Dataset`.
    """
    import pandas

    opened, rows, predicted = _predicted(predictor, frame)
    records: list[dict[str, Any]] = []
    labels: list[Any] = []
    for row, prediction in zip(rows, predicted, strict=True):
        cells = {name: values[row] for name, values in opened.cells.items()}
        for item, columns in enumerate(predictor.task.records(prediction, None, cells)):
            known = {} if predictor.layout is None else identify(opened, row, item)
            # The name of the data frame is not the name of a file.
            known = {name: value for name, value in known.items() if name not in ("file", "row")}
            if "prediction" in columns:
                columns = {**columns, "prediction": predictor.task.typed(columns["prediction"])}
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
    predictor.require_answers()
    samples = samples_of_frame(predictor, frame)
    predictions = predictor.run(samples)
    order = sorted(range(len(predictions.rows)), key=lambda i: predictions.rows[i])
    predicted = [predictions.predicted[i] for i in order]
    return samples.opened, [predictions.rows[i] for i in order], predicted


def samples_of_frame(predictor: Predictor, frame: Any) -> Samples:
    """Return the samples of the rows of a data frame or a `datasets.Dataset`."""
    readers = predictor.readers
    specs = {
        name: InputSpec(predictor.columns.get(name, name), reader.modality)
        for name, reader in readers.items()
    }
    rows = rows_of_table(
        table_of(frame),
        specs,
        by_modality(readers),
        target=predictor.target,
        layout=predictor.layout,
        with_target=False,
        # The program itself chose the paths in the cells.
        confine=False,
    )
    inputs = {name: rows.cells[name] for name in specs if name in rows.cells}
    opened = open_rows_for_use(type(rows)(inputs, rows.origin, rows.ids), predictor, "error")
    return Samples(opened, predictor.preprocessors)


def _index(predictor: Predictor, frame: Any, rows: list[int]) -> Any:
    """Return the index of the rows, or None if a layout has rearranged them."""
    if predictor.layout is not None or not is_frame(frame):
        return None
    return frame.index[rows]
