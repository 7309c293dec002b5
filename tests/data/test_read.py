"""Tables in every format: the same rows, and a sentence for each file that cannot be read."""

import datetime
from pathlib import Path
from zipfile import ZipFile

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest
from helpers.data import write_table

from dxn.core.errors import UserError
from dxn.data.tables.read import concatenate, read_table

ROWS = [{"review": f"a fine film ({i})", "label": ("good", "bad")[i % 2]} for i in range(23)]


def write(path: Path, text: str | bytes, encoding: str = "utf-8") -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    return path


@pytest.mark.parametrize(
    "suffix",
    [".csv", ".tsv", ".jsonl", ".json", ".parquet", ".xlsx", ".CSV", ".csv.gz", ".jsonl.gz"],
)
def test_every_format_gives_the_same_columns(tmp_path, suffix):
    table = read_table(Path(write_table(tmp_path / f"my{suffix}", ROWS)))
    assert table.columns == {name: [row[name] for row in ROWS] for name in ROWS[0]}


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [("my.csv", 2, 24), ("my.tsv", 2, 24), ("my.jsonl", 1, 23), ("my.parquet", 1, 23)],
)
def test_a_row_has_the_number_that_a_spreadsheet_or_an_editor_shows(tmp_path, name, first, last):
    table = read_table(Path(write_table(tmp_path / name, ROWS)))
    assert table.origin(0) == f"{name} row {first}"
    assert table.origin(22) == f"{name} row {last}"


def test_blank_lines_and_cells_of_several_lines_count_as_in_a_spreadsheet(tmp_path):
    path = write(tmp_path / "my.csv", 'text,label\n"one\ntwo",a\n\nthree,b\n')
    table = read_table(path)
    assert table.columns == {"text": ["one\ntwo", "three"], "label": ["a", "b"]}
    assert table.origins.lines.tolist() == [2, 4]


def test_an_empty_line_of_jsonl_counts_but_a_line_separator_within_a_text_does_not(tmp_path):
    table = read_table(write(tmp_path / "my.jsonl", '{"a": "x\u2028y"}\n\n{"a": "z"}\n'))
    assert table.columns == {"a": ["x\u2028y", "z"]}
    assert table.origins.lines.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("a.csv", "text,,label\nx,1,a\n", ["text", "Unnamed: 1", "label"]),
        ("a.csv", ",text, ,label\n0,x,1,a\n", ["Unnamed: 0", "text", "Unnamed: 2", "label"]),
        ("a.csv", "Unnamed: 1,,b\nx,1,a\n", ["Unnamed: 1", "Unnamed: 1_", "b"]),
        ("a.csv", "text,label,,,\nx,a,,,\n", ["text", "label"]),
        ("a.jsonl", '{"text": "x", "": 1, "label": "a"}\n', ["text", "Unnamed: 1", "label"]),
    ],
)
def test_a_column_without_a_name_gets_that_of_pandas(tmp_path, name, content, names):
    assert list(read_table(write(tmp_path / name, content)).columns) == names


def test_blank_cells_are_none_in_every_format(tmp_path):
    table = read_table(write(tmp_path / "a.csv", "a,b\n,x\n  ,y\nNA,0\n"))
    assert table.columns == {"a": [None, None, "NA"], "b": ["x", "y", "0"]}
    lines = '{"a": "", "b": 1}\n{"b": NaN}\n{"a": null, "b": 0}\n'
    table = read_table(write(tmp_path / "a.jsonl", lines))
    assert table.columns == {"a": [None, None, None], "b": [1, None, 0]}
    rows = [{"a": " ", "b": 2.5}, {"a": "x", "b": float("nan")}]
    table = read_table(Path(write_table(tmp_path / "a.parquet", rows)))
    assert table.columns == {"a": [None, "x"], "b": [2.5, None]}


def test_a_csv_cell_stays_the_text_that_it_is(tmp_path):
    table = read_table(write(tmp_path / "my.csv", 'zip,said\n01234," ""hm"", she said "\n'))
    assert table.columns == {"zip": ["01234"], "said": [' "hm", she said ']}


def test_a_byte_order_mark_is_not_part_of_the_first_column_name(tmp_path):
    table = read_table(write(tmp_path / "my.csv", "text,label\nx,y\n", "utf-8-sig"))
    assert list(table.columns) == ["text", "label"]


def test_a_cell_may_exceed_the_limit_of_the_csv_module(tmp_path):
    long = "word " * 40_009
    path = write_table(tmp_path / "my.csv", [{"text": long, "label": "a"}])
    assert read_table(Path(path)).columns["text"] == [long]


def test_the_separator_is_an_option(tmp_path):
    path = write_table(tmp_path / "my.csv", ROWS, sep=";")
    table = read_table(Path(path), sep=";")
    assert table.columns["review"] == [row["review"] for row in ROWS]
    assert table.notes == []


