"""Convert sounds to a mel spectrogram or a normalized waveform."""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SHORTENED = re.compile(r"(?:data|SSND|Data Size)\s*: (\d+) \(should be \d+\)")
STREAMED = 2**32 - 1  # length in a file that was written before its length was known
MAX_AMPLITUDE = 1e6


def read(value: Any, options: Mapping[str, Any]) -> np.ndarray:
    """Return a waveform (T,) at the sample rate of the options. Channels are averaged.

    Args:
        value: Path or bytes of a sound file, or an array and its sample rate in hertz: float from
            -1 to 1 or int16, (T,) or (channels, T).
        options: Options of the input in preprocess.json.

    Raises:
        RuntimeError: If the file cannot be read.
        ValueError: If the sound is empty, too long or truncated, or has numbers such as NaN.
    """
    if isinstance(value, tuple):
        samples, rate = np.asarray(value[0]), int(value[1])
        is_sound = samples.dtype.kind == "f" or samples.dtype == np.int16
        if not is_sound or samples.ndim not in (1, 2) or len(samples) > samples.shape[-1] > 0:
            raise ValueError("an array must be float or int16, (T,) or (channels, T)")
        scale = 32768 if samples.dtype == np.int16 else 1
        samples = (samples / scale).astype(np.float32)
        mono = samples.mean(0) if samples.ndim == 2 else samples
    elif isinstance(value, bytes | str | os.PathLike):
        mono, rate = _decoded(value)
    else:
        raise ValueError("must be a path, bytes, or an array and its sample rate")
    if not len(mono):
        raise ValueError("no samples in it")
    if len(mono) > options["max_seconds"] * rate:
        raise ValueError(f"longer than {options['max_seconds']:g} s")
    # NaN is neither larger nor smaller than any number.
    if not float(np.abs(mono).max()) < MAX_AMPLITUDE:
        raise ValueError(f"samples that are NaN, infinite or above {MAX_AMPLITUDE:,.0f}")
    sample_rate = options["sample_rate"]
    return mono if rate == sample_rate else _resampled(mono, rate, sample_rate)


