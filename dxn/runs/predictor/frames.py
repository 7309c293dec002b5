"""Forecasts of frames of cells as an array."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.core.files import atomic_file
from dxn.data.formats import ARRAYS
from dxn.data.series.grid import read_grid
from dxn.tasks.forecast.task import FutureValues

if TYPE_CHECKING:
    from dxn.runs.predictor.predictor import Predictor

ARRAY = ARRAYS[0]  # suffix of the file of forecasts


def write_frames(output: Path, predictor: Predictor, source: Any) -> str:
    """Write the next frames of one sequence (S, H, W), or of several ones (N, S, H, W).

    Args:
        output: .npy file.
        predictor: A model that forecasts frames.
        source: .npy or .npz file of the sequences, see `dxn.data.series.grid.read_grid`.

    Returns:
        The shape of the array as text.

    Raises:
        UserError: If the model forecasts no frames, or the file cannot be read.
    """
    task: Any = predictor.task
    target = task.target
    if not isinstance(target, FutureValues) or target.frame is None:
        raise UserError(
            f"output: only a model that forecasts frames of cells can write a {ARRAY} file, got "
            f"{output}; use a .csv file"
        )
    if not str(source).lower().endswith(ARRAYS):
        raise UserError(
            f"input: must be a {' or '.join(ARRAYS)} file of frames for output={output}, got "
            f"{source}"
        )
    sequences = read_grid(Path(str(source)))
    samples = predictor.samples([{target.input: sequence} for sequence in sequences])
    predictions = predictor.run(samples)
    order = np.argsort(predictions.rows)
    forecasts = torch.stack([predictions.predicted[i] for i in order])
    middle = task.quantiles.index(0.5)
    frames = forecasts[..., middle].float().unflatten(2, target.frame).numpy(force=True)
    is_one = len(frames) == 1
    array = frames[0] if is_one else frames
    with atomic_file(output) as partial, partial.open("wb") as file:
        np.save(file, array)
    return f"{count(len(frames), 'forecast')}, shape {'×'.join(map(str, array.shape))}"
