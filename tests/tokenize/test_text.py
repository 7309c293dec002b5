"""Text to Tokens: every kind of token, coordinates in the raw text, augmentation, padding."""

import json
import pickle
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tokenizers import Tokenizer, processors

from dxn.core.errors import UserError
from dxn.tokenize import (
    BadMedia,
    EmbeddingNormOptions,
    EmbeddingOptions,
    TextAdapter,
    TextAugment,
    TokenizerOptions,
    train_tokenizer,
)
from dxn.tokenize.column_profile import profile_of, scores_of
from dxn.tokenize.text.vocabulary import SPECIALS, load_tokenizer

KINDS = ["bpe", "wordpiece", "unigram", "word", "character"]
SENTENCES = [
    "the old man the boats and the tall man rows",
    "boats, rowing under the bridge, pass the tallest houses!",
    "a naïve café near the bridge sells tea and coffee",
    "日本語の本を読む 日本の本",
    "rain 🌧️ and sun 🌞 over the boats 🚣🏽",
    "cafe\u0301 is cafe and a mark of its own",  # e and a combining accent
]


def adapter_of(kind="bpe", lowercase=False, **options):
    torch.manual_seed(0)
    tokenizer = TokenizerOptions(kind, lowercase=lowercase)
    return TextAdapter(7, vocab_size=400, tokenizer=tokenizer, **options).fit(SENTENCES)


def pieces_of(adapter, sample):
    return [adapter.tokenizer.vocabulary.id_to_token(i) for i in sample["ids"].tolist()]


def spans_of(sample, raw):
    return [raw[int(a) : int(b)] for a, b in sample["coords"].tolist()]


def cheap_text():
    words = st.sampled_from(["the", "boats", "man", "tall", "rows", "tea", "café", "bridge"])
    return st.lists(words, min_size=1, max_size=11).map(" ".join)


# Training and coordinates


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_tokenizer_decodes_what_it_encoded(kind):
    tokenizer = adapter_of(kind).tokenizer.vocabulary
    assert [tokenizer.id_to_token(i) for i in range(len(SPECIALS))] == list(SPECIALS)
    text = "the tall man rows under the bridge"
    ids = tokenizer.encode(text).ids
    assert tokenizer.token_to_id("[UNK]") not in ids
    decoded = tokenizer.decode(ids)
    assert decoded == text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("raw", SENTENCES)
def test_coords_select_the_characters_of_each_token(kind, raw):
    adapter = adapter_of(kind)
    sample = adapter.tokenizer(raw)
    spans = spans_of(sample, raw)
    # Every character that is not a space belongs to a token, and tokens are in reading order.
    seen = {i for a, b in sample["coords"].long().tolist() for i in range(a, b)}
    assert seen >= {i for i, c in enumerate(raw) if not c.isspace()}
    assert sample["coords"][:, 0].diff().min() >= 0
    if kind == "bpe" or sample["ids"].eq(1).any():
        return  # a byte of a character has the coords of the whole character
    normalize = adapter.tokenizer.vocabulary.normalizer.normalize_str
    for piece, span in zip(pieces_of(adapter, sample), spans, strict=True):
        letters = piece.removeprefix("##").replace("▁", "").strip()
        if letters:  # a space alone, added before the first word, has the start of that word
            assert letters == normalize(span).strip()


def test_byte_level_tokens_have_the_coords_of_their_characters():
    adapter = adapter_of("bpe")
    raw = "the boats 🚣🏽 café 日本"
    sample = adapter.tokenizer(raw)
    assert adapter.tokenizer.vocabulary.decode(sample["ids"].tolist()) == raw
    for token, span in zip(sample["ids"].tolist(), spans_of(sample, raw), strict=True):
        text = adapter.tokenizer.vocabulary.decode([token]).strip()
        assert text == span or "\ufffd" in text  # the replacement sign: part of a character's bytes


