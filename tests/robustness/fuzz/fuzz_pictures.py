"""The kind "pictures" of fuzz.py: image and video files of an untrusted source."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from fuzz_media import MediaFiles
from PIL import Image

from dxn.tokenize import ImageAdapter, VideoAdapter
from dxn.tokenize.image.reader import image_size

SIZE = 32
FRAMES = 6
VIDEOS = {"mp4": "mpeg4", "avi": "mpeg4", "mkv": "h264", "webm": "vp9"}


def make_kind() -> MediaFiles:
    """Return the kind, for fuzz.py."""
    image = ImageAdapter(dim=8, image_size=SIZE, patch_size=8).tokenizer
    video = VideoAdapter(dim=8, image_size=SIZE, patch_size=8).tokenizer

    def read(path: Path) -> tuple[int, ...]:
        is_video = path.suffix[1:] in VIDEOS or path.stem == "moving"
        prepare = video if is_video else image
        raw = prepare.reader.read(str(path))
        assert raw is not None and raw.dtype == torch.uint8 and raw.shape[-3] == 3, raw
        assert raw[..., 0, 0].numel() * SIZE * SIZE >= raw.numel(), raw.shape
        sample = prepare(raw)
        prepare.collate([sample, sample])
        if not is_video:
            # The summary of a data set opens the file again.
            height, width = image_size(str(path))
            assert height * width > 0
        return tuple(raw.shape)

    return MediaFiles("pictures", {**_images(), **_videos()}, read)


def _images() -> dict[str, bytes]:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    rgb = Image.fromarray(pixels)
    deep = Image.fromarray(np.arange(2000, dtype=np.uint16).reshape(40, 50) * 30)
    exif = Image.Exif()
    exif[0x112] = 6  # orientation: turned by 90 degrees
    moving = {"save_all": True, "append_images": [rgb.rotate(90 * i) for i in range(1, FRAMES)]}
    variants: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "rgb.png": (rgb, {"exif": exif}),
        "alpha.png": (rgb.convert("RGBA"), {}),
        "palette.png": (rgb.quantize(16), {"transparency": 3}),
        "deep.png": (deep, {}),
        "bits.png": (rgb.convert("1"), {}),
        "photo.jpg": (rgb, {"exif": exif}),
        "steps.jpg": (rgb, {"progressive": True}),
        "print.jpg": (rgb.convert("CMYK"), {}),
        "lossy.webp": (rgb, {"exif": exif}),
        "exact.webp": (rgb.convert("RGBA"), {"lossless": True}),
        "moving.webp": (rgb, moving),
        "rgb.bmp": (rgb, {}),
        "palette.bmp": (rgb.quantize(16), {}),
        "still.gif": (rgb, {}),
        "moving.gif": (rgb, moving),
    }
    files = {}
    for name, (image, options) in variants.items():
        file = io.BytesIO()
        image.save(file, {"jpg": "JPEG"}.get(name[-3:], name.rpartition(".")[2].upper()), **options)
        files[name] = file.getvalue()
    # A WebP file with frames is read as an image.
    files["frames.webp"] = files.pop("moving.webp")
    return files


def _videos() -> dict[str, bytes]:
    files = {}
    for suffix, codec in VIDEOS.items():
        file = io.BytesIO()
        with av.open(file, "w", format={"mkv": "matroska"}.get(suffix, suffix)) as container:
            stream: Any = container.add_stream(codec, rate=10)
            stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
            for i in range(FRAMES):
                pixels = np.full((32, 48, 3), 40 * i, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
            container.mux(stream.encode())
        files[f"clip.{suffix}"] = file.getvalue()
    return files