@pytest.mark.parametrize(("sep", "name"), [(";", "';'"), ("\t", "tab"), ("|", "'|'")])
def test_another_separator_in_the_header_is_detected_and_noted(tmp_path, sep, name):
    path = write(tmp_path / "my.csv", f"text{sep}label\nHello, world{sep}a\n")
    table = read_table(path)
    assert table.columns == {"text": ["Hello, world"], "label": ["a"]}
    note = f"separator of my.csv: {name}, detected from its header (data.sep sets it)"
    assert table.notes == [note]


def test_a_comma_in_a_column_name_does_not_hide_the_separator(tmp_path):
    table = read_table(write(tmp_path / "my.csv", "text;price, EUR\nmug;7\ncup;8\n"))
    assert table.columns == {"text": ["mug", "cup"], "price, EUR": ["7", "8"]}


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("text;price, EUR;label\nmug;7,5;a\ncup;8,5;b\n", ["text", "price, EUR", "label"]),
        ("text\tprice, EUR\nmug\t7,5\ncup\t8,5\n", ["text", "price, EUR"]),
        ("a,b;c\n1,2;3\n", ["a", "b;c"]),
    ],
)
def test_of_two_separators_that_fit_the_likely_one_is_used_and_both_are_noted(
    tmp_path, content, names
):
    table = read_table(write(tmp_path / "my.csv", content))
    assert list(table.columns) == names
    assert len(table.notes) == 1 and table.notes[0].endswith("would fit too")


def test_a_table_with_one_column_has_no_separator(tmp_path):
    table = read_table(write(tmp_path / "my.csv", "text\none; two\nthree\n"))
    assert table.columns == {"text": ["one; two", "three"]}


# Encodings

TEXT = "text,label\nschön,gut\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_unicode_is_detected_by_its_byte_order_mark(tmp_path, encoding):
    table = read_table(write(tmp_path / "my.csv", TEXT, encoding))
    assert table.columns == {"text": ["schön"], "label": ["gut"]}


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-16-le", "utf-8-sig"])
def test_the_encoding_is_an_option(tmp_path, encoding):
    table = read_table(write(tmp_path / "my.csv", TEXT, encoding), encoding=encoding)
    assert table.columns == {"text": ["schön"], "label": ["gut"]}


@pytest.mark.parametrize(
    ("written", "options", "message"),
    [
        (
            "cp1252",
            {},
            "{path} row 2: byte 0xf6 is not valid utf-8; set data.encoding=cp1252 or the encoding "
            "of the file, or save it as UTF-8",
        ),
        (
            "utf-16-le",
            {"prefix": ""},
            "{path} row 2: byte 0xf6 is not valid utf-8; set encoding=utf-16-le or the encoding "
            "of the file, or save it as UTF-8",
        ),
        (
            "cp1252",
            {"encoding": "utf-8"},
            "{path} row 2: byte 0xf6 is not valid utf-8; set data.encoding to the encoding of the "
            "file, got utf-8",
        ),
        (
            "utf-8",
            {"encoding": "utf8000"},
            "data.encoding: unknown encoding 'utf8000'; use a name such as utf-8, utf-16 or cp1252",
        ),
    ],
)
def test_a_wrong_encoding_is_explained(tmp_path, written, options, message):
    path = write(tmp_path / "my.csv", TEXT, written)
    with pytest.raises(UserError) as caught:
        read_table(path, **options)
    assert str(caught.value) == message.format(path=path)


def test_a_truncated_gzip_file_is_named(tmp_path):
    path = Path(write_table(tmp_path / "my.csv.gz", ROWS))
    path.write_bytes(path.read_bytes()[:-11])
    with pytest.raises(UserError, match=r"my\.csv\.gz: damaged or truncated gzip file"):
        read_table(path)


# JSON and Excel


def test_an_object_of_lists_is_a_table_too(tmp_path):
    table = read_table(write(tmp_path / "my.json", '{"a": [1, null], "b": ["x", ""]}'))
    assert table.columns == {"a": [1, None], "b": ["x", None]}
    assert table.origin(1) == "my.json row 2"


