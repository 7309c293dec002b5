"""Pictures of shapes and their sentence: what is said is in the picture, and test pictures hold what is new."""

import re
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from dxn.config import build, compose
from dxn.data.samples import open_rows
from dxn.data.shapes import COLOURS, SHADE, SHAPES, Thing, draw, held_out, outline, relation, scene, sentence, shapes
from dxn.errors import UserError
from dxn.tokenize import ImageAdapter

NOUN = rf"a (small|large) ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})"
PLACE = "(?:left of|above|below)"
GRAMMAR = re.compile(rf"{NOUN}(?: {PLACE} {NOUN}(?: and {PLACE} {NOUN})?)?")
COUNTS = {"train": 53, "validation": 17, "test": 23}


def small(**changed):
    return shapes(**{**{f"num_{name}": count for name, count in COUNTS.items()}, **changed})


def nouns(said):
    return re.findall(NOUN, said)


def thing(size="small", colour="red", shape="circle", x=0.5, y=0.5, radius=0.1, angle=0.0):
    return Thing(size, colour, shape, x, y, radius, angle)


def read_off(image):
    """The sentence less the shapes, by someone who sees nothing but pixels (H, W, 3)."""
    smooth = np.stack([ndimage.uniform_filter(image[..., i].astype(float), 3) for i in range(3)], 2)
    labels = np.empty(image.shape[:2], dtype=int)
    strength = smooth.max(2) - smooth.min(2)
    ndimage.label(strength > 45, output=labels)
    blobs = []
    for i in range(1, labels.max() + 1):
        rows, columns = np.nonzero(labels == i)
        if len(rows) < 12:
            continue  # a speck
        inner = (labels == i) & (strength >= np.median(strength[labels == i]))  # edges are half ground
        middle = np.median(image[inner], 0)
        colour = min(COLOURS, key=lambda name: np.linalg.norm(np.subtract(COLOURS[name], middle)))
        x, y = columns.mean(), rows.mean()
        reach = np.hypot(columns - x, rows - y).max() / len(image)
        blobs.append((x, y, f"a {'large' if reach > 0.13 else 'small'} {colour}"))
    (x, y, said), *others = sorted(blobs)
    parts = []
    for across, down, name in others:
        turn = np.degrees(np.arctan2(down - y, across - x))  # from -90, straight up, to 90, straight down
        parts.append(f"{'left of' if abs(turn) < 45 else 'above' if turn > 0 else 'below'} {name}")
    return f"{said} {' and '.join(parts)}".strip()


def test_each_row_is_a_picture_and_a_sentence_of_the_grammar():
    source = small()
    assert source.target_kind == "text" and source.columns == {"image": "drawn", "target": "sentence"}
    assert {name: len(rows) for name, rows in source.splits.items()} == COUNTS
    for rows in source.splits.values():
        for image, said in zip(rows.cells["image"], rows.cells["target"], strict=True):
            assert image.shape == (64, 64, 3) and image.dtype == np.uint8
            assert GRAMMAR.fullmatch(said), said
    assert source.splits["test"].origin[22] == "shapes row 23"
    lengths = Counter(len(nouns(said)) for said in small(num_train=300).splits["train"].cells["target"])
    assert lengths == {n: pytest.approx(100, abs=35) for n in (1, 2, 3)}


def test_the_rows_open_as_raw_pictures_with_their_sentences():
    rows = small(size=37).splits["validation"]
    opened = open_rows(rows, {"image": ImageAdapter(7, image_size=None, patch_size=2).prepare})
    assert opened.targets == list(rows.cells["target"]) and opened.raws["image"][3].shape == (3, 37, 37)


def test_the_yaml_builds_the_same_source():
    cfg = compose("train", ["data=shapes", "data.num_train=3", "data.num_validation=2", "data.num_test=2", "seed=5"])
    built = build(cfg.plain()["data"], key="data")
    ours = small(num_train=3, num_validation=2, num_test=2, seed=5)
    assert built.splits["train"].cells["target"] == ours.splits["train"].cells["target"]


def test_the_same_seed_gives_identical_cells_and_another_seed_does_not():
    a, b, c = (small(seed=seed).splits["test"].cells for seed in (3, 3, 5))
    assert all(np.array_equal(x, y) for x, y in zip(a["image"], b["image"], strict=True))
    assert a["target"] == b["target"] != c["target"]


def test_a_row_does_not_depend_on_how_many_there_are():
    few, many = small().splits["test"], small(num_train=67, num_test=31).splits["test"]
    assert few.cells["target"] == many.cells["target"][:23]


def test_one_who_sees_only_pixels_says_the_same():
    rows = shapes(num_train=1, num_validation=1, num_test=150).splits["test"]
    for i, (image, said) in enumerate(zip(rows.cells["image"], rows.cells["target"], strict=True)):
        assert read_off(image) == re.sub(f" ({'|'.join(SHAPES)})", "", said), i


