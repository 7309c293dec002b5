"""What stood in the transformer's place before it: a recurrent encoder, and a decoder with and without attention."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dxn.models.attention import Memory, token_index
from dxn.models.dropout import Dropout
from dxn.models.scores import Additive, ScoreKind, make_score
from dxn.tokens import Tokens

CellKind = Literal["gru", "lstm"]
Cell = nn.GRU | nn.LSTM
CELLS: dict[str, type[nn.GRU] | type[nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}
State = tuple[Tensor, ...]  # of one layer, (B, D) each: a GRU's h; an LSTM's h and c


class Recurrent(nn.Module):
    """A recurrent encoder in place of Backbone, Tokens to Tokens: each token reads those before it, and after it.

    The columns are one sequence in their order, whatever stands between two real tokens. Padded columns are zero.

    Args:
        dim: width D of a token.
        cell: gru (arXiv:1406.1078, 2.3) or lstm.
        depth: number of layers.
        bidirectional: half of a token is of those up to it, half of those from it on (arXiv:1409.0473, 3.2).
        dropout: of what each layer gives, in training (arXiv:1409.2329, 3.1).
    """

    blocks: Any  # nn.ModuleList of Cell

    def __init__(
        self,
        dim: int = 128,
        *,
        cell: CellKind = "gru",
        depth: int = 1,
        bidirectional: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        _check(cell, depth)
        if bidirectional and dim % 2:
            raise ValueError(f"two directions share dim: it must be even, got {dim}")
        self.dim, self.causal = dim, not bidirectional
        width = dim // 2 if bidirectional else dim
        self.blocks = nn.ModuleList(
            CELLS[cell](dim, width, batch_first=True, bidirectional=bidirectional) for _ in range(depth)
        )
        self.dropout = Dropout(dropout)
        self.norm = nn.Identity()  # what a transformer's last norm is to the fusions

    def forward(self, tokens: Tokens) -> Tokens:
        """Tokens (B, N, D) to Tokens of the same columns."""
        return tokens.with_x(self.run(tokens.x, tokens.mask))

    def run(self, x: Tensor, mask: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """The layers start:stop alone: x (B, N, D) and mask (B, N) to (B, N, D), zero at padding."""
        layers = list(self.blocks)[start:stop]
        if bool(mask.all()):
            for layer in layers:
                x = self.dropout(layer(x)[0])
            return x
        packed = pack(x, mask)
        for layer in layers:
            packed = layer(packed)[0]
            packed = packed._replace(data=self.dropout(packed.data))
        return unpack(packed, mask)


def pack(x: Tensor, mask: Tensor) -> PackedSequence:
    """The real tokens alone of x (B, N, D) and mask (B, N), in their order; a sample that has none lends one."""
    lengths = mask.sum(1).clamp(min=1)
    in_front = torch.arange(mask.shape[1], device=mask.device) < mask.sum(1, keepdim=True)
    if not torch.equal(mask, in_front):
        order = mask.int().argsort(dim=1, descending=True, stable=True)
        x = x.gather(1, repeat(order, "b n -> b n d", d=x.shape[-1]))
    return pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)


def unpack(packed: PackedSequence, mask: Tensor) -> Tensor:
    """Back to the columns of mask (B, N) that `pack` took them from: (B, N, D), zero at padding."""
    x, _ = pad_packed_sequence(packed, batch_first=True)
    x = x.gather(1, repeat(token_index(mask), "b n -> b n d", d=x.shape[-1]))
    return x.masked_fill(~mask[..., None], 0)


class Carried:
    """What RecurrentDecoder has worked out already: the state of each layer, and what the memory was made into."""

    def __init__(self):
        self.states: list[State] = []
        self.memory: tuple[Tensor, ...] = ()

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch (b,), some of them twice or not at all: beams."""
        self.states = [tuple(part[rows] for part in state) for state in self.states]
        self.memory = tuple(part[rows] for part in self.memory)


