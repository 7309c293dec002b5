"""Character n-grams of words: which word a token belongs to, their hashes, and their vectors."""

import pickle
import random
import subprocess
import sys
import zlib

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.core.errors import UserError
from dxn.tasks import Language
from dxn.tokenize import NgramOptions, TextAdapter, TextAugment, TokenizerOptions
from dxn.tokenize.text.subwords import MAX_WORD, CharNgrams
from dxn.tokenize.text.vocabulary import SPECIALS

KINDS = ["bpe", "wordpiece", "unigram", "word", "character"]
SENTENCES = ["the tall man rows the boats", "boats, rowing, pass!", "a café near the bridge"]
BUCKETS = 997
OPTIONS = NgramOptions(chars=(3, 4), buckets=BUCKETS)


def adapter_of(kind="word", ngrams=OPTIONS, **options):
    torch.manual_seed(0)
    return TextAdapter(
        7, vocab_size=300, tokenizer=TokenizerOptions(kind), ngrams=ngrams, **options
    ).fit(SENTENCES)


def hashes(word, lengths=(3, 4)):
    """The hashes of all parts of <word> with these lengths."""
    marked = f"<{word}>"
    grams = [marked[i : i + n] for n in lengths for i in range(len(marked) - n + 1)]
    return [1 + zlib.crc32(gram.encode()) % BUCKETS for gram in grams]


def words_of(sample):
    """The hashes of each token, without padding."""
    return [[h for h in row if h] for row in sample["chars"].tolist()]


# The n-grams


def test_ngrams_have_marks_at_both_ends_of_a_word():
    grams = CharNgrams((3,), BUCKETS).of_word("tall")
    expected = [1 + zlib.crc32(gram) % BUCKETS for gram in (b"<ta", b"tal", b"all", b"ll>")]
    assert grams.tolist() == expected


def test_case_and_composition_of_letters_do_not_matter():
    grams = CharNgrams((3, 4), BUCKETS)
    assert grams.of_word("CAFE\u0301").tolist() == grams.of_word("café").tolist()


def test_a_word_without_spaces_has_a_limited_number_of_ngrams():
    assert len(CharNgrams((3,), BUCKETS).of_word("a" * 10_000)) == MAX_WORD
    assert CharNgrams((5,), BUCKETS).of_word("a").tolist() == []


def test_hashes_are_the_same_in_another_process():
    used = "C((3,), 997).of_word('oar')"
    code = f"from dxn.tokenize.text.subwords import CharNgrams as C; print({used})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(CharNgrams((3,), 997).of_word("oar"))


@settings(max_examples=50, deadline=None)
@given(word=st.text(min_size=1, max_size=50))
def test_any_text_is_a_word(word):
    grams = CharNgrams((2, 5), BUCKETS).of_word(word)
    assert all(1 <= gram <= BUCKETS for gram in grams.tolist())


# The word of a token


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_has_the_ngrams_of_its_whole_word(kind):
    prepare = adapter_of(kind).tokenizer
    raw = "boats tallest in"  # "tallest" is not in the training split
    sample = prepare(raw)
    words = words_of(sample)
    seen = []
    for (start, stop), own in zip(sample["coords"].tolist(), words, strict=True):
        if not raw[int(start) : int(stop)].strip():  # the token of a space
            continue
        word = raw[: int(stop)].split(" ")[-1]
        seen.append(next(w for w in raw.split() if w.startswith(word)))
        assert own == hashes(seen[-1])
    assert list(dict.fromkeys(seen)) == raw.split()


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_a_list_are_whole_words(kind):
    prepare = adapter_of(kind).tokenizer
    raw = ["near-by", "the", "boats"]
    sample = prepare(raw)
    owners = sample["words"].tolist()
    assert set(owners) == {0, 1, 2}
    assert words_of(sample) == [hashes(raw[owner]) for owner in owners]


def test_an_unknown_word_shares_ngrams_with_similar_words():
    prepare = adapter_of("word").tokenizer
    unknown, known = prepare("rowers"), prepare("rows")
    assert prepare.vocabulary.id_to_token(unknown["ids"].item()) == "[UNK]"
    common = set(words_of(unknown)[0]) & set(words_of(known)[0])
    assert {1 + zlib.crc32(gram) % BUCKETS for gram in (b"<ro", b"row", b"<row")} <= common


