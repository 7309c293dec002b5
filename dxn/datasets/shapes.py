"""Synthetic data for image captioning: images of coloured shapes, and a sentence for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from PIL import Image, ImageDraw

from dxn.core.errors import UserError
from dxn.data.formats import SPLITS
from dxn.data.rows import TARGET, InputSpec, Rows, Source
from dxn.datasets.checks import check_counts

COLOURS = {
    "red": (215, 35, 40),
    "orange": (245, 135, 20),
    "yellow": (245, 230, 60),
    "green": (40, 165, 65),
    "cyan": (70, 215, 220),
    "blue": (45, 75, 220),
    "purple": (165, 50, 190),
    "pink": (250, 125, 185),
}
MIN_SIZE = 32  # pixels; in smaller images the shapes cannot be distinguished

# All lengths are fractions of the side of the image.
RADII = {"small": (0.085, 0.1), "large": (0.165, 0.185)}
MIN_DISTANCE = 0.05  # between two shapes, and between a shape and the edge
# Minimum horizontal distance between the centres of two shapes, so that their order from left to
# right is clear.
MIN_STEP = 0.1
MAX_ANGLE = 0.15  # maximum rotation of a shape in radians, in both directions
# A shape is "left of" another one if their horizontal distance is at least 1.5 times the vertical
# one, and "above" or "below" it if the vertical distance is at least 1.5 times the horizontal one.
# Scenes with an ambiguous relation are not used.
CLEAR = 1.5
# Maximum random change of each RGB value. It is small enough for all colours to stay distinct.
SHADE = 30
OVERSAMPLING = 4  # factor by which images are drawn larger and then reduced, for antialiasing

Pair = tuple[str, str]  # colour and shape


@dataclass(frozen=True)
class Thing:
    """One coloured shape of an image.

    Args:
        size: "small" or "large".
        colour: A key of COLOURS.
        shape: One of SHAPES.
        x: Distance of the centre from the left edge, as a fraction of the side of the image.
        y: Distance of the centre from the top edge, as a fraction of the side.
        radius: Radius of the circumscribed circle, as a fraction of the side.
        angle: Clockwise rotation in radians.
    """

    size: str
    colour: str
    shape: str
    x: float
    y: float
    radius: float
    angle: float

    @property
    def pair(self) -> Pair:
        """Colour and shape."""
        return self.colour, self.shape

    @property
    def name(self) -> str:
        """Name of the shape in a sentence, such as "a small red circle"."""
        return f"a {self.size} {self.colour} {self.shape}"


def shapes(
    *,
    num_train: int = 6000,
    num_validation: int = 300,
    num_test: int = 600,
    size: int = 64,
    sentence_is_input: bool = False,
    seed: int = 0,
) -> Source:
    """Generate a data set of images with one to three coloured shapes.

    The input is "image", uint8 (size, size, 3). The target is a sentence such as "a small red
    circle left of a large blue square and above a small green cross". It first describes the
    leftmost shape, and then the others from left to right, each with its relation to the leftmost
    one. So there is exactly one correct sentence per image.

    The data set tests compositional generalization. Of the 64 pairs of colour and shape, training
    images contain 48. Eight other pairs, in which each colour and each shape occurs once, are held
    out for validation: each validation image contains one of them. The last eight pairs are held
    out for the test split in the same way.

    Args:
        num_train: Number of training rows.
        num_validation: Number of validation rows.
        num_test: Number of test rows.
        size: Height and width of an image in pixels, at least 32.
        sentence_is_input: Whether the sentence is an input called text instead of the target.
        seed: Random seed of the data set.

    Raises:
        UserError: If a split has no row, or `size` is below 32.
    """
    counts = check_counts(num_train, num_validation, num_test)
    if size < MIN_SIZE:
        raise UserError(f"data.size: must be at least {MIN_SIZE} pixels, got {size}")
    splits = {name: _rows(name, count, size, seed) for name, count in counts.items()}
    notes: list[str] = []
    for name, pairs in held_out(seed).items():
        names = ", ".join(map(" ".join, pairs))
        notes.append(
            f"each {name} image contains one of these shapes, which no training image contains: "
            f"{names}"
        )
    inputs = {"image": InputSpec("drawn", "image")}
    if sentence_is_input:
        inputs = {"text": InputSpec("sentence", "text"), **inputs}
        for split, rows in splits.items():
            cells = {"text": rows.cells[TARGET], "image": rows.cells["image"]}
            splits[split] = replace(rows, cells=cells)
        return Source(splits, inputs, name="shapes", notes=notes)
    return Source(splits, inputs, target="sentence", task="generate", notes=notes)


def held_out(seed: int) -> dict[str, list[Pair]]:
    """Return the pairs of colour and shape that no training image contains, by split.

    Each split has eight pairs, in which each colour and each shape occurs once. A test image
    contains a pair of the test split, and may also contain pairs of the validation split.
    """
    order = np.random.default_rng(seed).permutation(SHAPES).tolist()
    by_split = {"validation": order, "test": [*order[1:], order[0]]}
    return {name: list(zip(COLOURS, names, strict=True)) for name, names in by_split.items()}


def scene(split: str, row: int, *, seed: int = 0) -> list[Thing]:
    """Return the shapes of the image in a row, sorted from left to right.

    Args:
        split: Name of the split.
        row: Index of the row in the split.
        seed: Random seed of the data set.
    """
    return _draw_scene(_generator(split, row, seed), *_allowed_pairs(split, seed))


def sentence(things: Sequence[Thing]) -> str:
    """Return the sentence that describes shapes, which must be sorted from left to right."""
    first, *others = things
    parts = " and ".join(f"{relation(first, other)} {other.name}" for other in others)
    return f"{first.name} {parts}".rstrip()


def relation(first: Thing, other: Thing) -> str:
    """Return the relation of the first shape to the other one; "" if it is ambiguous.

    Args:
        first: The shape that is further left.
        other: The shape that is further right.
    """
    across = other.x - first.x
    down = other.y - first.y
    if across >= CLEAR * abs(down):
        return "left of"
    if abs(down) >= CLEAR * across:
        return "above" if down > 0 else "below"
    return ""


def draw(rng: np.random.Generator, things: Sequence[Thing], size: int) -> np.ndarray:
    """Draw shapes on a grey background with noise.

    Returns:
        Image (size, size, 3), uint8.
    """
    background = int(rng.integers(20, 100))
    large = OVERSAMPLING * size
    image = Image.new("RGB", (large, large), (background, background, background))
    pen = ImageDraw.Draw(image)
    for thing in things:
        shade = rng.integers(-SHADE, SHADE + 1, 3)
        red, green, blue = (int(v) for v in (COLOURS[thing.colour] + shade).clip(0, 255))
        polygon = [(large * x, large * y) for x, y in outline(thing)]
        pen.polygon(polygon, fill=(red, green, blue))
    strength = np.float32(rng.uniform(2, 10))
    noise = strength * rng.standard_normal((size, size, 3), dtype=np.float32)
    return (np.asarray(image.reduce(OVERSAMPLING)) + noise).clip(0, 255).astype(np.uint8)


def outline(thing: Thing) -> list[Point]:
    """Return the corners (x, y) of a shape, as fractions of the side of the image."""
    cos, sin = math.cos(thing.angle), math.sin(thing.angle)
    points: list[Point] = []
    for x, y in corners(thing.shape):
        rotated_x = cos * x - sin * y
        rotated_y = sin * x + cos * y
        points.append((thing.x + thing.radius * rotated_x, thing.y + thing.radius * rotated_y))
    return points


def _rows(split: str, count: int, size: int, seed: int) -> Rows:
    """Generate the rows of a split. Each row depends only on (seed, split, row)."""
    allowed = _allowed_pairs(split, seed)
    images: list[np.ndarray] = []
    sentences: list[str] = []
    for row in range(count):
        rng = _generator(split, row, seed)
        things = _draw_scene(rng, *allowed)
        images.append(draw(rng, things, size))
        sentences.append(sentence(things))
    origin = [f"shapes row {i + 1}" for i in range(count)]
    return Rows({"image": images, TARGET: sentences}, origin)


def _generator(split: str, row: int, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, SPLITS.index(split), row])


def _allowed_pairs(split: str, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Return two lists of pairs: an image has one pair of the first, and others of the second."""
    pairs: list[Pair] = [*product(COLOURS, SHAPES)]
    reserved = held_out(seed)
    if split == "test":
        return reserved["test"], pairs
    others = [pair for pair in pairs if pair not in reserved["test"]]
    if split == "validation":
        return reserved["validation"], others
    seen = [pair for pair in others if pair not in reserved["validation"]]
    return seen, seen


