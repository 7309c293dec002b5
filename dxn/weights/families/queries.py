"""YOLOS and EoMT in the format of transformers: ViTs whose queries find objects or masks.

The registers of YOLOS (arXiv:2106.00666) find objects. EoMT (arXiv:2503.19108) is a DINOv2 whose
last blocks have queries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dxn.tokenize.patches import as_pair
from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import LayerNames, blocks, layer_scales, linears
from dxn.weights.family import Architecture, Family, Options, TensorMap, TensorSource
from dxn.weights.image_processor import adapter_options, read_image_processor

QUERIES = "embeddings.detection_tokens"
MIDDLE = "encoder.mid_position_embeddings"
NUM_LAYERS = 3  # of the classifier, and of the layers that find the boxes
YOLOS_CLASSES, BOXES = "class_labels_classifier.layers", "bbox_predictor.layers"
THRESHOLD = 0.5  # default of transformers
EOMT_BLOCK: LayerNames = {
    "attn_norm": "norm1",
    "attn.qkv": tuple(f"attention.{name}_proj" for name in "qkv"),
    "attn.proj": "attention.out_proj",
    "mlp_norm": "norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
EOMT_GATED: LayerNames = {
    **EOMT_BLOCK,
    "mlp.up": ("mlp.up_proj", "mlp.gate_proj"),
    "mlp.down": "mlp.down_proj",
}
EOMT_TOKENS = ("embeddings.cls_token", "embeddings.register_tokens", "query.weight")
EOMT_POSITIONS = "embeddings.position_embeddings.weight"
EOMT_CLASSES = "class_predictor"
PROBABILITIES = "attn_mask_probs"  # of masked attention in each of the last blocks
WHITE = 255  # value of pixels without a class, in new masks


def yolos_architecture(checkpoint: Checkpoint) -> Architecture:
    p = checkpoint.prefix(*hf.VIT_BASE)
    if f"{p}{MIDDLE}" in checkpoint:
        hf.unsupported(checkpoint, "position embeddings in every block; use hustvl/yolos-tiny")
    if f"{BOXES}.0.weight" not in checkpoint:
        hf.unsupported(checkpoint, "a YOLOS without its detection head")
    count = checkpoint.tensors[f"{p}{QUERIES}"].shape[1]
    kernel = checkpoint.tensors[f"{p}{hf.VIT_PATCHES}.weight"]
    # The last class is "no object".
    labels = hf.class_names(checkpoint, f"{YOLOS_CLASSES}.{NUM_LAYERS - 1}") or []
    return Architecture(
        dim=len(kernel),
        adapters={"image": _yolos_image(checkpoint, kernel)},
        backbone=hf.backbone_options(checkpoint, checkpoint.settings),
        fusion={"pool": "cls", "registers": count},
        head={"queries": count, "max_objects": count, "threshold": THRESHOLD},
        task="detect",
        # The usual size has no effect on queries.
        state={"labels": labels[:-1], "usual_size": [1.0, 1.0]},
    )


def yolos_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*hf.VIT_BASE)
    image = architecture.adapters["image"]
    height, width = image["resize"]["pos_grid"]
    positions = f"{p}{hf.VIT_POSITIONS}"
    num_patches = height * width

    def patches(positions: Tensor) -> Tensor:
        return positions[0, 1 : 1 + num_patches].view(height, width, -1)

    def leading(token: Tensor, queries: Tensor, positions: Tensor) -> Tensor:
        # The positions are those of the class token, the patches and the queries.
        tokens = torch.cat([token, queries], 1)[0]
        return tokens + torch.cat([positions[0, :1], positions[0, 1 + num_patches :]])

    heads = {
        f"head.{ours}.{2 * i}": f"{theirs}.{i}"
        for ours, theirs in (("classes", YOLOS_CLASSES), ("boxes", BOXES))
        for i in range(NUM_LAYERS)
    }
    last = {
        f"head.boxes.{2 * NUM_LAYERS - 2}.{kind}": _rows_swapped(f"{BOXES}.{NUM_LAYERS - 1}.{kind}")
        for kind in ("weight", "bias")
    }
    return {
        **hf.patch_tensors(image, f"{p}{hf.VIT_PATCHES}", positions),
        "adapters.image.pos_embed.weight": TensorSource((positions,), patches, moves=True),
        "fusion.pool.tokens": TensorSource(
            (f"{p}embeddings.cls_token", f"{p}{QUERIES}", positions), leading
        ),
        **blocks(
            hf.VIT_BLOCK, prefix=p + "encoder.layer.{i}", depth=architecture.backbone["depth"]
        ),
        **linears({"backbone.norm": f"{p}layernorm", **heads}),
        **last,
    }


def _rows_swapped(name: str) -> TensorSource:
    """Exchange the rows of the horizontal and the vertical axis: dxn has the vertical one first."""

    def swap(t: Tensor) -> Tensor:
        return t[[1, 0, 3, 2]]

    return TensorSource((name,), swap, lambda t: (swap(t),), moves=True)


def _yolos_image(checkpoint: Checkpoint, kernel: Tensor) -> Options:
    """Return the options of the image adapter.

    transformers scales the shorter side of a picture to a length, unless the longer side exceeds
    another one. dxn shrinks pictures whose longer side exceeds that one.
    """
    _, channels, patch_size, _ = kernel.shape
    image_size = checkpoint.settings["image_size"]
    sides = as_pair(image_size, name="image_size", axes="height, width")
    grid = [side // patch_size for side in sides]
    height, width = (side * patch_size for side in grid)
    processor = read_image_processor(
        checkpoint, "Yolos", channels, without_file={"size": {"height": height, "width": width}}
    )
    size = processor.size
    keeps_ratio = "longest_edge" in size
    if not keeps_ratio and "height" not in size:
        hf.unsupported(checkpoint, "pictures whose longer side is not limited")
    return adapter_options(
        kernel,
        image_size=[size["longest_edge"]] * 2 if keeps_ratio else [size["height"], size["width"]],
        resize={
            "mode": "within" if keeps_ratio else "stretch",
            "interpolation": processor.interpolation,
            "pos_grid": grid,
            "pos_antialias": False,
        },
        normalize=processor.normalize,
    )


YOLOS = Family(
    "YOLOS",
    hf.is_type("yolos"),
    yolos_architecture,
    yolos_tensor_map,
    heads=("ObjectDetection",),
    ignored=(r"(\w+\.)?pooler\.",),
    optional_biases=hf.VIT_BIASES,
)


def eomt_architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    masked = checkpoint.tensors.get(PROBABILITIES)
    if masked is not None and (masked > 0).any():
        hf.unsupported(checkpoint, f"an unfinished training, whose {PROBABILITIES} are not all 0")
    if hf.activation(checkpoint, config) != "gelu":
        hf.unsupported(checkpoint, f"hidden_act={config['hidden_act']!r}")
    is_gated = bool(config.get("use_swiglu_ffn"))
    down = "down_proj" if is_gated else "fc2"
    dim, hidden = checkpoint.tensors[f"layers.0.mlp.{down}.weight"].shape
    registers, queries = (checkpoint.tensors[name].shape[-2] for name in EOMT_TOKENS[1:])
    labels = (hf.class_names(checkpoint, EOMT_CLASSES) or [])[:-1]  # the last class is no segment
    image = _eomt_image(checkpoint)
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


def eomt_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    image = architecture.adapters["image"]
    depth = architecture.backbone["depth"]
    is_gated = architecture.backbone["block"]["mlp"] == "swiglu"
    grid = [image["image_size"] // image["patch_size"]] * 2
    layers = {
        "backbone.norm": "layernorm",
        "head.classes": EOMT_CLASSES,
        **{f"head.masks.{2 * i}": f"mask_head.fc{i + 1}" for i in range(3)},
    }
    for i in range(architecture.head["upscale"]):
        ours, theirs = f"head.upscale.{i}", f"upscale_block.block.{i}"
        layers |= {f"{ours}.up": f"{theirs}.conv1", f"{ours}.mix": f"{theirs}.conv2"}
        layers[f"{ours}.norm"] = f"{theirs}.layernorm2d"

    def tokens(first: Tensor, registers: Tensor, queries: Tensor) -> Tensor:
        return torch.cat([first[0], registers[0], queries])

    return {
        **hf.patch_tensors(image, hf.VIT_PATCHES, EOMT_POSITIONS, grid),
        "fusion.pool.tokens": TensorSource(EOMT_TOKENS, tokens, moves=True),
        **blocks(EOMT_GATED if is_gated else EOMT_BLOCK, prefix="layers.{i}", depth=depth),
        **layer_scales("layers.{i}", "layer_scale1.lambda1", "layer_scale2.lambda1", depth),
        **linears(layers),
    }


def _eomt_image(checkpoint: Checkpoint) -> Options:
    """Return the options of the image adapter.

    Semantic models divide a picture whose shorter side has the size of the model. The others fit a
    picture into this size and pad it.
    """
    kernel = checkpoint.tensors[f"{hf.VIT_PATCHES}.weight"]
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
    eomt_architecture,
    eomt_tensor_map,
    heads=("UniversalSegmentation",),
    ignored=(PROBABILITIES, r"criterion\."),
)
