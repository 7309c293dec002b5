"""Write the two grids of the study of forecasts of grids: america.npy and tracer.npy.

pip install iris-sample-data h5py scipy
python benchmarks/studies/grids.py
dxn train america.npy trainer.max_minutes=2
dxn train tracer.npy trainer.max_minutes=2
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
from scipy.ndimage import gaussian_filter, map_coordinates

SIZE, STEPS = 48, 1000


def america() -> np.ndarray:
    """Return the yearly air temperatures of North America of a climate model (240, 37, 49)."""
    # These packages are only for this study.
    h5py, samples = import_module("h5py"), import_module("iris_sample_data")
    with h5py.File(Path(samples.path) / "E1_north_america.nc") as content:
        return np.asarray(content["air_temperature"], np.float32)


def tracer(seed: int = 0) -> np.ndarray:
    """Return a tracer (STEPS, SIZE, SIZE) on a periodic grid.

    A wind with a changing direction and a fixed flow move it, it diffuses, and random sources renew
    it, so that no forecast is exact.
    """
    rand = np.random.default_rng(seed)

    def smooth(width: float) -> np.ndarray:
        field = gaussian_filter(rand.standard_normal((SIZE, SIZE)), width, mode="wrap")
        return field / field.std()

    rows, columns = np.mgrid[0:SIZE, 0:SIZE].astype(float)
    field, flow = smooth(3), smooth(8)
    down, across = np.gradient(flow)
    angle, frames = 0.0, []
    for _ in range(STEPS):
        angle += 0.1 * rand.standard_normal()
        wind = 1.2 * np.sin(angle), 1.2 * np.cos(angle)
        origin = [rows - wind[0] - 6 * across, columns - wind[1] + 6 * down]
        moved = map_coordinates(field, origin, order=3, mode="grid-wrap")
        field = 0.97 * gaussian_filter(moved, 0.3, mode="wrap") + 0.1 * smooth(3)
        frames.append(field + 0.02 * rand.standard_normal((SIZE, SIZE)))
    return np.stack(frames).astype(np.float32)


if __name__ == "__main__":
    np.save("america.npy", america())
    np.save("tracer.npy", tracer())
