"""The training of the baseline of forecasts: ridge regression on the past values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dxn.models.past_regression import PastRegression, filled, past_features
from dxn.tasks.futures import Future, fitted, seasonal_naive

# Past steps that are read. The time is cubic in their number.
MAX_STEPS = 1024
# Past and future values of all windows, 200 MB in float32. With more, some windows are left out:
# neighboring ones have nearly the same values.
MAX_VALUES = 50_000_000
# Parts of the training windows, in the order of time. Each but the first is predicted by models
# that were trained on the parts before it.
NUM_PARTS = 4
# Ridge penalties, relative to the mean square of the past values.
PENALTIES = [10.0**exponent for exponent in torch.arange(-4, 3.1, 0.5).tolist()]
# A window whose future is farther from its last value, in its own standard deviations, counts less:
# the standard deviation of a window that is nearly constant says nothing about its future.
FAR = 10.0


class Windows(NamedTuple):
    """Training windows in the normalized unit of the input.

    Attributes:
        x: (n, K, T + 1). See `past_features`.
        y: (n, K, H). Future values minus the last value, without gaps.
        known: (n, K, H). Whether a future value is known.
    """

    x: Tensor
    y: Tensor
    known: Tensor


class Products(NamedTuple):
    """Sums over windows and channels, from which a regression and its errors follow.

    Attributes:
        xx: (F, F).
        xy: (F, H).
        yy: ().
        weight: Sum of the weights of the windows.
    """

    xx: Tensor
    xy: Tensor
    yy: Tensor
    weight: float


def fit_past_regression(
    futures: Sequence[Future],
    prepare: Any,
    *,
    input: str,
    horizon: int,
    season: int,
    quantiles: Sequence[float],
) -> PastRegression | None:
    """Train a ridge regression of the future values of a channel on its past values.

    All channels share it. Its matrix is pulled towards that of a simple forecast, the last value or
    the last season. This choice and the penalty are those with the lowest squared error of later
    training windows.

    Args:
        futures: Targets of the training split, in the order of time, with their histories.
        prepare: Preprocessor of the series.
        input: Name of the series.
        horizon: Number of future steps H.
        season: Season length in steps.
        quantiles: Probabilities of the quantiles.

    Returns:
        None if there are not enough windows.
    """
    windows = _read(futures, prepare, horizon)
    parts = [list(part) for part in torch.arange(len(windows.x)).tensor_split(NUM_PARTS)]
    if min(map(len, parts)) < 2:
        return None
    products = [_products(windows, torch.stack(part)) for part in parts]
    simple = _simple_forecasts(windows.x.shape[-1] - 1, horizon, season)
    errors = torch.zeros(len(simple), len(PENALTIES), dtype=torch.float64)
    for stop in range(1, NUM_PARTS):
        for i, candidates in enumerate(_candidates(_sum(products[:stop]), simple)):
            for j, weight in enumerate(candidates):
                errors[i, j] += _squared_error(products[stop], weight)
    which, penalty = divmod(int(errors.argmin()), len(PENALTIES))
    chosen = [simple[which]]
    residuals: list[Tensor] = []
    for stop in range(1, NUM_PARTS):
        (candidates,) = _candidates(_sum(products[:stop]), chosen)
        rows = torch.stack(parts[stop])
        error = windows.y[rows] - windows.x[rows] @ candidates[penalty].float()
        residuals.append(error.where(windows.known[rows], torch.nan))
    (candidates,) = _candidates(_sum(products), chosen)
    levels = torch.tensor(quantiles)
    offsets = torch.cat(residuals).nanquantile(levels, 0)  # (Q, K, H)
    steps = windows.x.shape[-1] - 1
    baseline = PastRegression(
        f"ridge regression on the last {steps} values",
        input=input,
        shape=(steps, horizon, windows.y.shape[1], len(quantiles)),
    )
    baseline.weight.copy_(candidates[penalty])
    baseline.offsets.copy_(offsets.permute(2, 1, 0).nan_to_num(0.0))
    return baseline


def _read(futures: Sequence[Future], prepare: Any, horizon: int) -> Windows:
    """Normalize the windows like the inputs of the model."""
    steps, channels = prepare.window, futures[0].values.shape[1]
    values = len(futures) * (steps + horizon) * channels
    chosen = futures[:: -(-values // MAX_VALUES)]
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    known: list[Tensor] = []
    for future in chosen:
        assert future.history is not None
        sample = prepare(future.history)
        past = sample["values"].masked_fill(~sample["observed"], torch.nan)[:, :channels]
        loc, scale = sample["loc"][:channels].double(), sample["scale"][:channels].double()
        # In float64: a large value minus the location needs more digits than float32 has.
        after = ((fitted(future.values, horizon).double() - loc) / scale).float()
        x, last = past_features(past[None], MAX_STEPS)
        xs.append(x[0])
        y = filled(torch.cat([last[0], after.T], -1))[:, 1:]
        ys.append(y - last[0])
        known.append(~after.T.isnan())
    return Windows(torch.stack(xs), torch.stack(ys), torch.stack(known))


def _products(windows: Windows, rows: Tensor) -> Products:
    x = windows.x[rows].flatten(0, 1).double()
    y = windows.y[rows].flatten(0, 1).double()
    is_known = windows.known[rows].flatten(0, 1).any(1)
    weight = FAR / y.abs().amax(1).clamp(min=FAR) * is_known
    x, y = x * weight[:, None], y * weight[:, None]
    return Products(x.T @ x, x.T @ y, y.square().sum(), float(weight.square().sum()))


def _sum(products: Sequence[Products]) -> Products:
    return Products(
        torch.stack([each.xx for each in products]).sum(0),
        torch.stack([each.xy for each in products]).sum(0),
        torch.stack([each.yy for each in products]).sum(0),
        sum(each.weight for each in products),
    )


def _simple_forecasts(steps: int, horizon: int, season: int) -> list[Tensor]:
    """Return the matrices (F, H) of the last value and of the last season."""
    last = torch.zeros(steps + 1, horizon, dtype=torch.float64)
    if not 1 < season <= steps:
        return [last]
    # The forecast of step h reads the step with this index.
    index = seasonal_naive(torch.arange(steps)[:, None].double(), horizon, season)[:, 0].long()
    seasonal = last.index_put((index, torch.arange(horizon)), last.new_ones(()))
    return [last, seasonal]


def _candidates(products: Products, simple: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the matrices (F, H) of all penalties, for each simple forecast."""
    values, vectors = torch.linalg.eigh(products.xx)
    values = values.clamp(min=0)
    unit = max(float(products.xx.diagonal().mean()), 1e-9)
    result: list[list[Tensor]] = []
    for prior in simple:
        rest = vectors.T @ (products.xy - products.xx @ prior)
        scaled = [rest / (values + unit * penalty)[:, None] for penalty in PENALTIES]
        result.append([prior + vectors @ each for each in scaled])
    return result


def _squared_error(products: Products, weight: Tensor) -> float:
    """Return the mean squared error of a matrix (F, H)."""
    explained = (weight * (2 * products.xy - products.xx @ weight)).sum()
    return float(products.yy - explained) / max(products.weight, 1e-9)
