"""Sounds of keys and words: where they are loud, and comparisons of data sets of them."""

import numpy as np


def loud_stretches(sound, *, min_gap, floor=0.0):
    """(start, stop) of each stretch louder than `floor`, including gaps of up to `min_gap`."""
    loud = np.flatnonzero(np.abs(sound) > floor)
    breaks = np.flatnonzero(np.diff(loud) > min_gap)
    starts = [loud[0], *loud[breaks + 1]]
    stops = [*(loud[breaks] + 1), loud[-1] + 1]
    return list(zip(starts, stops, strict=True))


def same_sources(a, b):
    """Whether two data sets have the same targets and sounds."""
    for rows, others in zip(a.splits.values(), b.splits.values(), strict=True):
        if rows.cells["target"] != others.cells["target"]:
            return False
        pairs = zip(rows.cells["audio"], others.cells["audio"], strict=True)
        if not all(np.array_equal(x, y) for (x, _), (y, _) in pairs):
            return False
    return True
