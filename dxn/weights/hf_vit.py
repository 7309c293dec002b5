"""ViT and DeiT as the transformers library keeps them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.family import Family, Parts, Table, Take, both, layers, patches, same
from dxn.weights.vit import with_places

HALF = [0.5, 0.5, 0.5]


def knows(found: Checkpoint) -> bool:
    return hf.model_type(found) in ("vit", "deit")


def parts(found: Checkpoint) -> Parts:
    c, t, p = found.config, found.tensors, base(found)
    dim, channels, patch, _ = t[f"{p}embeddings.patch_embeddings.projection.weight"].shape
    taught = f"{p}embeddings.distillation_token" in found
    two = "distillation_classifier.weight" in found
    classes = next((len(t[n]) for n in ("classifier.weight", "cls_classifier.weight") if n in found), 0)
    side = hf.side(found, t[f"{p}embeddings.position_embeddings"].shape[1] - 1 - taught)
    return Parts(
        dim=dim,
        adapters={
            "image": {
                **hf.image_settings(found, c["image_size"], mean=HALF[:channels], std=HALF[:channels]),
                "image_size": side * patch,
                "patch_size": patch,
                "in_channels": channels,
                "position": "learned",
            }
        },
        backbone={
            "depth": c["num_hidden_layers"],
            "num_heads": c["num_attention_heads"],
            "mlp_ratio": c["intermediate_size"] / dim,
            "mlp": hf.mlp(found, c),
            "norm_eps": c["layer_norm_eps"],
        },
        fusion={"pool": "leading_cat" if two else "cls", "registers": int(taught)},
        labels=hf.labels(found, classes) if classes else None,
    )


def table(found: Checkpoint, parts: Parts) -> Table:
    p, image = base(found), parts.adapters["image"]
    side = image["image_size"] // image["patch_size"]
    shape = {"channels": image["in_channels"], "height": image["patch_size"], "width": image["patch_size"]}
    places = f"{p}embeddings.position_embeddings"
    leading = [f"{p}embeddings.{n}" for n in ("cls_token", "distillation_token") if f"{p}embeddings.{n}" in found]
    result = {
        "adapters.image.proj.weight": patches(f"{p}embeddings.patch_embeddings.projection.weight", **shape),
        "adapters.image.proj.bias": same(f"{p}embeddings.patch_embeddings.projection.bias"),
        "adapters.image.position.table": Take((places,), lambda t: t[0, -side * side :].view(side, side, -1)),
        "fusion.pool.tokens": Take((*leading, places), lambda *ts: with_places(ts[:-1], ts[-1], (side, side))),
        **layers(
            hf.VIT_BLOCK,
            ours="backbone.blocks.{i}",
            theirs=p + "encoder.layer.{i}",
            depth=parts.backbone["depth"],
        ),
        **both({"backbone.norm": f"{p}layernorm", "head.out": "classifier"}),
    }
    if "distillation_classifier.weight" in found:
        names = ("cls_classifier", "distillation_classifier")
        result["head.out.weight"] = Take(tuple(f"{n}.weight" for n in names), lambda a, b: torch.cat([a, b], 1) / 2)
        result["head.out.bias"] = Take(tuple(f"{n}.bias" for n in names), lambda a, b: (a + b) / 2)
    return result


def back(ours: Mapping[str, Tensor], found: Checkpoint, parts: Parts) -> dict[str, Tensor]:
    """Leading tokens and places, added to each other as they are here; and the two heads of a taught DeiT."""
    p, tokens = base(found), ours["fusion.pool.tokens"]
    places = ours["adapters.image.position.table"].flatten(0, 1)
    result = {
        f"{p}embeddings.cls_token": tokens[None, :1],
        f"{p}embeddings.position_embeddings": torch.cat([torch.zeros_like(tokens), places])[None],
    }
    if len(tokens) > 1:
        result[f"{p}embeddings.distillation_token"] = tokens[None, 1:]
    if parts.fusion["pool"] == "leading_cat" and "head.out.weight" in ours:
        first, second = ours["head.out.weight"].chunk(2, 1)
        for name, weight in (("cls_classifier", first), ("distillation_classifier", second)):
            result |= {f"{name}.weight": 2 * weight, f"{name}.bias": ours["head.out.bias"]}
    return result


def base(found: Checkpoint) -> str:
    """vit. or deit., where there is a head."""
    return hf.prefix(found, hf.model_type(found), "embeddings.cls_token")


HF_VIT = Family(
    "ViT of transformers",
    knows,
    parts,
    table,
    ignored=(r"(\w+\.)?pooler\.", r"(\w+\.)?embeddings\.mask_token"),
    no_bias=("query.bias", "key.bias", "value.bias"),
    antialias=False,
    back=back,
)
