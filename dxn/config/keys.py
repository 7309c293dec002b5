"""The dotted keys of a configuration: their values, their types, and which have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dxn.config.instantiate import SPECIAL, expand_defaults
from dxn.config.schema import Parameter, Signature, value_type
from dxn.config.targets import signature_of
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


def type_of(
    key: str, values: Mapping[str, Any], parameters: Mapping[str, Parameter], trust: Sequence[str]
) -> Any:
    """Return the type of a key that can be set; None if there is no such key.

    Args:
        key: Dotted name.
        values: A configuration whose defaults have been added.
        parameters: Parameters of the command, which describe the top-level keys.
        trust: Top-level packages besides dxn whose code may be used.
    """
    node: Any = values
    known: Signature | None = Signature("", parameters=parameters)
    annotation: Any = None
    path = ""
    for name in key.split("."):
        parameter = None
        if known is not None:
            parameter = known.parameters.get(name)
            if parameter is None and known.others is not None:
                names = _columns(values, trust)
                parameter = known.others if names is None or name in names else None
            annotation = None if parameter is None else parameter.type
            if name in SPECIAL and path:
                annotation = Any
        elif value_type(annotation) is not None:
            annotation = value_type(annotation)
        elif isinstance(node, Mapping) and (name in node or (path and not node)):
            # A mapping without a class, such as adapters or pretrain. An empty one of a YAML file
            # is to be filled.
            annotation = Any
        elif annotation is not Any or node is not None:  # a new node of a mapping can have any key
            return None
        if annotation is None:
            return None
        node = node.get(name) if isinstance(node, Mapping) else None
        path = f"{path}.{name}" if path else name
        target = node.get("_target_") if isinstance(node, Mapping) else None
        target = target or (None if parameter is None else parameter.group)
        known = None if target is None else signature_of(target, key=path, trust=trust)
    return annotation


def all_keys(
    values: Mapping[str, Any],
    parameters: Mapping[str, Parameter],
    trust: Sequence[str],
    prefix: str = "",
) -> Iterator[str]:
    """Yield all keys that can be set, for a suggestion. See `type_of` for the arguments."""
    for name in dict.fromkeys([*values, *parameters]):
        if name in SPECIAL:
            continue
        path, value = f"{prefix}{name}", values.get(name)
        yield path
        group = parameters[name].group if name in parameters else None
        if value is None and group is not None:
            # Setting an option of a group whose default is null turns the group on, so the options
            # of the group are keys too.
            value = expand_defaults({"_target_": group}, trust, key=path)
        if isinstance(value, Mapping):
            target = value.get("_target_", group)
            below = {} if target is None else signature_of(target, key=path, trust=trust).parameters
            yield from all_keys(value, below, trust, f"{path}.")


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
    problems: list[str] = []
    for text in overrides:
        key, _, value = text.lstrip("+").partition("=")
        other = overriding(values, key)
        if other is not None and value != "null":
            problems.append(
                f"{key}: has no effect with {other}, got {value}; leave one of them out"
            )
    if problems:
        raise UserError("\n".join(problems))


def _columns(values: Mapping[str, Any], trust: Sequence[str]) -> set[str] | None:
    """Return the names of the columns that a table can have: its inputs and their modalities.

    They differ if two adapters read the same modality, such as text and title. None: any name,
    because the command has no adapters.
    """
    adapters = values.get("adapters")
    if not isinstance(adapters, Mapping):
        return None
    names = set(adapters)
    for name, node in adapters.items():
        if isinstance(node, Mapping) and "_target_" in node:
            signature = signature_of(node["_target_"], key=f"adapters.{name}", trust=trust)
            # A class attribute in dxn, but the protocol also allows an attribute of the instance.
            names |= {signature.modality} if signature.modality is not None else set()
    return names
