"""Images to Tokens: patches against strided convolutions, padding, coords, augmentation."""

import pickle
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.data import Counted
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchvision.transforms import v2

from dxn.tokenize import (
    EmbeddingNormOptions,
    ImageAdapter,
    ImageAugment,
    ImageNormalization,
    ResizeOptions,
)
from dxn.tokenize.column_profile import profile_of, scores_of
from dxn.tokenize.image.augment import augment_image
from dxn.tokenize.image.tokenizer import ImageTokenizer
from dxn.tokenize.patches import ConvStem

D = 12


def picture(height=23, width=31, channels=3, seed=0):
    return torch.from_numpy(
        np.random.default_rng(seed).integers(0, 256, (channels, height, width), dtype=np.uint8)
    )


def adapter_of(**options):
    torch.manual_seed(0)
    options = {"patch_size": 4, "image_size": None, **options}
    return ImageAdapter(D, **options).double().eval()


def batch_of(adapter, pictures):
    return adapter.tokenizer.collate([adapter.tokenizer(p) for p in pictures])


def embed(adapter, pictures):
    return adapter(batch_of(adapter, pictures))


def augmented(raw, seed, **options):
    return augment_image(raw, ImageAugment(**options), random.Random(seed))[0]


# Patches


@pytest.mark.parametrize(("patch_size", "stride"), [(4, None), (5, None), (5, 3), (7, 2), (3, 1)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(20, 35), (23, 31), (3, 13)])
def test_patches_equal_a_strided_convolution_with_the_same_weights(
    patch_size, stride, channels, size
):
    adapter = adapter_of(
        patch_size=patch_size, stride=stride, in_channels=channels, pos_embed="none"
    )
    step = stride or patch_size
    conv = nn.Conv2d(channels, D, patch_size, step).double()
    conv.weight.data = adapter.proj.weight.data.view(D, channels, patch_size, patch_size)
    conv.bias.data = adapter.proj.bias.data
    raw = picture(*size, channels)
    # Zeros, which are the mean, are added below and on the right until patches cover all pixels.
    over = [
        max(0, -(-(n - patch_size) // step) * step + patch_size - n)
        if n > patch_size
        else patch_size - n
        for n in size
    ]
    grid = conv(F.pad((raw.double() / 255 - 0.5) / 0.5, (0, over[1], 0, over[0]))[None])[0]
    tokens = embed(adapter, [raw])
    assert bool(tokens.mask.all())
    torch.testing.assert_close(tokens[0], grid.flatten(1), rtol=0, atol=1e-12)


def test_the_conv_stem_equals_its_explicit_layers():
    stem = ConvStem(in_channels=3, dim=D, stride=8, width=5, blocks=2).double()
    x = torch.randn(1, 3, 23, 31, dtype=torch.float64)

    def activated(y, norm):
        mean = y.mean(1, keepdim=True)  # over channels, at each cell
        var = y.var(1, keepdim=True, correction=0)
        y = (y - mean) / (var + norm.eps).sqrt()
        return F.gelu(y * norm.weight[:, None, None] + norm.bias[:, None, None])

    y = x
    for conv, norm, blocks in zip(stem.convs, stem.norms, stem.blocks, strict=True):
        y = activated(F.conv2d(y, conv.weight, conv.bias, stride=2, padding=1), norm)
        for block in blocks:
            y = y + activated(F.conv2d(y, block.conv.weight, padding=1), block.norm)
    expected = torch.einsum("dc,bchw->bhwd", stem.proj.weight, y) + stem.proj.bias
    assert [tuple(c.weight.shape[:2]) for c in stem.convs] == [(5, 3), (10, 5), (20, 10)]
    assert [len(blocks) for blocks in stem.blocks] == [0, 2, 2]
    torch.testing.assert_close(stem(x, torch.tensor([[23, 31]])), expected, rtol=0, atol=1e-12)
    assert expected.shape == (1, 3, 4, D)


@pytest.mark.parametrize("stem", ["conv", "residual"])
def test_a_conv_stem_tells_a_gray_area_from_a_black_one(stem):
    """A norm of products without bias would remove the difference."""
    adapter = adapter_of(stem=stem, patch_size=8, pos_embed="none")
    areas = [torch.full((3, 40, 40), value, dtype=torch.uint8) for value in (0, 60)]
    # The central patch, whose convolutions see no border.
    black, gray = (embed(adapter, [area]).x[0, 12] for area in areas)
    assert (black - gray).norm() > 0.02 * black.norm()


# Padding

STEMS = [
    {},
    {"stride": 3},
    {"stem": "conv"},
    {"stem": "conv", "patch_size": 8},
    {"stem": "residual", "patch_size": 8},
    {"patch_size": 5},
]


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 29), st.integers(1, 29)), min_size=2, max_size=3),
    options=st.sampled_from(STEMS),
    position=st.sampled_from(["learned", "sinusoidal", "none"]),
)
def test_padding_in_a_batch_does_not_change_an_image(sizes, options, position):
    adapter = adapter_of(pos_embed=position, **options)
    pictures = [picture(*size, seed=i) for i, size in enumerate(sizes)]
    together = embed(adapter, pictures)
    for i, raw in enumerate(pictures):
        alone = embed(adapter, [raw])
        assert bool(alone.mask.all())
        torch.testing.assert_close(together[i], alone[0], rtol=0, atol=1e-12)
        coords = together.spans[0].coords[i][together.mask[i]]
        torch.testing.assert_close(coords, alone.spans[0].coords[0], rtol=0, atol=0)


