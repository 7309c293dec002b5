"""Text to Tokens: every kind of subword, places in the raw text, noise in training, padding."""

import pickle
import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from dxn.errors import UserError
from dxn.tokenize import BadMedia, TextAdapter, train_tokenizer
from dxn.tokenize.text import SPECIALS, load_tokenizer

KINDS = ["bpe", "wordpiece", "unigram", "word", "character"]
SENTENCES = [
    "the old man the boats and the tall man rows",
    "boats, rowing under the bridge, pass the tallest houses!",
    "a naïve café near the bridge sells tea and coffee",
    "日本語の本を読む 日本の本",
    "rain 🌧️ and sun 🌞 over the boats 🚣🏽",
    "cafe\u0301 is cafe and a mark of its own",  # e and a combining accent
]


def adapter_of(kind="bpe", **options):
    torch.manual_seed(0)
    return TextAdapter(7, subwords=kind, vocab_size=400, **options).fit(SENTENCES)


def pieces_of(adapter, sample):
    return [adapter.prepare.tokenizer.id_to_token(i) for i in sample["ids"].tolist()]


def spans_of(sample, raw):
    return [raw[int(a) : int(b)] for a, b in sample["places"].tolist()]


def cheap_text():
    words = st.sampled_from(["the", "boats", "man", "tall", "rows", "tea", "café", "bridge"])
    return st.lists(words, min_size=1, max_size=11).map(" ".join)


# Training and places


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_subword_learns_and_gives_its_text_back(kind):
    tokenizer = adapter_of(kind).prepare.tokenizer
    assert [tokenizer.id_to_token(i) for i in range(len(SPECIALS))] == list(SPECIALS)
    text = "the tall man rows under the bridge"
    ids = tokenizer.encode(text).ids
    assert tokenizer.token_to_id("[UNK]") not in ids
    decoded = tokenizer.decode(ids)
    assert decoded == text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("raw", SENTENCES)
def test_places_cut_out_of_the_raw_text_what_each_token_stands_for(kind, raw):
    adapter = adapter_of(kind)
    sample = adapter.prepare(raw)
    spans = spans_of(sample, raw)
    # Every character that is not a space is some token's, and tokens stand in reading order.
    seen = {i for a, b in sample["places"].long().tolist() for i in range(a, b)}
    assert seen >= {i for i, c in enumerate(raw) if not c.isspace()}
    assert sample["places"][:, 0].diff().min() >= 0
    if kind == "bpe" or sample["ids"].eq(1).any():
        return  # a byte of a character stands where the whole character does
    normalize = adapter.prepare.tokenizer.normalizer.normalize_str
    for piece, span in zip(pieces_of(adapter, sample), spans, strict=True):
        letters = piece.removeprefix("##").replace("▁", "").strip()
        if letters:  # a space alone, put before the first word, stands where that word begins
            assert letters == normalize(span).strip()


def test_byte_level_pieces_point_at_their_words():
    adapter = adapter_of("bpe")
    raw = "the boats 🚣🏽 café 日本"
    sample = adapter.prepare(raw)
    assert adapter.prepare.tokenizer.decode(sample["ids"].tolist()) == raw
    for token, span in zip(sample["ids"].tolist(), spans_of(sample, raw), strict=True):
        text = adapter.prepare.tokenizer.decode([token]).strip()
        assert text == span or "\ufffd" in text  # the replacement sign: part of a character's bytes


def test_bytes_never_seen_are_never_unknown():
    raw = "ᚠᛇᚻ ﷽ 𓀀"
    adapter = adapter_of("bpe")
    ids = adapter.prepare(raw)["ids"].tolist()
    assert 1 not in ids and adapter.prepare.tokenizer.decode(ids) == raw.replace("\u0301", "")


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "word", "character"])
def test_what_was_never_seen_is_unknown_and_keeps_its_place(kind):
    sample = adapter_of(kind).prepare("the ᚠ")
    assert sample["ids"][-1] == 1
    assert sample["places"][-1].tolist()[1] == 5


def test_characters_are_one_token_each_of_the_composed_text():
    adapter = adapter_of("character")
    sample = adapter.prepare("cafe\u0301 本🌞")
    assert pieces_of(adapter, sample) == ["c", "a", "f", "é", " ", "本", "🌞"]
    assert sample["places"].tolist() == [[0, 1], [1, 2], [2, 3], [3, 5], [5, 6], [6, 7], [7, 8]]


