"""Models that are only used: their data type, and linear layers with packed or int8 weights."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.core.runtime import release_memory
from dxn.core.tokens import Tokens
from dxn.models.backbone import Backbone
from dxn.models.blocks import ACTIVATIONS, Mlp
from dxn.models.model import MultimodalModel

# An activation that the kernel applies to its result.
Activation = Literal["none", "gelu", "gelu_tanh"]
# The name and the algorithm of each activation in oneDNN.
KERNEL_NAMES = {"none": ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh")}
PACKED_DTYPES = (torch.float32, torch.bfloat16)
MAX_INT8 = 127
# Rows that are computed together on a CPU, so that the intermediate results stay in its cache.
ROWS = 256
# Below this width, the conversion of the input takes longer than int8 saves.
MIN_WIDTH = 128
# The kernel for NVIDIA GPUs needs more rows than this, and sizes that are multiples of 8.
MIN_CUDA_ROWS = 17
MULTIPLE = 8
# Smallest scale of a row, because a row of zeros would be divided by zero.
TINY = 1e-12


class InferenceLinear(nn.Module):
    """Base class of linear layers that replace nn.Linear in a model that is only used.

    The input can have another dtype than the weights: the layer computes in that of the weights,
    and returns that of the input.

    Args:
        linear: Layer to replace.
        activation: Activation that is applied to the output.

    Attributes:
        casts: Whether its input always has another dtype, as in an adapter.
    """

    weight: Tensor
    bias: nn.Parameter | None
    casts: bool = False

    def __init__(self, linear: nn.Linear, activation: Activation = "none"):
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.activation: Activation = activation

    def extra_repr(self) -> str:
        """Describe the layer like an nn.Linear."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, activation={self.activation}"
        )

    def plain(self) -> nn.Linear:
        """Return an nn.Linear with the same weights, without the activation."""
        linear = nn.Linear(
            self.in_features, self.out_features, bias=self.bias is not None, device="meta"
        )
        linear.weight = nn.Parameter(self.weight, requires_grad=False)
        if self.bias is not None:
            linear.bias = self.bias
        return linear

    def reference(self, x: Tensor) -> Tensor:
        """Compute the layer with operators that support gradients with respect to x (..., D)."""
        # The decorator imports the compiler, which takes as long as the import of torch.
        return _REFERENCE(self, x) if torch.compiler.is_compiling() else _reference(self, x)


