"""CLIP (arXiv:2103.00020), SigLIP (arXiv:2303.15343) and SigLIP 2 (arXiv:2502.14786).

The image tower and the text tower of each are two separate families. The checkpoints of SigLIP 2
for images of one size have the format of SigLIP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint, read_json
from dxn.weights.conversions import LayerNames, blocks, copied, linears, map_pooling
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
CLIP_CLASS_TOKEN = "embeddings.class_embedding"
PATCHES = "embeddings.patch_embedding"
POSITIONS = "embeddings.position_embedding.weight"
WORDS = "embeddings.token_embedding.weight"
# A tensor of each tower of CLIP or SigLIP, and the name of the tower if it is not alone.
IMAGE_BASE = (f"{PATCHES}.weight", "vision_model")
TEXT_BASE = (WORDS, "text_model")
# Constant buffers of position indices in old files, and the temperature of the contrastive loss.
CLIP_IGNORED = (r"((text|vision)_model\.)?embeddings\.position_ids", r"logit_scale")
CLIP_OPTIONAL_BIASES = ("patch_embedding.bias", "visual_projection.bias", "text_projection.bias")
SIGLIP_TEXT_LEN = 64  # tokens of each text in the training, with padding
SIGLIP_MAP_LAYERS = {
    "proj": "attention.out_proj",
    "norm": "layernorm",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
# The scale and the bias of the contrastive loss, and constant buffers in old files.
SIGLIP_IGNORED = (r"logit_(scale|bias)", r"(\w+\.)?embeddings\.position_ids")


def has_tower(kind: str, base: tuple[str, str], tensor: str) -> Callable[[Checkpoint], bool]:
    """Return a function that tells whether a checkpoint of a kind has a tower.

    Args:
        kind: Start of its model_type.
        base: See `IMAGE_BASE`.
        tensor: A tensor that only this tower has.
    """

    def matches(checkpoint: Checkpoint) -> bool:
        is_kind = hf.model_type(checkpoint).startswith(kind)
        return is_kind and f"{checkpoint.prefix(*base)}{tensor}" in checkpoint

    return matches


def clip_image(checkpoint: Checkpoint) -> Architecture:
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


def clip_image_tensors(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
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
            (f"{p}{CLIP_CLASS_TOKEN}", positions, f"{norm}.weight", f"{norm}.bias"),
            class_token,
        ),
        **blocks(BLOCK, prefix=p + "encoder.layers.{i}", depth=architecture.backbone["depth"]),
        **linears(
            {
                "adapters.image.norm": norm,
                "backbone.norm": f"{p}post_layernorm",
                # dxn's layer has a bias, but CLIP's has none. CLIP_OPTIONAL_BIASES are zero.
                "head.pre.dense": "visual_projection",
            }
        ),
    }


def clip_text(checkpoint: Checkpoint) -> Architecture:
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


def clip_text_tensors(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    return text_tensors(checkpoint, architecture, "text_projection")


def text_tensors(checkpoint: Checkpoint, architecture: Architecture, projection: str) -> TensorMap:
    """Return the tensors of a text tower, whose projection has this name."""
    p = checkpoint.prefix(*TEXT_BASE)
    return {
        "adapters.text.embedding.weight": copied(f"{p}{WORDS}"),
        "adapters.text.pos_embed.weight": copied(f"{p}{POSITIONS}"),
        **blocks(BLOCK, prefix=p + "encoder.layers.{i}", depth=architecture.backbone["depth"]),
        **linears({"backbone.norm": f"{p}final_layer_norm", "head.pre.dense": projection}),
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


CLIP_IMAGE = Family(
    "the image tower of CLIP",
    has_tower("clip", IMAGE_BASE, CLIP_CLASS_TOKEN),
    clip_image,
    clip_image_tensors,
    part="image",
    heads=(),
    ignored=(*CLIP_IGNORED, r"text_model\.", r"text_projection\."),
    optional_biases=CLIP_OPTIONAL_BIASES,
)
CLIP_TEXT = Family(
    "the text tower of CLIP",
    has_tower("clip", TEXT_BASE, WORDS),
    clip_text,
    clip_text_tensors,
    part="text",
    heads=(),
    ignored=(*CLIP_IGNORED, r"vision_model\.", r"visual_projection\."),
    optional_biases=CLIP_OPTIONAL_BIASES,
)


def siglip_image(checkpoint: Checkpoint) -> Architecture:
    p = checkpoint.prefix(*IMAGE_BASE)
    config = hf.tower(checkpoint, "vision")
    kernel = checkpoint.tensors[f"{p}{PATCHES}.weight"]
    if kernel.ndim != 4:
        hf.unsupported(checkpoint, "a SigLIP 2 for images of any aspect ratio (NaFlex)")
    num_patches = len(checkpoint.tensors[f"{p}{POSITIONS}"])
    backbone = hf.backbone_options(checkpoint, config)
    classifier = hf.classifier_options(checkpoint, "classifier")
    # A classifier is on the mean of the tokens.
    has_map = not classifier and f"{p}head.probe" in checkpoint
    size = {"num_heads": backbone["num_heads"], "eps": config["layer_norm_eps"]}
    return Architecture(
        dim=len(kernel),
        adapters={"image": image_options(checkpoint, kernel, num_patches, "Siglip")},
        backbone=backbone,
        fusion={"pool": "map", "map": {**backbone["block"], **size}}
        if has_map
        else {"pool": "mean"},
        **classifier,
    )


def siglip_image_tensors(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*IMAGE_BASE)
    backbone = architecture.backbone
    image = architecture.adapters["image"]
    return {
        **hf.patch_tensors(image, f"{p}{PATCHES}", f"{p}{POSITIONS}"),
        **blocks(BLOCK, prefix=p + "encoder.layers.{i}", depth=backbone["depth"]),
        **map_pooling(
            f"{p}head.probe",
            weights=[f"{p}head.attention.in_proj_weight"],
            biases=[f"{p}head.attention.in_proj_bias"],
            layers={ours: f"{p}head.{theirs}" for ours, theirs in SIGLIP_MAP_LAYERS.items()},
            num_heads=backbone["num_heads"],
        ),
        **linears({"backbone.norm": f"{p}post_layernorm", "head.out": "classifier"}),
    }


def siglip_text(checkpoint: Checkpoint) -> Architecture:
    p = checkpoint.prefix(*TEXT_BASE)
    config = hf.tower(checkpoint, "text")
    max_len = min(len(checkpoint.tensors[f"{p}{POSITIONS}"]), SIGLIP_TEXT_LEN)
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


def siglip_text_tensors(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    return text_tensors(checkpoint, architecture, f"{checkpoint.prefix(*TEXT_BASE)}head")


def pad_token(checkpoint: Checkpoint) -> str:
    """Return the padding token of the tokenizer."""
    folder = checkpoint.folder
    settings = read_json(folder / "tokenizer_config.json") if folder is not None else {}
    if settings.get("padding_side", "right") != "right":
        hf.unsupported(checkpoint, "a SigLIP whose texts are padded at the start")
    token: Any = settings.get("pad_token", "<pad>")
    return str(token["content"] if isinstance(token, Mapping) else token)


SIGLIP_IMAGE = Family(
    "the image tower of SigLIP",
    has_tower("siglip", IMAGE_BASE, f"{PATCHES}.weight"),
    siglip_image,
    siglip_image_tensors,
    part="image",
    heads=("ImageClassification",),
    ignored=(*SIGLIP_IGNORED, r"text_model\."),
)
SIGLIP_TEXT = Family(
    "the text tower of SigLIP",
    has_tower("siglip", TEXT_BASE, WORDS),
    siglip_text,
    siglip_text_tensors,
    part="text",
    heads=(),
    ignored=(*SIGLIP_IGNORED, r"vision_model\."),
)
