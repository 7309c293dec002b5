"""ModernBERT (arXiv:2412.13663): rotary places, windows in two blocks of three, gated mlps, no biases."""

from __future__ import annotations

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.family import Family, Parts, Table, both, layers, same, swapped

BLOCK: dict[str, str | tuple[str, ...]] = {
    "attn_norm": "attn_norm",
    "attn.qkv": "attn.Wqkv",
    "attn.proj": "attn.Wo",
    "mlp_norm": "mlp_norm",
    "mlp.down": "mlp.Wo",
}


def knows(found: Checkpoint) -> bool:
    return hf.model_type(found) == "modernbert"


def parts(found: Checkpoint) -> Parts:
    c = found.config
    if c.get("attention_bias") or c.get("mlp_bias") or c.get("norm_bias"):
        hf.refuse(found, "a ModernBERT with biases")
    if hf.mlp(found, c, "hidden_activation") != "gelu":
        hf.refuse(found, "a gate other than GELU")
    rope = c.get("rope_parameters") or {}
    wide = rope.get("full_attention", {}).get("rope_theta", c.get("global_rope_theta", 160000.0))
    near = rope.get("sliding_attention", {}).get("rope_theta", c.get("local_rope_theta", 10000.0))
    kinds = c.get("layer_types") or []
    every = c.get("global_attn_every_n_layers") or next((i for i, k in enumerate(kinds) if i and k[0] == "f"), 3)
    if any((kind[0] == "f") != (i % every == 0) for i, kind in enumerate(kinds)):
        hf.refuse(found, f"blocks that see all at irregular distances: {', '.join(kinds)}")
    classes = len(found.tensors["classifier.weight"]) if "classifier.weight" in found else 0
    head = {"hidden": hf.mlp(found, c, "classifier_activation"), "norm": True, "norm_eps": c["norm_eps"]}
    return Parts(
        dim=c["hidden_size"],
        adapters={
            "text": {
                "special_tokens": True,
                "max_len": c["max_position_embeddings"],
                "position": "none",
                "norm": True,
                "norm_eps": c["norm_eps"],
                "norm_bias": False,
            }
        },
        backbone={
            "depth": c["num_hidden_layers"],
            "num_heads": c["num_attention_heads"],
            "mlp_ratio": c["intermediate_size"] / c["hidden_size"] * 1.5,
            "mlp": "geglu",
            "norm_eps": c["norm_eps"],
            "first_norm": False,
            "bias": False,
            "position": "rotary",
            "rotary_base": float(wide),
            "window": c["local_attention"] // 2,
            "global_every": every,
            "window_base": float(near),
        },
        fusion={"pool": "mean" if c.get("classifier_pooling") == "mean" else "first"},
        head=head if "head.dense.weight" in found else {},
        labels=hf.labels(found, classes) if classes else None,
    )


def table(found: Checkpoint, parts: Parts) -> Table:
    p, depth = hf.prefix(found, "model", "embeddings.tok_embeddings.weight"), parts.backbone["depth"]
    return {
        "adapters.text.table.weight": same(f"{p}embeddings.tok_embeddings.weight"),
        **layers(BLOCK, ours="backbone.blocks.{i}", theirs=p + "layers.{i}", depth=depth),
        **{f"backbone.blocks.{i}.mlp.up.weight": swapped(f"{p}layers.{i}.mlp.Wi.weight") for i in range(depth)},
        **both(
            {
                "adapters.text.norm": f"{p}embeddings.norm",
                "backbone.norm": f"{p}final_norm",
                "head.neck.dense": "head.dense",
                "head.neck.norm": "head.norm",
                "head.out": "classifier",
            }
        ),
    }


MODERNBERT = Family(
    "ModernBERT", knows, parts, table, ignored=(r"decoder\.",), no_bias=("head.dense.bias", "head.norm.bias")
)
