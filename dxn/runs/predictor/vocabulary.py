"""The vocabulary of a model, and its nearest tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from dxn.core.errors import UserError
from dxn.tokenize.base import Adapter
from dxn.tokenize.text.vocabulary import encode


def vocabulary_adapter(adapters: Mapping[str, Any], name: str | None) -> Adapter:
    """Return the adapter of an input that has a vocabulary.

    Args:
        adapters: The adapter of each input, by input name.
        name: Name of the input. None: the first input with a vocabulary.

    Raises:
        UserError: If the input does not exist, or there is no vocabulary.
    """
    if name is not None and name not in adapters:
        raise UserError(f"input: this model has the inputs {', '.join(adapters)}, got {name}")
    for candidate in [name] if name is not None else adapters:
        adapter = adapters[candidate]
        if adapter.has_vocabulary:
            return adapter
    searched = name or ", ".join(adapters)
    raise UserError(f"this model has no vocabulary for its inputs: {searched}")


def nearest_tokens(adapter: Adapter, token: str, count: int) -> list[tuple[str, float]]:
    """Return the tokens with the most similar embeddings, and their cosine similarities.

    Raises:
        UserError: If `token` is not a token of the vocabulary.
    """
    tokenizer = adapter.tokenizer.vocabulary
    embedding = F.normalize(adapter.embedding.weight.float(), dim=-1)
    index = _token_id(tokenizer, token)
    itself = torch.tensor([index], device=embedding.device)
    # A token is most similar to itself; minus infinity takes it out of topk.
    cosine = (embedding @ embedding[index]).index_fill(0, itself, -torch.inf)
    best = cosine.topk(min(count, len(embedding) - 1))
    ids = best.indices.tolist()
    names = [tokenizer.decode([i], skip_special_tokens=False) for i in ids]
    return list(zip(names, best.values.tolist(), strict=True))


def _token_id(tokenizer: Any, token: str) -> int:
    """Return the id of one token of the vocabulary.

    Raises:
        UserError: If the tokenizer splits the token, or does not know it.
    """
    # Encoding applies the normalization of the tokenizer, such as lowercase. A token such as
    # "##ing" is split by it and only found by its exact name.
    ids = encode(tokenizer, token, add_special_tokens=False).ids
    index = ids[0] if len(ids) == 1 else tokenizer.token_to_id(token)
    unknown = getattr(tokenizer.model, "unk_token", None)
    if index is not None and (tokenizer.id_to_token(index) != unknown or token == unknown):
        return index
    if len(ids) > 1:
        pieces = [tokenizer.decode([i], skip_special_tokens=False) for i in ids]
        raise UserError(
            f"token: {token!r} is not one token of the vocabulary, but is split into "
            f"{' | '.join(pieces)}; choose one of these tokens"
        )
    raise UserError(f"token: {token!r} is not in the vocabulary; choose another token")
