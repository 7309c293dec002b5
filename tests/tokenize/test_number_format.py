"""Numbers as people write them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxn.core.errors import UserError
from dxn.tasks import Regress
from dxn.tokenize import BadMedia
from dxn.tokenize.cells import cell_values
from dxn.tokenize.cells.cell_values import NumberFormat, find_format, read_numbers, units_of
from dxn.tokenize.cells.number import NumberReader
from dxn.tokenize.column_profile import profile_of, scores_of


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["1,234", "950"], [1234, 950]),
        (["1,234", "3,5"], [1.234, 3.5]),  # the other cell shows that the comma is decimal
        (["1,234.50", "3"], [1234.5, 3]),
        (["1.234,50", "3"], [1234.5, 3]),
        (["1.234.567", "3,5"], [1234567, 3.5]),
        (["1.234", "2.5"], [1.234, 2.5]),
        (["1.234", "0.512"], [1.234, 0.512]),
        (["1.200 €", "5 €"], [1200, 5]),  # money has no third decimal
        (["1.200", "2.400", "3.600", "950", "12"], [1200, 2400, 3600, 950, 12]),
        (["0,5", "0,25"], [0.5, 0.25]),
        (["12,34,567"], [1234567]),  # India
        (["1 234,5", "1\u00a0234", "1\u202f234"], [1234.5, 1234, 1234]),
        (["1'234.5", "1’234"], [1234.5, 1234]),
        (["$1,200.50", "$-3", "-$4"], [1200.5, -3, -4]),
        (["USD 5", "USD 1,200"], [5, 1200]),
        (["€ 5", "7,50 €"], [5, 7.5]),
        (["12 %", "3.5%"], [12, 3.5]),
        (["12kg", "3.5 KG", "4"], [12, 3.5, 4]),
        (["5 stars", "4 stars"], [5, 4]),
        (["-5", "−6", "+7", " 8 "], [-5, -6, 7, 8]),
        (["1e5", "2.5E-3"], [100000, 0.0025]),
        (["1.2k", "980"], [1200, 980]),
        (["475.8m", "29.0b", "3.3k", "7"], [475.8e6, 29e9, 3300, 7]),
        (["3M", "2.5M"], [3e6, 2.5e6]),
        (["5m", "3"], [5, 3]),  # meters
        (["300 K", "280 K"], [300, 280]),  # kelvin
        (["1,5 Mio.", "2 Mrd. €", "800"], [1.5e6, 2e9, 800]),
        (["1.5 million", "2 crore"], [1.5e6, 2e7]),
        (["(12.50)", "5.20-", "-3"], [-12.5, -5.2, -3]),
        ([".5", "5."], [0.5, 5]),
        (["45:10", "3:05", "1:02:03.5"], [2710, 185, 3723.5]),  # durations
        (["1 day, 2:03:04", "-0 days 00:01:00"], [93784, -60]),  # of Python and pandas
        ([1, 2.5, True, np.True_], [1, 2.5, None, None]),
    ],
)
def test_numbers_are_read_as_they_are_written(cells, numbers):
    form = find_format(cells)
    assert [form.parse(cell) for cell in cells] == numbers


@pytest.mark.parametrize(
    "cell",
    [
        *("", "N/A", "nan", "inf", "1_000", "2026-01-31", "12:30", "192.168.1.1", "v1.2", "A1"),
        *("1-2", "3/4", "1,23,4", "$5 €", "1 2", "one", None, [1.0], float("nan"), "1.2.3,4"),
        *("030 123 456", "192.168.10.120"),
    ],
)
def test_other_cells_are_not_numbers(cell):
    assert NumberFormat().parse(cell) is None
    assert NumberFormat(",").parse(cell) is None


def test_no_number_with_groups_of_digits_starts_with_zero():
    assert NumberFormat().parse("0,123") is None


@pytest.mark.parametrize(("unit", "cell"), [("kg", "5 lb"), ("", "5 kg"), ("$", "€5")])
def test_another_unit_is_another_quantity(unit, cell):
    assert NumberFormat(unit=unit).parse(cell) is None


@given(st.floats(-1e9, 1e9), st.sampled_from([".", ","]))
def test_a_formatted_number_reads_back(value, decimal):
    text = f"{value:,.2f}"
    if decimal == ",":
        text = text.translate(str.maketrans(".,", ",."))
    assert NumberFormat(decimal).parse(text) == float(f"{value:.2f}")


def test_a_few_other_cells_do_not_make_a_column_of_texts():
    numbers = read_numbers([*map(str, range(99)), "sold"])
    assert numbers is not None and numbers.others == ["sold"]
    assert read_numbers([*map(str, range(90)), *["sold"] * 10]) is None
    mixed = read_numbers([*map(str, range(60)), *["N/A"] * 40])
    assert mixed is not None and len(mixed.values) == 60
    assert read_numbers(["N/A"] * 3) is None
    assert read_numbers([]) is None


@pytest.mark.parametrize(
    "cells", [["+49 170 123 456"], ["+49170123456", "0170123457"], ["+1 555 010 0200"]]
)
def test_phone_numbers_are_no_amounts_and_no_series(cells):
    scores = scores_of(profile_of(cells * 20))
    assert scores["number"] == scores["series"] == 0 and scores["category"] > 0


@pytest.mark.parametrize("cells", [["+5", "-3"], ["+1 234"], ["+1 234 567", "-2 345 678"]])
def test_signed_amounts_are_numbers(cells):
    assert scores_of(profile_of(cells * 20))["number"] == 1


# Targets


def test_a_cell_that_is_no_number_is_named_with_its_row():
    task = Regress()
    values = [*map(str, range(799)), "N/A"]
    (note,) = task.target.find_format(values, [f"t.csv row {i + 2}" for i in range(800)])
    assert note == (
        "target: 799 of 800 values are numbers, all but t.csv row 801 'N/A'; set data.on_bad=skip "
        "to leave out these rows, or head=classify to make each value a class"
    )
    with pytest.raises(UserError) as caught:
        task.target.read("N/A", "t.csv row 801", {})
    assert str(caught.value) == (
        "t.csv row 801: the target must be a number, as 799 of 800 targets are, got 'N/A'"
    )


def test_a_format_that_can_be_read_in_two_ways_is_noted_and_saved():
    task = Regress()
    values = ["1.234,50 €", "3,5 €"]
    assert task.target.find_format(values, ["a", "b"]) == [
        "target numbers are read as in '1.234,50 €' = 1,234.5"
    ]
    task.target.fit([task.target.read(value, "", {}) for value in values])
    other = Regress()
    other.target.load(task.target.state())
    assert other.target.read("2.000 €", "", {}) == 2000
    with pytest.raises(UserError, match=r"decimal must be one of '\.' or ','"):
        other.target.load({**task.target.state(), "decimal": ";"})


@pytest.mark.parametrize(
    ("values", "note"),
    [
        (
            ["1.411", "17.303"],
            "no cell shows whether '1.411' is 1.411 or 1411, so it is read as 1.411",
        ),
        (
            ["1,411", "17,303"],
            "no cell shows whether '1,411' is 1411 or 1.411, so it is read as 1411",
        ),
        (
            ["12 %", "0.12", 3.0],
            "3.0 and '12 %' are read in the same unit (2 of 3 numbers have none)",
        ),
        (["1.2k", "980"], "'1.2k' is read as 1,200"),
        (["12", "5E15"], "'5E15' is read as 5e+15, no code"),
    ],
)
def test_numbers_that_can_mean_something_else_are_noted(values, note):
    assert Regress().target.find_format(values, [""] * len(values)) == [f"target: {note}"]
    assert NumberReader().learn(values).startswith(note)


@pytest.mark.parametrize("values", [["1,411", "950"], ["$1,411"], ["1.200 €"], ["1.2", "2.5 "]])
def test_numbers_that_other_cells_explain_need_no_note(values):
    assert NumberReader().learn(values) == ""


def test_plain_numbers_need_no_note():
    assert Regress().target.find_format(["1.5", 2, "-3e5"], ["a", "b", "c"]) == []


def test_whole_numbers_with_several_letters_are_names_and_no_amounts():
    plain = [str(i % 40) for i in range(96)]
    assert read_numbers([*plain, "12a", "12b", "207a", "7b"]) is None
    assert read_numbers([*plain, "12A", "14b", "3c", "x"]) is None
    assert units_of([*plain, "12a", "12b"]) == []
    # One letter is a unit, a power of ten has a note, and a single typing error is named.
    for cells in (["12m", "3m"], ["12k", "3m"], ["12a"], ["12m", "3x."]):
        assert read_numbers([*plain, *cells]) is not None


@pytest.mark.parametrize(
    ("cells", "form"),
    [
        (["1.234"] * 77 + ["3,5"] + ["1.234"] * 7, NumberFormat(",")),  # one cell shows it
        (["1.234", "3,5"] * 50, NumberFormat(",")),
        (["980", "1.2k"] * 50, NumberFormat(".", "k/M/B")),
    ],
)
def test_the_format_of_a_long_column_is_not_that_of_each_nth_cell(monkeypatch, cells, form):
    monkeypatch.setattr(cell_values, "MAX_FOR_FORMAT", 10)
    assert find_format(cells) == form


def test_durations_are_seconds_and_times_of_a_day_are_none():
    reader = NumberReader()
    assert reader.learn(["45:10", "1:20"]) == "'45:10' is read as 2,710 seconds"
    with pytest.raises(BadMedia, match="must be a duration such as 45:10, got '12'"):
        reader.read("12")
    assert read_numbers(["9:30", "23:59", "0:05"]) is None


@pytest.mark.parametrize(
    "cells",
    [
        ["1.234 kg", "1.235 m", "1.236 m"],
        ["--1,234", "1,235", "1,236"],
        ["--5k", "3M", "980k", "2.5k"],
        ["1.2,3.4k", "3M", "980k", "2.5k"],
    ],
)
def test_notes_about_a_column_use_only_cells_that_can_be_read(cells):
    note = NumberReader().learn(cells)
    assert "None" not in note and "--" not in note
