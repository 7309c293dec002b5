"""Spoken strings: the clips determine the target, and no clip is in two splits."""

import csv
import re
from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest
import soundfile
from dxn_examples.spoken import spoken
from helpers.data import EXAMPLES, sizes, write_table
from helpers.sounds import loud_stretches, same_sources

from dxn.commands.train import Train
from dxn.config.compose import compose
from dxn.config.instantiate import build
from dxn.core.errors import UserError
from dxn.data import InputSpec, open_rows
from dxn.tokenize import AudioAdapter, SpectrogramOptions

COUNTS = {"train": 53, "validation": 17, "test": 23}
OPTIONS = {f"num_{name}": count for name, count in COUNTS.items()}
WORDS = ("yes", "no", "stop")
CLIP_RATE = 1000  # Hz
# Clips are louder than this, gaps are not, and shorter gaps are within a clip.
STRETCH = {"min_gap": 5, "floor": 0.2}


def clip(i, stretched=1):
    """The sound of clip i, which its constant level identifies."""
    return np.full((41 + 3 * i) * stretched, 0.25 + i / 256, dtype=np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """clips.csv with two speakers and three words, 120 clips for training and 24 for the test.

    Row 2 of the table is clip 0.
    """
    place = tmp_path_factory.mktemp("clips")
    rows = []
    for i, split in enumerate(["train"] * 120 + ["test"] * 24):
        row = {"path": f"{i}.wav", "word": WORDS[i % 3], "speaker": ("ann", "ben")[i % 2]}
        rows.append({**row, "split": split})
        soundfile.write(place / f"{i}.wav", clip(i), CLIP_RATE, subtype="PCM_16")
    write_table(place / "clips.csv", rows)
    return place


def changed_table(folder, name, change):
    """The table with its rows changed, in the same folder."""
    with (folder / "clips.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return write_table(folder / name, change(rows) or rows)


def small(path, **changed):
    defaults = {"target": "word", "shortest": 2, "longest": 5, "gap": (0.011, 0.037)}
    return spoken(str(path), **{**OPTIONS, **defaults, **changed})


def clips_in(sound):
    """The clips of a string in order, identified by their level and compared as a whole."""
    numbers = []
    for a, b in loud_stretches(sound, **STRETCH):
        i = round((float(sound[a]) - 0.25) * 256)
        np.testing.assert_array_equal(sound[a:b], clip(i))
        numbers.append(i)
    return numbers


def strings(rows):
    """The clips of each string."""
    return [clips_in(sound) for sound, _ in rows.cells["audio"]]


def used_clips(rows):
    return {i for clips in strings(rows) for i in clips}


def test_a_string_is_clips_of_one_speaker_and_its_target_their_words(folder):
    source = small(folder / "clips.csv")
    assert source.inputs == {"audio": InputSpec("path, joined", "audio")}
    assert (source.target, source.task) == ("word, joined", "generate")
    assert sizes(source.splits) == COUNTS
    for rows in source.splits.values():
        for sound, rate in rows.cells["audio"]:
            assert rate == CLIP_RATE
            assert sound.dtype == np.float32
        columns = (strings(rows), rows.cells["target"], rows.origin)
        for clips, text, origin in zip(*columns, strict=True):
            assert text == " ".join(WORDS[i % 3] for i in clips)
            assert len({i % 2 for i in clips}) == 1, "two speakers"
            assert len(set(clips)) == len(clips), "a clip twice"
            assert origin == "clips.csv rows " + ", ".join(str(i + 2) for i in clips)
    assert {len(clips) for clips in strings(source.splits["train"])} == {2, 3, 4, 5}
    assert {clips[0] % 2 for clips in strings(source.splits["test"])} == {0, 1}


def test_no_clip_is_in_two_splits_and_validation_is_a_tenth_of_training(folder):
    source = small(folder / "clips.csv", num_train=200, num_validation=200, num_test=200)
    clips = {name: used_clips(rows) for name, rows in source.splits.items()}
    assert all(not a & b for a, b in combinations(clips.values(), 2))
    assert clips["test"] == set(range(120, 144))
    assert clips["train"] | clips["validation"] == set(range(120))
    # Two clips of each word by each speaker.
    pairs = Counter((i % 3, i % 2) for i in clips["validation"])
    assert pairs == {(i % 3, i % 2): 2 for i in range(6)}
    assert (
        "strings are concatenated from single clips: train 108, validation 12, test 24"
        in source.notes
    )


def test_validation_rows_of_the_table_are_used(folder):
    def change(rows):
        for row in rows[:31]:
            row["split"] = "dev"

    clips = used_clips(small(changed_table(folder, "own.csv", change)).splits["validation"])
    assert clips
    assert clips <= set(range(31))


def test_a_held_out_speaker_is_in_the_test_split_only(folder):
    source = small(folder / "clips.csv", holdout={"speaker": "ben"})
    speakers = {n: {i % 2 for i in used_clips(rows)} for n, rows in source.splits.items()}
    assert speakers == {"train": {0}, "validation": {0}, "test": {1}}
    assert "test: the rows whose speaker is ben" in source.notes


def test_without_a_split_column_the_clips_are_divided(folder):
    def change(rows):
        for row in rows:
            row.pop("split")

    source = small(changed_table(folder, "nosplit.csv", change), split=None, longest=4)
    clips = [used_clips(rows) for rows in source.splits.values()]
    assert all(a and not a & b for a, b in combinations(clips, 2))
    assert any("chosen at random with seed 0" in note for note in source.notes)


def test_without_a_speaker_column_clips_of_any_speakers_are_joined(folder):
    def change(rows):
        for row in rows:
            row.pop("speaker")

    source = small(changed_table(folder, "nobody.csv", change), speaker=None)
    assert any(len({i % 2 for i in clips}) == 2 for clips in strings(source.splits["train"]))


def test_gaps_are_faint_noise_of_the_requested_length(folder):
    for sound, _ in small(folder / "clips.csv").splits["test"].cells["audio"]:
        words = loud_stretches(sound, **STRETCH)
        between = [sound[a:b] for (_, a), (b, _) in pairwise(words)]
        gaps = [sound[: words[0][0]], *between, sound[words[-1][1] :]]
        assert all(11 <= len(gap) <= 37 for gap in gaps)
        loud = np.concatenate([sound[a:b] for a, b in words])
        level = np.sqrt(np.mean(loud**2))
        assert np.concatenate(gaps).std() == pytest.approx(0.03 * level, rel=0.35)


def lines_of(origin):
    return [int(line) for line in origin.rpartition(" rows ")[2].split(", ")]


def test_without_gaps_a_string_is_its_clips(folder):
    rows = small(folder / "clips.csv", gap=[0, 0]).splits["test"]
    for (sound, _), origin in zip(rows.cells["audio"], rows.origin, strict=True):
        clips = [clip(line - 2) for line in lines_of(origin)]
        np.testing.assert_array_equal(sound, np.concatenate(clips))


def test_clips_of_another_rate_are_resampled_and_counted(folder):
    for i in range(120, 127):
        path = folder / f"double{i}.wav"
        soundfile.write(path, clip(i, 2), 2 * CLIP_RATE, subtype="PCM_16")

    def change(rows):
        for row in rows[120:127]:
            row["path"] = f"double{row['path']}"

    source = small(changed_table(folder, "rates.csv", change), gap=[0, 0])
    assert "resampled to 1,000 Hz: 7 clips" in source.notes
    rows = source.splits["test"]
    for (sound, rate), origin in zip(rows.cells["audio"], rows.origin, strict=True):
        assert rate == CLIP_RATE
        assert len(sound) == sum(len(clip(line - 2)) for line in lines_of(origin))


def test_the_rows_can_be_opened(folder):
    rows = small(folder / "clips.csv").splits["validation"]
    spectrogram = SpectrogramOptions(n_mels=5)
    adapter = AudioAdapter(8, sample_rate=CLIP_RATE, spectrogram=spectrogram)
    opened = open_rows(rows, {"audio": adapter.tokenizer})
    assert opened.targets == list(rows.cells["target"])
    expected = rows.cells["audio"][3][0]
    np.testing.assert_array_equal(np.asarray(opened.raws["audio"][3]), expected)


def test_the_data_depends_on_the_seed_only(folder):
    path = folder / "clips.csv"
    assert same_sources(small(path, seed=3), small(path, seed=3))
    assert not same_sources(small(path, seed=3), small(path, seed=5))


def test_the_yaml_builds_the_same_data(folder):
    overrides = [
        EXAMPLES,
        "data=spoken",
        f"data.path={folder / 'clips.csv'}",
        "data.target=word",
        "data.shortest=2",
        "data.longest=5",
        "data.gap=[0.02,0.03]",
        "data.holdout.speaker=ann",
        "seed=5",
        *(f"data.{key}={value}" for key, value in OPTIONS.items()),
    ]
    node = compose(Train, overrides).values["data"]
    options = {"gap": (0.02, 0.03), "holdout": {"speaker": "ann"}, "seed": 5}
    assert same_sources(
        build(node, key="data", trust=["dxn_examples"]), small(folder / "clips.csv", **options)
    )


COLUMNS = "its columns are path, word, speaker, split"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"audio": "file"}, f"data.audio: no column 'file' in clips.csv; {COLUMNS}"),
        (
            {"target": "words"},
            f"data.target: no column 'words' in clips.csv; {COLUMNS}; did you mean 'word'?",
        ),
        ({"split": "fold"}, f"data.split: no column 'fold' in clips.csv; {COLUMNS}"),
        ({"speaker": "who"}, f"data.speaker: no column 'who' in clips.csv; {COLUMNS}"),
        (
            {"holdout": {"voice": "ann"}},
            f"data.holdout: no column 'voice' in clips.csv; {COLUMNS}",
        ),
        (
            {"holdout": {"speaker": "cat"}},
            "data.holdout.speaker: no row has the value 'cat'; the column contains ann, ben",
        ),
        (
            {"gap": [0.1]},
            "data.gap: must be two durations in seconds, 0 <= minimum <= maximum, got [0.1]",
        ),
        (
            {"gap": [0.3, 0.1]},
            "data.gap: must be two durations in seconds, 0 <= minimum <= maximum, got [0.3, 0.1]",
        ),
        ({"num_test": 0}, "data.num_test: must be at least 1, got 0"),
        (
            {"shortest": 6},
            "data.shortest, data.longest: must satisfy 1 <= shortest <= longest, got 6 and 5",
        ),
        (
            {"longest": 13},
            "data.longest: must be at most 6, because the validation split has only 6 clips of "
            "ann, got 13",
        ),
        (
            {"longest": 13, "speaker": None},
            "data.longest: must be at most 12, because the validation split has only 12 clips, "
            "got 13",
        ),
    ],
)
def test_invalid_options_are_refused(folder, changed, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        small(folder / "clips.csv", **changed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "gone.wav"}, "{name} row 6: audio: {place}/gone.wav: file not found"),
        ({"path": "text.wav"}, "{name} row 6: audio: {place}/text.wav: not "),
        ({"path": "none.wav"}, "{name} row 6: audio: {place}/none.wav: no samples in it"),
        ({"path": ""}, "{name} row 6: column 'path' (audio) has no value"),
        ({"word": " "}, "{name} row 6: column 'word' (target) has no value"),
        ({"speaker": ""}, "{name} row 6: column 'speaker' (speaker) has no value"),
        (
            {"split": "odd"},
            "{name} row 6: column 'split' must be train, validation or test, got 'odd'",
        ),
    ],
)
def test_a_clip_that_cannot_be_used_is_named_by_its_row(folder, change, message):
    (folder / "text.wav").write_text("no sound")
    empty = np.zeros(0, dtype=np.float32)
    soundfile.write(folder / "none.wav", empty, CLIP_RATE, subtype="PCM_16")
    path = changed_table(folder, "bad.csv", lambda rows: rows[4].update(change))
    expected = message.format(name="bad.csv", place=folder)
    with pytest.raises(UserError, match=re.escape(expected)):
        small(path)


def test_a_table_without_test_clips_is_refused(folder):
    path = changed_table(folder, "notest.csv", lambda rows: rows[:120])
    with pytest.raises(UserError, match=r"notest\.csv: the test split has no clips; add some"):
        small(path)