def test_byte_level_tokenizers_have_no_unknown_characters():
    raw = "ᚠᛇᚻ ﷽ 𓀀"
    adapter = adapter_of("bpe")
    ids = adapter.tokenizer(raw)["ids"].tolist()
    assert 1 not in ids and adapter.tokenizer.vocabulary.decode(ids) == raw.replace("\u0301", "")


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "word", "character"])
def test_unseen_characters_become_unknown_tokens_with_coords(kind):
    sample = adapter_of(kind).tokenizer("the ᚠ")
    assert sample["ids"][-1] == 1
    assert sample["coords"][-1].tolist()[1] == 5


def test_character_tokens_are_composed_characters():
    adapter = adapter_of("character")
    sample = adapter.tokenizer("cafe\u0301 本🌞")
    assert pieces_of(adapter, sample) == ["c", "a", "f", "é", " ", "本", "🌞"]
    assert sample["coords"].tolist() == [[0, 1], [1, 2], [2, 3], [3, 5], [5, 6], [6, 7], [7, 8]]


def test_lowercase_applies_to_training_and_encoding():
    adapter = adapter_of("word", lowercase=True)
    assert pieces_of(adapter, adapter.tokenizer("THE Boats")) == ["the", "boats"]
    assert adapter_of("word").tokenizer("THE boats")["ids"][0] == 1


def test_vocab_size_is_an_upper_bound():
    for kind in KINDS:
        size = 300 if kind == "bpe" else 97  # all 256 bytes are in it
        assert train_tokenizer(SENTENCES * 5, kind=kind, vocab_size=size).get_vocab_size() <= size


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if k != "unigram"]
)  # the library gives rare letters random scores
def test_training_is_deterministic(kind):
    first, *others = [
        train_tokenizer(SENTENCES, kind=kind, vocab_size=400).to_str() for _ in range(5)
    ]
    assert all(other == first for other in others)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_documented_special_tokens_are_special(kind):
    added = adapter_of(kind).tokenizer.vocabulary.get_added_tokens_decoder()
    assert [added[i].content for i in sorted(added)] == list(SPECIALS)


def test_wordpiece_continuation_marks_in_raw_text_are_plain_text():
    adapter = adapter_of("wordpiece")
    assert pieces_of(adapter, adapter.tokenizer("##a")) == ["[UNK]", "[UNK]", "a"]


def test_an_unknown_kind_of_tokenizer_is_refused():
    with pytest.raises(
        ValueError,
        match="kind must be one of 'bpe', 'wordpiece', 'unigram', 'word' or 'character'",
    ):
        train_tokenizer(SENTENCES, kind="syllable")


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_of_words_gives_the_word_of_each_token(kind):
    words = ["the", "tallest", "café", "boats", "日本"]
    raw = " ".join(words)
    adapter = adapter_of(kind)
    sample = adapter.tokenizer(words)
    assert sample["words"].unique().tolist() == list(range(5))
    for word, span in zip(sample["words"].tolist(), spans_of(sample, raw), strict=True):
        assert span.strip() in words[word]
    starts = [raw.index(w) for w in words]
    for (a, b), word in zip(sample["coords"].tolist(), sample["words"].tolist(), strict=True):
        assert starts[word] <= a and b <= starts[word] + len(words[word])
    assert adapter.tokenizer(raw)["words"].unique().tolist() == [-1]


# Limits


def test_tokens_beyond_max_len_are_cut_and_counted():
    prepare = adapter_of("word", max_len=3).tokenizer
    long = adapter_of("word").tokenizer
    raw = "the man rows the boats"
    whole, sample = long(raw), prepare(raw)
    assert long.cut(raw) is None and prepare.cut(raw) == (3, 5)
    for name in ("ids", "coords", "words"):
        assert torch.equal(sample[name], whole[name][:3])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("", "^blank text$"),
        (" \n\t\u3000", "^blank text$"),
        ([], "^blank text$"),
        (["", " "], "^blank text$"),
        (" " * 1008 + "a", "^blank text$"),
        ([" " * 1000, " " * 8, "b"], "^blank text$"),
    ],
)
def test_a_bad_text_is_refused_with_the_reason(raw, message):
    with pytest.raises(BadMedia, match=message):
        adapter_of(max_chars=1008).tokenizer.reader.read(raw)


