"""Writes docs/config.md from conf/ and the docstrings: python docs/reference.py"""

import importlib
import inspect
import re
from pathlib import Path

import yaml

import dxn
from dxn.cli import VERBS, top_keys
from dxn.config import CONF, groups, options

PAGE = Path(__file__).with_name("config.md")
INTRO = """# Configuration, key by key

Written by `make docs` from `dxn/conf` and the docstrings; a test checks that it is current.

Every option is a Hydra override, `key=value`; a group chooses a file, `backbone=small`; `adapters=[text,image]` chooses
several. `dxn show ...` prints what a command line comes to. A key that does not exist, a value of the wrong type and a
combination that cannot be stop the command before any data is read, all of them listed at once.
"""


PUBLIC = "Their width, blocks, adapter, pooling and head; the weights come with `weights=`, see public-models.md."


def page() -> str:
    """The whole of docs/config.md."""
    verbs = "\n".join(verb_section(name) for name in VERBS if name != "show")
    parts = "\n".join(group_section(name) for name in groups() if name not in ("experiment", "debug"))
    return f"{INTRO}\n## Verbs\n\n{verbs}\n{parts}\n{listing('debug')}\n{listing('experiment')}"


def verb_section(name: str) -> str:
    """The keys that stand at the top of a verb's file, with their comments."""
    keys = "\n".join(top_keys((CONF / f"{name}.yaml").read_text().splitlines()))
    rows = re.findall(r"^([\w.]+): (.+?) # (.+)$", keys, re.M)
    lines = [f"| `{key}` | {_value(yaml.safe_load(value))} | {meaning} |" for key, value, meaning in rows]
    return "\n".join(
        [f"### dxn {name}", "", f"{_sentence(VERBS[name])}", "", _head("key", "default", "meaning"), *lines, ""]
    )


def group_section(group: str) -> str:
    """Each part that the group's files configure, its keys, defaults and docstring."""
    lines = [f"## {group}", ""]
    by_target: dict[str, dict[str, dict]] = {}
    named = [option for option in options(group) if _is_public(group, option)]
    for option in options(group):
        if option in named:
            continue
        node = _node(group, option)
        by_target.setdefault(node["_target_"], {})[option] = node
    for target, nodes in by_target.items():
        lines += [f"### {group}={', '.join(nodes)}", "", *_part(target, nodes), ""]
    if named:
        lines += [f"### {group} of public models", "", PUBLIC, "", *_listed(group, named), ""]
    return "\n".join(lines)


def listing(group: str) -> str:
    """The options of a group whose files only choose and override."""
    return "\n".join([f"## {group}", "", *_listed(group, options(group)), ""])


def _listed(group: str, names: list[str]) -> list[str]:
    rows = [f"| `{group}={name}` | {_comment((CONF / group / f'{name}.yaml').read_text())} |" for name in names]
    return [_head("option", "what for"), *rows]


def _is_public(group: str, option: str) -> bool:
    """A backbone that comes with the adapter of the public model it is the shape of."""
    return group == "backbone" and "adapters" in yaml.safe_load((CONF / group / f"{option}.yaml").read_text())


def _node(group: str, option: str) -> dict:
    """A file's own part: below the group's name where the file is of the whole tree (@package _global_)."""
    text = (CONF / group / f"{option}.yaml").read_text()
    found = yaml.safe_load(text)
    if "@package _global_" in text:
        return {**found[group], "dim": found.get("dim", "${dim}")} if group == "backbone" else found[group]
    return found[option] if option in found and isinstance(found[option], dict) else found


def _part(target: str, nodes: dict[str, dict]) -> list[str]:
    cls = _object(target)
    doc = inspect.getdoc(cls) or ""
    lines = [doc.split("\n\n")[0].replace("\n", " "), "", _head("key", "default", "meaning")]
    described = _arguments(doc)
    for key in next(iter(nodes.values())):
        if key == "_target_":
            continue
        values = {option: _value(node[key]) for option, node in nodes.items()}
        same = len(set(values.values())) == 1
        shown = (
            next(iter(values.values())) if same else ", ".join(f"{option}: {value}" for option, value in values.items())
        )
        if isinstance(value := next(iter(nodes.values()))[key], dict):
            lines += _nested(key, value)
        else:
            lines.append(f"| `{key}` | {shown} | {described[key]} |")
    return lines


def _nested(key: str, node: dict) -> list[str]:
    cls = _object(node["_target_"])
    described = _arguments(inspect.getdoc(cls) or "")
    return [f"| `{key}.{k}` | {_value(v)} | {described[k]} |" for k, v in node.items() if k != "_target_"]


def _arguments(doc: str) -> dict[str, str]:
    """The Args section of a docstring by name."""
    section = doc.partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.+(?:\n     .+)*)$", section, re.M)
    return {name: " ".join(text.split()) for name, text in entries}


def _object(target: str):
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _value(value) -> str:
    if value == "???":
        return "needed"
    text = yaml.safe_dump(value, default_flow_style=True).strip().removesuffix("...").strip()
    return f"`{text}`"


def _head(*names: str) -> str:
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def _comment(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("# ") and "@package" not in line]
    return lines[0].removeprefix("# ")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.name} written for dxn {dxn.__version__}")
