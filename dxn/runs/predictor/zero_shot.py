"""Zero-shot classification: a model that aligns inputs with texts, as a classifier of labels."""

from __future__ import annotations

from collections.abc import Sequence

from dxn.core.errors import UserError
from dxn.data.dataset import Samples
from dxn.models.model import MultimodalModel
from dxn.runs.build import adapters_of
from dxn.runs.predictor.predictor import Predictor
from dxn.tasks import Contrastive
from dxn.tasks.contrastive import zero_shot_classifier

PLACE = "{}"  # the place of the label in a template


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
    names = [str(label) for label in labels]
    if len(names) < 2 or len(set(names)) < len(names):
        raise UserError(f"labels: must be at least two different names, got {', '.join(names)}")
    if PLACE not in template:
        raise UserError(f"template: must contain {PLACE}, the place of the label, got {template!r}")
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
    opened = predictor.samples([{texts[0]: template.replace(PLACE, name)} for name in names])
    rows, vectors = predictor.vectors(Samples(opened.opened, predictor.tokenizers))
    if len(rows) < len(names):
        raise UserError("labels: each label must be a text, got an empty one")
    task, head = zero_shot_classifier(task, model.head, names, vectors, others)
    kept = {name: model.inputs[name] for name in others}
    adapters = {key: each for key, each in adapters_of(model).items() if key in kept.values()}
    smaller = MultimodalModel(
        adapters, inputs=kept, fusion=model.fusion, backbone=model.backbone, head=head
    )
    columns = {name: column for name, column in predictor.columns.items() if name in kept}
    return Predictor(
        smaller.to(predictor.device).eval(),
        task,
        columns=columns,
        layout=predictor.layout,
        dtype=predictor.dtype,
    ).captured()
