"""Videos to Tokens: tubelets against 3D convolutions, padding, positions, sampling, masking."""

import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dxn.tokenize import ImageNormalization, ResizeOptions, VideoAdapter, VideoAugment
from dxn.tokenize.image.augment import ImageAugment, augment_image
from dxn.tokenize.video.reader import VideoSampling

D = 12


def clip(length=7, height=23, width=31, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (length, 3, height, width), dtype=np.uint8))


def adapter_of(**options):
    torch.manual_seed(0)
    options = {"patch_size": 4, "tubelet_frames": 3, "image_size": 32, **options}
    adapter = VideoAdapter(D, **options).double().eval()
    # Not zero, so that the tests of masking and of padding can see it.
    nn.init.normal_(adapter.mask_embedding)
    return adapter


def batch_of(adapter, clips):
    return adapter.tokenizer.collate([adapter.tokenizer(each) for each in clips])


def embed(adapter, clips):
    return adapter(batch_of(adapter, clips))


def augmented(raw, seed=0, **options):
    sampling = options.pop("sampling", VideoSampling(num_frames=len(raw)))
    adapter = adapter_of(augment=VideoAugment(**options), sampling=sampling)
    return adapter.tokenizer(raw, random.Random(seed))


# Tubelets


@pytest.mark.parametrize(("frames", "patch_size"), [(1, 4), (2, 5), (3, 7)])
def test_tubelets_equal_a_three_dimensional_convolution_with_the_same_weights(frames, patch_size):
    adapter = adapter_of(patch_size=patch_size, tubelet_frames=frames, pos_embed="none")
    raw = clip(2 * frames, 3 * patch_size, 4 * patch_size)
    conv = nn.Conv3d(3, D, (frames, patch_size, patch_size), (frames, patch_size, patch_size))
    conv = conv.double()
    conv.weight.data = adapter.proj.weight.data.view_as(conv.weight)
    conv.bias.data = adapter.proj.bias.data
    expected = conv((raw.double() / 255 - 0.5).div(0.5).movedim(1, 0)[None])
    tokens = embed(adapter, [raw])
    torch.testing.assert_close(tokens[0], expected[0].flatten(1), rtol=0, atol=1e-12)
    assert tokens.x.shape == (1, 2 * 3 * 4, D)


OPTIONS = [
    {},
    {"tubelet_frames": 1},
    {"tubelet_frames": 2, "patch_size": 5},
    {"stem": "conv"},
    {"stem": "conv", "tubelet_frames": 2},
]


@settings(max_examples=30, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 29), st.integers(1, 29)), min_size=2, max_size=3
    ),
    options=st.sampled_from(OPTIONS),
    position=st.sampled_from(["learned", "sinusoidal", "none", "sequence"]),
)
def test_padding_in_a_batch_does_not_change_a_clip(shapes, options, position):
    resize = ResizeOptions(mode="stretch" if position == "sequence" else "within")
    adapter = adapter_of(pos_embed=position, resize=resize, **options)
    clips = [clip(*shape, seed=i) for i, shape in enumerate(shapes)]
    together = embed(adapter, clips)
    for i, raw in enumerate(clips):
        alone = embed(adapter, [raw])
        assert bool(alone.mask.all())
        torch.testing.assert_close(together[i], alone[0], rtol=0, atol=1e-12)
        coords = together.spans[0].coords[i][together.mask[i]]
        torch.testing.assert_close(coords, alone.spans[0].coords[0], rtol=0, atol=0)


@pytest.mark.parametrize("options", OPTIONS)
def test_values_in_the_padding_change_nothing(options):
    adapter = adapter_of(**options)
    batch = batch_of(adapter, [clip(7, 23, 31), clip(4, 9, 13)])
    before = adapter(batch)
    batch["pixels"][1, 4:] = 255
    batch["pixels"][1, :, :, 9:] = 255
    batch["pixels"][1, :, :, :, 13:] = 255
    assert torch.equal(adapter(batch)[1], before[1])


@pytest.mark.parametrize("options", OPTIONS)
def test_clips_of_a_batch_do_not_affect_each_other(options):
    adapter = adapter_of(**options)
    before = embed(adapter, [clip(), clip(seed=1)])[0]
    assert torch.equal(embed(adapter, [clip(), clip(seed=2)])[0], before)


@pytest.mark.parametrize("options", OPTIONS)
def test_the_order_of_the_frames_changes_the_tokens(options):
    adapter = adapter_of(**options)
    raw = clip(6)
    assert not torch.allclose(embed(adapter, [raw]).x, embed(adapter, [raw.flip(0)]).x)


# Coordinates


def test_coords_are_frames_and_pixels_of_the_raw_clip():
    adapter = adapter_of(patch_size=5, tubelet_frames=2)
    coords = embed(adapter, [clip(3, 7, 12)]).spans[0].coords[0]
    rows, columns = [(0, 5), (5, 7)], [(0, 5), (5, 10), (10, 12)]
    expected = [
        [*time, a, c, b, d] for time in ((0, 2), (2, 3)) for a, b in rows for c, d in columns
    ]
    assert coords.tolist() == expected


