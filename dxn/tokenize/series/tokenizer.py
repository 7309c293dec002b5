"""The tokenizer of the series adapter: series become normalized values."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Interval
from einops import rearrange
from torch import Tensor

from dxn.core.randomness import torch_generator
from dxn.core.schema import options
from dxn.tokenize.base import FULL, TIME_MAP, Batch, Placement, Sample, Tokenizer
from dxn.tokenize.moments import Moments
from dxn.tokenize.series.reader import SeriesReader

SeriesChannels = Literal["joint", "independent", "separate"]
SeriesNormalization = Literal["train", "sample", "none"]
SeriesStem = Literal["patch", "conv", "residual"]
Below1 = Annotated[float, Interval(ge=0, lt=1)]
# The default patch size gives a series of the median length about this many tokens: enough to see
# its course, and few enough for quadratic attention.
USUAL_TOKENS = 32
USUAL_FRAMES = 4  # the same for frames, each of which has many tokens


@options
class SeriesAugment:
    """Random augmentation of training series. It is drawn again in each epoch.

    Args:
        noise: Maximum standard deviation of added noise, relative to that of each channel.
        scale: Maximum relative change of the values of a channel around their mean.
        shift: Maximum distance by which a channel is moved up or down, relative to its standard
            deviation.
        warp: Maximum relative stretching of the time axis.
        crop: Maximum fraction of the time steps that is cut off at both ends together.
        time_mask: Maximum fraction of the time steps, in one piece, that is set to missing.
    """

    noise: Annotated[float, Ge(0)] = 0.0
    scale: Below1 = 0.0
    shift: Annotated[float, Ge(0)] = 0.0
    warp: Below1 = 0.0
    crop: Below1 = 0.0
    time_mask: Below1 = 0.0


@options
class SeriesPatchOptions:
    """Further options of the patches of series.

    Args:
        hidden_dim: Width of the hidden layer of stem=residual. Default: four times the width of a
            token.
        end_token: Add a learned token after the last patch, with channels=separate.
        fill_start: Fill up a series to whole patches in front of its first value, with
            channels=separate. Default: after its last value.
        constant_std: Standard deviation that is assumed for a constant series, with
            normalize=sample.
        cells: Height and width of a patch of cells, for frames of cells. Default: the smallest
            power of two that gives a frame at most 64 patches.
        margin: Number of cells beyond each side of a patch of cells that its token reads, too.
            Default: cells.
        periodic: Whether the opposite border follows beyond each border of a frame, as on a map of
            a globe or a torus.
    """

    hidden_dim: Annotated[int, Ge(1)] | None = None
    end_token: bool = False
    fill_start: bool = False
    constant_std: Annotated[float, Gt(0)] = 1.0
    cells: Annotated[int, Ge(1)] | None = None
    margin: Annotated[int, Ge(0)] | None = None
    periodic: bool = False


def usual_patch_size(length: float, tokens: int = USUAL_TOKENS) -> int:
    """Return the power of two with which a series of this length has about `tokens` patches."""
    size = 1
    while length / (2 * size) >= tokens / 2**0.5:
        size *= 2
    return size


# A channel whose standard deviation is a tiny fraction of its mean is constant, apart from rounding
# of float32. It is only centered.
MIN_RELATIVE_STD = 1e-6


class SeriesTokenizer(Tokenizer):
    """Convert a series to normalized values.

    Args:
        normalize: Source of the statistics: train (`mean` and `std`), sample or none.
        max_len: Maximum number of patches of a sample, see `SeriesAdapter`.
        augment: Augmentation of training series.
        patch: Options of the patches.

    Attributes:
        mean: (C,). Mean of each channel in the training split, set by the adapter.
        std: (C,). Standard deviation of each channel in the training split.
        patch_size: Number of time steps of a token, 0 before the adapter is fitted.
        stride: Number of time steps between two tokens.
    """

    reader: SeriesReader
    cut_unit = "time steps"

    def __init__(
        self,
        *,
        normalize: SeriesNormalization | None,
        max_len: int,
        augment: SeriesAugment,
        patch: SeriesPatchOptions = SeriesPatchOptions(),
    ):
        self.reader = SeriesReader()
        self.normalize: SeriesNormalization = normalize or "train"
        self.has_default = normalize is None
        self.history_steps = 0
        # Steps after the end of the history, in which only known channels have values.
        self.ahead = 0
        self.num_known = 0
        self.horizon = 0  # steps of a forecast that have tokens of their own
        self.is_fixed = False  # whether every sample has `history_steps` steps
        self.fill_start = patch.fill_start
        self.constant_std = patch.constant_std
        self.max_len = max_len
        self.augment = augment
        self.is_random = augment != SeriesAugment()
        self.mean = torch.zeros(0)
        self.std = torch.ones(0)
        self.patch_size = 0
        self.stride = 0

    def __call__(self, raw: Tensor, rand: random.Random | None = None) -> Sample:
        """Return the normalized values of a series raw (T, C), augmented if rand is not None.

        Returns:
            values (T, C), 0 where a value is missing; observed (T, C) bool; lengths (), T; and loc
            and scale (C,), with which values * scale + loc are the original ones. If the values do
            not start at the first step of the series, also time_map (2,): the first step in the
            series, and steps of the series per step.
        """
        first, rate = 0.0, 1.0
        if rand is not None:
            raw, (first, rate) = augment_series(raw, self.augment, rand)
        steps, start = self._last_steps(raw)
        sample = self.prepare(steps)
        start += self._start(steps) - self._num_filled(steps)
        if start or (first, rate) != (0, 1):
            sample[TIME_MAP] = torch.tensor([first + rate * start, rate])
        return sample

    def placement(self, sample: Mapping[str, Tensor]) -> Placement:
        """Return where the values lie. Places are time steps."""
        lengths = sample["lengths"][..., None].float()
        one = torch.ones_like(lengths)
        first, rate = torch.zeros_like(lengths), one
        if TIME_MAP in sample:
            first, rate = sample[TIME_MAP].split(1, -1)
        return Placement(first, rate * lengths, one)

    def prepare(self, raw: Tensor) -> Sample:
        """Do the same for all time steps, without augmentation."""
        raw = F.pad(self._truncated(raw), (0, 0, self._num_filled(raw), 0), value=torch.nan)
        loc, scale = self.statistics(raw)
        observed = ~raw.isnan()
        values = torch.where(observed, (raw - loc) / scale, 0.0)
        return {
            "values": values,
            "observed": observed,
            "lengths": torch.tensor(len(values)),
            "loc": loc,
            "scale": scale,
        }

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> Batch:
        """Collate samples to a batch, see `pad`. It is not FULL if a value is missing."""
        if self.fill_start:
            longest = max(len(sample["values"]) for sample in samples)
            samples = [_filled_in_front(sample, longest) for sample in samples]
        if any(TIME_MAP in sample for sample in samples):
            samples = [{TIME_MAP: torch.tensor([0.0, 1.0]), **sample} for sample in samples]
        batch = super().collate(samples)
        return {**batch, FULL: batch[FULL] and bool(batch["observed"].all())}

    def statistics(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Return loc and scale (C,), by which a series raw (T, C) is normalized."""
        if self.normalize == "train":
            return self.mean, self.std
        if self.normalize == "sample":
            x = self.alike(raw)
            moments = Moments(x.shape[1])
            moments.add(x)
            loc, scale = channel_statistics(moments, self.constant_std)
            if x is not raw:
                return loc.expand(raw.shape[1]), scale.expand(raw.shape[1])
            if self.num_known:
                future = slice(-self.num_known, None)  # channels whose future is known
                loc[future], scale[future] = self.mean[future], self.std[future]
            return loc, scale
        channels = raw.shape[1]
        return torch.zeros(channels), torch.ones(channels)

    def alike(self, raw: Tensor) -> Tensor:
        """Return a series (T, C), or the cells of frames as one channel (T * C, 1).

        Cells that were normalized one by one would not show which of them has the larger value.
        """
        return raw if self.reader.grid_size is None else raw.reshape(-1, 1)

    def continue_from(
        self,
        steps: int,
        *,
        ahead: int = 0,
        num_known: int = 0,
        horizon: int = 0,
        is_fixed: bool = True,
    ) -> None:
        """Prepare samples of a task that continues the series, from its last time steps.

        With `is_fixed`, every sample then has the same number of time steps: a shorter series
        starts with missing values. By default, each series is normalized by itself, because the
        values of a series with a trend leave the range of the training split.

        Args:
            steps: Maximum number of time steps of the history.
            ahead: Number of time steps after the history, in which only known channels have values.
            num_known: Number of known channels, which are the last ones. The statistics of the
                training split normalize them, because their level has a meaning.
            horizon: Number of time steps after the history that get tokens of their own, if the
                series has frames.
            is_fixed: Whether every sample has this number of time steps.
        """
        self.history_steps = steps
        self.ahead = self.reader.ahead = ahead
        self.num_known = self.reader.num_known = num_known
        self.horizon = 0 if self.reader.grid_size is None else horizon
        self.is_fixed = is_fixed
        if self.has_default:
            self.normalize = "sample"

    def history(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the past values (B, T, C) of a batch, the last step of each sample at index -1.

        Padding before the first step, and missing values, are NaN.
        """
        values = batch["values"].masked_fill(~batch["observed"], torch.nan)
        if self.ahead:  # every sample has the same number of steps
            return values[:, : -self.ahead]
        steps = torch.arange(values.shape[1], device=values.device)
        index = steps - (values.shape[1] - batch["lengths"][:, None])
        moved = values.gather(1, index.clamp(min=0)[..., None].expand_as(values))
        return moved.masked_fill((index < 0)[..., None], torch.nan)

    def continued(self, batch: Mapping[str, Tensor], future: Tensor) -> Batch:
        """Return the batch of the same series with further values, on the same device.

        Args:
            batch: Batch of B series (T, C).
            future: Next values (B, S, C) in the unit of the series. NaN: missing.
        """
        values = batch["values"].double() * batch["scale"][:, None] + batch["loc"][:, None]
        values = values.masked_fill(~batch["observed"], torch.nan)
        steps = torch.cat([values, future.to(values)], 1).cpu()
        longer = self.collate([self.prepare(series[-self.max_steps :]) for series in steps.float()])
        moved = {k: v.to(future.device) for k, v in longer.items() if isinstance(v, Tensor)}
        rows = torch.arange(len(steps), device=future.device)
        return {**longer, **moved, "rows": rows}

    @property
    def drawing(self) -> str:
        """See `Tokenizer.drawing`."""
        return self.modality if self.reader.grid_size is None else "frames"

    def length(self, raw: Tensor) -> float:
        """Return the number of time steps, which is proportional to the number of tokens."""
        return len(raw)

    def cut(self, raw: Tensor) -> tuple[int, int] | None:
        """Return the numbers of time steps that are read and of all. None: all are read."""
        total = min(self.history_steps + self.ahead or len(raw), len(raw))
        num_read = min(total, self.max_steps) if self.patch_size else total
        return (num_read, total) if num_read < total else None

    @property
    def max_steps(self) -> int:
        """Number of time steps of max_len patches."""
        return (self.max_len - 1) * self.stride + self.patch_size

    def _last_steps(self, raw: Tensor) -> tuple[Tensor, int]:
        """Return the last time steps, after missing values if `is_fixed` is set, and their start.

        The start is an index of `raw`, and below 0 for missing values in front of it.
        """
        if not self.history_steps:
            return raw, 0
        steps = self.history_steps + self.ahead
        start = len(raw) - steps
        raw = raw[-steps:]
        missing = steps - len(raw) if self.is_fixed else 0
        return F.pad(raw, (0, 0, missing, 0), value=torch.nan), max(start, -missing)

    def _num_filled(self, raw: Tensor) -> int:
        """Return the number of missing values in front of a series, see `SeriesPatchOptions`."""
        if not self.fill_start or not self.patch_size:
            return 0
        return -min(len(raw), self.max_steps) % self.patch_size

    def _truncated(self, raw: Tensor) -> Tensor:
        """Return the first time steps of a series, at most those of max_len patches.

        A task that continues the series needs the last ones.
        """
        start = self._start(raw)
        return raw[start : start + self.max_steps] if self.patch_size else raw

    def _start(self, raw: Tensor) -> int:
        """Return the first time step that `_truncated` keeps."""
        limit = self.max_steps
        if not self.patch_size or len(raw) <= limit:
            return 0
        if self.history_steps:
            return len(raw) - limit
        # A series can start with missing values, but every sample needs a value.
        first = int((~raw.isnan()).any(1).nonzero()[0])
        return 0 if first < limit else min(first, len(raw) - limit)


def channel_statistics(moments: Moments, constant_std: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation (C,), float32, by which series are normalized.

    A channel without values gets the mean 0 and the standard deviation 1, and a constant channel
    gets the standard deviation `constant_std`.
    """
    mean, std = moments.mean, moments.std
    is_constant = std <= MIN_RELATIVE_STD * mean.abs()
    std = torch.where(is_constant, constant_std, std)
    std = torch.where(moments.count > 0, std, 1.0)
    return mean.float(), std.float().clamp(min=torch.finfo(torch.float32).tiny)


def _filled_in_front(sample: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Return a sample with missing values in front of the others, so that it has `steps` ones."""
    missing = steps - len(sample["values"])
    filled: dict[str, Any] = {**sample, "lengths": torch.tensor(steps)}
    for key in ("values", "observed"):
        filled[key] = F.pad(sample[key], (0, 0, missing, 0))
    if missing:
        first, rate = sample.get(TIME_MAP, torch.tensor([0.0, 1.0])).tolist()
        filled[TIME_MAP] = torch.tensor([first - rate * missing, rate])
    return filled


def augment_series(
    x: Tensor, options: SeriesAugment, rand: random.Random
) -> tuple[Tensor, tuple[float, float]]:
    """Augment a series (T, C), NaN where a value is missing. Its length can change.

    If nothing but missing values would remain, the series is returned as it is.

    Returns:
        The series; and the step of x at which it starts, and the number of steps of x per step.
    """
    original = x
    start, rate = 0, 1.0
    if options.crop:
        length = max(round(len(x) * (1 - rand.uniform(0, options.crop))), 1)
        start = rand.randint(0, len(x) - length)
        x = x[start : start + length]
    if options.warp:
        length = len(x)
        x = _stretch(x, 1 + rand.uniform(-options.warp, options.warp))
        rate = length / len(x)
    generator = torch_generator(rand)
    steps = len(x)
    if options.scale or options.shift or options.noise:
        x = _disturb(x, options, rand, generator)
    if options.time_mask:
        width = int(rand.uniform(0, options.time_mask) * steps)
        hidden_from = rand.randint(0, steps - width)
        hidden = torch.zeros(steps, 1, dtype=torch.bool)
        hidden[hidden_from : hidden_from + width] = True
        x = x.masked_fill(hidden, torch.nan)
    return (original, (0.0, 1.0)) if bool(x.isnan().all()) else (x, (float(start), rate))


def _disturb(
    x: Tensor, options: SeriesAugment, rand: random.Random, generator: torch.Generator
) -> Tensor:
    """Scale and shift each channel of x (T, C), and add noise."""
    mean = x.nanmean(0)
    std = (x - mean).square().nanmean(0).sqrt()
    channels = x.shape[1]
    factors = 1 + options.scale * (2 * torch.rand(channels, generator=generator) - 1)
    offsets = options.shift * (2 * torch.rand(channels, generator=generator) - 1)
    noise = rand.uniform(0, options.noise) * torch.randn(x.shape, generator=generator)
    return mean + (x - mean) * factors + (offsets + noise) * std


def _stretch(x: Tensor, factor: float) -> Tensor:
    """Stretch the time axis of x (T, C) by linear interpolation.

    A value is missing where one of its two neighbors is missing.
    """
    steps = max(round(len(x) * factor), 1)
    channels = rearrange(x, "t c -> 1 c t")
    stretched = F.interpolate(channels, steps, mode="linear", align_corners=True)
    return rearrange(stretched, "1 c t -> t c")
