"""The settings in config.json that a family did not read, and those that have no effect on it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dxn.core.errors import UserError
from dxn.core.untrusted import shortened
from dxn.weights.checkpoint import Checkpoint, GenerationConfig

MAX_SETTINGS = 8  # in a message
# Settings that may have any value if a family does not read them: names and regular expressions.
HARMLESS = (
    # Dropout and initial values.
    r".*drop.* init_std initializer_\w+ logit_scale_init_value sinusoidal_pos_embds",
    # Losses and pretraining.
    r"mask_\w+ apply_spec_augment norm_pix_loss ctc_\w+ codevector_dim proj_codevector_dim",
    r"num_codevector\w+ num_negatives contrastive_logits_temperature diversity_loss_weight",
    r"decoder_\w+ num_decoder_layers scale_decoder_outputs encoder_stride tdnn_\w+ ignore_index",
    r"xvector_output_dim sparse_pred\w+ repad_logits_with_grad auxiliary_loss no_object_weight",
    r"(class|bbox|giou)_cost (bbox|giou)_loss_coefficient eos_coefficient train_num_points",
    r"(class|mask|dice)_weight (oversample|importance_sample)_ratio no_mask_\w+ freeze_\w+",
    r"num_ctc_classes",
    # How texts are generated. `Checkpoint.generation` reads what dxn uses.
    *GenerationConfig.model_fields,
    r"do_sample temperature top_[kp] typical_p num_beam_groups \w+_penalty num_return_sequences",
    r"encoder_no_repeat_ngram_size early_stopping forced?_\w+ remove_invalid_values \w+_token_id",
    r"prefix median_filter_width cache_implementation",
    # What the tensors tell: sizes, and which layers there are.
    r"(\w+_)?vocab_size hidden_size intermediate_size num_hidden_layers mlp_ratio tubelet_size",
    r"max_position_embeddings extra_pos_embeddings max_(source|target)_positions n_positions n_ctx",
    r"image_size patch_size num_channels num_(register|detection)_tokens num_queries pooler_\w+",
    r"projection_(dim|size) num_feat_extract_layers classifier_proj_size image_seq_length",
    r"qk?v_bias (decoder|classifier)_bias use_mask_token use_mid_position_embeddings tie_\w+",
    r"vision_use_head",
    # Settings that another one replaces, or that only another setting needs.
    r"max_window_layers global_attn_every_n_layers sliding_window(_pattern)? use_sliding_window",
    r"no_rope_layer_interval dense_act_fn is_gated_act image_token_index num_adapter_layers",
    r"adapter_(kernel_size|stride) output_hidden_size",
    # Settings of classes without a family, and settings that transformers ignores.
    r"summary_\w+ stage_names out_(features|indices) reshape_hidden_states apply_layernorm",
    r"scale_embedding layer_norm_eps directionality n_special predict_special_tokens",
    r"normalize_(before|embedding) static_position_embeddings add_bias_logits",
    r"add_final_layer_norm is_llama_config dual_chunk_attention_config",
    # Bookkeeping, and how something is computed.
    r"_.* model_type architectures id2label label2id num_labels problem_type auto_map",
    r"(torch_)?dtype transformers_version transformers\.js_config finetuning_task",
    r"task_specific_params use_cache use_bfloat16 license language gradient_checkpointing",
    r"return_dict\w* torchscript output_(attentions|hidden_states|scores|past)",
    r"(tokenizer|processor)_class unsloth_\w+ feature_extractor_type",
    r"(model_max|seq|max_sequence)_length name_or_path custom_pipelines tf_legacy_loss",
    r"is_encoder_decoder \w*attn_implementation reference_compile deterministic_flash_attn",
    r"chunk_size_feed_forward reorder_and_upcast_attn pretraining_tp sentence_transformers",
    r"sbert_ce_default_activation_function (text|vision)_config(_dict)? chronos_config",
)
IS_HARMLESS = re.compile("|".join(" ".join(HARMLESS).split()))
# Values with which other settings have no effect.
NEUTRAL = {"position_embedding_type": "absolute"}
OFF: tuple[Any, ...] = (None, False, "", [], {})


def check_unread(checkpoint: Checkpoint, family: str) -> None:
    """Refuse a checkpoint with a setting that its family does not read, but may have an effect.

    Args:
        checkpoint: The checkpoint, whose settings the family has read.
        family: Name of the family.

    Raises:
        UserError: If there is such a setting.
    """
    # A family that does not use `Checkpoint.settings` reads config.json in another way.
    if not checkpoint.read.get(checkpoint.group):
        return
    unread = [f"{key}={shortened(value)}" for key, value in unread_settings(checkpoint)]
    if unread:
        more = f" and {len(unread) - MAX_SETTINGS} more" if len(unread) > MAX_SETTINGS else ""
        raise UserError(
            f"weights: {checkpoint.source}: config.json has settings that dxn does not know for "
            f"{family}, so its outputs may differ: {', '.join(unread[:MAX_SETTINGS])}{more}; set "
            "weights.strict=false to ignore them"
        )


def unread_settings(checkpoint: Checkpoint) -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of each setting that was not read and is not harmless."""
    groups: dict[str, Mapping[str, Any]] = {"": checkpoint.config}
    for group, read in checkpoint.read.items():
        # The settings of the other tower are not read, because it is not used.
        if group and read and isinstance(checkpoint.config.get(group), Mapping):
            groups[group] = checkpoint.config[group]
    for group, settings in groups.items():
        for key, value in settings.items():
            is_known = key in checkpoint.read.get(group, ()) or IS_HARMLESS.fullmatch(key)
            if not is_known and value not in OFF and value != NEUTRAL.get(key):
                yield f"{group}.{key}".removeprefix("."), value
