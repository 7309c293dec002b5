"""CLIP (arXiv:2103.00020). Its image tower and its text tower are two separate families."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import (
    LayerNames,
    blocks,
    copied,
    linears,
    stacked,
)
from dxn.weights.family import Architecture, Family, Options, TensorMap, TensorSource
from dxn.weights.image_processor import image_options

BLOCK: LayerNames = {
    "attn_norm": "layer_norm1",
    "attn.qkv": hf.QKV,
    "attn.proj": "self_attn.out_proj",
    "mlp_norm": "layer_norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
CLASS_TOKEN = "embeddings.class_embedding"
PATCHES = "embeddings.patch_embedding"
POSITIONS = "embeddings.position_embedding.weight"
WORDS = "embeddings.token_embedding.weight"
# A tensor of each tower of CLIP or SigLIP, and the name of the tower if it is not alone.
IMAGE_BASE = (f"{PATCHES}.weight", "vision_model")
TEXT_BASE = (WORDS, "text_model")


def matches_image(checkpoint: Checkpoint) -> bool:
    is_clip = hf.model_type(checkpoint).startswith("clip")
    return is_clip and f"{checkpoint.prefix(*IMAGE_BASE)}{CLASS_TOKEN}" in checkpoint


def matches_text(checkpoint: Checkpoint) -> bool:
    is_clip = hf.model_type(checkpoint).startswith("clip")
    return is_clip and f"{checkpoint.prefix(*TEXT_BASE)}{WORDS}" in checkpoint


def image_architecture(checkpoint: Checkpoint) -> Architecture:
    p = checkpoint.prefix(*IMAGE_BASE)
    config = hf.tower(checkpoint, "vision")
    kernel = checkpoint.tensors[f"{p}{PATCHES}.weight"]
    image = image_options(
        checkpoint,
        kernel,
        len(checkpoint.tensors[f"{p}{POSITIONS}"]) - 1,  # the first one belongs to the class token
        "CLIP",
    )
    return Architecture(
        dim=len(kernel),
        adapters={"image": {**image, "norm": {"eps": config["layer_norm_eps"]}}},
        backbone=hf.backbone_options(checkpoint, config),
        fusion={"pool": "cls"},
        head=projection_options(checkpoint, "visual_projection.weight"),
    )


def image_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*IMAGE_BASE)
    positions = f"{p}{POSITIONS}"
    image = architecture.adapters["image"]
    # The name is misspelled in the library.
    norm = f"{p}pre_layrnorm"

    def class_token(token: Tensor, positions: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        # CLIP applies this layer norm to the class token and the patches. In dxn it belongs to the
        # adapter, which has no class token. The class token is constant, so its normalized value is
        # stored.
        token = token.flatten() + positions[0]
        return F.layer_norm(token, weight.shape, weight, bias, image["norm"]["eps"])[None]

    return {
        **hf.patch_tensors(image, f"{p}{PATCHES}", positions),
        "fusion.pool.tokens": TensorSource(
            (f"{p}{CLASS_TOKEN}", positions, f"{norm}.weight", f"{norm}.bias"),
            class_token,
        ),
        **blocks(BLOCK, prefix=p + "encoder.layers.{i}", depth=architecture.backbone["depth"]),
        **linears({"adapters.image.norm": norm, "backbone.norm": f"{p}post_layernorm"}),
        "head.pre.dense.weight": stacked("visual_projection.weight"),
        # dxn's layer has a bias, but CLIP's has none. See OPTIONAL_BIASES, which are set to zero.
        "head.pre.dense.bias": stacked("visual_projection.bias"),
    }


def text_architecture(checkpoint: Checkpoint) -> Architecture:
    config = hf.tower(checkpoint, "text")
    positions = checkpoint.tensors[f"{checkpoint.prefix(*TEXT_BASE)}{POSITIONS}"]
    return Architecture(
        dim=config["hidden_size"],
        adapters={
            "text": {
                "tokenizer": {"special_tokens": True},
                "max_len": len(positions),
                "pos_embed": "learned",
            }
        },
        # CLIP's text tower has causal attention, like a language model.
        backbone={**hf.backbone_options(checkpoint, config), "causal": True},
        fusion={"pool": "last"},  # CLIP pools the EOS token
        head=projection_options(checkpoint, "text_projection.weight"),
    )


def text_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*TEXT_BASE)
    return {
        "adapters.text.embedding.weight": copied(f"{p}{WORDS}"),
        "adapters.text.pos_embed.weight": copied(f"{p}{POSITIONS}"),
        **blocks(BLOCK, prefix=p + "encoder.layers.{i}", depth=architecture.backbone["depth"]),
        **linears({"backbone.norm": f"{p}final_layer_norm"}),
        "head.pre.dense.weight": stacked("text_projection.weight"),
        "head.pre.dense.bias": stacked("text_projection.bias"),
    }


def projection_options(checkpoint: Checkpoint, name: str) -> Options:
    """Return the head's options: the projection into the shared embedding space, if there is one.

    Args:
        checkpoint: The checkpoint.
        name: Name of the projection's weight.
    """
    if name not in checkpoint:
        return {}
    return {"hidden": "linear", "hidden_dim": checkpoint.num_rows(name)}


# Constant buffers of position indices in old files, and the temperature of the contrastive loss.
IGNORED = (r"((text|vision)_model\.)?embeddings\.position_ids", r"logit_scale")
OPTIONAL_BIASES = ("patch_embedding.bias", "visual_projection.bias", "text_projection.bias")
CLIP_IMAGE = Family(
    "the image tower of CLIP",
    matches_image,
    image_architecture,
    image_tensor_map,
    part="image",
    ignored=(*IGNORED, r"text_model\.", r"text_projection\."),
    optional_biases=OPTIONAL_BIASES,
)
CLIP_TEXT = Family(
    "the text tower of CLIP",
    matches_text,
    text_architecture,
    text_tensor_map,
    part="text",
    ignored=(*IGNORED, r"vision_model\.", r"visual_projection\."),
    optional_biases=OPTIONAL_BIASES,
)
