"""Wide and long tables become one series per row, in training and in new tables."""

from pathlib import Path

import numpy as np
import pytest

from dxn.core.errors import UserError
from dxn.data import rows_of_table, table
from dxn.data.rows import Origins
from dxn.data.series.layouts import Long, Wide, chosen_layout, layout_of
from dxn.data.tables.read import Table
from dxn.tokenize import SeriesAdapter, TextAdapter

NAN = float("nan")


def table_of(**columns):
    count = len(next(iter(columns.values())))
    path = Path("t.csv")
    return Table(columns, Origins([path], range(2, count + 2)), path=path)


def cells(made):
    return [None if cell is None else np.asarray(cell).tolist() for cell in made.columns["values"]]


# Wide


def test_the_columns_of_a_pattern_become_one_series_in_the_order_of_their_numbers():
    wide = table_of(t_1=["1", None], t_10=["3", None], t_2=["2.5", None], label=["a", "b"])
    notes = []
    made = Wide("t_*").apply(wide, notes=notes)
    assert list(made.columns) == ["label", "values"]
    assert cells(made) == [[1, 2.5, 3], None]
    assert notes == ["values: 3 columns of each row, t_1 to t_10"]


def test_names_with_a_fraction_are_in_the_order_of_the_table_if_it_is_that_of_the_numbers():
    wide = table_of(**{"nm_400.0": [1], "nm_400.25": [2], "nm_400.5": [3]})
    assert cells(Wide("nm_*").apply(wide)) == [[1, 2, 3]]
    wide = table_of(**{"s1.9": [2], "s1.10": [3], "s1.2": [1]})
    assert cells(Wide("s*").apply(wide)) == [[1, 2, 3]]


def test_a_list_keeps_its_order_and_a_mapping_gives_channels():
    wide = table_of(a=[1], b=[2], c=[3], d=[4])
    assert cells(Wide(["c", "a"]).apply(wide)) == [[3, 1]]
    assert cells(Wide({"x": ["a", "b"], "y": ["c", "d"]}).apply(wide)) == [[[1, 3], [2, 4]]]


def test_a_pattern_leaves_out_the_target_and_needs_no_numbers():
    wide = table_of(jan=["1"], feb=["2"], mar=["x"])
    assert cells(Wide("*").apply(wide, required=["mar"])) == [[1, 2]]


def test_a_cell_that_is_no_number_stays_for_the_reader_to_report():
    made = Wide("t_*").apply(table_of(t_1=["1"], t_2=["x"]))
    assert made.columns["values"] == [["1", "x"]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("x_*", "data.wide: no column of t.csv matches 'x_*'; its columns are t_1, t_2, values"),
        (["t_1", "t_3"], "data.wide: no column 't_3' in t.csv"),
        ({"a": ["t_1"], "b": "t_*"}, "every channel must have the same number of columns, got"),
        ("t_*", "t.csv: has a column 'values'"),
    ],
)
def test_wrong_columns_of_a_wide_table_are_explained(columns, message):
    wide = table_of(t_1=["1"], t_2=["2"], values=[3])
    with pytest.raises(UserError) as error:
        Wide(columns).apply(wide)
    assert message in str(error.value)


# Long

ROWS = {
    "id": ["a", "b", "a", "a"],
    "time": [0, 5, "2", 1],
    "x": ["1", None, "3", "2"],
    "y": [4, 5, None, 6],
    "label": ["u", "v", "u", None],
    "note": ["p", "q", "r", "s"],
}


def test_the_rows_of_an_id_become_one_row_sorted_by_time():
    notes = []
    made = Long("id", "time", ["x", "y"]).apply(table_of(**ROWS), notes=notes)
    assert made.columns["id"] == ["a", "b"]
    assert made.columns["label"] == ["u", "v"]
    np.testing.assert_array_equal(made.columns["values"][0], [[1, 4], [2, 6], [3, NAN]])
    np.testing.assert_array_equal(made.columns["values"][1], [[NAN, 5]])
    assert made.origins.lines.tolist() == [2, 3]
    assert "note" not in made.columns
    assert notes[0].startswith("not used: note (several values per id")


def test_without_a_time_column_the_order_of_the_rows_counts():
    assert cells(Long("id", None, "x").apply(table_of(**ROWS))) == [[[1], [3], [2]], None]


def test_irregular_times_are_resampled_to_the_mean_of_each_step():
    long = table_of(id=["a"] * 4, time=[0.1, 0.4, 2.2, 3.05], x=[1, 3, 5, 7])
    made = Long("id", "time", "x", step=1.0).apply(long)
    np.testing.assert_array_equal(made.columns["values"][0], [[2], [NAN], [6]])


def test_a_missing_number_does_not_hide_the_others_of_its_step():
    long = table_of(id=["a"] * 4, time=[0, 0.5, 1, 1.5], x=["1", "nan", "N/A", "4"])
    made = Long("id", "time", "x", step=1.0).apply(long)
    np.testing.assert_array_equal(made.columns["values"][0], [[1], [4]])


def test_a_long_table_reads_numbers_as_strictly_with_steps_as_without():
    long = table_of(id=["a"] * 2, time=[0, 1], x=["1", "1_000"])
    with pytest.raises(UserError, match="row 3: must contain only numbers, got '1_000'"):
        Long("id", "time", "x", step=1.0).apply(long)
    # A list is a bad cell, see `series_cell`.
    made = Long("id", "time", "x").apply(long)
    assert isinstance(made.columns["values"][0], list)


