"""Describe the keys of a configuration: type, default and meaning. Help and docs print them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dxn.config.groups import CONF, file_of, node_of
from dxn.config.hints import Hint, describe, option_group
from dxn.config.instantiate import FROM_CALLER, expand_defaults
from dxn.config.keys import TOP
from dxn.config.targets import signature_of

NULL = "null"
REQUIRED = "required"


@dataclass(frozen=True)
class Row:
    """One key.

    Args:
        key: Dotted name of the key.
        default: Default as YAML; "required" if there is none.
        meaning: Description from the docstring or the YAML file.
        type: Type of the values in words; "" if it is unknown.
        part: The node that the key contains, for a part such as the decoder of a head.
    """

    key: str
    default: str
    meaning: str
    type: str = ""
    part: Mapping[str, Any] | None = None


def option_rows(
    group: str, option: str, folders: Sequence[Path] = (CONF,), trust: Sequence[str] = ()
) -> list[Row]:
    """Return all keys of the part that a file of a group describes.

    A file with `# @package _global_`, such as an experiment, has none: it sets keys of other parts.
    """
    node = node_of(group, option, folders)
    # Only adapters have a level of names: a model can have several of them.
    prefix = f"{group}.{option}." if group == "adapters" else f"{group}."
    if "_target_" in node:
        return list(rows_of(node, prefix, trust))
    text = file_of(group, option, folders).read_text(encoding="utf-8")
    rows = [] if "@package _global_" in text else comment_rows(text)
    return [Row(f"{prefix}{row.key}", row.default, row.meaning) for row in rows]


def rows_of(node: Mapping[str, Any], prefix: str, trust: Sequence[str] = ()) -> Iterator[Row]:
    """Yield every key of a node, including those of nested groups of options."""
    signature = signature_of(node["_target_"], key=prefix, trust=trust)
    values = expand_defaults(node, trust)
    for name, parameter in signature.parameters.items():
        # The calling code provides such an argument, so it is not an option.
        if name in FROM_CALLER or (parameter.required and name not in values):
            continue
        key, value = f"{prefix}{name}", values.get(name)
        group = option_group(parameter.hint)
        kind = describe(parameter.hint)
        if group is not None:
            # null turns the group off, which needs a row of its own.
            if value is None:
                yield Row(key, NULL, parameter.meaning, kind)
            default = value if isinstance(value, Mapping) else {"_target_": group}
            yield from rows_of(default, f"{key}.", trust)
        elif isinstance(value, Mapping) and "_target_" in value:
            yield Row(key, value["_target_"], parameter.meaning, kind, value)
        else:
            yield Row(key, as_yaml(value), parameter.meaning, kind)
    if signature.others is not None:
        kind = describe(signature.others.hint)
        yield Row(f"{prefix}NAME", NULL, signature.others.meaning, kind)


def verb_rows(verb: str) -> list[Row]:
    """Return the top-level keys of a command, from the comments in its file."""
    return comment_rows((CONF / f"{verb}.yaml").read_text(encoding="utf-8"))


def comment_rows(text: str) -> list[Row]:
    """Return the keys of a file with the comments at the ends of their lines."""
    lines = "\n".join(_full_keys(text.splitlines()))
    entries = re.findall(r"^([\w.]+): (.+?) # (.+)$", lines, re.MULTILINE)
    return [
        Row(key, as_yaml(yaml.safe_load(value)), meaning, _top_type(TOP.get(key, "any")))
        for key, value, meaning in entries
    ]


def group_comments(verb: str) -> dict[str, str]:
    """Return what each group of a command selects, from the comments in its list of defaults."""
    text = (CONF / f"{verb}.yaml").read_text(encoding="utf-8")
    return dict(re.findall(r"^  - (?:optional )?(\w+): [^#]+ # (.+)$", text, re.MULTILINE))


def purpose(group: str, option: str, folders: Sequence[Path] = (CONF,)) -> str:
    """Return the first sentence of the comment at the start of a file."""
    text = file_of(group, option, folders).read_text(encoding="utf-8")
    lines = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
    comment = " ".join(line for line in lines if "@package" not in line)
    # The period of "et al. 2019" does not end a sentence. A command may follow the sentence.
    return re.split(r"(?<=\.) (?=[A-Z]|dxn |torchrun )", comment)[0]


def as_yaml(value: Any) -> str:
    """Return a value as one line of YAML."""
    # OmegaConf marks values that the user must set with ???.
    if value == "???":
        return REQUIRED
    if isinstance(value, str):
        # ${value_or:key,fallback} is shown as ${key}. The fallback is for parts without the key.
        value = re.sub(r"\$\{value_or:([\w.]+),.*\}", r"${\1}", value)
    # A large width prevents line breaks. safe_dump ends a plain scalar with a line "...".
    text = yaml.safe_dump(value, default_flow_style=True, width=1000)
    return text.strip().removesuffix("...").strip()


def _top_type(hint: Hint) -> str:
    return "" if hint == "any" else describe(hint)


def _full_keys(lines: Sequence[str]) -> list[str]:
    """Return the lines of a file with full names of the keys, such as weights.source."""
    keys: list[str] = []
    parent = ""
    for line in lines:
        if line.startswith("  ") and parent:
            keys.append(f"{parent}.{line.strip()}")
        elif line[:1].isalpha():
            is_parent = line.endswith(":")
            parent = line.removesuffix(":") if is_parent and line != "defaults:" else ""
            if not is_parent:
                keys.append(line)
    return keys
