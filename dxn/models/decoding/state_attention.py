"""What the recurrent decoder reads from the memory: attention, and the ends of the encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dxn.models.attention import Score, ScoreKind
from dxn.models.decoding.cache import Memory


class StateAttention(nn.Module):
    """Attention of one state to the memory, with keys that are computed once for all steps.

    See arXiv:1409.0473, appendix A.1.2.

    Args:
        dim: Width D of the state and of the memory.
        score: Kind of the attention score.
        gate: Create the layer of `apply_gate`.
    """

    def __init__(self, dim: int, *, score: ScoreKind, gate: bool):
        super().__init__()
        self.score = Score(score, dim)
        self.gate = nn.Linear(dim, 1) if gate else None

    def keys(self, x: Tensor) -> Tensor:
        """Compute the part (B, M, D) of the score that depends only on the memory x (B, M, D)."""
        if self.score.kind == "additive":
            return self.score.of_key(x)
        return self.score.sides(x, x)[1]

    def forward(self, state: Tensor, keys: Tensor, attn_mask: Tensor | None) -> Tensor:
        """Compute the attention weights (B, K, M) of K states of each sample.

        Args:
            state: (B K, D).
            keys: (B, M, D). Keys of the memory, see `keys`.
            attn_mask: (B, 1, M) bool. True at real tokens.
        """
        query = state.view(len(keys), -1, state.shape[-1])
        if self.score.kind == "additive":
            hidden = (self.score.of_query(query)[:, :, None] + keys[:, None]).tanh()
            scores = hidden @ self.score.weight.to(hidden.dtype)
        else:
            scores = self.score.sides(query, query)[0] @ keys.mT
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        return scores.softmax(-1)

    def apply_gate(self, weights: Tensor, state: Tensor) -> Tensor:
        """Multiply weights (B, K, M) by the gate, a factor that depends on the state (B K, D)."""
        if self.gate is None:
            return weights
        return weights * self.gate(state).sigmoid().view(*weights.shape[:2], 1)


def both_ends(memory: Memory) -> Tensor:
    """Return the final states (B, D) of both directions of a bidirectional encoder.

    The forward direction, the first half of the features, ends at the last real token. The backward
    direction, the second half, ends at the first real token.
    """
    x = memory.x
    rows = torch.arange(len(x), device=x.device)
    if memory.attn_mask is None:
        first = torch.zeros_like(rows)
        last = torch.full_like(rows, x.shape[1] - 1)
    else:
        real = memory.attn_mask[:, 0, 0].int()
        first = real.argmax(1)
        last = x.shape[1] - 1 - real.flip(1).argmax(1)  # argmax returns the first maximum
    half = x.shape[-1] // 2
    return torch.cat([x[rows, last, :half], x[rows, first, half:]], -1)
