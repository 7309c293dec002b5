"""What a training prints and records: its data, its results, and the versions and the hardware."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import dxn
from dxn.core.display import count, input_line, list_names, print_line
from dxn.core.files import LOG, sha256
from dxn.core.randomness import spaced_rows
from dxn.core.results import ALL, BEST, UNSEEN, Results, Truncation
from dxn.data.inspect.quality import check_kept, check_known_targets, count_truncated
from dxn.data.raws import memory_lines
from dxn.models.model import MultimodalModel, count_parameters
from dxn.runs.encoders import license_of
from dxn.tasks import Task
from dxn.training.log import read_log
from dxn.training.predict import task_results
from dxn.training.state import State

if TYPE_CHECKING:
    from dxn.config.model_plan import Input
    from dxn.data.dataset import Opened
    from dxn.data.rows import Source
    from dxn.runs.filling import InitialWeights
    from dxn.runs.plan import Plan
    from dxn.runs.prepare import Training
    from dxn.tokenize.base import Tokenizer

# Truncation is counted in this many rows only, because preparing all rows of a large data set takes
# as long as an epoch.
MAX_COUNTED_ROWS = 2000
# Columns of a modality that are printed one per line. More are printed in one line.
MAX_LINES = 4
MIN_CHECKED = 10  # rows of a split, below which all of its classes may be unknown
MAX_CLASSES = 200  # classes whose rows are counted
# Whose versions a record of results has.
PACKAGES = ("torch", "torchvision", "torchaudio", "tokenizers", "numpy")


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
            # The lines about splits and presets count all rows, before any is read.
            remarks.append(f"{split.skipped:,} of {len(split) + split.skipped:,} skipped")
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
        option = tokenizers[name].cut_option
        # The adapter of a user may have another option that limits the length.
        is_known = option.split(".")[0] in plan.model.adapters[key]
        advice = f"; set adapters.{key}.{option}" if is_known else ""
        print_line(f"note: {name}: {truncation}{advice}")
    for name, split in splits.items():
        counted = spaced_rows(len(split), MAX_COUNTED_ROWS)
        for note in check_kept(split, task, tokenizers, name, counted):
            print_line(f"note: {note}")
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
        else:
            lines.append(input_line(name, spec.column, spec.modality))
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


def describe_start(config: Mapping[str, Any], weights: InitialWeights) -> list[str]:
    """Return the source, the licence and the digest of each checkpoint that a run starts from.

    Args:
        config: The configuration, which names the checkpoints.
        weights: The checkpoints by the keys of the adapters in the configuration.
    """
    own, encoders = config["weights"], config["pretrained"]
    sources: dict[str, str] = {}
    if own["source"]:
        sources[""] = "@".join(filter(None, [own["source"], own["revision"]]))
    for named in (own["adapters"], encoders):
        if isinstance(named, Mapping):
            sources |= {f"{key}=": source for key, source in named.items() if source}
    lines: list[str] = []
    for (key, source), public in zip(sources.items(), weights.checkpoints, strict=True):
        license = license_of(source) or public.checkpoint.license or "see its source"
        digests = [f"{path.name} {sha256(path)}" for path in public.checkpoint.files]
        lines.append(f"{key}{source} (license: {license}; SHA-256: {', '.join(digests)})")
    return lines


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
            texts = [item for item in items if isinstance(item, str)]
            names.update(text if text in labels else UNSEEN for text in texts)
        # A vocabulary is not a list of classes: its texts are not among its tokens.
        if not names or not labels & set(names):
            return {}
        known = task.target.labels or ()
        counts[split] = {name: names[name] for name in (*known, UNSEEN) if names[name]}
    return counts


def results_of(
    run: Training,
    model: MultimodalModel,
    task: Task,
    figures: Mapping[str, float],
    state: State | None = None,
) -> Results:
    """Return the results of a training on the validation split.

    Args:
        run: The training.
        model: The model: that of the run, or that of its pretraining.
        task: Its task.
        figures: Validation metrics of the best epoch.
        state: State of the finished training. None: it goes on.
    """
    fields: dict[str, Any] = {}
    if state is not None:
        fields = {
            "best_epoch": state.best_epoch,
            "epochs": state.epoch,
            "train_seconds": round(state.seconds, 1),
            "bad_files": sum(len(split.bad_later) for split in run.splits.values()),
        }
    results = task_results(
        task,
        "validation",
        {ALL: figures} if figures else {},
        inputs=list(model.inputs),
        subsets=[ALL],
        parameters=count_parameters(model),
        precision=run.plan.precision,
        data=run.facts,
        environment=environment(str(run.trainer.hardware.device)),
        start=run.plan.start,
        **fields,
    )
    best = results.metrics.get(f"validation/{results.monitored}")
    metrics = results.metrics if best is None else {BEST: best, **results.metrics}
    return results.model_copy(update={"metrics": metrics})


def environment(device: str) -> dict[str, str]:
    """Return versions and hardware, without anything that identifies the machine or the user."""
    facts = {
        "time": datetime.now().strftime("%Y-%m-%d %H:%M"),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": device,
        "threads": str(torch.get_num_threads()),
    }
    if device.startswith("cuda"):
        facts["GPU"] = torch.cuda.get_device_name()
    # The metadata of an editable installation can be those of an earlier version.
    facts["dxn"] = dxn.__version__
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def best_figures(folder: Path, state: State) -> dict[str, float]:
    """Return the validation metrics of the best epoch from the log, which a resumed run has too."""
    prefix = "validation/"
    figures: dict[str, float] = {}
    for row in read_log(folder / LOG):
        if row["epoch"] == state.best_epoch:
            names = [name for name in row if name.startswith(prefix)]
            figures |= {name.removeprefix(prefix): row[name] for name in names}
    return figures
