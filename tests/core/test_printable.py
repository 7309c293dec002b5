"""Texts from untrusted sources: no formula reaches a spreadsheet, and no escape code a terminal."""

import csv
import json

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxn import cli
from dxn.core.display import print_line, records_table
from dxn.core.printable import UNSAFE, csv_cell, json_text, valid_text
from dxn.data import Issue
from dxn.data.inspect.check import Report, write_bad
from dxn.data.rows import Source
from dxn.runs.predictor.output import write_records

HOSTILE = "=cmd|'/C calc'!A0\x1b]0;title\x07\udcff\u202e"


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+cmd|x", "'+cmd|x"),
        ("-2+cmd|x", "'-2+cmd|x"),
        (" =1+1", "' =1+1"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\n=1"),
        ("\uff1d1", "'\uff1d1"),
        ("-5", "-5"),
        ("-1,234.5 %", "-1,234.5 %"),
        ("-1.5e-05", "-1.5e-05"),
        ("-inf", "-inf"),
        ("-", "-"),
        ("a = b", "a = b"),
        ("two\r\nlines", "two\nlines"),
        ("\x1b[31mred\x9b\x7f", "\\x1b[31mred\\x9b\\x7f"),
        ("bad\udcff", "bad\\udcff"),
        ("caf\u00e9 \u4e2d \U0001f600", "caf\u00e9 \u4e2d \U0001f600"),
    ],
)
def test_a_cell_is_no_formula_and_has_no_control_characters(text, cell):
    assert csv_cell(text) == cell


@given(st.text(alphabet=st.characters(), max_size=23))
def test_every_text_is_harmless_in_a_cell_and_complete_in_json(text):
    cell = csv_cell(text)
    assert UNSAFE.search(cell) is None
    assert not cell.lstrip().startswith(("=", "@"))
    encoded = json_text(text)
    assert UNSAFE.search(encoded) is None
    assert json.loads(encoded) == text
    valid_text(text).encode()


@pytest.mark.parametrize("suffix", [".csv", ".json", ".jsonl", ".parquet"])
def test_every_format_of_predictions_takes_a_hostile_text(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    write_records(path, [{HOSTILE: HOSTILE, "n": -3, "x": -0.5, "labels": ["=a", "b"]}])
    if suffix == ".parquet":
        assert pyarrow.parquet.read_table(path).column(0).to_pylist() == [valid_text(HOSTILE)]
        return
    text = path.read_bytes().decode().replace("\r\n", "\n")
    assert UNSAFE.search(text) is None
    if suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            header, row = csv.reader(file)
        assert header[0] == row[0] == csv_cell(HOSTILE)
        assert row[1:] == ["-3", "-0.5", "'=a|b"]
    else:
        records = json.loads(text)
        assert (records if suffix == ".jsonl" else records[0])[HOSTILE] == HOSTILE


def test_the_list_of_bad_rows_is_harmless(tmp_path):
    bad = Issue("file not found", "t.csv row 2", split="train", input="image", path=HOSTILE)
    write_bad(Report(Source({}, {}), None, {}, {}, {}, {}, [], [bad]), tmp_path / "bad.csv")
    with (tmp_path / "bad.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file))[1][3] == csv_cell(HOSTILE)


def test_no_line_on_the_screen_contains_an_escape_code(capsys):
    print_line(f"target values: {HOSTILE}")
    records_table([{HOSTILE: HOSTILE}])
    assert cli._failed(f"{HOSTILE}: no such class", 2) == 2
    out, error = capsys.readouterr()
    assert "\\x1b]0;title" in out
    assert "\\x1b]0;title" in error
    assert UNSAFE.search(out + error) is None


def test_a_line_is_printed_verbatim_except_for_control_characters(capsys):
    print_line("[red]:smile:\t" + "wide " * 30 + "\x1b[31m")
    assert capsys.readouterr().out == "[red]:smile:\t" + "wide " * 30 + "\\x1b[31m\n"
