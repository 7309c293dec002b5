"""Attention masks, and the positions in the attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from einops import rearrange
from torch import Tensor

from dxn.core.tokens import is_full, matmul_dtype

if TYPE_CHECKING:
    from dxn.models.blocks import RopeScaling


def make_attn_mask(
    mask: Tensor,
    *,
    queries: Tensor | None = None,
    causal: bool = False,
    bias: Callable[[Tensor], Tensor] | None = None,
    window: int | None = None,
    gaps: bool = False,
) -> Tensor | None:
    """Create the attention mask of a sequence from its padding mask.

    Every query can attend to at least one key, because a softmax over no keys is NaN: a sample
    without real tokens attends to its padding, and with a causal mask or a window every token,
    including padding, can attend to itself.

    Args:
        mask: (B, N) bool. True at real tokens.
        queries: (1 or B, M). Indices of the queries among the real tokens, which they are the last
            of if M < N. Default: all N tokens are queries.
        causal: Let each token attend only to itself and the tokens before it.
        bias: Function of relative positions (B, M, N), key minus query, that returns numbers
            (B, H, M, N) to add to the scores. Default: nothing is added.
        window: Maximum distance between a query and a key (arXiv:2004.05150, section 3.1). Default:
            no limit. Distances count only real tokens.
        gaps: Whether distances count padding, too.

    Returns:
        None if there is no restriction. Without a bias, (B, 1, 1 or M, N) bool, True where
        attention is allowed. With a bias, (B, H, M, N) float, which is added to the scores.
    """
    n = mask.shape[1]
    m = n if queries is None else queries.shape[1]
    # A single new token is the last one of its sequence, and real.
    causal = causal and m > 1
    # Without a mask, torch can choose its fastest kernel.
    unrestricted = not causal and window is None and is_full(mask, None)
    allowed = rearrange(mask | ~mask.any(1, keepdim=True), "b n -> b 1 1 n")
    relative = torch.zeros(())
    # Fewer queries than tokens are the last real ones of each sequence, in any columns.
    is_part = m < n
    if bias is not None or window is not None or (causal and is_part):
        index = torch.arange(n, device=mask.device)[None] if gaps else token_index(mask)
        queries = index if queries is None else queries
        relative = index[:, None, :] - queries[:, :, None]
    past = torch.ones(())
    if is_part:
        past = rearrange(relative <= 0, "... m n -> ... 1 m n") if causal else past
    elif causal or window is not None:
        past = torch.ones(n, n, dtype=torch.bool, device=mask.device).tril()
    if causal:
        allowed = allowed & past
    if window is not None:
        allowed = allowed & rearrange(relative.abs() <= window, "b m n -> b 1 m n")
    # The diagonal is allowed, so that padding can attend at least to itself.
    if not is_part and (causal or window is not None):
        allowed = allowed | past.triu()
    if bias is None:
        return None if unrestricted else allowed
    offset = bias(relative)
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


def rope_factors(
    index: Tensor, head_dim: int, theta: float = 10000.0, scaling: RopeScaling | None = None
) -> tuple[Tensor, Tensor]:
    """Return the factors of the rotary positions (arXiv:2104.09864, section 3.2.2).

    Args:
        index: (B, N). Position of each token.
        head_dim: Number d of rotated features of a head.
        theta: Base of the wavelengths.
        scaling: Change of the frequencies for long sequences. Default: none.

    Returns:
        Factors of the features and of their partners in a pair, (B, 1, N, d) each: the cosines, and
        the sines with the sign that `apply_rope` needs.
    """
    # The wavelengths form a geometric progression from 2 pi to 2 pi * theta tokens.
    frequency = 1.0 / theta ** (torch.arange(0, head_dim, 2, device=index.device) / head_dim)
    factor = 1.0
    if scaling is not None and scaling.kind != "none":
        frequency, factor = scaled_frequency(frequency, theta, scaling)
    # float32, because bf16 would round the angles of large positions to wrong values.
    angles = rearrange(index[..., None] * frequency, "b n f -> b 1 n f")
    cos, sin = angles.cos() * factor, angles.sin() * factor
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def scaled_frequency(frequency: Tensor, theta: float, scaling: RopeScaling) -> tuple[Tensor, float]:
    """Reduce rotary frequencies (f,), and return the factor of the cosines and sines too."""
    if scaling.kind == "linear":
        return frequency / scaling.factor, 1.0
    length, low, high = scaling.original_len, scaling.low, scaling.upper
    if scaling.kind == "llama3":
        rotations = frequency * (length / (2 * math.pi))
        # The share of each frequency that does not change, between the limits.
        share = ((rotations - low) / (high - low)).clamp(0, 1)
        return frequency * (share + (1 - share) / scaling.factor), 1.0
    # YaRN (arXiv:2309.00071, section 3.2) interpolates between the indices of the frequencies that
    # have these numbers of rotations.
    count = len(frequency)

    def index_of(rotations: float) -> float:
        return count * math.log(length / (rotations * 2 * math.pi)) / math.log(theta)

    first = max(math.floor(index_of(high)), 0)
    last = min(math.ceil(index_of(low)), 2 * count - 1)
    steps = torch.arange(count, device=frequency.device)
    share = 1 - ((steps - first) / max(last - first, 1e-3)).clamp(0, 1)
    factor = scaling.attn_factor or 0.1 * math.log(scaling.factor) + 1
    return frequency * (share + (1 - share) / scaling.factor), factor


def apply_rope(x: Tensor, factors: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the pairs (x[i], x[i + d/2]) of x (B, H, N, d), see `rope_factors`.

    If there are factors for fewer features, only the first ones are rotated.
    """
    cos, sin = factors
    if cos.dtype != x.dtype:
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    width = cos.shape[-1]
    first = x if width == x.shape[-1] else x[..., :width]
    rotated = torch.addcmul(first * cos, first.roll(width // 2, -1), sin)
    return rotated if first is x else torch.cat([rotated, x[..., width:]], -1)
