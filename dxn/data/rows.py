"""The rows of a data set, its inputs and its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

VALUES = "values"  # column with the series that a layout or a file format of series adds
TARGET = "target"  # key of the targets in Rows.cells and in batches
# Batches contain these keys next to one key per input, so an input cannot have such a name.
RESERVED = ("#size", "#index", "#filler", TARGET)

# What to do with a bad row: raise an error, leave the row out, or use the inputs that can be read.
OnBad = Literal["error", "skip", "missing"]


@dataclass(frozen=True)
class PerItem:
    """Values that identify the items of one prediction, such as the times of a forecast.

    Args:
        values: One value per row that the task writes for the prediction.
    """

    values: Sequence[Any]


@dataclass(frozen=True)
class Rows:
    """One split of a data set, before files are read.

    Args:
        cells: Values by input name (or "target"), one per row; None where a value is missing. The
            values of an input are what its preprocessor reads, such as texts, paths or bytes.
            Targets are raw cells, which the task parses when the rows are opened.
        origin: Origin of each row for messages, such as "train.csv row 17".
        ids: Values that identify rows and are copied to the results, by column name. A `PerItem`
            has one value for each item of a prediction.
        groups: Group of each row, such as a speaker. Drawn splits keep the rows of a group
            together. None: there are no groups.
    """

    cells: Mapping[str, Sequence[Any]]
    origin: Sequence[str]
    ids: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    groups: Sequence[Any] | None = None

    def __len__(self) -> int:
        return len(self.origin)

    def take(self, indices: Sequence[int]) -> Rows:
        """Return the rows at these indices, in this order."""
        return Rows(
            cells={name: [column[i] for i in indices] for name, column in self.cells.items()},
            origin=[self.origin[i] for i in indices],
            ids={name: [column[i] for i in indices] for name, column in self.ids.items()},
            groups=None if self.groups is None else [self.groups[i] for i in indices],
        )


@dataclass(frozen=True)
class InputSpec:
    """An input of a data set.

    Args:
        column: Column that contains the values of the input.
        modality: Modality of the input, such as "text".
    """

    column: str
    modality: str


@dataclass(frozen=True)
class Source:
    """A data set with its splits, inputs and target.

    Args:
        splits: Rows by split: "train", and optionally "validation" and "test".
        inputs: Column and modality of each input, by input name. The order is that of the model's
            inputs.
        target: Target column, or several columns joined by " + ". None: there is no target.
        name: Default name of the folder of a run. None: the target.
        files: Names of the inputs whose cells are paths or contents of files.
        candidates: Columns that could be the target, the most likely one first. Only an error
            message about a missing target contains them.
        task: Name of the task for which the data set was designed. None: infer it from the targets.
        notes: Sentences to print about inferred columns, random splits and unused data.
        on_bad: What to do with a bad row.
        layout: How tables were rearranged, which new tables need too, as plain data, see
            `dxn.data.series.layouts`. None: not at all.
    """

    splits: Mapping[str, Rows]
    inputs: Mapping[str, InputSpec]
    target: str | None = None
    task: str | None = None
    notes: Sequence[str] = ()
    on_bad: OnBad = "error"
    name: str | None = None
    files: Sequence[str] = ()
    candidates: Sequence[str] = ()
    layout: Mapping[str, Any] | None = None

    def column(self, name: str) -> list[Any]:
        """Return the cells of an input (or "target") in all splits, None where it is missing."""
        values: list[Any] = []
        for rows in self.splits.values():
            missing: Sequence[Any] = [None] * len(rows)
            values += rows.cells.get(name, missing)
        return values

    def target_origins(self) -> list[str]:
        """Return the origins of the rows that have a target, in the order of `targets`."""
        origins: list[str] = []
        for rows in self.splits.values():
            cells = rows.cells.get(TARGET, ())
            pairs = zip(rows.origin, cells, strict=False)
            origins += [origin for origin, cell in pairs if cell is not None]
        return origins

    def targets(self) -> tuple[list[Any], list[Any] | None]:
        """Return the raw targets and the words of the same rows, for `dxn.tasks.infer_task`.

        Returns:
            The target cells of the rows that have a target, and for the same rows the cells of the
            first input that contains lists of words, or None if there is no such input.
        """
        cells = self.column(TARGET)
        rows = [i for i, cell in enumerate(cells) if cell is not None]
        targets = [cells[i] for i in rows]
        for name in self.inputs:
            values = self.column(name)
            if any(isinstance(value, list) for value in values):
                return targets, [values[i] for i in rows]
        return targets, None
