"""Llama and the language models with its names: Mistral, Qwen, SmolLM 3, Gemma and OLMo 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import LayerNames, blocks, copied, linears
from dxn.weights.families import hf
from dxn.weights.families.rotary import FULL, SLIDING, position_options
from dxn.weights.family import Architecture, Family, TensorMap

BLOCK: LayerNames = {
    "attn_norm": "input_layernorm",
    "attn.qkv": hf.QKV,
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "attn.proj": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.up": ("mlp.up_proj", "mlp.gate_proj"),
    "mlp.down": "mlp.down_proj",
}
# Gemma 2 and 3 normalize the output of a branch too, and OLMo 2 nothing else.
NORMS_OUT: LayerNames = {
    "attn_out": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out": "post_feedforward_layernorm",
}
WORDS = "embed_tokens.weight"
OUTPUT = "lm_head.weight"
ACTIVATIONS = {"silu": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu_tanh"}
MODELS = (
    *("llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2"),
    *("gemma", "gemma2", "gemma3_text"),
)
# Options of some of them. The others have no norms of queries and keys, and norms of inputs only.
QK_NORMS = {"qwen3": True, "gemma3_text": True, "olmo2": "all"}
PLACES = {"gemma2": "both", "gemma3_text": "both", "olmo2": "out"}


def architecture(checkpoint: Checkpoint) -> Architecture:
    config = read_settings(checkpoint)
    kind = config["model_type"]
    is_gemma = kind.startswith("gemma")
    labels = hf.class_names(checkpoint, "score")
    is_tied = config["tie_word_embeddings"]
    if labels is None and not is_tied and OUTPUT not in checkpoint:
        raise KeyError(OUTPUT)
    output = {
        "tie_embeddings": is_tied and hf.is_tied(checkpoint, prefix(checkpoint) + WORDS, OUTPUT),
        "softcap": config.get("final_logit_softcapping"),
    }
    width = config.get("query_pre_attn_scalar") or config["head_dim"]
    window = config.get("sliding_window")
    return Architecture(
        dim=config["hidden_size"],
        adapters={
            "text": {
                # Most of the tokenizers add only a token before a text.
                "tokenizer": {"special_tokens": True},
                "max_len": config["max_position_embeddings"],
                "pos_embed": "none",
                "embedding": {"scale": is_gemma},
            }
        },
        backbone={
            "depth": config["num_hidden_layers"],
            "num_heads": config["num_attention_heads"],
            "causal": True,
            "block": {
                "mlp": ACTIVATIONS[config["hidden_act"]],
                "hidden_dim": config["intermediate_size"],
                "num_kv_heads": config["num_key_value_heads"],
                "head_dim": config["head_dim"],
                "bias": False,
                "qkv_bias": kind == "qwen2",
                "qk_norm": QK_NORMS.get(kind, False),
                # The default scale has faster kernels.
                "score_scale": None if width == config["head_dim"] else width**-0.5,
                "score_softcap": config.get("attn_logit_softcapping"),
            },
            "norm": {
                "kind": "rms",
                "eps": config["rms_norm_eps"],
                "place": PLACES.get(kind, "pre"),
                "unit_offset": is_gemma,
            },
            "position": {
                # The window of the library includes the token itself.
                **position_options(
                    checkpoint, config, layer_types(config), window - 1 if window else None
                ),
                "rope_blocks": hf.period(rotates(config)),
            },
        },
        fusion={"pool": "last"},  # in a causal model, only the last token attends to all tokens
        head={} if labels else {"output": output},
        labels=labels,
        task="language" if labels is None else "classify",
    )


def read_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the settings of config.json.

    Raises:
        UserError: If dxn does not support one of them.
    """
    config = checkpoint.settings
    for key in ("attention_bias", "mlp_bias", "use_bidirectional_attention"):
        if config.get(key):
            hf.unsupported(checkpoint, f"{key}={config[key]} in a model of the Llama family")
    activation = config.get("hidden_activation") or config["hidden_act"]
    if activation not in ACTIVATIONS:
        hf.unsupported(checkpoint, f"the activation function {activation!r}")
    heads = config["num_attention_heads"]
    return {
        **config,
        "hidden_act": activation,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
    }


def rotates(config: Mapping[str, Any]) -> list[bool]:
    """Return whether each block has rotary positions. Blocks repeat the list."""
    every = config.get("no_rope_layer_interval")
    default = [1] if every is None else [1] * (every - 1) + [0]
    return [bool(each) for each in config.get("no_rope_layers") or default]


def layer_types(config: Mapping[str, Any]) -> list[str]:
    """Return the kind of the attention of each block. Blocks repeat the list."""
    if config.get("layer_types"):
        return config["layer_types"]
    if "sliding_window_pattern" in config:
        every = config["sliding_window_pattern"]
        return [SLIDING] * (every - 1) + [FULL] if every else [SLIDING]
    depth = config["num_hidden_layers"]
    first = depth
    if config.get("use_sliding_window"):  # of Qwen, in the blocks after the first ones
        first = min(config.get("max_window_layers", depth), depth)
    return [FULL] * first + [SLIDING] * (depth - first)


def prefix(checkpoint: Checkpoint) -> str:
    """Return the prefix of the bare model: "model.", or "" if there is no head."""
    return hf.prefix(checkpoint, "model", WORDS)


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = prefix(checkpoint)
    options = architecture.backbone
    block = options["block"]
    has_norms_out = options["norm"]["place"] != "pre"
    queries = options["num_heads"] * block["head_dim"]
    keys = block["num_kv_heads"] * block["head_dim"]
    return {
        "adapters.text.embedding.weight": copied(f"{p}{WORDS}"),
        "head.output.weight": copied(OUTPUT),
        **blocks(
            {**BLOCK, **(NORMS_OUT if has_norms_out else {})},
            prefix=p + "layers.{i}",
            depth=options["depth"],
            rows={"attn.qkv": (queries, keys, keys)},
        ),
        **linears({"backbone.norm": f"{p}norm", "head.out": "score"}),
    }


LLAMA = Family(
    "Llama",
    hf.is_type(*MODELS),
    architecture,
    tensor_map,
    # Old checkpoints contain the rotary frequencies.
    ignored=(r"lm_head\.", r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
    optional_biases=("score.bias",),
)
