"""The unigram models of SentencePiece: pieces, ids of another file, and damaged files."""

import json

import pytest
from helpers.sentencepiece import field, save_spm

from dxn.core.errors import UserError
from dxn.tokenize.text.vocabulary import load_tokenizer
from dxn.weights.tokenizers import read_tokenizer

SCORES = {"▁the": -3.0, "▁house": -4.0, "▁": -3.5, "house": -6.0, "s": -5.0, "h": -7.0}
VOCAB = ["</s>", "<unk>", "▁house", "▁", "s", "▁the", "h", "▁Haus", "ü", ">>deu<<"]


def save(folder):
    return save_spm(folder / "source.spm", SCORES, VOCAB)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("the house", ["▁the", "▁house"]),
        ("  the \n", ["▁the"]),
        ("houses", ["▁house", "s"]),
        ("Haus", ["▁", "<unk>", "s"]),  # the piece is only in the other file
        ("hüs", ["▁", "h", "ü", "s"]),  # a character that is only in the vocabulary
        ("", []),
        (">>deu<< the", [">>deu<<", "▁the"]),
    ],
)
def test_texts_have_the_ids_of_the_vocabulary(text, tokens, tmp_path):
    save(tmp_path)
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer is not None
    ids = tokenizer.encode(text).ids
    assert ids == [*(VOCAB.index(token) for token in tokens), 0]
    if "<unk>" not in tokens:
        assert tokenizer.decode(ids) == text.strip().removeprefix(">>deu<< ")


def test_a_piece_of_the_other_file_is_written(tmp_path):
    save(tmp_path)
    assert load_tokenizer(tmp_path / "source.spm").decode([5, 7, 4]) == "the Hauss"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "source.spm: not a model of SentencePiece; download it again"),
        (lambda data: b"\xff" * 30, "source.spm: not a model of SentencePiece"),
        (lambda data: data + field(2, field(3, 2)), "source.spm: must be a unigram model"),
        (lambda data: b"", "with pieces, got the type 1 and 0 pieces; add tokenizer.json"),
    ],
)
def test_a_damaged_file_is_refused(change, message, tmp_path):
    (tmp_path / "source.spm").write_bytes(change(save(tmp_path)))
    with pytest.raises(UserError, match=message):
        load_tokenizer(tmp_path / "source.spm")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ({"</s>": 0, "<unk>": 2}, "must contain a different id from 0 to n - 1"),
        ({"</s>": 0, "<unk>": "x"}, "must contain a different id"),
        (["</s>"], "must contain a different id"),
        ({"</s>": 0}, "vocab.json: has no <unk>"),
    ],
)
def test_a_wrong_vocabulary_is_refused(ids, message, tmp_path):
    save(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    with pytest.raises(UserError, match=message):
        load_tokenizer(tmp_path / "source.spm")
