"""Options of the series adapter that suit the data (preset=auto)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dxn.presets.advice import Advice, Facts
from dxn.tokenize.base import BadMedia

# Tokens of a sample whose channels have tokens of their own: more would take too long.
MAX_TOKENS = 192
MIN_PATCHES = 4  # of a channel; fewer show too little of its course


def advise_series(cells: Sequence[Any], facts: Facts) -> list[Advice]:
    """Return options for forecasts: each channel has tokens of its own, if they are few enough.

    Args:
        cells: Series (T, C), or what a series can be read from.
        facts: What is known about the training.
    """
    from dxn.tokenize.series.reader import read_series
    from dxn.tokenize.series.tokenizer import usual_patch_size

    if not facts.is_forecast:
        return []
    lengths: list[int] = []
    channels = 1
    for cell in cells:
        try:
            raw = read_series(cell)
        except BadMedia:  # reported when the rows are read
            continue
        if raw is not None:
            lengths.append(len(raw))
            channels = raw.shape[1]
    steps = max(lengths, default=0)
    patch_size = usual_patch_size(steps)
    while channels * steps > MAX_TOKENS * patch_size:
        patch_size *= 2
    if channels == 1 or steps < MIN_PATCHES * patch_size:
        return []
    about = f"{channels} channels of {steps:,} time steps"
    options = {"channels": "independent", "patch_size": patch_size}
    return [Advice(f"{facts.prefix}.{name}", value, about) for name, value in options.items()]
