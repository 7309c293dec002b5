"""The built-in digits: deterministic, divided by picture, and hard enough to need every view."""

import hashlib
from itertools import combinations

import numpy as np
import pytest
from helpers.data import sizes
from helpers.media import read_audio, read_image
from sklearn.datasets import load_digits as sklearn_digits
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dxn.core.errors import UserError
from dxn.data import InputSpec
from dxn.datasets import digits
from dxn.datasets.digits import HIGH_TONES, LOW_TONES, SAMPLE_RATE, WORDS, dial, load_digits

VIEWS = ("text", "image", "audio")


def small(**changed):
    return digits(**{"num_train": 53, "num_validation": 17, "num_test": 23, **changed})


def digest(source):
    """A hash of every cell of every split."""
    result = hashlib.sha256()
    for split in source.splits.values():
        for name, column in split.cells.items():
            for cell in column:
                cell = cell[0] if name == "audio" else cell
                result.update(cell.encode() if isinstance(cell, str) else cell.tobytes())
    return result.hexdigest()


def energies(sound):
    """The logarithm of the share of a sound's energy at each of the seven tones."""
    time = np.arange(len(sound)) / SAMPLE_RATE
    tones = np.exp(-2j * np.pi * np.outer(LOW_TONES + HIGH_TONES, time))
    return np.log(np.abs(tones @ sound) ** 2 / (len(sound) * (sound @ sound)) + 1e-9)


def test_a_row_holds_a_word_a_picture_and_a_sound_of_its_digit():
    source = small()
    assert (source.target, source.task) == ("digit", "classify")
    assert source.inputs == {
        "text": InputSpec("spelled", "text"),
        "image": InputSpec("handwritten", "image"),
        "audio": InputSpec("dialled", "audio"),
    }
    assert sizes(source.splits) == {"train": 53, "validation": 17, "test": 23}
    for rows in source.splits.values():
        assert set(rows.cells["target"]) <= set("0123456789")
        assert all(rows.cells["text"])
        for image in rows.cells["image"]:
            assert image.shape == (8, 8)
            assert image.dtype == np.uint8
        for sound, rate in rows.cells["audio"]:
            assert sound.dtype == np.float32
            assert 0.06 <= len(sound) / rate <= 0.4
            assert np.abs(sound).max() <= 1
    assert source.splits["test"].origin[22] == "digits row 23"


def test_the_media_readers_read_the_cells():
    cells = small().splits["train"].cells
    assert read_image(cells["image"][0], channels=1).shape == (1, 8, 8)
    sound, rate = cells["audio"][0]
    assert read_audio((sound, rate), sample_rate=rate).shape == sound.shape


def test_the_cells_depend_on_the_seed_only():
    assert digest(small(seed=3)) == digest(small(seed=3)) != digest(small(seed=5))


def test_the_cells_are_those_of_earlier_versions():
    cells = small(seed=3).splits["test"].cells
    assert "".join(cells["target"]) == "25872554724369949842742"
    assert cells["text"][-4:] == ["qua", "snyv", "fzur", "dmss"]
    assert [len(sound) for sound, _ in cells["audio"][-4:]] == [1974, 2321, 1999, 1601]


def test_no_picture_is_in_two_splits():
    # Each of the 1,797 pictures once.
    clean = digits(num_train=1300, num_validation=100, num_test=397, corrupt=0.0)
    pictures = []
    for rows in clean.splits.values():
        # Even the contrast of a clean picture is random: the original has values from 0 to 16.
        originals = [np.round(image / image.max() * 16) for image in rows.cells["image"]]
        pictures.append({image.astype(np.uint8).tobytes() for image in originals})
    assert [len(of_split) for of_split in pictures] == [1300, 100, 397]
    assert all(not a & b for a, b in combinations(pictures, 2))


def test_every_language_spells_ten_different_digits_in_every_split():
    spelled = {name: words.split() for name, words in WORDS.items()}
    assert len(spelled) == 30
    assert all(len(words) == len(set(words)) == 10 for words in spelled.values())
    for rows in digits(corrupt=0.0).splits.values():
        texts = set(rows.cells["text"])
        assert all(texts & set(words) for words in spelled.values())


@pytest.mark.parametrize(
    ("digit", "tones"),
    [
        (0, (941, 1336)),
        (1, (697, 1209)),
        (3, (697, 1477)),
        (5, (770, 1336)),
        (7, (852, 1209)),
        (9, (852, 1477)),
    ],
)
def test_a_clean_sound_has_the_two_tones_of_its_key(digit, tones):
    found = energies(dial(np.random.default_rng(7), digit, corrupt=0.0))
    loudest = LOW_TONES[found[:4].argmax()], HIGH_TONES[found[4:].argmax()]
    assert loudest == tones


def test_clean_words_spell_their_digit():
    rows = digits(corrupt=0.0).splits["test"]
    for word, digit in zip(rows.cells["text"], rows.cells["target"], strict=True):
        assert any(word == words.split()[int(digit)] for words in WORDS.values())


def test_views_can_be_missing_but_never_all_three_of_a_row():
    cells = digits(missing=0.7).splits["train"].cells
    missing = np.array([[cell is None for cell in cells[view]] for view in VIEWS])
    # Missing with 0.7, less a third of 0.7 ** 3: where all three would be missing, one is kept.
    assert missing.mean(1) == pytest.approx(0.7 - 0.7**3 / 3, abs=0.05)
    assert not missing.all(0).any()
    assert None not in cells["target"]


def test_no_view_is_sufficient_and_each_one_helps():
    source = digits()
    train, test = source.splits["train"].cells, source.splits["test"].cells
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 3), min_df=2)
    models = {
        "text": make_pipeline(letters, LogisticRegression(C=5.0, tol=1e-3)),
        "image": make_pipeline(StandardScaler(), LogisticRegression(C=0.1)),
        "audio": make_pipeline(StandardScaler(), LogisticRegression()),
    }
    features = {
        "text": list,
        "image": lambda cells: np.stack(cells).reshape(-1, 64) / 255,
        "audio": lambda cells: np.stack([energies(sound) for sound, _ in cells]),
    }
    scores = {}
    for view in VIEWS:
        models[view].fit(features[view](train[view]), train["target"])
        scores[view] = models[view].predict_log_proba(features[view](test[view]))
    truth = np.array(test["target"], dtype=int)

    def accuracy(*views):
        return (sum(scores[view] for view in views).argmax(1) == truth).mean()

    alone = [accuracy(view) for view in VIEWS]
    pairs = [accuracy(*pair) for pair in combinations(VIEWS, 2)]
    assert all(0.45 < a < 0.8 for a in alone), alone
    assert max(alone) < min(pairs)
    assert max(pairs) + 0.02 < accuracy(*VIEWS)
    assert accuracy(*VIEWS) > 0.9


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_validation": 0}, r"^data\.num_validation: must be at least 1, got 0$"),
        ({"missing": 1.0}, r"^data\.missing: must be in \[0, 1\), got 1\.0$"),
        ({"missing": -0.1}, r"^data\.missing: must be in \[0, 1\), got -0\.1$"),
        ({"corrupt": -1.0}, r"^data\.corrupt: must be at least 0 \(no corruption\), got -1\.0$"),
    ],
)
def test_invalid_options_are_refused(changed, message):
    with pytest.raises(UserError, match=message):
        small(**changed)


def test_the_digits_are_those_of_scikit_learn():
    images, labels = load_digits()
    expected_images, expected_labels = sklearn_digits(return_X_y=True)
    assert np.array_equal(images, expected_images) and images.dtype == expected_images.dtype
    assert np.array_equal(labels, expected_labels)
