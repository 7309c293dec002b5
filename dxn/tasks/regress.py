"""Regression: predict one number for each sample."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dxn.core.display import list_names, number
from dxn.core.errors import UserError
from dxn.core.schema import Strict
from dxn.tasks.heads import HeadOptions
from dxn.tasks.metric import Metric
from dxn.tasks.space import AnswerKind, Batch, LossSum, Space
from dxn.tasks.target import Target
from dxn.tasks.task import Task
from dxn.tokenize.cells.cell_values import (
    NumberFormat,
    explain_format,
    find_format,
    plain_number,
)

MAX_EXAMPLES = 3  # cells in a message
MAX_TARGET = 1e37  # predictions are computed in float32, whose largest number is 3.4e38
# The variance is a difference of two sums. Below this fraction of them, it is a rounding error.
ROUNDING = 1e-12


class NumbersState(Strict):
    """The content of labels.json."""

    mean: Annotated[float, Field(ge=-MAX_TARGET, le=MAX_TARGET)]
    # With 0, all predictions would be the mean.
    std: Annotated[float, Field(gt=0, le=MAX_TARGET)]
    decimal: Literal[".", ","] = "."
    unit: str = ""
    sigmoid: bool = False


class NumberTarget(Target):
    """One number per row, which is standardized with the mean and std of the training split.

    Attributes:
        mean: Mean of the training targets.
        std: Their standard deviation.
        decimal: Decimal separator.
        unit: Unit in the cells, such as "%".
        sigmoid: Whether the numbers are the sigmoid of the outputs, as those of some public models
            are, until `fit` is called.
    """

    State: ClassVar[type[Strict]] = NumbersState

    def __init__(self):
        self.mean = 0.0
        self.std = 1.0
        self.decimal = "."
        self.unit = ""
        self.sigmoid = False
        # How many of the target cells are numbers, for the message about a cell that is none.
        self.counts = ""

    def find_format(self, cells: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Find the decimal separator and the unit of the numbers."""
        form = find_format(cells)
        self.decimal, self.unit = form.decimal, form.unit
        others = [i for i, cell in enumerate(cells) if form.parse(cell) is None]
        self.counts = f", as {len(cells) - len(others):,} of {len(cells):,} targets are"
        if len(others) == len(cells):
            self.counts = ", but no target is a number (head=classify makes each value a class)"
        return _explain_format(form, cells, others, origins)

    def read(self, cell: Any, origin: str, raws: Mapping[str, Any]) -> float:
        """Return the number.

        Raises:
            UserError: If the cell is not a number, or too large for float32.
        """
        number = NumberFormat(self.decimal, self.unit).parse(cell)
        if number is None:
            raise UserError(f"{origin}: the target must be a number{self.counts}, got {cell!r}")
        if abs(number) > MAX_TARGET:
            raise UserError(
                f"{origin}: the target must be from -{MAX_TARGET:g} to {MAX_TARGET:g}, got "
                f"{cell!r}; use a larger unit"
            )
        return number

    def fit(self, values: Sequence[float]) -> None:
        """Compute the mean and the standard deviation of the targets."""
        # float32 has too few digits for the variance of numbers with a large mean, such as years.
        numbers = torch.tensor(values, dtype=torch.float64)
        self.mean = float(numbers.mean())
        self.sigmoid = False
        # The minimum avoids a division by zero if all targets are equal.
        self.std = max(float(numbers.std(correction=0)), 1e-12)

    def encode(self, value: float, sample: dict[str, Any], rand: Random | None = None) -> Tensor:
        """Return the standardized number ()."""
        # In float64, because in float32 all times in seconds within two minutes are equal.
        return torch.tensor((float(value) - self.mean) / self.std)

    def describe(self, values: Sequence[float]) -> str:
        """Return the range and the median of the targets."""
        if not values:
            return "no numbers"
        middle = number(statistics.median(values))
        return f"{number(min(values))} to {number(max(values))}, median {middle}"


class Number(Space):
    """A standardized number (B, 1); targets are standardized numbers (B,).

    The loss is twice the negative log-likelihood of a normal distribution with a standard deviation
    of 1.

    Args:
        numbers: The targets, with their mean and standard deviation.
    """

    kind = AnswerKind.NUMBER

    def __init__(self, numbers: NumberTarget):
        self.numbers = numbers

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the squared error of standardized numbers."""
        # Standardization makes the scale of the loss, and so a good learning rate, independent of
        # the unit of the targets.
        return LossSum.of((output.float().squeeze(-1) - batch["target"]).square())

    def decode(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the numbers (B,) in the original unit, float64."""
        numbers = output.float().squeeze(-1).double()
        numbers = numbers.sigmoid() if self.numbers.sigmoid else numbers
        return {"prediction": numbers * self.numbers.std + self.numbers.mean}


