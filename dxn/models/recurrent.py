"""A recurrent encoder, as a baseline for the transformer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge
from einops import repeat
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dxn.core.dropout import Dropout, Keys, Rate
from dxn.core.parts import Recorded
from dxn.core.tokens import Tokens, is_full
from dxn.models.positions import token_index

CellKind = Literal["gru", "lstm"]
Cell = nn.GRU | nn.LSTM
CELLS: dict[str, type[nn.GRU] | type[nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}

# The state of one layer: tensors (B, D), (h,) of a GRU and (h, c) of an LSTM.
State = tuple[Tensor, ...]


class Recurrent(Recorded, nn.Module):
    """A recurrent encoder with the interface of `Backbone`.

    The real tokens of all inputs are one sequence. Padding between them is skipped, and is zero in
    the output.

    Args:
        dim: Width D of a token.
        cell: Recurrent cell: gru (arXiv:1406.1078, section 2.3) or lstm.
        depth: Number of layers.
        bidirectional: Read the sequence in both directions (arXiv:1409.0473, section 3.2). Each
            direction computes half of the features of a token.
        dropout: Dropout probability of the output of each layer (arXiv:1409.2329, section 3.1).
    """

    blocks: Any  # nn.ModuleList of Cell

    def __init__(
        self,
        dim: int = 128,
        *,
        cell: CellKind = "gru",
        depth: Annotated[int, Ge(1)] = 1,
        bidirectional: bool = True,
        dropout: Rate = 0.0,
    ):
        super().__init__()
        if bidirectional and dim % 2:
            raise ValueError(f"dim must be even for a bidirectional encoder, got {dim}")
        self.dim = dim
        self.causal = not bidirectional
        width = dim // 2 if bidirectional else dim
        self.blocks = nn.ModuleList(
            CELLS[cell](dim, width, batch_first=True, bidirectional=bidirectional)
            for _ in range(depth)
        )
        self.dropouts = nn.ModuleList(Dropout(dropout) for _ in range(depth))
        self.norm = nn.Identity()  # fusions access the final norm of a backbone

    def forward(self, tokens: Tokens) -> Tokens:
        """Apply all layers to Tokens (B, N, D)."""
        return tokens.with_x(self.run(tokens.x, tokens.mask, num_real=tokens.num_real))

    def run(
        self,
        x: Tensor,
        mask: Tensor,
        start: int = 0,
        stop: int | None = None,
        *,
        num_real: int | None = None,
    ) -> Tensor:
        """Apply the layers start:stop to x (B, N, D), see `Backbone.run`."""
        layers = list(self.blocks)[start:stop]
        dropouts = list(self.dropouts)[start:stop]
        # Packing is slow, and not necessary without padding.
        if is_full(mask, num_real):
            for layer, dropout in zip(layers, dropouts, strict=True):
                x = dropout(apply(layer, x)[0])
            return x
        packed = pack(x, mask)
        keys = None
        if self.training:
            columns = torch.arange(mask.numel(), device=mask.device).view(*mask.shape, 1)
            keys = Keys.of_mask(mask, pack(columns, mask).data[:, 0])
        for layer, dropout in zip(layers, dropouts, strict=True):
            packed = apply(layer, packed)[0]
            # packed.data contains only the real tokens.
            packed = packed._replace(data=dropout(packed.data, keys))
        return unpack(packed, mask)


def apply(layer: Cell, *args: Any) -> Any:
    """Call nn.GRU or nn.LSTM.

    Under autocast to bf16, an LSTM computes in float32 on a processor for which oneDNN has no LSTM
    in bf16.
    """
    has_kernels = not isinstance(layer, nn.LSTM) or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if has_kernels or not torch.is_autocast_enabled("cpu"):
        return layer(*args)
    with torch.autocast("cpu", enabled=False):
        return layer(*map(_to_float32, args))


def _to_float32(value: Any) -> Any:
    """Convert a tensor, a packed sequence, or a tuple of states."""
    # A packed sequence is a tuple, too.
    if isinstance(value, Tensor | PackedSequence):
        return value.float()
    return tuple(map(_to_float32, value))


def pack(x: Tensor, mask: Tensor) -> PackedSequence:
    """Pack the real tokens of x (B, N, D) with mask (B, N), in their order.

    torch does not support empty sequences, so one token of padding represents a sample without real
    tokens.
    """
    lengths = mask.sum(1).clamp(min=1)
    is_front = torch.arange(mask.shape[1], device=mask.device) < mask.sum(1, keepdim=True)
    # pack_padded_sequence requires that padding is at the end. The sort must be stable, so that it
    # keeps the order of the real tokens.
    if not torch.equal(mask, is_front):
        order = mask.int().argsort(dim=1, descending=True, stable=True)
        x = x.gather(1, repeat(order, "b n -> b n d", d=x.shape[-1]))
    return pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)


def unpack(packed: PackedSequence, mask: Tensor) -> Tensor:
    """Undo `pack`: return (B, N, D) with the tokens at the columns of mask (B, N)."""
    x, _ = pad_packed_sequence(packed, batch_first=True)
    x = x.gather(1, repeat(token_index(mask), "b n -> b n d", d=x.shape[-1]))
    return x.masked_fill(~mask[..., None], 0)


def step(block: Any, inputs: Tensor, state: State) -> State:
    """Compute the next state of one layer.

    It equals one step of nn.GRU or nn.LSTM, whose interface does not allow inputs that are already
    multiplied by the weights.

    Args:
        block: nn.GRU or nn.LSTM with one layer.
        inputs: Products of the inputs and their weights: (B, 3 D) for a GRU, (B, 4 D) for an LSTM.
        state: Previous state.
    """
    recurrent = F.linear(state[0], block.weight_hh_l0, block.bias_hh_l0)
    if isinstance(block, nn.LSTM):
        i, f, g, o = (inputs + recurrent).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    # torch stores the gates in the order reset, update, candidate. One call computes two sigmoids.
    size = 2 * state[0].shape[-1]
    r, z = (inputs[:, :size] + recurrent[:, :size]).sigmoid().chunk(2, -1)
    n = torch.addcmul(inputs[:, size:], r, recurrent[:, size:]).tanh()
    return (torch.lerp(n, state[0], z),)


def run_layer(block: Cell, x: Tensor, state: State) -> tuple[Tensor, State]:
    """Run one layer on x (B, n, E), starting from `state`.

    Returns:
        The states (B, n, D) of all steps and the last state.
    """
    # torch expects states with an axis for the layers: (1, B, D).
    before = tuple(part[None].to(x.dtype) for part in state)
    if isinstance(block, nn.LSTM):
        out, after = apply(block, x, before)
        return out, tuple(part[0] for part in after)
    out, after = apply(block, x, before[0])
    return out, (after[0],)
