"""What a user sees of a training, and metrics.jsonl."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch import Tensor


class Progress:
    """A bar where there is a terminal, a line an epoch everywhere, a line of metrics.jsonl every few steps."""

    def __init__(self, folder: Path, *, batches: int, epochs: int, main: bool = True):
        self.path, self.main, self.epochs, self.batches = folder / "metrics.jsonl", main, epochs, batches
        self.console = Console(highlight=False, soft_wrap=True)
        self.bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[seen]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not (main and self.console.is_terminal),
        )
        self.task = self.bar.add_task("", total=batches * epochs, seen="")
        self.bar.start()
        self._reset()
        self.started = time.perf_counter()
        self.epochs_seen = 0

    def restore(self, step: int) -> None:
        """Forget the lines of metrics.jsonl after this step: they will be written again."""
        if not self.main or not self.path.exists():
            return
        lines = [line for line in self.path.read_text().splitlines() if json.loads(line)["step"] <= step]
        self.path.write_text("".join(f"{line}\n" for line in lines))

    def batch(self, loss: Tensor, size: int, *, lr: float, state: Any, log_every: int) -> None:
        """Count a batch of `size` samples; every log_every steps write what came since the last line."""
        self.losses.append(loss)
        self.sizes.append(size)
        self.epoch_losses.append(loss)
        if len(self.losses) < log_every:
            return
        mean = sum(float(x) for x in self.losses) / len(self.losses)
        rate = sum(self.sizes) / (time.perf_counter() - self.since)
        self._write({"step": state.step, "epoch": state.epoch, "train/loss": mean, "lr": lr, "samples/s": rate})
        self.bar.update(
            self.task,
            completed=state.epoch * self.batches + state.batch,
            description=f"epoch {state.epoch + 1}/{self.epochs}",
            seen=f"loss {mean:.3f}  {rate:.0f} samples/s",
        )
        self._reset()

    def epoch(self, figures: dict[str, float], state: Any) -> None:
        """The figures of the validation split after an epoch."""
        self._write({"step": state.step, "epoch": state.epoch, **{f"validation/{k}": v for k, v in figures.items()}})
        self.epochs_seen += 1
        train = sum(float(x) for x in self.epoch_losses) / max(len(self.epoch_losses), 1)
        self.epoch_losses = []
        left = (time.perf_counter() - self.started) / self.epochs_seen * (self.epochs - state.epoch)
        shown = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
        if self.main:
            best = " *" if state.best_epoch == state.epoch else ""
            self.console.print(
                f"epoch {state.epoch}/{self.epochs}  train loss {train:.4f}  validation {shown}"
                f"  {duration(left)} left{best}"
            )
        self._reset()

    def close(self) -> None:
        """Take the bar away."""
        self.bar.stop()

    def _reset(self) -> None:
        self.losses: list[Tensor] = []
        self.sizes: list[int] = []
        self.since = time.perf_counter()
        if not hasattr(self, "epoch_losses"):
            self.epoch_losses: list[Tensor] = []

    def _write(self, row: dict[str, Any]) -> None:
        if self.main:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def duration(seconds: float) -> str:
    """1 h 2 min, 3 min 4 s or 5 s."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
