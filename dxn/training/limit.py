"""The time limit of a command, of which each part of the command has its share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dxn.core.display import duration

# Share of the remaining time that is kept for a baseline, and the seconds that are enough for one.
BASELINE_SHARE, BASELINE_SECONDS = 0.25, 60.0
# However long the data takes to read and to evaluate, the training has this share of the limit, and
# the baseline this share of its usual time.
MIN_SHARE = 0.25
MIN_LEFT = 5.0  # seconds that an evaluation may always take, twice


@dataclass(frozen=True)
class Limit:
    """The time limit of a command that trains a model.

    Args:
        minutes: The limit: from the start of reading to the end of the evaluation. None: no limit.
        before: Seconds until the training starts: reading, building and pretraining.
        baseline: Whether a baseline can follow the training.
        evaluations: Duration of the evaluation after the training, in validations.
    """

    minutes: float | None = None
    before: float = 0.0
    baseline: bool = False
    evaluations: float = 0.0

    @property
    def seconds(self) -> float:
        """The limit in seconds."""
        return math.inf if self.minutes is None else 60 * self.minutes

    @property
    def about(self) -> str:
        """The limit, and what the training has of it, such as "1 min 0 s (training: 45 s)"."""
        total, training = duration(self.seconds), duration(self.of_training(0.0))
        return total if training == total else f"{total} (training: {training})"

    def of_training(self, validation: float) -> float:
        """Return the seconds that the training has with its validations.

        Args:
            validation: Seconds of a validation.
        """
        left = self.seconds - self.before
        kept = min(BASELINE_SHARE * left, BASELINE_SECONDS) if self.baseline else 0.0
        return max(left - kept - self.evaluations * validation, MIN_SHARE * self.seconds)

    def share_of_baseline(self, trained: float, validation: float) -> float:
        """Return the share of its usual time that a baseline has, at most 1.

        Args:
            trained: Seconds that the training took with its validations.
            validation: Seconds of a validation.
        """
        left = self.seconds - self.before - trained - self.evaluations * validation
        return min(max(left / BASELINE_SECONDS, MIN_SHARE), 1.0)

    def lacks_time(self, spent: float, validation: float) -> bool:
        """Whether the evaluation of all subsets of the inputs would end long after the limit.

        Args:
            spent: Seconds since the training started.
            validation: Seconds of a validation.
        """
        left = max(self.seconds - self.before - spent, MIN_LEFT)
        return self.evaluations * validation > 2 * left
