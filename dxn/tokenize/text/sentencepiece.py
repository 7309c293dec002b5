"""Reading the unigram models of SentencePiece (arXiv:1808.06226), such as source.spm of Marian.

A file is a message of protocol buffers. Only a few of its fields are read.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dxn.core.errors import UserError
from dxn.core.untrusted import MAX_JSON_BYTES, check_file, load_json, shortened

# Numbers of the fields of a file, of its settings, and of a piece.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
MODEL_TYPE, CHARS_MAP = 3, 2
TEXT, SCORE, KIND = 1, 2, 3
UNIGRAM = 1  # value of MODEL_TYPE
NORMAL, USER_DEFINED = 1, 4  # values of KIND: pieces that occur in texts
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # types of a field
UNKNOWN, END, PAD = "<unk>", "</s>", "<pad>"
PENALTY = 10.0  # of a character that no piece has, as in SentencePiece
# Before a piece of the vocabulary that the file does not have, such as one of the other language.
# It is from the private use area, so no text contains the piece. The decoder removes it.
UNUSED = "\ue000"


def tokenizer_json(path: Path, vocab: Path) -> str:
    """Return the content of a tokenizer.json for a unigram model and a vocabulary with its ids.

    A piece that the vocabulary does not have is split into shorter ones.

    Args:
        path: The model.
        vocab: Path of vocab.json: the id of each piece.

    Raises:
        UserError: If a file cannot be read.
    """
    ids = load_json(vocab, allow_links=True)
    if not isinstance(ids, dict) or sorted(map(str, ids.values())) != sorted(
        map(str, range(len(ids)))
    ):
        raise UserError(
            f"{vocab}: must contain a different id from 0 to n - 1 for each of n pieces, got "
            f"{shortened(ids)}; download it again"
        )
    missing = [piece for piece in (UNKNOWN, END) if piece not in ids]
    if missing:
        raise UserError(f"{vocab}: has no {missing[0]}; download it again")
    scores, chars = _read(path)
    pieces = sorted(ids, key=ids.__getitem__)
    special = [p for p in pieces if p in (UNKNOWN, END, PAD) or p[:2] + p[-2:] == ">><<"]
    # A character that only the vocabulary has is found as one that nobody has: if nothing else is.
    scores |= {p: min(scores.values()) - PENALTY for p in ids if len(p) == 1 and p not in scores}
    scores |= dict.fromkeys(special, 0.0)
    entries = [[p, scores[p]] if p in scores else [UNUSED + p, 0.0] for p in pieces]
    steps: list[dict[str, Any]] = [
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    ]
    if chars:
        encoded = base64.b64encode(chars).decode()
        steps.insert(0, {"type": "Precompiled", "precompiled_charsmap": encoded})
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    unchanged = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": ids[p], "content": p, "special": True, **unchanged} for p in special]
    first = {"Sequence": {"id": "A", "type_id": 0}}
    last = {"SpecialToken": {"id": END, "type_id": 0}}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": space,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, last],
            "pair": [first, {"Sequence": {"id": "B", "type_id": 0}}, last],
            "special_tokens": {END: {"id": END, "ids": [ids[END]], "tokens": [END]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": UNUSED}, "content": ""},
                space,
            ],
        },
        "model": {
            "type": "Unigram",
            "unk_id": ids[UNKNOWN],
            "vocab": entries,
            "byte_fallback": False,
        },
    }
    return json.dumps(content)


def _read(path: Path) -> tuple[dict[str, float], bytes]:
    """Return the score of each piece, and the rules that replace characters."""
    check_file(path, allow_links=True)
    if (size := path.stat().st_size) > MAX_JSON_BYTES:
        raise UserError(f"{path}: must have at most {MAX_JSON_BYTES:,} bytes, got {size:,}")
    scores: dict[str, float] = {}
    chars, model_type = b"", UNIGRAM
    try:
        for number, value in _fields(path.read_bytes()):
            if number == PIECES:
                piece = {KIND: NORMAL, SCORE: bytes(4), **dict(_fields(value))}
                if piece[KIND] in (NORMAL, USER_DEFINED):
                    scores[piece[TEXT].decode()] = struct.unpack("<f", piece[SCORE])[0]
            elif number == TRAINER:
                model_type = dict(_fields(value)).get(MODEL_TYPE, UNIGRAM)
            elif number == NORMALIZER:
                chars = dict(_fields(value)).get(CHARS_MAP, b"")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, struct.error) as error:
        raise UserError(f"{path}: not a model of SentencePiece; download it again") from error
    if model_type != UNIGRAM or not scores:
        raise UserError(
            f"{path}: must be a unigram model (type {UNIGRAM}) with pieces, got the type "
            f"{model_type} and {len(scores)} pieces; add tokenizer.json"
        )
    return scores, chars


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field of a message: an integer, or bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == VARINT:
            value, position = _varint(data, position)
        else:
            if kind == BYTES:
                size, position = _varint(data, position)
            else:
                size = {FIXED64: 8, FIXED32: 4}[kind]
            value = data[position : position + size]
            position += size
            if len(value) < size:
                raise ValueError
        yield tag >> 3, value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return an integer with 7 bits per byte, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise ValueError
