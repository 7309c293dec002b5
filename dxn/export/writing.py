"""The graphs of a model that writes: the encoder, and a decoder with an explicit cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.export.examples import Tensors
from dxn.export.graph import Graph, encode
from dxn.models.attention import Group
from dxn.models.backbone import Backbone
from dxn.models.decoding.decoder import Decoder, KVCache, Memory
from dxn.models.decoding.output_layer import output_layer_of
from dxn.models.model import MultimodalModel
from dxn.models.positions import token_index

# Lengths of the previous tokens and of the new tokens in the cases that are traced and checked.
# The first ones are above 1, because torch.export would make a size of 1 a constant.
LENGTHS = ((4, 3), (0, 5), (6, 1), (0, 1), (2, 2), (5, 4))


class EncoderGraph(nn.Module):
    """The encoder: from prepared inputs to the keys and values that the decoder attends to.

    Args:
        graph: Graph of the model, of which only the inputs are used.
        decoder: The decoder.
    """

    def __init__(self, graph: Graph, decoder: Decoder):
        super().__init__()
        # Not called `graph`, which is an attribute of the modules that torch.export creates.
        self.inner = graph
        self.decoder = decoder

    def forward(self, inputs: Tensors) -> Tensors:
        """Return memory_keys and memory_values (L, B, H, M, d), and memory_mask (B, M)."""
        tokens, _ = encode(self.inner.network.models[0], self.inner.batch(inputs))
        return memory_of(Memory.from_tokens(tokens), self.decoder)


class DecoderGraph(nn.Module):
    """One step of a decoder with cross-attention: from token ids to the logits of the next ones.

    Args:
        decoder: The decoder.
    """

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, inputs: Tensors) -> Tensors:
        """Return logits (B, n, V), and new_keys and new_values (L, B, H, P + n, d).

        Args:
            inputs: ids (B, n) of the new tokens; keys and values (L, B, H, P, d) of the P previous
                tokens; memory_keys, memory_values and memory_mask of the encoder.
        """
        caches = _caches(inputs)
        pairs = zip(caches, inputs["memory_keys"], inputs["memory_values"], strict=True)
        for cache, key, value in pairs:
            cache.memory = key, value
        ids = inputs["ids"]
        mask = torch.ones(ids.shape[0], inputs["keys"].shape[3] + ids.shape[1], dtype=torch.bool)
        # The decoder reads only the mask of the memory: its keys and values are in the caches.
        memory = Memory(inputs["memory_keys"], inputs["memory_mask"][:, None, None])
        states = self.decoder.states(ids, mask, memory, caches)
        return {"logits": self.decoder.output(states), **_joined(caches)}


class LanguageGraph(nn.Module):
    """One step of a language model: from token ids to the logits of the next ones.

    Args:
        model: The model.
    """

    def __init__(self, model: MultimodalModel):
        super().__init__()
        self.model = model
        adapter: Any = next(iter(model.adapters.values()))
        self.output = output_layer_of(model.head, adapter.embedding)

    def forward(self, inputs: Tensors) -> Tensors:
        """Return logits (B, n, V), and new_keys and new_values (L, B, H, P + n, d).

        Args:
            inputs: ids (B, n) of the new tokens; mask (B, P + n), True at the real tokens of the
                whole sequence; keys and values (L, B, H, P, d) of the P previous tokens.
        """
        ids, mask = inputs["ids"], inputs["mask"]
        new = ids.shape[1]
        caches = _caches(inputs)
        adapter: Any = next(iter(self.model.adapters.values()))
        batch = {
            "ids": ids,
            "mask": mask[:, -new:],
            "token_index": token_index(mask)[:, -new:],
            "coords": torch.zeros(ids.shape[0], new, 2),
        }
        x = self.model.backbone.run(adapter(batch).x, mask, caches=caches)
        return {"logits": self.output(self.model.backbone.norm(x)), **_joined(caches)}


class GraphCache(KVCache):
    """A cache whose tensors have exactly the columns of the tokens.

    Args:
        keys: (B, H, P, d). Keys of the previous tokens.
        values: (B, H, P, d).
    """

    def __init__(self, keys: Tensor, values: Tensor):
        super().__init__()
        self.keys, self.values = keys, values

    @property
    def is_empty(self) -> bool:
        """False, because the graph must be correct for any number of previous tokens."""
        return False

    def extend(self, key: Tensor, value: Tensor, group: Group) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, H, n, d) of new tokens, and return all."""
        self.keys = torch.cat([self.keys, key], 2)
        self.values = torch.cat([self.values, value], 2)
        return self.keys, self.values


