"""The Python interface: train a model, open its run, and load trained or public models.

`import dxn` offers these names. This module imports torch, so it is imported on first use.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from dxn.commands.options import check_paths
from dxn.commands.train import Train, run_training
from dxn.config.compose import compose
from dxn.config.words import options as options_of
from dxn.core.display import notebook_html, now, number, print_line
from dxn.core.errors import UserError
from dxn.core.files import METRICS, MODEL, REPORT, new_folder
from dxn.core.printable import override_value
from dxn.core.results import read_results
from dxn.core.runtime import configure
from dxn.data.formats import SPLIT_NAMES
from dxn.data.sources.memory import is_in_memory, tables_of, write_tables
from dxn.data.splits.split import UNDIVIDED
from dxn.runs.folder import is_run, refuse_other_run
from dxn.runs.hub import HUB, download
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.saved import model_folder
from dxn.runs.saved.dtypes import Dtype

# A path, several paths, the name of a data source, a data frame, or a mapping of splits to them.
Data: TypeAlias = Any
Metric: TypeAlias = Callable[..., float]

SEPARATOR = "__"  # stands for a dot in the name of a Python argument
# Names of columns that need no quotes, unlike null, [kg] or 'x'.
PLAIN = re.compile(r"(?!null$)\w+", re.IGNORECASE)
PATH = "data.path"
DATA = "data"  # folder in the run folder with the data that was in memory
NAME = "table"  # name of a run whose target is not set


class Run:
    """A finished training: its model, its metrics and its files.

    Args:
        folder: The run folder.
        trust: Top-level packages besides dxn whose code the folder may use.

    Raises:
        UserError: If the folder contains no finished training.

    Example:
        >>> run = dxn.train("reviews.csv", target="label")
        >>> run.metrics["test/accuracy"]
        >>> run.model.predict(text="a fine film")
    """

    def __init__(self, folder: str | PathLike[str], *, trust: Sequence[str] = ()):
        self.folder = Path(folder)
        self.trust = tuple(trust)
        results = read_results(self.folder)
        if results is None:
            raise UserError(
                f"{self.folder}: not the folder of a finished training, it has no {METRICS}; "
                "choose another folder, or continue the training with dxn train resume="
            )
        self.results = results

    @cached_property
    def model(self) -> Predictor:
        """The model with the weights of the best epoch, on the CPU. It is loaded on first use."""
        return model_folder.load(self.folder / MODEL, trust=self.trust)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The content of metrics.json, such as {"test/accuracy": 0.9, ...}."""
        return self.results.content()

    @property
    def report(self) -> Path | None:
        """The file report.html, or None if the run has none."""
        path = self.folder / REPORT
        return path if path.is_file() else None

    def __repr__(self) -> str:
        split, table = self.table
        shown = [str(self.folder)]
        # Without the rows of single inputs, which come before that of all inputs.
        for heading in list(table)[max(len(self.results.subsets) - 1, 0) :]:
            values = [f"{name} {value}" for name, value in table[heading].items()]
            shown.append(f"{split}, {heading}: {', '.join(values)}")
        return f"Run({'; '.join(shown)})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the metrics by subset of the inputs."""
        return notebook_html(self)

    @property
    def table(self) -> tuple[str, dict[str, dict[str, str]]]:
        """The split of the evaluation, and its metrics as texts by row of the final table."""
        figures = self.results.figures()
        shown = self.results.shown
        texts: dict[str, dict[str, str]] = {}
        for row, heading in self.results.headings().items():
            row_figures = figures[row]
            texts[heading] = {
                name: number(row_figures[name]) for name in shown if name in row_figures
            }
        return self.results.split, texts


def train(
    data: Data = None,
    *overrides: str,
    target: str | Sequence[str] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    **options: Any,
) -> Run:
    """Train a model, evaluate it, and write its run folder.

    Args:
        data: A path or a list of paths, a pandas.DataFrame, a datasets.Dataset, a dict from names
            of splits to them, or the name of a data source. Default: the built-in data set.
        *overrides: Options as on the command line, such as "trainer.epochs=3".
        target: Column to predict. Default: a column called label, target, class, category or
            answer.
        metrics: Metrics of your own by name: functions of predictions and targets, which are lists
            with one item per row, and of probabilities if they have a parameter of this name. With
            an attribute higher_is_better = False, lower values are better.
        **options: Options by name. Two underscores stand for a dot (trainer__epochs=3), and a dict
            contains options of a part (trainer={"epochs": 3}).

    Returns:
        The run, with its model, metrics, report and folder.

    Raises:
        UserError: If an option or the data is wrong. The message has one line per problem.
    """
    # A training is the main work of its process, as on the command line.
    configure()
    lines = [*overrides, *to_overrides(options)]
    if target is not None:
        is_plain = isinstance(target, str) and PLAIN.fullmatch(target)
        lines.append(f"target={target if is_plain else override_value(target)}")
    if not is_in_memory(data):
        return _train([*data_overrides(data), *lines], metrics or {})
    with _saved(data, lines) as with_files:
        return _train(with_files, metrics or {})


def load(
    folder: str | PathLike[str],
    *,
    device: str = "cpu",
    dtype: Dtype = "auto",
    trust: Sequence[str] = (),
) -> Predictor:
    """Load a trained model from its run folder or model folder, or from the Hugging Face hub.

    Args:
        folder: Path of the folder, or hf://OWNER/NAME, optionally with a branch, tag or commit:
            hf://OWNER/NAME@REVISION.
        device: Device to run on, such as "cuda".
        dtype: Data type of the weights: float32, bf16, int8, or auto, which is bf16 if the model is
            large and the device has instructions for bf16.
        trust: Top-level packages besides dxn whose code the folder may use.

    Raises:
        UserError: If a file is missing, changed or damaged, or the folder names code that is not
            trusted.
    """
    # str, because a Path would turn hf:// into hf:/.
    if isinstance(folder, str) and folder.startswith(HUB):
        folder = download(folder, "load")
    return model_folder.load(folder, device=device, dtype=dtype, trust=trust)