def _draw_scene(
    rng: np.random.Generator, first_pairs: Sequence[Pair], other_pairs: Sequence[Pair]
) -> list[Thing]:
    """Draw random shapes, and then random positions until all relations are unambiguous."""
    first = first_pairs[int(rng.integers(len(first_pairs)))]
    others = [pair for pair in other_pairs if pair != first]
    count = int(rng.integers(3))
    pairs = [first, *(others[i] for i in rng.choice(len(others), count, replace=False))]
    things = [_draw_thing(rng, pair) for pair in pairs]
    # Rejection sampling: all valid positions are equally likely.
    while True:
        positions = rng.random((len(things), 2)).tolist()
        placed = [_place(thing, *xy) for thing, xy in zip(things, positions, strict=True)]
        placed.sort(key=lambda thing: thing.x)
        if _are_apart(placed) and all(relation(placed[0], other) for other in placed[1:]):
            return placed


def _draw_thing(rng: np.random.Generator, pair: Pair) -> Thing:
    """Draw the size and the angle of a shape. Its position is still the centre of the image."""
    size = str(rng.choice(list(RADII)))
    radius = rng.uniform(*RADII[size])
    angle = rng.uniform(-MAX_ANGLE, MAX_ANGLE)
    return Thing(size, *pair, x=0.5, y=0.5, radius=radius, angle=angle)


def _place(thing: Thing, across: float, down: float) -> Thing:
    """Return the shape at another position, which keeps MIN_DISTANCE from the edges.

    Args:
        thing: The shape.
        across: Position from 0 (as far left as possible) to 1 (as far right as possible).
        down: Position from 0 (as high as possible) to 1 (as low as possible).
    """
    margin = thing.radius + MIN_DISTANCE
    return replace(thing, x=margin + (1 - 2 * margin) * across, y=margin + (1 - 2 * margin) * down)


def _are_apart(things: Sequence[Thing]) -> bool:
    """Return whether all distances are at least MIN_DISTANCE, and MIN_STEP horizontally.

    Args:
        things: Shapes, sorted from left to right.
    """
    for i, a in enumerate(things):
        for b in things[i + 1 :]:
            distance = math.hypot(b.x - a.x, b.y - a.y)
            if b.x - a.x < MIN_STEP or distance < a.radius + b.radius + MIN_DISTANCE:
                return False
    return True


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
