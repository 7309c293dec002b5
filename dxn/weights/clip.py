"""CLIP (arXiv:2103.00020): two towers, each a family of its own."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.family import Family, Parts, Table, Take, both, flat, layers, patches, rows, same

BLOCK: dict[str, str | tuple[str, ...]] = {
    "attn_norm": "layer_norm1",
    "attn.qkv": hf.QKV,
    "attn.proj": "self_attn.out_proj",
    "mlp_norm": "layer_norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
OLD = (r"(text|vision)_model\.embeddings\.position_ids", r"logit_scale")


def knows_image(found: Checkpoint) -> bool:
    return hf.model_type(found).startswith("clip") and "vision_model.embeddings.class_embedding" in found


def knows_text(found: Checkpoint) -> bool:
    return hf.model_type(found).startswith("clip") and "text_model.embeddings.token_embedding.weight" in found


def image_parts(found: Checkpoint) -> Parts:
    c, t = config(found, "vision_config"), found.tensors
    dim, channels, patch, _ = t["vision_model.embeddings.patch_embedding.weight"].shape
    side = hf.side(found, len(t["vision_model.embeddings.position_embedding.weight"]) - 1)
    return Parts(
        dim=dim,
        adapters={
            "image": {
                "interpolation": "bicubic",
                **hf.image_settings(found, c["image_size"], mean=MEAN, std=STD, shortest=True),
                "image_size": side * patch,
                "patch_size": patch,
                "in_channels": channels,
                "position": "learned",
                "norm": True,
                "norm_eps": c["layer_norm_eps"],
            }
        },
        backbone=backbone(found, c),
        fusion={"pool": "cls"},
        head=projection(found, "visual_projection.weight"),
    )


def image_table(found: Checkpoint, parts: Parts) -> Table:
    image, p = parts.adapters["image"], "vision_model."
    side, size = image["image_size"] // image["patch_size"], image["patch_size"]
    places = f"{p}embeddings.position_embedding.weight"
    norm = (f"{p}pre_layrnorm.weight", f"{p}pre_layrnorm.bias")
    eps = image["norm_eps"]

    def token(token: Tensor, places: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        # The norm that the patches get in the adapter: of the class token, which never changes, it is a constant.
        return F.layer_norm(token.flatten() + places[0], (len(weight),), weight, bias, eps)[None]

    return {
        "adapters.image.proj.weight": patches(
            f"{p}embeddings.patch_embedding.weight", channels=image["in_channels"], height=size, width=size
        ),
        "adapters.image.proj.bias": flat(f"{p}embeddings.patch_embedding.bias"),
        "adapters.image.position.table": Take((places,), lambda t: t[1:].view(side, side, -1)),
        "fusion.pool.tokens": Take((f"{p}embeddings.class_embedding", places, *norm), token),
        **layers(BLOCK, ours="backbone.blocks.{i}", theirs=p + "encoder.layers.{i}", depth=parts.backbone["depth"]),
        **both({"adapters.image.norm": f"{p}pre_layrnorm", "backbone.norm": f"{p}post_layernorm"}),
        "head.neck.dense.weight": rows("visual_projection.weight"),
        "head.neck.dense.bias": rows("visual_projection.bias"),
    }


def text_parts(found: Checkpoint) -> Parts:
    c = config(found, "text_config")
    return Parts(
        dim=c["hidden_size"],
        adapters={
            "text": {
                "special_tokens": True,
                "max_len": len(found.tensors["text_model.embeddings.position_embedding.weight"]),
                "position": "learned",
            }
        },
        backbone={**backbone(found, c), "causal": True},
        fusion={"pool": "last"},  # the token that ends a text
        head=projection(found, "text_projection.weight"),
    )


def text_table(found: Checkpoint, parts: Parts) -> Table:
    p = "text_model."
    return {
        "adapters.text.table.weight": same(f"{p}embeddings.token_embedding.weight"),
        "adapters.text.position.table": same(f"{p}embeddings.position_embedding.weight"),
        **layers(BLOCK, ours="backbone.blocks.{i}", theirs=p + "encoder.layers.{i}", depth=parts.backbone["depth"]),
        **both({"backbone.norm": f"{p}final_layer_norm"}),
        "head.neck.dense.weight": rows("text_projection.weight"),
        "head.neck.dense.bias": rows("text_projection.bias"),
    }


def config(found: Checkpoint, tower: str) -> dict:
    """The tower's own settings: below its name in a checkpoint of both, at the top in one of it alone."""
    return {**DEFAULTS, **SIZES[tower], **(found.config.get(tower) or found.config)}


def backbone(found: Checkpoint, c: dict) -> dict:
    """Pre-norm blocks."""
    return {
        "depth": c["num_hidden_layers"],
        "num_heads": c["num_attention_heads"],
        "mlp_ratio": c["intermediate_size"] / c["hidden_size"],
        "mlp": hf.mlp(found, c),
        "norm_eps": c["layer_norm_eps"],
    }


def projection(found: Checkpoint, name: str) -> dict:
    """The layer into the space that both towers share, where there is one."""
    return {"hidden": "linear", "hidden_dim": len(found.tensors[name])} if name in found else {}


# What a config.json that was written by some versions leaves out.
DEFAULTS = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "num_hidden_layers": 12}
SIZES = {
    "text_config": {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8},
    "vision_config": {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "image_size": 224},
}
BIAS = ("patch_embedding.bias", "visual_projection.bias", "text_projection.bias")
CLIP_IMAGE = Family(
    "the image tower of CLIP",
    knows_image,
    image_parts,
    image_table,
    ignored=(*OLD, r"text_model\.", r"text_projection\."),
    no_bias=BIAS,
    antialias=False,
)
CLIP_TEXT = Family(
    "the text tower of CLIP",
    knows_text,
    text_parts,
    text_table,
    ignored=(*OLD, r"vision_model\.", r"visual_projection\."),
    no_bias=BIAS,
)
