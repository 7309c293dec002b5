"""The short forms of the command line: paths without a key, target=COLUMN and weights=PATH."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from dxn.config.groups import defaults_of, keys_of_experiments
from dxn.core.errors import UserError
from dxn.data.sources.detect import infer_source, table_format

# The key of a path without a key, by command.
PATH_KEYS = {
    "train": "data.path",
    "check": "data.path",
    "show": "data.path",
    "evaluate": "input",
    "predict": "input",
    "embed": "input",
    "index": "input",
    "search": "input",
    "attend": "input",
    "tokenize": "input",
}
# Keys that only a data source has. The first one that is set decides which source that is.
SOURCE_KEYS = ("data.path", "data.train")
FIRST_OF_LIST = re.compile(r'\[\s*(?:"([^"]*)"|([^,\]]+))')  # in a list of tables, it decides
SHORT = {"target": "data.target", "weights": "weights.source", "resume": "resume.run"}


def is_path(word: str) -> bool:
    """Whether a word of the command line is a path: it is neither an option nor a flag."""
    # ~KEY deletes a key in Hydra's grammar, and is refused with a message of its own.
    is_deletion = word.startswith("~") and not word.startswith("~/")
    return "=" not in word and not word.startswith("-") and not is_deletion


def with_keys(verb: str, words: Sequence[str]) -> list[str]:
    """Return the words of a command line with short forms replaced by key=value.

    Raises:
        UserError: If there is a path for which the command has no key, there are several paths for
            one sample, or spaces without quotes split an option.
    """
    if misplaced := [word for word in words if word.startswith("=")]:
        raise UserError(f"{misplaced[0]}: write key=value without spaces around the equals sign")
    paths = [word for word in words if is_path(word)]
    key = PATH_KEYS.get(verb)
    if paths and key is None:
        raise UserError(
            f"{paths[0]}: dxn {verb} takes no path; options are written key=value, "
            f"dxn {verb} --help lists them"
        )
    # An unquoted space splits a text or a file name into several words.
    named = next((word for word in words if word.startswith("input.")), None)
    if paths and named is not None:
        raise UserError(
            f"{paths[0]}: cannot be combined with {named.partition('=')[0]}; put a text that "
            'contains spaces in quotes, such as input.text="a fine film"'
        )
    # A word without a suffix is a part of a name, such as "my" of "my table.csv".
    parts = [path for path in paths if not Path(path).suffix and not _exists(path)]
    if len(paths) > 1 and parts:
        raise UserError(
            f"{parts[0]}: file or folder not found; put names that contain spaces in quotes, such "
            f"as {' '.join(paths)!r}"
        )
    # A data set can consist of several tables, but one option cannot hold several samples.
    if len(paths) > 1 and key == "input":
        raise UserError(
            f"{paths[1]}: dxn {verb} takes one path, got {len(paths)}; put a pattern in quotes, "
            "such as 'photos/*.jpg', or pass their folder"
        )
    lines = [_with_key(word) for word in words if not is_path(word)]
    if len(paths) > 1:
        # In quotes, because commas and brackets have a meaning in a list.
        listed = ",".join(f'"{path}"' for path in paths)
        return [f"{key}=[{listed}]", *lines]
    return [*(f"{key}={path}" for path in paths), *lines]


def with_source(verb: str, lines: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Add data=NAME, inferred from the path of the data, if no data source is chosen.

    Args:
        verb: Name of the command.
        lines: Options as key=value.
        folders: Folders of YAML files, which contain the experiments.
    """
    values = {key.lstrip("+"): value for key, _, value in (line.partition("=") for line in lines)}
    path = next((values[key] for key in SOURCE_KEYS if values.get(key)), None)
    if path is None or "data" in values or "data" not in defaults_of(verb):
        return list(lines)
    experiment = values.get("experiment", "null")
    exists = any((folder / "experiment" / f"{experiment}.yaml").is_file() for folder in folders)
    if exists and "data" in keys_of_experiments([experiment], folders):
        return list(lines)
    first = FIRST_OF_LIST.match(path)
    path = path if first is None else first[1] or first[2]
    return [f"data={_source(Path(path).expanduser())}", *lines]


def _source(path: Path) -> str:
    if path.exists():
        return infer_source(path)
    # `early_checks` reports a missing path, together with the other problems of the command.
    return "folder" if table_format(path) is None else "table"


def _exists(path: str) -> bool:
    return Path(path).expanduser().exists()


def _with_key(line: str) -> str:
    key, equals, value = line.partition("=")
    # An empty value is kept, so that the message about it names the option that was typed.
    return f"{SHORT[key]}={value}" if key in SHORT and equals and value else line
