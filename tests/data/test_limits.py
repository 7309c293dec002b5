"""Small files that would expand to gigabytes are refused before they do, with a sentence."""

import gzip
import io
import json
import tarfile
import tracemalloc
import zipfile

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest

from dxn.core.errors import UserError
from dxn.data.sources.archive import read_archive
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


def add(archive, name, size, kind=tarfile.REGTYPE, **fields):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(bytes(size)))


def zip_of_zeros(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(FREE_BYTES // MB + 1):
            archive.writestr(f"a/{i}.txt", ZEROS)


def tar_of_zeros(path):
    with gzip.GzipFile(path, "wb", 1) as file:
        info = tarfile.TarInfo("a/0.png")
        info.size = 3 << 30
        file.write(info.tobuf() + ZEROS)


def tar_with_zeros_behind(path):
    with gzip.GzipFile(path, "wb", 1) as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            add(archive, "a/0.png", 5)
        for _ in range(FREE_BYTES // MB + 1):
            file.write(ZEROS)


def tar_with_a_long_name(path):
    with gzip.GzipFile(path, "wb", 1) as file, tarfile.open(fileobj=file, mode="w") as archive:
        add(archive, "a/0.png", 5)
        add(archive, "././@LongLink", 9 * MB, tarfile.GNUTYPE_LONGNAME)


def tar_with(*names):
    def write(path):
        with tarfile.open(path, "w") as archive:
            for name in names:
                add(archive, name, 5)

    return write


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (zip_of_zeros, EXPAND),
        (tar_of_zeros, EXPAND),
        (tar_with_zeros_behind, EXPAND),
        (tar_with_a_long_name, "a header of .* bytes"),
        (tar_with("a/1.png", "../../evil.png"), "the name '../../evil.png' leads out of the arch"),
        (tar_with("/etc/evil.png"), "the name '/etc/evil.png' leads out of the archive"),
        (tar_with("a/../../evil.png"), "leads out of the archive"),
    ],
)
def test_a_hostile_archive_is_refused(tmp_path, write, message):
    path = tmp_path / "a.archive"
    write(path)
    tracemalloc.start()
    with pytest.raises(UserError, match=message):
        list(read_archive(path, lambda name: name.endswith(".png")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * MB


def test_a_link_out_of_an_archive_is_refused(tmp_path):
    path = tmp_path / "a.tar"
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        with tarfile.open(path, "w") as archive:
            add(archive, "a/link.png", 0, kind, linkname="/etc/passwd")
        with pytest.raises(UserError, match=r"a/link.png is a link to /etc/passwd, which is not"):
            list(read_archive(path, lambda name: name.endswith(".png")))


def test_devices_of_an_archive_are_left_out_and_only_wanted_files_are_read(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        add(archive, "a/1.png", 5)
        add(archive, "a/1.txt", 7)
        add(archive, "a/link.txt", 0, tarfile.SYMTYPE, linkname="/etc/passwd")
        add(archive, "a/device.png", 0, tarfile.CHRTYPE)
    found = dict(read_archive(path, lambda name: name.endswith(".png")))
    assert found == {("a", "1.png"): bytes(5), ("a", "1.txt"): b""}
