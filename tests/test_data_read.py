"""Tables in four formats: the same rows, and a sentence for each file that cannot be read."""

from pathlib import Path

import pytest
from helpers.data import write_table

from dxn.data.read import concatenate, read_table
from dxn.errors import UserError

ROWS = [{"review": f"a fine film ({i})", "label": ("good", "bad")[i % 2]} for i in range(23)]


def write(path: Path, text: str | bytes, encoding: str = "utf-8") -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet", ".CSV"])
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
    assert list(table.lines) == [2, 4]


def test_an_empty_line_of_jsonl_counts_but_a_line_separator_within_a_text_does_not(tmp_path):
    table = read_table(write(tmp_path / "my.jsonl", '{"a": "x\u2028y"}\n\n{"a": "z"}\n'))
    assert table.columns == {"a": ["x\u2028y", "z"]}
    assert list(table.lines) == [1, 3]


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
    assert read_table(Path(path), sep=";").columns["review"] == [row["review"] for row in ROWS]


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
            "text;label\na;b\n",
            None,
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
            "{path} line 3: the file is not valid UTF-8 (invalid continuation byte); "
            "save it as UTF-8",
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
            "{path}: unknown table format '.txt'; use one of .csv, .tsv, .jsonl, .parquet",
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
    assert str(caught.value) == f"{tmp_path / 'none.csv'}: file not found ({here})"


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = Path(write_table(tmp_path / "my.parquet", ROWS))
    path.write_bytes(path.read_bytes()[:-11])
    with pytest.raises(UserError, match=r"my\.parquet: invalid Parquet file \(.+\)$"):
        read_table(path)
