"""Files to arrays: pictures of any size and mode, sounds of any rate, channel count and length."""

from __future__ import annotations

import io
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
import soundfile
import torch
import torchaudio
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
# libsndfile quietly shortens a file to what is there, but writes into its log what the header promised.
SHORTENED = re.compile(r"(?:data|SSND|Data Size)\s*: (\d+) \(should be \d+\)")
STREAMED = 2**32 - 1  # promised by a WAV that was written into a pipe, its length not yet known
ONE_THREAD = threading.Lock()


class BadMedia(ValueError):
    """A picture, sound or text that cannot be used; the message is the reason."""


def read_image(source, *, channels: int = 3, max_pixels: int = 50_000_000) -> Tensor:
    """Path, bytes, PIL image or uint8 array (H, W), (H, W, C) or Tensor (C, H, W) to uint8 (C, H, W).

    EXIF rotation is applied, transparency laid over white, 16 bits scaled to 8, of an animation the first
    picture taken. Raises BadMedia with the reason.
    """
    if isinstance(source, np.ndarray | Tensor):
        pixels = _as_tensor(source)
        _check_pixels(pixels.shape[2], pixels.shape[1], max_pixels)
        return _with_channels(pixels, channels)
    try:
        with _open_image(source) as image:
            _check_pixels(image.width, image.height, max_pixels)
            image.load()
            with _no_warnings():
                image.getexif()  # parsed once; exif_transpose then finds it parsed
            return _to_tensor(ImageOps.exif_transpose(image), channels)
    except BadMedia:
        raise
    except Image.DecompressionBombError as error:
        raise BadMedia(f"more than max_pixels={max_pixels:,} pixels") from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise BadMedia(f"damaged or truncated image ({error})") from error


def read_audio(source, *, sample_rate: int, max_seconds: float = 60.0) -> Tensor:
    """Path, bytes or (array (T,) or (channels, T), rate) to mono float32 (T,) at sample_rate hertz.

    Channels are averaged; an array is float within -1 to 1, or int16. Raises BadMedia with the reason.
    """
    samples, rate = _from_array(*source) if isinstance(source, tuple) else _decode(source, max_seconds)
    if samples.shape[-1] == 0:
        raise BadMedia("no samples in it")
    if not bool(torch.isfinite(samples).all()):
        raise BadMedia("samples that are not finite numbers")
    _check_seconds(samples.shape[-1] / rate, max_seconds)
    mono = samples.mean(0) if samples.ndim == 2 else samples
    return mono if rate == sample_rate else _resampler(rate, sample_rate)(mono)


def audio_rate(source) -> int:
    """Hertz of what read_audio reads, from its header alone. Raises BadMedia with the reason."""
    if isinstance(source, tuple):
        return int(source[1])
    with _open_audio(source) as file:
        return file.samplerate


def _as_tensor(source: np.ndarray | Tensor) -> Tensor:
    """uint8 (C, H, W)."""
    pixels = torch.from_numpy(np.ascontiguousarray(source)) if isinstance(source, np.ndarray) else source
    if pixels.dtype != torch.uint8 or pixels.ndim not in (2, 3) or 0 in pixels.shape:
        shape = tuple(pixels.shape)
        raise BadMedia(f"an image array must be uint8 of two or three dimensions, got {pixels.dtype} {shape}")
    if pixels.ndim == 2:
        return pixels[None]
    return pixels.movedim(-1, 0) if isinstance(source, np.ndarray) else pixels


def _check_pixels(width: int, height: int, max_pixels: int) -> None:
    if width * height == 0:
        raise BadMedia("no pixels in it")
    if width * height > max_pixels:
        raise BadMedia(f"{width * height:,} pixels, more than max_pixels={max_pixels:,}")


def _open_image(source):
    """A context with the image, its pixels not yet decoded; a PIL image stays open, it is the caller's."""
    if isinstance(source, Image.Image):
        return nullcontext(source)
    file = _bytes_or_path(source)
    try:
        with _no_warnings():
            return Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        kind = ": TIFF" if _head(source, 4) in (b"II*\0", b"MM\0*") else ""
        raise BadMedia(f"not an image this reads ({', '.join(FORMATS)}){kind}") from None


