"""Values of Python, and tables with empty cells, keep all of their rows and values."""

import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from dxn.core.errors import UserError
from dxn.data.columns.infer import names_new_groups
from dxn.data.files import digest
from dxn.data.sources.memory import tables_of, write_tables
from dxn.data.tables.read import read_table
from dxn.tokenize.base import BadMedia
from dxn.tokenize.media import bytes_or_path
from tests.helpers.newcomer import TEXT, TINY, run


def test_an_empty_cell_of_a_table_of_one_column_is_a_row_without_a_value(tmp_path, capsys):
    rows = [f"{('good', 'bad')[i % 2]} thing {i},{i % 2}" for i in range(40)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]))
    folder = tmp_path / "run"
    path = f"data.path={tmp_path / 'train.csv'}"
    options = [path, *TINY, *TEXT, "data.target=label", "report=false", "baseline=none"]
    assert run("train", *options, f"run={folder}") == 0
    (tmp_path / "new.csv").write_text("text\ngood thing\n\nbad thing\n")
    assert run("predict", f"run={folder}", f"input={tmp_path / 'new.csv'}") == 2
    assert "new.csv row 3: no input: text is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "lines"),
    [("a\n\nx\n", [2, 3]), ("a\nx\n\n\n", [2]), ("a\n\n\n", []), ("a,b\n\n1,2\n", [3])],
)
def test_blank_lines_are_rows_only_inside_a_table_of_one_column(content, lines, tmp_path):
    (tmp_path / "t.csv").write_text(content)
    assert read_table(tmp_path / "t.csv").origins.lines.tolist() == lines


def test_one_missing_file_does_not_make_the_paths_of_the_others_wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for i in range(5):
        Image.new("RGB", (4, 4), (i, i, i)).save(f"{i}.png")
    frame = pd.DataFrame({"image": ["missing.png", *(f"{i}.png" for i in range(5))]})
    files, has_paths = write_tables(tables_of(frame), tmp_path / "data")
    cells = read_table(next(iter(files.values()))).columns["image"]
    assert has_paths
    assert [Path(cell).is_file() for cell in cells] == [False] + [True] * 5


@pytest.mark.parametrize("name", ["none.png", "no/none.wav", "none.npy"])
def test_paths_of_files_that_are_all_missing_start_in_the_current_folder(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(
        {
            "file": [name, f"{tmp_path}/there.png"],
            "url": ["http://a/b.png"] * 2,
            "text": ["I cannot open holiday.png", "Who wrote song.mp3"],
            "class": ["cat.png", "cat.png"],
        }
    )
    files, _ = write_tables(tables_of(frame), tmp_path / "data")
    columns = read_table(files["all"]).columns
    assert columns["text"] == frame["text"].tolist()
    assert columns["class"] == frame["class"].tolist()
    assert columns["file"] == [f"{tmp_path}/{name}", f"{tmp_path}/there.png"]
    assert columns["url"] == ["http://a/b.png"] * 2


def test_the_message_about_a_missing_file_names_the_folder_in_which_its_path_starts(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadMedia, match=rf"^file not found \(current directory: {tmp_path}\)$"):
        bytes_or_path("pictures/none.png")
    with pytest.raises(BadMedia, match=r"^file not found$"):
        bytes_or_path(tmp_path / "none.png")


@pytest.mark.parametrize("wrap", [lambda x: (x, 1), lambda x: [x], lambda x: {"a": [x]}, list])
def test_values_that_differ_inside_of_a_long_array_are_different(wrap):
    first = np.arange(5000.0)
    second = first.copy()
    second[2500] = -1
    assert digest(wrap(first)) == digest(wrap(first.copy()))
    assert digest(wrap(first)) != digest(wrap(second))


def test_embedded_images_never_name_groups():
    train, test = [b"a", b"a", b"b", b"b"], [b"c", b"c"]
    assert not names_new_groups(train, test)
    assert names_new_groups(["ann", "ann", "bob", "bob"], ["eve", "eve"])


@pytest.mark.parametrize("form", ["numpy", "torch", "pandas"])
def test_the_format_of_a_data_set_does_not_change_its_values(form):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "size": [1, 2], "v": [[1.0], [2.0]]})
    expected = tables_of(data)["all"].columns
    assert tables_of(data.with_format(form))["all"].columns == expected


def test_two_names_of_one_split_are_refused():
    frame = pd.DataFrame({"x": [1, 2]})
    with pytest.raises(UserError, match="two parts are the validation split"):
        tables_of({"train": frame, "val": frame, "validation": frame})


def test_days_and_times_in_one_column_keep_the_times(tmp_path):
    cells = [datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 3, 5)]
    files, _ = write_tables(
        tables_of(pd.DataFrame({"at": pd.Series(cells, dtype=object)})), tmp_path / "d"
    )
    assert read_table(files["all"]).columns["at"] == [datetime.datetime(2026, 1, 2), cells[1]]


def test_the_index_of_times_of_a_data_frame_is_not_left_out_silently():
    frame = pd.DataFrame({"x": [1, 2]}, index=pd.date_range("2026-01-01", periods=2))
    assert "times in the index" in tables_of(frame)["all"].notes[0]
    assert tables_of(frame.reset_index())["all"].notes == []


def test_an_index_with_a_name_is_not_left_out_silently():
    frame = pd.DataFrame({"text": ["a", "b"], "x": [1, 2]})
    assert tables_of(frame)["all"].notes == []
    (note,) = tables_of(frame.set_index("text"))["all"].notes
    assert note.startswith("not used: the index of the data frame (text); frame.reset_index()")
