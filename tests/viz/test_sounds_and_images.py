"""Spectrograms of sounds, and images of any number of channels."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.viz.drawers.audio import spectrogram
from dxn.viz.drawers.image import rgb
from dxn.viz.drawers.panel import COLUMNS

RATE = 8000
SOUND = np.sin(2 * np.pi * 1000 * np.arange(5600) / RATE).astype(np.float32)  # 0.7 s
GRAY = np.full((22, 39), 200, dtype=np.uint8)


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


def test_images_of_any_number_of_channels_become_rgb():
    gray = torch.from_numpy(GRAY)
    assert rgb(gray[None]).shape == (22, 39, 3)
    four = torch.stack([gray, gray // 2, gray // 4, gray])
    np.testing.assert_array_equal(rgb(four), four[:3].permute(1, 2, 0))
    np.testing.assert_array_equal(rgb(torch.stack([gray, gray // 2]))[..., 2], GRAY)
