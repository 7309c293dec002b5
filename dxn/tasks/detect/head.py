"""The heads of detection.

Each part of a token says which object is near to it, and where, or each of some learned queries,
tokens that are no part of an input, finds one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.core.dropout import Dropout
from dxn.core.tokens import Tokens
from dxn.models.pooling import registers_of
from dxn.tasks.detect.target import ordered
from dxn.tasks.space import Batch

if TYPE_CHECKING:
    from dxn.tasks.detect.task import Detect

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

    If each input is encoded alone, the vector of the sample is added to each token, so that other
    inputs also have an effect.

    Args:
        task: The task, whose target is fitted.
        dim: Width D of a token.
        pooled_dim: Width of the vector of a sample that is added to each token. 0: none is.
    """

    def __init__(self, task: Detect, dim: int, pooled_dim: int):
        super().__init__()
        target = task.target
        self.input = target.input
        self.num_classes = len(target.labels)
        self.tokenizer = target.tokenizers[target.input]
        self.axes = self.tokenizer.reader.axes
        self.context = nn.Linear(pooled_dim, dim) if pooled_dim else None
        self.dropout = Dropout(task.dropout)
        self.hidden = nn.Linear(dim, PARTS_PER_AXIS**self.axes * dim)
        self.out = nn.Linear(dim, self.num_classes + 2 * self.axes)
        nn.init.trunc_normal_(self.out.weight, std=0.01)
        nn.init.zeros_(self.out.bias)
        nn.init.constant_(self.out.bias[: self.num_classes], math.log(PRIOR / (1 - PRIOR)))
        self.usual_size: Tensor
        self.register_buffer("usual_size", torch.tensor(target.usual_size, dtype=torch.float32))

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
        # A class token or a register of an encoder has no place.
        is_placed = part.mask & ~part.spans[-1].coords[..., 0].isnan()
        is_padding = ~is_placed.repeat_interleave(PARTS_PER_AXIS**self.axes, 1)[:, :, None]
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
            tensor.new_ones(shape, dtype=torch.float32).index_copy(0, rows, tensor.float())
            for tensor in placement
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


class QueryHead(nn.Module):
    """Maps each of the last registers of the fusion to logits of classes and a box.

    As in DETR (arXiv:2005.12872) and YOLOS (arXiv:2106.00666): both are computed by three linear
    layers, there is an additional class for no object, and the center and the size of a box are
    fractions of the prepared value.

    Args:
        task: The task, whose target is fitted.
        dim: Width D of a token.
    """

    def __init__(self, task: Detect, dim: int):
        super().__init__()
        num_classes = len(task.target.labels)
        self.input = task.target.input
        self.queries = task.queries
        self.dropout = Dropout(task.dropout)
        self.classes = _layers(dim, num_classes + 1)
        self.boxes = _layers(dim, 2 * len(task.target.usual_size))
        # At first, nearly all queries have no object.
        nothing = math.log(num_classes * (1 - PRIOR) / PRIOR)
        nn.init.constant_(self.classes.get_parameter("4.bias")[-1:], nothing)

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor:
        """Return logits and boxes (B, M, K + 2A), see `Detections`.

        Raises:
            UserError: If the fusion has fewer registers than there are queries.
        """
        part = registers_of(tokens, self.input, self.queries, option="head.queries")
        x = self.dropout(part.x)
        logits = log_odds(self.classes(x).float())
        logits = logits.masked_fill(~part.mask[..., None], NOTHING)
        center, size = self.boxes(x).float().sigmoid().chunk(2, -1)
        return torch.cat([logits, center - size / 2, center + size / 2], -1)


def log_odds(logits: Tensor) -> Tensor:
    """Return log(p / (1 - p)) of the probabilities p of all classes but the last one.

    So the sigmoid of the result is the softmax of the logits.

    Args:
        logits: (..., K + 1).

    Returns:
        (..., K).
    """
    log_p = logits.log_softmax(-1)
    best = logits.argmax(-1, keepdim=True)
    # 1 - p of the most probable class would be rounded, so it is the sum of the other classes.
    rest = log_p.scatter(-1, best, -torch.inf).logsumexp(-1, keepdim=True)
    others = torch.log1p(-log_p.scatter(-1, best, -1.0).exp()).scatter(-1, best, rest)
    return (log_p - others)[..., :-1]


def _layers(dim: int, width: int) -> nn.Sequential:
    """Return three linear layers with ReLU between them."""
    return nn.Sequential(
        nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, width)
    )
