"""Synthetic series: two channels with the same wave, whose phase difference is the label."""

from __future__ import annotations

from typing import Any

import numpy as np

from dxn.core.errors import UserError
from dxn.data.rows import TARGET, VALUES, InputSpec, Rows, Source
from dxn.datasets.checks import check_corrupt, check_counts
from dxn_examples.dialled import check_lengths

# Phase of the second channel relative to the first one, as a fraction of a period.
PHASES = {"together": 0.0, "behind": 0.25, "opposite": 0.5, "ahead": 0.75}
PERIODS = (10.0, 20.0)  # time steps; random, so that the frequency says nothing about the label
LEVELS = (0.5, 2.0)  # range of the amplitude of a channel
MAX_OFFSET = 2.0  # largest mean of a channel
NOISE = 0.3  # standard deviation of the noise relative to the amplitude, with corrupt=1
GAP = 0.3  # length of a gap relative to the series


def waves(
    *,
    num_train: int = 2000,
    num_validation: int = 300,
    num_test: int = 600,
    shortest: int = 40,
    longest: int = 80,
    channels: int = 2,
    corrupt: float = 1.0,
    missing: float = 0.1,
    seed: int = 0,
) -> Source:
    """Generate series of two channels whose label is the phase between the channels.

    Both channels are a sine wave of the same random period. The label says where the wave of the
    second channel is relative to the first one: together, behind, opposite or ahead. Each channel
    starts at a random phase, with a random level and a random mean, so that a single channel, or
    the spectra of both channels, say nothing about the label.

    Args:
        num_train: Number of training rows.
        num_validation: Number of validation rows.
        num_test: Number of test rows.
        shortest: Minimum number of time steps of a series.
        longest: Maximum number of time steps of a series.
        channels: Number of channels in the data set. 1: only the first, which says nothing.
        corrupt: Strength of the noise. 0: no noise.
        missing: Probability that a value is missing. Half of the series also have a gap, unless it
            is 0.
        seed: Random seed of the data set.

    Raises:
        UserError: If a split has no row, or another option is out of range.
    """
    counts = check_counts(num_train, num_validation, num_test)
    check_corrupt(corrupt)
    check_lengths(shortest, longest)
    if not 0 <= missing < 1:
        raise UserError(f"data.missing: must be in [0, 1), got {missing}")
    if channels not in (1, 2):
        raise UserError(f"data.channels: must be 1 or 2, got {channels}")
    rng = np.random.default_rng(seed)
    splits: dict[str, Rows] = {}
    for name, count in counts.items():
        labels = rng.choice(list(PHASES), count).tolist()
        cells: dict[str, list[Any]] = {"series": [], TARGET: labels}
        for label in labels:
            length = int(rng.integers(shortest, longest + 1))
            series = wave_pair(rng, PHASES[label], length, corrupt=corrupt)
            cells["series"].append(_with_gaps(rng, series[:, :channels], missing))
        splits[name] = Rows(cells, [f"waves row {i + 1}" for i in range(count)])
    notes = ["synthetic data: the label is the phase between the two channels of a series"]
    inputs = {"series": InputSpec(VALUES, "series")}
    return Source(splits, inputs, target="phase", task="classify", notes=notes)


def wave_pair(
    rng: np.random.Generator, phase: float, length: int, *, corrupt: float = 1.0
) -> np.ndarray:
    """Generate two waves of the same period with a phase difference.

    Args:
        rng: Random generator.
        phase: Phase of the second channel after the first one, as a fraction of a period.
        length: Number of time steps.
        corrupt: Strength of the noise.

    Returns:
        (length, 2), float32.
    """
    period = rng.uniform(*PERIODS)
    time = np.arange(length) / period + rng.random()
    waves = np.sin(2 * np.pi * (time[:, None] - np.array([0, phase])))
    waves += NOISE * corrupt * rng.standard_normal((length, 2))
    low, high = LEVELS
    levels = low * (high / low) ** rng.random(2)
    return (levels * waves + rng.uniform(-MAX_OFFSET, MAX_OFFSET, 2)).astype(np.float32)


def _with_gaps(rng: np.random.Generator, series: np.ndarray, missing: float) -> np.ndarray:
    """Set single values, and in half of the series a part of one channel, to NaN."""
    if missing:
        series[rng.random(series.shape) < missing] = np.nan
        if rng.random() < 0.5:
            width = int(GAP * len(series))
            start = rng.integers(0, len(series) - width + 1)
            series[start : start + width, rng.integers(series.shape[1])] = np.nan
    # A series without any value would be a missing input.
    if np.isnan(series).all():
        series[0] = 0
    return series
