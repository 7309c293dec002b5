"""Boxes (..., 2A) along A axes: the start on each axis, then the stop on each axis.

A box of a picture is top, left, bottom, right; an event of a sound is start, stop.
"""

from __future__ import annotations

import torch
from torch import Tensor


def extents(boxes: Tensor) -> Tensor:
    """Return the lengths (..., A) of boxes (..., 2A) along each axis."""
    start, stop = boxes.chunk(2, -1)
    return stop - start


def centers(boxes: Tensor) -> Tensor:
    """Return the centers (..., A) of boxes (..., 2A)."""
    start, stop = boxes.chunk(2, -1)
    return (start + stop) / 2


def areas(boxes: Tensor) -> Tensor:
    """Return the areas (...) of boxes (..., 2A), 0 where a stop is before a start."""
    return extents(boxes).clamp(min=0).prod(-1)


def ordered(boxes: Tensor) -> Tensor:
    """Return boxes (..., 2A) whose starts and stops are exchanged where they are mirrored."""
    start, stop = boxes.chunk(2, -1)
    return torch.cat([torch.minimum(start, stop), torch.maximum(start, stop)], -1)


def intersections(a: Tensor, b: Tensor) -> Tensor:
    """Return the areas (...) of the intersections of boxes (..., 2A), which are broadcast."""
    (a_start, a_stop), (b_start, b_stop) = a.chunk(2, -1), b.chunk(2, -1)
    sides = torch.minimum(a_stop, b_stop) - torch.maximum(a_start, b_start)
    return sides.clamp(min=0).prod(-1)


def overlaps(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the intersection over union and its generalization (...) of boxes (..., 2A).

    The generalized value, from -1 to 1, also tells distant boxes apart (arXiv:1902.09630). The
    boxes are broadcast.
    """
    common = intersections(a, b)
    union = areas(a) + areas(b) - common
    (a_start, a_stop), (b_start, b_stop) = a.chunk(2, -1), b.chunk(2, -1)
    hull = torch.maximum(a_stop, b_stop) - torch.minimum(a_start, b_start)
    hull = hull.clamp(min=0).prod(-1)
    tiny = torch.finfo(common.dtype).tiny
    iou = common / union.clamp(min=tiny)
    return iou, iou - (hull - union) / hull.clamp(min=tiny)
