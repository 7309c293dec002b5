"""The heads of a forecast: a linear layer on tokens, or a decoder.

The first one returns increasing quantiles, added to the seasonal naive forecast. The decoder
continues one pass by further ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from dxn.core.dropout import selected
from dxn.core.tokens import Tokens
from dxn.models.decoding.decoder import Memory
from dxn.models.decoding.output_layer import set_unregistered
from dxn.tasks.forecast.futures import increasing, seasonal_naive
from dxn.tasks.space import Batch

if TYPE_CHECKING:
    from dxn.tasks.forecast.task import Forecast

# Softplus of it is 0.2, the first distance of neighboring quantiles in standard deviations.
FIRST_GAP = -1.5


class ForecastHead(nn.Module):
    """A linear output layer for the quantiles of the next H values of K channels.

    Args:
        task: The task, whose target is fitted.
        dim: Width D of a token.
        pooled_dim: Width of the vector of a sample.
        adapters: Fitted adapters, by input name.
    """

    places: Tensor | None

    def __init__(self, task: Forecast, dim: int, pooled_dim: int, adapters: Mapping[str, Any]):
        super().__init__()
        target = task.target
        adapter = adapters[target.input]
        horizon, channels, quantiles = target.horizon, len(target.channels), len(task.quantiles)
        self.output_shape = horizon, channels, quantiles
        self.middle = task.quantiles.index(0.5)
        self.input = target.input
        self.history = adapter.tokenizer.history
        # Season length of the seasonal naive forecast that is added. 0: none.
        residual = target.residual or "season"
        self.season = {"season": target.season, "last": 1}.get(residual, 0)
        self.adds_mean = residual == "mean"
        # Number of tokens of the series that are read, counted from the last one. 0: the pooled
        # vector is read.
        self.num_tokens = 0
        # Number of channels, or of patches of cells, that have tokens of their own, those of the
        # same time next to each other. The output layer is then shared by them, and reads the
        # tokens of one of them (arXiv:2211.14730, section 3.1). 1: each token has all channels.
        self.num_channels = 1
        # Place of each channel among the outputs of all patches of cells (K,). None: the outputs
        # are the channels.
        places = None
        if task.read == "tokens":
            shape = target.context + target.ahead, target.num_channels
            with torch.no_grad():
                tokens = adapter(adapter.tokenizer.batch([torch.zeros(shape)]))
            self.num_tokens = tokens.x.shape[1]
            if not adapter.is_joint:
                self.num_channels, channels = target.num_channels, 1
            if adapter.cells is not None:
                self.num_channels, channels = len(adapter.cells), adapter.cells.size**2
                # Those of the future are the last ones.
                self.num_tokens = adapter.num_ahead * self.num_channels
                places = adapter.cells.places()
        self.register_buffer("places", places, persistent=False)
        # Number of the last channels whose future is known, which the output layer of each channel
        # reads, too.
        self.num_known = target.num_known if self.num_channels > 1 else 0
        # The tokens of the series alone say nothing about other inputs if these are fused late.
        self.reads_pooled = self.num_tokens > 0 and len(adapters) > 1
        width = (1 + self.num_known) * self.num_tokens // self.num_channels * dim
        width += pooled_dim if self.reads_pooled or not self.num_tokens else 0
        # Not called `pre`: that module computes the embedding of a sample from its pooled vector.
        self.mlp = task.pre_head(width)
        outputs = horizon, channels, quantiles
        self.out = nn.Linear(self.mlp.width, math.prod(outputs))
        # With zeros, the training starts from the seasonal naive forecast with narrow intervals.
        nn.init.zeros_(self.out.weight)
        bias = torch.full(outputs, FIRST_GAP)
        bias[..., self.middle] = 0.0
        self.out.bias = nn.Parameter(bias.flatten())

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor:
        """Return normalized quantiles (B, H, K, Q), in ascending order."""
        x = pooled[:, None]
        if self.num_tokens:
            x = last_tokens(tokens.select(self.input), self.num_tokens)
            x = rearrange(x, "b (t c) d -> b c (t d)", c=self.num_channels)
            of_known = x[:, self.num_channels - self.num_known :].flatten(1)
            x = x[:, : self.output_shape[1]]  # the channels that are predicted come first
            beside = [of_known] if self.num_known else []
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
        if not self.season and not self.adds_mean:
            return quantiles
        history = self.history(batch[self.input])[..., : self.output_shape[1]]
        if self.adds_mean:
            # Not nanmean, which is no operator of ONNX.
            count = (~history.isnan()).sum(-2, keepdim=True)
            naive = history.nan_to_num().sum(-2, keepdim=True) / count
        else:
            naive = seasonal_naive(history, self.output_shape[0], self.season)
        # In float32: the difference from the naive forecast needs fewer digits than the forecast.
        return quantiles.float() + naive.nan_to_num()[..., None]


def last_tokens(tokens: Tokens, count: int) -> Tensor:
    """Return the last real tokens (B, count, D) of each sample, with zeros in front of them."""
    mask = tokens.mask[:, -count:]
    x = tokens.x[:, -count:] * mask[..., None]
    return nn.functional.pad(x, (0, 0, count - x.shape[1], 0))


class DecoderForecastHead(nn.Module):
    """A decoder whose only token attends to a channel, and an output layer for its next S values.

    This is the head of Chronos-Bolt (arXiv:2403.07815 describes the first Chronos). The output is
    the sum of a linear layer and of an MLP.

    Args:
        task: The task, whose target is fitted.
        decoder: Decoder with the attribute `states`.
        adapter: Adapter of the series, whose channels are encoded separately.
    """

    adapter: Any

    def __init__(self, task: Forecast, decoder: Any, adapter: Any):
        super().__init__()
        self.decoder = decoder
        self.mlp = task.pre_head(decoder.backbone.dim)
        self.horizon = task.target.horizon
        self.steps = task.steps or self.horizon  # of a pass
        self.num_channels = len(task.target.channels)  # 0: all
        self.quantiles = list(task.quantiles)
        self.input = task.target.input
        self.output_shape = (self.horizon, self.num_channels, len(self.quantiles))
        set_unregistered(self, "adapter", adapter)  # of the model
        outputs = self.steps * len(self.quantiles)
        self.out = nn.Linear(self.mlp.width, outputs)
        self.skip = nn.Linear(decoder.backbone.dim, outputs)

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor:
        """Return normalized quantiles (B, at most S, K, Q) of one pass."""
        channels = self.adapter.parts
        size = tokens.x.shape[1] // channels
        start = torch.zeros(len(tokens.x), 1, dtype=torch.long, device=tokens.x.device)
        real = torch.ones_like(start, dtype=torch.bool)
        rows = torch.arange(len(tokens.x), device=tokens.x.device)
        states: list[Tensor] = []
        for k in range(self.num_channels or channels):  # those that are predicted come first
            columns = slice(k * size, (k + 1) * size)
            memory = Memory.from_tokens(Tokens(tokens.x[:, columns], tokens.mask[:, columns]))
            with selected(rows, k):
                states.append(self.decoder.states(start, real, memory))
        x = torch.cat(states, 1)  # (B, K, D)
        raw = self.out(self.mlp(x)) + self.skip(x)
        return rearrange(raw, "b k (h q) -> b h k q", h=self.steps)[:, : self.horizon]

    def over_parts(self, batch: Batch, output_of: Callable[[Batch], Tensor]) -> Tensor:
        """Return the normalized quantiles of all steps; in a training those of one pass."""
        output = output_of(batch)
        if self.training or self.horizon <= self.steps:
            return output
        return self._extended(output, batch, output_of)

    @torch.no_grad()
    def _extended(
        self, output: Tensor, batch: Batch, output_of: Callable[[Batch], Tensor]
    ) -> Tensor:
        """Return the normalized quantiles (B, H, K, Q) of all steps.

        Each quantile of the last pass continues the series in one way. The quantiles of the next
        pass are those of the Q times Q forecasts of these continuations.

        Args:
            output: Normalized quantiles (B, S, K, Q) of the first pass.
            batch: Its batch.
            output_of: Function that returns the quantiles of one pass.
        """
        first = batch[self.input]
        size, _, count, num_levels = output.shape
        loc, scale = (first[key].double()[:, None, :count, None] for key in ("loc", "scale"))
        levels = torch.tensor(self.quantiles, dtype=torch.float64, device=output.device)
        series = {
            key: repeat(first[key], "b ... -> (b q) ...", q=num_levels)
            for key in ("values", "observed", "loc", "scale")
        }
        parts = [output.double() * scale + loc]
        for _ in range(-(-self.horizon // self.steps) - 1):
            future = rearrange(parts[-1], "b h k q -> (b q) h k")
            unknown = series["values"].shape[2] - count
            future = nn.functional.pad(future, (0, unknown), value=torch.nan)
            series = self.adapter.tokenizer.continued(series, future)
            longer = {self.input: series, "#size": len(future)}
            raw = output_of(longer).double()
            raw = raw * series["scale"][:, None, :count, None]
            raw = raw + series["loc"][:, None, :count, None]
            every = rearrange(raw, "(b p) h k q -> b (p q) h k", b=size)
            parts.append(rearrange(every.quantile(levels, dim=1), "q b h k -> b h k q"))
        longest = torch.cat(parts, 1)[:, : self.horizon]
        return ((longest - loc) / scale).to(output.dtype)