def test_masked_tokens_have_no_ngrams_and_split_ones_keep_them():
    prepare = adapter_of("word", augment=TextAugment(token_mask=0.5)).tokenizer
    sample = prepare(SENTENCES[0], random.Random(2))
    is_masked = (sample["ids"] == SPECIALS.index("[MASK]")).tolist()
    assert 0 < sum(is_masked) < len(is_masked)
    for word, masked, own in zip(SENTENCES[0].split(), is_masked, words_of(sample), strict=True):
        assert own == ([] if masked else hashes(word))
    split = adapter_of("bpe", augment=TextAugment(subword_dropout=1.0)).tokenizer
    sample = split("boats", random.Random(2))
    assert len(sample["ids"]) > 1
    assert words_of(sample) == [hashes("boats")] * len(sample["ids"])


def test_masked_pretraining_hides_all_ngrams():
    """The n-grams of a subword that is not masked would tell the rest of its word."""
    adapter = adapter_of("bpe")
    sample = adapter.masking()(adapter.tokenizer(SENTENCES[0]), random.Random(0))
    assert sample["chars"].shape[0] == len(sample["ids"]) and not sample["chars"].any()


# Vectors


def test_the_mean_vector_of_its_ngrams_is_added_to_a_token():
    adapter = adapter_of("word", pos_embed="none").double()
    tokens = adapter.tokens(["the boats"])
    ids = adapter.tokenizer("the boats")["ids"]
    for i, word in enumerate(["the", "boats"]):
        mean = adapter.char_embedding.weight[hashes(word)].mean(0)
        expected = adapter.embedding.weight[ids[i]] + mean
        torch.testing.assert_close(tokens.x[0, i], expected, rtol=0, atol=1e-12)


def test_a_token_without_ngrams_has_its_own_vector_only():
    adapter = adapter_of("word", NgramOptions(chars=(5,)), pos_embed="none")
    ids = adapter.tokenizer("a")["ids"]  # <a> has three characters
    torch.testing.assert_close(adapter.tokens(["a"]).x[0], adapter.embedding(ids), rtol=0, atol=0)


@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(
        st.lists(st.sampled_from(["the", "boats", "tallest", "!"]), min_size=1, max_size=9),
        min_size=2,
        max_size=4,
    ),
    extra=st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_padding_never_changes_a_real_token(texts, extra):
    adapter = adapter_of(conv_kernel=3, max_len=64).double().eval()
    prepare = adapter.tokenizer
    texts = [" ".join(text) for text in texts]
    batch = prepare.collate([prepare(text) for text in texts])
    tokens, grams = extra
    batch["ids"] = F.pad(batch["ids"], (0, tokens), value=0)
    batch["mask"] = F.pad(batch["mask"], (0, tokens))
    batch["coords"] = F.pad(batch["coords"], (0, 0, 0, tokens), value=torch.nan)
    batch["chars"] = F.pad(batch["chars"], (0, grams, 0, tokens))
    together = adapter(batch)
    for i, text in enumerate(texts):
        torch.testing.assert_close(together[i], adapter.tokens([text])[0], rtol=0, atol=1e-12)


def test_texts_that_are_encoded_together_equal_texts_that_are_encoded_alone():
    prepare = adapter_of("bpe").tokenizer
    for raws in (SENTENCES, [["two", "words"], ["one"]]):
        alone = prepare.collate([prepare(raw) for raw in raws])
        together = prepare.batch(raws)
        assert together.keys() == alone.keys() and torch.equal(together["chars"], alone["chars"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_ngrams_are_learned_and_padding_is_not(dtype):
    adapter = adapter_of().to(dtype)
    x = adapter.tokens(SENTENCES).x
    assert x.dtype == dtype
    x.float().square().sum().backward()
    gradient = adapter.char_embedding.weight.grad
    assert not gradient[0].any() and bool(gradient[hashes("boats")].any(1).all())


def test_a_pickled_preprocessor_gives_the_same_samples():
    prepare = adapter_of().tokenizer
    again = pickle.loads(pickle.dumps(prepare))
    assert torch.equal(prepare(SENTENCES[1])["chars"], again(SENTENCES[1])["chars"])


# Options


def test_there_are_no_character_ngrams_by_default():
    adapter = adapter_of(ngrams=NgramOptions())
    assert adapter.char_embedding is None
    assert "chars" not in adapter.tokenizer.collate([adapter.tokenizer("the boats")])


def test_ngrams_of_one_character_are_refused():
    with pytest.raises(ValueError, match=r"^chars.1 must be at least 2, got 1$"):
        NgramOptions(chars=[3, 1])


def test_language_models_refuse_character_ngrams():
    config = {"backbone": {"causal": True}, "adapters": {"story": {"ngrams": {"chars": [3]}}}}
    with pytest.raises(UserError, match=r"adapters.story.ngrams.chars: cannot be combined"):
        Language().check(config)
