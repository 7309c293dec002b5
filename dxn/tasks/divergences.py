"""Symmetric divergences of two predictions, for R-Drop (arXiv:2106.14448, section 2.1)."""

from __future__ import annotations

from torch import Tensor


def between_classes(logits: Tensor, others: Tensor) -> Tensor:
    """Return (KL(p || q) + KL(q || p)) / 2 (...) of two distributions of K classes.

    Args:
        logits: (..., K). Logits of p.
        others: (..., K). Logits of q.
    """
    log_p = logits.float().log_softmax(-1)
    log_q = others.float().log_softmax(-1)
    # The sum of both is the sum over the classes of (p - q) (log p - log q).
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1) / 2


def between_labels(logits: Tensor, others: Tensor) -> Tensor:
    """Return the same (...) for independent yes-or-no labels with logits (...)."""
    a = logits.float()
    b = others.float()
    # The difference of the logits is that of log p and log q, minus that of "no".
    return (a.sigmoid() - b.sigmoid()) * (a - b) / 2
