"""Convert texts to token ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from dxn.tokenize.standalone.text_chars import ngrams


def read(value: Any, options: Mapping[str, Any]) -> str:
    """Return a text.

    Raises:
        ValueError: If it is not a text, or its first max_chars characters are blank.
    """
    if not isinstance(value, str):
        raise ValueError("must be a text")
    if not value[: options["max_chars"]].strip():
        raise ValueError("blank text")
    value.encode()  # raises UnicodeEncodeError, a ValueError, for half of a surrogate pair
    return value


def prepare(raws: Sequence[str], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return ids (B, N) and mask (B, N), True at real tokens.

    With character n-grams, also their hashes chars (B, N, G).

    Args:
        raws: B texts.
        options: Options of the input in preprocess.json.
    """
    tokenizer = Tokenizer.from_str(json.dumps(options["tokenizer"]))
    max_len, special = options["max_len"], options["special_tokens"]
    rows: list[list[int]] = []
    places: list[tuple[list[tuple[int, int]], list[int]]] = []
    texts = [text[: options["max_chars"]] for text in raws]
    for text in texts:
        encoding = tokenizer.encode(text, add_special_tokens=special)
        ids = encoding.ids
        # Truncation keeps the special tokens at the end.
        tail = 0
        while special and tail < len(ids) and encoding.special_tokens_mask[-1 - tail]:
            tail += 1
        kept = list(range(len(ids)))
        if len(ids) > max_len:
            kept = kept[: max_len - tail] + kept[len(ids) - tail :]
        rows.append([ids[i] for i in kept])
        marks = encoding.special_tokens_mask if special else [0] * len(ids)
        places.append((encoding.offsets, [-1 if marks[i] else i for i in kept]))
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(mask.shape, np.int64)
    ids[mask] = np.concatenate([np.array(row, np.int64) for row in rows])
    if "chars" not in options:
        return {"ids": ids, "mask": mask}
    return {"ids": ids, "mask": mask, "chars": ngrams(texts, places, options["chars"])}
