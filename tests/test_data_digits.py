"""The embedded data: deterministic, split by picture, and hard enough that no view suffices."""

import hashlib
from itertools import combinations

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dxn.data.digits import HIGH, LOW, RATE, WORDS, dial, digits
from dxn.errors import UserError
from dxn.tokenize.media import read_audio, read_image

VIEWS = ("text", "image", "audio")


def small(**changed):
    return digits(**{"num_train": 53, "num_validation": 17, "num_test": 23, **changed})


def digest(source):
    """SHA-256 of every cell of every split."""
    found = hashlib.sha256()
    for split in source.splits.values():
        for name, column in split.cells.items():
            for cell in column:
                cell = cell[0] if name == "audio" else cell
                found.update(cell.encode() if isinstance(cell, str) else cell.tobytes())
    return found.hexdigest()


def energies(sound):
    """float (T,) to the log share of its energy at each of the seven tones."""
    time = np.arange(len(sound)) / RATE
    tones = np.exp(-2j * np.pi * np.outer(LOW + HIGH, time))
    return np.log(np.abs(tones @ sound) ** 2 / (len(sound) * (sound @ sound)) + 1e-9)


def test_a_row_holds_a_word_a_picture_and_a_sound_of_its_digit():
    source = small()
    assert source.target_kind == "class"
    assert {name: len(rows) for name, rows in source.splits.items()} == {"train": 53, "validation": 17, "test": 23}
    for rows in source.splits.values():
        for i, (text, image, (sound, rate)) in enumerate(zip(*(rows.cells[v] for v in VIEWS), strict=True)):
            assert text and rows.cells["target"][i] in set("0123456789")
            assert image.shape == (8, 8) and image.dtype == np.uint8
            assert sound.dtype == np.float32 and 0.06 <= len(sound) / rate <= 0.4 and np.abs(sound).max() <= 1
    assert source.splits["test"].origin[22] == "digits row 23"


def test_the_readers_of_media_take_its_cells():
    cells = small().splits["train"].cells
    assert read_image(cells["image"][0], channels=1).shape == (1, 8, 8)
    sound, rate = cells["audio"][0]
    assert read_audio((sound, rate), sample_rate=rate).shape == sound.shape


def test_the_same_seed_gives_identical_cells_and_another_seed_does_not():
    assert digest(small(seed=3)) == digest(small(seed=3)) != digest(small(seed=5))


def test_no_picture_is_in_two_splits():
    clean = digits(num_train=1300, num_validation=100, num_test=397, spoil=0.0)  # each of the 1,797 once
    # The contrast is random even in a clean picture: brought back to the bundled 0 to 16, it names the picture.
    seen = [
        {np.round(image / image.max() * 16).astype(np.uint8).tobytes() for image in rows.cells["image"]}
        for rows in clean.splits.values()
    ]
    assert [len(pictures) for pictures in seen] == [1300, 100, 397]
    assert all(not a & b for a, b in combinations(seen, 2))


def test_every_language_spells_ten_different_digits_in_every_split():
    spelled = {name: words.split() for name, words in WORDS.items()}
    assert len(spelled) == 30
    assert all(len(words) == len(set(words)) == 10 for words in spelled.values())
    for rows in digits(spoil=0.0).splits.values():
        found = set(rows.cells["text"])
        assert all(found & set(words) for words in spelled.values())


@pytest.mark.parametrize(
    ("digit", "tones"),
    [(0, (941, 1336)), (1, (697, 1209)), (3, (697, 1477)), (5, (770, 1336)), (7, (852, 1209)), (9, (852, 1477))],
)
def test_a_clean_sound_is_the_tone_pair_of_its_key(digit, tones):
    found = energies(dial(np.random.default_rng(7), digit, spoil=0.0))
    assert (LOW[found[:4].argmax()], HIGH[found[4:].argmax()]) == tones


def test_clean_views_spell_and_show_their_digit():
    rows = digits(spoil=0.0).splits["test"]
    for word, digit in zip(rows.cells["text"], rows.cells["target"], strict=True):
        assert any(word == words.split()[int(digit)] for words in WORDS.values())


def test_missing_views_are_none_but_never_all_three_of_a_row():
    cells = digits(missing=0.7).splits["train"].cells
    gone = np.array([[cell is None for cell in cells[view]] for view in VIEWS])
    # A view is missing with 0.7, less a third of 0.7 ** 3: one of three is kept where all would be gone.
    assert gone.mean(1) == pytest.approx(0.7 - 0.7**3 / 3, abs=0.05)
    assert not gone.all(0).any()
    assert None not in cells["target"]


def test_no_view_suffices_and_each_more_helps():
    source = digits()
    train, test = source.splits["train"].cells, source.splits["test"].cells
    models = {
        "text": make_pipeline(
            TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 3), min_df=2), LogisticRegression(C=5.0, tol=1e-3)
        ),
        "image": make_pipeline(StandardScaler(), LogisticRegression(C=0.1)),
        "audio": make_pipeline(StandardScaler(), LogisticRegression()),
    }
    inputs = {
        "text": list,
        "image": lambda cells: np.stack(cells).reshape(-1, 64) / 255,
        "audio": lambda cells: np.stack([energies(sound) for sound, _ in cells]),
    }
    found = {}
    for view in VIEWS:
        models[view].fit(inputs[view](train[view]), train["target"])
        found[view] = models[view].predict_log_proba(inputs[view](test[view]))
    truth = np.array(test["target"], dtype=int)

    def accuracy(*views):
        return (sum(found[view] for view in views).argmax(1) == truth).mean()

    alone = [accuracy(view) for view in VIEWS]
    pairs = [accuracy(*pair) for pair in combinations(VIEWS, 2)]
    assert all(0.45 < a < 0.8 for a in alone), alone
    assert max(alone) < min(pairs) and max(pairs) + 0.02 < accuracy(*VIEWS) and accuracy(*VIEWS) > 0.9


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_validation": 0}, "every split needs a row, got 53, 0 and 23"),
        ({"missing": 1.0}, "data.missing must be from 0 to below 1, got 1.0"),
        ({"missing": -0.1}, "data.missing must be from 0 to below 1, got -0.1"),
        ({"spoil": -1.0}, r"data.spoil must be 0 \(clean\) or more, got -1.0"),
    ],
)
def test_wrong_settings_are_named(changed, message):
    with pytest.raises(UserError, match=message):
        small(**changed)
