"""Masking: which columns are hidden, what is to be predicted, and that nothing of it is visible."""

import copy
import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from dxn.core.errors import UserError
from dxn.core.randomness import torch_generator
from dxn.tokenize import (
    AudioAdapter,
    AudioNormalization,
    EmbeddingNormOptions,
    ImageAdapter,
    ImageAugment,
    PatchOptions,
    SpectrogramOptions,
    TextAdapter,
    TokenizerOptions,
)
from dxn.tokenize.masking import PatchMasking, TokenMasking, hide_tiles, standardize
from dxn.tokenize.text.vocabulary import SPECIALS

DIM = 16
MASK = SPECIALS.index("[MASK]")
SENTENCES = ["cats chase mice", "dogs chew bones", "the old man the boats and rows"]
IMAGES = {
    "patches": {"patch_size": 4},
    "overlapping": {"patch_size": 5, "stride": 3},
    "conv": {"patch_size": 4, "stem": "conv"},
    "normed": {
        "patch_size": 4,
        "norm": EmbeddingNormOptions(),
        "pos_embed": "none",
        "augment": ImageAugment(token_dropout=0.5),
    },
}
OVERLAPPING = PatchOptions((5, 4), (3, 3), pad_end=False)
CLIPS = {
    "frames": {"frame_size": 3},
    "conv": {"frame_size": 4, "stem": "conv"},
    "conv patches": {"tokens": "patches", "patch": PatchOptions(4), "stem": "conv"},
    "whisper": {"frame_size": 2, "stem": "whisper"},
    "patches": {"tokens": "patches", "patch": PatchOptions((5, 3))},
    "overlapping": {"tokens": "patches", "patch": OVERLAPPING},
    "clip": {
        "frame_size": 3,
        "normalize": AudioNormalization("clip"),
        "patch": PatchOptions(pad_end=False),
    },
    "conv without the end": {
        "frame_size": 4,
        "stem": "conv",
        "patch": PatchOptions(pad_end=False),
    },
    "waveform": {"tokens": "waveform", "frame_size": 23},
}


def picture(height, width, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (3, height, width), dtype=np.uint8))


def sound(length, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 0.3, length).astype(np.float32))


def image_adapter(kind="patches", **options):
    torch.manual_seed(0)
    return ImageAdapter(DIM, **{"image_size": None, **IMAGES[kind], **options})


def audio_adapter(kind="frames"):
    torch.manual_seed(0)
    spectrogram = SpectrogramOptions(n_fft=32, hop_length=10, n_mels=11, f_max=500.0)
    adapter = AudioAdapter(DIM, sample_rate=1000, spectrogram=spectrogram, **CLIPS[kind])
    return adapter.fit([sound(701)])


def text_adapter(**options):
    torch.manual_seed(0)
    return TextAdapter(DIM, tokenizer=TokenizerOptions("word"), **options).fit(SENTENCES)


def adapters():
    """One adapter of each kind, with raw values of several sizes."""
    texts = [(text_adapter(), SENTENCES)]
    pictures = [picture(13, 23, 1), picture(17, 11, 2), picture(7, 5, 3)]
    clips = [sound(307, 1), sound(211, 2), sound(101, 3)]
    images = [(image_adapter(kind), pictures) for kind in IMAGES]
    audio = [(audio_adapter(kind), clips) for kind in CLIPS]
    return [*texts, *images, *audio]


def masking_of(adapter, ratio=0.5, span=2):
    masking = adapter.masking(ratio=ratio)
    has_runs = isinstance(masking, PatchMasking) and masking.span is not None
    return replace(masking, span=span) if has_runs else masking


def masked_samples(adapter, raws, *, ratio=0.5, span=2, seed=0):
    masking = masking_of(adapter, ratio, span)
    return [
        masking(adapter.tokenizer(raw), random.Random(f"{seed}/{i}")) for i, raw in enumerate(raws)
    ]


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(value.nan_to_num(-1), other[key].nan_to_num(-1))
        if isinstance(value, torch.Tensor)
        else value == other[key]
        for key, value in one.items()
    )


# All modalities


@pytest.mark.parametrize(("adapter", "raws"), adapters())
def test_a_mask_depends_on_the_sample_and_its_generator_only(adapter, raws):
    first = masked_samples(adapter, raws)
    alone = [
        masking_of(adapter)(adapter.tokenizer(raw), random.Random(f"0/{i}"))
        for i, raw in reversed(list(enumerate(raws)))
    ]
    assert all(map(same, first, reversed(alone)))
    others = [masked_samples(adapter, raws, seed=seed) for seed in range(1, 5)]
    assert any(
        not torch.equal(a["masked"], b["masked"])
        for other in others
        for a, b in zip(first, other, strict=True)
    )


