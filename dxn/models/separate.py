"""Inputs that are encoded alone, because the head compares them with each other."""

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
