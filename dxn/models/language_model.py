"""An interface between a causal model and the functions that generate sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dxn.models.attention import KVCache
from dxn.models.model import Model
from dxn.tokens import Tokens


class TokenCache:
    """Token ids of the sequence (B, N), in addition to the caches of the blocks."""

    def __init__(self):
        self.ids: Tensor | None = None

    def extend(self, ids: Tensor) -> Tensor:
        """Append new ids (B, n), and return all ids (B, N)."""
        self.ids = ids if self.ids is None else torch.cat([self.ids, ids], 1)
        return self.ids

    def select(self, rows: Tensor) -> None:
        """Keep these rows (b,) of the batch."""
        if self.ids is not None:
            self.ids = self.ids[rows]


class LanguageModel:
    """A causal Model with the interface of a decoder, for `generate` and `beam_search`.

    When a sequence becomes longer than the max_len of the adapter, only its last max_len / 2 tokens
    are kept as context.

    Args:
        model: Model with a causal backbone and one input, whose adapter has a vocabulary.

    Raises:
        ValueError: If the model does not have these properties.
    """

    def __init__(self, model: Model):
        adapters: list[Any] = list(model.adapters.values())
        has_vocabulary = len(adapters) == 1 and isinstance(
            getattr(adapters[0], "embedding", None), nn.Embedding
        )
        # A user-defined backbone need not have the attribute.
        causal = getattr(model.backbone, "causal", False)
        if len(model.inputs) != 1 or not has_vocabulary or not causal:
            raise ValueError(
                "only a model with one input, whose adapter has a vocabulary, and a causal "
                f"backbone can generate tokens: got inputs {', '.join(model.inputs)} and "
                f"causal={causal}"
            )
        self.adapter = adapters[0]
        self.backbone = model.backbone
        self.max_len: int = self.adapter.prepare.max_len

    def caches(self) -> list[TokenCache | KVCache]:
        """Create an empty cache for the token ids, and one for each block."""
        return [TokenCache(), *(KVCache() for _ in self.backbone.blocks)]

    def __call__(
        self, ids: Tensor, mask: Tensor, memory: None, caches: Sequence[TokenCache | KVCache], /
    ) -> Tensor:
        """Compute the logits (B, n, V) after new ids (B, n), which follow the ids in the caches."""
        token_cache = caches[0]
        assert isinstance(token_cache, TokenCache)
        kv_caches = [cache for cache in caches[1:] if isinstance(cache, KVCache)]
        # The adapter processes the whole sequence in each step, because positions, convolutions and
        # n-grams depend on previous tokens. This is cheap compared with the blocks.
        sequence = token_cache.extend(ids)
        num_new = ids.shape[1]
        if sequence.shape[1] > self.max_len:
            # The positions of all tokens change, so the cached keys and values are no longer valid.
            # Half of the tokens are dropped, so that this happens rarely.
            sequence = sequence[:, -max(self.max_len // 2, 1) :]
            token_cache.ids = sequence
            num_new = sequence.shape[1]
            for cache in kv_caches:
                cache.tokens = None
        real = torch.ones_like(sequence, dtype=torch.bool)
        # Coordinates are used only by explanations, but the adapter requires them.
        coords = torch.full((*sequence.shape, 2), torch.nan, device=sequence.device)
        tokens: Tokens = self.adapter({"ids": sequence, "mask": real, "coords": coords})
        x = self.backbone.run(tokens.x[:, -num_new:], real, caches=kv_caches)
        return self.backbone.norm(x)[:, -ids.shape[1] :] @ self.adapter.embedding.weight.T
