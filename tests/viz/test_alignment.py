"""A decoder's attention drawn: words against words, over time, over an image, over a strip."""

import functools

import numpy as np
import pytest
import torch
from helpers.drawing import audio, image, pixels_of, text
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import Normalize

from dxn.core.tokens import Span, Tokens
from dxn.viz.attention import reading_pictures
from dxn.viz.drawers import Shown
from dxn.viz.drawers.audio import sound_panel, spectrogram
from dxn.viz.drawers.heat import (
    COLUMNS,
    DARKEST,
    Panel,
    draw_alignment,
    draw_copies,
    draw_rows,
    heat_pixels,
    timeline,
)
from dxn.viz.drawers.image import rgb
from dxn.viz.figure import heat_scale, save
from dxn.viz.sample import SampleView

WORDS = ["the", "$5$ cup", "</s>", "مرحبا", "\x00end"]
RATE = 8000
SOUND = np.sin(2 * np.pi * 1000 * np.arange(5600) / RATE).astype(np.float32)  # 0.7 s
FRAMES = np.stack([np.arange(7) * 0.1, np.arange(7) * 0.1 + 0.1], 1)
CELLS = np.array([[y, x, y + 11, x + 13] for y in (0, 11) for x in (0, 13, 26)], dtype=float)
GRAY = np.full((22, 39), 200, dtype=np.uint8)
HOTTEST = [238, 63, 30]  # the end of the colors of attention
PICTURE = Panel(np.repeat(GRAY[..., None], 3, 2), 39, 22)
PANEL = sound_panel(audio(torch.from_numpy(SOUND), RATE))


def near_identity(rows, columns):
    return np.eye(rows, columns) * 0.9 + 0.1 / columns


def is_hottest(pixels):
    return np.abs(pixels - HOTTEST).sum(2) < 12


def test_an_alignment_is_hottest_at_the_words_that_were_read(tmp_path):
    weights = np.zeros((5, 7))
    weights[:, 0] = 1
    save(draw_alignment(weights, WORDS, [f"mot{i}" for i in range(7)]), tmp_path / "a.png")
    pixels = pixels_of(tmp_path / "a.png")
    hot = is_hottest(pixels).any(0).nonzero()[0]
    width = pixels.shape[1]
    # The first column; the color bar at the right is the only other hot place.
    assert hot.min() < 0.45 * width
    assert not any(0.5 * width < x < 0.8 * width for x in hot)


def test_long_and_many_words_stay_inside_the_picture(tmp_path):
    figure = draw_alignment(near_identity(41, 43), ["long" * 20] * 41, ["word"] * 43)
    save(figure, tmp_path / "a.png")
    pixels = pixels_of(tmp_path / "a.png")
    assert max(pixels.shape) < 2200
    edges = [pixels[:2].reshape(-1, 3), pixels[-2:].reshape(-1, 3), pixels[:, -2:].reshape(-1, 3)]
    assert int(np.concatenate(edges).min()) > 200


def test_a_row_over_time_is_hot_at_the_time_that_was_read(tmp_path):
    """The two words read the first and the last tenth of a second; the sound is silent."""
    weights = np.zeros((2, 7))
    weights[0, 0] = weights[1, 6] = 1
    silence = sound_panel(audio(torch.zeros(5600), RATE))
    save(draw_rows(weights, WORDS[:2], silence, FRAMES), tmp_path / "t.png")
    pixels = pixels_of(tmp_path / "t.png")
    rows, columns = is_hottest(pixels).nonzero()
    is_row = columns < 0.9 * pixels.shape[1]  # the color bar is at the right
    rows, columns = rows[is_row], columns[is_row]
    early = columns < pixels.shape[1] / 2
    assert early.any() and (~early).any()
    assert rows[early].max() < rows[~early].min() + 3


def test_the_patch_that_was_read_has_a_color_and_the_others_are_grey(tmp_path):
    weights = np.zeros((1, 6))
    weights[0, 5] = 1  # bottom right
    figure = draw_copies(weights, ["cup"], PICTURE, CELLS, per_row=6, width=1.7)
    save(figure, tmp_path / "c.png")
    pixels = pixels_of(tmp_path / "c.png")
    light = DARKEST + (1 - DARKEST) * 200 / 255
    hot = (np.abs(pixels - light * np.array(HOTTEST)).sum(2) < 9).nonzero()
    grey = (np.abs(pixels - light * 255).sum(2) < 9).nonzero()
    assert hot[0].mean() > grey[0].mean() and hot[1].mean() > grey[1].mean()
    assert len(grey[0]) > 4 * len(hot[0]) > 0


