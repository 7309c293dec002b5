"""Reading of sound from containers that libsndfile cannot read: videos, M4A and AAC files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dxn.tokenize.container import (
    KINDS,
    check_complete,
    check_rate,
    check_seconds,
    check_values,
    header_seconds,
    open_container,
    streams_of,
)
from dxn.tokenize.media import BadMedia, bytes_or_path

if TYPE_CHECKING:  # see dxn.tokenize.container
    from av.audio.stream import AudioStream
    from av.container import InputContainer

UNSUPPORTED = f"not a supported audio file (M4A, AAC, or the sound track of {KINDS})"


class NoSoundTrack(BadMedia):
    """A video has no sound track."""


def read_sound_track(source: Any, max_seconds: float) -> tuple[Tensor, int]:
    """Decode the sound of a container to mono float32 samples (T,) and their rate in hertz.

    Args:
        source: Path or bytes.
        max_seconds: Maximum duration in seconds, checked in the header and while decoding.

    Raises:
        BadMedia: If the file cannot be read, or is longer than max_seconds.
        NoSoundTrack: If it has no sound track.
    """
    with open_container(source, UNSUPPORTED) as container:
        stream = _sound_stream(container)
        announced = header_seconds(container, stream)
        check_seconds(announced or 0, max_seconds)
        rate = 0
        # Converts the samples of any codec to float32, one row per channel.
        from av import AudioResampler

        resampler = AudioResampler(format="fltp")
        pieces: list[Tensor] = []
        length = 0
        num_values = 0
        for frame in container.decode(stream):
            # The rate in the header of the container can be wrong.
            rate = rate or frame.sample_rate
            check_rate(rate)
            try:
                converted = resampler.resample(frame)
            except ValueError:
                raise BadMedia("damaged file (the format of its sound track changes)") from None
            for piece in converted:
                values = torch.from_numpy(piece.to_ndarray())
                num_values += values.numel()
                # Only the mean of many channels is held. Their number can change in a broken file.
                pieces.append(values.mean(0))
                length += piece.samples
            check_seconds(length / rate, max_seconds)
            check_values(num_values, max_seconds)
        if not pieces:
            raise BadMedia("no samples in it")
        # The duration of the container can be that of longer pictures.
        if stream.duration is not None:
            check_complete(length / rate, announced)
        return torch.cat(pieces), rate


def sound_track_rate(source: Any) -> int:
    """Return the sample rate in hertz of a sound track, without decoding it.

    Raises:
        BadMedia: If the file cannot be read.
        NoSoundTrack: If it has no sound track.
    """
    with open_container(source, UNSUPPORTED) as container:
        return _sound_stream(container).codec_context.sample_rate


def _sound_stream(container: InputContainer) -> AudioStream:
    """Return the first sound track of a container."""
    streams = streams_of(container, "audio")
    if not streams:
        raise NoSoundTrack("has no sound track")
    stream = streams[0]
    from av.audio.stream import AudioStream

    assert isinstance(stream, AudioStream)
    # A stream of an unknown codec has no context, and a damaged one has no rate.
    if stream.codec_context is None or not stream.codec_context.sample_rate:
        raise BadMedia("damaged or truncated file (its sound track cannot be decoded)")
    return stream


# Kilobits per second by index, of layer III, for MPEG 1 and for MPEG 2 and 2.5.
BIT_RATES = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
SAMPLE_RATES = (44100, 48000, 32000)  # hertz of MPEG 1 by index
DIVISORS = {3: 1, 2: 2, 0: 4}  # of the sample rate, by the bits of the version: MPEG 1, 2 and 2.5
LAYER_3 = 1
MIN_FRAMES = 3  # the four bytes of a header can occur by chance


def is_cut_mp3(source: Any) -> bool:
    """Whether an MP3 file ends within a frame.

    Args:
        source: Path or bytes of the file.
    """
    opened = bytes_or_path(source)
    data = Path(opened).read_bytes() if isinstance(opened, str) else opened.getvalue()
    start = _end_of_tag(data)
    count = 0
    while (length := _frame_length(data[start : start + 4])) is not None:
        start += length
        count += 1
    # Anything but a frame after the last one is a tag at the end of the file.
    return count >= MIN_FRAMES and start > len(data)


def _end_of_tag(data: bytes) -> int:
    """Return the index of the first byte after an ID3 tag."""
    if not data.startswith(b"ID3") or len(data) < 10:
        return 0
    # Four bytes with seven bits each.
    size = 0
    for byte in data[6:10]:
        size = size << 7 | byte & 127
    return 10 + size


def _frame_length(header: bytes) -> int | None:
    """Return the number of bytes of a frame; None if there is no frame, or its length is free."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE0 != 0xE0:
        return None
    version = header[1] >> 3 & 3
    rate_index = header[2] >> 2 & 3
    bit_rate_index = header[2] >> 4
    if version not in DIVISORS or header[1] >> 1 & 3 != LAYER_3:
        return None
    if rate_index == 3 or bit_rate_index in (0, 15):
        return None
    is_first = version == 3
    bits = 1000 * BIT_RATES[0 if is_first else 1][bit_rate_index]
    rate = SAMPLE_RATES[rate_index] // DIVISORS[version]
    # 1152 samples per frame, or 576 of MPEG 2 and 2.5; 8 bits per byte.
    padding = header[2] >> 1 & 1
    return (144 if is_first else 72) * bits // rate + padding
