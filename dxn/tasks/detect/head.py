"""The head of detection: each part of a token says which object is near to it, and where."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.core.dropout import Dropout
from dxn.core.tokens import Tokens
from dxn.tasks.detect.boxes import ordered
from dxn.tasks.space import Batch
from dxn.tokenize.base import Tokenizer

# Parts of a token along each axis, so that there are objects of which several fit into one token.
PARTS_PER_AXIS = 2
PRIOR = 0.01  # initial probability of each class: nearly all parts have no object
MAX_LOG = 4.0  # largest logarithm of the size of a box, as a multiple of the usual size
# Logits and places of tokens that are padding: no object, and far from all objects.
NOTHING, OUTSIDE = -30.0, -1.0


class DetectHead(nn.Module):
    """Maps each token of one input to logits of classes and a box for each of its parts.

    The parts divide a token in two along each axis: a patch of a picture has four. The center of a
    box is that of the part plus a multiple of the usual size of an object, and its size is a
    multiple of the usual size.

    Args:
        dim: Width D of a token.
        num_classes: Number K of classes.
        input: Name of the input.
        tokenizer: Tokenizer of the input.
        usual_size: (A,). Usual size of an object, see `DetectedObjects`.
        pooled_dim: Width of the vector of a sample, which is added to each token, so that other
            inputs also have an effect if each input is encoded alone. 0: it is not added.
        dropout: Dropout probability of the tokens.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_classes: int,
        input: str,
        tokenizer: Tokenizer,
        usual_size: Sequence[float],
        pooled_dim: int = 0,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.input = input
        self.num_classes = num_classes
        self.tokenizer = tokenizer
        self.axes = tokenizer.reader.axes
        self.context = nn.Linear(pooled_dim, dim) if pooled_dim else None
        self.dropout = Dropout(dropout)
        self.hidden = nn.Linear(dim, PARTS_PER_AXIS**self.axes * dim)
        width = num_classes + 2 * self.axes
        self.out = nn.Linear(dim, width)
        nn.init.trunc_normal_(self.out.weight, std=0.01)
        nn.init.zeros_(self.out.bias)
        nn.init.constant_(self.out.bias[:num_classes], math.log(PRIOR / (1 - PRIOR)))
        self.usual_size: Tensor
        self.register_buffer("usual_size", torch.tensor(usual_size, dtype=torch.float32))

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor:
        """Return logits and boxes (B, M, K + 2A), see `Detections`, of all parts of all tokens."""
        part = tokens.select(self.input)
        x = part.x
        if self.context is not None:
            x = x + self.context(pooled)[:, None]
        x = F.gelu(self.hidden(self.dropout(x)))
        x = rearrange(x, "b n (p d) -> b (n p) d", p=PARTS_PER_AXIS**self.axes)
        raw = self.out(x).float()
        logits, shift, size = raw.split([self.num_classes, self.axes, self.axes], -1)
        center, usual = self._places(part, batch)
        center = center + shift * usual
        half = usual * size.clamp(max=MAX_LOG).exp() / 2
        boxes = torch.cat([center - half, center + half], -1)
        is_padding = ~part.mask.repeat_interleave(PARTS_PER_AXIS**self.axes, 1)[:, :, None]
        logits = logits.masked_fill(is_padding, NOTHING)
        return torch.cat([logits, boxes.masked_fill(is_padding, OUTSIDE)], -1)

    def _places(self, part: Tokens, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the centers (B, M, A) of the parts and the usual size (B, 1, A) of an object.

        Both are fractions of the prepared value, 0 or 1 where a sample has none.
        """
        rows = batch[self.input]["rows"]
        placement = self.tokenizer.placement(batch[self.input])
        shape = part.x.shape[0], self.axes
        origin, scale, unit = (
            each.new_ones(shape, dtype=torch.float32).index_copy(0, rows, each.float())
            for each in placement
        )
        coords = part.spans[-1].coords[..., : 2 * self.axes].nan_to_num()
        origin, scale = origin.tile(2)[:, None], scale.tile(2)[:, None]
        start, stop = ordered((coords - origin) / scale).chunk(2, -1)
        middles = (torch.arange(PARTS_PER_AXIS, device=start.device) + 0.5) / PARTS_PER_AXIS
        # All combinations (P, A) of the middles along each axis, as fractions of a token.
        middles = torch.cartesian_prod(*[middles] * self.axes).reshape(-1, self.axes)
        center = start[:, :, None] + middles * (stop - start)[:, :, None]
        usual = self.usual_size * unit / scale[:, 0, : self.axes].abs()
        return center.flatten(1, 2), usual[:, None]
