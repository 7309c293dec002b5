"""SigLIP (arXiv:2303.15343) and SigLIP 2 (arXiv:2502.14786). Its two towers are two families.

The checkpoints of SigLIP 2 for images of one size have the format of SigLIP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from dxn.weights.checkpoint import Checkpoint, read_json
from dxn.weights.conversions import (
    blocks,
    copied,
    linears,
    patch_matrix,
    patch_positions,
)
from dxn.weights.families import clip, hf
from dxn.weights.family import Architecture, Family, TensorMap, TensorSource

HALF = (0.5, 0.5, 0.5)  # mean and standard deviation of each channel, without a preprocessor
TEXT_LEN = 64  # tokens of each text in the training (arXiv:2502.14786, section 2.1)
PATCHES = "embeddings.patch_embedding.weight"
WORDS = "embeddings.token_embedding.weight"
# Defaults of the transformers library, for settings that config.json does not contain.
DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "image_size": 224,
}


def matches_image(checkpoint: Checkpoint) -> bool:
    return is_siglip(checkpoint) and f"{image_prefix(checkpoint)}{PATCHES}" in checkpoint


def matches_text(checkpoint: Checkpoint) -> bool:
    return is_siglip(checkpoint) and f"{text_prefix(checkpoint)}{WORDS}" in checkpoint


def image_architecture(checkpoint: Checkpoint) -> Architecture:
    p = image_prefix(checkpoint)
    config = tower_config(checkpoint, "vision_config")
    kernel = checkpoint.tensors[f"{p}{PATCHES}"]
    if kernel.ndim != 4:
        hf.unsupported(checkpoint, "a SigLIP 2 for images of any aspect ratio (NaFlex)")
    dim, channels, patch_size, _ = kernel.shape
    side = grid_side(checkpoint)
    half = HALF[:channels]
    settings = hf.image_options(
        checkpoint,
        config["image_size"],
        mean=half,
        std=half,
        side=side,
        interpolation="bicubic",
    )
    labels = hf.class_names(checkpoint, "classifier")
    backbone = hf.backbone_options(checkpoint, config)
    # A classifier is on the mean of the tokens, and has no pooling by attention.
    has_map = labels is None and f"{p}head.probe" in checkpoint
    pool = {
        "pool": "map",
        "map": {
            **backbone["block"],
            "num_heads": backbone["num_heads"],
            "eps": config["layer_norm_eps"],
        },
    }
    return Architecture(
        dim=dim,
        adapters={
            "image": {
                **settings,
                # The number of position embeddings determines the image size, because a saved
                # preprocessor may have another one.
                "image_size": side * patch_size,
                "patch_size": patch_size,
                "in_channels": channels,
                "pos_embed": "learned",
            }
        },
        backbone=backbone,
        fusion=pool if has_map else {"pool": "mean"},
        labels=labels,
    )


def image_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = image_prefix(checkpoint)
    image = architecture.adapters["image"]
    patch_size = image["patch_size"]
    side = grid_side(checkpoint)
    attention = f"{p}head.attention."
    heads = architecture.backbone["num_heads"]

    def score(probe: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        # The query is a constant, so its product with the weight of the keys is too.
        query_weight, key_weight, _ = weight.chunk(3)
        query = query_weight @ probe.flatten() + bias[: len(query_weight)]
        query = rearrange(query, "(h d) -> h d", h=heads)
        keys = rearrange(key_weight, "(h d) e -> h d e", h=heads)
        return torch.einsum("hd,hde->he", query, keys) / query.shape[1] ** 0.5

    def values(projection: Tensor) -> Tensor:
        return projection.chunk(3)[2]

    projections = f"{attention}in_proj_weight", f"{attention}in_proj_bias"
    return {
        "adapters.image.proj.weight": patch_matrix(
            f"{p}{PATCHES}", channels=image["in_channels"], height=patch_size, width=patch_size
        ),
        "adapters.image.proj.bias": copied(f"{p}embeddings.patch_embedding.bias"),
        "adapters.image.pos_embed.weight": patch_positions(
            f"{p}embeddings.position_embedding.weight", (side, side)
        ),
        **blocks(clip.BLOCK, prefix=p + "encoder.layers.{i}", depth=architecture.backbone["depth"]),
        "fusion.pool.map.score.weight": TensorSource((f"{p}head.probe", *projections), score),
        "fusion.pool.map.value.weight": TensorSource(projections[:1], values, moves=True),
        "fusion.pool.map.value.bias": TensorSource(projections[1:], values, moves=True),
        **linears(
            {
                "backbone.norm": f"{p}post_layernorm",
                "fusion.pool.map.proj": f"{attention}out_proj",
                "fusion.pool.map.norm": f"{p}head.layernorm",
                "fusion.pool.map.mlp.up": f"{p}head.mlp.fc1",
                "fusion.pool.map.mlp.down": f"{p}head.mlp.fc2",
                "head.out": "classifier",
            }
        ),
    }


def text_architecture(checkpoint: Checkpoint) -> Architecture:
    p = text_prefix(checkpoint)
    config = tower_config(checkpoint, "text_config")
    num_positions = len(checkpoint.tensors[f"{p}embeddings.position_embedding.weight"])
    return Architecture(
        dim=config["hidden_size"],
        adapters={
            "text": {
                # The model was trained on lower-case texts of 64 tokens, without a padding mask.
                "tokenizer": {
                    "special_tokens": True,
                    "lowercase": True,
                    "pad_to": min(TEXT_LEN, num_positions),
                    "pad_token": pad_token(checkpoint),
                },
                "max_len": min(TEXT_LEN, num_positions),
                "pos_embed": "learned",
            }
        },
        backbone=hf.backbone_options(checkpoint, config),
        fusion={"pool": "last"},  # it may be padding
        head={"hidden": "linear", "hidden_dim": checkpoint.num_rows(f"{p}head.weight")},
    )


def text_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = text_prefix(checkpoint)
    return {
        "adapters.text.embedding.weight": copied(f"{p}{WORDS}"),
        "adapters.text.pos_embed.weight": copied(f"{p}embeddings.position_embedding.weight"),
        **blocks(clip.BLOCK, prefix=p + "encoder.layers.{i}", depth=architecture.backbone["depth"]),
        **linears({"backbone.norm": f"{p}final_layer_norm", "head.pre.dense": f"{p}head"}),
    }


def is_siglip(checkpoint: Checkpoint) -> bool:
    return hf.model_type(checkpoint).startswith("siglip")


def tower_config(checkpoint: Checkpoint, tower: str) -> dict[str, Any]:
    """Return the settings of one tower, which has its own config.json if it is alone."""
    return {**DEFAULTS, **(checkpoint.config.get(tower) or checkpoint.config)}


def pad_token(checkpoint: Checkpoint) -> str:
    """Return the padding token of the tokenizer."""
    folder = checkpoint.folder
    settings = read_json(folder / "tokenizer_config.json") if folder is not None else {}
    if settings.get("padding_side", "right") != "right":
        hf.unsupported(checkpoint, "a SigLIP whose texts are padded at the start")
    token: Any = settings.get("pad_token", "<pad>")
    return str(token["content"] if isinstance(token, Mapping) else token)


def image_prefix(checkpoint: Checkpoint) -> str:
    """Return the prefix of the image tower, or "" if it is alone."""
    return hf.prefix(checkpoint, "vision_model", PATCHES)


def text_prefix(checkpoint: Checkpoint) -> str:
    """Return the prefix of the text tower, or "" if it is alone."""
    return hf.prefix(checkpoint, "text_model", WORDS)


def grid_side(checkpoint: Checkpoint) -> int:
    """Return the number of patches along each side of an image."""
    name = f"{image_prefix(checkpoint)}embeddings.position_embedding.weight"
    return hf.grid_side(checkpoint, len(checkpoint.tensors[name]))


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
