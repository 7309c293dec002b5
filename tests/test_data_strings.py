"""Strings dialled and spoken: the sound says the target, and nothing of one split is in another."""

import csv
import re
from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.config import build, compose
from dxn.data.digits import HIGH, KEYS, LOW, RATE
from dxn.data.samples import open_rows
from dxn.data.strings import dial_string, dialled, spoken
from dxn.errors import UserError
from dxn.tokenize import AudioAdapter

COUNTS = {"train": 53, "validation": 17, "test": 23}
NUMBERS = {f"num_{name}": count for name, count in COUNTS.items()}
WORDS = ("yes", "no", "stop")
CLIP_RATE = 1000


def small(**changed):
    return dialled(**{**NUMBERS, **changed})


def runs(sound, *, least, floor=0.0):
    """(first, stop) of each stretch that is louder than floor, silences shorter than least counted in."""
    loud = np.flatnonzero(np.abs(sound) > floor)
    breaks = np.flatnonzero(np.diff(loud) > least)
    firsts = [loud[0], *loud[breaks + 1]]
    return list(zip(firsts, [*(loud[breaks] + 1), loud[-1] + 1], strict=True))


def heard(sound):
    """The key of a stretch of sound: the loudest row and the loudest column."""
    time = np.arange(len(sound)) / RATE
    low, high = (np.abs(np.exp(-2j * np.pi * np.outer(tones, time)) @ sound).argmax() for tones in (LOW, HIGH))
    return KEYS[low][high]


def same(a, b):
    return all(
        rows.cells["target"] == others.cells["target"]
        and all(np.array_equal(x, y) for (x, _), (y, _) in zip(rows.cells["audio"], others.cells["audio"], strict=True))
        for rows, others in zip(a.splits.values(), b.splits.values(), strict=True)
    )


# Dialled


def test_each_row_is_a_sound_and_the_digits_dialled_in_it():
    source = small(shortest=2, longest=5)
    assert source.target_kind == "text" and source.columns == {"audio": "dialled", "target": "digits"}
    assert {name: len(rows) for name, rows in source.splits.items()} == COUNTS
    for rows in source.splits.values():
        for (sound, rate), said in zip(rows.cells["audio"], rows.cells["target"], strict=True):
            assert rate == 8000 and sound.dtype == np.float32 and np.abs(sound).max() < 1
            assert re.fullmatch(r"\d( \d){1,4}", said)
    assert {len(said.split()) for said in source.splits["train"].cells["target"]} == {2, 3, 4, 5}
    assert source.splits["test"].origin[22] == "dialled row 23"


def test_a_clean_sound_says_its_digits_to_a_bank_of_filters():
    for rows in small(spoil=0.0).splits.values():
        for (sound, _), said in zip(rows.cells["audio"], rows.cells["target"], strict=True):
            assert " ".join(heard(sound[a:b]) for a, b in runs(sound, least=100)) == said


@given(seed=st.integers(0, 10**6), digits=st.text("0123456789", min_size=1, max_size=13))
@settings(max_examples=30, deadline=None)
def test_keys_are_held_for_50_ms_and_let_go_for_30_to_150(seed, digits):
    sound = dial_string(np.random.default_rng(seed), digits, spoil=0.0)
    found = runs(sound, least=100)
    assert len(found) == len(digits)
    # A sine that begins or ends near 0 hides a few samples.
    assert all(0.049 * RATE <= b - a <= 0.15 * RATE for a, b in found)
    pauses = [found[0][0], *(b - a for (_, a), (b, _) in pairwise(found)), len(sound) - found[-1][1]]
    assert all(0.03 * RATE <= pause <= 0.151 * RATE for pause in pauses)


def test_noise_covers_the_whole_and_grows_with_spoil():
    clean, noisy, twice = (
        dial_string(np.random.default_rng(7), "3071", spoil).astype(float) for spoil in (0.0, 1.0, 2.0)
    )
    assert len(clean) == len(noisy) == len(twice)
    np.testing.assert_allclose(twice - clean, 2 * (noisy - clean), atol=1e-6)
    first, last = runs(clean, least=100)[0][0], runs(clean, least=100)[-1][1]
    before, after = noisy[:first].std(), noisy[last:].std()
    assert before == pytest.approx(after, rel=0.3) and before > 0.1 * clean.max()


