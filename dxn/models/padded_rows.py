"""Selections of rows for groups of samples with padding, with fast gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Pad(torch.autograd.Function):
    """Select the rows of a group, with padding.

    The gradient of the general selection would add up the rows one by one, because an index can
    occur several times. Here, the gradient of padding is zero: attention masks padded keys, and the
    outputs of padded queries are not used.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, real: Tensor) -> Tensor:
        ctx.real = real
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0].index_select(0, ctx.real), None, None


class Unpad(torch.autograd.Function):
    """Select the rows of real tokens. The gradient of padding is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, real: Tensor) -> Tensor:
        ctx.real = real
        ctx.rows = len(x)
        return x.index_select(0, real)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0]
        out = grad.new_zeros(ctx.rows, grad.shape[-1])
        return out.index_copy_(0, ctx.real, grad), None
