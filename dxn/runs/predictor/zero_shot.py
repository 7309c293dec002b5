"""Models of other data: classifiers of labels that are texts, and forecasts of any table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from dxn.core.display import print_line
from dxn.core.errors import UserError
from dxn.data.dataset import Samples
from dxn.models.losses import unit
from dxn.models.model import MultimodalModel
from dxn.runs.build import adapters_of
from dxn.runs.predictor.predictor import Predictor
from dxn.tasks import Classify, Contrastive
from dxn.tasks.contrastive.task import Projection, SimilarityHead, UnitVectors

PLACE = "{}"  # the place of the label in a template


def forecaster(
    predictor: Predictor,
    path: str,
    columns: Mapping[str, Any],
    *,
    sep: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
) -> Predictor:
    """Return a predictor that forecasts columns of a table with one row per time step.

    Args:
        predictor: A public model that forecasts series of any number of channels.
        path: The table.
        columns: The options target, time and series_id of `dxn.data.series.timeline.timeline`.
        sep: Separator of CSV cells.
        encoding: Encoding of a text file.
        sheet: Name of the sheet of an Excel file.

    Raises:
        UserError: If the model makes no forecasts, or the table cannot be read.
    """
    from dxn.data.rows import VALUES
    from dxn.data.series.timeline import ForecastOptions, find_windows
    from dxn.data.tables.read import read_table
    from dxn.tasks.forecast.task import FutureValues

    future = predictor.task.target
    if not isinstance(future, FutureValues) or future.channels:
        raise UserError(
            "data.target: needs the weights of a public forecasting model, such as weights="
            "amazon/chronos-bolt-small; a run reads the columns of its training"
        )
    if unknown := sorted(columns.keys() - {"target", "time", "series_id"}):
        raise UserError(
            f"data.{unknown[0]}: no such option; a prediction has data.target, data.time and "
            "data.series_id"
        )
    table = read_table(Path(path), sep=sep, encoding=encoding, sheet=sheet)
    notes: list[str] = []
    options = ForecastOptions(
        **columns,
        covariates=[],
        horizon=future.horizon,
        context=future.context,
        season=1,
        fractions=None,
    )
    windows, _ = find_windows(table, options, notes)
    for note in notes:
        print_line(f"note: {note}")
    future.channels = list(windows.target)
    return Predictor(
        predictor.network,
        predictor.task,
        columns={future.input: VALUES},
        target=windows.target_name,
        layout=windows,
        dtype=predictor.dtype,
    )


def classifier(predictor: Predictor, labels: Sequence[str], template: str) -> Predictor:
    """Return a classifier whose classes are texts (arXiv:2103.00020, section 3.1).

    The class of a sample is the label whose text has the most similar embedding.

    Args:
        predictor: A model that aligns texts with other inputs.
        labels: Names of the classes.
        template: Text of a label, in which {} is the place of the label.

    Raises:
        UserError: If the model cannot compare inputs with texts, the labels are not distinct, or
            the template has no place for the label.
    """
    _check(labels, template)
    model, task = predictor.model, predictor.task
    if not isinstance(task, Contrastive):
        raise UserError(
            f"labels: this model does not compare inputs with each other (its task is {task.name}"
            "); train one with head=contrastive, or leave labels out"
        )
    texts = [n for n, a in predictor.adapters.items() if a.has_vocabulary]
    others = [name for name in predictor.inputs if name not in texts]
    if len(texts) != 1 or not others:
        raise UserError(
            "labels: the model must have one input with texts and at least one other input, got "
            f"{', '.join(predictor.inputs)}"
        )
    vectors = _label_vectors(predictor, texts[0], labels, template)
    layers = [model.head.pre.layers[task.target.inputs.index(name)] for name in others]
    head = SimilarityHead(Projection(layers), model.head.scale.detach().cpu() * vectors)
    return _classifier(predictor, labels, head, others)


def tower_classifier(
    predictor: Predictor, texts: Predictor, labels: Sequence[str], template: str, *, scale: float
) -> Predictor:
    """Return a classifier whose classes are texts, made of the two towers of a checkpoint.

    Args:
        predictor: The tower of the inputs to classify, such as images.
        texts: The tower of the texts.
        labels: Names of the classes.
        template: Text of a label, in which {} is the place of the label.
        scale: Factor of the cosine similarities.

    Raises:
        UserError: See `classifier`.
    """
    _check(labels, template)
    vectors = unit(_label_vectors(texts, texts.inputs[0], labels, template).float())
    head = SimilarityHead(UnitVectors(predictor.model.head.pre), scale * vectors)
    return _classifier(predictor, labels, head, predictor.inputs)


def _check(labels: Sequence[str], template: str) -> None:
    """Raise UserError if labels are not distinct, or the template has no place for them."""
    if len(labels) < 2 or len(set(map(str, labels))) < len(labels):
        received = ", ".join(map(str, labels))
        raise UserError(f"labels: must be at least two different names, got {received}")
    if PLACE not in template:
        raise UserError(f"template: must contain {PLACE}, the place of the label, got {template!r}")


def _label_vectors(predictor: Predictor, name: str, labels: Sequence[str], template: str) -> Tensor:
    """Return the embeddings (K, E) of the texts of K labels, read as the input `name`."""
    opened = predictor.samples([{name: template.replace(PLACE, str(label))} for label in labels])
    rows, vectors = predictor.vectors(Samples(opened.opened, predictor.tokenizers))
    if len(rows) < len(labels):
        raise UserError("labels: each label must be a text, got an empty one")
    return vectors


def _classifier(
    predictor: Predictor, labels: Sequence[str], head: SimilarityHead, inputs: Sequence[str]
) -> Predictor:
    """Return a predictor with another head, and only some inputs, that predicts a label."""
    model = predictor.model
    keys = {name: model.inputs[name] for name in inputs}
    adapters = {key: adapter for key, adapter in adapters_of(model).items() if key in keys.values()}
    smaller = MultimodalModel(
        adapters, inputs=keys, fusion=model.fusion, backbone=model.backbone, head=head
    )
    columns = {name: column for name, column in predictor.columns.items() if name in keys}
    task = Classify()
    task.target.load({"labels": list(map(str, labels))})
    return Predictor(
        smaller.to(predictor.device).eval(),
        task,
        columns=columns,
        layout=predictor.layout,
        dtype=predictor.dtype,
    ).optimized()
