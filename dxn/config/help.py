"""The help pages of the command line, and the tables of keys of docs/reference/options.md."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from dxn.config.command import Command
from dxn.config.instantiate import completed, signature_of
from dxn.config.signatures import signature_from
from dxn.config.values import describe, suggestion
from dxn.config.words import (
    CONF,
    SHORT,
    file_of,
    further_folders,
    groups,
    is_path,
    no_such_option,
    node_of,
    options,
)
from dxn.core.errors import UserError

NULL = "null"
REQUIRED = "required"
# The keys of a training or a search that most users need, by the section of the help page. The
# pages of the groups and of single keys describe all others.
COMMON = {
    "search": ("trials", "minutes", "sampler", "prune", "space", "storage"),
    "data": (
        "data.path",
        "data.target",
        "data.NAME",
        "data.exclude",
        "data.split",
        "data.fractions",
        "data.on_bad",
    ),
    "model": ("adapters", "backbone", "head", "weights.source"),
    "training": (
        "trainer.epochs",
        "trainer.max_minutes",
        "trainer.patience",
        "optimizer.lr",
        "batch_size",
        "trainer.device",
        "seed",
    ),
    "results": ("output", "name", "run", "resume.run"),
}
CONF_DIR = "Folder with YAML files and modules of your own, in addition to those of dxn"
PATH_MEANING = (
    "Table, text file, folder or archive. The data source is inferred from it; dxn help data lists "
    "all sources. Long form: data.path=PATH."
)
# The data source whose keys stand for those of all sources.
USUAL = {"data": "table"}
MAX_WIDTH = 100
KEY_WIDTH = 28
MAX_LISTED = 6  # options of a group in one line


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
    values = completed(node, trust)
    for name, parameter in signature.parameters.items():
        if parameter.required and name not in values:
            continue
        key, value = f"{prefix}{name}", values.get(name)
        group = parameter.group
        kind = describe(parameter.type)
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
        kind = describe(signature.others.type)
        yield Row(f"{prefix}NAME", NULL, signature.others.meaning, kind)


def command_rows(command: type[Command]) -> list[Row]:
    """Return the keys of a command, except for its groups."""
    rows = []
    for key, parameter in command.options().by_key.items():
        default = REQUIRED if parameter.required else as_yaml(parameter.default)
        rows.append(Row(key, default, parameter.meaning, describe(parameter.type)))
    return rows


def comment_rows(text: str) -> list[Row]:
    """Return the keys of a file with the comments at the ends of their lines."""
    entries = re.findall(r"^([\w.]+): (.+?) # (.+)$", text, re.MULTILINE)
    return [Row(key, as_yaml(yaml.safe_load(value)), meaning) for key, value, meaning in entries]


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
        # ${oc.select:key,fallback} is shown as ${key}. The fallback is for parts without the key.
        value = re.sub(r"\$\{oc\.select:([\w.]+),.*\}", r"${\1}", value)
    # A large width prevents line breaks. safe_dump ends a plain scalar with a line "...".
    text = yaml.safe_dump(value, default_flow_style=True, width=1000)
    return text.strip().removesuffix("...").strip()


# Pages


def overview(commands: Mapping[str, type[Command]]) -> str:
    """Return the page of `dxn --help`.

    Args:
        commands: All commands by name.
    """
    width = max(map(len, commands))
    lines = [f"  dxn {n:<{width}}  {_summary(command)}" for n, command in commands.items()]
    return "\n".join(
        [
            "dxn converts text, images and audio to D×N token matrices, and trains one transformer "
            "on them.",
            "",
            *lines,
            "",
            "dxn VERB --help lists the keys of a command, and dxn help KEY describes one key. A "
            "path needs no",
            "key. All other options are written key=value, and dxn show prints their values.",
        ]
    )


def command_page(command: type[Command]) -> str:
    """Return the page of `dxn VERB --help`."""
    used = command.options().groups
    lines = [f"dxn {command.verb()}: {_summary(command)}.", ""]
    lines += [f"  {example}" for example in command.usage]
    if "trainer" in used:
        for name, rows in _common_rows(command):
            lines += ["", f"{name}:", *_layout(rows)]
        shown = {key.partition(".")[0] for keys in COMMON.values() for key in keys}
        others = [name for name in used if name not in shown]
        lines += ["", "more:", *_layout([_group_row(command, name) for name in others])]
    else:
        lines += ["", "keys:", *_layout(command_rows(command))]
        if used:
            lines += ["", "groups:", *_layout([_group_row(command, name) for name in used])]
    return "\n".join(
        [
            *lines,
            "",
            "dxn help KEY describes one key, and dxn help GROUP=OPTION one option, such as "
            "data=table.",
        ]
    )


def topic_page(words: Sequence[str], commands: Mapping[str, type[Command]]) -> str:
    """Return the page of `dxn help TOPIC`, or of `dxn VERB TOPIC --help`.

    Args:
        commands: All commands by name.
        words: Words of the command line: a command, a group, GROUP=OPTION, a key or KEY=VALUE.
            With conf_dir=FOLDER, the files in this folder are described too.

    Raises:
        UserError: If there is no such topic.
    """
    problems: list[str] = []
    names = [word.removeprefix("conf_dir=") for word in words if word.startswith("conf_dir=")]
    extra, installed, named = further_folders(names, problems)
    if problems:
        raise UserError("\n".join(problems))
    folders, trust = (CONF, *extra), (*installed, *named)
    verb = next((word for word in words if word in commands), None)
    topics = [w for w in words if w != verb and not w.startswith(("conf_dir=", "-"))]
    # In `dxn train reviews.csv --help`, the path is not a topic.
    topics = [topic for topic in topics if verb is None or not is_path(topic)]
    if not topics:
        return overview(commands) if verb is None else command_page(commands[verb])
    used = commands if verb is None else {verb: commands[verb]}
    return "\n\n".join(_topic(topic, used, folders, trust) for topic in topics)


def _topic(
    topic: str,
    commands: Mapping[str, type[Command]],
    folders: Sequence[Path],
    trust: Sequence[str],
) -> str:
    key, _, value = topic.lstrip("+").partition("=")
    key = SHORT.get(key, key)
    if key in groups(folders):
        available = options(key, folders)
        chosen = [name.strip() for name in value.strip("[]").split(",") if name.strip()]
        if wrong := [name for name in chosen if name not in available]:
            raise UserError(no_such_option(key, wrong[0], available))
        if chosen:
            return "\n\n".join(_option_page(key, name, folders, trust) for name in chosen)
        return _group_page(key, folders, trust)
    return _key_page(key, commands, folders, trust)


def _group_page(group: str, folders: Sequence[Path], trust: Sequence[str]) -> str:
    available = options(group, folders)
    if len(available) == 1:
        return _option_page(group, available[0], folders, trust)
    rows = [Row(f"{group}={name}", "", purpose(group, name, folders)) for name in available]
    return "\n".join(
        [f"{group}: choose one of", *_layout(rows), "", f"dxn help {group}=OPTION lists its keys."]
    )


def _option_page(group: str, option: str, folders: Sequence[Path], trust: Sequence[str]) -> str:
    rows = option_rows(group, option, folders, trust)
    title = f"{group}={option}: {purpose(group, option, folders)}"
    return "\n".join([*textwrap.wrap(title, MAX_WIDTH), "", *_layout(rows, types=True)])


def _key_page(
    key: str, commands: Mapping[str, type[Command]], folders: Sequence[Path], trust: Sequence[str]
) -> str:
    """Describe a key, or all keys below it, or all keys with this last name."""
    described = list(_all_rows(commands, folders, trust))
    matching = [used for used in described if used[0].key == key]
    matching = matching or [used for used in described if used[0].key.startswith(f"{key}.")]
    matching = matching or [used for used in described if used[0].key.rpartition(".")[2] == key]
    if not matching:
        hint = suggestion(key, list(dict.fromkeys(row.key for row, _ in described)))
        advice = hint or " dxn --help lists the commands, dxn show all keys"
        raise UserError(f"{key}: no such command, group or key;{advice}")
    # A key that has the same meaning in several options is described once.
    users: dict[tuple[str, str], list[str]] = {}
    rows: dict[tuple[str, str], Row] = {}
    for row, user in matching:
        rows.setdefault((row.key, row.meaning), row)
        users.setdefault((row.key, row.meaning), []).append(user)
    return "\n".join(_layout([_with_users(row, users[name]) for name, row in rows.items()]))


def _all_rows(
    commands: Mapping[str, type[Command]], folders: Sequence[Path], trust: Sequence[str]
) -> Iterator[tuple[Row, str]]:
    """Yield the keys of the commands and of all options, and the command or option of each."""
    yield Row("conf_dir", "", CONF_DIR), "every command"
    defaults: dict[str, Any] = {}
    for name, command in commands.items():
        yield from ((row, f"dxn {name}") for row in command_rows(command))
        defaults = {n: group.default for n, group in command.options().groups.items()} | defaults
    for group in groups(folders):
        # The default of a group comes first, so its values are shown.
        for option in sorted(options(group, folders), key=lambda n: n != defaults.get(group)):
            for row in option_rows(group, option, folders, trust):
                yield row, f"{group}={option}"
                # The parts of a part, such as head.decoder.
                if row.part is not None:
                    for nested in rows_of(row.part, f"{row.key}.", trust):
                        yield nested, f"{group}={option}"


def _with_users(row: Row, users: Sequence[str]) -> Row:
    # A long list of users is no information: all usual options have this key.
    listed = f" Used by: {', '.join(users)}." if len(users) <= MAX_LISTED else ""
    return replace(row, meaning=f"{_with_type(row)}{listed}")


def _with_type(row: Row) -> str:
    sentence = row.meaning.removesuffix(".") + "." if row.meaning else ""
    return f"{sentence} Type: {row.type}.".lstrip() if row.type else sentence


def _common_rows(command: type[Command]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the sections of the page of `dxn train --help`."""
    used = command.options().groups
    by_key = {row.key: row for row in command_rows(command)}
    for group in {key.partition(".")[0] for keys in COMMON.values() for key in keys}:
        if group in used:
            default = used[group].default
            option = USUAL.get(group, default[0] if isinstance(default, tuple) else default)
            by_key |= {row.key: row for row in option_rows(group, str(option))}
            by_key[group] = _group_row(command, group)
    # A table has one key per modality.
    columns = ", ".join(f"data.{name}" for name in used["adapters"].default or ())
    by_key["data.path"] = Row("PATH", "", PATH_MEANING)
    by_key["data.target"] = replace(by_key["data.target"], key="target")
    by_key["data.NAME"] = replace(by_key["data.NAME"], key=columns, default="")
    by_key["weights.source"] = replace(by_key["weights.source"], key="weights")
    if "resume.run" in by_key:
        by_key["resume.run"] = replace(by_key["resume.run"], key="resume")
    for section, keys in COMMON.items():
        # Only dxn tune searches, and it does not resume a training.
        if rows := [by_key[key] for key in keys if key in by_key]:
            yield section, rows


