"""Parts that are encoded alone: inputs that a head compares, and windows of a long input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from dxn.core.dropout import selected
from dxn.core.tokens import Tokens, can_read, join

if TYPE_CHECKING:
    from dxn.models.model import MultimodalModel


class InputVectors(NamedTuple):
    """The pooled vectors of inputs that were encoded alone.

    Attributes:
        x: (B, I, width). One vector for each of the I inputs of the model, zeros where a sample
            lacks the input.
        mask: (B, I) bool. True where the sample has the input.
    """

    x: Tensor
    mask: Tensor


def encode_alone(model: MultimodalModel, parts: Sequence[Tokens]) -> tuple[Tokens, InputVectors]:
    """Apply the fusion and the backbone of a model to each part alone."""
    encoded: list[Tokens] = []
    vectors: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    for number, part in enumerate(parts):
        name, size = part.spans[-1].name, part.x.shape[0]
        mask = masks[name] = part.mask.any(1)
        rows = torch.arange(size, device=mask.device)
        if can_read(mask):  # otherwise all samples are computed, also those without the input
            rows = mask.nonzero().flatten()
            if not len(rows):  # every sample has an input, but this one is empty in all of them
                continue
        with selected(rows, number):
            tokens, pooled = model.fusion([part.take(rows)], model.backbone)
        tokens = tokens.spread(rows, size)
        encoded.append(replace(tokens, mask=tokens.mask & mask[:, None], num_real=None))
        pooled = pooled.new_zeros(size, pooled.shape[1]).index_copy(0, rows, pooled)
        vectors[name] = torch.where(mask[:, None], pooled, 0.0)
    some = next(iter(vectors.values()))
    absent = torch.zeros_like(some)
    x = torch.stack([vectors.get(name, absent) for name in model.inputs], 1)
    no_rows = some.new_zeros(len(some), dtype=torch.bool)
    mask = torch.stack([masks.get(name, no_rows) for name in model.inputs], 1)
    return join(encoded), InputVectors(x, mask)


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
