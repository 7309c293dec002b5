"""The baseline of forecasts: a ridge regression on past values, known and static columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dxn.core.tokens import without_autocast
from dxn.stacking.features import Features
from dxn.stacking.modules import Baseline, check_count
from dxn.tasks import Quantiles
from dxn.tasks.forecast.futures import Future, fitted, seasonal_naive

# Features of all channels together. The time of a training is cubic in their number.
MAX_FEATURES = 1024
# The mean of a window in its standard deviations is limited: a window can be nearly constant.
MAX_LEVEL = 10.0
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


class ForecastColumns(NamedTuple):
    """Which features of known and static columns a regression reads.

    Attributes:
        num_known: Number of known channels J.
        steps: Number of their last past steps that are read. All steps of the horizon are read.
        static: Number of features of each input with static columns, by input name.
        has_products: Whether static features are also multiplied with known values. The effect of a
            known value then depends on them.

    All features are also multiplied with the mean of the past values: an effect, such as that of a
    promotion, can be proportional to it.
    """

    num_known: int = 0
    steps: int = 0
    static: Mapping[str, int] = {}
    has_products: bool = False

    def count(self, horizon: int) -> int:
        """Return the number of features of a channel."""
        known, static = self.num_known * (self.steps + horizon), sum(self.static.values())
        count = (1 + known) * (1 + static) if self.has_products else 1 + known + static
        return 2 * count - 1 if count > 1 else 0

    def features(self, known: Tensor, static: Tensor, level: Tensor, horizon: int) -> Tensor:
        """Return the features (B, K, K x count). Those of another channel are 0.

        The effect of a column can therefore differ from channel to channel.

        Args:
            known: (B, T + H, J). Known values, NaN where unknown.
            static: (B, S). Features of static columns, NaN where unknown.
            level: (B, K). Mean of the past values, in their standard deviations.
            horizon: Number H of future steps.
        """
        constant = torch.ones_like(level[:, :1])
        known = known[:, known.shape[1] - self.steps - horizon :].flatten(1)
        known = torch.cat([constant, known.nan_to_num(0.0)], 1)
        static = static.nan_to_num(0.0)
        if self.has_products:
            x = (torch.cat([constant, static], 1)[:, :, None] * known[:, None]).flatten(1)
        else:
            x = torch.cat([known, static], 1)
        channels = level.shape[1]
        x = x[:, None].expand(-1, channels, -1)
        x = torch.cat([x, x * level.clamp(-MAX_LEVEL, MAX_LEVEL)[..., None]], -1)
        x = x[..., 1:]  # the regression has a constant feature
        if channels == 1:
            return x
        same = torch.eye(channels, dtype=x.dtype, device=x.device)
        return (same[..., None] * x[:, :, None]).flatten(2)


def choose_columns(
    num_known: int, static: Mapping[str, int], *, shape: tuple[int, int, int], season: int
) -> ForecastColumns:
    """Return the features that are the most useful ones and not too many.

    Args:
        num_known: Number of known channels J.
        static: Number of features of each input with static columns, by input name.
        shape: Numbers of past steps T, future steps H and channels K.
        season: Season length in steps. At least one season of known past values is read.
    """
    steps, horizon, channels = shape
    if not num_known and not static:
        return ForecastColumns()
    choices = [
        ForecastColumns(num_known, 0, static, has_products=bool(num_known and static)),
        ForecastColumns(num_known, 0, static),
        ForecastColumns(num_known),
    ]
    wanted = min(steps, season) if num_known else 0
    for columns in choices:
        room = MAX_FEATURES // channels - columns.count(horizon)
        per_step = columns._replace(steps=1).count(horizon) - columns.count(horizon)
        fitting = min(steps, room // per_step) if per_step else 0
        if room >= 0 and fitting >= wanted:
            return columns._replace(steps=fitting)
    return ForecastColumns()


class PastRegression(Baseline):
    """Predicts quantiles of the next values of each channel from its past values by a matrix.

    The last value is subtracted from the past values and added to the forecast, as in NLinear
    (arXiv:2205.13504, section 3.2), so a shift of the values shifts the forecast. Known and static
    columns are further features.

    Args:
        about: Name of the model.
        input: Name of the input with the past values.
        shape: Numbers of past steps T, future steps H, channels K and quantiles Q.
        columns: Arguments of `ForecastColumns`. Default: no other features are read.
    """

    weight: Tensor
    offsets: Tensor

    def __init__(
        self,
        about: str,
        *,
        input: str,
        shape: Sequence[int],
        columns: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.about = about
        self.input = input
        self.shape = list(shape)
        self.columns = ForecastColumns(**(columns or {}))
        self.inputs = [input, *self.columns.static]
        self.counted = {}
        self.output_shape = tuple(shape[1:])
        steps, horizon, channels, quantiles = shape
        # The row after the past values is that of the constant feature.
        count = steps + 1 + channels * self.columns.count(horizon)
        self.register_buffer("weight", torch.zeros(count, horizon))
        self.register_buffer("offsets", torch.zeros(horizon, channels, quantiles))

    def sizes(self) -> dict[str, Any]:
        """Return the arguments of the constructor as plain data."""
        return {
            "about": self.about,
            "input": self.input,
            "shape": list(self.shape),
            "columns": self.columns._asdict(),
        }

    def problem(self, adapters: Mapping[str, Any]) -> str:
        """See `Baseline.problem`."""
        tokenizer = adapters[self.input].tokenizer
        if self.shape[0] > tokenizer.history_steps:
            return (
                f"must read at most {tokenizer.history_steps} past values of {self.input}, got "
                f"{self.shape[0]}"
            )
        if self.columns.num_known in (0, tokenizer.num_known):
            return ""
        return f"must read {tokenizer.num_known} known channels, got {self.columns.num_known}"

    def forward(self, features: Mapping[str, Features], size: int) -> Tensor:
        """Return the quantiles (B, H, K, Q) in the unit of the past values."""
        series = features[self.input]
        assert series.steps is not None and series.level is not None
        count, horizon, channels, _ = self.shape
        with without_autocast(self.weight):
            x, last = past_features(series.steps.float()[..., :channels], count)
            if self.columns.count(horizon):
                static = [self._static(features, name, size) for name in self.columns.static]
                static = torch.cat([x.new_zeros(size, 0), *static], 1)
                known = x.new_zeros(size, horizon, 0) if series.known is None else series.known
                level = series.level[:, :channels]
                more = self.columns.features(known.float(), static, level.float(), horizon)
                x = torch.cat([x, more], -1)
            values = (x @ self.weight + last).transpose(1, 2)  # (B, H, K)
        return values[..., None] + self.offsets

    def _static(self, features: Mapping[str, Features], name: str, size: int) -> Tensor:
        """Return the features of an input (B, F), NaN where a sample lacks it."""
        count = self.columns.static[name]
        if name not in features:
            return self.weight.new_full((size, count), torch.nan)
        check_count(name, features[name].dense.shape[1], count)
        return features[name].dense.float()


def past_features(steps: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return what a regression reads of past values, and the values that it continues.

    Args:
        steps: (B, T, K). Values at each step, NaN where unknown. The last one is at index T - 1.
        count: Number of steps that are read.

    Returns:
        The last steps of each channel minus its last value, followed by 1, (B, K, count + 1), and
        the last values (B, K, 1). An unknown value is that of the step before.
    """
    x = filled(steps.transpose(1, 2))[..., -count:]
    last = x[..., -1:].nan_to_num(0.0)
    # Steps before the first known value have the last value, like a constant series.
    x = (x - last).nan_to_num(0.0)
    return torch.cat([x, torch.ones_like(last)], -1), last


