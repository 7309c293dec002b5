"""The page options.md, from the commands, dxn/conf, the signatures and the docstrings.

python docs/reference/options.py   # writes docs/reference/options.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dxn.commands import all_commands
from dxn.config.command import Command
from dxn.config.help import REQUIRED, Row, command_rows, option_rows, purpose, rows_of
from dxn.config.instantiate import signature_of
from dxn.config.signatures import signature_from
from dxn.config.words import CONF, groups, node_of, options

PAGE = Path(__file__).with_suffix(".md")
INTRO = """# Options, key by key

`make docs` writes this page from the commands, `dxn/conf`, the signatures and the docstrings.
`dxn help KEY` prints the same in a terminal.

Every option is a Hydra override, `key=value`. A config group selects a file, as in
`backbone=small`, or several files, as in `adapters=[text,image]`. `dxn show ...` prints the
configuration of a command line. Unknown keys, values of a wrong type and impossible combinations
stop the command before any data is read. The error lists all of them.

An option of a part of a part has several dots, such as `backbone.norm.eps`. If the default of a
part is `null`, setting one of its keys turns it on: `adapters.text.norm.eps=1e-5`.
"""
PUBLIC = """These files describe the architecture of public models: width, blocks, adapter, pooling
and head. `weights=...` loads the weights, see [public models](../public-models.md)."""
# Groups whose files override options instead of describing a part. The page only lists them.
LISTED = ("debug", "experiment")


class Cells(NamedTuple):
    """A row of a table of keys. The names are the headings."""

    key: str
    default: str
    meaning: str


def page() -> str:
    """Return the content of the page."""
    # Many commands share options. Each option is described at the first command that has it.
    described: dict[Cells, str] = {}
    verbs: list[str] = []
    for verb, command in all_commands().items():
        if verb != "show":
            verbs.append(command_section(command, described))
    parts = [group_section(name) for name in groups() if name not in LISTED]
    lists = [listing(name) for name in LISTED]
    return "\n".join([INTRO, "## Commands", "", *verbs, *parts, *lists])


def command_section(command: type[Command], described: dict[Cells, str]) -> str:
    """Return the section of a command: its options, except for the groups.

    Args:
        command: The command.
        described: The command that describes each option so far. Those of this one are added.
    """
    verb, own, shared = command.verb(), [], {}
    for row in cells(command_rows(command)):
        if row in described:
            shared.setdefault(described[row], []).append(row.key)
        else:
            described[row] = verb
            own.append(row)
    also = [f"As in `dxn {name}`: {', '.join(keys)}." for name, keys in shared.items()]
    return "\n\n".join(
        [f"### dxn {verb}", signature_from(command).summary, "\n".join(table(own)), *also, ""]
    )


def group_section(group: str) -> str:
    """Return the section of a config group: its parts with their keys, defaults and docstrings."""
    lines = [f"## {group}", ""]
    # Files with the same class share a table. Its defaults differ between the files.
    by_target: dict[str, dict[str, dict[str, Any]]] = {}
    public = [option for option in options(group) if is_public(group, option)]
    for option in options(group):
        node = node_of(group, option)
        if "_target_" not in node:
            rows = option_rows(group, option)
            lines += [f"### {group}={option}", "", *table(cells(rows)), ""]
        elif option not in public:
            by_target.setdefault(node["_target_"], {})[option] = node
    for nodes in by_target.values():
        names = list(nodes)
        # Only adapters have a level of names: a model can have several of them.
        prefix = f"{group}.{names[0]}." if group == "adapters" else f"{group}."
        lines += [f"### {group}={', '.join(names)}", "", *part(nodes, prefix), ""]
    for key, node in parts_below(by_target):
        name = signature_of(node["_target_"], key=group).name
        nodes = {"": {"_target_": node["_target_"]}}
        lines += [f"### {name}", "", *part(nodes, f"{group}.{key}."), ""]
    if public:
        lines += [f"### {group} of public models", "", PUBLIC, "", *listed(group, public), ""]
    return "\n".join(lines)


def listing(group: str) -> str:
    """Return the section of a group that is only listed."""
    return "\n".join([f"## {group}", "", *listed(group, options(group)), ""])


def listed(group: str, names: Sequence[str]) -> list[str]:
    """Return a table of files of a group, with the first sentence of their comments."""
    rows = [f"| `{group}={name}` | {purpose(group, name)} |" for name in names]
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
    for i, row in enumerate(cells(next(iter(by_option.values())))):
        defaults = {option: cells(rows)[i].default for option, rows in by_option.items()}
        # Files with different defaults are listed in the cell: "base: `12`, tiny: `6`".
        same = len(set(defaults.values())) == 1
        listed = ", ".join(f"{option}: {default}" for option, default in defaults.items())
        merged.append(row if same else row._replace(default=listed))
    target = next(iter(nodes.values()))["_target_"]
    return [signature_of(target, key="part").summary, "", *table(merged)]


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


def cells(rows: Sequence[Row]) -> list[Cells]:
    """Return the cells of a table of keys, in Markdown."""
    listed = []
    for row in rows:
        default = row.default if row.default == REQUIRED else f"`{row.default}`"
        listed.append(Cells(f"`{row.key}`", default, row.meaning))
    return listed


def table(rows: Sequence[Cells]) -> list[str]:
    """Return a Markdown table of keys."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    head = [f"| {' | '.join(Cells._fields)} |", "|---|---|---|"]
    return [*head, *lines] if lines else ["No keys."]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
