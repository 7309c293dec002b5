"""Checkpoints: everything that a bit-exact resume needs, in safetensors instead of pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from dxn.errors import UserError

NAME = "last.safetensors"  # a new checkpoint replaces the previous one


@dataclass(frozen=True)
class Restored:
    """The parts of a checkpoint that `load` returns instead of restoring them in place.

    Args:
        state: Fields of the training's State.
        log: Tensors of `Progress.pending`.
    """

    state: dict[str, Any]
    log: dict[str, Tensor]


def save(
    folder: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ema: AveragedModel | None,
    state: Mapping[str, Any],
    generators: Mapping[str, Tensor],
    log: Mapping[str, Tensor],
) -> None:
    """Write a checkpoint as one file, which replaces the previous checkpoint.

    Args:
        folder: Folder of the checkpoint. It is created if it does not exist.
        model: Model whose weights are saved.
        optimizer: Optimizer whose state is saved.
        ema: Moving average of the weights, or None.
        state: Fields of the training's State. They must be JSON data.
        generators: States of the random generators (P, bytes) of all P processes.
        log: Losses that have not been written to metrics.jsonl yet.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = _prefixed("model", model.state_dict())
    if ema is not None:
        tensors |= _prefixed("ema", ema.state_dict())
    # The state dict of an optimizer numbers the parameters in the order of its groups. safetensors
    # stores only tensors, so scalars such as the step become tensors.
    for i, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            tensors[f"optimizer/{i}/{name}"] = torch.as_tensor(value)
    tensors |= _prefixed("generators", generators)
    tensors |= _prefixed("log", log)
    # safetensors stores only contiguous tensors; weights in channels_last format are not.
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_safely(folder / NAME, contiguous, {"state": json.dumps(state)})


def load(
    folder: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ema: AveragedModel | None,
    process: int = 0,
) -> Restored:
    """Restore the weights, the optimizer, the moving average and the random generators in place.

    Args:
        folder: Folder that `save` wrote to.
        model: Model with the same architecture as the saved one.
        optimizer: Optimizer with the same parameter groups as the saved one.
        ema: Moving average of the weights, or None.
        process: Index (rank) of this process in distributed training.

    Raises:
        UserError: If there is no checkpoint in the folder.
    """
    path = folder / NAME
    if not path.exists():
        raise UserError(
            f"resume: no checkpoint in {folder}; a run can be resumed once it has saved one"
        )
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        state = json.loads(file.metadata()["state"])
    model.load_state_dict(_without_prefix("model", tensors))
    averaged = _without_prefix("ema", tensors)
    # A run may turn averaging on or off when it resumes.
    if ema is not None and averaged:
        ema.load_state_dict(averaged)
    elif ema is not None:
        # The resumed run turned averaging on, so the average starts at the restored weights.
        ema.module.load_state_dict(model.state_dict())
    # Undo the flattening of `save`: optimizer/3/exp_avg becomes entries[3]["exp_avg"].
    entries: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _without_prefix("optimizer", tensors).items():
        i, key = name.split("/")
        entries.setdefault(int(i), {})[key] = tensor
    # The groups keep the options of the resumed run, such as a new weight decay.
    optimizer.load_state_dict({**optimizer.state_dict(), "state": entries})
    _restore_generators(_without_prefix("generators", tensors), process)
    return Restored(state, _without_prefix("log", tensors))


def generator_states(accelerator: Accelerator) -> dict[str, Tensor]:
    """Return the states of the random generators of all P processes, (P, bytes) each.

    This is a collective operation: every process must call it.
    """
    states = {"cpu": torch.get_rng_state()}
    if accelerator.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(accelerator.device)
    gathered: dict[str, Tensor] = {}
    for name, state in states.items():
        # NCCL can only gather tensors on the GPU.
        rows = accelerator.gather(state[None].to(accelerator.device))
        assert isinstance(rows, Tensor)
        gathered[name] = rows.cpu()
    return gathered


def write_safely(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file under a temporary name, then rename it.

    A rename is atomic, so an interruption never leaves an incomplete file at `path`.
    """
    partial = path.with_suffix(".tmp")
    # safetensors creates files that only the owner can read. An ordinary new file has the
    # permissions that the user chose (umask), so that a container can read the model, for example.
    partial.touch()
    mode = partial.stat().st_mode
    save_file(tensors, partial, metadata)
    partial.chmod(mode)
    partial.replace(path)


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
