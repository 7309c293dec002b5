"""A recurrent decoder with optional attention, as a baseline for the transformer decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from einops import rearrange, repeat
from torch import Tensor, nn

from dxn.core.dropout import Dropout, Rate
from dxn.core.schema import checked
from dxn.models.attention import Score, ScoreKind
from dxn.models.decoding.decoder import Memory, StepDecoder
from dxn.models.decoding.output_layer import make_token_embedding
from dxn.models.recurrent import CELLS, CellKind, State, run_layer, step


@dataclass(slots=True)
class RecurrentCache:
    """The state of each layer after the previous tokens, and tensors computed from the memory."""

    states: list[State] = field(default_factory=list)
    memory: tuple[Tensor, ...] = ()

    def select(self, rows: Tensor, samples: Tensor | None = None) -> None:
        """Keep these rows (r,), and the memory of these samples (b,). Default: all samples."""
        self.states = [tuple(part[rows] for part in state) for state in self.states]
        if samples is not None:
            self.memory = tuple(part[samples] for part in self.memory)


class RecurrentDecoder(StepDecoder):
    """A recurrent decoder with the interface of `Decoder`.

    The initial state is computed from the final states of the encoder, see `both_ends`. With
    attention, the context of each step is a weighted mean of the memory, which depends on the
    previous state (arXiv:1409.0473, section 3.1). Without attention, the final states of the
    encoder are the context of all steps (arXiv:1406.1078, section 2.2).

    The output vector is a linear function of the state, the token and the context
    (arXiv:1502.03044, equation 7). The weights of the output layer are those of the input
    embedding.

    Args:
        dim: Width D of a token, of the memory and of the state.
        vocab_size: Vocabulary size V.
        cell: Recurrent cell: gru or lstm.
        depth: Number of layers. Only the first one reads the context (arXiv:1609.08144, section 3).
        attention: Attend to the memory. False: use only the final states of the encoder.
        score: Score of a state and a column of the memory: additive, bilinear, dot, scaled_dot or
            cosine.
        gate: Multiply the context by a factor between 0 and 1 that depends on the state
            (arXiv:1502.03044, section 4.2.1). It requires attention=true.
        max_len: Maximum number of tokens of a sequence, including the begin token.
        dropout: Dropout probability of the embedded tokens and of the output of each layer.
    """

    blocks: Any  # nn.ModuleList of Cell

    @checked
    def __init__(
        self,
        dim: int = 128,
        *,
        vocab_size: int,
        cell: CellKind = "gru",
        depth: Annotated[int, Ge(1)] = 1,
        attention: bool = True,
        score: ScoreKind = "additive",
        gate: bool = False,
        max_len: int = 256,
        dropout: Rate = 0.0,
    ):
        super().__init__(make_token_embedding(vocab_size, dim), max_len)
        if gate and not attention:
            raise ValueError(
                "gate=true scales the context of the attention, got attention=false: set "
                "attention=true, or leave out gate"
            )
        self.dim = dim
        # The first layer reads the token and the context, the others the output of the layer below.
        self.blocks = nn.ModuleList(
            CELLS[cell](dim if i else 2 * dim, dim, batch_first=True) for i in range(depth)
        )
        self.num_state_parts = 2 if cell == "lstm" else 1
        self.start = nn.Linear(dim, depth * self.num_state_parts * dim)
        self.look = StateAttention(dim, score=score, gate=gate) if attention else None
        self.out = nn.Linear(3 * dim, dim)
        self.dropout = Dropout(dropout)
        self.dropouts = nn.ModuleList(Dropout(dropout) for _ in self.blocks)

    def states(
        self,
        ids: Tensor,
        mask: Tensor,
        memory: Memory | None = None,
        caches: Sequence[RecurrentCache] | None = None,
        *,
        num_real: int | None = None,
    ) -> Tensor:
        """See `StepDecoder.states`.

        Raises:
            ValueError: If memory is None, or the sequence is longer than max_len.
        """
        return self._steps(ids, mask, memory, caches)[0]

    def cross_attention_weights(self, ids: Tensor, mask: Tensor, memory: Memory) -> Tensor:
        """Compute the attention weights of each step, before the gate. Each row sums to 1.

        Returns:
            (B, 1, 1, n, M), the shape of a `Decoder` with one block and one head.

        Raises:
            ValueError: If the decoder has no attention.
        """
        if self.look is None:
            raise ValueError("this decoder has no attention, so there are no weights to show")
        return rearrange(self._steps(ids, mask, memory, None)[1], "b n m -> b 1 1 n m")

    def caches(self) -> list[RecurrentCache]:
        """Create one empty cache for all layers."""
        return [RecurrentCache()]

    def next_states(
        self, ids: Tensor, mask: Tensor, memory: Memory | None, caches: Sequence[RecurrentCache]
    ) -> Tensor:
        """See `StepDecoder.next_states`."""
        n = ids.shape[1]
        real = mask[:, -n:]
        # A prompt is computed token by token, because padding must not change the state.
        x = self.states(ids[:, :1], mask[:, : mask.shape[1] - n + 1], memory, caches)[:, 0]
        for t in range(1, n):
            before = list(caches[0].states)
            prefix = mask[:, : mask.shape[1] - n + t + 1]
            new = self.states(ids[:, t : t + 1], prefix, memory, caches)[:, 0]
            keep = real[:, t, None]
            x = torch.where(keep, new, x)
            caches[0].states = [
                tuple(torch.where(keep, a, b) for a, b in zip(after, old, strict=True))
                for after, old in zip(caches[0].states, before, strict=True)
            ]
        return x

    def _steps(
        self,
        ids: Tensor,
        mask: Tensor,
        memory: Memory | None,
        caches: Sequence[RecurrentCache] | None,
    ) -> tuple[Tensor, Tensor]:
        """Run all layers. The arguments are those of `forward`.

        Returns:
            The output vectors (B, n, D) and the attention weights (B, n, M); (B, n, 0) without
            attention.
        """
        if memory is None:
            raise ValueError("a recurrent decoder needs a memory for its initial state, got None")
        self._check_length(mask.shape[1])
        cache = caches[0] if caches is not None else RecurrentCache()
        # An empty cache means that no token was computed before.
        if not cache.states:
            self._begin(memory, cache)
        embedded = self.dropout(self.embedding(ids) * self.dim**0.5)
        if self.look is None:
            context = repeat(
                cache.memory[0],
                "b d -> (b k) n d",
                k=len(ids) // len(cache.memory[0]),
                n=ids.shape[1],
            )
            weights = context[..., :0]  # there are no weights: (B, n, 0)
            x = torch.cat([embedded, context], -1)
            x, cache.states[0] = run_layer(self.blocks[0], x, cache.states[0])
        else:
            x, context, weights = self._attend_and_step(self.look, embedded, memory, cache)
        x = self.dropouts[0](x)
        for i, block in enumerate(self.blocks[1:], 1):
            x, cache.states[i] = run_layer(block, x, cache.states[i])
            x = self.dropouts[i](x)
        return self.out(torch.cat([x, embedded, context], -1)), weights

    def _begin(self, memory: Memory, cache: RecurrentCache) -> None:
        """Fill an empty cache with the initial states, and with tensors that all steps use."""
        ends = both_ends(memory)
        first = rearrange(
            self.start(ends).tanh(), "b (l p d) -> l p b d", p=self.num_state_parts, d=self.dim
        )
        cache.states = [tuple(layer) for layer in first.contiguous()]
        if self.look is None:
            cache.memory = (ends,)
            return
        # The cell multiplies the context, a weighted mean of the memory, by a matrix. Multiplying
        # the memory once is cheaper than multiplying its mean at each step.
        values = F.linear(memory.x, self.blocks[0].weight_ih_l0[:, self.dim :])
        cache.memory = (self.look.keys(memory.x), values)

    def _attend_and_step(
        self, look: StateAttention, embedded: Tensor, memory: Memory, cache: RecurrentCache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the first layer with attention.

        The loop contains only the computations that depend on the previous state.

        Returns:
            The states (B, n, D), the contexts (B, n, D) and the attention weights (B, n, M).
        """
        block = self.blocks[0]
        keys, values = cache.memory
        readable = None if memory.attn_mask is None else memory.attn_mask[:, 0]
        inputs = F.linear(embedded, block.weight_ih_l0[:, : self.dim], block.bias_ih_l0)
        state = tuple(part.to(inputs.dtype) for part in cache.states[0])
        states: list[Tensor] = []
        gated: list[Tensor] = []
        ungated: list[Tensor] = []
        # Not inputs[:, t], whose gradient is a tensor for all steps, so that the backward pass
        # would need quadratic time.
        for token in inputs.unbind(1):
            weights = look(state[0], keys, readable)
            scaled = look.apply_gate(weights, state[0])
            state = step(block, token + (scaled @ values).flatten(0, 1), state)
            states.append(state[0])
            gated.append(scaled)
            ungated.append(weights)
        cache.states[0] = state
        # The loop does not need the contexts, so one product computes them for all steps.
        weights = torch.stack([part.flatten(0, 1) for part in gated], 1)  # (R, n, M)
        context = weights.unflatten(0, (len(memory.x), -1)).flatten(1, 2) @ memory.x
        context = context.view(len(inputs), -1, context.shape[-1])
        return (
            torch.stack(states, 1),
            context,
            torch.stack([part.flatten(0, 1) for part in ungated], 1),
        )


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
