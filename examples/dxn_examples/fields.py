"""Synthetic fields over time: smooth hills that a wind moves over a grid with periodic borders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from dxn.core.errors import UserError
from dxn.data.columns.infer import Readers
from dxn.data.formats import SPLITS
from dxn.data.rows import Rows, Source
from dxn.data.series.grid import grid_rows, grid_source
from dxn.data.series.windows import Windows
from dxn.datasets.checks import check_counts

MIN_SIZE = 8  # cells; hills would not fit into a smaller grid
# Ranges of uniformly drawn numbers.
NUM_HILLS = (3, 7)  # below the second one
WIDTH = (1.2, 2.6)  # standard deviation of a hill in cells
HEIGHT = (0.5, 1.5)
WIND = 1.5  # largest speed along each axis, in cells per frame
DECAY = (0.0, 0.05)  # part of the height that a frame loses


def fields(
    *,
    readers: Readers,
    num_train: int = 4000,
    num_validation: int = 200,
    num_test: int = 400,
    size: int = 24,
    horizon: int = 4,
    context: int = 8,
    noise: float = 0.05,
    seed: int = 0,
) -> Source:
    """Generate sequences of frames. The next frames are the target.

    A field is a sum of hills, which a wind moves and which slowly become lower. The wind differs
    between the sequences, and only the motion in the history shows it. What leaves the grid at a
    border enters again at the opposite one. The mean squared error of a perfect forecast is the
    square of `noise`.

    Args:
        readers: Readers in use, by modality. The caller sets this argument.
        num_train: Number of training rows.
        num_validation: Number of validation rows.
        num_test: Number of test rows.
        size: Height and width of the grid in cells, at least 8.
        horizon: Number of future frames to predict.
        context: Number of past frames that the model reads.
        noise: Standard deviation of the noise of each cell.
        seed: Random seed of the data set.

    Raises:
        UserError: If a split has no row, or an option is out of range.
    """
    counts = check_counts(num_train, num_validation, num_test)
    if size < MIN_SIZE:
        raise UserError(f"data.size: must be at least {MIN_SIZE} cells, got {size}")
    for name, value in (("horizon", horizon), ("context", context)):
        if value < 1:
            raise UserError(f"data.{name}: must be at least 1, got {value}")
    if noise < 0:
        raise UserError(f"data.noise: must be at least 0, got {noise}")
    windows = Windows(["frames"], horizon=horizon, context=context)
    splits: dict[str, Rows] = {}
    for split, number in counts.items():
        frames = np.empty((number, context + horizon, size, size), np.float32)
        for row in range(number):
            rng = np.random.default_rng([seed, SPLITS.index(split), row])
            frames[row] = draw_field(rng, size, context + horizon)
            frames[row] += noise * rng.standard_normal(frames[row].shape, np.float32)
        starts = [(row, context) for row in range(number)]
        splits[split] = grid_rows(torch.from_numpy(frames), starts, windows, Path("fields"))
    note = "synthetic data: a single frame has no information about the wind"
    return grid_source(splits, readers, name="fields", notes=[note])


def draw_field(rng: np.random.Generator, size: int, steps: int) -> np.ndarray:
    """Draw the frames (steps, size, size) of a moving field without noise."""
    count = rng.integers(*NUM_HILLS)
    wind = rng.uniform(-WIND, WIND, 2)
    start = rng.uniform(0, size, (count, 2))
    heights = rng.uniform(*HEIGHT, count)
    widths = rng.uniform(*WIDTH, count)
    time = np.arange(steps)
    centers = start[:, None] + wind * time[:, None]  # (hills, steps, 2)
    distance = (np.arange(size) - centers[..., None] + size / 2) % size - size / 2
    bells = np.exp(-0.5 * (distance / widths[:, None, None, None]) ** 2)
    lower = (1 - rng.uniform(*DECAY)) ** time
    return np.einsum("n,t,nti,ntj->tij", heights, lower, bells[:, :, 0], bells[:, :, 1])
