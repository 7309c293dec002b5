"""Forecasting: predict the next values of a series, with quantiles."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.schema import Strict, validated
from dxn.core.untrusted import shortened
from dxn.tasks.forecast_head import ForecastHead, count_tokens
from dxn.tasks.futures import (
    Future,
    fitted,
    forecast_metrics,
    pinball,
    read_values,
    seasonal_naive,
    seasonal_scale,
)
from dxn.tasks.heads import Hidden, PreHead, check_hidden
from dxn.tasks.loss import LossSum
from dxn.tasks.probabilities import significant
from dxn.tasks.row_scores import RowScores
from dxn.tasks.task import STATE_FILE, Batch, Task
from dxn.tokenize.base import Adapter

Residual = Literal["season", "last", "none"]
Read = Literal["tokens", "pooled"]
# A number in labels.json, which may come from a stranger.
Size = Annotated[int, Field(ge=1, le=100_000)]
MAX_VALUES = 10_000_000  # of a history, as in the series adapter
NAIVE = "seasonal naive"
MANY_WINDOWS = 2_000  # of a training split


class Forecast(Task):
    """Predict the next values of a series, with quantiles.

    The target of a sample has H future values of the first K channels of the series. The head
    predicts them in the normalized unit of the input, with the location and the scale of each
    sample. With adapters.series.normalize=sample, a forecast is therefore equivariant to a shift
    and a scale of the series (arXiv:2211.14730, section 3.1, instance normalization).

    Args:
        quantiles: Probabilities of the predicted quantiles, in ascending order. 0.5, the median, is
            the prediction and must be one of them.
        season: Season length in steps, for the scale of MASE and the seasonal naive forecast.
            Default: that of the data source, or 1.
        residual: Forecast to which the output of the head is added: season (the last season,
            repeated), last (the last value, as in arXiv:2205.13504, section 3.2) or none. Default:
            season, and none from 2,000 training windows, which teach the season better.
        read: What the output layer reads: tokens (all tokens of the series, concatenated; with
            channels=independent, those of each channel, and one layer for all channels) or pooled
            (the vector of the sample, which also contains the other inputs).
        hidden: Hidden layer before the output layer: none, linear, tanh, relu or gelu.
        hidden_dim: Output width of the hidden layer. Default: its input width.
        norm: Whether to apply a layer norm before the output layer.
        dropout: Dropout probability before the output layer.
    """

    name = "forecast"
    preset = "windows"
    plots = "forecast"
    monitored = "mase"

    def __init__(
        self,
        *,
        quantiles: Sequence[float] = (0.1, 0.25, 0.5, 0.75, 0.9),
        season: int | None = None,
        residual: Residual | None = None,
        read: Read = "tokens",
        hidden: Hidden = "none",
        hidden_dim: int | None = None,
        norm: bool = False,
        dropout: float = 0.1,
    ):
        check_hidden(hidden)
        self.quantiles = tuple(float(q) for q in quantiles)
        ascending = all(a < b for a, b in itertools.pairwise(self.quantiles))
        in_range = all(0 < q < 1 for q in self.quantiles)
        if 0.5 not in self.quantiles or not ascending or not in_range:
            raise ValueError(
                "quantiles must be ascending probabilities between 0 and 1 with 0.5 among them, "
                f"got {list(quantiles)}"
            )
        for key, value, known in (("residual", residual, Residual), ("read", read, Read)):
            is_default = key == "residual" and value is None
            if not is_default and value not in get_args(known):
                raise ValueError(f"{key} must be one of {', '.join(get_args(known))}, got {value}")
        if season is not None and season < 1:
            raise ValueError(f"season must be at least 1, got {season}")
        self.chosen_season = season
        self.residual = residual
        self.read: Read = read
        self.pre_options = {"hidden": hidden, "norm": norm, "dropout": dropout}
        self.hidden_dim = hidden_dim
        self.season = season or 1
        self.horizon = 0
        self.names: tuple[str, ...] = ()
        # Steps and channels (T, C) of the longest training history.
        self.context = (0, 0)
        self.input = ""

    # Targets

    @classmethod
    def accepts(cls, values: Sequence[Any], words: Sequence[Any] | None) -> float:
        """Return a positive score for future values of a data source."""
        return 1.0 if values and all(isinstance(value, Future) for value in values) else 0.0

    def parse(self, value: Any, origin: str) -> Future:
        """Return the future values.

        Raises:
            UserError: If the cell is not a list of numbers, or has other channels than the model.
        """
        future = value
        if not isinstance(value, Future):
            values = read_values(value)
            if values is None:
                raise UserError(
                    f"{origin}: the target must be a list of future values such as [1.5, 2.0], got "
                    f"{str(value)[:40]!r}"
                )
            future = Future(values)
        channels = future.values.shape[1]
        if self.names and channels != len(self.names):
            raise UserError(
                f"{origin}: the target must have {len(self.names)} channels "
                f"({', '.join(self.names)}), got {channels}"
            )
        return replace(future, season=self.chosen_season or future.season or self.season)

    def complete(self, raws: Mapping[str, Any], value: Future, origin: str) -> Future:
        """Add the history of the row, and the scale of its errors if it is not known.

        Raises:
            UserError: If the series has fewer channels than the target.
        """
        series = [raw for raw in raws.values() if isinstance(raw, Tensor) and raw.ndim == 2]
        # Without exactly one series, `bind` raises an error for all rows together.
        if len(series) != 1:
            return value
        (history,) = series
        channels = value.values.shape[1]
        if history.shape[1] < channels:
            raise UserError(
                f"{origin}: the target has {channels} channels, but the series only has "
                f"{history.shape[1]}; the target continues the first channels of the series"
            )
        scale = value.scale
        if scale is None:
            scale = seasonal_scale(history[:, :channels], value.season or 1)
        return replace(value, history=history, scale=scale)

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Find the series to forecast.

        Raises:
            UserError: If there is not exactly one input with time steps.
        """
        candidates = [name for name, adapter in adapters.items() if adapter.reader.steps]
        if len(candidates) != 1:
            found = ", ".join(candidates) or f"none among {', '.join(adapters)}"
            raise UserError(
                "head=forecast: needs exactly one series as an input, whose next values are "
                f"predicted, got {found}; other inputs, such as texts, can be added to it"
            )
        (self.input,) = candidates

    def fit(self, values: Sequence[Future]) -> None:
        """Store the sizes of the training targets and their histories, and the season."""
        first = values[0]
        self.horizon = max(len(value.values) for value in values)
        channels = first.values.shape[1]
        if any(value.values.shape[1] != channels for value in values):
            raise UserError("data.target: all targets must have the same number of channels")
        self.names = tuple(first.names) or tuple(str(i + 1) for i in range(channels))
        self.season = first.season or 1
        if self.residual is None:
            self.residual = "none" if len(values) >= MANY_WINDOWS else "season"
        histories = [value.history.shape for value in values if value.history is not None]
        self.context = (max(h[0] for h in histories), max(h[1] for h in histories))

    @property
    def required_inputs(self) -> tuple[str, ...]:
        """The series, without which there is nothing to continue."""
        return (self.input,)

    def describe(self, values: Sequence[Future]) -> str:
        """Return the number of future values, their range, and the season."""
        if not values:
            return "no values"
        # Windows overlap, so there are more values in them than in the table.
        low = min(_finite(value.values.nan_to_num(torch.inf).min()) for value in values)
        high = max(_finite(value.values.nan_to_num(-torch.inf).max()) for value in values)
        steps = max(len(value.values) for value in values)
        return f"the next {steps} values, {low:g} to {high:g}; season: {values[0].season}"

    def encode(self, value: Future, rand: random.Random | None = None) -> Tensor:
        """Return the future values (H, K) in their original unit. The loss normalizes them."""
        return fitted(value.values.float(), self.horizon)

    # The model

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Adapter]) -> ForecastHead:
        """Build the output layer, which reads all tokens of the series or the pooled vector."""
        adapter: Any = adapters[self.input]
        adapter.tokenizer.continue_from(self.context[0])
        num_tokens = 0 if self.read == "pooled" else count_tokens(adapter, self.context)
        num_channels = self.context[1] if num_tokens and not adapter.is_joint else 1
        width = num_tokens // num_channels * dim if num_tokens else pooled_dim
        pre = PreHead(width, **self.pre_options, hidden_dim=self.hidden_dim)
        return ForecastHead(
            pre,
            shape=(self.horizon, len(self.names), len(self.quantiles)),
            middle=self.quantiles.index(0.5),
            input=self.input,
            num_tokens=num_tokens,
            num_channels=num_channels,
            season={"season": self.season, "last": 1, "none": 0}[self.residual or "season"],
            history=adapter.tokenizer.history,
        )

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the pinball loss of normalized values; missing values have no loss.

        Args:
            output: Normalized quantiles (B, H, K, Q).
            batch: Batch with targets (B, H, K).
        """
        output = output.float()
        loc, scale = self._unit(batch)
        true = (batch["target"] - loc) / scale
        valid = ~true.isnan()
        quantiles = torch.tensor(self.quantiles, device=output.device)
        losses = pinball(output, true.nan_to_num(), quantiles).mean(-1)
        return LossSum.of(losses, valid.float())

    def predict(
        self, head: nn.Module, output: Tensor, batch: Batch, *, draft: bool = False
    ) -> list[Tensor]:
        """Return the quantiles (H, K, Q) of each sample in the original unit, float64."""
        loc, scale = self._unit(batch)
        values = output.double() * scale[..., None] + loc[..., None]
        return list(values.cpu())

    def exported(self, head: nn.Module, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the quantiles (B, H, K, Q) in the original unit."""
        loc, scale = self._unit(batch)
        return {"quantiles": output.double() * scale[..., None] + loc[..., None]}

    def recipe(self, head: nn.Module) -> dict[str, Any]:
        """Return the quantiles, and the names of the channels of a forecast."""
        return {"quantiles": list(self.quantiles), "channels": list(self.names)}

    def _unit(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the location and the scale (B, 1, K) of the first channels of each sample."""
        series = batch[self.input]
        count = len(self.names)
        return series["loc"][:, None, :count], series["scale"][:, None, :count]

    # Results

    def metrics(
        self, predictions: Sequence[Tensor], truths: Sequence[Future], loss: float
    ) -> dict[str, float]:
        """Return MASE, MAE, CRPS and the coverage, see `forecast_metrics`."""
        return forecast_metrics(predictions, truths, self.quantiles)

    def row_scores(self, predictions: Sequence[Tensor], truths: Sequence[Future]) -> RowScores:
        """Return the scaled absolute error (MASE) of each forecast."""
        pairs = zip(predictions, truths, strict=True)
        errors = [forecast_metrics([p], [t], self.quantiles)["mase"] for p, t in pairs]
        return RowScores("scaled absolute error", errors, higher_is_better=False)

    def naive(self, raws: Sequence[Mapping[str, Any]]) -> tuple[str, list[Tensor]]:
        """Return the seasonal naive forecast (H, K, 1) of each row."""
        histories = [raw[self.input][:, : len(self.names)] for raw in raws]
        naive = [seasonal_naive(h, self.horizon, self.season)[..., None] for h in histories]
        return f"{NAIVE} ({self.season})", naive

    def answer(self, prediction: Tensor, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the medians, and all quantiles by their probability.

        The values are lists of H numbers, or H lists of K numbers if there are several channels.
        """
        values = prediction.squeeze(1) if len(self.names) == 1 else prediction
        by_quantile = {
            f"{q:g}": _rounded(values[..., i]) for i, q in enumerate(self._levels(prediction))
        }
        return {"prediction": by_quantile["0.5"], "quantiles": by_quantile}

    def records(
        self, prediction: Tensor, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return one row per future step, with the columns of each channel."""
        true = None if target is None else fitted(target.values, len(prediction))
        rows: list[dict[str, Any]] = []
        for step in range(len(prediction)):
            row: dict[str, Any] = {"step": step + 1}
            for k, name in enumerate(self.names):
                # Several channels have columns such as q0.1_temperature.
                suffix = f"_{name}" if len(self.names) > 1 else ""
                if true is not None:
                    row[f"target{suffix}"] = _number(true[step, k])
                levels = self._levels(prediction)
                row[f"prediction{suffix}"] = _number(prediction[step, k, levels.index(0.5)])
                for i, q in enumerate(levels):
                    if q != 0.5:
                        row[f"q{q:g}{suffix}"] = _number(prediction[step, k, i])
            rows.append(row)
        return rows

    def _levels(self, prediction: Tensor) -> Sequence[float]:
        return self.quantiles if prediction.shape[-1] > 1 else (0.5,)

    # The model folder

    def state(self) -> dict[str, Any]:
        """Return the sizes, the season and the names of the channels."""
        return {
            "horizon": self.horizon,
            "season": self.season,
            "residual": self.residual,
            "context": self.context[0],
            "num_channels": self.context[1],
            "channels": list(self.names),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the sizes, the season and the names of the channels."""
        saved = validated(_State, dict(state), STATE_FILE)
        self.horizon = saved.horizon
        self.season = saved.season
        self.residual = saved.residual
        self.context = (saved.context, saved.num_channels)
        self.names = tuple(saved.channels)


class _State(Strict):
    """The content of labels.json."""

    horizon: Size
    season: Size
    residual: Residual
    context: Size
    num_channels: Size
    channels: Annotated[list[str], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> _State:
        # Two large sizes would fill the memory together.
        if self.context * self.num_channels > MAX_VALUES:
            raise ValueError(
                f"context times num_channels must be at most {MAX_VALUES:,}, got "
                f"{[self.context, self.num_channels]}"
            )
        if len(self.channels) > self.num_channels:
            raise ValueError(
                f"channels must be 1 to {self.num_channels} names, got {shortened(self.channels)}"
            )
        return self


def _rounded(values: Tensor) -> list[Any]:
    if values.ndim == 1:
        return [_number(value) for value in values]
    return [_rounded(row) for row in values]


def _number(value: Tensor) -> float | None:
    """Return a number with the digits that a float32 has; None if it is missing."""
    return None if value.isnan() else significant(float(value))


def _finite(value: Tensor) -> float:
    return float(value) if value.isfinite() else 0.0
