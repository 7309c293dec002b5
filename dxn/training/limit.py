"""The time limit of a command, of which each part of the command has its share."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from dxn.core.display import duration
from dxn.core.processes import from_first
from dxn.data.dataset import Samples

# Share of the remaining time that is kept for a baseline, and the seconds that are enough for one.
BASELINE_SHARE, BASELINE_SECONDS = 0.25, 60.0
# However long the data takes to read and to evaluate, the training has this share of the limit, and
# the baseline this share of its usual time.
MIN_SHARE = 0.25
MIN_LEFT = 5.0  # seconds that an evaluation may always take, twice
# Shares of the limit: what a validation may take, what is kept for the evaluation, and what the
# evaluation may take at least, twice. With more samples than fit, some are left out.
VALIDATION_SHARE, EVALUATION_SHARE, MIN_EVALUATION = 0.1, 0.25, 0.05
# Share of the limit for the slowest simple method, and the seconds that it usually takes.
METHOD_SHARE, METHOD_SECONDS = 0.05, 20.0
GROWTH = 8  # factor of the number of samples with which the speed is measured
FEWEST = 8  # samples that are not left out


@dataclass(frozen=True)
class Limit:
    """The time limit of a command that trains a model.

    Args:
        minutes: The limit: from the start of reading to the end of the evaluation. None: no limit.
        before: Seconds until the training starts: reading, building and pretraining.
        baseline: Whether a baseline can follow the training.
        evaluations: Duration of the evaluation after the training, in validations.
        passes: Number of sets of inputs that are evaluated.
    """

    minutes: float | None = None
    before: float = 0.0
    baseline: bool = False
    evaluations: float = 0.0
    passes: int = 1

    @property
    def seconds(self) -> float:
        """The limit in seconds."""
        return math.inf if self.minutes is None else 60 * self.minutes

    @property
    def about(self) -> str:
        """The limit with the share of the training: "1 min 0 s (training: at most 45 s)"."""
        total, training = duration(self.seconds), duration(self.of_training(0.0))
        return total if training == total else f"{total} (training: at most {training})"

    def of_training(self, validation: float) -> float:
        """Return the seconds that the training has with its validations.

        Args:
            validation: Seconds of a validation.
        """
        left = self.seconds - self.before
        kept = min(BASELINE_SHARE * left, BASELINE_SECONDS) if self.baseline else 0.0
        kept += self._of_evaluations(validation)
        return max(left - kept, MIN_SHARE * self.seconds)

    def _of_evaluations(self, validation: float) -> float:
        return min(self.evaluations * validation, EVALUATION_SHARE * self.seconds)

    @property
    def of_validation(self) -> float:
        """Seconds that a validation may take."""
        return VALIDATION_SHARE * self.seconds

    def share_of_baseline(self, trained: float, validation: float) -> float:
        """Return the share of its usual time that a baseline has, at most 1.

        Args:
            trained: Seconds that the training took with its validations.
            validation: Seconds of a validation.
        """
        left = self.seconds - self.before - trained - self._of_evaluations(validation)
        return min(max(left / BASELINE_SECONDS, MIN_SHARE), 1.0)

    @property
    def share_of_methods(self) -> float:
        """The share of its usual time that a simple method has, at most 1."""
        return min(METHOD_SHARE * self.seconds / METHOD_SECONDS, 1.0)

    def of_evaluation(self, spent: float) -> float:
        """Return the seconds that are left for the evaluation.

        Args:
            spent: Seconds since the training started.
        """
        left = self.seconds - self.before - spent
        return max(left, MIN_LEFT, MIN_EVALUATION * self.seconds)


def seconds_per_sample(
    run: Callable[[Samples], object], samples: Samples, batch_size: int, most: float
) -> tuple[float, float]:
    """Measure how long a function of samples takes. All processes must call this.

    It runs on at most a batch, and on fewer samples if these are enough, or take too long.

    Args:
        run: The function.
        samples: The samples, of which it gets a few that are spread over all of them.
        batch_size: Number of samples per batch over all processes.
        most: Seconds that all samples may take.

    Returns:
        The seconds per sample, and those of the measurement.
    """
    size = len(samples)
    largest = min(batch_size, size)
    count, spent, is_first = 1, 0.0, True
    while True:
        part = copy.copy(samples)
        part.keep(count)
        started = monotonic()
        run(part)
        seconds = from_first(lambda start=started: monotonic() - start)
        spent += seconds
        # The first one takes longer, because libraries are loaded.
        is_enough = not is_first and seconds * size <= most * count
        is_slow = (1 if is_first else GROWTH) * seconds > most
        if is_enough or is_slow or count == largest:
            return seconds / count, spent
        count, is_first = min(GROWTH * count, largest), False


def fitting(most: float, seconds: float, size: int) -> int:
    """Return how many of `size` samples fit into a time, at least a few.

    Args:
        most: Seconds of all samples.
        seconds: Seconds of a sample.
        size: Number of samples.
    """
    return min(max(int(most / max(seconds, 1e-9)), FEWEST), size)
