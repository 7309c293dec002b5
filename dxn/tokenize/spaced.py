"""Rows that stand for all rows of a column, whose order may be that of the classes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

Value = TypeVar("Value")


def spaced_rows(size: int, count: int) -> Sequence[int]:
    """Return the indices of at most `count` of `size` rows, spread over all of them.

    The rows of most data sets are sorted, so the first ones would be of one class. Each index is
    drawn at random from one of `count` equal parts, always with the same seed: with a constant
    distance, all of them could be of one class if the classes take turns.
    """
    if size <= count:
        return range(size)
    rand = random.Random(0)
    edges = [i * size // count for i in range(count + 1)]
    return [rand.randrange(edges[i], edges[i + 1]) for i in range(count)]


def evenly_spaced(values: Sequence[Value], count: int) -> Iterator[Value]:
    """Yield the values of `spaced_rows`, one by one, because reading one can read a file."""
    return (values[i] for i in spaced_rows(len(values), count))