def _group_row(command: type[Command], group: str) -> Row:
    default = command.options().groups[group].default
    shown = f"[{','.join(default)}]" if isinstance(default, tuple) else str(default or "null")
    names = options(group)
    listed = ", ".join(names) if len(names) <= MAX_LISTED else f"{len(names)} options"
    choice = f": {listed}" if len(names) > 1 else ""
    meaning = command.options().parameters[group].meaning.removesuffix(".")
    return Row(group, shown, f"{meaning}{choice} (dxn help {group})")


def _summary(command: type[Command]) -> str:
    return signature_from(command).summary.removesuffix(".")


def _layout(rows: Sequence[Row], *, types: bool = False) -> list[str]:
    """Return the lines of a table of keys, with the meanings wrapped in the second column."""
    width = min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)
    lines: list[str] = []
    for row in rows:
        left = f"  {row.key}={row.default}" if row.default else f"  {row.key}"
        meaning = _with_type(row) if types else row.meaning
        wrapped = textwrap.wrap(meaning, max(width - KEY_WIDTH, 20)) or [""]
        # A long key has a line of its own.
        if len(left) >= KEY_WIDTH:
            lines.append(left)
        else:
            lines.append(f"{left:<{KEY_WIDTH}}{wrapped.pop(0)}".rstrip())
        lines += [f"{'':<{KEY_WIDTH}}{line}" for line in wrapped]
    return lines
