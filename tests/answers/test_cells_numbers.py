"""Numbers of a table are finite."""

import pytest

from tests.helpers.newcomer import run, write_csv

CELLS = ["1e400", "-1e400", "1,000.5e999", "1e309"]


@pytest.mark.parametrize("cell", CELLS)
def test_a_number_that_no_float_can_hold_is_a_bad_cell_and_not_infinite(cell, tmp_path, capsys):
    rows = [[i / 7, "ab"[i % 2]] for i in range(40)]
    write_csv(tmp_path / "t.csv", ["size", "label"], [[cell, "a"], *rows])
    options = ["data.on_bad=missing", "data.fractions=[1]", f"output={tmp_path / 'bad.csv'}"]
    assert run("check", tmp_path / "t.csv", *options) == 1
    output = capsys.readouterr().out
    assert "must be a number with a decimal point" in output
    assert "size: 40; 0 to 5.57143" in output
