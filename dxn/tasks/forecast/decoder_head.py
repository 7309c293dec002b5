"""The head of a forecast by a decoder, which continues one pass by further ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from dxn.core.dropout import selected
from dxn.core.tokens import Tokens
from dxn.models.decoding.decoder import Memory
from dxn.models.unregistered import set_unregistered
from dxn.tasks.heads import PreHead
from dxn.tasks.space import Batch


class DecoderForecastHead(nn.Module):
    """A decoder whose only token attends to a channel, and an output layer for its next S values.

    This is the head of Chronos-Bolt (arXiv:2403.07815 describes the first Chronos). The output is
    the sum of a linear layer and of an MLP.

    Args:
        decoder: Decoder with the attribute `states`.
        mlp: Hidden layer before the output layer.
        shape: Number of steps S of a pass, and number of channels K. 0 channels: all.
        horizon: Number of steps of a forecast.
        quantiles: Probabilities of the Q quantiles.
        input: Name of the series, whose channels are encoded separately.
        adapter: Its adapter.
    """

    adapter: Any

    def __init__(
        self,
        decoder: Any,
        mlp: PreHead,
        *,
        shape: tuple[int, int],
        horizon: int,
        quantiles: Sequence[float],
        input: str,
        adapter: Any,
    ):
        super().__init__()
        self.decoder = decoder
        self.mlp = mlp
        self.steps, self.num_channels = shape
        self.horizon = horizon
        self.quantiles = list(quantiles)
        self.input = input
        self.output_shape = (horizon, self.num_channels, len(self.quantiles))
        set_unregistered(self, "adapter", adapter)  # of the model
        outputs = self.steps * len(self.quantiles)
        self.out = nn.Linear(mlp.width, outputs)
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
