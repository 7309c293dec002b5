"""Attention to another sequence, as in the decoder of a transformer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from einops import rearrange
from torch import Tensor, nn

from dxn.core.dropout import Rate
from dxn.core.schema import checked
from dxn.models.attention import Group, Score, ScoreKind, attend, attention_weights, head_sizes


class CrossAttention(nn.Module):
    """Multi-head attention to another sequence, the memory (arXiv:1706.03762, section 3.2.3).

    The arguments are those of `Attention`, without norm and norm_all: queries and keys are not
    normalized.
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
        score: ScoreKind = "scaled_dot",
        score_scale: float | None = None,
        score_softcap: float | None = None,
    ):
        super().__init__()
        self.num_kv_heads, head_dim = head_sizes(dim, num_heads, num_kv_heads, head_dim)
        self.num_heads = num_heads
        self.dropout = dropout
        qkv_bias = bias if qkv_bias is None else qkv_bias
        # Two layers, because keys and values are computed only once per memory.
        self.query = nn.Linear(dim, num_heads * head_dim, bias=qkv_bias)
        self.memory = nn.Linear(dim, 2 * self.num_kv_heads * head_dim, bias=qkv_bias)
        self.proj = nn.Linear(num_heads * head_dim, dim, bias=bias)
        self.score = None
        if score != "scaled_dot" or score_scale is not None or score_softcap is not None:
            self.score = Score(score, head_dim, scale=score_scale, softcap=score_softcap)

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Compute keys and values (B, G, M, d) of a memory (B, M, D)."""
        projected = self.memory(memory)
        key, value = rearrange(projected, "b m (kv h d) -> kv b h m d", kv=2, h=self.num_kv_heads)
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
            if group.sequences is not None:
                out = group.sequences.attend_to_memory(q, key, value)
            else:
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
