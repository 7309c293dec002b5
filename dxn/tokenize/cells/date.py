"""The date adapter: one token per date or time."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from dxn.core.tokens import Tokens
from dxn.core.untrusted import shortened
from dxn.tokenize.base import MASKED, Adapter, BadMedia, Reader, Sample, Tokenizer, raws_of
from dxn.tokenize.cells.cell import MASK_RATIO, cell_tokens, center_and_scale
from dxn.tokenize.cells.cell_values import has_no_number
from dxn.tokenize.cells.date_values import (
    SECONDS_PER_DAY,
    Moment,
    find_day_first,
    has_time,
    parse_date,
    unclear_date,
    unclear_year,
)
from dxn.tokenize.masking import CellMasking, check_ratio


class DateReader(Reader):
    """Reads dates and times.

    Args:
        day_first: Whether 1/2/2026 is the first of February. None: it is found in the table.

    Attributes:
        day_first: Whether days come before months.
        fixed: Whether this is known, because it has been set or loaded.
        has_times: Whether a date of the column has a time other than midnight. If not, times are
            not read: data frames and JSON write a date as one at midnight. None: not known yet.
    """

    modality = "date"
    tabular = True

    def __init__(self, day_first: bool | None = None):
        self.day_first = day_first is not False
        self.fixed = day_first is not None
        self.has_times: bool | None = None

    def learn(self, cells: Sequence[Any]) -> str:
        """Find out whether days come before months, and dates have times, unless it is known."""
        if self.has_times is None:
            self.has_times = any(map(has_time, cells))
        if not self.fixed:
            self.day_first = find_day_first(cells)
            unclear = unclear_date(cells)
            if unclear is not None:
                order, other = ("day", "false") if self.day_first else ("month", "true")
                return (
                    f"dates such as {unclear} are read with the {order} first, although no cell "
                    f"shows it; adapters.date.day_first={other} sets the other order"
                )
        if (unclear := unclear_year(cells)) is not None:
            moment = parse_date(unclear, day_first=self.day_first)
            return (
                f"dates such as {unclear} are read as {moment}; if they start with the year, write "
                "it with four digits"
            )
        return ""

    def read(self, cell: Any) -> Moment | None:
        """Return a date, a time or both; None if the cell says that there is none.

        Raises:
            BadMedia: If it is neither a date nor a time, or the day does not exist.
        """
        if has_no_number(cell):
            return None
        moment = parse_date(cell, day_first=self.day_first)
        if moment is None:
            order = "day/month/year" if self.day_first else "month/day/year"
            raise BadMedia(
                f"must be a date such as 2026-01-31 or {order}, or a time such as 12:30, got "
                f"{shortened(cell)}"
            )
        return moment.date if self.has_times is False else moment

    def describe(self, raws: Sequence[Moment], cells: Sequence[Any]) -> str:
        """Describe the range."""
        ordered = sorted(raws, key=lambda moment: moment.days)
        return f"{ordered[0]} to {ordered[-1]}" if ordered else ""


# Number of sines and cosines of each cycle. Three pairs tell seven weekdays apart.
WEEKDAY, YEAR, MONTH, DAY = 3, 2, 1, 3
NUM_DATE = 2 * (WEEKDAY + YEAR + MONTH) + 1  # and the trend
NUM_TIME = 2 * DAY
NUM_FEATURES = NUM_DATE + NUM_TIME
DAYS_PER_YEAR = 365.2425
DAYS_PER_MONTH = 31
# Dates far after those of the training would otherwise get values that the model has never seen.
MAX_TREND = 3.0


class DateTokenizer(Tokenizer):
    """Computes the features of a date or a time.

    Args:
        day_first: Whether days come before months, see `DateReader`.
    """

    reader: DateReader

    def __init__(self, day_first: bool | None = None):
        self.reader = DateReader(day_first)
        self.center = 0.0  # days
        self.scale = 1.0

    def __call__(self, raw: Moment, rand: random.Random | None = None) -> Sample:
        """Return value (1, K), the features, and valid (1, K) bool, False at those it lacks."""
        value, valid = self.features(raw)
        return {"value": torch.tensor([value]), "valid": torch.tensor([valid])}

    def features(self, raw: Moment) -> tuple[list[float], list[bool]]:
        """Return the features of a moment, 0 where it lacks them, and which ones it has."""
        dates, times = [0.0] * NUM_DATE, [0.0] * NUM_TIME
        if raw.day is not None:
            date = datetime.date.fromordinal(raw.day)
            trend = (raw.days - self.center) / self.scale
            dates = [
                *_waves(date.weekday() / 7, WEEKDAY),
                *_waves(date.timetuple().tm_yday / DAYS_PER_YEAR, YEAR),
                *_waves(date.day / DAYS_PER_MONTH, MONTH),
                min(max(trend, -MAX_TREND), MAX_TREND),
            ]
        if raw.second is not None:
            times = _waves(raw.second / SECONDS_PER_DAY, DAY)
        valid = [raw.day is not None] * NUM_DATE + [raw.second is not None] * NUM_TIME
        return [*dates, *times], valid


class DateAdapter(Adapter):
    """Convert a date, a time, or both to one token.

    The features are sines and cosines of the time of day, the weekday, the day of the year and the
    day of the month, and the standardized time. A time zone is ignored: the time of day is the one
    on the clock of the place.

    Args:
        dim: Width D of a token.
        day_first: Whether 1/2/2026 is the first of February. Default: found in the training table.
    """

    reader = DateReader
    tokenizer: DateTokenizer

    def __init__(self, dim: int = 128, *, day_first: bool | None = None):
        super().__init__()
        self.dim = dim
        self.tokenizer = DateTokenizer(day_first)
        self.fitted = False
        # One input per feature, and two that tell whether there is a date and a time.
        self.proj = nn.Linear(NUM_FEATURES + 2, dim)
        # Zeros, as in the adapter of images: other parameters do not depend on it.
        self.mask_embedding = nn.Parameter(torch.zeros(dim))

    def fit(self, raws: Iterable[Moment]) -> Self:
        """Compute the mean and the standard deviation of the dates of the training split."""
        if self.fitted:
            return self
        moments = raws_of(self.tokenizer.reader, raws, Moment)
        days = np.array([raw.days for raw in moments if raw.day is not None])
        if len(days):
            self.tokenizer.center = float(days.mean())
            # The minimum avoids a division by zero if all dates are equal.
            self.tokenizer.scale = max(float(days.std()), 1e-3)
        self.fitted = True
        return self

    def masking(self, *, ratio: float | None = None) -> CellMasking | None:
        """Create a masking that predicts the features. None if ratio is 0.

        Args:
            ratio: Probability that the date is masked. Default: 0.3.
        """
        ratio = check_ratio(MASK_RATIO if ratio is None else ratio)
        return CellMasking(ratio, num_outputs=NUM_FEATURES) if ratio else None

    def state(self) -> dict[str, Any]:
        """Return how the dates are written and the statistics of the column."""
        tokenizer = self.tokenizer
        return {
            "day_first": tokenizer.reader.day_first,
            "has_times": tokenizer.reader.has_times is not False,
            "center": tokenizer.center,
            "scale": tokenizer.scale,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Use what `state` returned."""
        self.tokenizer.center, self.tokenizer.scale = center_and_scale(state)
        reader = self.tokenizer.reader
        for name in ("day_first", "has_times"):
            if not isinstance(state[name], bool):
                raise ValueError(f"{name} must be true or false")
        reader.day_first, reader.has_times = state["day_first"], state["has_times"]
        reader.fixed = True
        self.fitted = True

    def describe(self, raw: Moment) -> str:
        """Return the date and its weekday."""
        if raw.day is None:
            return str(raw)
        return f"{raw} ({datetime.date.fromordinal(raw.day):%A})"

    def forward(self, batch: Mapping[str, Tensor]) -> Tokens:
        """Embed a collated batch as Tokens (B, 1, D)."""
        value, valid = batch["value"], batch["valid"]
        # The first feature of a date, and the last one of a time, tell whether there is one.
        present = valid[..., [0, -1]].to(value.dtype)
        x = self.proj(torch.cat([value, present], -1))
        if MASKED in batch:
            masked = batch[MASKED][..., None]
            x = torch.where(masked, self.proj.bias + self.mask_embedding, x)
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        return cell_tokens(x, mask, self.modality, mask.numel())


def _waves(phase: float, count: int) -> list[float]:
    """Return sines and cosines of a phase, where 1 is a whole cycle, and of its multiples."""
    angles = [2 * math.pi * phase * n for n in range(1, count + 1)]
    return [*map(math.sin, angles), *map(math.cos, angles)]
