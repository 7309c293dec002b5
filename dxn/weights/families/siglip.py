"""SigLIP (arXiv:2303.15343) and SigLIP 2 (arXiv:2502.14786). Its two towers are two families.

The checkpoints of SigLIP 2 for images of one size have the format of SigLIP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint, read_json
from dxn.weights.conversions import blocks, copied, linears, map_pooling
from dxn.weights.families import clip
from dxn.weights.families.clip import IMAGE_BASE, PATCHES, POSITIONS, TEXT_BASE, WORDS
from dxn.weights.family import Architecture, Family, TensorMap
from dxn.weights.image_processor import image_options

TEXT_LEN = 64  # tokens of each text in the training, with padding
MAP_LAYERS = {
    "proj": "attention.out_proj",
    "norm": "layernorm",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}


def matches_image(checkpoint: Checkpoint) -> bool:
    return (
        is_siglip(checkpoint) and f"{checkpoint.prefix(*IMAGE_BASE)}{PATCHES}.weight" in checkpoint
    )


def matches_text(checkpoint: Checkpoint) -> bool:
    return is_siglip(checkpoint) and f"{checkpoint.prefix(*TEXT_BASE)}{WORDS}" in checkpoint


def image_architecture(checkpoint: Checkpoint) -> Architecture:
    p = checkpoint.prefix(*IMAGE_BASE)
    config = hf.tower(checkpoint, "vision")
    kernel = checkpoint.tensors[f"{p}{PATCHES}.weight"]
    if kernel.ndim != 4:
        hf.unsupported(checkpoint, "a SigLIP 2 for images of any aspect ratio (NaFlex)")
    num_patches = len(checkpoint.tensors[f"{p}{POSITIONS}"])
    backbone = hf.backbone_options(checkpoint, config)
    labels = hf.class_names(checkpoint, "classifier")
    # A classifier is on the mean of the tokens.
    has_map = labels is None and f"{p}head.probe" in checkpoint
    size = {"num_heads": backbone["num_heads"], "eps": config["layer_norm_eps"]}
    return Architecture(
        dim=len(kernel),
        adapters={"image": image_options(checkpoint, kernel, num_patches, "Siglip")},
        backbone=backbone,
        fusion={"pool": "map", "map": {**backbone["block"], **size}}
        if has_map
        else {"pool": "mean"},
        labels=labels,
    )


def image_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*IMAGE_BASE)
    backbone = architecture.backbone
    image = architecture.adapters["image"]
    return {
        **hf.patch_tensors(image, f"{p}{PATCHES}", f"{p}{POSITIONS}"),
        **blocks(clip.BLOCK, prefix=p + "encoder.layers.{i}", depth=backbone["depth"]),
        **map_pooling(
            f"{p}head.probe",
            weights=[f"{p}head.attention.in_proj_weight"],
            biases=[f"{p}head.attention.in_proj_bias"],
            layers={ours: f"{p}head.{theirs}" for ours, theirs in MAP_LAYERS.items()},
            num_heads=backbone["num_heads"],
        ),
        **linears({"backbone.norm": f"{p}post_layernorm", "head.out": "classifier"}),
    }


def text_architecture(checkpoint: Checkpoint) -> Architecture:
    p = checkpoint.prefix(*TEXT_BASE)
    config = hf.tower(checkpoint, "text")
    max_len = min(len(checkpoint.tensors[f"{p}{POSITIONS}"]), TEXT_LEN)
    return Architecture(
        dim=config["hidden_size"],
        adapters={
            "text": {
                # The model was trained on lower-case texts of 64 tokens, without a padding mask.
                "tokenizer": {
                    "special_tokens": True,
                    "lowercase": True,
                    "pad_to": max_len,
                    "pad_token": pad_token(checkpoint),
                },
                "max_len": max_len,
                "pos_embed": "learned",
            }
        },
        backbone=hf.backbone_options(checkpoint, config),
        fusion={"pool": "last"},  # it may be padding
        head={"hidden": "linear", "hidden_dim": checkpoint.num_rows(f"{p}head.weight")},
    )


def text_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*TEXT_BASE)
    return {
        "adapters.text.embedding.weight": copied(f"{p}{WORDS}"),
        "adapters.text.pos_embed.weight": copied(f"{p}{POSITIONS}"),
        **blocks(clip.BLOCK, prefix=p + "encoder.layers.{i}", depth=architecture.backbone["depth"]),
        **linears({"backbone.norm": f"{p}final_layer_norm", "head.pre.dense": f"{p}head"}),
    }


def is_siglip(checkpoint: Checkpoint) -> bool:
    return hf.model_type(checkpoint).startswith("siglip")


def pad_token(checkpoint: Checkpoint) -> str:
    """Return the padding token of the tokenizer."""
    folder = checkpoint.folder
    settings = read_json(folder / "tokenizer_config.json") if folder is not None else {}
    if settings.get("padding_side", "right") != "right":
        hf.unsupported(checkpoint, "a SigLIP whose texts are padded at the start")
    token: Any = settings.get("pad_token", "<pad>")
    return str(token["content"] if isinstance(token, Mapping) else token)


# The scale and the bias of the contrastive loss, and constant buffers in old files.
IGNORED = (r"logit_(scale|bias)", r"(\w+\.)?embeddings\.position_ids")
SIGLIP_IMAGE = Family(
    "the image tower of SigLIP",
    matches_image,
    image_architecture,
    image_tensor_map,
    part="image",
    ignored=(*IGNORED, r"text_model\."),
)
SIGLIP_TEXT = Family(
    "the text tower of SigLIP",
    matches_text,
    text_architecture,
    text_tensor_map,
    part="text",
    ignored=(*IGNORED, r"vision_model\."),
)
