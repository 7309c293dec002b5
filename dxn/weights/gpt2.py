"""GPT-2: causal, pre-norm, matrices kept as (inputs, outputs)."""

from __future__ import annotations

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.family import Family, Parts, Table, both, same, turned

NORMS = {"attn_norm": "ln_1", "mlp_norm": "ln_2"}
LINEARS = {"attn.qkv": "attn.c_attn", "attn.proj": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}


def knows(found: Checkpoint) -> bool:
    return hf.model_type(found) == "gpt2"


def parts(found: Checkpoint) -> Parts:
    c, p = {"activation_function": "gelu_new", **found.config}, base(found)
    if c.get("scale_attn_by_inverse_layer_idx") or not c.get("scale_attn_weights", True):
        hf.refuse(found, "scores that are scaled by the block's number, or not at all")
    classes = len(found.tensors["score.weight"]) if "score.weight" in found else 0
    return Parts(
        dim=c["n_embd"],
        adapters={"text": {"max_len": len(found.tensors[f"{p}wpe.weight"]), "position": "learned"}},
        backbone={
            "depth": c["n_layer"],
            "num_heads": c["n_head"],
            "mlp_ratio": (c.get("n_inner") or 4 * c["n_embd"]) / c["n_embd"],
            "mlp": hf.mlp(found, c, "activation_function"),
            "norm_eps": c["layer_norm_epsilon"],
            "causal": True,
        },
        fusion={"pool": "last"},
        labels=hf.labels(found, classes) if classes else None,
    )


def table(found: Checkpoint, parts: Parts) -> Table:
    p = base(found)
    result = {
        "adapters.text.table.weight": same(f"{p}wte.weight"),
        "adapters.text.position.table": same(f"{p}wpe.weight"),
        **both({"backbone.norm": f"{p}ln_f", "head.out": "score"}),
    }
    for i in range(parts.backbone["depth"]):
        ours, theirs = f"backbone.blocks.{i}", f"{p}h.{i}"
        result |= both({f"{ours}.{mine}": f"{theirs}.{name}" for mine, name in NORMS.items()})
        for mine, name in LINEARS.items():
            result[f"{ours}.{mine}.weight"] = turned(f"{theirs}.{name}.weight")
            result[f"{ours}.{mine}.bias"] = same(f"{theirs}.{name}.bias")
    return result


def base(found: Checkpoint) -> str:
    """transformer. or nothing."""
    return hf.prefix(found, "transformer", "wte.weight")


GPT2 = Family(
    "GPT-2",
    knows,
    parts,
    table,
    ignored=(r"lm_head\.", r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias"),
    no_bias=("score.bias",),
)
