"""Warnings about data that make metrics wrong or meaningless."""

import numpy as np
import pytest

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.data import InputSpec, Opened, Rows, Source
from dxn.data.inspect.quality import check_learnable, find_problems
from dxn.tasks import Classify, Generate, Masked, Multilabel, Regress, Tag


def warnings_of(task=None, *, groups=None, **splits):
    """The warnings of splits of texts, photos and targets; "target" is already parsed."""
    rows, opened = {}, {}
    for name, cells in splits.items():
        count = len(cells["target"])
        origin = [f"{name} {i}" for i in range(count)]
        rows[name] = Rows(cells, origin, groups=groups and groups[name])
        opened[name] = Opened({}, cells["target"], origin, kept=range(count))
        for column in cells.keys() - {"target"}:
            opened[name].present[column] = np.array([cell is not None for cell in cells[column]])
    names = [name for name in next(iter(splits.values())) if name != "target"]
    inputs = {name: InputSpec(f"{name}_column", name) for name in names}
    source = Source(rows, inputs, target="y", files=["image"])
    return [problem.reason for problem in find_problems(source, opened, task or Classify())]


def texts(count, start=0):
    return [f"text {i}" for i in range(start, start + count)]


def classes(count):
    return ["ab"[i % 2] for i in range(count)]


GOOD = {
    "train": {"text": texts(60), "target": classes(60)},
    "validation": {"text": texts(30, 100), "target": classes(30)},
    "test": {"text": texts(30, 200), "target": classes(30)},
}


def changed(split, **cells):
    return {**GOOD, split: {**GOOD[split], **cells}}


def test_good_data_has_no_warning():
    assert warnings_of(**GOOD) == []


@pytest.mark.parametrize(
    ("splits", "sentence"),
    [
        (
            changed("test", text=[*texts(29, 200), "text 7"]),
            "1 of 30 rows of test also occurs in train, such as test 29, which makes the metrics "
            "of test too good",
        ),
        (
            changed("train", text=[*texts(59), "text 1"], target=[*classes(59), "a"]),
            "1 row has the same inputs as another row, but another target, such as train 1 ('b') "
            "and train 59 ('a')",
        ),
        (
            changed("test", text=texts(29, 200), target=classes(29)),
            "test has only 29 rows, too few for reliable metrics (at least 30)",
        ),
        (
            {"train": GOOD["train"]},
            "there is no validation split, which selects the best epoch",
        ),
        (changed("test", target=["a"] * 30), "test: all 30 targets are 'a'"),
        (
            changed("train", target=[*classes(58), "c", "d"]),
            "2 of 4 classes are rare, so single rows decide about the metrics: 'c' has 1 row in "
            "train, 0 in validation, 0 in test; 'd' has 1 row in train, 0 in validation, 0 in test",
        ),
        (
            changed("train", target=["good", "N/A"] * 30),
            "the class 'N/A' (30 × in train) looks like a missing value; leave these cells "
            "empty if it is one",
        ),
        (
            changed("train", target=["good", "Good "] * 30),
            "the classes 'good' and 'Good ' differ only in spaces, in upper and lower case, "
            "or in the decimals of a whole number",
        ),
        (
            changed("train", target=["1", "1.0"] * 30),
            "the classes '1' and '1.0' differ only in spaces, in upper and lower case, "
            "or in the decimals of a whole number",
        ),
    ],
)
def test_each_problem_has_one_sentence(splits, sentence):
    assert warnings_of(**splits) == [sentence]


def test_gaps_that_tell_the_class_are_noted():
    reason = [None if i % 2 else f"reason {i}" for i in range(60)]
    (sentence,) = warnings_of(**changed("train", reason=reason))
    assert sentence.startswith(
        "reason_column: empty in all 30 training rows of the class 'b', but filled in 30 of 30 "
    )
    assert sentence.endswith("leave the column out with data.exclude=reason_column")
    assert warnings_of(**changed("train", reason=["one", "two", *reason[2:]])) == []
    assert warnings_of(**changed("train", reason=[None] * 50 + reason[50:])) == []


def test_files_in_two_splits_are_counted_if_the_other_inputs_differ(tmp_path):
    for i in range(150):
        (tmp_path / f"{i}.png").write_bytes(b"%d" % (i % 120))
    paths = [str(tmp_path / f"{i}.png") for i in range(150)]
    splits = {
        "train": {**GOOD["train"], "image": paths[:60]},
        "validation": {**GOOD["validation"], "image": paths[60:90]},
        "test": {**GOOD["test"], "image": paths[120:]},  # copies of the files of train
    }
    assert warnings_of(**splits) == [
        "image: 30 of 30 rows of test have a file that rows of train have, too"
    ]


def test_groups_in_two_splits_are_counted():
    groups = {"train": ["x"] * 60, "validation": ["y"] * 30, "test": ["x"] * 15 + ["z"] * 15}
    assert warnings_of(groups=groups, **GOOD) == [
        "1 group of data.group is in both train and test, such as 'x'"
    ]


@pytest.mark.parametrize(
    ("task", "targets", "number"),
    [
        (Multilabel(), [["a", "b"], ["b", "a"], ["a"]], 1),
        (Tag(), [["a", "b"], ["b", "a"], ["a", "b"]], 1),
    ],
)
def test_targets_that_mean_the_same_do_not_contradict_each_other(task, targets, number):
    data = changed("train", text=["text"] * 3 + texts(57), target=targets + [["a"]] * 57)
    (sentence,) = [w for w in warnings_of(task, **data) if "another target" in w]
    assert sentence.startswith(f"{number} row has the same inputs as another row")


@pytest.mark.parametrize("task", [Masked(), Generate(decoder=lambda **_: None)])
def test_texts_to_write_and_missing_targets_may_repeat(task):
    assert warnings_of(task, **changed("test", target=["a"] * 30)) == []


@pytest.mark.parametrize(
    ("targets", "sentence"),
    [
        (["good"] * 60, "all 60 targets are 'good'"),
        ([3.5] * 60, "all 60 targets are 3.5"),
        ([["a", "b"]] * 3, "all 3 targets are ['a', 'b']"),
        (["good"], "there is only 1 row (row 0)"),
    ],
)
def test_a_target_that_teaches_nothing_is_refused(targets, sentence):
    opened = Opened({}, targets, [f"row {i}" for i in range(len(targets))])
    with pytest.raises(UserError) as caught:
        check_learnable(opened, "stars", Classify())
    assert str(caught.value) == (
        f"data.target: {sentence} in the training split, so there is nothing to learn; choose "
        "another column than stars, or add rows"
    )


@pytest.mark.parametrize("targets", [["a", "b"], [1.0, 2.0, 1.0], [None, "a", "b"], [], None])
def test_other_targets_are_accepted(targets):
    check_learnable(Opened({}, targets, list("xyz")), "stars", Classify())


def test_equal_tags_in_all_rows_are_accepted():
    check_learnable(Opened({}, [["B", "O"]] * 2, list("xy")), "tags", Tag())


def test_constant_numbers_of_a_test_split_are_noted():
    numbers = {
        name: {**cells, "target": [float(i) for i in range(len(cells["text"]))]}
        for name, cells in GOOD.items()
    }
    numbers["test"]["target"] = [2.0] * 30
    assert warnings_of(Regress(), **numbers) == ["test: all 30 targets are 2.0"]


def test_one_is_singular():
    assert [count(1, "row"), count(0, "row"), count(1200, "class", "classes")] == [
        *("1 row", "0 rows", "1,200 classes")
    ]
