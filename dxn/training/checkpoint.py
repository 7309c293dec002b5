"""Checkpoints: everything that a bit-exact resume needs, in safetensors instead of pickle.

A checkpoint is a folder with one file of tensors and its SHA-256 sum. The last two are kept. If the
newest one is damaged, the one before it is used.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from dxn.core.errors import UserError
from dxn.core.files import SUMS, atomic_file, check_sums, replace_folder, write_sums
from dxn.core.untrusted import check_file
from dxn.training.saved import (
    check_generators,
    check_log,
    check_state,
    check_weights,
    optimizer_state,
)

FILE = "training.safetensors"
PREFIX = "step-"
DAMAGED = "damaged-"
KEPT = 2


@dataclass(frozen=True)
class Restored:
    """The parts of a checkpoint that `load` returns instead of restoring them in place.

    Args:
        state: Fields of the training's State.
        log: Tensors of `Progress.pending`.
        notes: Sentences about damaged checkpoints that were not used.
    """

    state: dict[str, Any]
    log: dict[str, Tensor]
    notes: list[str]


def save(
    folder: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ema: AveragedModel | None,
    state: Mapping[str, Any],
    generators: Mapping[str, Tensor],
    log: Mapping[str, Tensor],
) -> Path:
    """Write a checkpoint, and remove all but the last two.

    Args:
        folder: Folder of all checkpoints of the training.
        model: Model whose weights are saved.
        optimizer: Optimizer whose state is saved.
        ema: Moving average of the weights, or None.
        state: Fields of the training's State. They must be JSON data.
        generators: States of the random generators (P, bytes) of all P processes.
        log: Losses that have not been written to metrics.jsonl yet.

    Returns:
        The folder of this checkpoint.

    Raises:
        UserError: If a weight is not finite, or there is no space left.
    """
    tensors = _prefixed("model", model.state_dict())
    if ema is not None:
        tensors |= _prefixed("ema", ema.state_dict())
    check_finite(tensors)
    # The state dict of an optimizer numbers the parameters in the order of its groups. safetensors
    # stores only tensors, so scalars such as the step become tensors.
    for i, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            tensors[f"optimizer/{i}/{name}"] = torch.as_tensor(value)
    tensors |= _prefixed("generators", generators)
    tensors |= _prefixed("log", log)
    # safetensors stores only contiguous tensors; weights in channels_last format are not.
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    target = folder / f"{PREFIX}{state['step']:09}"
    with replace_folder(target) as new:
        write_tensors(new / FILE, contiguous, {"state": json.dumps(state)})
        write_sums(new)
    for path in all_checkpoints(folder)[KEPT:]:
        shutil.rmtree(path)
    return target


def load(
    folder: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ema: AveragedModel | None,
    process: int = 0,
    main: bool = True,
) -> Restored:
    """Restore the weights, the optimizer, the moving average and the random generators in place.

    Args:
        folder: Folder that `save` wrote to.
        model: Model with the same architecture as the saved one.
        optimizer: Optimizer with the same parameter groups as the saved one.
        ema: Moving average of the weights, or None.
        process: Index (rank) of this process in distributed training.
        main: Whether this is the main process, which renames damaged checkpoints.

    Raises:
        UserError: If there is no checkpoint, none is intact, or the newest one that is intact does
            not fit the model and the optimizer.
    """
    path, tensors, state, notes = _read_newest(folder, main=main)
    file = path / FILE
    state = check_state(state, file)
    weights = _without_prefix("model", tensors)
    averaged = _without_prefix("ema", tensors)
    generators = _without_prefix("generators", tensors)
    log = _without_prefix("log", tensors)
    # Everything is checked before anything is changed.
    check_weights(weights, model.state_dict(), file)
    if ema is not None and averaged:
        check_weights(averaged, ema.state_dict(), file)
    entries = optimizer_state(_without_prefix("optimizer", tensors), optimizer, file)
    own = generator_states(next(model.parameters()).device)
    check_generators(generators, own, file)
    check_log(log, file)
    model.load_state_dict(weights)
    # A run may turn averaging on or off when it resumes.
    if ema is not None and averaged:
        ema.load_state_dict(averaged)
    elif ema is not None:
        # The resumed run turned averaging on, so the average starts at the restored weights.
        ema.module.load_state_dict(model.state_dict())
    # The groups keep the options of the resumed run, such as a new weight decay.
    optimizer.load_state_dict({**optimizer.state_dict(), "state": entries})
    try:
        _restore_generators(generators, process)
    except RuntimeError as error:
        raise UserError(f"{file}: generators: not a state of a generator") from error
    return Restored(state, log, notes)


def all_checkpoints(folder: Path) -> list[Path]:
    """Return the folders of the checkpoints, the newest one first."""
    # By number of steps, because a copy of the folder can have other times.
    return sorted((path for path in folder.glob(f"{PREFIX}*") if path.is_dir()), reverse=True)


def read(folder: Path) -> tuple[dict[str, Tensor], Any]:
    """Read one checkpoint, and verify its SHA-256 sum.

    Returns:
        Its tensors by name, and the fields of the training's State, which are not checked yet.

    Raises:
        UserError: If it is damaged.
    """
    path = folder / FILE
    for name in (SUMS, FILE):
        if not (folder / name).is_file():
            raise UserError(f"{folder}: {name} is missing")
        check_file(folder / name)
    # A cut or empty list would otherwise hide damage.
    if FILE not in check_sums(folder):
        raise UserError(f"{folder / SUMS}: must list {FILE}")
    try:
        tensors = load_file(path)
        with safe_open(path, "pt") as file:
            state = json.loads(file.metadata()["state"])
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    return tensors, state


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the random generators of this process, (bytes,) each."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_generator_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore the states of `generator_states`."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"], device)


def gather_states(states: Mapping[str, Tensor], accelerator: Accelerator) -> dict[str, Tensor]:
    """Return the generator states of all P processes, (P, bytes) each.

    This is a collective operation: every process must call it.
    """
    gathered: dict[str, Tensor] = {}
    for name, state in states.items():
        # NCCL can only gather tensors on the GPU.
        rows = accelerator.gather(state[None].to(accelerator.device))
        assert isinstance(rows, Tensor)
        gathered[name] = rows.cpu()
    return gathered


def write_tensors(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file atomically.

    Raises:
        UserError: If there is no space left.
    """
    with atomic_file(path) as partial:
        # safetensors creates files that only the owner can read. An ordinary new file has the
        # permissions that the user chose (umask), so that a container can read it, for example.
        partial.touch()
        mode = partial.stat().st_mode
        save_file(tensors, partial, metadata)
        partial.chmod(mode)


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raise a UserError if a weight is NaN or infinite."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UserError(
                f"the weight {name} is not finite, so nothing was saved; the last checkpoint and "
                "the best model so far are unchanged; lower optimizer.lr"
            )


