"""Causal language models: GPT-2, Llama, and the models whose tensors have the names of Llama's.

The latter are Mistral, Qwen, SmolLM 3, Gemma and OLMo 2. GPT-2 stores weights as (in_features,
out_features), the transpose of those of a linear layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint, Settings
from dxn.weights.conversions import LayerNames, blocks, copied, linears, transposed
from dxn.weights.family import Architecture, Family, Options, TensorMap

LLAMA_BLOCK: LayerNames = {
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
# A tensor of the bare model, and its name as a part of a model with a head.
LLAMA_BASE = (WORDS, "model")
OUTPUT = "lm_head.weight"
ACTIVATIONS = {"silu": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu_tanh"}
MODELS = (
    *("llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2"),
    *("gemma", "gemma2", "gemma3_text"),
)
# Options of some of them. The others have no norms of queries and keys, and norms of inputs only.
QK_NORMS = {"qwen3": True, "gemma3_text": True, "olmo2": "all"}
PLACES = {"gemma2": "both", "gemma3_text": "both", "olmo2": "out"}
# Kinds of the attention of a block.
FULL, SLIDING = "full_attention", "sliding_attention"
# The settings of scaled frequencies, by option of `RopeScaling`, and their kinds.
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
# Other settings of the frequencies that dxn reads, and one that has no effect.
ROPE_KEYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "truncate", "finetuned")
# A tensor of the bare model, and its name as a part of a model with a head.
GPT2_BASE = ("wte.weight", "transformer")
GPT2_NORMS = {"attn_norm": "ln_1", "mlp_norm": "ln_2"}
GPT2_LINEARS = {
    "attn.qkv": "attn.c_attn",
    "attn.proj": "attn.c_proj",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}


def llama_architecture(checkpoint: Checkpoint) -> Architecture:
    config = read_settings(checkpoint)
    kind = config["model_type"]
    is_gemma = kind.startswith("gemma")
    classifier = hf.classifier_options(checkpoint, "score")
    is_tied = config["tie_word_embeddings"]
    if not classifier and not is_tied and OUTPUT not in checkpoint:
        raise KeyError(OUTPUT)
    words = f"{checkpoint.prefix(*LLAMA_BASE)}{WORDS}"
    output = {
        "tie_embeddings": is_tied and hf.is_tied(checkpoint, words, OUTPUT),
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
                **rotary_options(
                    checkpoint, config, layer_types(config), window - 1 if window else None
                ),
                "rope_blocks": hf.period(rotates_of(config)),
            },
        },
        fusion={"pool": "last"},  # in a causal model, only the last token attends to all tokens
        **(classifier or {"task": "language", "head": {"output": output}}),
    )


def read_settings(checkpoint: Checkpoint) -> Settings:
    """Return the settings of config.json.

    Raises:
        UserError: If dxn does not support one of them.
    """
    config = checkpoint.settings
    for key in ("attention_bias", "mlp_bias", "use_bidirectional_attention"):
        if config.get(key):
            hf.unsupported(checkpoint, f"{key}={config[key]} in a model of the Llama family")
    if config.get("is_causal") is False:
        hf.unsupported(checkpoint, "is_causal=False in a model of the Llama family")
    activation, newer = config["hidden_act"], config.get("hidden_activation")
    if config["model_type"] == "gemma":
        # The old value stands for the form with tanh, and hidden_activation has no effect.
        activation = {"gelu": "gelu_pytorch_tanh"}.get(activation, activation)
    elif newer:
        activation = newer
    if activation not in ACTIVATIONS:
        hf.unsupported(checkpoint, f"the activation function {activation!r}")
    heads = config["num_attention_heads"]
    return config.changed(
        hidden_act=activation,
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
    )


def rotates_of(config: Mapping[str, Any]) -> list[bool]:
    """Return whether each block has rotary positions. Blocks repeat the list."""
    every = config.get("no_rope_layer_interval")
    default = [1] if every is None else [1] * (every - 1) + [0]
    return [bool(rotates) for rotates in config.get("no_rope_layers") or default]


def layer_types(config: Mapping[str, Any]) -> list[str]:
    """Return the kind of the attention of each block. Blocks repeat the list."""
    if config.get("layer_types"):
        return config["layer_types"]
    if "sliding_window_pattern" in config:
        every = config["sliding_window_pattern"]
        return [SLIDING] * (every - 1) + [FULL] if every else [SLIDING]
    has_windows = config.get("use_sliding_window")
    if "no_rope_layer_interval" in config:  # of SmolLM 3, in the blocks without rotary positions
        return [SLIDING if has_windows and not rotates else FULL for rotates in rotates_of(config)]
    depth = config["num_hidden_layers"]
    first = depth
    if has_windows:  # of Qwen, in the blocks after the first ones
        first = min(config.get("max_window_layers", depth), depth)
    return [FULL] * first + [SLIDING] * (depth - first)


def llama_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*LLAMA_BASE)
    options = architecture.backbone
    block = options["block"]
    has_norms_out = options["norm"]["place"] != "pre"
    queries = options["num_heads"] * block["head_dim"]
    keys = block["num_kv_heads"] * block["head_dim"]
    return {
        "adapters.text.embedding.weight": copied(f"{p}{WORDS}"),
        "head.output.weight": copied(OUTPUT),
        **blocks(
            {**LLAMA_BLOCK, **(NORMS_OUT if has_norms_out else {})},
            prefix=p + "layers.{i}",
            depth=options["depth"],
            rows={"attn.qkv": (queries, keys, keys)},
        ),
        **linears({"backbone.norm": f"{p}norm", "head.out": "score"}),
    }


def rotary_options(
    checkpoint: Checkpoint, settings: Mapping[str, Any], kinds: Sequence[str], window: int | None
) -> Options:
    """Return the options of the rotary positions and the windows.

    Args:
        checkpoint: The checkpoint, for messages.
        settings: Settings with the names of Llama.
        kinds: Kind of the attention of each block. Blocks repeat the list.
        window: Maximum distance of a query and a key in a block with a window.

    Raises:
        UserError: If dxn does not support a value.
    """
    # transformers 5 writes rope_parameters, older versions the other settings. With both, those of
    # rope_scaling are used, and added to those of full attention if kinds of attention differ.
    rope: dict[str, Any] = settings.get("rope_parameters") or {}
    scaled: dict[str, Any] = settings.get("rope_scaling") or {}
    if FULL in scaled or FULL not in rope:
        rope, scaled = scaled or rope, {}
    in_full = {"rope_theta": settings["rope_theta"], **rope.get(FULL, rope), **scaled}
    in_windows = {"rope_theta": settings.get("rope_local_base_freq"), **(rope.get(SLIDING) or {})}
    if scaling(checkpoint, settings, in_windows):
        hf.unsupported(checkpoint, "scaled rotary frequencies in blocks with a window")
    if other := set(kinds) - {FULL, SLIDING}:
        hf.unsupported(checkpoint, f"the kind of attention {min(other)!r}")
    window_theta = in_windows["rope_theta"]
    options = scaling(checkpoint, settings, in_full)
    return {
        "kind": "rotary",
        "rope_theta": float(in_full["rope_theta"]),
        **({"rope_scaling": options} if options else {}),
        "windows": hf.period([window if kind == SLIDING else None for kind in kinds]),
        "window_rope_theta": None if window_theta is None else float(window_theta),
    }


def scaling(
    checkpoint: Checkpoint, settings: Mapping[str, Any], rope: Mapping[str, Any]
) -> Options:
    """Return the options of scaled rotary frequencies."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    # Other models than these rotate only a part of a head, and have two more settings of YaRN.
    share = rope.get("partial_rotary_factor", settings.get("partial_rotary_factor"))
    if share not in (None, 1) or rope.get("mscale") or not rope.get("truncate", True):
        hf.unsupported(checkpoint, f"the rotary frequencies {dict(rope)}")
    if kind == "default":
        return {}
    if kind not in KINDS or {key for key in rope if rope[key]} - {
        *KINDS[kind].values(),
        *ROPE_KEYS,
    }:
        hf.unsupported(checkpoint, f"the rotary frequencies {dict(rope)}")
    rope = {"original_max_position_embeddings": settings["max_position_embeddings"], **rope}
    options = {ours: rope.get(theirs) for ours, theirs in KINDS[kind].items()}
    return {"kind": kind, **{name: value for name, value in options.items() if value is not None}}


