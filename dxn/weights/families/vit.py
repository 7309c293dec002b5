"""Vision transformers in the format of timm: ViT, DeiT and variants with other leading tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dxn.core.errors import UserError
from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import (
    LayerNames,
    blocks,
    halves_swapped,
    layer_scales,
    leading_tokens,
    linears,
    map_pooling,
    mean_of_classifiers,
)
from dxn.weights.family import Architecture, Classifier, Family, Options, TensorMap
from dxn.weights.image_processor import INTERPOLATIONS, adapter_options

BLOCK: LayerNames = {
    "attn_norm": "norm1",
    "attn.qkv": "attn.qkv",
    "attn.q_norm": "attn.q_norm",
    "attn.k_norm": "attn.k_norm",
    "attn.proj": "attn.proj",
    "mlp_norm": "norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
# Names of the leading tokens (the tokens before the patches), in timm's order.
LEADING = ("cls_token", "dist_token", "reg_token")
NORM_EPS = 1e-6  # of all layer norms; a constant in timm, which config.json does not contain
# timm's default mean and standard deviation of each channel, if config.json has none.
HALF = (0.5, 0.5, 0.5)
# The number of heads and the variant of GELU do not change the shape of any tensor, so they cannot
# be inferred from the weights. By default a head has 64 features. The exceptions are the widths and
# the prefixes of model names below.
HEADS_BY_DIM = {1152: 16, 1280: 16, 1408: 16, 1664: 16}
HEADS_BY_NAME = {
    "vit_base_patch16_gap_224": 16,
    "vit_giantopt_patch16": 16,
    "test_vit4": 3,
    "test_vit": 2,
}
# Prefixes of the names of models that use the tanh approximation of GELU.
TANH_GELU = (
    "vit_base_patch32_siglip",
    "vit_giantopt_patch16_siglip",
    "vit_large_patch16_siglip_512",
    "vit_large_patch16_siglip_gap_512",
    "vit_so400m_patch16_siglip",
)
LATENT = "attn_pool.latent"  # the probe of a pooling by attention
MAP_LAYERS = {
    "proj": "attn_pool.proj",
    "norm": "attn_pool.norm",
    "mlp.up": "attn_pool.mlp.fc1",
    "mlp.down": "attn_pool.mlp.fc2",
}


def matches(checkpoint: Checkpoint) -> bool:
    names = ("patch_embed.proj.weight", "pos_embed", "blocks.0.attn.qkv.weight")
    return all(name in checkpoint for name in names)


def architecture(checkpoint: Checkpoint) -> Architecture:
    tensors = checkpoint.tensors
    classes = checkpoint.num_rows("head.weight")
    names = dict(enumerate(settings_of(checkpoint).get("label_names") or ()))
    return Architecture(
        dim=len(tensors["patch_embed.proj.weight"]),
        adapters={"image": image_options(checkpoint)},
        backbone=backbone_options(checkpoint),
        fusion=fusion_options(checkpoint),
        head={"norm": True, "norm_eps": NORM_EPS} if "fc_norm.weight" in checkpoint else {},
        labels=hf.distinct_names(str(names.get(i, i)) for i in range(classes)) or None,
    )


def image_options(checkpoint: Checkpoint) -> Options:
    settings = settings_of(checkpoint)
    kernel = checkpoint.tensors["patch_embed.proj.weight"]
    _, channels, patch_size, width = kernel.shape
    if patch_size != width:
        raise UserError(
            f"weights: {checkpoint.source}: dxn supports only square patches, got {patch_size} by "
            f"{width} pixels"
        )
    interpolation = settings.get("interpolation", "bicubic")
    if interpolation not in INTERPOLATIONS.values():
        raise UserError(
            f"weights: {checkpoint.source}: dxn supports only the interpolations bilinear and "
            f"bicubic, got {interpolation!r}"
        )
    grid = grid_of(checkpoint)
    image_size = [side * patch_size for side in grid]
    input_size = settings.get("input_size")
    if isinstance(input_size, list):
        sides = [side for side in input_size[1:] if isinstance(side, int)]
        # The last pixels may be less than a patch, such as 384 pixels for 27 patches of 14.
        if [side // patch_size for side in sides] == [*grid]:
            image_size = sides
    return adapter_options(
        kernel,
        image_size=image_size,
        resize={
            "mode": resize_mode(checkpoint),
            # 0.9 is timm's default for a checkpoint without a pretrained_cfg.
            "crop_ratio": float(settings.get("crop_pct", 0.9)),
            "interpolation": interpolation,
            "pos_grid": list(grid),
        },
        normalize={
            "mean": list(settings.get("mean", HALF))[:channels],
            "std": list(settings.get("std", HALF))[:channels],
        },
    )


def backbone_options(checkpoint: Checkpoint) -> Options:
    tensors = checkpoint.tensors
    settings = settings_of(checkpoint)
    name = str(settings.get("architecture", ""))
    dim, hidden = tensors["blocks.0.mlp.fc2.weight"].shape
    # The first layer of a gated MLP has 2 * hidden outputs: values and gates.
    is_gated = len(tensors["blocks.0.mlp.fc1.weight"]) == 2 * hidden
    gelu = "gelu_tanh" if name.startswith(TANH_GELU) else "gelu"
    layer_scale = tensors.get("blocks.0.ls1.gamma")
    num_heads = settings.get("model_args", {}).get("num_heads")
    return {
        "depth": checkpoint.num_layers("blocks.{i}.norm1.weight"),
        "num_heads": num_heads or default_num_heads(name, dim),
        "block": {
            "mlp": "swiglu" if is_gated else gelu,
            "hidden_dim": hidden,
            "qk_norm": "blocks.0.attn.q_norm.weight" in checkpoint,
            # The initial value of layer scale, which is then overwritten by the checkpoint. The
            # mean is a reasonable initial value for a new model of the same architecture.
            "layer_scale": float(layer_scale.mean()) if layer_scale is not None else None,
        },
        "norm": {"eps": NORM_EPS, "final_norm": "norm.weight" in checkpoint},
    }


def fusion_options(checkpoint: Checkpoint) -> Options:
    """Return the options of the fusion: the pooling and the number of registers.

    With mean pooling, all leading tokens are registers.
    """
    leading = leading_names(checkpoint)
    count = num_leading(checkpoint)
    if LATENT in checkpoint and not leading and checkpoint.tensors[LATENT].shape[1] == 1:
        backbone = backbone_options(checkpoint)
        size = {"num_heads": backbone["num_heads"], "eps": NORM_EPS}
        size["hidden_dim"] = checkpoint.num_rows(f"{MAP_LAYERS['mlp.up']}.weight")
        return {"pool": "map", "map": {"mlp": backbone["block"]["mlp"], **size}}
    # A distilled DeiT has one classifier for each of its two leading tokens.
    if "dist_token" in leading:
        return {"pool": "leading_cat", "registers": count - 1}
    # timm uses mean pooling if the model has a norm after the pooling (fc_norm), or no class token.
    has_class_token = "cls_token" in leading and "fc_norm.weight" not in checkpoint
    pool = checkpoint.config.get("global_pool", "token" if has_class_token else "avg")
    if pool == "token":
        return {"pool": "cls", "registers": count - 1}
    if pool == "avg":
        return {"pool": "mean", "registers": count}
    raise UserError(
        f"weights: {checkpoint.source}: dxn supports only global_pool=token and global_pool=avg, "
        f"got {pool!r}"
    )


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    image = architecture.adapters["image"]
    depth = architecture.backbone["depth"]
    leading = leading_names(checkpoint)
    result = {
        **hf.patch_tensors(image, "patch_embed.proj", "pos_embed"),
        **layer_scales("blocks.{i}", "ls1.gamma", "ls2.gamma", depth),
        **blocks(BLOCK, prefix="blocks.{i}", depth=depth),
        **linears({"backbone.norm": "norm", "head.pre.norm": "fc_norm"}),
    }
    if architecture.backbone["block"]["mlp"] == "swiglu":
        for i in range(depth):
            for kind in ("weight", "bias"):
                gated = halves_swapped(f"blocks.{i}.mlp.fc1.{kind}")
                result[f"backbone.blocks.{i}.mlp.up.{kind}"] = gated
    if architecture.fusion["pool"] == "map":
        result |= map_pooling(
            LATENT,
            weights=["attn_pool.q.weight", "attn_pool.kv.weight"],
            biases=["attn_pool.q.bias", "attn_pool.kv.bias"],
            layers=MAP_LAYERS,
            num_heads=architecture.backbone["num_heads"],
        )
    if leading:
        tokens = leading_tokens(leading, "pos_embed", num_patches=math.prod(grid_of(checkpoint)))
        result["fusion.pool.tokens"] = tokens
    if "head_dist.weight" in checkpoint:
        return result | mean_of_classifiers("head", "head_dist")
    return result | linears({"head.out": "head"})


def classifier(checkpoint: Checkpoint, labels: Sequence[str]) -> Classifier:
    names: dict[str, Any] = {"num_classes": len(labels), "label_names": list(labels)}
    config = dict(names)
    # timm prefers the number of classes in these groups.
    if "pretrained_cfg" in checkpoint.config:
        config["pretrained_cfg"] = {**checkpoint.config["pretrained_cfg"], **names}
    if "num_classes" in checkpoint.config.get("model_args", {}):
        config["model_args"] = {**checkpoint.config["model_args"], "num_classes": len(labels)}
    tensors = {f"head.out.{kind}": f"head.{kind}" for kind in ("weight", "bias")}
    return Classifier(config, tensors)


def to_checkpoint(
    state: Mapping[str, Tensor], checkpoint: Checkpoint, architecture: Architecture
) -> dict[str, Tensor]:
    """Return the leading tokens, the position embeddings, and the attention of the pooling.

    dxn stores the sum of a leading token and its position embedding. The sum becomes the token, and
    the position embedding becomes zero.
    """
    positions = state["adapters.image.pos_embed.weight"].flatten(0, 1)[None]
    num_positions = checkpoint.tensors["pos_embed"].shape[1]
    num_zeros = num_positions - math.prod(grid_of(checkpoint))
    zeros = positions.new_zeros(1, num_zeros, positions.shape[2])
    result = {"pos_embed": torch.cat([zeros, positions], 1)}
    names = leading_names(checkpoint)
    if names:
        counts = [checkpoint.tensors[name].shape[1] for name in names]
        tokens = state["fusion.pool.tokens"].split(counts)
        result |= {name: token[None] for name, token in zip(names, tokens, strict=True)}
    if architecture.fusion["pool"] == "map":
        result |= split_scores(state)
    return result


def split_scores(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a probe, queries and keys whose products are the scores of a pooling by attention.

    dxn stores only the products. The probe becomes zero, and only the first feature of the query of
    a head is not zero, so that the key of a token is its score.
    """
    score = state["fusion.pool.map.score.weight"]
    num_heads, dim = score.shape
    query = score.new_zeros(num_heads, dim // num_heads)
    query[:, 0] = query.shape[1] ** 0.5
    keys = score.new_zeros(*query.shape, dim)
    keys[:, 0] = score
    values = [state[f"fusion.pool.map.value.{kind}"] for kind in ("weight", "bias")]
    return {
        LATENT: score.new_zeros(1, 1, dim),
        "attn_pool.q.weight": score.new_zeros(dim, dim),
        "attn_pool.q.bias": query.flatten(),
        "attn_pool.kv.weight": torch.cat([keys.flatten(0, 1), values[0]]),
        "attn_pool.kv.bias": torch.cat([score.new_zeros(dim), values[1]]),
    }


def settings_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the content of config.json, with the keys of pretrained_cfg at the top level."""
    return {**checkpoint.config, **checkpoint.config.get("pretrained_cfg", {})}


def default_num_heads(name: str, dim: int) -> int:
    """Return the number of heads of the timm model with this name and width."""
    for prefix, num_heads in HEADS_BY_NAME.items():
        if name.startswith(prefix):
            return num_heads
    return HEADS_BY_DIM.get(dim, dim // 64 or 1)


def leading_names(checkpoint: Checkpoint) -> list[str]:
    """Return the tensor names of the leading tokens, in the order of the tokens."""
    return [name for name in LEADING if name in checkpoint]


def num_leading(checkpoint: Checkpoint) -> int:
    """Return the number of leading tokens, which are before the patches."""
    return sum(checkpoint.tensors[name].shape[1] for name in leading_names(checkpoint))


def grid_of(checkpoint: Checkpoint) -> tuple[int, int]:
    """Return the height and width of the square grid of patches.

    Only some models have position embeddings for the leading tokens. The number of patches is
    therefore the number of position embeddings either with or without the leading tokens: the one
    that is a square number.

    Raises:
        UserError: If neither or both are square numbers.
    """
    positions = checkpoint.tensors["pos_embed"].shape[1]
    leading = num_leading(checkpoint)
    sides = {math.isqrt(n) for n in (positions, positions - leading) if _is_square(n)}
    if len(sides) == 1:
        side = sides.pop()
        return side, side
    which = "both" if sides else "neither"
    raise UserError(
        f"weights: {checkpoint.source}: cannot determine the grid of patches: the number of "
        f"position embeddings ({positions}) with or without the {leading} leading tokens "
        f"({positions - leading}) must be a square number, got {which}"
    )


def resize_mode(checkpoint: Checkpoint) -> str:
    """Return dxn's resize mode for timm's crop_mode."""
    mode = settings_of(checkpoint).get("crop_mode") or "center"
    if mode not in ("center", "squash"):
        raise UserError(
            f"weights: {checkpoint.source}: dxn supports only crop_mode=center and "
            f"crop_mode=squash, got {mode!r}"
        )
    return "stretch" if mode == "squash" else "crop"


def _is_square(number: int) -> bool:
    return number > 0 and math.isqrt(number) ** 2 == number


VIT = Family(
    "ViT of timm",
    matches,
    architecture,
    tensor_map,
    optional_biases=("attn.qkv.bias",),  # missing if timm's option qkv_bias is False
    classifier=classifier,
    to_checkpoint=to_checkpoint,
)
