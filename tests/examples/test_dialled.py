"""Dialled strings: the sound determines the target, and no string is in two splits."""

import re
from itertools import pairwise

import numpy as np
import pytest
from dxn_examples.dialled import dial_string, dialled
from helpers.data import EXAMPLES, sizes
from helpers.sounds import loud_stretches, same_sources
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.commands.train import Train
from dxn.config.compose import compose
from dxn.config.instantiate import build
from dxn.core.errors import UserError
from dxn.data import InputSpec
from dxn.datasets.digits import HIGH_TONES, KEYS, LOW_TONES, SAMPLE_RATE

COUNTS = {"train": 53, "validation": 17, "test": 23}
OPTIONS = {f"num_{name}": count for name, count in COUNTS.items()}
MIN_GAP = 100  # samples; less than the shortest pause, more than a zero of a sine


def small(**changed):
    return dialled(**{**OPTIONS, **changed})


def strings(source):
    return [text for rows in source.splits.values() for text in rows.cells["target"]]


def key_of(sound):
    """The key of a stretch of sound: the loudest low tone and the loudest high tone."""
    time = np.arange(len(sound)) / SAMPLE_RATE
    loudest = []
    for tones in (LOW_TONES, HIGH_TONES):
        bank = np.exp(-2j * np.pi * np.outer(tones, time))
        loudest.append(np.abs(bank @ sound).argmax())
    row, column = loudest
    return KEYS[row][column]


def test_each_row_is_a_sound_and_the_digits_in_it():
    source = small(shortest=2, longest=5)
    assert source.inputs == {"audio": InputSpec("dialled", "audio")}
    assert (source.target, source.task) == ("digits", "generate")
    assert sizes(source.splits) == COUNTS
    for rows in source.splits.values():
        for sound, rate in rows.cells["audio"]:
            assert rate == 8000
            assert sound.dtype == np.float32
            assert np.abs(sound).max() < 1
        assert all(re.fullmatch(r"\d( \d){1,4}", text) for text in rows.cells["target"])
    lengths = {len(text.split()) for text in source.splits["train"].cells["target"]}
    assert lengths == {2, 3, 4, 5}
    assert source.splits["test"].origin[22] == "dialled row 23"


def test_filters_decode_a_clean_sound():
    for rows in small(corrupt=0.0).splits.values():
        for (sound, _), text in zip(rows.cells["audio"], rows.cells["target"], strict=True):
            keys = [key_of(sound[a:b]) for a, b in loud_stretches(sound, min_gap=MIN_GAP)]
            assert " ".join(keys) == text


@given(seed=st.integers(0, 10**6), digits=st.text("0123456789", min_size=1, max_size=13))
@settings(max_examples=30, deadline=None)
def test_tones_and_pauses_have_the_documented_lengths(seed, digits):
    sound, events = dial_string(np.random.default_rng(seed), digits, corrupt=0.0)
    tones = loud_stretches(sound, min_gap=MIN_GAP)
    assert len(tones) == len(digits)
    assert [event["label"] for event in events] == list(digits)
    times = [[event["start"], event["end"]] for event in events]
    np.testing.assert_allclose(times, np.array(tones) / SAMPLE_RATE, atol=0.001)
    # A sine that starts or ends near 0 hides a few samples.
    assert all(0.049 * SAMPLE_RATE <= b - a <= 0.15 * SAMPLE_RATE for a, b in tones)
    between = [b - a for (_, a), (b, _) in pairwise(tones)]
    pauses = [tones[0][0], *between, len(sound) - tones[-1][1]]
    assert all(0.03 * SAMPLE_RATE <= pause <= 0.151 * SAMPLE_RATE for pause in pauses)


def test_noise_covers_the_whole_sound_and_grows_with_corrupt():
    clean, noisy, twice = (
        dial_string(np.random.default_rng(7), "3071", corrupt)[0].astype(float)
        for corrupt in (0.0, 1.0, 2.0)
    )
    assert len(clean) == len(noisy) == len(twice)
    np.testing.assert_allclose(twice - clean, 2 * (noisy - clean), atol=1e-6)
    tones = loud_stretches(clean, min_gap=MIN_GAP)
    before, after = noisy[: tones[0][0]].std(), noisy[tones[-1][1] :].std()
    assert before == pytest.approx(after, rel=0.3)
    assert before > 0.1 * clean.max()


def test_corrupted_keys_can_still_be_told_apart():
    digits = "1470258369"
    correct = []
    for seed in range(60):
        clean, noisy = (
            dial_string(np.random.default_rng(seed), digits, corrupt)[0] for corrupt in (0.0, 1.0)
        )
        tones = loud_stretches(clean, min_gap=MIN_GAP)
        correct += [key_of(noisy[a:b]) == key for (a, b), key in zip(tones, digits, strict=True)]
    assert 0.97 < np.mean(correct) < 1, "too difficult, or hardly any noise"


def test_no_string_is_in_two_rows():
    found = strings(small(shortest=1, longest=2))
    assert len(set(found)) == len(found) == 93


def test_all_possible_strings_can_be_requested():
    source = small(num_train=5, num_validation=2, num_test=3, shortest=1, longest=1)
    assert sorted(strings(source)) == list("0123456789")


def test_short_strings_are_divided_evenly():
    # Half of the draws need one of ten strings; the training split must not use up all of them.
    source = small(num_train=50, num_validation=5, num_test=50, shortest=1, longest=2, seed=3)
    texts = source.splits["test"].cells["target"]
    assert 1 <= sum(len(text) == 1 for text in texts) <= 9


def test_the_data_depends_on_the_seed_only():
    assert same_sources(small(seed=3), small(seed=3))
    assert not same_sources(small(seed=3), small(seed=5))


def test_the_data_is_that_of_earlier_versions():
    cells = small(seed=3).splits["test"].cells
    assert cells["target"][-2:] == ["4 2 8 1 1 2 3 3 2 2 6 5", "1 1 4 9 5 0 9 9 5 3 1 7"]
    assert [len(sound) for sound, _ in cells["audio"][-4:]] == [9603, 15715, 18267, 18378]


def test_the_yaml_builds_the_same_data():
    overrides = [
        EXAMPLES,
        "data=dialled",
        "data.num_train=5",
        "data.num_validation=2",
        "data.num_test=3",
    ]
    node = compose(Train, [*overrides, "seed=5"]).values["data"]
    expected = small(num_train=5, num_validation=2, num_test=3, seed=5)
    assert same_sources(build(node, key="data", trust=["dxn_examples"]), expected)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_validation": 0}, "data.num_validation: must be at least 1, got 0"),
        ({"corrupt": -1.0}, "data.corrupt: must be at least 0 (no corruption), got -1.0"),
        (
            {"shortest": 0},
            "data.shortest, data.longest: must satisfy 1 <= shortest <= longest, got 0 and 12",
        ),
        (
            {"longest": 2},
            "data.shortest, data.longest: must satisfy 1 <= shortest <= longest, got 3 and 2",
        ),
        (
            {"shortest": 1, "longest": 1},
            "data.longest: 93 rows need distinct strings, but there are only 10 strings of 1 to 1 "
            "digits; increase data.longest",
        ),
    ],
)
def test_invalid_options_are_refused(changed, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        small(**changed)
