"""Everything a run needs to go on, bit for bit, and no pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dxn.errors import UserError

NAME = "last.safetensors"


def save(
    folder: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    averaged: dict[str, Tensor],
    state: dict[str, Any],
) -> None:
    """One file, written aside and then moved into place: a run killed meanwhile keeps the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model/{name}": t for name, t in model.state_dict().items()}
    tensors |= {f"averaged/{name}": t for name, t in averaged.items()}
    for i, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{i}/{name}": torch.as_tensor(v) for name, v in values.items()}
    tensors["rng/cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["rng/cuda"] = torch.cuda.get_rng_state()
    write_safely(folder / NAME, {k: t.contiguous() for k, t in tensors.items()}, {"state": json.dumps(state)})


def load(
    folder: Path, *, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Put everything back; the state and the averaged weights are returned."""
    path = folder / NAME
    if not path.exists():
        raise UserError(f"{path}: no checkpoint here; the run must have finished at least one epoch")
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        state = json.loads(file.metadata()["state"])
    model.load_state_dict(_under("model/", tensors))
    values: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _under("optimizer/", tensors).items():
        i, key = name.split("/")
        values.setdefault(int(i), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": values})
    torch.set_rng_state(tensors["rng/cpu"])
    if "rng/cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["rng/cuda"])
    return state, _under("averaged/", tensors)


def write_safely(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """A safetensors file that is either whole or not there."""
    aside = path.with_suffix(".tmp")
    save_file(tensors, aside, metadata)
    aside.replace(path)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