@pytest.mark.parametrize("options", STEMS)
def test_values_in_the_padding_change_nothing(options):
    adapter = adapter_of(**options)
    batch = batch_of(adapter, [picture(23, 31), picture(9, 13)])
    before = adapter(batch)
    batch["pixels"][1, :, 9:] = 255
    batch["pixels"][1, :, :, 13:] = 255
    assert torch.equal(adapter(batch)[1], before[1])


@pytest.mark.parametrize("options", STEMS)
def test_images_of_a_batch_do_not_affect_each_other(options):
    adapter = adapter_of(**options)
    before = embed(adapter, [picture(23, 31), picture(seed=1)])[0]
    assert torch.equal(embed(adapter, [picture(23, 31), picture(seed=2)])[0], before)


def test_the_mask_is_true_at_the_patches_of_each_image():
    tokens = embed(
        adapter_of(), [picture(13, 9), picture(5, 17)]
    )  # grids of 4x3 and 2x5 in one of 4x5
    grid = tokens.mask.view(2, 4, 5).int()
    assert grid[0].tolist() == [[1, 1, 1, 0, 0]] * 4
    assert grid[1].tolist() == [[1] * 5] * 2 + [[0] * 5] * 2
    assert torch.equal(tokens.spans[0].coords.isnan().all(-1), ~tokens.mask)
    assert torch.equal(tokens.spans[0].coords.isnan().any(-1), ~tokens.mask)


# Coordinates


def test_coords_are_boxes_of_raw_pixels_row_by_row():
    coords = embed(adapter_of(patch_size=5), [picture(7, 12)]).spans[0].coords[0]
    rows, columns = (
        [(0, 5), (5, 7)],
        [(0, 5), (5, 10), (10, 12)],
    )  # the last ones end with the image
    assert coords.tolist() == [[a, c, b, d] for a, b in rows for c, d in columns]


def test_overlapping_patches_have_overlapping_coords():
    coords = embed(adapter_of(patch_size=4, stride=3), [picture(8, 4)]).spans[0].coords[0]
    assert coords.tolist() == [[0, 0, 4, 4], [3, 0, 7, 4], [6, 0, 8, 4]]