def test_the_scene_of_a_row_is_what_its_picture_shows():
    for name, rows in small(seed=2).splits.items():
        for row, (image, said) in enumerate(zip(rows.cells["image"], rows.cells["target"], strict=True)):
            things = scene(name, row, seed=2)
            assert sentence(things) == said
            for each in things:
                aside = 0.77 * each.radius * (each.shape == "ring")  # which is empty in the middle
                x, y = round(64 * (each.x + aside)), round(64 * each.y)
                seen = image[y - 1 : y + 2, x].mean(0) if aside else image[y - 1 : y + 2, x - 1 : x + 2].mean((0, 1))
                assert np.abs(seen - COLOURS[each.colour]).max() < 45 + 15 * bool(aside), (name, row, each)


# Areas of radius 1: pi r²; 2 r²; 3 √3 / 4 r²; two bars of 1.9 by 0.6 less what they share; ten triangles of sides
# 1 and 0.42 with pi / 5 between them; 180 pi of the curve in which x is 16 sin³, 17 units to the radius.
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
def test_each_shape_is_drawn_with_its_own_area(shape, area):
    image = draw(np.random.default_rng(7), [thing(shape=shape, radius=0.4, angle=0.1)], 101)
    red = (image[..., 0].astype(int) - image[..., 1] > 75).mean()
    assert red == pytest.approx(area * 0.4**2, rel=0.05)


def test_no_shade_of_a_colour_is_one_of_another():
    for a, b in combinations(COLOURS.values(), 2):
        assert np.abs(np.subtract(a, b)).max() > 2 * SHADE + 20


def test_edges_are_smooth():
    image = draw(np.random.default_rng(7), [thing(colour="yellow", radius=0.4)], 64).astype(int)
    between = (image[..., 0] > 130) & (image[..., 0] < 200)  # neither ground nor yellow
    assert 40 < between.sum() < 200  # about the circumference, 160 pixels


def test_a_turned_outline_keeps_its_corners_on_their_circle():
    corners = np.array(outline(thing(shape="triangle", x=0.3, y=0.7, radius=0.11, angle=0.15)))
    assert np.hypot(*(corners - (0.3, 0.7)).T) == pytest.approx(0.11)
    assert corners[0] == pytest.approx((0.3 + 0.11 * np.sin(0.15), 0.7 - 0.11 * np.cos(0.15)))


@given(seed=st.integers(0, 10**6), row=st.integers(0, 10**6), split=st.sampled_from(["train", "validation", "test"]))
@settings(max_examples=40, deadline=None)
def test_what_is_said_of_a_scene_is_never_in_doubt(seed, row, split):
    things = scene(split, row, seed=seed)
    assert len({each.pair for each in things}) == len(things)
    for a, b in combinations(things, 2):
        assert b.x - a.x >= 0.1
        assert np.hypot(b.x - a.x, b.y - a.y) > a.radius + b.radius + 0.049
    for other in things[1:]:
        turn = abs(np.degrees(np.arctan2(other.y - things[0].y, other.x - things[0].x)))
        assert abs(turn - 45) > 11, "a diagonal"
    for each in things:
        assert each.radius < min(each.x, each.y, 1 - each.x, 1 - each.y)
        assert (each.radius < 0.14) == (each.size == "small")


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [(0.8, 0.5, "left of"), (0.8, 0.31, "left of"), (0.6, 0.9, "above"), (0.6, 0.1, "below"), (0.8, 0.8, "")],
)
def test_the_relation_is_that_of_the_first_to_the_other(x, y, said):
    assert relation(thing(), thing(x=x, y=y)) == said


def test_a_sentence_reads_from_left_to_right():
    things = [
        thing("small", "red", "circle", 0.2, 0.3),
        thing("small", "green", "cross", 0.3, 0.8),
        thing("large", "blue", "square", 0.7, 0.4),
    ]
    assert sentence(things[:1]) == "a small red circle"
    assert sentence(things) == "a small red circle above a small green cross and left of a large blue square"


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_of_the_pairs_held_out_each_colour_and_shape_has_one_in_each_split(seed):
    never = held_out(seed)
    for pairs in never.values():
        assert [colour for colour, _ in pairs] == list(COLOURS)
        assert sorted(shape for _, shape in pairs) == sorted(SHAPES)
    assert set(never["validation"]).isdisjoint(never["test"])


def test_every_picture_to_be_judged_by_has_a_pair_that_no_training_picture_has():
    source = small(num_train=400, num_validation=97, num_test=97, seed=11)
    never = {name: set(pairs) for name, pairs in held_out(11).items()}
    pairs = {
        name: [{(colour, shape) for _, colour, shape in nouns(said)} for said in rows.cells["target"]]
        for name, rows in source.splits.items()
    }
    for name, those in never.items():
        assert all(found & those for found in pairs[name])
        assert not any(found & those for found in pairs["train"])
        assert all(" ".join(pair) in " ".join(source.notes) for pair in those)
    assert not any(found & never["test"] for found in pairs["validation"])
    assert any(found & never["validation"] for found in pairs["test"])
    seen = set.union(*pairs["train"])
    assert len(seen) == 48  # all that are left of the 64
    assert {colour for colour, _ in seen} == set(COLOURS) and {shape for _, shape in seen} == set(SHAPES)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_validation": 0}, "data: every split needs a row, got 53, 0 and 23"),
        ({"size": 31}, "data.size must be 32 pixels or more, got 31"),
    ],
)
def test_wrong_settings_are_named(changed, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        small(**changed)
