"""Texts that a model writes: to ids between a beginning and an end, and back."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from dxn.errors import UserError
from dxn.tokenize import TargetTokenizer, TextAdapter
from dxn.tokenize.target import FILE
from dxn.tokenize.text import SPECIALS, train_tokenizer

TEXTS = ["ein roter ball", "zwei blaue Bälle rollen", "drei Hunde, ein Ball", "der Hund sieht zwei rote Bälle"]
KINDS = ("bpe", "wordpiece", "unigram", "word", "character")
BEGIN, END = SPECIALS.index("[BOS]"), SPECIALS.index("[EOS]")


def fitted(subwords="bpe", texts=TEXTS, **options):
    target = TargetTokenizer(subwords=subwords, vocab_size=options.pop("vocab_size", 307), **options)
    target.fit(texts)
    return target


def words_file(path, *specials):
    """A tokenizer.json over words, whose special tokens are these."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "rot": 1, "blau": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(specials))
    tokenizer.save(str(path))
    return str(path)


@pytest.mark.parametrize("subwords", KINDS)
def test_what_was_learned_from_comes_back(subwords):
    target = fitted(subwords)
    for text in TEXTS[:2]:  # words lose the space before a comma, and what stands there comes back with one
        ids = target.encode(text)
        assert ids.dtype == torch.long and ids[0] == BEGIN and ids[-1] == END
        assert not {BEGIN, END} & set(ids[1:-1].tolist())
        assert int(ids.max()) < target.size
        assert target.decode(ids.tolist()) == text
        assert target.decode(ids[1:-1].tolist()) == text


@pytest.mark.parametrize(
    ("subwords", "pieces"),
    [
        ("word", ["ein", "Ball"]),
        ("character", ["e", "i", "n", "·", "B", "a", "l", "l"]),
        ("bpe", ["ein", "Ball"]),
        ("wordpiece", ["ein", "Ball"]),
    ],
)
def test_each_kind_of_subwords_is_cut_as_its_name_says(subwords, pieces):
    target = fitted(subwords)
    assert target.pieces(target.encode("ein Ball").tolist()) == ["[BOS]", *pieces, "[EOS]"]


@settings(max_examples=40, deadline=None)
@given(text=st.text(st.characters(blacklist_categories=("Cs",)), max_size=40))
def test_over_bytes_any_text_comes_back(text):
    target = over_bytes()
    normal = target.normal(text)
    found = target.decode(target.encode(text).tolist())
    for special in SPECIALS:  # a special token's name in a raw text is that token
        normal = normal.replace(special, "")
    assert found == normal.strip()


BYTES = fitted()


def over_bytes():
    return BYTES


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=60), max_len=st.integers(2, 23))
def test_never_more_tokens_to_guess_than_max_len(text, max_len):
    whole = over_bytes().encode(text)
    target = TargetTokenizer(max_len=max_len)
    target.use(over_bytes().tokenizer)
    ids = target.encode(text)
    assert torch.equal(ids, whole[: max_len + 1])
    assert (int(ids[-1]) == END) == (len(whole) <= max_len + 1)


def test_a_text_that_is_cut_has_no_end():
    """Five words and the end are six tokens to guess, behind the beginning."""
    text = "zwei rote Bälle ein ball"
    cut, whole = (fitted("word", max_len=n).encode(text).tolist() for n in (5, 6))
    assert len(cut) == 6 and END not in cut
    assert len(whole) == 7 and whole == [*cut, END]


def test_an_empty_text_is_a_beginning_and_an_end():
    assert fitted().encode("").tolist() == [BEGIN, END]
    assert fitted().decode([BEGIN, END]) == ""


def test_special_tokens_that_were_written_are_left_out():
    target = fitted("word")
    ids = [target.tokenizer.token_to_id(token) for token in ("[PAD]", "ein", "[BOS]", "[UNK]", "Ball", "[MASK]")]
    assert target.decode(ids) == "ein Ball"


def test_in_lower_case_capitals_are_lost_on_both_sides():
    target = fitted("word", lowercase=True)
    assert target.decode(target.encode("DREI Hunde").tolist()) == "drei hunde" == target.normal("DREI Hunde")
    assert fitted("word").normal("DREI Hunde") == "DREI Hunde"


def test_letters_and_their_accents_are_written_as_one():
    apart, one = "Ba\u0308lle", "B\u00e4lle"
    target = fitted("character")
    assert target.normal(apart) == one
    assert torch.equal(target.encode(apart), target.encode(one))


def test_without_a_normalizer_a_text_is_normal_as_it_is(tmp_path):
    target = TargetTokenizer(tokenizer=words_file(tmp_path / "t.json", "<s>", "</s>"))
    assert target.normal("Ba\u0308LL") == "Ba\u0308LL"


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
def test_a_given_tokenizer_begins_and_ends_with_what_it_has(tmp_path, specials, begin, end):
    target = TargetTokenizer(tokenizer=words_file(tmp_path / "t.json", *specials))
    expected = [target.tokenizer.token_to_id(token) for token in (begin, "rot", "blau", end)]
    assert target.encode("rot blau").tolist() == expected and None not in expected
    assert target.decode(expected) == "rot blau"


