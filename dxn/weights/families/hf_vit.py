"""ViT (arXiv:2010.11929) and DeiT (arXiv:2012.12877) in the format of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import (
    blocks,
    copied,
    leading_tokens,
    linears,
    mean_of_classifiers,
    patch_matrix,
    patch_positions,
)
from dxn.weights.families import hf
from dxn.weights.family import Architecture, Classifier, Family, Options, TensorMap

# Mean and standard deviation of each channel, if there is no preprocessor_config.json.
HALF = (0.5, 0.5, 0.5)
# Classifiers of a distilled DeiT: on the class token and on the distillation token.
CLASSIFIERS = ("cls_classifier", "distillation_classifier")


def matches(checkpoint: Checkpoint) -> bool:
    return hf.model_type(checkpoint) in ("vit", "deit")


def architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.config
    p = base_prefix(checkpoint)
    has_two_classifiers = f"{CLASSIFIERS[1]}.weight" in checkpoint
    classifier = CLASSIFIERS[0] if has_two_classifiers else "classifier"
    return Architecture(
        dim=len(checkpoint.tensors[f"{p}embeddings.patch_embeddings.projection.weight"]),
        adapters={"image": image_options(checkpoint)},
        backbone=hf.backbone_options(checkpoint, config),
        # A distilled DeiT with classifiers pools the class token and the distillation token. The
        # bare model pools only the class token.
        fusion={
            "pool": "leading_cat" if has_two_classifiers else "cls",
            "registers": len(leading_names(checkpoint)) - 1,
        },
        labels=hf.class_names(checkpoint, classifier),
    )


def image_options(checkpoint: Checkpoint) -> Options:
    p = base_prefix(checkpoint)
    kernel = checkpoint.tensors[f"{p}embeddings.patch_embeddings.projection.weight"]
    _, channels, patch_size, _ = kernel.shape
    default = HALF[:channels]
    side = grid_side(checkpoint)
    size = checkpoint.config["image_size"]
    return {
        **hf.image_options(checkpoint, size, mean=default, std=default, side=side),
        # The number of position embeddings determines the image size, because a saved preprocessor
        # may have another one.
        "image_size": side * patch_size,
        "patch_size": patch_size,
        "in_channels": channels,
        "pos_embed": "learned",
    }


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = base_prefix(checkpoint)
    image = architecture.adapters["image"]
    side = grid_side(checkpoint)
    positions = f"{p}embeddings.position_embeddings"
    result = {
        "adapters.image.proj.weight": patch_matrix(
            f"{p}embeddings.patch_embeddings.projection.weight",
            channels=image["in_channels"],
            height=image["patch_size"],
            width=image["patch_size"],
        ),
        "adapters.image.proj.bias": copied(f"{p}embeddings.patch_embeddings.projection.bias"),
        "adapters.image.pos_embed.weight": patch_positions(positions, (side, side)),
        "fusion.pool.tokens": leading_tokens(
            leading_names(checkpoint), positions, num_patches=side**2
        ),
        **blocks(
            hf.VIT_BLOCK, prefix=p + "encoder.layer.{i}", depth=architecture.backbone["depth"]
        ),
        **linears({"backbone.norm": f"{p}layernorm", "head.out": "classifier"}),
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
    """Return the leading tokens and the position embeddings.

    dxn stores the sum of a leading token and its position embedding. The sum becomes the token, and
    the position embedding becomes zero.
    """
    tokens = state["fusion.pool.tokens"]
    patches = state["adapters.image.pos_embed.weight"].flatten(0, 1)
    positions = torch.cat([torch.zeros_like(tokens), patches])[None]
    result = {f"{base_prefix(checkpoint)}embeddings.position_embeddings": positions}
    for i, name in enumerate(leading_names(checkpoint)):
        result[name] = tokens[None, i : i + 1]
    return result


def leading_names(checkpoint: Checkpoint) -> list[str]:
    """Return the tensor names of the leading tokens, in the order of the tokens."""
    p = base_prefix(checkpoint)
    names = [f"{p}embeddings.cls_token", f"{p}embeddings.distillation_token"]
    return [names[0], *(name for name in names[1:] if name in checkpoint)]


def grid_side(checkpoint: Checkpoint) -> int:
    """Return the number of patches along each side of an image."""
    p = base_prefix(checkpoint)
    positions = checkpoint.tensors[f"{p}embeddings.position_embeddings"].shape[1]
    return hf.grid_side(checkpoint, positions - len(leading_names(checkpoint)))


def base_prefix(checkpoint: Checkpoint) -> str:
    """Return the prefix of the bare model: "vit." or "deit.", or "" if there is no head."""
    return hf.prefix(checkpoint, hf.model_type(checkpoint), "embeddings.cls_token")


HF_VIT = Family(
    "ViT of transformers",
    matches,
    architecture,
    tensor_map,
    # The classifier does not use the pooler. The mask token is for pretraining only.
    ignored=(r"(\w+\.)?pooler\.", r"(\w+\.)?embeddings\.mask_token"),
    optional_biases=hf.VIT_BIASES,
    classifier=classifier,
    to_checkpoint=to_checkpoint,
)
