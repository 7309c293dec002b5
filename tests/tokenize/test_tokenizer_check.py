"""An untrusted tokenizer.json can take neither hours nor gigabytes, nor end the process."""

import base64
import json
import struct
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from dxn.core import tokenizer_check
from dxn.core.errors import UserError
from dxn.core.tokenizer_check import regex_fault
from dxn.tokenize.text.options import TokenizerKind
from dxn.tokenize.text.vocabulary import encode, load_tokenizer, save_tokenizer, train_tokenizer

TEXTS = ["a fine day, isn't it?", "two words"]
# The patterns of well-known tokenizers.
USED = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Llama 3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}"
    r"\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "GPT-4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
    "CLIP": r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "BLOOM": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "DeepSeek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?"
    r"[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "possessive": r"\p{L}++|\s++$",
    "groups of three digits": r"\p{N}{1,3}(?=(?:\p{N}{3})*\b)",
    "spaces": " {2,}",
}
CATASTROPHIC = [
    *("(a+)+$", "(a*)*", "(a|a)*b", "(a|b|ab)*c", "((a+))+", "(?:a{2,})*", "a{2,}*", "(.*)*"),
    *("([a-z]+)*x", "(x+x+)+y", "(?:(?:a)+)+", "(a+){10}", "a*a*a*a*b", "(a?){50}a", "a?" * 30),
    *("(a|a)" * 30, "a{5000}", "a{0,99}" * 3, r"(a)\1", r"(?<x>a)\k<x>", "(?~ab)", r"\g<1>"),
]


def content_of(folder, kind="bpe"):
    path = folder / "tokenizer.json"
    train_tokenizer(TEXTS, kind=kind, vocab_size=300).save(str(path))
    return path, json.loads(path.read_text())


@pytest.mark.parametrize("name", USED)
def test_the_patterns_of_known_tokenizers_are_accepted(name):
    assert regex_fault(USED[name]) is None


@pytest.mark.parametrize("pattern", CATASTROPHIC)
def test_a_pattern_that_could_take_exponential_time_is_refused(pattern):
    assert regex_fault(pattern)


@given(pattern=st.text(alphabet="ab()[]{}*+?|\\^$.,12:p", max_size=30))
def test_any_text_can_be_checked_as_a_pattern(pattern):
    assert regex_fault(pattern) is None or regex_fault(pattern)


@pytest.mark.parametrize("kind", get_args(TokenizerKind))
def test_trained_tokenizers_are_accepted(tmp_path, kind):
    path, content = content_of(tmp_path, kind)
    assert load_tokenizer(path).to_str() == Tokenizer.from_str(json.dumps(content)).to_str()


def replace(pattern, inserted):
    return {"type": "Replace", "pattern": pattern, "content": inserted}


def charsmap(length):
    table = struct.pack("<I", 4) + bytes(4) + b"x" * length + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


A = {"String": "a"}
HOSTILE = {
    "a catastrophic pattern": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "invert": False}},
        "pre_tokenizer: the regular expression '(a+)+$' has a repetition",
    ),
    "a long replacement": (
        {"normalizer": replace(A, "y" * 100_000)},
        "normalizer: a rule inserts 100,000 characters, but at most 100 are allowed",
    ),
    "many replacements": (
        {"normalizer": {"type": "Sequence", "normalizers": [replace(A, "aa")] * 40}},
        "normalizer: the rules can make a text 1,099,511,627,776 times longer",
    ),
    "a replacement between all letters": (
        {"decoder": replace({"Regex": "x*"}, "y" * 99)},
        "decoder: the rules can make a text 100 times longer",
    ),
    "many rules": (
        {"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}] * 300}},
        "decoder: must have at most 200 rules, got 301",
    ),
    "a table with a long text": (
        {"normalizer": charsmap(1000)},
        "precompiled_charsmap replaces a letter by 1,000 bytes",
    ),
    "a damaged table": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AA=="}},
        "precompiled_charsmap is damaged",
    ),
    "a long piece": (
        {"model": {"type": "WordLevel", "vocab": {"q" * 5000: 0}, "unk_token": "q"}},
        "a piece of the vocabulary must have at most 2,000 characters, got 5,000",
    ),
    "long words": (
        {"model": {"type": "WordPiece", "vocab": {}, "max_input_chars_per_word": 10**9}},
        "model.max_input_chars_per_word must be at most 1,000",
    ),
    "no model": ({"model": None}, "not a tokenizer.json of the tokenizers library"),
    "a huge id": ({"model": {"type": "WordLevel", "vocab": {"a": 2**40}}}, "not a tokenizer.json"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_tokenizer_is_refused(tmp_path, case):
    path, content = content_of(tmp_path)
    changes, expected = HOSTILE[case]
    path.write_text(json.dumps({**content, **changes}))
    with pytest.raises(UserError) as caught:
        load_tokenizer(path)
    assert str(caught.value).startswith(f"{path}: ") and expected in str(caught.value)


def test_a_tokenizer_whose_time_grows_with_the_square_is_refused_by_the_trial(tmp_path):
    path, content = content_of(tmp_path)
    split = {"type": "Split", "pattern": {"Regex": "a*a*b"}, "behavior": "Isolated"}
    path.write_text(json.dumps({**content, "pre_tokenizer": {**split, "invert": False}}))
    with pytest.raises(UserError, match=r"takes more than 2 s|retry-limit"):
        load_tokenizer(path)


def test_the_trial_is_skipped_for_files_of_this_process_and_for_known_files(tmp_path, monkeypatch):
    tried = []
    monkeypatch.setattr(tokenizer_check, "_try", tried.append)
    monkeypatch.setattr(tokenizer_check, "_known", set())
    tokenizer = train_tokenizer(TEXTS, kind="word", vocab_size=30)
    save_tokenizer(tokenizer, tmp_path / "own.json")
    load_tokenizer(tmp_path / "own.json")
    assert tried == []
    path, _ = content_of(tmp_path)
    load_tokenizer(path)
    load_tokenizer(path)
    assert tried == [path]


def test_a_tokenizer_that_fails_on_a_text_is_one_sentence():
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(UserError, match=r"the tokenizer cannot encode 'a b' \("):
        encode(tokenizer, "a b")
