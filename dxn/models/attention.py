"""Self-attention, based on the fused kernels of torch, and the scores of queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from einops import einsum
from torch import Tensor, nn

from dxn.core.dropout import Rate
from dxn.core.schema import checked
from dxn.models.positions import apply_rope

if TYPE_CHECKING:
    from dxn.models.decoding.decoder import KVCache
    from dxn.models.packing import Sequences

# In bf16 on a CPU, two matrix products are faster than the fused kernel up to this number of scores
# per head: 1024 queries and keys (measured by benchmarks/speed/attention.py).
MAX_UNFUSED = 1024**2
# In float32 with gradients, they are faster with AVX2, and the fused kernel is with AVX-512.
MAX_UNFUSED_FLOAT32 = 128**2 if torch.backends.cpu.get_cpu_capability() == "AVX2" else 0
ScoreKind = Literal["scaled_dot", "dot", "cosine", "additive", "bilinear"]


@dataclass(frozen=True, slots=True)
class Group:
    """Samples whose attention is computed together.

    Args:
        rows: Their rows in the matrix (T, D) of the tokens of all samples.
        samples: Their positions in the batch.
        shape: Number b of samples, and number n of tokens of the longest one.
        positions: (1 or b, n). Position of each token in its sequence.
        mask: (b, N) bool. True at the real tokens of the whole sequences. None: all tokens are
            real, and none of them is in a cache.
        cells: Rows and columns of the tokens in the caches, as an index of a tensor (b, C, ...).
            None: the caches have no tokens yet.
        index: (b n,). Row of each token, counted from the first row. Padding has the row of the
            last token of the sample. None: all samples have n tokens.
        real: (t,). Index of each row among the b n tokens. None: all samples have n tokens.
        attn_mask: Attention mask, see `dxn.models.attention.attend`.
        causal: Each token attends only to itself and the tokens before it.
        rope: Factors of the rotary positions, see `dxn.models.positions.rope_factors`.
        sequences: The samples as parts of one sequence: b is 1, and n is T. Default: each sample is
            a sequence of its own.
    """

    rows: slice
    samples: slice
    shape: Sequence[int]
    positions: Tensor
    mask: Tensor | None = None
    cells: tuple[Tensor, Tensor] | tuple[slice, slice] | None = None
    index: Tensor | None = None
    real: Tensor | None = None
    attn_mask: Tensor | None = None
    causal: bool = False
    rope: tuple[Tensor, Tensor] | None = None
    sequences: Sequences | None = None

    def pad(self, x: Tensor) -> Tensor:
        """Return the tokens (b, n, K) of this group. x (T, K) has the tokens of all samples."""
        if self.index is not None:
            x = Pad.apply(x[self.rows], self.index, self.real)
        else:
            x = x[self.rows]
        return x.unflatten(0, self.shape)

    def unpad(self, x: Tensor) -> Tensor:
        """Return the rows (t, K) of the real tokens of x (b, n, K)."""
        x = x.flatten(0, 1)
        if self.index is None:
            return x
        return Unpad.apply(x, self.real)


class Attention(nn.Module):
    """Multi-head self-attention (arXiv:1706.03762, section 3.2).

    Args:
        dim: Width D of a token.
        num_heads: Number of attention heads H.
        num_kv_heads: Number of heads G of the keys and values, each for H / G heads of the queries
            (arXiv:2305.13245). Default: H.
        head_dim: Width d of a head. Default: D / H.
        dropout: Dropout probability of the attention weights.
        bias: Add a bias to the output layer.
        qkv_bias: Add a bias to the layer of queries, keys and values. Default: bias.
        norm: Creates a norm of a given width for the queries and keys. Default: no norm.
        norm_all: Normalize all heads together, instead of each one.
        score: Kind of the attention score.
        score_scale: Factor of the dot product. Default: 1 / sqrt(d).
        score_softcap: Limit of the scores. Default: no limit.
    """

    @checked
    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        dropout: Rate = 0.0,
        bias: bool = True,
        qkv_bias: bool | None = None,
        norm: Callable[[int], nn.Module] | None = None,
        norm_all: bool = False,
        score: ScoreKind = "scaled_dot",
        score_scale: float | None = None,
        score_softcap: float | None = None,
    ):
        super().__init__()
        kv_heads, head_dim = head_sizes(dim, num_heads, num_kv_heads, head_dim)
        self.num_heads = num_heads
        self.dropout = dropout
        # Heads of the queries, keys and values. One matrix product for them is faster than three.
        self.heads = num_heads, kv_heads, kv_heads
        self.qkv = nn.Linear(
            dim, sum(self.heads) * head_dim, bias=bias if qkv_bias is None else qkv_bias
        )
        self.proj = nn.Linear(num_heads * head_dim, dim, bias=bias)
        # QK norm bounds the scores, which stabilizes training (arXiv:2302.05442, section 2).
        self.norm_all = norm_all
        q_width, k_width = (n * head_dim if norm_all else head_dim for n in (num_heads, kv_heads))
        self.q_norm = norm(q_width) if norm is not None else nn.Identity()
        self.k_norm = norm(k_width) if norm is not None else nn.Identity()
        self.score: Score | None = None
        if score != "scaled_dot" or score_scale is not None or score_softcap is not None:
            self.score = Score(score, head_dim, scale=score_scale, softcap=score_softcap)

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
            if cache is not None:
                # After the rotation, because the position of a token does not change.
                k, v = cache.extend(k, v, group)
            if group.sequences is not None:
                out = group.sequences.attend(q, k, v)
            else:
                out = attend(
                    q, k, v, group.attn_mask, causal=group.causal, score=self.score, dropout=rate
                )
            parts.append(group.unpad(out.transpose(1, 2).flatten(2)))
        return self.proj(parts[0] if len(parts) == 1 else torch.cat(parts))

    def weights(self, x: Tensor, group: Group) -> Tensor:
        """Return the attention weights (B, H, N, N) of the tokens x (B N, D) of one group."""
        q, k, _ = self._split(self.qkv(x), group)
        return attention_weights(q, k, group.attn_mask, causal=group.causal, score=self.score)

    def _split(self, qkv: Tensor, group: Group) -> tuple[Tensor, Tensor, Tensor]:
        """Return the normalized and rotated queries (b, H, n, d) and keys, and the values.

        Keys and values are (b, G, n, d).
        """
        # Methods of tensors instead of einops: at a few tokens, starting the operations of a block
        # takes most of the time.
        parts = group.pad(qkv).unflatten(-1, (sum(self.heads), -1)).transpose(1, 2)
        q, k, v = parts.split_with_sizes(self.heads, 1)
        # Norms come first: their weights would scale both features of a rotated pair differently.
        q = over_heads(self.q_norm, q) if self.norm_all else self.q_norm(q)
        k = over_heads(self.k_norm, k) if self.norm_all else self.k_norm(k)
        if group.rope is not None:
            q = apply_rope(q, group.rope)
            k = apply_rope(k, group.rope)
        return q, k, v


def over_heads(norm: nn.Module, x: Tensor) -> Tensor:
    """Normalize all heads (b, H, n, d) of a token together."""
    joined = norm(x.transpose(1, 2).flatten(2))
    return joined.unflatten(2, (x.shape[1], x.shape[3])).transpose(1, 2)


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
        query: (..., M, d), or (B, H, M, d) with grouped heads.
        key: (..., N, d), or (B, G, N, d), each head for H / G heads of the queries.
        value: (..., N, e), or (B, G, N, e).
        attn_mask: Broadcastable to (..., M, N). Bool, True where attention is allowed, or float,
            added to the scores.
        causal: Each query attends only to its own position and those before it. M must be N, and
            attn_mask None.
        score: Score of a query and a key. Default: the scaled dot product.
        dropout: Dropout probability of the attention weights.

    Returns:
        (..., M, e).
    """
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        # The fused kernels require the dtype of the query, which is bf16 under autocast.
        attn_mask = attn_mask.to(query.dtype)
    group_size = None
    if query.ndim == 4 and query.shape[1] != key.shape[1]:
        if query.shape[2] == 1:
            return _attend_once(query, key, value, attn_mask, score=score, dropout=dropout)
        group_size = query.shape[1] // key.shape[1]
    prefers_unfused = False
    if query.device.type == "cpu":
        is_bf16 = query.dtype == torch.bfloat16
        most = MAX_UNFUSED if is_bf16 else MAX_UNFUSED_FLOAT32
        num_scores = query.shape[-2] * key.shape[-2]
        prefers_unfused = (is_bf16 or query.requires_grad) and num_scores <= most
    if prefers_unfused or (score is not None and not score.is_fused):
        weights = attention_weights(query, key, attn_mask, causal=causal, score=score)
        if group_size is not None:
            value = value.repeat_interleave(group_size, 1)
        return (F.dropout(weights, dropout) if dropout > 0 else weights) @ value
    scale = None
    if score is not None:
        # `sides` includes the scaling, so the kernel must not divide by sqrt(d) again.
        query, key = score.sides(query, key)
        scale = 1.0
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attn_mask,
        dropout_p=dropout,
        is_causal=causal,
        scale=scale,
        enable_gqa=group_size is not None,
    )


