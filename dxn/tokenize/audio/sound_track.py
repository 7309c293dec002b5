"""Reading of sound from containers that libsndfile cannot read: videos, M4A and AAC files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dxn.tokenize.media import BadMedia
from dxn.tokenize.media_container import (
    KINDS,
    check_complete,
    check_rate,
    check_seconds,
    check_values,
    header_seconds,
    open_container,
    streams_of,
)

if TYPE_CHECKING:  # see dxn.tokenize.media_container
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
