"""An interface between a causal model and the functions that generate sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.core.tokens import Tokens
from dxn.models.decoding.decoder import KVCache, Memory, StepDecoder, at_last, make_output_layer
from dxn.models.model import MultimodalModel


class TokenCache:
    """Token ids of the sequences, in addition to the caches of the blocks.

    The ids of a row are consecutive, without the padding between a prompt and its new tokens.
    """

    def __init__(self):
        self.ids = torch.zeros(0, 0, dtype=torch.long)  # (R, capacity)
        self.lengths = torch.zeros(0, dtype=torch.long)  # (R,)
        self.mask = torch.zeros(0, 0, dtype=torch.bool)  # (R, N), of the columns of the blocks
        self.longest = 0  # upper limit of the lengths, known without waiting for the device

    def start(self, ids: Tensor, mask: Tensor) -> None:
        """Set the first ids (R, n). Padding is at the end."""
        self.ids, self.mask = ids.masked_fill(~mask, 0), mask
        self.lengths = mask.sum(1)
        self.longest = ids.shape[1]

    def append(self, ids: Tensor) -> None:
        """Append n ids (R, n) to each row."""
        n = ids.shape[1]
        if self.longest + n > self.ids.shape[1]:
            # Twice the length, so that few copies are necessary.
            self.ids = F.pad(self.ids, (0, self.longest + 2 * n))
        self.ids.scatter_(1, self.last(n).add_(n), ids)
        self.lengths = self.lengths + n
        self.longest += n
        self.mask = torch.cat([self.mask, self.mask.new_ones(ids.shape)], 1)

    def last(self, n: int) -> Tensor:
        """Return the indices (R, n) of the last n ids of each row; negative before its start."""
        return self.lengths[:, None] + torch.arange(-n, 0, device=self.lengths.device)

    def shorten(self, max_len: int) -> bool:
        """Drop the first half of rows that are longer than max_len. Return whether there are any.

        Half of the tokens are dropped, so that this happens rarely.
        """
        if self.longest <= max_len:
            return False
        self.longest = int(self.lengths.max())
        if self.longest <= max_len:
            return False
        kept = max(max_len // 2, 1)
        long = self.lengths > max_len
        start = torch.where(long, self.lengths - kept, 0)
        self.lengths = torch.where(long, kept, self.lengths)
        self.longest = int(self.lengths.max())
        columns = torch.arange(self.longest, device=start.device)
        self.mask = columns < self.lengths[:, None]
        index = (start[:, None] + columns).clamp(max=self.ids.shape[1] - 1)
        self.ids = self.ids.gather(1, index).masked_fill(~self.mask, 0)
        return True

    def select(self, rows: Tensor, samples: Tensor | None = None) -> None:
        """Keep these rows (r,). There is no memory to which `samples` could apply."""
        self.ids, self.lengths, self.mask = self.ids[rows], self.lengths[rows], self.mask[rows]


class LanguageModel(StepDecoder):
    """A causal Model with the interface of a decoder, for `generate` and `beam_search`.

    When a sequence becomes longer than the max_len of the adapter, only its last max_len / 2 tokens
    are kept as context.

    Args:
        model: Model with a causal backbone and one input, whose adapter has a vocabulary.

    Raises:
        ValueError: If the model does not have these properties.
    """

    def __init__(self, model: MultimodalModel):
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
        super().__init__(adapters[0].embedding, adapters[0].tokenizer.max_len)
        self.adapter: Any = adapters[0]
        self.backbone = model.backbone
        # Number of previous tokens on which the embedding of a token depends. An adapter with this
        # attribute accepts batches with the key token_index (B, N): indices of tokens in a text.
        self.lookback: int | None = self.adapter.lookback
        self.output = make_output_layer(self.embedding.weight)

    def caches(self) -> list[TokenCache | KVCache]:
        """Create an empty cache for the token ids, and one for each block."""
        return [TokenCache(), *(KVCache() for _ in self.backbone.blocks)]

    def states(
        self,
        ids: Tensor,
        mask: Tensor,
        memory: Memory | None = None,
        caches: Sequence[Any] | None = None,
    ) -> Tensor:
        """See `StepDecoder.states`. The new ids follow those in the caches."""
        return self._states(ids, mask, caches or self.caches())[0][:, -ids.shape[1] :]

    def output_layer(self) -> nn.Module:
        """Return the same layer each time, because packing its weights takes long."""
        return self.output

    def next_states(
        self, ids: Tensor, mask: Tensor, memory: Memory | None, caches: Sequence[Any]
    ) -> Tensor:
        """See `StepDecoder.next_states`."""
        return at_last(*self._states(ids, mask, caches))

    def _states(self, ids: Tensor, mask: Tensor, caches: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Return the output vectors (R, n, D) of the last n columns, and the mask of all columns.

        These are the columns of `ids`, or all if the context was shortened.
        """
        tokens = caches[0]
        assert isinstance(tokens, TokenCache)
        kv_caches = [cache for cache in caches[1:] if isinstance(cache, KVCache)]
        n = ids.shape[1]
        is_start = not len(tokens.lengths)
        if is_start:
            tokens.start(ids, mask)
        else:
            tokens.append(ids)
        # The positions of the tokens change, so the cached keys and values are no longer valid.
        if tokens.shorten(self.max_len):
            is_start = True
            for cache in kv_caches:
                cache.clear()
        x = self._embed_all(tokens) if is_start else self._embed_last(tokens, n)
        x = self.backbone.run(x, tokens.mask, caches=kv_caches)
        return self.backbone.norm(x), tokens.mask

    def _embed_all(self, tokens: TokenCache) -> Tensor:
        """Embed all tokens (R, N, D). Padding is at the end."""
        columns = tokens.longest
        return self._embed(tokens.ids[:, :columns], tokens.mask[:, :columns])

    def _embed_last(self, tokens: TokenCache, n: int) -> Tensor:
        """Embed the last n tokens (R, n, D) of each row."""
        if self.lookback is None:
            # An adapter whose embeddings can depend on all previous tokens.
            columns = torch.arange(tokens.longest, device=tokens.ids.device)
            x = self._embed(tokens.ids[:, : tokens.longest], columns < tokens.lengths[:, None])
            rows = torch.arange(len(x), device=x.device)[:, None]
            return x[rows, tokens.last(n)]
        index = tokens.last(self.lookback + n)
        real = index >= 0
        index = index.clamp(min=0)
        ids = tokens.ids.gather(1, index).masked_fill(~real, 0)
        return self._embed(ids, real, index)[:, self.lookback :]

    def _embed(self, ids: Tensor, mask: Tensor, index: Tensor | None = None) -> Tensor:
        """Apply the adapter to ids (R, n), which are at `index` (R, n) of their texts."""
        # Coordinates are used only by explanations, but the adapter requires them.
        coords = torch.full((1, 1, 2), torch.nan, device=ids.device).expand(*ids.shape, 2)
        batch = {"ids": ids, "mask": mask, "coords": coords}
        if index is not None:
            batch["token_index"] = index
        tokens: Tokens = self.adapter(batch)
        return tokens.x[:, : ids.shape[1]]
