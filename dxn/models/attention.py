"""Self-attention on torch's fused kernels, with rotary or ALiBi positions on request."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.models.dropout import drop
from dxn.models.scores import Additive, ScaledDot, Score, ScoreKind, make_score

WRITTEN_OUT = 1024  # keys up to which bf16 scores are held in memory on a CPU
BackbonePosition = Literal["none", "rotary", "alibi"]


@dataclass(frozen=True, slots=True)
class Memory:
    """Another sequence to read: x (B, M, D), and bias (B, 1, 1, M), True at its real tokens, None where all are."""

    x: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, x: Tensor, mask: Tensor) -> "Memory":
        """x (B, M, D) and mask (B, M); a sample without a real token reads its padding, no softmax is left empty."""
        if bool(mask.all()):
            return cls(x, None)
        return cls(x, rearrange(mask | ~mask.any(1, keepdim=True), "b m -> b 1 1 m"))

    def select(self, rows: Tensor) -> "Memory":
        """The memory of these rows of the batch (b,)."""
        return Memory(self.x[rows], None if self.bias is None else self.bias[rows])


class Cache:
    """What one block has worked out already: keys and values of the tokens before, and of the memory it reads.

    With it each new token is worked out alone, in place of the whole sequence again.
    """

    def __init__(self):
        self.own: tuple[Tensor, Tensor] | None = None
        self.memory: tuple[Tensor, Tensor] | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, n, d) of new tokens, put behind those of all before: (B, H, N, d) both."""
        if self.own is not None:
            key, value = torch.cat([self.own[0], key], 2), torch.cat([self.own[1], value], 2)
        self.own = key, value
        return self.own

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch (b,), some of them twice or not at all: beams."""
        if self.own is not None:
            self.own = self.own[0][rows], self.own[1][rows]
        if self.memory is not None:
            self.memory = self.memory[0][rows], self.memory[1][rows]


class Attention(nn.Module):
    """Every token reads every real token of its own sample (arXiv:1706.03762, 3.2)."""

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
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"dim must be a multiple of num_heads, got {dim} and {num_heads}")
        if not 0 <= dropout < 1:
            raise ValueError(f"attn_dropout must be at least 0 and under 1, got {dropout}")
        self.num_heads, self.dropout = num_heads, dropout
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.proj = nn.Linear(dim, dim, bias=bias)
        # Of each head's queries and keys (arXiv:2302.05442, 2).
        self.q_norm = norm(dim // num_heads) if norm is not None else nn.Identity()
        self.k_norm = norm(dim // num_heads) if norm is not None else nn.Identity()
        self.score = make_score(score, dim // num_heads)

    def forward(
        self, x: Tensor, bias: Tensor | None = None, rotation: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """x (B, N, D) to (B, N, D); bias (B, H or 1, N or 1, N) bool or added to the scores.

        With a cache x holds new tokens (B, n, D), which read the cached ones too: bias (B, H or 1, n, N).
        """
        q, k, v = self._sides(x, rotation)
        if cache is not None:
            k, v = cache.extend(k, v)
        out = attend(q, k, v, bias, score=self.score, dropout=self.dropout if self.training else 0.0)
        return self.proj(rearrange(out, "b h n d -> b n (h d)"))

    def weights(self, x: Tensor, bias: Tensor | None = None, rotation: Tensor | None = None) -> Tensor:
        """How much each token (B, H, N, .) reads of each (., N), the heads apart; arguments as in forward."""
        q, k, _ = self._sides(x, rotation)
        return attention_weights(q, k, bias, score=self.score)

    def _sides(self, x: Tensor, rotation: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, N, d), normed and turned."""
        q, k, v = rearrange(self.qkv(x), "b n (qkv h d) -> qkv b h n d", qkv=3, h=self.num_heads)
        q, k = self.q_norm(q), self.k_norm(k)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        return q, k, v


