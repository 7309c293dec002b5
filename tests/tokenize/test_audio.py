"""Audio to Tokens: mels against their formula, convolutions, coords and augmentation."""

import math
import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
import torch.nn.functional as F
import torchaudio
from helpers.data import Counted
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dxn.data.dataset import Opened
from dxn.data.inspect.quality import count_truncated
from dxn.tokenize import (
    AudioAdapter,
    AudioAugment,
    AudioNormalization,
    BadMedia,
    PatchOptions,
    SpectrogramOptions,
)
from dxn.tokenize.audio.augment import augment_spectrogram, augment_waveform, draw_gains
from dxn.tokenize.audio.reader import ASF
from dxn.tokenize.audio.spectrogram import FLOOR
from dxn.tokenize.audio.waveform_stem import WaveformOptions
from dxn.tokenize.base import Tokenizer
from dxn.tokenize.column_profile import profile_of, scores_of

D = 12
RATE = 8000  # so windows of 200 samples, 80 apart


def sound(samples=1009, seed=0):
    return torch.from_numpy(
        np.random.default_rng(seed).uniform(-0.5, 0.5, samples).astype(np.float32)
    )


def adapter_of(*, normalize="none", spectrogram=None, patch=None, **options):
    """An adapter for tests; patch is the size of patches, or the arguments of PatchOptions."""
    torch.manual_seed(0)
    if isinstance(patch, dict):
        options["patch"] = PatchOptions(**patch)
    elif patch is not None:
        options["patch"] = PatchOptions(patch)
    return (
        AudioAdapter(
            D,
            sample_rate=RATE,
            spectrogram=SpectrogramOptions(**{"n_mels": 23, **(spectrogram or {})}),
            normalize=AudioNormalization(normalize),
            **options,
        )
        .double()
        .eval()
    )


def batch_of(adapter, sounds):
    batch = adapter.tokenizer.collate([adapter.tokenizer(s) for s in sounds])
    return {**batch, "features": batch["features"].double()}


def embed(adapter, sounds):
    return adapter(batch_of(adapter, sounds))


# Mels


