"""A decoder's attention drawn: words against words, over time, over a picture."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dxn.explain.alignment import (
    COLUMNS,
    alignment_picture,
    cells_picture,
    colours,
    shortened,
    spectrogram,
    time_picture,
    timeline,
)

SAID = ["the", "$5$ cup", "</s>", "مرحبا", "\x00end"]
RATE = 8000
SOUND = np.sin(2 * np.pi * 1000 * np.arange(5600) / RATE).astype(np.float32)  # 0.7 s
FRAMES = np.stack([np.arange(7) * 0.1, np.arange(7) * 0.1 + 0.1], 1)
CELLS = np.array([[y, x, y + 11, x + 13] for y in (0, 11) for x in (0, 13, 26)], dtype=float)
GREY = np.full((22, 39), 200, dtype=np.uint8)


def eye(rows, columns):
    return np.eye(rows, columns) * 0.9 + 0.1 / columns


def pixels_of(path):
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def test_a_translation_is_darkest_where_it_looked(tmp_path):
    weights = np.zeros((5, 7))
    weights[:, 0] = 1
    alignment_picture(weights, SAID, [f"mot{i}" for i in range(7)], tmp_path / "a.png")
    pixels = pixels_of(tmp_path / "a.png")
    dark = (np.abs(pixels - [8, 48, 107]).sum(2) < 12).any(0).nonzero()[0]
    width = pixels.shape[1]
    assert dark.min() < 0.45 * width  # the first column; the colour bar is the other dark place, at the right
    assert not any(0.5 * width < x < 0.8 * width for x in dark)


def test_long_and_many_words_stay_inside_their_picture(tmp_path):
    alignment_picture(eye(41, 43), ["long" * 20] * 41, ["word"] * 43, tmp_path / "a.png")
    pixels = pixels_of(tmp_path / "a.png")
    assert max(pixels.shape) < 2200
    edge = np.concatenate([pixels[:2].reshape(-1, 3), pixels[-2:].reshape(-1, 3), pixels[:, -2:].reshape(-1, 3)])
    assert int(edge.min()) > 200  # nothing runs out of it


def test_a_row_over_time_is_dark_when_it_looked(tmp_path):
    """The two words look at the first and at the last tenth of a second, the sound is silent."""
    weights = np.zeros((2, 7))
    weights[0, 0] = weights[1, 6] = 1
    time_picture(weights, SAID[:2], (np.zeros(5600, np.float32), RATE), FRAMES, tmp_path / "t.png")
    pixels = pixels_of(tmp_path / "t.png")
    rows, columns = (np.abs(pixels - [8, 48, 107]).sum(2) < 12).nonzero()
    early = columns < pixels.shape[1] / 2
    assert early.any() and (~early).any()
    assert rows[early].max() < rows[~early].min() + 3


def test_the_cell_that_was_read_is_as_bright_as_the_picture(tmp_path):
    weights = np.zeros((1, 6))
    weights[0, 5] = 1  # bottom right
    cells_picture(weights, ["cup"], GREY, CELLS, tmp_path / "c.png")
    pixels = pixels_of(tmp_path / "c.png")
    bright = (np.abs(pixels - 200).sum(2) < 6).nonzero()
    dim = (np.abs(pixels - 50).sum(2) < 9).nonzero()
    assert bright[0].mean() > dim[0].mean() and bright[1].mean() > dim[1].mean()
    assert len(dim[0]) > 3 * len(bright[0])


def test_many_words_over_a_picture_are_wrapped(tmp_path):
    cells_picture(eye(5, 6), SAID, GREY, CELLS, tmp_path / "wide.png", across=5)
    cells_picture(eye(5, 6), SAID, GREY, CELLS, tmp_path / "tall.png", across=2)
    wide, tall = (pixels_of(tmp_path / name).shape for name in ("wide.png", "tall.png"))
    assert tall[0] > 2.5 * wide[0] and wide[1] > 2 * tall[1]


def test_a_tone_is_one_row_of_its_spectrogram():
    levels = spectrogram(SOUND, RATE)
    assert levels.dtype == np.uint8
    row = levels[:, levels.shape[1] // 2].argmax()
    assert row / (len(levels) - 1) * RATE / 2 == pytest.approx(1000, abs=RATE / 2 / (len(levels) - 1))
    assert levels.max() == 255 and np.median(levels) < 60


@settings(max_examples=30, deadline=None)
@given(length=st.integers(1, 40000), rate=st.sampled_from([50, 8000, 44100]))
def test_any_sound_has_a_spectrogram_of_bounded_width(length, rate):
    levels = spectrogram(np.ones(length, np.float32), rate)
    assert levels.ndim == 2 and 1 <= levels.shape[1] <= COLUMNS + 1


def test_frames_that_overlap_keep_the_larger_and_bands_of_one_are_added():
    places = np.array([[0.0, 0.5], [0.25, 1.0], [0.25, 1.0], [np.nan, np.nan]])
    line = timeline(np.array([[3.0, 1.0, 1.5, 99.0]]), places, 1.0)[0]
    expected = np.array([3.0 if i < COLUMNS / 2 else 2.5 for i in range(COLUMNS)])
    np.testing.assert_array_equal(line, expected)


def test_pictures_of_any_channels_become_three():
    assert colours(GREY).shape == colours(GREY[..., None]).shape == (22, 39, 3)
    four = np.dstack([GREY, GREY // 2, GREY // 4, GREY])
    np.testing.assert_array_equal(colours(four), four[..., :3])
    np.testing.assert_array_equal(colours(np.dstack([GREY, GREY // 2]))[..., 2], GREY)


def test_labels_are_short_and_can_be_shown():
    assert shortened(["a\nb\x00", "x" * 25, "x" * 24]) == ["a b ", "x" * 23 + "…", "x" * 24]


WRONG = {
    "words read": (
        lambda path: alignment_picture(np.ones((2, 3)), ["a", "b"], ["c", "d"], path),
        "weights must be (2, 2), a row a said word and at least one, got (2, 3)",
    ),
    "words said": (
        lambda path: time_picture(np.ones((3, 7)), ["a", "b"], (SOUND, RATE), FRAMES, path),
        "weights must be (2, 7), a row a said word and at least one, got (3, 7)",
    ),
    "nothing said": (
        lambda path: cells_picture(np.ones((0, 6)), [], GREY, CELLS, path),
        "weights must be (0, 6), a row a said word and at least one, got (0, 6)",
    ),
    "boxes": (
        lambda path: cells_picture(np.ones((1, 7)), ["a"], GREY, FRAMES, path),
        "places must be (N, 4), got (7, 2)",
    ),
    "seconds": (
        lambda path: time_picture(np.ones((1, 6)), ["a"], (SOUND, RATE), CELLS, path),
        "places must be (N, 2), got (6, 4)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(tmp_path, name):
    draw, message = WRONG[name]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        draw(tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()
