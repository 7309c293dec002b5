"""Features for a baseline: words of tokenized texts, and statistics of the other modalities."""

from collections import Counter

import pytest
import torch
from sklearn.feature_extraction.text import CountVectorizer

from dxn.stacking.features import (
    CHAR_LENGTHS,
    features_of,
    means_of_parts,
    picture_features,
    time_statistics,
)
from dxn.tokenize import (
    AudioAdapter,
    CategoryAdapter,
    DateAdapter,
    ImageAdapter,
    NumberAdapter,
    SeriesAdapter,
    SpectrogramOptions,
    TextAdapter,
    TokenizerOptions,
    VideoAdapter,
    VideoSampling,
)

KINDS = ["bpe", "wordpiece", "unigram", "word", "character"]
TEXTS = [
    "The tall man rows the boats",
    "boats, rowing; pass!",
    "A café near  the BRIDGE",
    "the boats the boats",
    "the café 2 cats",
]


def text_adapter(kind, texts=TEXTS):
    torch.manual_seed(0)
    return TextAdapter(8, vocab_size=300, tokenizer=TokenizerOptions(kind)).fit(texts)


def batch_of(adapter, raws):
    return adapter.tokenizer.collate([adapter.tokenizer(raw) for raw in raws])


def occurrences(block, size):
    """The sorted codes of each sample."""
    rows, codes = block
    return [sorted(codes[rows == i].tolist()) for i in range(size)]


def char_ngrams(text, n):
    """The n-grams of scikit-learn, without words that are shorter than n."""
    vectorizer = CountVectorizer(analyzer="char_wb", ngram_range=(n, n))
    return [gram for gram in vectorizer.build_analyzer()(text) if len(gram) == n]


# Texts


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_counted_as_scikit_learn_counts_them(kind):
    adapter = text_adapter(kind)
    words, _ = features_of(adapter, batch_of(adapter, TEXTS)).counted
    # Words of any length and single characters of punctuation.
    single = CountVectorizer(token_pattern=r"\w+|[^\w\s]")
    pairs = CountVectorizer(token_pattern=r"\w+", ngram_range=(2, 2))
    theirs = single.fit_transform(TEXTS).sum(1) + pairs.fit_transform(TEXTS).sum(1)
    ours = torch.bincount(words[0], minlength=len(TEXTS))
    assert ours.tolist() == theirs.ravel().tolist()[0]
    num_features = len(single.vocabulary_) + len(pairs.vocabulary_)
    assert len(words[1].unique()) == num_features


@pytest.mark.parametrize("kind", KINDS)
def test_character_ngrams_are_those_of_scikit_learn(kind):
    adapter = text_adapter(kind)
    _, chars = features_of(adapter, batch_of(adapter, TEXTS)).counted
    every: list[str] = []
    for i, text in enumerate(TEXTS):
        grams = [gram for n in CHAR_LENGTHS.tolist() for gram in char_ngrams(text, n)]
        assert int((chars[0] == i).sum()) == len(grams)
        every += grams
    assert len(chars[1].unique()) == len(set(every))


def test_codes_do_not_depend_on_the_tokenizer():
    blocks = []
    for kind in ("bpe", "unigram", "word"):
        adapter = text_adapter(kind)
        blocks.append(features_of(adapter, batch_of(adapter, TEXTS)).counted)
    for block in zip(*blocks, strict=True):
        first, *others = [occurrences(each, len(TEXTS)) for each in block]
        assert all(other == first for other in others)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("我喝茶", ["我", "喝", "茶"]),
        ("使用Python写。", ["使", "用", "python", "写"]),
        ("お茶 と コーヒー", ["お", "茶", "と", "コ", "ー", "ヒ", "ー"]),
        # The vowel sign and the tone mark belong to the consonant before them.
        ("ที่บ้านab", ["ที่", "บ้", "า", "น", "ab"]),
        ("漢\U000e0100字", ["漢\U000e0100", "字"]),  # a variation selector
    ],
)
def test_a_character_of_a_script_without_spaces_is_a_word(kind, text, words):
    adapter = text_adapter(kind, [text, *words])
    counted = [
        occurrences(features_of(adapter, batch_of(adapter, [part])).counted[0], 1)[0]
        for part in (text, *words)
    ]
    singles = [code for part in counted[1:] for code in part]
    pairs = max(len(words) - 1, 0)
    marks = text.count("。")
    assert len(counted[0]) == len(words) + pairs + marks
    assert not Counter(singles) - Counter(counted[0])


