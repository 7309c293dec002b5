"""What `dxn check` counts and lists, on files made here."""

import csv

import numpy as np
import pytest
import soundfile
from helpers.data import SMALL_RATE
from PIL import Image

from dxn.core.errors import UserError
from dxn.data import InputSpec, Issue, Rows, Source, count_truncated, open_rows, write_bad
from dxn.data.inspect.check import Report, check, remove_earlier
from dxn.tasks import Classify, Generate, Language, Multilabel, Regress, Tag
from dxn.tokenize import (
    AudioAdapter,
    ImageAdapter,
    SpectrogramOptions,
    TextAdapter,
    TokenizerOptions,
)


@pytest.fixture(scope="module")
def tokenizers():
    text = TextAdapter(8, vocab_size=300, max_len=31).fit(["a red fox"])
    spectrogram = SpectrogramOptions(n_mels=5, max_seconds=2.0)
    audio = AudioAdapter(8, sample_rate=SMALL_RATE, spectrogram=spectrogram)
    return {
        "text": text.tokenizer,
        "image": ImageAdapter(8, image_size=None, patch_size=2).tokenizer,
        "audio": audio.tokenizer,
    }


@pytest.fixture
def files(tmp_path):
    """Five pictures of 7×5 to 11×5 pixels, five sounds of 0.1 to 0.5 s, and bad ones of both."""
    rng = np.random.default_rng(0)
    for i in range(5):
        pixels = rng.integers(0, 256, (5, 7 + i, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
        soundfile.write(tmp_path / f"{i}.wav", rng.normal(0, 0.1, 100 * (i + 1)), SMALL_RATE)
    soundfile.write(tmp_path / "fast.wav", rng.normal(0, 0.1, 800), 2 * SMALL_RATE)
    soundfile.write(tmp_path / "long.wav", rng.normal(0, 0.1, 2100), SMALL_RATE)
    (tmp_path / "short.png").write_bytes((tmp_path / "4.png").read_bytes()[:-41])
    return tmp_path


def source_of(files=None, *, target="label", notes=(), **splits):
    """A source of splits, each of which is a dict of cells; names of files are in the folder."""
    by_split = {}
    for split, columns in splits.items():
        cells = {}
        for name, column in columns.items():
            is_file = name in ("image", "audio")
            cells[name] = [str(files / v) if v and is_file else v for v in column]
        count = len(next(iter(cells.values())))
        by_split[split] = Rows(cells, [f"{split}.csv row {i + 2}" for i in range(count)])
    names = {name for columns in splits.values() for name in columns} - {"target"}
    ordered = [name for name in ("text", "image", "audio") if name in names]
    inputs = {name: InputSpec(f"my {name}", name) for name in ordered}
    return Source(by_split, inputs, target=target, notes=notes)


def report_of(source, tokenizers, task=None, **options):
    return check(source, tokenizers, task=task or Classify(), **options)


def test_the_report_counts_rows_sizes_and_targets_by_split(files, tokenizers):
    source = source_of(
        files,
        notes=["splits: from column part"],
        train={
            "text": ["fox", "a red fox", None],
            "image": ["0.png", "2.png", "4.png"],
            "audio": ["0.wav", "fast.wav", "4.wav"],
            "target": ["a", "b", "a"],
        },
        test={"text": ["foxes"], "image": ["1.png"], "audio": [None], "target": ["b"]},
    )
    assert report_of(source, tokenizers).lines() == [
        "text: my text",
        "image: my image",
        "audio: my audio",
        "target: label (classify)",
        "note: splits: from column part",
        "train: 3 rows",
        "  text: 2, 1 empty; 3 to 9, median 6 characters",
        "  image: 3; 7×5 to 11×5, median 9×5, 3 sizes",
        "  audio: 3; 0.10 to 0.50, median 0.40 s; 2 at 1,000 Hz, 1 at 2,000 Hz",
        "  target: 2 classes (a 2, b 1)",
        "test: 1 row",
        "  text: 1; 5 to 5, median 5 characters",
        "  image: 1; all 8×5",
        "  audio: 0, 1 empty",
        "  target: 1 class (b 1)",
        "warning: there is no validation split, which selects the best epoch",
        "warning: test has only 1 row, too few for reliable metrics (at least 30)",
        "warning: 2 of 2 classes are rare, so single rows decide about the metrics: 'b' has 1 row "
        "in train; 'a' has 2 rows in train",
    ]


def test_an_input_with_a_name_of_its_own_is_listed_with_its_modality(tokenizers):
    rows = Rows({"title": ["a"], "target": ["x"]}, ["row 1"])
    source = Source({"train": rows}, {"title": InputSpec("head line", "text")}, target="label")
    lines = report_of(source, {"title": tokenizers["text"]}).lines()
    assert lines[0] == "title: head line (text)"
    assert "  title: 1; 1 to 1, median 1 characters" in lines


@pytest.mark.parametrize(
    ("task", "targets", "line"),
    [
        (Regress(), ["1.5", -2.0, 4.0], "target: -2 to 4, median 1.5"),
        (Multilabel(), ["a|b", ["b"], []], "target: 2 labels (b 2, a 1)"),
        (Classify(), ["a", "b", "b"], "target: 2 classes (b 2, a 1)"),
        (
            Generate(decoder=lambda **_: None),
            ["one", "a longer text", "three"],
            "target: texts of 3 to 13 characters, median 5",
        ),
    ],
)
def test_the_task_describes_the_targets(tokenizers, task, targets, line):
    source = source_of(train={"text": ["a", "b", "c"], "target": targets})
    assert f"  {line}" in report_of(source, tokenizers, task).lines()


def test_words_are_counted_as_words_and_tags_as_names(tokenizers):
    cells = {"text": [["a", "fox"], ["red"]], "target": [["D", "N"], ["N"]]}
    lines = report_of(source_of(train=cells), tokenizers, Tag()).lines()
    assert "  text: 2; 1 to 2, median 2 words" in lines
    assert "  target: 2 tags (N 2, D 1)" in lines


def test_without_a_target_none_is_needed(tokenizers):
    source = source_of(target=None, train={"text": ["a", "b"]})
    for task in (Language(), Classify()):
        report = report_of(source, tokenizers, task)
        assert report.bad == []
        assert report.lines()[1:3] == ["train: 2 rows", "  text: 2; 1 to 1, median 1 characters"]


# Truncated texts


def text_adapter(max_len=4):
    return TextAdapter(8, tokenizer=TokenizerOptions(kind="word"), max_len=max_len)


TRUNCATED = ["one two three", "one two three four five", "one two three four five six seven eight"]


def test_truncated_texts_are_counted():
    adapter = text_adapter().fit(TRUNCATED)
    source = source_of(
        train={"text": [*TRUNCATED, None], "target": ["a"] * 4},
        test={"text": ["one two"], "target": ["a"]},
    )
    lines = report_of(source, {"text": adapter.tokenizer}).lines()
    # 4 of 5 and 4 of 8 tokens are read.
    line = "  text: 2 of 3 samples are truncated to 4 tokens "
    line += "(median: 65% of a truncated sample is kept)"
    assert lines[lines.index("train: 3 rows, 1 left out") + 2] == line
    assert sum("truncated" in line for line in lines) == 1


def test_adapters_can_be_fitted_on_what_was_opened():
    adapter = text_adapter()
    source = source_of(train={"text": TRUNCATED, "target": ["a"] * 3})
    assert "truncated" not in " ".join(report_of(source, {"text": adapter.tokenizer}).lines())

    def fit(splits):
        adapter.fit(splits["train"].raws["text"])

    report = report_of(source, {"text": adapter.tokenizer}, fit=fit)
    assert report.truncations["train"]["text"].count == 2


def test_truncation_is_counted_for_opened_rows_too():
    adapter = text_adapter().fit(TRUNCATED)
    rows = source_of(train={"text": TRUNCATED}).splits["train"]
    opened = open_rows(rows, {"text": adapter.tokenizer})
    truncation = count_truncated(opened, {"text": adapter.tokenizer})["text"]
    assert (truncation.count, truncation.total, truncation.max_len) == (2, 3, 4)
    assert truncation.median_read == pytest.approx((4 / 5 + 4 / 8) / 2)
    longer = text_adapter(max_len=8).fit(TRUNCATED)
    assert count_truncated(opened, {"text": longer.tokenizer}) == {}


# Duplicates


def test_equal_rows_are_counted_within_splits_and_between_them(tokenizers):
    source = source_of(
        train={"text": ["a", "b", "a", "a", "c"], "target": list("xyxxx")},
        validation={"text": ["d", "e"], "target": list("xy")},
        test={"text": ["a", "c", "c", "d", "f"], "target": list("xxxxx")},
    )
    report = report_of(source, tokenizers)
    assert report.duplicates == {"train": 2, "validation": 0, "test": 1}
    lines = report.lines()
    assert "duplicates within train: 2" in lines
    assert "duplicates within test: 1" in lines
    assert [line for line in lines if "also occur" in line] == [
        "warning: 3 of 5 rows of test also occur in train, such as test.csv row 2, which makes the "
        "metrics of test too good",
        "warning: 1 of 5 rows of test also occurs in validation, such as test.csv row 5, which "
        "makes the metrics of test too good",
    ]
    assert [(bad.origin, bad.reason) for bad in report.listed] == [
        ("test.csv row 2", "all inputs are equal to those of train.csv row 5 (train)"),
        ("test.csv row 3", "all inputs are equal to those of train.csv row 6 (train)"),
        ("test.csv row 4", "all inputs are equal to those of train.csv row 6 (train)"),
        ("test.csv row 5", "all inputs are equal to those of validation.csv row 2 (validation)"),
    ]


def test_equal_inputs_with_different_targets_are_listed(tokenizers):
    source = source_of(train={"text": ["a", "b", "a", "c"], "target": list("xyyx")})
    report = report_of(source, tokenizers)
    sentence = "1 row has the same inputs as another row, but another target, such as "
    assert f"warning: {sentence}train.csv row 2 ('x') and train.csv row 4 ('y')" in report.lines()
    (bad,) = report.listed
    assert (bad.origin, bad.reason) == (
        "train.csv row 4",
        "inputs of train.csv row 2, but target 'y' instead of 'x'",
    )
    # A text can have several translations.
    task = Generate(decoder=lambda **_: None)
    assert report_of(source, tokenizers, task).listed == []


def test_the_check_goes_on_if_a_part_cannot_be_fitted(tokenizers):
    def fit(splits):
        raise UserError("no row has a text")

    source = source_of(train={"text": ["a", None], "target": ["a", "b"]})
    report = report_of(source, tokenizers, fit=fit, errors=["data.target: is wrong"])
    assert report.errors == ["data.target: is wrong", "no row has a text"]
    assert "error: no row has a text" in report.lines()
    assert len(report.bad) == 1


@pytest.mark.parametrize(
    ("cells", "error"),
    [
        ({"text": [None, None], "target": ["a", "b"]}, "train: there is no row that can be used"),
        ({"text": ["a", "b"], "target": ["a", "a"]}, "data.target: all 2 targets are 'a'"),
    ],
)
def test_the_check_says_if_nothing_can_be_trained(tokenizers, cells, error):
    (line,) = report_of(source_of(train=cells), tokenizers).errors
    assert line.startswith(error)


def test_the_file_of_an_earlier_check_is_deleted_but_no_other_file(tmp_path, tokenizers):
    path = tmp_path / "bad.csv"
    remove_earlier(path)  # there is none
    write_bad(report_of(source_of(train={"text": ["a"], "target": ["b"]}), tokenizers), path)
    remove_earlier(path)
    assert not path.exists()
    path.write_text("split,row\ntrain,1\n")
    with pytest.raises(UserError, match=r"bad\.csv exists and was not written by dxn check"):
        remove_earlier(path)
    assert path.exists()


def test_equal_rows_have_the_same_content_whatever_their_files_are_called(files, tokenizers):
    def duplicates(**cells):
        source = source_of(files, train=cells)
        return report_of(source, tokenizers).duplicates["train"]

    (files / "copy.png").write_bytes((files / "0.png").read_bytes())
    Image.open(files / "0.png").save(files / "copy.bmp")  # other bytes, but the same pixels
    images = ["0.png", "copy.png", "copy.bmp", "1.png"]
    assert duplicates(image=images, target=["a"] * 4) == 2
    assert duplicates(image=images, text=["one", "one", "two", "one"], target=["a"] * 4) == 1
    assert duplicates(image=["0.png", None, "0.png"], text=["one"] * 3, target=["a"] * 3) == 1


def test_the_same_pixels_in_another_shape_are_another_picture(tmp_path, tokenizers):
    pixels = np.zeros((6, 4, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "tall.png")
    Image.fromarray(pixels.reshape(4, 6, 3)).save(tmp_path / "wide.png")
    cells = {"image": ["tall.png", "wide.png"], "target": ["a", "a"]}
    report = report_of(source_of(tmp_path, train=cells), tokenizers)
    assert report.duplicates == {"train": 0}


# Bad rows

BAD = {
    "text": ["fox", "a red fox", None, " \n", "fox", "fox"],
    "image": ["gone.png", "0.png", None, "1.png", "short.png", "2.png"],
    "audio": ["0.wav", "long.wav", None, None, "gone.wav", "1.wav"],
    "target": ["a", "a", "a", "b", "b", None],
}


def line_of(bad):
    return bad.split, bad.origin, bad.input, bad.path, bad.reason


def test_everything_bad_is_listed_with_split_row_input_path_and_reason(files, tokenizers):
    source = source_of(files, train={"text": ["fox"], "target": ["a"]}, test=BAD)
    report = report_of(source, tokenizers)
    reasons = {bad.path: bad.reason for bad in report.bad}
    truncated = reasons[str(files / "short.png")]
    assert truncated.startswith("damaged or truncated image (")
    row = "test.csv row {}".format
    assert sorted(map(line_of, report.bad)) == [
        ("test", row(2), "image", str(files / "gone.png"), "file not found"),
        ("test", row(3), "audio", str(files / "long.wav"), "2.1 s, more than max_seconds=2"),
        ("test", row(4), "", "", "no input: text, image, audio are all missing"),
        ("test", row(5), "text", "", "blank text"),
        ("test", row(6), "audio", str(files / "gone.wav"), "file not found"),
        ("test", row(6), "image", str(files / "short.png"), truncated),
        ("test", row(7), "", "", "no target"),
    ]
    lines = report.lines()
    assert "test: 4 rows, 2 left out" in lines
    assert "train: 1 row" in lines
    assert "bad: 1 × image: file not found" in lines
    assert "bad: 1 × no target" in lines


def test_problems_that_differ_in_their_values_are_one_line():
    reasons = ["'a 1' is no number", "'a 1' is no number", "'b' is no number", "row 7 is short"]
    bad = [Issue(reason, input="size") for reason in reasons]
    report = Report(Source({}, {}), None, {}, {}, {}, {}, (), bad)
    assert [line for line in report.lines() if line.startswith("bad")] == [
        "bad: 3 × size: 'a 1' is no number (and 1 other like it)",
        "bad: 1 × size: row 7 is short",
    ]


def test_a_split_with_bad_rows_only_is_reported_too(files, tokenizers):
    cells = {"image": ["gone.png", "short.png"], "target": ["a", "b"]}
    good = {"image": ["0.png"], "target": ["a"]}
    report = report_of(source_of(files, train=good, validation=cells), tokenizers)
    assert "validation: 0 rows, 2 left out" in report.lines()
    assert len(report.bad) == 2


def test_a_target_that_cannot_be_parsed_is_listed(tokenizers):
    cells = {"text": ["a", "b", "c"], "target": ["1", "N/A", "3"]}
    report = report_of(source_of(train=cells), tokenizers, Regress())
    (bad,) = report.bad
    assert bad.origin == "train.csv row 3"
    assert "'N/A'" in bad.reason


def test_equal_faults_are_counted_together(files, tokenizers):
    cells = {
        "image": ["gone.png", "0.png", "away.png"],
        "text": ["a", "b", "c"],
        "target": ["a"] * 3,
    }
    lines = report_of(source_of(files, train=cells), tokenizers).lines()
    assert lines[-1] == "bad: 2 × image: file not found"


def test_a_picture_in_bytes_has_no_path(tokenizers):
    rows = Rows({"image": [b"no picture"], "text": ["a"], "target": ["a"]}, ["my.parquet row 1"])
    (bad,) = report_of(Source({"train": rows}, {}, target="label"), tokenizers).bad
    assert (bad.input, bad.path) == ("image", "")
    assert bad.reason.startswith("not a supported image")


def test_the_csv_of_bad_rows_reads_back(files, tokenizers):
    (files / "a, b.png").write_bytes(b"")
    cells = {**BAD, "image": ["a, b.png", *BAD["image"][1:]]}
    report = report_of(source_of(files, test=cells), tokenizers)
    write_bad(report, files / "bad.csv")
    with (files / "bad.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [tuple(line.values()) for line in lines] == list(map(line_of, report.bad))
    assert list(lines[0]) == ["split", "row", "input", "path", "reason"]
    assert len(lines) == 7
    assert {
        "split": "test",
        "row": "test.csv row 2",
        "input": "image",
        "path": str(files / "a, b.png"),
        "reason": "empty file",
    } in lines


def test_without_bad_rows_the_csv_is_its_header(tmp_path, tokenizers):
    source = source_of(train={"text": ["a"], "target": ["b"]})
    write_bad(report_of(source, tokenizers), tmp_path / "bad.csv")
    lines = (tmp_path / "bad.csv").read_text().splitlines()
    assert lines == ["split,row,input,path,reason"]


def test_a_split_without_rows_is_left_out(tokenizers):
    source = source_of(train={"text": ["a"], "target": ["b"]}, test={"text": [], "target": []})
    assert list(report_of(source, tokenizers).splits) == ["train"]


def test_a_fault_reads_as_input_path_and_reason():
    whole = Issue("no target", "row 1", 0)
    part = Issue("empty file", "row 1", 0, input="front", path="a.png")
    assert [str(whole), str(part)] == ["no target", "front: a.png: empty file"]
