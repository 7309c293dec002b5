"""The values of a configuration: dotted keys, the types that pydantic checks, and messages."""

from __future__ import annotations

import collections.abc
import functools
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from dxn.config.signatures import NAMES, NO_DEFAULT, UNIONS, Node
from dxn.core.errors import UserError, did_you_mean, similar
from dxn.core.printable import override_value

# Sentences about a value that has the right type, by the type of the error of pydantic.
RANGES = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} items",
    "string_too_short": "must have at least {min_length} characters",
}
# Items of lists.
ITEMS = {int: "integers", float: "numbers", str: "texts"}
TOKENIZER = ("tokenizer.kind", "tokenizer.lowercase", "vocab_size")
SCALED = tuple(f"rope_scaling.{n}" for n in ("factor", "original_len", "low", "high"))
ROTARY = ("rope_theta", "rope_scaling.kind", *SCALED, "rope_share", "rope_blocks")
# All kinds of pooling but map.
POOLS = (
    *("mean", "max", "cls", "attention", "first", "last", "mean_sqrt", "mean_linear"),
    *("cls_mean", "leading", "leading_cat"),
)
# An option, its values with which others have no effect, and the ends of their keys. None stands
# for every value but null, 0 and false.
COMBINATIONS: tuple[tuple[str, tuple[Any, ...] | None, tuple[str, ...]], ...] = (
    ("tokenizer.path", None, TOKENIZER),
    ("share_tokenizer", (True,), TOKENIZER),
    ("hidden", ("none",), ("hidden_dim",)),
    ("norm", (False,), ("norm_eps",)),
    ("resize.mode", ("within", "cover", "pad"), ("resize.crop_ratio",)),
    ("resize.mode", ("stretch", "crop", "pad"), ("resize.pos_grid",)),
    (
        "lora_rank",
        (0,),
        ("lora_alpha", "lora_dropout", "lora_rank_stabilized", "lora_targets"),
    ),
    ("split", None, ("fractions",)),
    ("overfit", None, ("repeats", "input_dropout")),
    ("num_workers", (0,), ("timeout",)),
    ("kind", ("none", "alibi", "buckets"), (*ROTARY, "window_rope_theta")),
    ("kind", ("none", "rotary", "alibi"), ("num_buckets", "max_distance")),
    ("rope_scaling.kind", ("none",), SCALED),
    ("rope_scaling.kind", ("linear",), SCALED[1:]),
    ("rope_scaling.kind", ("none", "linear", "llama3"), ("rope_scaling.attn_factor",)),
    ("pool", POOLS, ("map.num_heads", "map.mlp", "map.hidden_dim", "map.eps")),
    ("late_registers", (0,), ("late_blocks",)),
    ("embedding", ("linear",), ("num_bins",)),
    ("tokens", ("frames", "waveform"), ("patch.size", "patch.stride", "patch.pad_end")),
    ("tokens", ("patches",), ("frame_size",)),
    ("queries", None, ("duplicate",)),
    ("instances", (False,), ("max_objects",)),
)


