"""Self-attention and cross-attention, based on the fused kernels of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from dxn.core.dropout import check_rate
from dxn.models.decoding.cache import KVCache
from dxn.models.packing import Group
from dxn.models.positions import apply_rope

ScoreKind = Literal["scaled_dot", "dot", "cosine", "additive", "bilinear"]
# In bf16 on a CPU, two matrix products are faster than the fused kernel up to this number of keys
# (measured by benchmarks/speed/attention.py).
MAX_UNFUSED_KEYS = 1024
# In float32 with gradients, they are faster with AVX2, and the fused kernel is with AVX-512.
MAX_UNFUSED_KEYS_FLOAT32 = 128 if torch.backends.cpu.get_cpu_capability() == "AVX2" else 0


class Score(nn.Module):
    """The function of a query and a key whose softmax gives the attention weights.

    - scaled_dot: q . k / sqrt(d) (arXiv:1706.03762, section 3.2.1)
    - dot: q . k (arXiv:1508.04025, section 3.1)
    - cosine: the cosine of q and k times a learned factor (arXiv:2010.04245, section 3), without
      which the softmax of numbers up to 1 would be almost uniform
    - bilinear: q^T W k with a learned W (arXiv:1508.04025, section 3.1, "general")
    - additive: v . tanh(W q + U k) with learned v, W and U (arXiv:1409.0473, appendix A.1.2). It is
      no dot product, so no fused kernel computes it, and it needs memory for (..., M, N, d).

    Args:
        kind: Kind of the score.
        dim: Width d of queries and keys.

    Raises:
        ValueError: If kind is not a ScoreKind.
    """

    def __init__(self, kind: ScoreKind, dim: int):
        super().__init__()
        if kind not in get_args(ScoreKind):
            raise ValueError(f"score must be one of {', '.join(get_args(ScoreKind))}, got {kind!r}")
        self.kind: ScoreKind = kind
        if kind == "cosine":
            self.factor = nn.Parameter(torch.tensor(10.0))
        elif kind == "bilinear":
            # The initial score equals the scaled dot product.
            self.weight = nn.Parameter(torch.eye(dim) * dim**-0.5)
        elif kind == "additive":
            self.of_query = nn.Linear(dim, dim, bias=False)
            self.of_key = nn.Linear(dim, dim)
            self.weight = nn.Parameter(torch.randn(dim) * dim**-0.5)

    def sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Transform query (..., M, d) and key (..., N, d) so that their dot products are scores.

        In this form, a fused kernel can compute any score but the additive one.
        """
        if self.kind == "scaled_dot":
            return query * query.shape[-1] ** -0.5, key
        if self.kind == "bilinear":
            return query @ self.weight.to(query.dtype), key
        if self.kind == "cosine":
            query = F.normalize(query, dim=-1) * self.factor.to(query.dtype)
            return query, F.normalize(key, dim=-1)
        return query, key

    def additive(self, query: Tensor, key: Tensor) -> Tensor:
        """Compute the additive scores (..., M, N) of query (..., M, d) and key (..., N, d)."""
        # All pairs of queries and keys: (..., M, 1, d) + (..., 1, N, d).
        hidden = self.of_query(query).unsqueeze(-2) + self.of_key(key).unsqueeze(-3)
        return einsum(hidden.tanh(), self.weight.to(hidden.dtype), "... m n d, d -> ... m n")


