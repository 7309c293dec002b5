"""Generate docs/config.md from dxn/conf, the signatures and the docstrings.

python docs/reference.py
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import dxn
from dxn.cli import VERBS, top_keys
from dxn.conf_files import CONF, groups, node_of, options
from dxn.hints import option_group
from dxn.instantiate import FROM_CALLER, expand_defaults, resolve
from dxn.signatures import class_path, hints

PAGE = Path(__file__).with_name("config.md")
INTRO = """# Configuration, key by key

`make docs` writes this page from `dxn/conf`, the signatures and the docstrings; a test checks that
it is current.

Every option is a Hydra override, `key=value`. A config group selects a file, as in
`backbone=small`, or several files, as in `adapters=[text,image]`. `dxn show ...` prints the
configuration of a command line. Unknown keys, values of a wrong type and impossible combinations
stop the command before any data is read. The error lists all of them.

An option of a part of a part has several dots, such as `backbone.norm.eps`. If the default of a
part is `null`, setting one of its keys turns it on: `adapters.text.norm.eps=1e-5`.
"""
PUBLIC = """These files describe the architecture of public models: width, blocks, adapter, pooling
and head. `weights=...` loads the weights, see [public models](public-models.md)."""
HEAD = ("key", "default", "meaning")
# Groups whose files override options instead of describing a part. The page only lists them.
LISTED = ("debug", "experiment")


@dataclass(frozen=True)
class Row:
    """One key of a part: its dotted name, default and description."""

    key: str
    default: str
    meaning: str


def page() -> str:
    """Return the content of docs/config.md."""
    verbs = [verb_section(name) for name in VERBS if name != "show"]
    parts = [group_section(name) for name in groups() if name not in LISTED]
    lists = [listing(name) for name in LISTED]
    return "\n".join([INTRO, "## Verbs", "", *verbs, *parts, *lists])


def verb_section(verb: str) -> str:
    """Return the section of a verb: the top-level keys of its file, with their comments."""
    rows = comment_rows((CONF / f"{verb}.yaml").read_text(encoding="utf-8"))
    return "\n".join([f"### dxn {verb}", "", f"{VERBS[verb]}.", "", *table(rows), ""])


def group_section(group: str) -> str:
    """Return the section of a config group: its parts with their keys, defaults and docstrings."""
    lines = [f"## {group}", ""]
    # Files with the same class share a table. Its defaults differ between the files.
    by_target: dict[str, dict[str, dict[str, Any]]] = {}
    public = [option for option in options(group) if is_public(group, option)]
    for option in options(group):
        node = node_of(group, option)
        if "_target_" not in node:
            rows = comment_rows((CONF / group / f"{option}.yaml").read_text(encoding="utf-8"))
            lines += [f"### {group}={option}", "", *table(rows), ""]
        elif option not in public:
            by_target.setdefault(node["_target_"], {})[option] = node
    for nodes in by_target.values():
        names = list(nodes)
        # Only adapters have a level of names: a model can have several of them.
        prefix = f"{group}.{names[0]}." if group == "adapters" else f"{group}."
        lines += [f"### {group}={', '.join(names)}", "", *part(nodes, prefix), ""]
    for key, node in parts_below(by_target):
        target = resolve(node["_target_"], key=group)
        nodes = {"": {"_target_": node["_target_"]}}
        lines += [f"### {target.__name__}", "", *part(nodes, f"{group}.{key}."), ""]
    if public:
        lines += [f"### {group} of public models", "", PUBLIC, "", *listed(group, public), ""]
    return "\n".join(lines)


def listing(group: str) -> str:
    """Return the section of a group that is only listed."""
    return "\n".join([f"## {group}", "", *listed(group, options(group)), ""])


def listed(group: str, names: Sequence[str]) -> list[str]:
    """Return a table of files of a group, with the first sentence of their comments."""
    rows = []
    for name in names:
        text = (CONF / group / f"{name}.yaml").read_text(encoding="utf-8")
        comments = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
        comment = " ".join(line for line in comments if "@package" not in line)
        # The period of "et al. 2019" does not end a sentence. A command may follow the sentence.
        sentence = re.split(r"(?<=\.) (?=[A-Z]|dxn |torchrun )", comment)[0]
        rows.append(f"| `{group}={name}` | {sentence} |")
    return ["| option | purpose |", "|---|---|", *rows]


def is_public(group: str, option: str) -> bool:
    """Return whether a file describes the backbone and the adapter of a public model."""
    text = (CONF / group / f"{option}.yaml").read_text(encoding="utf-8")
    return group == "backbone" and "adapters" in yaml.safe_load(text)


def part(nodes: Mapping[str, dict[str, Any]], prefix: str) -> list[str]:
    """Return the summary and the keys of a class that one or several files describe.

    Args:
        nodes: Nodes by name of the file. All have the same `_target_`.
        prefix: Keys begin with this.
    """
    by_option = {option: list(rows_of(node, prefix)) for option, node in nodes.items()}
    merged = []
    for i, row in enumerate(next(iter(by_option.values()))):
        defaults = {option: rows[i].default for option, rows in by_option.items()}
        # Files with different defaults are listed in the cell: "base: `12`, tiny: `6`".
        same = len(set(defaults.values())) == 1
        texts = [f"{option}: {default}" for option, default in defaults.items()]
        merged.append(dataclasses.replace(row, default=row.default if same else ", ".join(texts)))
    target = resolve(next(iter(nodes.values()))["_target_"], key="part")
    summary = (inspect.getdoc(target) or "").split("\n\n")[0].replace("\n", " ")
    return [summary, "", *table(merged)]


def rows_of(node: Mapping[str, Any], prefix: str) -> Iterator[Row]:
    """Yield every key of a node, including those of nested groups of options."""
    target = resolve(node["_target_"], key=prefix)
    described = arguments(inspect.getdoc(target) or "")
    values = expand_defaults(node)
    for name, parameter in inspect.signature(target).parameters.items():
        key, meaning = f"{prefix}{name}", described.get(name, "")
        group = option_group(hints(target).get(name))
        value = values.get(name)
        if name in FROM_CALLER or (parameter.default is parameter.empty and name not in values):
            # The caller provides this argument, so it is not an option. **kwargs are options whose
            # names the user chooses.
            if parameter.kind is parameter.VAR_KEYWORD:
                meaning = described.get(f"**{name}", meaning)
                yield Row(f"{prefix}NAME", "`null`", meaning)
            continue
        if group is not None:
            default = value if isinstance(value, Mapping) else {"_target_": class_path(group)}
            # null turns the group off, which needs a row of its own.
            if value is None:
                yield Row(key, "`null`", meaning)
            yield from rows_of(default, f"{key}.")
        elif isinstance(value, Mapping) and "_target_" in value:
            yield Row(key, f"`{value['_target_']}`", meaning)
        else:
            yield Row(key, formatted(value), meaning)


def parts_below(
    by_target: Mapping[str, Mapping[str, Any]],
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the nested parts that no group describes, such as the decoder of a head."""
    described = {node_of(group, o).get("_target_") for group in groups() for o in options(group)}
    for nodes in by_target.values():
        for node in nodes.values():
            for key, value in node.items():
                target = value.get("_target_") if isinstance(value, Mapping) else None
                if target and target not in described:
                    described.add(target)
                    yield key, value


