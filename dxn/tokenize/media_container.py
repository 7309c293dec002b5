"""Opening of containers such as MP4, which hold pictures, a sound track or both."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dxn.tokenize.media import BadMedia, bytes_or_path, head, is_container

# PyAV takes time to import, so it is imported for the first container.
if TYPE_CHECKING:
    from av.container import InputContainer
    from av.stream import Stream

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
    return None if container.duration is None else container.duration / MICROSECONDS


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
            f"a sample rate of {rate:,} hertz; it must be from {MIN_RATE} to {MAX_RATE:,}"
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
