"""Llama and the language models with its names: Mistral, Qwen 2 and 3, SmolLM 3, Gemma 1 to 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import LayerNames, blocks, copied, linears
from dxn.weights.families import hf
from dxn.weights.family import Architecture, Family, Options, TensorMap

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
# Gemma 2 and 3 normalize the output of a branch too.
NORMS_OF_BOTH: LayerNames = {
    "attn_out": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out": "post_feedforward_layernorm",
}
ACTIVATIONS = {"silu": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu_tanh"}
FULL, SLIDING = "full_attention", "sliding_attention"
GEMMA = {
    "hidden_act": "gelu_pytorch_tanh",
    "head_dim": 256,
    "tie_word_embeddings": True,
}
# Values of settings that a config.json of each model type can lack.
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 4096, "layer_types": [SLIDING]},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "smollm3": {"tie_word_embeddings": True, "rope_theta": 2e6, "no_rope_layers": [1, 1, 1, 0]},
    "gemma": GEMMA,
    "gemma2": {
        **GEMMA,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": 4096,
        "layer_types": [SLIDING, FULL],
    },
    "gemma3_text": {
        **GEMMA,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "sliding_window": 4096,
        "layer_types": [*[SLIDING] * 5, FULL],
    },
}
# The settings of scaled rotary frequencies, by option of `RopeScaling`, and their kinds.
SCALING = {"factor": "factor", "original_len": "original_max_position_embeddings"}
KINDS = {
    "linear": SCALING,
    "llama3": {**SCALING, "low": "low_freq_factor", "high": "high_freq_factor"},
    "yarn": {
        **SCALING,
        "low": "beta_slow",
        "high": "beta_fast",
        "attn_factor": "attention_factor",
    },
}


def matches(checkpoint: Checkpoint) -> bool:
    return hf.model_type(checkpoint) in DEFAULTS


def architecture(checkpoint: Checkpoint) -> Architecture:
    config = settings(checkpoint)
    is_gemma = config["model_type"].startswith("gemma")
    has_both_norms = is_gemma and config["model_type"] != "gemma"
    labels = hf.class_names(checkpoint, "score")
    output = {
        "tie_embeddings": config["tie_word_embeddings"],
        "softcap": config.get("final_logit_softcapping"),
    }
    if labels is None and not output["tie_embeddings"] and "lm_head.weight" not in checkpoint:
        raise KeyError("lm_head.weight")
    width = config.get("query_pre_attn_scalar", config["head_dim"])
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
                "qkv_bias": config["model_type"] == "qwen2",
                "qk_norm": config["model_type"] in ("qwen3", "gemma3_text"),
                # The default scale has faster kernels.
                "score_scale": None if width == config["head_dim"] else width**-0.5,
                "score_softcap": config.get("attn_logit_softcapping"),
            },
            "norm": {
                "kind": "rms",
                "eps": config["rms_norm_eps"],
                "place": "both" if has_both_norms else "pre",
                "unit_offset": is_gemma,
            },
            "position": position_options(checkpoint, config),
        },
        fusion={"pool": "last"},  # in a causal model, only the last token attends to all tokens
        head={} if labels else {"output": output},
        labels=labels,
        task="language" if labels is None else "classify",
    )


def settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the settings of config.json with the defaults of the model type.

    Raises:
        UserError: If dxn does not support one of them.
    """
    config = {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "tie_word_embeddings": False,
        **DEFAULTS[hf.model_type(checkpoint)],
        **checkpoint.config,
    }
    for key in ("attention_bias", "mlp_bias", "use_bidirectional_attention"):
        if config.get(key):
            hf.unsupported(checkpoint, f"{key}={config[key]} in a model of the Llama family")
    config["hidden_act"] = config.get("hidden_activation") or config["hidden_act"]
    if config["hidden_act"] not in ACTIVATIONS:
        hf.unsupported(checkpoint, f"the activation function {config['hidden_act']!r}")
    heads = config["num_attention_heads"]
    config["num_key_value_heads"] = config.get("num_key_value_heads") or heads
    config["head_dim"] = config.get("head_dim") or config["hidden_size"] // heads
    return config