def arguments(doc: str) -> dict[str, str]:
    """Return the Args section of a docstring as descriptions by name."""
    section = doc.partition("Args:\n")[2].partition("\n\n")[0]
    # A name is indented by four spaces, and the lines that continue its description by more.
    entries = re.findall(r"^    ([*\w]+): (.+(?:\n     .+)*)$", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def comment_rows(text: str) -> list[Row]:
    """Return the keys of a file with the comments at the ends of their lines."""
    lines = "\n".join(top_keys(text.splitlines()))
    entries = re.findall(r"^([\w.]+): (.+?) # (.+)$", lines, re.MULTILINE)
    return [Row(key, formatted(yaml.safe_load(value)), meaning) for key, value, meaning in entries]


def table(rows: Sequence[Row]) -> list[str]:
    """Return a Markdown table of keys."""
    lines = [f"| `{row.key}` | {row.default} | {row.meaning} |" for row in rows]
    return [f"| {' | '.join(HEAD)} |", "|---|---|---|", *lines] if lines else ["No keys."]


def formatted(value: Any) -> str:
    """Return a value as YAML in backquotes."""
    # OmegaConf marks values that the user must set with ???.
    if value == "???":
        return "required"
    if isinstance(value, str):
        # ${value_or:key,fallback} is shown as ${key}. The fallback is for parts without the key.
        value = re.sub(r"\$\{value_or:([\w.]+),.*\}", r"${\1}", value)
    # A large width prevents line breaks, which a cell of a table cannot contain. safe_dump ends a
    # plain scalar with a line "...".
    text = yaml.safe_dump(value, default_flow_style=True, width=1000)
    return f"`{text.strip().removesuffix('...').strip()}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name} for dxn {dxn.__version__}")