def test_lower_case_is_as_asked():
    adapter = adapter_of("word", lowercase=True)
    assert pieces_of(adapter, adapter.prepare("THE Boats")) == ["the", "boats"]
    assert adapter_of("word").prepare("THE boats")["ids"][0] == 1


def test_the_vocabulary_is_no_larger_than_asked():
    for kind in KINDS:
        size = 300 if kind == "bpe" else 97  # all 256 bytes are in it
        assert train_tokenizer(SENTENCES * 5, subwords=kind, vocab_size=size).get_vocab_size() <= size


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "unigram"])  # its library gives rare letters random scores
def test_training_again_gives_the_same_tokenizer(kind):
    first, *others = [train_tokenizer(SENTENCES, subwords=kind, vocab_size=400).to_str() for _ in range(5)]
    assert all(other == first for other in others)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_special_tokens_are_special(kind):
    added = adapter_of(kind).prepare.tokenizer.get_added_tokens_decoder()
    assert [added[i].content for i in sorted(added)] == list(SPECIALS)


def test_the_marks_of_inner_pieces_are_plain_text_in_raw_text():
    adapter = adapter_of("wordpiece")
    assert pieces_of(adapter, adapter.prepare("##a")) == ["[UNK]", "[UNK]", "a"]


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="subwords must be bpe, wordpiece, unigram, word or character, got 'syllable'"):
        train_tokenizer(SENTENCES, subwords="syllable")


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_of_words_says_whose_each_subword_is(kind):
    words = ["the", "tallest", "café", "boats", "日本"]
    raw = " ".join(words)
    adapter = adapter_of(kind)
    sample = adapter.prepare(words)
    assert sample["words"].unique().tolist() == list(range(5))
    for word, span in zip(sample["words"].tolist(), spans_of(sample, raw), strict=True):
        assert span.strip() in words[word]
    starts = [raw.index(w) for w in words]
    for (a, b), word in zip(sample["places"].tolist(), sample["words"].tolist(), strict=True):
        assert starts[word] <= a and b <= starts[word] + len(words[word])
    assert adapter.prepare(raw)["words"].unique().tolist() == [-1]


# Limits


def test_what_is_beyond_max_len_is_cut_and_counted():
    whole = adapter_of("word").prepare("the man rows the boats")
    sample = adapter_of("word", max_len=3).prepare("the man rows the boats")
    assert whole["cut"] == 0 and sample["cut"] == 2
    for name in ("ids", "places", "words"):
        assert torch.equal(sample[name], whole[name][:3])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("", "^blank text$"),
        (" \n\t\u3000", "^blank text$"),
        ([], "^blank text$"),
        (["", " "], "^blank text$"),
        ("a" * 1009, "^1,009 characters, more than max_chars=1,008$"),
        (["a" * 1000, "b" * 9], "^1,009 characters, more than max_chars=1,008$"),
    ],
)
def test_a_bad_text_says_why(raw, message):
    with pytest.raises(BadMedia, match=message):
        adapter_of(max_chars=1008).prepare.read(raw)


def test_what_is_not_text_is_a_type_error():
    with pytest.raises(TypeError, match=r"text must be a str or a list of str, got \[3\]"):
        adapter_of().prepare.read([3])


