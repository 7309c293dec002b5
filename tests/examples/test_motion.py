"""Moving shapes: the frames have the motion of the target, and a single frame does not show it."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from dxn_examples.motion import (
    DIRECTIONS,
    FPS,
    SAMPLE_RATE,
    TONES,
    Scene,
    draw,
    draw_scene,
    motion,
    positions,
    turned,
)
from helpers.data import EXAMPLES, sizes

from dxn.commands.train import Train
from dxn.config.compose import compose
from dxn.config.instantiate import build
from dxn.core.errors import UserError
from dxn.data import InputSpec, open_rows
from dxn.tokenize import VideoAdapter

COUNTS = {"train": 53, "validation": 3, "test": 5}
LABELS = ("direction", "order", "caption", "turn")


def small(**changed):
    return motion(**{**{f"num_{name}": count for name, count in COUNTS.items()}, **changed})


def rows_of(rows):
    return zip(rows.cells["video"], rows.cells["target"], strict=True)


def centre(frame):
    """The centre (x, y) of the shape on the torus, 0 to 1, from the pixels only."""
    gray = frame.astype(float)
    strength = np.abs(gray - np.median(gray, (0, 1))).max(2)
    strength[strength < 45] = 0
    angles = 2 * np.pi * np.arange(len(frame)) / len(frame)
    # The mean of an angle, weighted by the pixels of a row or column.
    x, y = (np.angle((strength.sum(axis) * np.exp(1j * angles)).sum()) for axis in (0, 1))
    return np.array([x, y]) / (2 * np.pi) % 1


def direction_between(before, after):
    """The main direction of the motion between two frames on the torus."""
    across, down = (after - before + 0.5) % 1 - 0.5
    if abs(across) > abs(down):
        return "right" if across > 0 else "left"
    return "down" if down > 0 else "up"


def directions_of(clip):
    """The directions of the first and the second half of a clip, from the pixels only."""
    centres = [centre(frame) for frame in clip]
    middle = len(clip) // 2
    halves = (centres[: middle + 1], centres[middle:])
    votes = [Counter(direction_between(*pair) for pair in pairwise(half)) for half in halves]
    return [vote.most_common(1)[0][0] for vote in votes]


@pytest.mark.parametrize("label", LABELS)
def test_each_row_is_a_video_and_a_target(label):
    counts = {"train": 7, "validation": 3, "test": 5}
    source = small(label=label, **{f"num_{name}": count for name, count in counts.items()})
    assert source.inputs["video"] == InputSpec("drawn", "video")
    assert source.task == ("generate" if label == "caption" else "classify")
    assert source.target == label
    assert sizes(source.splits) == counts
    for rows in source.splits.values():
        for clip, _ in rows_of(rows):
            assert clip.shape == (16, 32, 32, 3)
            assert clip.dtype == np.uint8
    assert ("audio" in source.inputs) == (label == "turn")


def test_the_pixels_show_the_direction():
    for clip, target in rows_of(small().splits["train"]):
        assert directions_of(clip) == [target, target]


def test_the_pixels_show_the_order_of_two_motions():
    targets = set()
    for clip, target in rows_of(small(label="order").splits["train"]):
        assert " then ".join(directions_of(clip)) == target
        targets.add(target)
    assert len(targets) == 8


def test_a_caption_names_the_shape_and_its_motions():
    counts = Counter()
    for clip, target in rows_of(small(label="caption").splits["train"]):
        first, second = directions_of(clip)
        motions = first if first == second else f"{first}, then {second}"
        assert target.endswith(f"moves {motions}")
        counts[first == second] += 1
    assert min(counts.values()) > 15


def test_single_frames_have_the_same_distribution_for_all_targets():
    # The centre of each frame is uniformly distributed on the torus, whatever the target is.
    rng = np.random.default_rng(0)
    by_target: dict[tuple, list] = {}
    for _ in range(4000):
        scene = draw_scene(rng, "order")
        by_target.setdefault(scene.directions, []).append(positions(scene, 16))
    assert len(by_target) == 8
    for places in by_target.values():
        for frame in (0, 5, 8, 15):
            at = np.stack(places)[:, frame]
            for axis in (0, 1):
                # The largest distance to the uniform distribution (Kolmogorov-Smirnov): 1.95 over
                # the root of the number is exceeded with a probability of 0.001.
                values = np.sort(at[:, axis])
                distance = np.abs(values - (np.arange(len(values)) + 0.5) / len(values)).max()
                assert distance < 1.95 / len(values) ** 0.5


def test_a_frame_of_a_scene_is_also_a_frame_of_a_scene_with_any_other_direction():
    scenes = [
        Scene("red", "star", (name,), x=0.3, y=0.6, radius=0.15, speed=0.05) for name in DIRECTIONS
    ]
    clips = [
        draw(np.random.default_rng(7), scene, size=32, num_frames=16).astype(int)
        for scene in scenes
    ]
    for clip in clips[1:]:
        assert np.array_equal(clip[8], clips[0][8])  # the middle of the clip
        assert not np.array_equal(clip[9], clips[0][9])


@pytest.mark.parametrize("name", DIRECTIONS)
def test_a_shape_moves_in_its_direction_and_enters_again_at_the_other_edge(name):
    scene = Scene("red", "star", (name,), x=0.1, y=0.9, radius=0.15, speed=0.07)
    places = positions(scene, 16)
    steps = (np.diff(places, axis=0) + 0.5) % 1 - 0.5
    expected = np.tile(np.array(DIRECTIONS[name]) * 0.07, (15, 1))
    np.testing.assert_allclose(steps, expected, atol=1e-12)
    assert places.min() >= 0 and places.max() < 1
    assert places[8] == pytest.approx([0.1, 0.9])


def test_neither_input_alone_has_information_about_a_turn():
    rows = small(label="turn", num_train=600, size=16, num_frames=4).splits["train"]
    by_direction: dict[str, Counter] = {}
    by_tone: dict[int, Counter] = {}
    for clip, (sound, rate), target in zip(
        rows.cells["video"], rows.cells["audio"], rows.cells["target"], strict=True
    ):
        assert (rate, len(sound)) == (SAMPLE_RATE, SAMPLE_RATE * 4 // FPS)
        spectrum = np.abs(np.fft.rfft(sound))
        hertz = spectrum.argmax() * rate / len(sound)
        quarters = int(np.abs(np.array(TONES) - hertz).argmin())
        direction = directions_of(clip)[0]
        by_direction.setdefault(direction, Counter())[target] += 1
        by_tone.setdefault(quarters, Counter())[target] += 1
        if direction_is_clear(clip):
            assert turned(direction, quarters) == target
    for counts in (*by_direction.values(), *by_tone.values()):
        for count in counts.values():
            assert count / counts.total() == pytest.approx(0.25, abs=0.15)


def direction_is_clear(clip):
    """Whether all steps have the same direction: in 16 pixels, noise can hide one."""
    return len(set(directions_of(clip))) == 1


def test_turns_are_clockwise():
    assert [turned("up", quarters) for quarters in range(5)] == [*DIRECTIONS, "up"]


def test_the_cells_depend_on_the_seed_only():
    a, b, c = (
        small(label="turn", num_train=3, seed=seed).splits["test"].cells for seed in (3, 3, 5)
    )
    assert all(np.array_equal(x, y) for x, y in zip(a["video"], b["video"], strict=True))
    assert a["target"] == b["target"] != c["target"]


def test_a_row_does_not_depend_on_the_number_of_rows():
    few, many = small().splits["test"], small(num_train=67, num_test=31).splits["test"]
    assert few.cells["target"] == many.cells["target"][:5]


def test_the_yaml_builds_the_same_data_and_the_rows_can_be_opened():
    overrides = [
        EXAMPLES,
        "data=motion",
        "data.num_train=3",
        "data.num_validation=2",
        "data.num_test=2",
    ]
    node = compose(Train, [*overrides, "seed=5", "data.size=19"]).values["data"]
    rows = build(node, key="data", trust=["dxn_examples"]).splits["train"]
    expected = small(num_train=3, seed=5, size=19).splits["train"].cells
    assert rows.cells["target"] == expected["target"]
    opened = open_rows(rows, {"video": VideoAdapter(8).tokenizer})
    assert opened.raws["video"][2].shape == (16, 3, 19, 19)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "speed"}, "data.label: must be one of direction, order, caption, turn, got"),
        ({"size": 15}, "data.size: must be at least 16 pixels, got 15"),
        ({"num_frames": 3}, "data.num_frames: must be at least 4, got 3"),
        ({"num_test": 0}, "data.num_test: must be at least 1, got 0"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        small(**options)
