"""Small files that would expand to gigabytes are refused before they do, with a sentence."""

import gzip
import json
import tracemalloc
import zipfile

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest

from dxn.core.errors import UserError
from dxn.data.tables.files import FREE_BYTES, MAX_COLUMNS, MAX_LINE
from dxn.data.tables.read import read_table

MB = 1 << 20
ZEROS = bytes(MB)
EXPAND = r"bytes expand to .* or more, and at most .* are allowed"


def write_csv_gz(path):
    with gzip.GzipFile(path, "wb") as file:
        file.write(b"text,label\n")
        for _ in range(FREE_BYTES // MB + 9):
            file.write((b"a" * 1023 + b"\n") * 1024)


def write_repeated_text(path):
    values = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 500), ["x" * MB])
    pyarrow.parquet.write_table(pyarrow.table({"text": values}), path)


def write_repeated_items(path):
    indices = pyarrow.array([0] * 120)
    values = pyarrow.DictionaryArray.from_arrays(indices, ["x" * MB]).cast("string")
    lists = pyarrow.ListArray.from_arrays([0, 120], values)
    pyarrow.parquet.write_table(pyarrow.table({"words": lists}), path)


def write_null_rows(path):
    empty = pyarrow.nulls(FREE_BYTES // 5)
    pyarrow.parquet.write_table(pyarrow.table({"a": empty, "b": empty}), path)


def write_last_cells(path):
    sheet = openpyxl.Workbook(write_only=True).create_sheet()
    book = sheet.parent
    for _ in range(700):
        sheet.append([None] * 16_383 + [1])
    book.save(path)


def write_excel_of_zeros(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(FREE_BYTES // MB + 1):
            archive.writestr(f"xl/{i}.xml", ZEROS)


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("a.csv.gz", write_csv_gz, EXPAND),
        ("a.parquet", write_repeated_text, EXPAND),
        ("b.parquet", write_repeated_items, EXPAND),
        ("c.parquet", write_null_rows, "the table would have 40,000,000 cells or more"),
        ("a.xlsx", write_last_cells, "the table would have .* cells or more"),
        ("b.xlsx", write_excel_of_zeros, EXPAND),
    ],
)
def test_a_table_that_expands_is_refused(tmp_path, name, write, message):
    path = tmp_path / name
    write(path)
    assert path.stat().st_size < 3 * MB
    tracemalloc.start()
    with pytest.raises(UserError, match=message):
        read_table(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5 * FREE_BYTES


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "c," * MAX_COLUMNS + "c\n", "must have at most 100,000 columns, got 100,001"),
        ("a.csv", "text\n" + "x" * (MAX_LINE + 1), "line 2: more than 16,000,000 bytes without"),
        ("a.tsv", "x" * (MAX_LINE + 1), "line 1: more than 16,000,000 bytes without a line break"),
        ("a.jsonl", "[" * 100_000, "row 1: invalid JSON"),
        ("a.json", "[" * 100_000, "a.json: invalid JSON"),
        ("a.jsonl", '{"a": 1, "a": 2}', r"row 1: invalid JSON \(the key 'a' occurs twice\)"),
        ("a.json", '[{"a": {"b": 1, "b": 2}}]', r"invalid JSON \(the key 'b' occurs twice\)"),
        ("a.jsonl", '{"a": ' + "9" * 5000 + "}", "row 1: invalid JSON .*4300 digits"),
        ("a.csv", "text,label\na\0b,x\n", "row 2: contains a zero byte, so it is not a text"),
        (
            "a.jsonl",
            "".join(f'{{"k{i}": 1}}\n' for i in range(4000)),
            "the table would have 16,000,000 cells or more, almost all of them empty",
        ),
    ],
)
def test_a_text_table_beyond_a_limit_is_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read_table(tmp_path / name)


def test_half_of_a_surrogate_pair_becomes_a_replacement_character(tmp_path):
    rows = [{"text": "a \ud800 b", "w": ["\udc00"], "k\ud800": {"x": "\ud800"}}]
    (tmp_path / "a.jsonl").write_text(json.dumps(rows[0]) + "\n")
    (tmp_path / "a.json").write_text(json.dumps(rows))
    expected = {"text": ["a \ufffd b"], "w": [["\ufffd"]], "k\ufffd": [{"x": "\ufffd"}]}
    assert read_table(tmp_path / "a.jsonl").columns == expected
    assert read_table(tmp_path / "a.json").columns == expected


def test_a_dictionary_of_a_parquet_file_is_read_as_texts(tmp_path):
    values = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0, None, 1, 0]), ["x" * 97, "y"])
    pyarrow.parquet.write_table(pyarrow.table({"text": values}), tmp_path / "a.parquet")
    column = read_table(tmp_path / "a.parquet").columns["text"]
    assert column == ["x" * 97, None, "y", "x" * 97]