@pytest.mark.parametrize("raw", ["ab cd " * 100, ["ab", "cd"] * 150])
def test_a_text_above_max_chars_is_read_in_part_and_counts_as_truncated(raw):
    """600 characters, of which 60 are tokenized."""
    whole = adapter_of(max_len=10_000).tokenizer
    prepare = adapter_of(max_len=10_000, max_chars=60).tokenizer
    read = prepare.reader.read(raw)
    assert read == raw  # the whole text: nothing is lost for a drawing or a language model
    first = raw[:60] if isinstance(raw, str) else raw[:30]
    sample = prepare(read)
    assert torch.equal(sample["ids"], whole(first)["ids"])
    kept, total = prepare.cut(read)
    assert kept == len(sample["ids"]) == prepare.length(read)
    assert total == pytest.approx(10 * kept, rel=0.01)
    assert prepare.cut(first) is None


@pytest.mark.parametrize("source", [42, 3.5, [3], {"a": "b"}, b"bytes", ["a", None], float("nan")])
def test_a_source_that_is_not_text_is_refused(source):
    with pytest.raises(BadMedia, match="must be a text or a list of texts, got "):
        adapter_of().tokenizer.reader.read(source)


def test_reading_a_good_text_returns_it():
    read = adapter_of(max_chars=5).tokenizer.reader.read
    assert read(" a\nb ") == " a\nb " and read(("ab", "cde")) == ["ab", "cde"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"conv_kernel": 4}, "conv_kernel must be odd, or 0 to disable it, got 4"),
        ({"vocab_size": None}, "vocab_size must be an integer, got None"),
        ({"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
        ({"max_len": 0}, "max_len must be at least 1, got 0"),
        (
            {"pos_embed": "rotary"},
            "pos_embed must be one of 'learned', 'sinusoidal'",
        ),
        (
            {"tokenizer": TokenizerOptions(path="/nowhere/tokenizer.json")},
            "/nowhere/tokenizer.json: file not found; check the path",
        ),
    ],
)
def test_wrong_options_are_refused_with_their_values(options, message):
    with pytest.raises(ValueError, match=message):
        TextAdapter(7, **options)


def test_an_adapter_that_is_not_fitted_says_so():
    sample = adapter_of().tokenizer("the boats")
    with pytest.raises(
        ValueError, match=r"no vocabulary yet: call fit\(texts\) or set tokenizer.path"
    ):
        adapter = TextAdapter(7)
        adapter(adapter.tokenizer.collate([sample]))


# Augmentation


AUGMENTS = [
    TextAugment(subword_dropout=0.5),
    TextAugment(token_dropout=0.5),
    TextAugment(token_mask=0.5),
]


@pytest.mark.parametrize("augment", AUGMENTS)
@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_augmentation_depends_on_the_generator_only_and_needs_one(augment, kind):
    clean = adapter_of(kind).tokenizer
    noisy = TextAdapter(7, augment=augment).tokenizer
    noisy.use_vocabulary(clean.vocabulary)
    raw = SENTENCES[0]

    def columns(prepare, rand):
        sample = prepare(raw, rand)
        return sample["ids"].tolist(), sample["coords"].tolist()

    assert columns(noisy, None) == columns(clean, None) == columns(clean, random.Random(3))
    drawn = [columns(noisy, random.Random(seed)) for seed in range(11)]
    assert drawn == [columns(noisy, random.Random(seed)) for seed in range(11)]
    assert len({str(d) for d in drawn}) > 5 and columns(clean, None) not in drawn


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "character"])
def test_split_tokens_spell_the_same_text_with_the_same_coords(kind):
    adapter = adapter_of(kind, augment=TextAugment(subword_dropout=1.0))
    raw = SENTENCES[0]
    whole, split = adapter.tokenizer(raw), adapter.tokenizer(raw, random.Random(5))
    tokenizer = adapter.tokenizer.vocabulary

    def spelt(sample):
        return "".join(p.removeprefix("##") for p in pieces_of(adapter, sample))

    assert spelt(split) == spelt(whole)
    assert tokenizer.decode(split["ids"].tolist()) == raw
    assert (len(split["ids"]) > len(whole["ids"])) == (kind != "character")
    spans = [span for span in spans_of(split, raw) if span.strip()]
    assert "".join(spans).replace(" ", "") == raw.replace(" ", "")
    assert split["coords"][:, 0].diff().min() >= 0


