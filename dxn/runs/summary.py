"""What a training prints about its data before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dxn.core.display import count, list_names, named, print_line
from dxn.core.randomness import spaced_rows
from dxn.data.inspect.check import Truncation, count_truncated
from dxn.data.inspect.quality import check_known_targets
from dxn.data.raws import memory_lines

if TYPE_CHECKING:
    from dxn.data.dataset import Opened
    from dxn.data.rows import Source
    from dxn.runs.record import Input, Plan
    from dxn.tasks import Task
    from dxn.tokenize.base import Tokenizer

# Truncation is counted in this many rows only, because preparing all rows of a large data set takes
# as long as an epoch.
MAX_COUNTED_ROWS = 2000
# Columns of a modality that are printed one per line. More are printed in one line.
MAX_LINES = 4
MIN_CHECKED = 10  # rows of a split, below which all of its classes may be unknown
MAX_UNKNOWN = 5  # names of classes in a note


def describe(
    source: Source,
    splits: Mapping[str, Opened],
    task: Task,
    plan: Plan,
    tokenizers: Mapping[str, Tokenizer],
) -> dict[str, Truncation]:
    """Print the inputs, the target, the splits and the truncated inputs of a training.

    Returns:
        The truncated inputs of the training split by name, counted in MAX_COUNTED_ROWS rows.
    """
    for line in input_lines(plan.inputs):
        print_line(line)
    if source.target is not None and task.is_supervised:
        print_line(f"target: {source.target} ({task.name})")
    for note in source.notes:
        print_line(f"note: {note}")
    for name, split in splits.items():
        missing = {name: number for name, number in split.missing.items() if number}
        notes = [f"{number} without {name}" for name, number in missing.items()]
        if len(missing) > MAX_LINES:
            notes = [f"{len(missing)} inputs have missing values, {sum(missing.values()):,} in all"]
        if split.skipped:
            notes.append(f"{split.skipped} skipped")
        remark = f" ({', '.join(notes)})" if notes else ""
        print_line(f"{name}: {count(len(split), 'row')}{remark}")
        # A drawn split of very few rows can consist of rare classes.
        if len(split) >= MIN_CHECKED:
            check_known_targets(task, split.targets or (), name)
        print_unknown(task, split.targets or (), name)
    if task.is_supervised:
        print_line(f"target values: {task.target.describe(splits['train'].targets or ())}")
    for line in memory_lines([split.raws for split in splits.values()]):
        print_line(line)
    train = splits["train"]
    rows = spaced_rows(len(train), MAX_COUNTED_ROWS)
    truncations = count_truncated(train, tokenizers, rows)
    for name, truncation in truncations.items():
        key = plan.inputs[name].adapter
        # The adapter of a user may have another option that limits the length.
        advice = f"; set adapters.{key}.max_len" if "max_len" in plan.adapters[key] else ""
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
                lines.append(f"{spec.modality}: {len(columns)} columns ({named(columns)})")
        elif spec.modality == name:
            lines.append(f"{name}: {spec.column}")
        elif spec.column == name:
            lines.append(f"{name} ({spec.modality})")
        else:
            lines.append(f"{name}: {spec.column} ({spec.modality})")
    return lines


def print_unknown(task: Task, targets: Sequence[Any], where: str) -> None:
    """Print a note that names the classes of rows that the model does not know.

    Args:
        task: The fitted task.
        targets: The targets of the rows.
        where: What the rows are, such as "validation".
    """
    unknown = task.target.unknown(targets)
    if unknown:
        names = list_names(list(dict.fromkeys(unknown)), MAX_UNKNOWN)
        print_line(
            f"note: {where}: the target of {count(len(unknown), 'row')} is not in the training "
            f"split ({names}), which counts as wrong"
        )
