"""The data source that a path means, without importing what reads it."""

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.data import by_modality

from dxn.core.errors import UserError
from dxn.data import text_files
from dxn.data.formats import table_format
from dxn.data.sources.detect import infer_source


@pytest.mark.parametrize(
    ("files", "path", "source"),
    [
        (["a.csv"], "a.csv", "table"),
        (["A.CSV"], "A.CSV", "table"),
        (["a.json.gz"], "a.json.gz", "table"),
        (["a.xlsx"], "a.xlsx", "table"),
        (["a.parquet"], "a.parquet", "table"),
        (["a.txt"], "a.txt", "text"),
        (["a.zip"], "a.zip", "folder"),
        (["a.tar.gz"], "a.tar.gz", "folder"),
        (["d/x.csv", "d/photos/1.jpg"], "d", "table"),
        (["d/train.jsonl", "d/test.jsonl"], "d", "table"),
        (["d/x.json"], "d", "table"),
        (["d/cat/1.jpg", "d/info.json"], "d", "folder"),
        (["d/cat/1.jpg", "d/.hidden.csv", "d/~$x.xlsx"], "d", "folder"),
        (["d/1.txt", "d/2.txt"], "d", "text"),
        (["d/cat/1.jpg", "d/about.txt"], "d", "folder"),
    ],
)
def test_a_path_means_a_source(tmp_path, files, path, source):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert infer_source(str(tmp_path / path)) == source
    assert infer_source([tmp_path / path, "other"]) == source


def test_an_unknown_format_is_refused_with_those_that_are_known(tmp_path):
    (tmp_path / "a.pdf").write_bytes(b"")
    with pytest.raises(UserError) as caught:
        infer_source(tmp_path / "a.pdf")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'a.pdf'}: unknown format; use a table (.csv, ")
    assert ".xlsx" in message and ".zip" in message


def test_a_missing_path_is_refused_with_a_similar_name(tmp_path):
    (tmp_path / "reviews.csv").write_bytes(b"")
    with pytest.raises(UserError) as caught:
        infer_source(tmp_path / "review.csv")
    assert str(caught.value) == (
        f"file or folder not found: {tmp_path / 'review.csv'} (current directory: {Path.cwd()}); "
        f"did you mean {tmp_path / 'reviews.csv'}?"
    )


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("a.csv", ".csv"),
        ("a.b.TSV.gz", ".tsv"),
        ("a.parquet.gz", None),
        ("a.tar.gz", None),
        ("csv", None),
    ],
)
def test_the_name_of_a_table_has_its_format(name, suffix):
    assert table_format(name) == suffix


def test_no_library_is_imported_for_that():
    code = "import sys, dxn.data.sources.detect; "
    code += "sys.exit(any(name in sys.modules for name in ('torch', 'pyarrow', 'numpy')))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_texts_of_a_folder_can_have_a_suffix_in_upper_case_and_hidden_files_are_left_out(tmp_path):
    (tmp_path / "A.TXT").write_text("some words of a book " * 20)
    (tmp_path / "._A.TXT").write_bytes(b"\x00\x05\x16\x07")
    assert infer_source(tmp_path) == "text"
    source = text_files(str(tmp_path), readers=by_modality())
    assert list(source.splits["train"].origin) == ["A.TXT"]
