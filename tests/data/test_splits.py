"""Drawn splits: every row once, every label in proportion, the same each time."""

import ast
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from helpers.data import sizes
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.core.errors import UserError
from dxn.data.rows import Rows
from dxn.data.splits.split import complete_splits, divide, is_categorical

# Validation and test rows that earlier versions drew. Published metrics depend on them.
EARLIER = ["7", "14", "3", "10"]
FRACTIONS = st.sampled_from(
    [
        (0.8, 0.1, 0.1),
        (0.9, 0.1),
        (1.0,),
        (0.5, 0.25, 0.25),
        (0.0, 0.7, 0.3),
        (1 / 3, 1 / 3, 1 / 3),
    ]
)
LABELS = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=67)


def rows_of(targets):
    count = len(targets)
    cells = {"text": [f"text {i}" for i in range(count)], "target": targets}
    return Rows(cells, [f"row {i}" for i in range(count)])


@settings(max_examples=40, deadline=None)
@given(LABELS, FRACTIONS, st.integers(0, 1000))
def test_every_row_is_drawn_once_and_each_part_is_in_order(labels, fractions, seed):
    parts = divide(labels, fractions, seed=seed)
    assert len(parts) == len(fractions)
    assert sorted(i for part in parts for i in part) == list(range(len(labels)))
    assert all(part == sorted(part) for part in parts)


@settings(max_examples=40, deadline=None)
@given(LABELS, FRACTIONS, st.integers(0, 1000))
def test_each_part_has_its_fraction_of_all_rows_and_of_each_label(labels, fractions, seed):
    """The rows are dealt in one sequence, of which a part is never more than one row off.

    A label is a stretch of that sequence, from one point to another: at most two rows off.
    """
    parts = divide(labels, fractions, seed=seed)
    for part, fraction in zip(parts, fractions, strict=True):
        assert abs(len(part) - fraction * len(labels)) < 1 + 1e-9
        drawn = Counter(labels[i] for i in part)
        for label, count in Counter(labels).items():
            assert abs(drawn[label] - fraction * count) < 2 + 1e-9


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_rare_labels_are_divided_in_proportion_too(seed):
    # 40 labels with one row each: drawn separately, all of them would be in the first part.
    parts = divide(list(range(40)), (0.8, 0.1, 0.1), seed=seed)
    assert [len(part) for part in parts] == [32, 4, 4]


def test_the_draw_depends_on_the_seed_only():
    labels = ["a", "b", None] * 23
    first = divide(labels, (0.8, 0.2), seed=3)
    assert divide(labels, (0.8, 0.2), seed=3) == first
    assert divide(labels, (0.8, 0.2), seed=4) != first


def test_the_draw_is_the_one_of_earlier_versions():
    labels = [*"aabbbcc", None, None]
    assert divide(labels, (0.5, 0.5), seed=0) == [[0, 2, 4, 5, 7], [1, 3, 6, 8]]


def test_the_draw_is_the_same_in_another_process():
    code = "from dxn.data.splits.split import divide; "
    code += "print(divide(['a', 'b', None] * 23, (0.8, 0.2), seed=3))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = divide(["a", "b", None] * 23, (0.8, 0.2), seed=3)
    assert ast.literal_eval(run.stdout) == expected


@pytest.mark.parametrize(
    "labels",
    [
        [f"sentence {i}" for i in range(200)],
        [f"masks/{i:03}.png" for i in range(200)],
        [{"box": [i, i, i + 1, i + 1]} for i in range(200)],
        list(range(200)),
    ],
    ids=["sentences", "paths", "boxes", "numbers"],
)
def test_targets_that_are_all_different_are_divided_at_random(labels):
    test_rows = [divide(labels, (0.8, 0.1, 0.1), seed=seed)[2] for seed in range(4)]
    assert len(set(map(tuple, test_rows))) == 4
    for rows in test_rows:
        assert len(rows) == 20
        # Neither every tenth row nor a stretch of rows.
        assert len(set(np.diff(rows))) > 3


@pytest.mark.parametrize(
    "fractions", [(), (0.8, 0.1), (0.5, 0.6), (1.2, -0.2), (0.25, 0.25, 0.25, 0.25)]
)
def test_invalid_fractions_are_refused(fractions):
    with pytest.raises(UserError) as caught:
        divide(["a"], fractions, seed=0)
    assert str(caught.value) == (
        "data.fractions: must be one to three numbers of at least 0 that add up to 1, "
        f"got {list(fractions)}"
    )


