"""Tables of results: their formats, their columns, and what is printed of them."""

import csv
import json

import pyarrow.parquet
import pytest
import torch

from dxn.core.display import count, number
from dxn.core.errors import UserError
from dxn.data.dataset import Opened
from dxn.runs.engine.bulk import unify
from dxn.runs.predictor.generating import read_prompts
from dxn.runs.predictor.output import (
    arrow_table,
    check_suffix,
    format_cell,
    vector_lines,
    write_parquet,
    write_records,
)
from dxn.runs.predictor.table import answer_lines, prediction_records, record_line
from dxn.tasks import Classify, Regress
from dxn.training.predict import Predictions

WRITES_REPORTS = True  # see conftest.py
RECORDS = [
    {"row": 2, "text": "ein Ei", "labels": ["red", "light blue"], "p": 0.25},
    {"row": 3, "labels": [], "extra": "x"},
]


def classifier(names):
    task = Classify()
    task.target.load({"labels": list(names)})
    return task


# Files


@pytest.mark.parametrize(
    ("value", "separator", "cell"),
    [
        ("red", "|", "red"),
        (None, "|", ""),
        (3.0, "|", "3"),
        (0.1, "|", "0.1"),
        (7, "|", "7"),
        (["red", "light blue"], "|", "red|light blue"),
        (["light blue"], "|", "light blue"),
        (["a|b", "c"], "|", '["a|b", "c"]'),
        (["a", ""], "|", '["a", ""]'),
        ([" a"], "|", '[" a"]'),
        (["B-x", "O"], " ", "B-x O"),
        (["New York"], " ", '["New York"]'),
        ([], "|", ""),
        ([1.0, 2.0], "|", "[1.0, 2.0]"),
        ({"a": ["ß"]}, "|", '{"a": ["ß"]}'),
    ],
)
def test_a_list_in_a_cell_can_be_read_back(value, separator, cell):
    assert format_cell(value, separator) == cell