def to_overrides(options: Mapping[str, Any], parent: str = "") -> list[str]:
    """Return options as overrides, such as trainer={"epochs": 3} as trainer.epochs=3.

    Args:
        options: Values by name. Two underscores in a name stand for a dot. A mapping contains
            options of a part.
        parent: Key of the part, with a dot at its end.
    """
    lines: list[str] = []
    for name, value in options.items():
        key = f"{parent}{name.replace(SEPARATOR, '.')}"
        if isinstance(value, Mapping):
            lines += to_overrides(value, f"{key}.")
        else:
            lines.append(f"{key}={_typed(value)}")
    return lines


def data_overrides(data: Any) -> list[str]:
    """Return the overrides for data that is not in memory: a path, several paths, or a source.

    Args:
        data: None, a path, a list of paths, an override such as "data=digits", or the name of a
            data source.

    Raises:
        UserError: If it is something else.
    """
    if data is None:
        return []
    if isinstance(data, Path):
        return [f"{PATH}={data}"]
    if isinstance(data, str):
        if Path(data).exists():
            return [f"{PATH}={data}"]
        if "=" in data:
            return [data]
        return [f"data={data}" if data in options_of("data") else f"{PATH}={data}"]
    if isinstance(data, list | tuple) and all(isinstance(item, str | Path) for item in data):
        return [f"{PATH}={override_value([str(item) for item in data])}"]
    raise UserError(
        "data: must be a path, a pandas.DataFrame, a datasets.Dataset, or a dict of splits such as "
        f"{{'train': frame, 'test': frame}}, got {type(data).__name__}; convert it with "
        "pandas.DataFrame(...)"
    )


def _typed(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    if isinstance(value, Path):
        return str(value)
    # The command line removes spaces around a value, and an empty value is an error there.
    if isinstance(value, str) and value and value == value.strip():
        return value
    return override_value(value)


def _train(overrides: Sequence[str], metrics: Mapping[str, Metric]) -> Run:
    settings = replace(check_paths(Train.compose(overrides)).settings, metrics=metrics)
    for note in settings.notes:
        print_line(note)
    return Run(run_training(settings).folder, trust=settings.trust)


@contextmanager
def _saved(data: Any, overrides: Sequence[str]) -> Iterator[list[str]]:
    """Write the data to the run folder, so that `dxn evaluate` and `dxn report` can read it.

    If the training is refused before it has started, the files are removed again.

    Yields:
        All options of the training, including those that name the files.

    Raises:
        UserError: If an option is wrong, the data cannot be written, or torchrun has started the
            process: each process would have data of its own.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("data: several processes need a file; write the data and pass its path")
    tables = tables_of(data)
    for note in dict.fromkeys(note for table in tables.values() for note in table.notes):
        print_line(f"note: {note}")
    # All options are checked before anything is written. The files need not exist for that.
    files = _paths({name: Path(f"{name}.parquet") for name in tables})
    first = compose(Train, [*files, *overrides])
    values = first.values
    if values["resume"]["run"]:
        raise UserError("resume: the run folder contains its data; call dxn.train without data")
    name = str(values["name"] or values["data"].get("target") or NAME).replace("/", "_")
    if values["run"]:
        folder = Path(values["run"])
        refuse_other_run(folder)
    else:
        folder = new_folder(Path(values["output"]) / name / now())
    if (folder / DATA).exists():
        raise UserError(f"run: {folder / DATA} already exists; choose another folder")
    try:
        written, has_paths = write_tables(tables, folder / DATA)
    except BaseException:
        _remove(folder)
        raise
    lines = [*_paths(written), *overrides]
    if values["run"] is None:
        lines.append(f"run={folder}")
    if has_paths and "data.confine" not in first.chosen:
        # The files of the cells are not in the run folder. The program itself chose them.
        lines.append("data.confine=false")
    try:
        yield lines
    except BaseException as error:
        if not is_run(folder):
            _remove(folder)
        if isinstance(error, UserError):
            raise UserError(_with_names(str(error), data, written)) from error
        raise


def _remove(folder: Path) -> None:
    """Remove the data from a run folder, and the folders that are empty then."""
    shutil.rmtree(folder / DATA, ignore_errors=True)
    # The run folder, the folder of all runs with this target, and the output folder.
    with contextlib.suppress(OSError):  # not empty
        for path in (folder, *folder.parents[:2]):
            path.rmdir()


def _with_names(message: str, data: Any, files: dict[str, Path]) -> str:
    """Return a message that names the data of the program instead of the files."""
    parts = data if isinstance(data, Mapping) else {UNDIVIDED: data}
    kinds = {
        SPLIT_NAMES.get(str(name).lower(), name): type(part).__name__
        for name, part in parts.items()
    }
    for split, path in files.items():
        name = kinds[split] if split == UNDIVIDED else f"{kinds[split]} of {split}"
        # Programs count from 0, but the rows of a file are counted from 1.
        row = re.compile(rf"{re.escape(path.name)} row (\d+)")
        message = row.sub(rf"row \1 of the {name} (the first row is 1)", message)
        message = message.replace(str(path), f"the {name}").replace(path.name, f"the {name}")
    return message


def _paths(files: dict[str, Path]) -> list[str]:
    if list(files) == [UNDIVIDED]:
        return [f"{PATH}={files[UNDIVIDED]}"]
    return [f"data.{split}={path}" for split, path in files.items()]