def lookup(values: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    """Return whether a dotted key exists, and its value. The value alone could be None."""
    node: Any = values
    for name in key.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return False, None
        node = node[name]
    return True, node


def assign(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in place. A parent that is missing or not a mapping is replaced by one."""
    *parents, last = key.split(".")
    node = values
    for name in parents:
        if not isinstance(node.get(name), dict):
            node[name] = {}
        node = node[name]
    node[last] = value


def leaves(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted keys of all values. An empty mapping counts as a value."""
    keys: list[str] = []
    for name, value in values.items():
        key = f"{prefix}{name}"
        is_branch = isinstance(value, Mapping) and value
        keys += leaves(value, f"{key}.") if is_branch else [key]
    return keys


def is_below(key: str, groups: Iterable[str]) -> bool:
    """Whether a dotted key is one of these groups, or below one of them."""
    return any(key == group or key.startswith(f"{group}.") for group in groups)


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
            if exists and (bool(value) if useless is None else value in useless):
                return f"{prefix}{other}={override_value(value, str)}"
    # Those of another part of the configuration.
    if key == "optimizer.new_lr":
        starts = [lookup(values, name)[1] for name in ("weights.source", "weights.adapters")]
        _, pretrained = lookup(values, "pretrained")
        is_random = not any(starts) and pretrained in (None, "none")
        return "weights=null" if is_random else None
    _, overfit = lookup(values, "loader.overfit")
    return f"loader.overfit={overfit}" if overfit and ".augment." in key else None


def refuse_without_effect(values: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse options of the command that have no effect.

    Those of an experiment or of a file are ignored: the user may have replaced them on purpose.

    Args:
        values: The configuration.
        overrides: The overrides as the user typed them.

    Raises:
        UserError: One line per option.
    """
    problems: list[str] = []
    typed = {text.lstrip("+").partition("=")[0]: text for text in overrides}
    for key, text in typed.items():
        value = text.partition("=")[2]
        other = overriding(values, key)
        if key == "batch_size":  # which is the default of the other option
            other = typed.get("trainer.batch_size")
        if "debug" in typed and other is not None and other.startswith("loader.overfit="):
            other = None  # debug=fast shows whether the command of a longer training runs
        if other is not None and value != "null":
            problems.append(
                f"{key}: has no effect with {other}, got {value}; leave one of them out"
            )
    if problems:
        raise UserError("\n".join(problems))


def problem(value: Any, annotation: Any, default: Any = NO_DEFAULT) -> str | None:
    """Return what is wrong with a value, such as "must be a number, got 'x'". None if it fits.

    A node (a mapping with `_target_`) fits every class, because an object is built from it.

    Args:
        value: The value.
        annotation: Its type, see `plain_type`.
        default: A value that fits.
    """
    # Most values are defaults, and checking them would take a tenth of a second.
    if type(value) is type(default) and value == default:
        return None
    from pydantic import ValidationError

    try:
        _adapter(annotation).validate_python(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
    else:
        return None
    if any(details["type"] == "finite_number" for details in errors):
        what = "all be finite numbers" if isinstance(value, list) else "be a finite number"
        return f"must {what}, got {value!r}"
    for details in errors:
        # Only of the value itself or one of a mapping, and not of an item of a list.
        if details["type"] in RANGES and not isinstance(value, list | tuple):
            name, received = "", value
            if isinstance(value, Mapping):
                key = next((key for key in details["loc"] if key in value), None)
                name, received = f"{key} ", value.get(key)
            # pydantic returns the limit 1 of a float as 1.0.
            limits = {n: int(v) if v == int(v) else v for n, v in details.get("ctx", {}).items()}
            return f"{name}{RANGES[details['type']].format(**limits)}, got {received!r}"
    if not any(typing.get_origin(member) is Literal for member in members(annotation)):
        hint = '; a number in quotes is a text: ["1"]'
        is_unquoted = isinstance(value, list) and any(
            isinstance(item, int | float) for item in value
        )
        described = describe(annotation)
        hint *= is_unquoted and ITEMS[str] in described
        return f"must be {described}, got {value!r}{hint}"
    listed = choices(annotation)
    hint = did_you_mean(str(value), listed, "{}")
    mapping = "" if value_type(annotation) is None else ", or a mapping"
    return f"must be one of {', '.join(listed)}{mapping}, got {value!r}{hint}"


@functools.cache
def _adapter(annotation: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    # Strict: in Python, True is an int, but as a number of epochs it is a mistake.
    return TypeAdapter(annotation, config=ConfigDict(strict=True, allow_inf_nan=False))


def members(annotation: Any) -> Sequence[Any]:
    """Return the alternatives of a type, or the type itself if it has none.

    What an annotation adds is left out, except for the class of a node.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in UNIONS:
        return [part for member in arguments for part in members(member)]
    if origin is Annotated and not isinstance(arguments[1], Node):
        return members(arguments[0])
    return [annotation]


def value_type(annotation: Any) -> Any:
    """Return the type of the values of a mapping whose keys the user chooses, or None.

    Such a mapping is the value of data.holdout.
    """
    for member in members(annotation):
        if typing.get_origin(member) is collections.abc.Mapping:
            return typing.get_args(member)[1]
    return None


def choices(annotation: Any) -> list[str]:
    """Return the values of a type that has only some, as YAML writes them."""
    listed: list[str] = []
    for member in members(annotation):
        if member is bool:
            listed += ["true", "false"]
        elif typing.get_origin(member) is Literal:
            listed += map(_written, typing.get_args(member))
    return listed


def describe(annotation: Any) -> str:
    """Return a type in words, for a message or a help page."""
    *others, last = dict.fromkeys(_name(member) for member in members(annotation))
    return f"{', '.join(others)} or {last}" if others else last


def suggestion(wrong: str, keys: Sequence[str]) -> str:
    """Return " did you mean KEY?" for the known dotted key most similar to a wrong one, or "".

    The leading space lets the result be appended to a sentence whether it is empty or not.
    """
    parent, _, last = wrong.rpartition(".")
    # First a key with the same last name: `lr` means optimizer.lr.
    same = [key for key in keys if key.rpartition(".")[2] == last]
    # Then a similar name at the same place. The place alone must not count as similarity:
    # trainer.foo has most of its letters in common with trainer.seed.
    siblings = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == parent}
    # Finally, a similar name anywhere.
    anywhere = {key.rpartition(".")[2]: key for key in reversed(keys)}
    close = same[:1]
    for names in (siblings, anywhere):
        if not close and (match := similar(last, list(names))):
            close = [names[match]]
    return f" did you mean {close[0]}?" if close else ""


def _name(member: Any) -> str:
    origin = typing.get_origin(member)
    if origin is Literal:
        return f"one of {', '.join(map(_written, typing.get_args(member)))}"
    if origin is Annotated:
        return typing.get_args(member)[1].path.rpartition(".")[2]
    if member in NAMES:
        return NAMES[member]
    if issubclass(origin, Mapping):
        return "a mapping"
    item = members(typing.get_args(member)[0])[0]
    if typing.get_origin(item) is Literal:
        return f"a list of values from {', '.join(map(_written, typing.get_args(item)))}"
    items = ITEMS.get(item)
    return f"a list of {items}" if items else "a list"


def _written(value: Any) -> str:
    # As YAML writes it.
    return str(value).lower() if isinstance(value, bool) else str(value)