def prepare(raws: Sequence[np.ndarray], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return features (B, T, F), padded with zeros, and lengths (B,) in frames.

    Clips that are normalized also have level (B, F + 1): the mean of each bin and the deviation.

    Args:
        raws: Results of `read`.
        options: Options of the input in preprocess.json.
    """
    rows = [_features(raw, options) for raw in raws]
    levels: dict[str, np.ndarray] = {}
    if options["normalize"] == "clip":
        # The deviation of all bins together keeps their relative levels.
        stds = [(row.var() + 1e-7) ** 0.5 for row in rows]
        means = [row.mean(0) for row in rows]
        pairs = [np.append(mean, std) for mean, std in zip(means, stds, strict=True)]
        levels["level"] = np.array(pairs, np.float32)
        rows = [(row - mean) / std for row, mean, std in zip(rows, means, stds, strict=True)]
    # Padding takes no part in the normalization of a clip.
    is_silent = options["normalize"] != "clip" and options["frontend"] == "mel"
    padding = math.log(options["floor"]) if is_silent else 0.0
    if options.get("pad", True):
        rows = [_fixed_length(row, options.get("num_frames"), padding) for row in rows]
    lengths = np.array([len(row) for row in rows], np.int64)
    features = np.zeros((len(rows), int(lengths.max()), rows[0].shape[1]), np.float32)
    for padded, row in zip(features, rows, strict=True):
        padded[: len(row)] = row
    return {"features": features, "lengths": lengths, **levels}


def _decoded(value: Any) -> tuple[np.ndarray, int]:
    """Return the samples (T,) of a file, and its sample rate."""
    import soundfile

    with soundfile.SoundFile(io.BytesIO(value) if isinstance(value, bytes) else value) as file:
        # libsndfile reads a truncated file without an error, but its log has the expected length.
        header = SHORTENED.search(file.extra_info)
        if header and int(header[1]) != STREAMED:
            raise ValueError("a truncated file")
        return file.read(dtype="float32", always_2d=True).mean(1), file.samplerate


def _resampled(samples: np.ndarray, rate: int, sample_rate: int) -> np.ndarray:
    """Change the sample rate with a windowed sinc filter, as torchaudio does."""
    divisor = math.gcd(rate, sample_rate)
    old, new = rate // divisor, sample_rate // divisor
    cutoff = 0.99 * min(old, new)
    width = math.ceil(6 * old / cutoff)
    offsets = np.arange(-width, width + old) / old
    # (new, K): one filter for each position between two samples.
    t = cutoff * (offsets - np.arange(new)[:, None] / new)
    t = t.clip(-6, 6)
    filters = np.sinc(t) * np.cos(t * np.pi / 12) ** 2 * cutoff / old
    padded = np.pad(samples, (width, width + old))
    windows = np.lib.stride_tricks.sliding_window_view(padded, filters.shape[1])[::old]
    length = math.ceil(new * len(samples) / old)
    return (windows @ filters.T).ravel()[:length].astype(np.float32)


def _features(samples: np.ndarray, options: Mapping[str, Any]) -> np.ndarray:
    compute = {"waveform": _as_column, "mel": _mel, "kaldi": _kaldi, "whisper": _whisper}
    return compute[options["frontend"]](samples, options)


def _as_column(samples: np.ndarray, options: Mapping[str, Any]) -> np.ndarray:
    return samples[:, None]


def _mel(samples: np.ndarray, options: Mapping[str, Any]) -> np.ndarray:
    mel = _power(np.pad(samples, options["n_fft"] // 2), options) @ np.array(options["filters"])
    if options["top_db"] is not None:
        mel = np.maximum(mel, mel.max() * 10 ** (-options["top_db"] / 10))
    return np.log(mel + options["floor"])[: options["num_frames"]]


def _whisper(samples: np.ndarray, options: Mapping[str, Any]) -> np.ndarray:
    half, count = options["n_fft"] // 2, options["num_frames"]
    if count is not None:
        length = count * options["hop_length"]
        if not options["pad"]:
            count = min(max(-(-len(samples) // options["hop_length"]), 1), count)
            length = min(length, len(samples) + 2 * options["n_fft"])
        samples = _fixed_length(samples, length)
    samples = np.pad(samples, (0, max(half + 1 - len(samples), 0)))
    power = _power(np.pad(samples, half, mode="reflect"), options)[:-1]
    log = np.log10(np.maximum(power @ np.array(options["filters"]), 1e-10))
    return ((np.maximum(log, log.max() - 8) + 4) / 4)[:count]


def _kaldi(samples: np.ndarray, options: Mapping[str, Any]) -> np.ndarray:
    samples = np.pad(samples, (0, max(options["n_fft"] - len(samples), 0)))
    mel = _power(samples, options, preemphasis=0.97) @ np.array(options["filters"])
    log = np.log(np.maximum(mel, np.finfo(np.float32).eps))
    return log[: options["num_frames"]]


def _power(samples: np.ndarray, options: Mapping[str, Any], preemphasis: float = 0.0) -> np.ndarray:
    """Return the power spectrum (frames, bins) of windows of n_fft samples."""
    size, hop = options["n_fft"], options["hop_length"]
    frames = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), size)[::hop]
    if preemphasis:  # Kaldi: without the mean, differences, a symmetric window and a power of two
        frames = frames - frames.mean(1, keepdims=True)
        frames = frames - preemphasis * np.concatenate([frames[:, :1], frames[:, :-1]], 1)
        return np.abs(np.fft.rfft(frames * np.hanning(size), 1 << (size - 1).bit_length())) ** 2
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    return np.abs(np.fft.rfft(frames * window)) ** 2


def _fixed_length(rows: np.ndarray, count: int | None, value: float = 0.0) -> np.ndarray:
    """Truncate or pad rows with a value at the end."""
    if count is None:
        return rows
    padding = [(0, max(count - len(rows), 0))] + [(0, 0)] * (rows.ndim - 1)
    return np.pad(rows[:count], padding, constant_values=value)