def write_book(path: Path, **sheets: list[list]) -> Path:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def test_a_sheet_of_a_workbook_is_read_with_its_types_and_row_numbers(tmp_path):
    day = datetime.datetime(2026, 1, 31)
    rows = [["text", "stars", "when"], ["one", 4, day], [], ["two", 4.5, None], [None, None, None]]
    path = write_book(tmp_path / "my.xlsx", first=rows, other=[["a"], ["x"]])
    table = read_table(path)
    assert table.columns == {
        "text": ["one", "two"],
        "stars": [4, 4.5],
        "when": [day.date(), None],
    }
    assert [table.origin(i) for i in range(2)] == ["my.xlsx row 2", "my.xlsx row 4"]
    assert table.notes == ["sheet of my.xlsx: first (data.sheet sets it; the others are other)"]
    other = read_table(path, sheet="other")
    assert (other.columns, other.notes) == (
        {"a": ["x"]},
        ["sheet of my.xlsx: other (data.sheet sets it; the others are first)"],
    )


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "{path} row 1: each column must have a name, got an empty sheet"),
        (
            [["a", None], [1, 2]],
            {},
            "{path} row 1: each column must have a name, got 'a', ''",
        ),
        (
            [["a", "a"], [1, 2]],
            {},
            "{path} row 1: column names must be unique, got 'a' more than once; rename a column",
        ),
        (
            [["a"], [1]],
            {"sheet": "b"},
            "data.sheet: no sheet 'b' in {path}; it has one",
        ),
    ],
)
def test_a_sheet_that_is_no_table_is_explained(tmp_path, rows, options, message):
    path = write_book(tmp_path / "my.xlsx", one=rows)
    with pytest.raises(UserError) as caught:
        read_table(path, **options)
    assert str(caught.value) == message.format(path=path)


def test_a_file_that_is_no_workbook_is_named(tmp_path):
    with pytest.raises(UserError, match=r"my\.xlsx: invalid Excel file"):
        read_table(write(tmp_path / "my.xlsx", "text,label\n"))


def test_parquet_files_of_the_hub_hold_files_as_bytes_or_paths(tmp_path):
    rows = [
        {"image": {"bytes": b"\x89PNG", "path": "a.png"}},
        {"image": {"bytes": None, "path": "b.png"}},
    ]
    table = read_table(Path(write_table(tmp_path / "my.parquet", rows)))
    assert table.columns == {"image": [b"\x89PNG", "b.png"]}


def test_tables_are_joined_by_column_names_in_any_order(tmp_path):
    first = read_table(write(tmp_path / "a.csv", "x,y\n1,2\n"))
    second = read_table(write(tmp_path / "b.csv", "y,x\n3,4\n"))
    both = concatenate([first, second])
    assert both.columns == {"x": ["1", "4"], "y": ["2", "3"]}
    assert [both.origin(i) for i in range(2)] == ["a.csv row 2", "b.csv row 2"]


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("x", "has no column 'y', which the other tables have"),
        ("x,y,z", "has a column 'z', which the other tables do not have"),
    ],
)
def test_tables_with_different_columns_are_refused(tmp_path, header, problem):
    first = read_table(write(tmp_path / "a.csv", "x,y\n1,2\n"))
    row = ",".join("1" for _ in header.split(","))
    second = read_table(write(tmp_path / "b.csv", f"{header}\n{row}\n"))
    with pytest.raises(UserError) as caught:
        concatenate([first, second])
    hint = "use tables that all have the same columns"
    assert str(caught.value) == f"{tmp_path / 'b.csv'}: {problem}; {hint}"


def test_an_unknown_column_is_refused_with_the_closest_name(tmp_path):
    table = read_table(write(tmp_path / "my.csv", "text,label\nx,y\n"))
    with pytest.raises(UserError) as caught:
        table.column("lable", "data.target")
    assert str(caught.value) == (
        "data.target: no column 'lable' in my.csv; its columns are text, label; "
        "did you mean 'label'?"
    )