def test_undivided_rows_become_three_splits_and_a_note():
    notes = []
    whole = {"all": rows_of(["a", "b"] * 10)}
    splits = complete_splits(whole, (0.8, 0.1, 0.1), seed=7, notes=notes)
    assert sizes(splits) == {"train": 16, "validation": 2, "test": 2}
    assert Counter(splits["train"].cells["target"]) == {"a": 8, "b": 8}
    assert notes == ["splits: chosen at random with seed 7: train 16, validation 2, test 2"]


def test_a_row_keeps_its_cells_and_its_origin_together():
    whole = {"all": rows_of([f"label {i % 3}" for i in range(29)])}
    splits = complete_splits(whole, (0.8, 0.1, 0.1), seed=7, notes=[])
    for part in splits.values():
        columns = (part.origin, part.cells["text"], part.cells["target"])
        for origin, text, target in zip(*columns, strict=True):
            i = int(origin.removeprefix("row "))
            assert text == f"text {i}"
            assert target == f"label {i % 3}"


def test_a_missing_validation_split_is_a_tenth_of_the_training_rows():
    notes = []
    test = rows_of(["a"] * 3)
    known = {"train": rows_of(["a", "b"] * 20), "test": test}
    splits = complete_splits(known, (0.5, 0.5), seed=7, notes=notes)
    assert list(splits) == ["train", "validation", "test"]
    assert sizes(splits) == {"train": 36, "validation": 4, "test": 3}
    assert Counter(splits["validation"].cells["target"]) == {"a": 2, "b": 2}
    assert not set(splits["train"].origin) & set(splits["validation"].origin)
    assert splits["test"] is test
    assert notes == ["validation: 10% of the training rows, chosen at random with seed 7"]


@pytest.mark.parametrize(
    "counts",
    [
        {"train": 5, "validation": 2},
        {"train": 5, "validation": 2, "test": 3},
        {"train": 1},
    ],
)
def test_complete_splits_stay_as_they_are(counts):
    notes = []
    splits = {name: rows_of(["a"] * count) for name, count in counts.items()}
    assert complete_splits(splits, (0.8, 0.2), seed=0, notes=notes) == splits
    assert notes == []


def test_a_part_without_rows_is_left_out():
    def drawn(count, fractions):
        rows = {"all": rows_of(["a"] * count)}
        return sizes(complete_splits(rows, fractions, seed=0, notes=[]))

    assert drawn(5, (1.0, 0.0, 0.0)) == {"train": 5}
    assert drawn(10, (0.8, 0.2)) == {"train": 8, "validation": 2}


# Rows with equal inputs


def drawn(cells, *, groups=None, files=(), fractions=(0.8, 0.1, 0.1), seed=0):
    """The splits of undivided rows, and the notes."""
    count = len(next(iter(cells.values())))
    rows = Rows(cells, [str(i) for i in range(count)], groups=groups)
    notes = []
    splits = complete_splits({"all": rows}, fractions, seed=seed, notes=notes, files=files)
    return splits, notes


def splits_by(splits, keys):
    """The number of splits in which each key occurs."""
    pairs = {(keys[int(i)], name) for name, rows in splits.items() for i in rows.origin}
    return set(Counter(key for key, _ in pairs).values())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=150), st.integers(0, 1000))
def test_equal_inputs_are_never_in_two_splits(numbers, seed):
    splits, _ = drawn({"text": [f"text {n}" for n in numbers]}, seed=seed)
    assert splits_by(splits, numbers) == {1}
    assert sum(map(len, splits.values())) == len(numbers)


