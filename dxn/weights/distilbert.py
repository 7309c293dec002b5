"""DistilBERT: BERT's block, no sentence kinds, no pooler."""

from __future__ import annotations

from dxn.weights import bert, hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.family import Family, Parts, Table, both, layers, same

BLOCK: dict[str, str | tuple[str, ...]] = {
    "attn.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "attn.proj": "attention.out_lin",
    "attn_norm": "sa_layer_norm",
    "mlp.up": "ffn.lin1",
    "mlp.down": "ffn.lin2",
    "mlp_norm": "output_layer_norm",
}


def knows(found: Checkpoint) -> bool:
    return hf.model_type(found) == "distilbert"


def parts(found: Checkpoint) -> Parts:
    c, p = found.config, base(found)
    classes = len(found.tensors["classifier.weight"]) if "classifier.weight" in found else 0
    return Parts(
        dim=c["dim"],
        adapters={"text": bert.text(found, places=len(found.tensors[f"{p}embeddings.position_embeddings.weight"]))},
        backbone={
            "depth": c["n_layers"],
            "num_heads": c["n_heads"],
            "mlp_ratio": c["hidden_dim"] / c["dim"],
            "mlp": hf.mlp(found, c, "activation"),
            "norm_eps": 1e-12,
            "norm_first": False,
        },
        fusion={"pool": "first"},
        head={"hidden": "relu"} if classes else {},
        labels=hf.labels(found, classes) if classes else None,
    )


def table(found: Checkpoint, parts: Parts) -> Table:
    p, depth = base(found), parts.backbone["depth"]
    return {
        "adapters.text.table.weight": same(f"{p}embeddings.word_embeddings.weight"),
        "adapters.text.position.table": same(f"{p}embeddings.position_embeddings.weight"),
        **layers(BLOCK, ours="backbone.blocks.{i}", theirs=p + "transformer.layer.{i}", depth=depth),
        **both(
            {
                "adapters.text.norm": f"{p}embeddings.LayerNorm",
                "head.neck.dense": "pre_classifier",
                "head.out": "classifier",
            }
        ),
    }


def base(found: Checkpoint) -> str:
    """distilbert. or nothing."""
    return hf.prefix(found, "distilbert", "embeddings.word_embeddings.weight")


DISTILBERT = Family("DistilBERT", knows, parts, table, ignored=(*bert.OTHER, r"vocab_"))
