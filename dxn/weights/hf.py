"""What several families of the transformers library have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from dxn.errors import UserError
from dxn.weights.checkpoint import Checkpoint

# The block of ViT, DeiT and AST as their checkpoints name it.
VIT_BLOCK: dict[str, str | tuple[str, ...]] = {
    "attn_norm": "layernorm_before",
    "attn.qkv": tuple(f"attention.attention.{part}" for part in ("query", "key", "value")),
    "attn.proj": "attention.output.dense",
    "mlp_norm": "layernorm_after",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
}
# The block of CLIP and of Whisper's encoder.
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
MLPS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu"}
RESAMPLE = {2: "bilinear", 3: "bicubic"}  # PIL's numbers


def model_type(found: Checkpoint) -> str:
    """Which model config.json says it is."""
    return str(found.config.get("model_type", ""))


def prefix(found: Checkpoint, inner: str, name: str) -> str:
    """`inner.` where a model with a head holds the bare one under that name, nothing where it is the bare one."""
    return f"{inner}." if f"{inner}.{name}" in found else ""


def mlp(found: Checkpoint, config: Mapping[str, Any], key: str = "hidden_act") -> str:
    """Our name of the activation."""
    name = str(config.get(key, "gelu"))
    if name not in MLPS:
        raise UserError(f"weights: {found.source}: its activation is {name!r}, which dxn does not have")
    return MLPS[name]


def labels(found: Checkpoint, count: int) -> list[str]:
    """The classes' names by their numbers; LABEL_0 and so on where config.json has none."""
    named = found.config.get("id2label") or {}
    return [str(named.get(str(i), f"LABEL_{i}")) for i in range(count)]


def image_settings(
    found: Checkpoint, size: int, *, mean: list[float], std: list[float], shortest: bool = False
) -> dict[str, Any]:
    """An image adapter's preprocessing from preprocessor_config.json, or as the family usually has it.

    shortest: whether the family resizes the shorter side and crops, where its file does not say or gives one number.
    """
    p = found.preprocessor
    if not p:
        return {"resize": "crop" if shortest else "stretch", "image_size": size, "mean": mean, "std": std}
    resample = p.get("resample", 2)
    if resample not in RESAMPLE:
        raise UserError(f"weights: {found.source}: pictures are resized by PIL's filter {resample}, which dxn cannot")
    asked, crop = p.get("size", size), p.get("crop_size", size)
    if isinstance(asked, Mapping):
        shortest = "shortest_edge" in asked
        asked = asked.get("shortest_edge", asked.get("height", size))
    target = asked
    if p.get("do_center_crop", shortest):
        target = crop.get("height", size) if isinstance(crop, Mapping) else crop
    elif shortest:
        refuse(found, "pictures that keep their shape and are not cropped")
    if target > asked:
        refuse(found, f"a crop of {target} pixels from pictures of {asked}, filled up with black")
    share = target / asked
    if math.floor(target / share) < asked:  # as the adapter finds back what it resizes to
        share = math.nextafter(share, 0)
    return {
        "resize": "crop" if shortest else "stretch",
        "crop_share": share,
        "image_size": target,
        "interpolation": RESAMPLE[resample],
        "mean": list(p.get("image_mean", mean)) if p.get("do_normalize", True) else [0.0] * len(mean),
        "std": list(p.get("image_std", std)) if p.get("do_normalize", True) else [1.0] * len(std),
    }


def side(found: Checkpoint, count: int) -> int:
    """Patches along each side of a square of so many."""
    if math.isqrt(count) ** 2 != count:
        refuse(found, f"{count} patches that are no square")
    return math.isqrt(count)


def refuse(found: Checkpoint, what: str) -> NoReturn:
    """UserError: what this checkpoint has and dxn does not."""
    raise UserError(f"weights: {found.source}: {what}, which dxn does not have")
