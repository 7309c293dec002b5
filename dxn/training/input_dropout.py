"""Dropping inputs of training samples, so that the model learns to work without them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from dxn.data.order import Stage


@dataclass(frozen=True)
class InputDropout:
    """Decides which inputs a training sample keeps. See `dxn.data.dataset.LoaderOptions`.

    Args:
        probability: Probability of dropping each input. At least one input is kept.
        until: Fraction of the training in which inputs are dropped.
        below: Inputs are dropped if `Stage.loss_ratio` is below this number, or the model
            memorizes. None: they are dropped from the first epoch.
    """

    probability: float = 0.0
    until: float = 1.0
    below: float | None = None

    def __post_init__(self):
        if not 0 <= self.probability < 1:
            raise ValueError(f"input_dropout must be in [0, 1), got {self.probability}")
        if not 0 <= self.until <= 1:
            raise ValueError(f"input_dropout_until must be in [0, 1], got {self.until}")
        if self.below is not None and not 0 < self.below <= 1:
            raise ValueError(f"input_dropout_below must be in (0, 1], got {self.below}")

    def is_active(self, stage: Stage) -> bool:
        """Return whether inputs are dropped at this stage of the training."""
        is_needed = self.below is None or stage.loss_ratio < self.below or stage.memorizes
        return self.probability > 0 and stage.progress < self.until and is_needed

    def kept(self, present: Sequence[str], rand: random.Random) -> list[str]:
        """Drop each input with the probability. If all are dropped, keep a random one."""
        kept = [name for name in present if rand.random() >= self.probability]
        return kept or [rand.choice(list(present))]
