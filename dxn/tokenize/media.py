"""Files to arrays: pictures of any size and mode, sounds of any rate, channel count and length."""

from __future__ import annotations

import io
import warnings
from functools import lru_cache
from pathlib import Path

import numpy as np
import soundfile
import torch
import torchaudio
from einops import reduce
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")


class BadMedia(ValueError):
    """A picture, sound or text that cannot be used; the message is the reason."""


def read_image(source, *, channels: int = 3, max_pixels: int = 50_000_000) -> Tensor:
    """Path, bytes, PIL image or uint8 array (H, W), (H, W, C) or Tensor (C, H, W) to uint8 (C, H, W).

    EXIF rotation is applied, transparency laid over white, 16 bits scaled to 8, of an animation the first
    picture taken. Raises BadMedia with the reason.
    """
    if isinstance(source, Tensor):
        return _channels(_checked(source), channels)
    if isinstance(source, np.ndarray):
        pixels = torch.from_numpy(np.ascontiguousarray(source))
        return _channels(_checked(pixels[None] if pixels.ndim == 2 else pixels.movedim(-1, 0)), channels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of what is checked here, or of what it then decodes well
        try:
            with _open_image(source) as image:
                if (pixels := image.width * image.height) > max_pixels:
                    raise BadMedia(f"{pixels:,} pixels, more than max_pixels={max_pixels:,}")
                return _to_tensor(ImageOps.exif_transpose(image), channels)
        except BadMedia:
            raise
        except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
            raise BadMedia(f"damaged or truncated image ({error})") from error


def _open_image(source) -> Image.Image:
    if isinstance(source, Image.Image):
        return source.copy()
    file = _bytes_or_path(source)
    try:
        return Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        head = source[:4] if isinstance(source, bytes) else Path(source).read_bytes()[:4]
        kind = ": TIFF" if head in (b"II*\0", b"MM\0*") else ""
        raise BadMedia(f"not an image this reads ({', '.join(FORMATS)}){kind}") from None


def _to_tensor(image: Image.Image, channels: int) -> Tensor:
    if image.mode.startswith("I") or image.mode == "F":
        image = _to_8_bits(image)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        picture = image.convert("RGBA")
        image = Image.new("RGBA", picture.size, "white")
        image.alpha_composite(picture)
    image = image.convert("L" if channels == 1 else "RGB")
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if channels == 1 else pixels.permute(2, 0, 1).contiguous()


def _to_8_bits(image: Image.Image) -> Image.Image:
    """A grey picture of 16 bits, by value: 65535 is white."""
    values = np.asarray(image).astype(np.float64)
    return Image.fromarray((values / 257).round().clip(0, 255).astype(np.uint8))


def _checked(pixels: Tensor) -> Tensor:
    if pixels.dtype != torch.uint8 or pixels.ndim != 3 or 0 in pixels.shape:
        raise BadMedia(
            f"an image array must be uint8 of two or three dimensions, got {pixels.dtype} {tuple(pixels.shape)}"
        )
    return pixels


def _channels(pixels: Tensor, channels: int) -> Tensor:
    if len(pixels) == channels:
        return pixels
    if len(pixels) in (1, 3) and channels in (1, 3):
        return pixels.expand(3, -1, -1) if channels == 3 else reduce(pixels.float(), "c h w -> 1 h w", "mean").byte()
    return _to_tensor(Image.fromarray(pixels.movedim(0, -1).numpy()), channels)


def read_audio(source, *, sample_rate: int, max_seconds: float = 60.0) -> Tensor:
    """Path, bytes or (array (T,) or (channels, T), rate) to mono float32 (T,) at sample_rate hertz.

    Channels are averaged. Raises BadMedia with the reason.
    """
    samples, rate = _samples(source, max_seconds)
    if samples.shape[-1] == 0:
        raise BadMedia("no samples in it")
    if not bool(torch.isfinite(samples).all()):
        raise BadMedia("samples that are not finite numbers")
    if (seconds := samples.shape[-1] / rate) > max_seconds:
        raise BadMedia(f"{seconds:.1f} s, more than max_seconds={max_seconds:g}")
    mono = samples.mean(0) if samples.ndim == 2 else samples
    return mono if rate == sample_rate else _resampler(rate, sample_rate)(mono)


def _samples(source, max_seconds: float) -> tuple[Tensor, int]:
    if isinstance(source, tuple):
        array, rate = source
        samples = torch.as_tensor(array)
        scale = 32768 if samples.dtype == torch.int16 else 1
        return samples.to(torch.float32) / scale, int(rate)
    try:
        with soundfile.SoundFile(_bytes_or_path(source)) as file:
            if file.frames > max_seconds * file.samplerate and file.frames < 2**40:
                seconds = file.frames / file.samplerate
                raise BadMedia(f"{seconds:.1f} s, more than max_seconds={max_seconds:g}")
            data = file.read(dtype="float32", always_2d=True)
            if len(data) < file.frames and file.format != "MP3":
                raise BadMedia(f"truncated: {len(data)} of {file.frames} samples")
            return torch.from_numpy(data.T.copy()), file.samplerate
    except soundfile.LibsndfileError as error:
        raise BadMedia(f"not a sound this reads (WAV, FLAC, OGG, MP3): {error.error_string}") from None


def _bytes_or_path(source):
    """Something to open; BadMedia where there is nothing."""
    if isinstance(source, bytes):
        if not source:
            raise BadMedia("empty file")
        return io.BytesIO(source)
    path = Path(source)
    if not path.is_file():
        raise BadMedia("file not found")
    if path.stat().st_size == 0:
        raise BadMedia("empty file")
    return str(path)


@lru_cache(maxsize=64)
def _resampler(rate: int, sample_rate: int) -> torchaudio.transforms.Resample:
    """Its filter is worked out once for each pair of rates."""
    return torchaudio.transforms.Resample(rate, sample_rate)
