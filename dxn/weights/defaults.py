"""The settings in config.json that dxn uses: their default values and their types.

A file can leave out settings that have the default values, which depend on the type of the model in
transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, create_model

from dxn.core.schema import validated

Settings = Mapping[str, Any]

SIZES: Settings = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
DINOV2: Settings = {**SIZES, "layer_norm_eps": 1e-6, "image_size": 224, "layerscale_value": 1.0}
CLIP: Settings = {**SIZES, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
SIGLIP: Settings = {**SIZES, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
WAV2VEC2: Settings = {
    **SIZES,
    "layer_norm_eps": 1e-5,
    "conv_dim": [512] * 7,
    "conv_kernel": [10, 3, 3, 3, 3, 2, 2],
    "conv_stride": [5, 2, 2, 2, 2, 2, 2],
    "conv_bias": False,
    "feat_extract_norm": "group",
    "feat_extract_activation": "gelu",
    "feat_proj_layer_norm": True,
    "num_conv_pos_embeddings": 128,
    "num_conv_pos_embedding_groups": 16,
    "pad_token_id": 0,
}
LLAMA: Settings = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}
QWEN: Settings = {
    **LLAMA,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "eos_token_id": None,
}
GEMMA: Settings = {
    **LLAMA,
    "hidden_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "intermediate_size": 24576,
    "max_position_embeddings": 8192,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}
GEMMA2: Settings = {
    **GEMMA,
    "hidden_size": 2304,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 9216,
    "query_pre_attn_scalar": 256.0,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
}
T5: Settings = {
    "d_model": 512,
    "num_layers": 6,
    "num_heads": 8,
    "d_kv": 64,
    "d_ff": 2048,
    "feed_forward_proj": "relu",
    "layer_norm_epsilon": 1e-6,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "tie_word_embeddings": True,
    "n_positions": 512,  # T5 has no limit; this is the length of its training
    "pad_token_id": 0,
    "eos_token_id": 1,
}
BART: Settings = {
    "d_model": 1024,
    "encoder_layers": 12,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_layers": 12,
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
    "activation_function": "gelu",
    "max_position_embeddings": 1024,
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
DEFAULTS: dict[str, Settings] = {
    "bert": SIZES,
    "roberta": {**SIZES, "pad_token_id": 1},
    "xlm-roberta": {**SIZES, "pad_token_id": 1},
    "distilbert": {
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
        "activation": "gelu",
    },
    "modernbert": {
        **SIZES,
        "num_hidden_layers": 22,
        "intermediate_size": 1152,
        "max_position_embeddings": 8192,
        "hidden_activation": "gelu",
        "classifier_activation": "gelu",
        "classifier_pooling": "cls",
        "norm_eps": 1e-5,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
    },
    "gpt2": {
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
        "eos_token_id": 50256,
    },
    "llama": LLAMA,
    "mistral": {
        **LLAMA,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "sliding_window_pattern": None,  # all blocks have a window
    },
    "qwen2": QWEN,
    "qwen3": {**QWEN, "head_dim": 128},
    "smollm3": {
        **LLAMA,
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "rope_theta": 2e6,
        "no_rope_layer_interval": 4,
        "tie_word_embeddings": True,
        "eos_token_id": 128001,
    },
    "olmo2": {**LLAMA, "rms_norm_eps": 1e-5, "eos_token_id": 50279},
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": {
        **GEMMA2,
        "max_position_embeddings": 131072,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "sliding_window_pattern": 6,
    },
    "t5": T5,
    "mt5": {
        **T5,
        "num_layers": 8,
        "num_heads": 6,
        "d_ff": 1024,
        "feed_forward_proj": "gated-gelu",
        "scale_decoder_outputs": False,
    },
    "bart": {**BART, "decoder_start_token_id": 2, "forced_eos_token_id": 2},
    "mbart": {**BART, "forced_eos_token_id": 2},
    "marian": {
        **BART,
        "bos_token_id": None,
        "pad_token_id": 58100,
        "eos_token_id": 0,
        "decoder_start_token_id": 58100,
        "forced_eos_token_id": 0,
    },
    "m2m_100": {
        **BART,
        "activation_function": "relu",
        "scale_embedding": True,
        "decoder_start_token_id": 2,
    },
    "whisper": {
        **BART,
        "d_model": 384,
        "encoder_layers": 4,
        "encoder_attention_heads": 6,
        "encoder_ffn_dim": 1536,
        "decoder_layers": 4,
        "decoder_attention_heads": 6,
        "decoder_ffn_dim": 1536,
        "vocab_size": 51865,
        "num_mel_bins": 80,
        "begin_suppress_tokens": [220, 50256],
        "bos_token_id": 50256,
        "pad_token_id": 50256,
        "eos_token_id": 50256,
        "decoder_start_token_id": 50257,
    },
    "wav2vec2": WAV2VEC2,
    "hubert": WAV2VEC2,
    "llava": {
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "projector_hidden_act": "gelu",
        "multimodal_projector_bias": True,
        "image_token_index": 32000,
    },
    "audio-spectrogram-transformer": {
        **SIZES,
        "patch_size": 16,
        "frequency_stride": 10,
        "time_stride": 10,
        "max_length": 1024,
        "num_mel_bins": 128,
    },
    "clip_text_model": {
        **CLIP,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
    },
    "clip_vision_model": CLIP,
    "siglip_text_model": SIGLIP,
    "siglip_vision_model": SIGLIP,
    "siglip2_text_model": SIGLIP,
    "siglip2_vision_model": SIGLIP,
    "vit": SIZES,
    "deit": SIZES,
    "dinov2": DINOV2,
    "dinov2_with_registers": DINOV2,
    "videomae": {**SIZES, "image_size": 224, "num_frames": 16, "use_mean_pooling": True},
}

TOWERS = ("text", "vision")  # of which each has a group of settings, such as text_config

# The types of settings limit sizes, so that a damaged file does not ask for all the memory.
Depth = Annotated[int, Field(ge=1, le=1_000)]
Width = Annotated[int, Field(ge=1, le=1_000_000)]
# Positions, rows of a vocabulary, pixels or frames.
Length = Annotated[int, Field(ge=1, le=100_000_000)]
Lengths = Length | Annotated[list[Length], Field(max_length=3)]
Positive = Annotated[float, Field(gt=0)]
Widths = Annotated[list[Width], Field(min_length=1, max_length=100)]
DEPTHS = (
    *("num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_decoder_layers"),
    *("encoder_layers", "decoder_layers"),
)
LENGTHS = (
    *("vocab_size", "max_position_embeddings", "n_positions", "max_length", "num_frames"),
    *("relative_attention_num_buckets", "relative_attention_max_distance"),
    *("local_attention", "global_attn_every_n_layers", "no_rope_layer_interval"),
    *("sliding_window", "sliding_window_pattern"),
)
MAPPINGS = ("id2label", "rope_parameters", "rope_scaling", "pretrained_cfg", "model_args")
# Types of the settings that have no default value, or another type than `default_type` returns.
TYPES: dict[str, Any] = {
    **dict.fromkeys(DEPTHS, Depth),
    **dict.fromkeys(LENGTHS, Length),
    **dict.fromkeys(MAPPINGS, dict[str, Any]),
    **dict.fromkeys(("image_size", "patch_size"), Lengths),
    **dict.fromkeys(("model_type", "architecture"), str),
    **dict.fromkeys(("n_inner", "num_channels"), Width),
    **dict.fromkeys((f"{tower}_config" for tower in TOWERS), dict[str, Any]),
    "image_token_index": Length,
    "layerscale_value": float,
    "layer_types": Annotated[list[str], Field(max_length=1_000)],
    "max_window_layers": Annotated[int, Field(ge=0)],
    "no_rope_layers": list[int],
    "pad_token_id": Annotated[int, Field(ge=-1, le=100_000_000)],  # some files have -1 for none
}


def default_type(key: str, value: Any) -> Any:
    """Return the type of a setting with a default value; None: its value is not checked.

    `Checkpoint.generation` checks the ids of the other tokens.
    """
    if key.endswith(("_token_id", "_tokens")) or not value:
        return None
    number = value[0] if isinstance(value, list) else value
    if type(number) is int and number > 0:
        return Widths if isinstance(value, list) else Width
    return Positive if isinstance(value, float) else None


def setting_types() -> dict[str, Any]:
    """Return the type of each setting whose value is checked."""
    types: dict[str, Any] = {}
    for settings in DEFAULTS.values():
        for key, value in settings.items():
            kind = default_type(key, value)
            if kind is not None:
                types[key] = kind
    return {**types, **TYPES}


OPTIONAL: dict[str, Any] = {key: (kind | None, None) for key, kind in setting_types().items()}
SCHEMA = create_model("PublicConfig", __config__=ConfigDict(strict=True), **OPTIONAL)


def check_settings(config: Settings, source: str) -> None:
    """Check the values in config.json that dxn uses.

    Args:
        config: The settings.
        source: The file, for messages.

    Raises:
        UserError: If a value has the wrong type, or is too large.
    """
    validated(SCHEMA, config, source)
    for tower in TOWERS:
        if group := config.get(f"{tower}_config"):
            check_settings(group, f"{source}: {tower}_config")


def with_defaults(config: Settings, kind: str | None = None) -> dict[str, Any]:
    """Return the settings of config.json, or of one tower, with the default values.

    Args:
        config: The settings.
        kind: Type of the model. Default: the value of model_type.
    """
    kind = str(config.get("model_type", "")) if kind is None else kind
    result = {**DEFAULTS.get(kind, {}), **config}
    for tower in TOWERS:
        if isinstance(config.get(f"{tower}_config"), Mapping):
            group = config[f"{tower}_config"]
            group_kind = group.get("model_type") or f"{kind}_{tower}_model"
            result[f"{tower}_config"] = with_defaults(group, group_kind)
    return result
