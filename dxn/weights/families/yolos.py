"""YOLOS (arXiv:2106.00666) in the format of transformers: a ViT whose registers find objects."""

from __future__ import annotations

import torch
from torch import Tensor

from dxn.tokenize.patches import as_pair
from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import blocks, copied, linears, patch_matrix
from dxn.weights.family import Architecture, Family, Options, TensorMap, TensorSource
from dxn.weights.image_processor import adapter_options, read_image_processor

QUERIES = "embeddings.detection_tokens"
MIDDLE = "encoder.mid_position_embeddings"
NUM_LAYERS = 3  # of the classifier, and of the layers that find the boxes
CLASSES, BOXES = "class_labels_classifier.layers", "bbox_predictor.layers"
THRESHOLD = 0.5  # default of transformers


def matches(checkpoint: Checkpoint) -> bool:
    return hf.model_type(checkpoint) == "yolos"


def architecture(checkpoint: Checkpoint) -> Architecture:
    p = checkpoint.prefix(*hf.VIT_BASE)
    if f"{p}{MIDDLE}" in checkpoint:
        hf.unsupported(checkpoint, "position embeddings in every block; use hustvl/yolos-tiny")
    if f"{BOXES}.0.weight" not in checkpoint:
        hf.unsupported(checkpoint, "a YOLOS without its detection head")
    count = checkpoint.tensors[f"{p}{QUERIES}"].shape[1]
    kernel = checkpoint.tensors[f"{p}{hf.VIT_PATCHES}.weight"]
    # The last class is "no object".
    labels = hf.class_names(checkpoint, f"{CLASSES}.{NUM_LAYERS - 1}") or []
    return Architecture(
        dim=len(kernel),
        adapters={"image": _image_options(checkpoint, kernel)},
        backbone=hf.backbone_options(checkpoint, checkpoint.settings),
        fusion={"pool": "cls", "registers": count},
        head={"queries": count, "max_objects": count, "threshold": THRESHOLD},
        task="detect",
        # The usual size has no effect on queries.
        state={"labels": labels[:-1], "usual_size": [1.0, 1.0]},
    )


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*hf.VIT_BASE)
    image = architecture.adapters["image"]
    height, width = image["resize"]["pos_grid"]
    positions, side = f"{p}{hf.VIT_POSITIONS}", image["patch_size"]
    num_patches = height * width

    def patches(positions: Tensor) -> Tensor:
        return positions[0, 1 : 1 + num_patches].view(height, width, -1)

    def leading(token: Tensor, queries: Tensor, positions: Tensor) -> Tensor:
        # The positions are those of the class token, the patches and the queries.
        tokens = torch.cat([token, queries], 1)[0]
        return tokens + torch.cat([positions[0, :1], positions[0, 1 + num_patches :]])

    heads = {
        f"head.{ours}.{2 * i}": f"{theirs}.{i}"
        for ours, theirs in (("classes", CLASSES), ("boxes", BOXES))
        for i in range(NUM_LAYERS)
    }
    last = {
        f"head.boxes.{2 * NUM_LAYERS - 2}.{kind}": _rows_swapped(f"{BOXES}.{NUM_LAYERS - 1}.{kind}")
        for kind in ("weight", "bias")
    }
    return {
        "adapters.image.proj.weight": patch_matrix(
            f"{p}{hf.VIT_PATCHES}.weight", channels=image["in_channels"], height=side, width=side
        ),
        "adapters.image.proj.bias": copied(f"{p}{hf.VIT_PATCHES}.bias"),
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


def _image_options(checkpoint: Checkpoint, kernel: Tensor) -> Options:
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
    matches,
    architecture,
    tensor_map,
    ignored=(r"(\w+\.)?pooler\.",),
    optional_biases=hf.VIT_BIASES,
)
