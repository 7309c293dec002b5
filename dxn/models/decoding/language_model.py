"""An interface between a causal model and the functions that generate sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.core.tokens import Tokens, can_read, join
from dxn.models.decoding.decoder import KVCache, Memory, StepDecoder, at_last, stacked
from dxn.models.decoding.output_layer import output_layer_of
from dxn.models.fusion import ColumnOrder, EarlyFusion, place
from dxn.models.model import Batch, MultimodalModel


class TokenCache:
    """Token ids of the sequences, in addition to the caches of the blocks.

    The tokens of other inputs do not count as a part of the context.
    """

    def __init__(self):
        self.others: Memory | None = None  # the tokens (R, P, D) of other inputs
        self.num_others: Tensor | None = None  # (R,), by which they make a sequence longer
        self.ids = torch.zeros(0, 0, dtype=torch.long)  # (R, C), the context without padding
        self.dropped: Tensor | None = None  # (R,), number of tokens before the context
        # The longest context when its length was last read, None before, and the length of the
        # longest text then.
        self.longest: int | None = None
        self.columns = 0

    @property
    def is_empty(self) -> bool:
        """Whether there are no ids."""
        return not self.ids.numel()

    def lengths(self, mask: Tensor) -> Tensor:
        """Return the lengths (R,) of the contexts. The mask (R, N) is that of the whole texts."""
        lengths = mask.sum(1)
        return lengths if self.dropped is None else lengths - self.dropped

    def start(self, ids: Tensor, mask: Tensor) -> None:
        """Set the first ids (R, n). Padding is at the end."""
        self.ids = ids.masked_fill(~mask, 0)
        self.longest = self.columns = ids.shape[1]

    def append(self, ids: Tensor, lengths: Tensor, columns: int) -> None:
        """Write n ids (R, n) at the ends of contexts, which then have these lengths (R,)."""
        room = columns - self.ids.shape[1]
        if room > 0:
            self.ids = F.pad(self.ids, (0, room))
        self.ids.scatter_(1, last(lengths, ids.shape[1]), ids)

    def shorten(self, mask: Tensor, max_len: int) -> bool:
        """Drop the first half of contexts longer than max_len. Return whether there are any.

        Half of the tokens are dropped, so that this happens rarely.
        """
        # The lengths are read only if a context can be too long.
        if self.longest is not None and self.longest + mask.shape[1] - self.columns <= max_len:
            return False
        lengths = self.lengths(mask)
        self.longest, self.columns = int(lengths.max()), int(mask.sum(1).max())
        if self.longest <= max_len:
            return False
        num_kept = max(max_len // 2, 1)
        start = torch.where(lengths > max_len, lengths - num_kept, 0)
        self.dropped = start if self.dropped is None else self.dropped + start
        lengths = lengths - start
        self.longest = int(lengths.max())
        columns = torch.arange(self.longest, device=start.device)
        index = (start[:, None] + columns).clamp(max=self.ids.shape[1] - 1)
        self.ids = self.ids.gather(1, index).masked_fill(columns >= lengths[:, None], 0)
        return True

    def select(self, rows: Tensor, samples: Tensor | None = None) -> None:
        """Keep these rows (r,). There is no memory to which `samples` could apply."""
        if self.others is not None and len(rows) != len(self.ids):
            others = self.others
            assert others.mask is not None and self.num_others is not None
            self.others = Memory(others.x[rows], None, others.mask[rows], sizes=others.sizes)
            self.num_others = self.num_others[rows]
        if len(rows) < len(self.ids):
            self.longest = None  # the longest text may be gone
        ids = self.ids[rows]
        if ids.shape == self.ids.shape and not can_read(rows):
            self.ids.copy_(ids)  # see `KVCache.select`
        else:
            self.ids = ids
        if self.dropped is not None:
            self.dropped = self.dropped[rows]

    def join(self, other: TokenCache) -> None:
        """Add the rows of another cache after these."""
        counts = len(self.ids), len(other.ids)

        def joined(*parts: Tensor | None) -> Tensor | None:
            if parts == (None, None):
                return None
            pairs = zip(parts, counts, strict=True)
            return torch.cat([self.ids.new_zeros(n) if x is None else x for x, n in pairs])

        self.dropped = joined(self.dropped, other.dropped)
        self.num_others = joined(self.num_others, other.num_others)
        if self.others is not None or other.others is not None:
            self.others = _joined(self.others, other.others, counts)
        self.ids = stacked(self.ids, other.ids, dim=1)
        self.longest = None


def _joined(first: Memory | None, second: Memory | None, counts: tuple[int, int]) -> Memory:
    """Return the tokens of other inputs of two batches as those of one.

    A sample has some of the inputs, of which only the order counts. So the first input of each
    batch can have the same columns, and the second one of each.
    """
    some = first or second
    assert some is not None
    columns: list[list[Tensor]] = []
    real: list[list[Tensor]] = []
    for memory, count in zip((first, second), counts, strict=True):
        x = some.x.new_zeros(count, 0, some.x.shape[2]) if memory is None else memory.x
        mask = x.new_zeros(x.shape[:2], dtype=torch.bool) if memory is None else memory.mask
        assert mask is not None
        sizes = list(memory.sizes) if memory and memory.sizes else [x.shape[1]]
        columns.append(list(x.split(sizes, 1)))
        real.append(list(mask.split(sizes, 1)))
    for parts in (columns, real):
        num_inputs = max(map(len, parts))
        for inputs in parts:
            inputs += [inputs[0][:, :0]] * (num_inputs - len(inputs))
    xs = [stacked(*pair, dim=1) for pair in zip(*columns, strict=True)]
    masks = [stacked(*pair, dim=1) for pair in zip(*real, strict=True)]
    sizes = tuple(x.shape[1] for x in xs)
    return Memory(torch.cat(xs, 1), None, torch.cat(masks, 1), sizes=sizes)


class LanguageModel(StepDecoder):
    """A causal Model with the interface of a decoder, for `generate` and `beam_search`.

    When a sequence becomes longer than the max_len of the adapter, only its last max_len / 2 tokens
    are kept as context. The tokens of other inputs are the memory that `generate` and `beam_search`
    get, see `prefix_of`. They are before the text, or where it has a token that stands for them.

    Args:
        model: Model with a causal backbone, and one input or early fusion. The adapter of the last
            input has a vocabulary.

    Raises:
        ValueError: If the model does not have these properties.
    """

    static_steps = True

    def __init__(self, model: MultimodalModel):
        self.name = list(model.inputs)[-1]
        adapter: Any = model.adapter(self.name)
        has_vocabulary = isinstance(getattr(adapter, "embedding", None), nn.Embedding)
        # A user-defined backbone need not have the attribute.
        causal = getattr(model.backbone, "causal", False)
        is_joined = len(model.inputs) == 1 or (
            isinstance(model.fusion, EarlyFusion) and getattr(model.head, "input", "") == self.name
        )
        if not is_joined or not has_vocabulary or not causal:
            raise ValueError(
                f"this model of {', '.join(model.inputs)} writes no text: that needs head=generate "
                "or head=language, or a causal backbone and one text; use dxn embed or dxn predict"
            )
        output = output_layer_of(model.head, adapter.embedding)
        super().__init__(adapter.embedding, adapter.tokenizer.max_len, output=output)
        self.adapter = adapter
        self.input_embedding = getattr(model.fusion, "input_embedding", None)
        self.backbone = model.backbone
        # Number of previous tokens on which the embedding of a token depends. An adapter with this
        # attribute accepts batches with the key token_index (B, N): indices of tokens in a text.
        self.lookback: int | None = self.adapter.lookback
        self.packed = self.output.packed()

    def caches(self) -> list[TokenCache | KVCache]:
        """Create an empty cache for the token ids, and one for each block."""
        return [TokenCache(), *(KVCache() for _ in self.backbone.blocks)]

    def states(
        self,
        ids: Tensor,
        mask: Tensor,
        memory: Memory | None = None,
        caches: Sequence[Any] | None = None,
        *,
        num_real: int | None = None,
    ) -> Tensor:
        """See `StepDecoder.states`. The new ids follow those in the caches."""
        caches = caches or self.caches()
        x, _, places = self._states(ids, mask, memory, caches)
        if places is None:
            return x[:, -ids.shape[1] :]
        return x.take_along_dim(places.back[:, -ids.shape[1] :, None], 1)

    def output_layer(self) -> nn.Module:
        """Return the same layer each time, because packing its weights takes long."""
        return self.packed

    def next_states(
        self, ids: Tensor, mask: Tensor, memory: Memory | None, caches: Sequence[Any]
    ) -> Tensor:
        """See `StepDecoder.next_states`."""
        x, mask, _ = self._states(ids, mask, memory, caches)
        return at_last(x, mask)

    def _states(
        self, ids: Tensor, mask: Tensor, memory: Memory | None, caches: Sequence[Any]
    ) -> tuple[Tensor, Tensor, ColumnOrder | None]:
        """Return the output vectors (R, n, D) of the last n columns, and the mask of all columns.

        These are the columns of `ids`, or all if the context was shortened or has other inputs
        that were not computed before. The last result is their places then.
        """
        tokens = caches[0]
        assert isinstance(tokens, TokenCache)
        kv_caches = [cache for cache in caches[1:] if isinstance(cache, KVCache)]
        n = ids.shape[1]
        is_start = tokens.is_empty
        if is_start:
            tokens.start(ids, mask)
            tokens.others = memory
        else:
            # One more column, as the context is shortened only after it has become too long.
            columns = min(mask.shape[1], max(self.max_len + n, tokens.ids.shape[1]))
            tokens.append(ids, tokens.lengths(mask), columns)
        # The positions of the tokens change, so the cached keys and values are no longer valid.
        if tokens.shorten(mask, self.max_len):
            is_start = True
            for cache in kv_caches:
                cache.clear()
        if tokens.dropped is not None:
            assert tokens.longest is not None
            columns = tokens.longest if is_start else min(mask.shape[1], self.max_len)
            lengths = tokens.lengths(mask)
            mask = torch.arange(columns, device=mask.device) < lengths[:, None]
        places = None
        if not is_start:
            x = self._embed_last(tokens.ids, mask, n)
        else:
            text = self._tokens(tokens.ids, mask)
            x = text.x[:, : tokens.ids.shape[1]]
            if tokens.others is not None:
                assert tokens.others.mask is not None
                x = torch.cat([tokens.others.x.to(x.dtype), x], 1)
                real = torch.cat([tokens.others.mask, mask], 1)
                places = place(real, tokens.others.sizes, text.spans[-1].marks)
                # The caches have the padding of a row at its end.
                x = x.take_along_dim(places.order[..., None], 1)
                tokens.num_others = places.mask.sum(1) - mask.sum(1)
        if tokens.others is not None and tokens.num_others is not None:
            width = tokens.others.x.shape[1] + mask.shape[1]
            lengths = tokens.num_others + mask.sum(1)
            mask = torch.arange(width, device=mask.device) < lengths[:, None]
        x = self.backbone.run(x, mask, caches=kv_caches)
        return self.backbone.norm(x), mask, places

    def _embed_last(self, ids: Tensor, mask: Tensor, n: int) -> Tensor:
        """Embed the last n tokens (R, n, D) of each row of ids (R, N)."""
        lengths = mask.sum(1)
        if self.lookback is None:
            # An adapter whose embeddings can depend on all previous tokens.
            x = self._embed(ids[:, : mask.shape[1]], mask)
            rows = torch.arange(len(x), device=x.device)[:, None]
            return x[rows, last(lengths, n)]
        index = last(lengths, self.lookback + n)
        real = index >= 0
        index = index.clamp(min=0)
        ids = ids.gather(1, index).masked_fill(~real, 0)
        return self._embed(ids, real, index)[:, self.lookback :]

    def _embed(self, ids: Tensor, mask: Tensor, index: Tensor | None = None) -> Tensor:
        """Embed ids (R, n), which are at `index` (R, n) of their texts, as vectors (R, n, D)."""
        return self._tokens(ids, mask, index).x[:, : ids.shape[1]]

    def _tokens(self, ids: Tensor, mask: Tensor, index: Tensor | None = None) -> Tokens:
        """Apply the adapter. See `_embed`."""
        # Coordinates are used only by explanations, but the adapter requires them.
        coords = torch.full((1, 1, 2), torch.nan, device=ids.device).expand(*ids.shape, 2)
        batch = {"ids": ids, "mask": mask, "coords": coords}
        if index is not None:
            batch["token_index"] = index
        tokens: Tokens = self.adapter(batch)
        if self.input_embedding is not None:
            (tokens,) = self.input_embedding([tokens.renamed(self.name)])
        return tokens


def prefix_of(model: MultimodalModel, batch: Batch) -> Memory | None:
    """Return the tokens of the other inputs as the memory for `generate`. None: there are none.

    Args:
        model: The model of a `LanguageModel`.
        batch: Batch without the text, see `MultimodalModel.embed`.
    """
    parts = model.embed(batch)
    if not parts:
        return None
    if model.fusion.input_embedding is not None:
        parts = model.fusion.input_embedding(parts)
    return Memory.from_tokens(join(parts))


def last(lengths: Tensor, n: int) -> Tensor:
    """Return the indices (R, n) of the last n tokens of each row; negative before its start."""
    return lengths[:, None] + torch.arange(-n, 0, device=lengths.device)
