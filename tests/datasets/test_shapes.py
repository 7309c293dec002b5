"""Pictures of shapes: the sentence is in the picture, and held-out pairs are never trained on."""

import re
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from helpers.data import sizes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from dxn.commands.train import Train
from dxn.config.compose import compose
from dxn.config.instantiate import build
from dxn.core.errors import UserError
from dxn.data import InputSpec, open_rows
from dxn.datasets import shapes
from dxn.datasets.shapes import (
    COLOURS,
    SHADE,
    SHAPES,
    Thing,
    draw,
    held_out,
    outline,
    relation,
    scene,
    sentence,
)
from dxn.tokenize import ImageAdapter

NOUN = rf"a (small|large) ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})"
RELATION = "(?:left of|above|below)"
GRAMMAR = re.compile(rf"{NOUN}(?: {RELATION} {NOUN}(?: and {RELATION} {NOUN})?)?")
COUNTS = {"train": 53, "validation": 17, "test": 23}
MIN_PIXELS = 12  # a smaller blob is noise


def small(**changed):
    return shapes(**{**{f"num_{name}": count for name, count in COUNTS.items()}, **changed})


def nouns(text):
    return re.findall(NOUN, text)


def thing(size="small", colour="red", shape="circle", x=0.5, y=0.5, radius=0.1, angle=0.0):
    return Thing(size, colour, shape, x, y, radius, angle)


def blobs_in(image):
    """(x, y, "a small red") of each coloured blob of pixels, from left to right."""
    channels = [ndimage.uniform_filter(image[..., i].astype(float), 3) for i in range(3)]
    smooth = np.stack(channels, 2)
    strength = smooth.max(2) - smooth.min(2)
    labels = np.empty(image.shape[:2], dtype=int)
    ndimage.label(strength > 45, output=labels)
    blobs = []
    for i in range(1, labels.max() + 1):
        inside = labels == i
        rows, columns = np.nonzero(inside)
        if len(rows) < MIN_PIXELS:
            continue
        inner = inside & (strength >= np.median(strength[inside]))  # edges are half background
        middle = np.median(image[inner], 0)
        colour = min(COLOURS, key=lambda name: np.linalg.norm(np.subtract(COLOURS[name], middle)))
        x, y = columns.mean(), rows.mean()
        reach = np.hypot(columns - x, rows - y).max() / len(image)
        blobs.append((x, y, f"a {'large' if reach > 0.13 else 'small'} {colour}"))
    return sorted(blobs)


def describe(image):
    """The sentence without the shapes, from the pixels only."""
    (x, y, text), *others = blobs_in(image)
    parts = []
    for across, down, name in others:
        angle = np.degrees(np.arctan2(down - y, across - x))  # -90: straight up, 90: straight down
        vertical = "above" if angle > 0 else "below"
        parts.append(f"{'left of' if abs(angle) < 45 else vertical} {name}")
    return f"{text} {' and '.join(parts)}".strip()


def rows_of(rows):
    return zip(rows.cells["image"], rows.cells["target"], strict=True)


def test_each_row_is_a_picture_and_a_sentence_of_the_grammar():
    source = small()
    assert source.inputs == {"image": InputSpec("drawn", "image")}
    assert (source.target, source.task) == ("sentence", "generate")
    assert sizes(source.splits) == COUNTS
    for rows in source.splits.values():
        for image, text in rows_of(rows):
            assert image.shape == (64, 64, 3)
            assert image.dtype == np.uint8
            assert GRAMMAR.fullmatch(text), text
    assert source.splits["test"].origin[22] == "shapes row 23"
    texts = small(num_train=300).splits["train"].cells["target"]
    lengths = Counter(len(nouns(text)) for text in texts)
    assert lengths == {n: pytest.approx(100, abs=35) for n in (1, 2, 3)}


