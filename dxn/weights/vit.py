"""timm's vision transformers: ViT, DeiT and their kin, with class, distillation and register tokens or none."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from dxn.errors import UserError
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.family import Family, Parts, Table, Take, both, layers, patches, same, swapped

BLOCK = {
    "attn_norm": "norm1",
    "attn.qkv": "attn.qkv",
    "attn.q_norm": "attn.q_norm",
    "attn.k_norm": "attn.k_norm",
    "attn.proj": "attn.proj",
    "mlp_norm": "norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
HALF = (0.5, 0.5, 0.5)  # timm's mean and deviation where a checkpoint does not say
# What no tensor shows: heads, of 64 features but in the widest models and a few others, and the kind of GELU.
WIDE = {1152: 16, 1280: 16, 1408: 16, 1664: 16}
HEADS = {"vit_base_patch16_gap_224": 16, "vit_giantopt_patch16": 16, "test_vit4": 3, "test_vit": 2}
TANH = (
    "vit_base_patch32_siglip_gap",
    "vit_giantopt_patch16_siglip_gap",
    "vit_large_patch16_siglip_gap_512",
    "vit_so400m_patch16_siglip_gap",
)


def knows(found: Checkpoint) -> bool:
    return all(name in found for name in ("patch_embed.proj.weight", "pos_embed", "blocks.0.attn.qkv.weight"))


def parts(found: Checkpoint) -> Parts:
    t, settings = found.tensors, {**found.config, **found.config.get("pretrained_cfg", {})}
    dim, channels, patch, across = t["patch_embed.proj.weight"].shape
    if patch != across:
        raise UserError(
            f"weights: {found.source}: patches of {patch} by {across} pixels; only square ones can be taken"
        )
    leading, name = leading_names(found), str(settings.get("architecture", ""))
    grid = grid_of(found, leading)
    size = [side * patch for side in grid]
    depth, hidden = found.count("blocks.{i}.norm1.weight"), t["blocks.0.mlp.fc2.weight"].shape[1]
    gated = t["blocks.0.mlp.fc1.weight"].shape[0] == 2 * hidden
    scale = t.get("blocks.0.ls1.gamma")
    head = {"norm": True, "norm_eps": 1e-6} if "fc_norm.weight" in found else {}
    classes = t["head.weight"].shape[0] if "head.weight" in found else 0
    return Parts(
        dim=dim,
        adapters={
            "image": {
                "patch_size": patch,
                "image_size": size[0] if size[0] == size[1] else size,
                "in_channels": channels,
                "resize": _resize(found, settings.get("crop_mode") or "center"),
                "crop_share": float(settings.get("crop_pct", 0.9)),
                "interpolation": _interpolation(settings.get("interpolation", "bicubic")),
                "mean": list(settings.get("mean", HALF))[:channels],
                "std": list(settings.get("std", HALF))[:channels],
                "position": "learned",
            }
        },
        backbone={
            "depth": depth,
            "num_heads": settings.get("model_args", {}).get("num_heads") or num_heads(name, dim),
            "mlp_ratio": hidden / dim * (1.5 if gated else 1),
            "mlp": "swiglu" if gated else "gelu_tanh" if name.startswith(TANH) else "gelu",
            "norm_eps": 1e-6,
            "final_norm": "norm.weight" in found,
            "qk_norm": "blocks.0.attn.q_norm.weight" in found,
            "layer_scale": float(scale.mean()) if scale is not None else None,
        },
        fusion=_fusion(found, leading),
        head=head,
        labels=list(settings.get("label_names") or map(str, range(classes))) if classes else None,
    )


def table(found: Checkpoint, parts: Parts) -> Table:
    image, depth = parts.adapters["image"], parts.backbone["depth"]
    leading = leading_names(found)
    shape = {"channels": image["in_channels"], "height": image["patch_size"], "width": image["patch_size"]}
    grid = grid_of(found, leading)
    result = {
        "adapters.image.proj.weight": patches("patch_embed.proj.weight", **shape),
        "adapters.image.proj.bias": same("patch_embed.proj.bias"),
        "adapters.image.position.table": Take(("pos_embed",), lambda t: t[0, -math.prod(grid) :].view(*grid, -1)),
        **layers(BLOCK, ours="backbone.blocks.{i}", theirs="blocks.{i}", depth=depth),
        **both({"backbone.norm": "norm", "head.neck.norm": "fc_norm"}),
    }
    for i in range(depth):
        result[f"backbone.blocks.{i}.attn_scale.factor"] = same(f"blocks.{i}.ls1.gamma")
        result[f"backbone.blocks.{i}.mlp_scale.factor"] = same(f"blocks.{i}.ls2.gamma")
        if parts.backbone["mlp"] == "swiglu":
            for kind in ("weight", "bias"):
                result[f"backbone.blocks.{i}.mlp.up.{kind}"] = swapped(f"blocks.{i}.mlp.fc1.{kind}")
    if leading:
        result["fusion.pool.tokens"] = Take((*leading, "pos_embed"), lambda *ts: with_places(ts[:-1], ts[-1], grid))
    if "head_dist.weight" in found:
        result["head.out.weight"] = Take(("head.weight", "head_dist.weight"), lambda a, b: torch.cat([a, b], 1) / 2)
        result["head.out.bias"] = Take(("head.bias", "head_dist.bias"), lambda a, b: (a + b) / 2)
    else:
        result |= both({"head.out": "head"})
    return result


def back(ours: Mapping[str, Tensor], found: Checkpoint, parts: Parts) -> dict[str, Tensor]:
    """Leading tokens and places. A place was added to each token, which stands for both from now on."""
    places = ours["adapters.image.position.table"].flatten(0, 1)[None]
    names, rest = leading_names(found), ours.get("fusion.pool.tokens")
    own = found.tensors["pos_embed"].shape[1] - math.prod(grid_of(found, names))
    result = {"pos_embed": torch.cat([places.new_zeros(1, own, places.shape[2]), places], 1)}
    for name in names:
        assert rest is not None
        count = found.tensors[name].shape[1]
        result[name], rest = rest[None, :count], rest[count:]
    if "head_dist.weight" in found:
        first, second = ours["head.out.weight"].chunk(2, 1)
        bias = ours["head.out.bias"]
        result |= {"head.weight": 2 * first, "head_dist.weight": 2 * second, "head.bias": bias, "head_dist.bias": bias}
    return result


def num_heads(name: str, dim: int) -> int:
    """Of timm's model of this name and width."""
    return next((heads for known, heads in HEADS.items() if name.startswith(known)), WIDE.get(dim, dim // 64 or 1))


def leading_names(found: Checkpoint) -> list[str]:
    """Their tensors of tokens before the patches, in order."""
    return [name for name in ("cls_token", "dist_token", "reg_token") if name in found]


def grid_of(found: Checkpoint, leading: list[str]) -> tuple[int, int]:
    """Height and width of a square grid of patches, whose places come after some for leading tokens, or alone."""
    positions = found.tensors["pos_embed"].shape[1]
    own = sum(found.tensors[name].shape[1] for name in leading)
    sides = {math.isqrt(n): n for n in (positions, positions - own) if n > 0 and math.isqrt(n) ** 2 == n}
    if len(sides) == 1:
        side = next(iter(sides))
        return side, side
    what = f"{positions} places, {own} of them for leading tokens or none,"
    if sides:
        raise UserError(f"weights: {found.source}: {what} may be a square of patches either way")
    raise UserError(f"weights: {found.source}: {what} are not a square of patches")


def with_places(tokens: tuple[Tensor, ...], places: Tensor, grid: tuple[int, int]) -> Tensor:
    """(K, D): leading tokens (1, k, D) each, with the places (1, K + N, D) that stand before the grid's added."""
    leading = torch.cat([t.reshape(-1, t.shape[-1]) for t in tokens])
    own = places.reshape(-1, places.shape[-1])[: -math.prod(grid)]
    return leading + torch.cat([own, own.new_zeros(len(leading) - len(own), own.shape[1])])


def _fusion(found: Checkpoint, leading: list[str]) -> dict:
    """Where a mean is asked for, what stands before the patches is all registers."""
    count = sum(found.tensors[name].shape[1] for name in leading)
    if "dist_token" in leading:
        return {"pool": "leading_cat", "registers": count - 1}
    default = "avg" if "fc_norm.weight" in found or "cls_token" not in leading else "token"
    pool = found.config.get("global_pool", default)
    if pool not in ("token", "avg"):
        raise UserError(f"weights: {found.source}: pools by {pool!r}, which dxn cannot")
    return {"pool": "cls", "registers": count - 1} if pool == "token" else {"pool": "mean", "registers": count}


def _resize(found: Checkpoint, mode: str) -> str:
    """Our name of how timm makes a picture square."""
    if mode not in ("center", "squash"):
        raise UserError(f"weights: {found.source}: pictures are cropped by {mode}, which dxn cannot")
    return "stretch" if mode == "squash" else "crop"


def _interpolation(name: str) -> str:
    if name not in ("bilinear", "bicubic"):
        raise UserError(f"weights: pictures are resized by {name}, which dxn cannot; only bilinear and bicubic")
    return name


VIT = Family("ViT of timm", knows, parts, table, no_bias=("attn.qkv.bias",), back=back)
