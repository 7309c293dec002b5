"""Numbers of a table are finite."""

import numpy as np
import pytest
from helpers.newcomer import run, write_csv
from helpers.runs import PLAIN, SMALL, train

import dxn

CELLS = ["1e400", "-1e400", "1,000.5e999", "1e309"]


@pytest.mark.parametrize("cell", CELLS)
def test_a_number_that_no_float_can_hold_is_a_bad_cell_and_not_infinite(cell, tmp_path, capsys):
    rows = [[i / 7, "ab"[i % 2]] for i in range(40)]
    write_csv(tmp_path / "t.csv", ["size", "label"], [[cell, "a"], *rows])
    options = ["data.on_bad=missing", "data.fractions=[1]", f"output={tmp_path / 'bad.csv'}"]
    assert run("check", tmp_path / "t.csv", *options) == 1
    output = capsys.readouterr().out
    assert "must be a number with a decimal point" in output
    assert "size: 40; 0 to 5.5714" in output


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["(1,234.50)", "2,000.00", "(7.25)"], [-1234.5, 2000, -7.25]),
        (["$0.12M", "$350K", "$1.5bn", "($2k)"], [120_000, 350_000, 1.5e9, -2000]),
        (["€20", "€1.5", "-€3"], [20, 1.5, -3]),
        (["20 €", "1,5 €", "3 €"], [20, 1.5, 3]),
        (["5 m", "7 m", "12.5 m"], [5, 7, 12.5]),  # meters
        (["12 %", "3.5%", "(4%)"], [12, 3.5, -4]),
        (["1\u202f234", "2\u2009000", "7"], [1234, 2000, 7]),
        (["\u22125", "3", "\u22120.5"], [-5, 3, -0.5]),
    ],
)
def test_amounts_are_read_as_people_write_them(cells, numbers, tmp_path):
    """The mean and the scale of the target show what was read."""
    count = 40
    rows = [f'film {i},"{cells[i % len(cells)]}"' for i in range(count)]
    (tmp_path / "t.csv").write_text("\n".join(["text,price", *rows]))
    options = ["target=price", "head=regress", "data.fractions=[1,0,0]", "trainer.epochs=1"]
    train(tmp_path / "run", str(tmp_path / "t.csv"), *SMALL, *PLAIN, *options, "report=false")
    task = dxn.load(tmp_path / "run").task
    expected = [numbers[i % len(cells)] for i in range(count)]
    assert task.target.mean == pytest.approx(np.mean(expected))
    assert task.target.std == pytest.approx(np.std(expected))