def test_every_format_contains_the_same_rows(tmp_path):
    for suffix in (".csv", ".json", ".jsonl", ".parquet"):
        write_records(tmp_path / "new" / f"a{suffix}", RECORDS)
    with (tmp_path / "new" / "a.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["row", "text", "labels", "p", "extra"]
    assert rows[0]["labels"] == "red|light blue" and rows[1]["text"] == rows[1]["p"] == ""
    assert json.loads((tmp_path / "new" / "a.json").read_text()) == RECORDS
    lines = (tmp_path / "new" / "a.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == RECORDS
    table = pyarrow.parquet.read_table(tmp_path / "new" / "a.parquet").to_pylist()
    assert table[0] == {**RECORDS[0], "extra": None} and table[1]["labels"] == []


def test_a_parquet_column_of_mixed_types_contains_texts(tmp_path):
    write_records(tmp_path / "a.parquet", [{"a": 1}, {"a": "x"}, {"a": None}])
    rows = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [row["a"] for row in rows] == ["1", "x", None]


@pytest.mark.parametrize(
    ("first", "second", "values"),
    [
        (2**53 + 1, 1.5, ["9007199254740993", "1.5"]),  # no decimal is exactly this number
        ([2**60], [0.5], ["[1152921504606846976]", "[0.5]"]),
        (2**53, 1.5, [2.0**53, 1.5]),
        (2**60, None, [2**60, None]),
    ],
)
def test_whole_numbers_that_no_decimal_equals_are_texts_beside_decimals(
    first, second, values, tmp_path
):
    for cells, expected in (([first, second], values), ([second, first], values[::-1])):
        folder = tmp_path / "answers"
        folder.mkdir(exist_ok=True)
        parts = [arrow_table([{"a": cell}]) for cell in cells]
        for i, part in enumerate(parts):
            pyarrow.parquet.write_table(part, folder / f"part-{i}.parquet")
        write_parquet(parts.__iter__, tmp_path / "a.parquet")
        unify(tmp_path)
        for path in (tmp_path / "a.parquet", folder):
            assert pyarrow.parquet.read_table(path)["a"].to_pylist() == expected


def test_another_suffix_is_refused():
    assert check_suffix(None) is None
    assert check_suffix("x/A.CSV").name == "A.CSV"
    with pytest.raises(
        UserError, match=r"^output: must be a file that ends in \.csv, .*got a\.txt"
    ):
        check_suffix("a.txt")
    with pytest.raises(UserError, match=r"\.npy, \.csv or \.parquet, got a"):
        check_suffix("a", (".npy", ".csv", ".parquet"))


# Predictions


def opened(origin, cells, *, ids=None, targets=None):
    return Opened(raws={}, targets=targets, origin=origin, ids=ids or {}, cells=cells)


def test_a_row_has_its_ids_its_inputs_its_target_and_the_prediction():
    rows = opened(
        ["a.csv row 2", "a.csv row 3"],
        {"text": ["one", "two"], "image": [None, None]},
        ids={"sku": ["s1", "s2"], "row": ["x", "y"]},
        targets=["ham", "spam"],
    )
    # The predictions are in the order of the batches, the table in that of the file.
    predictions = Predictions([1, 0], [torch.tensor([0.25, 0.75]), torch.tensor([0.9, 0.1])], 0.0)
    records = prediction_records(predictions, rows, classifier(["ham", "spam"]))
    columns = "file row sku table_row text target prediction confidence p(ham) p(spam)"
    assert [list(record) for record in records] == [columns.split()] * 2
    assert list(records[0].values()) == ["a.csv", 2, "s1", "x", "one", "ham", "ham", 0.9, 0.9, 0.1]
    assert records[1]["sku"] == "s2" and records[1]["prediction"] == "spam"
    assert record_line(records[1]) == "a.csv row 3: spam (0.75)"


def test_an_input_with_the_name_of_a_column_of_the_task_keeps_its_values():
    rows = opened(["a.csv row 2"], {"p(ham)": [0.7]}, ids={"p(spam)": [0.3]})
    predictions = Predictions([0], [torch.tensor([0.25, 0.75])], 0.0)
    (record,) = prediction_records(predictions, rows, classifier(["ham", "spam"]))
    assert (record["table_p(ham)"], record["p(ham)"]) == (0.7, 0.25)
    assert (record["table_p(spam)"], record["p(spam)"]) == (0.3, 0.75)


def test_a_line_of_a_file_of_prompts_ends_only_at_a_line_feed(tmp_path):
    text = "one\u2028two\x0bthree\x85four"
    (tmp_path / "p.txt").write_bytes(f"{text}\r\n\r\nfive\n".encode())
    assert read_prompts("", str(tmp_path / "p.txt")) == [text, "five"]


def test_a_file_is_listed_once_and_an_error_needs_a_target():
    files = ["photos/a.jpg", "photos/b.jpg"]
    predictions = Predictions([0, 1], [torch.tensor(1.5), torch.tensor(2.0)], 0.0)
    records = prediction_records(predictions, opened(files, {"image": files}), Regress())
    assert records[0] == {"file": "photos/a.jpg", "prediction": 1.5}
    known = opened(files, {"image": files}, targets=[1.0, None])
    records = prediction_records(predictions, known, Regress())
    assert records[0]["error"] == 0.5 and "error" not in records[1]


def test_an_answer_is_printed_with_its_five_most_probable_classes():
    answer = {"prediction": "b", "probabilities": {c: p / 100 for p, c in enumerate("gfedcba", 8)}}
    assert answer_lines({**answer, "prediction": "a"}) == [
        "prediction: a",
        *("  0.1400  a", "  0.1300  b", "  0.1200  c", "  0.1100  d", "  0.1000  e"),
        "  and 2 more",
    ]
    assert answer_lines({"prediction": 3.25}) == ["prediction: 3.25"]
    assert answer_lines({"prediction": "ein Ei"}) == ["prediction: ein Ei"]
    assert answer_lines({"prediction": []}) == ["prediction: none"]
    shares = {"sky": 0.75, "tree": 0.25}
    assert answer_lines({"prediction": shares}) == ["prediction: sky 0.75, tree 0.25"]
    nothing = {"prediction": "", "start": None, "end": None, "score": 0.5}
    assert answer_lines(nothing) == ["no answer (0.5)"]
    assert record_line({"file": "a.json", "row": 2, **nothing}) == "a.json row 2: no answer"
    columns = {"share(sky)": 0.25, "share(tree)": 0.75, "share(sea)": 0.0}
    assert record_line({"file": "a.png", **columns}) == "a.png: tree 0.75, sky 0.25"


@pytest.mark.parametrize(
    ("value", "largest", "text"),
    [
        (-0.0, None, "0"),
        (0.8925, None, "0.8925"),
        (12.3456, None, "12.346"),
        (349.074, None, "349.07"),
        (612901.625, None, "612,902"),
        (-3.0, None, "-3"),
        (0.0, None, "0"),
        (float("nan"), None, "nan"),
        (1e300, None, "1e+300"),
        (2.5e11, None, "250,000,000,000"),
        # Small numbers keep their digits.
        (0.00123, None, "0.00123"),
        (0.0012345678, None, "0.0012346"),
        (1.17561e-6, None, "1.1756e-06"),
        # Only 1 is written as 1, except for rounding errors of float32.
        (0.99996, None, "0.99996"),
        (0.999996, None, "0.999996"),
        (0.99999994, None, "1"),
        (1.0, None, "1"),
        # In a column, all numbers have as many decimals.
        (0.86, 1.0, "0.8600"),
        (1.0, 1.0, "1.0000"),
        (0.5, 612_901.6, "0.5"),
        (71_234.6, 612_901.6, "71,235"),
        (0.99996, 1.0, "0.99996"),
        (1.17561e-6, 0.5, "1.1756e-06"),
        (0.0, 0.5, "0.0000"),
    ],
)
def test_a_number_has_the_digits_that_its_size_needs(value, largest, text):
    assert number(value, largest) == text


def test_a_noun_agrees_with_its_number():
    assert [count(n, "row") for n in (0, 1, 1200)] == ["0 rows", "1 row", "1,200 rows"]
    assert count(2, "class", "classes") == "2 classes"


# Embeddings


def test_the_first_numbers_of_an_embedding_are_printed():
    assert vector_lines(torch.tensor([0.5, -1.0])) == ["embedding: 2 numbers", "  0.5, -1"]
    assert vector_lines(torch.zeros(7))[1].endswith("0, ...")
