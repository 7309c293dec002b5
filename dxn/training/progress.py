"""The progress of a training: what is shown of it, and its log file metrics.jsonl."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dxn.core.display import Display, duration
from dxn.core.errors import UserError
from dxn.core.files import append_line, write_text
from dxn.tasks.figures import defined
from dxn.training.state import State
from dxn.training.step import BatchLoss
from dxn.training.trackers import Trackers

# The loss that is shown within an epoch is the mean of this many batches: one batch has too few
# samples for a steady number.
SHOWN_LOSSES = 20
# With more epochs than this, some of those that take less than a second are not printed.
MAX_LINES = 20
MIN_SECONDS = 1.0


class Progress:
    """Shows the progress of a training, prints one line per epoch, and writes metrics.jsonl.

    Args:
        folder: Folder of the run, which contains metrics.jsonl.
        batches: Number of batches per epoch.
        epochs: Number of epochs. The trainer changes it if the time limit allows fewer.
        limit: Time limit of the training in seconds.
        main: Whether this process prints and writes.
        name: Word that is printed before each epoch, such as "pretraining".
    """

    def __init__(
        self,
        folder: Path,
        *,
        batches: int,
        epochs: int,
        limit: float | None = None,
        main: bool = True,
        name: str = "",
    ):
        self.path = folder / "metrics.jsonl"
        self.batches = batches
        self.epochs = epochs
        self.limit = math.inf if limit is None else limit
        self.main = main
        self.prefix = f"{name} epoch" if name else "epoch"
        self.display = Display(main=main)
        self.trackers: Trackers | None = None
        self.started = time.perf_counter()
        self.printed = -math.inf  # time of the last line of an epoch
        # Counts only the batches of this process, because the duration of those before a resume is
        # unknown.
        self.batches_done = 0
        # Losses stay tensors until they are printed: float(loss) waits for the GPU.
        self.epoch_losses: list[Tensor] = []
        self.epoch_sizes: list[int] = []
        self._start_epoch()

    def pending(self) -> dict[str, Tensor]:
        """Return the losses and batch sizes that are not in metrics.jsonl yet.

        A checkpoint contains them, so that a resumed run writes the same lines.
        """
        return {
            "losses": _stacked(self.losses),
            "sizes": torch.tensor(self.sizes, dtype=torch.long),
            "epoch_losses": _stacked(self.epoch_losses),
            "epoch_sizes": torch.tensor(self.epoch_sizes, dtype=torch.long),
        }

    def clear_log(self) -> None:
        """Remove the log of a training that stopped before its first checkpoint."""
        if self.main:
            self.path.unlink(missing_ok=True)

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
        self.epoch_sizes = pending["epoch_sizes"].tolist()
        if not self.main or not self.path.exists():
            return
        # Comparing the step is not enough: if a run stops between the line of an epoch and its
        # checkpoint, the last checkpoint has the same step, and the epoch is validated again.
        kept = [
            json.dumps(row)
            for row in read_log(self.path)
            if row["step"] <= state.step and row["epoch"] <= state.epoch
        ]
        write_text(self.path, "".join(f"{line}\n" for line in kept))

    def batch(self, batch: BatchLoss, *, lr: float, state: State, log_every: int) -> None:
        """Record a batch. After every `log_every` batches, write a line of metrics.jsonl.

        Args:
            batch: Loss of the batch, over all processes.
            lr: Current learning rate.
            state: State after the batch.
            log_every: Number of batches between two lines of metrics.jsonl.
        """
        loss = batch.mean
        self.losses.append(loss)
        self.sizes.append(batch.size)
        self.epoch_losses.append(loss)
        self.epoch_sizes.append(batch.size)
        self.batches_done += 1
        self.samples_done += batch.size
        if self.display.is_due():
            self._show_batch(state)
        if len(self.losses) < log_every:
            return
        # The interval starts again after each validation, so the rate is that of training alone.
        rate = sum(self.sizes) / (time.perf_counter() - self.interval_start)
        self._write(
            {
                "step": state.step,
                "epoch": state.epoch,
                "train/loss": _mean(self.losses, self.sizes),
                "lr": lr,
                "samples/s": rate,
            }
        )
        self._start_interval()

    def validation(self, done: int, total: int, state: State) -> None:
        """Show the progress of a validation.

        Args:
            done: Number of samples that are done.
            total: Number of samples of the validation split.
            state: State after the epoch.
        """
        if self.display.is_due():
            self.display.update(f"{self._title(state.epoch)} validation", done, total)

    def epoch(
        self,
        metrics: Mapping[str, float],
        state: State,
        *,
        shown: Collection[str] | None = None,
        last: bool = False,
    ) -> None:
        """Write the training loss and the validation metrics of an epoch, and print them.

        Args:
            metrics: Validation metrics by name. Empty without a validation split.
            state: State after the epoch.
            shown: Names of the metrics that are printed. Default: all of them.
            last: Whether the training ends with this epoch. It is always printed.
        """
        loss = _mean(self.epoch_losses, self.epoch_sizes)
        row: dict[str, Any] = {"step": state.step, "epoch": state.epoch, "train/epoch_loss": loss}
        known = defined(metrics)
        self._write({**row, **{f"validation/{name}": value for name, value in known.items()}})
        if last or self._is_line_due():
            names = [name for name in known if shown is None or name in shown]
            values = "  ".join(f"{name} {known[name]:.4f}" for name in names)
            validation = f"  validation {values}" if metrics else ""
            best = " *" if metrics and state.best_epoch == state.epoch else ""
            left = "" if last else f"  {self._left(state)} left"
            self.print(f"{self._title(state.epoch)}  train loss {loss:.4f}{validation}{left}{best}")
            self.printed = time.perf_counter()
        self.epoch_losses = []
        self.epoch_sizes = []
        self._start_epoch()

    def print(self, text: str) -> None:
        """Print a line."""
        self.display.line(text)

    def close(self) -> None:
        """Remove the progress bar, and end the runs of the trackers."""
        self.display.close()
        if self.trackers is not None:
            self.trackers.close()

    def _show_batch(self, state: State) -> None:
        loss = _mean(self.epoch_losses[-SHOWN_LOSSES:], self.epoch_sizes[-SHOWN_LOSSES:])
        rate = self.samples_done / (time.perf_counter() - self.epoch_start)
        status = f"loss {loss:.3f}  {rate:,.0f} samples/s  {self._left(state)} left"
        self.display.update(self._title(state.epoch + 1), state.batch, self.batches, status)

    def _is_line_due(self) -> bool:
        now = time.perf_counter()
        return self.epochs <= MAX_LINES or now - self.printed >= MIN_SECONDS

    def _title(self, epoch: int) -> str:
        return f"{self.prefix} {epoch}/{self.epochs}"

    def _left(self, state: State) -> str:
        """Estimate the time until the last epoch ends, from all the work of this process."""
        done = state.epoch * self.batches + state.batch
        # The time of validation is included, so the estimate covers all the remaining work.
        per_batch = (time.perf_counter() - self.started) / max(self.batches_done, 1)
        left = per_batch * (self.epochs * self.batches - done)
        return duration(max(min(left, self.limit - state.elapsed), 0.0))

    def _start_epoch(self) -> None:
        """Start to count the samples of an epoch, without those before a resume."""
        self.samples_done = 0
        self.epoch_start = time.perf_counter()
        self._start_interval()

    def _start_interval(self) -> None:
        """Start the interval between two lines of metrics.jsonl."""
        self.losses: list[Tensor] = []
        self.sizes: list[int] = []
        self.interval_start = time.perf_counter()

    def _write(self, row: Mapping[str, Any]) -> None:
        if self.main:
            append_line(self.path, json.dumps(row))
            if self.trackers is not None:
                self.trackers.log(row)


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl.

    Raises:
        UserError: If a line is damaged. The last line may be incomplete, because the process was
            killed while it wrote it; it is left out.
    """
    lines = path.read_bytes().split(b"\n")
    rows: list[dict[str, Any]] = []
    for i, line in enumerate(lines[:-1]):
        try:
            row = json.loads(line)
            rows.append({**row, "step": int(row["step"]), "epoch": int(row["epoch"])})
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise UserError(
                f"{path} line {i + 1}: not a row of a log: {line[:60]!r}; remove this line"
            ) from error
    return rows


def _mean(losses: list[Tensor], sizes: list[int]) -> float:
    """Return the mean loss of samples; NaN if there is no finite loss.

    Args:
        losses: Mean loss of each batch.
        sizes: Number of samples of each batch, because the last one of an epoch can be small.
    """
    pairs = [(float(loss), size) for loss, size in zip(losses, sizes, strict=True)]
    # A batch whose loss is not finite makes no optimizer step, so it is left out here too.
    finite = [(loss, size) for loss, size in pairs if math.isfinite(loss)]
    total = sum(size for _, size in finite)
    return sum(loss * size for loss, size in finite) / total if total else math.nan


def _stacked(losses: list[Tensor]) -> Tensor:
    # Those of a checkpoint are on the CPU, and those after it on the device of the training.
    return torch.stack([loss.cpu() for loss in losses]) if losses else torch.zeros(0)