def test_a_time_that_is_rounded_down_belongs_to_its_step():
    long = table_of(id=["a"] * 2, time=[0, 0.3], x=[1, 2])  # 0.3 / 0.1 is 2.9999999999999996
    made = Long("id", "time", "x", step=0.1).apply(long)
    np.testing.assert_array_equal(made.columns["values"][0], [[1], [NAN], [NAN], [2]])


@pytest.mark.parametrize(
    ("change", "layout", "message"),
    [
        ({"id": ["a", None, "a", "a"]}, Long("id", None, "x"), "t.csv row 3: no value in column"),
        ({"id": [["a"]] * 4}, Long("id", None, "x"), "one text or number per row, got a list"),
        ({"time": [0, 0, 0, 1]}, Long("id", "time", "x"), "a second row with the same time"),
        ({"time": [0, 1, "?", 3]}, Long("id", "time", "x"), "row 4: column 'time' must contain"),
        (
            {"time": [0, 1, "2026-01-01", 3]},
            Long("id", "time", "x"),
            "row 4: column 'time' must contain",
        ),
        ({"time": [0, 1, 1e9, 3]}, Long("id", "time", "x", 1), "more than 1,000,000"),
        (
            {"x": ["1", "2", "z", "4"]},
            Long("id", "time", "x", 1),
            "row 4: must contain only numbers",
        ),
        ({}, Long("id", "time", "z"), "data.long.values: no column 'z'"),
        ({}, Long("key", "time", "x"), "data.long.id: no column 'key'"),
    ],
)
def test_wrong_rows_of_a_long_table_are_explained(change, layout, message):
    with pytest.raises(UserError) as error:
        layout.apply(table_of(**{**ROWS, **change}))
    assert message in str(error.value)


def test_a_target_with_several_values_per_series_is_an_error():
    long = table_of(**{**ROWS, "label": ["u", "v", "w", "u"]})
    with pytest.raises(UserError, match="column 'label' must have one value per id, got 'u'"):
        Long("id", "time", "x").apply(long, required=["label"])


# The files name the splits, so that a column of this name needs no single value per series.
@pytest.mark.parametrize("kind", ["kind", "split"])
def test_splits_keep_the_columns_that_all_of_them_have(tmp_path, kind):
    tables = {"train": ["a,1,train,u", "a,2,train,u"], "test": ["b,3,train,v", "b,4,test,v"]}
    paths = {name: str(tmp_path / f"{name}.csv") for name in tables}
    for name, lines in tables.items():
        Path(paths[name]).write_text("\n".join([f"id,x,{kind},label", *lines]), encoding="utf-8")
    readers = {"series": SeriesAdapter(8).tokenizer.reader, "text": TextAdapter(8).tokenizer.reader}
    source = table(**paths, readers=readers, target="label", long=Long("id", None, "x"))
    assert source.splits.keys() == {"train", "test"}
    assert [spec.column for spec in source.inputs.values()] == ["values"]


# Nodes and options


@pytest.mark.parametrize(
    "layout", [Wide("t_*"), Wide({"x": ["a"], "y": ["b"]}), Long("id", "time", ["x"], 0.5)]
)
def test_a_layout_can_be_saved_as_plain_data(layout):
    assert layout_of(layout.node()) == layout


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (3, "layout must have one key"),
        ({}, "layout must have one key"),
        ({"tall": 1}, "layout must be one of wide, long"),
        ({"wide": 3}, "must be a pattern such as 't_*'"),
        ({"wide": []}, "must be a pattern"),
        ({"long": 3}, "must be a mapping"),
        ({"long": {"key": "id"}}, "layout.long: "),
        ({"long": {"id": "a"}}, "values must be set"),
        ({"long": {"values": "a"}}, "id must be set"),
        ({"long": {"id": "a", "values": "b", "step": 1}}, "step must be above 0 and needs time"),
        ({"long": {"id": "a", "values": "b", "time": "c", "step": -1}}, "step must be above 0"),
        ({"long": {"id": "a", "values": "b", "time": "c", "step": "x"}}, "layout.long: "),
    ],
)
def test_the_layout_of_a_stranger_is_checked(node, message):
    with pytest.raises(ValueError, match=r"must|layout") as error:
        layout_of(node)
    assert message in str(error.value)


def test_a_table_has_at_most_one_layout():
    assert chosen_layout(None, Long()) is None
    with pytest.raises(UserError, match=r"data\.wide: cannot be combined with data\.long"):
        chosen_layout("t_*", Long("id", None, "x"))
    with pytest.raises(UserError, match=r"data\.wide: must be a pattern"):
        chosen_layout([], Long())


def test_the_layout_of_the_training_is_applied_to_a_new_table(tmp_path):
    lines = ["patient,hour,hr,outcome"]
    lines += [f"p{i // 3},{i % 3},{i},{'ab'[i // 3 % 2]}" for i in range(60)]
    path = tmp_path / "long.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    prepare = SeriesAdapter(8).tokenizer
    long = Long("patient", "hour", "hr")
    source = table(str(path), readers={"series": prepare.reader}, target="outcome", long=long)
    assert source.layout == long.node()
    assert sum(map(len, source.splits.values())) == 20
    assert set(source.inputs) == {"series"}
    assert "patient" in source.splits["train"].ids
    rows = rows_of_table(
        str(path),
        source.inputs,
        {"series": prepare.reader},
        target="outcome",
        layout=layout_of(source.layout),
    )
    assert rows.cells["series"][1].tolist() == [[3], [4], [5]]
    assert rows.cells["target"][:2] == ["a", "b"]
    assert rows.ids["patient"][:2] == ["p0", "p1"]