LLAMA = Family(
    "Llama",
    hf.is_type(*MODELS),
    llama_architecture,
    llama_tensor_map,
    heads=("CausalLM", "SequenceClassification", hf.TAGS),
    # Old checkpoints contain the rotary frequencies.
    ignored=(r"lm_head\.", r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
    optional_biases=("score.bias",),
)


def gpt2_architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    dim = config["n_embd"]
    if config.get("scale_attn_by_inverse_layer_idx"):
        hf.unsupported(checkpoint, "attention scores that are scaled by the index of the block")
    if not config["scale_attn_weights"]:
        hf.unsupported(checkpoint, "attention scores that are not scaled")
    classifier = hf.classifier_options(checkpoint, "score")
    # The bare model is a language model too, because its embedding is the output layer.
    p = checkpoint.prefix(*GPT2_BASE)
    words, output = f"{p}wte.weight", "lm_head.weight"
    is_tied = config["tie_word_embeddings"] and hf.is_tied(checkpoint, words, output)
    if not classifier and not is_tied and output not in checkpoint:
        raise KeyError(output)
    return Architecture(
        dim=dim,
        adapters={
            "text": {
                "max_len": len(checkpoint.tensors[f"{p}wpe.weight"]),
                "pos_embed": "learned",
            }
        },
        backbone={
            "depth": config["n_layer"],
            "num_heads": config["n_head"],
            "causal": True,
            "block": {
                "mlp": hf.activation(checkpoint, config, "activation_function"),
                "hidden_dim": config.get("n_inner") or 4 * dim,
            },
            "norm": {"eps": config["layer_norm_epsilon"]},
        },
        fusion={"pool": "last"},  # in a causal model, only the last token attends to all tokens
        **(
            classifier
            or {
                "task": "language",
                "head": {} if is_tied else {"output": {"tie_embeddings": False}},
            }
        ),
    )


def gpt2_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*GPT2_BASE)
    depth = architecture.backbone["depth"]
    result = {
        "adapters.text.embedding.weight": copied(f"{p}wte.weight"),
        "adapters.text.pos_embed.weight": copied(f"{p}wpe.weight"),
        **blocks(GPT2_NORMS, prefix=p + "h.{i}", depth=depth),
        "head.output.weight": copied("lm_head.weight"),
        **linears({"backbone.norm": f"{p}ln_f", "head.out": "score"}),
    }
    # The library's Conv1D is a linear layer with a transposed weight.
    for i in range(depth):
        for name, layer in GPT2_LINEARS.items():
            source = f"{p}h.{i}.{layer}"
            result[f"backbone.blocks.{i}.{name}.weight"] = transposed(f"{source}.weight")
            result[f"backbone.blocks.{i}.{name}.bias"] = copied(f"{source}.bias")
    return result


GPT2 = Family(
    "GPT-2",
    hf.is_type("gpt2"),
    gpt2_architecture,
    gpt2_tensor_map,
    heads=("SequenceClassification",),
    # attn.bias and attn.masked_bias are constant buffers for the causal mask, not parameters.
    ignored=(r"lm_head\.", r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias"),
    optional_biases=("score.bias",),  # the classifier of transformers has no bias
)
