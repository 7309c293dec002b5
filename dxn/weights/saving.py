"""Convert a trained classifier to the original format of its checkpoint's family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dxn.core.errors import UserError
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.family import Architecture, Classifier
from dxn.weights.public import PublicModel


@torch.no_grad()
def to_original(
    public: PublicModel, state: Mapping[str, Tensor], labels: Sequence[str]
) -> Checkpoint:
    """Return a trained classifier with the family's tensor names and config.json.

    Args:
        public: The checkpoint from which the training started.
        state: State dict of the trained model.
        labels: Names of the classes.

    Raises:
        UserError: If dxn cannot save models of this family, or a tensor has another shape.
    """
    family = public.family
    if family.classifier is None:
        raise UserError(
            f"weights: {family.name} has no classifier in its original format that dxn can write; "
            "use the model folder of the run instead"
        )
    classifier = family.classifier(public.checkpoint, labels)
    # The checkpoint may have no head, or that of another task. The names of its tensors depend on
    # the head, so it is first changed to one with this classifier.
    checkpoint = _with_classifier(public.checkpoint, classifier, len(labels))
    architecture = family.architecture(checkpoint)
    missing = [name for name in classifier.tensors if name not in state]
    if missing:
        raise UserError(
            f"weights: a classifier of {family.name} has {classifier.tensors[missing[0]]}, but the "
            f"trained model has no {missing[0]}; {required_options(public, architecture)}"
        )
    tensor_map = family.tensor_map(checkpoint, architecture)
    tensors: dict[str, Tensor] = {}
    # First invert the conversions of single tensors. Then the family adds the tensors that have no
    # inverse.
    for name, source in tensor_map.items():
        if name in state and source.invert is not None:
            tensors |= dict(zip(source.names, source.invert(state[name]), strict=True))
    if family.to_checkpoint is not None:
        tensors |= family.to_checkpoint(state, checkpoint, architecture)
    head = {n for ours, s in tensor_map.items() if ours.startswith("head.") for n in s.names}
    for name, tensor in list(tensors.items()):
        # Optional biases that the checkpoint does not have, and that training did not change.
        if name.endswith(family.optional_biases) and name not in checkpoint and not tensor.any():
            del tensors[name]
        elif name not in head:
            tensors[name] = _with_unused_rows(name, tensor, checkpoint)
    config = dict(checkpoint.config)
    if "qkv_bias" in config:
        config["qkv_bias"] = any(name.endswith("query.bias") for name in tensors)
    return replace(checkpoint, tensors=tensors, config=config)


def required_options(public: PublicModel, architecture: Architecture) -> str:
    """Return a sentence about the options that a training needs to be saved, for messages."""
    groups = {"fusion": architecture.fusion, "head": architecture.head}
    options = [
        f"{group}.{name}={str(value).lower()}"
        for group, values in groups.items()
        for name, value in values.items()
    ]
    return (
        f"train with weights={public.checkpoint.source} {' '.join(options)}, and with no other "
        "options of adapters, fusion and head that change what the model computes"
    )


def _with_classifier(checkpoint: Checkpoint, classifier: Classifier, rows: int) -> Checkpoint:
    """Return a checkpoint with the names of the classifier's tensors, but without their values.

    Args:
        checkpoint: The checkpoint.
        classifier: The classifier.
        rows: Number of classes.
    """
    tensors = dict(checkpoint.tensors)
    if not any(name.startswith(classifier.prefix) for name in tensors):
        tensors = {f"{classifier.prefix}{name}": tensor for name, tensor in tensors.items()}
    tensors |= {name: torch.zeros(rows, 1) for name in classifier.tensors.values()}
    config = {**checkpoint.config, **classifier.config}
    return replace(checkpoint, tensors=tensors, config=config)


def _with_unused_rows(name: str, tensor: Tensor, checkpoint: Checkpoint) -> Tensor:
    """Return a tensor with the rows of the checkpoint that the dxn model does not have.

    These are tokens that the tokenizer does not use, and positions after the longest text.

    Raises:
        UserError: If it has another shape than in the checkpoint otherwise.
    """
    old = checkpoint.tensors.get(name)
    if old is None or old.shape == tensor.shape:
        return tensor
    if old.shape[1:] == tensor.shape[1:] and len(old) > len(tensor):
        return torch.cat([tensor, old[len(tensor) :].to(tensor.dtype)])
    raise UserError(
        f"weights: {checkpoint.source}: {name} has the shape {tuple(old.shape)}, but "
        f"{tuple(tensor.shape)} after the training; train without options that change the shape, "
        "such as the image size"
    )
