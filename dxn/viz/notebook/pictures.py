"""A matrix as a small picture."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import TYPE_CHECKING

# numpy and Pillow are imported when the first matrix is drawn.
if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# Blue for negative and red for positive numbers, which most color-blind people can tell apart.
NEGATIVE = (33, 102, 172)
POSITIVE = (178, 24, 43)
MAX_COLUMNS = 512  # a picture of more columns is larger than a screen
QUANTILE = 0.99  # a few extreme numbers do not make all others white


def heatmap(matrix: ArrayLike) -> str:
    """Return a picture of a matrix (D, N), one pixel per number, as a data URI.

    White is zero. Of a wider matrix, the first columns are drawn.
    """
    import numpy as np
    from PIL import Image

    numbers = np.nan_to_num(np.asarray(matrix, dtype=np.float32)[:, :MAX_COLUMNS])
    largest = float(np.quantile(np.abs(numbers), QUANTILE)) if numbers.size else 0.0
    scaled = np.clip(numbers / (largest or 1.0), -1, 1)[..., None]
    color = np.where(scaled < 0, np.array(NEGATIVE), np.array(POSITIVE))
    # Between white and the color, by magnitude.
    pixels = 255 + np.abs(scaled) * (color - 255)
    file = BytesIO()
    Image.fromarray(pixels.round().astype(np.uint8)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
