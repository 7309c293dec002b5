"""Run the graphs of this folder with torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

Arrays = dict[str, np.ndarray]


def load(path: Path) -> Callable[[Arrays], Arrays]:
    """Return a function from the inputs of a graph to its outputs, both by name."""
    # torch.export checks by guards that no size is 1, although the graph allows it.
    graph: Any = torch.export.load(path).module(check_guards=False)

    def run(arrays: Arrays) -> Arrays:
        with torch.inference_mode():
            # The graph expects the names in the order of the alphabet.
            outputs = graph({name: torch.from_numpy(arrays[name]) for name in sorted(arrays)})
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    return run
