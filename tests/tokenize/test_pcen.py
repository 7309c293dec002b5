"""Per-channel energy normalization: its formula, its invariances, and its options."""

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.tokenize import AudioAdapter, AudioAugment, SpectrogramOptions
from dxn.tokenize.audio.spectrogram import pcen

RATE = 8000
OPTIONS = SpectrogramOptions(n_mels=13, scale="pcen")


def sound(samples=3001, seed=0):
    values = np.random.default_rng(seed).uniform(-0.5, 0.5, samples)
    return torch.from_numpy(values.astype(np.float32))


def features(raw, **options):
    adapter = AudioAdapter(
        8, sample_rate=RATE, spectrogram=SpectrogramOptions(n_mels=13, **options)
    )
    return adapter.tokenizer.features(raw)


def explicit(power, seconds):
    """Equation 1 of arXiv:1607.05666, with an average that starts at the first frame."""
    smooth = 1 - math.exp(-seconds / 0.4)
    power = power.double()
    average = power[:, 0]
    columns = []
    for frame in power.T:
        average = (1 - smooth) * average + smooth * frame
        columns.append((frame / (1e-6 + average) ** 0.98 + 2.0) ** 0.5 - 2.0**0.5)
    return torch.stack(columns, 1)


@settings(max_examples=30, deadline=None)
@given(
    bins=st.integers(1, 5),
    frames=st.integers(1, 97),
    seconds=st.floats(0.002, 0.1),
    exponent=st.floats(-8, 6),
    seed=st.integers(0, 99),
)
def test_it_equals_its_formula_in_float64(bins, frames, seconds, exponent, seed):
    rng = np.random.default_rng(seed)
    power = torch.from_numpy(10 ** rng.uniform(exponent - 4, exponent, (bins, frames))).float()
    got = pcen(power, seconds)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), explicit(power, seconds), rtol=2e-4, atol=1e-7)


def test_the_smoothing_of_frames_of_10_ms_is_that_of_the_paper():
    assert 1 - math.exp(-0.01 / 0.4) == pytest.approx(0.025, abs=5e-4)


@pytest.mark.parametrize(
    "power", [torch.zeros(3, 17), torch.full((3, 17), 1e30), torch.full((3, 17), 1e-38)]
)
def test_extreme_powers_are_finite(power):
    assert bool(pcen(power, 0.01).isfinite().all())
    onset = torch.cat([power, torch.full((3, 5), 1e4)], 1)
    assert bool(pcen(onset, 0.01).isfinite().all())


def test_a_quiet_end_after_a_loud_start_keeps_its_digits():
    power = torch.cat([torch.full((1, 50), 1e6), torch.full((1, 500), 1e-3)], 1)
    torch.testing.assert_close(
        pcen(power, 0.01).double(), explicit(power, 0.01), rtol=1e-4, atol=1e-9
    )


def test_the_volume_hardly_matters():
    raw = sound()
    loud, quiet = (features(raw * gain, scale="pcen") for gain in (1.0, 0.1))
    assert float((loud - quiet).abs().max()) < 0.1 * float(loud.max())
    loud, quiet = (features(raw * gain) for gain in (1.0, 0.1))
    assert float((loud - quiet).abs().min()) > 4  # ln(100) = 4.6


def test_a_constant_noise_fades_and_an_onset_stands_out():
    noise = 0.1 * sound(2 * RATE)
    clip = noise.clone()
    clip[RATE : RATE + 400] += 0.5 * (2 * math.pi * 1000 / RATE * torch.arange(400)).sin()
    loudness = features(clip, scale="pcen").max(1).values
    assert 95 <= int(loudness.argmax()) <= 106  # frames of 10 ms around the second 1
    assert float(loudness.max()) > 2 * float(loudness[:90].max())


def test_later_frames_and_padding_never_change_earlier_ones():
    long, short = sound(3001), sound(3001)[:2001]
    frames = 20  # the windows of later frames contain samples that the short clip lacks
    torch.testing.assert_close(
        features(long, scale="pcen")[:frames], features(short, scale="pcen")[:frames]
    )
    padded = features(short, scale="pcen", num_frames=64)
    whole = features(short, scale="pcen")
    assert torch.equal(padded[: len(whole)], whole) and not padded[len(whole) :].any()


def test_padding_in_a_batch_does_not_change_a_clip():
    adapter = AudioAdapter(8, sample_rate=RATE, spectrogram=OPTIONS).double().eval()
    prepare = adapter.tokenizer
    sounds = [sound(3001), sound(997, 1)]
    samples = [prepare(raw) for raw in sounds]
    samples = [{**sample, "features": sample["features"].double()} for sample in samples]
    together = adapter(prepare.collate(samples))
    for i, sample in enumerate(samples):
        alone = adapter(prepare.collate([sample]))
        torch.testing.assert_close(together[i], alone[0], rtol=0, atol=1e-10)


def test_equalize_changes_the_power_before_the_scale():
    adapter = AudioAdapter(
        8, sample_rate=RATE, spectrogram=OPTIONS, augment=AudioAugment(equalize=10.0)
    )
    raw, gains = sound(), torch.full((13,), 100.0)
    louder = adapter.tokenizer.features(raw, gains)
    torch.testing.assert_close(louder, adapter.tokenizer.features(10 * raw), rtol=1e-3, atol=1e-3)


def test_a_pickled_preprocessor_gives_the_same_samples():
    prepare = AudioAdapter(8, sample_rate=RATE, spectrogram=OPTIONS).tokenizer
    again = pickle.loads(pickle.dumps(prepare))
    assert torch.equal(prepare(sound())["features"], again(sound())["features"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": "db"}, "^scale must be one of 'log' or 'pcen', got 'db'$"),
        (
            {"scale": "pcen", "frontend": "kaldi"},
            "^frontend=kaldi has a fixed scale: leave out scale, got pcen$",
        ),
        (
            {"scale": "pcen", "frontend": "whisper"},
            "^frontend=whisper has a fixed scale: leave out scale, got pcen$",
        ),
    ],
)
def test_wrong_options_are_refused_with_their_values(options, message):
    with pytest.raises(ValueError, match=message):
        SpectrogramOptions(**options)