def test_reading_a_good_text_changes_nothing():
    read = adapter_of(max_chars=5).prepare.read
    assert read(" a\nb ") == " a\nb " and read(("ab", "cde")) == ["ab", "cde"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"conv_kernel": 4}, "conv_kernel must be odd, or 0 for none, got 4"),
        ({"ngrams": [2, 1]}, r"ngrams must be lengths of at least 2, got \[2, 1\]"),
        ({"tokenizer": "/nowhere/tokenizer.json"}, r"/nowhere/tokenizer.json: not a tokenizer.json that can be read"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        TextAdapter(7, **options)


def test_an_adapter_without_a_tokenizer_says_to_fit_it():
    sample = adapter_of().prepare("the boats")
    with pytest.raises(ValueError, match=r"no tokenizer yet: call fit\(texts\) or give tokenizer="):
        adapter = TextAdapter(7)
        adapter(adapter.prepare.collate([sample]))


# Noise in training


NOISE = [{"subword_dropout": 0.5}, {"token_dropout": 0.5}, {"token_mask": 0.5}]


@pytest.mark.parametrize("options", NOISE)
@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_noise_is_a_function_of_its_seed_and_absent_without_one(options, kind):
    clean, noisy = adapter_of(kind).prepare, TextAdapter(7, **options).prepare
    noisy.use(clean.tokenizer)
    raw = SENTENCES[0]

    def columns(prepare, rng):
        sample = prepare(raw, rng)
        return sample["ids"].tolist(), sample["places"].tolist()

    assert columns(noisy, None) == columns(clean, None) == columns(clean, random.Random(3))
    drawn = [columns(noisy, random.Random(seed)) for seed in range(11)]
    assert drawn == [columns(noisy, random.Random(seed)) for seed in range(11)]
    assert len({str(d) for d in drawn}) > 5 and columns(clean, None) not in drawn


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "character"])
def test_halved_subwords_spell_the_same_text_in_the_same_places(kind):
    adapter = adapter_of(kind, subword_dropout=1.0)
    raw = SENTENCES[0]
    whole, halved = adapter.prepare(raw), adapter.prepare(raw, random.Random(5))
    tokenizer = adapter.prepare.tokenizer

    def spelt(sample):
        return "".join(p.removeprefix("##") for p in pieces_of(adapter, sample))

    assert spelt(halved) == spelt(whole)
    assert tokenizer.decode(halved["ids"].tolist()) == raw
    assert (len(halved["ids"]) > len(whole["ids"])) == (kind != "character")
    spans = [span for span in spans_of(halved, raw) if span.strip()]
    assert "".join(spans).replace(" ", "") == raw.replace(" ", "")
    assert halved["places"][:, 0].diff().min() >= 0


def test_each_half_stands_at_its_own_letters():
    adapter = adapter_of("wordpiece", subword_dropout=1.0)
    for seed in range(7):
        sample = adapter.prepare("the boats", random.Random(seed))
        spans = spans_of(sample, "the boats")
        assert [p.removeprefix("##") for p in pieces_of(adapter, sample)] == spans


@pytest.mark.parametrize("raw", ["the tall man", "tall tall man", "a the tall"])
def test_each_half_of_a_byte_level_piece_stands_at_its_own_letters(raw):
    adapter = adapter_of("bpe", subword_dropout=1.0)
    for seed in range(7):
        sample = adapter.prepare(raw, random.Random(seed))
        decoded = [adapter.prepare.tokenizer.decode([i]).strip() for i in sample["ids"].tolist()]
        assert [span.strip() for span in spans_of(sample, raw)] == decoded


def test_token_dropout_leaves_out_its_share_and_at_least_one_stays():
    prepare = adapter_of("character", token_dropout=0.3, max_len=5000).prepare
    raw = "the boats " * 101
    kept = len(prepare(raw, random.Random(1))["ids"]) / len(raw)
    assert kept == pytest.approx(0.7, abs=0.05)
    alone = adapter_of("word", token_dropout=1.0).prepare("the boats", random.Random(1))
    assert alone["places"].tolist() == [[0, 3]]


def test_masked_tokens_keep_their_places():
    prepare = adapter_of("character", token_mask=0.3, max_len=5000).prepare
    raw = "the boats " * 101
    clean, noisy = prepare(raw), prepare(raw, random.Random(1))
    masked = noisy["ids"] == SPECIALS.index("[MASK]")
    assert float(masked.float().mean()) == pytest.approx(0.3, abs=0.05)
    assert torch.equal(noisy["ids"][~masked], clean["ids"][~masked])
    assert torch.equal(noisy["places"], clean["places"])


@pytest.mark.parametrize("raw", ["the tall boats", ["the", "tall", "boats"], "a" * 97])
def test_the_size_of_a_text_is_how_many_tokens_it_gets(raw):
    prepare = adapter_of(max_len=11).prepare
    assert prepare.size(raw) == len(prepare(raw)["ids"])


