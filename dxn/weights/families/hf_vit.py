"""ViT (arXiv:2010.11929) and DeiT (arXiv:2012.12877) in the format of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import (
    blocks,
    mean_of_classifiers,
)
from dxn.weights.family import Architecture, Classifier, Family, TensorMap
from dxn.weights.image_processor import image_options

# Classifiers of a distilled DeiT: on the class token and on the distillation token.
CLASSIFIERS = ("cls_classifier", "distillation_classifier")


def architecture(checkpoint: Checkpoint) -> Architecture:
    p = checkpoint.prefix(*hf.VIT_BASE)
    kernel = checkpoint.tensors[f"{p}{hf.VIT_PATCHES}.weight"]
    leading = leading_names(checkpoint)
    positions = checkpoint.tensors[f"{p}{hf.VIT_POSITIONS}"].shape[1]
    processor = "ViT" if hf.model_type(checkpoint) == "vit" else "DeiT"
    image = image_options(checkpoint, kernel, positions - len(leading), processor)
    has_two_classifiers = f"{CLASSIFIERS[1]}.weight" in checkpoint
    classifier = CLASSIFIERS[0] if has_two_classifiers else "classifier"
    return Architecture(
        dim=len(kernel),
        adapters={"image": image},
        backbone=hf.backbone_options(checkpoint, checkpoint.settings),
        # A distilled DeiT with classifiers pools the class token and the distillation token. The
        # bare model pools only the class token.
        fusion={
            "pool": "leading_cat" if has_two_classifiers else "cls",
            "registers": len(leading) - 1,
        },
        labels=hf.class_names(checkpoint, classifier),
    )


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    image = architecture.adapters["image"]
    depth = architecture.backbone["depth"]
    layers = checkpoint.prefix(*hf.VIT_BASE) + "encoder.layer.{i}"
    result = {
        **hf.vit_tensors(checkpoint, image, leading_names(checkpoint)),
        **blocks(hf.VIT_BLOCK, prefix=layers, depth=depth),
    }
    if f"{CLASSIFIERS[1]}.weight" in checkpoint:
        result |= mean_of_classifiers(*CLASSIFIERS)
    return result


def classifier(checkpoint: Checkpoint, labels: Sequence[str]) -> Classifier:
    is_vit = hf.model_type(checkpoint) == "vit"
    name, layer = "ViT" if is_vit else "DeiT", "classifier"
    name = f"{name}ForImageClassification"
    if f"{CLASSIFIERS[1]}.weight" in checkpoint:
        name, layer = f"{name}WithTeacher", CLASSIFIERS[0]
    prefix = f"{hf.model_type(checkpoint)}."
    return hf.classifier(name, labels, {"head.out": layer}, prefix=prefix)


def to_checkpoint(
    state: Mapping[str, Tensor], checkpoint: Checkpoint, architecture: Architecture
) -> dict[str, Tensor]:
    """Return the leading tokens and the position embeddings."""
    tokens = state["fusion.pool.tokens"]
    positions = hf.vit_positions(state, len(tokens))
    result = {f"{checkpoint.prefix(*hf.VIT_BASE)}embeddings.position_embeddings": positions}
    for i, name in enumerate(leading_names(checkpoint)):
        result[name] = tokens[None, i : i + 1]
    return result


def leading_names(checkpoint: Checkpoint) -> list[str]:
    """Return the tensor names of the leading tokens, in the order of the tokens."""
    p = checkpoint.prefix(*hf.VIT_BASE)
    names = [f"{p}embeddings.cls_token", f"{p}embeddings.distillation_token"]
    return [names[0], *(name for name in names[1:] if name in checkpoint)]


HF_VIT = Family(
    "ViT of transformers",
    hf.is_type("vit", "deit"),
    architecture,
    tensor_map,
    # The classifier does not use the pooler. The mask token is for pretraining only.
    ignored=(r"(\w+\.)?pooler\.", r"(\w+\.)?embeddings\.mask_token"),
    optional_biases=hf.VIT_BIASES,
    classifier=classifier,
    to_checkpoint=to_checkpoint,
)
