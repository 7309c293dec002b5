"""JPEG files are decoded by torchvision to the same pixels as by Pillow."""

import io

import numpy as np
import pytest
import torch
from helpers.media import read_image
from PIL import Image

from dxn.tokenize.base import BadMedia
from dxn.tokenize.image import reader as image_file


def jpeg_of(mode, size=(53, 37), **options):
    channels = {"L": (), "RGB": (3,), "CMYK": (4,)}[mode]
    rand = np.random.default_rng(0)
    pixels = rand.integers(0, 256, (*size[::-1], *channels), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels, mode).save(file, "JPEG", **options)
    return file.getvalue()


def both(monkeypatch, source, **options):
    ours = read_image(source, **options)
    monkeypatch.setattr(image_file, "decode_jpeg", lambda *_: None)
    return ours, read_image(source, **options)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_the_pixels_equal_those_of_pillow(monkeypatch, mode, channels, options):
    source = jpeg_of(mode, **options)
    ours, pillow = both(monkeypatch, source, channels=channels)
    assert torch.equal(ours, pillow)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_and_reduced_photo_equals_that_of_pillow(monkeypatch, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    source = jpeg_of("RGB", exif=exif)
    ours, pillow = both(monkeypatch, source, reduced_size=lambda h, w: (h // 3, w // 2))
    assert torch.equal(ours, pillow)


def test_the_decoder_of_torchvision_is_in_use():
    with Image.open(io.BytesIO(jpeg_of("RGB"))) as image:
        assert image_file.decode_jpeg(image, 3).shape == (3, 37, 53)
        assert image_file.decode_jpeg(image, 1) is None


def test_a_truncated_file_is_reported():
    with pytest.raises(BadMedia, match="truncated"):
        read_image(jpeg_of("RGB")[:-900])
