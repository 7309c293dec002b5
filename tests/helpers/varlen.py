"""The kernel for sequences of different lengths, of which torch has none for a CPU.

It computes one sequence after the other. So a test can use `varlen_attn` of torch with its
gradient, eager or compiled, on a CPU.
"""

from itertools import pairwise

import torch
from torch.nn.attention import varlen

# Numbers of rows of the queries and of the keys, for each call of the kernel.
calls = []


def sequences(starts, key_starts, longest, key_longest, num_rows, num_keys):
    """The slices of the queries and of the keys of each sequence."""
    assert starts.dtype == key_starts.dtype == torch.int32
    # The kernel computes no other rows, and leaves their memory as it is.
    assert starts[0] == 0 and starts[-1] == num_rows and key_starts[-1] <= num_keys
    assert starts.diff().max() <= longest and key_starts.diff().max() <= key_longest
    queries, keys = (pairwise(each.tolist()) for each in (starts, key_starts))
    return [(slice(*rows), slice(*columns)) for rows, columns in zip(queries, keys, strict=True)]


def probabilities(query, key, window):
    """Attention weights (H, n, m) of one sequence, 0 if there are no keys."""
    past, future = window
    distance = torch.arange(len(query))[:, None] - torch.arange(len(key))
    # The last query and the last key belong together.
    distance = distance + len(key) - len(query)
    allowed = torch.ones_like(distance, dtype=torch.bool)
    if past >= 0:
        allowed &= distance <= past
    if future >= 0:
        allowed &= distance >= -future
    scores = torch.einsum("nhd,mhd->hnm", query, key) * query.shape[-1] ** -0.5
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1)


@varlen._varlen_attn.register_kernel("cpu")
def forward(query, key, value, starts, key_starts, longest, key_longest, *options):
    _, scale, window, *rest = options
    assert scale is None and not any(rest)
    calls.append((len(query), len(key)))
    out = torch.zeros_like(query)
    for rows, keys in sequences(starts, key_starts, longest, key_longest, len(query), len(key)):
        weights = probabilities(query[rows], key[keys], window)
        out[rows] = torch.einsum("hnm,mhd->nhd", weights, value[keys])
    nothing = query.new_zeros(query.shape[1], len(query), dtype=torch.float32)
    return out, nothing, torch.zeros(2, dtype=torch.uint64)


@varlen._varlen_attn_backward.register_kernel("cpu")
def backward(grad, query, key, value, out, lse, starts, key_starts, longest, key_longest, *options):
    *_, window = options
    grads = [torch.zeros_like(part) for part in (query, key, value)]
    scale = query.shape[-1] ** -0.5
    for rows, keys in sequences(starts, key_starts, longest, key_longest, len(query), len(key)):
        weights = probabilities(query[rows], key[keys], window)
        grads[2][keys] += torch.einsum("hnm,nhd->mhd", weights, grad[rows])
        grad_weights = torch.einsum("nhd,mhd->hnm", grad[rows], value[keys])
        inner = (grad_weights * weights).sum(-1, keepdim=True)
        grad_scores = weights * (grad_weights - inner) * scale
        grads[0][rows] = torch.einsum("hnm,mhd->nhd", grad_scores, key[keys])
        grads[1][keys] += torch.einsum("hnm,nhd->mhd", grad_scores, query[rows])
    return tuple(grads)
