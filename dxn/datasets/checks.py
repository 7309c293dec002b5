"""Checks of options that several generators of synthetic data share."""

from __future__ import annotations

from dxn.core.errors import UserError
from dxn.data.formats import SPLITS


def check_counts(num_train: int, num_validation: int, num_test: int) -> dict[str, int]:
    """Return the number of rows by split, after checking that each split has at least one row.

    Raises:
        UserError: If a split has no row.
    """
    # A run reports test metrics and selects an epoch by validation metrics, so no split may be
    # empty.
    counts: dict[str, int] = dict(zip(SPLITS, (num_train, num_validation, num_test), strict=True))
    for name, count in counts.items():
        if count < 1:
            raise UserError(f"data.num_{name}: must be at least 1, got {count}")
    return counts


def check_corrupt(corrupt: float) -> None:
    """Check the strength of the corruptions, such as noise.

    Raises:
        UserError: If it is negative.
    """
    if corrupt < 0:
        raise UserError(f"data.corrupt: must be at least 0 (no corruption), got {corrupt}")
