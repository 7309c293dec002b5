"""Future values of a series as a target: the seasonal naive forecast, scaled errors, quantiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar

import torch
from torch import Tensor

from dxn.tasks.metric import MIN_BLOCKS, Blocks, Metric
from dxn.tokenize.series.values import parse_series

# Factor of the variance of a mean over blocks of overlapping windows. The correlation of windows
# falls linearly to 0 with their distance, so those of neighboring blocks add half of the variance
# within blocks. The rest is for errors that are correlated themselves: with it, intervals of
# AR(1) errors with a coefficient of up to 0.8 contain the true value in 90 to 97 of 100 cases.
OVERLAP = 1.75
# Values of a target whose representation lists them. Those of frames would take a minute of text.
MAX_WRITTEN = 1_000


@dataclass(frozen=True, eq=False)
class Future:
    """The values of a series after the history that a model reads.

    Args:
        values: Future values (H, K) of K channels. NaN is a missing value.
        season: Season length in steps. None: not known.
        scale: Scale (K,) of the errors of each channel, see `seasonal_scale`. None: not known yet.
        history: Values (T, C) before the future ones, whose first K channels are those of `values`.
            With known channels, the H next steps follow, in which only these have values. None: not
            known yet.
        names: Names of the K channels.
        start: Time of the first future value, for titles.
        stop: Time of the last future value.
        time: The same time as a number, which orders the windows of several series.
        end: Time of the last future value as a number. None: the windows are in no order of time.
        series: Name of the series among several.
        num_known: Number of the last channels of `history` whose future values are known.
        frame: Height and width of a frame whose cells are the channels, row by row. None: the
            channels are no cells.
    """

    values: Tensor
    season: int | None = None
    scale: Tensor | None = None
    history: Tensor | None = None
    names: Sequence[str] = ()
    start: str = ""
    stop: str = ""
    time: float = 0.0
    end: float | None = None
    series: Any = None
    num_known: int = 0
    frame: tuple[int, int] | None = None

    @property
    def past(self) -> Tensor:
        """The history (T, C) without the next steps of known channels."""
        assert self.history is not None
        return self.history[: -len(self.values)] if self.num_known else self.history

    def __repr__(self) -> str:
        # Two targets are compared by their representation, which is short in messages, too.
        if self.values.numel() > MAX_WRITTEN:
            digest = blake2b(self.values.contiguous().numpy().tobytes(), digest_size=16)
            return f"values {tuple(self.values.shape)} {digest.hexdigest()}"
        return f"values {self.values.flatten().tolist()}"

    def __str__(self) -> str:
        """Return the values as a reader wants them, such as "399, 340.5"."""
        return ", ".join(f"{value:.6g}" for value in self.values.flatten().tolist())


def seasonal_naive(history: Tensor, horizon: int, season: int) -> Tensor:
    """Repeat the last season of a history.

    A value that is missing in the last season is taken from the one before, and so on. If all of
    them are missing, it is the last value of the channel.

    Args:
        history: Values (..., T, C). NaN is a missing value.
        horizon: Number H of future steps.
        season: Season length in steps. 1: repeat the last value.

    Returns:
        Forecast (..., H, C). NaN for a channel without any value.
    """
    *batch, steps, channels = history.shape
    num_seasons = max(1, math.ceil(steps / season))
    missing = history.new_full((*batch, num_seasons * season - steps, channels), torch.nan)
    grid = torch.cat([missing, history], -2).unflatten(-2, (num_seasons, season))
    naive = _last_valid(grid, -3)  # (..., season, C)
    last = _last_valid(history, -2)[..., None, :]
    naive = torch.where(naive.isnan(), last, naive)
    repeats = math.ceil(horizon / season)
    return naive.repeat(*[1] * len(batch), repeats, 1)[..., :horizon, :]


def seasonal_scale(history: Tensor, season: int) -> Tensor:
    """Return the mean absolute seasonal difference of each channel, the denominator of MASE.

    This is the in-sample error of the seasonal naive forecast (Hyndman and Koehler, 2006, "Another
    look at measures of forecast accuracy", section 3, with the season length as the lag). A history
    without two values one season apart is scaled by the difference of consecutive values.

    Args:
        history: Values (T, C). NaN is a missing value.
        season: Season length in steps.

    Returns:
        Scales (C,). NaN for a channel that is constant or has too few values.
    """
    scale = _mean_difference(history, season)
    scale = torch.where(scale.isnan(), _mean_difference(history, 1), scale)
    # A constant history has the scale 0, with which every error would be infinite.
    return torch.where(scale > 0, scale, torch.nan)


def increasing(raw: Tensor, middle: int) -> Tensor:
    """Convert numbers to increasing quantiles.

    Args:
        raw: (..., Q). The median, and numbers that determine the distances of the others.
        middle: Index of the median.

    Returns:
        Quantiles (..., Q), each at least as large as the one before.
    """
    median = raw[..., middle : middle + 1]
    gaps = torch.nn.functional.softplus(raw)
    above = median + gaps[..., middle + 1 :].cumsum(-1)
    below = median - gaps[..., :middle].flip(-1).cumsum(-1).flip(-1)
    return torch.cat([below, median, above], -1)


def pinball(predicted: Tensor, true: Tensor, quantiles: Tensor) -> Tensor:
    """Return twice the pinball loss of each quantile, so that the loss of the median is |error|.

    The pinball loss is that of quantile regression (Koenker and Bassett, 1978; for forecasts of
    several steps arXiv:1912.09363, section 5). Its mean over evenly spaced quantiles, times two,
    approximates the continuous ranked probability score (CRPS).

    Args:
        predicted: Quantiles (..., Q) of the forecast.
        true: True values (...).
        quantiles: Probabilities (Q,) of the quantiles.

    Returns:
        Losses (..., Q).
    """
    error = true[..., None] - predicted
    return 2 * torch.maximum(quantiles * error, (quantiles - 1) * error)


class ForecastMetric(Metric):
    """Errors of the median and of the quantiles. Missing values are left out.

    `mase`: mean absolute error of the median, divided by the scale of the channel, as the mean over
    forecasts and channels. `mae` and `mse`: mean absolute and mean squared error of the median.
    `skill`: 1 minus `mse` divided by that of the seasonal naive forecast; 0 for this forecast, and
    1 for a perfect one; left out if the histories are not known. `crps`: mean pinball loss over
    the quantiles, times two. `coverage`: fraction of the true values between the lowest and the
    highest quantile; left out for forecasts without quantiles.

    Args:
        quantiles: Probabilities of the Q quantiles.
    """

    monitored = "mase"
    lower_is_better = ("mase", "mae", "mse", "crps")
    row: ClassVar = ("mase", "scaled absolute error")

    def __init__(self, quantiles: Sequence[float]):
        self.quantiles = list(quantiles)

    def rows(self, predictions: Sequence[Tensor], targets: Sequence[Future]) -> Tensor:
        """Return the sum and the number of the values of each metric.

        Args:
            predictions: Quantiles (H, K, Q) of each forecast, or (H, K, 1) for forecasts without
                them.
            targets: True values.
        """
        forecasts = torch.stack(list(predictions)).double()
        true = torch.stack(
            [fitted(future.values, len(forecasts[0])) for future in targets]
        ).double()
        forecasts = forecasts[:, :, : true.shape[2]]  # a checkpoint also predicts covariates
        levels = self.quantiles if forecasts.shape[-1] > 1 else [0.5]
        # A forecast can be NaN as well, if the history has no value.
        missing = true.isnan() | forecasts.isnan().any(-1)
        error = (forecasts[..., levels.index(0.5)] - true).abs()
        pinballs = pinball(forecasts, true, torch.tensor(levels, dtype=torch.float64)).mean(-1)
        inside = ((true >= forecasts[..., 0]) & (true <= forecasts[..., -1])).double()
        if len(levels) == 1:
            inside = torch.full_like(inside, torch.nan)
        error, pinballs, inside = (
            figures.masked_fill(missing, torch.nan) for figures in (error, pinballs, inside)
        )
        naive = (_naive(targets, true) - true).square().masked_fill(missing, torch.nan)
        scaled = error.nanmean(1) / _scales(targets)
        # A channel without a history has no naive forecast to compare with.
        compared = error.square().masked_fill(naive.isnan(), torch.nan)
        values = (scaled, error, error.square(), compared, naive, pinballs, inside)
        columns = [figures.flatten(1) for figures in values]
        sums = [column.nansum(1) for column in columns]
        numbers = [(~column.isnan()).sum(1).double() for column in columns]
        return torch.stack([*sums, *numbers], 1)

    def blocks(self, targets: Sequence[Future]) -> Blocks | None:
        """Return blocks of windows that overlap, those of all series together.

        With few blocks and several series, each series is a block, as if series were independent.
        """
        by_time = _blocks_by_time(targets)
        if by_time is None or len(set(by_time.ids)) >= MIN_BLOCKS:
            return by_time
        number = {name: i for i, name in enumerate(dict.fromkeys(f.series for f in targets))}
        if len(number) < MIN_BLOCKS:
            return by_time
        return Blocks([number[future.series] for future in targets])

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the metrics."""
        totals, numbers = sums.chunk(2, -1)
        means = (totals / numbers).unbind(-1)
        results: dict[str, Tensor] = {}
        names = ("mase", "mae", "mse", "compared", "skill", "crps", "coverage")
        for name, mean in zip(names, means, strict=True):
            results[name] = mean
        # A naive forecast without an error has no skill to compare with.
        naive = results["skill"]
        compared = results.pop("compared")
        results["skill"] = torch.where(naive > 0, 1 - compared / naive, torch.nan)
        for name in ("skill", "coverage"):
            if results[name].isnan().all():
                del results[name]
        return results


def fitted(values: Tensor, horizon: int) -> Tensor:
    """Return exactly `horizon` future values (H, K): later ones are cut off or missing (NaN)."""
    missing = values.new_full((max(0, horizon - len(values)), values.shape[1]), torch.nan)
    return torch.cat([values[:horizon], missing])


def read_values(cell: Any, decimal: str = "") -> Tensor | None:
    """Read a cell as future values (H, K), float32; None if it is not a list of numbers.

    Args:
        cell: A text such as "1.5 2 nan", a list of numbers, a list of H lists of K numbers, or an
            array.
        decimal: Decimal mark of texts, see `find_decimal`.

    Raises:
        ValueError: If nothing shows whether a comma separates numbers or is a decimal comma.
    """
    if isinstance(cell, str):
        cell = parse_series(cell, decimal)
    try:
        if isinstance(cell, list | tuple):
            cell = [_row(item) for item in cell]
        values = torch.as_tensor(cell, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or not values.numel():
        return None
    return torch.where(values.isfinite(), values, torch.nan)


def _row(item: Any) -> Any:
    if isinstance(item, list | tuple):
        return [_row(entry) for entry in item]
    return math.nan if item is None else float(item)


def _last_valid(values: Tensor, dim: int) -> Tensor:
    """Return the last value along a dimension that is not NaN."""
    steps = torch.arange(1, values.shape[dim] + 1, device=values.device)
    steps = steps.view(-1, *[1] * (-dim - 1))
    index = torch.where(values.isnan(), 0, steps).amax(dim, keepdim=True)
    # If all values are missing, the first one is NaN as well.
    return values.gather(dim, (index - 1).clamp(min=0)).squeeze(dim)


def _mean_difference(history: Tensor, lag: int) -> Tensor:
    difference = history[lag:] - history[:-lag]
    return difference.double().abs().nanmean(0)


def _naive(futures: Sequence[Future], true: Tensor) -> Tensor:
    """Return the seasonal naive forecasts (n, H, K), NaN where a target has no history."""
    count, horizon, channels = true.shape
    naive = true.new_full((count, horizon, channels), torch.nan)
    # Together, which is several times faster: most histories have the same length.
    groups: dict[tuple[int, int], list[int]] = {}
    for i, future in enumerate(futures):
        if future.history is not None:
            groups.setdefault((len(future.past), future.season or 1), []).append(i)
    for (_, season), rows in groups.items():
        histories = torch.stack([futures[i].past[:, :channels] for i in rows])
        naive[rows] = seasonal_naive(histories, horizon, season).double()
    return naive


def _blocks_by_time(futures: Sequence[Future]) -> Blocks | None:
    """Return blocks of windows that overlap the first one; None if no window depends on another."""
    windows: dict[float, float] = {}  # first and last time
    for future in futures:
        if future.end is None:
            return None
        windows[future.time] = max(future.end, windows.get(future.time, future.end))
    block: dict[float, int] = {}
    number, end = -1, -math.inf
    for time in sorted(windows):
        if time > end:
            number, end = number + 1, windows[time]
        block[time] = number
    if number + 1 == len(futures):
        return None
    overlaps = number + 1 < len(windows)
    spread = math.sqrt(OVERLAP) if overlaps else 1.0
    return Blocks([block[future.time] for future in futures], spread)


def _scales(futures: Sequence[Future]) -> Tensor:
    """Return the scales (n, K), NaN where a target has none."""
    rows = [
        torch.full((future.values.shape[1],), torch.nan) if future.scale is None else future.scale
        for future in futures
    ]
    return torch.stack(rows).double()
