"""The JSON files of public checkpoints, and their pydantic models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from dxn.core.errors import UserError
from dxn.core.schema import Strict, validated
from dxn.core.untrusted import load_json

MAX_SHARDS = 10_000

Width = Annotated[int, Field(ge=1, le=1_000_000)]
Depth = Annotated[int, Field(ge=1, le=1_000)]
# Positions, rows of a vocabulary, pixels or frames.
Size = Annotated[int, Field(ge=1, le=100_000_000)]
Sizes = Size | Annotated[list[Size], Field(max_length=3)]
Positive = Annotated[float, Field(gt=0)]


class PublicConfig(Strict):
    """The settings in config.json that dxn uses, under the names of all families.

    Each family requires some of them. Other keys of the file are ignored.
    """

    # Infinity occurs in settings that dxn does not use.
    model_config = ConfigDict(extra="allow", allow_inf_nan=True)

    model_type: str | None = None
    architecture: str | None = None
    id2label: dict[str, Any] | None = None
    # Widths and depths, whose products are sizes of tensors.
    hidden_size: Width | None = None
    dim: Width | None = None
    n_embd: Width | None = None
    d_model: Width | None = None
    intermediate_size: Width | None = None
    hidden_dim: Width | None = None
    n_inner: Width | None = None
    encoder_ffn_dim: Width | None = None
    projection_dim: Width | None = None
    num_attention_heads: Width | None = None
    n_heads: Width | None = None
    n_head: Width | None = None
    encoder_attention_heads: Width | None = None
    num_hidden_layers: Depth | None = None
    n_layers: Depth | None = None
    n_layer: Depth | None = None
    encoder_layers: Depth | None = None
    vocab_size: Size | None = None
    max_position_embeddings: Size | None = None
    max_length: Size | None = None
    num_mel_bins: Width | None = None
    num_channels: Width | None = None
    image_size: Sizes | None = None
    patch_size: Sizes | None = None
    frequency_stride: Width | None = None
    time_stride: Width | None = None
    local_attention: Size | None = None
    global_attn_every_n_layers: Size | None = None
    pad_token_id: Annotated[int, Field(ge=-1, le=100_000_000)] | None = None
    layer_norm_eps: Positive | None = None
    layer_norm_epsilon: Positive | None = None
    norm_eps: Positive | None = None
    layerscale_value: float | None = None
    global_rope_theta: Positive | None = None
    local_rope_theta: Positive | None = None
    layer_types: list[str] | None = None
    rope_parameters: dict[str, Any] | None = None
    pretrained_cfg: dict[str, Any] | None = None
    model_args: dict[str, Any] | None = None
    # A model with two towers has one group of settings per tower.
    text_config: PublicConfig | None = None
    vision_config: PublicConfig | None = None


class ShardIndex(Strict):
    """The index of a checkpoint that consists of several files: the file of each tensor."""

    weight_map: Annotated[dict[str, str], Field(min_length=1)]


def shards(index: Path, content: Any) -> list[str]:
    """Return the names of the files that an index lists.

    Raises:
        UserError: If the index is not valid, or names a file of another folder.
    """
    names = sorted(set(validated(ShardIndex, content, f"weights: {index}").weight_map.values()))
    if len(names) > MAX_SHARDS:
        raise UserError(
            f"weights: {index}: must list at most {MAX_SHARDS:,} files, got {len(names):,}"
        )
    for name in names:
        # An untrusted checkpoint must not make dxn read files outside of its folder.
        if Path(name).name != name:
            raise UserError(
                f"weights: {index}: must contain names of files in the same folder, got {name!r}"
            )
    return names


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or {} if the file does not exist or has no object.

    Raises:
        UserError: If the file is not valid JSON, or not a regular file.
    """
    if not path.exists():
        return {}
    try:
        # Local copies of public checkpoints often contain links to a cache.
        content = load_json(path, allow_nan=True, allow_links=True)
    except UserError as error:
        raise UserError(f"weights: {error}; download it again") from error
    return content if isinstance(content, dict) else {}
