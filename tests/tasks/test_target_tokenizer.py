"""Texts that a model writes: to ids between a begin and an end token, and back."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from dxn.core.errors import UserError
from dxn.core.files import TARGET_TOKENIZER as FILE
from dxn.tasks.generate.target_tokenizer import TargetTokenizer
from dxn.tasks.generate.task import Texts
from dxn.tokenize import TextAdapter, TokenizerOptions
from dxn.tokenize.text.vocabulary import SPECIALS, train_tokenizer

TEXTS = [
    "ein roter ball",
    "zwei blaue Bälle rollen",
    "drei Hunde, ein Ball",
    "der Hund sieht zwei rote Bälle",
]
KINDS = ("bpe", "wordpiece", "unigram", "word", "character")
BEGIN, END = SPECIALS.index("[BOS]"), SPECIALS.index("[EOS]")


def fitted(kind="bpe", texts=TEXTS, *, lowercase=False, vocab_size=307, **options):
    tokenizer = TokenizerOptions(kind, lowercase=lowercase)
    target = TargetTokenizer(vocab_size=vocab_size, tokenizer=tokenizer, **options)
    target.fit(texts)
    return target


def from_file(path):
    return TargetTokenizer(tokenizer=TokenizerOptions(path=str(path)))


def words_file(path, *specials):
    """Write a tokenizer.json over words with these special tokens."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "rot": 1, "blau": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(specials))
    tokenizer.save(str(path))
    return str(path)


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_reverses_encoding(kind):
    target = fitted(kind)
    for text in TEXTS[:2]:  # a tokenizer over words changes the space before a comma
        ids = target.encode(text)
        assert ids.dtype == torch.long and ids[0] == BEGIN and ids[-1] == END
        assert not {BEGIN, END} & set(ids[1:-1].tolist())
        assert int(ids.max()) < target.text_tokenizer.size
        assert target.decode(ids.tolist()) == text
        assert target.decode(ids[1:-1].tolist()) == text


@pytest.mark.parametrize(
    ("kind", "pieces"),
    [
        ("word", ["ein", "Ball"]),
        ("character", ["e", "i", "n", "·", "B", "a", "l", "l"]),
        ("bpe", ["ein", "Ball"]),
        ("wordpiece", ["ein", "Ball"]),
    ],
)
def test_each_kind_of_tokenizer_cuts_as_its_name_says(kind, pieces):
    target = fitted(kind)
    assert target.text_tokenizer.pieces(target.encode("ein Ball").tolist()) == [
        "[BOS]",
        *pieces,
        "[EOS]",
    ]


@settings(max_examples=40, deadline=None)
@given(text=st.text(st.characters(blacklist_categories=("Cs",)), max_size=40))
def test_decoding_reverses_byte_level_encoding_of_any_text(text):
    target = over_bytes()
    normal = target.text_tokenizer.normalize(text)
    found = target.decode(target.encode(text).tolist())
    for special in SPECIALS:  # the name of a special token in raw text becomes that token
        normal = normal.replace(special, "")
    assert found == normal.strip()


BYTES = fitted()


def over_bytes():
    return BYTES


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=60), max_len=st.integers(2, 23))
def test_at_most_max_len_tokens_are_predicted(text, max_len):
    whole = over_bytes().encode(text)
    target = TargetTokenizer(max_len=max_len)
    target.use_vocabulary(over_bytes().text_tokenizer.vocabulary)
    ids = target.encode(text)
    assert torch.equal(ids, whole[: max_len + 1])
    assert (int(ids[-1]) == END) == (len(whole) <= max_len + 1)


def test_a_text_that_is_cut_has_no_end_token():
    """Five words and the end are six tokens to predict, after the begin token."""
    text = "zwei rote Bälle ein ball"
    cut, whole = (fitted("word", max_len=n).encode(text).tolist() for n in (5, 6))
    assert len(cut) == 6 and END not in cut
    assert len(whole) == 7 and whole == [*cut, END]


def test_an_empty_text_is_a_begin_and_an_end_token():
    assert fitted().encode("").tolist() == [BEGIN, END]
    assert fitted().decode([BEGIN, END]) == ""


