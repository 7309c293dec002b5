"""The log of a training: lines on the console, rows of metrics.jsonl, and trackers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from dxn.core.display import Display, duration, number
from dxn.core.errors import UserError
from dxn.core.files import LOG, append_line, write_text
from dxn.tasks.metric import defined
from dxn.training.state import State

if TYPE_CHECKING:
    from dxn.training.trackers import TrackerSink

# The loss that is shown within an epoch is the mean of this many steps: one step has too few
# samples for a steady number.
SHOWN_LOSSES = 20
# With more epochs than this, some of those that take less than a second are not printed.
MAX_LINES = 20
MIN_SECONDS = 1.0

Tracker = Literal["tensorboard", "mlflow", "wandb"]


class Log:
    """Shows the progress of a training, and writes its metrics to metrics.jsonl and trackers.

    Args:
        folder: Folder of the run, which contains metrics.jsonl.
        batches: Number of batches per epoch.
        epochs: Number of epochs. The trainer changes it if the time limit allows fewer.
        log_every: Number of optimizer steps between two rows.
        main: Whether this process prints and writes.
        name: Word that is printed before each epoch, such as "pretraining".
    """

    def __init__(
        self,
        folder: Path,
        *,
        batches: int,
        epochs: int,
        log_every: int,
        main: bool = True,
        name: str = "",
    ):
        self.path = folder / LOG
        self.batches = batches
        self.epochs = epochs
        self.log_every = log_every
        self.limit = math.inf
        self.main = main
        self.prefix = f"{name} epoch" if name else "epoch"
        self.display = Display(main=main)
        self.trackers: list[TrackerSink] = []
        self.started = time.perf_counter()
        self.printed = -math.inf  # time of the last line of an epoch
        # Counts only the batches of this process, because the duration of those before a resume is
        # unknown.
        self.batches_done = 0
        self.epoch_loss = math.nan
        self._start_epoch([], [], 0)

    def pending(self) -> dict[str, Tensor]:
        """Return the losses of the epoch, of which the first `logged` are in metrics.jsonl.

        A checkpoint contains them, so that a resumed run writes the same lines.
        """
        # Those of a checkpoint are on the CPU, and those after it on the device of the training.
        losses = [loss.cpu() for loss in self.losses]
        return {
            "losses": torch.stack(losses) if losses else torch.zeros(0),
            "sizes": torch.tensor(self.sizes, dtype=torch.long),
            "logged": torch.tensor(self.logged),
        }

    def restore(self, state: State, pending: Mapping[str, Tensor]) -> None:
        """Continue from a checkpoint.

        Args:
            state: State of the checkpoint. Later lines of metrics.jsonl are removed, because the
                resumed run writes them again.
            pending: Return value of `pending` at the checkpoint. Empty if the epoch starts again.
        """
        if pending:
            losses, sizes = list(pending["losses"]), pending["sizes"].tolist()
            self._start_epoch(losses, sizes, int(pending["logged"]))
        if not self.main or not self.path.exists():
            return
        # Comparing the step is not enough: if a run stops between the line of an epoch and its
        # checkpoint, the last checkpoint has the same step, and the epoch is validated again.
        lines = [
            json.dumps(row)
            for row in read_log(self.path)
            if row["step"] <= state.step and row["epoch"] <= state.epoch
        ]
        write_text(self.path, "".join(f"{line}\n" for line in lines))

    def step(self, loss: Tensor, size: int, batches: int, lr: float, state: State) -> None:
        """Record an optimizer step. After every `log_every` steps, write a row.

        Args:
            loss: Mean loss () of the step, over all processes. It stays a tensor until it is
                printed: float(loss) waits for the GPU.
            size: Number of samples of the step.
            batches: Number of batches of the step.
            lr: Learning rate of the step.
            state: State after the step.
        """
        self.losses.append(loss)
        self.sizes.append(size)
        self.batches_done += batches
        self.samples_done += size
        if self.display.is_due():
            mean = _mean(self.losses[-SHOWN_LOSSES:], self.sizes[-SHOWN_LOSSES:])
            rate = self.samples_done / (time.perf_counter() - self.epoch_start)
            speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
            status = f"loss {mean:.3f}  {speed} samples/s  {self._left(state)} left"
            self.display.update(self._title(state.epoch + 1), state.batch, self.batches, status)
        if len(self.losses) - self.logged < self.log_every:
            return
        sizes = self.sizes[self.logged :]
        # The interval starts again after each validation, so the rate is that of training alone.
        rate = sum(sizes) / (time.perf_counter() - self.interval_start)
        loss_of_interval = _mean(self.losses[self.logged :], sizes)
        row = {"step": state.step, "epoch": state.epoch, "train/loss": loss_of_interval}
        self._write({**row, "lr": lr, "samples/s": rate})
        self.logged = len(self.losses)
        self.interval_start = time.perf_counter()

    def validation(self, done: int, total: int, state: State) -> None:
        """Show the progress of a validation.

        Args:
            done: Number of samples that are done.
            total: Number of samples of the validation split.
            state: State after the epoch.
        """
        if self.display.is_due():
            self.display.update(f"{self._title(state.epoch)} validation", done, total)

    def write_epoch(self, metrics: Mapping[str, float], state: State) -> None:
        """Write the training loss and the validation metrics of an epoch.

        Args:
            metrics: Validation metrics by name. Empty without a validation split.
            state: State after the epoch.
        """
        self.epoch_loss = _mean(self.losses, self.sizes)
        row = {"step": state.step, "epoch": state.epoch, "train/epoch_loss": self.epoch_loss}
        figures = defined(metrics)
        self._write({**row, **{f"validation/{name}": value for name, value in figures.items()}})
        self._start_epoch([], [], 0)

    def print_epoch(
        self,
        metrics: Mapping[str, float],
        state: State,
        *,
        shown: Collection[str] | None = None,
        last: bool = False,
    ) -> None:
        """Print the line of the epoch that was written last.

        Args:
            metrics: Validation metrics by name. Empty without a validation split.
            state: State after the epoch.
            shown: Names of the metrics that are printed. Default: all of them.
            last: Whether the training ends with this epoch. It is always printed.
        """
        now = time.perf_counter()
        if not last and self.epochs > MAX_LINES and now - self.printed < MIN_SECONDS:
            return
        figures = defined(metrics)
        names = [name for name in figures if shown is None or name in shown]
        values = "  ".join(f"{name} {number(figures[name])}" for name in names)
        loss = f"train loss {number(self.epoch_loss)}"
        validation = f"  validation {values}" if metrics else ""
        best = " *" if metrics and state.best_epoch == state.epoch else ""
        left = "" if last else f"  {self._left(state)} left"
        self.print(f"{self._title(state.epoch)}  {loss}{validation}{left}{best}")
        self.printed = now

    def print(self, text: str) -> None:
        """Print a line above the progress bar."""
        self.display.line(text)

    def close(self) -> None:
        """Remove the progress bar."""
        self.display.close()

    def close_trackers(self, final: Mapping[str, Any], step: int) -> None:
        """Send the final metrics to the trackers, and end their runs."""
        for tracker in self.trackers:
            tracker.log({**final, "step": step})
            tracker.close()

    def _title(self, epoch: int) -> str:
        return f"{self.prefix} {epoch}/{self.epochs}"

    def _left(self, state: State) -> str:
        """Estimate the time until the last epoch ends, from all the work of this process."""
        done = state.epoch * self.batches + state.batch
        # The time of validation is included, so the estimate covers all the remaining work.
        per_batch = (time.perf_counter() - self.started) / max(self.batches_done, 1)
        left = per_batch * (self.epochs * self.batches - done)
        return duration(max(min(left, self.limit - state.elapsed), 0.0))

    def _start_epoch(self, losses: list[Tensor], sizes: list[int], logged: int) -> None:
        """Start an epoch, or continue one.

        Args:
            losses: Mean loss of each step of the epoch.
            sizes: Number of samples of each step.
            logged: Number of steps that are in metrics.jsonl.
        """
        self.losses = losses
        self.sizes = sizes
        self.logged = logged
        self.samples_done = 0  # by this process
        self.epoch_start = self.interval_start = time.perf_counter()

    def _write(self, row: Mapping[str, Any]) -> None:
        if self.main:
            append_line(self.path, json.dumps(row))
            for tracker in self.trackers:
                tracker.log(row)


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


def _mean(losses: Sequence[Tensor], sizes: Sequence[int]) -> float:
    """Return the mean loss of samples; NaN if there is no finite loss.

    Args:
        losses: Mean loss of each step.
        sizes: Number of samples of each step, because the last one of an epoch can be small.
    """
    pairs = [(float(loss), size) for loss, size in zip(losses, sizes, strict=True)]
    # A step whose loss is not finite is not taken, so it is left out here too.
    finite = [(loss, size) for loss, size in pairs if math.isfinite(loss)]
    total = sum(size for _, size in finite)
    return sum(loss * size for loss, size in finite) / total if total else math.nan
