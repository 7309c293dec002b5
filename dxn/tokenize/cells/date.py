"""The date adapter: one token per date or time."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dxn.core.tokens import Tokens
from dxn.tokenize.base import raws_of, to_tokens
from dxn.tokenize.cells.cell import (
    MASK_RATIO,
    CellMasking,
    cell_tokens,
    collate_values,
    is_finite_number,
    load_state,
    require_state,
    save_state,
    shortened,
)
from dxn.tokenize.cells.date_format import (
    SECONDS_PER_DAY,
    DateFormat,
    Moment,
    are_dates,
    find_date_format,
)
from dxn.tokenize.cells.missing import has_no_number
from dxn.tokenize.examples import random_moments
from dxn.tokenize.grid import MASKED
from dxn.tokenize.masking import check_ratio
from dxn.tokenize.media import BadMedia

# Number of sines and cosines of each cycle. Three pairs tell seven weekdays apart.
WEEKDAY, YEAR, MONTH, DAY = 3, 2, 1, 3
NUM_DATE = 2 * (WEEKDAY + YEAR + MONTH) + 1  # and the trend
NUM_TIME = 2 * DAY
NUM_FEATURES = NUM_DATE + NUM_TIME
DAYS_PER_YEAR = 365.2425
DAYS_PER_MONTH = 31
# Dates far after those of the training would otherwise get values that the model has never seen.
MAX_TREND = 3.0


class DatePreprocessor:
    """Read a date or a time, and compute its features.

    Args:
        day_first: Whether 1/2/2026 is the first of February. None: it is found in the table.
    """

    modality = "date"
    shareable = False

    def __init__(self, day_first: bool | None = None):
        self.day_first = day_first
        self.format = DateFormat(day_first is not False)
        self.center = 0.0  # days
        self.scale = 1.0
        self.fitted = False

    def find_format(self, cells: Sequence[Any]) -> None:
        """Find out whether days come before months, unless it is known."""
        if not self.fitted and self.day_first is None:
            self.format = find_date_format(cells)

    def read(self, source: Any) -> Moment | None:
        """Return a date, a time or both; None if the cell says that there is none.

        Raises:
            BadMedia: If it is neither a date nor a time, or the day does not exist.
        """
        if has_no_number(source):
            return None
        moment = self.format.parse(source)
        if moment is None:
            order = "day/month/year" if self.format.day_first else "month/day/year"
            raise BadMedia(
                f"must be a date such as 2026-01-31 or {order}, or a time such as 12:30, got "
                f"{shortened(source)}"
            )
        return moment

    def __call__(self, raw: Moment, rand: random.Random | None = None) -> dict[str, Tensor]:
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

    def collate(self, samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Collate value and valid (B, 1, K)."""
        valid = torch.stack([sample["valid"] for sample in samples])
        return {**collate_values(samples), "valid": valid}

    def examples(self, count: int, rand: random.Random) -> list[Moment]:
        """Return random raw values, see `dxn.tokenize.examples`."""
        return random_moments(self.center, self.scale, count, rand)

    def recipe(self) -> dict[str, Any]:
        """Return what a program without dxn needs, see `dxn.tokenize.recipes`."""
        return {
            "prepare": "date",
            "format": asdict(self.format),
            "center": self.center,
            "scale": self.scale,
            "max_trend": MAX_TREND,
            "days_per_year": DAYS_PER_YEAR,
            "days_per_month": DAYS_PER_MONTH,
            "waves": {"weekday": WEEKDAY, "year": YEAR, "month": MONTH, "day": DAY},
        }

    def accepts(self, values: Sequence[Any]) -> float:
        """Return 1 for a column of dates or times."""
        return float(are_dates(values))

    def summarize(self, raws: Sequence[Moment], sources: Sequence[Any]) -> str:
        """Summarize the range."""
        ordered = sorted(raws, key=lambda moment: moment.days)
        return f"{ordered[0]} to {ordered[-1]}" if ordered else ""


class DateAdapter(nn.Module):
    """Convert a date, a time, or both to one token.

    The features are sines and cosines of the time of day, the weekday, the day of the year and the
    day of the month, and the standardized time. A time zone is ignored: the time of day is the one
    on the clock of the place.

    Args:
        dim: Width D of a token.
        day_first: Whether 1/2/2026 is the first of February. Default: found in the training table.
    """

    modality = "date"

    def __init__(self, dim: int = 128, *, day_first: bool | None = None):
        super().__init__()
        self.dim = dim
        self.prepare = DatePreprocessor(day_first)
        # One input per feature, and two that tell whether there is a date and a time.
        self.proj = nn.Linear(NUM_FEATURES + 2, dim)
        # Zeros, as in the adapter of images: other parameters do not depend on it.
        self.mask_embedding = nn.Parameter(torch.zeros(dim))

    def fit(self, raws: Iterable[Moment]) -> DateAdapter:
        """Compute the mean and the standard deviation of the dates of the training split."""
        prepare = self.prepare
        if prepare.fitted:
            return self
        moments = raws_of(prepare, raws, Moment)
        days = np.array([raw.days for raw in moments if raw.day is not None])
        if len(days):
            prepare.center = float(days.mean())
            # The minimum avoids a division by zero if all dates are equal.
            prepare.scale = max(float(days.std()), 1e-3)
        prepare.fitted = True
        return self

    def masking(self, *, ratio: float | None = None, span: int = 5) -> CellMasking | None:
        """Create a masking that predicts the features. None if ratio is 0.

        Args:
            ratio: Probability that the date is masked. Default: 0.3.
            span: Ignored.
        """
        ratio = check_ratio(MASK_RATIO if ratio is None else ratio)
        return CellMasking(ratio, num_outputs=NUM_FEATURES) if ratio else None

    def save(self, folder: Path, name: str) -> None:
        """Save the format and the statistics of the column."""
        p = self.prepare
        state = {"day_first": p.format.day_first, "center": p.center, "scale": p.scale}
        save_state(folder, name, state)

    def load(self, folder: Path, name: str) -> None:
        """Load what `save` wrote."""
        state = load_state(folder, name)
        center: Any = state.get("center")
        scale: Any = state.get("scale")
        is_valid = is_finite_number(center) and is_finite_number(scale)
        is_valid = is_valid and scale > 0 and isinstance(state.get("day_first"), bool)
        rule = "center and scale must be numbers, scale positive, and day_first true or false"
        require_state(folder, name, is_valid, rule)
        self.prepare.format = DateFormat(state["day_first"])
        self.prepare.center, self.prepare.scale = float(center), float(scale)
        self.prepare.fitted = True

    def tokens(self, raws: Sequence[Any]) -> Tokens:
        """Convert dates to Tokens."""
        return to_tokens(self, raws)

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
        return cell_tokens(x, mask, self.modality)


def _waves(phase: float, count: int) -> list[float]:
    """Return sines and cosines of a phase, where 1 is a whole cycle, and of its multiples."""
    angles = [2 * math.pi * phase * n for n in range(1, count + 1)]
    return [*map(math.sin, angles), *map(math.cos, angles)]
