from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from dxn.tasks import LossSum, Space
from weather.ordinal import Ordinal


class CumulativeLogits(Space):
    def loss(self, output, batch):  # logits and targets (B, levels - 1)
        target = batch["target"]
        losses = binary_cross_entropy_with_logits(output.float(), target, reduction="none")
        return LossSum.of(losses.mean(-1))

    def decode(self, output, batch):
        return {"probabilities": output.float().sigmoid()}  # of a level above each threshold


class CumulativeHead(nn.Module):
    def __init__(self, dim, num_levels):
        super().__init__()
        self.score, self.steps = nn.Linear(dim, 1), nn.Parameter(torch.zeros(num_levels - 1))

    def forward(self, tokens, pooled, batch):
        return self.score(pooled) - softplus(self.steps).cumsum(0)


class Cumulative(Ordinal):
    name = "cumulative"

    def __init__(self, *, levels: Sequence[str]):
        super().__init__(levels=levels)
        self.space = CumulativeLogits()

    def make_head(self, dim, pooled_dim, adapters):
        return CumulativeHead(pooled_dim, len(self.levels))
