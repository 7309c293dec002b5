"""The head of detection with learned queries: tokens that are no part of an input."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dxn.core.dropout import Dropout
from dxn.core.tokens import Tokens
from dxn.models.pooling import registers_of
from dxn.tasks.detect.head import NOTHING, PRIOR
from dxn.tasks.space import Batch


class QueryHead(nn.Module):
    """Maps each of the last registers of the fusion to logits of classes and a box.

    As in DETR (arXiv:2005.12872) and YOLOS (arXiv:2106.00666): both are computed by three linear
    layers, there is an additional class for no object, and the center and the size of a box are
    fractions of the prepared value.

    Args:
        dim: Width D of a token.
        num_classes: Number K of classes.
        input: Name of the input.
        axes: Number A of axes of the input.
        queries: Number of registers.
        dropout: Dropout probability of the registers.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_classes: int,
        input: str,
        axes: int,
        queries: int,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.input = input
        self.queries = queries
        self.dropout = Dropout(dropout)
        self.classes = _layers(dim, num_classes + 1)
        self.boxes = _layers(dim, 2 * axes)
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
