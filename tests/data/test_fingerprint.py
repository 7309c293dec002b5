"""The fingerprint of data: equal data has an equal one, and each change is named."""

import math

import numpy as np
import pytest

from dxn.data.dataset import Opened
from dxn.data.inspect.fingerprint import differences, fingerprint

NUMBERS = [1.5, -2.0, 7.25, 0.0, math.pi]
TEXTS = ["one", "two", "one", "", "five"]
ARRAYS = [np.full((2, 3), i, np.uint8) for i in range(5)]
TARGETS = ["a", "b", "a", "b", "b"]


def opened(numbers=NUMBERS, texts=TEXTS, arrays=ARRAYS, targets=TARGETS):
    raws = {"number": list(numbers), "text": list(texts), "array": list(arrays)}
    return {"train": Opened(raws, targets, [f"row {i}" for i in range(len(numbers))])}


def change(new):
    (line,) = differences(fingerprint(opened()), fingerprint(new)) or [""]
    return line.removeprefix("the train split has ")


def replaced(values, row, value):
    return [*values[:row], value, *values[row + 1 :]]


def test_equal_data_has_an_equal_fingerprint():
    assert change(opened()) == ""
    # Equal arrays need not be contiguous.
    assert change(opened(arrays=[np.asfortranarray(array) for array in ARRAYS])) == ""


CHANGES = {
    "number": (3, [math.nextafter(0.0, 1), -0.0, math.nan, None, 1e300, 1]),
    "text": (0, ["One", "one ", None, "two"]),
    "array": (2, [np.full((3, 2), 2, np.uint8), np.full((2, 3), 3, np.uint8), None]),
    "target": (0, ["b", "A"]),
}
CASES = [(name, row, value) for name, (row, values) in CHANGES.items() for value in values]


@pytest.mark.parametrize(("name", "row", "value"), CASES)
def test_another_value_is_named(name, row, value):
    old = {"number": NUMBERS, "text": TEXTS, "array": ARRAYS, "target": TARGETS}[name]
    new = opened(**{f"{name}s": replaced(old, row, value)})
    assert change(new) == f"other values of {name}"


def test_another_order_is_told_apart_from_other_values():
    order = [4, 3, 2, 1, 0]
    parts = [[values[i] for i in order] for values in (NUMBERS, TEXTS, ARRAYS, TARGETS)]
    assert change(opened(*parts)) == "its rows in another order"


def test_swapped_labels_are_noticed():
    assert change(opened(targets=["b", "a", "a", "b", "b"])) == "other values of target"


def test_swapped_cells_of_two_rows_are_noticed():
    numbers = [NUMBERS[1], NUMBERS[0], *NUMBERS[2:]]
    assert change(opened(numbers=numbers)) == "other values of number"


def test_swapped_columns_of_numbers_are_noticed():
    def table(first, second):
        return {"train": Opened({"a": list(first), "b": list(second)}, None, ["row"] * 5)}

    old, new = fingerprint(table(NUMBERS, range(5))), fingerprint(table(range(5), NUMBERS))
    assert differences(old, new) == ["the train split has other values of a, b"]


def test_a_missing_number_is_not_a_nan_of_the_data():
    missing = opened(numbers=replaced(NUMBERS, 1, None))
    nan = opened(numbers=replaced(NUMBERS, 1, math.nan))
    assert differences(fingerprint(missing), fingerprint(nan))


def test_integers_that_a_float_cannot_hold_are_told_apart():
    large = [2**60, 2**60 + 1]
    first, second = ({"train": Opened({"number": [value]}, None, ["row"])} for value in large)
    assert differences(fingerprint(first), fingerprint(second))


def test_splits_and_rows_that_are_gone_are_named():
    few = opened(*(values[:4] for values in (NUMBERS, TEXTS, ARRAYS, TARGETS)))
    assert change(few) == "4 rows instead of 5"
    assert differences(fingerprint(opened()), {}) == ["the train split is missing"]
    assert differences({}, fingerprint(opened())) == ["the train split is new"]


def test_a_split_without_rows_or_inputs_has_a_fingerprint():
    empty = {"train": Opened({}, None, [])}
    assert differences(fingerprint(empty), fingerprint(empty)) == []
