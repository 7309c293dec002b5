"""Reading of .npy files, which may come from an untrusted source."""

from __future__ import annotations

import io

import numpy as np

from dxn.tokenize.media import BadMedia

MAX_SHOWN = 100  # characters of an error


def read_npy(file: io.BytesIO | str) -> np.ndarray:
    """Read an array. That of a file is mapped, so that one that is too large is never read.

    Raises:
        BadMedia: If the file is damaged, or contains Python objects.
    """
    # Not np.load: it also opens .npz archives, whose content is not an array.
    try:
        if isinstance(file, str):
            return np.lib.format.open_memmap(file, mode="r")
        return np.lib.format.read_array(file, allow_pickle=False)
    # NumPy parses the header as Python code. A damaged one raises, among others, TokenError,
    # RecursionError, OverflowError or TypeError.
    except Exception as error:
        reason = str(error).partition("\n")[0][:MAX_SHOWN]
        raise BadMedia(f"not a .npy file of numbers ({reason})") from None