def test_the_rows_can_be_opened():
    rows = small(size=37).splits["validation"]
    prepare = ImageAdapter(8, image_size=None, patch_size=2).tokenizer
    opened = open_rows(rows, {"image": prepare})
    assert opened.targets == list(rows.cells["target"])
    assert opened.raws["image"][3].shape == (3, 37, 37)


def test_the_yaml_builds_the_same_data():
    overrides = ["data=shapes", "data.num_train=3", "data.num_validation=2", "data.num_test=2"]
    node = compose(Train, [*overrides, "seed=5"]).values["data"]
    built = build(node, key="data").splits["train"].cells
    expected = small(num_train=3, num_validation=2, num_test=2, seed=5).splits["train"].cells
    assert built["target"] == expected["target"]


def test_the_cells_depend_on_the_seed_only():
    a, b, c = (small(seed=seed).splits["test"].cells for seed in (3, 3, 5))
    assert all(np.array_equal(x, y) for x, y in zip(a["image"], b["image"], strict=True))
    assert a["target"] == b["target"] != c["target"]


def test_the_sentences_are_those_of_earlier_versions():
    texts = shapes(num_train=1, num_validation=1, num_test=3, seed=3).splits["test"].cells["target"]
    assert texts[2] == (
        "a small orange diamond below a large green star and left of a small yellow ring"
    )


def test_a_row_does_not_depend_on_the_number_of_rows():
    few, many = small().splits["test"], small(num_train=67, num_test=31).splits["test"]
    assert few.cells["target"] == many.cells["target"][:23]


def test_the_pixels_determine_the_sentence():
    rows = shapes(num_train=1, num_validation=1, num_test=150).splits["test"]
    for i, (image, text) in enumerate(rows_of(rows)):
        assert describe(image) == re.sub(f" ({'|'.join(SHAPES)})", "", text), i


def test_the_scene_of_a_row_is_in_its_picture():
    for name, rows in small(seed=2).splits.items():
        for row, (image, text) in enumerate(rows_of(rows)):
            things = scene(name, row, seed=2)
            assert sentence(things) == text
            for each in things:
                is_ring = each.shape == "ring"  # empty in the middle
                x = round(64 * (each.x + (0.77 * each.radius if is_ring else 0)))
                y = round(64 * each.y)
                columns = slice(x, x + 1) if is_ring else slice(x - 1, x + 2)
                colour = image[y - 1 : y + 2, columns].mean((0, 1))
                tolerance = 60 if is_ring else 45
                assert np.abs(colour - COLOURS[each.colour]).max() < tolerance, (name, row, each)


# Areas for radius 1: pi r²; 2 r²; 3 √3 / 4 r²; two bars of 1.9 by 0.6 less their intersection; ten
# triangles with sides 1 and 0.42 and pi / 5 between them; 180 pi for the curve x = 16 sin³, with 17
# units to the radius.
@pytest.mark.parametrize(
    ("shape", "area"),
    [
        ("circle", np.pi),
        ("square", 2.0),
        ("triangle", 3 * 3**0.5 / 4),
        ("cross", 2 * 1.9 * 0.6 - 0.6**2),
        ("star", 10 * 0.42 * np.sin(np.pi / 5) / 2),
        ("diamond", 2 * 0.6),
        ("heart", 180 * np.pi / 17**2),
        ("ring", np.pi * (1 - 0.55**2)),
    ],
)
def test_each_shape_has_its_own_area(shape, area):
    image = draw(np.random.default_rng(7), [thing(shape=shape, radius=0.4, angle=0.1)], 101)
    red = (image[..., 0].astype(int) - image[..., 1] > 75).mean()
    assert red == pytest.approx(area * 0.4**2, rel=0.05)


def test_no_shade_of_a_colour_is_a_shade_of_another():
    for a, b in combinations(COLOURS.values(), 2):
        assert np.abs(np.subtract(a, b)).max() > 2 * SHADE + 20


def test_edges_are_smooth():
    image = draw(np.random.default_rng(7), [thing(colour="yellow", radius=0.4)], 64).astype(int)
    between = (image[..., 0] > 130) & (image[..., 0] < 200)  # neither background nor yellow
    assert 40 < between.sum() < 200  # about the circumference, 160 pixels


