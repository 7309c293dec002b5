"""The token ids of all texts, in memory and in a file."""

import os
import pickle
import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from dxn.core.errors import UserError
from dxn.data import token_windows as module
from dxn.data.rows import Column
from dxn.data.token_windows import token_ids
from dxn.tokenize.text.tokenizer import TextTokenizer
from dxn.tokenize.text.vocabulary import train_tokenizer

# Characters that a normalizer joins, words without spaces, punctuation and names of special tokens.
PIECES = [
    "the red cat ",
    "don't. ",
    "e\u0301a\u0308 ",
    "你好世界。",
    "ΣΑΣ ς ",
    "3141,59 ",
    "ACGT",
    "<mask>",
]
TEXTS = ["".join(random.Random(i).choices(PIECES, k=47)) for i in range(11)]


def bpe(pre_tokenizer, normalizer):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.normalizer = pre_tokenizer, normalizer
    special = ["<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=211, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


KINDS = ["bpe", "wordpiece", "unigram", "word", "character"]
TOKENIZERS = {kind: train_tokenizer(TEXTS, kind=kind, vocab_size=211) for kind in KINDS}
for scheme in ("first", "always", "never"):
    split = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    TOKENIZERS[f"metaspace, {scheme}"] = bpe(split, normalizers.NFKC())
TOKENIZERS["strip"] = bpe(pre_tokenizers.ByteLevel(add_prefix_space=True), normalizers.Strip())
UNCUTTABLE = bpe(pre_tokenizers.Whitespace(), normalizers.Prepend("▁"))


def tokenizer_of(name="word"):
    return over(TOKENIZERS[name])


def over(vocabulary):
    tokenizer = TextTokenizer(max_len=7)
    tokenizer.use_vocabulary(vocabulary)
    return tokenizer


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the files, which are written for few characters too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "MAX_IN_MEMORY", 13)
    return tmp_path / "dxn" / "tokens"


def in_memory(texts, tokenizer):
    """What `token_ids` has to return, from one call of the library per text."""
    end = tokenizer.vocabulary.token_to_id("[EOS]")
    ids, starts = [], []
    for text in texts:
        ids += [end] * bool(ids)
        starts.append(len(ids))
        words = isinstance(text, list)
        ids += tokenizer.vocabulary.encode(text, is_pretokenized=words).ids
    return ids, starts


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_pieces_of_a_text_have_its_tokens(name, monkeypatch):
    monkeypatch.setattr(module, "PIECE", 61)
    vocabulary = TOKENIZERS[name]
    count = 0
    for text in TEXTS:
        pieces = list(module._pieces(text, vocabulary))
        count += len(pieces)
        assert "".join(pieces) == text
        parts = [i for piece in pieces for i in vocabulary.encode(piece).ids]
        assert parts == vocabulary.encode(text).ids
    assert count > len(TEXTS)


def test_a_text_is_not_cut_if_each_piece_would_have_another_token(monkeypatch):
    monkeypatch.setattr(module, "PIECE", 61)
    text = "the red cat " * 23
    assert list(module._pieces(text, UNCUTTABLE)) == [text]


@settings(max_examples=20, deadline=None)
@given(
    texts=st.lists(st.text("ab .", min_size=1, max_size=29), min_size=1, max_size=7),
    name=st.sampled_from(["character", "bpe"]),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 31), st.integers(1, 11)),
)
def test_batches_of_any_size_have_the_ids_of_single_texts(texts, name, sizes):
    tokenizer = tokenizer_of(name)
    with pytest.MonkeyPatch.context() as patch:
        for limit, size in zip(("BATCH_TEXTS", "BATCH_CHARS", "PIECE"), sizes, strict=True):
            patch.setattr(module, limit, size)
        found = token_ids(Column(texts), tokenizer)
    assert (found.ids.tolist(), found.starts.tolist()) == in_memory(texts, tokenizer)
    assert found.num_chars == sum(map(len, texts))


def test_lists_of_words_and_texts_can_be_mixed(cache):
    texts = ["the red cat", ["the", "red cat"], "cat"]
    found = token_ids(Column(texts), tokenizer_of())
    assert (found.ids.tolist(), found.starts.tolist()) == in_memory(texts, tokenizer_of())
    assert found.num_chars == 11 + 11 + 3


def test_a_file_has_two_bytes_per_token_and_is_mapped(cache):
    tokenizer = tokenizer_of()
    found = token_ids(Column(TEXTS), tokenizer)
    assert isinstance(found.ids, np.memmap) and found.ids.dtype == np.uint16
    assert (found.ids.tolist(), found.starts.tolist()) == in_memory(TEXTS, tokenizer)
    assert found.path is not None
    assert found.path.stat().st_size == 128 + 2 * len(found.ids)
    assert {path.suffix for path in cache.iterdir()} == {".npy", ".lock"}


def test_a_large_vocabulary_needs_four_bytes_per_token():
    words = {f"word{i}": i for i in range((1 << 16) + 1)}
    vocabulary = Tokenizer(models.WordLevel(words, unk_token="word0"))
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    found = token_ids(Column(["word65536 word7"]), over(vocabulary))
    assert found.ids.dtype == np.uint32 and found.ids.tolist() == [1 << 16, 7]


def test_the_same_texts_and_tokenizer_use_the_same_file(cache, monkeypatch):
    first = token_ids(Column(TEXTS), tokenizer_of())
    with monkeypatch.context() as patch:
        patch.setattr(module, "_write", None)
        assert token_ids(Column(TEXTS), tokenizer_of()).path == first.path
    others = [
        token_ids(Column(TEXTS[1:]), tokenizer_of()),
        token_ids(Column(TEXTS), tokenizer_of("bpe")),
    ]
    assert len({first.path, *(other.path for other in others)}) == 3


def test_a_process_that_is_not_forked_maps_the_file(cache):
    found = token_ids(Column(TEXTS), tokenizer_of())
    sent = pickle.dumps(found)
    assert len(sent) < 500
    again = pickle.loads(sent)
    assert isinstance(again.ids, np.memmap) and again.ids.tolist() == found.ids.tolist()
    assert (again.num_chars, again.path) == (found.num_chars, found.path)


def test_a_file_that_was_cut_off_is_written_again(cache):
    found = token_ids(Column(TEXTS), tokenizer_of())
    expected = found.ids.tolist()
    os.truncate(found.path, 140)
    assert token_ids(Column(TEXTS), tokenizer_of()).ids.tolist() == expected


def test_a_file_that_was_not_used_for_a_month_is_deleted(cache):
    old = token_ids(Column(TEXTS), tokenizer_of()).path
    used = token_ids(Column(TEXTS[2:]), tokenizer_of()).path
    for path in cache.iterdir():
        os.utime(path, (0, time.time() - 31 * 24 * 3600))
    token_ids(Column(TEXTS[2:]), tokenizer_of())
    token_ids(Column(TEXTS[3:]), tokenizer_of())
    assert used.exists() and not old.exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(cache, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        UserError, match=r"file/dxn/tokens/\w+\.npy: token ids cannot be written \(.*Not a"
    ):
        token_ids(Column(TEXTS), tokenizer_of())


def test_the_text_that_cannot_be_encoded_is_named():
    vocabulary = Tokenizer(models.WordLevel({"cat": 0}, unk_token="[UNK]"))
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(UserError, match="the tokenizer cannot encode 'a dog' "):
        token_ids(Column(["cat", "a dog"]), over(vocabulary))
