"""Images to Tokens: patches against strided convolutions, padding, places, positions, noise in training."""

import pickle
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchvision.transforms import v2

from dxn.tokenize import ImageAdapter, ImageAugment
from dxn.tokenize.stem import ConvStem

D = 12


def picture(height=23, width=31, channels=3, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (channels, height, width), dtype=np.uint8))


def adapter_of(**options):
    torch.manual_seed(0)
    options = {"patch_size": 4, "image_size": None, **options}
    return ImageAdapter(D, **options).double().eval()


def batch_of(adapter, pictures):
    return adapter.prepare.collate([adapter.prepare(p) for p in pictures])


def embed(adapter, pictures):
    return adapter(batch_of(adapter, pictures))


# Patches


@pytest.mark.parametrize(("patch_size", "stride"), [(4, None), (5, None), (5, 3), (7, 2), (3, 1)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(20, 35), (23, 31), (3, 13)])
def test_patches_equal_a_strided_convolution_with_the_same_weights(patch_size, stride, channels, size):
    adapter = adapter_of(patch_size=patch_size, stride=stride, in_channels=channels, position="none")
    step = stride or patch_size
    conv = nn.Conv2d(channels, D, patch_size, step).double()
    conv.weight.data = adapter.proj.weight.data.view(D, channels, patch_size, patch_size)
    conv.bias.data = adapter.proj.bias.data
    raw = picture(*size, channels)
    # Zeros, which are the mean, below and to the right, until every pixel is in a patch.
    over = [
        max(0, -(-(n - patch_size) // step) * step + patch_size - n) if n > patch_size else patch_size - n for n in size
    ]
    grid = conv(F.pad((raw.double() / 255 - 0.5) / 0.5, (0, over[1], 0, over[0]))[None])[0]
    tokens = embed(adapter, [raw])
    assert bool(tokens.mask.all())
    torch.testing.assert_close(tokens[0], grid.flatten(1), rtol=0, atol=1e-12)


def test_the_conv_stem_equals_its_layers_written_out():
    stem = ConvStem(in_channels=3, dim=D, stride=4, width=5).double()
    x = torch.randn(1, 3, 23, 31, dtype=torch.float64)
    y = x
    for conv, norm in zip(stem.convs, stem.norms, strict=True):
        y = F.conv2d(y, conv.weight, stride=2, padding=1)
        mean, var = y.mean(1, keepdim=True), y.var(1, keepdim=True, correction=0)  # over channels, at each cell
        y = (y - mean) / (var + norm.eps).sqrt() * norm.weight[:, None, None] + norm.bias[:, None, None]
        y = F.gelu(y)
    expected = torch.einsum("dc,bchw->bhwd", stem.proj.weight, y) + stem.proj.bias
    assert [tuple(c.weight.shape[:2]) for c in stem.convs] == [(5, 3), (10, 5)]
    torch.testing.assert_close(stem(x, torch.tensor([[23, 31]])), expected, rtol=0, atol=1e-12)
    assert expected.shape == (1, 6, 8, D)


# Padding

STEMS = [{}, {"stride": 3}, {"stem": "conv"}, {"stem": "conv", "patch_size": 8}, {"patch_size": 5}]


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 29), st.integers(1, 29)), min_size=2, max_size=3),
    options=st.sampled_from(STEMS),
    position=st.sampled_from(["learned", "sinusoidal", "none"]),
)
def test_a_small_picture_beside_a_large_one_is_as_it_is_alone(sizes, options, position):
    adapter = adapter_of(position=position, **options)
    pictures = [picture(*size, seed=i) for i, size in enumerate(sizes)]
    together = embed(adapter, pictures)
    for i, raw in enumerate(pictures):
        alone = embed(adapter, [raw])
        assert bool(alone.mask.all())
        torch.testing.assert_close(together[i], alone[0], rtol=0, atol=1e-12)
        places = together.spans[0].places[i][together.mask[i]]
        torch.testing.assert_close(places, alone.spans[0].places[0], rtol=0, atol=0)