def test_saved_models_know_the_codes_of_a_text():
    batch = {"text": ["Ab c!", "茶"], "ids": torch.zeros(2, 1)}
    words, grams = features_of(text_adapter("word"), batch).counted
    assert occurrences(words, 2) == [[33, 99, 98000391, 688814879], [33590]]
    assert [codes[-1] for codes in occurrences(grams, 2)] == [2063280824, 1916022438]
    assert [len(codes) for codes in occurrences(grams, 2)] == [12, 3]


@pytest.mark.parametrize("raw", ["", [], [""]])
def test_an_empty_text_has_no_features_but_is_prepared(raw):
    adapter = text_adapter("word")
    batch = adapter.tokenizer.batch([raw, "a b"])
    for block in features_of(adapter, batch).counted:
        assert set(block[0].tolist()) == {1}


def test_texts_of_a_batch_do_not_affect_each_other():
    adapter = text_adapter("bpe")
    # Spaces at the end of a text and at the start of the next one.
    texts = [*TEXTS, "boats\n", " \tcats", "the end  ", "  "]
    together = features_of(adapter, batch_of(adapter, texts)).counted
    for i, text in enumerate(texts):
        alone = features_of(adapter, batch_of(adapter, [text])).counted
        for ours, theirs in zip(alone, together, strict=True):
            assert occurrences(ours, 1)[0] == occurrences(theirs, len(texts))[i]


# Other modalities


def adapters():
    """An adapter and three raw values of different sizes for each modality."""
    g = torch.Generator().manual_seed(0)
    image = [
        torch.randint(0, 256, (3, h, w), generator=g, dtype=torch.uint8)
        for h, w in ((11, 13), (17, 7), (5, 19))
    ]
    audio = AudioAdapter(8, sample_rate=1000, spectrogram=SpectrogramOptions(n_mels=5))
    sounds = [torch.randn(n, generator=g) for n in (503, 307, 701)]
    video = VideoAdapter(8, image_size=11, patch_size=11, sampling=VideoSampling(num_frames=3))
    clips = [
        torch.randint(0, 256, (t, 3, 11, 11), generator=g, dtype=torch.uint8) for t in (3, 2, 3)
    ]
    series = [torch.randn(n, 2, generator=g) for n in (13, 7, 5)]
    series[1][2, 0] = torch.nan
    category = CategoryAdapter(8, min_count=1).fit([("a",), ("b",), ("a", "b")])
    dates = DateAdapter(8)
    return {
        "image": (ImageAdapter(8, image_size=None, patch_size=2).fit(image), image),
        "audio": (audio.fit(sounds), sounds),
        "video": (video.fit(clips), clips),
        "series": (SeriesAdapter(8).fit(series), series),
        "number": (NumberAdapter(8).fit([1.0, 2.0, 5.0]), [1.0, 2.0, 5.0]),
        "category": (category, [("a",), ("b",), ("a", "b")]),
        "date": (
            dates,
            [dates.tokenizer.reader.read(day) for day in ("2026-01-31", "2025-03-02", "12:30")],
        ),
    }


@pytest.mark.parametrize("name", list(adapters()))
def test_padding_does_not_change_a_summary(name):
    adapter, raws = adapters()[name]
    together = features_of(adapter, batch_of(adapter, raws)).dense
    assert together.shape[1] > 0
    for i, raw in enumerate(raws):
        alone = features_of(adapter, batch_of(adapter, [raw])).dense[0]
        assert torch.allclose(alone, together[i], atol=1e-5, equal_nan=True)


