"""Save a fine-tuned model in the original format of its checkpoint's family."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dxn.errors import UserError
from dxn.weights.public import PublicModel


@torch.no_grad()
def save_public(public: PublicModel, model: nn.Module, path: str | Path) -> None:
    """Write the weights of a model with the family's tensor names, for its original library.

    Args:
        public: The checkpoint from which the training started.
        model: The trained model.
        path: Path of the safetensors file.

    Raises:
        UserError: If dxn cannot save models of this family.
    """
    family = public.family
    if family.to_checkpoint is None:
        raise UserError(
            f"weights: {family.name} cannot be saved in its original format; use the model folder "
            "of the run instead"
        )
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    tensors: dict[str, Tensor] = {}
    # First invert the conversions of single tensors. Then the family adds the tensors that have no
    # inverse.
    for name, source in public.tensor_map.items():
        if name in state and source.invert is not None:
            tensors |= dict(zip(source.names, source.invert(state[name]), strict=True))
    tensors |= family.to_checkpoint(state, public.checkpoint, public.architecture)
    # Leave out optional biases that are missing in the checkpoint, unless training changed them.
    kept = {name: t for name, t in tensors.items() if name in public.checkpoint or bool(t.any())}
    # safetensors does not save tensors that share memory, such as chunks of one tensor.
    copies = {name: tensor.contiguous().clone() for name, tensor in kept.items()}
    save_file(copies, path, {"format": "pt"})