def test_spoiled_keys_can_still_be_told_apart():
    right = []
    for seed in range(60):
        clean, noisy = (dial_string(np.random.default_rng(seed), "1470258369", spoil) for spoil in (0.0, 1.0))
        right += [heard(noisy[a:b]) == key for (a, b), key in zip(runs(clean, least=100), "1470258369", strict=True)]
    assert 0.97 < np.mean(right) < 1, "too hard, or no noise to speak of"


def test_no_string_is_in_two_rows():
    strings = [said for rows in small(shortest=1, longest=2).splits.values() for said in rows.cells["target"]]
    assert len(set(strings)) == len(strings) == 93


def test_all_strings_there_are_may_be_asked_for():
    source = small(num_train=5, num_validation=2, num_test=3, shortest=1, longest=1)
    assert sorted(said for rows in source.splits.values() for said in rows.cells["target"]) == list("0123456789")


def test_short_strings_are_shared_out_evenly():
    # Half of the draws want one of ten strings; they are not all used up by the training split.
    source = small(num_train=50, num_validation=5, num_test=50, shortest=1, longest=2, seed=3)
    assert 1 <= sum(len(said) == 1 for said in source.splits["test"].cells["target"]) <= 9


def test_the_same_seed_gives_identical_strings_and_another_seed_does_not():
    assert same(small(seed=3), small(seed=3)) and not same(small(seed=3), small(seed=5))