def test_fractions_and_strata_stay_about_right_with_equal_inputs():
    texts = [f"text {i // 3}" for i in range(600)]
    targets = ["a" if i // 3 % 4 else "b" for i in range(600)]
    splits, notes = drawn({"text": texts, "target": targets})
    assert sizes(splits) == {"train": 480, "validation": 60, "test": 60}
    assert Counter(splits["test"].cells["target"]) == {"a": 45, "b": 15}
    assert notes == [
        "splits: chosen at random with seed 0: train 480, validation 60, test 60; "
        "600 rows that share inputs are kept together"
    ]


def test_a_shared_picture_keeps_rows_together_but_a_shared_question_does_not():
    pictures = [f"{i // 6}.png" for i in range(240)]
    questions = [f"what is it, {i % 6}?" for i in range(240)]
    splits, _ = drawn({"image": pictures, "text": questions}, files=["image"])
    assert splits_by(splits, pictures) == {1}
    assert splits_by(splits, questions) == {3}
    assert sizes(splits) == {"train": 192, "validation": 24, "test": 24}


def test_a_placeholder_picture_does_not_keep_its_rows_together():
    pictures = ["none.png" if i % 2 else f"{i}.png" for i in range(400)]
    texts = [f"text {i}" for i in range(400)]
    splits, _ = drawn({"image": pictures, "text": texts}, files=["image"])
    assert sizes(splits) == {"train": 320, "validation": 40, "test": 40}


def test_pictures_in_memory_are_compared_by_content():
    arrays = [np.full((2, 3), i // 5) for i in range(100)]
    splits, _ = drawn({"image": arrays}, files=["image"])
    assert splits_by(splits, [i // 5 for i in range(100)]) == {1}
    splits, _ = drawn({"image": [bytes([i // 5]) for i in range(100)]}, files=["image"])
    assert splits_by(splits, [i // 5 for i in range(100)]) == {1}


def test_rows_without_inputs_are_not_equal():
    splits, _ = drawn({"text": [None] * 50})
    assert sizes(splits) == {"train": 40, "validation": 5, "test": 5}


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 12), st.integers(0, 1000))
def test_each_split_has_a_group_if_there_are_enough(count, seed):
    groups = [i % count for i in range(120)]
    texts = [f"text {i}" for i in range(120)]
    splits, _ = drawn({"text": texts}, groups=groups, seed=seed)
    assert list(splits) == ["train", "validation", "test"]
    assert splits_by(splits, groups) == {1}
    assert len(splits["train"]) >= 40


def test_splits_without_equal_inputs_are_those_of_earlier_versions():
    splits, _ = drawn({"text": [f"text {i}" for i in range(20)], "target": list("ab" * 10)}, seed=3)
    assert [*splits["validation"].origin, *splits["test"].origin] == EARLIER


@pytest.mark.parametrize("targets", [list("ab" * 500), [f"sentence {i}" for i in range(1000)]])
def test_a_column_that_is_left_out_changes_the_split_of_few_rows(targets):
    texts = [f"text {i - 50 if i % 100 == 50 else i}" for i in range(1000)]  # ten pairs are equal
    complete, _ = drawn({"text": texts, "number": list(range(1000)), "target": targets}, seed=3)
    splits, _ = drawn({"text": texts, "target": targets}, seed=3)
    assert splits_by(splits, texts) == {1}
    for name, rows in splits.items():
        assert abs(len(rows) - len(complete[name])) <= 1
        assert len(set(rows.origin) & set(complete[name].origin)) >= 0.9 * len(rows)


@pytest.mark.parametrize(
    "targets",
    [
        [0.5 * i for i in range(40)],
        [["x", str(i)] for i in range(40)],
        [f"{i % 3}|{i % 5}" for i in range(40)],
    ],
)
def test_amounts_and_lists_are_drawn_without_strata(targets):
    assert not is_categorical(targets)

    def drawn(targets):
        rows = {"all": rows_of(targets)}
        return complete_splits(rows, (0.8, 0.1, 0.1), seed=7, notes=[], stratify=False)

    splits = drawn(targets)
    assert sizes(splits) == {"train": 32, "validation": 4, "test": 4}
    assert splits["test"].origin == drawn([""] * 40)["test"].origin


@pytest.mark.parametrize(
    "targets",
    [
        ["a", "b", "a"],
        ["1", "0", None, "1"],
        [3, 1, 2],
        [True, False],
        [i % 20 for i in range(43)],
        [f"a sentence {i}" for i in range(43)],
        # One of 29 values with a bar is a name, not a list of names.
        ["either|or" if i == 7 else "ab"[i % 2] for i in range(29)],
        [],
        [None],
    ],
)
def test_names_and_few_whole_numbers_are_categories(targets):
    assert is_categorical(targets)


def test_many_whole_numbers_are_amounts():
    assert not is_categorical([i % 21 for i in range(43)])


def test_rows_without_a_target_column_can_be_drawn():
    without = {"all": Rows({"text": list("abcdefghij")}, [str(i) for i in range(10)])}
    splits = complete_splits(without, (0.8, 0.1, 0.1), seed=0, notes=[])
    assert sizes(splits) == {"train": 8, "validation": 1, "test": 1}
