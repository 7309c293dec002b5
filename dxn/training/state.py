"""The position of a training, which checkpoints save and the progress display shows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import ConfigDict, Field

from dxn.core.schema import Strict
from dxn.tasks.task import Task

# A rise of the validation loss by more than this fraction of the first one is no fluctuation.
RISE = 0.1
# A model whose validation loss is below this fraction of the first one is not at chance any more.
# Losses of models at chance fluctuate by much less, see benchmarks/studies/presets.md.
LEARNING = 0.5

Count = Annotated[int, Field(ge=0, le=2**53)]
Seconds = Annotated[float, Field(ge=0)]
# The loss of an epoch can be infinite, and still be the best one so far.
Figure = Annotated[float, Field(allow_inf_nan=True)]


class State(Strict):
    """Position of a training, without the weights, the optimizer and the random generators.

    Args:
        epoch: Number of finished epochs.
        batch: Number of finished batches of the current epoch.
        batches_per_epoch: Number of batches of the last epoch that the time limit did not cut
            short. 0 if there is none.
        step: Number of optimizer steps, with those that were skipped and those of an epoch that
            started again.
        batch_size: Number of samples per batch over all processes.
        batch_tokens: Maximum number of tokens per batch over all processes. None: any number.
        parts: Number of parts into which each batch is divided because there is not enough memory.
        skipped: Number of skipped steps, because the loss or a gradient was not finite.
        skipped_in_row: Number of skipped steps since the last one that was taken.
        monitored: Name of the monitored metric. "" before the first epoch.
        best: Best value of the monitored metric so far.
        best_epoch: Epoch whose weights are kept, counted from 1. 0 before the first one.
        kept: Digest of its saved weights. "" if none are saved.
        kept_loss: Validation loss of this epoch.
        first_loss: Validation loss of the first epoch.
        second_loss: Validation loss of the second epoch.
        best_loss: Lowest validation loss so far.
        memorizes: Whether the validation loss has ever risen clearly above its lowest value.
        worse: Number of epochs since the monitored metric or the validation loss improved.
        seconds: Time spent in training, without validation.
        elapsed: Time spent in training and validation, in seconds.
        before: Time from the start of the command until the training started, in seconds.
        validation: Longest time that a validation and its checkpoint took, in seconds.
        validated: Number of validation samples, because the time limit has no time for more. 0: all
            of them.
        per_sample: Time of a validation per sample, in seconds, measured before the first epoch.
        last_step: Time that the last optimizer step took, in seconds.
    """

    model_config = ConfigDict(frozen=False)

    epoch: Count = 0
    batch: Count = 0
    batches_per_epoch: Count = 0
    step: Count = 0
    batch_size: Annotated[int, Field(ge=0, le=2**31)] = 0
    batch_tokens: Count | None = None
    parts: Annotated[int, Field(ge=1)] = 1
    skipped: Count = 0
    skipped_in_row: Count = 0
    monitored: str = ""
    best: Figure | None = None
    best_epoch: Count = 0
    kept: str = ""
    kept_loss: Figure | None = None
    first_loss: Figure | None = None
    second_loss: Figure | None = None
    best_loss: Figure | None = None
    memorizes: bool = False
    worse: Count = 0
    seconds: Seconds = 0.0
    elapsed: Seconds = 0.0
    before: Seconds = 0.0
    validation: Seconds = 0.0
    validated: Count = 0
    per_sample: Seconds = 0.0
    last_step: Seconds = 0.0

    @property
    def has_learned_early(self) -> bool:
        """Whether the loss of the second epoch was far below the first one.

        A loss that falls later is a sign that only all inputs together tell the target.
        """
        if self.first_loss is None or self.second_loss is None or not self.first_loss > 0:
            return False
        return self.second_loss < LEARNING * self.first_loss

    @property
    def is_past_chance(self) -> bool:
        """Whether the model has learned something, or memorizes the rows.

        The validation loss of such a model has fallen far below the first one, or risen. That of a
        model that is still at chance does neither.
        """
        if self.memorizes:
            return True
        if self.first_loss is None or self.best_loss is None:
            return False
        return self.best_loss < LEARNING * self.first_loss

    def record(self, metrics: Mapping[str, float], task: Task) -> bool:
        """Record the validation metrics of an epoch.

        Args:
            metrics: Metrics by name, with the loss.
            task: Task that defines the monitored metric.

        Returns:
            Whether the monitored metric is the best so far. With equal metrics, and as long as it
            is NaN in every epoch, the lower loss is better.
        """
        if self.monitored != task.metric.monitored:
            # A resumed training can have another metric, whose values cannot be compared.
            self.monitored, self.best, self.kept_loss = task.metric.monitored, None, None
        value = metrics[task.metric.monitored]
        loss = metrics["loss"]
        # A comparison with NaN is False, so NaN never improves. A task without a loss has NaN.
        is_lower = not math.isnan(loss) and (self.best_loss is None or loss < self.best_loss)
        # On a small validation split, many epochs have the same number of correct answers. Without
        # the loss, the first of them would be kept, long before the model has learned everything.
        has_lower_loss = self.kept_loss is not None and loss < self.kept_loss
        is_best = task.metric.is_better(value, self.best) or (value == self.best and has_lower_loss)
        # An epoch without a loss, such as one whose outputs are NaN, is kept only if none has one.
        if math.isnan(loss):
            is_best = is_best and self.best_loss is None
        elif self.kept_loss is not None and math.isnan(self.kept_loss):
            is_best = True
        # Until the metric is defined for the validation rows, the loss decides.
        if math.isnan(value) and self.best is None:
            is_best = is_lower
        if is_best:
            self.best = None if math.isnan(value) else value
            self.best_epoch = self.epoch
            self.kept_loss = loss
        if is_lower:
            self.best_loss = loss
        if self.epoch == 1:
            self.first_loss = loss
        elif self.epoch == 2:
            self.second_loss = loss
        if self.first_loss is not None and self.best_loss is not None:
            self.memorizes |= loss - self.best_loss > RISE * abs(self.first_loss)
        # The loss also counts: it often still improves while the number of correct answers of a
        # small validation split does not change.
        self.worse = 0 if is_best or is_lower else self.worse + 1
        return is_best

    def epochs_within(self, seconds: float) -> int:
        """Return how many epochs begin within a time limit, from the mean duration of an epoch."""
        # At least one, and those that are finished stay finished even if they took too long.
        return max(self.epoch, math.ceil(seconds * self.epoch / max(self.elapsed, 1e-9)))