def test_the_yaml_of_dialled_builds_the_same_source():
    cfg = compose("train", ["data=dialled", "data.num_train=5", "data.num_validation=2", "data.num_test=3", "seed=5"])
    ours = small(num_train=5, num_validation=2, num_test=3, seed=5)
    assert same(build(cfg.plain()["data"], key="data"), ours)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_validation": 0}, "data: every split needs a row, got 53, 0 and 23"),
        ({"spoil": -1.0}, "data.spoil must be 0 (clean) or more, got -1.0"),
        ({"shortest": 0}, "data.shortest and data.longest must be 1 or more and rise, got 0 and 12"),
        ({"longest": 2}, "data.shortest and data.longest must be 1 or more and rise, got 3 and 2"),
        (
            {"shortest": 1, "longest": 1},
            "data.longest: 93 rows want different strings, of 1 to 1 digits are 10",
        ),
    ],
)
def test_wrong_settings_of_dialled_are_named(changed, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        small(**changed)


# Spoken


def clip(i, stretched=1):
    """Sound of clip i, as its level says: constant, as no gap is."""
    return np.full((41 + 3 * i) * stretched, 0.25 + i / 256, dtype=np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """clips.csv: of two speakers and three words, 20 clips each in train and 4 in test; line 2 is clip 0."""
    place = tmp_path_factory.mktemp("clips")
    rows = [
        {"path": f"{i}.wav", "word": WORDS[i % 3], "speaker": ("ann", "ben")[i % 2], "split": split}
        for i, split in enumerate(["train"] * 120 + ["test"] * 24)
    ]
    for i in range(len(rows)):
        soundfile.write(place / f"{i}.wav", clip(i), CLIP_RATE, subtype="PCM_16")
    write(place / "clips.csv", rows)
    return place


def write(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def changed_table(folder, name, change):
    """The table with its rows changed in place, beside the same clips."""
    with (folder / "clips.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return write(folder / name, change(rows) or rows)


def say(path, **changed):
    given = {"target": "word", **NUMBERS, "shortest": 2, "longest": 5, "gap": (0.011, 0.037)}
    return spoken(str(path), **{**given, **changed})


def clips_in(sound):
    """The clips of an utterance in order, told by their level and found whole."""
    found = []
    for a, b in runs(sound, least=5, floor=0.2):
        i = round((float(sound[a]) - 0.25) * 256)
        np.testing.assert_array_equal(sound[a:b], clip(i))
        found.append(i)
    return found


def used(rows):
    """The clips of each utterance, by its sound."""
    return [clips_in(sound) for sound, _ in rows.cells["audio"]]


def test_an_utterance_is_clips_of_one_speaker_and_its_target_their_words(folder):
    source = say(folder / "clips.csv")
    assert source.target_kind == "text" and source.columns == {"audio": "path, joined", "target": "word, joined"}
    assert {name: len(rows) for name, rows in source.splits.items()} == COUNTS
    for rows in source.splits.values():
        sounds, targets = rows.cells["audio"], rows.cells["target"]
        assert {rate for _, rate in sounds} == {CLIP_RATE} and {sound.dtype for sound, _ in sounds} == {
            np.dtype("float32")
        }
        for clips, said, origin in zip(used(rows), targets, rows.origin, strict=True):
            assert said == " ".join(WORDS[i % 3] for i in clips)
            assert len({i % 2 for i in clips}) == 1, "two speakers"
            assert len(set(clips)) == len(clips), "a clip twice"
            assert origin == "clips.csv rows " + ", ".join(str(i + 2) for i in clips)
    assert {len(clips) for clips in used(source.splits["train"])} == {2, 3, 4, 5}
    assert {clips[0] % 2 for clips in used(source.splits["test"])} == {0, 1}


def test_no_clip_is_in_two_splits_and_a_tenth_of_the_training_clips_validates(folder):
    source = say(folder / "clips.csv", num_train=200, num_validation=200, num_test=200)
    clips = {name: {i for found in used(rows) for i in found} for name, rows in source.splits.items()}
    assert all(not a & b for a, b in combinations(clips.values(), 2))
    assert clips["test"] == set(range(120, 144))
    assert len(clips["validation"]) == 12 and clips["train"] | clips["validation"] == set(range(120))
    assert {(i % 3, i % 2): 2 for i in range(6)} == Counter((i % 3, i % 2) for i in clips["validation"])
    assert "strings joined from single clips: train 108, validation 12, test 24" in source.notes


def test_the_tables_own_validation_rows_are_used(folder):
    path = changed_table(folder, "own.csv", lambda rows: [r.update(split="dev") for r in rows[:31]] and rows)
    clips = {i for found in used(say(path).splits["validation"]) for i in found}
    assert clips and clips <= set(range(31))


def test_with_a_holdout_the_speaker_is_in_test_alone(folder):
    source = say(folder / "clips.csv", holdout={"speaker": "ben"})
    speakers = {name: {i % 2 for found in used(rows) for i in found} for name, rows in source.splits.items()}
    assert speakers == {"train": {0}, "validation": {0}, "test": {1}}
    assert "test: the rows whose speaker is ben" in source.notes


def test_without_a_split_the_clips_are_drawn(folder):
    path = changed_table(folder, "nosplit.csv", lambda rows: [r.pop("split") for r in rows] and rows)
    source = say(path, split=None, longest=4)
    clips = [{i for found in used(rows) for i in found} for rows in source.splits.values()]
    assert all(a and not a & b for a, b in combinations(clips, 2))
    assert any("drawn by seed 0" in note for note in source.notes)


def test_without_a_speaker_anyone_says_a_word(folder):
    path = changed_table(folder, "nobody.csv", lambda rows: [r.pop("speaker") for r in rows] and rows)
    assert any(len({i % 2 for i in clips}) == 2 for clips in used(say(path, speaker=None).splits["train"]))


def test_gaps_are_faint_noise_of_the_asked_length(folder):
    for sound, _ in say(folder / "clips.csv").splits["test"].cells["audio"]:
        found = runs(sound, least=5, floor=0.2)
        gaps = [sound[: found[0][0]], *(sound[a:b] for (_, a), (b, _) in pairwise(found)), sound[found[-1][1] :]]
        assert all(11 <= len(gap) <= 37 for gap in gaps)
        level = np.sqrt(np.mean(np.concatenate([sound[a:b] for a, b in found]) ** 2))
        assert np.concatenate(gaps).std() == pytest.approx(0.03 * level, rel=0.35)


def test_without_gaps_an_utterance_is_its_clips(folder):
    rows = say(folder / "clips.csv", gap=[0, 0]).splits["test"]
    for (sound, _), origin in zip(rows.cells["audio"], rows.origin, strict=True):
        lines = [int(line) for line in origin.removeprefix("clips.csv rows ").split(", ")]
        np.testing.assert_array_equal(sound, np.concatenate([clip(line - 2) for line in lines]))


def test_clips_of_another_rate_are_resampled_and_counted(folder):
    for i in range(120, 127):
        soundfile.write(folder / f"double{i}.wav", clip(i, 2), 2 * CLIP_RATE, subtype="PCM_16")
    path = changed_table(
        folder, "rates.csv", lambda rows: [r.update(path=f"double{r['path']}") for r in rows[120:127]] and rows
    )
    source = say(path, gap=[0, 0])
    assert "resampled to 1,000 Hz: 7 clips" in source.notes
    rows = source.splits["test"]
    for (sound, rate), origin in zip(rows.cells["audio"], rows.origin, strict=True):
        lines = [int(line) for line in origin.removeprefix("rates.csv rows ").split(", ")]
        assert rate == CLIP_RATE and len(sound) == sum(len(clip(line - 2)) for line in lines)


def test_the_rows_open_as_raw_sounds_with_their_targets(folder):
    rows = say(folder / "clips.csv").splits["validation"]
    opened = open_rows(rows, {"audio": AudioAdapter(7, sample_rate=CLIP_RATE, n_mels=5).prepare})
    assert opened.targets == list(rows.cells["target"])
    np.testing.assert_array_equal(np.asarray(opened.raws["audio"][3]), rows.cells["audio"][3][0])


def test_the_same_seed_gives_identical_utterances_and_another_seed_does_not(folder):
    path = folder / "clips.csv"
    assert same(say(path, seed=3), say(path, seed=3)) and not same(say(path, seed=3), say(path, seed=5))


def test_the_yaml_of_spoken_builds_the_same_source(folder):
    given = ["data=spoken", f"data.path={folder / 'clips.csv'}", "data.target=word", "data.shortest=2"]
    given += ["data.longest=5", "data.gap=[0.02,0.03]", "data.holdout.speaker=ann", "seed=5"]
    cfg = compose("train", [*given, *(f"data.{key}={value}" for key, value in NUMBERS.items())])
    ours = say(folder / "clips.csv", gap=(0.02, 0.03), holdout={"speaker": "ann"}, seed=5)
    assert same(build(cfg.plain()["data"], key="data"), ours)


COLUMNS = "columns: path, word, speaker, split"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"audio": "file"}, f"data.audio: no column 'file'; {COLUMNS}"),
        ({"target": "words"}, f"data.target: no column 'words'; {COLUMNS}"),
        ({"split": "part"}, f"data.split: no column 'part'; {COLUMNS}"),
        (
            {"speaker": "who"},
            f"data.speaker: no column 'who'; {COLUMNS}",
        ),
        ({"holdout": {"voice": "ann"}}, f"data.holdout: no column 'voice'; {COLUMNS}"),
        ({"holdout": {"speaker": "cat"}}, "data.holdout.speaker: no row has 'cat'; it holds ann, ben"),
        ({"gap": [0.1]}, "data.gap must be two lengths in seconds, the shorter first, got [0.1]"),
        ({"gap": [0.3, 0.1]}, "data.gap must be two lengths in seconds, the shorter first, got [0.3, 0.1]"),
        ({"num_test": 0}, "data: every split needs a row, got 53, 17 and 0"),
        ({"shortest": 6}, "data.shortest and data.longest must be 1 or more and rise, got 6 and 5"),
        ({"longest": 13}, "data.longest: a string of 13 words needs as many clips, validation has 6 of ann"),
        (
            {"longest": 13, "speaker": None},
            "data.longest: a string of 13 words needs as many clips, validation has 12",
        ),
    ],
)
def test_wrong_settings_of_spoken_are_named(folder, changed, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        say(folder / "clips.csv", **changed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "gone.wav"}, "{name} row 6: audio: {place}/gone.wav file not found"),
        ({"path": "text.wav"}, "{name} row 6: audio: {place}/text.wav not a sound this reads (WAV, FLAC, OGG, MP3)"),
        ({"path": "none.wav"}, "{name} row 6: audio: {place}/none.wav no samples in it"),
        ({"path": ""}, "{name} row 6: no audio"),
        ({"word": " "}, "{name} row 6: no target"),
        ({"speaker": ""}, "{name} row 6: no speaker"),
        ({"split": "odd"}, "{name} row 6: column 'split' must be train, validation or test, got 'odd'"),
    ],
)
def test_a_clip_that_cannot_be_used_names_its_row(folder, change, message):
    (folder / "text.wav").write_text("no sound")
    soundfile.write(folder / "none.wav", np.zeros(0, dtype=np.float32), CLIP_RATE, subtype="PCM_16")
    path = changed_table(folder, "bad.csv", lambda rows: rows[4].update(change))
    with pytest.raises(UserError, match=re.escape(message.format(name="bad.csv", place=folder))):
        say(path)


def test_a_table_without_test_clips_is_named(folder):
    path = changed_table(folder, "notest.csv", lambda rows: rows[:120])
    with pytest.raises(UserError, match=r"notest.csv: no clip is left for the test split$"):
        say(path)
