"""What image, audio and video files have in common: recognition, and how they are opened."""

from __future__ import annotations

import base64
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dxn.tokenize.base import BadMedia

# PyAV takes time to import, so it is imported for the first container.
if TYPE_CHECKING:
    from av.container import InputContainer
    from av.stream import Stream

SOUND_TRACK = "sound track"
FILMS = (".mp4", ".webm", ".mkv", ".avi", ".mov", ".m4v")
SUFFIXES = {
    "image": (
        *(".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif"),
        *(".ppm", ".pgm", ".pbm"),
    ),
    "audio": (".wav", ".flac", ".ogg", ".mp3", ".oga", ".opus", ".m4a", ".aac"),
    "video": (*FILMS, ".gif"),
    SOUND_TRACK: FILMS,
}
MEDIA_SUFFIXES = tuple(chain.from_iterable(SUFFIXES.values()))
MAX_SUFFIX = max(map(len, MEDIA_SUFFIXES))
# The first bytes of JPEG, PNG, GIF, BMP and TIFF, and of FLAC, OGG, and MP3 with and without an ID3
# tag. Cells of a table can contain the bytes of a file, which have no suffix.
IMAGE_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*")
AUDIO_SIGNATURES = (b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")
# The first bytes of MKV and WebM, and of AAC without a container.
MATROSKA = b"\x1aE\xdf\xa3"
ADTS = (b"\xff\xf1", b"\xff\xf9")
# The types of the first part of MP4 and MOV files, after the four bytes of its length. Old MOV
# files do not start with "ftyp".
MP4_PARTS = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
AUDIO_BRANDS = (b"M4A ", b"M4B ")  # kinds of MP4 files without pictures
AVIF_BRANDS = (b"avif", b"avis")  # pictures in the same container
# A URL in a table may have been joined to a folder as if it were a path, which removes one slash.
URL = re.compile(r"(^|/)https?:/", re.IGNORECASE)
# The suffix of a file starts with a letter, so that a decimal number such as 3.14 has none.
FILE_SUFFIX = r"\.[A-Za-z][A-Za-z0-9]{1,4}"
FILE_NAME = re.compile(rf"\S+{FILE_SUFFIX}")
# Two paths in one text, such as "a.png;b.png" or "['a.png', 'b.png']".
SEVERAL = re.compile(rf"{FILE_SUFFIX}['\"]?\s*[;,|\s]\s*[^;,|]+{FILE_SUFFIX}\b")
WINDOWS_PATH = re.compile(r"(^|/)[a-z]:[\\/]", re.IGNORECASE)
# The first characters of JPEG, PNG, GIF, RIFF (WEBP, WAV and AVI), FLAC, OGG and ID3 in base64.
BASE64_SIGNATURES = ("/9j/", "iVBORw0KGgo", "R0lGOD", "UklGR", "ZkxhQ", "T2dnU", "SUQz")
# Characters that contain the signature of a file, a multiple of 4.
MAX_HEADER = 64


def embedded_file(text: str, num_chars: int | None = None) -> bytes | None:
    """Return the content of a file that is written into a text. None: there is none.

    Args:
        text: A data URL, or base64 of a file that starts like one of a known format.
        num_chars: Number of characters to decode. None: all of them.
    """
    is_url = text[:MAX_HEADER].lstrip().lower().startswith("data:")
    if not is_url and not text.lstrip().startswith(BASE64_SIGNATURES):
        return None
    header, _, data = text.partition(",") if is_url else ("", "", text)
    if is_url and not header.strip().lower().endswith(";base64"):
        return None
    data = data.strip()[:num_chars]
    try:
        # Line breaks within it are common.
        return base64.b64decode("".join(data.split()), validate=True)
    except ValueError:
        return None


def is_file_name(cell: Any) -> bool:
    """Whether a cell is the name of a file, or a list of them.

    A name with spaces has the suffix of a picture, a sound or a film: other texts with spaces can
    end in a point and a word.
    """
    if isinstance(cell, list):
        return bool(cell) and all(isinstance(item, str) and is_file_name(item) for item in cell)
    if not isinstance(cell, str) or "." not in cell:  # the usual case first, which is faster
        return False
    name = cell.strip()
    is_media = name[-MAX_SUFFIX:].lower().endswith(MEDIA_SUFFIXES)
    return is_media or FILE_NAME.fullmatch(name) is not None


def kinds_of(cell: Any) -> tuple[str, ...]:
    """Return the modalities that a cell looks like, judged by its type, suffix or first bytes.

    A GIF looks like an image and like a video. A file with pictures that can have a sound track
    also looks like SOUND_TRACK.
    """
    if isinstance(cell, str):
        cell = embedded_file(cell, MAX_HEADER) or cell
    if isinstance(cell, str | Path):
        text = str(cell).strip().lower()
        return tuple(kind for kind, suffixes in SUFFIXES.items() if text.endswith(suffixes))
    if isinstance(cell, bytes):
        return _kinds_of_file(cell)
    if isinstance(cell, np.ndarray | Tensor):
        is_picture = cell.dtype in (np.uint8, torch.uint8) and cell.ndim in (2, 3, 4)
        return (("video",) if cell.ndim == 4 else ("image",)) if is_picture else ()
    if isinstance(cell, Image.Image):
        return ("image",)
    is_pair = isinstance(cell, tuple) and len(cell) == 2
    return ("audio",) if is_pair and isinstance(cell[0], np.ndarray | Tensor) else ()


def _kinds_of_file(data: bytes) -> tuple[str, ...]:
    is_m4a = _is_mp4(data) and data[8:12] in AUDIO_BRANDS
    is_audio = data.startswith((*AUDIO_SIGNATURES, *ADTS)) or _riff(data) == b"WAVE" or is_m4a
    is_film = is_container(data)
    kinds = {
        "image": data.startswith(IMAGE_SIGNATURES) or _is_avif(data) or _riff(data) == b"WEBP",
        "audio": is_audio,
        "video": (is_film and not is_audio) or data.startswith(b"GIF8"),
        SOUND_TRACK: is_film,
    }
    return tuple(kind for kind, is_one in kinds.items() if is_one)


def is_container(data: bytes) -> bool:
    """Whether the first bytes of a file are those of MP4, MOV, MKV, WebM, AVI or AAC.

    GIF is not included, because it has no sound track.
    """
    starts = data.startswith((MATROSKA, *ADTS))
    return starts or _is_mp4(data) or _riff(data) == b"AVI "


def bytes_or_path(source: Any) -> io.BytesIO | str:
    """Return what a decoder can open. Raise BadMedia for a missing or empty file."""
    if isinstance(source, bytes):
        if not source:
            raise BadMedia("empty file")
        return io.BytesIO(source)
    if not isinstance(source, str | Path):
        raise BadMedia(f"must be a path, bytes or an array, got {type(source).__name__}")
    try:
        status = os.stat(source)  # noqa: PTH116 (creating a Path takes longer)
    except (OSError, ValueError):  # also if the name is too long, or contains a zero byte
        status = None
    # Not a pipe or a device: reading them could wait forever, or never end.
    if status is None or not stat.S_ISREG(status.st_mode):
        raise BadMedia(_why_not_found(str(source)))
    if status.st_size == 0:
        raise BadMedia("empty file")
    return str(source)


def _why_not_found(path: str) -> str:
    if URL.search(path):
        return "is a URL: download the file, and write its path instead"
    if SEVERAL.search(path):
        return "file not found: the cell has several paths, but there must be one path per column"
    if WINDOWS_PATH.search(path):
        return "file not found: a path of Windows; write it relative to the folder of the table"
    if not Path(path).is_absolute():
        return f"file not found (current directory: {Path.cwd()})"
    return "file not found"


def head(source: Any, count: int) -> bytes:
    """Return the first `count` bytes of a file."""
    if isinstance(source, bytes):
        return source[:count]
    with Path(source).open("rb") as file:
        return file.read(count)


def _is_mp4(data: bytes) -> bool:
    return data[4:8] in MP4_PARTS and not _is_avif(data)


def _is_avif(data: bytes) -> bool:
    return data[4:8] == b"ftyp" and data[8:12] in AVIF_BRANDS


def _riff(data: bytes) -> bytes:
    """Return the content type of a RIFF container, the format of WEBP, WAV and AVI files."""
    return data[8:12] if data.startswith(b"RIFF") else b""


# Names of FFmpeg's demuxers. Others are never used: some of them, such as hls and concat, open
# further files or addresses that the file names.
DEMUXERS = "mov,matroska,webm,avi,gif,aac"
KINDS = "MP4, WebM, MKV, AVI, MOV, GIF"
MICROSECONDS = 1_000_000  # unit of the duration of a container
# A file that ends before this fraction of its duration is truncated. The durations of good files
# differ a little from those of their streams.
MIN_COMPLETE = 0.9
# Hertz. Signals of sensors are stored with 100 and more, and studios record with up to 768,000.
MIN_RATE = 100
MAX_RATE = 768_000
# Values of all channels per second of the allowed duration: 8 channels of 192,000 hertz.
MAX_VALUES_PER_SECOND = 1_600_000
# FFmpeg compares the size of a picture with its limit after padding it to whole blocks. The exact
# size is checked in the header and after decoding.
PADDING = 4
MIN_PADDED = 1_000_000  # pixels; a narrow picture is padded to 64 columns
TOLERANCE = 0.2  # seconds; short clips with a few frames less than announced are not truncated


@contextmanager
def open_container(
    source: Any, problem: str, *, max_pixels: int | None = None
) -> Iterator[InputContainer]:
    """Open a path or bytes. Errors of FFmpeg in the context become BadMedia.

    Args:
        source: Path or bytes of the file.
        problem: Error message for a file that is not a container.
        max_pixels: Maximum number of pixels of a picture, which the decoder refuses to exceed.

    Raises:
        BadMedia: If the file cannot be read.
    """
    import av
    from av.error import FFmpegError

    file = bytes_or_path(source)
    options = {"format_whitelist": DEMUXERS, "protocol_whitelist": "file"}
    if max_pixels is not None:
        # The decoder checks this before it allocates memory, also while it inspects the header.
        options["max_pixels"] = str(padded(max_pixels))
    # With "file:", a name such as "http:x.mp4" is not an address.
    target = file if isinstance(file, io.BytesIO) else f"file:{file}"
    try:
        with av.open(target, "r", options=options, metadata_errors="replace") as container:
            yield container
    except FFmpegError as error:
        if not is_container(head(source, 32)):
            raise BadMedia(problem) from None
        raise BadMedia(f"damaged or truncated file ({error.strerror})") from None


def streams_of(container: InputContainer, kind: str) -> list[Stream]:
    """Return the streams of a kind, "video" or "audio", without pictures of a cover."""
    from av.stream import Disposition

    return [
        stream
        for stream in container.streams
        if stream.type == kind and not stream.disposition & Disposition.attached_pic
    ]


def header_seconds(container: InputContainer, stream: Stream) -> float | None:
    """Return the duration of a stream in seconds as the header announces it, None if unknown."""
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    if container.duration is None:
        return None
    # Matroska and WebM count from 0, also if the first packet of a part of a recording is later.
    starts_later = "matroska" in container.format.name and (container.start_time or 0) > 0
    start = container.start_time if starts_later else 0
    return (container.duration - (start or 0)) / MICROSECONDS


def check_seconds(seconds: float, max_seconds: float) -> None:
    """Raise BadMedia if a clip is longer than max_seconds."""
    if seconds > max_seconds:
        raise BadMedia(f"{seconds:.1f} s, more than max_seconds={max_seconds:g}")


def padded(max_pixels: int) -> int:
    """Return the limit for FFmpeg of the number of pixels, which includes its padding."""
    return max(PADDING * max_pixels, MIN_PADDED)


def check_rate(rate: float) -> None:
    """Raise BadMedia if a sample rate in hertz is not plausible."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise BadMedia(
            f"a sample rate of {rate:,.10g} hertz; it must be from {MIN_RATE} to {MAX_RATE:,}"
        )


def check_values(num_values: int, max_seconds: float) -> None:
    """Raise BadMedia if a clip has more values, of all channels, than its duration can need."""
    limit = int(max_seconds * MAX_VALUES_PER_SECOND)
    if num_values > limit:
        raise BadMedia(
            f"{num_values:,} values in all channels, more than {limit:,}; store fewer channels"
        )


def check_complete(seconds: float, announced: float | None) -> None:
    """Raise BadMedia if a stream ends long before the duration that the header announces."""
    if announced is not None and seconds < MIN_COMPLETE * announced - TOLERANCE:
        raise BadMedia(f"truncated: {seconds:.1f} of {announced:.1f} s")