def explicit_log_mel(x, n_fft, hop, n_mels):
    """|STFT|^2 under a Hann window, in triangles of equal width on the mel scale."""
    x = F.pad(x.double(), (n_fft // 2, n_fft // 2))
    n = torch.arange(n_fft, dtype=torch.float64)
    window = 0.5 - 0.5 * torch.cos(2 * math.pi * n / n_fft)
    frames = torch.stack([x[i : i + n_fft] * window for i in range(0, len(x) - n_fft + 1, hop)])
    k = torch.arange(n_fft // 2 + 1, dtype=torch.float64)
    angle = 2 * math.pi * n[:, None] * k / n_fft
    power = (frames @ angle.cos()) ** 2 + (frames @ angle.sin()) ** 2
    mels = torch.linspace(0, 2595 * math.log10(1 + RATE / 2 / 700), n_mels + 2, dtype=torch.float64)
    corners = 700 * (10 ** (mels / 2595) - 1)
    hertz = torch.linspace(0, RATE / 2, n_fft // 2 + 1, dtype=torch.float64)
    rising = (hertz[:, None] - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - hertz[:, None]) / (corners[2:] - corners[1:-1])
    return (power @ torch.minimum(rising, falling).clamp(min=0) + 1e-6).log()


@pytest.mark.parametrize(("n_fft", "hop", "n_mels"), [(200, 80, 23), (256, 101, 13)])
def test_log_mels_equal_their_formula(n_fft, hop, n_mels):
    prepare = adapter_of(
        spectrogram={"n_fft": n_fft, "hop_length": hop, "n_mels": n_mels}
    ).tokenizer
    expected = explicit_log_mel(sound(), n_fft, hop, n_mels)
    got = prepare(sound())["features"]
    assert got.shape == (1 + 1009 // hop, n_mels)
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=1e-4)  # ours is in float32


def test_log_mels_equal_those_of_torchaudio():
    theirs = torchaudio.transforms.MelSpectrogram(
        RATE, n_fft=200, hop_length=80, n_mels=23, pad_mode="constant"
    )
    expected = (theirs(sound()) + 1e-6).log().T
    # dxn computes the power as a product of complex numbers, which is faster, and rounds otherwise.
    got = adapter_of().tokenizer(sound())["features"]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_windows_are_25_ms_and_10_ms_apart_by_default():
    assert (
        adapter_of().tokenizer.spectrogram.n_fft == 200 and adapter_of().tokenizer.hop_length == 80
    )
    other = adapter_of(spectrogram={"n_fft": 256, "hop_length": 64}).tokenizer
    assert other.spectrogram.n_fft == 256 and other.hop_length == 64


def test_a_higher_tone_is_in_a_higher_bin():
    t = torch.arange(RATE) / RATE
    bins = [
        int(adapter_of().tokenizer.features((2 * math.pi * f * t).sin()).mean(0).argmax())
        for f in (300, 1100, 3100)
    ]
    assert bins == sorted(set(bins))


def test_silence_is_finite():
    for normalize in ("none", "clip"):
        assert bool(
            adapter_of(normalize=normalize)
            .tokenizer(torch.zeros(1009))["features"]
            .isfinite()
            .all()
        )


@pytest.mark.parametrize("tokens", ["frames", "patches", "waveform"])
def test_a_clip_of_one_sample_has_one_token(tokens):
    tokens = embed(adapter_of(tokens=tokens, patch=(23, 4)), [sound(1)])
    assert tokens.mask.tolist() == [[True]] and bool(tokens.x.isfinite().all())


# Normalization


def test_clip_normalization_centers_each_bin_and_scales_them_together():
    raw = sound()
    mel = adapter_of().tokenizer(raw)["features"].numpy()
    expected = (mel - mel.mean(0)) / mel.std()
    got = adapter_of(normalize="clip").tokenizer(raw)["features"].numpy()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    louder = adapter_of(normalize="clip").tokenizer(raw * 1.7)["features"].numpy()
    np.testing.assert_allclose(louder, got, rtol=0, atol=1e-3)  # a factor is a sum in the logarithm


@pytest.mark.parametrize("tokens", ["frames", "patches", "waveform"])
def test_dataset_normalization_equals_mean_and_deviation_of_numpy(tokens):
    adapter, sounds = (
        adapter_of(normalize="dataset", tokens=tokens),
        [sound(1009), sound(2003, 1) / 3],
    )
    adapter.fit(sounds)
    rows = np.concatenate([adapter.tokenizer(s)["features"].double().numpy() for s in sounds])
    np.testing.assert_allclose(adapter.mean.numpy(), rows.mean(0), rtol=0, atol=1e-5)
    np.testing.assert_allclose(adapter.std.numpy(), rows.std(0), rtol=0, atol=1e-5)
    plain = adapter_of(tokens=tokens)
    batch = batch_of(plain, sounds[:1])
    scaled = {**batch, "features": (batch["features"] - adapter.mean) / adapter.std}
    torch.testing.assert_close(adapter(batch).x, plain(scaled).x, rtol=0, atol=1e-10)


@pytest.mark.parametrize("normalize", ["clip", "none"])
def test_fit_does_nothing_without_dataset_normalization(normalize):
    adapter = adapter_of(normalize=normalize).fit([sound()])
    assert adapter.mean.eq(0).all() and adapter.std.eq(1).all()


def test_fit_reads_at_most_a_thousand_clips_from_all_parts():
    rows = Counted([sound(3)] * 5003)
    adapter_of(normalize="dataset", tokens="waveform").fit(rows)
    assert len(rows.read) == 1000 and min(rows.read) < 6 and max(rows.read) > 4996


# Tokens


def conv_of(adapter, height, width, stride):
    conv = nn.Conv2d(1, D, (height, width), stride).double()
    conv.weight.data = adapter.proj.weight.data.view(D, 1, height, width)
    conv.bias.data = adapter.proj.bias.data
    return conv


def padded_length(length, cut, step):
    """The length after padding, so that tokens cover all of it."""
    return cut if length <= cut else -(-(length - cut) // step) * step + cut


@pytest.mark.parametrize(
    ("patch_size", "stride"),
    [((23, 5), None), ((7, 3), None), (5, None), ((7, 5), (3, 2)), (6, 5), ((5, 3), (1, 3))],
)
def test_patches_equal_a_strided_convolution_with_the_same_weights(patch_size, stride):
    adapter = adapter_of(
        tokens="patches", patch={"size": patch_size, "stride": stride}, pos_embed="none"
    )
    (high, wide), (up, along) = (
        p if isinstance(p, tuple) else (p, p) for p in (patch_size, stride or patch_size)
    )
    mel = adapter.tokenizer(sound(1907))["features"].double().T  # (23, 24)
    over_f, over_t = padded_length(23, high, up) - 23, padded_length(24, wide, along) - 24
    grid = conv_of(adapter, high, wide, (up, along))(
        F.pad(mel, (0, over_t, 0, over_f))[None, None]
    )[0]
    tokens = embed(adapter, [sound(1907)])
    assert adapter.bands == grid.shape[1] and bool(tokens.mask.all())
    # In time; the patches of one time from low to high.
    torch.testing.assert_close(tokens[0], grid.transpose(1, 2).flatten(1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("frame_size", [1, 3, 4, 29])
def test_frames_equal_patches_as_high_as_the_spectrogram(frame_size):
    frames = adapter_of(frame_size=frame_size)
    patches = adapter_of(tokens="patches", patch=(23, frame_size), pos_embed="none")
    patches.proj = frames.proj
    frames.pos_embed = adapter_of(pos_embed="none").pos_embed
    assert torch.equal(embed(frames, [sound()]).x, embed(patches, [sound()]).x)
    assert embed(frames, [sound()]).x.shape[1] == math.ceil(13 / frame_size)  # 1 + 1009 // 80 rows


@pytest.mark.parametrize("frame_size", [1, 7, 101])
def test_waveform_tokens_equal_a_strided_convolution(frame_size):
    adapter = adapter_of(tokens="waveform", frame_size=frame_size, pos_embed="none", max_len=2000)
    conv = nn.Conv1d(1, D, frame_size, frame_size).double()
    conv.weight.data, conv.bias.data = adapter.proj.weight.data[:, None], adapter.proj.bias.data
    raw = sound(1009).double()
    expected = conv(F.pad(raw, (0, -1009 % frame_size))[None])
    torch.testing.assert_close(embed(adapter, [sound(1009)])[0], expected, rtol=0, atol=1e-12)


# Padding

# Tokens of 173 samples, 60 apart.
WAV2VEC = WaveformOptions(
    widths=(3, 5, 7), kernels=(11, 5, 11), strides=(3, 5, 4), pos_kernel=6, pos_groups=1
)
OPTIONS = [
    {},
    {"frame_size": 3, "normalize": "clip"},
    {"tokens": "patches", "patch": (7, 3)},
    {"tokens": "patches", "patch": {"size": 6, "stride": (5, 2)}},
    {"tokens": "patches", "patch": 4, "stem": "conv"},
    {"tokens": "frames", "frame_size": 4, "stem": "conv"},
    {"tokens": "frames", "frame_size": 4, "stem": "residual"},
    {"tokens": "patches", "patch": 4, "stem": "residual"},
    {"tokens": "waveform", "frame_size": 97},
    {"tokens": "waveform", "stem": "wav2vec", "patch": {"wav2vec": WAV2VEC}},
    {
        "tokens": "waveform",
        "stem": "wav2vec",
        "patch": {
            "wav2vec": replace(WAV2VEC, norm="layer", bias=True, output_norm=True, proj_norm=False)
        },
    },
]


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 3001), min_size=2, max_size=3),
    options=st.sampled_from(OPTIONS),
    position=st.sampled_from(["learned", "sinusoidal", "none"]),
    mean=st.sampled_from([0.0, -3.0]),
)
def test_padding_in_a_batch_does_not_change_a_clip(lengths, options, position, mean):
    adapter = adapter_of(pos_embed=position, max_len=64, **options)
    adapter.mean.fill_(mean)  # then a padded zero is not the mean
    sounds = [sound(n, seed) for seed, n in enumerate(lengths)]
    together = embed(adapter, sounds)
    for i, raw in enumerate(sounds):
        alone = embed(adapter, [raw])
        assert bool(alone.mask.all())
        torch.testing.assert_close(together[i], alone[0], rtol=0, atol=1e-10)
        coords = together.spans[0].coords[i][together.mask[i]]
        torch.testing.assert_close(coords, alone.spans[0].coords[0], rtol=0, atol=0)


@pytest.mark.parametrize("options", OPTIONS)
def test_values_in_the_padding_change_nothing(options):
    adapter = adapter_of(**options)
    batch = batch_of(adapter, [sound(2003), sound(499)])
    before = adapter(batch)
    batch["features"][1, batch["lengths"][1] :] = 7.0
    assert torch.equal(adapter(batch)[1], before[1])


@pytest.mark.parametrize("options", OPTIONS)
def test_clips_of_a_batch_do_not_affect_each_other(options):
    adapter = adapter_of(**options)
    before = embed(adapter, [sound(2003), sound(1009, 1)])[0]
    assert torch.equal(embed(adapter, [sound(2003), sound(1009, 2)])[0], before)


SPECTROGRAMS = [
    {"frontend": "kaldi"},
    {"frontend": "whisper"},
    {"frontend": "kaldi", "num_frames": 17},
    {"num_frames": 9},
    {"n_fft": 211},
    {"frontend": "whisper", "n_fft": 211},
]


@pytest.mark.parametrize(
    "options", [*OPTIONS, *({"spectrogram": each} for each in SPECTROGRAMS)], ids=str
)
def test_the_columns_of_a_clip_are_counted_without_its_features(options):
    adapter = adapter_of(**options)
    for length in [1, 79, 80, 199, 200, 211, 1009, 3001]:
        raw = sound(length)
        expected = int(embed(adapter, [raw]).mask.sum())
        assert adapter.tokenizer.count(raw) == expected == Tokenizer.count(adapter.tokenizer, raw)


def test_a_waveform_token_is_that_of_its_samples_and_of_its_neighbors():
    options = replace(WAV2VEC, pos_kernel=1, norm="layer")
    adapter = adapter_of(
        tokens="waveform", stem="wav2vec", patch={"wav2vec": options}, pos_embed="none"
    )
    raw = sound(1009)
    tokens = embed(adapter, [raw])
    coords = (tokens.spans[0].coords[0] * adapter.tokenizer.sample_rate).round().int().tolist()
    assert coords == [[60 * i, 60 * i + adapter.grid.size[0]] for i in range(len(coords))]
    for i, (start, stop) in enumerate(coords):
        alone = embed(adapter, [raw[start:stop]])
        torch.testing.assert_close(alone[0], tokens[0][:, i : i + 1], rtol=0, atol=1e-12)


def test_the_conv_stem_gives_one_token_for_each_square_of_its_stride():
    adapter = adapter_of(tokens="patches", patch=8, stem="conv")
    tokens = embed(adapter, [sound(2003), sound(499)])  # 26 and 7 rows, 23 bins
    assert adapter.bands == 3 and tokens.mask.sum(1).tolist() == [4 * 3, 1 * 3]
    batch = batch_of(adapter, [sound(2003)])
    grid = adapter.stem(batch["features"][:, None], torch.tensor([[26, 23]]))[0]
    expected = (grid + adapter.pos_embed(4, 3, grid.device)).flatten(0, 1).T
    torch.testing.assert_close(embed(adapter, [sound(2003)])[0], expected, rtol=0, atol=1e-12)


def test_the_residual_stem_gives_one_token_of_all_mel_bins():
    adapter = adapter_of(frame_size=8, stem="residual")
    tokens = embed(adapter, [sound(2003), sound(499)])  # 26 and 7 rows, 23 bins
    assert adapter.bands == 1 and tokens.mask.sum(1).tolist() == [4, 1]
    batch = batch_of(adapter, [sound(2003)])
    batch["features"].requires_grad_()
    adapter(batch)[0].sum(0)[2].backward()
    assert batch["features"].grad[0, 17].all()  # frame 17 belongs to token 2


# Coordinates


def test_coords_of_frames_are_seconds_and_end_with_the_clip():
    tokens = embed(adapter_of(frame_size=4), [sound(1009), sound(499)])  # 13 and 7 rows of 10 ms
    coords = tokens.spans[0].coords
    expected = torch.tensor([[0, 0.04], [0.04, 0.08], [0.08, 0.12], [0.12, 0.13]])
    torch.testing.assert_close(coords[0], expected)
    torch.testing.assert_close(coords[1, :2], torch.tensor([[0, 0.04], [0.04, 0.07]]))
    assert torch.equal(coords.isnan().all(-1), ~tokens.mask) and torch.equal(
        coords.isnan().any(-1), ~tokens.mask
    )


def test_coords_of_patches_are_their_start_and_stop():
    adapter = adapter_of(tokens="patches", patch={"size": (12, 4), "stride": (12, 3)})
    coords = (
        embed(adapter, [sound(799)]).spans[0].coords[0]
    )  # 10 rows: patches from 0, 3 and 6, two bands
    expected = torch.tensor([[0, 0.04], [0.03, 0.07], [0.06, 0.1]]).repeat_interleave(2, 0)
    torch.testing.assert_close(coords, expected)


def test_coords_of_the_waveform_are_seconds_of_its_samples():
    coords = embed(adapter_of(tokens="waveform", frame_size=400), [sound(1000)]).spans[0].coords[0]
    torch.testing.assert_close(coords, torch.tensor([[0, 0.05], [0.05, 0.1], [0.1, 0.125]]))


def test_a_click_is_in_the_token_whose_coords_contain_it():
    raw = torch.zeros(8000)
    raw[5210] = 1.0  # at 0.65125 s
    for options in ({"frame_size": 5}, {"tokens": "waveform", "frame_size": 400}):
        adapter = adapter_of(pos_embed="none", **options)
        adapter.proj.weight.data.fill_(1.0)
        if "tokens" not in options:
            adapter.mean.fill_(
                math.log(1e-6)
            )  # silence is then 0, like the padding of the last token
        tokens = embed(adapter, [raw])
        start, stop = tokens.spans[0].coords[0, tokens.x[0, :, 0].argmax()].tolist()
        assert start <= 0.65125 < stop


# Positions


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
@pytest.mark.parametrize("options", [{}, {"tokens": "patches", "patch": 8}])
def test_position_embeddings_are_added_to_the_columns(position, options):
    adapter, plain = (
        adapter_of(pos_embed=position, **options),
        adapter_of(pos_embed="none", **options),
    )
    plain.proj = adapter.proj
    steps = embed(adapter, [sound()]).x.shape[1] // adapter.bands
    difference = embed(adapter, [sound()]).x - embed(plain, [sound()]).x
    if position == "learned":
        expected = adapter.pos_embed.weight[:steps]
    else:
        at = (steps, adapter.bands) if "tokens" in options else (steps,)
        expected = adapter.pos_embed(*at, difference.device).double()
    torch.testing.assert_close(difference[0], expected.reshape(-1, D), rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"tokens": "patches", "patch": (23, 4)}])
def test_clips_beyond_the_learned_positions_are_refused(options):
    adapter = adapter_of(pos_embed="learned", max_len=3, **options)
    assert embed(adapter, [sound(959)]).x.shape[1] == 3
    with pytest.raises(
        ValueError, match=r"learned positions reach 3 (tokens|steps), got 4: raise max_len"
    ):
        embed(adapter, [sound(960)])


def test_without_positions_permuting_frames_permutes_columns():
    options = {"tokens": "waveform", "frame_size": 100}
    raw, order = sound(300), torch.tensor([2, 0, 1])
    moved = torch.cat([raw.split(100)[i] for i in order])
    adapter = adapter_of(pos_embed="none", **options)
    torch.testing.assert_close(
        embed(adapter, [moved])[0], embed(adapter, [raw])[0][:, order], rtol=0, atol=1e-12
    )
    placed = adapter_of(**options)
    assert not torch.allclose(embed(placed, [moved])[0], embed(placed, [raw])[0][:, order])


# Augmentation

AUGMENTS = [
    {"time_shift": 0.05},
    {"noise": 0.5},
    {"gain": 6.0},
    {"speed": 0.3},
    {"freq_mask": 11},
    {"time_mask": 0.5},
    {"warp": 0.2},
    {"equalize": 6.0},
]


@pytest.mark.parametrize("options", AUGMENTS)
def test_each_augmentation_depends_on_its_generator_only_and_needs_one(options):
    prepare = adapter_of(augment=AudioAugment(**options)).tokenizer
    raw, state = sound(4001), torch.get_rng_state()

    def drawn(seed):
        return prepare(raw, random.Random(seed))["features"]

    clean = adapter_of().tokenizer(raw)["features"]
    assert torch.equal(prepare(raw)["features"], clean)
    assert torch.equal(
        adapter_of(augment=AudioAugment()).tokenizer(raw, random.Random(3))["features"], clean
    )
    results = [drawn(seed) for seed in range(7)]
    assert all(torch.equal(a, drawn(seed)) for seed, a in enumerate(results))
    assert len({r.numpy().tobytes() for r in results}) > 4
    assert all(r.shape[1] == 23 for r in results)
    if not {"time_shift", "speed"} & set(options):
        assert {r.shape for r in results} == {clean.shape}
    assert torch.equal(raw, sound(4001))
    torch.set_rng_state(state)
    drawn(1)
    assert torch.equal(torch.get_rng_state(), state)


def waveforms(options, raw, count=53):
    augment = AudioAugment(**options)
    return [augment_waveform(raw, augment, RATE, random.Random(seed))[0] for seed in range(count)]


def test_a_crop_is_a_random_part_of_a_longer_clip():
    raw = torch.arange(1009.0)
    parts = waveforms({"crop": 0.05}, raw)
    starts = [int(x[0]) for x in parts]
    assert min(starts) < 100 and max(starts) > 509
    assert all(torch.equal(x, raw[i : i + 400]) for i, x in zip(starts, parts, strict=True))
    assert torch.equal(waveforms({"crop": 0.2}, raw, 1)[0], raw)


def test_time_shift_adds_silence_before_the_clip():
    before = [len(x) - 1009 for x in waveforms({"time_shift": 0.05}, sound())]
    assert min(before) >= 0 and 300 < max(before) <= 400  # 0.05 s
    for count, x in zip(before, waveforms({"time_shift": 0.05}, sound()), strict=True):
        assert x[:count].eq(0).all() and torch.equal(x[count:], sound())


def test_gain_is_within_its_decibels_in_both_directions():
    decibels = [
        20 * math.log10(float(x[5] / sound()[5])) for x in waveforms({"gain": 6.0}, sound())
    ]
    assert -6 <= min(decibels) < -4 and 4 < max(decibels) <= 6
    x = waveforms({"gain": 6.0}, sound())[0]
    torch.testing.assert_close(x / x[5], sound() / sound()[5])


def test_noise_is_at_most_its_share_of_the_level_of_the_clip():
    raw = sound(8009)
    shares = [
        float((x - raw).square().mean().sqrt() / raw.square().mean().sqrt())
        for x in waveforms({"noise": 0.5}, raw)
    ]
    assert min(shares) < 0.1 and 0.4 < max(shares) < 0.52
    assert all(x.eq(0).all() for x in waveforms({"noise": 0.5}, torch.zeros(11), 3))


def test_speed_changes_length_and_pitch_together():
    t = torch.arange(RATE) / RATE
    raw = (2 * math.pi * 500 * t).sin()
    for x in waveforms({"speed": 0.2}, raw, 11):
        factor = RATE / len(x)
        assert 0.8 - 1e-3 <= factor <= 1.2 + 1e-3
        hertz = float(torch.fft.rfft(x * torch.hann_window(len(x))).abs().argmax()) * RATE / len(x)
        assert hertz == pytest.approx(500 * factor, abs=2)


def spectrograms(options, mel, count=53):
    augment = AudioAugment(**options)
    return [augment_spectrogram(mel, augment, random.Random(seed)) for seed in range(count)]


@pytest.mark.parametrize(
    ("options", "axis", "most"), [({"freq_mask": 5}, 1, 5), ({"time_mask": 0.3}, 0, 12)]
)
def test_a_mask_fills_one_band_with_the_mean_of_the_clip(options, axis, most):
    mel = torch.randn(37, 23)
    widths = []
    for masked in spectrograms(options, mel):
        hit = masked.ne(mel)
        lines = hit.any(1 - axis)
        assert torch.equal(hit, hit.all(1 - axis, keepdim=True).expand_as(hit))  # whole lines
        assert lines.int().diff(prepend=torch.zeros(1), append=torch.zeros(1)).abs().sum() in (
            0,
            2,
        )  # side by side
        torch.testing.assert_close(masked[hit], mel.mean().expand(int(hit.sum())))
        widths.append(int(lines.sum()))
    assert max(widths) <= most and max(widths) >= most - 2 and len(set(widths)) > 2


def test_warp_moves_a_peak_along_the_mel_axis():
    mel = torch.zeros(3, 41)
    mel[:, 20] = 1.0
    peaks = {int(w[0].argmax()) for w in spectrograms({"warp": 0.2}, mel)}
    assert min(peaks) in (16, 17, 18) and max(peaks) in (23, 24, 25)  # 20 / 1.2 and 20 / 0.8
    ramp = torch.arange(41.0).expand(3, 41)
    for warped in spectrograms({"warp": 0.2}, ramp, 7):
        factor = float(warped[0, 10]) / 10
        torch.testing.assert_close(
            warped, (torch.arange(41) * factor).clamp(max=40).expand(3, 41), rtol=0, atol=1e-4
        )


def test_a_pickled_preprocessor_gives_the_same_samples():
    prepare = adapter_of(augment=AudioAugment(noise=0.3, time_mask=0.3)).tokenizer
    again = pickle.loads(pickle.dumps(prepare))
    one, other = (p(sound(), random.Random(2))["features"] for p in (prepare, again))
    assert torch.equal(one, other)


# From raw clips, and wrong options


def test_tokens_accepts_arrays_of_any_rate_and_channels():
    adapter = adapter_of().float()
    t = np.arange(48000) / 48000
    wave = np.sin(2 * np.pi * 440 * t).astype(np.float32)
    tokens = adapter.tokens([(wave, 48000), (np.stack([wave, wave])[:, ::3].copy(), 16000)])
    torch.testing.assert_close(tokens[0], tokens[1], rtol=0, atol=0.1)
    assert tokens.spans[0].modality == "audio" and tokens.mask.sum(1).tolist() == [
        26,
        26,
    ]  # 101 rows of 10 ms


def test_a_clip_that_is_too_long_is_refused():
    with pytest.raises(BadMedia, match=r"1.5 s, more than max_seconds=1"):
        adapter_of(spectrogram={"max_seconds": 1}).tokenizer.reader.read(
            (np.zeros(12000, np.float32), RATE)
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "4 frames of 0.04 s, 0.13 s at 8000 Hz"),
        ({"tokens": "patches", "patch": (8, 5)}, "3 frames of 0.05 s × 3 bands, 0.13 s at 8000 Hz"),
        ({"tokens": "waveform", "frame_size": 400}, "3 frames of 0.05 s, 0.13 s at 8000 Hz"),
    ],
)
def test_describe_gives_number_and_duration_of_the_columns(options, words):
    assert adapter_of(**options).describe(sound(1009)) == words


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: adapter_of(tokens="patches", patch={"size": 4, "stride": 5}),
            r"stride must be at least 1 and at most the patch size, got \(5, 5\) .* \(4, 4\)",
        ),
        (
            lambda: adapter_of(tokens="patches", patch={"size": (7, 3), "stride": (5, 4)}),
            r"stride must be at least 1 and at most the patch size, got \(4, 5\) .* \(3, 7\)",
        ),
        (lambda: PatchOptions((7, 3), (5, 0)), r"patch stride must be one .* got \(5, 0\)"),
        (lambda: PatchOptions(4, 0), "patch stride must be one positive number or .* got 0"),
        (lambda: PatchOptions(0), r"patch size must be one .* or \[mel bins, frames\], got 0"),
        (lambda: PatchOptions((3, 5, 7)), r"patch size must be one .* got \(3, 5, 7\)"),
        (
            lambda: adapter_of(tokens="patches", patch=(8, 4), stem="conv"),
            r"stem=conv needs .* square patches and no stride, got .* \(8, 4\)",
        ),
        (
            lambda: adapter_of(tokens="patches", patch={"size": 8, "stride": 4}, stem="conv"),
            r"stem=conv needs .* no stride, got .* stride \(4, 4\)",
        ),
        (lambda: adapter_of(tokens="waveform", stem="conv"), "stem=conv needs tokens=frames"),
        (
            lambda: adapter_of(tokens="patches", patch=12, stem="conv"),
            "must be 2, 4, 8, 16 or 32, got 12",
        ),
        (
            lambda: adapter_of(stem="wav2vec"),
            "stem=wav2vec needs tokens=waveform, got tokens=frames",
        ),
        (
            lambda: adapter_of(tokens="waveform", stem="wav2vec"),
            rf"patch.wav2vec.pos_groups must divide dim={D}, got 16",
        ),
        (
            lambda: WaveformOptions(kernels=(3, 3)),
            "one number per convolution, got 7, 2 and 7 numbers",
        ),
        (lambda: adapter_of(stem="whisper"), "stem=whisper needs .* and frame_size=4"),
        (
            lambda: adapter_of(stem="vgg"),
            "stem must be one of 'patch', 'conv', 'residual', 'whisper' or 'wav2vec', got 'vgg'",
        ),
        (
            lambda: adapter_of(tokens="mel"),
            "tokens must be one of 'frames', 'patches'",
        ),
        (lambda: adapter_of(frame_size=0), "frame_size must be at least 1, got 0"),
        (
            lambda: adapter_of(tokens="waveform", spectrogram={"num_frames": 7}),
            "tokens=waveform has no spectrogram: leave out frontend and num_frames, got mel and 7",
        ),
        (
            lambda: adapter_of(spectrogram={"f_min": 3000.0, "f_max": 2000.0}),
            "must satisfy 0 <= f_min < f_max <= sample_rate / 2 = 4000, got 3000.0 and 2000.0",
        ),
        (
            lambda: adapter_of(spectrogram={"f_max": 5000.0}),
            "f_min < f_max <= sample_rate / 2 = 4000, got 0.0 and 5000.0",
        ),
        (
            lambda: adapter_of(
                spectrogram={"frontend": "kaldi"}, augment=AudioAugment(equalize=3.0)
            ),
            "augment.equalize needs frontend=mel, got frontend=kaldi",
        ),
        (lambda: AudioAugment(crop=-1.0), "crop must be at least 0, got -1.0"),
        (lambda: AudioAugment(speed=1.0), "speed must be below 1, got 1.0"),
        (lambda: SpectrogramOptions(frontend="mfcc"), "frontend must be one of .*, got 'mfcc'"),
        (lambda: SpectrogramOptions(frontend="whisper", f_min=20.0), "leave out f_min, f_max"),
        (lambda: SpectrogramOptions(top_db=0.0), "top_db must be greater than 0, got 0.0"),
        (lambda: SpectrogramOptions(top_db=-3.0), "top_db must be greater than 0, got -3.0"),
        (lambda: AudioNormalization("batch"), "kind must be one of .*, got 'batch'"),
        (lambda: AudioNormalization(mean=1.0), "both mean and std, or neither, got 1.0 and None"),
        (lambda: AudioNormalization("clip", 1.0, 2.0), "need kind=dataset, got kind=clip"),
    ],
)
def test_wrong_options_are_refused_with_their_values(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_equalize_draws_smooth_gains_within_its_decibels():
    for seed in range(7):
        gains = draw_gains(41, AudioAugment(equalize=6.0), random.Random(seed))
        decibels = 10 * gains.log10()
        assert float(decibels.abs().max()) <= 6 and float(decibels.std()) > 0
        assert float(decibels.diff().abs().max()) <= 12 / 10 + 1e-4  # five points over 40 steps
    assert draw_gains(41, AudioAugment(), random.Random(0)) is None


# Columns of a table


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["a.wav", "b.FLAC", "folder/c.mp3"], 1.0),
        (["a.wav", "note", "other", "words"], 0.25),
        ([b"RIFF1234WAVEfmt", b"fLaC..", b"ID3..", b"RIFF1234WEBPVP8"], 0.75),
        ([(np.zeros(5, np.float32), RATE), "words"], 0.5),
        ([3, 4.5], 0),
        ([], 0),
    ],
)
def test_columns_of_audio_are_recognized(values, expected):
    assert scores_of(profile_of(values)).get("audio", 0) == expected