def test_preparing_works_the_same_in_another_process():
    prepare = adapter_of(subword_dropout=0.5).prepare
    again = pickle.loads(pickle.dumps(prepare))
    assert torch.equal(prepare("the boats", random.Random(2))["ids"], again("the boats", random.Random(2))["ids"])


# Embedding


@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(cheap_text(), min_size=2, max_size=4),
    options=st.sampled_from(
        [{"conv_kernel": 5}, {"ngrams": (2, 3)}, {"ngrams": (2, 5), "ngram_columns": True, "conv_kernel": 3}]
    ),
    extra=st.integers(0, 7),
)
def test_padding_never_changes_a_real_token(texts, options, extra):
    adapter = adapter_of(max_len=64, ngram_buckets=101, **options).double().eval()
    prepare = adapter.prepare
    batch = prepare.collate([prepare(text) for text in texts])
    batch["ids"] = F.pad(batch["ids"], (0, extra), value=0)
    batch["mask"] = F.pad(batch["mask"], (0, extra))
    batch["places"] = F.pad(batch["places"], (0, 0, 0, extra), value=torch.nan)
    together = adapter(batch)
    for i, text in enumerate(texts):
        torch.testing.assert_close(together[i], adapter.tokens([text])[0], rtol=0, atol=1e-12)


def test_the_convolution_reads_both_neighbours_and_no_padding():
    adapter = adapter_of("word", conv_kernel=3, position="none").double()
    batch = adapter.prepare.collate([adapter.prepare("the man rows"), adapter.prepare("the man rows the boats")])
    x = adapter.table(batch["ids"][0, :3]).T
    padded = F.pad(x, (1, 1))
    weight, bias = adapter.conv.weight, adapter.conv.bias
    columns = [torch.einsum("oik,ik->o", weight, padded[:, i : i + 3]) + bias for i in range(3)]
    expected = x + F.gelu(torch.stack(columns, 1))
    torch.testing.assert_close(adapter(batch)[0], expected, rtol=0, atol=1e-12)


def slow_ngrams(adapter, ids):
    """(N, D): for every n, the vector of the n ids that end at each token, ids before the text being 0."""
    total = torch.zeros(len(ids), adapter.dim, dtype=torch.float64)
    for n in adapter.ngrams:
        for end in range(len(ids)):
            code = n
            for back in range(n):
                code = (code * 1_000_003 + (ids[end - back] if end >= back else 0)) % 2_147_483_647
            total[end] += adapter.ngram_table.weight[code % 101]
    return total


def test_hashed_ngrams_equal_the_written_out_loop():
    adapter = adapter_of("word", ngrams=(2, 3, 5), ngram_buckets=101, position="none").double()
    ids = adapter.prepare(SENTENCES[0])["ids"]
    expected = adapter.table(ids) + slow_ngrams(adapter, ids.tolist())
    torch.testing.assert_close(adapter.tokens([SENTENCES[0]]).x[0], expected, rtol=0, atol=1e-12)


def test_ngram_columns_stand_behind_the_subwords_at_the_same_places():
    adapter = adapter_of("word", ngrams=(3,), ngram_buckets=101, ngram_columns=True, position="none").double()
    tokens = adapter.tokens(["the man rows the boats", "the man"])
    ids = adapter.prepare("the man rows the boats")["ids"]
    torch.testing.assert_close(tokens.x[0, :5], adapter.table(ids), rtol=0, atol=0)
    torch.testing.assert_close(tokens.x[0, 5:], slow_ngrams(adapter, ids.tolist()), rtol=0, atol=1e-12)
    assert tokens.mask[1].tolist() == [True, True, False, False, False] * 2
    places = tokens.spans[0].places
    torch.testing.assert_close(places[:, 5:], places[:, :5], rtol=0, atol=0, equal_nan=True)


def test_runs_of_the_same_words_in_another_order_have_other_vectors():
    adapter = adapter_of("word", ngrams=(2,), position="none")
    one, other = adapter.tokens(["the man"])[0], adapter.tokens(["man the"])[0]
    assert not torch.allclose(
        one[:, 1] - adapter.table.weight[adapter.prepare("man")["ids"][0]], other[:, 1], atol=1e-4
    )
    assert not torch.allclose(one.sum(1), other.sum(1), atol=1e-4)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_positions_are_added_to_the_vectors(position):
    options = {"subwords": "word", "position": position}
    adapter = TextAdapter(10, **options).fit(SENTENCES)
    ids = adapter.prepare("the man rows")["ids"]
    expected = adapter.table(ids) + adapter.position(3, ids.device)
    torch.testing.assert_close(adapter.tokens(["the man rows"]).x[0], expected, rtol=0, atol=0)


