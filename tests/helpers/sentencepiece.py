"""Models of SentencePiece, written without its library."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any


def varint(value: int) -> bytes:
    parts: list[int] = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, value: Any) -> bytes:
    """A field of a message of protocol buffers."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def save_spm(path: Path, scores: dict[str, float], vocab: list[str]) -> bytes:
    """Write a unigram model, and vocab.json beside it; return the content of the model."""
    unknown = field(1, b"<unk>") + field(2, 0.0) + field(3, 2)
    parts = [unknown, *(field(1, p.encode()) + field(2, score) for p, score in scores.items())]
    data = b"".join(field(1, part) for part in parts) + field(2, field(3, 1))
    path.write_bytes(data)
    ids = {piece: i for i, piece in enumerate(vocab)}
    path.with_name("vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    return data
