"""Synthetic daily visits of shops, which depend on planned promotions and on the kind of a shop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dxn.core.errors import UserError
from dxn.data.columns.infer import Readers
from dxn.data.rows import Origins, Source, as_column
from dxn.data.series.timeline import ForecastOptions, forecast_source
from dxn.data.tables.read import Table

# Factor of the visits during a promotion, by the kind of a shop.
EFFECTS = {"books": 1.0, "food": 2.0, "toys": 3.0}
WEEK = 7
SWING = 0.3  # amplitude of the week relative to the mean
NOISE = 0.03  # standard deviation relative to the mean
LEVELS = (50.0, 100.0)  # range of the mean visits of a shop
RARE = 0.08  # probability of a promotion; most windows of two weeks have one or none


def shops(
    *,
    readers: Readers,
    num_series: int = 30,
    steps: int = 100,
    known: str | Sequence[str] = ("promotion",),
    static: str | Sequence[str] = ("kind",),
    horizon: int = WEEK,
    context: int = 2 * WEEK,
    seed: int = 0,
) -> Source:
    """Generate the daily visits of shops. The visits of the next days are the target.

    The visits have a week, and jump on the days of a promotion, which are random. The size of the
    jump depends on the kind of the shop. Without the future of the promotions, no model can predict
    the jumps.

    Args:
        readers: Readers in use, by modality. The caller sets this argument.
        num_series: Number of shops.
        steps: Number of days.
        known: Columns whose future is known. Empty: only the past of the promotions is known.
        static: Columns with one value per shop that are inputs. Empty: none.
        horizon: Number of future days to predict.
        context: Number of past days that the model reads.
        seed: Random seed of the data set.

    Raises:
        UserError: If an option is out of range.
    """
    if num_series < len(EFFECTS):
        raise UserError(f"data.num_series: must be at least {len(EFFECTS)}, got {num_series}")
    if steps < 1:
        raise UserError(f"data.steps: must be at least 1, got {steps}")
    rng = np.random.default_rng(seed)
    kinds = list(EFFECTS)
    columns: dict[str, list[Any]] = {
        name: [] for name in ("shop", "kind", "day", "visits", "promotion")
    }
    days = np.arange(steps)
    for i in range(num_series):
        kind = kinds[i % len(kinds)]
        promotion = rng.random(steps) < RARE
        week = 1 + SWING * np.sin(2 * np.pi * (days / WEEK + rng.random()))
        mean = rng.uniform(*LEVELS) * week * np.where(promotion, EFFECTS[kind], 1)
        visits = mean * (1 + NOISE * rng.standard_normal(steps))
        columns["shop"] += [f"shop {i + 1}"] * steps
        columns["kind"] += [kind] * steps
        columns["day"] += days.tolist()
        columns["visits"] += visits.tolist()
        columns["promotion"] += promotion.astype(int).tolist()
    cells = {name: as_column(values) for name, values in columns.items()}
    table = Table(cells, Origins([Path("shops")], np.arange(1, num_series * steps + 1)))
    options = ForecastOptions(
        target="visits",
        time="day",
        series_id="shop",
        known=known,
        static=static,
        horizon=horizon,
        context=context,
        season=WEEK,
    )
    return forecast_source(table, readers, options)