@pytest.mark.parametrize(
    ("specials", "message"),
    [
        ((), r"target_text.tokenizer: it has no token to begin a text with \(\[BOS\], <s>"),
        (("</s>",), "no token to begin a text with"),
        (("<s>",), r"target_text.tokenizer: it has no token to end a text with \(\[EOS\], </s>"),
    ],
)
def test_a_given_tokenizer_without_a_beginning_or_an_end_is_refused(tmp_path, specials, message):
    path = words_file(tmp_path / "t.json", *specials)
    with pytest.raises(UserError, match=message):
        TargetTokenizer(tokenizer=path)


def test_a_given_tokenizer_is_not_learned_again(tmp_path):
    target = TargetTokenizer(tokenizer=words_file(tmp_path / "t.json", "<s>", "</s>"))
    target.fit(["ganz andere Wörter"])
    assert target.size == 5 and "andere" not in target.tokenizer.get_vocab()


def test_what_a_given_tokenizer_would_cut_and_pad_by_itself_is_not_cut_and_padded(tmp_path):
    tokenizer = Tokenizer.from_file(words_file(tmp_path / "t.json", "<s>", "</s>"))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=11)
    tokenizer.save(str(tmp_path / "t.json"))
    ids = TargetTokenizer(tokenizer=str(tmp_path / "t.json")).encode("rot blau rot blau rot")
    assert len(ids) == 7


def test_a_tokenizer_with_gaps_needs_a_row_for_its_last_token():
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "<s>": 3, "</s>": 13}, unk_token="[UNK]"))
    target = TargetTokenizer()
    target.use(tokenizer)
    assert target.size == 14


def test_a_shared_tokenizer_reads_and_writes_the_same_ids():
    adapter = TextAdapter(dim=8, subwords="word").fit(["two red balls", *TEXTS])
    target = TargetTokenizer(share=True)
    target.use(adapter.prepare.tokenizer)
    assert target.encode("zwei balls")[1:-1].tolist() == adapter.prepare("zwei balls")["ids"].tolist()
    assert target.size == adapter.table.num_embeddings
    target.fit(["nothing of this"])  # what is shared is not learned again
    assert target.tokenizer is adapter.prepare.tokenizer


@pytest.mark.parametrize("subwords", KINDS)
def test_a_saved_tokenizer_comes_back(tmp_path, subwords):
    target = fitted(subwords)
    target.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE] == ["target_tokenizer.json"]
    other = TargetTokenizer(max_len=128).load(tmp_path)
    for text in [*TEXTS, "etwas Neues"]:
        assert torch.equal(other.encode(text), target.encode(text))
    assert (other.size, other.begin, other.end) == (target.size, target.begin, target.end)


@pytest.mark.parametrize("subwords", ["bpe", "wordpiece", "unigram", "character"])
def test_halved_subwords_spell_the_same_text(subwords):
    plain, halving = fitted(subwords), fitted(subwords, subword_dropout=0.5)
    text = TEXTS[0]
    whole = plain.encode(text).tolist()
    assert halving.encode(text).tolist() == plain.encode(text, random.Random(1)).tolist() == whole
    drawn = [halving.encode(text, random.Random(seed)).tolist() for seed in range(11)]
    assert drawn == [halving.encode(text, random.Random(seed)).tolist() for seed in range(11)]
    assert {halving.decode(ids) for ids in drawn} == {text}
    assert all(ids[0] == BEGIN and ids[-1] == END for ids in drawn)
    assert (len({len(ids) for ids in drawn} - {len(whole)}) > 0) == (subwords != "character")


def test_a_text_that_halving_makes_too_long_is_cut():
    halving = fitted(subword_dropout=1.0, max_len=7)
    assert len(halving.encode(TEXTS[3], random.Random(1))) == 8


def test_the_same_texts_teach_the_same_tokenizer():
    assert fitted("wordpiece").tokenizer.to_str() == fitted("wordpiece").tokenizer.to_str()
    assert fitted("bpe").tokenizer.to_str() == train_tokenizer(TEXTS, subwords="bpe", vocab_size=307).to_str()


def unfinished(call):
    return lambda _: call(TargetTokenizer())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda _: TargetTokenizer(max_len=1), ValueError, "max_len must be at least 2, a token and the end, got 1"),
        (
            lambda folder: TargetTokenizer(share=True, tokenizer=words_file(folder / "t.json", "<s>", "</s>")),
            ValueError,
            "share takes the text adapter's tokenizer: give adapters.text.tokenizer instead",
        ),
        (lambda folder: TargetTokenizer(tokenizer=str(folder / "no.json")), UserError, "no.json: not a tokenizer.json"),
        (lambda folder: TargetTokenizer().load(folder), UserError, "target_tokenizer.json: not a tokenizer.json"),
        (lambda _: fitted(subword_dropout=1.5), ValueError, "subword_dropout is a probability, got 1.5"),
        (lambda _: TargetTokenizer(subwords="syllable").fit(TEXTS), ValueError, "subwords must be bpe, wordpiece"),
        (unfinished(lambda t: t.encode("rot")), ValueError, r"not trained yet: call fit\(texts\) or give tokenizer="),
        (unfinished(lambda t: t.decode([1])), ValueError, "not trained yet"),
        (unfinished(lambda t: t.size), ValueError, "not trained yet"),
        (unfinished(lambda t: t.normal("rot")), ValueError, "not trained yet"),
    ],
)
def test_what_cannot_be_says_why(tmp_path, make, error, message):
    with pytest.raises(error, match=message):
        make(tmp_path)