@pytest.mark.parametrize(
    ("resize", "shape", "grid", "first", "last"),
    [
        # 20x44 becomes 10x22: each pixel is two raw pixels high and wide
        ("within", (20, 44), (2, 3), [0, 0, 16, 16], [16, 32, 20, 44]),
        (
            "within",
            (7, 11),
            (1, 2),
            [0, 0, 7, 8],
            [0, 8, 7, 11],
        ),  # smaller than image_size: unchanged
        (
            "stretch",
            (44, 66),
            (3, 3),
            [0, 0, 16, 24],
            [32, 48, 44, 66],
        ),  # 22x22: 2 raw pixels down, 3 across
        ("crop", (44, 88), (3, 3), [0, 22, 16, 38], [32, 54, 44, 66]),  # the middle 44 of 88
    ],
)
def test_coords_refer_to_the_raw_image_after_resizing(resize, shape, grid, first, last):
    adapter = adapter_of(patch_size=8, image_size=22, resize=ResizeOptions(resize))
    coords = embed(adapter, [picture(*shape)]).spans[0].coords[0]
    assert len(coords) == grid[0] * grid[1]
    assert coords[0].tolist() == first and coords[-1].tolist() == last


@settings(max_examples=40, deadline=None)
@given(
    height=st.integers(1, 67),
    width=st.integers(1, 67),
    resize=st.sampled_from(["within", "stretch", "crop", "cover", "pad"]),
)
def test_resized_images_have_the_configured_size_and_coords_inside_the_raw_image(
    height, width, resize
):
    adapter = adapter_of(patch_size=4, image_size=(13, 17), resize=ResizeOptions(resize))
    sample = adapter.tokenizer(picture(height, width))
    h, w = sample["pixels"].shape[1:]
    if resize == "within":
        assert h <= 13 and w <= 17 and h <= height and w <= width
    elif resize == "cover":
        assert h >= 13 and w >= 17 and (h == 13 or w == 17)
    else:
        assert (h, w) == (13, 17)
    coords = adapter(adapter.tokenizer.collate([sample])).spans[0].coords[0]
    assert (
        coords.min() >= 0
        and coords[:, 2].max() <= height + 1e-4
        and coords[:, 3].max() <= width + 1e-4
    )
    # A patch of black pixels has no area in the raw image.
    assert resize == "pad" or bool((coords[:, 2:] > coords[:, :2]).all())
    if resize != "crop":  # patches cover every raw pixel
        torch.testing.assert_close(
            coords[-1, 2:], torch.tensor([height, width]).float(), rtol=1e-5, atol=0
        )


@pytest.mark.parametrize(
    ("resize", "size"),
    [("within", (11, 15)), ("stretch", (13, 15)), ("crop", (13, 17)), ("crop", (41, 55))],
)
def test_resizing_equals_that_of_torchvision(resize, size):
    limit = (41, 43) if size[0] == 41 else (13, 15)
    expected = v2.functional.resize(picture(), size, v2.InterpolationMode.BILINEAR, antialias=True)
    got = adapter_of(image_size=limit, resize=ResizeOptions(resize)).tokenizer(picture())["pixels"]
    if resize == "crop":
        expected = v2.functional.center_crop(expected, list(limit))
    assert got.shape == expected.shape
    assert int((got.int() - expected.int()).abs().max()) <= 1  # rounding


@pytest.mark.parametrize("resize", ["within", "stretch", "crop", "cover", "pad"])
def test_coords_contain_the_raw_pixels_that_a_patch_shows(resize):
    """A white square on black: the patches that show white have boxes that touch the square."""
    raw = torch.zeros(3, 64, 96, dtype=torch.uint8)
    raw[:, 24:40, 40:56] = 255
    adapter = adapter_of(
        patch_size=8, image_size=32, resize=ResizeOptions(resize), pos_embed="none"
    )
    adapter.proj.weight.data.fill_(1.0)
    adapter.proj.bias.data.zero_()
    adapter.mean.zero_()  # black is then 0, like the padding of the last patches
    tokens = embed(adapter, [raw])
    brightness = tokens.x[0, :, 0]
    top, left, bottom, right = tokens.spans[0].coords[0].T
    touches = (top < 40) & (bottom > 24) & (left < 56) & (right > 40)
    inside = brightness > brightness.min() + 1
    assert 0 < int(touches.sum()) < len(touches)
    # Antialiasing spreads an edge by a pixel, so a neighboring patch may contain some of it.
    assert bool((brightness[touches] > brightness.min() + 1).all())
    near = (top < 44) & (bottom > 20) & (left < 60) & (right > 36)
    assert bool(near[inside].all())


# Positions and statistics