def test_each_part_of_a_split_token_has_the_coords_of_its_letters():
    adapter = adapter_of("wordpiece", augment=TextAugment(subword_dropout=1.0))
    for seed in range(7):
        sample = adapter.tokenizer("the boats", random.Random(seed))
        spans = spans_of(sample, "the boats")
        assert [p.removeprefix("##") for p in pieces_of(adapter, sample)] == spans


@pytest.mark.parametrize("raw", ["the tall man", "tall tall man", "a the tall"])
def test_each_part_of_a_split_byte_level_token_has_the_coords_of_its_letters(raw):
    adapter = adapter_of("bpe", augment=TextAugment(subword_dropout=1.0))
    for seed in range(7):
        sample = adapter.tokenizer(raw, random.Random(seed))
        decoded = [adapter.tokenizer.vocabulary.decode([i]).strip() for i in sample["ids"].tolist()]
        assert [span.strip() for span in spans_of(sample, raw)] == decoded


def test_token_dropout_removes_its_share_but_never_all_tokens():
    prepare = adapter_of(
        "character", augment=TextAugment(token_dropout=0.3), max_len=5000
    ).tokenizer
    raw = "the boats " * 101
    kept = len(prepare(raw, random.Random(1))["ids"]) / len(raw)
    assert kept == pytest.approx(0.7, abs=0.05)
    alone = adapter_of("word", augment=TextAugment(token_dropout=1.0)).tokenizer(
        "the boats", random.Random(1)
    )
    assert alone["coords"].tolist() == [[0, 3]]


def test_masked_tokens_keep_their_coords():
    prepare = adapter_of("character", augment=TextAugment(token_mask=0.3), max_len=5000).tokenizer
    raw = "the boats " * 101
    clean, noisy = prepare(raw), prepare(raw, random.Random(1))
    masked = noisy["ids"] == SPECIALS.index("[MASK]")
    assert float(masked.float().mean()) == pytest.approx(0.3, abs=0.05)
    assert torch.equal(noisy["ids"][~masked], clean["ids"][~masked])
    assert torch.equal(noisy["coords"], clean["coords"])


@pytest.mark.parametrize("raw", ["the tall boats", ["the", "tall", "boats"], "a" * 97])
def test_num_tokens_equals_the_length_of_the_sample(raw):
    prepare = adapter_of(max_len=11).tokenizer
    assert prepare.length(raw) == len(prepare(raw)["ids"])


def test_a_pickled_preprocessor_gives_the_same_samples():
    prepare = adapter_of(augment=TextAugment(subword_dropout=0.5)).tokenizer
    again = pickle.loads(pickle.dumps(prepare))
    assert torch.equal(
        prepare("the boats", random.Random(2))["ids"], again("the boats", random.Random(2))["ids"]
    )


# Embedding


@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(cheap_text(), min_size=2, max_size=4),
    options=st.sampled_from(
        [
            {"conv_kernel": 5},
            {"conv_kernel": 3, "embedding": EmbeddingOptions(scale=True)},
        ]
    ),
    extra=st.integers(0, 7),
)
def test_padding_never_changes_a_real_token(texts, options, extra):
    adapter = adapter_of(max_len=64, **options).double().eval()
    prepare = adapter.tokenizer
    batch = prepare.collate([prepare(text) for text in texts])
    batch["ids"] = F.pad(batch["ids"], (0, extra), value=0)
    batch["mask"] = F.pad(batch["mask"], (0, extra))
    batch["coords"] = F.pad(batch["coords"], (0, 0, 0, extra), value=torch.nan)
    together = adapter(batch)
    for i, text in enumerate(texts):
        torch.testing.assert_close(together[i], adapter.tokens([text])[0], rtol=0, atol=1e-12)


