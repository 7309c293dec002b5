"""Self-attention and cross-attention, based on the fused kernels of torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.models.dropout import check_rate, drop
from dxn.models.positions import apply_rope
from dxn.models.scores import Additive, ScaledDot, Score, ScoreKind, make_score
from dxn.tokens import Tokens

# In bf16 on a CPU, two matrix products are faster than the fused kernel up to this number of keys
# (measured by benchmarks/attention.py).
MAX_UNFUSED_KEYS = 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """The sequence to which cross-attention attends, such as the output of an encoder.

    Args:
        x: (B, M, D). Vectors of the tokens.
        attn_mask: (B, 1, 1, M) bool. True at real tokens. None: all tokens are real.
    """

    x: Tensor
    attn_mask: Tensor | None

    @classmethod
    def from_tokens(cls, tokens: Tokens) -> Memory:
        """Convert encoded Tokens to a memory.

        A sample without real tokens attends to its padding, because a softmax over no keys is NaN.
        """
        # Without a mask, torch can choose its fastest kernel.
        if bool(tokens.mask.all()):
            return cls(tokens.x, None)
        readable = tokens.mask | ~tokens.mask.any(1, keepdim=True)
        return cls(tokens.x, rearrange(readable, "b m -> b 1 1 m"))

    def select(self, rows: Tensor) -> Memory:
        """Return the memory of these rows (b,) of the batch."""
        return Memory(self.x[rows], None if self.attn_mask is None else self.attn_mask[rows])


class KVCache:
    """Keys and values of one block, for the previous tokens and for the memory.

    In generation, each step computes only the new tokens and reads all others from the cache.
    """

    def __init__(self):
        self.tokens: tuple[Tensor, Tensor] | None = None
        self.memory: tuple[Tensor, Tensor] | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, H, n, d) of new tokens, and return all (B, H, N, d)."""
        if self.tokens is not None:
            key = torch.cat([self.tokens[0], key], 2)
            value = torch.cat([self.tokens[1], value], 2)
        self.tokens = key, value
        return self.tokens

    def select(self, rows: Tensor) -> None:
        """Keep these rows (b,) of the batch. Beam search repeats some rows and drops others."""
        if self.tokens is not None:
            self.tokens = self.tokens[0][rows], self.tokens[1][rows]
        if self.memory is not None:
            self.memory = self.memory[0][rows], self.memory[1][rows]


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
        self.score = make_score(score, dim // num_heads)

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        rope: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Apply self-attention.

        Args:
            x: (B, N, D). With a cache, only the new tokens (B, n, D).
            attn_mask: (B, H or 1, N or 1, N). Bool, True where attention is allowed, or float,
                added to the scores. With a cache, (B, H or 1, n, N).
            rope: Angles of the rotary positions, see `rope_angles`.
            cache: Keys and values of the tokens before x. The new ones are appended.

        Returns:
            A tensor of the shape of x.
        """
        q, k, v = self._project(x, rope)
        # Keys are cached after the rotation, because the position of a token does not change.
        if cache is not None:
            k, v = cache.extend(k, v)
        rate = self.dropout if self.training else 0.0
        out = attend(q, k, v, attn_mask, score=self.score, dropout=rate)
        return self.proj(rearrange(out, "b h n d -> b n (h d)"))

    def weights(
        self, x: Tensor, attn_mask: Tensor | None = None, rope: Tensor | None = None
    ) -> Tensor:
        """Return the attention weights (B, H, N, N). The arguments are those of `forward`."""
        q, k, _ = self._project(x, rope)
        return attention_weights(q, k, attn_mask, score=self.score)

    def _project(self, x: Tensor, rope: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute normalized and rotated queries and keys, and values: (B, H, N, d) each."""
        q, k, v = rearrange(self.qkv(x), "b n (qkv h d) -> qkv b h n d", qkv=3, h=self.num_heads)
        # Norms come first: their weights would scale both features of a rotated pair differently.
        q = self.q_norm(q)
        k = self.k_norm(k)
        if rope is not None:
            q = apply_rope(q, rope)
            k = apply_rope(k, rope)
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
        self.score = make_score(score, dim // num_heads)

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Compute keys and values (B, H, M, d) of a memory (B, M, D)."""
        projected = self.memory(memory)
        key, value = rearrange(projected, "b m (kv h d) -> kv b h m d", kv=2, h=self.num_heads)
        return key, value

    def forward(
        self, x: Tensor, memory: tuple[Tensor, Tensor], attn_mask: Tensor | None = None
    ) -> Tensor:
        """Apply cross-attention.

        Args:
            x: (B, N, D).
            memory: Keys and values of the memory, see `keys_and_values`.
            attn_mask: (B, 1, 1, M) bool. True at the real tokens of the memory.

        Returns:
            (B, N, D).
        """
        rate = self.dropout if self.training else 0.0
        out = attend(self._queries(x), *memory, attn_mask, score=self.score, dropout=rate)
        return self.proj(rearrange(out, "b h n d -> b n (h d)"))

    def weights(
        self, x: Tensor, memory: tuple[Tensor, Tensor], attn_mask: Tensor | None = None
    ) -> Tensor:
        """Return the attention weights (B, H, N, M). The arguments are those of `forward`."""
        return attention_weights(self._queries(x), memory[0], attn_mask, score=self.score)

    def _queries(self, x: Tensor) -> Tensor:
        return rearrange(self.query(x), "b n (h d) -> b h n d", h=self.num_heads)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    score: Score | ScoreKind = "scaled_dot",
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
        score: Score of a query and a key: a name (scaled_dot, dot or cosine) or a module of
            dxn.models.scores.
        dropout: Dropout probability of the attention weights.

    Returns:
        (..., M, e).

    Raises:
        ValueError: If dropout is outside [0, 1), or score is a name but has learned weights.
    """
    check_rate("dropout", dropout)
    measure = _as_score(score, query.shape[-1])
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        # The fused kernels require the dtype of the query, which is bf16 under autocast.
        attn_mask = attn_mask.to(query.dtype)
    if isinstance(measure, Additive) or _prefers_unfused(query, key):
        return drop(_weights(query, key, attn_mask, measure), dropout) @ value
    if isinstance(measure, ScaledDot):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout
        )
    # `sides` includes the scaling, so the kernel must not divide by sqrt(d) again.
    query, key = measure.sides(query, key)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, dropout_p=dropout, scale=1.0
    )


