"""Forecasting: predict the next values of a series, with quantiles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from pydantic import Field, model_validator
from torch import Tensor, nn

from dxn.core.display import significant
from dxn.core.dropout import Rate
from dxn.core.errors import UserError
from dxn.core.schema import Strict
from dxn.core.untrusted import shortened
from dxn.tasks.forecast.futures import (
    ForecastMetric,
    Future,
    fitted,
    pinball,
    read_values,
    seasonal_naive,
    seasonal_scale,
)
from dxn.tasks.forecast.head import DecoderForecastHead, ForecastHead
from dxn.tasks.heads import Hidden, PreHead
from dxn.tasks.space import SHOWN_HORIZONS, AnswerKind, Batch, LossSum, Space
from dxn.tasks.target import Target
from dxn.tasks.task import Task
from dxn.tokenize.base import Adapter
from dxn.tokenize.series.values import find_decimal

Residual = Literal["season", "last", "mean", "none"]
Read = Literal["tokens", "pooled"]
# A number in labels.json, which may come from an untrusted source.
Size = Annotated[int, Field(ge=1, le=100_000)]
MAX_VALUES = 10_000_000  # of a history, as in the series adapter
NAIVE = "seasonal naive"
PERSISTENCE = "persistence (the last frame)"
MANY_WINDOWS = 2_000  # of a training split
MANY_VALUES = 1_000  # of one quantile, which would take long one by one


class FutureState(Strict):
    """The content of labels.json."""

    horizon: Size
    season: Size
    residual: Residual
    context: Size
    num_channels: Size
    channels: list[str]  # empty: all, whose number is not known
    num_known: Annotated[int, Field(ge=0, le=100_000)] = 0
    frame: Annotated[list[Size], Field(min_length=2, max_length=2)] | None = None
    decimal: Literal["", ".", ","] = ""

    @model_validator(mode="after")
    def _check(self) -> FutureState:
        # Two large sizes would fill the memory together.
        if (self.context + self.horizon) * self.num_channels > MAX_VALUES:
            raise ValueError(
                "context and horizon times num_channels must be at most "
                f"{MAX_VALUES:,}, got {[self.context, self.horizon, self.num_channels]}"
            )
        if self.frame is not None and self.frame[0] * self.frame[1] != self.num_channels:
            raise ValueError(f"frame must have {self.num_channels} cells, got {self.frame}")
        if len(self.channels) + self.num_known > self.num_channels:
            raise ValueError(
                f"channels must be at most {self.num_channels - self.num_known} names, got "
                f"{shortened(self.channels)}"
            )
        return self


class FutureValues(Target):
    """The next H values of the first K channels of a series.

    Args:
        task: The task, whose options it reads.

    Attributes:
        horizon: Number of future steps H.
        season: Season length in steps.
        context: Number of steps T of the longest training history.
        num_channels: Number of its channels C.
        channels: Names of the K channels. Empty: all, whose number is not known.
        num_known: Number of the last channels whose values of the H future steps are known.
        frame: Height and width of a frame whose cells are the channels. None: there are no frames.
        decimal: Decimal mark of texts, a point or a comma. "": no text of the training shows it.
        input: Name of the series. `bind` sets it.
    """

    State: ClassVar[type[Strict]] = FutureState
    needs_inputs: ClassVar[bool] = True

    def __init__(self, task: Forecast):
        self.chosen_season = task.season
        self.chosen_horizon = task.horizon
        self.residual: Residual | None = task.residual
        self.season = task.season or 1
        self.horizon = 0
        self.context = self.num_channels = 0
        self.channels: list[str] = []
        self.num_known = 0
        self.frame: list[int] | None = None
        self.decimal = ""
        self.input = ""

    @property
    def ahead(self) -> int:
        """Number of steps after the history that a series has."""
        return self.horizon if self.num_known else 0

    def find_format(self, cells: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Find the decimal mark of texts."""
        self.decimal = find_decimal(cells)
        return []

    def read(self, cell: Any, origin: str, raws: Mapping[str, Any]) -> Future:
        """Return the future values with the history of the row and the scale of its errors.

        Raises:
            UserError: If the cell is not a list of numbers, has other channels than the model, or
                more channels than the series.
        """
        future = cell
        if not isinstance(cell, Future):
            try:
                values = read_values(cell, self.decimal)
            except ValueError as error:
                raise UserError(f"{origin}: the target cannot be read: {error}") from error
            if values is None:
                raise UserError(
                    f"{origin}: the target must be a list of future values such as [1.5, 2.0], got "
                    f"{str(cell)[:40]!r}"
                )
            future = Future(values)
        channels = future.values.shape[1]
        if self.channels and channels != len(self.channels):
            raise UserError(
                f"{origin}: the target must have {len(self.channels)} channels "
                f"({', '.join(self.channels)}), got {channels}"
            )
        value = replace(future, season=self.chosen_season or future.season or self.season)
        series = [raw for raw in raws.values() if isinstance(raw, Tensor) and raw.ndim == 2]
        # Without exactly one series, `bind` raises an error for all rows together.
        if len(series) != 1:
            return value
        (history,) = series
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
            names = ", ".join(candidates) or f"none among {', '.join(adapters)}"
            advice = "; set data=timeline to read a table with one row per time step"
            raise UserError(
                "head=forecast: needs exactly one series as an input, whose next values are "
                f"predicted, got {names}; other inputs, such as texts, can be added to it"
                f"{'' if candidates else advice}"
            )
        (self.input,) = self.required = self.prepared_inputs = tuple(candidates)

    def fit(self, values: Sequence[Future]) -> None:
        """Store the sizes of the training targets and their histories, and the season.

        Raises:
            UserError: If the targets have different numbers of channels, or no history.
        """
        first = values[0]
        self.horizon = self.chosen_horizon or max(len(value.values) for value in values)
        channels = first.values.shape[1]
        if any(value.values.shape[1] != channels for value in values):
            raise UserError("data.target: all targets must have the same number of channels")
        self.channels = list(first.names) or [str(i + 1) for i in range(channels)]
        self.season = first.season or 1
        self.frame = None if first.frame is None else list(first.frame)
        if self.residual is None:
            self.residual = "none" if len(values) >= MANY_WINDOWS else "season"
        self.num_known = first.num_known
        if self.num_known and self.horizon != len(first.values):
            raise UserError(
                f"head.horizon: must be data.horizon={len(first.values)} with known columns, got "
                f"{self.horizon}; set data.horizon"
            )
        histories = [value.past.shape for value in values if value.history is not None]
        if not histories:
            raise UserError(
                "targets: a forecast needs the series that each target continues, got values only; "
                "pass dxn.tasks.forecast.futures.Future(values, history=series)"
            )
        self.context = max(shape[0] for shape in histories)
        self.num_channels = max(shape[1] for shape in histories)

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Target.load`."""
        super().load(state)
        self.horizon = self.chosen_horizon or self.horizon

    def encode(self, value: Future, sample: dict[str, Any], rand: Random | None = None) -> Tensor:
        """Return the future values (H, K) in the normalized unit of the input."""
        series = sample[self.input]
        count = value.values.shape[1]
        values = fitted(value.values.float(), self.horizon)
        return (values - series["loc"][:count]) / series["scale"][:count]

    def describe(self, values: Sequence[Future]) -> str:
        """Return the number of future values, their range, and the season."""
        if not values:
            return "no values"
        # Windows overlap, so there are more values in them than in the table.
        low = min(_finite(value.values.nan_to_num(torch.inf).min()) for value in values)
        high = max(_finite(value.values.nan_to_num(-torch.inf).max()) for value in values)
        steps = max(len(value.values) for value in values)
        return f"the next {steps} values, {low:g} to {high:g}; season: {values[0].season}"


class Quantiles(Space):
    """Quantiles (B, H, K, Q) of future values; targets (B, H, K) are NaN where a value is missing.

    Outputs and targets are in the normalized unit of the series.

    Args:
        target: The future values.
        quantiles: Probabilities of the quantiles, in ascending order.
    """

    mixes = False
    kind = AnswerKind.QUANTILES

    def __init__(self, target: FutureValues, quantiles: Sequence[float]):
        self.target = target
        self.quantiles = tuple(quantiles)

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the pinball loss; missing values have no loss."""
        # One pass of a decoder can predict fewer steps, and a checkpoint also covariates.
        steps, channels = output.shape[1], batch["target"].shape[2]
        true, output = batch["target"][:, :steps], output[:, :, :channels]
        quantiles = torch.tensor(self.quantiles, device=output.device)
        losses = pinball(output.float(), true.nan_to_num(), quantiles).mean(-1)
        return LossSum.of(losses, (~true.isnan()).float())

    def decode(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the quantiles in the unit of the series, float64.

        Those of a channel without any value are NaN: its unit is not known.
        """
        series, count = batch[self.target.input], output.shape[2]
        loc, scale = (series[key].to(output.device)[:, :count] for key in ("loc", "scale"))
        is_known = series["observed"].to(output.device).any(1)[:, None, :count, None]
        quantiles = output.double() * scale[:, None, :, None] + loc[:, None, :, None]
        return {"quantiles": torch.where(is_known, quantiles, torch.nan)}


@dataclass(kw_only=True, eq=False)
class Forecast(Task[FutureValues]):
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
            repeated), last (the last value, as in arXiv:2205.13504, section 3.2), mean (that of the
            history) or none. Default: season, and none from 2,000 training windows, which teach the
            season better.
        horizon: Number of future steps. Default: that of the targets.
        decoder: Constructor of a decoder, which is called with vocab_size=1. It attends to the
            tokens of each channel, with channels=separate, and the output layer reads its only
            token. `read` and `residual` have no effect. Default: there is none.
        steps: Number of steps that the decoder predicts in one pass. More steps continue from its
            own quantiles. Default: horizon.
        read: What the output layer reads: tokens (all tokens of the series, concatenated; with
            channels=independent, those of each channel, and one layer for all channels) or pooled
            (the vector of the sample, which also contains the other inputs).
        hidden: Hidden layer before the output layer: none, linear, tanh, relu or gelu.
        hidden_dim: Output width of the hidden layer. Default: its input width.
        norm: Whether to apply a layer norm before the output layer.
        dropout: Dropout probability before the output layer.
    """

    name = "forecast"

    quantiles: Sequence[float] = (0.1, 0.25, 0.5, 0.75, 0.9)
    season: Annotated[int, Ge(1)] | None = None
    residual: Residual | None = None
    horizon: Annotated[int, Ge(1)] | None = None
    decoder: Callable[..., nn.Module] | None = None
    steps: Annotated[int, Ge(1)] | None = None
    read: Read = "tokens"
    hidden: Hidden = "none"
    hidden_dim: Annotated[int, Ge(1)] | None = None
    norm: bool = False
    dropout: Rate = 0.1

    def __post_init__(self):
        self.quantiles = tuple(float(q) for q in self.quantiles)
        ascending = all(a < b for a, b in itertools.pairwise(self.quantiles))
        in_range = all(0 < q < 1 for q in self.quantiles)
        if 0.5 not in self.quantiles or not ascending or not in_range:
            raise ValueError(
                "quantiles must be ascending probabilities between 0 and 1 with 0.5 among them, "
                f"got {list(self.quantiles)}"
            )
        self.target = FutureValues(self)
        self.space = Quantiles(self.target, self.quantiles)
        self.metric = ForecastMetric(self.quantiles)

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Adapter]) -> nn.Module:
        """Build the output layer, which reads all tokens of the series or the pooled vector.

        Raises:
            UserError: If the channels of the series must be separate, or must not.
        """
        target = self.target
        adapter: Any = adapters[target.input]
        if target.num_known and self.decoder is not None:
            raise UserError(
                "data.known: a forecast by a decoder, such as that of Chronos-Bolt, cannot read "
                "values of future steps; remove the option, or train without weights"
            )
        if adapter.is_separate != (self.decoder is not None):
            raise UserError(
                "adapters.series.channels: separate needs a forecast by a decoder, and the reverse;"
                " with the weights of Chronos-Bolt, set head=forecast, otherwise choose joint or "
                "independent"
            )
        if self.decoder is not None:
            adapter.tokenizer.continue_from(target.context, is_fixed=False)
            return DecoderForecastHead(self, self.decoder(vocab_size=1), adapter)
        adapter.tokenizer.continue_from(
            target.context,
            ahead=target.ahead,
            num_known=target.num_known,
            horizon=target.horizon,
        )
        if adapter.num_ahead and adapter.pos_embed.kind == "learned":
            needed = adapter.grid.count(target.context, 0) + adapter.num_ahead
            if needed > adapter.tokenizer.max_len:
                raise UserError(
                    "adapters.series.max_len: learned positions of the past and the future frames "
                    f"need at least {needed}, got {adapter.tokenizer.max_len}"
                )
        return ForecastHead(self, dim, pooled_dim, adapters)

    def pre_head(self, width: int) -> PreHead:
        """Build the layers between vectors of a width and the output layer of the head."""
        return PreHead(
            width,
            hidden=self.hidden,
            hidden_dim=self.hidden_dim,
            norm=self.norm,
            dropout=self.dropout,
        )

    def recipe(self, head: nn.Module) -> dict[str, Any]:
        """Return the quantiles, and the names of the channels of a forecast."""
        return {"quantiles": list(self.quantiles), "channels": self.target.channels}

    def naive(self, raws: Sequence[Mapping[str, Any]]) -> tuple[str, list[Tensor]]:
        """Return the seasonal naive forecast (H, K, 1) of each row."""
        target = self.target
        count = len(target.channels) or None
        histories = [raw[target.input][:, :count] for raw in raws]
        histories = [history[: len(history) - target.ahead] for history in histories]
        naive = [seasonal_naive(h, target.horizon, target.season)[..., None] for h in histories]
        about = f"{NAIVE} ({target.season})" if target.frame is None else PERSISTENCE
        return about, naive

    def answer(self, prediction: Tensor, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the medians, and all quantiles by their probability.

        The values are lists of H numbers, or H lists of K numbers if there are several channels.
        The values of frames are H lists of rows.
        """
        values = self._shaped(prediction)
        by_quantile = {
            f"{q:g}": _rounded(values[..., i]) for i, q in enumerate(self._levels(prediction))
        }
        return {"prediction": by_quantile["0.5"], "quantiles": by_quantile}

    def true_answer(self, cell: Any) -> list[Any]:
        """Return the true future values in the form of the medians."""
        return _rounded(self._shaped(self.target.read(cell, "", {}).values))

    def _shaped(self, values: Tensor) -> Tensor:
        """Return values (H, K, ...) without the axis of a single channel, or as frames."""
        if self.target.frame is not None:
            return values.unflatten(1, self.target.frame)
        return values.squeeze(1)

    def beside(self, batch: Batch, tokenizers: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the end of the history of each sample, in the form of the quantiles.

        Of frames, it has as many steps as the forecast, and otherwise up to `SHOWN_HORIZONS` times
        as many. Several channels have names.
        """
        target = self.target
        series = batch[target.input]
        count = len(target.channels) or None
        past = tokenizers[target.input].history(series)
        steps = target.horizon * (SHOWN_HORIZONS if target.frame is None else 1)
        past = (past * series["scale"][:, None] + series["loc"][:, None])[:, -steps:, :count].cpu()
        names = {"channels": target.channels} if len(target.channels) > 1 else {}
        results: list[dict[str, Any]] = []
        for values in past:
            # Padding in front of a short series.
            values = values[int((~values.isnan()).any(1).int().argmax()) :]
            if target.frame is not None:
                values = values.unflatten(1, target.frame)
            elif values.shape[1] == 1:
                values = values[:, 0]
            results.append({"history": _rounded(values), **names})
        return results

    def table(
        self, prediction: Tensor, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return one row per future step, with the columns of each channel.

        Frames have too many cells: the columns are means over them, and the mean absolute error.
        """
        true = None if target is None else fitted(target.values, len(prediction))
        if self.target.frame is not None:
            return self._means(prediction, true)
        names = self.target.channels or [str(k + 1) for k in range(prediction.shape[1])]
        rows: list[dict[str, Any]] = []
        for step in range(len(prediction)):
            row: dict[str, Any] = {"step": step + 1}
            for k, name in enumerate(names):
                # Several channels have columns such as q0.1_temperature.
                suffix = f"_{name}" if len(names) > 1 else ""
                if true is not None and k < true.shape[1]:
                    row[f"target{suffix}"] = _number(true[step, k])
                levels = self._levels(prediction)
                row[f"prediction{suffix}"] = _number(prediction[step, k, levels.index(0.5)])
                for i, q in enumerate(levels):
                    if q != 0.5:
                        row[f"q{q:g}{suffix}"] = _number(prediction[step, k, i])
            rows.append(row)
        return rows

    def _means(self, prediction: Tensor, true: Tensor | None) -> list[dict[str, Any]]:
        median = prediction[..., self._levels(prediction).index(0.5)]
        columns = {"prediction": median.nanmean(1)}
        if true is not None:
            error = (median - true).abs().nanmean(1)
            columns = {"target": true.nanmean(1), **columns, "mae": error}
        return [
            {"step": step + 1} | {name: _number(means[step]) for name, means in columns.items()}
            for step in range(len(prediction))
        ]

    def _levels(self, prediction: Tensor) -> Sequence[float]:
        return self.quantiles if prediction.shape[-1] > 1 else (0.5,)


def _rounded(values: Tensor) -> list[Any]:
    # Channels can have different units, but the cells of frames (H, rows, columns) have the same.
    if values.ndim == 3 and values.numel() >= MANY_VALUES and not bool(values.isnan().any()):
        # All at once, with the digits that the largest number has as a float32.
        size = max(float(values.abs().max()), 1e-30)
        return values.double().numpy(force=True).round(6 - math.ceil(math.log10(size))).tolist()
    if values.ndim == 1:
        return [_number(value) for value in values]
    return [_rounded(row) for row in values]


def _number(value: Tensor) -> float | None:
    """Return a number with the digits that a float32 has; None if it is missing."""
    return None if value.isnan() else significant(float(value))


def _finite(value: Tensor) -> float:
    return float(value) if value.isfinite() else 0.0
