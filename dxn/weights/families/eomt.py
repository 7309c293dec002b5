"""EoMT (arXiv:2503.19108) in the format of transformers: DINOv2 whose last blocks have queries."""

from __future__ import annotations

import torch
from torch import Tensor

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import (
    LayerNames,
    blocks,
    copied,
    linears,
    patch_matrix,
    patch_positions,
)
from dxn.weights.family import Architecture, Family, Options, TensorMap, TensorSource
from dxn.weights.image_processor import adapter_options, read_image_processor

BLOCK: LayerNames = {
    "attn_norm": "norm1",
    "attn.qkv": tuple(f"attention.{name}_proj" for name in "qkv"),
    "attn.proj": "attention.out_proj",
    "mlp_norm": "norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
GATED: LayerNames = {
    **BLOCK,
    "mlp.up": ("mlp.up_proj", "mlp.gate_proj"),
    "mlp.down": "mlp.down_proj",
}
TOKENS = ("embeddings.cls_token", "embeddings.register_tokens", "query.weight")
PATCHES = "embeddings.patch_embeddings.projection"
POSITIONS = "embeddings.position_embeddings.weight"
CLASSES = "class_predictor"
PROBABILITIES = "attn_mask_probs"  # of masked attention in each of the last blocks
WHITE = 255  # value of pixels without a class, in new masks


def architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    masked = checkpoint.tensors.get(PROBABILITIES)
    if masked is not None and (masked > 0).any():
        hf.unsupported(checkpoint, f"an unfinished training, whose {PROBABILITIES} are not all 0")
    if hf.activation(checkpoint, config) != "gelu":
        hf.unsupported(checkpoint, f"hidden_act={config['hidden_act']!r}")
    is_gated = bool(config.get("use_swiglu_ffn"))
    down = "down_proj" if is_gated else "fc2"
    dim, hidden = checkpoint.tensors[f"layers.0.mlp.{down}.weight"].shape
    registers, queries = (checkpoint.tensors[name].shape[-2] for name in TOKENS[1:])
    labels = (hf.class_names(checkpoint, CLASSES) or [])[:-1]  # the last class is no segment
    image = _image_options(checkpoint)
    return Architecture(
        dim=dim,
        adapters={"image": image},
        backbone={
            "depth": config["num_hidden_layers"],
            "num_heads": config["num_attention_heads"],
            "block": {
                "mlp": "swiglu" if is_gated else "gelu",
                "hidden_dim": hidden,
                "layer_scale": float(config["layerscale_value"]),
            },
            "norm": {"eps": config["layer_norm_eps"]},
        },
        fusion={
            "pool": "cls",
            "registers": registers + queries,
            "late_registers": queries,
            "late_blocks": config["num_blocks"],
        },
        head={
            "queries": queries,
            "upscale": config["num_upscale_blocks"],
            # Pictures that are not padded are divided.
            "tile": image["image_size"] if image["resize"]["mode"] == "cover" else 0,
        },
        task="segment",
        state={"labels": labels, "values": list(range(len(labels))), "ignored": WHITE},
    )


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    image = architecture.adapters["image"]
    side = image["patch_size"]
    depth = architecture.backbone["depth"]
    is_gated = architecture.backbone["block"]["mlp"] == "swiglu"
    grid = [image["image_size"] // side] * 2
    layers = {
        "backbone.norm": "layernorm",
        "head.classes": CLASSES,
        **{f"head.masks.{2 * i}": f"mask_head.fc{i + 1}" for i in range(3)},
    }
    for i in range(architecture.head["upscale"]):
        ours, theirs = f"head.upscale.{i}", f"upscale_block.block.{i}"
        layers |= {f"{ours}.up": f"{theirs}.conv1", f"{ours}.mix": f"{theirs}.conv2"}
        layers[f"{ours}.norm"] = f"{theirs}.layernorm2d"
    result = {
        "adapters.image.proj.weight": patch_matrix(
            f"{PATCHES}.weight", channels=image["in_channels"], height=side, width=side
        ),
        "adapters.image.proj.bias": copied(f"{PATCHES}.bias"),
        "adapters.image.pos_embed.weight": patch_positions(POSITIONS, grid),
        "fusion.pool.tokens": TensorSource(TOKENS, _joined, moves=True),
        **blocks(GATED if is_gated else BLOCK, prefix="layers.{i}", depth=depth),
        **linears(layers),
    }
    for i in range(depth):
        block, layer = f"backbone.blocks.{i}", f"layers.{i}"
        result[f"{block}.attn_out.factor"] = copied(f"{layer}.layer_scale1.lambda1")
        result[f"{block}.mlp_out.factor"] = copied(f"{layer}.layer_scale2.lambda1")
    return result


def _joined(first: Tensor, registers: Tensor, queries: Tensor) -> Tensor:
    """Return the class token, the registers and the queries (K, D)."""
    return torch.cat([first[0], registers[0], queries])


def _image_options(checkpoint: Checkpoint) -> Options:
    """Return the options of the image adapter.

    Semantic models divide a picture whose shorter side has the size of the model. The others fit a
    picture into this size and pad it.
    """
    kernel = checkpoint.tensors[f"{PATCHES}.weight"]
    processor = read_image_processor(checkpoint, "Eomt", kernel.shape[1], without_file={})
    size, model_size = processor.size, checkpoint.settings["image_size"]
    if any(side != model_size for side in size.values()) or "shortest_edge" not in size:
        hf.unsupported(
            checkpoint, f"pictures of the size {dict(size)} for a model of {model_size} pixels"
        )
    is_divided = bool(checkpoint.preprocessor.get("do_split_image"))
    return adapter_options(
        kernel,
        image_size=[model_size, model_size],
        resize={
            "mode": "cover" if is_divided else "pad",
            "interpolation": processor.interpolation,
        },
        normalize=processor.normalize,
    )


EOMT = Family(
    "EoMT",
    hf.is_type("eomt"),
    architecture,
    tensor_map,
    ignored=(PROBABILITIES, r"criterion\."),
)
