"""BERT, with a classifier or without."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.family import Arguments, Family, Parts, Table, Take, both, layers, same

BLOCK: dict[str, str | tuple[str, ...]] = {
    "attn.qkv": tuple(f"attention.self.{part}" for part in ("query", "key", "value")),
    "attn.proj": "attention.output.dense",
    "attn_norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
# Heads of other tasks, and an index that old files hold.
OTHER = (r"cls\.", r"lm_head\.", r"(\w+\.)?embeddings\.position_ids")


def knows(found: Checkpoint) -> bool:
    return hf.model_type(found) == "bert"


def parts(found: Checkpoint) -> Parts:
    p = base(found)
    classes = len(found.tensors["classifier.weight"]) if "classifier.weight" in found else 0
    return Parts(
        dim=found.config["hidden_size"],
        adapters={"text": text(found, places=len(found.tensors[f"{p}embeddings.position_embeddings.weight"]))},
        backbone=backbone(found),
        fusion={"pool": "first"},
        head={"hidden": "tanh"} if f"{p}pooler.dense.weight" in found else {},
        labels=hf.labels(found, classes) if classes else None,
    )


def table(found: Checkpoint, parts: Parts) -> Table:
    p = base(found)
    # A text of one sentence: the vector of the first sentence is on every token, and so it joins the places.
    places = (f"{p}embeddings.position_embeddings.weight", f"{p}embeddings.token_type_embeddings.weight")
    return {
        "adapters.text.table.weight": same(f"{p}embeddings.word_embeddings.weight"),
        "adapters.text.position.table": Take(places, lambda place, kind: place + kind[0]),
        **layers(BLOCK, ours="backbone.blocks.{i}", theirs=p + "encoder.layer.{i}", depth=parts.backbone["depth"]),
        **both(
            {
                "adapters.text.norm": f"{p}embeddings.LayerNorm",
                "head.neck.dense": f"{p}pooler.dense",
                "head.out": "classifier",
            }
        ),
    }


def back(ours: Mapping[str, Tensor], found: Checkpoint, parts: Parts) -> dict[str, Tensor]:
    """Words and places, with the first sentence's vector in them; rows that we have no use for as they were."""
    p, t = f"{base(found)}embeddings.", found.tensors
    kinds = t[f"{p}token_type_embeddings.weight"]
    words, places = ours["adapters.text.table.weight"], ours["adapters.text.position.table"]
    more = t[f"{p}position_embeddings.weight"][len(places) :] + kinds[0]
    return {
        f"{p}word_embeddings.weight": torch.cat([words, t[f"{p}word_embeddings.weight"][len(words) :]]),
        f"{p}position_embeddings.weight": torch.cat([places, more]),
        # The second sentence is as far from the first as it was.
        f"{p}token_type_embeddings.weight": kinds - kinds[:1],
    }


def text(found: Checkpoint, *, places: int) -> Arguments:
    """The text adapter of BERT and its kin: special tokens, learned places, a norm."""
    return {
        "special_tokens": True,
        "max_len": places,
        "position": "learned",
        "norm": True,
        "norm_eps": found.config.get("layer_norm_eps", 1e-12),
    }


def backbone(found: Checkpoint) -> Arguments:
    """Post-norm blocks."""
    c = found.config
    if c.get("is_decoder") or c.get("position_embedding_type", "absolute") != "absolute":
        hf.refuse(found, "a decoder, or one with relative positions")
    return {
        "depth": c["num_hidden_layers"],
        "num_heads": c["num_attention_heads"],
        "mlp_ratio": c["intermediate_size"] / c["hidden_size"],
        "mlp": hf.mlp(found, c),
        "norm_eps": c["layer_norm_eps"],
        "norm_first": False,
    }


def base(found: Checkpoint) -> str:
    """bert. or nothing, and the same of its kin."""
    return hf.prefix(found, hf.model_type(found), "embeddings.word_embeddings.weight")


BERT = Family("BERT", knows, parts, table, ignored=OTHER, back=back)
