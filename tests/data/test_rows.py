"""Columns give back exactly the cells that they were made of."""

import datetime
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxn.data.rows import FEW_CELLS, Column, Origins, Rows, as_column, join_columns
from dxn.data.splits.duplicates import codes_of
from dxn.data.tables.read import concatenate, read_table

CELLS = {
    "texts": ["a", None, "", "ü\u2028"],
    "whole numbers": [1, None, -3, 2**62],
    "numbers": [0.1, None, -0.0, 1e300],
    "booleans": [True, None, False],
    "bytes": [b"\0", None, b""],
    "days": [datetime.date(2024, 2, 29), None],
    "times": [datetime.datetime(2024, 2, 29, 1, 2, 3, 4), None],
    "lists of words": [["a", "b"], None, []],
    "lists of lists": [[[1.5], []], [[2.5, 3.5]]],
    "missing": [None, None],
    "empty": [],
}
OBJECTS = {
    "numbers of two types": [1, 2.0],
    "large numbers": [2**70, 1],
    "half of a surrogate pair": ["a", "\ud800"],
    "times with a zone": [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)],
    "objects": [{"a": 1}, None, (1, 2)],
    "paths": [Path("a"), "b"],
}


def types_of(cells):
    return [type(cell) for cell in cells]


@pytest.mark.parametrize("name", CELLS)
def test_cells_of_one_simple_type_are_stored_in_arrow_and_stay_equal(name):
    cells = CELLS[name]
    column = as_column(cells)
    assert column.is_arrow
    assert list(column) == cells == [column[i] for i in range(len(cells))]
    assert types_of(column) == types_of(cells)


@pytest.mark.parametrize("name", OBJECTS)
def test_other_cells_stay_the_objects_that_they_are(name):
    column = as_column(OBJECTS[name])
    assert not column.is_arrow
    assert list(column) == OBJECTS[name]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("aé\0\u2028"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(JSON, max_size=7), st.lists(JSON, max_size=7))
def test_values_of_json_files_stay_equal_also_when_columns_are_joined(first, second):
    joined = join_columns([as_column(first, is_json=True), as_column(second, is_json=True)])
    cells = [*first, *second]
    assert list(joined) == cells
    assert types_of(joined) == types_of(cells)


def test_rows_of_rows_are_rows_of_the_same_array():
    column = as_column(["a", "b", None, "d"])
    rows = Rows({"text": column}, Origins([Path("x.csv")], [2, 3, 4, 5]))
    part = rows.take([3, 2, 0]).take(np.array([2, 0]))
    assert part.cells["text"] == ["a", "d"]
    assert part.origin == ["x.csv row 2", "x.csv row 5"]
    assert part.cells["text"].values is column.values
    assert part.cells["text"][:1] == ["a"]


def test_a_column_can_be_sent_to_another_process():
    column = as_column([{"a": 1}, 2], is_json=True).take(np.array([1, 0]))
    assert pickle.loads(pickle.dumps(column)) == [2, {"a": 1}]


def test_many_rows_are_read_in_parts(monkeypatch, tmp_path):
    monkeypatch.setattr("dxn.data.tables.csv.CHUNK_ROWS", 3)
    monkeypatch.setattr("dxn.data.rows.CHUNK_ROWS", 2)
    # The first part has no value in the second column.
    lines = [f"t{i},{i if i > 2 else ''}" for i in range(7)]
    (tmp_path / "a.csv").write_text("\n".join(["text,n", *lines]))
    table = read_table(tmp_path / "a.csv")
    assert table.columns["text"] == [f"t{i}" for i in range(7)]
    assert table.columns["n"] == [None, None, None, "3", "4", "5", "6"]
    assert table.columns["n"].take(np.array([6, 0, 5])) == ["6", None, "5"]


def test_tables_are_joined_with_the_origin_of_each_row(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"a": 1}) + "\n")
    (tmp_path / "b.jsonl").write_text("\n" + json.dumps({"a": "x"}) + "\n")
    whole = concatenate([read_table(tmp_path / "a.jsonl"), read_table(tmp_path / "b.jsonl")])
    assert whole.columns["a"] == [1, "x"]
    assert whole.origins == ["a.jsonl row 1", "b.jsonl row 2"]


def test_the_cells_of_a_list_are_a_column_too():
    assert Column([1, None], decode=str) == ["1", None]


@pytest.mark.parametrize("cells", [["a", None, "b", "a"], [2, 7, None, 2], [0.5, None, 7.0, 0.5]])
@pytest.mark.parametrize("repeats", [1, 5, FEW_CELLS])
def test_equal_cells_have_equal_codes_and_missing_ones_have_none(cells, repeats):
    column = as_column(cells * repeats)
    assert column.is_arrow
    codes = codes_of(column).reshape(repeats, 4)
    missing = cells.index(None)
    assert (codes == codes[0]).all()
    assert (codes == -1)[0].tolist() == [i == missing for i in range(4)]
    assert len(set(codes[0].tolist())) == 3
    assert codes[0, 0] == codes[0, 3]
    later = Column(column.values[1:])
    assert codes_of(later)[missing - 1] == -1
    assert (codes_of(later) >= 0).sum() == 3 * repeats - 1
