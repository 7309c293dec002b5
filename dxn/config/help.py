"""The help pages of the command line."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dxn.config.arguments import SHORT, is_path
from dxn.config.describe import Row, group_comments, option_rows, purpose, rows_of, verb_rows
from dxn.config.groups import CONF, add_folders, defaults_of, groups, options
from dxn.config.hints import similar, suggestion
from dxn.config.verbs import VERBS, overview
from dxn.core.errors import UserError

EXAMPLES = {
    "train": (
        "dxn train",
        "dxn train reviews.csv target=label",
        "dxn train photos/ backbone=tiny trainer.epochs=40",
        "dxn train reviews.csv target=label data.text=[title,body] data.image=photo",
        "dxn train photos/ weights=google/vit-base-patch16-224",
        "dxn train resume=outputs/label",
        "dxn train -m seed=1,2,3",
    ),
    "evaluate": (
        "dxn evaluate run=outputs/label",
        "dxn evaluate run=outputs/label new.csv",
        "dxn evaluate run=RUN only=[image]",
        "dxn evaluate weights=google/vit-base-patch16-224 data.path=photos/",
    ),
    "predict": (
        "dxn predict run=outputs/label new.csv output=answers.csv",
        "dxn predict run=RUN photo.jpg",
        'dxn predict run=RUN input.text="a fine film"',
        "dxn predict run=RUN input.image=a.jpg input.audio=a.wav",
        'dxn predict run=RUN input.image=a.jpg labels=[cat,dog] template="a photo of a {}"',
    ),
    "generate": (
        'dxn generate run=RUN prompt="ROMEO:" temperature=0.8',
        'dxn generate weights=openai-community/gpt2 prompt="Once upon a time" top_p=0.9',
        "dxn generate run=RUN prompts=prompts.txt output=texts.csv",
        "dxn generate run=RUN input.image=photo.jpg temperature=0",
    ),
    "embed": (
        "dxn embed run=RUN new.csv output=vectors.npy",
        'dxn embed weights=google-bert/bert-base-uncased input.text="a fine film"',
    ),
    "index": (
        "dxn index run=RUN photos/ output=photos.index",
        "dxn index run=RUN split=test only=[image] output=INDEX",
    ),
    "search": (
        'dxn search index=INDEX input.text="red shoes" k=5',
        "dxn search index=INDEX queries.csv only=[text] output=found.csv",
    ),
    "attend": (
        'dxn attend run=RUN input.text="a fine film"',
        "dxn attend weights=models/vit photo.jpg",
    ),
    "neighbors": (
        "dxn neighbors run=RUN token=king",
        "dxn neighbors weights=google-bert/bert-base-uncased token=king",
    ),
    "tokenize": (
        "dxn tokenize adapters=[image] photo.jpg",
        'dxn tokenize input.text="hello there"',
    ),
    "check": ("dxn check reviews.csv target=label", "dxn check photos/"),
    "report": ("dxn report run=outputs/label", "dxn report run=latest"),
    "compare": (
        "dxn compare run=[outputs/label/A,outputs/label/B]",
        "dxn compare run=[A,B,C] output=compare.html",
    ),
    "serve": (
        "dxn serve run=outputs/label",
        "dxn serve run=latest port=8001 batch_size=64",
        "dxn serve weights=openai-community/gpt2 dtype=int8",
    ),
    "export": (
        "dxn export run=outputs/label",
        "dxn export run=latest format=torch output=exported",
    ),
    "push": (
        "dxn push run=outputs/label repo=OWNER/NAME",
        "dxn push run=latest repo=OWNER/NAME private=false license=apache-2.0",
    ),
    "verify": ("dxn verify run=outputs/label", "dxn verify run=latest"),
    "doctor": ("dxn doctor",),
    "show": ("dxn show", "dxn show reviews.csv target=label", "dxn show experiment=trec"),
}
# The keys of a training that most users need, by the section of the help page. The pages of the
# groups and of single keys describe all others.
COMMON = {
    "data": (
        "data.path",
        "data.target",
        "data.NAME",
        "data.split",
        "data.fractions",
        "data.on_bad",
    ),
    "model": ("adapters", "backbone", "head", "weights.source"),
    "training": (
        "trainer.epochs",
        "trainer.patience",
        "optimizer.lr",
        "batch_size",
        "trainer.device",
        "seed",
    ),
    "results": ("output", "name", "run", "resume.run"),
}
PATH_MEANING = (
    "Table, text file, folder or archive. The data source is inferred from it; dxn help data lists "
    "all sources. Long form: data.path=PATH."
)
# The data source whose keys stand for those of all sources.
USUAL = {"data": "table"}
MAX_WIDTH = 100
KEY_WIDTH = 28
MAX_LISTED = 6  # options of a group in one line


def verb_page(verb: str) -> str:
    """Return the page of `dxn VERB --help`."""
    lines = [f"dxn {verb}: {VERBS[verb]}.", "", *(f"  {example}" for example in EXAMPLES[verb])]
    if "trainer" in defaults_of(verb):
        for name, rows in _common_rows():
            lines += ["", f"{name}:", *_layout(rows)]
        used = {key.partition(".")[0] for keys in COMMON.values() for key in keys}
        others = [name for name in defaults_of(verb) if name not in used]
        lines += ["", "more:", *_layout([_group_row("train", name) for name in others])]
    else:
        rows = verb_rows(verb)
        lines += ["", "keys:", *_layout(rows)] if rows else []
        if used := defaults_of(verb):
            lines += ["", "groups:", *_layout([_group_row(verb, name) for name in used])]
    return "\n".join(
        [
            *lines,
            "",
            "dxn help KEY describes one key, and dxn help GROUP=OPTION one option, such as "
            "data=table.",
        ]
    )


def topic_page(words: Sequence[str]) -> str:
    """Return the page of `dxn help TOPIC`, or of `dxn VERB TOPIC --help`.

    Args:
        words: Words of the command line: a command, a group, GROUP=OPTION, a key or KEY=VALUE.
            With conf_dir=FOLDER, the files in this folder are described too.

    Raises:
        UserError: If there is no such topic.
    """
    faults: list[str] = []
    names = [word.removeprefix("conf_dir=") for word in words if word.startswith("conf_dir=")]
    extra = [Path(name).expanduser().absolute() for name in names]
    trust = add_folders(extra, faults)
    if faults:
        raise UserError("\n".join(faults))
    folders = (CONF, *extra)
    verb = next((word for word in words if word in VERBS), None)
    topics = [w for w in words if w != verb and not w.startswith(("conf_dir=", "-"))]
    # In `dxn train reviews.csv --help`, the path is no topic.
    topics = [topic for topic in topics if verb is None or not is_path(topic)]
    if not topics:
        return overview() if verb is None else verb_page(verb)
    return "\n\n".join(_topic(topic, verb, folders, trust) for topic in topics)


def _topic(topic: str, verb: str | None, folders: Sequence[Path], trust: Sequence[str]) -> str:
    key, _, value = topic.lstrip("+").partition("=")
    key = SHORT.get(key, key)
    if key in groups(folders):
        available = options(key, folders)
        chosen = [name.strip() for name in value.strip("[]").split(",") if name.strip()]
        if wrong := [name for name in chosen if name not in available]:
            match = similar(wrong[0], available)
            hint = f" did you mean {match}?" if match else ""
            raise UserError(
                f"{key}={wrong[0]}: no such option;{hint} options: {', '.join(available)}"
            )
        if chosen:
            return "\n\n".join(_option_page(key, name, folders, trust) for name in chosen)
        return _group_page(key, folders, trust)
    return _key_page(key, verb, folders, trust)


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


def _key_page(key: str, verb: str | None, folders: Sequence[Path], trust: Sequence[str]) -> str:
    """Describe a key, or all keys below it, or all keys with this last name."""
    found = list(_all_rows(verb, folders, trust))
    matching = [used for used in found if used[0].key == key]
    matching = matching or [used for used in found if used[0].key.startswith(f"{key}.")]
    matching = matching or [used for used in found if used[0].key.rpartition(".")[2] == key]
    if not matching:
        hint = suggestion(key, list(dict.fromkeys(row.key for row, _ in found)))
        commands = "" if hint else " dxn --help lists the commands, dxn show all keys"
        raise UserError(f"{key}: no such command, group or key;{hint}{commands}")
    # A key that has the same meaning in several options is described once.
    users: dict[tuple[str, str], list[str]] = {}
    rows: dict[tuple[str, str], Row] = {}
    for row, user in matching:
        rows.setdefault((row.key, row.meaning), row)
        users.setdefault((row.key, row.meaning), []).append(user)
    return "\n".join(_layout([_with_users(row, users[name]) for name, row in rows.items()]))


def _all_rows(
    verb: str | None, folders: Sequence[Path], trust: Sequence[str]
) -> Iterator[tuple[Row, str]]:
    """Yield the keys of the commands and of all options, and the command or option of each."""
    for name in VERBS if verb is None else (verb,):
        yield from ((row, f"dxn {name}") for row in verb_rows(name))
    defaults = defaults_of("train")
    for group in groups(folders):
        # The default of a group comes first, so its values are shown.
        for option in sorted(options(group, folders), key=lambda name: name != defaults[group]):
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


def _common_rows() -> Iterator[tuple[str, list[Row]]]:
    """Yield the sections of the page of `dxn train --help`."""
    defaults = defaults_of("train")
    known = {row.key: row for row in verb_rows("train")}
    for group in {key.partition(".")[0] for keys in COMMON.values() for key in keys}:
        if group in defaults:
            option = USUAL.get(group, defaults[group])
            option = option[0] if isinstance(option, list) else str(option)
            known |= {row.key: row for row in option_rows(group, option)}
            known[group] = _group_row("train", group)
    # A table has one key per modality.
    columns = ", ".join(f"data.{name}" for name in defaults["adapters"])
    known["data.path"] = Row("PATH", "", PATH_MEANING)
    known["data.target"] = replace(known["data.target"], key="target")
    known["data.NAME"] = replace(known["data.NAME"], key=columns, default="")
    known["weights.source"] = replace(known["weights.source"], key="weights")
    known["resume.run"] = replace(known["resume.run"], key="resume")
    for section, keys in COMMON.items():
        yield section, [known[key] for key in keys]


def _group_row(verb: str, group: str) -> Row:
    default = defaults_of(verb)[group]
    shown = f"[{','.join(default)}]" if isinstance(default, list) else str(default or "null")
    names = options(group)
    listed = ", ".join(names) if len(names) <= MAX_LISTED else f"{len(names)} options"
    choice = f": {listed}" if len(names) > 1 else ""
    return Row(group, shown, f"{group_comments(verb)[group]}{choice} (dxn help {group})")


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
