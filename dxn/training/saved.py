"""Checks the content of a checkpoint. Its checksums show damage, but a stranger can write them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, model_validator
from torch import Tensor

from dxn.config.schema import Strict, validated
from dxn.core.errors import UserError

Count = Annotated[int, Field(ge=0, le=2**53)]
Seconds = Annotated[float, Field(ge=0)]
# The loss of an epoch can be infinite, and still be the best one so far.
Figure = Annotated[float, Field(allow_inf_nan=True)]
ADVICE = "resume with the options of the training, or start from its model with weights=RUN"


class SavedState(Strict):
    """The fields of `dxn.training.state.State` in a checkpoint."""

    epoch: Count
    batch: Count
    step: Count
    batch_size: Annotated[int, Field(ge=1, le=2**31)]
    parts: Annotated[int, Field(ge=1)]
    skipped: Count
    skipped_in_row: Count
    monitored: str
    best: Figure | None
    best_epoch: Count
    kept_loss: Figure | None
    first_loss: Figure | None
    second_loss: Figure | None
    best_loss: Figure | None
    memorizes: bool
    worse: Count
    seconds: Seconds
    elapsed: Seconds
    validation: Seconds
    compiled: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> SavedState:
        if self.parts > self.batch_size:
            raise ValueError(f"parts: must be at most batch_size, got {self.parts}")
        if self.epoch and not self.elapsed:
            raise ValueError("elapsed: must be above 0 after an epoch")
        return self


def check_state(content: Any, path: Path) -> dict[str, Any]:
    """Return the fields of the training's State.

    Raises:
        UserError: If one is missing, or has a wrong type or an impossible value.
    """
    return validated(SavedState, content, path).model_dump()


def check_weights(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], path: Path) -> None:
    """Compare the weights of a checkpoint with those of the model.

    Raises:
        UserError: If a name, a shape or a type differs, or a weight is not finite.
    """
    for name in dict.fromkeys([*own, *tensors]):
        if name not in tensors or name not in own:
            reason = f"{name} is {'missing' if name in own else 'unexpected'}"
        else:
            saved, expected = _kind(tensors[name]), _kind(own[name])
            reason = "" if saved == expected else f"{name} has {saved} instead of {expected}"
        if reason:
            raise UserError(
                f"{path}: does not fit the model of the configuration: {reason}; {ADVICE}"
            )
        _check_finite(name, tensors[name], path)


def optimizer_state(
    tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, path: Path
) -> dict[int, dict[str, Tensor]]:
    """Return the state of an optimizer by the index of the parameter.

    Args:
        tensors: The tensors of the state. Each name has the index of a parameter, such as
            3/exp_avg.
        optimizer: Optimizer that receives the state.
        path: File of the tensors, for messages.

    Raises:
        UserError: If the state does not belong to this optimizer and its parameters.
    """
    entries: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition("/")
        if not (index.isascii() and index.isdigit() and len(index) < 10):
            raise UserError(f"{path}: optimizer/{name}: must start with the index of a parameter")
        _check_finite(f"optimizer/{name}", tensor, path)
        entries.setdefault(int(index), {})[key] = tensor
    expected = _kinds_of_state(optimizer) if entries else []
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for i, values in entries.items():
        shapes = {tuple(value.shape) for value in values.values() if value.ndim}
        fits = i < len(parameters) and shapes <= {tuple(parameters[i].shape)}
        kinds = {name: (value.dtype, not value.ndim) for name, value in values.items()}
        if not fits or kinds != expected[i]:
            raise UserError(
                f"{path}: the state of the optimizer does not fit the trained weights "
                f"(parameter {i} has {', '.join(sorted(values))}); {ADVICE}"
            )
    return entries


def check_generators(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], path: Path) -> None:
    """Check the states of the random generators.

    Args:
        tensors: The saved states by device, (P, bytes) each.
        own: The states of this process, (bytes,) each.
        path: File of the tensors, for messages.

    Raises:
        UserError: If one is missing or has another size.
    """
    for name, state in own.items():
        saved = tensors.get(name)
        # A training can move from a CPU to a GPU, whose generator then starts with its seed.
        if saved is None and name != "cpu":
            continue
        is_valid = saved is not None and saved.ndim == 2 and len(saved) > 0
        if saved is None or not is_valid or _kind(saved[0]) != _kind(state):
            raise UserError(f"{path}: generators/{name}: must have one state per row")


def check_log(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Check the losses that have not been written to metrics.jsonl yet.

    Raises:
        UserError: If one is missing or has another shape or type.
    """
    for name in ("losses", "sizes", "epoch_losses", "epoch_sizes"):
        values = tensors.get(name)
        is_loss = name.endswith("losses")
        is_number = values is not None and values.is_floating_point() == is_loss
        if values is None or not is_number or values.ndim != 1:
            raise UserError(f"{path}: log/{name}: must be a list of numbers")
    for losses, sizes in (("losses", "sizes"), ("epoch_losses", "epoch_sizes")):
        if len(tensors[losses]) != len(tensors[sizes]):
            raise UserError(f"{path}: log/{sizes}: must have one number per loss")


def _kinds_of_state(
    optimizer: torch.optim.Optimizer,
) -> list[dict[str, tuple[torch.dtype, bool]]]:
    """Return the type of each tensor of the state of each parameter, and whether it is a number.

    An optimizer has a state only after a step, so a copy takes one.
    """
    trial = copy.copy(getattr(optimizer, "optimizer", optimizer))  # accelerate wraps it
    trial.state = type(trial.state)(dict)
    trial.param_groups = []
    tiny: list[Tensor] = []
    for group in optimizer.param_groups:
        # Small ones with the same number of dimensions. The first one keeps its size, because an
        # optimizer can divide it.
        parameters = [p.new_zeros(p.shape[:1] + (1,) * (p.ndim - 1)) for p in group["params"]]
        for each in parameters:
            each.grad = torch.zeros_like(each)
        trial.param_groups.append({**group, "params": parameters})
        tiny += parameters
    trial.step()
    states = [trial.state[each] for each in tiny]
    return [
        {name: (torch.as_tensor(v).dtype, not torch.as_tensor(v).ndim) for name, v in state.items()}
        for state in states
    ]


def _check_finite(name: str, tensor: Tensor, path: Path) -> None:
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise UserError(
            f"{path}: {name} has values that are NaN or infinite; use another checkpoint"
        )


def _kind(tensor: Tensor) -> str:
    """Return the shape and the type of a tensor for messages, such as (3, 4) float32."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
