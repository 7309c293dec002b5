"""Data whose target is a text: pictures of coloured shapes, and the sentence that says what is where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageDraw

from dxn.data.rows import Rows, Source
from dxn.errors import UserError

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
SHAPES = ("circle", "square", "triangle", "cross", "star", "diamond", "heart", "ring")
RADII = {"small": (0.085, 0.1), "large": (0.165, 0.185)}  # shares of the picture's side
APART = 0.05  # of the side: the least room between two shapes, and between a shape and the edge
SHADE = 30  # each of the three numbers of a colour may be larger or smaller by this; no two colours meet
TURNED = 0.15  # radians, either way, at most
STEP = 0.1  # of the side: by how much each next shape's centre is further right
CLEAR = 1.5  # how many times further left than up or down a shape must be to be called left, and the reverse
FINER = 4  # drawn this many times larger, then reduced
SPLITS = ("train", "validation", "test")

Pair = tuple[str, str]  # colour and shape


@dataclass(frozen=True)
class Thing:
    """One shape of a picture; x, y and radius are shares of the picture's side, angle is in radians."""

    size: str
    colour: str
    shape: str
    x: float
    y: float
    radius: float
    angle: float

    @property
    def pair(self) -> Pair:
        """Its colour and shape."""
        return self.colour, self.shape

    @property
    def name(self) -> str:
        """As the sentence says it: "a small red circle"."""
        return f"a {self.size} {self.colour} {self.shape}"


def shapes(
    *, num_train: int = 6000, num_validation: int = 300, num_test: int = 600, size: int = 64, seed: int = 0
) -> Source:
    """One to three coloured shapes: image uint8 (size, size, 3), target the one sentence that says them.

    The leftmost shape comes first, then the others from left to right, each with where the first one is to it:
    "a small red circle left of a large blue square and above a small green cross". Of the 64 pairs of colour and
    shape 48 are in training pictures. Every validation picture has one of eight others, every test picture one of the
    last eight, which are nowhere else: each colour and each shape once.

    Args:
        num_train: rows of the training split.
        num_validation: rows of the validation split.
        num_test: rows of the test split.
        size: pixels of a picture's side.
        seed: of everything random.

    Raises UserError for a split without a row and a size below 32.
    """
    if min(num_train, num_validation, num_test) < 1:
        raise UserError(f"data: every split needs a row, got {num_train}, {num_validation} and {num_test}")
    if size < 32:
        raise UserError(f"data.size must be 32 pixels or more, got {size}")
    counts = dict(zip(SPLITS, (num_train, num_validation, num_test), strict=True))
    splits = {name: _rows(name, count, size, seed) for name, count in counts.items()}
    notes = [
        f"in each {name} picture, and in no training picture, one of: {', '.join(map(' '.join, pairs))}"
        for name, pairs in held_out(seed).items()
    ]
    return Source(splits, "text", {"image": "drawn", "target": "sentence"}, notes)


def held_out(seed: int) -> dict[str, list[Pair]]:
    """The pairs of colour and shape that only validation pictures have, or only test ones: each colour and shape once.

    Test pictures may have those of validation as well, beside one of their own.
    """
    order = np.random.default_rng(seed).permutation(SHAPES).tolist()
    turned = {"validation": order, "test": [*order[1:], order[0]]}
    return {name: list(zip(COLOURS, those, strict=True)) for name, those in turned.items()}


def scene(split: str, row: int, *, seed: int = 0) -> list[Thing]:
    """What the picture of this row shows, from left to right; split: train, validation or test."""
    return _scene(_rng(split, row, seed), *_allowed(split, seed))


def sentence(things: Sequence[Thing]) -> str:
    """The sentence that says these things, which stand from left to right."""
    first, *others = things
    said = " and ".join(f"{relation(first, other)} {other.name}" for other in others)
    return f"{first.name} {said}".rstrip()


def relation(first: Thing, other: Thing) -> str:
    """Where the first stands, left of the other one: left of, above or below it, whichever it is by far; "" if none."""
    across, down = other.x - first.x, other.y - first.y
    if across >= CLEAR * abs(down):
        return "left of"
    if abs(down) >= CLEAR * across:
        return "above" if down > 0 else "below"
    return ""


def draw(rng: np.random.Generator, things: Sequence[Thing], size: int) -> np.ndarray:
    """uint8 (size, size, 3): these things on a plain grey ground, smooth at their edges, in noise."""
    ground = int(rng.integers(20, 100))
    large = FINER * size
    picture = Image.new("RGB", (large, large), (ground, ground, ground))
    pen = ImageDraw.Draw(picture)
    for thing in things:
        red, green, blue = (int(v) for v in (COLOURS[thing.colour] + rng.integers(-SHADE, SHADE + 1, 3)).clip(0, 255))
        pen.polygon([(large * x, large * y) for x, y in outline(thing)], fill=(red, green, blue))
    noise = np.float32(rng.uniform(2, 10)) * rng.standard_normal((size, size, 3), dtype=np.float32)
    return (np.asarray(picture.reduce(FINER)) + noise).clip(0, 255).astype(np.uint8)


