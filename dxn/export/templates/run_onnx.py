"""Run the graphs of this folder with onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime

Arrays = dict[str, np.ndarray]


def load(path: Path) -> Callable[[Arrays], Arrays]:
    """Return a function from the inputs of a graph to its outputs, both by name."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(arrays: Arrays) -> Arrays:
        outputs = [np.asarray(output) for output in session.run(names, arrays)]
        return dict(zip(names, outputs, strict=True))

    return run