class RecurrentDecoder(nn.Module):
    """A recurrent decoder in place of Decoder: guesses each next token from its state, which is of those before it.

    With attention the state before each step looks at all of the memory (arXiv:1409.0473, 3.1). Without, all it
    knows of the memory is one vector, the state of a recurrent encoder after its last step (arXiv:1406.1078, 2.2):
    of the last real column the first dim / 2 numbers and of the first one the others, where two directions end.
    That vector gives the first state; without attention each step reads it too, in place of what it looked at.
    What comes next is read from state, token and context side by side (arXiv:1502.03044, eq. 7), and compared with
    the vocabulary's vectors.

    Args:
        dim: width D of a token, of the memory's and of the state.
        vocab_size: tokens V that it may say.
        cell: gru or lstm.
        depth: number of layers; the first one looks, the others follow it (arXiv:1609.08144, 3).
        attention: look at the memory, in place of one vector.
        score: how alike a state and a column are: additive (a small network), bilinear, dot, scaled_dot or cosine.
        gate: the state decides how much of what it looked at counts (arXiv:1502.03044, 4.2.1).
        max_len: tokens that it can be given or say, of which one is the beginning.
        dropout: of the embedded tokens and of what each layer gives, in training.
    """

    blocks: Any  # nn.ModuleList of Cell

    def __init__(
        self,
        dim: int = 128,
        *,
        vocab_size: int,
        cell: CellKind = "gru",
        depth: int = 1,
        attention: bool = True,
        score: ScoreKind = "additive",
        gate: bool = False,
        max_len: int = 256,
        dropout: float = 0.0,
    ):
        super().__init__()
        _check(cell, depth)
        if gate and not attention:
            raise ValueError("gate scales what attention reads: it needs attention=true")
        self.dim, self.max_len = dim, max_len
        self.table = nn.Embedding(vocab_size, dim)
        nn.init.normal_(self.table.weight, std=dim**-0.5)
        self.blocks = nn.ModuleList(CELLS[cell](dim if i else 2 * dim, dim, batch_first=True) for i in range(depth))
        self.parts = 2 if cell == "lstm" else 1  # of a state
        self.start = nn.Linear(dim, depth * self.parts * dim)
        self.look = Look(dim, score=score, gate=gate) if attention else None
        self.out = nn.Linear(3 * dim, dim)
        self.dropout = Dropout(dropout)

    def share(self, table: nn.Embedding) -> None:
        """Use this table in place of its own; it stays a part of whom it belongs to, and is saved there alone."""
        del self.table
        self.__dict__["table"] = table

    def forward(
        self, ids: Tensor, mask: Tensor, memory: Memory | None = None, caches: Sequence[Carried] | None = None
    ) -> Tensor:
        """ids (B, n), the newest of the sequence that mask (B, N) is of, to logits (B, n, V) of what comes next.

        Without caches n = N. ValueError beyond max_len, and without a memory.
        """
        return self.states(ids, mask, memory, caches) @ self.table.weight.T

    def states(
        self, ids: Tensor, mask: Tensor, memory: Memory | None = None, caches: Sequence[Carried] | None = None
    ) -> Tensor:
        """As forward, but to what the table's vectors are compared with (B, n, D)."""
        embedded, states, context, _ = self._steps(ids, mask, memory, caches)
        return self.out(torch.cat([states, embedded, context], -1))

    def looks(self, ids: Tensor, mask: Tensor, memory: Memory) -> Tensor:
        """(B, 1, 1, n, M), as a block of one head: how much of each column of the memory each step reads, before the
        gate; rows sum to 1."""
        if self.look is None:
            raise ValueError("without attention there is nothing that it looks at")
        return rearrange(self._steps(ids, mask, memory, None)[3], "b n m -> b 1 1 n m")

    def caches(self) -> list[Carried]:
        """An empty one, for all layers."""
        return [Carried()]

    def _steps(
        self, ids: Tensor, mask: Tensor, memory: Memory | None, caches: Sequence[Carried] | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Embedded tokens, states and contexts (B, n, D) of each step, and what it looked at (B, n, M or 0)."""
        if memory is None:
            raise ValueError("a recurrent decoder needs a memory to start from")
        if mask.shape[1] > self.max_len:
            raise ValueError(f"this decoder reaches {self.max_len} tokens, got {mask.shape[1]}: raise max_len")
        carried = caches[0] if caches is not None else Carried()
        if not carried.states:
            carried.states, carried.memory = self._begin(memory)
        embedded = self.dropout(self.table(ids) * self.dim**0.5)
        if self.look is None:
            context = repeat(carried.memory[0], "b d -> b n d", n=ids.shape[1])
            looked = context[..., :0]
            x, carried.states[0] = follow(self.blocks[0], torch.cat([embedded, context], -1), carried.states[0])
        else:
            x, context, looked, carried.states[0] = self._read(self.look, embedded, memory, carried)
        x = self.dropout(x)
        for i, block in enumerate(self.blocks[1:], 1):
            x, carried.states[i] = follow(block, x, carried.states[i])
            x = self.dropout(x)
        return embedded, x, context, looked

    def _begin(self, memory: Memory) -> tuple[list[State], tuple[Tensor, ...]]:
        """The first state of each layer, and of the memory what every step needs."""
        ends = both_ends(memory)
        first = rearrange(self.start(ends).tanh(), "b (l p d) -> l p b d", p=self.parts, d=self.dim).contiguous()
        states = [tuple(layer) for layer in first]
        if self.look is None:
            return states, (ends,)
        # The context enters the cell linearly: the columns go through that matrix once, not their mean at each step.
        return states, (self.look.keys(memory.x), F.linear(memory.x, self.blocks[0].weight_ih_l0[:, self.dim :]))

    def _read(
        self, look: "Look", embedded: Tensor, memory: Memory, carried: Carried
    ) -> tuple[Tensor, Tensor, Tensor, State]:
        """The first layer, step by step: states and contexts (B, n, D), looks (B, n, M) and the state after them.

        All that does not hang on the state before is worked out for all steps at once, before the loop or after it.
        """
        block, (keys, values) = self.blocks[0], carried.memory
        bias = None if memory.bias is None else memory.bias[:, 0]
        inputs = F.linear(embedded, block.weight_ih_l0[:, : self.dim], block.bias_ih_l0)
        state = tuple(part.to(inputs.dtype) for part in carried.states[0])
        states, read, looked = [], [], []
        for given in inputs.unbind(1):  # not [:, t], whose gradient would be a tensor of all steps at each step
            weights = look(state[0], keys, bias)
            counted = look.gated(weights, state[0])
            state = step(block, given + (counted @ values)[:, 0], state)
            states.append(state[0])
            read.append(counted)
            looked.append(weights)
        return torch.stack(states, 1), torch.cat(read, 1) @ memory.x, torch.cat(looked, 1), state


class Look(nn.Module):
    """The attention of one state at a time, the keys worked out once (arXiv:1409.0473, A.1.2)."""

    def __init__(self, dim: int, *, score: ScoreKind, gate: bool):
        super().__init__()
        self.score = make_score(score, dim)
        self.gate = nn.Linear(dim, 1) if gate else None

    def keys(self, x: Tensor) -> Tensor:
        """The columns' side of the score: x (B, M, D) to (B, M, D)."""
        return self.score.of_key(x) if isinstance(self.score, Additive) else self.score.sides(x, x)[1]

    def forward(self, state: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
        """state (B, D), keys (B, M, D) and bias (B, 1, M) bool to weights (B, 1, M)."""
        query = state[:, None]
        if isinstance(self.score, Additive):
            hidden = (self.score.of_query(query) + keys).tanh()
            scores = (hidden @ self.score.weight.to(hidden.dtype))[:, None]
        else:
            scores = self.score.sides(query, query)[0] @ keys.mT
        if bias is not None:
            scores = scores.masked_fill(~bias, -torch.inf)
        return scores.softmax(-1)

    def gated(self, weights: Tensor, state: Tensor) -> Tensor:
        """weights (B, 1, M) times the share, 0 to 1, that the state (B, D) lets through."""
        return weights if self.gate is None else weights * self.gate(state).sigmoid()[:, None]


def both_ends(memory: Memory) -> Tensor:
    """(B, D): the first half of the last real column and the second half of the first one."""
    x, rows = memory.x, torch.arange(len(memory.x), device=memory.x.device)
    if memory.bias is None:
        first, last = torch.zeros_like(rows), torch.full_like(rows, x.shape[1] - 1)
    else:
        real = memory.bias[:, 0, 0].int()
        first, last = real.argmax(1), x.shape[1] - 1 - real.flip(1).argmax(1)
    half = x.shape[-1] // 2
    return torch.cat([x[rows, last, :half], x[rows, first, half:]], -1)


def step(block: Any, given: Tensor, state: State) -> State:
    """The next state (B, D); given: what token and context add to the gates, (B, 3 D) of a GRU, (B, 4 D) of an LSTM."""
    own = F.linear(state[0], block.weight_hh_l0, block.bias_hh_l0)
    if isinstance(block, nn.LSTM):
        i, f, g, o = (given + own).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    size = state[0].shape[-1]
    r, z = (given[:, : 2 * size] + own[:, : 2 * size]).sigmoid().chunk(2, -1)
    n = torch.addcmul(given[:, 2 * size :], r, own[:, 2 * size :]).tanh()
    return (torch.lerp(n, state[0], z),)


def follow(block: Cell, x: Tensor, state: State) -> tuple[Tensor, State]:
    """A layer over x (B, n, E) from a state on: its states (B, n, D), and the one after the last step."""
    before = tuple(part[None].to(x.dtype) for part in state)
    if isinstance(block, nn.LSTM):
        out, after = block(x, before)
        return out, tuple(part[0] for part in after)
    out, after = block(x, before[0])
    return out, (after[0],)


def _check(cell: str, depth: int) -> None:
    if cell not in CELLS:
        raise ValueError(f"cell must be {' or '.join(CELLS)}, got {cell!r}")
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
