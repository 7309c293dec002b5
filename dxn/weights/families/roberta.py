"""RoBERTa (arXiv:1907.11692) and XLM-R: BERT with an offset in the position embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import blocks, linears
from dxn.weights.families import bert, hf
from dxn.weights.families.bert import base_prefix
from dxn.weights.family import Architecture, Classifier, Family, TensorMap

# Names of the classifiers, by the type of the model.
CLASSIFIERS = {
    "roberta": "RobertaForSequenceClassification",
    "xlm-roberta": "XLMRobertaForSequenceClassification",
}


def matches(checkpoint: Checkpoint) -> bool:
    return hf.model_type(checkpoint) in CLASSIFIERS


def architecture(checkpoint: Checkpoint) -> Architecture:
    p = base_prefix(checkpoint)
    config = checkpoint.settings
    rows = len(checkpoint.tensors[f"{p}embeddings.position_embeddings.weight"])
    max_len = rows - first_position(checkpoint)
    # Either name is a dense layer with tanh on the first token: the pooler of the bare model, or
    # the first layer of the classifier.
    has_dense = f"{p}pooler.dense.weight" in checkpoint or "classifier.dense.weight" in checkpoint
    return Architecture(
        dim=config["hidden_size"],
        adapters={"text": bert.text_options(max_len=max_len, eps=config["layer_norm_eps"])},
        backbone=bert.backbone_options(checkpoint),
        fusion={"pool": "first"},
        labels=hf.class_names(checkpoint, "classifier.out_proj"),
        **(hf.span_options(checkpoint) or {"head": {"hidden": "tanh"} if has_dense else {}}),
    )


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = base_prefix(checkpoint)
    # A model with a classifier does not use the pooler.
    has_classifier = "classifier.dense.weight" in checkpoint
    dense = "classifier.dense" if has_classifier else f"{p}pooler.dense"
    return {
        **bert.embeddings(p, first_position=first_position(checkpoint)),
        **blocks(bert.BLOCK, prefix=p + "encoder.layer.{i}", depth=architecture.backbone["depth"]),
        **linears({"head.pre.dense": dense, "head.out": "classifier.out_proj"}),
        **hf.span_tensors(checkpoint, architecture),
    }


def classifier(checkpoint: Checkpoint, labels: Sequence[str]) -> Classifier:
    name = CLASSIFIERS[hf.model_type(checkpoint)]
    layers = {"head.pre.dense": "classifier.dense", "head.out": "classifier.out_proj"}
    return hf.classifier(name, labels, layers, prefix="roberta.")


def to_checkpoint(
    state: Mapping[str, Tensor], checkpoint: Checkpoint, architecture: Architecture
) -> dict[str, Tensor]:
    """Return the position and segment embeddings."""
    first = first_position(checkpoint)
    return bert.positions_and_segments(state, checkpoint, first_position=first)


def first_position(checkpoint: Checkpoint) -> int:
    """Return the row of the position embeddings that belongs to the first token of a text."""
    # The rows up to pad_token_id are reserved for padding, so positions start at the next row.
    return int(checkpoint.settings["pad_token_id"]) + 1


ROBERTA = Family(
    "RoBERTa",
    matches,
    architecture,
    tensor_map,
    ignored=(*bert.IGNORED, r"(roberta\.)?pooler\."),  # not used if there is a classifier
    classifier=classifier,
    to_checkpoint=to_checkpoint,
)
