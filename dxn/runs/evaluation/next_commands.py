"""The commands that dxn suggests after another one. Each of them runs as it is printed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxn.config.instantiate import nodes_in
from dxn.config.settings import Settings
from dxn.core.printable import override_value, plain_or_quoted
from dxn.data.dataset import Opened
from dxn.runs.evaluation.subsets import default_split
from dxn.runs.predictor.attention import obstacle_of
from dxn.runs.predictor.option import has_many_samples
from dxn.tokenize.text.chat import is_conversation, text_of

if TYPE_CHECKING:
    from dxn.runs.prepare import Training

MAX_INPUTS = 6  # in the sample of a command
MAX_CHARS = 200  # of the sample, because a longer command is hard to read
MAX_ROWS = 100  # from which the sample is chosen
MAX_WORDS = 3  # of a prompt
TABLES = ("dxn.data.table", "dxn.data.series.timeline.timeline")  # data sources that read tables
# Options of tables that other commands have as well, with their defaults.
TABLE_OPTIONS = {
    "sep": None,
    "encoding": None,
    "sheet": None,
    "on_bad": "error",
    "confine": True,
}


def resume(folder: Path, settings: Settings) -> str:
    """Return the command that continues a run."""
    return shlex.join(["dxn", "train", f"resume={folder}", *code_options(settings)])


def report_again(folder: Path, settings: Settings) -> str:
    """Return the command that writes the report of a run."""
    options = [*code_options(settings), *_data_options(settings)]
    return shlex.join(["dxn", "report", f"run={folder}", *options])


def code_options(settings: Settings) -> list[str]:
    """Return the options with which another command may use the code of the same packages."""
    named = [line for line in settings.overrides if line.startswith(("conf_dir=", "trust="))]
    # A configuration may use installed packages, but a run folder only those that a command names.
    nodes = nodes_in(settings.values)
    used = {str(node["_target_"]).partition(".")[0] for _, node in nodes}
    installed = used.intersection(settings.trust) - set(settings.folder_trust)
    return [*named, f"trust=[{','.join(sorted(installed))}]"] if installed else named


def _data_options(settings: Settings) -> list[str]:
    """Return the options with which another command may read the data of a run."""
    # A run folder from somebody else may not lead to any file, even if its own training could.
    return [] if settings.values["data"].get("confine", True) else ["confine=false"]


def sample_options(opened: Opened) -> list[str]:
    """Return the inputs of a row as options. Empty: no row fits in a command."""
    rows = [_row_options(opened, row) for row in range(min(len(opened), MAX_ROWS))]
    usable = [words for words in rows if len(shlex.join(words)) <= MAX_CHARS]
    # A row with many inputs shows more, and a short text is easier to read.
    return min(usable, key=lambda words: (-len(words), len(shlex.join(words))), default=[])


def next_commands(run: Training) -> list[list[str]]:
    """Return the words of the commands that a user may want after a training.

    The most important command is the last one.
    """
    model = [f"run={run.folder}", *code_options(run.settings)]
    opened = run.splits[default_split(run.splits)]
    sample = sample_options(opened)
    if run.task.target.source == "stream":  # a language model
        text = run.task.target.last
        others = [word for word in sample if not word.startswith(f"input.{text}=")]
        first = next(iter(opened.cells.get(text, ())), None)
        # After other inputs, a text is written from its start.
        prompt = [] if others and not is_conversation(first) else _prompt(first)
        return [["generate", *model, *others, *prompt]]
    if run.task.creates:
        name = run.task.creates[-1]
        others = [word for word in sample if not word.startswith(f"input.{name}=")]
        formats = run.tokenizers[name].reader.formats
        output = [f"output={name}{formats[0]}"] if formats else []
        return [["generate", *model, *others, f"create={name}", *output]] if others else []
    rows = _rows_options(run.settings.values["data"])
    commands: list[list[str]] = []
    if run.task.is_supervised:
        names = [word.removeprefix("input.").partition("=")[0] for word in sample]
        if not set(run.task.target.required) <= set(names):
            sample = []
        if sample and not obstacle_of(run.model, names):
            commands.append(["attend", *model, *sample])
        commands.append(["evaluate", *model, *_data_options(run.settings)])  # needs no new data
    verb, output = ("predict", "answers.csv") if run.task.has_answers else ("embed", "vectors.npy")
    if rows:
        commands.append([verb, *model, *rows, f"output={output}"])
    elif sample:
        commands.append([verb, *model, *sample])
    return commands


def _row_options(opened: Opened, row: int) -> list[str]:
    """Return the inputs of a row that can be written as options."""
    words: list[str] = []
    for name, cells in opened.cells.items():
        # A cell such as "N/A" says that there is no value.
        is_plain = opened.present[name][row] and isinstance(cells[row], str | int | float)
        text = str(cells[row]) if is_plain else ""
        # A dot or an equals sign would end the name, and a printed line has no control characters.
        if text and text.isprintable() and not {".", "="}.intersection(name):
            words.append(f"input.{name}={text}")
    return words[:MAX_INPUTS]


def _rows_options(data: Mapping[str, Any]) -> list[str]:
    """Return the options that read the rows of a data source. Empty: not from one path."""
    is_folder = data["_target_"] == "dxn.data.folder"
    if not is_folder and data["_target_"] not in TABLES:
        return []
    if data.get("known"):  # a forecast needs a table with later rows
        return []
    values = [data.get(key) for key in ("test", "path", "train")]
    path = next((value for value in values if value), None)
    # A data set can consist of several tables.
    first = path if isinstance(path, str) or not path else str(path[0])
    # The other commands read no archives of files.
    if first is None or not has_many_samples(first) or (is_folder and not Path(first).is_dir()):
        return []
    options = [
        f"{key}={override_value(value, plain_or_quoted)}"
        for key, default in TABLE_OPTIONS.items()
        if (value := data.get(key, default)) != default
    ]
    words = [f"input={first}", *options]
    # A printed line has no control characters, such as a tab as the separator.
    return words if all(word.isprintable() for word in words) else []


def _prompt(first: Any) -> list[str]:
    """Return the start of a text as an option. Empty: there is no text that can be printed.

    Of a conversation, it is the first message of the user.
    """
    if isinstance(first, str):
        words = first.split()[:MAX_WORDS]
    elif is_conversation(first):
        # The other parts of a message are inputs. The start of a question is no question.
        message = next((text_of(message) for message in first if message["role"] == "user"), "")
        words = message.split()
    else:
        words = []
    prompt = " ".join(words)
    return [f"prompt={prompt}"] if prompt.isprintable() and 0 < len(prompt) <= MAX_CHARS else []
