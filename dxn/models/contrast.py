"""Contrastive losses over a matrix of similarities, and the samples of all processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import distributed as dist


def unit(x: Tensor) -> Tensor:
    """Scale the vectors (..., E) to length 1. A vector of zeros stays zero."""
    return F.normalize(x, dim=-1)


def softmax_loss(
    logits: Tensor, at: Tensor, ignored: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """Return the mean cross-entropy () of choosing the right candidate (arXiv:2103.00020).

    Args:
        logits: (Q, C). Scaled similarity of each query and each candidate.
        at: (Q,). Index of the right candidate of each query.
        ignored: (Q, C) bool. Candidates that are neither right nor wrong.
        label_smoothing: Share of the target that is spread over all candidates of a query that are
            not ignored.
    """
    log_prob = logits.masked_fill(ignored, -torch.inf).log_softmax(-1)
    loss = -log_prob.gather(1, at[:, None])[:, 0]
    if label_smoothing:
        # Zeros before the sum, because 0 * -inf is NaN.
        total = -log_prob.masked_fill(ignored, 0).sum(-1)
        loss = (1 - label_smoothing) * loss + label_smoothing * total / (~ignored).sum(-1)
    return loss.mean()


def sigmoid_loss(logits: Tensor, right: Tensor, ignored: Tensor) -> Tensor:
    """Return the sum over the candidates of binary cross-entropies, averaged over the queries.

    Each pair is a decision of its own (arXiv:2303.15343, section 3.2).

    Args:
        logits: (Q, C). Scaled similarity plus bias of each query and each candidate.
        right: (Q, C) bool. True at the right candidates.
        ignored: (Q, C) bool. Candidates that are neither right nor wrong.
    """
    losses = F.binary_cross_entropy_with_logits(logits, right.to(logits), reduction="none")
    return losses.masked_fill(ignored, 0).sum(1).mean()


def gather(own: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], int]:
    """Concatenate the samples of all processes. Gradients flow back to each process.

    Args:
        own: Vectors (B, I, E) and keys (B, I) of this process. B can differ between processes.

    Returns:
        The vectors and keys of all processes, and the index of the first own sample. Processes with
        fewer samples are filled up with zeros.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return own, 0
    x, keys = own
    size = torch.tensor(len(x), device=x.device)
    # All processes must exchange tensors of the same size, but the last batch can be smaller.
    dist.all_reduce(size, dist.ReduceOp.MAX)
    fill = int(size) - len(x)
    all_x: Any = _Gather.apply(F.pad(x, (0, 0, 0, 0, 0, fill)))
    all_keys = _all_gather(F.pad(keys, (0, 0, 0, fill)))
    return (all_x, all_keys), dist.get_rank() * int(size)


class _Gather(torch.autograd.Function):
    """Concatenate a tensor of each process, with the sum of their gradients in the backward pass.

    The function of torch with this behavior is deprecated.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.size = len(x)
        return _all_gather(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous()
        dist.all_reduce(total)
        return total[dist.get_rank() * ctx.size :][: ctx.size]


def _all_gather(x: Tensor) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)
