"""The preprocessor of the series adapter, which runs in data workers."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dxn.presets.advice import Advice, Facts
from dxn.presets.series import advise_series
from dxn.tokenize.examples import random_series
from dxn.tokenize.grid import collate_grids
from dxn.tokenize.media import BadMedia, matching_fraction
from dxn.tokenize.moments import Moments
from dxn.tokenize.series.augment import augment_series
from dxn.tokenize.series.file import is_series, is_series_path, read_series
from dxn.tokenize.series.options import SeriesAugment, SeriesNormalization

# A channel whose standard deviation is a tiny fraction of its mean is constant, apart from rounding
# of float32. It is only centered.
MAX_EXAMPLE = 20  # tokens of an example series
MIN_RELATIVE_STD = 1e-6


class SeriesPreprocessor:
    """Convert a series to normalized values.

    Args:
        normalize: Source of the statistics: train (`mean` and `std`), sample or none.
        max_len: Maximum number of patches of a sample, see `SeriesAdapter`.
        augment: Augmentation of training series.

    Attributes:
        num_channels: Number of channels C of every series. The first series that is read sets it.
        mean: (C,). Mean of each channel in the training split, set by the adapter.
        std: (C,). Standard deviation of each channel in the training split.
        patch_size: Number of time steps of a token, 0 before the adapter is fitted.
        stride: Number of time steps between two tokens.
    """

    modality = "series"
    reads_files = True
    has_words = False
    has_steps = True

    def __init__(
        self, *, normalize: SeriesNormalization | None, max_len: int, augment: SeriesAugment
    ):
        self.normalize: SeriesNormalization = normalize or "train"
        self.has_default = normalize is None
        self.window = 0
        self.max_len = max_len
        self.augment = augment
        self.num_channels = 0
        self.mean = torch.zeros(0)
        self.std = torch.ones(0)
        self.patch_size = 0
        self.stride = 0

    def is_path(self, value: str) -> bool:
        """Whether a str is the path of a file, and not a text of numbers."""
        return is_series_path(value)

    def find_format(self, cells: Sequence[Any]) -> None:
        """Set the number of channels to that of the first series that can be read.

        Rows are read by several threads, so `read` alone would let any of them decide.
        """
        self.num_channels = self.num_channels or self.layout_of(cells) or 0

    def layout_of(self, cells: Sequence[Any]) -> int | None:
        """Return the number of channels of the first series that can be read. None: there is none.

        Inputs with different numbers of channels cannot share an adapter.
        """
        for cell in cells:
            with suppress(BadMedia):
                raw = read_series(cell)
                if raw is not None:
                    return raw.shape[1]
        return None

    def read(self, source: Any) -> Tensor | None:
        """Read a series as float32 (T, C), see `read_series`. None: it has no values.

        Raises:
            BadMedia: If it cannot be read, or has another number of channels than other series.
        """
        raw = read_series(source)
        if raw is None:
            return None
        channels = raw.shape[1]
        self.num_channels = self.num_channels or channels  # a series without a data set
        if channels != self.num_channels:
            raise BadMedia(
                f"every series must have the same number of channels, got {channels} instead of "
                f"{self.num_channels}"
            )
        return raw

    def advise(self, cells: Sequence[Any], facts: Facts) -> list[Advice]:
        """Return the options that preset=auto sets."""
        return advise_series(cells, facts)

    def __call__(self, raw: Tensor, rand: random.Random | None = None) -> dict[str, Tensor]:
        """Return the normalized values of a series raw (T, C), augmented if rand is not None.

        Returns:
            values (T, C), 0 where a value is missing; observed (T, C) bool; loc and scale (C,),
            with which values * scale + loc are the original ones; and total (), the number of time
            steps before the series was truncated.
        """
        if rand is not None:
            raw = augment_series(raw, self.augment, rand)
        raw = self._last_steps(raw)
        total = len(raw)
        raw = self._truncated(raw)
        loc, scale = self.statistics(raw)
        observed = ~raw.isnan()
        values = torch.where(observed, (raw - loc) / scale, 0.0)
        return {
            "values": values,
            "observed": observed,
            "loc": loc,
            "scale": scale,
            "total": torch.tensor(total),
        }

    def statistics(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Return loc and scale (C,), by which a series raw (T, C) is normalized."""
        if self.normalize == "train":
            return self.mean, self.std
        if self.normalize == "sample":
            moments = Moments(raw.shape[1])
            moments.add(raw)
            return channel_statistics(moments)
        channels = raw.shape[1]
        return torch.zeros(channels), torch.ones(channels)

    def collate(self, samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Collate values and observed (B, T, C), lengths (B,), and loc and scale (B, C)."""
        values = [sample["values"] for sample in samples]
        observed = [sample["observed"] for sample in samples]
        return {
            "values": pad_sequence(values, batch_first=True),
            "observed": pad_sequence(observed, batch_first=True),
            "lengths": torch.tensor([len(x) for x in values]),
            "loc": torch.stack([sample["loc"] for sample in samples]),
            "scale": torch.stack([sample["scale"] for sample in samples]),
            **collate_grids(samples),
        }

    def continue_from(self, steps: int) -> None:
        """Prepare samples of a task that continues the series.

        Every sample then has the same number of time steps, the last ones. A shorter series starts
        with missing values. By default, each series is normalized by itself, because the values of
        a series with a trend leave the range of the training split.

        Args:
            steps: Number of time steps.
        """
        self.window = steps
        if self.has_default:
            self.normalize = "sample"

    def history(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the values (B, T, C) of a batch with the last step of each sample at index -1.

        Padding before the first step, and missing values, are NaN.
        """
        values = batch["values"].masked_fill(~batch["observed"], torch.nan)
        steps = torch.arange(values.shape[1], device=values.device)
        index = steps - (values.shape[1] - batch["lengths"][:, None])
        moved = values.gather(1, index.clamp(min=0)[..., None].expand_as(values))
        return moved.masked_fill((index < 0)[..., None], torch.nan)

    def num_tokens(self, raw: Tensor) -> float:
        """Return the number of time steps, which is proportional to the number of tokens."""
        return len(raw)

    def truncated(self, sample: Mapping[str, Tensor]) -> tuple[int, int] | None:
        """Return (kept, total) numbers of time steps of a truncated sample, otherwise None."""
        kept, total = len(sample["values"]), int(sample["total"])
        return (kept, total) if kept < total else None

    def examples(self, count: int, rand: random.Random) -> list[Tensor]:
        """Return random raw values, see `dxn.tokenize.examples`."""
        longest = (min(self.max_len, MAX_EXAMPLE) - 1) * self.stride + self.patch_size
        lengths = (min(2 * self.patch_size, longest), longest)
        return random_series(self.mean, self.std, lengths, count, rand)

    def recipe(self) -> dict[str, Any]:
        """Return what a program without dxn needs, see `dxn.tokenize.recipes`."""
        return {
            "prepare": "series",
            "channels": self.num_channels,
            "normalize": self.normalize,
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
            "window": self.window,
            "max_steps": (self.max_len - 1) * self.stride + self.patch_size,
            "min_relative_std": MIN_RELATIVE_STD,
        }

    def accepts(self, values: Sequence[Any]) -> float:
        """Return the fraction of the values that look like series, see `is_series`."""
        return matching_fraction(values, is_series)

    def summarize(self, raws: Sequence[Tensor], sources: Sequence[Any]) -> str:
        """Summarize the lengths, the number of channels and the missing values of series."""
        if not raws:
            return ""
        lengths: list[int] = []
        num_values = num_missing = channels = 0
        for raw in raws:
            lengths.append(len(raw))
            channels = raw.shape[1]
            num_values += raw.numel()
            num_missing += int(raw.isnan().sum())
        low, high, median = min(lengths), max(lengths), statistics.median(lengths)
        size = f"{low:,}" if low == high else f"{low:,} to {high:,}, median {median:,.0f}"
        missing = f"; {num_missing / num_values:.1%} missing" if num_missing else ""
        plural = "s" if channels > 1 else ""
        return f"{size} time steps of {channels} channel{plural}{missing}"

    def _last_steps(self, raw: Tensor) -> Tensor:
        """Return the last `window` time steps, after missing values if a series is shorter."""
        if not self.window:
            return raw
        missing = raw.new_full((max(0, self.window - len(raw)), raw.shape[1]), torch.nan)
        return torch.cat([missing, raw[-self.window :]])

    def _truncated(self, raw: Tensor) -> Tensor:
        """Return the first time steps of a series, at most those of max_len patches."""
        limit = (self.max_len - 1) * self.stride + self.patch_size
        if not self.patch_size or len(raw) <= limit:
            return raw
        # A series can start with missing values, but every sample needs a value.
        first = int((~raw.isnan()).any(1).nonzero()[0])
        start = 0 if first < limit else min(first, len(raw) - limit)
        return raw[start : start + limit]


def channel_statistics(moments: Moments) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation (C,), float32, by which series are normalized.

    A channel without values gets the mean 0 and the standard deviation 1, and a constant channel
    gets the standard deviation 1.
    """
    mean, std = moments.mean, moments.std
    is_constant = std <= MIN_RELATIVE_STD * mean.abs().clamp(min=MIN_RELATIVE_STD)
    std = torch.where(is_constant, 1.0, std)
    return mean.float(), std.float().clamp(min=torch.finfo(torch.float32).tiny)
