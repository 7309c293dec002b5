"""The conversion of a model that is only used: its data type, and faster linear layers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dxn.core.tokens import Tokens
from dxn.models.backbone import Backbone
from dxn.models.blocks import ACTIVATIONS, Mlp
from dxn.models.inference.linear import Activation, InferenceLinear, Int8Linear, PackedLinear
from dxn.models.model import Model

# Narrower layers of an adapter keep float32. They may receive numbers or dates, and cost little.
MIN_WIDTH = 128
# Activations of an Mlp that the linear layer before them can apply.
FUSED: tuple[Activation, ...] = ("gelu", "gelu_tanh")


@torch.no_grad()
def convert(
    model: Model, dtype: torch.dtype, *, int8: bool = False, pack: bool | None = None
) -> None:
    """Convert a model in place. It can then be used, but not trained.

    Adapters receive raw numbers, such as pixels and dates, and bf16 has only three decimal places.
    Adapters therefore compute in float32, and only their tokens and linear layers use `dtype`. An
    adapter with a vocabulary receives ids, so it is converted completely.

    Args:
        model: Model in float32 on its device, in evaluation mode.
        dtype: Data type of the weights: float32 or bf16.
        int8: Quantize the linear layers of the backbones to int8, see `Int8Linear`.
        pack: Store the weights of the other linear layers in the layout of the CPU kernels, see
            `PackedLinear`. None: only in bf16. In float32, nn.Linear reads its weights as they
            are, and was as fast or faster (benchmarks/speed/bench.py on a processor with AVX2).
    """
    if pack is None:
        pack = dtype == torch.bfloat16
    for name, module in model.named_children():
        if name != "adapters":
            module.to(dtype)
    for adapter in model.adapters.values():
        if isinstance(getattr(adapter, "embedding", None), nn.Embedding):
            adapter.to(dtype)
        elif dtype != torch.float32:
            if pack:
                _replace(adapter, partial(_pack_wide, dtype=dtype))
            adapter.register_forward_hook(partial(_cast_tokens, dtype=dtype))
    if int8:
        for module in list(model.modules()):
            if isinstance(module, Backbone):
                _replace(module, _quantize)
    if pack:
        _replace(model, _pack)


def restore(model: nn.Module) -> None:
    """Replace the layers of `convert` by nn.Linear, such as to export or compile a model.

    The dtype does not change. int8 layers become layers in float32 with the rounded weights.
    """
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if not isinstance(layer, InferenceLinear):
                continue
            setattr(parent, name, layer.plain())
            if isinstance(parent, Mlp) and layer.activation != "none":
                parent.act = ACTIVATIONS[layer.activation]


def foreign_parts(model: nn.Module) -> list[str]:
    """Return the names of the classes in a model that belong neither to dxn nor to torch.

    They may create tensors in float32, so it is unknown whether they work in bf16.
    """
    classes = {type(module) for module in model.modules()}
    return sorted(
        f"{kind.__module__}.{kind.__qualname__}"
        for kind in classes
        if kind.__module__.partition(".")[0] not in ("dxn", "torch")
    )


def _replace(root: nn.Module, make: Callable[[nn.Linear, Activation], nn.Module | None]) -> None:
    """Replace the linear layers of a module, except those for which `make` returns None."""
    replaced: dict[nn.Module, nn.Module | None] = {}
    for parent in list(root.modules()):
        for name, layer in list(parent.named_children()):
            # Only nn.Linear itself: a subclass may compute something else. A hook belongs to the
            # layer that it was registered for.
            if type(layer) is not nn.Linear or _has_hooks(layer):
                continue
            activation = _activation_after(parent, name)
            # A layer can occur in several modules.
            if layer not in replaced:
                replaced[layer] = make(layer, activation)
            new = replaced[layer]
            if new is not None:
                setattr(parent, name, new)
                if isinstance(parent, Mlp) and activation != "none":
                    # Not nn.Identity: as a module, it would change the names of the submodules.
                    parent.act = _unchanged


def _pack(linear: nn.Linear, activation: Activation) -> nn.Module | None:
    return PackedLinear(linear, activation) if PackedLinear.supports(linear) else None


def _quantize(linear: nn.Linear, activation: Activation) -> nn.Module | None:
    return Int8Linear(linear, activation) if Int8Linear.supports(linear) else None


def _pack_wide(
    linear: nn.Linear, activation: Activation, *, dtype: torch.dtype
) -> nn.Module | None:
    """Pack a layer of an adapter, unless it may be one that receives a few precise numbers."""
    if min(linear.in_features, linear.out_features) < MIN_WIDTH:
        return None
    return _pack(deepcopy(linear).to(dtype), activation)


def _activation_after(parent: nn.Module, name: str) -> Activation:
    """Return the activation of an Mlp if its layer of this name can apply it."""
    if isinstance(parent, Mlp) and name == "up" and not parent.gated:
        for activation in FUSED:
            if parent.act is ACTIVATIONS[activation]:
                return activation
    return "none"


def _has_hooks(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)


def _cast_tokens(module: nn.Module, args: Any, tokens: Tokens, *, dtype: torch.dtype) -> Tokens:
    """Convert the output of an adapter. A function of a module, so that it can be pickled."""
    return tokens.with_x(tokens.x.to(dtype))


def _unchanged(x: Tensor) -> Tensor:
    return x
