from collections.abc import Sequence

import torch
from torch import nn

from dxn.core.errors import UserError
from dxn.tasks import Bernoulli, LinearHead, Metric, PreHead, Target, Task


class Levels(Target):
    def __init__(self, levels):
        self.levels = levels

    def read(self, cell, origin, raws):
        level = str(cell)  # cells can also be numbers or booleans
        if level not in self.levels:
            raise UserError(f"{origin}: must be one of {', '.join(self.levels)}, got {cell!r}")
        return level

    def encode(self, value, sample, rand=None):  # 1 for every threshold below the level
        return (torch.arange(len(self.levels) - 1) < self.levels.index(value)).float()


class Distance(Metric):
    monitored = "mae"  # the metric that selects the best epoch
    lower_is_better = ("mae",)

    def __init__(self, levels):
        self.levels = levels

    def rows(self, predictions, targets):  # numbers of each row, which are added up
        true = torch.tensor([self.levels.index(level) for level in targets])
        errors = ((torch.stack(list(predictions)) > 0.5).sum(1) - true).abs().double()
        return torch.stack([torch.ones_like(errors), errors, (errors == 0).double()], 1)

    def value(self, sums):  # metrics from the sums
        total, error, right = sums.unbind(-1)
        return {"mae": error / total, "accuracy": right / total}


class Ordinal(Task):
    name = "ordinal"

    def __init__(self, *, levels: Sequence[str]):
        self.levels = list(levels)
        self.target, self.metric = Levels(self.levels), Distance(self.levels)
        self.space = Bernoulli()

    def make_head(self, dim, pooled_dim, adapters) -> nn.Module:
        return LinearHead(PreHead(pooled_dim), len(self.levels) - 1)

    def answer(self, prediction, inputs=None):
        return {"prediction": self.levels[int((prediction > 0.5).sum())]}
