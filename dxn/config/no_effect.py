"""Options that have no effect together with the value of another option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dxn.config.keys import lookup
from dxn.core.errors import UserError

TOKENIZER = ("tokenizer.kind", "tokenizer.lowercase", "vocab_size")
# An option, its values with which others have no effect, and the ends of their keys. None stands
# for every value but null.
COMBINATIONS: tuple[tuple[str, tuple[Any, ...] | None, tuple[str, ...]], ...] = (
    ("tokenizer.path", None, TOKENIZER),
    ("share_tokenizer", (True,), TOKENIZER),
    ("hidden", ("none",), ("hidden_dim",)),
    ("norm", (False,), ("norm_eps",)),
    ("ngrams.lengths", ([], ()), ("ngrams.columns",)),
    ("resize.mode", ("within",), ("resize.crop_ratio",)),
    ("resize.mode", ("stretch", "crop"), ("resize.pos_grid",)),
    ("lora_rank", (0,), ("lora_alpha", "lora_targets")),
)


def overriding(values: Mapping[str, Any], key: str) -> str | None:
    """Return the option with whose value an option has no effect, such as "head.hidden=none".

    Args:
        values: The configuration.
        key: Dotted key of the option.
    """
    for other, useless, ends in COMBINATIONS:
        for end in ends:
            prefix = key.removesuffix(end)
            if prefix == key or not prefix.endswith("."):
                continue
            exists, value = lookup(values, f"{prefix}{other}")
            if exists and (value is not None if useless is None else value in useless):
                return f"{prefix}{other}={value}"
    return None


def refuse_without_effect(values: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse options of the command that have no effect.

    Those of an experiment or of a file are ignored: the user may have replaced them on purpose.

    Args:
        values: The configuration.
        overrides: The overrides as the user typed them.

    Raises:
        UserError: One line per option.
    """
    faults: list[str] = []
    for text in overrides:
        key, _, value = text.lstrip("+").partition("=")
        other = overriding(values, key)
        if other is not None and value != "null":
            faults.append(f"{key}: has no effect with {other}, got {value}; leave one of them out")
    if faults:
        raise UserError("\n".join(faults))
