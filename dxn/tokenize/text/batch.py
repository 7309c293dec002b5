"""The encoding of several texts as one padded batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

PAD = 0  # id of padding; any valid id is suitable, because the mask excludes padding


def encode_texts(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    max_len: int,
    special_tokens: bool,
    change: Callable[[int, list[int]], list[int]] | None = None,
) -> dict[str, Tensor] | None:
    """Encode texts as a batch in the format of `TextPreprocessor.collate`.

    The coordinates are NaN: computing them takes a third of the time, and a loader does not need
    them.

    Args:
        tokenizer: The tokenizer.
        texts: B texts.
        max_len: Maximum number of tokens of a text. Longer texts are truncated.
        special_tokens: Add the special tokens of the tokenizer, such as [CLS] and [SEP].
        change: Function that returns other ids for those of text i, without its special tokens.

    Returns:
        None if the tokenizer cannot encode one of the texts.
    """
    encodings = _encodings(tokenizer, texts, special_tokens)
    if encodings is None:
        return None
    ids: list[list[int]] = []
    for i, encoding in enumerate(encodings):
        row = encoding.ids
        if change is not None or len(row) > max_len:
            lead, tail = special_ends(encoding.special_tokens_mask) if special_tokens else (0, 0)
            end = len(row) - tail
            text = row[lead:end] if change is None else change(i, row[lead:end])
            # Truncation keeps the special tokens at the end, as transformers does.
            row = [*row[:lead], *text[: max(max_len - lead - tail, 0)], *row[end:]]
        ids.append(row)
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    # One assignment for all texts takes less time than padding each of them.
    mask = np.arange(lengths.max()) < lengths[:, None]
    padded = np.full(mask.shape, PAD, np.int64)
    padded[mask] = np.fromiter(chain.from_iterable(ids), np.int64, lengths.sum())
    return {
        "ids": torch.from_numpy(padded),
        "mask": torch.from_numpy(mask),
        "coords": torch.full((1, 1, 1), torch.nan).expand(*mask.shape, 2),
        "words": torch.full((1, 1), -1).expand(mask.shape),
    }


def special_ends(special: Sequence[int]) -> tuple[int, int]:
    """Return the numbers of special tokens before and after the text."""
    text = [i for i, is_special in enumerate(special) if not is_special]
    return (text[0], len(special) - 1 - text[-1]) if text else (len(special), 0)


def _encodings(
    tokenizer: Tokenizer, texts: Sequence[str], special_tokens: bool
) -> list[Encoding] | None:
    try:
        # The threads of `encode_batch_fast` take longer than a single text.
        if len(texts) == 1:
            return [tokenizer.encode(texts[0], add_special_tokens=special_tokens)]
        return tokenizer.encode_batch_fast(list(texts), add_special_tokens=special_tokens)
    except BaseException as error:
        # See `dxn.tokenize.text.tokenizer.encode`.
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        return None
