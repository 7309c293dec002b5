"""The reader of clips: files in all supported formats, with checks of their content."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import soundfile
import torch
from torch import Tensor, nn

from dxn.core.files import atomic_file
from dxn.core.untrusted import shortened
from dxn.tokenize.base import BadMedia, Reader
from dxn.tokenize.media import (
    KINDS,
    bytes_or_path,
    check_complete,
    check_rate,
    check_seconds,
    check_values,
    head,
    header_seconds,
    is_container,
    open_container,
    streams_of,
)

if TYPE_CHECKING:  # see dxn.tokenize.media
    from av.audio.stream import AudioStream
    from av.container import InputContainer


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
# Maximum product of numerator and denominator, which the size of the filter grows with. The largest
# of a common pair is 282,240, that of 11025 to 16000 hertz.
MAX_FILTER = 500_000
BLOCK = 1 << 20  # values that are decoded at once
# The largest plausible sample. The range is -1 to 1, and float files can exceed it a little.
MAX_AMPLITUDE = 1e6
LOUD = 8.0  # a float file can exceed the range -1 to 1 a little, but not by 18 dB
SILENCE = 1e-4  # largest sample of a silent clip: three steps of 16 bits
ASF = b"\x30\x26\xb2\x75\x8e\x66\xcf\x11"  # the first bytes of WMA files
MAX_RATES = 5  # a description lists only the most common sample rates, to fit into one line


class AudioReader(Reader):
    """Reads clips.

    Args:
        sample_rate: Sample rate in hertz to which clips are resampled.
        max_seconds: Maximum duration in seconds. It is checked before a file is decoded.
    """

    modality = "audio"
    formats = (".wav", ".flac")
    files = True
    media = "audio/*"
    axes = 1

    def __init__(self, *, sample_rate: int = 16_000, max_seconds: float = 60.0):
        self.sample_rate = sample_rate
        self.max_seconds = max_seconds

    def read(self, cell: Any) -> Tensor | None:
        """Read a clip as mono float32 (T,) at sample_rate hertz. Channels are averaged.

        None: it is a video without sound, as some rows of a table can have.

        Args:
            cell: Path, bytes, or a pair of an array, (T,) or (channels, T), and its sample rate in
                hertz. An array is float from -1 to 1, or int16.

        Raises:
            BadMedia: If the clip cannot be read or is longer than max_seconds.
        """
        if isinstance(cell, tuple):
            samples, rate = _from_array(*cell)
        elif isinstance(cell, np.ndarray | Tensor):
            raise BadMedia(
                "an audio array needs its sample rate in hertz: pass a pair such as (x, 16000), "
                f"got only the array {tuple(cell.shape)}"
            )
        elif _has_container(cell):
            track = read_sound_track(cell, self.max_seconds)
            if track is None:
                return None
            samples, rate = track
        else:
            samples, rate = _decode(cell, self.max_seconds)
        if samples.shape[-1] == 0:
            raise BadMedia("no samples in it")
        low, high = samples.aminmax()
        # NaN is neither larger nor smaller than any number.
        if not (float(low) > -MAX_AMPLITUDE and float(high) < MAX_AMPLITUDE):
            raise BadMedia(f"samples that are NaN, infinite or above {MAX_AMPLITUDE:,.0f}")
        # Again, because the duration in the header can be missing or wrong.
        check_seconds(samples.shape[-1] / rate, self.max_seconds)
        mono = samples.mean(0) if samples.ndim == 2 else samples
        return mono if rate == self.sample_rate else _resampler(rate, self.sample_rate)(mono)

    def extent(self, cell: Any) -> tuple[float]:
        """Return the duration in seconds, infinity if the header does not tell it."""
        seconds = audio_seconds(cell)
        return (math.inf if seconds is None else seconds,)

    def write(self, raw: Tensor, path: Path) -> None:
        """Write a clip (T,) to a file of 16 bits per value, after limiting it to -1 to 1."""
        kind = path.suffix[1:].upper()
        with atomic_file(path) as partial:
            values = raw.clamp(-1, 1).numpy()
            soundfile.write(partial, values, self.sample_rate, "PCM_16", format=kind)

    def describe(self, raws: Sequence[Tensor], cells: Sequence[Any]) -> str:
        """Describe the durations of the clips and the sample rates of their cells."""
        if not raws:
            return ""
        # One pass, because getting a clip can read a file.
        sizes = [(len(raw) / self.sample_rate, float(raw.abs().max())) for raw in raws]
        seconds, peaks = zip(*sizes, strict=True)
        median = statistics.median(seconds)
        parts = [f"{min(seconds):.2f} to {max(seconds):.2f}, median {median:.2f} s"]
        rates: Counter[int] = Counter()
        for cell in cells:
            with suppress(BadMedia):  # the data set reports invalid files itself
                if cell is not None:
                    rates[audio_rate(cell)] += 1
        common = rates.most_common(MAX_RATES)
        if common:
            parts.append(", ".join(f"{count:,} at {rate:,} Hz" for rate, count in common))
        if loud := [peak for peak in peaks if peak > LOUD]:
            parts.append(f"{len(loud):,} with samples far beyond -1 to 1 (up to {max(loud):,.0f})")
        silent = [i for i, peak in enumerate(peaks) if peak < SILENCE]
        if silent:
            cancelled = sum(_has_sound(cells[i]) for i in silent if i < len(cells))
            opposite = f", {cancelled:,} of them the mean of opposite channels" if cancelled else ""
            parts.append(f"{len(silent):,} silent{opposite}")
        return "; ".join(parts)


def audio_rate(source: Any) -> int:
    """Return the sample rate in hertz of a source of `AudioReader.read`, without decoding it.

    Raises:
        BadMedia: If the source cannot be read, or is a video without sound.
    """
    if isinstance(source, tuple):
        return int(source[1])
    if _has_container(source):
        with open_container(source, UNSUPPORTED) as container:
            stream = _sound_stream(container)
            if stream is None:
                raise BadMedia("has no sound track")
            return stream.codec_context.sample_rate
    with _open_audio(source) as file:
        return file.samplerate


def _has_sound(cell: Any) -> bool:
    """Whether a channel of a file has a sound. False for containers, whose tracks are not read."""
    with suppress(BadMedia, soundfile.LibsndfileError):
        if isinstance(cell, tuple):
            return float(_from_array(*cell)[0].abs().max()) > 10 * SILENCE
        if not _has_container(cell):
            with _open_audio(cell) as file:
                blocks = file.blocks(BLOCK // file.channels, dtype="float32", always_2d=True)
                return any(float(abs(block).max()) > 10 * SILENCE for block in blocks)
    return False


def audio_seconds(source: Any) -> float | None:
    """Return the duration of a source of `AudioReader.read` in seconds, without decoding it.

    None: the duration is unknown, as in some streams, or the file is read by PyAV, as M4A is.

    Raises:
        BadMedia: If the source cannot be read.
    """
    if isinstance(source, tuple):
        samples, rate = _from_array(*source)
        return samples.shape[-1] / rate
    if _has_container(source):
        return None
    with _open_audio(source) as file:
        return file.frames / file.samplerate if file.frames < UNKNOWN_LENGTH else None


def _has_container(source: Any) -> bool:
    """Whether a path or bytes are a file that libsndfile cannot read, such as a video."""
    bytes_or_path(source)  # checks that the file exists
    return is_container(head(source, 32))


def _from_array(array: Any, rate: Any = None, *others: Any) -> tuple[Tensor, int]:
    """Convert an array to float32 samples, (T,) or (channels, T), and its sample rate in hertz."""
    if others or not isinstance(rate, Real):
        got = ", ".join(map(shortened, (rate, *others)))
        raise BadMedia(
            "a pair must be an array and its sample rate in hertz, such as (x, 16000), got "
            f"({type(array).__name__}, {got})"
        )
    hertz = float(rate)
    try:
        samples = torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadMedia(f"an audio array must have numbers, got {shortened(array)}") from error
    is_int16 = samples.dtype == torch.int16
    if samples.ndim not in (1, 2) or not (samples.is_floating_point() or is_int16):
        raise BadMedia(
            "an audio array must be float or int16, (T,) or (channels, T), with a rate in hertz, "
            f"got {samples.dtype} {tuple(samples.shape)} at {rate}"
        )
    if samples.ndim == 2 and samples.shape[0] > samples.shape[1] > 0:
        channels, length = samples.shape
        raise BadMedia(
            f"an audio array of two axes must be (channels, T), got {channels:,} channels of "
            f"{length:,} samples; transpose it"
        )
    check_rate(hertz)
    # This does not copy an array that is float32 already.
    samples = samples.to(torch.float32)
    # 32768 scales int16 to -1 to 1.
    return samples / 32768 if is_int16 else samples, int(hertz)


def _decode(source: Any, max_seconds: float) -> tuple[Tensor, int]:
    """Decode a file to mono float32 samples (T,) and their sample rate in hertz."""
    with _open_audio(source) as file:
        check_rate(file.samplerate)
        # One frame more than allowed, so that a file without a known length is still rejected.
        max_frames = int(max_seconds * file.samplerate) + 1
        if file.frames < UNKNOWN_LENGTH:
            check_seconds(file.frames / file.samplerate, max_seconds)
            check_values(file.frames * file.channels, max_seconds)
        try:
            data = _read_mono(file, min(file.frames, max_frames), max_seconds)
        except soundfile.LibsndfileError as error:
            raise BadMedia(f"damaged or truncated audio ({error.error_string})") from None
        header = SHORTENED.search(file.extra_info)
        if header and int(header[1]) != STREAMED:
            raise BadMedia(f"truncated: the header promises {int(header[1]):,} bytes of audio")
        # The length of an MP3 file is an estimate, unless the encoder wrote one of these tags.
        exact = file.format != "MP3" or re.search(b"Xing|Info", head(source, 4096))
        if exact and len(data) < min(file.frames, max_frames):
            raise BadMedia(f"truncated: {len(data):,} of {file.frames:,} samples")
        return data, file.samplerate


def _read_mono(file: soundfile.SoundFile, num_frames: int, max_seconds: float) -> Tensor:
    """Decode up to num_frames frames, and return the mean of the channels (T,)."""
    pieces: list[Tensor] = []
    length = 0
    block = max(BLOCK // file.channels, 1)
    # In blocks: only the mean of many channels is held, and an unknown length allocates nothing.
    while length < num_frames:
        data = file.read(min(block, num_frames - length), dtype="float32", always_2d=True)
        if file.channels == 1:  # the usual case, which needs no copy
            pieces.append(torch.from_numpy(data[:, 0]))
        else:
            pieces.append(torch.from_numpy(data.T.copy()).mean(0))
        length += len(data)
        check_values(length * file.channels, max_seconds)
        if len(data) < block:
            break
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat(pieces) if pieces else torch.empty(0)


def _open_audio(source: Any) -> soundfile.SoundFile:
    problem = "not a supported audio file (WAV, FLAC, OGG, MP3, M4A, AAC, or a video with sound)"
    try:
        return soundfile.SoundFile(bytes_or_path(source))
    except soundfile.LibsndfileError as error:
        if head(source, len(ASF)) == ASF:
            raise BadMedia(f"{problem}: a WMA file; convert it to WAV or FLAC") from None
        raise BadMedia(f"{problem}: {error.error_string}") from None
    except TypeError:  # soundfile needs a sample rate to open a file with the suffix .raw
        raise BadMedia(f"{problem}: raw samples") from None


@lru_cache(maxsize=64)
def _resampler(rate: int, sample_rate: int) -> nn.Module:
    """Return the resampling filter. It is cached, because its computation is slow."""
    import torchaudio  # it takes time to import

    limit = math.isqrt(int(MAX_FILTER * sample_rate / rate))
    ratio = Fraction(rate, sample_rate).limit_denominator(max(min(MAX_DENOMINATOR, limit), 1))
    return torchaudio.transforms.Resample(max(ratio.numerator, 1), ratio.denominator)


UNSUPPORTED = f"not a supported audio file (M4A, AAC, or the sound track of {KINDS})"


def read_sound_track(source: Any, max_seconds: float) -> tuple[Tensor, int] | None:
    """Decode the sound of a container to mono float32 samples (T,) and their rate in hertz.

    None: it has no sound track.

    Args:
        source: Path or bytes.
        max_seconds: Maximum duration in seconds, checked in the header and while decoding.

    Raises:
        BadMedia: If the file cannot be read, or is longer than max_seconds.
    """
    with open_container(source, UNSUPPORTED) as container:
        stream = _sound_stream(container)
        if stream is None:
            return None
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


def _sound_stream(container: InputContainer) -> AudioStream | None:
    """Return the first sound track of a container. None: it has none."""
    streams = streams_of(container, "audio")
    if not streams:
        return None
    stream = streams[0]
    from av.audio.stream import AudioStream

    assert isinstance(stream, AudioStream)
    # A stream of an unknown codec has no context, and a damaged one has no rate.
    if stream.codec_context is None or not stream.codec_context.sample_rate:
        raise BadMedia("damaged or truncated file (its sound track cannot be decoded)")
    return stream