def test_a_summary_gives_durations_and_sample_rates():
    summarize = adapter_of().tokenizer.reader.describe
    sources = [(np.zeros(5), 44100), (np.zeros(5), 8000), (np.zeros(5), 8000), None, b"broken"]
    text = summarize([sound(800), sound(1600), sound(8000)], sources)
    assert text == "0.10 to 1.00, median 0.20 s; 2 at 8,000 Hz, 1 at 44,100 Hz"
    assert summarize([], []) == ""


@pytest.mark.parametrize("samples", [1, 399, 400, 16_001])
@pytest.mark.parametrize(("n_fft", "hop_length"), [(400, 160), (512, 160), (300, 77)])
def test_kaldi_computes_the_values_of_torchaudio(samples, n_fft, hop_length):
    options = {"frontend": "kaldi", "n_mels": 23, "n_fft": n_fft, "hop_length": hop_length}
    adapter = AudioAdapter(D, spectrogram=SpectrogramOptions(**options))
    clip = sound(samples) + 0.3
    theirs = torchaudio.compliance.kaldi.fbank(
        F.pad(clip, (0, max(n_fft - samples, 0)))[None],
        sample_frequency=16_000,
        window_type="hanning",
        frame_length=n_fft / 16,
        frame_shift=hop_length / 16,
        num_mel_bins=23,
    )
    torch.testing.assert_close(adapter.tokenizer.features(clip), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("frontend", ["mel", "kaldi"])
def test_padding_takes_no_part_in_the_normalization_of_a_clip(frontend):
    spectrogram = SpectrogramOptions(num_frames=400, frontend=frontend)
    options = {"normalize": AudioNormalization(kind="clip")}
    raw = torch.randn(16_000, generator=torch.Generator().manual_seed(3)) / 9
    padded = AudioAdapter(8, spectrogram=spectrogram, **options).tokenizer(raw)["features"]
    alone = AudioAdapter(8, spectrogram=replace(spectrogram, num_frames=None), **options).tokenizer(
        raw
    )["features"]
    assert padded.shape[0] == 400
    torch.testing.assert_close(padded[: len(alone)], alone)
    assert not padded[len(alone) :].any()


def test_padding_of_the_last_window_takes_no_part_in_the_normalization_of_a_clip():
    spectrogram = SpectrogramOptions(num_frames=100, windows=True)
    normalize = AudioNormalization(kind="clip")
    raw = torch.randn(20_000, generator=torch.Generator().manual_seed(3)) / 9
    features = AudioAdapter(8, spectrogram=spectrogram, normalize=normalize).tokenizer(raw)[
        "features"
    ]
    assert len(features) == 200
    # The last window has 4,000 samples, which are 26 frames.
    assert not features[126:].any()
    torch.testing.assert_close(features[:126].mean(0), torch.zeros(64), atol=1e-5, rtol=0)


def test_padding_takes_no_part_in_the_statistics_of_a_data_set_and_is_silent():
    clips = [torch.randn(1600 * n, generator=torch.Generator().manual_seed(n)) / 9 for n in (3, 7)]
    plain = AudioAdapter(8).fit(clips)
    for options in ({"num_frames": 100}, {"num_frames": 32, "windows": True}):
        adapter = AudioAdapter(8, spectrogram=SpectrogramOptions(**options)).fit(clips)
        # Windows have other frames at their borders.
        torch.testing.assert_close(adapter.mean, plain.mean, atol=0.1, rtol=0)
        features = adapter.tokenizer(clips[0])["features"]
        assert features[-1].tolist() == pytest.approx([math.log(FLOOR)] * 64)


def test_clips_that_num_frames_cuts_are_counted():
    clips = [torch.zeros(16_000 * n) for n in (1, 3, 4)]
    opened = Opened({"audio": clips}, None, list("abc"))
    cut = AudioAdapter(8, spectrogram=SpectrogramOptions(num_frames=100)).tokenizer
    (counted,) = count_truncated(opened, {"audio": cut}).values()
    assert str(counted) == (
        "2 of 3 samples are truncated to 100 frames (median: 29% of a truncated sample is kept)"
    )
    for options in ({"num_frames": 401}, {}, {"num_frames": 100, "windows": True}):
        tokenizer = AudioAdapter(8, spectrogram=SpectrogramOptions(**options)).tokenizer
        assert count_truncated(opened, {"audio": tokenizer}) == {}


@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.05, 2.2, 5.0])
def test_the_columns_of_windows_are_counted_without_features(seconds):
    spectrogram = SpectrogramOptions(num_frames=100, windows=True)
    tokenizer = AudioAdapter(8, spectrogram=spectrogram).tokenizer
    raw = torch.zeros(int(16_000 * seconds))
    columns = tokenizer.count_columns(tokenizer.collate([tokenizer(raw)]))
    assert tokenizer.count(raw) == int(columns)


