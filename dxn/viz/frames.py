"""Pictures of frames of cells: a color per value, from dark blue (low) to yellow (high)."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np

MISSING = (160, 160, 160)  # no color of the map is grey
SIDE = 96  # pixels of the longer side of a frame, at least
GAP = 0.08  # between frames, relative to their width


def value_range(*values: np.ndarray) -> tuple[float, float]:
    """Return the lowest and the highest value of arrays without missing ones."""
    present = np.concatenate([each[np.isfinite(each)] for each in values])
    if not len(present):
        return 0.0, 1.0
    low, high = float(present.min()), float(present.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def draw_frame(values: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    """Return the cells (H, W) as a picture, uint8 (H, W, 3). Missing cells are grey."""
    low, high = limits
    scaled = (values.astype(float) - low) / (high - low)
    pixels = 255 * mpl.colormaps["viridis"](np.nan_to_num(scaled).clip(0, 1))[..., :3]
    return np.where(np.isnan(values)[..., None], MISSING, pixels).astype(np.uint8)


def zoom_of(height: int, width: int) -> int:
    """Return the number of pixels of the side of a cell."""
    return max(1, -(-SIDE // max(height, width)))
