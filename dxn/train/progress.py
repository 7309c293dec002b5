"""The progress display of a training, and its log file metrics.jsonl."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch import Tensor

from dxn.train.state import State


class Progress:
    """Shows a progress bar on a terminal, prints one line per epoch, and writes metrics.jsonl.

    Args:
        folder: Folder of the run, which contains metrics.jsonl.
        batches: Number of batches per epoch.
        epochs: Number of epochs.
        main: Whether this process prints and writes.
        name: Word that is printed before each epoch, such as "pretraining".
    """

    def __init__(
        self, folder: Path, *, batches: int, epochs: int, main: bool = True, name: str = ""
    ):
        self.path = folder / "metrics.jsonl"
        self.batches = batches
        self.epochs = epochs
        self.main = main
        self.prefix = f"{name} epoch" if name else "epoch"
        # soft_wrap: the terminal wraps long lines. Rich would insert line breaks at 80 columns when
        # the output goes to a file.
        self.console = Console(highlight=False, soft_wrap=True)
        self.bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not (main and self.console.is_terminal),
        )
        self.bar_task = self.bar.add_task("", total=batches * epochs, status="")
        self.bar.start()
        self.started = time.perf_counter()
        # Counts only the epochs of this process, because the duration of the epochs before a resume
        # is unknown.
        self.epochs_done = 0
        # Losses stay tensors until they are printed: float(loss) waits for the GPU.
        self.epoch_losses: list[Tensor] = []
        self._start_interval()

    def pending(self) -> dict[str, Tensor]:
        """Return the losses and batch sizes that are not in metrics.jsonl yet.

        A checkpoint contains them, so that a resumed run writes the same lines.
        """
        return {
            "losses": _stacked(self.losses),
            "sizes": torch.tensor(self.sizes, dtype=torch.long),
            "epoch_losses": _stacked(self.epoch_losses),
        }

    def restore(self, state: State, pending: Mapping[str, Tensor]) -> None:
        """Continue from a checkpoint.

        Args:
            state: State of the checkpoint. Later lines of metrics.jsonl are removed, because the
                resumed run writes them again.
            pending: Return value of `pending` at the checkpoint.
        """
        self.losses = list(pending["losses"])
        self.sizes = pending["sizes"].tolist()
        self.epoch_losses = list(pending["epoch_losses"])
        if not self.main or not self.path.exists():
            return
        kept = ""
        for line in self.path.read_text().splitlines():
            row = json.loads(line)
            # Comparing the step is not enough: if a run stops between the line of an epoch and its
            # checkpoint, the last checkpoint has the same step, and the epoch is validated again.
            if row["step"] <= state.step and row["epoch"] <= state.epoch:
                kept += f"{line}\n"
        self.path.write_text(kept)

    def batch(self, loss: Tensor, size: int, *, lr: float, state: State, log_every: int) -> None:
        """Record a batch. After every `log_every` batches, write a line and update the bar.

        Args:
            loss: Loss () of the batch.
            size: Number of samples in the batch.
            lr: Current learning rate.
            state: State after the batch.
            log_every: Number of batches between two lines of metrics.jsonl.
        """
        self.losses.append(loss)
        self.sizes.append(size)
        self.epoch_losses.append(loss)
        if len(self.losses) < log_every:
            return
        mean = _mean(self.losses)
        # The interval starts again after each validation, so the rate is that of training alone.
        rate = sum(self.sizes) / (time.perf_counter() - self.interval_start)
        self._write(
            {
                "step": state.step,
                "epoch": state.epoch,
                "train/loss": mean,
                "lr": lr,
                "samples/s": rate,
            }
        )
        self.bar.update(
            self.bar_task,
            completed=state.epoch * self.batches + state.batch,
            description=f"{self.prefix} {state.epoch + 1}/{self.epochs}",
            status=f"loss {mean:.3f}  {rate:.0f} samples/s",
        )
        self._start_interval()

    def epoch(self, metrics: Mapping[str, float], state: State) -> None:
        """Print and write the validation metrics of an epoch.

        Args:
            metrics: Validation metrics by name. Empty without a validation split.
            state: State after the epoch.
        """
        row: dict[str, Any] = {"step": state.step, "epoch": state.epoch}
        self._write({**row, **{f"validation/{name}": value for name, value in metrics.items()}})
        self.epochs_done += 1
        # The time of validation is included, so the estimate covers all the remaining work.
        per_epoch = (time.perf_counter() - self.started) / self.epochs_done
        if self.main:
            values = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            validation = f"  validation {values}" if metrics else ""
            best = " *" if state.best_epoch == state.epoch else ""
            self.console.print(
                f"{self.prefix} {state.epoch}/{self.epochs}"
                f"  train loss {_mean(self.epoch_losses):.4f}{validation}"
                f"  {duration(per_epoch * (self.epochs - state.epoch))} left{best}"
            )
        self.epoch_losses = []
        self._start_interval()

    def close(self) -> None:
        """Remove the progress bar."""
        self.bar.stop()

    def _start_interval(self) -> None:
        """Start the interval between two lines of metrics.jsonl."""
        self.losses: list[Tensor] = []
        self.sizes: list[int] = []
        self.interval_start = time.perf_counter()

    def _write(self, row: Mapping[str, Any]) -> None:
        if self.main:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def duration(seconds: float) -> str:
    """Format a duration, such as 1 h 2 min, 3 min 4 s or 5 s."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def _mean(losses: list[Tensor]) -> float:
    return sum(float(loss) for loss in losses) / max(len(losses), 1)


def _stacked(losses: list[Tensor]) -> Tensor:
    return torch.stack(losses) if losses else torch.zeros(0)
