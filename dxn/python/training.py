"""Train a model from Python, on files or on data in memory."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dxn.config.checks import prepare
from dxn.config.compose import compose
from dxn.core.errors import UserError
from dxn.core.files import new_folder
from dxn.data.sources.memory import is_in_memory, tables_of, write_tables
from dxn.data.splits.split import SPLIT_NAMES, UNDIVIDED
from dxn.python.options import PATH, data_overrides, to_overrides
from dxn.python.run import Run
from dxn.runs.ensemble import run_training
from dxn.runs.evaluation.printing import now, print_line
from dxn.runs.folder import refuse_other_run
from dxn.runs.paths import is_run

DATA = "data"  # folder in the run folder with the data that was in memory
NAME = "table"  # name of a run whose target is not set


def train(
    data: Any = None,
    *words: str,
    target: Any = None,
    metrics: Mapping[str, Callable[..., float]] | None = None,
    **options: Any,
) -> Run:
    """Train a model, evaluate it, and write its run folder. `dxn.train` is this function.

    Args:
        data: A path or a list of paths, a pandas.DataFrame, a datasets.Dataset, a dict from names
            of splits to them, or the name of a data source. Default: the built-in data set.
        *words: Options as on the command line, such as "trainer.epochs=3".
        target: Column to predict. Default: a column called label, target, class or category.
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
    chosen = options if target is None else {"target": target, **options}
    overrides = [*words, *to_overrides(chosen)]
    if not is_in_memory(data):
        return _train([*data_overrides(data), *overrides], metrics or {})
    with _saved(data, overrides) as lines:
        return _train(lines, metrics or {})


def _train(overrides: Sequence[str], metrics: Mapping[str, Callable[..., float]]) -> Run:
    settings = replace(prepare("train", compose("train", overrides)), metrics=metrics)
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
    # All options are checked before anything is written. The files need not exist for that.
    first = compose(
        "train", [*_paths({name: Path(f"{name}.parquet") for name in tables}), *overrides]
    )
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
        for each in (folder, *folder.parents[:2]):
            each.rmdir()


def _with_names(message: str, data: Any, files: dict[str, Path]) -> str:
    """Return a message that names the data of the program instead of the files."""
    parts = data if isinstance(data, Mapping) else {UNDIVIDED: data}
    kinds = {
        SPLIT_NAMES.get(str(name).lower(), name): type(part).__name__
        for name, part in parts.items()
    }
    for split, path in files.items():
        name = kinds[split] if split == UNDIVIDED else f"{kinds[split]} of {split}"
        message = message.replace(str(path), f"the {name}").replace(path.name, f"the {name}")
    return message


def _paths(files: dict[str, Path]) -> list[str]:
    if list(files) == [UNDIVIDED]:
        return [f"{PATH}={files[UNDIVIDED]}"]
    return [f"data.{split}={path}" for split, path in files.items()]