def _read_newest(folder: Path, *, main: bool) -> tuple[Path, dict[str, Tensor], Any, list[str]]:
    """Read the newest checkpoint that is intact, and put those aside that are damaged."""
    paths = all_checkpoints(folder)
    notes: list[str] = []
    for path in paths:
        try:
            tensors, state = read(path)
        except UserError as error:
            notes.append(f"warning: damaged checkpoint, the one before it is used: {error}")
            continue
        damaged = paths[: len(notes)]
        for each in damaged if main else ():
            # Otherwise it would be taken for the newest one again.
            each.replace(each.with_name(DAMAGED + each.name))
        return path, tensors, state, notes
    if notes:
        reasons = "\n".join(note.partition(": ")[2] for note in notes)
        raise UserError(f"resume: all checkpoints in {folder} are damaged:\n{reasons}")
    raise UserError(
        f"resume: no checkpoint in {folder}, so the run stopped before its training began; start "
        "it again"
    )


def _restore_generators(states: Mapping[str, Tensor], process: int) -> None:
    """Restore the generators of this process.

    If the resumed run has more processes than the saved one, the additional processes use the
    states of the first process.
    """
    row = process if process < len(states["cpu"]) else 0
    # set_rng_state ignores the storage offset of a view and would read row 0, so clone the row.
    torch.set_rng_state(states["cpu"][row].clone())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"][row].clone())


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def _without_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, without the prefix."""
    start = f"{prefix}/"
    return {n.removeprefix(start): tensor for n, tensor in tensors.items() if n.startswith(start)}
