"""Encode one input, of which windows are encoded one after the other if it is long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dxn.core.dropout import selected
from dxn.core.tokens import Tokens, join


def encode_input(
    tokens: Tokens, adapter: Any, fusion: Callable[..., tuple[Tokens, Tensor]], backbone: Any
) -> tuple[Tokens, Tensor]:
    """Encode an input without others: its windows or parts alone, if its adapter has some.

    Args:
        tokens: Tokens of the input.
        adapter: Its `dxn.tokenize.base.Adapter`.
        fusion: Fusion of this input, such as `dxn.models.EarlyFusion`.
        backbone: Backbone that the fusion applies.

    Returns:
        The encoded Tokens, and one vector per sample (B, width).
    """
    num_columns = tokens.x.shape[1]
    window = num_columns // adapter.parts if adapter.parts > 1 else adapter.window
    if window and num_columns > window:
        return encode_windows(tokens, fusion, backbone, window)
    return fusion([tokens], backbone)


def encode_windows(
    tokens: Tokens, fusion: Callable[..., tuple[Tokens, Tensor]], backbone: Any, window: int
) -> tuple[Tokens, Tensor]:
    """Encode each window of `window` columns alone.

    The windows are encoded one after the other, so that a long input needs little memory.

    Args:
        tokens: Tokens of one input.
        fusion: See `encode_input`.
        backbone: See `encode_input`.
        window: Number of columns of a window.

    Returns:
        The encoded Tokens of all windows, without class tokens and registers, and the mean
        (B, width) of the vectors of the windows of each sample.
    """
    size = tokens.x.shape[0]
    span = tokens.spans[-1]
    parts: list[Tokens] = []
    totals: list[Tensor] = []
    for start in range(0, tokens.x.shape[1], window):
        mask = tokens.mask[:, start : start + window]
        rows = mask.any(1).nonzero().flatten()  # the samples that are so long
        # Nobody reads the coordinates of a window: those of the input replace them below.
        of_window = replace(span, start=0, stop=mask.shape[1], locate=_no_coords, marks=None)
        columns = Tokens(tokens.x[rows, start : start + window], mask[rows], (of_window,))
        with selected(rows, start // window):
            encoded, vectors = fusion([columns], backbone)
        parts.append(replace(encoded.split()[-1], spans=()).spread(rows, size))
        totals.append(vectors.new_zeros(size, vectors.shape[1]).index_add(0, rows, vectors))
    joined = replace(join(parts), spans=tokens.spans)
    counts = torch.stack([part.mask.any(1) for part in parts]).sum(0)
    return joined, torch.stack(totals).sum(0) / counts.clamp(min=1)[:, None]


def _no_coords() -> Tensor:
    raise AssertionError("a window has no coordinates of its own")
