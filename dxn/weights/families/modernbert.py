"""ModernBERT (arXiv:2412.13663): RoPE, sliding window attention, gated MLPs, no biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import LayerNames, blocks, copied, halves_swapped, linears
from dxn.weights.families.llama import FULL, SLIDING, rotary_options
from dxn.weights.family import Architecture, Classifier, Family, Options, TensorMap

BLOCK: LayerNames = {
    "attn_norm": "attn_norm",
    "attn.qkv": "attn.Wqkv",
    "attn.proj": "attn.Wo",
    "mlp_norm": "mlp_norm",
    "mlp.down": "mlp.Wo",
}


def architecture(checkpoint: Checkpoint) -> Architecture:
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
    return Architecture(
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
        # classifier_pooling applies to the classifier. It is also used for embeddings of the bare
        # model, which does not define a pooling.
        fusion={"pool": "mean" if config["classifier_pooling"] == "mean" else "first"},
        head=head if "head.dense.weight" in checkpoint else {},
        labels=hf.class_names(checkpoint, "classifier"),
    )


def position_options(checkpoint: Checkpoint) -> Options:
    """Return the options for RoPE, which has different bases in full and in windowed attention."""
    config = checkpoint.settings
    kinds = config.get("layer_types")
    if not kinds:  # older files have n if every n-th block has full attention
        kinds = [FULL, *[SLIDING] * (config["global_attn_every_n_layers"] - 1)]
    settings = {
        **config,
        "rope_theta": config["global_rope_theta"],
        "rope_local_base_freq": config["local_rope_theta"],
    }
    # local_attention is the width of the whole window.
    return rotary_options(checkpoint, settings, kinds, config["local_attention"] // 2)


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix("embeddings.tok_embeddings.weight", "model")
    depth = architecture.backbone["depth"]
    result = {
        "adapters.text.embedding.weight": copied(f"{p}embeddings.tok_embeddings.weight"),
        **blocks(BLOCK, prefix=p + "layers.{i}", depth=depth),
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


def classifier(checkpoint: Checkpoint, labels: Sequence[str]) -> Classifier:
    layers = {
        "head.pre.dense": "head.dense",
        "head.pre.norm": "head.norm",
        "head.out": "classifier",
    }
    result = hf.classifier("ModernBertForSequenceClassification", labels, layers, prefix="model.")
    # The dense layer of dxn has a bias. The norm has none in transformers, see `to_checkpoint`.
    tensors = {ours: t for ours, t in result.tensors.items() if ours != "head.pre.norm.bias"}
    return replace(result, config={**result.config, "classifier_bias": True}, tensors=tensors)


def to_checkpoint(
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
    architecture,
    tensor_map,
    ignored=(r"decoder\.",),  # the bias of the output layer for masked language modelling
    optional_biases=("head.dense.bias", "head.norm.bias"),
    classifier=classifier,
    to_checkpoint=to_checkpoint,
)
