"""BERT (arXiv:1810.04805), with or without a classifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import LayerNames, blocks, copied, linears
from dxn.weights.families import hf
from dxn.weights.family import (
    Architecture,
    Classifier,
    Family,
    Options,
    TensorMap,
    TensorSource,
)

BLOCK: LayerNames = {
    "attn.qkv": tuple(f"attention.self.{name}" for name in ("query", "key", "value")),
    "attn.proj": "attention.output.dense",
    "attn_norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
# Heads of other tasks, and a constant buffer of position indices that old files contain.
IGNORED = (r"cls\.", r"lm_head\.", r"(\w+\.)?embeddings\.position_ids")


def matches(checkpoint: Checkpoint) -> bool:
    return hf.model_type(checkpoint) == "bert"


def architecture(checkpoint: Checkpoint) -> Architecture:
    p = base_prefix(checkpoint)
    config = checkpoint.settings
    max_len = len(checkpoint.tensors[f"{p}embeddings.position_embeddings.weight"])
    has_pooler = f"{p}pooler.dense.weight" in checkpoint
    return Architecture(
        dim=config["hidden_size"],
        adapters={"text": text_options(max_len=max_len, eps=config["layer_norm_eps"])},
        backbone=backbone_options(checkpoint),
        # The first token is [CLS], which the tokenizer adds. dxn's pooling adds no token.
        fusion={"pool": "first"},
        labels=hf.class_names(checkpoint, "classifier"),
        # BERT's pooler is a dense layer on [CLS] only, so in dxn it belongs to the head.
        **(hf.span_options(checkpoint) or {"head": {"hidden": "tanh"} if has_pooler else {}}),
    )


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = base_prefix(checkpoint)
    return {
        **embeddings(p, first_position=0),
        **blocks(BLOCK, prefix=p + "encoder.layer.{i}", depth=architecture.backbone["depth"]),
        "head.pre.segments.weight": TensorSource(
            (f"{p}embeddings.token_type_embeddings.weight",),
            lambda segments: segments - segments[0],
        ),
        **linears({"head.pre.dense": f"{p}pooler.dense", "head.out": "classifier"}),
        **hf.span_tensors(checkpoint, architecture),
    }


def classifier(checkpoint: Checkpoint, labels: Sequence[str]) -> Classifier:
    layers = {"head.pre.dense": "bert.pooler.dense", "head.out": "classifier"}
    return hf.classifier("BertForSequenceClassification", labels, layers, prefix="bert.")


def to_checkpoint(
    state: Mapping[str, Tensor], checkpoint: Checkpoint, architecture: Architecture
) -> dict[str, Tensor]:
    """Return the position and segment embeddings."""
    return positions_and_segments(state, checkpoint, first_position=0)


def positions_and_segments(
    state: Mapping[str, Tensor], checkpoint: Checkpoint, *, first_position: int
) -> dict[str, Tensor]:
    """Return the position and segment embeddings of BERT and RoBERTa.

    Rows that the dxn model does not have keep the values of the checkpoint.

    Args:
        state: State dict of the dxn model.
        checkpoint: The checkpoint.
        first_position: First row of the position embeddings that is used.
    """
    p = f"{base_prefix(checkpoint)}embeddings."
    segments = checkpoint.tensors[f"{p}token_type_embeddings.weight"]
    # The trained position embeddings include the embedding of the first segment, which therefore
    # becomes zero. Subtracting it from the second segment as well keeps all sums the same.
    positions = checkpoint.tensors[f"{p}position_embeddings.weight"] + segments[0]
    trained = state["adapters.text.pos_embed.weight"]
    others = positions[first_position + len(trained) :]
    return {
        f"{p}position_embeddings.weight": torch.cat([positions[:first_position], trained, others]),
        f"{p}token_type_embeddings.weight": segments - segments[:1],
    }


def embeddings(p: str, *, first_position: int) -> TensorMap:
    """Return the sources of BERT's and RoBERTa's embeddings and the layer norm after them.

    All tokens of a single text are in the first segment. The embedding of that segment is therefore
    constant, and is added to the position embeddings.

    Args:
        p: Prefix of the bare model.
        first_position: First row of the position embeddings that is used.
    """
    positions = (
        f"{p}embeddings.position_embeddings.weight",
        f"{p}embeddings.token_type_embeddings.weight",
    )

    def convert(position: Tensor, segment: Tensor) -> Tensor:
        return position[first_position:] + segment[0]

    return {
        "adapters.text.embedding.weight": copied(f"{p}embeddings.word_embeddings.weight"),
        "adapters.text.pos_embed.weight": TensorSource(positions, convert),
        **linears({"adapters.text.norm": f"{p}embeddings.LayerNorm"}),
    }


def text_options(*, max_len: int, eps: float) -> Options:
    """Return the text adapter's options: special tokens, learned positions and a layer norm."""
    return {
        "tokenizer": {"special_tokens": True},
        # There are no position embeddings for longer texts.
        "max_len": max_len,
        "pos_embed": "learned",
        "norm": {"eps": eps},
    }


def backbone_options(checkpoint: Checkpoint) -> Options:
    """Return the backbone's options: the post-norm blocks of BERT and RoBERTa."""
    config = checkpoint.settings
    if config.get("is_decoder"):
        hf.unsupported(checkpoint, "a BERT that is a decoder (is_decoder)")
    kind = config.get("position_embedding_type", "absolute")
    if kind != "absolute":
        hf.unsupported(checkpoint, f"position embeddings of the type {kind!r}")
    options = hf.backbone_options(checkpoint, config)
    return {**options, "norm": {**options["norm"], "place": "post"}}


def base_prefix(checkpoint: Checkpoint) -> str:
    """Return the prefix of the bare model, "bert." or "roberta.", or "" if there is no head."""
    # XLM-R has the prefix of RoBERTa.
    name = hf.model_type(checkpoint).removeprefix("xlm-")
    return hf.prefix(checkpoint, name, "embeddings.word_embeddings.weight")


BERT = Family(
    "BERT",
    matches,
    architecture,
    tensor_map,
    ignored=IGNORED,
    classifier=classifier,
    to_checkpoint=to_checkpoint,
)
