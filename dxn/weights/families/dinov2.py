"""DINOv2 (arXiv:2304.07193) in the format of transformers, optionally with registers.

Registers are described in arXiv:2309.16588.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import (
    LayerNames,
    blocks,
    copied,
    halves_swapped,
)
from dxn.weights.family import Architecture, Classifier, Family, TensorMap
from dxn.weights.image_processor import IMAGENET, image_options

BLOCK: LayerNames = {
    **hf.VIT_BLOCK,
    "attn_norm": "norm1",
    "mlp_norm": "norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
WITH_REGISTERS = "dinov2_with_registers"  # model_type


def architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    p = checkpoint.prefix(*hf.VIT_BASE)
    labels = hf.class_names(checkpoint, "classifier")
    registers = checkpoint.tensors.get(f"{p}embeddings.register_tokens")
    # The library rounds the hidden width of a gated MLP, so read it from the weight.
    is_gated = bool(config.get("use_swiglu_ffn"))
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
                "mlp": "swiglu" if is_gated else hf.activation(checkpoint, config),
                "hidden_dim": hidden,
                "layer_scale": float(config["layerscale_value"]),
            },
            "norm": {"eps": config["layer_norm_eps"]},
        },
        fusion={
            # The classifier's input is the class token concatenated with the mean of the patches.
            "pool": "cls_mean" if labels else "cls",
            "registers": registers.shape[1] if registers is not None else 0,
        },
        labels=labels,
    )


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*hf.VIT_BASE)
    image = architecture.adapters["image"]
    depth = architecture.backbone["depth"]
    registers = f"{p}embeddings.register_tokens"
    leading = [f"{p}embeddings.cls_token", *([registers] if registers in checkpoint else [])]
    result = {
        **hf.vit_tensors(checkpoint, image, leading),
        **blocks(BLOCK, prefix=p + "encoder.layer.{i}", depth=depth),
    }
    for i in range(depth):
        block = f"backbone.blocks.{i}"
        layer = f"{p}encoder.layer.{i}"
        result[f"{block}.attn_out.factor"] = copied(f"{layer}.layer_scale1.lambda1")
        result[f"{block}.mlp_out.factor"] = copied(f"{layer}.layer_scale2.lambda1")
        if architecture.backbone["block"]["mlp"] == "swiglu":
            for kind in ("weight", "bias"):
                gated = halves_swapped(f"{layer}.mlp.weights_in.{kind}")
                result[f"{block}.mlp.up.{kind}"] = gated
                result[f"{block}.mlp.down.{kind}"] = copied(f"{layer}.mlp.weights_out.{kind}")
    return result


def classifier(checkpoint: Checkpoint, labels: Sequence[str]) -> Classifier:
    name = "Dinov2WithRegisters" if hf.model_type(checkpoint) == WITH_REGISTERS else "Dinov2"
    prefix = f"{hf.model_type(checkpoint)}."
    layers = {"head.out": "classifier"}
    return hf.classifier(f"{name}ForImageClassification", labels, layers, prefix=prefix)


def to_checkpoint(
    state: Mapping[str, Tensor], checkpoint: Checkpoint, architecture: Architecture
) -> dict[str, Tensor]:
    """Return the leading tokens and the position embeddings."""
    p = f"{checkpoint.prefix(*hf.VIT_BASE)}embeddings."
    tokens = state["fusion.pool.tokens"]
    # Registers have no position embeddings.
    positions = hf.vit_positions(state, 1)
    result = {f"{p}cls_token": tokens[None, :1], f"{p}position_embeddings": positions}
    if f"{p}register_tokens" in checkpoint:
        result[f"{p}register_tokens"] = tokens[None, 1:]
    # The classifier does not use the mask token, but its class has one.
    mask_token = checkpoint.tensors.get(f"{p}mask_token")
    return result if mask_token is None else {**result, f"{p}mask_token": mask_token}


DINOV2 = Family(
    "DINOv2",
    hf.is_type("dinov2"),
    architecture,
    tensor_map,
    ignored=(r"(\w+\.)?embeddings\.mask_token",),
    optional_biases=hf.VIT_BIASES,
    classifier=classifier,
    to_checkpoint=to_checkpoint,
)
DINOV2_REGISTERS = replace(DINOV2, name="DINOv2 with registers", matches=hf.is_type(WITH_REGISTERS))
