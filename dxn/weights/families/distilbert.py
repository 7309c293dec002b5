"""DistilBERT (arXiv:1910.01108): BERT without segments and without a pooler."""

from __future__ import annotations

from collections.abc import Sequence

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import LayerNames, blocks, copied, linears
from dxn.weights.families import bert
from dxn.weights.family import Architecture, Classifier, Family, TensorMap

BLOCK: LayerNames = {
    "attn.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "attn.proj": "attention.out_lin",
    "attn_norm": "sa_layer_norm",
    "mlp.up": "ffn.lin1",
    "mlp.down": "ffn.lin2",
    "mlp_norm": "output_layer_norm",
}
NORM_EPS = 1e-12  # a constant in transformers, which config.json does not contain


def architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    p = base_prefix(checkpoint)
    max_len = len(checkpoint.tensors[f"{p}embeddings.position_embeddings.weight"])
    labels = hf.class_names(checkpoint, "classifier")
    return Architecture(
        dim=config["dim"],
        adapters={"text": bert.text_options(max_len=max_len, eps=NORM_EPS)},
        backbone={
            "depth": config["n_layers"],
            "num_heads": config["n_heads"],
            "block": {
                "mlp": hf.activation(checkpoint, config, "activation"),
                "hidden_dim": config["hidden_dim"],
            },
            "norm": {"eps": NORM_EPS, "place": "post"},
        },
        fusion={"pool": "first"},
        labels=labels,
        # The layer `pre_classifier` exists only in models with a classifier.
        **(hf.span_options(checkpoint) or {"head": {"hidden": "relu"} if labels else {}}),
    )


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = base_prefix(checkpoint)
    return {
        "adapters.text.embedding.weight": copied(f"{p}embeddings.word_embeddings.weight"),
        "adapters.text.pos_embed.weight": copied(f"{p}embeddings.position_embeddings.weight"),
        **blocks(BLOCK, prefix=p + "transformer.layer.{i}", depth=architecture.backbone["depth"]),
        **linears(
            {
                "adapters.text.norm": f"{p}embeddings.LayerNorm",
                "head.pre.dense": "pre_classifier",
                "head.out": "classifier",
            }
        ),
        **hf.span_tensors(checkpoint, architecture),
    }


def classifier(checkpoint: Checkpoint, labels: Sequence[str]) -> Classifier:
    layers = {"head.pre.dense": "pre_classifier", "head.out": "classifier"}
    return hf.classifier(
        "DistilBertForSequenceClassification", labels, layers, prefix="distilbert."
    )


def base_prefix(checkpoint: Checkpoint) -> str:
    """Return the prefix of the bare model: "distilbert.", or "" if there is no head."""
    return hf.prefix(checkpoint, "distilbert", "embeddings.word_embeddings.weight")


DISTILBERT = Family(
    "DistilBERT",
    hf.is_type("distilbert"),
    architecture,
    tensor_map,
    # The masked language model's head has the layers vocab_transform, vocab_layer_norm and
    # vocab_projector.
    ignored=(*bert.IGNORED, r"vocab_"),
    classifier=classifier,
)