@pytest.mark.parametrize(
    ("name", "content", "sep", "message"),
    [
        ("my.csv", "", None, "{path}: no column names; the first row must contain them"),
        (
            "my.csv",
            "text,label\none,a\ntwo\n",
            None,
            "{path} row 3: must have 2 cells, as the header has, got 1; add the missing cells",
        ),
        (
            "my.csv",
            "text,label\none, two,a\n",
            None,
            "{path} row 2: must have 2 cells, as the header has, got 3; "
            "put cells that contain the separator in quotes",
        ),
        (
            "my.csv",
            "text,label,text\na,b,c\n",
            None,
            "{path} row 1: column names must be unique, got 'text' more than once; rename a column",
        ),
        (
            "my.csv",
            "Films,,,\nx,1,2,3\n",
            None,
            "{path} row 1: 3 of 4 columns have no name; row 1 must contain the name of each column",
        ),
        (
            "my.csv",
            f"text,{'x' * 501}\na,b\n",
            None,
            "my.csv: a column name has 501 characters, but at most 500 are possible; rename column "
            f"'{'x' * 40}'...",
        ),
        (
            "my.csv",
            "text;label\na;b\n",
            ",",
            "{path} row 1: column names must be separated by ',', got 'text;label'; "
            "try data.sep=';'",
        ),
        ("my.csv", "text,label\n", "::", "data.sep: must be one character, got '::'"),
        (
            "my.csv",
            'text,label\nx,y\n"never closed,a\n',
            None,
            "{path}: invalid CSV after row 2 (unexpected end of data)",
        ),
        (
            "my.csv",
            b"text,label\nfine,a\nna\xefve,b\n",
            None,
            "{path} row 3: byte 0xef is not valid utf-8; set data.encoding=cp1252 or the encoding "
            "of the file, or save it as UTF-8",
        ),
        (
            "my.jsonl",
            '{"text": "x"}\n{"text": }\n',
            None,
            "{path} row 2: invalid JSON (Expecting value at character 10)",
        ),
        (
            "my.jsonl",
            '{"text": "x"}\n["x", "y"]\n',
            None,
            '{path} row 2: must be an object {{"column": value}}, got ["x", "y"]',
        ),
        (
            "my.txt",
            "x",
            None,
            "{path}: must be a table; use one of the formats .csv, .tsv, .jsonl, .json, "
            ".conll, .iob, .bio, .xlsx, .parquet",
        ),
        (
            "my.json",
            '[{"a": 1}, 2]',
            None,
            '{path} row 2: must be an object {{"column": value}}, got 2',
        ),
        (
            "my.json",
            '{"a": [1, 2], "b": [3]}',
            None,
            "{path}: all columns must have the same number of values, got a 2, b 1",
        ),
        (
            "my.json",
            '{"a": 1}',
            None,
            "{path}: must be a list of objects (one per row) or an object of lists (one per "
            'column), got {{"a": 1}}',
        ),
        (
            "my.json",
            '[{"a": 1},\n {"a" 2}]',
            None,
            "{path} line 2: invalid JSON (Expecting ':' delimiter at character 7)",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_explained(tmp_path, name, content, sep, message):
    path = write(tmp_path / name, content)
    with pytest.raises(UserError) as caught:
        read_table(path, sep=sep)
    assert str(caught.value) == message.format(path=path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError) as caught:
        read_table(tmp_path / "none.csv")
    here = f"current directory: {Path.cwd()}"
    path = tmp_path / "none.csv"
    assert str(caught.value) == f"file or folder not found: {path} ({here})"
    write(tmp_path / "nine.csv", "a\n")
    with pytest.raises(UserError, match=r"did you mean .*nine\.csv\?$"):
        read_table(path)


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = Path(write_table(tmp_path / "my.parquet", ROWS))
    path.write_bytes(path.read_bytes()[:-11])
    with pytest.raises(UserError, match=r"my\.parquet: invalid Parquet file \(.+\)$"):
        read_table(path)


def test_formulas_without_a_result_are_counted_in_the_sheet_that_is_read(tmp_path):
    book = openpyxl.Workbook()
    for row in (["a", "b"], [1, "=A2*2"], [2, "=A3*2"], [3, 4]):
        book.active.append(row)
    book.create_sheet("other").append(["a", "b"])
    book["other"].append([1, "=A2*2"])
    book.save(tmp_path / "first.xlsx")
    # Cells that share a formula have it only in the first of them.
    with ZipFile(tmp_path / "first.xlsx") as file, ZipFile(tmp_path / "my.xlsx", "w") as changed:
        for name in file.namelist():
            shared = file.read(name).replace(b"<f>A3*2</f>", b'<f t="shared" si="0"/>')
            changed.writestr(name, shared)
    table = read_table(tmp_path / "my.xlsx")
    assert table.columns["b"] == [None, None, 4]
    assert table.notes[0].startswith("my.xlsx: 2 formulas without a result; such a cell")
    other = read_table(tmp_path / "my.xlsx", sheet="other")
    assert other.notes[0].startswith("my.xlsx: 1 formula without a result; such a cell")


def test_a_column_of_mappings_does_not_make_a_parquet_file_invalid(tmp_path):
    column = pyarrow.array([[("k", 1)], []], pyarrow.map_(pyarrow.string(), pyarrow.int64()))
    pyarrow.parquet.write_table(pyarrow.table({"m": column, "x": [1, 2]}), tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").columns["x"] == [1, 2]


def test_the_words_of_conll_are_in_the_second_column_if_the_first_one_numbers_them(tmp_path):
    lines = ["# text = Dogs can't", "1\tDogs\tdog\tNOUN\t_", "2-3\tcan't\t_\t_\t_"]
    lines += ["2\tca\tcan\tAUX\t_", "3\tn't\tnot\tPART\t_", "", "1\tGo\tgo\tVERB\t_"]
    table = read_table(write(tmp_path / "t.conll", "\n".join(lines)))
    assert table.columns["words"] == [["Dogs", "ca", "n't"], ["Go"]]
    assert table.columns["tags"] == [["NOUN", "AUX", "PART"], ["VERB"]]
    table = read_table(write(tmp_path / "u.conll", "1 B\n2 O\n\n7 O\n"))
    assert table.columns["words"] == [["1", "2"], ["7"]]
