"""The .ts files of the UEA and UCR archives: values, labels, headers, and wrong files."""

import gzip

import numpy as np
import pytest
from dxn_examples.ts import read_ts, ts
from helpers.data import EXAMPLES
from helpers.runs import train

from dxn.core.errors import UserError

HEADER = "#comment\n@problemName Walks\n@timeStamps false\n@classLabel true a b\n@data\n"


def read(text, path="walk.ts"):
    return read_ts(path, text)


def test_channels_are_separated_by_colons_and_the_label_is_last():
    columns, lines = read(HEADER + "1,2,3:4,5,6:a\n\n# a comment\n7,8:9,10:b\n")
    assert columns["label"] == ["a", "b"]
    assert lines == [6, 9]
    assert columns["values"][0].tolist() == [[1, 4], [2, 5], [3, 6]]
    assert columns["values"][1].tolist() == [[7, 9], [8, 10]]


def test_a_question_mark_is_missing_and_shorter_channels_are_filled():
    columns, _ = read(HEADER + "1,?,NaN:4:a\n?,?:?:b\n")
    expected = [[1, 4], [np.nan, np.nan], [np.nan, np.nan]]
    np.testing.assert_array_equal(columns["values"][0], expected)
    assert columns["values"][1] is None


def test_without_labels_there_is_no_label_column():
    columns, _ = read("@univariate true\n@classLabel false\n@data\n1,2\n")
    assert list(columns) == ["values"]
    columns, _ = read("@targetlabel true\n@data\n1,2:0.5\n3:?\n")
    assert columns["label"] == ["0.5", None]


def test_headers_are_read_in_any_case_and_with_any_line_ends(tmp_path):
    path = tmp_path / "walk.ts"
    path.write_bytes((HEADER.upper() + "1,2:A\n3:B\n").replace("\n", "\r\n").encode())
    assert list(ts(str(path), fractions=None).splits["all"].cells["target"]) == ["A", "B"]
    packed = tmp_path / "packed.ts.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(ts(str(packed), fractions=None).splits["all"].cells["target"]) == ["A", "B"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "walk.ts: has no line @data"),
        ("let x: number = 5;", "walk.ts line 1: must be a header such as @classLabel"),
        ("@timeStamps true\n@data\n", "walk.ts: @timeStamps true is not supported; write"),
        (HEADER + "(0,1),(2,3):a", "walk.ts line 6: contains pairs of a time stamp"),
        (HEADER + "1,x,3:a", "walk.ts line 6: must contain only numbers, got 'x'; write ? for"),
        (HEADER + "1,1_0,3:a", "walk.ts line 6: must contain only numbers, got '1_0'"),
        (HEADER + "1,inf,3:a", "walk.ts line 6: must contain only numbers, got 'inf'"),
        (HEADER + "1,2:3,4:a\n1,2:b", "walk.ts line 7: must have 2 channels separated by colons"),
        ("@dimensions 3\n" + HEADER + "1:2:a", "must have 3 channels separated by colons, and a"),
        ("@dimensions x\n@data\n", "walk.ts: @dimensions must be a whole number above 0, got 'x'"),
        ("@univariate true\n@data\n1:2", "line 3: must have 1 channels"),
        (HEADER + "a", "must have 1 channels"),
        (HEADER + "9" * 99 + "x:a", "9..."),
        (
            "@problemName x\n@data\n" + "1," * 9000 + "1" + ":1" * 9000 + "\n",
            "line 3: a series must have at most 10,000,000 values, got 9,001 channels",
        ),
    ],
)
def test_a_wrong_file_is_explained_in_one_sentence(text, message):
    with pytest.raises(UserError) as error:
        read(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def write_archive(folder, name="Walks"):
    rows = [f"{i},{i + 1},?:{-i},{i},{i}:{'ab'[i % 2]}" for i in range(12)]
    (folder / f"{name}_TRAIN.ts").write_text(HEADER + "\n".join(rows[:8]))
    (folder / f"{name}_TEST.ts").write_text(HEADER + "\n".join(rows[8:]))


def test_a_folder_of_an_archive_is_a_data_set_with_its_official_splits(tmp_path):
    write_archive(tmp_path)
    source = ts(str(tmp_path), fractions=None)
    assert {name: len(rows) for name, rows in source.splits.items()} == {"train": 8, "test": 4}
    assert source.target == "label"
    assert source.inputs["series"].column == "values"
    assert source.splits["test"].origin[0] == "Walks_TEST.ts row 6"


def test_a_validation_split_is_drawn_from_the_training_rows(tmp_path):
    write_archive(tmp_path)
    source = ts(str(tmp_path))
    assert list(source.splits) == ["train", "validation", "test"]
    assert len(source.splits["train"]) + len(source.splits["validation"]) == 8


def test_two_archives_in_a_folder_are_not_mixed(tmp_path):
    write_archive(tmp_path)
    write_archive(tmp_path, "Runs")
    with pytest.raises(UserError, match=r"must contain one data set, .*got Runs, Walks; set data"):
        ts(str(tmp_path))


def test_a_folder_without_files_is_refused(tmp_path):
    with pytest.raises(UserError, match="file or folder not found: nowhere"):
        ts("nowhere")
    with pytest.raises(UserError, match="got no such file"):
        ts(str(tmp_path))


def test_a_folder_of_an_archive_is_trained_on(tmp_path):
    write_archive(tmp_path)
    options = [EXAMPLES, "experiment=basic_motions", f"data.path={tmp_path}", "report=false"]
    metrics = train(tmp_path / "run", *options, "trainer.epochs=1", "dim=16", "backbone.depth=1")
    assert metrics["test/accuracy"] >= 0
