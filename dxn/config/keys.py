"""The keys that can be set in a configuration, and their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dxn.config.hints import Hint, option_group, suggestion, takes_mapping, type_fault, value_hint
from dxn.config.instantiate import FROM_CALLER, SPECIAL, expand_defaults
from dxn.config.targets import signature_of

# Types of the top-level keys of all commands. A key has the same meaning in every command. The keys
# of parts, such as backbone.depth, have the types of the signatures.
TOP: dict[str, Hint] = {
    "allowed_hosts": {"list": "str"},
    "approximate": "bool",
    "baseline": {"choices": ["auto", "always", "none"]},
    "batch_size": "int",
    "columns": {"mapping": "str"},
    "compile": ["bool", {"choices": ["auto"]}],
    "confine": "bool",
    "count": "int",
    "device": {"choices": ["auto", "cpu", "cuda", "mps"]},
    "dim": "int",
    "dtype": {"choices": ["auto", "float32", "bf16", "int8"]},
    "encoding": ["str", "null"],
    "ensemble": "int",
    "examples": "int",
    "format": "str",
    "host": "str",
    "index": "str",
    "k": "int",
    "keep": {"list": "str"},
    "labels": {"list": "str"},
    "license": ["str", "null"],
    "max_body": "float",
    "max_new": "int",
    "max_queue": "int",
    "max_samples": "int",
    "max_wait": "float",
    "message": "str",
    "name": ["str", "null"],
    "on_bad": {"choices": ["error", "skip", "missing"]},
    "only": [{"list": "str"}, "null"],
    "output": ["str", "null"],
    "port": "int",
    "preset": {"choices": ["auto", "plain"]},
    "private": "bool",
    "prompts": ["str", "null"],
    "repo": ["str", "null"],
    "resume.force": "bool",
    "resume.run": ["str", "null"],
    "report": "bool",
    "revision": ["str", "null"],
    "run": ["str", "null", {"list": "str"}],  # a list for dxn compare
    "seed": "int",
    "sep": ["str", "null"],
    "share_adapters": "bool",
    "share_backbone": "bool",
    "sheet": ["str", "null"],
    "split": [{"choices": ["train", "validation", "test"]}, "null"],
    "temperature": "float",
    "template": "str",
    "timeout": "float",
    "top_k": ["int", "null"],
    "top_p": ["float", "null"],
    "trust": {"list": "str"},
    "weights.adapters": {"mapping": "str"},
    "weights.part": ["str", "null"],
    "weights.revision": ["str", "null"],
    "weights.source": ["str", "null"],
    "weights.strict": "bool",
}


@dataclass
class Keys:
    """The keys that can be set.

    Args:
        types: Type of every key, by dotted name.
        open: Keys below which the user chooses the names, such as data.holdout.
        columns: Type of the **kwargs of each part that has them, by the key of the part. A
            table takes one argument per modality, such as data.text=COLUMN.
        names: Names that these arguments may have. None: any name.
    """

    types: dict[str, Hint] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    columns: dict[str, Hint] = field(default_factory=dict)
    names: frozenset[str] | None = None

    def has(self, key: str) -> bool:
        """Whether the key can be set."""
        parent, _, last = key.rpartition(".")
        if parent in self.columns and key not in self.types:
            return self.names is None or last in self.names
        return key in self.types or any(key.startswith(f"{prefix}.") for prefix in self.open)

    def hint(self, key: str) -> Hint:
        """Return the type of a key that can be set; "any" if it is unknown."""
        parent = key.rpartition(".")[0]
        if key not in self.types and parent in self.columns:
            return self.columns[parent]
        if key not in self.types and parent in self.types:
            return value_hint(self.types[parent])
        return self.types.get(key, "any")

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
    keys: Keys, node: Mapping[str, Any], key: str, types: Mapping[str, Hint], trust: Sequence[str]
) -> None:
    """Add the keys of a mapping to `keys`.

    Args:
        keys: The keys so far.
        node: A configuration or a part of it.
        key: Dotted key of the node; "" for the whole configuration.
        types: Types by name, for a node without `_target_`.
        trust: Top-level packages besides dxn whose code may be used.
    """
    prefix = f"{key}." if key else ""
    names = list(node)
    if "_target_" in node:
        signature = signature_of(node["_target_"], key=key, trust=trust)
        types = {name: signature.hint(name) for name in (*signature.parameters, *node)}
        # Arguments without a default are not in the expanded node, but they can be set.
        names += [n for n in signature.parameters if n not in node and n not in FROM_CALLER]
        if signature.others is not None:
            keys.columns[key] = signature.others.hint
    for name in names:
        path, value = f"{prefix}{name}", node.get(name)
        hint = types.get(name, "any") if "_target_" in node or not key else TOP.get(path, "any")
        keys.types[path] = hint
        group = option_group(hint)
        if value is None and group is not None:
            # Setting an option of a group whose default is null turns the group on, so the options
            # of the group are keys too.
            value = expand_defaults({"_target_": group}, trust, key=path)
        if isinstance(value, Mapping) and value:
            _add(keys, value, path, {}, trust)
        # An empty mapping in a YAML file, such as weights.adapters: {}, is to be filled.
        if takes_mapping(hint) or (hint == "any" and isinstance(value, Mapping) and not value):
            keys.open.add(path)


def _modalities(adapters: Mapping[str, Any], trust: Sequence[str]) -> frozenset[str]:
    """Return the modalities of the chosen adapters.

    They differ from the keys if two adapters read the same modality, such as text and title.
    """
    modalities: set[str] = set()
    for name, node in adapters.items():
        if isinstance(node, Mapping) and "_target_" in node:
            signature = signature_of(node["_target_"], key=f"adapters.{name}", trust=trust)
            # A class attribute in dxn, but the protocol also allows an attribute of the instance.
            if signature.modality is not None:
                modalities.add(signature.modality)
    return frozenset(modalities)