def test_silent_and_very_loud_clips_are_described(tmp_path):
    tone = 0.3 * np.sin(np.arange(8000) / 20, dtype=np.float32)
    clips = {"plain": tone, "opposite": np.stack([tone, -tone], 1), "zero": 0 * tone}
    clips["loud"] = 40_000 * tone
    paths = []
    for name, clip in clips.items():
        paths.append(str(tmp_path / f"{name}.wav"))
        soundfile.write(paths[-1], clip, 16_000, "FLOAT" if name == "loud" else "PCM_16")
    tokenizer = AudioAdapter(8).tokenizer
    raws = [tokenizer.reader.read(path) for path in paths]
    about = tokenizer.reader.describe(raws, paths)
    assert "1 with samples far beyond -1 to 1 (up to 12,000)" in about
    assert about.endswith("; 2 silent, 1 of them the mean of opposite channels")
    silent, loud = "silence, or channels in opposite phase", "samples up to 12,000"
    for raw, remark in zip(raws, ["", silent, silent, loud], strict=True):
        sentence = tokenizer.remark([raw])
        assert sentence.startswith(remark) and bool(remark) == bool(sentence)
    assert tokenizer.remark(raws) == ""  # many files are not decoded for this


def test_a_wma_file_is_named():
    with pytest.raises(BadMedia, match="a WMA file; convert it to WAV or FLAC"):
        AudioAdapter(8).tokenizer.reader.read(ASF + bytes(100))


@pytest.mark.parametrize("pair", [(np.zeros(9), "8000"), (np.zeros(9), 8000, 1), (np.zeros(9),)])
def test_a_pair_is_an_array_and_its_sample_rate(pair):
    with pytest.raises(BadMedia, match="an array and its sample rate"):
        AudioAdapter(8).tokenizer.reader.read(pair)