def test_decoding_leaves_out_special_tokens():
    target = fitted("word")
    ids = [
        target.text_tokenizer.vocabulary.token_to_id(token)
        for token in ("[PAD]", "ein", "[BOS]", "[UNK]", "Ball", "[MASK]")
    ]
    assert target.decode(ids) == "ein Ball"


def test_lowercase_applies_to_encoding_and_normalize():
    target = fitted("word", lowercase=True)
    assert (
        target.decode(target.encode("DREI Hunde").tolist())
        == "drei hunde"
        == target.text_tokenizer.normalize("DREI Hunde")
    )
    assert fitted("word").text_tokenizer.normalize("DREI Hunde") == "DREI Hunde"


def test_letters_and_combining_accents_are_composed():
    apart, one = "Ba\u0308lle", "B\u00e4lle"
    target = fitted("character")
    assert target.text_tokenizer.normalize(apart) == one
    assert torch.equal(target.encode(apart), target.encode(one))


def test_without_a_normalizer_normalize_returns_the_text(tmp_path):
    target = from_file(words_file(tmp_path / "t.json", "<s>", "</s>"))
    assert target.text_tokenizer.normalize("Ba\u0308LL") == "Ba\u0308LL"


@pytest.mark.parametrize(
    ("specials", "begin", "end"),
    [
        (("<s>", "</s>"), "<s>", "</s>"),
        (("<bos>", "<eos>"), "<bos>", "<eos>"),
        (("[CLS]", "[SEP]"), "[CLS]", "[SEP]"),
        (("<|endoftext|>",), "<|endoftext|>", "<|endoftext|>"),
        (("[SEP]", "[CLS]", "</s>", "<s>", "[EOS]", "[BOS]"), "[BOS]", "[EOS]"),
    ],
)
def test_a_tokenizer_from_a_file_uses_its_own_begin_and_end_tokens(tmp_path, specials, begin, end):
    target = from_file(words_file(tmp_path / "t.json", *specials))
    expected = [
        target.text_tokenizer.vocabulary.token_to_id(token) for token in (begin, "rot", "blau", end)
    ]
    assert target.encode("rot blau").tolist() == expected and None not in expected
    assert target.decode(expected) == "rot blau"


@pytest.mark.parametrize(
    ("specials", "message"),
    [
        ((), r"head.tokenizer: the tokenizer has no begin token \(\[BOS\], <s>"),
        (("</s>",), "no begin token"),
        (("<s>",), r"head.tokenizer: the tokenizer has no end token \(\[EOS\], </s>"),
    ],
)
def test_a_tokenizer_without_begin_or_end_token_is_refused(tmp_path, specials, message):
    path = words_file(tmp_path / "t.json", *specials)
    with pytest.raises(UserError, match=message):
        from_file(path)


def test_a_tokenizer_from_a_file_is_not_trained(tmp_path):
    target = from_file(words_file(tmp_path / "t.json", "<s>", "</s>"))
    target.fit(["ganz andere Wörter"])
    assert (
        target.text_tokenizer.size == 5
        and "andere" not in target.text_tokenizer.vocabulary.get_vocab()
    )


def test_truncation_and_padding_of_a_tokenizer_file_are_ignored(tmp_path):
    tokenizer = Tokenizer.from_file(words_file(tmp_path / "t.json", "<s>", "</s>"))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=11)
    tokenizer.save(str(tmp_path / "t.json"))
    ids = from_file(tmp_path / "t.json").encode("rot blau rot blau rot")
    assert len(ids) == 7


def test_size_covers_gaps_between_ids():
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "<s>": 3, "</s>": 13}, unk_token="[UNK]"))
    target = TargetTokenizer()
    target.use_vocabulary(tokenizer)
    assert target.text_tokenizer.size == 14


def test_a_tokenizer_can_be_shared_with_a_text_adapter():
    adapter = TextAdapter(8, tokenizer=TokenizerOptions("word")).fit(["two red balls", *TEXTS])
    target = TargetTokenizer()
    target.use_vocabulary(adapter.tokenizer.vocabulary)
    assert (
        target.encode("zwei balls")[1:-1].tolist()
        == adapter.tokenizer("zwei balls")["ids"].tolist()
    )
    assert target.text_tokenizer.size == adapter.embedding.num_embeddings
    target.fit(["nothing of this"])  # a tokenizer that is set is not trained
    assert target.text_tokenizer.vocabulary is adapter.tokenizer.vocabulary


