"""Attention masks, and rotary and ALiBi positions."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor

from dxn.core.tokens import is_full, matmul_dtype


def make_attn_mask(
    mask: Tensor,
    *,
    queries: Tensor | None = None,
    causal: bool = False,
    slopes: Tensor | None = None,
    window: int | None = None,
) -> Tensor | None:
    """Create the attention mask of a sequence from its padding mask.

    Every query can attend to at least one key, because a softmax over no keys is NaN: a sample
    without real tokens attends to its padding, and with a causal mask or a window every token,
    including padding, can attend to itself.

    Args:
        mask: (B, N) bool. True at real tokens.
        queries: (1 or B, M). Indices of the queries among the real tokens, which they are the last
            of. Default: all N tokens are queries.
        causal: Let each token attend only to itself and the tokens before it.
        slopes: (H,). ALiBi slopes of the heads (arXiv:2108.12409). Default: no ALiBi.
        window: Maximum distance between a query and a key (arXiv:2004.05150, section 3.1). Default:
            no limit. Distances count only real tokens.

    Returns:
        None if there is no restriction. Without slopes, (B, 1, 1 or M, N) bool, True where
        attention is allowed. With slopes, (B, H, M, N) float, which is added to the scores.
    """
    n = mask.shape[1]
    m = n if queries is None else queries.shape[1]
    # A single new token is the last one of its sequence, and real.
    causal = causal and m > 1
    # Without a mask, torch can choose its fastest kernel.
    unrestricted = not causal and window is None and is_full(mask, None)
    allowed = rearrange(mask | ~mask.any(1, keepdim=True), "b n -> b 1 1 n")
    past = torch.ones(())
    if causal or window is not None:
        past = torch.ones(m, n, dtype=torch.bool, device=mask.device).tril(n - m)
    if causal:
        allowed = allowed & past
    distance = torch.zeros(())
    if slopes is not None or window is not None:
        index = token_index(mask)
        queries = index if queries is None else queries
        distance = rearrange((queries[:, :, None] - index[:, None, :]).abs(), "b m n -> b 1 m n")
    if window is not None:
        allowed = allowed & (distance <= window)
    # The diagonal is allowed, so that padding can attend at least to itself.
    if causal or (window is not None and m > 1):
        allowed = allowed | past.triu(n - m)
    if slopes is None:
        return None if unrestricted else allowed
    offset = -rearrange(slopes, "h -> 1 h 1 1") * distance
    return offset if unrestricted else offset.masked_fill(~allowed, -torch.inf)


def as_offsets(attn_mask: Tensor, x: Tensor) -> Tensor:
    """Return an attention mask, see `make_attn_mask`, as numbers that are added to the scores of x.

    0 where attention is allowed, otherwise -inf, in the dtype that the scores have.
    """
    dtype = matmul_dtype(x)
    if attn_mask.dtype != torch.bool:
        return attn_mask.to(dtype)
    return torch.zeros((), dtype=dtype, device=x.device).masked_fill(~attn_mask, -torch.inf)


def token_index(mask: Tensor) -> Tensor:
    """Return the index (B, N) of each token among the real tokens of mask (B, N).

    Padding between real tokens does not change their positions.
    """
    return (mask.cumsum(1) - 1).clamp(min=0)


def last_index(mask: Tensor, n: int) -> Tensor:
    """Return the index (B, n) of the last n real tokens of mask (B, N) among its real tokens."""
    return mask.sum(1, keepdim=True) + torch.arange(-n, 0, device=mask.device)


def alibi_slopes(num_heads: int) -> Tensor:
    """Return the ALiBi slopes (H,): 2^(-8/H), 2^(-16/H), ... (arXiv:2108.12409, section 3)."""
    return 2 ** (-8 * torch.arange(1, num_heads + 1) / num_heads)


def rope_factors(index: Tensor, head_dim: int, theta: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Return the factors of the rotary positions (arXiv:2104.09864, section 3.2.2).

    Args:
        index: (B, N). Position of each token.
        head_dim: Number d of features of a head.
        theta: Base of the wavelengths.

    Returns:
        Cosine and sine of the angles of all pairs of features, (B, 1, N, d / 2) each.
    """
    # The wavelengths form a geometric progression from 2 pi to 2 pi * theta tokens.
    frequency = 1.0 / theta ** (torch.arange(0, head_dim, 2, device=index.device) / head_dim)
    # float32, because bf16 would round the angles of large positions to wrong values.
    angles = rearrange(index[..., None] * frequency, "b n f -> b 1 n f")
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, factors: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the pairs (x[i], x[i + d/2]) of x (B, H, N, d), see `rope_factors`."""
    cos, sin = (factor.to(x.dtype) for factor in factors)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)