def filled(x: Tensor) -> Tensor:
    """Replace each NaN of x (..., T) by the last value before it, if there is one."""
    shift = 1
    # With each step, the longest gap that is filled doubles.
    while shift < x.shape[-1]:
        before = torch.cat([torch.full_like(x[..., :shift], torch.nan), x[..., :-shift]], -1)
        x = torch.where(x.isnan(), before, x)
        shift *= 2
    return x


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
    space: Quantiles, futures: Sequence[Future], prepare: Any, static: Mapping[str, Tensor]
) -> PastRegression | None:
    """Train a ridge regression of the future values of a channel on its past values.

    All channels share it. Its matrix is pulled towards that of a simple forecast, the last value or
    the last season. This choice and the penalty are those with the lowest squared error of later
    training windows.

    Args:
        space: The output space of the task.
        futures: Targets of the training split, with their histories.
        prepare: Tokenizer of the series.
        static: Features of static columns (n, F), NaN where unknown, by input name.

    Returns:
        None if there are not enough windows.
    """
    target = space.target
    channels = futures[0].values.shape[1]
    steps = min(MAX_STEPS, prepare.history_steps)
    sizes = {name: x.shape[1] for name, x in static.items()}
    columns = choose_columns(
        target.num_known, sizes, shape=(steps, target.horizon, channels), season=target.season
    )
    x, y, known = _read(futures, prepare, target.horizon, columns, static)
    parts = torch.arange(len(x)).tensor_split(NUM_PARTS)
    if min(map(len, parts)) < 2:
        return None
    products = [_products(x[rows], y[rows], known[rows]) for rows in parts]
    simple = _simple_forecasts((x.shape[-1], target.horizon), steps, target.season)
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
        rows = parts[stop]
        error = y[rows] - x[rows] @ candidates[penalty].float()
        residuals.append(error.where(known[rows], torch.nan))
    (candidates,) = _candidates(_sum(products), chosen)
    levels = torch.tensor(space.quantiles)
    offsets = torch.cat(residuals).nanquantile(levels, 0)  # (Q, K, H)
    further = {"known columns": columns.num_known, "static columns": columns.static}
    about = [f"the last {steps} values", *(name for name, used in further.items() if used)]
    listed = about[0] if len(about) == 1 else f"{', '.join(about[:-1])} and {about[-1]}"
    baseline = PastRegression(
        f"ridge regression on {listed}",
        input=target.input,
        shape=(steps, target.horizon, y.shape[1], len(space.quantiles)),
        columns=columns._asdict(),
    )
    baseline.weight.copy_(candidates[penalty])
    baseline.offsets.copy_(offsets.permute(2, 1, 0).nan_to_num(0.0))
    return baseline


