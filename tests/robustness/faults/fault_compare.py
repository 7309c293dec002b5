"""Compares the trainings of faults.py with undisturbed ones."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fault_process import Seen, kill_at, resumed, scratch, train
from safetensors.torch import load_file

from dxn.training.checkpoint import FILE, all_checkpoints


def reference(*options: object) -> Path:
    """Return the folder of an undisturbed training with these options, which runs once."""
    digest = hashlib.sha256(repr(options).encode()).hexdigest()[:12]
    folder = scratch() / f"reference-{digest}"
    if not (folder / "metrics.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        ended = train(folder, *options)
        if ended.code:
            raise RuntimeError(f"the undisturbed training failed: {ended.output}")
    return folder


def killed_at(folder: Path, step: int, *options: object) -> Path:
    """Run a training that is killed after a step, and return its folder."""
    ended = train(folder, *options, before=lambda: kill_at(step))
    if ended.code != -signal.SIGKILL:
        raise RuntimeError(f"the training was not killed: {ended.code} {ended.output}")
    return folder


def finished_equal(folder: Path, *options: object, changes: Sequence[object] = ()) -> Seen:
    """Resume a training, and compare it with the undisturbed one.

    Args:
        folder: The run folder.
        options: Options of the training.
        changes: Options of the resume.
    """
    ended = resumed(folder, *changes)
    if ended.code:
        return Seen(False, f"exit code {ended.code}: {ended.said}")
    return compare(folder, reference(*options))


def compare(folder: Path, expected: Path) -> Seen:
    """Compare two finished trainings to the bit."""
    checks = {
        "lines of metrics.jsonl": log_rows(folder) == log_rows(expected),
        "model.safetensors": sha256(folder) == sha256(expected),
        "last checkpoint": tensors_sha256(folder) == tensors_sha256(expected),
    }
    different = [name for name, equal in checks.items() if not equal]
    return Seen(not different, "equal" if not different else f"not equal: {', '.join(different)}")


def log_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl without the speed."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "samples/s"} for line in lines]


def sha256(folder: Path) -> str:
    """Return the SHA-256 digest of the model of a run."""
    return hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()


def tensors_sha256(folder: Path) -> str:
    """Return the SHA-256 digest of the tensors of the last checkpoint."""
    digest = hashlib.sha256()
    for name, tensor in sorted(
        load_file(all_checkpoints(folder / "checkpoints")[0] / FILE).items()
    ):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def steps_of(folder: Path) -> list[int]:
    """Return the steps in metrics.jsonl, whose last line may be incomplete."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [row["step"] for row in map(json.loads, lines) if "train/loss" in row]


def checkpoint_step(folder: Path) -> int | None:
    """Return the step of the newest checkpoint of a run; None without one."""
    folders = all_checkpoints(folder / "checkpoints")
    return int(folders[0].name.partition("-")[2]) if folders else None