def test_coords_refer_to_the_frames_that_were_chosen():
    sampling = VideoSampling(num_frames=4, mode="random")
    adapter = adapter_of(tubelet_frames=2, sampling=sampling)
    coords = embed(adapter, [clip(11)]).spans[0].coords[0]
    assert coords[:, :2].unique(dim=0).tolist() == [[3, 5], [5, 7]]


# Sampling


@pytest.mark.parametrize(
    ("mode", "count", "expected"),
    [
        ("uniform", 3, [0, 1, 2]),
        ("uniform", 12, [1, 4, 7, 10]),
        ("first", 11, [0, 1, 2, 3]),
        ("random", 11, [3, 4, 5, 6]),
        ("random", 3, [0, 1, 2]),
    ],
)
def test_the_frames_of_a_sample_follow_from_the_mode(mode, count, expected):
    prepare = adapter_of(sampling=VideoSampling(num_frames=4, mode=mode)).tokenizer
    assert prepare(clip(count))["times"].tolist() == expected


def test_a_random_window_is_drawn_in_training_only():
    prepare = adapter_of(sampling=VideoSampling(num_frames=4, mode="random")).tokenizer
    raw = clip(11)
    starts = {int(prepare(raw, random.Random(i))["times"][0]) for i in range(60)}
    assert starts == set(range(8))
    assert int(prepare(raw)["times"][0]) == 3


def test_reading_keeps_only_the_frames_that_are_used():
    source = clip(24).movedim(1, -1).numpy()
    for mode, count in (("uniform", 4), ("first", 4), ("random", 24)):
        prepare = adapter_of(sampling=VideoSampling(num_frames=4, mode=mode)).tokenizer
        assert len(prepare.reader.read(source)) == count


def test_large_frames_are_reduced_when_they_are_read():
    raw = adapter_of(image_size=16).tokenizer.reader.read(np.zeros((2, 64, 32, 3), np.uint8))
    assert raw.shape == (2, 3, 16, 8)
    crop = adapter_of(image_size=16, resize=ResizeOptions("crop")).tokenizer
    sample = crop(crop.reader.read(np.zeros((2, 64, 32, 3), np.uint8)))
    assert sample["pixels"].shape == (2, 3, 16, 16)


# Augmentation


@pytest.mark.parametrize(
    "options",
    [{"crop": 5}, {"zoom": 0.5}, {"flip": True}, {"jitter": 0.5}, {"crop": 2, "jitter": 0.9}],
)
def test_all_frames_are_augmented_in_the_same_way(options):
    still = clip(1).expand(5, -1, -1, -1)
    pixels = [augmented(still, seed, **options)["pixels"] for seed in range(8)]
    for each in pixels:
        assert bool((each == each[:1]).all())
    assert any(not torch.equal(each, pixels[0]) for each in pixels)


def test_jitter_of_a_clip_is_that_of_one_picture_with_the_channels_of_all_frames():
    raw = clip(5)
    changed, _ = augment_image(raw.flatten(0, 1), ImageAugment(jitter=0.4), random.Random(3))
    pixels = augmented(raw, 3, jitter=0.4)["pixels"]
    assert torch.equal(pixels.flatten(0, 1), changed) and not torch.equal(pixels, raw)


def test_direction_is_not_changed_by_default():
    raw = clip(5)
    assert torch.equal(augmented(raw)["pixels"], raw)


def test_a_flip_is_a_mirror_image_of_each_frame():
    raw = clip(5)
    flips = [augmented(raw, seed, flip=True) for seed in range(8)]
    assert {bool(torch.equal(each["pixels"], raw.flip(-1))) for each in flips} == {True, False}


def test_preparing_leaves_the_raw_clip_unchanged():
    raw = clip(5)
    before = raw.clone()
    augmented(raw, crop=3, zoom=0.5, flip=True, jitter=0.5)
    assert torch.equal(raw, before)


# Statistics


