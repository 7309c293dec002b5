"""Convert texts to token ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer


def prepare(values: Sequence[str], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return ids (B, N) and mask (B, N), True at real tokens.

    Args:
        values: B texts.
        options: Options of the input in preprocess.json.
    """
    tokenizer = Tokenizer.from_str(json.dumps(options["tokenizer"]))
    max_len, special = options["max_len"], options["special_tokens"]
    rows: list[list[int]] = []
    for text in values:
        encoding = tokenizer.encode(text[: options["max_chars"]], add_special_tokens=special)
        ids = encoding.ids
        # Truncation keeps the special tokens at the end.
        tail = 0
        while special and tail < len(ids) and encoding.special_tokens_mask[-1 - tail]:
            tail += 1
        rows.append(ids if len(ids) <= max_len else ids[: max_len - tail] + ids[len(ids) - tail :])
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(mask.shape, np.int64)
    ids[mask] = np.concatenate([np.array(row, np.int64) for row in rows])
    return {"ids": ids, "mask": mask}
