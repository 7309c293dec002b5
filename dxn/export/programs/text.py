"""Convert texts to token ids."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

# A text, or the words of a text if the model tags them.
Raw = str | list[str]


def read(value: Any, options: Mapping[str, Any]) -> Raw:
    """Return a text, or its words if the options have a pattern of words.

    Args:
        value: A text. With a pattern, it can also be a list of words.
        options: Options of the input in preprocess.json.

    Raises:
        ValueError: If it is not a text, or its first max_chars characters are blank.
    """
    has_words = "words" in options
    words = [value]
    if has_words:
        words = re.findall(options["words"], value) if isinstance(value, str) else list(value)
    if not all(isinstance(word, str) for word in words):
        raise ValueError("must be a text")
    if not "".join(words)[: options["max_chars"]].strip():
        raise ValueError("blank text")
    "".join(words).encode()  # UnicodeEncodeError, a ValueError: half of a surrogate pair
    return words if has_words else value


def prepare(raws: Sequence[Raw], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return ids (B, N) and mask (B, N), True at real tokens.

    With a pattern of words, also words (B, N), the index of the word of each token, -1 at others.

    Args:
        raws: Results of `read`.
        options: Options of the input in preprocess.json.
    """
    tokenizer = Tokenizer.from_str(json.dumps(options["tokenizer"]))
    max_len, special = options["max_len"], options["special_tokens"]
    rows: list[list[int]] = []
    owners: list[list[int]] = []
    for raw in raws:
        text = _first(raw, options["max_chars"])
        prompt = options["prompt"]
        if prompt:
            text = prompt + text if isinstance(text, str) else [prompt, *text]
        encoding = tokenizer.encode(
            text, is_pretokenized=isinstance(text, list), add_special_tokens=special
        )
        ids = encoding.ids
        # Truncation keeps the special tokens at the end.
        tail = 0
        while special and tail < len(ids) and encoding.special_tokens_mask[-1 - tail]:
            tail += 1
        columns = list(range(len(ids)))
        if max_len is not None and len(ids) > max_len:
            columns = columns[: max_len - tail] + columns[len(ids) - tail :]
        # The model reads this padding, as in its training.
        num_pads = max(options["pad_to"] - len(columns), 0)
        rows.append([ids[i] for i in columns] + [options["pad_id"]] * num_pads)
        # The prompt is the word before the first one.
        first = 1 if prompt and isinstance(text, list) else 0
        words = [-1 if word is None else max(word - first, -1) for word in encoding.word_ids]
        owners.append([words[i] for i in columns] + [-1] * num_pads)
    mask = np.arange(max(map(len, rows))) < np.array([[len(row)] for row in rows])
    result = {"ids": _padded(rows, mask, 0), "mask": mask}
    if "words" in options:
        result["words"] = _padded(owners, mask, -1)
    return result


def offsets(text: str, options: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the start and the stop of each token in a text, without special tokens.

    The combining marks that follow a letter belong to its token.
    """
    tokenizer = Tokenizer.from_str(json.dumps(options["tokenizer"]))
    encoding = tokenizer.encode(text, add_special_tokens=options["special_tokens"])
    starts = {start for start, _ in encoding.offsets}
    spans: list[tuple[int, int]] = []
    for (start, stop), is_special in zip(
        encoding.offsets, encoding.special_tokens_mask, strict=True
    ):
        if is_special and options["special_tokens"]:
            continue
        end = stop
        while start < end < len(text) and end not in starts and not text[end].isspace():
            end += 1
        spans.append((start, end))
    return spans


def _first(raw: Raw, count: int) -> Raw:
    """Return the first `count` characters of a text or of words."""
    if isinstance(raw, str):
        return raw[:count]
    first: list[str] = []
    for word in raw:
        if count <= 0:
            break
        first.append(word[:count])
        count -= len(word)
    return first


def _padded(rows: Sequence[Sequence[int]], mask: np.ndarray, value: int) -> np.ndarray:
    padded = np.full(mask.shape, value, np.int64)
    padded[mask] = np.concatenate([np.array(row, np.int64) for row in rows])
    return padded
