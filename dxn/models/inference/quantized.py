"""Linear layers with int8 weights, whose inputs are converted to int8 in each call."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dxn.models.inference.linear import Activation, InferenceLinear, activate

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