class CrossAttention(nn.Module):
    """Every token reads every real token of another sequence, the memory (arXiv:1706.03762, 3.2.3)."""

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
        self.num_heads, self.dropout = num_heads, dropout
        self.query = nn.Linear(dim, dim, bias=bias)
        self.memory = nn.Linear(dim, 2 * dim, bias=bias)
        self.proj = nn.Linear(dim, dim, bias=bias)
        self.score = make_score(score, dim // num_heads)

    def remember(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, M, d) of a memory (B, M, D)."""
        key, value = rearrange(self.memory(memory), "b m (kv h d) -> kv b h m d", kv=2, h=self.num_heads)
        return key, value

    def forward(self, x: Tensor, remembered: tuple[Tensor, Tensor], bias: Tensor | None = None) -> Tensor:
        """x (B, N, D) to (B, N, D); bias (B, 1, 1, M) bool, True at the memory's real tokens."""
        q = rearrange(self.query(x), "b n (h d) -> b h n d", h=self.num_heads)
        out = attend(q, *remembered, bias, score=self.score, dropout=self.dropout if self.training else 0.0)
        return self.proj(rearrange(out, "b h n d -> b n (h d)"))

    def weights(self, x: Tensor, remembered: tuple[Tensor, Tensor], bias: Tensor | None = None) -> Tensor:
        """How much each token (B, H, N, .) reads of each of the memory (., M), the heads apart; as in forward."""
        q = rearrange(self.query(x), "b n (h d) -> b h n d", h=self.num_heads)
        return attention_weights(q, remembered[0], bias, score=self.score)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    *,
    score: Score | ScoreKind = "scaled_dot",
    dropout: float = 0.0,
) -> Tensor:
    """What a soft database answers: for each query the values, averaged by softmax(score(query, key) + bias).

    query (..., M, d), key (..., N, d) and value (..., N, e) to (..., M, e), whatever M and N; bias broadcasts to
    (..., M, N): bool, True where a key may be read, or a number added to the score. score: how alike a query and
    a key are, by name (scaled_dot, dot and cosine, which learn nothing here) or as one of dxn.models.scores.
    With the default it is arXiv:1706.03762, eq. 1. ValueError for a dropout outside [0, 1).
    """
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and under 1, got {dropout}")
    measure = _score(score, query.shape[-1])
    if bias is not None and bias.dtype != torch.bool:
        bias = bias.to(query.dtype)
    slow = query.device.type == "cpu" and query.dtype == torch.bfloat16 and key.shape[-2] <= WRITTEN_OUT
    if isinstance(measure, Additive) or slow:
        # On a CPU in bf16 two plain products beat torch's fused kernel: benchmarks/attention.py
        return drop(_weights(query, key, bias, measure), dropout) @ value
    if isinstance(measure, ScaledDot):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
    query, key = measure.sides(query, key)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout, scale=1.0)


def attention_weights(
    query: Tensor, key: Tensor, bias: Tensor | None = None, *, score: Score | ScoreKind = "scaled_dot"
) -> Tensor:
    """The weights (..., M, N) that `attend` averages the values by: each row sums to 1."""
    return _weights(query, key, bias, _score(score, query.shape[-1]))


def _weights(query: Tensor, key: Tensor, bias: Tensor | None, measure: Score) -> Tensor:
    if isinstance(measure, Additive):
        scores = measure.scores(query, key)
    else:
        left, right = measure.sides(query, key)
        scores = left @ right.transpose(-2, -1)
    if bias is not None:
        scores = scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias
    return scores.softmax(-1)


def _score(score: Score | ScoreKind, dim: int) -> Score:
    if not isinstance(score, str):
        return score
    if score in ("additive", "bilinear"):
        raise ValueError(f"score={score} has weights to learn: give attend one of dxn.models.scores, not its name")
    return make_score(score, dim).requires_grad_(False)


def attention_bias(
    mask: Tensor, *, causal: bool = False, slopes: Tensor | None = None, window: int | None = None
) -> Tensor | None:
    """What to add to the scores, or which of them to allow (bool), for a mask (B, N) of real tokens.

    None where every token reads every other. slopes (H,) adds ALiBi's distances (arXiv:2108.12409), counted
    over real tokens; with a window a token reads those up to so many real tokens away (arXiv:2004.05150, 3.1).
    No row of a softmax is left empty (it would be NaN): a sample without a real token reads
    its padding, and causal padding reads itself.
    """
    n, distance = mask.shape[1], torch.zeros(())
    unhindered = not causal and window is None and bool(mask.all())
    allowed = rearrange(mask | ~mask.any(1, keepdim=True), "b n -> b 1 1 n")
    if causal:
        allowed = allowed & torch.ones(n, n, dtype=torch.bool, device=mask.device).tril()
    if slopes is not None or window is not None:
        at = token_index(mask)
        distance = rearrange((at[:, :, None] - at[:, None, :]).abs(), "b m n -> b 1 m n")
        if window is not None:
            allowed = allowed & (distance <= window)
    if causal or window is not None:
        allowed = allowed | torch.eye(n, dtype=torch.bool, device=mask.device)
    if slopes is None:
        return None if unhindered else allowed
    bias = -rearrange(slopes, "h -> 1 h 1 1") * distance
    return bias if unhindered else bias.masked_fill(~allowed, -torch.inf)


def token_index(mask: Tensor) -> Tensor:
    """(B, N): how many real tokens stand before each, so that padding shifts nothing."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def alibi_slopes(num_heads: int) -> Tensor:
    """(H,): 2^(-8/H), 2^(-16/H) ... (arXiv:2108.12409, 3)."""
    return 2 ** (-8 * torch.arange(1, num_heads + 1) / num_heads)


def rotation_angles(mask: Tensor, head_dim: int, base: float = 10000.0) -> Tensor:
    """(B, 1, N, head_dim / 2): the angle of each pair of features of each token (arXiv:2104.09864, 3.2.2)."""
    frequency = 1.0 / base ** (torch.arange(0, head_dim, 2, device=mask.device) / head_dim)
    return rearrange(token_index(mask)[..., None] * frequency, "b n f -> b 1 n f")


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn the pairs (x[i], x[i + d/2]) of x (B, H, N, d) by angles (B, 1, N, d/2)."""
    sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