@pytest.mark.parametrize("level", [0, 128, 255])
def test_attention_is_visible_on_black_grey_and_white_pictures(level):
    panel = Panel(np.full((20, 20, 3), level, np.uint8), 20, 20)
    boxes = np.array([[0, 0, 10, 20], [10, 0, 20, 20]], dtype=float)
    pixels = heat_pixels(panel, boxes, np.array([0.9, 0.1]), Normalize(0, 0.9))
    height = len(pixels)
    strong, weak = pixels[height // 4, 0], pixels[3 * height // 4, 0]
    assert strong[0] - strong[2] > 0.3 > weak[0] - weak[2]


def test_where_patches_overlap_the_largest_weight_is_drawn():
    panel = Panel(np.full((20, 20, 3), 255, np.uint8), 20, 20)
    boxes = np.array([[0, 0, 20, 15], [0, 5, 20, 20], [np.nan] * 4])
    pixels = heat_pixels(panel, boxes, np.array([1.0, 0.2, 5.0]), Normalize(0, 1))
    np.testing.assert_allclose(255 * pixels[0, len(pixels) // 2], HOTTEST, atol=1)


def test_equal_weights_do_not_look_like_strong_attention():
    scale = heat_scale(np.full(7, 0.25))
    assert scale(0.25) == pytest.approx(0.5)
    assert heat_scale(np.zeros(3))(0) == heat_scale(np.zeros(0))(0) == 0


def test_many_copies_of_an_image_are_wrapped(tmp_path):
    weights = near_identity(5, 6)
    for name, per_row in (("wide.png", 5), ("tall.png", 2)):
        figure = draw_copies(weights, WORDS, PICTURE, CELLS, per_row=per_row, width=1.7)
        save(figure, tmp_path / name)
    wide, tall = (pixels_of(tmp_path / name).shape for name in ("wide.png", "tall.png"))
    assert tall[0] > 2 * wide[0] and wide[1] > 1.7 * tall[1]


def test_a_tone_is_one_row_of_its_spectrogram():
    levels = spectrogram(SOUND, RATE)
    assert levels.dtype == np.uint8
    row = levels[:, levels.shape[1] // 2].argmax()
    hertz_per_row = RATE / 2 / (len(levels) - 1)
    assert row * hertz_per_row == pytest.approx(1000, abs=hertz_per_row)
    assert levels.max() == 255 and np.median(levels) < 60


@settings(max_examples=30, deadline=None)
@given(length=st.integers(1, 40000), rate=st.sampled_from([50, 8000, 44100]))
def test_every_sound_has_a_spectrogram_of_bounded_width(length, rate):
    levels = spectrogram(np.ones(length, np.float32), rate)
    assert levels.ndim == 2 and 1 <= levels.shape[1] <= COLUMNS + 1


def test_overlapping_frames_keep_the_larger_weight_and_bands_of_one_frame_are_added():
    coords = np.array([[0.0, 0.5], [0.25, 1.0], [0.25, 1.0], [np.nan, np.nan]])
    line = timeline(np.array([[3.0, 1.0, 1.5, 99.0]]), coords, 1.0)[0]
    expected = np.array([3.0 if i < COLUMNS / 2 else 2.5 for i in range(COLUMNS)])
    np.testing.assert_array_equal(line, expected)


def test_images_of_any_number_of_channels_become_rgb():
    gray = torch.from_numpy(GRAY)
    assert rgb(gray[None]).shape == (22, 39, 3)
    four = torch.stack([gray, gray // 2, gray // 4, gray])
    np.testing.assert_array_equal(rgb(four), four[:3].permute(1, 2, 0))
    np.testing.assert_array_equal(rgb(torch.stack([gray, gray // 2]))[..., 2], GRAY)


# One picture per input

D = 5
NAN = float("nan")


def mixed_tokens(second_modality="image"):
    """A class token, three columns of text of which one is padding, and two boxes."""
    characters = torch.tensor([[[0.0, 1], [2, 5], [NAN, NAN]]])
    cells = torch.tensor([[[0.0, 0, 5, 11], [5, 0, 10, 11]]])
    spans = (
        Span("class", "class", 0, 1, torch.full((1, 1, 1), NAN)),
        Span("title", "text", 1, 4, characters),
        Span("front", second_modality, 4, 6, cells),
    )
    mask = torch.tensor([[True, True, True, False, True, True]])
    return Tokens(torch.zeros(1, 6, D), mask, spans)


WEIGHTS = np.array([[0.1, 0.2, 0.1, 0, 0.25, 0.35], [0, 0, 0.5, 0, 0.5, 0]])
NAMES = ["class 1", "a", "cup", "", "front 1", "front 2"]
FRONT = torch.zeros(3, 10, 11, dtype=torch.uint8)


def test_padding_and_class_tokens_are_not_drawn(tmp_path, monkeypatch):
    calls = {}

    def record(name, draw, *arguments, **options):
        calls[name] = arguments
        return draw(*arguments, **options)

    for module, draw in (("drawer", draw_alignment), ("panel", draw_copies)):
        target = f"dxn.viz.drawers.{module}.{draw.__name__}"
        monkeypatch.setattr(target, functools.partial(record, draw.__name__, draw))
    titles = []
    monkeypatch.setattr("dxn.viz.attention.set_title", lambda _, *texts: titles.append(texts))
    inputs = {"title": text("a cup"), "front": image(FRONT)}
    view = SampleView(mixed_tokens(), inputs)
    view.__dict__["names"] = NAMES
    files = reading_pictures(view, WEIGHTS, ["x", "y"], tmp_path, about="answer: x y")
    assert [path.name for path in files] == ["alignment.png", "cells.png"]
    weights, words, read = calls["draw_alignment"]
    np.testing.assert_array_equal(weights, WEIGHTS[:, 1:3])
    assert (words, read) == (["x", "y"], ["a", "cup"])
    title = "What each word of the answer attends to in title (40% of its attention)"
    assert titles[0] == (title, "answer: x y")
    weights, _, panel, boxes = calls["draw_copies"]
    np.testing.assert_array_equal(weights, WEIGHTS[:, 4:])
    assert (panel.pixels.shape, boxes.shape) == ((10, 11, 3), (2, 4))
    assert titles[1][0].endswith("in front (55% of its attention)")


def test_the_title_of_a_single_input_has_no_share(tmp_path, monkeypatch):
    span = Span("text", "text", 0, 2, torch.zeros(1, 2, 2))
    tokens = Tokens(torch.zeros(1, 2, D), torch.ones(1, 2, dtype=torch.bool), (span,))
    titles = []
    monkeypatch.setattr("dxn.viz.attention.set_title", lambda _, title, about: titles.append(title))
    weights = np.full((1, 2), 0.5)
    inputs = {"text": text("a cup")}
    view = SampleView(tokens, inputs)
    view.__dict__["names"] = ["a", "cup"]
    reading_pictures(view, weights, ["x"], tmp_path)
    assert titles == ["What each word of the answer attends to in text"]


def test_inputs_of_one_modality_have_a_file_each(tmp_path):
    times = torch.tensor(FRAMES, dtype=torch.float32)[None]
    spans = (Span("left", "audio", 0, 7, times), Span("right", "audio", 7, 14, times))
    tokens = Tokens(torch.zeros(1, 14, D), torch.ones(1, 14, dtype=torch.bool), spans)
    sound = torch.from_numpy(SOUND)
    inputs = {"left": audio(sound, RATE), "right": audio(sound, RATE)}
    weights = np.full((2, 14), 1 / 14)
    files = reading_pictures(SampleView(tokens, inputs), weights, ["x", "y"], tmp_path)
    assert [path.name for path in files] == ["left_time.png", "right_time.png"]
    assert all(path.stat().st_size > 1000 for path in files)


def test_an_unknown_modality_has_a_picture_of_words_against_tokens(tmp_path):
    inputs = {"title": text("a cup"), "front": Shown("sketch", object(), None)}
    tokens = mixed_tokens("sketch")
    view = SampleView(tokens, inputs)
    view.__dict__["names"] = NAMES
    files = reading_pictures(view, WEIGHTS, ["x", "y"], tmp_path)
    assert [path.name for path in files] == ["alignment.png", "strip.png"]
    assert is_hottest(pixels_of(tmp_path / "strip.png")).any()