def _attend_once(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, **options: Any
) -> Tensor:
    """Apply `attend` to one query with grouped heads, such as that of a new token.

    The heads of a group become the queries of one product, so that each key is read only once.
    """
    shape = key.shape[0], key.shape[1], query.shape[1] // key.shape[1]
    if attn_mask is not None and attn_mask.shape[1] > 1:  # one mask per head, as with ALiBi
        attn_mask = attn_mask.reshape(attn_mask.shape[0], *shape[1:], -1)
    out = attend(query.reshape(*shape, -1), key, value, attn_mask, **options)
    return out.reshape(*query.shape[:3], -1)


def attention_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    *,
    causal: bool = False,
    score: Score | None = None,
) -> Tensor:
    """Return the weights (..., M, N) that `attend` applies to the values. Each row sums to 1.

    The arguments are those of `attend`. A fused kernel would not return the weights.
    """
    if query.ndim == 4 and query.shape[1] != key.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    if score is not None and score.kind == "additive":
        scores = score.additive(query, key)
    else:
        scale = query.shape[-1] ** -0.5
        if score is not None:
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
    if score is not None and score.softcap is not None:
        scores = (scores / score.softcap).tanh() * score.softcap
    if causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    # In place, because the scores are large, and nothing else refers to them.
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # -inf gives a weight of exactly 0 in every dtype.
        scores.masked_fill_(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores += attn_mask
    return scores.softmax(-1)


def head_sizes(
    dim: int, num_heads: int, num_kv_heads: int | None, head_dim: int | None
) -> tuple[int, int]:
    """Return the number of heads of the keys and values, and the width of a head.

    Raises:
        ValueError: If an attention cannot have these sizes.
    """
    if num_heads < 1 or (head_dim is None and dim % num_heads):
        raise ValueError(
            f"dim must be a multiple of num_heads, got {dim} and {num_heads}: change one of them, "
            "or set head_dim"
        )
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(
            f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}"
        )
    return num_kv_heads, dim // num_heads if head_dim is None else head_dim


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
        scale: Factor instead of 1 / sqrt(d) of a scaled_dot.
        softcap: Limit c of the scores s, which become c tanh(s / c). Default: no limit.

    Raises:
        ValueError: If kind is not a ScoreKind, or has no scale.
    """

    @checked
    def __init__(
        self,
        kind: ScoreKind,
        dim: int,
        *,
        scale: float | None = None,
        softcap: float | None = None,
    ):
        super().__init__()
        if scale is not None and kind != "scaled_dot":
            raise ValueError(f"score_scale needs score=scaled_dot, got {kind}: remove one of them")
        self.kind: ScoreKind = kind
        self.scale = dim**-0.5 if scale is None else scale
        self.softcap = softcap
        # Whether a fused kernel can compute it.
        self.is_fused = kind != "additive" and softcap is None
        if kind == "cosine":
            # Not (), because a single number cannot be divided over processes (trainer.shard).
            self.factor = nn.Parameter(torch.tensor([10.0]))
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
            return query * self.scale, key
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