def test_fitting_computes_the_statistics_of_each_channel():
    clips = [clip(5, seed=i) // (i + 1) for i in range(3)]
    adapter = adapter_of().fit(clips)
    values = torch.cat([c.movedim(1, 0).flatten(1) for c in clips], 1).double() / 255
    torch.testing.assert_close(adapter.mean, values.mean(1))
    torch.testing.assert_close(adapter.std, values.std(1, correction=0))
    known = adapter_of(normalize=ImageNormalization([0.1, 0.2, 0.3], [1, 2, 3])).fit(clips)
    assert known.mean.tolist() == pytest.approx([0.1, 0.2, 0.3])


# Masking


def masked_sample(adapter, raw, seed=0, ratio=0.5):
    masking = pickle.loads(pickle.dumps(adapter.masking(ratio=ratio)))
    return masking, masking(adapter.tokenizer(raw), random.Random(seed))


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_the_same_patches_are_hidden_in_all_frames(frames):
    adapter = adapter_of(tubelet_frames=frames)
    masking, sample = masked_sample(adapter, clip(7, 24, 32))
    masked = sample["masked"]
    assert masked.shape == (-(-7 // frames), 6, 8)
    assert bool((masked == masked[:1]).all())
    assert int(masked[0].sum()) == 24
    assert sample["masked_target"].shape == (int(masked.sum()), masking.num_outputs)
    assert masking.num_outputs == frames * 3 * 16


def test_the_targets_are_the_normalized_pixels_of_the_masked_tubelets():
    adapter = adapter_of(tubelet_frames=2)
    raw = clip(3, 9, 8)
    _, sample = masked_sample(adapter, raw)
    (time, row, column), *_ = sample["masked"].nonzero().tolist()
    assert time == 0
    part = raw[:2, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].double()
    part = part.flatten()
    expected = (part - part.mean()) / part.std(correction=0)
    valid = sample["masked_valid"][0]
    if bool(valid.all()):
        torch.testing.assert_close(sample["masked_target"][0], expected, rtol=1e-4, atol=1e-4)
    # The last tubelet has one frame only.
    last = sample["masked_valid"][-1].view(2, -1)
    assert bool(last[0].any()) and not bool(last[1].any())


def test_masked_tokens_do_not_depend_on_hidden_pixels():
    adapter = adapter_of(pos_embed="none")
    raw = clip(6, 24, 32)
    _, sample = masked_sample(adapter, raw)
    batch = adapter.tokenizer.collate([sample])
    tokens = adapter(batch)
    masked = batch["masked"][0]
    assert int(masked.sum()) == int(sample["masked"].sum())
    hidden = tokens.x[0, masked]
    torch.testing.assert_close(hidden, hidden[:1].expand_as(hidden))
    other = clip(6, 24, 32, seed=1)
    changed = torch.where(sample["hidden"], other, sample["pixels"])
    again = adapter(adapter.tokenizer.collate([{**sample, "pixels": changed}]))
    assert torch.equal(again.x, tokens.x)


def test_masked_samples_of_different_sizes_form_a_batch():
    adapter = adapter_of(tubelet_frames=2)
    samples = [masked_sample(adapter, clip(*s))[1] for s in ((7, 24, 32), (2, 11, 9))]
    batch = adapter.tokenizer.collate(samples)
    tokens = adapter(batch)
    assert batch["masked"].shape == tokens.mask.shape
    assert not bool((batch["masked"] & ~tokens.mask).any())
    assert len(batch["masked_target"]) == int(batch["masked"].sum())


def test_there_is_no_masking_with_a_ratio_of_0():
    assert adapter_of().masking(ratio=0.0) is None


# Saving, descriptions, options


def test_a_saved_adapter_gives_the_same_tokens(tmp_path):
    adapter = adapter_of().fit([clip()])
    adapter.save(tmp_path, "video")
    other = adapter_of()
    other.load(tmp_path, "video")
    other.load_state_dict(adapter.state_dict())
    assert torch.equal(embed(other, [clip(seed=3)]).x, embed(adapter, [clip(seed=3)]).x)
    assert torch.equal(pickle.loads(pickle.dumps(adapter.tokenizer))(clip())["pixels"], clip())


def test_descriptions_name_the_numbers_of_tokens():
    assert adapter_of().describe(clip()) == (
        "3×6×8 tubelets of 3 frames × 4×4 pixels, 7 frames of 23×31 pixels (height×width)"
    )
    summary = adapter_of().tokenizer.reader.describe([clip(3), clip(7)], [clip(3), clip(7)])
    assert summary == "3 to 7, median 5 frames are read; size after reading: all 31×23"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VideoAdapter(D, stem="deep"), "stem must be one of 'patch' or 'conv', got 'deep'"),
        (lambda: VideoAdapter(D, tubelet_frames=0), "tubelet_frames must be at least 1, got 0"),
        (lambda: VideoAdapter(D, patch_size=6, stem="conv"), "must be 2, 4, 8, 16 or 32, got 6"),
        (lambda: VideoSampling(num_frames=0), "num_frames must be at least 1, got 0"),
        (lambda: VideoSampling(fps=0), "fps must be greater than 0, got 0"),
        (lambda: VideoSampling(mode="last"), "mode must be one of .*, got 'last'"),
        (lambda: VideoSampling(max_seconds=0), "max_seconds must be greater than 0, got 0"),
        (lambda: VideoSampling(max_frames=0), "max_frames must be at least 1, got 0"),
        (lambda: VideoAugment(jitter=1), "jitter must be below 1, got 1"),
        (lambda: VideoAdapter(D, pos_embed="sequence"), "set resize.mode to stretch, crop or pad"),
        (lambda: VideoAdapter(D, augment=VideoAugment(zoom=0)), "zoom must be greater than 0"),
        (lambda: VideoAdapter(D, normalize=ImageNormalization([0.5], [0.5])), "3 numbers"),
    ],
)
def test_wrong_options_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
