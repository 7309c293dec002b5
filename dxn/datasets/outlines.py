"""Outlines (polygons) of the shapes that `dxn.datasets.shapes` draws."""

from __future__ import annotations

import math

SHAPES = ("circle", "square", "triangle", "cross", "star", "diamond", "heart", "ring")
# Number of corners of a polygon that approximates a round shape. At the sizes of the images, its
# edges are shorter than about a pixel.
NUM_CORNERS = 40

Point = tuple[float, float]


def corners(shape: str) -> list[Point]:
    """Return the corners (x, y) of a shape that is not rotated; the y axis points down.

    The shape lies within a circle of radius 1 around (0, 0).
    """
    if shape == "circle":
        return _on_circle(NUM_CORNERS)
    if shape == "triangle":
        return _on_circle(3)
    if shape == "square":
        return _on_circle(4, turned=math.pi / 4)
    if shape == "diamond":
        return [(0, -1), (0.6, 0), (0, 1), (-0.6, 0)]
    if shape == "ring":
        return _ring()
    if shape == "heart":
        return _heart()
    if shape == "star":
        return _star()
    assert shape == "cross", shape
    return _cross()


def _ring() -> list[Point]:
    # A polygon cannot have a hole. Go around the outer circle, through a cut of width 0 at the top,
    # and back around the inner circle.
    inner = _on_circle(NUM_CORNERS, radius=0.55)
    return [*_on_circle(NUM_CORNERS), (0, -1), inner[0], *inner[::-1]]


def _heart() -> list[Point]:
    # The heart curve x = 16 sin³ a, y = 13 cos a - 5 cos 2a - 2 cos 3a - cos 4a. Dividing by 17 and
    # shifting by 2.5 fits it into the circle of radius 1.
    points: list[Point] = []
    for i in range(NUM_CORNERS):
        a = 2 * math.pi * i / NUM_CORNERS
        y = 13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a)
        points.append((16 / 17 * math.sin(a) ** 3, -(y + 2.5) / 17))
    return points


def _star() -> list[Point]:
    inner = _on_circle(5, turned=math.pi / 5, radius=0.42)
    points: list[Point] = []
    for outer_point, inner_point in zip(_on_circle(5), inner, strict=True):
        points += [outer_point, inner_point]
    return points


def _cross() -> list[Point]:
    # Two crossing bars, whose outer corners are almost on the circle. The corners of one arm are
    # rotated by 0, 90, 180 and 270 degrees.
    long, wide = 0.95, 0.3
    quarter = [(wide, -long), (wide, -wide), (long, -wide)]
    points: list[Point] = []
    for cos, sin in ((1, 0), (0, 1), (-1, 0), (0, -1)):
        points += [(x * cos - y * sin, x * sin + y * cos) for x, y in quarter]
    return points


def _on_circle(count: int, *, turned: float = 0.0, radius: float = 1.0) -> list[Point]:
    """Return the corners of a regular polygon, clockwise from the top.

    Args:
        count: Number of corners.
        turned: Clockwise rotation in radians.
        radius: Distance of the corners from (0, 0).
    """
    angles = [turned + 2 * math.pi * i / count for i in range(count)]
    return [(radius * math.sin(angle), -radius * math.cos(angle)) for angle in angles]
