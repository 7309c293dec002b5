"""Convert sounds to a log-mel spectrogram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def prepare(values: Sequence[Any], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return features (B, T, F), padded with zeros, and lengths (B,) in frames.

    Args:
        values: Paths of B sound files, or their waveforms: arrays (T,) at the sample rate of the
            options.
        options: Options of the input in preprocess.json.

    Raises:
        ValueError: If a file has another sample rate.
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
    if rate != sample_rate:
        raise ValueError(f"{value}: must have {sample_rate} samples per second, got {rate}")
    return samples.mean(1)


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