@pytest.mark.parametrize("kind", KINDS)
def test_load_reverses_save(tmp_path, kind):
    target = fitted(kind)
    target.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE] == ["target_tokenizer.json"]
    other = TargetTokenizer(max_len=128).load(tmp_path)
    for text in [*TEXTS, "etwas Neues"]:
        assert torch.equal(other.encode(text), target.encode(text))
    assert (other.text_tokenizer.size, other.begin_ids, other.end_ids) == (
        target.text_tokenizer.size,
        target.begin_ids,
        target.end_ids,
    )


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "character"])
def test_split_tokens_spell_the_same_text(kind):
    plain, splitting = fitted(kind), fitted(kind, subword_dropout=0.5)
    text = TEXTS[0]
    whole = plain.encode(text).tolist()
    assert splitting.encode(text).tolist() == plain.encode(text, random.Random(1)).tolist() == whole
    drawn = [splitting.encode(text, random.Random(seed)).tolist() for seed in range(11)]
    assert drawn == [splitting.encode(text, random.Random(seed)).tolist() for seed in range(11)]
    assert {splitting.decode(ids) for ids in drawn} == {text}
    assert all(ids[0] == BEGIN and ids[-1] == END for ids in drawn)
    assert (len({len(ids) for ids in drawn} - {len(whole)}) > 0) == (kind != "character")


def test_a_text_that_subword_dropout_makes_too_long_is_cut():
    splitting = fitted(subword_dropout=1.0, max_len=7)
    assert len(splitting.encode(TEXTS[3], random.Random(1))) == 8


def test_training_is_deterministic():
    first, second = (fitted("wordpiece").text_tokenizer.vocabulary for _ in range(2))
    assert first.to_str() == second.to_str()
    expected = train_tokenizer(TEXTS, kind="bpe", vocab_size=307).to_str()
    assert fitted("bpe").text_tokenizer.vocabulary.to_str() == expected


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda _: TargetTokenizer(max_len=1),
            ValueError,
            "max_len must be at least 2, got 1",
        ),
        (
            lambda _: TargetTokenizer(tokenizer=TokenizerOptions(special_tokens=True)),
            ValueError,
            "tokenizer.special_tokens=true is not supported for target texts",
        ),
        (
            lambda folder: TargetTokenizer(
                tokenizer=TokenizerOptions(path=str(folder / "no.json"))
            ),
            UserError,
            "no.json: file not found",
        ),
        (
            lambda folder: TargetTokenizer().load(folder),
            UserError,
            "target_tokenizer.json: file not found",
        ),
        (lambda _: fitted(subword_dropout=1.5), ValueError, "must be at most 1, got 1.5"),
        (
            lambda _: TargetTokenizer(tokenizer=TokenizerOptions(pad_to=7)),
            ValueError,
            "tokenizer.pad_to, tokenizer.marker and tokenizer.prompt have no effect",
        ),
        (
            lambda _: TargetTokenizer(vocab_size=None),
            ValueError,
            "vocab_size must be an integer, got None",
        ),
        (lambda _: fitted("syllable"), ValueError, "kind must be one of 'bpe', 'wordpiece'"),
        (
            lambda _: TargetTokenizer().encode("rot"),
            ValueError,
            r"not trained yet: call fit\(texts\) or set tokenizer.path",
        ),
    ],
)
def test_wrong_options_and_calls_are_refused_with_the_reason(tmp_path, make, error, message):
    with pytest.raises(error, match=message):
        make(tmp_path)


def test_the_tokens_within_max_len_are_counted():
    tokenizer = TargetTokenizer(tokenizer=TokenizerOptions(kind="word"), max_len=4)
    tokenizer.fit(["a b c d e f"])
    target = Texts(tokenizer)
    # Six words and the end token.
    assert target.kept("a b c d e f", {}, {}) == (4, 7)
    assert target.kept("a b c", {}, {}) is None
