"""VideoMAE (arXiv:2203.12602): its encoder, and its classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from einops import rearrange

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import blocks, copied, linears
from dxn.weights.family import Architecture, Classifier, Family, TensorMap, TensorSource
from dxn.weights.image_processor import IMAGENET, image_options

PATCHES = "embeddings.patch_embeddings.projection"
# A tensor of the encoder, and its name as a part of a model with a head.
BASE = (f"{PATCHES}.weight", "videomae")
FC_NORM_EPS = 1e-5  # a constant in the library
ATTENTION = "encoder.layer.{i}.attention.attention."


def architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    p = checkpoint.prefix(*BASE)
    kernel = checkpoint.tensors[f"{p}{PATCHES}.weight"]
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
    labels = hf.class_names(checkpoint, "classifier")
    backbone = hf.backbone_options(checkpoint, config)
    backbone["block"]["qkv_bias"] = f"{p}{ATTENTION.format(i=0)}q_bias" in checkpoint
    # The classifier is on the mean of all tokens, with its own norm, or on the first token.
    has_mean = config["use_mean_pooling"]
    backbone["norm"]["final_norm"] = not has_mean
    has_norm = labels is not None and has_mean
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
        labels=labels,
    )


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*BASE)
    depth = architecture.backbone["depth"]
    channels, frames, height, width = checkpoint.tensors[f"{p}{PATCHES}.weight"].shape[1:]
    shape = {"c": channels, "f": frames, "p": height, "q": width}
    result = {
        "adapters.video.proj.weight": TensorSource(
            (f"{p}{PATCHES}.weight",),
            lambda t: rearrange(t, "d c f p q -> d (c f p q)"),
            lambda t: (rearrange(t, "d (c f p q) -> d c f p q", **shape),),
            moves=True,
        ),
        "adapters.video.proj.bias": copied(f"{p}{PATCHES}.bias"),
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
        attention = f"{p}{ATTENTION.format(i=i)}"
        # The keys have no bias, because it would have no effect: it changes all scores of a query
        # alike.
        result[f"backbone.blocks.{i}.attn.qkv.bias"] = TensorSource(
            (f"{attention}q_bias", f"{attention}v_bias"),
            lambda query, value: torch.cat([query, torch.zeros_like(query), value]),
            lambda t: t.chunk(3)[::2],
            moves=True,
        )
    return result


def classifier(checkpoint: Checkpoint, labels: Sequence[str]) -> Classifier:
    layers = {"head.out": "classifier"}
    if checkpoint.settings["use_mean_pooling"]:
        layers["head.pre.norm"] = "fc_norm"
    return hf.classifier("VideoMAEForVideoClassification", labels, layers, prefix="videomae.")


VIDEOMAE = Family(
    "VideoMAE",
    hf.is_type("videomae"),
    architecture,
    tensor_map,
    # The decoder of the pretraining, and its mask token.
    ignored=(r"decoder\.", r"encoder_to_decoder\.", r"mask_token"),
    classifier=classifier,
)