@pytest.mark.parametrize(("adapter", "raws"), adapters())
def test_masking_changes_neither_the_sample_nor_the_global_generator(adapter, raws):
    sample = adapter.tokenizer(raws[0])
    before = copy.deepcopy(sample)
    state = torch.get_rng_state()
    adapter.masking(ratio=0.5)(sample, random.Random(1))
    assert same(sample, before) and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("adapter", "raws"), adapters())
def test_a_pickled_masking_gives_the_same_masks(adapter, raws):
    masking = masking_of(adapter)
    again = pickle.loads(pickle.dumps(masking))
    sample = adapter.tokenizer(raws[0])
    assert same(masking(sample, random.Random(7)), again(sample, random.Random(7)))
    assert again.num_outputs == masking.num_outputs


@pytest.mark.parametrize(("adapter", "raws"), adapters())
def test_a_batch_has_one_mask_column_per_token_and_never_masks_padding(adapter, raws):
    samples = masked_samples(adapter, raws)
    batch = adapter.tokenizer.collate(samples)
    tokens = adapter.train()(batch)
    assert batch["masked"].shape == tokens.mask.shape
    assert batch["masked"].any() and not (batch["masked"] & ~tokens.mask).any()
    assert len(batch["masked_target"]) == int(batch["masked"].sum())
    num_outputs = adapter.masking().num_outputs
    if num_outputs is not None:
        assert batch["masked_target"].shape[1:] == batch["masked_valid"].shape[1:] == (num_outputs,)
    # The targets of a sample have the same order in the batch as alone.
    counts = batch["masked"].sum(1).tolist()
    parts = batch["masked_target"].split(counts)
    assert all(torch.equal(a, b["masked_target"]) for a, b in zip(parts, samples, strict=True))


@pytest.mark.parametrize(("adapter", "raws"), adapters())
def test_ratio_0_means_no_masking_and_other_ratios_are_checked(adapter, raws):
    assert adapter.masking(ratio=0) is None and adapter.masking() is not None
    for ratio in (1, -0.1):
        with pytest.raises(ValueError, match=f"mask_ratio must be .* below 1, got {ratio}"):
            adapter.masking(ratio=ratio)


# Text


def test_text_masking_replaces_tokens_as_bert_does():
    ids = torch.randint(len(SPECIALS), 101, (9973,))
    masking = TokenMasking(ratio=0.3, vocab_size=101, special_ids=range(5), mask_id=MASK)
    sample = masking({"ids": ids}, random.Random(0))
    masked, shown = sample["masked"], sample["ids"]
    assert torch.equal(shown[~masked], ids[~masked])
    assert torch.equal(sample["masked_target"], ids[masked])
    assert float(masked.float().mean()) == pytest.approx(0.3, abs=0.02)
    assert float((shown[masked] == MASK).float().mean()) == pytest.approx(0.8, abs=0.02)
    # 1 in 10 stays, and a few random tokens equal the former ones.
    unchanged = (shown[masked] == ids[masked]).float().mean()
    assert float(unchanged) == pytest.approx(0.1 + 0.1 / 96, abs=0.02)


def test_special_tokens_are_never_masked():
    ids = torch.arange(len(SPECIALS)).repeat(50)
    masking = TokenMasking(ratio=0.9, vocab_size=101, special_ids=range(5), mask_id=MASK)
    sample = masking({"ids": ids}, random.Random(0))
    assert not sample["masked"].any() and torch.equal(sample["ids"], ids)


def test_a_tokenizer_without_a_mask_token_cannot_mask():
    adapter = TextAdapter(DIM)
    adapter.use_vocabulary(Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]")))
    assert adapter.masking() is None
    with pytest.raises(
        UserError,
        match=r"mask_ratio.text: .* got a ratio of 0.3 and",
    ):
        adapter.masking(ratio=0.3)


# Tiles


