"""Reading of image and audio files in all supported formats, with checks of their content."""

from __future__ import annotations

import io
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
import torchaudio
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

# Only common formats. Pillow supports many more, whose decoders are rarely tested or maintained.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".oga", ".opus")
# The first bytes of JPEG, PNG, GIF and BMP, and of FLAC, OGG, and MP3 with and without an ID3 tag.
# Cells of a table can contain the bytes of a file, which have no suffix.
IMAGE_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM")
AUDIO_SIGNATURES = (b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")
# libsndfile reads a truncated file without an error, but its log contains the expected length.
SHORTENED = re.compile(r"(?:data|SSND|Data Size)\s*: (\d+) \(should be \d+\)")
# The header of a WAV file that was written to a pipe contains this length, because the program did
# not know the length when it wrote the header.
STREAMED = 2**32 - 1
UNKNOWN_LENGTH = 2**40  # libsndfile reports a huge number of frames if it cannot know the length
# The number of rows of a resampling filter is the denominator of the ratio of both sample rates.
# All common pairs have a denominator of at most 640 (11025 to 16000 has exactly 640), so their
# ratio is exact. For other pairs, such as 22255 to 16000, the pitch changes by less than 0.1%. An
# exact filter would need a gigabyte.
MAX_DENOMINATOR = 640
MAX_INSPECTED = 2000  # values are enough to recognize the modality of a column
WARNINGS_LOCK = threading.Lock()  # see _no_warnings


class BadMedia(ValueError):
    """An image, clip or text is invalid or exceeds a limit. The message is the reason."""


def read_image(source: Any, *, channels: int = 3, max_pixels: int = 50_000_000) -> Tensor:
    """Read an image as uint8 (C, H, W).

    EXIF rotation is applied, transparent pixels are composited over white, and 16 bits are scaled
    to 8. Only the first frame of an animation is read.

    Args:
        source: Path, bytes, PIL image, uint8 array (H, W) or (H, W, C), or uint8 Tensor (C, H, W).
        channels: Number of channels: 3 for color, 1 for gray.
        max_pixels: Maximum number of pixels. It is checked before the file is decoded.

    Raises:
        BadMedia: If the image cannot be read or has more than max_pixels pixels.
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
                image.getexif()  # Pillow caches the result for exif_transpose, which can warn
            return _to_tensor(ImageOps.exif_transpose(image), channels)
    except BadMedia:
        raise
    except Image.DecompressionBombError as error:
        raise BadMedia(f"more than max_pixels={max_pixels:,} pixels") from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise BadMedia(f"damaged or truncated image ({error})") from error


def read_audio(source: Any, *, sample_rate: int, max_seconds: float = 60.0) -> Tensor:
    """Read a clip as mono float32 (T,) at sample_rate hertz. Channels are averaged.

    Args:
        source: Path, bytes, or a pair of an array, (T,) or (channels, T), and its sample rate in
            hertz. An array is float from -1 to 1, or int16.
        sample_rate: Sample rate in hertz to which the clip is resampled.
        max_seconds: Maximum duration in seconds. It is checked before the file is decoded.

    Raises:
        BadMedia: If the clip cannot be read or is longer than max_seconds.
    """
    if isinstance(source, tuple):
        samples, rate = _from_array(*source)
    else:
        samples, rate = _decode(source, max_seconds)
    if samples.shape[-1] == 0:
        raise BadMedia("no samples in it")
    if not bool(torch.isfinite(samples).all()):
        raise BadMedia("samples that are NaN or infinite")
    # Again, because the duration in the header can be missing or wrong.
    _check_seconds(samples.shape[-1] / rate, max_seconds)
    mono = samples.mean(0) if samples.ndim == 2 else samples
    return mono if rate == sample_rate else _resampler(rate, sample_rate)(mono)


def audio_rate(source: Any) -> int:
    """Return the sample rate in hertz of a source of `read_audio`, without decoding it.

    Raises:
        BadMedia: If the source cannot be read.
    """
    if isinstance(source, tuple):
        return int(source[1])
    with _open_audio(source) as file:
        return file.samplerate


def is_image(value: Any) -> bool:
    """Whether a cell looks like an image, judged by its type, suffix or first bytes."""
    if isinstance(value, str | Path):
        return str(value).lower().endswith(IMAGE_SUFFIXES)
    if isinstance(value, bytes):
        return value.startswith(IMAGE_SIGNATURES) or _riff(value) == b"WEBP"
    if isinstance(value, np.ndarray | Tensor):
        return value.dtype in (np.uint8, torch.uint8) and value.ndim in (2, 3)
    return isinstance(value, Image.Image)


def is_audio(value: Any) -> bool:
    """Whether a cell looks like audio, judged by its type, suffix or first bytes."""
    if isinstance(value, str | Path):
        return str(value).lower().endswith(AUDIO_SUFFIXES)
    if isinstance(value, bytes):
        return value.startswith(AUDIO_SIGNATURES) or _riff(value) == b"WAVE"
    return (
        isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], np.ndarray | Tensor)
    )


def matching_fraction(values: Sequence[Any], matches: Callable[[Any], bool]) -> float:
    """Return the fraction of the first values for which `matches` is true; 0 without values."""
    values = values[:MAX_INSPECTED]
    return sum(map(matches, values)) / len(values) if values else 0.0


def _riff(data: bytes) -> bytes:
    """Return the content type of a RIFF container, the format of both WEBP and WAV files."""
    return data[8:12] if data.startswith(b"RIFF") else b""


def _as_tensor(source: np.ndarray | Tensor) -> Tensor:
    """Convert an image array to uint8 (C, H, W)."""
    pixels = source
    if isinstance(source, np.ndarray):
        pixels = torch.from_numpy(np.ascontiguousarray(source))
    assert isinstance(pixels, Tensor)
    if pixels.dtype != torch.uint8 or pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise BadMedia(
            "an image array must be uint8 with two or three dimensions, "
            f"got {pixels.dtype} {tuple(pixels.shape)}"
        )
    if pixels.ndim == 2:
        return pixels[None]
    return pixels.movedim(-1, 0) if isinstance(source, np.ndarray) else pixels


def _check_pixels(width: int, height: int, max_pixels: int) -> None:
    if width * height == 0:
        raise BadMedia("no pixels in it")
    if width * height > max_pixels:
        raise BadMedia(f"{width * height:,} pixels, more than max_pixels={max_pixels:,}")


def _open_image(source: Any) -> AbstractContextManager[Image.Image]:
    """Open an image without decoding it, as a context manager.

    A PIL image stays open at the end of the context, because it belongs to the caller.
    """
    if isinstance(source, Image.Image):
        return nullcontext(source)
    file = _bytes_or_path(source)
    try:
        with _no_warnings():
            return Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        # TIFF is a common mistake, so the message names it.
        kind = ": TIFF" if _head(source, 4) in (b"II*\0", b"MM\0*") else ""
        raise BadMedia(f"not a supported image ({', '.join(FORMATS)}){kind}") from None


def _to_tensor(image: Image.Image, channels: int) -> Tensor:
    """Convert a PIL image of any mode to uint8 (C, H, W)."""
    if image.mode == "F":
        raise BadMedia("floating-point images have no defined range: convert the image to uint8")
    if image.mode.startswith("I"):
        image = _to_8_bits(image)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        foreground = image.convert("RGBA")
        image = Image.new("RGBA", foreground.size, "white")
        image.alpha_composite(foreground)
    pixels = torch.from_numpy(np.array(image.convert("L" if channels == 1 else "RGB")))
    return pixels[None] if channels == 1 else pixels.permute(2, 0, 1).contiguous()


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Scale a gray image from 16 to 8 bits, so that 65535 is white."""
    # Pillow would clip all values above 255 to white. 257 is 65535 / 255.
    values = np.asarray(image).astype(np.float64)
    return Image.fromarray((values / 257).round().clip(0, 255).astype(np.uint8))


def _with_channels(pixels: Tensor, channels: int) -> Tensor:
    """Convert gray, gray with alpha, RGB or RGBA pixels (C, H, W) to `channels` channels."""
    if len(pixels) == channels:
        return pixels
    if len(pixels) > 4:
        raise BadMedia(f"an image array must have at most 4 channels, got {len(pixels)}")
    # Pillow expects gray images without a channel axis, and all others with channels last.
    array = (pixels[0] if len(pixels) == 1 else pixels.movedim(0, -1)).numpy()
    return _to_tensor(Image.fromarray(np.ascontiguousarray(array)), channels)


def _from_array(array: Any, rate: float) -> tuple[Tensor, int]:
    """Convert an array to float32 samples, (T,) or (channels, T), and its sample rate in hertz."""
    samples = torch.as_tensor(array)
    is_int16 = samples.dtype == torch.int16
    if samples.ndim not in (1, 2) or not (samples.is_floating_point() or is_int16) or rate <= 0:
        raise BadMedia(
            "an audio array must be float or int16, (T,) or (channels, T), with a rate in hertz, "
            f"got {samples.dtype} {tuple(samples.shape)} at {rate}"
        )
    # This does not copy an array that is float32 already.
    samples = samples.to(torch.float32)
    # 32768 scales int16 to -1 to 1.
    return samples / 32768 if is_int16 else samples, int(rate)


def _decode(source: Any, max_seconds: float) -> tuple[Tensor, int]:
    """Decode a file to float32 samples (channels, T) and their sample rate in hertz."""
    with _open_audio(source) as file:
        # One frame more than allowed, so that a file without a known length is still rejected.
        max_frames = int(max_seconds * file.samplerate) + 1
        if file.frames < UNKNOWN_LENGTH:
            _check_seconds(file.frames / file.samplerate, max_seconds)
        try:
            data = file.read(min(file.frames, max_frames), dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            raise BadMedia(f"damaged or truncated audio ({error.error_string})") from None
        header = SHORTENED.search(file.extra_info)
        if header and int(header[1]) != STREAMED:
            raise BadMedia(f"truncated: the header promises {int(header[1]):,} bytes of audio")
        # The length of an MP3 file is an estimate, unless the encoder wrote one of these tags.
        exact = file.format != "MP3" or re.search(b"Xing|Info", _head(source, 4096))
        if exact and len(data) < min(file.frames, max_frames):
            raise BadMedia(f"truncated: {len(data):,} of {file.frames:,} samples")
        return torch.from_numpy(data.T.copy()), file.samplerate


def _open_audio(source: Any) -> soundfile.SoundFile:
    problem = "not a supported audio file (WAV, FLAC, OGG, MP3)"
    try:
        return soundfile.SoundFile(_bytes_or_path(source))
    except soundfile.LibsndfileError as error:
        raise BadMedia(f"{problem}: {error.error_string}") from None
    except TypeError:  # soundfile needs a sample rate to open a file with the suffix .raw
        raise BadMedia(f"{problem}: raw samples") from None


def _check_seconds(seconds: float, max_seconds: float) -> None:
    if seconds > max_seconds:
        raise BadMedia(f"{seconds:.1f} s, more than max_seconds={max_seconds:g}")


@lru_cache(maxsize=64)
def _resampler(rate: int, sample_rate: int) -> torchaudio.transforms.Resample:
    """Return the resampling filter. It is cached, because its computation is slow."""
    ratio = Fraction(rate, sample_rate).limit_denominator(MAX_DENOMINATOR)
    return torchaudio.transforms.Resample(max(ratio.numerator, 1), ratio.denominator)


def _bytes_or_path(source: Any) -> io.BytesIO | str:
    """Return what a decoder can open. Raise BadMedia for a missing or empty file."""
    if isinstance(source, bytes):
        if not source:
            raise BadMedia("empty file")
        return io.BytesIO(source)
    if not isinstance(source, str | Path):
        raise BadMedia(f"must be a path, bytes or an array, got {type(source).__name__}")
    path = Path(source)
    if not path.is_file():
        raise BadMedia("file not found")
    if path.stat().st_size == 0:
        raise BadMedia("empty file")
    return str(path)


def _head(source: Any, count: int) -> bytes:
    """Return the first `count` bytes of a file."""
    if isinstance(source, bytes):
        return source[:count]
    with Path(source).open("rb") as file:
        return file.read(count)


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Suppress warnings of Pillow.

    They concern large files, which this module checks itself, and metadata that it does not use.
    """
    # The lock is necessary because catch_warnings saves and restores a global list: if two threads
    # overlap, the second one can restore the list of the first one, which ignores all warnings.
    with WARNINGS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
