"""Long inputs, of which consecutive windows are encoded alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dxn.core.dropout import selected
from dxn.core.tokens import Tokens, join

if TYPE_CHECKING:
    from dxn.models.model import MultimodalModel


def encode_windows(model: MultimodalModel, tokens: Tokens, window: int) -> tuple[Tokens, Tensor]:
    """Encode each window of `window` columns alone.

    The windows are encoded one after the other, so that a long input needs little memory.

    Args:
        model: The model.
        tokens: Tokens of its only input.
        window: Number of columns of a window.

    Returns:
        The encoded Tokens of all windows, and the mean (B, width) of the vectors of the windows of
        each sample.
    """
    size = tokens.x.shape[0]
    parts: list[Tokens] = []
    totals: list[Tensor] = []
    for start in range(0, tokens.x.shape[1], window):
        mask = tokens.mask[:, start : start + window]
        rows = mask.any(1).nonzero().flatten()  # the samples that are so long
        columns = Tokens(tokens.x[rows, start : start + window], mask[rows])
        with selected(rows, start // window):
            encoded, vectors = model.fusion([columns], model.backbone)
        parts.append(replace(encoded, spans=()).spread(rows, size))
        totals.append(vectors.new_zeros(size, vectors.shape[1]).index_add(0, rows, vectors))
    joined = join(parts)
    if joined.x.shape[1] == tokens.x.shape[1]:  # there are no leading tokens
        joined = replace(joined, spans=tokens.spans)
    counts = torch.stack([part.mask.any(1) for part in parts]).sum(0)
    return joined, torch.stack(totals).sum(0) / counts.clamp(min=1)[:, None]
