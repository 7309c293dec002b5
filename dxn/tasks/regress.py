"""Regression: predict one number for each sample."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.schema import Strict, validated
from dxn.tasks.cells import are_amounts
from dxn.tasks.heads import Hidden, LinearHead, PreHead, check_hidden
from dxn.tasks.loss import LossSum
from dxn.tasks.number_notes import explain_amounts, explain_format
from dxn.tasks.row_scores import RowScores
from dxn.tasks.task import STATE_FILE, Batch, Task
from dxn.tokenize.cells.numbers import NumberFormat, find_format

MAX_TARGET = 1e37  # predictions are computed in float32, whose largest number is 3.4e38


class Regress(Task):
    """Predict a number for each sample.

    Targets are standardized: the head predicts (target - mean) / std, with the mean and the
    standard deviation of the training split.

    Args:
        hidden: Hidden layer before the output layer: none, linear, tanh, relu or gelu.
        norm: Whether to apply a layer norm before the output layer.
        norm_eps: Epsilon of the layer norm before the output layer.
        dropout: Dropout probability before the output layer.
    """

    name = "regress"
    preset = "samples"
    plots = "scatter"
    monitored = "rmse"

    def __init__(
        self,
        *,
        hidden: Hidden = "none",
        norm: bool = False,
        norm_eps: float = 1e-5,
        dropout: float = 0.1,
    ):
        check_hidden(hidden)
        self.pre_options = {
            "hidden": hidden,
            "norm": norm,
            "norm_eps": norm_eps,
            "dropout": dropout,
        }
        self.mean = 0.0
        self.std = 1.0
        self.format = NumberFormat()
        # How many of the target cells are numbers, for the message about a cell that is none.
        self.counts = ""

    @classmethod
    def accepts(cls, values: Sequence[Any], words: Sequence[Any] | None) -> float:
        """Return a positive score for numbers, except for integers that are class labels."""
        return 0.8 if are_amounts(values) else 0.0

    @classmethod
    def reason(cls, values: Sequence[Any]) -> str:
        """Return why integers are read as a quantity instead of classes."""
        return explain_amounts(values)

    def find_format(self, values: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Find the decimal separator and the unit of the numbers."""
        self.format = find_format(values)
        others = [i for i, value in enumerate(values) if self.format.parse(value) is None]
        if len(others) < len(values):
            self.counts = f", as {len(values) - len(others):,} of {len(values):,} targets are"
        return explain_format(self.format, values, others, origins)

    def parse(self, value: Any, origin: str) -> float:
        """Return the number.

        Raises:
            UserError: If the cell is not a finite number.
        """
        number = self.format.parse(value)
        if number is None:
            raise UserError(f"{origin}: the target must be a number{self.counts}, got {value!r}")
        return number

    def fit(self, values: Sequence[float]) -> None:
        """Compute the mean and the standard deviation of the targets."""
        # float32 has too few digits for the variance of numbers with a large mean, such as years.
        numbers = torch.tensor(values, dtype=torch.float64)
        self.mean = float(numbers.mean())
        # The minimum avoids a division by zero if all targets are equal.
        self.std = max(float(numbers.std(correction=0)), 1e-12)

    def describe(self, values: Sequence[float]) -> str:
        """Return the range and the median of the targets."""
        if not values:
            return "no numbers"
        middle = _format_number(statistics.median(values))
        return f"{_format_number(min(values))} to {_format_number(max(values))}, median {middle}"

    def encode(self, value: float, rand: random.Random | None = None) -> Tensor:
        """Return the standardized number ()."""
        # In float64, because in float32 all times in seconds within two minutes are equal.
        return torch.tensor((float(value) - self.mean) / self.std)

    def mix_targets(self, target: Tensor, order: Tensor, share: float) -> Tensor:
        """Return mixed numbers (B,)."""
        return share * target + (1 - share) * target[order]

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a linear layer that maps the pooled vector to one output."""
        return LinearHead(PreHead(pooled_dim, **self.pre_options), 1)

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the squared error of standardized targets; output (B, 1), targets (B,)."""
        # Standardization makes the scale of the loss, and so a good learning rate, independent of
        # the unit of the targets.
        # The loss is computed in float32 even if the model uses bfloat16.
        return LossSum.of((output.float().squeeze(-1) - batch["target"]).square())

    def divergence(self, output: Tensor, other: Tensor, batch: Batch) -> Tensor:
        """Return the mean squared difference of outputs (B, 1).

        The loss is twice the negative log-likelihood of a normal distribution with a standard
        deviation of 1, and this is twice the KL divergence of two such distributions.
        """
        return F.mse_loss(output.float(), other.float())

    def combine(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the mean (B, 1) of the members' standardized numbers."""
        return torch.stack(list(outputs)).mean(0)

    def predict(
        self, head: nn.Module, output: Tensor, batch: Batch, *, draft: bool = False
    ) -> list[Tensor]:
        """Return the predicted number () of each sample in the original unit, float64."""
        # On the CPU first, because not every device has float64.
        return list(output.float().squeeze(-1).cpu().double() * self.std + self.mean)

    def exported(self, head: nn.Module, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the predicted number (B,) in the original unit, float64."""
        return {"prediction": output.float().squeeze(-1).double() * self.std + self.mean}

    def metrics(
        self, predictions: Sequence[Tensor], truths: Sequence[float], loss: float
    ) -> dict[str, float]:
        """Return the metrics of `weighted_metrics`, and those that are no sums over rows."""
        true = torch.tensor([float(truth) for truth in truths], dtype=torch.float64)
        predicted = torch.stack(list(predictions)).double()
        return {
            **super().metrics(predictions, truths, loss),
            "median_absolute_error": float(np.median((predicted - true).abs().numpy())),
            "spearman": _spearman(predicted, true),
        }

    def weighted_metrics(
        self, predictions: Sequence[Tensor], truths: Sequence[float], counts: Tensor
    ) -> dict[str, Tensor]:
        """Return the root mean squared error, the mean absolute error, and R².

        R² is NaN if all targets are equal.
        """
        true = torch.tensor([float(truth) for truth in truths], dtype=torch.float64)
        error = torch.stack(list(predictions)).double() - true
        # Around the mean, because the variance is a difference of two sums.
        centered = true - true.mean()
        stats = torch.stack([error.square(), error.abs(), centered, centered.square()], 1)
        squared, absolute, mean, square = (counts @ stats / counts.sum(1, keepdim=True)).T
        # The variance is the mean squared error of a model that always predicts the mean.
        variance = square - mean.square()
        r2 = torch.where(variance > 0, 1 - squared / variance, math.nan)
        return {"rmse": squared.sqrt(), "mae": absolute, "r2": r2}

    @property
    def details(self) -> set[str]:
        """The metrics that tables do not show."""
        return {"median_absolute_error", "spearman"}

    def row_scores(self, predictions: Sequence[Tensor], truths: Sequence[float]) -> RowScores:
        """Return the absolute error of each row."""
        pairs = zip(predictions, truths, strict=True)
        errors = [abs(float(predicted) - float(true)) for predicted, true in pairs]
        return RowScores("absolute error", errors, higher_is_better=False)

    def answer(self, prediction: Tensor, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the predicted number."""
        return {"prediction": float(prediction)}

    def fields(
        self, prediction: Tensor, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the predicted number, and the error if the target is known."""
        predicted = self._rounded(float(prediction))
        if target is None:
            return {"prediction": predicted}
        return {"prediction": predicted, "error": self._rounded(predicted - target)}

    def trivial(self) -> tuple[str, Tensor]:
        """Return the mean of the training split, the constant with the smallest RMSE."""
        return "always the mean", torch.tensor(self.mean, dtype=torch.float64)

    def _rounded(self, value: float) -> float:
        """Round to a millionth of the standard deviation, as exact as float32 outputs are."""
        return round(value, 6 - math.floor(math.log10(self.std)))

    def state(self) -> dict[str, Any]:
        """Return the mean, the standard deviation, and how numbers are written."""
        written = {"decimal": self.format.decimal, "unit": self.format.unit}
        return {"mean": self.mean, "std": self.std, **written}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the mean and the standard deviation."""
        saved = validated(_State, dict(state), STATE_FILE)
        self.mean = saved.mean
        self.std = saved.std
        self.format = NumberFormat(saved.decimal, saved.unit)


class _State(Strict):
    """The content of labels.json."""

    mean: Annotated[float, Field(ge=-MAX_TARGET, le=MAX_TARGET)]
    # With 0, all predictions would be the mean.
    std: Annotated[float, Field(gt=0, le=MAX_TARGET)]
    decimal: Literal[".", ","] = "."
    unit: str = ""


def _spearman(left: Tensor, right: Tensor) -> float:
    """Return Pearson's correlation of the ranks of numbers (n,); NaN if all of one are equal."""
    x, y = (ranks - ranks.mean() for ranks in (_ranks(left), _ranks(right)))
    return float((x @ y) / (x.square().sum() * y.square().sum()).sqrt())


def _ranks(values: Tensor) -> Tensor:
    """Return the ranks (n,) of numbers, NaN for NaN. Equal numbers have the mean of their ranks."""
    _, inverse, sizes = values.unique(return_inverse=True, return_counts=True)
    ranks = (sizes.cumsum(0) - (sizes - 1) / 2)[inverse].double()
    return ranks.masked_fill(values.isnan(), math.nan)


def _format_number(value: float) -> str:
    """Format a number with six significant digits and thousands separators."""
    # From 1e6 on, the format "g" would print 1234567 as 1.23457e+06.
    return f"{value:,.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:,g}"
