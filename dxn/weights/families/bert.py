"""BERT (arXiv:1810.04805), RoBERTa (arXiv:1907.11692), XLM-R, DistilBERT and ModernBERT.

RoBERTa and XLM-R are BERT with an offset in the position embeddings and another classifier.
DistilBERT (arXiv:1910.01108) is BERT without segments and without a pooler. Its layers have other
names. ModernBERT (arXiv:2412.13663) has RoPE, sliding window attention, gated MLPs, and no biases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import LayerNames, blocks, copied, halves_swapped, linears
from dxn.weights.families.language_models import FULL, SLIDING, rotary_options
from dxn.weights.family import (
    Architecture,
    Classifier,
    Family,
    Options,
    TensorMap,
    TensorSource,
)

# A tensor of the bare model, and its names as a part of a model with a head.
BASE = ("embeddings.word_embeddings.weight", "bert", "roberta", "distilbert")
BERT_BLOCK: LayerNames = {
    "attn.qkv": tuple(f"attention.self.{name}" for name in ("query", "key", "value")),
    "attn.proj": "attention.output.dense",
    "attn_norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
# Heads of other tasks, and a constant buffer of position indices that old files contain.
IGNORED = (r"cls\.", r"lm_head\.", r"(\w+\.)?embeddings\.position_ids")
# Names of the classifiers of RoBERTa, by the type of the model.
ROBERTAS = {
    "roberta": "RobertaForSequenceClassification",
    "xlm-roberta": "XLMRobertaForSequenceClassification",
}
DISTILBERT_BLOCK: LayerNames = {
    "attn.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "attn.proj": "attention.out_lin",
    "attn_norm": "sa_layer_norm",
    "mlp.up": "ffn.lin1",
    "mlp.down": "ffn.lin2",
    "mlp_norm": "output_layer_norm",
}
# A model without a classifier has no vector of a whole text: BERT's pooler was trained to compare
# two texts, and that of RoBERTa was not trained. sentence-transformers takes the mean, too.
EMBED_POOL = "mean"
DISTILBERT_EPS = 1e-12  # a constant in transformers, which config.json does not contain
MODERNBERT_BLOCK: LayerNames = {
    "attn_norm": "attn_norm",
    "attn.qkv": "attn.Wqkv",
    "attn.proj": "attn.Wo",
    "mlp_norm": "mlp_norm",
    "mlp.down": "mlp.Wo",
}


def bert_architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    if config.get("is_decoder"):
        hf.unsupported(checkpoint, "a BERT that is a decoder (is_decoder)")
    kind = config.get("position_embedding_type", "absolute")
    if kind != "absolute":
        hf.unsupported(checkpoint, f"position embeddings of the type {kind!r}")
    p = checkpoint.prefix(*BASE)
    rows = len(checkpoint.tensors[f"{p}embeddings.position_embeddings.weight"])
    max_len = rows - first_position(checkpoint)
    backbone = hf.backbone_options(checkpoint, config)
    dense, output = head_layers(checkpoint)
    # The dense layer is on the first token only, so in dxn it belongs to the head.
    is_pooled = hf.class_task(checkpoint) not in (hf.TAGS, hf.ANSWERS)
    has_dense = is_pooled and f"{dense}.weight" in checkpoint
    architecture = Architecture(
        dim=config["hidden_size"],
        adapters={"text": text_options(max_len=max_len, eps=config["layer_norm_eps"])},
        backbone={**backbone, "norm": {**backbone["norm"], "place": "post"}},
        # The first token is [CLS] or <s>, which the tokenizer adds. dxn's pooling adds no token.
        fusion={"pool": "first"},
        embed_pool=EMBED_POOL,
        head={"hidden": "tanh"} if has_dense else {},
        **hf.span_options(checkpoint),
        **hf.classifier_options(checkpoint, output),
    )
    return hf.paired(architecture) if hf.pair_activation(checkpoint) else architecture


def bert_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*BASE)
    first = first_position(checkpoint)
    dense, output = head_layers(checkpoint)
    segments = f"{p}embeddings.token_type_embeddings.weight"

    def positions(position: Tensor, segment: Tensor) -> Tensor:
        # All tokens of a single text are in the first segment. The embedding of that segment is
        # therefore constant, and is added to the position embeddings.
        return position[first:] + segment[0]

    result = {
        "adapters.text.embedding.weight": copied(f"{p}embeddings.word_embeddings.weight"),
        "adapters.text.pos_embed.weight": TensorSource(
            (f"{p}embeddings.position_embeddings.weight", segments), positions
        ),
        **blocks(BERT_BLOCK, prefix=p + "encoder.layer.{i}", depth=architecture.backbone["depth"]),
        **linears(
            {
                "adapters.text.norm": f"{p}embeddings.LayerNorm",
                "head.pre.dense": dense,
                "head.out": output,
            }
        ),
        **hf.span_tensors(checkpoint, architecture),
    }
    if not is_roberta(checkpoint):  # which has one segment
        result["head.pre.segments.weight"] = TensorSource((segments,), lambda t: t - t[0])
    return result


def bert_classifier(checkpoint: Checkpoint, labels: Sequence[str]) -> Classifier:
    if not is_roberta(checkpoint):
        layers = {"head.pre.dense": "bert.pooler.dense", "head.out": "classifier"}
        return hf.classifier("BertForSequenceClassification", labels, layers, prefix="bert.")
    layers = {"head.pre.dense": "classifier.dense", "head.out": "classifier.out_proj"}
    return hf.classifier(ROBERTAS[hf.model_type(checkpoint)], labels, layers, prefix="roberta.")


def bert_to_checkpoint(
    state: Mapping[str, Tensor], checkpoint: Checkpoint, architecture: Architecture
) -> dict[str, Tensor]:
    """Return the position and segment embeddings.

    Rows that the dxn model does not have keep the values of the checkpoint.
    """
    p = f"{checkpoint.prefix(*BASE)}embeddings."
    first = first_position(checkpoint)
    segments = checkpoint.tensors[f"{p}token_type_embeddings.weight"]
    # The trained position embeddings include the embedding of the first segment, which therefore
    # becomes zero. Subtracting it from the second segment as well keeps all sums the same.
    positions = checkpoint.tensors[f"{p}position_embeddings.weight"] + segments[0]
    trained = state["adapters.text.pos_embed.weight"]
    others = positions[first + len(trained) :]
    return {
        f"{p}position_embeddings.weight": torch.cat([positions[:first], trained, others]),
        f"{p}token_type_embeddings.weight": segments - segments[:1],
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


def is_roberta(checkpoint: Checkpoint) -> bool:
    return hf.model_type(checkpoint) in ROBERTAS


def head_layers(checkpoint: Checkpoint) -> tuple[str, str]:
    """Return the names of the dense layer with tanh on the first token, and of the output layer."""
    pooler = f"{checkpoint.prefix(*BASE)}pooler.dense"
    if not is_roberta(checkpoint) or hf.class_task(checkpoint) == hf.TAGS:
        return pooler, "classifier"
    # A RoBERTa with a classifier does not use the pooler.
    has_classifier = "classifier.dense.weight" in checkpoint
    return "classifier.dense" if has_classifier else pooler, "classifier.out_proj"


def first_position(checkpoint: Checkpoint) -> int:
    """Return the row of the position embeddings that belongs to the first token of a text."""
    # In RoBERTa, the rows up to pad_token_id are reserved for padding.
    return int(checkpoint.settings["pad_token_id"]) + 1 if is_roberta(checkpoint) else 0


BERT = Family(
    "BERT",
    hf.is_type("bert"),
    bert_architecture,
    bert_tensor_map,
    heads=hf.TEXT_HEADS,
    ignored=IGNORED,
    classifier=bert_classifier,
    to_checkpoint=bert_to_checkpoint,
)
ROBERTA = replace(
    BERT,
    name="RoBERTa",
    matches=hf.is_type(*ROBERTAS),
    ignored=(*IGNORED, r"(roberta\.)?pooler\."),  # not used if there is a classifier
)


def distilbert_architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    p = checkpoint.prefix(*BASE)
    max_len = len(checkpoint.tensors[f"{p}embeddings.position_embeddings.weight"])
    classifier = hf.classifier_options(checkpoint, "classifier")
    # The layer `pre_classifier` exists only in models with a classifier of texts.
    has_dense = bool(classifier) and hf.class_task(checkpoint) != hf.TAGS
    architecture = Architecture(
        dim=config["dim"],
        adapters={"text": text_options(max_len=max_len, eps=DISTILBERT_EPS)},
        backbone={
            "depth": config["n_layers"],
            "num_heads": config["n_heads"],
            "block": {
                "mlp": hf.activation(checkpoint, config, "activation"),
                "hidden_dim": config["hidden_dim"],
            },
            "norm": {"eps": DISTILBERT_EPS, "place": "post"},
        },
        fusion={"pool": "first"},
        embed_pool=EMBED_POOL,
        head={"hidden": "relu"} if has_dense else {},
        **hf.span_options(checkpoint),
        **classifier,
    )
    return hf.paired(architecture) if hf.pair_activation(checkpoint) else architecture


def distilbert_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*BASE)
    return {
        "adapters.text.embedding.weight": copied(f"{p}embeddings.word_embeddings.weight"),
        "adapters.text.pos_embed.weight": copied(f"{p}embeddings.position_embeddings.weight"),
        **blocks(
            DISTILBERT_BLOCK,
            prefix=p + "transformer.layer.{i}",
            depth=architecture.backbone["depth"],
        ),
        **linears(
            {
                "adapters.text.norm": f"{p}embeddings.LayerNorm",
                "head.pre.dense": "pre_classifier",
                "head.out": "classifier",
            }
        ),
        **hf.span_tensors(checkpoint, architecture),
    }


def distilbert_classifier(checkpoint: Checkpoint, labels: Sequence[str]) -> Classifier:
    layers = {"head.pre.dense": "pre_classifier", "head.out": "classifier"}
    name = "DistilBertForSequenceClassification"
    return hf.classifier(name, labels, layers, prefix="distilbert.")


DISTILBERT = Family(
    "DistilBERT",
    hf.is_type("distilbert"),
    distilbert_architecture,
    distilbert_tensor_map,
    heads=hf.TEXT_HEADS,
    # The masked language model's head has the layers vocab_transform, vocab_layer_norm and
    # vocab_projector.
    ignored=(*IGNORED, r"vocab_"),
    classifier=distilbert_classifier,
)


def modernbert_architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    for key in ("attention_bias", "mlp_bias", "norm_bias"):
        if config.get(key):
            hf.unsupported(checkpoint, f"a ModernBERT with {key}")
    if hf.activation(checkpoint, config, "hidden_activation") != "gelu":
        hf.unsupported(checkpoint, "a ModernBERT whose MLPs use another activation than gelu")
    eps = config["norm_eps"]
    head = {
        "hidden": hf.activation(checkpoint, config, "classifier_activation"),
        "norm": True,
        "norm_eps": eps,
    }
    architecture = Architecture(
        dim=config["hidden_size"],
        adapters={
            "text": {
                "tokenizer": {"special_tokens": True},
                "max_len": config["max_position_embeddings"],
                "pos_embed": "none",
                "norm": {"eps": eps, "bias": False},
            }
        },
        backbone={
            "depth": config["num_hidden_layers"],
            "num_heads": config["num_attention_heads"],
            "block": {
                "mlp": "geglu",
                "hidden_dim": config["intermediate_size"],
                "bias": False,
            },
            # The first block has no norm before its attention, because the embeddings are
            # already normalized by the adapter's norm.
            "norm": {"eps": eps, "input_norm": False},
            "position": position_options(checkpoint),
        },
        # This applies to the classifier.
        fusion={"pool": "mean" if config["classifier_pooling"] == "mean" else "first"},
        head=head if "head.dense.weight" in checkpoint else {},
        embed_pool=EMBED_POOL,
        **hf.classifier_options(checkpoint, "classifier"),
    )
    return hf.paired(architecture) if hf.pair_activation(checkpoint) else architecture


def position_options(checkpoint: Checkpoint) -> Options:
    """Return the options for RoPE, which has different bases in full and in windowed attention."""
    config = checkpoint.settings
    kinds = config.get("layer_types")
    if not kinds:  # older files have n if every n-th block has full attention
        kinds = [FULL, *[SLIDING] * (config["global_attn_every_n_layers"] - 1)]
    settings = config.changed(
        rope_theta=config["global_rope_theta"], rope_local_base_freq=config["local_rope_theta"]
    )
    # local_attention is the width of the whole window.
    return rotary_options(checkpoint, settings, kinds, config["local_attention"] // 2)


def modernbert_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix("embeddings.tok_embeddings.weight", "model")
    depth = architecture.backbone["depth"]
    result = {
        "adapters.text.embedding.weight": copied(f"{p}embeddings.tok_embeddings.weight"),
        **blocks(MODERNBERT_BLOCK, prefix=p + "layers.{i}", depth=depth),
        **linears(
            {
                "adapters.text.norm": f"{p}embeddings.norm",
                "backbone.norm": f"{p}final_norm",
                "head.pre.dense": "head.dense",
                "head.pre.norm": "head.norm",
                "head.out": "classifier",
            }
        ),
    }
    for i in range(depth):
        gated = halves_swapped(f"{p}layers.{i}.mlp.Wi.weight")
        result[f"backbone.blocks.{i}.mlp.up.weight"] = gated
    return result


def modernbert_classifier(checkpoint: Checkpoint, labels: Sequence[str]) -> Classifier:
    layers = {
        "head.pre.dense": "head.dense",
        "head.pre.norm": "head.norm",
        "head.out": "classifier",
    }
    result = hf.classifier("ModernBertForSequenceClassification", labels, layers, prefix="model.")
    # The dense layer of dxn has a bias. The norm has none in transformers, see `to_checkpoint`.
    tensors = {ours: t for ours, t in result.tensors.items() if ours != "head.pre.norm.bias"}
    return replace(result, config={**result.config, "classifier_bias": True}, tensors=tensors)


def modernbert_to_checkpoint(
    state: Mapping[str, Tensor], checkpoint: Checkpoint, architecture: Architecture
) -> dict[str, Tensor]:
    """Return the biases at the end of the head.

    The norm has no bias in transformers. The output layer follows, so its bias contains that of the
    norm.
    """
    norm = state["head.pre.norm.bias"]
    return {
        "head.norm.bias": torch.zeros_like(norm),
        "classifier.bias": state["head.out.bias"] + state["head.out.weight"] @ norm,
    }


MODERNBERT = Family(
    "ModernBERT",
    hf.is_type("modernbert"),
    modernbert_architecture,
    modernbert_tensor_map,
    heads=("SequenceClassification", hf.TAGS, "MaskedLM"),
    ignored=(r"decoder\.",),  # the bias of the output layer for masked language modelling
    optional_biases=("head.dense.bias", "head.norm.bias"),
    classifier=modernbert_classifier,
    to_checkpoint=modernbert_to_checkpoint,
)
