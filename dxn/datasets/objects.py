"""Synthetic data: images of coloured shapes, and the box of each shape or a mask of all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from dxn.core.errors import UserError
from dxn.data.formats import SPLITS
from dxn.data.rows import TARGET, InputSpec, Rows, Source
from dxn.datasets.checks import check_counts
from dxn.datasets.shapes import COLOURS, MIN_SIZE, OVERSAMPLING, SHAPES, Thing, draw, outline

RADII = (0.07, 0.18)  # of a shape, as a fraction of the side of the image
MAX_SHAPES = 6
GAP = 0.02  # minimum distance of two shapes
MAX_ANGLE = 0.4  # maximum rotation in radians
ABSENT = 0.1  # fraction of the questions for a shape that is not in the image
BACKGROUND = "background"  # name of the pixels without a shape
MAX_TRIES = 100  # to find a place for a shape


def objects(
    *,
    num_train: int = 4000,
    num_validation: int = 300,
    num_test: int = 600,
    size: int = 96,
    ask: bool = False,
    masks: bool = False,
    instances: bool = False,
    seed: int = 0,
) -> Source:
    """Generate a data set of images with up to six coloured shapes, and the box of each.

    The input is "image", uint8 (size, size, 3). The target is a list of objects, such as {"label":
    "star", "box": [left, top, right, bottom]} in pixels. Some images have no shape.

    With `ask`, there is also an input "text" that names one shape, such as "the red star", and the
    target contains only this one, or nothing if the image does not have it. So text and image are
    both needed: the other shapes of an image have other colours or forms.

    With `masks`, the target is a mask (size, size) with the form of the shape at each pixel. With
    `instances`, it is a list of objects that also have their outline as a polygon.

    Args:
        num_train: Number of training rows.
        num_validation: Number of validation rows.
        num_test: Number of test rows.
        size: Height and width of an image in pixels, at least 32.
        ask: Whether a text says which shape to find.
        masks: Whether the target is a mask instead of a list of objects, for head=segment.
        instances: Whether the objects also have a "segmentation", for head.instances=true.
        seed: Random seed of the data set.

    Raises:
        UserError: If a split has no row, or `size` is below 32.
    """
    if masks and instances:
        raise UserError("data.instances: cannot be combined with data.masks=true; leave out one")
    counts = check_counts(num_train, num_validation, num_test)
    if size < MIN_SIZE:
        raise UserError(f"data.size: must be at least {MIN_SIZE} pixels, got {size}")
    make_rows = partial(_rows, size=size, ask=ask, masks=masks, instances=instances, seed=seed)
    splits = {name: make_rows(name, count) for name, count in counts.items()}
    inputs = {"image": InputSpec("drawn", "image")}
    if ask:
        inputs = {"text": InputSpec("question", "text"), **inputs}
    task = "segment" if masks or instances else "detect"
    return Source(splits, inputs, target="mask" if masks else "objects", task=task, name="objects")


def scene(rng: np.random.Generator) -> list[Thing]:
    """Draw up to MAX_SHAPES shapes that do not touch, no two of the same colour and form."""
    pairs = [*product(COLOURS, SHAPES)]
    count = int(rng.integers(MAX_SHAPES + 1))
    things: list[Thing] = []
    for index in rng.choice(len(pairs), count, replace=False).tolist():
        radius = float(rng.uniform(*RADII))
        angle = float(rng.uniform(-MAX_ANGLE, MAX_ANGLE))
        thing = Thing("", *pairs[index], x=0.5, y=0.5, radius=radius, angle=angle)
        for _ in range(MAX_TRIES):
            x, y = rng.uniform(radius, 1 - radius, 2).tolist()
            if all(math.hypot(x - t.x, y - t.y) > radius + t.radius + GAP for t in things):
                things.append(replace(thing, x=x, y=y))
                break
    return things


def box(thing: Thing, size: int) -> dict[str, Any]:
    """Return the form and the box of a shape in pixels."""
    corners = np.array(outline(thing)) * size
    (left, top), (right, bottom) = corners.min(0).tolist(), corners.max(0).tolist()
    return {"label": thing.shape, "box": [left, top, right, bottom]}


def instance(thing: Thing, size: int) -> dict[str, Any]:
    """Return the form, the box and the outline of a shape in pixels."""
    corners = np.array(outline(thing)) * size
    return {**box(thing, size), "segmentation": [corners.ravel().tolist()]}


def mask(things: Sequence[Thing], size: int) -> dict[str, Any]:
    """Return the form of the shape at each pixel (size, size), 0 where there is none.

    The result also has the names of the values.
    """
    large = OVERSAMPLING * size
    image = Image.new("L", (large, large))
    pen = ImageDraw.Draw(image)
    for thing in things:
        polygon = [(large * x, large * y) for x, y in outline(thing)]
        pen.polygon(polygon, fill=SHAPES.index(thing.shape) + 1)
    middle = OVERSAMPLING // 2
    values = np.array(image)[middle::OVERSAMPLING, middle::OVERSAMPLING]
    return {"mask": values, "names": dict(enumerate((BACKGROUND, *SHAPES)))}


def _rows(
    split: str, count: int, *, size: int, ask: bool, masks: bool, instances: bool, seed: int
) -> Rows:
    """Generate the rows of a split, see `objects`. Each row depends only on (seed, split, row)."""
    images: list[np.ndarray] = []
    texts: list[str] = []
    targets: list[Any] = []
    for row in range(count):
        rng = np.random.default_rng([seed, SPLITS.index(split), row])
        things = scene(rng)
        images.append(draw(rng, things, size))
        if ask:
            present = [(thing.colour, thing.shape) for thing in things]
            others = [pair for pair in product(COLOURS, SHAPES) if pair not in present]
            is_absent = not present or rng.random() < ABSENT
            choices = others if is_absent else present
            colour, shape = choices[int(rng.integers(len(choices)))]
            texts.append(f"the {colour} {shape}")
            things = [t for t in things if (t.colour, t.shape) == (colour, shape)]
        describe = instance if instances else box
        targets.append(mask(things, size) if masks else [describe(t, size) for t in things])
    cells: dict[str, Any] = {"image": images, TARGET: targets}
    if ask:
        cells = {"text": texts, **cells}
    return Rows(cells, [f"objects row {i + 1}" for i in range(count)])
