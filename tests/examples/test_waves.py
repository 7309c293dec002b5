"""The waves: what one channel and the spectrum say, and that the phase is in both channels."""

import numpy as np
import pytest
from dxn_examples.waves import PHASES, wave_pair, waves
from sklearn.linear_model import LogisticRegression

from dxn.core.errors import UserError


def small(**options):
    return waves(**{"num_train": 400, "num_validation": 7, "num_test": 200, **options})


def accuracy(features, source):
    """Test accuracy of a linear classifier on features of the series."""
    data = {}
    for split in ("train", "test"):
        rows = source.splits[split]
        data[split] = np.stack([features(x) for x in rows.cells["series"]]), rows.cells["target"]
    model = LogisticRegression(max_iter=1000).fit(*data["train"])
    return model.score(*data["test"])


def spectrum(x):
    return np.abs(np.fft.rfft(x - x.mean(0), 64, axis=0)).ravel()


def cross_spectrum(x):
    """The phase between the channels at the strongest frequency."""
    f = np.fft.rfft(x - x.mean(0), 64, axis=0)
    cross = f[:, 0] * f[:, 1].conj()
    angle = np.angle(cross[np.abs(cross).argmax()])
    return np.array([np.cos(angle), np.sin(angle)])


def test_the_label_is_in_the_phase_between_the_channels_and_nowhere_else():
    source = small(missing=0.0)
    assert accuracy(cross_spectrum, source) > 0.95
    # Chance is 25%; 200 test rows have a standard error of 3 points.
    assert accuracy(spectrum, source) < 0.36
    for channel in range(2):
        one = lambda x, channel=channel: x[:40, channel]  # noqa: E731
        assert accuracy(one, source) < 0.36


def test_lengths_vary_and_values_are_missing():
    source = small(shortest=41, longest=67)
    series = source.splits["train"].cells["series"]
    lengths = {len(x) for x in series}
    assert min(lengths) == 41 and max(lengths) == 67
    missing = np.mean([np.isnan(x).mean() for x in series])
    assert 0.1 < missing < 0.3
    assert not any(np.isnan(x).all() for x in series)
    assert {x.shape[1] for x in small(channels=1).splits["test"].cells["series"]} == {1}


def test_equal_seeds_give_equal_data():
    first, second, third = (small(seed=seed).splits["test"] for seed in (3, 3, 5))
    assert first.cells["target"] == second.cells["target"]
    for a, b in zip(first.cells["series"], second.cells["series"], strict=True):
        np.testing.assert_array_equal(a, b)
    assert first.cells["target"] != third.cells["target"]


def test_the_second_channel_is_the_first_one_with_another_phase():
    for phase in PHASES.values():
        x = wave_pair(np.random.default_rng(0), phase, 997, corrupt=0)
        z = (x - x.mean(0)) / x.std(0)
        correlation = float((z[:, 0] * z[:, 1]).mean())
        assert correlation == pytest.approx(np.cos(2 * np.pi * phase), abs=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_test": 0}, "data.num_test: must be at least 1"),
        ({"corrupt": -1}, "data.corrupt: must be at least 0"),
        ({"missing": 1}, r"data.missing: must be in \[0, 1\)"),
        ({"channels": 3}, "data.channels: must be 1 or 2, got 3"),
        ({"shortest": 9, "longest": 8}, "data.shortest, data.longest: must satisfy"),
    ],
)
def test_wrong_options_are_explained(options, message):
    with pytest.raises(UserError, match=message):
        small(**options)