def attention_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    *,
    score: Score | ScoreKind = "scaled_dot",
) -> Tensor:
    """Return the weights (..., M, N) that `attend` applies to the values. Each row sums to 1."""
    return _weights(query, key, attn_mask, _as_score(score, query.shape[-1]))


def _weights(query: Tensor, key: Tensor, attn_mask: Tensor | None, measure: Score) -> Tensor:
    """Compute the attention weights without a fused kernel, which would not return them."""
    if isinstance(measure, Additive):
        scores = measure.scores(query, key)
    else:
        left, right = measure.sides(query, key)
        scores = left @ right.transpose(-2, -1)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # -inf gives a weight of exactly 0 in every dtype.
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1)


def _prefers_unfused(query: Tensor, key: Tensor) -> bool:
    on_cpu_in_bf16 = query.device.type == "cpu" and query.dtype == torch.bfloat16
    return on_cpu_in_bf16 and key.shape[-2] <= MAX_UNFUSED_KEYS


def _as_score(score: Score | ScoreKind, dim: int) -> Score:
    """Return the module of a score that was passed by name."""
    if not isinstance(score, str):
        return score
    if score in ("additive", "bilinear"):
        raise ValueError(
            f"score={score} has learned weights, so it cannot be passed by name: pass a module of "
            "dxn.models.scores"
        )
    # The factor of a cosine that was passed by name is not trained, because no optimizer has it.
    return make_score(score, dim).requires_grad_(False)


def _check_heads(dim: int, num_heads: int, dropout: float) -> None:
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f"dim must be a multiple of num_heads, got {dim} and {num_heads}")
    check_rate("attn_dropout", dropout)