def test_the_convolution_reads_both_neighbors_and_no_padding():
    adapter = adapter_of("word", conv_kernel=3, pos_embed="none").double()
    batch = adapter.tokenizer.collate(
        [adapter.tokenizer("the man rows"), adapter.tokenizer("the man rows the boats")]
    )
    x = adapter.embedding(batch["ids"][0, :3]).T
    padded = F.pad(x, (1, 1))
    weight, bias = adapter.conv.weight, adapter.conv.bias
    columns = [torch.einsum("oik,ik->o", weight, padded[:, i : i + 3]) + bias for i in range(3)]
    expected = x + F.gelu(torch.stack(columns, 1))
    torch.testing.assert_close(adapter(batch)[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_position_embeddings_are_added_to_the_token_embeddings(position):
    tokenizer = TokenizerOptions("word")
    adapter = TextAdapter(10, tokenizer=tokenizer, pos_embed=position).fit(SENTENCES)
    ids = adapter.tokenizer("the man rows")["ids"]
    expected = adapter.embedding(ids) + adapter.pos_embed(3, ids.device)
    torch.testing.assert_close(adapter.tokens(["the man rows"]).x[0], expected, rtol=0, atol=0)


def test_without_positions_permuting_words_permutes_columns():
    adapter = adapter_of("word", pos_embed="none")
    forwards, backwards = adapter.tokens(["the man rows"])[0], adapter.tokens(["rows man the"])[0]
    assert torch.equal(forwards.flip(1), backwards)
    learned = adapter_of("word")
    assert not torch.allclose(
        learned.tokens(["the man rows"])[0].flip(1), learned.tokens(["rows man the"])[0]
    )


def test_coords_are_nan_at_padding_only():
    tokens = adapter_of("word").tokens(["the man rows", "boats"])
    assert torch.equal(tokens.spans[0].coords.isnan().any(-1), ~tokens.mask)
    assert tokens.spans[0].coords[0].tolist() == [[0, 3], [4, 7], [8, 12]]


def test_embedding_path_initializes_the_embedding_and_frozen_stops_training(tmp_path):
    size = adapter_of().tokenizer.vocabulary.get_vocab_size()
    vectors = torch.randn(size, 7)
    save_file({"any name": vectors}, tmp_path / "v.safetensors")
    for frozen in (True, False):
        adapter = adapter_of(
            embedding=EmbeddingOptions(str(tmp_path / "v.safetensors"), frozen=frozen)
        )
        assert torch.equal(adapter.embedding.weight, vectors)
        adapter.tokens(["the boats"]).x.sum().backward()
        assert (adapter.embedding.weight.grad is None) == frozen
        assert adapter.pos_embed.weight.grad is not None


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_embedding_files_of_another_shape_are_refused(names, tmp_path):
    path = str(tmp_path / "v.safetensors")
    size = adapter_of().tokenizer.vocabulary.get_vocab_size()
    shape = (
        (5, 7) if names == ["a"] else (size, 7)
    )  # two tensors are one too many, whatever their shape
    save_file({name: torch.zeros(shape) for name in names}, path)
    message = rf"one tensor of shape \({size}, 7\), one row per token, got .*'a': \({shape[0]}"
    with pytest.raises(UserError, match=message):
        adapter_of(embedding=EmbeddingOptions(path))


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_gives_the_same_tokens(kind, tmp_path):
    adapter = adapter_of(kind)
    adapter.save(tmp_path, "text")
    again = TextAdapter(7, tokenizer=TokenizerOptions(kind))
    again.load(tmp_path, "text")
    again.load_state_dict(adapter.state_dict(), strict=False)
    from_path = TextAdapter(
        7, tokenizer=TokenizerOptions(path=str(tmp_path / "tokenizer.json"))
    ).fit(["other words that must not be learned"])
    for text in SENTENCES:
        expected = adapter.tokenizer(text)
        for other in (again, from_path):
            got = other.tokenizer(text)
            assert torch.equal(got["ids"], expected["ids"]) and torch.equal(
                got["coords"], expected["coords"]
            )
    assert torch.equal(again.embedding.weight, adapter.embedding.weight)
    assert (
        load_tokenizer(tmp_path / "tokenizer.json").get_vocab()
        == adapter.tokenizer.vocabulary.get_vocab()
    )


def test_fitting_again_keeps_the_first_tokenizer():
    adapter = adapter_of("word")
    assert "zebra" not in adapter.fit(["zebra zebra"]).tokenizer.vocabulary.get_vocab()


def test_fitting_accepts_lists_of_words():
    vocab = (
        TextAdapter(7, tokenizer=TokenizerOptions("word"))
        .fit([["zebra", "crossing"]])
        .tokenizer.vocabulary.get_vocab()
    )
    assert set(vocab) == {*SPECIALS, "zebra", "crossing"}


def test_describe_shows_the_first_tokens():
    assert adapter_of("word").describe("the man rows") == "the | man | rows"
    assert adapter_of("character").describe("the boats " * 3).endswith("| ...")


def test_lists_of_words_are_learned_without_leading_spaces():
    adapter = TextAdapter(8, vocab_size=400).fit([["river", "bank"]] * 11)
    assert adapter.tokenizer(["bank", "river"])["words"].tolist() == [0, 1]  # not cut into letters


@pytest.mark.parametrize("adapter", [TextAdapter(7), adapter_of()])
def test_a_text_adapter_has_a_vocabulary_before_and_after_fitting(adapter):
    assert adapter.has_vocabulary


def test_another_adapter_name_gets_a_tokenizer_file_of_its_own(tmp_path):
    adapter_of("word").save(tmp_path, "title")
    assert [path.name for path in tmp_path.iterdir()] == ["title.tokenizer.json"]
    again = TextAdapter(7)
    again.load(tmp_path, "title")
    assert again.describe("the man rows") == "the | man | rows"


@pytest.mark.parametrize("name", ["../text", "a/b", "..", "a\0b", "Wort für Wort", "x" * 900])
def test_an_adapter_with_any_name_has_a_file_in_the_folder(name, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    adapter_of("word").save(folder, name)
    assert len(list(folder.iterdir())) == 1
    assert len(list(tmp_path.iterdir())) == 1
    again = TextAdapter(7)
    again.load(folder, name)
    assert again.describe("the man rows") == "the | man | rows"


def test_the_norm_option_adds_a_layer_norm():
    adapter = adapter_of("word", norm=EmbeddingNormOptions(eps=1e-3, bias=False))
    plain = adapter_of("word")
    x = plain.tokens(["the man rows"]).x
    expected = F.layer_norm(x, (7,), eps=1e-3)
    torch.testing.assert_close(adapter.tokens(["the man rows"]).x, expected)


# Columns of a table


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (SENTENCES, 0.5),
        ([["a", "list"], ["of", "words"]], 0.5),
        (["alice", "bob", "carol"], 0.5),  # different in each row
        (["red", "blue", "red", "red"], 0),
        (["1", "2.5", "-3"], 0),
        ([1.0, 2.0], 0),
        ([["tag", 3]], 0),
        ([b"bytes"], 0),
        (["New York", "Los Angeles"] * 50, 0),  # two words, but few values
        ([], 0),
    ],
)
def test_columns_of_text_are_recognized(values, expected):
    assert scores_of(profile_of(values)).get("text", 0) == expected


def test_a_summary_gives_lengths_in_characters_or_words():
    summarize = adapter_of("word").tokenizer.reader.describe
    assert summarize(["abc", "a" * 1500, "abcde"], []) == "3 to 1,500, median 5 characters"
    assert summarize([["a", "b"], ["a"]], []) == "1 to 2, median 2 words"
    assert summarize([], []) == ""


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: EmbeddingOptions(pool=0), "pool must be at least 1, got 0"),
        (lambda: TokenizerOptions("syllable"), "kind must be one of .*, got 'syllable'"),
        (lambda: TextAugment(token_mask=1.5), "token_mask must be at most 1, got 1.5"),
    ],
)
def test_wrong_option_groups_are_refused_with_their_values(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_sinusoidal_positions_keep_the_dtype_of_the_weights():
    adapter = TextAdapter(8, pos_embed="sinusoidal", norm=EmbeddingNormOptions())
    adapter.fit(SENTENCES).bfloat16()
    assert adapter.tokens(SENTENCES).x.dtype == torch.bfloat16


# Batches


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_len", [2, 5, 100])
@pytest.mark.parametrize("special_tokens", [False, True])
def test_texts_that_are_encoded_together_equal_texts_that_are_encoded_alone(
    kind, max_len, special_tokens
):
    prepare = adapter_of(kind, max_len=max_len, max_chars=30).tokenizer
    if special_tokens:
        bos, eos = (prepare.vocabulary.token_to_id(name) for name in ("[BOS]", "[EOS]"))
        prepare.vocabulary.post_processor = processors.TemplateProcessing(
            single="[BOS] $A [EOS]", special_tokens=[("[BOS]", bos), ("[EOS]", eos)]
        )
        prepare.special_tokens = True
    for raws in (SENTENCES, SENTENCES[3:4], [["two", "words"], ["one"]]):
        alone = prepare.collate([prepare(raw) for raw in raws])
        together = prepare.batch(raws)
        assert together.keys() == alone.keys()
        for key in ("ids", "mask", "words"):
            assert together[key].dtype == alone[key].dtype
            assert together[key].tolist() == alone[key].tolist()
        assert together["coords"].shape == alone["coords"].shape


@pytest.mark.parametrize(
    "augment",
    [{"token_dropout": 0.4}, {"token_mask": 0.4}, {"subword_dropout": 0.5, "token_dropout": 0.2}],
    ids=["dropped", "masked", "split"],
)
@pytest.mark.parametrize("max_len", [3, 100])
def test_texts_that_are_augmented_together_equal_texts_that_are_augmented_alone(augment, max_len):
    prepare = adapter_of("bpe", max_len=max_len, augment=TextAugment(**augment)).tokenizer
    for raws in (SENTENCES, [["two", "words"], ["one"]]):
        seeds = [f"{i}" for i in range(len(raws))]
        pairs = zip(raws, map(random.Random, seeds), strict=True)
        alone = prepare.collate([prepare(raw, rand) for raw, rand in pairs])
        together = prepare.batch(raws, [*map(random.Random, seeds)])
        assert together["ids"].tolist() == alone["ids"].tolist()
        assert together["mask"].tolist() == alone["mask"].tolist()
        assert together["ids"].tolist() != prepare.batch(raws)["ids"].tolist()


def test_the_error_of_a_batch_names_the_text_that_cannot_be_encoded():
    prepare = adapter_of("word").tokenizer
    state = json.loads(prepare.vocabulary.to_str())
    del state["model"]["vocab"]["[UNK]"]
    prepare.vocabulary = Tokenizer.from_str(json.dumps(state))
    with pytest.raises(UserError, match="cannot encode 'xylophone'"):
        prepare.batch(["the boats", "xylophone"])


def test_the_lengths_of_many_texts_are_estimated_from_their_letters(monkeypatch):
    texts = [" ".join(["word"] * count) for count in (1, 5, 2, 30, 9)]
    tokenizer = TextAdapter(8, max_len=20).fit(texts).tokenizer
    exact = tokenizer.lengths(texts)
    monkeypatch.setattr("dxn.tokenize.text.tokenizer.MAX_ENCODED", 3)
    monkeypatch.setattr("dxn.tokenize.text.tokenizer.NUM_ENCODED", 4)
    assert np.abs(tokenizer.lengths(texts) - exact).max() <= 2
    assert tokenizer.lengths(texts).max() == 20