@pytest.mark.parametrize("options", STEMS)
def test_what_lies_in_the_padding_changes_nothing(options):
    adapter = adapter_of(**options)
    batch = batch_of(adapter, [picture(23, 31), picture(9, 13)])
    before = adapter(batch)
    batch["pixels"][1, :, 9:] = 255
    batch["pixels"][1, :, :, 13:] = 255
    assert torch.equal(adapter(batch)[1], before[1])


@pytest.mark.parametrize("options", STEMS)
def test_pictures_of_one_batch_never_see_each_other(options):
    adapter = adapter_of(**options)
    before = embed(adapter, [picture(23, 31), picture(seed=1)])[0]
    assert torch.equal(embed(adapter, [picture(23, 31), picture(seed=2)])[0], before)


def test_the_mask_is_true_at_a_pictures_own_patches():
    tokens = embed(adapter_of(), [picture(13, 9), picture(5, 17)])  # grids of 4x3 and 2x5 in one of 4x5
    grid = tokens.mask.view(2, 4, 5).int()
    assert grid[0].tolist() == [[1, 1, 1, 0, 0]] * 4
    assert grid[1].tolist() == [[1] * 5] * 2 + [[0] * 5] * 2
    assert torch.equal(tokens.spans[0].places.isnan().all(-1), ~tokens.mask)
    assert torch.equal(tokens.spans[0].places.isnan().any(-1), ~tokens.mask)


# Places


def test_places_are_pixel_boxes_of_the_raw_picture_row_by_row():
    places = embed(adapter_of(patch_size=5), [picture(7, 12)]).spans[0].places[0]
    rows, columns = [(0, 5), (5, 7)], [(0, 5), (5, 10), (10, 12)]  # the last ones end with the picture
    assert places.tolist() == [[a, c, b, d] for a, b in rows for c, d in columns]


def test_overlapping_patches_have_overlapping_places():
    places = embed(adapter_of(patch_size=4, stride=3), [picture(8, 4)]).spans[0].places[0]
    assert places.tolist() == [[0, 0, 4, 4], [3, 0, 7, 4], [6, 0, 8, 4]]


@pytest.mark.parametrize(
    ("resize", "shape", "grid", "first", "last"),
    [
        # 20x44 into 10x22, every pixel of it two raw ones each way
        ("within", (20, 44), (2, 3), [0, 0, 16, 16], [16, 32, 20, 44]),
        ("within", (7, 11), (1, 2), [0, 0, 7, 8], [0, 8, 7, 11]),  # smaller than the size: as it is
        ("stretch", (44, 66), (3, 3), [0, 0, 16, 24], [32, 48, 44, 66]),  # 22x22: 2 down, 3 across
        ("crop", (44, 88), (3, 3), [0, 22, 16, 38], [32, 54, 44, 66]),  # the middle 44 of 88
    ],
)
def test_after_resizing_places_are_still_those_of_the_raw_picture(resize, shape, grid, first, last):
    adapter = adapter_of(patch_size=8, image_size=22, resize=resize)
    places = embed(adapter, [picture(*shape)]).spans[0].places[0]
    assert len(places) == grid[0] * grid[1]
    assert places[0].tolist() == first and places[-1].tolist() == last


