"""Tables as Excel, pandas and other programs write them."""

import json

import openpyxl
import pandas as pd
import pytest
from helpers.newcomer import TINY, refused, run

COUNT = 12
ROWS = [{"text": f"the {i} film", "label": "good" if i % 2 else "bad"} for i in range(COUNT)]
FRAME = pd.DataFrame(ROWS)


def checked(capsys, path, *options):
    """What dxn check prints about a table with a text and a label."""
    capsys.readouterr()
    assert run("check", path, "target=label", "data.fractions=[1]", *options) == 0
    output = capsys.readouterr().out
    assert f"train: {COUNT} rows" in output, output
    assert "text (text)" in output and "2 classes (bad 6, good 6)" in output, output
    return output


def csv_of(sep, *first, end="\n"):
    lines = [sep.join(["text", "label"]), *(sep.join(row.values()) for row in ROWS)]
    return end.join([*first, *lines])


@pytest.mark.parametrize("line", ["sep=;", '"sep=;"', "SEP=;"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_separator_that_excel_writes_into_the_first_line_is_used(tmp_path, capsys, line, end):
    path = tmp_path / "t.csv"
    path.write_bytes(csv_of(";", line, end=end).encode("utf-8-sig"))
    checked(capsys, path)


def test_the_first_line_can_name_a_tab_and_data_sep_wins(tmp_path, capsys):
    (tmp_path / "t.csv").write_text(csv_of("\t", "sep=\t"))
    checked(capsys, tmp_path / "t.csv")
    (tmp_path / "u.csv").write_text(csv_of("|", "sep=,"))
    checked(capsys, tmp_path / "u.csv", "data.sep=|")


def write_excel(path, sheets):
    book = openpyxl.Workbook()
    book.remove(book.worksheets[0])
    for name, rows in sheets.items():
        page = book.create_sheet(name)
        for row in rows:
            page.append(row)
    book.save(path)


TABLE = [["text", "label"], *(list(row.values()) for row in ROWS)]


@pytest.mark.parametrize(
    ("titles", "row"),
    [
        ([["Films of the year"]], 2),
        ([["Films of the year"], [], ["made by us", None]], 4),
        ([[], []], 3),
        ([[2026, None]], 2),
    ],
)
def test_titles_above_the_header_of_a_sheet_are_left_out(tmp_path, capsys, titles, row):
    write_excel(tmp_path / "t.xlsx", {"Sheet": [*titles, *TABLE]})
    output = checked(capsys, tmp_path / "t.xlsx")
    assert f"header of t.xlsx: row {row}; the rows above it are not used" in output


def test_an_unnamed_column_of_a_sheet_is_an_error_unless_it_is_the_index(tmp_path, capsys):
    numbered = [[i, *row] for i, row in enumerate(TABLE[1:])]
    write_excel(tmp_path / "t.xlsx", {"Sheet": [[None, *TABLE[0]], *numbered]})
    assert "Unnamed: 0" in checked(capsys, tmp_path / "t.xlsx")
    write_excel(tmp_path / "t.xlsx", {"Sheet": [["text", None, "label"], [1, 2, 3]]})
    assert "each column must have a name" in refused(capsys, "train", tmp_path / "t.xlsx")


@pytest.mark.parametrize("first", [[], [["A report"]], [["name", None, "place"], [1, 2, 3]]])
def test_the_table_on_the_second_sheet_is_read(tmp_path, capsys, first):
    write_excel(tmp_path / "t.xlsx", {"About": first, "Data": TABLE, "More": [["x"], [1]]})
    output = checked(capsys, tmp_path / "t.xlsx")
    assert "sheet of t.xlsx: Data (data.sheet sets it; the others are About, More)" in output


def test_without_a_table_the_key_of_the_sheet_is_named(tmp_path, capsys):
    write_excel(tmp_path / "t.xlsx", {"About": [], "Empty": []})
    error = refused(capsys, "train", tmp_path / "t.xlsx", "target=label")
    assert "data.sheet=SHEET chooses another one: Empty" in error


def test_a_missing_column_names_the_sheet(tmp_path, capsys):
    write_excel(tmp_path / "t.xlsx", {"About": [["a", "b"], [1, 2], [3, 4]], "Data": TABLE})
    error = refused(capsys, "train", tmp_path / "t.xlsx", "target=label")
    assert "no column 'label'" in error and "data.sheet sets it; the others are Data" in error


def lines_of(rows, **options):
    return "\n".join(json.dumps(row, **options) for row in rows)


JSON = {
    "records": FRAME.to_json(orient="records"),
    "index": FRAME.to_json(orient="index"),
    "columns": FRAME.to_json(orient="columns"),
    "split": FRAME.to_json(orient="split"),
    "table": FRAME.to_json(orient="table"),
    "index of names": FRAME.rename(index=lambda i: f"film {i}").to_json(orient="index"),
    "columns of names": FRAME.rename(index=lambda i: f"film {i}").to_json(orient="columns"),
    "lists": json.dumps(FRAME.to_dict(orient="list")),
    "one list inside": json.dumps({"version": "1.0", "tags": {"a": 1}, "data": ROWS}),
    "only a list inside": json.dumps({"rows": ROWS}, indent=2),
    "lines": lines_of(ROWS),
    "pretty lines": lines_of(ROWS, indent=2),
}


@pytest.mark.parametrize("form", JSON)
def test_a_table_in_json_is_read_in_any_usual_form(tmp_path, capsys, form):
    (tmp_path / "t.json").write_text(JSON[form])
    checked(capsys, tmp_path / "t.json")


@pytest.mark.parametrize("form", ["records", "lines", "pretty lines"])
def test_lines_of_json_can_also_be_a_list_or_have_line_breaks(tmp_path, capsys, form):
    (tmp_path / "t.jsonl").write_text(JSON[form])
    checked(capsys, tmp_path / "t.jsonl")


def test_errors_of_json_still_name_the_place(tmp_path, capsys):
    (tmp_path / "t.jsonl").write_text('{"text": "a", "label": 1}\n{"text": "b", "label"\n')
    assert "t.jsonl row 2: invalid JSON" in refused(capsys, "train", tmp_path / "t.jsonl")
    (tmp_path / "t.json").write_text('[{"text": "a"},\n {"text" "b"}]')
    assert "t.json line 2: invalid JSON" in refused(capsys, "train", tmp_path / "t.json")
    (tmp_path / "u.json").write_text('{"a": [1, 2], "b": 3}')
    assert "must be a list of objects" in refused(capsys, "train", tmp_path / "u.json")


def test_a_prediction_can_choose_the_sheet(tmp_path, capsys):
    table = {"About": [["text", "x"], ["other", 1]], "Data": TABLE}
    write_excel(tmp_path / "t.xlsx", table)
    options = [*TINY, "preset=plain", "baseline=none", "report=false", f"run={tmp_path}/run"]
    command = ["train", tmp_path / "t.xlsx", "target=label", "data.sheet=Data", *options]
    assert run(*command) == 0
    output = tmp_path / "p.csv"
    command = ["predict", f"run={tmp_path}/run", f"input={tmp_path}/t.xlsx", f"output={output}"]
    for chosen, count in ((["sheet=Data"], COUNT), ([], 1)):
        assert run(*command, *chosen) == 0
        assert len(output.read_text().splitlines()) == count + 1
    assert "no sheet 'Dta' in" in refused(capsys, *command, "sheet=Dta")