def _to_tensor(image: Image.Image, channels: int) -> Tensor:
    if image.mode == "F":
        raise BadMedia("a picture of floating-point numbers, whose range is not known; make it uint8")
    if image.mode.startswith("I"):
        image = _to_8_bits(image)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        picture = image.convert("RGBA")
        image = Image.new("RGBA", picture.size, "white")
        image.alpha_composite(picture)
    pixels = torch.from_numpy(np.array(image.convert("L" if channels == 1 else "RGB")))
    return pixels[None] if channels == 1 else pixels.permute(2, 0, 1).contiguous()


def _to_8_bits(image: Image.Image) -> Image.Image:
    """A grey picture of 16 bits, by value: 65535 is white."""
    values = np.asarray(image).astype(np.float64)
    return Image.fromarray((values / 257).round().clip(0, 255).astype(np.uint8))


def _with_channels(pixels: Tensor, channels: int) -> Tensor:
    """Grey, grey with alpha, RGB or RGBA (C, H, W) to the channels asked for."""
    if len(pixels) == channels:
        return pixels
    if len(pixels) > 4:
        raise BadMedia(f"an image array of {len(pixels)} channels cannot become one of {channels}")
    last = pixels[0] if len(pixels) == 1 else pixels.movedim(0, -1)
    return _to_tensor(Image.fromarray(np.ascontiguousarray(last.numpy())), channels)


def _from_array(array, rate) -> tuple[Tensor, int]:
    samples = torch.as_tensor(array)
    if samples.ndim not in (1, 2) or not (samples.is_floating_point() or samples.dtype == torch.int16) or rate <= 0:
        got = f"{samples.dtype} {tuple(samples.shape)} at {rate}"
        raise BadMedia(f"a sound array must be float or int16, (T,) or (channels, T), at a rate in hertz, got {got}")
    whole = samples.dtype == torch.int16
    samples = samples.to(torch.float32)  # float32 already is not copied: data held in memory is not held twice
    return samples / 32768 if whole else samples, int(rate)


def _decode(source, max_seconds: float) -> tuple[Tensor, int]:
    """Samples (channels, T) and their rate."""
    with _open_audio(source) as file:
        most = int(max_seconds * file.samplerate) + 1
        if file.frames < 2**40:  # beyond that the header does not know
            _check_seconds(file.frames / file.samplerate, max_seconds)
        try:
            data = file.read(min(file.frames, most), dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            raise BadMedia(f"damaged or truncated sound ({error.error_string})") from None
        promised = SHORTENED.search(file.extra_info)
        if promised and int(promised[1]) != STREAMED:
            raise BadMedia(f"truncated: its header promises {int(promised[1]):,} bytes of sound")
        # The length of an MP3 is a guess unless its encoder wrote it down.
        exact = file.format != "MP3" or re.search(b"Xing|Info", _head(source, 4096))
        if exact and len(data) < min(file.frames, most):
            raise BadMedia(f"truncated: {len(data):,} of {file.frames:,} samples")
        return torch.from_numpy(data.T.copy()), file.samplerate


def _open_audio(source) -> soundfile.SoundFile:
    try:
        return soundfile.SoundFile(_bytes_or_path(source))
    except soundfile.LibsndfileError as error:
        raise BadMedia(f"not a sound this reads (WAV, FLAC, OGG, MP3): {error.error_string}") from None
    except TypeError:  # a file called .raw, which soundfile will not open without being told its rate
        raise BadMedia("not a sound this reads (WAV, FLAC, OGG, MP3): raw samples") from None


def _check_seconds(seconds: float, max_seconds: float) -> None:
    if seconds > max_seconds:
        raise BadMedia(f"{seconds:.1f} s, more than max_seconds={max_seconds:g}")


@lru_cache(maxsize=64)
def _resampler(rate: int, sample_rate: int) -> torchaudio.transforms.Resample:
    """Its filter is worked out once for each pair of rates.

    The filter has as many rows as the ratio's denominator. 640 holds every pair of usual rates exactly
    (11025 to 16000 needs all of it); of an odd one, like 22255 to 16000, the pitch is off by less than 1 in
    1,000, where the exact filter would take a gigabyte.
    """
    ratio = Fraction(rate, sample_rate).limit_denominator(640)
    return torchaudio.transforms.Resample(max(ratio.numerator, 1), ratio.denominator)


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


def _head(source, count: int) -> bytes:
    if isinstance(source, bytes):
        return source[:count]
    with Path(source).open("rb") as file:
        return file.read(count)


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Pillow warns of what is checked here, or of what it then reads well.

    One thread at a time: catch_warnings swaps a list that all threads share, and two that overlap can leave
    warnings off for good.
    """
    with ONE_THREAD, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
