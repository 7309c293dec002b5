"""Images are reduced when they are read: to the pixels of the model's input, in every format."""

import io
import random
import warnings

import numpy as np
import pytest
import torch
from helpers.media import encoded, read_image
from PIL import Image, ImageOps

from dxn.tokenize import ImageAdapter, ImageAugment, ResizeOptions
from dxn.tokenize.base import BadMedia
from dxn.tokenize.image.reader import DRAFT_MARGIN, ImageReader, image_size, resize

LARGE = (1500, 1100)  # width and height; above MIN_DRAFT_PIXELS
MODES = ("within", "stretch", "crop", "cover", "pad")


def smooth(width, height, channels=3, seed=0):
    """A picture without fine details, as an array of shape (H, W, C)."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (7, 11, channels), dtype=np.uint8)
    image = Image.fromarray(coarse if channels > 1 else coarse[..., 0])
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def noisy(width, height, channels=3, seed=0):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture(scope="module")
def photo():
    """A large JPEG."""
    return encoded(Image.fromarray(smooth(*LARGE)), "JPEG", quality=95)


def prepare_of(image_size=32, mode="within", *, augment=None, in_channels=3, **resize):
    options = ResizeOptions(mode, **resize)
    adapter = ImageAdapter(
        8,
        image_size=image_size,
        patch_size=4,
        in_channels=in_channels,
        resize=options,
        augment=augment or ImageAugment(),
    )
    return adapter.tokenizer


def difference(one, other):
    assert one.shape == other.shape
    return float((one.int() - other.int()).abs().float().mean())


# Equal pixels


SIZES = [(150, 110), (97, 211), (32, 32), (20, 61), (11, 7), (300, 9)]
# Each size with each mode, and each option with each size and with each mode.
RESIZED = [
    (
        size,
        mode,
        (1.0, 0.8)[(i + j) % 2],
        ("bilinear", "bicubic")[j % 2],
        (32, (24, 40))[i // 2 % 2],
    )
    for i, size in enumerate(SIZES)
    for j, mode in enumerate(MODES)
]


@pytest.mark.parametrize(("size", "mode", "crop_ratio", "interpolation", "target"), RESIZED)
def test_the_input_of_the_model_is_bit_equal_to_resizing_the_original(
    size, mode, crop_ratio, interpolation, target
):
    prepare = prepare_of(target, mode, crop_ratio=crop_ratio, interpolation=interpolation)
    source = noisy(*size)
    raw = prepare.reader.read(source)
    original = read_image(source)
    assert raw.numel() <= original.numel()
    assert torch.equal(prepare(raw)["pixels"], prepare(original)["pixels"])
    if raw.shape != original.shape:
        # The rest of the work is cropping.
        assert torch.equal(raw, resize(original, raw.shape[1:], interpolation))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP"])
def test_small_files_have_the_pixels_of_a_complete_decoding(kind):
    data = encoded(Image.fromarray(noisy(400, 300)), kind)
    prepare = prepare_of(32)
    assert torch.equal(prepare.reader.read(data), resize(read_image(data), (24, 32)))


def test_without_an_image_size_images_keep_their_size(photo):
    assert prepare_of(None).reader.read(photo).shape == (3, 1100, 1500)
    assert torch.equal(prepare_of(None).reader.read(photo), read_image(photo))


@pytest.mark.parametrize("source", ["path", "bytes", "pil", "array", "tensor"])
def test_every_kind_of_source_is_reduced(source, tmp_path):
    pixels = noisy(200, 100)
    (tmp_path / "a.png").write_bytes(encoded(Image.fromarray(pixels), "PNG"))
    sources = {
        "path": str(tmp_path / "a.png"),
        "bytes": (tmp_path / "a.png").read_bytes(),
        "pil": Image.fromarray(pixels),
        "array": pixels,
        "tensor": torch.from_numpy(pixels).permute(2, 0, 1),
    }
    expected = resize(torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), (16, 32))
    assert torch.equal(prepare_of(32).reader.read(sources[source]), expected)


@pytest.mark.parametrize(
    ("image", "options"),
    [
        (Image.fromarray(noisy(80, 60)).quantize(13), {}),
        (Image.fromarray(np.dstack([noisy(80, 60), noisy(80, 60, 1)])), {}),
        (Image.fromarray(noisy(80, 60, 1).astype(np.uint16) * 257), {}),
        (Image.fromarray(noisy(80, 60, 1)).convert("1"), {}),
        (Image.fromarray(noisy(80, 60, 1)), {}),
    ],
    ids=["palette", "transparent", "16 bits", "1 bit", "gray"],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_converted_before_they_are_reduced(image, options, channels):
    data = encoded(image, "PNG", **options)
    prepare = prepare_of(16, in_channels=channels)
    complete = read_image(data, channels=channels)
    assert torch.equal(prepare.reader.read(data), resize(complete, (12, 16)))


def test_the_first_picture_of_an_animation_is_reduced():
    frames = [Image.new("RGB", (70, 50), colour) for colour in ("red", "green", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    raw = prepare_of(14).reader.read(data)
    assert raw.shape == (3, 10, 14)
    assert raw[:, 5, 7].tolist() == [255, 0, 0]


# Large JPEGs, which the decoder reduces


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("target", [16, 48, 96, (40, 90)])
def test_a_large_photo_is_nearly_equal_to_a_complete_decoding(photo, mode, target):
    prepare = prepare_of(target, mode)
    raw = prepare.reader.read(photo)
    assert difference(prepare(raw)["pixels"], prepare(read_image(photo))["pixels"]) < 0.4
    # The decoder reduces the photo; the margin keeps the difference small.
    opened = Image.open(io.BytesIO(photo))
    needed = (raw.shape[2] * DRAFT_MARGIN, raw.shape[1] * DRAFT_MARGIN)
    opened.draft(None, needed)
    assert opened.size[0] >= needed[0] and opened.size[1] >= needed[1]


def test_a_photo_with_details_differs_by_few_levels():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 20, (LARGE[1], LARGE[0], 3))
    pixels = (smooth(*LARGE) + noise).clip(0, 255).astype(np.uint8)
    data = encoded(Image.fromarray(pixels), "JPEG", quality=95)
    assert difference(prepare_of(96).reader.read(data), resize(read_image(data), (70, 96))) < 0.4


@pytest.mark.parametrize(
    ("orientation", "target", "mode"),
    [
        *((orientation, (24, 60), MODES[orientation % 5]) for orientation in range(1, 9)),
        *((6, 48, mode) for mode in MODES),
    ],
)
def test_a_rotated_photo_is_reduced_like_its_upright_copy(orientation, target, mode):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(smooth(*LARGE)), "JPEG", exif=exif, quality=95)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    assert upright.shape[:2] == ((1100, 1500) if orientation < 5 else (1500, 1100))
    assert image_size(data) == upright.shape[:2]
    prepare = prepare_of(target, mode)
    expected = prepare(prepare.reader.read(upright))
    sample = prepare(prepare.reader.read(data))
    assert difference(sample["pixels"], expected["pixels"]) < 0.4
    assert torch.equal(sample["pixel_map"], expected["pixel_map"])


@pytest.mark.parametrize("options", [{"progressive": True}, {"subsampling": 0}, {"optimize": True}])
def test_every_kind_of_jpeg_is_reduced(options):
    data = encoded(Image.fromarray(smooth(*LARGE)), "JPEG", quality=95, **options)
    assert difference(prepare_of(48).reader.read(data), resize(read_image(data), (35, 48))) < 0.4


@pytest.mark.parametrize("channels", [1, 3])
def test_gray_and_cmyk_photos_are_reduced(channels):
    gray = Image.fromarray(smooth(*LARGE, channels=1))
    ink = Image.fromarray(smooth(*LARGE, channels=4), "CMYK")
    for image in (gray, ink):
        data = encoded(image, "JPEG", quality=95)
        prepare = prepare_of(48, in_channels=channels)
        complete = read_image(data, channels=channels)
        assert difference(prepare.reader.read(data), resize(complete, (35, 48))) < 0.4


def test_a_photo_with_a_second_picture_as_phones_write_it_is_reduced():
    image = Image.fromarray(smooth(*LARGE))
    data = encoded(image, "MPO", save_all=True, append_images=[Image.new("RGB", (30, 20))])
    assert Image.open(io.BytesIO(data)).format == "MPO"
    assert difference(prepare_of(48).reader.read(data), resize(read_image(data), (35, 48))) < 0.4


def test_the_image_of_the_caller_keeps_its_size(photo):
    image = Image.open(io.BytesIO(photo))
    raw = prepare_of(32).reader.read(image)
    assert image.size == LARGE
    assert torch.equal(raw, resize(read_image(photo), (23, 32)))


def test_a_truncated_photo_is_refused(photo):
    with pytest.raises(BadMedia, match=r"^damaged or truncated image"):
        prepare_of(32).reader.read(photo[: len(photo) // 2])


def test_max_pixels_is_checked_before_a_photo_is_reduced(photo):
    with pytest.raises(BadMedia, match=r"^1,650,000 pixels, more than max_pixels=1,000,000$"):
        prepare_of(32, max_pixels=1_000_000).reader.read(photo)


def test_reading_leaves_the_warnings_on(photo):
    prepare_of(32).reader.read(photo)
    with pytest.raises(UserWarning, match="still shown"):
        warnings.warn("still shown", UserWarning, stacklevel=1)


# Augmentation and coordinates


@pytest.mark.parametrize("mode", MODES)
def test_the_smallest_random_crop_has_the_pixels_of_the_model(photo, mode):
    prepare = prepare_of(32, mode, augment=ImageAugment(zoom=0.25))
    height, width = prepare.reader.read(photo).shape[1:]
    whole_height, whole_width = prepare_of(32, mode).reader.read(photo).shape[1:]
    # A quarter of the area is half of each side.
    assert (height, width) == pytest.approx((2 * whole_height, 2 * whole_width), abs=1)


def test_an_image_is_never_enlarged_for_a_random_crop():
    prepare = prepare_of(32, augment=ImageAugment(zoom=0.01))
    assert prepare.reader.read(noisy(50, 40)).shape == (3, 40, 50)


def test_a_sample_with_a_random_crop_has_the_size_of_the_model(photo):
    prepare = prepare_of(32, "crop", augment=ImageAugment(zoom=0.1, flip=True, crop=3))
    raw = prepare.reader.read(photo)
    for seed in range(5):
        assert prepare(raw, random.Random(seed))["pixels"].shape == (3, 32, 32)


def test_without_augmentation_an_image_is_read_as_for_a_prediction(photo):
    training = prepare_of(32, augment=ImageAugment(zoom=0.25))
    prediction = prepare_of(32)
    raw = training.plain().reader.read(photo)
    assert torch.equal(raw, prediction.reader.read(photo))
    # The preprocessor of the training prepares the samples of its validation split.
    assert torch.equal(training(raw)["pixels"], prediction(raw)["pixels"])


@pytest.mark.parametrize("mode", MODES)
def test_coords_refer_to_the_picture_as_it_was_read(photo, mode):
    adapter = ImageAdapter(8, image_size=32, patch_size=8, resize=ResizeOptions(mode))
    raw = adapter.tokenizer.reader.read(photo)
    coords = adapter.tokens([photo]).spans[0].coords[0]
    height, width = raw.shape[1:]
    assert coords.min() >= 0
    assert coords[:, 2].max() <= height and coords[:, 3].max() <= width
    if mode != "crop":
        assert coords[-1, 2:].tolist() == [height, width]


# Sizes


def test_the_size_of_a_file_is_that_of_the_original(photo, tmp_path):
    (tmp_path / "a.jpg").write_bytes(photo)
    for source in (photo, str(tmp_path / "a.jpg"), read_image(photo)):
        assert image_size(source) == (1100, 1500)
    png = encoded(Image.fromarray(noisy(7, 5)), "PNG")
    assert image_size(png) == (5, 7)
    with pytest.raises(BadMedia, match=r"^not a supported image"):
        image_size(b"no picture")


@pytest.mark.parametrize("prefix", ["", "tables/"])
def test_a_url_is_not_downloaded_and_named_as_such(prefix):
    with pytest.raises(
        BadMedia, match=r"^is a URL: download the file, and write its path instead$"
    ):
        read_image(f"{prefix}https:/example.com/a.jpg")


def test_a_png_can_have_its_orientation_behind_its_pixels():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.new("RGB", (11, 7)), "PNG", exif=exif)
    start = data.index(b"eXIf") - 4
    stop = start + 12 + int.from_bytes(data[start : start + 4], "big")
    end = data.index(b"IEND") - 4
    moved = data[:start] + data[stop:end] + data[start:stop] + data[end:]
    for content in (data, moved):
        assert image_size(content) == tuple(ImageReader().read(content).shape[1:]) == (11, 7)


def test_pictures_of_12_bits_in_files_of_16_bits_are_counted():
    reader = ImageReader()
    ramp = np.linspace(0, 4095, 77).reshape(7, 11).astype(np.uint16)
    cells = [encoded(Image.fromarray(pixels), "PNG") for pixels in (ramp, 16 * ramp)]
    text = reader.describe([reader.read(cell) for cell in cells], cells)
    assert "; 1 of 16 bits are nearly black, with no pixel above 16 of 255: scale their" in text
