"""Comparison of an exported file with the model that it was made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

import torch
from torch import Tensor

from dxn.core.errors import UserError
from dxn.export.formats import load
from dxn.export.trace import MAX_REASON, Part

# Largest difference in float32, relative to the largest value of an output, if that is above 1.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Agreement:
    """How well a file agrees with its model.

    Args:
        largest: Largest difference of an output, see `difference`.
        num_cases: Number of batches with different sizes.
    """

    largest: float
    num_cases: int


def compare(part: Part, path: Path) -> Agreement:
    """Load a file and compare its outputs with those of the model.

    Raises:
        UserError: If the file cannot be run, or they differ by more than `TOLERANCE`.
    """
    run = load(path, [port.name for port in part.outputs])
    largest = 0.0
    for number, case in enumerate(part.cases):
        with torch.no_grad():
            wanted = part.reference(number)
        try:
            computed = run(dict(case))
        except Exception as error:  # onnxruntime has errors of its own
            reason = shorten(str(error), MAX_REASON)
            raise UserError(
                f"export: {path.name} cannot be run ({type(error).__name__}: {reason}); the file "
                "was not kept. Please report this"
            ) from error
        for name, tensor in wanted.items():
            largest = max(largest, difference(computed[name], tensor))
    if not largest <= TOLERANCE:
        raise UserError(
            f"export: the outputs of {path.name} differ from those of the model by {largest:.1e}, "
            f"more than {TOLERANCE:.0e}; the file was not kept. Please report this"
        )
    return Agreement(largest, len(part.cases))


def difference(computed: Tensor, wanted: Tensor) -> float:
    """Return the largest difference, relative to the largest value if that is above 1."""
    if computed.shape != wanted.shape:
        return float("inf")
    if not wanted.numel():
        return 0.0
    computed, wanted = computed.double(), wanted.double()
    # Infinite values, such as those of masked positions, must be equal; NaN is never right.
    is_finite = wanted.isfinite()
    if not torch.equal(computed[~is_finite], wanted[~is_finite]):
        return float("inf")
    if not computed[is_finite].isfinite().all():
        return float("inf")
    computed, wanted = computed[is_finite], wanted[is_finite]
    if not wanted.numel():
        return 0.0
    scale = max(float(wanted.abs().max()), 1.0)
    return float((computed - wanted).abs().max()) / scale