def position_options(checkpoint: Checkpoint, config: Mapping[str, Any]) -> Options:
    """Return the options of the rotary positions and the windows."""
    # transformers 5 writes rope_parameters, older versions rope_theta and rope_scaling.
    rope: dict[str, Any] = config.get("rope_parameters") or {
        "rope_theta": config["rope_theta"],
        **(config.get("rope_scaling") or {}),
    }
    in_windows: dict[str, Any] = rope.get(SLIDING) or {}
    window_theta = in_windows.get("rope_theta", config.get("rope_local_base_freq"))
    if scaling(checkpoint, config, in_windows):
        hf.unsupported(checkpoint, "scaled rotary frequencies in blocks with a window")
    rope = rope.get(FULL, rope)
    return {
        "kind": "rotary",
        "rope_theta": float(rope.get("rope_theta", config["rope_theta"])),
        "rope_scaling": scaling(checkpoint, config, rope),
        "rope_share": float(rope.get("partial_rotary_factor", 1.0)),
        "rope_blocks": hf.period([bool(each) for each in config.get("no_rope_layers") or [1]]),
        "windows": windows(checkpoint, config),
        "window_rope_theta": None if window_theta is None else float(window_theta),
    }


def scaling(checkpoint: Checkpoint, config: Mapping[str, Any], rope: Mapping[str, Any]) -> Options:
    """Return the options of scaled rotary frequencies."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return {}
    # Other models than these have the last two settings of YaRN.
    if kind not in KINDS or rope.get("mscale") or not rope.get("truncate", True):
        hf.unsupported(checkpoint, f"the rotary frequencies {dict(rope)}")
    rope = {"original_max_position_embeddings": config["max_position_embeddings"], **rope}
    options = {ours: rope.get(theirs) for ours, theirs in KINDS[kind].items()}
    return {"kind": kind, **{name: value for name, value in options.items() if value is not None}}


def windows(checkpoint: Checkpoint, config: Mapping[str, Any]) -> list[int | None]:
    """Return the maximum distance of a query and a key in each block. Blocks repeat the list."""
    kinds = config.get("layer_types") or [FULL]
    if "layer_types" not in checkpoint.config:
        depth = config["num_hidden_layers"]
        if config.get("use_sliding_window"):  # of Qwen, in the blocks after the first ones
            first = min(config.get("max_window_layers", depth), depth)
            kinds = [FULL] * first + [SLIDING] * (depth - first)
        elif every := config.get("sliding_window_pattern"):
            kinds = [SLIDING] * (every - 1) + [FULL]
    if other := set(kinds) - {FULL, SLIDING}:
        hf.unsupported(checkpoint, f"the kind of attention {min(other)!r}")
    # The window of the library includes the token itself.
    size = config.get("sliding_window")
    return hf.period([size - 1 if size and kind == SLIDING else None for kind in kinds])


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = hf.prefix(checkpoint, "model", "embed_tokens.weight")
    options = architecture.backbone
    block = options["block"]
    has_both_norms = options["norm"]["place"] == "both"
    queries = options["num_heads"] * block["head_dim"]
    keys = block["num_kv_heads"] * block["head_dim"]
    return {
        "adapters.text.embedding.weight": copied(f"{p}embed_tokens.weight"),
        "head.output.weight": copied("lm_head.weight"),
        **blocks(
            {**BLOCK, **(NORMS_OF_BOTH if has_both_norms else {})},
            prefix=p + "layers.{i}",
            depth=options["depth"],
            rows={"attn.qkv": (queries, keys, keys)},
        ),
        **linears({"backbone.norm": f"{p}norm", "head.out": "score"}),
    }


LLAMA = Family(
    "Llama",
    matches,
    architecture,
    tensor_map,
    # Old checkpoints contain the rotary frequencies.
    ignored=(r"lm_head\.", r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
    optional_biases=("score.bias",),
)
