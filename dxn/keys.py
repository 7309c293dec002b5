"""The keys that can be set in a configuration, and their types."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dxn.hints import option_group, suggestion, takes_mapping, type_fault
from dxn.instantiate import FROM_CALLER, SPECIAL, expand_defaults, resolve
from dxn.signatures import class_path, hints, parameters, takes_any_name

# Types of the top-level keys of all commands. A key has the same meaning in every command. The keys
# of parts, such as backbone.depth, have the types of the signatures.
TOP: dict[str, Any] = {
    "batch_size": int,
    "count": int,
    "device": Literal["auto", "cpu", "cuda", "mps"],
    "dim": int,
    "max_new": int,
    "name": str | None,
    "on_bad": Literal["error", "skip", "missing"],
    "only": Sequence[str] | None,
    "output": str | None,
    "resume": str | None,
    "run": str | None,
    "seed": int,
    "share_adapters": bool,
    "split": Literal["train", "validation", "test"] | None,
    "temperature": float,
    "top_k": int | None,
    "top_p": float | None,
    "trust": Sequence[str],
    "weights.adapters": Mapping[str, str],
    "weights.part": str | None,
    "weights.revision": str | None,
    "weights.source": str | None,
    "weights.strict": bool,
}


@dataclass
class Keys:
    """The keys that can be set.

    Args:
        types: Type hint of every key, by dotted name.
        open: Keys below which the user chooses the names, such as data.holdout.
        columns: Type hint of the **kwargs of each part that has them, by the key of the part. A
            table takes one argument per modality, such as data.text=COLUMN.
        names: Names that these arguments may have. None: any name.
    """

    types: dict[str, Any] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    columns: dict[str, Any] = field(default_factory=dict)
    names: frozenset[str] | None = None

    def has(self, key: str) -> bool:
        """Whether the key can be set."""
        parent, _, last = key.rpartition(".")
        if parent in self.columns and key not in self.types:
            return self.names is None or last in self.names
        return key in self.types or any(key.startswith(f"{prefix}.") for prefix in self.open)

    def hint(self, key: str) -> Any:
        """Return the type hint of a key that can be set; Any if its type is unknown."""
        parent = key.rpartition(".")[0]
        if key not in self.types and parent in self.columns:
            return self.columns[parent]
        if key not in self.types and parent in self.types:
            return _value_hint(self.types[parent])
        return self.types.get(key, Any)

    def suggestion(self, wrong: str) -> str:
        """Return " did you mean KEY?" for an unknown key, or ""."""
        # `_target_` can be set, but it is never what a user mistyped.
        known = [key for key in self.types if key.rpartition(".")[2] not in SPECIAL]
        return suggestion(wrong, known)


def known_keys(values: Mapping[str, Any], trust: Sequence[str] = ()) -> Keys:
    """Return the keys of a configuration whose defaults have been added."""
    keys = Keys()
    adapters = values.get("adapters")
    # A column can only be assigned to an input that some adapter reads.
    if isinstance(adapters, Mapping):
        keys.names = frozenset(adapters) | _modalities(adapters, trust)
    _add(keys, values, "", TOP, trust)
    return keys


def top_errors(values: Mapping[str, Any]) -> list[str]:
    """Return one line per top-level key whose value has a wrong type."""
    faults = []
    for key, hint in TOP.items():
        exists, value = lookup(values, key)
        if exists and (fault := type_fault(value, hint)):
            faults.append(f"{key}: {fault}")
    return faults


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


def _add(
    keys: Keys, node: Mapping[str, Any], key: str, types: Mapping[str, Any], trust: Sequence[str]
) -> None:
    """Add the keys of a mapping to `keys`.

    Args:
        keys: The keys so far.
        node: A configuration or a part of it.
        key: Dotted key of the node; "" for the whole configuration.
        types: Type hints by name, for a node without `_target_`.
        trust: Top-level packages besides dxn whose code may be used.
    """
    prefix = f"{key}." if key else ""
    names = list(node)
    if "_target_" in node:
        target = resolve(node["_target_"], key=key, trust=trust)
        types = hints(target)
        # Arguments without a default are not in the expanded node, but they can be set.
        names += [n for n in parameters(target) if n not in node and n not in FROM_CALLER]
        if takes_any_name(target):
            keys.columns[key] = types.get("**", Any)
    for name in names:
        path, value = f"{prefix}{name}", node.get(name)
        hint = types.get(name, Any) if "_target_" in node or not key else TOP.get(path, Any)
        keys.types[path] = hint
        group = option_group(hint)
        if value is None and group is not None:
            # Setting an option of a group whose default is null turns the group on, so the options
            # of the group are keys too.
            value = expand_defaults({"_target_": class_path(group)}, trust, key=path)
        if isinstance(value, Mapping) and value:
            _add(keys, value, path, {}, trust)
        # An empty mapping in a YAML file, such as weights.adapters: {}, is to be filled.
        if takes_mapping(hint) or (hint is Any and isinstance(value, Mapping) and not value):
            keys.open.add(path)


def _modalities(adapters: Mapping[str, Any], trust: Sequence[str]) -> frozenset[str]:
    """Return the modalities of the chosen adapters.

    They differ from the keys if two adapters read the same modality, such as text and title.
    """
    modalities: set[str] = set()
    for name, node in adapters.items():
        if isinstance(node, Mapping) and "_target_" in node:
            target = resolve(node["_target_"], key=f"adapters.{name}", trust=trust)
            # A class attribute in dxn, but the protocol also allows an attribute of the instance.
            modality = getattr(target, "modality", None)
            if isinstance(modality, str):
                modalities.add(modality)
    return frozenset(modalities)


def _value_hint(hint: Any) -> Any:
    """Return the type hint of a mapping's values; Any if it has none."""
    for member in (hint, *typing.get_args(hint)):
        arguments = typing.get_args(member)
        if takes_mapping(member) and len(arguments) == 2:
            return arguments[1]
    return Any
