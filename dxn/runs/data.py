"""The data of a training: how it is read and printed, and what adapters and task learn from it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxn.core.display import count, list_names, print_line
from dxn.core.errors import UserError
from dxn.core.randomness import evenly_spaced, named_draws, spaced_rows
from dxn.core.results import Truncation
from dxn.data.inspect.quality import (
    check_known_targets,
    check_learnable,
    count_truncated,
)
from dxn.data.raws import CacheBudget, memory_lines, present_values
from dxn.data.reading import open_rows
from dxn.data.rows import FIT_ROWS
from dxn.data.tables.read import as_list
from dxn.runs.build import load_fitted, save_fitted
from dxn.runs.plan import FOLDER

if TYPE_CHECKING:
    from dxn.config.model_plan import Input
    from dxn.data.dataset import Opened
    from dxn.data.loader import LoaderOptions
    from dxn.data.rows import Source
    from dxn.runs.plan import Plan
    from dxn.tasks import Task
    from dxn.tokenize.base import Adapter, Tokenizer

# Options of data sources that name files, or a data set of the hub or its folder.
DATA_PATHS = ("path", "train", "validation", "test", "name")
# Truncation is counted in this many rows only, because preparing all rows of a large data set takes
# as long as an epoch.
MAX_COUNTED_ROWS = 2000
# Columns of a modality that are printed one per line. More are printed in one line.
MAX_LINES = 4
MIN_CHECKED = 10  # rows of a split, below which all of its classes may be unknown
MAX_CLASSES = 200  # classes whose rows are counted


def find_formats(
    adapters: Mapping[str, Adapter], inputs: Mapping[str, Input], source: Source
) -> list[str]:
    """Let every adapter find out how the cells of its inputs are written, before they are read.

    Returns:
        A sentence for each column with cells that are read differently than they look.
    """
    notes: list[str] = []
    for key, adapter in adapters.items():
        names = [name for name, spec in inputs.items() if spec.adapter == key]
        cells = [cell for name in names for cell in source.column(name) if cell is not None]
        if note := adapter.tokenizer.reader.learn(cells):
            notes.append(f"{', '.join(names)}: {note}")
    return notes


def open_splits(
    source: Source,
    tokenizers: Mapping[str, Tokenizer],
    task: Task,
    *,
    loader: LoaderOptions,
) -> dict[str, Opened]:
    """Read every file of every split, and parse the targets.

    Args:
        source: The data set.
        tokenizers: Tokenizer of each input, by input name.
        task: Task that parses the targets.
        loader: How files are kept in memory, and how samples are loaded.

    Raises:
        UserError: If there are no rows to train on, all targets are equal, or rows are bad and
            data.on_bad=error.
    """
    budget = CacheBudget(loader.cache_gb)
    plain = {name: tokenizer.plain() for name, tokenizer in tokenizers.items()}
    splits: dict[str, Opened] = {}
    for name, rows in source.splits.items():
        if len(rows):
            opened = open_rows(
                rows,
                tokenizers if name == "train" else plain,
                task=task,
                on_bad=source.on_bad,
                budget=budget,
                only_headers=True,
            )
            splits[name] = replace(opened, num_workers=loader.num_workers, timeout=loader.timeout)
    if not source.splits.get("train"):
        raise UserError(
            "data: the training split has no rows; check the data and its splits, or set "
            "data.fractions=[0.8,0.1,0.1] to divide the rows"
        )
    if task.is_supervised:
        check_learnable(splits["train"], source.target, task)
    return splits


def fit_adapters(
    adapters: Mapping[str, Adapter],
    inputs: Mapping[str, Input],
    train: Opened,
    texts: Sequence[str],
    *,
    seed: int = 0,
) -> None:
    """Fit every adapter on the values of all its inputs in the training split.

    Args:
        adapters: Adapters by adapter key.
        inputs: The inputs of the model.
        train: The opened training split.
        texts: Target texts that a vocabulary must also cover.
        seed: Seed of the weights that fitting draws, such as the embedding of a new vocabulary.

    Raises:
        UserError: If no row has any of the inputs of an adapter.
    """
    raws_of, present = train.raws, train.present
    if len(train) > FIT_ROWS:
        rows = spaced_rows(len(train), FIT_ROWS)
        raws_of = {name: column.take(rows) for name, column in train.raws.items()}
        present = {name: mask[rows] for name, mask in present.items()}
        texts = list(evenly_spaced(texts, FIT_ROWS))
        print_line(f"adapters: fitted on {FIT_ROWS:,} of {count(len(train), 'row')}")
    for key, adapter in adapters.items():
        names = [name for name, spec in inputs.items() if spec.adapter == key]
        raws = present_values([(raws_of[name], present[name]) for name in names])
        if not raws:
            raise UserError(
                f"adapters.{key}: no row of the training split has a value of "
                f"{' or '.join(names)}; remove {key} from adapters=[...]"
            )
        # Only a vocabulary can be shared with the targets; other adapters cannot read texts.
        with named_draws(seed, f"fit of adapters.{key}"):
            adapter.fit([*raws, *texts] if adapter.has_vocabulary and texts else raws)


def fitted_files(adapters: Mapping[str, Any], task: Task) -> dict[str, bytes]:
    """Return the files of `save_fitted`, by name."""
    with tempfile.TemporaryDirectory() as name:
        save_fitted(Path(name), adapters, task)
        return {path.name: path.read_bytes() for path in sorted(Path(name).iterdir())}


def read_fitted(folder: Path, adapters: Mapping[str, Any], task: Task, seed: int) -> None:
    """Read what adapters and task learned from the training split of a run.

    Raises:
        UserError: If a file is missing or damaged, or does not fit the configuration.
    """
    path = folder / FOLDER
    try:
        load_fitted(path, adapters, task, seed=seed)
    except (UserError, MemoryError):
        raise
    # Everything comes from the files, so any other failure means that they contradict each other.
    except Exception as error:
        raise UserError(
            f"{path}: its files do not fit the configuration ({type(error).__name__}: {error}); "
            "copy the whole run folder again"
        ) from error


def use_files(
    files: Mapping[str, bytes], adapters: Mapping[str, Any], task: Task, seed: int
) -> None:
    """Use the fitted adapters and the fitted task of the first process."""
    with tempfile.TemporaryDirectory() as name:
        for file, content in files.items():
            (Path(name) / file).write_bytes(content)
        load_fitted(Path(name), adapters, task, seed=seed)


def describe(
    source: Source,
    splits: Mapping[str, Opened],
    task: Task,
    plan: Plan,
    tokenizers: Mapping[str, Tokenizer],
    notes: Sequence[str] = (),
) -> dict[str, Truncation]:
    """Print the inputs, the target, the splits and the truncated inputs of a training.

    Returns:
        The truncated inputs of the training split by name, counted in MAX_COUNTED_ROWS rows.
    """
    for line in input_lines(plan.inputs):
        print_line(line)
    if source.target is not None and task.is_supervised:
        print_line(f"target: {source.target} ({task.name})")
    for note in (*source.notes, *notes):
        print_line(f"note: {note}")
    for name, split in splits.items():
        missing = {name: number for name, number in split.missing.items() if number}
        remarks = [f"{number} without {name}" for name, number in missing.items()]
        if len(missing) > MAX_LINES:
            remarks = [
                f"{len(missing)} inputs have missing values, {sum(missing.values()):,} in all"
            ]
        if split.skipped:
            remarks.append(f"{split.skipped} skipped")
        remark = f" ({', '.join(remarks)})" if remarks else ""
        rows = count(len(split), "row")
        if name == "train" and source.stream is not None:
            rows = f"{source.stream}, read in each epoch; the sample has {rows}"
        print_line(f"{name}: {rows}{remark}")
        # A drawn split of very few rows can consist of rare classes.
        for note in check_known_targets(task, split.targets or (), name, min_rows=MIN_CHECKED):
            print_line(f"note: {note}")
    if task.is_supervised:
        print_line(f"target values: {task.target.describe(splits['train'].targets or ())}")
    if any(tokenizer.reader.files for tokenizer in tokenizers.values()):
        for line in memory_lines([split.raws for split in splits.values()]):
            print_line(line)
    train = splits["train"]
    rows = spaced_rows(len(train), MAX_COUNTED_ROWS)
    truncations = count_truncated(train, tokenizers, rows)
    for name, truncation in truncations.items():
        key = plan.inputs[name].adapter
        # The adapter of a user may have another option that limits the length.
        advice = f"; set adapters.{key}.max_len" if "max_len" in plan.model.adapters[key] else ""
        print_line(f"note: {name}: {truncation}{advice}")
    return truncations


def input_lines(specs: Mapping[str, Input]) -> list[str]:
    """Return the lines that describe the inputs of a training, one for many columns."""
    by_modality: dict[str, list[str]] = {}
    for spec in specs.values():
        by_modality.setdefault(spec.modality, []).append(spec.column)
    lines: list[str] = []
    for name, spec in specs.items():
        columns = by_modality[spec.modality]
        if len(columns) > MAX_LINES:
            # The first input of a modality stands for all of them.
            if spec.column == columns[0]:
                lines.append(f"{spec.modality}: {len(columns)} columns ({list_names(columns)})")
        elif spec.modality == name:
            lines.append(f"{name}: {spec.column}")
        elif spec.column == name:
            lines.append(f"{name} ({spec.modality})")
        else:
            lines.append(f"{name}: {spec.column} ({spec.modality})")
    return lines


def data_name(node: Mapping[str, Any], name: str | None) -> str:
    """Return what a card calls the data set: its path, its name, or the class that generates it.

    Args:
        node: Configuration node `data`.
        name: Name of the data source.
    """
    path = node.get("path") or node.get("train")
    if isinstance(path, str):
        # The home folder is nobody else's concern, and `~` may have been expanded.
        home = str(Path.home())
        return path.replace(home, "~", 1) if path.startswith(home) else path
    return name or str(node["_target_"]).rpartition(".")[2]


def print_paths(node: Mapping[str, Any]) -> None:
    """Print the data that a run folder from an untrusted source names, before it is read.

    Args:
        node: The saved data source.
    """
    paths = [str(path) for key in DATA_PATHS if node.get(key) for path in as_list(node[key])]
    if paths:
        print_line(f"data of the run: {', '.join(paths)}")


def count_classes(task: Task, targets: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, int]]:
    """Return the number of rows of each class, by split. Empty if targets are not class names.

    Args:
        task: The task.
        targets: Parsed targets of each split.
    """
    labels = set(task.target.labels or ())
    if not labels or len(labels) > MAX_CLASSES:
        return {}
    counts: dict[str, dict[str, int]] = {}
    for split, values in targets.items():
        names: Counter[str] = Counter()
        for value in values:
            items = value if isinstance(value, list) else [value]
            names.update(item for item in items if isinstance(item, str))
        # A vocabulary is not a list of classes: its texts are not among its tokens.
        if not names or not labels & set(names):
            return {}
        counts[split] = {name: names[name] for name in task.target.labels or () if names[name]}
    return counts
