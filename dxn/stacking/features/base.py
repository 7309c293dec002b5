"""What a classical model learns from: features of the inputs that need no training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Name of the features of cells of a table, from which also trees are grown.
COLUMNS = "columns"


@dataclass(frozen=True, slots=True)
class Features:
    """Features of one input of each sample, which need no training.

    Args:
        about: Name of the features, such as "TF-IDF". COLUMNS: cells of a table.
        dense: (B, F) float. Numbers, NaN where unknown. F can be 0.
        counted: Blocks of features that are counted: (2, n) int64 each, the sample and the code of
            each occurrence. A code is a number from 0 to 2^31.
        steps: (B, T, C) float. Values at each time step, for a task that continues them; NaN where
            unknown.
        known: (B, T + H, J) float. Values of the channels whose next H steps are known, too.
        level: (B, C) float. Mean of the values of each channel, in their standard deviations.
    """

    about: str
    dense: Tensor
    counted: tuple[Tensor, ...] = ()
    steps: Tensor | None = None
    known: Tensor | None = None
    level: Tensor | None = None

    def spread(self, rows: Tensor, batch_size: int) -> Features:
        """Return the features of a larger batch.

        Args:
            rows: (B,). Index of each sample in the larger batch. Other samples lack the input: they
                have NaN, and no counted features.
            batch_size: Number of samples of the larger batch.
        """
        if len(rows) == batch_size:  # all samples have this input
            return self
        counted = [torch.stack([rows[samples], codes]) for samples, codes in self.counted]

        def spread(x: Tensor) -> Tensor:
            return x.new_full((batch_size, *x.shape[1:]), torch.nan).index_copy(0, rows, x)

        steps = [None if x is None else spread(x) for x in (self.steps, self.known, self.level)]
        return Features(self.about, spread(self.dense), tuple(counted), *steps)


def time_statistics(x: Tensor, mask: Tensor) -> Tensor:
    """Return mean, standard deviation and mean absolute difference over time, (B, 3 F).

    Args:
        x: (B, T, F). Values at each step. Those that the mask excludes may be anything finite.
        mask: (B, T) or (B, T, F) bool. True at known values.

    Returns:
        NaN where a sample has no known value. Differences between unknown steps count as none.
    """
    known = (mask if mask.ndim == 3 else mask[..., None]).to(x.dtype).expand_as(x)
    count = known.sum(1)
    mean = (x * known).sum(1) / count
    std = (((x - mean[:, None]) * known).square().sum(1) / count).sqrt()
    pairs = known[:, 1:] * known[:, :-1]
    steps = ((x[:, 1:] - x[:, :-1]).abs() * pairs).sum(1) / pairs.sum(1).clamp(min=1)
    return torch.cat([mean, std, steps], 1)