def test_a_waveform_has_no_summary():
    adapter = AudioAdapter(8, sample_rate=1000, tokens="waveform")
    assert features_of(adapter, batch_of(adapter, [torch.zeros(100)])) is None


def test_a_category_with_many_values_is_counted():
    values = [(f"value {i}",) for i in range(100)]
    adapter = CategoryAdapter(8, min_count=1).fit([*values, ("value 9",)])
    summary = features_of(adapter, batch_of(adapter, [values[3], ("new",)]))
    assert summary.counted[0].tolist() == [[0, 1], [adapter.tokenizer.id_of("value 3"), 0]]
    frequent = features_of(adapter, batch_of(adapter, [("value 9", "value 99")]))
    assert frequent.dense.sum() == 1 and frequent.dense[0, adapter.tokenizer.id_of("value 9")] == 1


def test_the_time_of_day_is_unknown_in_a_date():
    adapter = DateAdapter(8)
    raws = [adapter.tokenizer.reader.read("2026-01-31"), adapter.tokenizer.reader.read("12:30")]
    dense = features_of(adapter, batch_of(adapter, raws)).dense
    assert (dense.isnan()[0] != dense.isnan()[1]).all()


# Statistics


def test_statistics_over_time_are_those_of_torch():
    torch.manual_seed(0)
    x = torch.randn(2, 7, 3)
    mask = torch.arange(7) < torch.tensor([7, 5])[:, None]
    ours = time_statistics(x, mask)
    for row, length in zip(range(2), (7, 5), strict=True):
        part = x[row, :length]
        theirs = [part.mean(0), part.std(0, correction=0), part.diff(dim=0).abs().mean(0)]
        assert torch.allclose(ours[row], torch.cat(theirs), atol=1e-6)


def test_parts_of_a_short_sequence_overlap():
    x = torch.arange(10.0).reshape(2, 5, 1)
    means = means_of_parts(x, torch.tensor([5, 2]), 4)
    assert means.tolist() == [[0.0, 1.0, 2.0, 3.5], [5.0, 5.0, 6.0, 6.0]]


def test_a_gradient_votes_for_its_orientation():
    # Stripes from top to bottom: all gradients are horizontal, in the first bin.
    stripes = (torch.arange(64) // 8 % 2 * 255).to(torch.uint8).expand(1, 3, 64, 64)
    features = picture_features(stripes, torch.tensor([[64, 64]]))[0]
    histograms = features[3 * 64 : (3 + 9) * 64].reshape(9, 64)
    assert histograms[0].max() > 0.3
    assert histograms[1:].abs().max() < 1e-3
    turned = picture_features(stripes.transpose(2, 3), torch.tensor([[64, 64]]))[0]
    # 90 degrees is between the bins 4 and 5.
    votes = turned[3 * 64 : (3 + 9) * 64].reshape(9, 64).sum(1)
    assert {int(i) for i in votes.topk(2).indices} == {4, 5}


@pytest.mark.parametrize(("channels", "count"), [(1, 8), (3, 512)])
def test_the_area_of_a_color_does_not_depend_on_its_place(channels, count):
    pixels = torch.zeros(2, channels, 32, 32, dtype=torch.uint8)
    pixels[0, 0, :8] = 255
    pixels[1, 0, :, 24:] = 255
    first, second = picture_features(pixels, torch.tensor([[32, 32]] * 2))[:, -count:]
    torch.testing.assert_close(first, second)
    # A quarter of the picture has the highest level of the first channel.
    highest = 7 * 8 ** (channels - 1)
    areas = first.square()
    assert areas[highest] == pytest.approx(0.25, abs=2e-3)
    assert areas[0] == pytest.approx(0.75, abs=2e-3)


def test_a_color_between_two_levels_counts_to_both():
    # 0.2 is 1.1 times the distance of two levels above the lowest one, 1/16.
    pixels = torch.full((1, 1, 32, 32), 51, dtype=torch.uint8)
    (features,) = picture_features(pixels, torch.tensor([[32, 32]]))
    assert features[-8:-4].square().tolist() == pytest.approx([0, 0.9, 0.1, 0], abs=2e-3)