@settings(max_examples=40, deadline=None)
@given(height=st.integers(1, 67), width=st.integers(1, 67), resize=st.sampled_from(["within", "stretch", "crop"]))
def test_resized_pictures_have_the_asked_size_and_their_places_lie_inside(height, width, resize):
    adapter = adapter_of(patch_size=4, image_size=(13, 17), resize=resize)
    sample = adapter.prepare(picture(height, width))
    h, w = sample["pixels"].shape[1:]
    if resize == "within":
        assert h <= 13 and w <= 17 and h <= height and w <= width
    else:
        assert (h, w) == (13, 17)
    places = adapter(adapter.prepare.collate([sample])).spans[0].places[0]
    assert places.min() >= 0 and places[:, 2].max() <= height + 1e-4 and places[:, 3].max() <= width + 1e-4
    assert bool((places[:, 2:] > places[:, :2]).all())
    if resize != "crop":  # every raw pixel is some patch's
        torch.testing.assert_close(places[-1, 2:], torch.tensor([height, width]).float(), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("resize", "size"), [("within", (11, 15)), ("stretch", (13, 15)), ("crop", (13, 17)), ("crop", (41, 55))]
)
def test_pixels_are_resized_as_torchvision_resizes_them(resize, size):
    limit = (41, 43) if size[0] == 41 else (13, 15)
    expected = v2.functional.resize(picture(), size, v2.InterpolationMode.BILINEAR, antialias=True)
    got = adapter_of(image_size=limit, resize=resize).prepare(picture())["pixels"]
    if resize == "crop":
        expected = v2.functional.center_crop(expected, list(limit))
    assert got.shape == expected.shape
    assert int((got.int() - expected.int()).abs().max()) <= 1  # rounding


@pytest.mark.parametrize("resize", ["within", "stretch", "crop"])
def test_a_places_box_is_where_the_patchs_pixels_come_from(resize):
    """A white square on black: the patches that see white are those whose boxes touch the square."""
    raw = torch.zeros(3, 64, 96, dtype=torch.uint8)
    raw[:, 24:40, 40:56] = 255
    adapter = adapter_of(patch_size=8, image_size=32, resize=resize, position="none")
    adapter.proj.weight.data.fill_(1.0)
    adapter.proj.bias.data.zero_()
    adapter.mean.zero_()  # black is then 0, like what fills up the last patches
    tokens = embed(adapter, [raw])
    brightness = tokens.x[0, :, 0]
    top, left, bottom, right = tokens.spans[0].places[0].T
    touches = (top < 40) & (bottom > 24) & (left < 56) & (right > 40)
    inside = brightness > brightness.min() + 1
    assert 0 < int(touches.sum()) < len(touches)
    # Antialiasing spreads an edge by a pixel, so a neighbour may see a little of it.
    assert bool((brightness[touches] > brightness.min() + 1).all())
    near = (top < 44) & (bottom > 20) & (left < 60) & (right > 36)
    assert bool(near[inside].all())


# Positions and statistics


def test_learned_positions_are_added_as_they_are_at_the_configs_own_size():
    adapter = adapter_of(image_size=(12, 20))
    assert adapter.position.table.shape == (3, 5, D)
    plain = adapter_of(image_size=(12, 20), position="none")
    plain.proj = adapter.proj
    difference = embed(adapter, [picture(12, 20)]).x - embed(plain, [picture(12, 20)]).x
    torch.testing.assert_close(difference[0], adapter.position.table.flatten(0, 1), rtol=0, atol=1e-12)


