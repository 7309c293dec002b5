"""A tiny causal model of one input."""

from types import SimpleNamespace

import torch
from torch import nn

from dxn.core.tokens import Span, Tokens
from dxn.models import EarlyFusion, MultimodalModel
from helpers.reference import backbone_of, lively

D, V, MAX_LEN = 12, 11, 7


class Adapter(nn.Module):
    """An embedding with learned positions."""

    lookback = None

    def __init__(self, vocabulary=True):
        super().__init__()
        if vocabulary:
            self.embedding = nn.Embedding(V, D)
        self.pos_embed = nn.Parameter(torch.randn(MAX_LEN, D))
        self.tokenizer = SimpleNamespace(max_len=MAX_LEN)

    def forward(self, batch):
        ids = batch["ids"]
        x = self.embedding(ids) + self.pos_embed[: ids.shape[1]]
        return Tokens(x, batch["mask"], (Span("text", "text", 0, ids.shape[1], batch["coords"]),))


def model_of(*, inputs=None, causal=True, vocabulary=True, position="none"):
    inputs = inputs or {"some input": "text"}
    model = MultimodalModel(
        {key: Adapter(vocabulary) for key in inputs.values()},
        inputs=inputs,
        fusion=EarlyFusion(D),
        backbone=backbone_of(D, depth=2, num_heads=2, causal=causal, position=position),
        head=nn.Identity(),
    )
    return lively(model).requires_grad_(False)
