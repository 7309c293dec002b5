"""Exported models of tables with random columns answer as dxn does."""

import random

import pytest
from helpers.benchmarks import load

layouts = load("layouts")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.mark.exhaustive
def test_a_table_of_any_columns_is_trained_exported_and_answered_by_the_program(tmp_path):
    layout = layouts.make_layout(random.Random("0/1"), tmp_path)
    assert {"number", "category", "date"} <= set(layout.kinds.values())
    layouts.check(layout, tmp_path, ["onnx"])


@pytest.mark.exhaustive
def test_a_number_and_two_categories_are_exported(tmp_path):
    layouts.check(_shop(["preset=plain", "baseline=none"]), tmp_path, ["torch"])


# Not to ONNX, which takes twice as long: both graphs have the same operations.
@pytest.mark.exhaustive
@pytest.mark.parametrize("fusion", ["late", "bottleneck"])
def test_inputs_that_are_encoded_separately_are_exported(tmp_path, fusion):
    layout = _shop([f"fusion={fusion}", "baseline=none"])
    for row in layout.rows[::3]:
        row["category0"] = None
    layouts.check(layout, tmp_path, ["torch"])


@pytest.mark.exhaustive
def test_a_table_of_videos_is_exported(tmp_path):
    rand = random.Random(0)
    write = layouts._maker("video", rand, tmp_path)
    rows = [
        {
            "number0": f"{rand.uniform(1, 90):.2f}",
            "video0": write(f"clip{i}") if i % 3 else None,
            "answer": rand.choice("ab"),
        }
        for i in range(24)
    ]
    kinds = {"number0": "number", "video0": "video"}
    layout = layouts.Layout(kinds, "class", ["preset=plain", "baseline=none"], rows)
    layouts.check(layout, tmp_path, ["torch"])


def _shop(options):
    """Return a table of a price and two categories."""
    rand = random.Random(0)
    kinds = {"number0": "number", "category0": "category", "category1": "category"}
    prices = ["€{:.2f}", "{:.2f} €"]
    rows = [
        {
            "number0": prices[i % 2].format(rand.uniform(1, 90)),
            "category0": rand.choice(["red", "green", "blue"]),
            "category1": rand.choice("xyz"),
            "answer": rand.choice("ab"),
        }
        for i in range(40)
    ]
    return layouts.Layout(kinds, "class", options, rows)
