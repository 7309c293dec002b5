"""The head of a forecast: increasing quantiles, added to the seasonal naive forecast."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from dxn.core.tokens import Tokens
from dxn.tasks.forecast.futures import increasing, seasonal_naive
from dxn.tasks.heads import PreHead
from dxn.tasks.space import Batch

# Softplus of it is 0.2, the first distance of neighboring quantiles in standard deviations.
FIRST_GAP = -1.5


class ForecastHead(nn.Module):
    """A linear output layer for the quantiles of the next H values of K channels.

    Args:
        pre: Layers before the output layer.
        shape: Numbers of steps H, channels K and quantiles Q.
        middle: Index of the median among the quantiles.
        input: Name of the series.
        num_tokens: Number of tokens of the series that are read, counted from the last one. 0: the
            pooled vector is read.
        num_channels: Number of channels C, or of patches of cells, that have tokens of their own,
            those of the same time next to each other. The output layer is then shared by them, and
            reads the tokens of one of them (arXiv:2211.14730, section 3.1). 1: each token has all
            channels.
        num_known: Number of the last channels whose future is known. If they have tokens of their
            own, the output layer of each channel reads these, too.
        reads_pooled: Whether the pooled vector is read beside the tokens.
        season: Season length of the seasonal naive forecast that is added. 0: none.
        history: Function that returns the normalized values (B, T, C) of a batch of the series.
        places: Place of each channel among the outputs of all patches of cells (K,), see
            `CellPatches.places`. None: the outputs are the channels.
        cells: Number of cells of a patch.
    """

    places: Tensor | None

    def __init__(
        self,
        pre: PreHead,
        *,
        shape: tuple[int, int, int],
        middle: int,
        input: str,
        num_tokens: int,
        num_channels: int,
        num_known: int,
        reads_pooled: bool,
        season: int,
        history: Callable[[Mapping[str, Tensor]], Tensor],
        places: Tensor | None = None,
        cells: int = 1,
    ):
        super().__init__()
        # Not called `pre`: that module computes the embedding of a sample from its pooled vector.
        self.mlp = pre
        self.output_shape = shape
        self.middle = middle
        self.input = input
        self.num_tokens = num_tokens
        self.num_channels = num_channels
        self.num_known = num_known if num_channels > 1 else 0
        self.reads_pooled = reads_pooled
        self.season = season
        self.history = history
        horizon, channels, quantiles = shape
        outputs = (horizon, cells if num_channels > 1 or cells > 1 else channels, quantiles)
        self.register_buffer("places", places, persistent=False)
        self.out = nn.Linear(pre.width, math.prod(outputs))
        # With zeros, the training starts from the seasonal naive forecast with narrow intervals.
        nn.init.zeros_(self.out.weight)
        bias = torch.full(outputs, FIRST_GAP)
        bias[..., middle] = 0.0
        self.out.bias = nn.Parameter(bias.flatten())

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor:
        """Return normalized quantiles (B, H, K, Q), in ascending order."""
        x = pooled[:, None]
        if self.num_tokens:
            x = last_tokens(tokens.select(self.input), self.num_tokens)
            x = rearrange(x, "b (t c) d -> b c (t d)", c=self.num_channels)
            known = x[:, self.num_channels - self.num_known :].flatten(1)
            x = x[:, : self.output_shape[1]]  # the channels that are predicted come first
            beside = [known] if self.num_known else []
            beside += [pooled] if self.reads_pooled else []
            x = torch.cat([x, *(repeat(y, "b d -> b c d", c=x.shape[1]) for y in beside)], -1)
        raw = rearrange(
            self.out(self.mlp(x)),
            "b c (h k q) -> b h (c k) q",
            h=self.output_shape[0],
            q=self.output_shape[2],
        )
        if self.places is not None:
            raw = raw[:, :, self.places]
        quantiles = increasing(raw, self.middle)
        if not self.season:
            return quantiles
        history = self.history(batch[self.input])[..., : self.output_shape[1]]
        naive = seasonal_naive(history, self.output_shape[0], self.season)
        # In float32: the difference from the naive forecast needs fewer digits than the forecast.
        return quantiles.float() + naive.nan_to_num()[..., None]


def last_tokens(tokens: Tokens, count: int) -> Tensor:
    """Return the last real tokens (B, count, D) of each sample, with zeros in front of them."""
    mask = tokens.mask[:, -count:]
    x = tokens.x[:, -count:] * mask[..., None]
    return nn.functional.pad(x, (0, 0, count - x.shape[1], 0))


@torch.no_grad()
def count_tokens(adapter: Any, shape: tuple[int, int]) -> int:
    """Return the number of tokens of a series with T steps and C channels."""
    return adapter(adapter.tokenizer.batch([torch.zeros(shape)])).x.shape[1]