class Attention(nn.Module):
    """Multi-head self-attention (arXiv:1706.03762, section 3.2).

    Args:
        dim: Width D of a token.
        num_heads: Number of attention heads H.
        dropout: Dropout probability of the attention weights.
        bias: Add a bias to the linear layers.
        norm: Creates a norm of a given width for the queries and keys. Default: no norm.
        score: Kind of the attention score.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        norm: Callable[[int], nn.Module] | None = None,
        score: ScoreKind = "scaled_dot",
    ):
        super().__init__()
        _check_heads(dim, num_heads, dropout)
        self.num_heads = num_heads
        self.dropout = dropout
        # One matrix product for queries, keys and values is faster than three.
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.proj = nn.Linear(dim, dim, bias=bias)
        # QK norm bounds the scores, which stabilizes training (arXiv:2302.05442, section 2).
        self.q_norm = norm(dim // num_heads) if norm is not None else nn.Identity()
        self.k_norm = norm(dim // num_heads) if norm is not None else nn.Identity()
        self.score = Score(score, dim // num_heads)

    def forward(self, x: Tensor, groups: Sequence[Group], cache: KVCache | None = None) -> Tensor:
        """Apply self-attention.

        Args:
            x: (T, D). Tokens of all samples. With a cache, only the new tokens.
            groups: Groups of samples that together have all tokens. With a cache, one group.
            cache: Keys and values of the tokens before x. The new ones are appended.

        Returns:
            A tensor of the shape of x.
        """
        qkv = self.qkv(x)
        rate = self.dropout if self.training else 0.0
        parts: list[Tensor] = []
        for group in groups:
            q, k, v = self._split(qkv, group)
            attn_mask = group.attn_mask
            if cache is not None:
                # After the rotation, because the position of a token does not change.
                k, v = cache.extend(k, v)
                attn_mask = cache.mask(attn_mask)
            if group.sequences is not None:
                out = group.sequences.attend(q, k, v)
            else:
                out = attend(
                    q, k, v, attn_mask, causal=group.causal, score=self.score, dropout=rate
                )
            parts.append(group.unpad(out.transpose(1, 2).flatten(2)))
        return self.proj(parts[0] if len(parts) == 1 else torch.cat(parts))

    def weights(self, x: Tensor, group: Group) -> Tensor:
        """Return the attention weights (B, H, N, N) of the tokens x (B N, D) of one group."""
        q, k, _ = self._split(self.qkv(x), group)
        return attention_weights(q, k, group.attn_mask, causal=group.causal, score=self.score)

    def _split(self, qkv: Tensor, group: Group) -> tuple[Tensor, Tensor, Tensor]:
        """Return the normalized and rotated queries and keys, and the values: (b, H, n, d) each."""
        # Methods of tensors instead of einops: at a few tokens, starting the operations of a block
        # takes most of the time.
        parts = group.pad(qkv).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind()
        # Norms come first: their weights would scale both features of a rotated pair differently.
        q = self.q_norm(q)
        k = self.k_norm(k)
        if group.rope is not None:
            q = apply_rope(q, group.rope)
            k = apply_rope(k, group.rope)
        return q, k, v


class CrossAttention(nn.Module):
    """Multi-head attention to another sequence, the memory (arXiv:1706.03762, section 3.2.3).

    Args:
        dim: Width D of a token.
        num_heads: Number of attention heads H.
        dropout: Dropout probability of the attention weights.
        bias: Add a bias to the linear layers.
        score: Kind of the attention score.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        score: ScoreKind = "scaled_dot",
    ):
        super().__init__()
        _check_heads(dim, num_heads, dropout)
        self.num_heads = num_heads
        self.dropout = dropout
        # Two layers, because keys and values are computed only once per memory.
        self.query = nn.Linear(dim, dim, bias=bias)
        self.memory = nn.Linear(dim, 2 * dim, bias=bias)
        self.proj = nn.Linear(dim, dim, bias=bias)
        self.score = Score(score, dim // num_heads)

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Compute keys and values (B, H, M, d) of a memory (B, M, D)."""
        projected = self.memory(memory)
        key, value = rearrange(projected, "b m (kv h d) -> kv b h m d", kv=2, h=self.num_heads)
        return key, value

    def forward(
        self,
        x: Tensor,
        groups: Sequence[Group],
        memory: tuple[Tensor, Tensor],
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        """Apply cross-attention.

        Args:
            x: (T, D). Tokens of all samples.
            groups: Groups of samples that together have all tokens.
            memory: Keys and values of the memory, see `keys_and_values`.
            attn_mask: (B, 1, 1, M) bool. True at the real tokens of the memory.

        Returns:
            (T, D).
        """
        query = self.query(x)
        parts: list[Tensor] = []
        rate = self.dropout if self.training else 0.0
        for group in groups:
            key, value = (part[group.samples] for part in memory)
            mask = None if attn_mask is None else attn_mask[group.samples]
            padded = group.pad(query)
            # Several rows of a sample, such as beams, are further queries of the same memory.
            x = padded.reshape(key.shape[0], -1, padded.shape[-1])
            q = rearrange(x, "b n (h d) -> b h n d", h=self.num_heads)
            out = attend(q, key, value, mask, score=self.score, dropout=rate)
            out = rearrange(out, "b h n d -> b n (h d)")
            parts.append(group.unpad(out.reshape(padded.shape)))
        return self.proj(parts[0] if len(parts) == 1 else torch.cat(parts))

    def weights(
        self,
        x: Tensor,
        group: Group,
        memory: tuple[Tensor, Tensor],
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the attention weights (B, H, N, M) of the tokens x (B N, D) of one group."""
        q = rearrange(group.pad(self.query(x)), "b n (h d) -> b h n d", h=self.num_heads)
        return attention_weights(q, memory[0], attn_mask, score=self.score)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    causal: bool = False,
    score: Score | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Average the values with the weights softmax(score(query, key) + attn_mask).

    With the default score, this is equation 1 of arXiv:1706.03762.

    Args:
        query: (..., M, d).
        key: (..., N, d).
        value: (..., N, e).
        attn_mask: Broadcastable to (..., M, N). Bool, True where attention is allowed, or float,
            added to the scores.
        causal: Each query attends only to its own position and those before it. M must be N, and
            attn_mask None.
        score: Score of a query and a key. Default: the scaled dot product.
        dropout: Dropout probability of the attention weights.

    Returns:
        (..., M, e).

    Raises:
        ValueError: If dropout is outside [0, 1).
    """
    check_rate("dropout", dropout)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        # The fused kernels require the dtype of the query, which is bf16 under autocast.
        attn_mask = attn_mask.to(query.dtype)
    kind = "scaled_dot" if score is None else score.kind
    prefers_unfused = False
    if query.device.type == "cpu":
        is_bf16 = query.dtype == torch.bfloat16
        most = MAX_UNFUSED_KEYS if is_bf16 else MAX_UNFUSED_KEYS_FLOAT32
        prefers_unfused = (is_bf16 or query.requires_grad) and key.shape[-2] <= most
    if kind == "additive" or prefers_unfused:
        weights = attention_weights(query, key, attn_mask, causal=causal, score=score)
        return F.dropout(weights, dropout, training=dropout > 0) @ value
    scale = None
    if score is not None and kind != "scaled_dot":
        # `sides` includes the scaling, so the kernel must not divide by sqrt(d) again.
        query, key = score.sides(query, key)
        scale = 1.0
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, dropout_p=dropout, is_causal=causal, scale=scale
    )


def attention_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    *,
    causal: bool = False,
    score: Score | None = None,
) -> Tensor:
    """Return the weights (..., M, N) that `attend` applies to the values. Each row sums to 1.

    A fused kernel would not return them.
    """
    if score is not None and score.kind == "additive":
        scores = score.additive(query, key)
    else:
        scale = query.shape[-1] ** -0.5
        if score is not None and score.kind != "scaled_dot":
            query, key = score.sides(query, key)
            scale = 1.0
        batch = query.shape[:-2]
        if not batch or batch != key.shape[:-2]:
            scores = query @ key.mT * scale
        else:
            # The matrix product multiplies by the scale without a pass over the queries.
            left, right = query.flatten(0, -3), key.flatten(0, -3)
            nothing = query.new_empty(())
            scores = torch.baddbmm(nothing, left, right.mT, beta=0, alpha=scale)
            scores = scores.unflatten(0, batch)
    if causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    # In place, because the scores are large, and nothing else refers to them.
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # -inf gives a weight of exactly 0 in every dtype.
        scores.masked_fill_(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores += attn_mask
    return scores.softmax(-1)


def _check_heads(dim: int, num_heads: int, dropout: float) -> None:
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f"dim must be a multiple of num_heads, got {dim} and {num_heads}")
    check_rate("attn_dropout", dropout)
