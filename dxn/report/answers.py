"""The predictions of a model, what a report asks the model for, and the score of each row.

scores.json has the scores, from which two runs are compared on the same rows.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from dxn.core.files import SCORES, write_text
from dxn.core.printable import json_text
from dxn.core.schema import Strict, validated
from dxn.core.tokens import Tokens
from dxn.core.untrusted import load_json
from dxn.data.dataset import Samples
from dxn.tasks import Task
from dxn.tasks.metric import Blocks, Metric
from dxn.training.predict import Predictions
from dxn.viz.drawers import Shown

MAX_SCORES = 50_000  # rows whose scores are stored; a row takes about 50 bytes
MAX_COLUMNS = 8  # columns whose cells are compared
MAX_TARGET = 200  # characters of a target that identify it
# Parts of the path of a file that identify it. Two runs can name the same folder in other ways.
PATH_PARTS = 3


@dataclass(frozen=True)
class Answers:
    """The predictions of a model for the samples of a split.

    Args:
        samples: The samples, with the origin of each row and, if they are known, the targets.
        predictions: The predictions, and the row of the split that each one is for.
    """

    samples: Samples
    predictions: Predictions

    @property
    def truths(self) -> list[Any]:
        """Parsed targets in the order of the predictions; [] if there are none."""
        targets = self.samples.opened.targets
        return [] if targets is None else [targets[row] for row in self.predictions.rows]

    @property
    def origins(self) -> list[str]:
        """Origin of each row in the order of the predictions."""
        return [self.samples.opened.origin[row] for row in self.predictions.rows]

    def blocks(self, metric: Metric) -> Blocks | None:
        """Return which rows depend on each other, in the order of the predictions."""
        groups = self.samples.opened.groups
        if groups is None:
            return metric.blocks(self.truths)
        numbers: dict[Any, int] = {}
        ids: list[int] = []
        for row in self.predictions.rows:
            # A row without a group is a block of its own.
            key = ("row", row) if groups[row] is None else ("group", str(groups[row]))
            ids.append(numbers.setdefault(key, len(numbers)))
        return Blocks(ids) if len(numbers) < len(ids) else None


@dataclass(frozen=True)
class Evidence:
    """What a report shows of a model: its predictions, inputs, attention and created values.

    Args:
        task: Task of the model, with its metric.
        last: Predictions from all inputs. None: the data cannot be read.
        shown: Function that returns the inputs of a row of the split.
        attended: Function that returns one encoded sample (1, N, D) and the share (N,) of each of
            its columns in the answer, from the position of the sample and the names of its inputs.
            None: the model has no attention that can be drawn.
        created: Function that returns the values that the model creates of an input, from its name
            and rows of the split.
        answered: Function that returns, for the conversations of some rows, the texts of the
            messages before the last answer, this answer, and that of the model. None: the model
            learns no conversations.
        limits: What also decides about the answers, and has no attention. "": nothing.
    """

    task: Task
    last: Answers | None
    shown: Callable[[int], dict[str, Shown]]
    attended: Callable[[int, Sequence[str]], tuple[Tokens, np.ndarray] | None]
    created: Callable[[str, Sequence[int]], list[Shown]]
    answered: Callable[[Sequence[int]], list[tuple[str, str, str]]] | None = None
    limits: str = ""


@dataclass(frozen=True, slots=True)
class RowScores:
    """How well each row was answered, so that rows can be sorted and two models compared.

    Args:
        name: Name of the score, such as "correct" or "absolute error".
        values: Score of each row.
        higher_is_better: Whether a higher score is a better answer.
    """

    name: str
    values: Sequence[float]
    higher_is_better: bool = True


def row_scores(
    metric: Metric, predictions: Sequence[Any], targets: Sequence[Any], undefined: float = 1.0
) -> RowScores | None:
    """Return how well each row is answered; None if no metric scores single rows.

    Args:
        metric: Metric of the task, which may score single rows.
        predictions: Predictions of the rows.
        targets: Their targets.
        undefined: Score of a row for which the metric is not defined, if higher scores are better.
            By default, a row with nothing to predict is right.
    """
    if metric.row is None:
        return None
    figure, name = metric.row
    values = metric.value(metric.rows(predictions, targets))[figure]
    higher = metric.is_higher_better(figure)
    right = values.nan_to_num(undefined, math.inf, -math.inf) if higher else values
    return RowScores(name, right.tolist(), higher)


class Scores(Strict):
    """The content of scores.json.

    Args:
        name: Name of the score of a row.
        higher_is_better: Whether a higher score is a better answer.
        values: Score of each row, by a key that is equal for the same row in other runs.
        contents: Hash of each cell in the order of `values`, by column.
        blocks: Number of the block of each row in this order, see `Blocks`. Empty: there are none.
        spread: Factor of the standard error of blocks.
    """

    name: str
    higher_is_better: bool
    values: dict[str, float] = Field(default_factory=dict)
    contents: dict[str, list[str]] = Field(default_factory=dict)
    blocks: list[int] = Field(default_factory=list)
    spread: Annotated[float, Field(ge=1, le=10)] = 1.0


def read_scores(folder: Path) -> Scores | None:
    """Read scores.json of an untrusted run folder; None if there is none.

    Raises:
        UserError: If the file is damaged.
    """
    path = folder / SCORES
    return validated(Scores, load_json(path), path) if path.exists() else None


def write_scores(
    folder: Path,
    scores: RowScores,
    last: Answers,
    columns: Mapping[str, str],
    blocks: Blocks | None = None,
) -> None:
    """Write scores.json.

    Args:
        folder: The run folder.
        scores: Score of each row.
        last: The predictions of these rows.
        columns: Column that each input was read from, by input name.
        blocks: Which rows depend on each other. None: they are independent.
    """
    values = list(scores.values)[:MAX_SCORES]
    keys = row_keys(last.origins[: len(values)], last.truths[: len(values)])
    keep = [i for i, value in enumerate(values) if math.isfinite(value)]
    rows = [last.predictions.rows[i] for i in keep]
    cells = {
        columns.get(name, name): [column[row] for row in rows]
        for name, column in last.samples.opened.cells.items()
    }
    content = Scores(
        name=scores.name,
        higher_is_better=scores.higher_is_better,
        values={keys[i]: float(f"{values[i]:.6g}") for i in keep},
        contents=contents(cells),
        blocks=[] if blocks is None else [blocks.ids[i] for i in keep],
        spread=1.0 if blocks is None else blocks.spread,
    )
    write_text(folder / SCORES, json_text(content.model_dump()))


def row_keys(origins: Sequence[str], targets: Sequence[Any]) -> list[str]:
    """Return a key of each row that is equal for the same row in another run.

    The key has only the last parts of a path, so that another run can name the folder in another
    way.
    """
    seen: Counter[str] = Counter()
    keys: list[str] = []
    for origin, target in zip(origins, targets, strict=True):
        key = _digest(f"{_end(origin)}\n{str(target)[:MAX_TARGET]}", 8)
        # Windows of one series can have the same origin.
        seen[key] += 1
        keys.append(f"{key}-{seen[key]}" if seen[key] > 1 else key)
    return keys


def contents(cells: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    """Return a hash of each cell by column, "" for values that are not texts, paths or numbers.

    Args:
        cells: What the inputs were read from, by column.
    """
    digests_of_columns: dict[str, list[str]] = {}
    for name, values in list(cells.items())[:MAX_COLUMNS]:
        digests = ["" if value is None else _digest(_end(str(value)), 4) for value in values]
        if any(digests):
            digests_of_columns[name] = digests
    return digests_of_columns


def common_scores(first: Scores, second: Scores) -> tuple[list[tuple[float, float]], Blocks | None]:
    """Return the scores of the rows that two runs have in common, and which of them are dependent.

    A row must have the same origin and target, and the same content of each column that both runs
    have read: the rows of generated data and of a changed table can have equal origins. If only one
    run knows which rows are dependent, such as one with `data.group`, they are so for the other.
    """
    columns = [name for name in first.contents if name in second.contents]
    places = {key: i for i, key in enumerate(second.values)}
    others = list(second.values.values())
    pairs: list[tuple[float, float]] = []
    at: list[tuple[int, int]] = []
    for i, (key, value) in enumerate(first.values.items()):
        j = places.get(key)
        if j is not None and all(_at(first, c, i) == _at(second, c, j) for c in columns):
            pairs.append((value, others[j]))
            at.append((i, j))
    for scores, places_of in zip((first, second), zip(*at, strict=True), strict=False):
        if len(scores.blocks) == len(scores.values):
            return pairs, Blocks([scores.blocks[i] for i in places_of], scores.spread)
    return pairs, None


def _at(scores: Scores, column: str, row: int) -> str:
    values = scores.contents[column]
    return values[row] if row < len(values) else ""


def _end(text: str) -> str:
    """Return the last parts of a path; a text without slashes as it is."""
    return "/".join(text.rsplit("/", PATH_PARTS)[-PATH_PARTS:])


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=size).hexdigest()
