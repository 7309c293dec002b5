"""What a drawing marks in an input, and values that can be shown as a line."""

from __future__ import annotations

from typing import NamedTuple


class Described:
    """Base class of values, such as targets, of which `str` returns a line to read."""

    __slots__ = ()


class Mark(NamedTuple):
    """A part of an input that has a name, such as an object in a picture.

    Args:
        label: Its name.
        number: Number of the name, from which its color follows.
        box: Start on each axis, then the stop on each axis, as fractions of the input.
        score: Score from 0 to 1. None: it is true.
    """

    label: str
    number: int
    box: tuple[float, ...]
    score: float | None = None
