"""Cross-entropy over a large vocabulary in chunks, and contrastive losses over similarities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import distributed as dist

from dxn.core.tokens import can_read, matmul_dtype, without_autocast

# Number of logits per chunk on a CPU, in whose cache they fit.
CHUNK = 2**20
# Number of these chunks per update of the embedding gradient. An update takes about as long as the
# matrix product of one chunk, so one update per chunk would be too slow.
GROUP = 4
# Number of logits per chunk on other devices, with one update each. Their kernels take longer to
# start than to compute a small chunk. In bf16, these logits need 256 MB.
DEVICE_CHUNK = 2**27


def linear_cross_entropy(
    x: Tensor,
    embedding: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> Tensor:
    """Compute the sum of the cross-entropy between x @ embedding.T + bias and the targets.

    It equals `cross_entropy(x @ embedding.T + bias, targets, ..., reduction="sum")`, but the logits
    and their gradient are computed for only a few tokens at a time. The effect is measured by
    benchmarks/speed/attention.py.

    Args:
        x: (M, D). Output vectors.
        embedding: (V, D). Vectors of the vocabulary.
        targets: (M,). Target token ids.
        bias: (V,). Added to the logits.
        softcap: See `softcapped`.
        label_smoothing: Probability that is distributed over the whole vocabulary
            (arXiv:1512.00567, section 7).
        ignore_index: Target of vectors that are left out, such as padding.

    Returns:
        A scalar.
    """
    if bias is not None:
        # A feature that is 1 for all vectors, and zeros, because products of a width that is not a
        # multiple of 8 have slow kernels.
        x = torch.cat([x, F.pad(torch.ones_like(x[:, :1]), (0, 7))], 1)
        embedding = torch.cat([embedding, F.pad(bias[:, None], (0, 7))], 1)
    real = targets != ignore_index
    if can_read(real):
        x, targets = x[real], targets[real]
        real = None
    else:
        # Padding is computed, from zeros, but does not count.
        x, targets = x * real[:, None], targets.clamp(min=0)
    if not torch.is_grad_enabled():
        # The forward pass below cannot ask for this, because it always runs without gradients.
        x, embedding = x.detach(), embedding.detach()
    dtype = matmul_dtype(x)
    options = label_smoothing, softcap, dtype
    total = _LinearCrossEntropy.apply(x, embedding, targets, real, *options)
    assert isinstance(total, Tensor)
    return total


def softcapped(logits: Tensor, limit: float | None) -> Tensor:
    """Return the logits z as c tanh(z / c) for the limit c (arXiv:2408.00118, section 2)."""
    return logits if limit is None else limit * (logits / limit).tanh()


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes the loss and the gradients that are needed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Compute the loss for the arguments of `_with_gradients`."""
        ctx.needed = ctx.needs_input_grad[:2]
        # An operator, because a graph of the loop would be for one number of chunks.
        compute: Any = _with_gradients_op if torch.compiler.is_compiling() else _with_gradients
        total, *gradients = compute(*inputs, list(ctx.needed))
        # The backward pass only has to scale these gradients.
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients that `forward` computed."""
        pairs = zip(ctx.saved_tensors, ctx.needed, strict=True)
        scaled = [grads[0] * gradient if need else None for gradient, need in pairs]
        return *scaled, None, None, None, None, None


def _with_gradients(
    x: Tensor,
    embedding: Tensor,
    targets: Tensor,
    real: Tensor | None,
    smoothing: float,
    softcap: float | None,
    dtype: torch.dtype,
    needed: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, and its gradients with respect to x and to the embedding if `needed`.

    Let p be the softmax and q the target distribution, both (M, V). The gradient with respect to x
    is (p - q) @ embedding, and that with respect to the embedding is (p - q).T @ x. q is a one-hot
    vector plus a constant, so its products are computed without the matrix q. Only with `softcap`,
    where p - q is multiplied by the derivative of the limit, it is subtracted from p.

    Matrix products are computed in `dtype`, and sums over the vocabulary at least in float32.
    """
    device = x.device.type
    # Autocast would convert the embedding again for each chunk.
    with without_autocast(x):
        needs_x, needs_embedding = needed
        grad_x = torch.empty_like(x) if needs_x else None
        grad_embedding = torch.zeros_like(embedding) if needs_embedding else None
        total = x.new_zeros((), dtype=torch.promote_types(dtype, torch.float32))
        low_x = x.to(dtype)
        low_embedding = embedding.to(dtype)
        size, num_chunks = (CHUNK, GROUP) if device == "cpu" else (DEVICE_CHUNK, 1)
        # At least 16 rows, because matrix products with fewer rows are inefficient.
        rows = max(size // len(embedding), 16)
        for start in range(0, len(x), num_chunks * rows):
            group = slice(start, start + num_chunks * rows)
            group_x = low_x[group]
            group_targets = targets[group, None]
            needs_probs = needs_x or needs_embedding
            probs = group_x.new_empty(len(group_x) if needs_probs else 0, len(embedding))
            for offset in range(0, len(group_x), rows):
                chunk = slice(offset, offset + rows)
                logits = softcapped(group_x[chunk] @ low_embedding.T, softcap)
                softmax = logits.softmax(-1, dtype=total.dtype)
                # logsumexp, computed from the largest logit and its probability, which is at least
                # 1 / V, so its logarithm is finite. It avoids a second pass of exponentials.
                log_sum = logits.amax(-1).to(total.dtype) - softmax.amax(-1).log()
                true_logits = logits.gather(1, group_targets[chunk]).squeeze(1)
                losses = log_sum - (1 - smoothing) * true_logits
                if softcap is not None:
                    losses -= smoothing * logits.mean(-1, dtype=total.dtype)
                    softmax -= smoothing / len(embedding)
                    true = torch.full_like(group_targets[chunk], smoothing - 1, dtype=total.dtype)
                    softmax.scatter_add_(1, group_targets[chunk], true)
                    softmax *= 1 - (logits / softcap).square()
                if real is not None:
                    losses = losses * real[group][chunk]
                    softmax = softmax * real[group][chunk, None]
                total += losses.sum()
                if needs_probs:
                    probs[chunk] = softmax
            if grad_x is not None:
                grad_x[group] = (probs @ low_embedding).to(x.dtype)
            if grad_embedding is not None:
                grad_embedding += probs.T @ group_x
        if softcap is None:
            sum_x = x.sum(0)
            mean_embedding = embedding.mean(0)
            total -= smoothing * (sum_x * mean_embedding).sum()
            if grad_x is not None:
                grad_x -= (1 - smoothing) * embedding[targets] + smoothing * mean_embedding
            if grad_embedding is not None:
                grad_embedding.index_add_(0, targets, x.to(embedding.dtype), alpha=smoothing - 1)
                grad_embedding -= smoothing / len(embedding) * sum_x
    # An operator returns no None.
    empty = x.new_empty(0) if grad_x is None else grad_x
    return total, empty, embedding.new_empty(0) if grad_embedding is None else grad_embedding


_with_gradients_op = torch.library.custom_op("dxn::linear_cross_entropy", mutates_args=())(
    _with_gradients
)


@_with_gradients_op.register_fake
def _(
    x: Tensor,
    embedding: Tensor,
    targets: Any,
    real: Any,
    smoothing: Any,
    softcap: Any,
    dtype: Any,
    needed: Any,
) -> tuple[Tensor, ...]:
    total = x.new_empty((), dtype=torch.promote_types(dtype, torch.float32))
    pairs = zip((x, embedding), needed, strict=True)
    return total, *(
        torch.empty_like(tensor) if need else tensor.new_empty(0) for tensor, need in pairs
    )


def unit(x: Tensor) -> Tensor:
    """Scale the vectors (..., E) to length 1. A vector of zeros stays zero."""
    return F.normalize(x, dim=-1)


def softmax_loss(
    logits: Tensor, at: Tensor, ignored: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """Return the cross-entropy (Q,) of choosing the right candidate (arXiv:2103.00020).

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
    return loss


def sigmoid_loss(logits: Tensor, right: Tensor, ignored: Tensor) -> Tensor:
    """Return the sum (Q,) over the candidates of binary cross-entropies.

    Each pair is a decision of its own (arXiv:2303.15343, section 3.2).

    Args:
        logits: (Q, C). Scaled similarity plus bias of each query and each candidate.
        right: (Q, C) bool. True at the right candidates.
        ignored: (Q, C) bool. Candidates that are neither right nor wrong.
    """
    losses = F.binary_cross_entropy_with_logits(logits, right.to(logits), reduction="none")
    return losses.masked_fill(ignored, 0).sum(1)


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