def test_learned_positions_are_interpolated_to_each_pictures_own_grid():
    adapter = adapter_of(image_size=(12, 20))
    adapter.proj.weight.data.zero_()
    adapter.proj.bias.data.zero_()
    tokens = embed(adapter, [picture(12, 20), picture(7, 11)])  # 3x5 and 2x3 patches
    expected = F.interpolate(adapter.position.table.permute(2, 0, 1)[None], (2, 3), mode="bicubic", antialias=True)[0]
    torch.testing.assert_close(tokens[1], expected.flatten(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(tokens[0], adapter.position.table.flatten(0, 1).T, rtol=0, atol=1e-12)


def test_without_positions_moving_a_patch_moves_its_column():
    adapter, raw = adapter_of(position="none"), picture(4, 12)
    order = torch.tensor([2, 0, 1])
    moved = torch.cat([raw.split(4, dim=2)[i] for i in order], 2)
    assert torch.equal(embed(adapter, [moved])[0], embed(adapter, [raw])[0][:, order])
    learned = adapter_of()
    assert not torch.allclose(embed(learned, [moved])[0], embed(learned, [raw])[0][:, order])


@pytest.mark.parametrize("channels", [1, 3])
def test_fitting_finds_numpys_mean_and_deviation_of_each_channel(channels):
    pictures = [picture(7, 11, channels, 1), picture(13, 5, channels, 2), picture(3, 3, channels, 3) // 5]
    adapter = adapter_of(in_channels=channels).fit(pictures)
    pixels = np.concatenate([p.numpy().reshape(channels, -1) for p in pictures], 1) / 255
    torch.testing.assert_close(adapter.mean.numpy(), pixels.mean(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(adapter.std.numpy(), pixels.std(1), rtol=0, atol=1e-12)


def test_fitting_reads_a_thousand_pictures_and_no_more():
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield picture(2, 3)

    adapter_of().fit(endless())
    assert read == 1000


def test_fitting_on_black_pictures_or_none_leaves_a_deviation_to_divide_by():
    adapter = adapter_of().fit([torch.zeros(3, 5, 7, dtype=torch.uint8)])
    assert adapter.mean.tolist() == [0, 0, 0] and adapter.std.min() > 0
    assert adapter_of().fit([]).std.tolist() == [0.5, 0.5, 0.5]


# Noise in training

AUGMENTS = [{"crop": 3}, {"zoom": 0.3}, {"flip": True}, {"randaugment": 15}, {"erase": 1.0}]


@pytest.mark.parametrize("options", AUGMENTS)
@pytest.mark.parametrize("channels", [1, 3])
def test_each_augment_is_a_function_of_its_seed_and_keeps_the_shape(options, channels):
    prepare = adapter_of(in_channels=channels, augment=ImageAugment(**options)).prepare
    raw = picture(23, 31, channels)

    def drawn(seed):
        return prepare(raw, random.Random(seed))["pixels"]

    assert torch.equal(prepare(raw)["pixels"], raw)
    for seed in range(5):
        assert drawn(seed).shape == raw.shape and drawn(seed).dtype == torch.uint8
        assert torch.equal(drawn(seed), drawn(seed))
    assert len({drawn(seed).numpy().tobytes() for seed in range(11)}) > 1


def test_augmenting_leaves_torchs_own_generator_and_the_raw_picture_alone():
    raw, state = picture(), torch.get_rng_state()
    ImageAugment(crop=3, zoom=0.5, flip=True, randaugment=9, erase=1.0)(raw, random.Random(3))
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(raw, picture())


def test_an_augment_that_asks_for_nothing_changes_nothing():
    assert torch.equal(ImageAugment()(picture(), random.Random(3)), picture())


def test_a_flip_mirrors_left_and_right_one_time_in_two():
    raw, flip = picture(), ImageAugment(flip=True)
    drawn = [flip(raw, random.Random(seed)) for seed in range(101)]
    mirrored = sum(torch.equal(d, raw.flip(2)) for d in drawn)
    assert mirrored + sum(torch.equal(d, raw) for d in drawn) == 101
    assert 30 < mirrored < 71


def test_a_crop_shifts_and_repeats_the_edge():
    raw = picture(11, 13)
    padded = F.pad(raw[None].float(), (2, 2, 2, 2), mode="replicate")[0].byte()
    shifts = {padded[:, i : i + 11, j : j + 13].numpy().tobytes() for i in range(5) for j in range(5)}
    drawn = {ImageAugment(crop=2)(raw, random.Random(seed)).numpy().tobytes() for seed in range(199)}
    assert drawn == shifts


def test_a_zoom_shows_a_part_of_at_least_its_share():
    ramp = torch.arange(0, 200, 2, dtype=torch.uint8).expand(3, 100, 100)
    for seed in range(7):
        row = ImageAugment(zoom=0.25)(ramp, random.Random(seed))[0, 50].float()
        shown = float(row[-1] - row[0]) / 198  # of a side: at least half of it, for a quarter of the area
        assert 0.49 <= shown <= 1.01


def test_erasing_blanks_one_rectangle_in_grey():
    raw = torch.zeros(3, 23, 31, dtype=torch.uint8)
    erased = ImageAugment(erase=1.0)(raw, random.Random(1))
    rows, columns = erased[0].any(1), erased[0].any(0)
    assert erased.unique().tolist() == [0, 128]
    assert int((erased[0] > 0).sum()) == int(rows.sum()) * int(columns.sum()) < 23 * 31


def test_token_dropout_keeps_its_share_of_real_columns_in_order_in_training_only():
    adapter = adapter_of(token_dropout=0.4)
    pictures = [picture(12, 20), picture(8, 8)]  # 15 and 4 patches in a grid of 15
    whole = embed(adapter, pictures)
    part = embed(adapter.train(), pictures)
    assert whole.x.shape[1] == 15 and part.x.shape[1] == 9 and part.mask.sum(1).tolist() == [9, 4]
    torch.testing.assert_close(part[1], whole[1], rtol=0, atol=0)
    boxes, kept = whole.spans[0].places[0].tolist(), part.spans[0].places[0].tolist()
    order = [boxes.index(box) for box in kept]
    assert order == sorted(set(order))
    torch.testing.assert_close(part.x[0], whole.x[0, order], rtol=0, atol=0)
    other = embed(adapter, pictures).spans[0].places[0].tolist()
    assert other != kept


def test_preparing_works_the_same_in_another_process():
    prepare = adapter_of(image_size=16, augment=ImageAugment(crop=3, randaugment=9)).prepare
    again = pickle.loads(pickle.dumps(prepare))
    raw = picture()
    assert torch.equal(prepare(raw, random.Random(2))["pixels"], again(raw, random.Random(2))["pixels"])


# From raw, and wrong options


def test_raw_arrays_go_straight_to_tokens():
    adapter = adapter_of()
    raw = picture(9, 13)
    tokens = adapter.tokens([raw.permute(1, 2, 0).numpy(), raw])
    for same in (tokens[1], embed(adapter, [raw])[0]):
        torch.testing.assert_close(tokens[0], same, rtol=0, atol=1e-12)
    assert tokens.spans[0].modality == "image"


def test_a_description_names_the_grid():
    described = adapter_of(patch_size=5).describe(picture(23, 31))
    assert described == "5×7 patches of 5×5 pixels of 23×31 (height×width)"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: ImageAdapter(D, patch_size=4, stride=5),
            "stride must be at least 1 and at most patch_size, got 5 and 4",
        ),
        (
            lambda: ImageAdapter(D, patch_size=4, stride=0),
            "stride must be at least 1 and at most patch_size, got 0 and 4",
        ),
        (lambda: ImageAdapter(D, patch_size=4, stride=-1), "stride must be at least 1"),
        (
            lambda: ImageAdapter(D, patch_size=4, stride=2, stem="conv"),
            "a convolutional stem has patch_size as its stride, got 2 and 4",
        ),
        (lambda: ImageAdapter(D, patch_size=12, stem="conv"), "stem must be 2, 4, 8 or 16, got 12"),
        (lambda: ImageAdapter(D, patch_size=1, stem="conv"), "stem must be 2, 4, 8 or 16, got 1"),
        (lambda: ImageAdapter(D, image_size=None, resize="crop"), "resize=crop needs an image_size"),
        (lambda: ImageAdapter(D, image_size=None, resize="stretch"), "resize=stretch needs an image_size"),
        (lambda: ImageAdapter(D, image_size=0), r"image_size must be one positive number or \[height, width\], got 0"),
        (lambda: ImageAdapter(D, image_size=(3, 5, 7)), r"image_size must be one .* got \(3, 5, 7\)"),
        (lambda: ImageAugment(zoom=0.0), "zoom must be over 0 and at most 1, got 0.0"),
        (lambda: ImageAugment(zoom=1.5), "zoom must be over 0 and at most 1, got 1.5"),
        (
            lambda: embed(ImageAdapter(10, patch_size=4, position="sinusoidal"), [picture()]),
            "dim must be a multiple of 4 for two-dimensional sinusoidal positions, got 10",
        ),
    ],
)
def test_wrong_options_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