@pytest.mark.parametrize(
    ("tile", "size"),
    [
        ((1, 1), (29, 31)),
        ((2, 2), (7, 31)),
        ((3, 1), (29, 5)),
        ((2, 5), (29, 31)),
        ((2, 5), (1, 1)),
    ],
)
def test_hidden_tiles_are_the_ratio_of_the_grid_on_average(tile, size):
    generator = torch_generator(random.Random(0))
    shares = [
        hide_tiles(size, (2, 3), tile, 0.4, generator).float().mean().item() for _ in range(2000)
    ]
    assert np.mean(shares) == pytest.approx(0.4, abs=0.03)


def test_the_number_of_hidden_single_cells_is_exact():
    generator = torch_generator(random.Random(1))
    for _ in range(11):
        assert int(hide_tiles((7, 11), (1, 1), (1, 1), 0.5, generator).sum()) in (38, 39)
        assert int(hide_tiles((5, 2), (1, 1), (1, 1), 0.5, generator).sum()) == 5


def test_tiles_are_hidden_completely():
    generator = torch_generator(random.Random(0))
    masks = [hide_tiles((60, 1), (3, 1), (4, 1), 0.3, generator)[:, 0] for _ in range(50)]
    assert len({tuple(mask.tolist()) for mask in masks}) > 30
    for mask in masks:
        # Tiles at both ends can be cut off.
        runs = "".join(map(str, mask.int().tolist())).strip("1").split("0")
        assert all(len(run) % 12 == 0 for run in runs)


def test_runs_of_frames_have_the_length_of_the_span():
    adapter = audio_adapter("frames")
    sample = masked_samples(adapter, [sound(3001)], ratio=0.3, span=4)[0]
    runs = "".join(map(str, sample["hidden"].int().tolist())).strip("1").split("0")
    assert {len(run) % (3 * 4) for run in runs} == {0} and any(runs)


@pytest.mark.parametrize("kind", ["patches", "conv", "normed"])
def test_the_ratio_of_masked_patches_is_met_on_average(kind):
    samples = masked_samples(image_adapter(kind), [picture(48, 64)] * 101, ratio=0.6)
    share = np.mean([sample["masked"].float().mean() for sample in samples])
    assert share == pytest.approx(0.6, abs=0.02)


@pytest.mark.parametrize("kind", ["frames", "conv", "patches", "waveform"])
def test_the_ratio_of_hidden_frames_is_met_on_average(kind):
    samples = masked_samples(audio_adapter(kind), [sound(1201)] * 199, ratio=0.4, span=5)
    share = np.mean([sample["hidden"].float().mean() for sample in samples])
    assert share == pytest.approx(0.4, abs=0.03)


# Targets


@pytest.mark.parametrize("kind", IMAGES)
def test_targets_of_patches_are_their_standardized_pixels(kind):
    raws = [picture(13, 23, 1), picture(17, 11, 2)]
    adapter = image_adapter(kind).double().fit(raws)
    batch = adapter.tokenizer.collate(masked_samples(adapter, raws))
    coords = adapter.eval()(batch).spans[0].coords
    positions = batch["masked"].nonzero().tolist()
    assert len(positions) > 4
    mean, std = adapter.mean.view(3, 1, 1), adapter.std.view(3, 1, 1)
    for i, (row, column) in enumerate(positions):
        top, left, bottom, right = coords[row, column].int().tolist()
        patch = (raws[row][:, top:bottom, left:right].double() / 255 - mean) / std
        valid = batch["masked_valid"][i]
        assert int(valid.sum()) == patch.numel()
        expected = (patch - patch.mean()) / (patch.var(correction=0) + 1e-6).sqrt()
        target = batch["masked_target"][i][valid]
        torch.testing.assert_close(target, expected.flatten(), rtol=1e-9, atol=1e-9)
        assert batch["hidden"][row, top:bottom, left:right].all()


@pytest.mark.parametrize("kind", CLIPS)
def test_targets_of_frames_are_their_normalized_features(kind):
    adapter = audio_adapter(kind)
    batch = adapter.tokenizer.collate(masked_samples(adapter, [sound(307, 1), sound(211, 2)]))
    coords = adapter(batch).spans[0].coords
    positions = batch["masked"].nonzero().tolist()
    assert len(positions) > 3
    features = (batch["features"] - adapter.mean) / adapter.std
    for i, (row, column) in enumerate(positions):
        start, stop = (coords[row, column] / adapter.tokenizer.seconds).round().int().tolist()
        low = column % adapter.bands * adapter.grid.stride[1]
        cell = features[row, start:stop, low : low + adapter.grid.size[1]]
        valid = batch["masked_valid"][i]
        torch.testing.assert_close(batch["masked_target"][i][valid], cell.flatten())
        assert batch["hidden"][row, start:stop].all()


