"""Paths in tables and folders stay inside the data folder, unless data.confine=false."""

import os
from pathlib import Path

import pytest
from helpers.data import by_modality, write_table
from PIL import Image

from dxn.core.errors import UserError
from dxn.data import folder, open_rows, table, text_files
from dxn.data.cell_paths import OutsidePath, confined
from dxn.data.reading import survey_rows
from dxn.tokenize import ImageAdapter

TOKENIZERS = {"image": ImageAdapter(dim=8, image_size=8, patch_size=4).tokenizer}
READERS = {"image": TOKENIZERS["image"].reader}
LEADS = "leads out of the data folder .* set data.confine=false"


@pytest.fixture
def data(tmp_path):
    """A data folder with a picture, next to a private one."""
    data, private = tmp_path / "data", tmp_path / "data2"
    for place in (data, data / "a", data / "b", private):
        place.mkdir()
    for file in (data / "a/1.png", data / "b/2.png", private / "secret.png"):
        Image.new("RGB", (8, 8), "red").save(file)
    (data / "link.png").symlink_to(private / "secret.png")
    (data / "out").symlink_to(private)
    (data / "inside.png").symlink_to(data / "a/1.png")
    return data


def problems(data, cell, **options):
    rows = [{"image": "a/1.png", "label": "x"}, {"image": cell, "label": "y"}]
    path = write_table(data / "t.jsonl", rows)
    source = table(path, readers=READERS, fractions=None, image="image", **options)
    (rows,) = source.splits.values()
    return [str(fault) for fault in survey_rows(rows, TOKENIZERS).bad]


@pytest.mark.parametrize(
    "cell", ["../data2/secret.png", "link.png", "out/secret.png", "a/../../data2/secret.png", "ABS"]
)
def test_a_cell_that_leads_out_is_not_read_unless_the_user_allows_it(data, cell):
    cell = str(data.parent / "data2/secret.png") if cell == "ABS" else cell
    (problem,) = problems(data, cell)
    assert "leads out of the data folder" in problem
    assert "set data.confine=false" in problem
    assert problems(data, cell, confine=False) == []


@pytest.mark.parametrize("cell", ["a/1.png", "./b/../a/1.png", "inside.png", "a//1.png"])
def test_a_cell_that_stays_inside_is_read(data, cell):
    assert problems(data, cell) == []
    assert problems(data, str(data / cell)) == []


@pytest.mark.parametrize("cell", ["a\0b.png", "x" * 5000 + ".png", "/dev/stdin", "out"])
def test_a_cell_that_names_no_file_is_a_bad_cell(data, cell):
    (problem,) = problems(data, cell, confine=False)
    assert "file not found" in problem


def test_a_pipe_is_not_waited_for(data):
    os.mkfifo(data / "pipe.png")
    os.mkfifo(data / "pipe.csv")
    assert "file not found" in problems(data, "pipe.png")[0]
    with pytest.raises(UserError, match="must be a regular file"):
        table(str(data / "pipe.csv"), readers=READERS)


def test_a_link_out_of_a_folder_of_classes_is_a_bad_file(data):
    for name in ("link.png", "inside.png"):
        (data / name).rename(data / "a" / name)
    (data / "out").unlink()
    source = folder(str(data), readers=READERS, fractions=None)
    (rows,) = source.splits.values()
    with pytest.raises(UserError, match=f"a/link.png: .*{LEADS}"):
        open_rows(rows, TOKENIZERS)
    allowed = folder(str(data), readers=READERS, fractions=None, confine=False)
    (rows,) = allowed.splits.values()
    assert len(open_rows(rows, TOKENIZERS)) == 4


def test_a_table_and_a_text_of_a_folder_cannot_be_links_out_of_it(data):
    outside = data.parent / "outside.csv"
    write_table(outside, [{"image": "a/1.png", "label": "x"}])
    (data / "t.csv").symlink_to(outside)
    with pytest.raises(UserError, match=f"t.csv: {LEADS}"):
        table(str(data), readers=READERS)
    # The user named this file himself.
    assert table(str(data / "t.csv"), readers=READERS, image="image")
    (data.parent / "outside.txt").write_text("a few words\n" * 9)
    (data / "t.txt").symlink_to(data.parent / "outside.txt")
    with pytest.raises(UserError, match=f"t.txt: {LEADS}"):
        text_files(str(data), readers=by_modality())
    assert text_files(str(data), readers=by_modality(), confine=False)


def test_a_folder_with_the_same_start_is_outside():
    assert isinstance(confined("/data/x2/a.png", Path("/data/x")), OutsidePath)
    assert not isinstance(confined("/data/x/a.png", Path("/data/x")), OutsidePath)
    assert not isinstance(confined("/data/x/a.png", Path("/")), OutsidePath)


def test_a_relative_path_is_that_of_the_current_folder(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name / "photos").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / name)
        path = confined("photos/1.png", Path())
        assert not isinstance(path, OutsidePath)
