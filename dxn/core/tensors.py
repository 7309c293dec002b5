"""Files of tensors (safetensors), and checks of the tensors of an untrusted file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.files import atomic_file


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file atomically.

    Raises:
        UserError: If there is no space left.
    """
    # safetensors stores only contiguous tensors; weights in channels_last format are not.
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with atomic_file(path) as partial:
        # safetensors creates files that only the owner can read. An ordinary new file has the
        # permissions that the user chose (umask), so that a container can read it, for example.
        partial.touch()
        mode = partial.stat().st_mode
        save_file(contiguous, partial, metadata)
        partial.chmod(mode)


def nonfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor with a NaN or an infinite number, if there is one."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None


def check_before_saving(weights: Mapping[str, Tensor]) -> None:
    """Raise a UserError if a weight is NaN or infinite."""
    if (name := nonfinite(weights)) is not None:
        raise UserError(
            f"the weight {name} is not finite, so nothing was saved; the last checkpoint and the "
            "best model so far are unchanged; lower optimizer.lr"
        )


def check_after_loading(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise a UserError if a number is NaN or infinite."""
    if (name := nonfinite(tensors)) is not None:
        raise UserError(
            f"{path}: {name} has values that are NaN or infinite; use another checkpoint"
        )


def check_weights(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], path: Path) -> None:
    """Compare the weights of a file with those of the model.

    Raises:
        UserError: If a name, a shape or a type differs, or a weight is not finite.
    """
    for name in dict.fromkeys([*own, *tensors]):
        if name not in tensors or name not in own:
            reason = f"{name} is {'missing' if name in own else 'unexpected'}"
        elif kind(tensors[name]) != kind(own[name]):
            reason = f"{name} has {kind(tensors[name])} instead of {kind(own[name])}"
        else:
            continue
        raise UserError(
            f"{path}: does not fit the model of the configuration: {reason}; resume with the "
            "options of the training, or start from its model with weights=RUN"
        )
    check_after_loading(tensors, path)


def kind(tensor: Tensor) -> str:
    """Return the shape and the type of a tensor for messages, such as (3, 4) float32."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