def test_without_positions_permuting_the_words_permutes_the_columns():
    adapter = adapter_of("word", position="none")
    forwards, backwards = adapter.tokens(["the man rows"])[0], adapter.tokens(["rows man the"])[0]
    assert torch.equal(forwards.flip(1), backwards)
    learned = adapter_of("word")
    assert not torch.allclose(learned.tokens(["the man rows"])[0].flip(1), learned.tokens(["rows man the"])[0])


def test_places_are_nan_at_padding_and_nowhere_else():
    tokens = adapter_of("word").tokens(["the man rows", "boats"])
    assert torch.equal(tokens.spans[0].places.isnan().any(-1), ~tokens.mask)
    assert tokens.spans[0].places[0].tolist() == [[0, 3], [4, 7], [8, 12]]


def test_given_vectors_are_used_and_frozen_ones_stay(tmp_path):
    size = adapter_of().prepare.tokenizer.get_vocab_size()
    vectors = torch.randn(size, 7)
    save_file({"any name": vectors}, tmp_path / "v.safetensors")
    for frozen in (True, False):
        adapter = adapter_of(embedding=str(tmp_path / "v.safetensors"), frozen=frozen)
        assert torch.equal(adapter.table.weight, vectors)
        adapter.tokens(["the boats"]).x.sum().backward()
        assert (adapter.table.weight.grad is None) == frozen
        assert adapter.position.table.grad is not None


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_vectors_of_another_shape_are_named_with_theirs(names, tmp_path):
    path = str(tmp_path / "v.safetensors")
    size = adapter_of().prepare.tokenizer.get_vocab_size()
    shape = (5, 7) if names == ["a"] else (size, 7)  # two tensors are one too many, whatever their shape
    save_file({name: torch.zeros(shape) for name in names}, path)
    with pytest.raises(
        UserError, match=rf"must hold one tensor \({size}, 7\), a row a subword, got .*'a': \({shape[0]}"
    ):
        adapter_of(embedding=path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_gives_the_same_tokens(kind, tmp_path):
    adapter = adapter_of(kind)
    adapter.save(tmp_path)
    again = TextAdapter(7, subwords=kind)
    again.load(tmp_path)
    again.load_state_dict(adapter.state_dict(), strict=False)
    given_path = TextAdapter(7, tokenizer=str(tmp_path / "tokenizer.json")).fit(
        ["other words that must not be learned"]
    )
    for text in SENTENCES:
        expected = adapter.prepare(text)
        for other in (again, given_path):
            got = other.prepare(text)
            assert torch.equal(got["ids"], expected["ids"]) and torch.equal(got["places"], expected["places"])
    assert torch.equal(again.table.weight, adapter.table.weight)
    assert load_tokenizer(tmp_path / "tokenizer.json").get_vocab() == adapter.prepare.tokenizer.get_vocab()


def test_fitting_again_keeps_the_first_tokenizer():
    adapter = adapter_of("word")
    assert "zebra" not in adapter.fit(["zebra zebra"]).prepare.tokenizer.get_vocab()


def test_fitting_takes_lists_of_words_too():
    vocab = TextAdapter(7, subwords="word").fit([["zebra", "crossing"]]).prepare.tokenizer.get_vocab()
    assert set(vocab) == {*SPECIALS, "zebra", "crossing"}


def test_a_description_shows_the_first_pieces():
    assert adapter_of("word").describe("the man rows") == "the | man | rows"
    assert adapter_of("character").describe("the boats " * 3).endswith("| ...")


def test_words_that_come_split_are_learned_as_they_are_cut():
    adapter = TextAdapter(8, subwords="bpe", vocab_size=400).fit([["river", "bank"]] * 11)
    assert adapter.prepare(["bank", "river"])["words"].tolist() == [0, 1]  # not in letters, the space's merge missing
