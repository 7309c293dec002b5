"""Convert sounds to a log-mel spectrogram."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def prepare(values: Sequence[Any], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return features (B, T, F), padded with zeros, and lengths (B,) in frames.

    Args:
        values: Paths of B sound files, or their waveforms: arrays (T,) at the sample rate of the
            options.
        options: Options of the input in preprocess.json.
    """
    rows = [_features(_waveform(value, options["sample_rate"]), options) for value in values]
    lengths = np.array([len(row) for row in rows], np.int64)
    features = np.zeros((len(rows), int(lengths.max()), rows[0].shape[1]), np.float32)
    for padded, row in zip(features, rows, strict=True):
        padded[: len(row)] = row
    return {"features": features, "lengths": lengths}


def _waveform(value: Any, sample_rate: int) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    import soundfile

    samples, rate = soundfile.read(value, dtype="float32", always_2d=True)
    mono = samples.mean(1)
    return mono if rate == sample_rate else _resampled(mono, rate, sample_rate)


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
    size, hop = options["n_fft"], options["hop_length"]
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(samples, size // 2), size)[::hop]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    power = np.abs(np.fft.rfft(frames * window)) ** 2
    mel = power @ np.array(options["filters"])
    if options["top_db"] is not None:
        mel = np.maximum(mel, mel.max() * 10 ** (-options["top_db"] / 10))
    features = np.log(mel + options["floor"])
    count = options["num_frames"]
    if count is not None:
        features = np.pad(features[:count], ((0, max(count - len(features), 0)), (0, 0)))
    if options["normalize"] == "clip":
        features = (features - features.mean(0)) / max(features.std(), 1e-3)
    return features.astype(np.float32)