def test_standardized_patches_have_mean_0_and_deviation_1_and_flat_ones_are_0():
    x = torch.randn(5, 7, dtype=torch.float64) * 3 + 2
    valid = torch.ones(5, 7, dtype=torch.bool)
    x[1], valid[2, 3:] = 4.0, False
    y = standardize(x, valid)
    assert y[1].abs().max() == 0
    for i in (0, 2, 3, 4):
        assert float(y[i][valid[i]].mean()) == pytest.approx(0, abs=1e-9)
        assert float(y[i][valid[i]].std(correction=0)) == pytest.approx(1, abs=1e-5)


# Nothing hidden is visible


@settings(max_examples=30, deadline=None)
@given(
    size=st.tuples(st.integers(1, 19), st.integers(1, 19)),
    patch=st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    ratio=st.floats(0.05, 0.95),
)
def test_only_patches_that_are_hidden_completely_are_predicted(size, patch, ratio):
    adapter = image_adapter(patch_size=patch[0], stride=patch[1], pos_embed="none")
    sample = masked_samples(adapter, [picture(*size)], ratio=ratio)[0]
    batch = adapter.tokenizer.collate([sample])
    coords = adapter(batch).spans[0].coords[0]
    hidden = sample["hidden"]
    for column, box in enumerate(coords.int().tolist()):
        top, left, bottom, right = box
        masked = bool(batch["masked"][0, column])
        assert masked == bool(hidden[top:bottom, left:right].all())


def test_a_good_part_of_patches_that_overlap_by_half_is_predicted():
    adapter = image_adapter(patch_size=4, stride=2)
    samples = masked_samples(adapter, [picture(82, 82)] * 11)
    share = np.mean([sample["masked"].float().mean() for sample in samples])
    # Tiles are patches: of four columns one lies in 1 of them, two in 2, and one in 4.
    assert share == pytest.approx((0.5 + 2 * 0.5**2 + 0.5**4) / 4, abs=0.03)


@pytest.mark.parametrize(("adapter", "raws"), adapters()[1:])
def test_hidden_content_has_no_effect_on_any_column_and_the_rest_has(adapter, raws):
    adapter = adapter.double().eval()
    key = "pixels" if "pixels" in adapter.tokenizer(raws[0]) else "features"
    batch = adapter.tokenizer.collate(masked_samples(adapter, raws))
    raw = batch[key].double().requires_grad_()
    tokens = adapter({**batch, key: raw})
    # Random weights: the columns of a norm sum to a constant.
    torch.manual_seed(1)
    (tokens.x * torch.randn_like(tokens.x)).sum().backward()
    hidden = batch["hidden"]
    hidden = hidden[:, None].expand_as(raw) if key == "pixels" else hidden[..., None].expand_as(raw)
    assert raw.grad is not None and raw.grad[hidden].abs().max() == 0
    assert raw.grad[~hidden].abs().max() > 0
    other = torch.where(hidden, batch[key].double() / 2 + 1, batch[key].double())
    assert torch.equal(adapter({**batch, key: other}).x, tokens.x)


@pytest.mark.parametrize(("adapter", "raws"), adapters()[1:])
def test_the_mask_embedding_is_added_to_masked_columns_only(adapter, raws):
    adapter = adapter.eval()
    batch = adapter.tokenizer.collate(masked_samples(adapter, raws))
    assert adapter.mask_embedding.eq(0).all()
    before = adapter(batch).x
    adapter.mask_embedding.data = torch.arange(1.0, DIM + 1).to(before.dtype)
    change = adapter(batch).x - before
    adapter.mask_embedding.data.zero_()
    assert torch.equal(change.abs().amax(-1) > 0, batch["masked"])
    added = change[batch["masked"]]
    expected = torch.arange(1.0, DIM + 1).to(added.dtype).expand_as(added)
    torch.testing.assert_close(added, expected, rtol=0, atol=1e-4)


def test_token_dropout_does_not_apply_to_masked_batches():
    adapter = image_adapter("normed").train()
    samples = masked_samples(adapter, [picture(16, 16)])
    plain = [adapter.tokenizer(picture(16, 16))]
    assert adapter(adapter.tokenizer.collate(plain)).x.shape[1] == 8
    assert adapter(adapter.tokenizer.collate(samples)).x.shape[1] == 16
