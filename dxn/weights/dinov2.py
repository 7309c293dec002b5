"""DINOv2, with registers or without, as the transformers library keeps it."""

from __future__ import annotations

from dataclasses import replace

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.family import Family, Parts, Table, Take, both, layers, patches, same, swapped
from dxn.weights.vit import with_places

BLOCK: dict[str, str | tuple[str, ...]] = {
    **hf.VIT_BLOCK,
    "attn_norm": "norm1",
    "mlp_norm": "norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # of ImageNet


def knows(found: Checkpoint) -> bool:
    return hf.model_type(found) == "dinov2"


def knows_registers(found: Checkpoint) -> bool:
    return hf.model_type(found) == "dinov2_with_registers"


def parts(found: Checkpoint) -> Parts:
    c, t, p = found.config, found.tensors, base(found)
    dim, channels, patch, _ = t[f"{p}embeddings.patch_embeddings.projection.weight"].shape
    registers = t.get(f"{p}embeddings.register_tokens")
    gated = bool(c.get("use_swiglu_ffn"))
    hidden = t[f"{p}encoder.layer.0.mlp.{'weights_out' if gated else 'fc2'}.weight"].shape[1]
    classes = len(t["classifier.weight"]) if "classifier.weight" in found else 0
    return Parts(
        dim=dim,
        adapters={
            "image": {
                "interpolation": "bicubic",
                **hf.image_settings(found, c["image_size"], mean=MEAN, std=STD, shortest=True),
                # Trained last at image_size, used at what the preprocessor says; the places are interpolated.
                "patch_size": patch,
                "in_channels": channels,
                "position": "learned",
            }
        },
        backbone={
            "depth": c["num_hidden_layers"],
            "num_heads": c["num_attention_heads"],
            "mlp_ratio": hidden / dim * (1.5 if gated else 1),
            "mlp": "swiglu" if gated else hf.mlp(found, c),
            "norm_eps": c["layer_norm_eps"],
            "layer_scale": float(c.get("layerscale_value", 1.0)),
        },
        fusion={
            "pool": "cls_mean" if classes else "cls",
            "registers": registers.shape[1] if registers is not None else 0,
        },
        labels=hf.labels(found, classes) if classes else None,
    )


def table(found: Checkpoint, parts: Parts) -> Table:
    p, image = base(found), parts.adapters["image"]
    places = f"{p}embeddings.position_embeddings"
    side = hf.side(found, found.tensors[places].shape[1] - 1)
    shape = {"channels": image["in_channels"], "height": image["patch_size"], "width": image["patch_size"]}
    leading = [f"{p}embeddings.{n}" for n in ("cls_token", "register_tokens") if f"{p}embeddings.{n}" in found]
    result = {
        "adapters.image.proj.weight": patches(f"{p}embeddings.patch_embeddings.projection.weight", **shape),
        "adapters.image.proj.bias": same(f"{p}embeddings.patch_embeddings.projection.bias"),
        "adapters.image.position.table": Take((places,), lambda t: t[0, 1:].view(side, side, -1)),
        "fusion.pool.tokens": Take((*leading, places), lambda *ts: with_places(ts[:-1], ts[-1], (side, side))),
        **layers(BLOCK, ours="backbone.blocks.{i}", theirs=p + "encoder.layer.{i}", depth=parts.backbone["depth"]),
        **both({"backbone.norm": f"{p}layernorm", "head.out": "classifier"}),
    }
    for i in range(parts.backbone["depth"]):
        ours, theirs = f"backbone.blocks.{i}", f"{p}encoder.layer.{i}"
        result[f"{ours}.attn_scale.factor"] = same(f"{theirs}.layer_scale1.lambda1")
        result[f"{ours}.mlp_scale.factor"] = same(f"{theirs}.layer_scale2.lambda1")
        if parts.backbone["mlp"] == "swiglu":
            for kind in ("weight", "bias"):
                result[f"{ours}.mlp.up.{kind}"] = swapped(f"{theirs}.mlp.weights_in.{kind}")
                result[f"{ours}.mlp.down.{kind}"] = same(f"{theirs}.mlp.weights_out.{kind}")
    return result


def base(found: Checkpoint) -> str:
    """The bare model's prefix, where there is a head."""
    return hf.prefix(found, hf.model_type(found), "embeddings.cls_token")


DINOV2 = Family(
    "DINOv2",
    knows,
    parts,
    table,
    ignored=(r"(\w+\.)?embeddings\.mask_token",),
    no_bias=("query.bias", "key.bias", "value.bias"),
    antialias=False,
)
# The model with registers smooths the places that it interpolates.
DINOV2_REGISTERS = replace(DINOV2, name="DINOv2 with registers", knows=knows_registers, antialias=True)
