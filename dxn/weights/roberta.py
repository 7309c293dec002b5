"""RoBERTa, also in many languages (XLM-R): BERT whose places begin after that of padding."""

from __future__ import annotations

from dxn.weights import bert, hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.family import Family, Parts, Table, Take, both, layers, same


def knows(found: Checkpoint) -> bool:
    return hf.model_type(found) in ("roberta", "xlm-roberta")


def parts(found: Checkpoint) -> Parts:
    p = base(found)
    places = len(found.tensors[f"{p}embeddings.position_embeddings.weight"]) - first_place(found)
    pooler = f"{p}pooler.dense.weight" in found or "classifier.dense.weight" in found
    classes = len(found.tensors["classifier.out_proj.weight"]) if "classifier.out_proj.weight" in found else 0
    return Parts(
        dim=found.config["hidden_size"],
        adapters={"text": bert.text(found, places=places)},
        backbone=bert.backbone(found),
        fusion={"pool": "first"},
        head={"hidden": "tanh"} if pooler else {},
        labels=hf.labels(found, classes) if classes else None,
    )


def table(found: Checkpoint, parts: Parts) -> Table:
    p, start = base(found), first_place(found)
    places = (f"{p}embeddings.position_embeddings.weight", f"{p}embeddings.token_type_embeddings.weight")
    dense = "classifier.dense" if "classifier.dense.weight" in found else f"{p}pooler.dense"
    depth = parts.backbone["depth"]
    return {
        "adapters.text.table.weight": same(f"{p}embeddings.word_embeddings.weight"),
        "adapters.text.position.table": Take(places, lambda place, kind: place[start:] + kind[0]),
        **layers(bert.BLOCK, ours="backbone.blocks.{i}", theirs=p + "encoder.layer.{i}", depth=depth),
        **both(
            {
                "adapters.text.norm": f"{p}embeddings.LayerNorm",
                "head.neck.dense": dense,
                "head.out": "classifier.out_proj",
            }
        ),
    }


def first_place(found: Checkpoint) -> int:
    """The row of a text's first token."""
    return int(found.config.get("pad_token_id", 1)) + 1


def base(found: Checkpoint) -> str:
    """roberta. or nothing."""
    return hf.prefix(found, "roberta", "embeddings.word_embeddings.weight")


ROBERTA = Family("RoBERTa", knows, parts, table, ignored=(*bert.OTHER, r"(roberta\.)?pooler\."))
