"""What a drawing marks in an input, and values that can be shown as a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np


class Described:
    """Base class of values, such as targets, of which `str` returns a line to read."""

    __slots__ = ()

    @property
    def names(self) -> Sequence[str]:
        """The classes in it, if they are known."""
        return ()


class Mark(NamedTuple):
    """A part of an input that has a name, such as an object in a picture.

    Args:
        label: Its name.
        number: Number of the name, from which its color follows.
        box: Start on each axis, then the stop on each axis, in fractions of a picture, characters
            of a text, seconds of a sound or clip, or time steps of a series.
        score: Score from 0 to 1. None: it is true.
        mask: Its pixels (H, W) bool, in any resolution of the whole picture. None: all of the box.
    """

    label: str
    number: int
    box: tuple[float, ...]
    score: float | None = None
    mask: np.ndarray | None = None


class Areas(NamedTuple):
    """The class of each pixel of a picture.

    Args:
        at: Function from a height and width to the number of the class of each pixel (H, W),
            negative or not in `labels` where it has none of them.
        labels: Names of the classes.
        colors: Color of each class, such as #800000.
        size: Height and width of a true mask. None: it is predicted.
    """

    at: Callable[[tuple[int, int]], np.ndarray]
    labels: Sequence[str]
    colors: Sequence[str]
    size: tuple[int, int] | None = None
