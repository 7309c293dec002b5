"""Save a fine-tuned classifier as a folder that transformers or timm loads."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.files import replace_folder
from dxn.export.examples import examples
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.saved.model_folder import from_public
from dxn.stacking.stacked import stacks_of
from dxn.tasks import Classify
from dxn.training.predict import to_device
from dxn.weights import Architecture, Checkpoint, Classifier, PublicModel

# Files of a checkpoint that its library reads besides the weights and config.json.
COPIED = (
    "added_tokens.json",
    "merges.txt",
    "preprocessor_config.json",
    "processor_config.json",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
COUNT = 4  # samples of the comparison
TOLERANCE = 1e-4  # of the outputs, relative to the largest one


def save_original(predictor: Predictor, public: PublicModel, folder: Path) -> None:
    """Write the folder, and compare its outputs with those of the model. See `Predictor`."""
    _check(predictor, folder)
    state = {name: t.detach().cpu() for name, t in predictor.model.state_dict().items()}
    checkpoint = to_original(public, state, predictor.labels or ())
    with replace_folder(folder) as new:
        # safetensors does not save tensors that share memory, such as chunks of one tensor.
        tensors = {name: t.contiguous().clone() for name, t in checkpoint.tensors.items()}
        save_file(tensors, new / "model.safetensors", {"format": "pt"})
        config = json.dumps(checkpoint.config, indent=2, ensure_ascii=False)
        (new / "config.json").write_text(config, encoding="utf-8")
        for path in () if checkpoint.folder is None else checkpoint.folder.iterdir():
            if path.name in COPIED:
                shutil.copyfile(path, new / path.name)
        if not _is_same(predictor, from_public(str(new), dtype="float32")):
            needed = _required_options(public, public.family.architecture(checkpoint))
            raise UserError(
                f"weights: {public.family.name} cannot represent this model, because its options "
                f"differ from those of the checkpoint; {needed}"
            )


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
            f"trained model has no {missing[0]}; {_required_options(public, architecture)}"
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


def _required_options(public: PublicModel, architecture: Architecture) -> str:
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


def _check(predictor: Predictor, folder: Path) -> None:
    """Refuse models that have a part which no classifier of another library has.

    Raises:
        UserError: If there is such a part, or the folder has files that would be replaced.
    """
    reason = ""
    if predictor.task.name != Classify.name:
        reason = f"its task is {predictor.task.name}, must be {Classify.name}"
    elif len(predictor.inputs) > 1:
        reason = f"it has several inputs ({', '.join(predictor.inputs)})"
    elif predictor.num_members > 1:
        reason = "it is an ensemble; save one of its members"
    elif stacks_of(predictor.network):
        reason = "its answers are those of a mixture with a baseline; train with baseline=none"
    elif predictor.dtype != "float32":
        reason = f"its weights are {predictor.dtype}; load it without dtype"
    if reason:
        raise UserError(f"this model cannot be saved in its original format: {reason}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: must be a new or empty folder")


def _is_same(trained: Predictor, saved: Predictor) -> bool:
    """Whether the trained model and the saved one have the same outputs."""
    (name,) = trained.inputs
    tokenizer = trained.tokenizers[name]
    raws = examples(name, tokenizer, COUNT, random.Random(0))
    # transformers takes the maximum length with each call.
    (own,) = saved.tokenizers.values()
    own.max_len = tokenizer.max_len
    expected = _outputs(trained, raws)
    outputs = _outputs(saved, raws)
    if outputs.shape != expected.shape:
        return False
    return bool((outputs - expected).abs().max() <= TOLERANCE * expected.abs().max())


@torch.inference_mode()
def _outputs(predictor: Predictor, raws: Sequence[Any]) -> Tensor:
    """Return the outputs (B, K) for raw values of the only input."""
    (name,) = predictor.inputs
    prepare = predictor.tokenizers[name]
    collated = prepare.collate([prepare(raw) for raw in raws])
    count = len(raws)
    batch = {"#size": count, name: {**collated, "rows": torch.arange(count)}}
    return predictor.model(to_device(batch, predictor.device)).cpu()
