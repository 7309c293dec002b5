"""A causal backbone over a text adapter, run a token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dxn.models.attention import Cache
from dxn.models.model import Model
from dxn.tokens import Tokens


class Said(Cache):
    """The ids that were given before (B, N), beside the blocks' caches."""

    def __init__(self):
        super().__init__()
        self.ids: Tensor | None = None

    def add(self, ids: Tensor) -> Tensor:
        """New ids (B, n) behind those of before: all (B, N)."""
        self.ids = ids if self.ids is None else torch.cat([self.ids, ids], 1)
        return self.ids

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch (b,)."""
        if self.ids is not None:
            self.ids = self.ids[rows]


class LanguageModel:
    """What `generate` and `beam_search` take, of a Model that reads text alone and is causal.

    A text longer than the adapter's max_len is read from its last half of that on. ValueError for any other model.
    """

    def __init__(self, model: Model):
        if list(model.adapters) != ["text"] or not model.backbone.causal:
            raise ValueError("only a model of text alone, whose backbone is causal, can go on with a text")
        self.adapter: Any = model.adapters["text"]
        self.backbone = model.backbone
        self.max_len = self.adapter.prepare.max_len

    def caches(self) -> list[Cache]:
        """An empty one for the ids, and one for each block."""
        return [Said(), *(Cache() for _ in self.backbone.blocks)]

    def __call__(self, ids: Tensor, mask: Tensor, memory: None, caches: Sequence[Cache]) -> Tensor:
        """New ids (B, n) behind those in the caches to logits (B, n, V) of what comes next."""
        said, own = caches[0], list(caches[1:])
        assert isinstance(said, Said)
        whole = said.add(ids)
        new = ids.shape[1]
        if whole.shape[1] > self.max_len:
            whole = said.ids = whole[:, -max(self.max_len // 2, 1) :]
            new = whole.shape[1]
            for cache in own:
                cache.own = None
        real = torch.ones_like(whole, dtype=torch.bool)
        places = torch.full((*whole.shape, 2), torch.nan, device=whole.device)
        tokens: Tokens = self.adapter({"ids": whole, "mask": real, "places": places})
        x = self.backbone.norm(self.backbone.run(tokens.x[:, -new:], real, caches=own))
        return x[:, -ids.shape[1] :] @ self.adapter.table.weight.T