def test_learned_positions_are_added_unchanged_at_the_configured_size():
    adapter = adapter_of(image_size=(12, 20))
    assert adapter.pos_embed.weight.shape == (3, 5, D)
    plain = adapter_of(image_size=(12, 20), pos_embed="none")
    plain.proj = adapter.proj
    difference = embed(adapter, [picture(12, 20)]).x - embed(plain, [picture(12, 20)]).x
    torch.testing.assert_close(
        difference[0], adapter.pos_embed.weight.flatten(0, 1), rtol=0, atol=1e-12
    )


def test_learned_positions_are_interpolated_to_the_grid_of_each_image():
    adapter = adapter_of(image_size=(12, 20))
    adapter.proj.weight.data.zero_()
    adapter.proj.bias.data.zero_()
    tokens = embed(adapter, [picture(12, 20), picture(7, 11)])  # 3x5 and 2x3 patches
    expected = F.interpolate(
        adapter.pos_embed.weight.permute(2, 0, 1)[None], (2, 3), mode="bicubic", antialias=True
    )[0]
    torch.testing.assert_close(tokens[1], expected.flatten(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        tokens[0], adapter.pos_embed.weight.flatten(0, 1).T, rtol=0, atol=1e-12
    )


def test_without_positions_permuting_patches_permutes_columns():
    adapter, raw = adapter_of(pos_embed="none"), picture(4, 12)
    order = torch.tensor([2, 0, 1])
    moved = torch.cat([raw.split(4, dim=2)[i] for i in order], 2)
    assert torch.equal(embed(adapter, [moved])[0], embed(adapter, [raw])[0][:, order])
    learned = adapter_of()
    assert not torch.allclose(embed(learned, [moved])[0], embed(learned, [raw])[0][:, order])


@pytest.mark.parametrize("channels", [1, 3])
def test_fit_computes_mean_and_deviation_as_numpy_does(channels):
    pictures = [
        picture(7, 11, channels, 1),
        picture(13, 5, channels, 2),
        picture(3, 3, channels, 3) // 5,
    ]
    adapter = adapter_of(in_channels=channels).fit(pictures)
    pixels = np.concatenate([p.numpy().reshape(channels, -1) for p in pictures], 1) / 255
    torch.testing.assert_close(adapter.mean.numpy(), pixels.mean(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(adapter.std.numpy(), pixels.std(1), rtol=0, atol=1e-12)


def test_fit_reads_at_most_a_thousand_images_from_all_parts():
    rows = Counted([picture(2, 3)] * 5003)
    adapter_of().fit(rows)
    assert len(rows.read) == 1000 and min(rows.read) < 6 and max(rows.read) > 4996


def test_fit_on_black_images_or_none_keeps_a_positive_deviation():
    adapter = adapter_of().fit([torch.zeros(3, 5, 7, dtype=torch.uint8)])
    assert adapter.mean.tolist() == [0, 0, 0] and adapter.std.min() > 0
    assert adapter_of().fit([]).std.tolist() == [0.5, 0.5, 0.5]


# Augmentation

AUGMENTS = [
    {"crop": 3},
    {"zoom": 0.3},
    {"flip": True},
    {"jitter": 0.4},
    {"randaugment": 15},
]


@pytest.mark.parametrize("options", AUGMENTS)
@pytest.mark.parametrize("channels", [1, 3])
def test_each_augmentation_depends_on_its_generator_only_and_keeps_the_shape(options, channels):
    prepare = adapter_of(in_channels=channels, augment=ImageAugment(**options)).tokenizer
    raw = picture(23, 31, channels)

    def drawn(seed):
        return prepare(raw, random.Random(seed))["pixels"]

    assert torch.equal(prepare(raw)["pixels"], raw)
    for seed in range(5):
        assert drawn(seed).shape == raw.shape and drawn(seed).dtype == torch.uint8
        assert torch.equal(drawn(seed), drawn(seed))
    assert len({drawn(seed).numpy().tobytes() for seed in range(11)}) > 1


def test_augmentation_changes_neither_the_global_generator_nor_the_raw_image():
    raw, state = picture(), torch.get_rng_state()
    augmented(raw, 3, crop=3, zoom=0.5, flip=True, randaugment=9)
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(raw, picture())


def test_augmentation_without_options_changes_nothing():
    pixels, frame = augment_image(picture(), ImageAugment(), random.Random(3))
    assert torch.equal(pixels, picture()) and tuple(frame) == (0, 0, 1, 1)


def test_images_are_turned_by_each_multiple_of_90_degrees():
    prepare = adapter_of(image_size=None, augment=ImageAugment(turn=True)).tokenizer
    raw = picture()
    assert "turns" not in prepare(raw)
    counts = [0] * 4
    for seed in range(101):
        sample = prepare(raw, random.Random(seed))
        turns = int(sample["turns"])
        counts[turns] += 1
        assert torch.equal(sample["pixels"], raw.rot90(turns, (1, 2)))
        assert sample["pixel_map"][4:].tolist() == [*sample["pixels"].shape[1:]]
    assert min(counts) > 10


def test_jitter_changes_brightness_and_contrast():
    raw = picture()
    drawn = [augmented(raw, seed, jitter=0.3).float() for seed in range(101)]
    means = torch.stack([each.mean() for each in drawn]) / raw.float().mean()
    spreads = torch.stack([each.std() for each in drawn]) / raw.float().std()
    for ratios in (means, spreads):
        assert 0.6 < ratios.min() < 0.9 and 1.05 < ratios.max() < 1.4


def test_flip_mirrors_half_of_the_images():
    raw = picture()
    drawn = [augmented(raw, seed, flip=True) for seed in range(101)]
    mirrored = sum(torch.equal(d, raw.flip(2)) for d in drawn)
    assert mirrored + sum(torch.equal(d, raw) for d in drawn) == 101
    assert 30 < mirrored < 71


def test_crop_shifts_and_repeats_the_edge():
    raw = picture(11, 13)
    padded = F.pad(raw[None].float(), (2, 2, 2, 2), mode="replicate")[0].byte()
    shifts = {
        padded[:, i : i + 11, j : j + 13].numpy().tobytes() for i in range(5) for j in range(5)
    }
    drawn = {augmented(raw, seed, crop=2).numpy().tobytes() for seed in range(199)}
    assert drawn == shifts


def test_zoom_shows_at_least_its_share_of_the_area():
    ramp = torch.arange(0, 200, 2, dtype=torch.uint8).expand(3, 100, 100)
    for seed in range(7):
        row = augmented(ramp, seed, zoom=0.25)[0, 50].float()
        shown = float(row[-1] - row[0]) / 198  # of a side: at least 1/2 for 1/4 of the area
        assert 0.49 <= shown <= 1.01


GEOMETRY = [{}, {"flip": True}, {"crop": 5}, {"zoom": 0.4}, {"flip": True, "crop": 5, "zoom": 0.4}]
SIZES = [(None, "within"), (24, "within"), ((20, 36), "stretch"), (28, "crop")]


def marked():
    """A black image with one white pixel, 23 down and 30 across."""
    raw = torch.zeros(3, 40, 56, dtype=torch.uint8)
    raw[:, 23, 30] = 255
    return raw


@pytest.mark.parametrize("options", GEOMETRY)
@pytest.mark.parametrize(("image_size", "mode"), SIZES)
def test_the_frame_maps_pixels_to_the_raw_image_with_augmentation_included(
    options, image_size, mode
):
    adapter = adapter_of(
        image_size=image_size,
        resize=ResizeOptions(mode, crop_ratio=0.9),
        augment=ImageAugment(**options),
    )
    num_seen = 0
    num_mirrored = 0
    for seed in range(23):
        sample = adapter.tokenizer(marked(), random.Random(seed))
        marker = sample["pixels"][0].double()
        at_edge = [marker[0], marker[-1], marker[:, 0], marker[:, -1]]
        if not marker.any() or any(edge.any() for edge in at_edge):
            continue  # zoom or crop cut the marker off, at least in part
        num_seen += 1
        # The center of the marker after antialiasing, in coordinates of edges.
        rows, columns = (torch.arange(n, dtype=torch.float64) + 0.5 for n in marker.shape)
        row = float((marker.sum(1) * rows).sum() / marker.sum())
        column = float((marker.sum(0) * columns).sum() / marker.sum())
        top, left, down, across = sample["pixel_map"][:4].tolist()
        num_mirrored += across < 0
        assert top + down * row == pytest.approx(23.5, abs=0.5 * down)
        assert left + across * column == pytest.approx(30.5, abs=0.5 * abs(across))
    assert num_seen >= 7
    assert (num_mirrored > 0) == options.get("flip", False)


@pytest.mark.parametrize("options", GEOMETRY[1:])
def test_coords_of_augmented_images_contain_the_marker_pixel(options):
    adapter = adapter_of(pos_embed="none", augment=ImageAugment(**options))
    adapter.proj.weight.data.fill_(1.0)
    adapter.proj.bias.data.zero_()
    adapter.mean.zero_()
    for seed in range(11):
        sample = adapter.tokenizer(marked(), random.Random(seed))
        if not sample["pixels"].any():
            continue
        tokens = adapter(adapter.tokenizer.collate([sample]))
        top, left, bottom, right = tokens.spans[0].coords[0, tokens.x[0, :, 0].argmax()].tolist()
        assert top < bottom and left < right
        # Antialiasing spreads the marker over one more pixel.
        assert top - 1 <= 23.5 <= bottom + 1 and left - 1 <= 30.5 <= right + 1


def test_token_dropout_keeps_real_columns_in_order_and_applies_in_training_only():
    adapter = adapter_of(augment=ImageAugment(token_dropout=0.4))
    pictures = [picture(12, 20), picture(8, 8)]  # 15 and 4 patches in a grid of 15
    whole = embed(adapter, pictures)
    part = embed(adapter.train(), pictures)
    assert whole.x.shape[1] == 15 and part.x.shape[1] == 9 and part.mask.sum(1).tolist() == [9, 2]
    boxes, kept = whole.spans[0].coords[0].tolist(), part.spans[0].coords[0].tolist()
    order = [boxes.index(box) for box in kept]
    assert order == sorted(set(order))
    torch.testing.assert_close(part.x[0], whole.x[0, order], rtol=0, atol=0)
    other = embed(adapter, pictures).spans[0].coords[0].tolist()
    assert other != kept


def test_a_pickled_preprocessor_gives_the_same_samples():
    prepare = adapter_of(image_size=16, augment=ImageAugment(crop=3, randaugment=9)).tokenizer
    again = pickle.loads(pickle.dumps(prepare))
    raw = picture()
    assert torch.equal(
        prepare(raw, random.Random(2))["pixels"], again(raw, random.Random(2))["pixels"]
    )


# From raw images, and wrong options


def test_tokens_accepts_raw_arrays():
    adapter = adapter_of()
    raw = picture(9, 13)
    tokens = adapter.tokens([raw.permute(1, 2, 0).numpy(), raw])
    for same in (tokens[1], embed(adapter, [raw])[0]):
        torch.testing.assert_close(tokens[0], same, rtol=0, atol=1e-12)
    assert tokens.spans[0].modality == "image"


def test_describe_gives_the_grid():
    described = adapter_of(patch_size=5).describe(picture(23, 31))
    assert described == "5×7 patches of 5×5 pixels of 23×31 (height×width)"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: ImageAdapter(D, patch_size=4, stride=5),
            r"stride must be at least 1 and at most the patch size, got \(5, 5\) for .*\(4, 4\)",
        ),
        (lambda: ImageAdapter(D, patch_size=4, stride=0), r"stride must be at least 1 .* \(0, 0\)"),
        (lambda: ImageAdapter(D, patch_size=4, stride=-1), "stride must be at least 1"),
        (
            lambda: ImageAdapter(D, patch_size=4, stride=2, stem="conv"),
            "stem=conv always has a stride of patch_size=4: leave out stride, got 2",
        ),
        (lambda: ImageAdapter(D, patch_size=12, stem="conv"), "must be 2, 4, 8, 16 or 32, got 12"),
        (lambda: ImageAdapter(D, patch_size=1, stem="conv"), "must be 2, 4, 8, 16 or 32, got 1"),
        (
            lambda: ImageAdapter(D, stem="vgg"),
            "stem must be one of 'patch', 'conv' or 'residual'",
        ),
        (lambda: ImageAdapter(D, in_channels=2), "in_channels must be one of 1 or 3, got 2"),
        (
            lambda: ImageAdapter(D, image_size=None, resize=ResizeOptions("crop")),
            "resize.mode=crop needs an image_size, got null",
        ),
        (
            lambda: ImageAdapter(D, image_size=None, resize=ResizeOptions("stretch")),
            "resize.mode=stretch needs an image_size, got null",
        ),
        (
            lambda: ImageAdapter(D, image_size=0),
            r"image_size must be one positive number or \[height, width\], got 0",
        ),
        (
            lambda: ImageAdapter(D, image_size=(3, 5, 7)),
            r"image_size must be one .* got \(3, 5, 7\)",
        ),
        (
            lambda: ImageAdapter(D, normalize=ImageNormalization([0.5], [0.5])),
            r"normalize.mean must have 3 numbers, one per channel, got \[0.5\]",
        ),
        (lambda: ImageNormalization([0.5]), r"both mean and std, or neither, got \[0.5\] and None"),
        (lambda: ResizeOptions("fit"), "mode must be one of .*, got 'fit'"),
        (lambda: ResizeOptions(interpolation="box"), "interpolation must be one of .*, got 'box'"),
        (lambda: ResizeOptions(crop_ratio=0.0), "crop_ratio must be greater than 0, got 0.0"),
        (lambda: ResizeOptions(max_pixels=0), "max_pixels must be at least 1, got 0"),
        (lambda: ImageAugment(zoom=0.0), "zoom must be greater than 0, got 0.0"),
        (lambda: ImageAugment(zoom=1.5), "zoom must be at most 1, got 1.5"),
        (lambda: ImageAugment(crop=-1), "crop must be at least 0, got -1"),
        (lambda: ImageAugment(randaugment=31), "randaugment must be at most 30, got 31"),
        (lambda: ImageAugment(token_dropout=1.0), "token_dropout must be below 1, got 1.0"),
        (
            lambda: embed(ImageAdapter(10, patch_size=4, pos_embed="sinusoidal"), [picture()]),
            "dim must be a multiple of 4 for two-dimensional sinusoidal positions, got 10",
        ),
    ],
)
def test_wrong_options_are_refused_with_their_values(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_the_norm_option_adds_a_layer_norm():
    adapter = adapter_of(norm=EmbeddingNormOptions(eps=1e-3))
    plain = adapter_of()
    expected = F.layer_norm(embed(plain, [picture()]).x, (D,), eps=1e-3)
    torch.testing.assert_close(embed(adapter, [picture()]).x, expected)


# Columns of a table


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["a.jpg", "b.PNG", "folder/c.webp"], 1.0),
        (["a.jpg", "note", "other", "words"], 0.25),
        ([b"\xff\xd8\xff\xe0", b"\x89PNG\r\n", b"RIFF1234WEBPVP8", b"RIFF1234WAVEfmt"], 0.75),
        ([np.zeros((5, 7, 3), np.uint8), np.zeros((5, 7), np.float32)], 0.5),
        ([3, 4.5], 0),
        ([], 0),
    ],
)
def test_columns_of_images_are_recognized(values, expected):
    assert scores_of(profile_of(values)).get("image", 0) == expected


def test_a_summary_gives_the_sizes():
    summarize = adapter_of().tokenizer.reader.describe
    assert summarize([], [picture(3, 5), picture(3, 5)]) == "all 5×3"
    several = [picture(3, 5), picture(11, 7), picture(20, 30)]
    assert summarize([], several) == "5×3 to 30×20, median 7×11, 3 sizes"
    assert summarize([], []) == ""


def test_files_above_max_pixels_are_refused():
    prepare = adapter_of(resize=ResizeOptions(max_pixels=100)).tokenizer
    assert isinstance(prepare, ImageTokenizer)
    with pytest.raises(ValueError, match="713 pixels, more than max_pixels=100"):
        prepare.reader.read(picture())
