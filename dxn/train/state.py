"""The position of a training, which checkpoints save and the progress display shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class State:
    """Position of a training, without the weights, the optimizer and the random generators.

    Args:
        epoch: Number of finished epochs.
        batch: Number of finished batches of the current epoch.
        step: Number of optimizer steps.
        best: Best value of the monitored metric so far.
        best_epoch: Epoch of the best value, counted from 1. 0 before the first validation.
        worse: Number of epochs since the best one.
        seconds: Time spent in training, without validation.
        finished: Whether early stopping has ended the training.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best: float | None = None
    best_epoch: int = 0
    worse: int = 0
    seconds: float = 0.0
    finished: bool = False