def _read(
    futures: Sequence[Future],
    prepare: Any,
    horizon: int,
    columns: ForecastColumns,
    static: Mapping[str, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize windows like the inputs of the model, in the order of time.

    Returns:
        For n windows: (n, K, F), see `past_features` and `ForecastColumns`; the future values
        (n, K, H) minus the last value, without gaps; and whether they are known (n, K, H).
    """
    steps, channels = prepare.history_steps, futures[0].values.shape[1]
    width = steps + horizon + channels * columns.count(horizon)
    # The windows of several series follow each other. Those of the same time belong together.
    order = sorted(range(len(futures)), key=lambda row: futures[row].time)
    order = order[:: -(-len(futures) * width * channels // MAX_VALUES)]
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    is_known: list[Tensor] = []
    for row in order:
        future = futures[row]
        assert future.history is not None
        sample = prepare(future.history)
        values = sample["values"].masked_fill(~sample["observed"], torch.nan)
        past = values[:steps, :channels]
        loc, scale = sample["loc"][:channels].double(), sample["scale"][:channels].double()
        # In float64: a large value minus the location needs more digits than float32 has.
        after = ((fitted(future.values, horizon).double() - loc) / scale).float()
        x, last = past_features(past[None], MAX_STEPS)
        if columns.count(horizon):
            fixed = torch.cat([torch.zeros(0), *(static[name][row] for name in columns.static)])
            known = values[:, values.shape[1] - columns.num_known :]
            level = (loc / scale).float()
            more = columns.features(known[None], fixed[None], level[None], horizon)
            x = torch.cat([x, more], -1)
        xs.append(x[0])
        y = filled(torch.cat([last[0], after.T], -1))[:, 1:]
        ys.append(y - last[0])
        is_known.append(~after.T.isnan())
    return torch.stack(xs), torch.stack(ys), torch.stack(is_known)


def _products(x: Tensor, y: Tensor, known: Tensor) -> Products:
    x, y = x.flatten(0, 1).double(), y.flatten(0, 1).double()
    is_known = known.flatten(0, 1).any(1)
    weight = FAR / y.abs().amax(1).clamp(min=FAR) * is_known
    x, y = x * weight[:, None], y * weight[:, None]
    return Products(x.T @ x, x.T @ y, y.square().sum(), float(weight.square().sum()))


def _sum(products: Sequence[Products]) -> Products:
    columns: Any = zip(*products, strict=True)
    sums: Any = map(sum, columns)
    return Products(*sums)


def _simple_forecasts(shape: tuple[int, int], steps: int, season: int) -> list[Tensor]:
    """Return the matrices (F, H) of the last value and of the last season of `steps` values."""
    last = torch.zeros(shape, dtype=torch.float64)
    if not 1 < season <= steps:
        return [last]
    # The forecast of step h reads the step with this index.
    index = seasonal_naive(torch.arange(steps)[:, None].double(), shape[1], season)[:, 0].long()
    seasonal = last.index_put((index, torch.arange(shape[1])), last.new_ones(()))
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
        result.append([prior + vectors @ solution for solution in scaled])
    return result


def _squared_error(products: Products, weight: Tensor) -> float:
    """Return the mean squared error of a matrix (F, H)."""
    explained = (weight * (2 * products.xy - products.xx @ weight)).sum()
    return float(products.yy - explained) / max(products.weight, 1e-9)