class PackedLinear(InferenceLinear):
    """A linear layer with weights in the layout of oneDNN, on a CPU.

    An nn.Linear in bf16 converts its weights to this layout in every call. With few tokens, this
    takes longer than the product.

    Args:
        linear: Layer to replace, in float32 or bf16 on a CPU.
        activation: Activation that is applied to the output.
    """

    packed: nn.Parameter

    def __init__(self, linear: nn.Linear, activation: Activation = "none"):
        super().__init__(linear, activation)
        self.bias = _fixed(linear.bias)
        self.dtype = linear.weight.dtype
        self._pack(linear.weight)

    @staticmethod
    def supports(linear: nn.Linear) -> bool:
        """Return whether a layer can be replaced."""
        weight = linear.weight
        return (
            weight.device.type == "cpu"
            and weight.dtype in PACKED_DTYPES
            and weight.numel() > 0
            and torch.backends.mkldnn.is_available()
            and _KERNEL is not None
            # oneDNN has no fast kernels for bf16 on older processors.
            and (weight.dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
        )

    @property
    def weight(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The weights (O, D) in the layout of an nn.Linear, as a copy."""
        return self.packed.detach().to_dense()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x (..., D)."""
        if x.requires_grad or torch.compiler.is_compiling():
            return self.reference(x)
        name, algorithm = KERNEL_NAMES[self.activation]
        if x.dtype == self.dtype:
            return _KERNEL(x, self.packed, self.bias, name, [], algorithm)
        y = _KERNEL(x.to(self.dtype), self.packed, self.bias, name, [], algorithm)
        return y.to(x.dtype)

    def _pack(self, weight: Tensor) -> None:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        self.packed = nn.Parameter(packed, requires_grad=False)

    def _apply(self, fn: Any, recurse: bool = True) -> PackedLinear:
        """Refuse `to`, `half` and similar methods, which cannot convert packed weights."""
        moved = fn(torch.empty(0, dtype=self.dtype))
        if moved.dtype == self.dtype and moved.device == self.packed.device:
            return self
        raise TypeError(
            "a model with packed weights cannot be moved or converted: load it with the device "
            "and dtype that you need, or call dxn.models.inference.restore(model) first"
        )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = self.weight
        if self.bias is not None:
            destination[prefix + "bias"] = self.bias if keep_vars else self.bias.detach()

    # Packed tensors can be neither copied nor pickled, so the weights take their place.
    def __getstate__(self) -> dict[str, Any]:
        parameters = dict(self._parameters)
        parameters["packed"] = nn.Parameter(self.weight, requires_grad=False)
        return {**self.__dict__, "_parameters": parameters}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._pack(self.packed)


class LowLinear(InferenceLinear):
    """A linear layer with weights of fewer digits than its input.

    Args:
        linear: Layer to replace, with the dtype of the weights.
        activation: Activation that is applied to the output.
    """

    casts = True

    def __init__(self, linear: nn.Linear, activation: Activation = "none"):
        super().__init__(linear, activation)
        self.weight = nn.Parameter(linear.weight.detach(), requires_grad=False)
        self.bias = _fixed(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x (..., D)."""
        return _reference(self, x)


class Int8Linear(InferenceLinear):
    """A linear layer that multiplies int8 numbers.

    Every row of the weights has its own scale, and so has every token of the input (dynamic
    quantization, arXiv:2208.07339, section 2.1). Both are symmetric: 0 stays 0.

    Args:
        linear: Layer to replace.
        activation: Activation that is applied to the output.
    """

    quantized: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear, activation: Activation = "none"):
        super().__init__(linear, activation)
        weight = linear.weight.detach()
        quantized, scale = to_int8(weight)
        # (O, D), because the kernels are fastest for a transposed matrix.
        self.register_buffer("quantized", quantized)
        # float32 also in a model in bf16: bf16 would add an error of the size of that of int8.
        self.register_buffer("scale", scale.flatten())
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @staticmethod
    def supports(linear: nn.Linear) -> bool:
        """Return whether a layer can be replaced."""
        sizes = linear.in_features, linear.out_features
        return (
            linear.weight.device.type in ("cpu", "cuda")
            and min(sizes) >= MIN_WIDTH
            and not any(size % MULTIPLE for size in sizes)
        )

    @property
    def weight(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The weights (O, D) in float32, rounded to the numbers that int8 represents."""
        return self.quantized * self.scale[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x (..., D)."""
        if x.requires_grad:
            return self.reference(x)
        rows = x.reshape(-1, self.in_features)
        if rows.device.type == "cuda":
            return self._on_cuda(rows).unflatten(0, x.shape[:-1])
        if len(rows) <= ROWS:
            out = self._rows(rows)
        else:
            out = torch.cat([self._rows(part) for part in rows.split(ROWS)])
        return out.view(*x.shape[:-1], self.out_features)

    def _rows(self, x: Tensor) -> Tensor:
        """Apply the layer to x (T, D)."""
        quantized, scale = to_int8(x)
        product = torch._int_mm(quantized, self.quantized.t()).float()  # pyright: ignore
        out = product.mul_(self.scale)
        out = out.mul_(scale) if self.bias is None else torch.addcmul(self.bias, out, scale)
        # The activation is computed in float32, like in the kernels of oneDNN.
        return activate(out, self.activation).to(x.dtype)

    def _on_cuda(self, x: Tensor) -> Tensor:
        """Apply the layer to x (T, D), with as many rows as the kernel needs."""
        missing = MIN_CUDA_ROWS - len(x)
        if missing <= 0:
            return self._rows(x)
        return self._rows(torch.cat([x, x.new_zeros(missing, x.shape[1])]))[: len(x)]

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool):
        destination[prefix + "weight"] = self.weight
        if self.bias is not None:
            destination[prefix + "bias"] = self.bias.detach()


def to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize each row of x (T, D).

    Returns:
        The quantized rows (T, D) int8, and their scales (T, 1) float32. Their product is about x.
    """
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True).clamp_(min=TINY).div_(MAX_INT8)
    return x.div(scale).round_().to(torch.int8), scale


def activate(x: Tensor, activation: Activation) -> Tensor:
    """Apply an activation to x (..., D)."""
    if activation == "none":
        return x
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def _reference(layer: InferenceLinear, x: Tensor) -> Tensor:
    weight = layer.weight
    out = F.linear(x.to(weight.dtype), weight, layer.bias)
    return activate(out, layer.activation).to(x.dtype)


def _fixed(parameter: Tensor | None) -> nn.Parameter | None:
    return None if parameter is None else nn.Parameter(parameter.detach(), requires_grad=False)


# torch.compile cannot read the layout of the weights, so it calls this function as it is.
# Unlike torch.compiler.disable, this decorator imports the compiler only when it is used.
_REFERENCE: Any = torch._disable_dynamo(_reference)  # pyright: ignore[reportPrivateImportUsage]
# The overload is chosen once: the choice takes a few microseconds in each call.
_KERNEL: Any = None
if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    _KERNEL = torch.ops.mkldnn._linear_pointwise.default


# Narrower layers of an adapter keep float32. They may receive numbers or dates, and cost little.
MIN_ADAPTER_WIDTH = 128
# Activations of an Mlp that the linear layer before them can apply.
FUSED: tuple[Activation, ...] = ("gelu", "gelu_tanh")


@torch.no_grad()
def convert(
    model: MultimodalModel, dtype: torch.dtype, *, int8: bool = False, pack: bool | None = None
) -> None:
    """Convert a model in place. It can then be used, but not trained.

    Adapters receive raw numbers, such as pixels and dates, and bf16 has only three decimal places.
    Adapters therefore compute in float32, and only their tokens and linear layers use `dtype`. An
    adapter with a vocabulary receives ids, so it is converted completely. So is the encoder of an
    adapter, but not its own adapter.

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
    cast(model, dtype)
    for adapter in model.adapters.values():
        if not _has_vocabulary(adapter) and dtype != torch.float32:
            # Such as the scale of pixels. A user's adapter can be any module.
            fold = getattr(adapter, "fold", None)
            if fold is not None:
                fold()
            precise = _precise(adapter)
            if pack:
                _replace(precise, partial(_convert_wide, dtype=dtype))
            precise.register_forward_hook(partial(_cast_tokens, dtype=dtype))
    if int8:
        for module in list(model.modules()):
            if isinstance(module, Backbone):
                _replace(module, _quantize)
    if pack:
        _replace(model, _pack)


def cast(model: MultimodalModel, dtype: torch.dtype) -> None:
    """Convert the weights that are in `dtype` in a converted model, see `convert`.

    Before the weights are loaded, this saves the memory of those in float32.
    """
    for name, module in model.named_children():
        if name != "adapters":
            module.to(dtype)
    for adapter in model.adapters.values():
        if _has_vocabulary(adapter):
            adapter.to(dtype)
        elif (precise := _precise(adapter)) is not adapter:
            for part in adapter.children():
                if part is not precise:
                    part.to(dtype)


def _precise(adapter: nn.Module) -> nn.Module:
    """Return the part of an adapter that receives raw numbers: all of it, if it has no encoder."""
    return getattr(adapter, "adapter", adapter)


def _has_vocabulary(adapter: nn.Module) -> bool:
    return isinstance(getattr(adapter, "embedding", None), nn.Embedding)


def restore(model: nn.Module) -> None:
    """Replace the layers of `convert` by plain operations, such as to export or compile a model.

    They become nn.Linear, and those of an adapter in bf16 become LowLinear. The dtype does not
    change. int8 layers become layers in float32 with the rounded weights.
    """
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if not isinstance(layer, InferenceLinear):
                continue
            if layer.casts:
                setattr(parent, name, LowLinear(layer.plain(), layer.activation))
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
    # Neither of the two keeps a layer that is replaced, so its memory is free for the next one.
    replaced: WeakKeyDictionary[nn.Module, nn.Module | None] = WeakKeyDictionary()
    for parent in [module for module in root.modules() if type(module) is not nn.Linear]:
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
                del layer
                # Otherwise the C library keeps the gaps between the new weights.
                release_memory()
                if isinstance(parent, Mlp) and activation != "none":
                    # Not nn.Identity: as a module, it would change the names of the submodules.
                    parent.act = _unchanged


def _pack(linear: nn.Linear, activation: Activation) -> nn.Module | None:
    return PackedLinear(linear, activation) if PackedLinear.supports(linear) else None


def _quantize(linear: nn.Linear, activation: Activation) -> nn.Module | None:
    return Int8Linear(linear, activation) if Int8Linear.supports(linear) else None


def _convert_wide(
    linear: nn.Linear, activation: Activation, *, dtype: torch.dtype
) -> nn.Module | None:
    """Convert a layer of an adapter, unless it may be one that receives a few precise numbers."""
    if min(linear.in_features, linear.out_features) < MIN_ADAPTER_WIDTH:
        return None
    low = deepcopy(linear).to(dtype)
    if low.weight.device.type != "cpu":
        return LowLinear(low, activation)
    if not PackedLinear.supports(low):
        return None
    packed = PackedLinear(low, activation)
    packed.casts = True
    return packed


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
