"""Mean and standard deviation of the values of a training split."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

BLOCK = 1 << 14  # rows whose moments take longer to compute than to call the functions


class Moments:
    """Mean and standard deviation of each channel of values that are added piece by piece.

    The pieces are combined as in Chan, Golub and LeVeque (1983), because a sum of squares loses the
    variance of values that are large compared with it. NaN is a missing value.

    Args:
        num_channels: Number of channels C.

    Attributes:
        mean: (C,) float64. 0 where a channel has no value yet.
    """

    def __init__(self, num_channels: int):
        self.count = torch.zeros(num_channels, dtype=torch.float64)
        self.mean = torch.zeros(num_channels, dtype=torch.float64)
        self.squares = torch.zeros(num_channels, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        """Add values x (M, C)."""
        x = x.double()
        count = (~x.isnan()).sum(0)
        mean = x.nanmean(0).nan_to_num(0.0)
        difference = mean - self.mean
        total = self.count + count
        share = count / total.clamp(min=1)
        self.squares += (x - mean).square().nansum(0) + difference**2 * self.count * share
        self.mean += difference * share
        self.count = total

    @property
    def std(self) -> Tensor:
        """(C,) float64. 0 where a channel has no value."""
        return (self.squares / self.count.clamp(min=1)).sqrt()


def in_blocks(pieces: Iterable[Tensor]) -> Iterator[Tensor]:
    """Join small pieces (M, C), because a call of `Moments.add` takes longer than its computation.

    Yields:
        All rows in their order, in few pieces.
    """
    block: list[Tensor] = []
    num_rows = 0
    for piece in pieces:
        block.append(piece)
        num_rows += len(piece)
        if num_rows >= BLOCK:
            yield torch.cat(block)
            block, num_rows = [], 0
    if block:
        yield torch.cat(block)
