"""ViT (arXiv:2010.11929) and models with its layers, in the format of transformers.

DeiT (arXiv:2012.12877) has a distillation token, DINOv2 (arXiv:2304.07193) layer scale and optional
registers (arXiv:2309.16588), and VideoMAE (arXiv:2203.12602) patches of several frames.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import (
    LayerNames,
    blocks,
    copied,
    halves_swapped,
    layer_scales,
    leading_tokens,
    linears,
    mean_of_classifiers,
)
from dxn.weights.family import Architecture, Classifier, Family, Options, TensorMap, TensorSource
from dxn.weights.image_processor import IMAGENET, image_options

# Classifiers of a distilled DeiT: on the class token and on the distillation token.
CLASSIFIERS = ("cls_classifier", "distillation_classifier")
DINOV2_BLOCK: LayerNames = {
    **hf.VIT_BLOCK,
    "attn_norm": "norm1",
    "mlp_norm": "norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
WITH_REGISTERS = "dinov2_with_registers"  # model_type
# A tensor of the encoder, and its name as a part of a model with a head.
VIDEOMAE_BASE = (f"{hf.VIT_PATCHES}.weight", "videomae")
FC_NORM_EPS = 1e-5  # a constant in the library
VIDEOMAE_ATTENTION = "encoder.layer.{i}.attention.attention."


def vit_architecture(checkpoint: Checkpoint) -> Architecture:
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
        **hf.classifier_options(checkpoint, classifier),
    )


def vit_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    image = architecture.adapters["image"]
    depth = architecture.backbone["depth"]
    layers = checkpoint.prefix(*hf.VIT_BASE) + "encoder.layer.{i}"
    result = {
        **vit_tensors(checkpoint, image, leading_names(checkpoint)),
        **blocks(hf.VIT_BLOCK, prefix=layers, depth=depth),
    }
    if f"{CLASSIFIERS[1]}.weight" in checkpoint:
        result |= mean_of_classifiers(*CLASSIFIERS)
    return result


def vit_classifier(checkpoint: Checkpoint, labels: Sequence[str]) -> Classifier:
    is_vit = hf.model_type(checkpoint) == "vit"
    name, layer = "ViT" if is_vit else "DeiT", "classifier"
    name = f"{name}ForImageClassification"
    if f"{CLASSIFIERS[1]}.weight" in checkpoint:
        name, layer = f"{name}WithTeacher", CLASSIFIERS[0]
    prefix = f"{hf.model_type(checkpoint)}."
    return hf.classifier(name, labels, {"head.out": layer}, prefix=prefix)


def vit_to_checkpoint(
    state: Mapping[str, Tensor], checkpoint: Checkpoint, architecture: Architecture
) -> dict[str, Tensor]:
    """Return the leading tokens and the position embeddings."""
    tokens = state["fusion.pool.tokens"]
    positions = vit_positions(state, len(tokens))
    result = {f"{checkpoint.prefix(*hf.VIT_BASE)}embeddings.position_embeddings": positions}
    for i, name in enumerate(leading_names(checkpoint)):
        result[name] = tokens[None, i : i + 1]
    return result


def leading_names(checkpoint: Checkpoint) -> list[str]:
    """Return the tensor names of the leading tokens, in the order of the tokens."""
    p = checkpoint.prefix(*hf.VIT_BASE)
    names = [f"{p}embeddings.cls_token", f"{p}embeddings.distillation_token"]
    return [names[0], *(name for name in names[1:] if name in checkpoint)]


def vit_tensors(checkpoint: Checkpoint, image: Options, leading: Sequence[str]) -> TensorMap:
    """Return the tensors of a ViT outside of its blocks.

    Args:
        checkpoint: The checkpoint.
        image: Options of the adapter.
        leading: Names of the leading tokens.
    """
    p = checkpoint.prefix(*hf.VIT_BASE)
    positions = f"{p}{hf.VIT_POSITIONS}"
    num_patches = math.prod(image["resize"]["pos_grid"])
    return {
        **hf.patch_tensors(image, f"{p}{hf.VIT_PATCHES}", positions),
        "fusion.pool.tokens": leading_tokens(leading, positions, num_patches=num_patches),
        **linears({"backbone.norm": f"{p}layernorm", "head.out": "classifier"}),
    }


def vit_positions(state: Mapping[str, Tensor], num_leading: int) -> Tensor:
    """Return the position embeddings (1, K + P, D) of K leading tokens and P patches.

    dxn stores the sum of a leading token and its position embedding. The sum becomes the token, and
    the position embedding becomes zero.
    """
    patches = state["adapters.image.pos_embed.weight"].flatten(0, 1)
    return torch.cat([patches.new_zeros(num_leading, patches.shape[1]), patches])[None]


HF_VIT = Family(
    "ViT of transformers",
    hf.is_type("vit", "deit"),
    vit_architecture,
    vit_tensor_map,
    heads=("ImageClassification", "ImageClassificationWithTeacher", "MaskedImageModeling"),
    # The classifier does not use the pooler. The mask token is for pretraining only.
    ignored=(r"(\w+\.)?pooler\.", r"(\w+\.)?embeddings\.mask_token"),
    optional_biases=hf.VIT_BIASES,
    classifier=vit_classifier,
    to_checkpoint=vit_to_checkpoint,
)


def dinov2_architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    p = checkpoint.prefix(*hf.VIT_BASE)
    classifier = hf.classifier_options(checkpoint, "classifier")
    registers = checkpoint.tensors.get(f"{p}embeddings.register_tokens")
    # The library rounds the hidden width of a gated MLP, so read it from the weight.
    activation = hf.activation(checkpoint, config)
    is_gated = bool(config.get("use_swiglu_ffn"))  # which ignores the activation function
    down = "weights_out" if is_gated else "fc2"
    dim, hidden = checkpoint.tensors[f"{p}encoder.layer.0.mlp.{down}.weight"].shape
    # The first position embedding belongs to the class token. Registers have none. Images have the
    # size of the preprocessor, as in the library: config.json has that of the last training phase.
    image = image_options(
        checkpoint,
        checkpoint.tensors[f"{p}{hf.VIT_PATCHES}.weight"],
        checkpoint.tensors[f"{p}{hf.VIT_POSITIONS}"].shape[1] - 1,
        "Bit",
        image_size=config["image_size"],
        without_file=IMAGENET,
        # transformers uses it only for this model.
        antialias=hf.model_type(checkpoint) == WITH_REGISTERS,
    )
    return Architecture(
        dim=dim,
        adapters={"image": image},
        backbone={
            "depth": config["num_hidden_layers"],
            "num_heads": config["num_attention_heads"],
            "block": {
                "mlp": "swiglu" if is_gated else activation,
                "hidden_dim": hidden,
                "layer_scale": float(config["layerscale_value"]),
            },
            "norm": {"eps": config["layer_norm_eps"]},
        },
        fusion={
            # The classifier's input is the class token concatenated with the mean of the patches.
            "pool": "cls_mean" if classifier else "cls",
            "registers": registers.shape[1] if registers is not None else 0,
        },
        **classifier,
    )


def dinov2_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*hf.VIT_BASE)
    image = architecture.adapters["image"]
    depth = architecture.backbone["depth"]
    registers = f"{p}embeddings.register_tokens"
    leading = [f"{p}embeddings.cls_token", *([registers] if registers in checkpoint else [])]
    layer = p + "encoder.layer.{i}"
    result = {
        **vit_tensors(checkpoint, image, leading),
        **blocks(DINOV2_BLOCK, prefix=layer, depth=depth),
        **layer_scales(layer, "layer_scale1.lambda1", "layer_scale2.lambda1", depth),
    }
    if architecture.backbone["block"]["mlp"] == "swiglu":
        for i in range(depth):
            mlp = f"{layer.format(i=i)}.mlp"
            for kind in ("weight", "bias"):
                gated = halves_swapped(f"{mlp}.weights_in.{kind}")
                result[f"backbone.blocks.{i}.mlp.up.{kind}"] = gated
                result[f"backbone.blocks.{i}.mlp.down.{kind}"] = copied(f"{mlp}.weights_out.{kind}")
    return result


def dinov2_classifier(checkpoint: Checkpoint, labels: Sequence[str]) -> Classifier:
    name = "Dinov2WithRegisters" if hf.model_type(checkpoint) == WITH_REGISTERS else "Dinov2"
    prefix = f"{hf.model_type(checkpoint)}."
    layers = {"head.out": "classifier"}
    return hf.classifier(f"{name}ForImageClassification", labels, layers, prefix=prefix)


def dinov2_to_checkpoint(
    state: Mapping[str, Tensor], checkpoint: Checkpoint, architecture: Architecture
) -> dict[str, Tensor]:
    """Return the leading tokens and the position embeddings."""
    p = f"{checkpoint.prefix(*hf.VIT_BASE)}embeddings."
    tokens = state["fusion.pool.tokens"]
    # Registers have no position embeddings.
    positions = vit_positions(state, 1)
    result = {f"{p}cls_token": tokens[None, :1], f"{p}position_embeddings": positions}
    if f"{p}register_tokens" in checkpoint:
        result[f"{p}register_tokens"] = tokens[None, 1:]
    # The classifier does not use the mask token, but its class has one.
    mask_token = checkpoint.tensors.get(f"{p}mask_token")
    return result if mask_token is None else {**result, f"{p}mask_token": mask_token}


DINOV2 = Family(
    "DINOv2",
    hf.is_type("dinov2"),
    dinov2_architecture,
    dinov2_tensor_map,
    heads=("ImageClassification",),
    ignored=(r"(\w+\.)?embeddings\.mask_token",),
    optional_biases=hf.VIT_BIASES,
    classifier=dinov2_classifier,
    to_checkpoint=dinov2_to_checkpoint,
)
DINOV2_REGISTERS = replace(DINOV2, name="DINOv2 with registers", matches=hf.is_type(WITH_REGISTERS))


def videomae_architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    p = checkpoint.prefix(*VIDEOMAE_BASE)
    kernel = checkpoint.tensors[f"{p}{hf.VIT_PATCHES}.weight"]
    dim, channels, tubelet_frames, patch_size, width = kernel.shape
    size: Any = config["image_size"]
    sides = [size] if isinstance(size, int) else list(size)
    num_frames = config["num_frames"]
    if channels != 3 or patch_size != width or len(set(sides)) > 1:
        hf.unsupported(
            checkpoint, "a VideoMAE whose clips are not square and in color, with square patches"
        )
    if sides[0] % patch_size or num_frames % tubelet_frames:
        hf.unsupported(
            checkpoint,
            f"a VideoMAE whose tubelets ({tubelet_frames} frames, {patch_size} pixels) do not "
            f"divide its clips ({num_frames} frames, {sides[0]} pixels)",
        )
    num_patches = (sides[0] // patch_size) ** 2
    image = image_options(
        checkpoint, kernel[:, :, 0], num_patches, "VideoMAE", without_file=IMAGENET
    )
    classifier = hf.classifier_options(checkpoint, "classifier")
    backbone = hf.backbone_options(checkpoint, config)
    backbone["block"]["qkv_bias"] = f"{p}{VIDEOMAE_ATTENTION.format(i=0)}q_bias" in checkpoint
    # The classifier is on the mean of all tokens, with its own norm, or on the first token.
    has_mean = config["use_mean_pooling"]
    backbone["norm"]["final_norm"] = not has_mean
    has_norm = bool(classifier) and has_mean
    return Architecture(
        dim=dim,
        adapters={
            "video": {
                **{key: value for key, value in image.items() if key != "in_channels"},
                "tubelet_frames": tubelet_frames,
                "sampling": {"num_frames": num_frames},
                "pos_embed": "sequence",
            }
        },
        backbone=backbone,
        fusion={"pool": "mean" if has_mean else "first"},
        head={"norm": True, "norm_eps": FC_NORM_EPS} if has_norm else {},
        **classifier,
    )


def videomae_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*VIDEOMAE_BASE)
    depth = architecture.backbone["depth"]
    channels, frames, height, width = checkpoint.tensors[f"{p}{hf.VIT_PATCHES}.weight"].shape[1:]
    shape = {"c": channels, "f": frames, "p": height, "q": width}
    result = {
        "adapters.video.proj.weight": TensorSource(
            (f"{p}{hf.VIT_PATCHES}.weight",),
            lambda t: rearrange(t, "d c f p q -> d (c f p q)"),
            lambda t: (rearrange(t, "d (c f p q) -> d c f p q", **shape),),
            moves=True,
        ),
        "adapters.video.proj.bias": copied(f"{p}{hf.VIT_PATCHES}.bias"),
        **blocks(hf.VIT_BLOCK, prefix=p + "encoder.layer.{i}", depth=depth),
        **linears(
            {
                "backbone.norm": f"{p}layernorm",
                "head.pre.norm": "fc_norm",
                "head.out": "classifier",
            }
        ),
    }
    for i in range(depth):
        attention = f"{p}{VIDEOMAE_ATTENTION.format(i=i)}"
        # The keys have no bias, because it would have no effect: it changes all scores of a query
        # alike.
        result[f"backbone.blocks.{i}.attn.qkv.bias"] = TensorSource(
            (f"{attention}q_bias", f"{attention}v_bias"),
            lambda query, value: torch.cat([query, torch.zeros_like(query), value]),
            lambda t: t.chunk(3)[::2],
            moves=True,
        )
    return result


def videomae_classifier(checkpoint: Checkpoint, labels: Sequence[str]) -> Classifier:
    layers = {"head.out": "classifier"}
    if checkpoint.settings["use_mean_pooling"]:
        layers["head.pre.norm"] = "fc_norm"
    return hf.classifier("VideoMAEForVideoClassification", labels, layers, prefix="videomae.")


VIDEOMAE = Family(
    "VideoMAE",
    hf.is_type("videomae"),
    videomae_architecture,
    videomae_tensor_map,
    heads=("VideoClassification", "PreTraining"),
    # The decoder of the pretraining, and its mask token.
    ignored=(r"decoder\.", r"encoder_to_decoder\.", r"mask_token"),
    classifier=videomae_classifier,
)