def test_a_rotated_outline_keeps_its_corners_on_their_circle():
    triangle = thing(shape="triangle", x=0.3, y=0.7, radius=0.11, angle=0.15)
    corners = np.array(outline(triangle))
    assert np.hypot(*(corners - (0.3, 0.7)).T) == pytest.approx(0.11)
    assert corners[0] == pytest.approx((0.3 + 0.11 * np.sin(0.15), 0.7 - 0.11 * np.cos(0.15)))


@given(
    seed=st.integers(0, 10**6),
    row=st.integers(0, 10**6),
    split=st.sampled_from(["train", "validation", "test"]),
)
@settings(max_examples=40, deadline=None)
def test_the_relations_of_a_scene_are_clear(seed, row, split):
    things = scene(split, row, seed=seed)
    assert len({each.pair for each in things}) == len(things)
    for a, b in combinations(things, 2):
        assert b.x - a.x >= 0.1
        assert np.hypot(b.x - a.x, b.y - a.y) > a.radius + b.radius + 0.049
    for other in things[1:]:
        angle = abs(np.degrees(np.arctan2(other.y - things[0].y, other.x - things[0].x)))
        assert abs(angle - 45) > 11, "a diagonal"
    for each in things:
        assert each.radius < min(each.x, each.y, 1 - each.x, 1 - each.y)
        assert (each.radius < 0.14) == (each.size == "small")


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (0.8, 0.5, "left of"),
        (0.8, 0.31, "left of"),
        (0.6, 0.9, "above"),
        (0.6, 0.1, "below"),
        (0.8, 0.8, ""),
    ],
)
def test_the_relation_is_that_of_the_first_thing_to_the_other(x, y, expected):
    assert relation(thing(), thing(x=x, y=y)) == expected


def test_a_sentence_goes_from_left_to_right():
    things = [
        thing("small", "red", "circle", 0.2, 0.3),
        thing("small", "green", "cross", 0.3, 0.8),
        thing("large", "blue", "square", 0.7, 0.4),
    ]
    assert sentence(things[:1]) == "a small red circle"
    assert sentence(things) == (
        "a small red circle above a small green cross and left of a large blue square"
    )


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_each_colour_and_each_shape_is_held_out_once_in_each_split(seed):
    reserved = held_out(seed)
    for pairs in reserved.values():
        assert [colour for colour, _ in pairs] == list(COLOURS)
        assert sorted(shape for _, shape in pairs) == sorted(SHAPES)
    assert set(reserved["validation"]).isdisjoint(reserved["test"])


def test_every_evaluated_picture_has_a_pair_that_no_training_picture_has():
    source = small(num_train=400, num_validation=97, num_test=97, seed=11)
    reserved = {name: set(pairs) for name, pairs in held_out(11).items()}
    pairs = {}
    for name, rows in source.splits.items():
        pairs[name] = [
            {(colour, shape) for _, colour, shape in nouns(text)} for text in rows.cells["target"]
        ]
    for name, of_split in reserved.items():
        assert all(found & of_split for found in pairs[name])
        assert not any(found & of_split for found in pairs["train"])
        assert all(" ".join(pair) in " ".join(source.notes) for pair in of_split)
    assert not any(found & reserved["test"] for found in pairs["validation"])
    assert any(found & reserved["validation"] for found in pairs["test"])
    seen = set.union(*pairs["train"])
    assert len(seen) == 48  # all of the 64 that are not held out
    assert {colour for colour, _ in seen} == set(COLOURS)
    assert {shape for _, shape in seen} == set(SHAPES)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_validation": 0}, r"data\.num_validation: must be at least 1, got 0"),
        ({"size": 31}, r"data\.size: must be at least 32 pixels, got 31"),
    ],
)
def test_invalid_options_are_refused(changed, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        small(**changed)