def outline(thing: Thing) -> list[tuple[float, float]]:
    """Corners (x, y) of its polygon, in shares of the picture's side; a circle has 40."""
    cos, sin = math.cos(thing.angle), math.sin(thing.angle)
    return [
        (thing.x + thing.radius * (cos * x - sin * y), thing.y + thing.radius * (sin * x + cos * y))
        for x, y in _corners(thing.shape)
    ]


def _corners(shape: str) -> list[tuple[float, float]]:
    """In a circle of radius 1 around (0, 0), y downwards, standing upright."""
    if shape == "circle":
        return _on_circle(40)
    if shape == "triangle":
        return _on_circle(3)
    if shape == "square":
        return _on_circle(4, turned=math.pi / 4)
    if shape == "diamond":
        return [(0, -1), (0.6, 0), (0, 1), (-0.6, 0)]
    if shape == "ring":  # once around, and back inside, closed by a cut at the top
        inner = _on_circle(40, radius=0.55)
        return [*_on_circle(40), (0, -1), inner[0], *inner[::-1]]
    if shape == "heart":
        turns = [2 * math.pi * i / 40 for i in range(40)]
        upright = [13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a) for a in turns]
        return [(16 / 17 * math.sin(a) ** 3, -(y + 2.5) / 17) for a, y in zip(turns, upright, strict=True)]
    if shape == "star":
        inner = _on_circle(5, turned=math.pi / 5, radius=0.42)
        return [corner for both in zip(_on_circle(5), inner, strict=True) for corner in both]
    long, wide = 0.95, 0.3  # a cross of two bars, whose corners lie on the circle too
    quarter = [(wide, -long), (wide, -wide), (long, -wide)]
    return [(x * c - y * s, x * s + y * c) for c, s in ((1, 0), (0, 1), (-1, 0), (0, -1)) for x, y in quarter]


def _on_circle(count: int, *, turned: float = 0.0, radius: float = 1.0) -> list[tuple[float, float]]:
    """Corners of a regular polygon, the first at the top, clockwise."""
    turns = [turned + 2 * math.pi * i / count for i in range(count)]
    return [(radius * math.sin(turn), -radius * math.cos(turn)) for turn in turns]


def _rows(split: str, count: int, size: int, seed: int) -> Rows:
    """Each row follows from (seed, split, row) alone."""
    allowed = _allowed(split, seed)
    cells: dict[str, list] = {"image": [], "target": []}
    for row in range(count):
        rng = _rng(split, row, seed)
        things = _scene(rng, *allowed)
        cells["image"].append(draw(rng, things, size))
        cells["target"].append(sentence(things))
    return Rows(cells, [f"shapes row {i + 1}" for i in range(count)])


def _rng(split: str, row: int, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, SPLITS.index(split), row])


def _allowed(split: str, seed: int) -> tuple[list[Pair], list[Pair]]:
    """The pairs of which a picture of this split has one, and those which may stand beside it."""
    pairs = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    never = held_out(seed)
    if split == "test":
        return never["test"], pairs
    beside = [pair for pair in pairs if pair not in never["test"]]
    if split == "validation":
        return never["validation"], beside
    seen = [pair for pair in beside if pair not in never["validation"]]
    return seen, seen


def _scene(rng: np.random.Generator, own: Sequence[Pair], beside: Sequence[Pair]) -> list[Thing]:
    """Things of drawn looks, moved about until there is no doubt where they stand."""
    first = own[int(rng.integers(len(own)))]
    others = [pair for pair in beside if pair != first]
    count = int(rng.integers(3))
    pairs = [first, *(others[i] for i in rng.choice(len(others), count, replace=False))]
    things = [_thing(rng, pair) for pair in pairs]
    while True:
        places = rng.random((len(things), 2)).tolist()
        placed = [_moved(thing, *place) for thing, place in zip(things, places, strict=True)]
        placed.sort(key=lambda thing: thing.x)
        if _apart(placed) and all(relation(placed[0], other) for other in placed[1:]):
            return placed


def _thing(rng: np.random.Generator, pair: Pair) -> Thing:
    size = str(rng.choice(list(RADII)))
    return Thing(size, *pair, x=0.5, y=0.5, radius=rng.uniform(*RADII[size]), angle=rng.uniform(-TURNED, TURNED))


def _moved(thing: Thing, across: float, down: float) -> Thing:
    """To this share of the way from one edge to the other, and never over them."""
    least = thing.radius + APART
    return replace(thing, x=least + (1 - 2 * least) * across, y=least + (1 - 2 * least) * down)


def _apart(things: Sequence[Thing]) -> bool:
    """Whether none touch, and which is further right is plain."""
    for i, a in enumerate(things):
        for b in things[i + 1 :]:
            if b.x - a.x < STEP or math.hypot(b.x - a.x, b.y - a.y) < a.radius + b.radius + APART:
                return False
    return True
