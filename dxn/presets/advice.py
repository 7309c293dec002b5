"""What the rules of preset=auto know about a training, and what they return.

docs/presets.md lists the rules with the measurements behind them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# Key and value of the choice of optimizer=muon.
MUON = ("optimizer._target_", "dxn.training.optim.muon")


@dataclass(frozen=True)
class Advice:
    """A recommended value of an option.

    Args:
        key: Dotted key of the configuration.
        value: The value.
        reason: What the data shows, for the line that is printed.
    """

    key: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Facts:
    """What is known about a training before any file is read.

    Args:
        rows: Number of training rows.
        num_inputs: Number of inputs of the model.
        num_files: Number of inputs that are files or texts, and not columns of a table.
        prefix: Key of the adapter's options, such as "adapters.text".
        object_size: Usual height and width of the objects that are to be found, in pixels, or as
            fractions if both are at most 1. None: the targets are no objects.
        is_forecast: Whether the target continues a series.
        is_codec: Whether the input itself is restored.
        minutes: Time limit of the training.
        epochs_within_limit: Function of the mean number of tokens of a sample: how many epochs fit
            into the time limit of the training, from the measured speed of the backbone.
    """

    rows: int
    num_inputs: int
    num_files: int
    prefix: str = ""
    object_size: Sequence[float] | None = None
    is_forecast: bool = False
    is_codec: bool = False
    minutes: float = 5.0
    epochs_within_limit: Callable[[float], float] = lambda tokens: math.inf