def memory_of(memory: Memory, decoder: Decoder) -> Tensors:
    """Return the keys and values of a memory for each block of a decoder, and its mask."""
    blocks: Any = decoder.backbone.blocks
    if memory.attn_mask is None:
        mask = torch.ones(memory.x.shape[:2], dtype=torch.bool)
    else:
        mask = memory.attn_mask[:, 0, 0]
    # The values at padding have no meaning, and depend on whether a batch was packed.
    x = torch.where(mask[..., None], memory.x, 0.0)
    pairs = [block.cross.keys_and_values(x) for block in blocks]
    return {
        "memory_keys": torch.stack([key for key, _ in pairs]),
        "memory_values": torch.stack([value for _, value in pairs]),
        "memory_mask": mask,
    }


def check_backbones(network: nn.Module) -> None:
    """Check that all backbones are transformers.

    Raises:
        UserError: If one is recurrent: its loop over the tokens depends on their number.
    """
    for module in network.modules():
        if isinstance(module, nn.GRU | nn.LSTM):
            raise UserError(
                "export: a model with a recurrent backbone or decoder cannot be exported; train "
                "with a transformer, such as backbone=nano"
            )


def language_cases(model: MultimodalModel) -> list[Tensors]:
    """Return inputs of a `LanguageGraph`, with padding between a prompt and its new tokens.

    Raises:
        UserError: If an embedding depends on previous tokens.
    """
    adapter: Any = next(iter(model.adapters.values()))
    if not adapter.has_vocabulary or adapter.lookback != 0:
        raise UserError(
            "export: the embedding of a token must not depend on the tokens before it; train "
            "without adapters.text.conv_kernel"
        )
    backbone: Backbone = model.backbone
    vocabulary, limit = adapter.embedding.num_embeddings, adapter.tokenizer.max_len
    cases: list[Tensors] = []
    for size, (past, new) in enumerate(_lengths(limit), 2):
        case = _step(backbone, size, past, new, vocabulary)
        mask = torch.ones(size, past + new, dtype=torch.bool)
        mask[0, max(past, 1) // 2 + 1 : past] = False
        cases.append({**case, "mask": mask})
    return cases


def decoder_cases(decoder: Decoder, memories: Sequence[Tensors]) -> list[Tensors]:
    """Return inputs of a `DecoderGraph` for the outputs of the encoder."""
    vocabulary = len(decoder.output.matrix)
    pairs = zip(memories, _lengths(decoder.max_len), strict=True)
    return [
        {**_step(decoder.backbone, len(m["memory_mask"]), past, new, vocabulary), **m}
        for m, (past, new) in pairs
    ]


def _lengths(limit: int) -> list[tuple[int, int]]:
    """Return the numbers of previous and new tokens of each case, within a maximum length."""
    return [(min(past, max(limit - new, 0)), min(new, limit)) for past, new in LENGTHS]


def _step(backbone: Backbone, size: int, past: int, new: int, vocabulary: int) -> Tensors:
    """Return random ids, and keys and values of previous tokens."""
    blocks: Any = backbone.blocks
    heads = blocks[0].attn.heads[-1]
    shape = (len(blocks), size, heads, past, backbone.head_dim)
    generator = torch.Generator().manual_seed(size)
    return {
        "ids": torch.randint(vocabulary, (size, new), generator=generator),
        "keys": torch.randn(shape, generator=generator),
        "values": torch.randn(shape, generator=generator),
    }


def _caches(inputs: Tensors) -> list[GraphCache]:
    pairs = zip(inputs["keys"].unbind(0), inputs["values"].unbind(0), strict=True)
    return [GraphCache(key, value) for key, value in pairs]


def _joined(caches: Sequence[GraphCache]) -> Tensors:
    keys = torch.stack([cache.keys for cache in caches])
    return {"new_keys": keys, "new_values": torch.stack([cache.values for cache in caches])}
