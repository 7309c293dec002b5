"""Rotary positions and attention windows, which several families describe in the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dxn.weights.checkpoint import Checkpoint
from dxn.weights.families import hf
from dxn.weights.family import Options

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


def position_options(
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
    # transformers 5 writes rope_parameters, older versions the other settings.
    rope: dict[str, Any] = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    in_full = {"rope_theta": settings["rope_theta"], **rope.get(FULL, rope)}
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
    if kind not in KINDS:
        hf.unsupported(checkpoint, f"the rotary frequencies {dict(rope)}")
    rope = {"original_max_position_embeddings": settings["max_position_embeddings"], **rope}
    options = {ours: rope.get(theirs) for ours, theirs in KINDS[kind].items()}
    return {"kind": kind, **{name: value for name, value in options.items() if value is not None}}
