"""Faults of faults.py: losses, gradients and weights that are not finite."""

from __future__ import annotations

import argparse
import importlib
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fault_compare import compare, reference
from fault_process import Fault, Process, Seen, kill_at, refused, resumed, run, train
from safetensors.torch import load_file, save_file

from dxn.core.files import write_sums
from dxn.tasks import LossSum
from dxn.training.checkpoint import FILE, all_checkpoints

SKIPPED = "no step, the rows are named; no NaN in any file"
BAD_STEP = 25


def faults(options: argparse.Namespace) -> list[Fault]:
    """Return the faults of this group."""
    averaged = ["trainer.ema_decay=0.9"]
    accumulated = ["trainer.grad_accum_steps=2"]
    return [
        Fault("optimizer.lr=1e20 without clipping", "stops, code 2; no NaN kept", _high_lr),
        *(
            Fault(f"{name} at step {BAD_STEP}{' '.join(['', *more])}", SKIPPED, _one(hook, more))
            for name, hook in (
                ("NaN in a batch of sound", nan_batch),
                ("an infinite loss", infinite_loss),
                ("a NaN gradient", nan_gradient),
                ("an infinite gradient", infinite_gradient),
            )
            for more in ([], averaged, accumulated)
        ),
        Fault("NaN in every batch", "stops after 10 steps; no NaN kept", _all_bad),
        Fault("killed after a skipped step", "resumed; equal to the bit", _resumed),
        Fault("predict with a model whose weights are NaN", "code 2", _nan_model),
        Fault("resume from NaN weights", "code 2", _nan_checkpoint),
    ]


def nan_batch(step: int | None = BAD_STEP) -> None:
    """Replace the sound of the batches of a step by NaN. None: of all steps."""

    def change(trainer: Any, batch: dict[str, Any]) -> None:
        for value in batch["audio"].values():
            if torch.is_tensor(value) and value.is_floating_point():
                value[:] = math.nan

    _before_backward(change, step)


def infinite_loss() -> None:
    """Make the loss of a step infinite."""

    def change(trainer: Any, batch: dict[str, Any]) -> None:
        loss = trainer.task.loss

        def infinite(*arguments: Any) -> Any:
            trainer.task.loss = loss
            total, weight = loss(*arguments)
            return LossSum(total * math.inf, weight)

        trainer.task.loss = infinite

    _before_backward(change, BAD_STEP)


def nan_gradient() -> None:
    """Make a gradient of a step NaN."""
    _spoil_gradient(math.nan)


def infinite_gradient() -> None:
    """Make a gradient of a step infinite."""
    _spoil_gradient(math.inf)


def _spoil_gradient(value: float) -> None:
    trainer = importlib.import_module("dxn.training.loop").Fit
    original = trainer.add_gradients

    def add_gradients(self: Any, batch: dict[str, Any], **options: Any) -> Any:
        loss = original(self, batch, **options)
        if self.state.step == BAD_STEP - 1:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            gradients[0].view(-1)[0] = value
        return loss

    trainer.add_gradients = add_gradients


def _before_backward(change: Callable[[Any, dict[str, Any]], None], step: int | None) -> None:
    trainer = importlib.import_module("dxn.training.loop").Fit
    original = trainer.add_gradients

    def add_gradients(self: Any, batch: dict[str, Any], **options: Any) -> Any:
        if step is None or self.state.step == step - 1:
            change(self, batch)
        return original(self, batch, **options)

    trainer.add_gradients = add_gradients


def _one(hook: Callable[[], None], more: list[str]) -> Callable[[Path], Seen]:
    def inject(folder: Path) -> Seen:
        ended = train(folder / "run", *more, before=hook)
        named = [line for line in ended.output.splitlines() if "no optimizer step at" in line]
        bad = non_finite(folder / "run")
        figures = math.isfinite(_last_loss(folder / "run"))
        passed = ended.code == 0 and len(named) == 1 and "row" in named[0] and not bad and figures
        return Seen(passed, f"code {ended.code}; {named}; not finite: {bad}")

    return inject


def _last_loss(folder: Path) -> float:
    return run_metrics(folder)["test/loss"]


def run_metrics(folder: Path) -> dict[str, Any]:
    """Return the content of metrics.json."""
    return importlib.import_module("json").loads((folder / "metrics.json").read_text())


def non_finite(folder: Path) -> list[str]:
    """Return the files of a run that contain weights that are not finite."""
    paths = [*folder.rglob("*.safetensors")]
    return [
        str(path.relative_to(folder))
        for path in paths
        for name, tensor in load_file(path).items()
        if not name.startswith("log/")
        and tensor.is_floating_point()
        and not tensor.isfinite().all()
    ]


def _high_lr(folder: Path) -> Seen:
    ended = train(folder / "run", "optimizer.lr=1e20", "trainer.max_grad_norm=0")
    bad = non_finite(folder / "run")
    seen = refused(ended, "not finite")
    return Seen(seen.passed and not bad, f"{seen.text}; not finite: {bad}")


def _all_bad(folder: Path) -> Seen:
    ended = train(folder / "run", before=lambda: nan_batch(None))
    bad = non_finite(folder / "run")
    seen = refused(ended, "10 optimizer steps in a row", "row")
    # With data that is correct again, the training can be resumed.
    again = resumed(folder / "run")
    passed = seen.passed and not bad and again.code == 0
    return Seen(passed, f"{seen.text}; not finite: {bad}; resumed: code {again.code}")


def _resumed(folder: Path) -> Seen:
    train(folder / "whole", "trainer.checkpoint_minutes=1e-9", before=nan_batch)
    train(
        folder / "run", "trainer.checkpoint_minutes=1e-9", before=lambda: (nan_batch(), kill_at(30))
    )
    resumed(folder / "run", before=nan_batch)
    return compare(folder / "run", folder / "whole")


def _nan_model(folder: Path) -> Seen:
    model = folder / "model"
    shutil.copytree(reference() / "model", model)
    _spoil_weights(model / "model.safetensors")
    ended: Process = run("predict", f"run={model}", "input.text=one")
    return refused(ended, "model.safetensors")


def _nan_checkpoint(folder: Path) -> Seen:
    path = folder / "run"
    train(path, before=lambda: kill_at(45))
    for each in all_checkpoints(path / "checkpoints"):
        _spoil_weights(each / FILE)
    seen = refused(resumed(path))
    bad = [name for name in non_finite(path) if name.startswith("model")]
    return Seen(seen.passed and not bad, seen.text)


def _spoil_weights(path: Path) -> None:
    """Replace a weight by NaN, with checksums that match."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    name = next(n for n, t in tensors.items() if t.is_floating_point() and "weight" in n)
    tensors[name].view(-1)[0] = math.nan
    save_file(tensors, path, metadata)
    write_sums(path.parent)