class ErrorMetric(Metric):
    """Errors of predicted numbers, R², and the rank correlation."""

    target: NumberTarget
    monitored = "rmse"
    lower_is_better = ("rmse", "mae", "median_absolute_error")
    row: ClassVar = ("mae", "absolute error")

    def rows(self, predictions: Sequence[Tensor], targets: Sequence[float]) -> Tensor:
        """Return 1, the squared and the absolute error, and both moments of the targets."""
        predicted, true = _columns(predictions, targets)
        error = predicted - true
        # Around a mean, because the variance is a difference of two sums.
        centered = true - self.target.mean
        parts = [torch.ones_like(error), error.square(), error.abs(), centered, centered.square()]
        return torch.stack(parts, 1)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the root mean squared error, the mean absolute error and R².

        R² is NaN if all targets are equal.
        """
        total, *others = sums.unbind(-1)
        squared, absolute, mean, square = (column / total for column in others)
        # The variance is the mean squared error of a model that always predicts the mean.
        variance = square - mean.square()
        r2 = torch.where(variance > ROUNDING * square, 1 - squared / variance, math.nan)
        return {"rmse": squared.sqrt(), "mae": absolute, "r2": r2}

    def weighted(
        self, predictions: Sequence[Tensor], targets: Sequence[float], counts: Tensor
    ) -> dict[str, Tensor]:
        """Return all metrics, also those that are not functions of sums."""
        predicted, true = _columns(predictions, targets)
        return {
            **super().weighted(predictions, targets, counts),
            "median_absolute_error": _median((predicted - true).abs(), counts),
            "spearman": _correlation(_ranks(predicted, counts), _ranks(true, counts), counts),
        }

    @property
    def details(self) -> Collection[str]:
        """The metrics that tables do not show."""
        return {"median_absolute_error", "spearman"}


@dataclass(kw_only=True, eq=False)
class Regress(HeadOptions, Task[NumberTarget]):
    """Predict a number for each sample.

    Targets are standardized: the head predicts (target - mean) / std, with the mean and the
    standard deviation of the training split.

    Args:
        pair: Whether the inputs are two texts that become one sequence, as in BERT.
    """

    name = "regress"

    pair: bool = False

    def __post_init__(self):
        self.target = NumberTarget()
        self.target.is_pair = self.pair
        self.space = Number(self.target)
        self.metric = ErrorMetric(self.target)

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a linear layer that maps the pooled vector to one output."""
        return self.linear_head(pooled_dim, 1, windows=self.target.pair)

    def columns(
        self, prediction: Tensor, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the predicted number, and the error if the target is known."""
        predicted = self._rounded(float(prediction))
        if target is None:
            return {"prediction": predicted}
        return {"prediction": predicted, "error": self._rounded(predicted - target)}

    def naive(self, raws: Sequence[Mapping[str, Any]]) -> tuple[str, list[Tensor]] | None:
        """Return the mean of the training split, the constant with the smallest RMSE."""
        # Those of a public checkpoint, whose training split is unknown.
        if self.target.mean == 0 and self.target.std == 1:
            return None
        mean = torch.tensor(self.target.mean, dtype=torch.float64)
        return "always the mean", [mean] * len(raws)

    def _rounded(self, value: float) -> float:
        """Round to a millionth of the standard deviation, as exact as float32 outputs are."""
        return round(value, 6 - math.floor(math.log10(self.target.std)))


def _explain_format(
    form: NumberFormat, values: Sequence[Any], others: Sequence[int], origins: Sequence[str]
) -> list[str]:
    """Return how written numbers are read, and which cells are not numbers.

    Args:
        form: Format of the numbers.
        values: Cells of the column, never None.
        others: Indices of the cells that are not numbers.
        origins: File and row of each cell.
    """
    notes: list[str] = []
    example = next((v for v in values if isinstance(v, str) and _is_formatted(form, v)), None)
    about = explain_format(form, values)
    if about:
        notes.append(f"target: {about}")
    elif example is not None:
        number = form.parse(example)
        notes.append(f"target numbers are read as in {example.strip()!r} = {number:,.10g}")
    if 0 < len(others) < len(values):  # if none is a number, the error of each row says so
        shown = [f"{origins[i]} {str(values[i])[:20]!r}" for i in others]
        notes.append(
            f"target: {len(values) - len(others):,} of {len(values):,} values are numbers, all but "
            f"{list_names(shown, MAX_EXAMPLES)}; set data.on_bad=skip to leave out these rows, or "
            "head=classify to make each value a class"
        )
    return notes


def _is_formatted(form: NumberFormat, value: str) -> bool:
    """Whether a number has separators or a unit, so that it could be read in another way."""
    number = form.parse(value)
    return number is not None and plain_number(value) != number


def _columns(predictions: Sequence[Tensor], targets: Sequence[float]) -> tuple[Tensor, Tensor]:
    true = torch.tensor([float(target) for target in targets], dtype=torch.float64)
    return torch.stack(list(predictions)).double(), true


def _median(values: Tensor, counts: Tensor) -> Tensor:
    """Return the medians (R,) of values (n,) that count as often as `counts` (R, n) says."""
    values, order = values.sort()
    up_to = counts[:, order].cumsum(1)
    last = up_to[:, -1:] - 1
    middle = [torch.searchsorted(up_to, (last / 2).floor(), right=True)]
    middle.append(torch.searchsorted(up_to, (last / 2).ceil(), right=True))
    return values[torch.cat(middle, 1)].mean(1)


def _ranks(values: Tensor, counts: Tensor) -> Tensor:
    """Return the ranks (R, n) of numbers (n,), NaN for NaN; equal numbers have their mean rank."""
    distinct, inverse = values.unique(return_inverse=True)
    sizes = counts.new_zeros(len(counts), len(distinct)).index_add_(1, inverse, counts)
    ranks = (sizes.cumsum(1) - (sizes - 1) / 2)[:, inverse]
    return ranks.masked_fill(values.isnan(), math.nan)


def _correlation(left: Tensor, right: Tensor, counts: Tensor) -> Tensor:
    """Return Pearson's correlation (R,) of numbers (R, n); NaN if all of one are equal."""
    total = counts.sum(1, keepdim=True)
    x, y = (numbers - (counts * numbers).sum(1, keepdim=True) / total for numbers in (left, right))
    covariance = (counts * x * y).sum(1)
    return covariance / ((counts * x.square()).sum(1) * (counts * y.square()).sum(1)).sqrt()
