"""Position embeddings that an adapter adds to its columns. `grid_positions.py` has those of grids.

Rotary and ALiBi positions act inside the attention, so the backbone provides them.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from dxn.core.tokens import sinusoidal

PosEmbedKind = Literal["learned", "sinusoidal", "none"]


class PosEmbed1d(nn.Module):
    """Position embedding of the indices 0 to n - 1.

    Args:
        kind: learned, sinusoidal or none.
        dim: Width D.
        max_len: Number of learned positions. The other kinds have no limit.
    """

    def __init__(self, kind: PosEmbedKind, *, dim: int, max_len: int):
        super().__init__()
        if kind not in get_args(PosEmbedKind):
            raise ValueError(f"pos_embed must be learned, sinusoidal or none, got {kind!r}")
        self.kind = kind
        self.dim = dim
        self.max_len = max_len
        if kind == "learned":
            self.weight = nn.Parameter(torch.empty(max_len, dim))
            # 0.02 is the standard deviation of BERT and ViT: small compared with the embeddings.
            nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, n: int, device: torch.device) -> Tensor:
        """Return position embeddings (n, D), or a scalar 0 () without positions.

        Raises:
            ValueError: If n exceeds the number of learned positions.
        """
        if self.kind == "none":
            return torch.zeros((), device=device)
        if self.kind == "sinusoidal":
            return sinusoidal(torch.arange(n, device=device), self.dim)
        if n > self.max_len:
            raise ValueError(
                f"learned positions reach {self.max_len} tokens, got {n}: raise max_len"
            )
        return self.weight[:n]

    def at(self, index: Tensor) -> Tensor:
        """Return the position embeddings (..., D) of these indices (...), or a scalar 0 ()."""
        if self.kind == "none":
            return torch.zeros((), device=index.device)
        return sinusoidal(index, self.dim) if self.kind == "sinusoidal" else self.weight[index]
