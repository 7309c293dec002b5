"""Linear layers with frozen weights of 8 or 4 bits, below updates that are trained."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.core.tokens import matmul_dtype
from dxn.models.inference import TINY, to_int8

FrozenKind = Literal["int8", "nf4"]
# Numbers with a common scale. More of them need less memory, and have larger errors.
BLOCK = 64
# Quantile at which the largest level stands, so that it is finite: the mean of 1 - 1/32 and
# 1 - 1/30, half a step of the 16 and of the 15 levels of a half (arXiv:2305.14314, section 3).
LARGEST = (1 - 1 / 32 + 1 - 1 / 30) / 2


class FrozenLinear(nn.Module):
    """A linear layer whose weights are quantized and not trained.

    Products are computed in the precision of the input, with the weights that the numbers stand
    for. They exist during a product only, also in the backward pass.

    Args:
        linear: Layer to replace. Its bias is kept, and can be trained.
        kind: int8: 8 bits and a scale per row. nf4: 4 bits and a scale per BLOCK numbers
            (NormalFloat, arXiv:2305.14314).
    """

    def __init__(self, linear: nn.Linear, kind: FrozenKind):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.kind = kind
        quantized, scale = (to_int8 if kind == "int8" else to_nf4)(linear.weight.detach())
        # Parameters, not buffers: like all frozen weights, they are saved and sent once.
        self.weight = nn.Parameter(quantized, requires_grad=False)
        self.weight_scale = nn.Parameter(scale, requires_grad=False)
        self.bias = linear.bias

    def extra_repr(self) -> str:
        """Describe the layer like an nn.Linear."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, kind={self.kind}"
        )

    def dense(self) -> Tensor:
        """Return the weights (out_features, in_features) in float32."""
        return _dense(self.weight, self.weight_scale, self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x (..., in_features)."""
        out: Any = _Product.apply(x.to(matmul_dtype(x)), self.weight, self.weight_scale)
        return out if self.bias is None else out + self.bias.to(out.dtype)


class _Product(torch.autograd.Function):
    """The product of x and quantized weights, which are not kept in full for the backward pass."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Return x @ weight.T for x (..., in_features), the weights and their scales."""
        x, weight, scale = inputs
        ctx.save_for_backward(weight, scale)
        ctx.columns = x.shape[-1]
        return F.linear(x, _dense(weight, scale, x.shape[-1]).to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient with respect to x."""
        weight, scale = ctx.saved_tensors
        return grads[0] @ _dense(weight, scale, ctx.columns).to(grads[0].dtype), None, None


def to_nf4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize x (R, C) to NF4.

    Returns:
        Two numbers per byte (R, ceil(C / BLOCK) * BLOCK / 2) uint8, and the scales of the blocks
        (R, ceil(C / BLOCK)) float32.
    """
    blocks = F.pad(x.float(), (0, -x.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    scale = blocks.abs().amax(-1).clamp_(min=TINY)
    levels = _levels().to(x.device)
    # The nearest level: the boundaries are in the middle of two levels.
    number = torch.bucketize(blocks / scale[..., None], (levels[1:] + levels[:-1]) / 2)
    high, low = number.flatten(1).to(torch.uint8).unflatten(1, (-1, 2)).unbind(-1)
    return high * 16 + low, scale


def _dense(weight: Tensor, scale: Tensor, columns: int) -> Tensor:
    """Return the weights (R, C) in float32 that quantized ones stand for."""
    if weight.dtype == torch.int8:
        return weight * scale
    pairs = _pairs().to(weight.device)
    values = F.embedding(weight.int(), pairs).flatten(1).unflatten(1, (-1, BLOCK))
    return (values * scale[..., None]).flatten(1)[:, :columns]


@cache
def _levels() -> Tensor:
    """Return the 16 levels of NF4 in [-1, 1], quantiles of the normal distribution."""
    above = torch.special.ndtri(torch.linspace(LARGEST, 0.5, 9, dtype=torch.float64))[:-1]
    below = -torch.special.ndtri(torch.linspace(LARGEST, 0.5, 8, dtype=torch.float64))[:-1]
    levels = torch.cat([below, above.new_zeros(1), above.flip(0)])
    return (levels / levels.max()).float()


@cache
def _pairs() -> Tensor:
    """Return the two levels (256, 2) that a byte stands for."""
    levels = _levels()
    return torch.stack([levels.repeat_interleave(16), levels.repeat(16)], -1)
