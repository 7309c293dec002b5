"""Synthetic data: audio of digit strings, dialled as telephone tones, for texts or events."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from dxn.core.errors import UserError
from dxn.data.rows import TARGET, InputSpec, Rows, Source
from dxn.datasets.checks import check_corrupt, check_counts
from dxn.datasets.digits import SAMPLE_RATE, key_tones

# Minimum and maximum durations in seconds, close to those of a person who dials fast.
TONE_SECONDS = (0.05, 0.15)
PAUSE_SECONDS = (0.03, 0.15)  # before the first tone, between tones, and after the last one


def dialled(
    *,
    num_train: int = 4000,
    num_validation: int = 300,
    num_test: int = 600,
    shortest: int = 3,
    longest: int = 12,
    corrupt: float = 1.0,
    events: bool = False,
    seed: int = 0,
) -> Source:
    """Generate a data set of dialled digit strings. All strings are distinct.

    The input is "audio", a float32 waveform (T,) with its sample rate of 8,000 Hz. A target is a
    string such as "3 0 7", or with `events` a list such as [{"label": "3", "start": 0.1, "end":
    0.2}], in seconds.

    Args:
        num_train: Number of training rows.
        num_validation: Number of validation rows.
        num_test: Number of test rows.
        shortest: Minimum number of digits of a string.
        longest: Maximum number of digits of a string. All lengths are equally likely.
        corrupt: Strength of the noise. 0: no noise.
        events: Whether the targets are the start and the end of each tone.
        seed: Random seed of the data set.

    Raises:
        UserError: If a split has no row, if an option is out of range, or if there are more rows
            than possible strings.
    """
    counts = check_counts(num_train, num_validation, num_test)
    check_lengths(shortest, longest)
    check_corrupt(corrupt)
    rng = np.random.default_rng(seed)
    strings = iter(_distinct_strings(rng, sum(counts.values()), shortest, longest))
    splits: dict[str, Rows] = {}
    for name, count in counts.items():
        splits[name] = _rows(rng, islice(strings, count), corrupt, events)
    return Source(
        splits,
        {"audio": InputSpec("dialled", "audio")},
        target="tones" if events else "digits",
        task="detect" if events else "generate",
        notes=["synthetic data: each digit string occurs only once in all splits"],
    )


def dial_string(
    rng: np.random.Generator, digits: str, corrupt: float = 1.0
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Generate the audio of dialled digits: tones and pauses with added noise.

    Returns:
        Waveform (T,), float32, at 8,000 Hz; and the digit, the start and the end of each tone.
    """
    pieces = [_pause(rng)]
    for digit in digits:
        pieces += [_tones(rng, digit), _pause(rng)]
    ends = np.cumsum([len(piece) for piece in pieces]) / SAMPLE_RATE
    tones = [
        {"label": digit, "start": float(ends[2 * i]), "end": float(ends[2 * i + 1])}
        for i, digit in enumerate(digits)
    ]
    sound = np.concatenate(pieces)
    # Standard deviation of the noise, relative to the amplitude 1 of a sine: 0.5 to 3.2.
    noise = corrupt * 10 ** rng.uniform(-0.3, 0.5)
    # The low volume keeps the loudest noise within -1 to 1, with rare exceptions that are clipped.
    noisy = rng.uniform(0.01, 0.05) * (sound + noise * rng.standard_normal(len(sound)))
    return noisy.clip(-1, 1).astype(np.float32), tones


def _distinct_strings(
    rng: np.random.Generator, count: int, shortest: int, longest: int
) -> list[str]:
    """Draw distinct digit strings."""
    possible = sum(10**length for length in range(shortest, longest + 1))
    if count > possible:
        raise UserError(
            f"data.longest: {count:,} rows need distinct strings, but there are only {possible:,} "
            f"strings of {shortest} to {longest} digits; increase data.longest"
        )
    # A dict removes duplicates like a set, but keeps the order, which must be reproducible.
    strings: dict[str, None] = {}
    while len(strings) < count:
        length = rng.integers(shortest, longest, endpoint=True)
        strings["".join(map(str, rng.integers(10, size=length)))] = None
    # There are few short strings, so most of them are drawn early. Shuffle the strings, so that all
    # splits have the same distribution of lengths.
    ordered = list(strings)
    return [ordered[i] for i in rng.permutation(count)]


def _rows(rng: np.random.Generator, strings: Iterator[str], corrupt: float, events: bool) -> Rows:
    targets: list[Any] = []
    sounds: list[tuple[np.ndarray, int]] = []
    for string in strings:
        sound, tones = dial_string(rng, string, corrupt)
        targets.append(tones if events else " ".join(string))
        sounds.append((sound, SAMPLE_RATE))
    origin = [f"dialled row {i + 1}" for i in range(len(targets))]
    return Rows({"audio": sounds, TARGET: targets}, origin)


def _pause(rng: np.random.Generator) -> np.ndarray:
    return np.zeros(round(rng.uniform(*PAUSE_SECONDS) * SAMPLE_RATE))


def _tones(rng: np.random.Generator, digit: str) -> np.ndarray:
    """Return the sum of the two sines of a key, float64 (T,), each with amplitude 1."""
    time = np.arange(round(rng.uniform(*TONE_SECONDS) * SAMPLE_RATE)) / SAMPLE_RATE
    low, high = (np.sin(2 * np.pi * (hertz * time + rng.random())) for hertz in key_tones(digit))
    return low + high


def check_lengths(shortest: int, longest: int) -> None:
    """Check the minimum and maximum length of strings.

    Raises:
        UserError: If they do not satisfy 1 <= shortest <= longest.
    """
    if not 1 <= shortest <= longest:
        raise UserError(
            "data.shortest, data.longest: must satisfy 1 <= shortest <= longest, "
            f"got {shortest} and {longest}"
        )
