"""Drawn splits: every row once, every label in proportion, the same each time."""

import ast
import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.data.rows import Rows
from dxn.data.splits import complete, draw
from dxn.errors import UserError

SHARES = st.sampled_from(
    [(0.8, 0.1, 0.1), (0.9, 0.1), (1.0,), (0.5, 0.25, 0.25), (0.0, 0.7, 0.3), (1 / 3, 1 / 3, 1 / 3)]
)
LABELS = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=67)


def rows(targets, **cells):
    count = len(targets)
    texts = [f"text {i}" for i in range(count)]
    return Rows({"text": texts, "target": targets, **cells}, [f"row {i}" for i in range(count)])


def sizes(splits):
    return {name: len(found) for name, found in splits.items()}


@settings(max_examples=40, deadline=None)
@given(LABELS, SHARES, st.integers(0, 1000))
def test_every_row_is_drawn_exactly_once_and_each_part_is_in_order(labels, shares, seed):
    parts = draw(labels, shares, seed=seed)
    assert len(parts) == len(shares)
    assert sorted(i for part in parts for i in part) == list(range(len(labels)))
    assert all(part == sorted(part) for part in parts)


@settings(max_examples=40, deadline=None)
@given(LABELS, SHARES, st.integers(0, 1000))
def test_each_part_has_its_share_of_all_rows_and_of_each_label(labels, shares, seed):
    """Dealt in one sequence, each part is within one row of its share from the start to any point of it.

    A label is a stretch of that sequence, from one point to another: within two.
    """
    for part, share in zip(draw(labels, shares, seed=seed), shares, strict=True):
        assert abs(len(part) - share * len(labels)) < 1 + 1e-9
        found = Counter(labels[i] for i in part)
        for label, count in Counter(labels).items():
            assert abs(found[label] - share * count) < 2 + 1e-9


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_rare_labels_together_are_spread_in_proportion_too(seed):
    # 40 labels of one row each: were each dealt anew, all of them would go to the first part.
    assert [len(part) for part in draw(list(range(40)), (0.8, 0.1, 0.1), seed=seed)] == [32, 4, 4]


def test_the_draw_depends_on_the_seed_and_on_nothing_else():
    labels = ["a", "b", None] * 23
    first = draw(labels, (0.8, 0.2), seed=3)
    assert draw(labels, (0.8, 0.2), seed=3) == first
    assert draw(labels, (0.8, 0.2), seed=4) != first


def test_the_draw_is_the_same_in_another_process():
    code = "from dxn.data.splits import draw; print(draw(['a', 'b', None] * 23, (0.8, 0.2), seed=3))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ast.literal_eval(run.stdout) == draw(["a", "b", None] * 23, (0.8, 0.2), seed=3)


@pytest.mark.parametrize("shares", [(), (0.8, 0.1), (0.5, 0.6), (1.2, -0.2), (0.25, 0.25, 0.25, 0.25)])
def test_shares_that_are_none_are_refused(shares):
    with pytest.raises(UserError) as caught:
        draw(["a"], shares, seed=0)
    assert str(caught.value) == f"data.fractions: must be up to three shares that add up to 1, got {list(shares)}"


def test_one_table_becomes_three_splits_and_says_so():
    notes = []
    found = complete({"all": rows(["a", "b"] * 10)}, (0.8, 0.1, 0.1), seed=7, notes=notes)
    assert sizes(found) == {"train": 16, "validation": 2, "test": 2}
    assert Counter(found["train"].cells["target"]) == {"a": 8, "b": 8}
    assert notes == ["splits: drawn by seed 7: train 16, validation 2, test 2"]


def test_a_row_keeps_its_cells_and_its_origin_together():
    found = complete({"all": rows([f"label {i % 3}" for i in range(29)])}, (0.8, 0.1, 0.1), seed=7, notes=[])
    for part in found.values():
        for origin, text, target in zip(part.origin, part.cells["text"], part.cells["target"], strict=True):
            i = int(origin.removeprefix("row "))
            assert text == f"text {i}" and target == f"label {i % 3}"


def test_a_tenth_of_the_training_rows_is_drawn_for_validation_where_it_is_missing():
    notes = []
    given_test = rows(["a"] * 3)
    found = complete({"train": rows(["a", "b"] * 20), "test": given_test}, (0.5, 0.5), seed=7, notes=notes)
    assert list(found) == ["train", "validation", "test"]
    assert sizes(found) == {"train": 36, "validation": 4, "test": 3}
    assert Counter(found["validation"].cells["target"]) == {"a": 2, "b": 2}
    assert not set(found["train"].origin) & set(found["validation"].origin)
    assert found["test"] is given_test
    assert notes == ["validation: a tenth of the training rows, drawn by seed 7"]


@pytest.mark.parametrize(
    "given", [{"train": 5, "validation": 2}, {"train": 5, "validation": 2, "test": 3}, {"train": 1}]
)
def test_what_is_given_is_left_as_it_is(given):
    notes = []
    splits = {name: rows(["a"] * count) for name, count in given.items()}
    assert complete(splits, (0.8, 0.2), seed=0, notes=notes) == splits and notes == []


def test_a_part_that_no_row_falls_to_is_left_out():
    assert sizes(complete({"all": rows(["a"] * 5)}, (1.0, 0.0, 0.0), seed=0, notes=[])) == {"train": 5}
    assert sizes(complete({"all": rows(["a"] * 10)}, (0.8, 0.2), seed=0, notes=[])) == {"train": 8, "validation": 2}


@pytest.mark.parametrize("targets", [[0.5 * i for i in range(40)], [["x", str(i)] for i in range(40)]])
def test_numbers_and_lists_are_drawn_without_strata(targets):
    found = complete({"all": rows(targets)}, (0.8, 0.1, 0.1), seed=7, notes=[])
    assert sizes(found) == {"train": 32, "validation": 4, "test": 4}
    alike = complete({"all": rows([""] * 40)}, (0.8, 0.1, 0.1), seed=7, notes=[])
    assert found["test"].origin == alike["test"].origin


def test_rows_without_a_target_column_are_drawn_all_the_same():
    without = Rows({"text": list("abcdefghij")}, [str(i) for i in range(10)])
    assert sizes(complete({"all": without}, (0.8, 0.1, 0.1), seed=0, notes=[])) == {
        "train": 8,
        "validation": 1,
        "test": 1,
    }
