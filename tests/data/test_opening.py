"""Opening rows: what cannot be read is named, left out or used in part, and targets are parsed."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile
from helpers.data import SMALL_RATE
from helpers.data import tokenizers as make_tokenizers
from PIL import Image

from dxn.core.errors import UserError
from dxn.data.reading import open_rows, survey_rows
from dxn.data.rows import Rows
from dxn.tasks import Classify, Language, Multilabel, Regress, Tag
from dxn.tokenize import Reader, TextAdapter, Tokenizer

ADVICE = (
    "; correct the data, or set data.on_bad=skip or data.on_bad=missing "
    "(dxn check lists all bad rows)"
)


@pytest.fixture(scope="module")
def tokenizers():
    return make_tokenizers()


@pytest.fixture(scope="module")
def media(tokenizers):
    return {name: tokenizers[name] for name in ("image", "audio")}


@pytest.fixture
def files(tmp_path):
    """A good picture and a good sound, and bad ones of several kinds."""
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "good.png")
    (tmp_path / "short.png").write_bytes((tmp_path / "good.png").read_bytes()[:-41])
    (tmp_path / "none.png").write_bytes(b"")
    noise = np.random.default_rng(0).normal(0, 0.1, 101)
    soundfile.write(tmp_path / "good.wav", noise, SMALL_RATE)
    soundfile.write(tmp_path / "empty.wav", noise[:0], SMALL_RATE)
    return tmp_path


def media_rows(folder: Path, images, sounds, targets=None):
    cells = {
        "image": [name and str(folder / name) for name in images],
        "audio": [name and str(folder / name) for name in sounds],
        "target": targets or ["a"] * len(images),
    }
    return Rows(cells, [f"my.csv row {i + 2}" for i in range(len(images))])


def text_rows(texts, targets=None):
    cells = {"text": texts} if targets is None else {"text": texts, "target": targets}
    return Rows(cells, [f"my.csv row {i + 2}" for i in range(len(texts))])


class CountingReader(Reader):
    """Counts what is read."""

    modality = "any"
    files = True

    def __init__(self):
        self.counts = Counter()

    def read(self, cell):
        self.counts[cell] += 1
        return cell


class Counting(Tokenizer):
    """A tokenizer that must not be called when rows are opened."""

    def __init__(self):
        self.reader = CountingReader()

    def __call__(self, raw, rand=None):
        raise AssertionError("opening prepares no samples")


# Bad files


@pytest.mark.parametrize(
    ("image", "audio", "reason"),
    [
        ("gone.png", "good.wav", r"image: {0}/gone\.png: file not found"),
        ("short.png", "good.wav", r"image: {0}/short\.png: damaged or truncated image \(.+\)"),
        ("none.png", "good.wav", r"image: {0}/none\.png: empty file"),
        ("good.wav", "good.wav", r"image: {0}/good\.wav: not a supported image \(.+\)"),
        ("good.png", "empty.wav", r"audio: {0}/empty\.wav: no samples in it"),
        ("good.png", "gone.wav", r"audio: {0}/gone\.wav: file not found"),
        ("good.png", "good.png", r"audio: {0}/good\.png: not .+: .+"),
        (None, None, "no input: image, audio are all missing"),
    ],
)
def test_a_bad_row_stops_with_its_origin_its_file_and_the_reason(
    files, media, image, audio, reason
):
    rows = media_rows(files, ["good.png", image], ["good.wav", audio])
    with pytest.raises(UserError) as caught:
        open_rows(rows, media)
    message = str(caught.value)
    assert message.startswith("my.csv row 3: ")
    assert message.endswith(ADVICE)
    fault = message.removeprefix("my.csv row 3: ").removesuffix(ADVICE)
    assert re.fullmatch(reason.format(re.escape(str(files))), fault), fault


def test_a_text_is_not_repeated_as_if_it_were_a_path():
    rows = text_rows(["  \n "])
    with pytest.raises(UserError) as caught:
        open_rows(rows, {"text": TextAdapter(8).tokenizer})
    assert str(caught.value) == f"my.csv row 2: text: blank text{ADVICE}"


def test_a_cell_that_is_no_text_is_a_bad_cell(tokenizers):
    rows = text_rows([["one", 2], "fine"])
    with pytest.raises(UserError, match=r"^my\.csv row 2: text: must be a text or a list"):
        open_rows(rows, {"text": tokenizers["text"]})


def test_the_first_bad_row_is_named_and_the_others_are_counted(files, media):
    images = ["good.png", "good.png", "gone.png", "none.png"]
    sounds = ["good.wav", "empty.wav", "good.wav", "good.wav"]
    rows = media_rows(files, images, sounds, ["a", "a", "a", None])
    expected = (
        r"^my\.csv row 3: audio: .*/empty\.wav: no samples in it \(and 3 more problems\); correct"
    )
    with pytest.raises(UserError, match=expected):
        open_rows(rows, media, task=Classify())


def test_skip_leaves_out_the_whole_row_and_counts_it(files, media):
    images = ["good.png", "short.png", "good.png", None, "good.png"]
    sounds = ["good.wav", "good.wav", "empty.wav", "good.wav", "good.wav"]
    rows = media_rows(files, images, sounds, ["a", "b", "c", "d", None])
    opened = open_rows(rows, media, task=Classify(), on_bad="skip")
    assert opened.origin == ["my.csv row 2", "my.csv row 5"]
    assert opened.kept.tolist() == [0, 3]
    assert opened.targets == ["a", "d"]
    assert opened.skipped == 3
    assert dict(opened.missing) == {"image": 1, "audio": 0}
    faulty = ["my.csv row 3", "my.csv row 4", "my.csv row 6"]
    assert [fault.origin for fault in opened.bad] == faulty


def test_missing_uses_the_other_inputs_and_leaves_out_rows_without_any(files, media):
    images = ["good.png", "short.png", "good.png", "gone.png", "good.png"]
    sounds = ["good.wav", "good.wav", "empty.wav", "gone.wav", "good.wav"]
    rows = media_rows(files, images, sounds, ["a", "b", "c", "d", None])
    opened = open_rows(rows, media, task=Classify(), on_bad="missing")
    assert opened.origin == ["my.csv row 2", "my.csv row 3", "my.csv row 4"]
    assert [raw is None for raw in opened.raws["image"]] == [False, True, False]
    assert [raw is None for raw in opened.raws["audio"]] == [False, False, True]
    assert opened.skipped == 2
    assert dict(opened.missing) == {"image": 1, "audio": 1}
    assert len(opened.bad) == 5


def test_an_empty_cell_beside_another_input_is_not_bad(files, media):
    opened = open_rows(media_rows(files, ["good.png", None], [None, "good.wav"]), media)
    assert opened.bad == []
    assert opened.skipped == 0
    assert dict(opened.missing) == {"image": 1, "audio": 1}


@pytest.mark.parametrize("on_bad", ["skip", "missing"])
def test_if_no_row_is_left_the_first_is_named_with_its_reason(files, media, on_bad):
    rows = media_rows(files, ["good.png", "gone.png"], [None, None], [None, "a"])
    with pytest.raises(UserError) as caught:
        open_rows(rows, media, task=Classify(), on_bad=on_bad)
    assert str(caught.value) == (
        "data: all 2 rows are bad; correct the data; the first problem is my.csv row 2: no target"
    )


def test_a_survey_lists_everything_even_if_no_row_is_left(files, media):
    rows = media_rows(files, ["gone.png", "none.png"], [None, None])
    opened = survey_rows(rows, media)
    assert len(opened) == 0
    assert [fault.reason for fault in opened.bad] == ["file not found", "empty file"]


def test_a_split_without_rows_is_an_error():
    with pytest.raises(UserError, match=r"^data: there are no rows; check the path and"):
        open_rows(text_rows([], []), {"text": Counting()}, task=Classify())


def test_the_option_that_skips_bad_rows_is_named_as_the_caller_says(media, files):
    rows = media_rows(files, ["gone.png"], ["good.wav"])
    with pytest.raises(UserError, match=r"or set on_bad=skip or on_bad=missing"):
        open_rows(rows, media, key="on_bad")


# Reading


def test_a_file_is_read_once_however_many_rows_share_it():
    prepare = Counting()
    cells = ["a.png", "b.png", None, "a.png", b"bytes", b"bytes", "a.png"]
    opened = open_rows(Rows({"any": cells}, list("abcdefg")), {"any": prepare}, on_bad="skip")
    assert prepare.reader.counts == {"a.png": 1, "b.png": 1, b"bytes": 1}
    assert list(opened.raws["any"]) == [cell for cell in cells if cell is not None]


def test_a_bad_file_that_several_rows_share_makes_each_of_them_bad(files, media):
    rows = media_rows(files, ["gone.png", "good.png", "gone.png"], ["good.wav"] * 3)
    opened = open_rows(rows, media, on_bad="skip")
    assert opened.origin == ["my.csv row 3"]
    assert opened.skipped == 2


def test_an_input_that_no_adapter_reads_is_not_opened(files, media):
    rows = media_rows(files, ["gone.png"], ["good.wav"])
    assert list(open_rows(rows, {"audio": media["audio"]}).raws) == ["audio"]


def test_inputs_of_one_modality_are_opened_by_name(files, media):
    path = str(files / "good.png")
    rows = Rows({"front": [path, None], "back": [None, path]}, ["row 1", "row 2"])
    opened = open_rows(rows, {"front": media["image"], "back": media["image"]})
    assert [raw is None for raw in opened.raws["front"]] == [False, True]
    assert dict(opened.missing) == {"front": 1, "back": 1}
    (files / "good.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"^row 1: front: .*good\.png: not a supported image"):
        open_rows(rows, {"front": media["image"], "back": media["image"]})


def test_ids_and_printable_cells_follow_the_rows_that_are_left(files, media):
    cells = {
        "image": [str(files / "gone.png"), str(files / "good.png"), Path(files / "good.png")],
        "audio": [None, (np.zeros(7, np.float32), SMALL_RATE), (files / "good.wav").read_bytes()],
        "text": ["a fox", ["two", "words"], "a bird"],
        "unused": [1, 2, 3],
    }
    rows = Rows(cells, ["row 1", "row 2", "row 3"], ids={"code": ["x", "y", "z"]})
    tokenizers = {**media, "text": TextAdapter(8).tokenizer}
    opened = open_rows(rows, tokenizers, on_bad="skip")
    assert opened.ids == {"code": ["y", "z"]}
    assert opened.cells == {
        "image": [str(files / "good.png")] * 2,
        "audio": [None, None],
        "text": [["two", "words"], "a bird"],
    }


# Targets


@pytest.mark.parametrize(
    ("task", "cells", "values"),
    [
        (Classify(), ["red", 1, True], ["red", "1", "True"]),
        (Regress(), ["1.5", -2, "7"], [1.5, -2.0, 7.0]),
        (Multilabel(), ["a|b", ["c"], " a | "], [["a", "b"], ["c"], ["a"]]),
        (Tag(), [["N"], ["V"], ["N"]], [["N"], ["V"], ["N"]]),
    ],
)
def test_the_task_parses_raw_targets(tokenizers, task, cells, values):
    rows = text_rows([["one"], ["two"], ["three"]], cells)
    opened = open_rows(rows, {"text": tokenizers["text"]}, task=task)
    assert opened.targets == values


def test_without_a_task_targets_stay_raw_cells(tokenizers):
    rows = text_rows(["one", "two"], ["a|b", None])
    assert open_rows(rows, {"text": tokenizers["text"]}).targets == ["a|b", None]


@pytest.mark.parametrize(
    ("task", "cells", "message"),
    [
        (Regress(), ["1", "many"], r"^my\.csv row 3: .*'many'.*; correct the data"),
        (Regress(), ["1", "inf"], r"^my\.csv row 3: .*'inf'.*; correct the data"),
        (Tag(), [["N"], 3], r"^my\.csv row 3: the target must be a list, got 3; correct"),
        (Classify(), ["a", None], r"^my\.csv row 3: no target; correct"),
    ],
)
def test_a_target_that_the_task_refuses_makes_the_row_bad(tokenizers, task, cells, message):
    text = {"text": tokenizers["text"]}
    rows = text_rows([["one"], ["two"]], cells)
    with pytest.raises(UserError, match=message):
        open_rows(rows, text, task=task)
    opened = open_rows(rows, text, task=task, on_bad="missing")
    assert opened.origin == ["my.csv row 2"]


def test_a_target_that_does_not_fit_the_words_makes_the_row_bad(tokenizers):
    text = {"text": tokenizers["text"]}
    rows = text_rows([["one"], ["two", "three"]], [["N"], ["N"]])
    with pytest.raises(
        UserError, match=r"^my\.csv row 3: there must be one tag per word, got 1 tags for 2 words"
    ):
        open_rows(rows, text, task=Tag())
    rows = text_rows(["one two", ["three"]], [["N", "N"], ["N"]])
    assert open_rows(rows, text, task=Tag()).raws["text"] == [["one", "two"], ["three"]]


def test_a_row_without_a_target_is_only_bad_if_targets_are_needed(tokenizers):
    text = {"text": tokenizers["text"]}
    rows = text_rows(["one", "two"], ["a", None])
    assert open_rows(rows, text, task=Classify(), need_target=False).targets == ["a", None]
    invalid = text_rows(["one", "two"], ["1.5", "many"])
    opened = open_rows(invalid, text, task=Regress(), need_target=False)
    assert opened.targets == [1.5, None]
    assert opened.bad == []


def test_a_missing_target_column_is_one_sentence(tokenizers):
    text = {"text": tokenizers["text"]}
    rows = text_rows(["one", "two"])
    with pytest.raises(UserError, match=r"^data\.target: no target column is chosen, .*COLUMN$"):
        open_rows(rows, text, task=Classify(), on_bad="skip")
    assert open_rows(rows, text, task=Classify(), need_target=False).targets is None


def test_a_task_without_targets_does_not_look_at_them(tokenizers):
    rows = text_rows(["one", "two"], ["a", None])
    opened = open_rows(rows, {"text": tokenizers["text"]}, task=Language())
    assert opened.targets is None
    assert len(opened) == 2
