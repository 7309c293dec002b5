"""What `dxn check` counts and lists, on files made here."""

import csv

import numpy as np
import pytest
import soundfile
from PIL import Image

from dxn.data.check import check, write_bad
from dxn.data.rows import Rows, Source
from dxn.tokenize import AudioAdapter, ImageAdapter, train_tokenizer
from dxn.tokenize.text import TextPrepare


@pytest.fixture(scope="module")
def prepares():
    return {
        "text": TextPrepare(train_tokenizer(["a red fox"], vocab_size=300), max_len=31, max_chars=43),
        "image": ImageAdapter(7, image_size=None, patch_size=2).prepare,
        "audio": AudioAdapter(7, sample_rate=1000, n_mels=5, max_seconds=2.0).prepare,
    }


@pytest.fixture
def files(tmp_path):
    """Five pictures of 7×5 to 11×5 pixels, five sounds of 0.1 to 0.5 s, and bad ones of both."""
    rng = np.random.default_rng(0)
    for i in range(5):
        Image.fromarray(rng.integers(0, 256, (5, 7 + i, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
        soundfile.write(tmp_path / f"{i}.wav", rng.normal(0, 0.1, 100 * (i + 1)), 1000)
    soundfile.write(tmp_path / "fast.wav", rng.normal(0, 0.1, 800), 2000)
    soundfile.write(tmp_path / "long.wav", rng.normal(0, 0.1, 2100), 1000)
    (tmp_path / "short.png").write_bytes((tmp_path / "4.png").read_bytes()[:-41])
    return tmp_path


def source(files=None, kind="class", **splits):
    """A Source of splits, each a dict of cells; files that are named are in the folder."""
    made = {}
    for split, cells in splits.items():
        cells = {
            name: [str(files / v) if v and name in ("image", "audio") else v for v in column]
            for name, column in cells.items()
        }
        count = len(next(iter(cells.values())))
        made[split] = Rows(cells, [f"{split}.csv row {i + 2}" for i in range(count)])
    names = {name: name for rows in made.values() for name in rows.cells}
    return Source(made, kind, names, ["splits: as given"])


def test_the_report_counts_rows_classes_and_sizes_by_split(files, prepares):
    report = check(
        source(
            files,
            train={
                "text": ["fox", "a red fox", None],
                "image": ["0.png", "2.png", "4.png"],
                "audio": ["0.wav", "fast.wav", "4.wav"],
                "target": ["a", "b", "a"],
            },
            test={"text": ["foxes"], "image": ["1.png"], "audio": [None], "target": ["b"]},
        ),
        prepares,
    )
    assert report.lines() == [
        "text: text",
        "image: image",
        "audio: audio",
        "target: target (class)",
        "note: splits: as given",
        "train: 3 rows",
        "  text: 2, 1 empty; 3 to 9, median 6 characters",
        "  image: 3; 7×5 to 11×5, median 9×5, 3 sizes",
        "  audio: 3; 0.10 to 0.50, median 0.40 s; 2 at 1,000 Hz, 1 at 2,000 Hz",
        "  target: a 2, b 1",
        "test: 1 rows",
        "  text: 1; 5 to 5, median 5 characters",
        "  image: 1; all 8×5",
        "  audio: 0, 1 empty",
        "  target: b 1",
    ]


def test_rates_are_those_of_the_files_not_of_the_adapter(files, prepares):
    cells = {"audio": ["fast.wav", "0.wav", None, "fast.wav", "gone.wav"], "target": list("abaab")}
    found = check(source(files, train=cells, test={"audio": ["1.wav"], "target": ["a"]}), prepares)
    assert found.rates == {"train": {2000: 2, 1000: 1}, "test": {1000: 1}} and found.sample_rate == 1000


@pytest.mark.parametrize(
    ("kind", "targets", "line"),
    [
        ("number", [1.5, -2.0, 4.0], "target: -2 to 4, median 1.5"),
        ("labels", [["a", "b"], ["b"], []], "target: b 2, a 1"),
        ("class", ["a", "b", "b"], "target: b 2, a 1"),
    ],
)
def test_the_targets_of_each_kind_are_summed_up(prepares, kind, targets, line):
    report = check(source(kind=kind, train={"text": ["a", "b", "c"], "target": targets}), prepares)
    assert "  " + line in report.lines()


def test_words_are_counted_as_words_and_tags_as_names(prepares):
    cells = {"text": [["a", "fox"], ["red"]], "target": [["D", "N"], ["N"]]}
    report = check(source(kind="tags", train=cells), prepares)
    assert "  text: 2; 1 to 2, median 2 words" in report.lines() and "  target: N 2, D 1" in report.lines()


def test_of_many_classes_the_most_frequent_are_listed_and_the_rest_counted(prepares):
    names = [f"class {i:02}" for i in range(23)] + ["class 22"]
    cells = {"text": [f"text {i}" for i in range(24)], "target": names}
    (line,) = [line for line in check(source(train=cells), prepares).lines() if line.startswith("  target: ")]
    assert line.startswith("  target: class 22 2, class 00 1, ") and line.endswith(", class 18 1 and 3 more")


def test_no_target_is_needed_where_there_is_none_to_predict(prepares):
    report = check(source(kind="none", train={"text": ["a", "b"]}), prepares)
    assert report.bad == [] and report.lines()[2:] == ["train: 2 rows", "  text: 2; 1 to 1, median 1 characters"]


def test_equal_rows_are_counted_within_splits_and_across_them(prepares):
    report = check(
        source(
            train={"text": ["a", "b", "a", "a", "c"], "target": list("xyxyx")},
            validation={"text": ["d", "e"], "target": list("xy")},
            test={"text": ["a", "c", "c", "d", "f"], "target": list("xyxyx")},
        ),
        prepares,
    )
    assert report.duplicates == {
        "within train": 2,
        "within validation": 0,
        "within test": 1,
        "of train in validation": 0,
        "of train in test": 3,
        "of validation in test": 1,
    }
    told = [line for line in report.lines() if line.startswith("duplicates")]
    assert told == [
        "duplicates within train: 2",
        "duplicates within test: 1",
        "duplicates of train in test: 3",
        "duplicates of validation in test: 1",
    ]


def test_equal_means_the_same_content_in_all_modalities_whatever_the_file_is_called(files, prepares):
    (files / "copy.png").write_bytes((files / "0.png").read_bytes())
    Image.open(files / "0.png").save(files / "copy.bmp")  # other bytes, the same pixels
    cells = {"image": ["0.png", "copy.png", "copy.bmp", "1.png"], "target": ["a"] * 4}
    assert check(source(files, train=cells), prepares).duplicates == {"within train": 2}
    cells["text"] = ["one", "one", "two", "one"]
    assert check(source(files, train=cells), prepares).duplicates == {"within train": 1}
    cells = {"image": ["0.png", None, "0.png"], "text": ["one", "one", "one"], "target": ["a"] * 3}
    assert check(source(files, train=cells), prepares).duplicates == {"within train": 1}


def test_pixels_of_another_shape_are_another_picture(tmp_path, prepares):
    pixels = np.zeros((6, 4, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "tall.png")
    Image.fromarray(pixels.reshape(4, 6, 3)).save(tmp_path / "wide.png")
    cells = {"image": ["tall.png", "wide.png"], "target": ["a", "a"]}
    assert check(source(tmp_path, train=cells), prepares).duplicates == {"within train": 0}


BAD = {
    "text": ["fox", "a red fox", None, "x" * 44, "fox", "fox"],
    "image": ["gone.png", "0.png", None, "1.png", "short.png", "2.png"],
    "audio": ["0.wav", "long.wav", None, None, "gone.wav", "1.wav"],
    "target": ["a", "a", "a", "b", "b", None],
}


def test_all_that_is_bad_is_listed_with_split_row_modality_path_and_reason(files, prepares):
    report = check(source(files, train={"text": ["fox"], "target": ["a"]}, test=BAD), prepares)
    found = sorted((b.split, b.row, b.modality, b.path, b.reason) for b in report.bad)
    truncated = next(b.reason for b in report.bad if b.path.endswith("short.png"))
    assert truncated.startswith("damaged or truncated image (")
    row = "test.csv row {}".format
    assert found == [
        ("test", row(2), "image", str(files / "gone.png"), "file not found"),
        ("test", row(3), "audio", str(files / "long.wav"), "2.1 s, more than max_seconds=2"),
        ("test", row(4), "", "", "nothing to learn from: no text, no image, no audio"),
        ("test", row(5), "text", "", "44 characters, more than max_chars=43"),
        ("test", row(6), "audio", str(files / "gone.wav"), "file not found"),
        ("test", row(6), "image", str(files / "short.png"), truncated),
        ("test", row(7), "", "", "no target"),
    ]
    lines = report.lines()
    assert "test: 4 rows, 2 left out" in lines and "train: 1 rows" in lines
    assert "bad: 1 × image file not found" in lines and "bad: 1 × no target" in lines


def test_the_same_fault_is_counted_once_for_all_files(files, prepares):
    cells = {"image": ["gone.png", "0.png", "away.png"], "text": ["a", "b", "c"], "target": ["a"] * 3}
    assert check(source(files, train=cells), prepares).lines()[-1] == "bad: 2 × image file not found"


def test_a_picture_given_as_bytes_has_no_path(prepares):
    cells = {"image": [b"no picture"], "text": ["a"], "target": ["a"]}
    rows = Rows(cells, ["my.parquet row 1"])
    (bad,) = check(Source({"train": rows}, "class", {}), prepares).bad
    assert (bad.modality, bad.path) == ("image", "") and bad.reason.startswith("not an image this reads")


def test_the_bad_are_written_as_a_csv_that_reads_back(files, prepares):
    (files / "a, b.png").write_bytes(b"")
    cells = {**BAD, "image": ["a, b.png", *BAD["image"][1:]]}
    report = check(source(files, test=cells), prepares)
    write_bad(report, files / "bad.csv")
    with (files / "bad.csv").open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [tuple(row.values()) for row in found] == [
        (b.split, b.row, b.modality, b.path, b.reason) for b in report.bad
    ]
    assert list(found[0]) == ["split", "row", "modality", "path", "reason"] and len(found) == 7
    named = {"split": "test", "row": "test.csv row 2", "modality": "image", "path": str(files / "a, b.png")}
    assert {**named, "reason": "empty file"} in found


def test_nothing_bad_leaves_the_header_alone(tmp_path, prepares):
    write_bad(check(source(train={"text": ["a"], "target": ["b"]}), prepares), tmp_path / "bad.csv")
    assert (tmp_path / "bad.csv").read_text().splitlines() == ["split,row,modality,path,reason"]


def test_a_split_without_rows_is_passed_over(prepares):
    report = check(source(train={"text": ["a"], "target": ["b"]}, test={"text": [], "target": []}), prepares)
    assert list(report.splits) == ["train"]
