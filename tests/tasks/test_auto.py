"""head=auto: which task fits which targets."""

import datetime
import itertools
from pathlib import Path

import numpy as np
import pytest

from dxn.core.errors import UserError
from dxn.core.parts import imported
from dxn.tasks import TASKS, Auto, Classify, Generate, Multilabel, Regress, Tag
from dxn.tasks.infer import infer
from dxn.tokenize.column_profile import profile_of

WORDS = [["a", "b"], ["c"], ["d", "e", "f"]]


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (["red", "blue", "red"], "classify"),
        (["red"], "classify"),
        ([0, 1, 2, 1], "classify"),
        (["0", "1", "2"], "classify"),
        ([1.0, 2.0, 3.0], "classify"),
        ([True, False], "classify"),
        (list(range(20)), "classify"),
        (list(range(21)), "regress"),
        ([0.5, 1.0], "regress"),
        (["3.5", "-1e3"], "regress"),
        (["1", "2", "red"], "classify"),
        ([["a", "b"], ["a"]], "multilabel"),
        ([[], []], "multilabel"),
        ([[0.0, 1.0], [1.0, 1.0]], "multilabel"),
        (["a|b", "b", "a|b"], "multilabel"),
        (["a|b", "c|d", "e|f"], "classify"),  # no label occurs twice
        (["a|a", *["red", "blue"] * 20], "classify"),  # hardly any value has a separator
        ([f"sentence number {i}" for i in range(20)], "generate"),
        ([f"word{'abcdefghijklmnopqrst'[i]}" for i in range(20)], "generate"),  # all are different
        ([f"sentence number {i}" for i in range(19)], "classify"),  # too few to tell
        ([f"sentence number {i % 9}" for i in range(20)], "classify"),  # they occur again
        ([f"word{i % 15}" for i in range(20)], "classify"),
        ([None, "red", None, "blue"], "classify"),
        ([None, 0.5, 0.25], "regress"),
        # Numbers as people write them
        ([*map(str, range(100, 899)), "N/A"], "regress"),
        ([*map(str, range(100, 190)), *["-", "none", "?"] * 3], "regress"),
        ([f"{1 + i % 9},{100 + i}" for i in range(300)], "regress"),
        ([f"${1 + i % 9},{100 + i}.50" for i in range(300)], "regress"),
        ([f"{1 + i % 9}.{100 + i},50 €" for i in range(300)], "regress"),
        ([f"{i} %" for i in range(99)], "regress"),
        ([f"{i} kg" for i in range(99)], "regress"),
        ([*map(str, range(80)), *["red"] * 20], "classify"),  # too many are not numbers
        # Whole numbers
        ([str(i % 30) for i in range(300)], "classify"),  # ids from 0 to 29
        ([1 + i % 77 for i in range(770)], "classify"),
        ([18 + i % 60 for i in range(900)], "regress"),  # ages
        ([n for n in range(24) for _ in range(200 >> n // 3)], "regress"),  # counts, many are rare
        ([i % 101 for i in range(2000)], "regress"),  # 0 to 100 is a score
        ([2005 + i % 16 for i in range(500)], "regress"),  # years
        ([f"{10 * (i % 11)} %" for i in range(500)], "regress"),
        ([f"{1 + i % 5} stars" for i in range(500)], "classify"),
        ([3 + i % 6 for i in range(500)], "classify"),
        ([f"{i * 7919 % 100000:05}" for i in range(500)], "classify"),  # zip codes
        ([210000, 350000, 199000, 420000, 310000, 275000, 180000], "regress"),
        # Booleans
        (["true", "false"] * 20, "classify"),
        (["Yes", "No", "No"] * 20, "classify"),
        (["none", "cold", "hot"] * 20, "classify"),
        (["2026-01-01", "2026-02-01"] * 20, "classify"),  # two dates are two classes
    ],
)
def test_the_targets_decide_the_task(values, task):
    assert infer(profile_of(values))[0] == task


@pytest.mark.parametrize(
    ("cell", "other", "task"),
    [
        ('{"text": ["a b"], "answer_start": [3]}', "a b", "span"),
        ('{"text": ["a b"], "answer_start": [3]}', '{"text": ["a', "span"),
        ("[[0, 3, 'person']]", "[[0, 3", "tag"),
        ('[{"start": 0, "end": 3, "label": "x", "id": null}]', "none", "tag"),
        ('[{"label": "cat", "box": [1, 2, 3, 4]}]', "cat", "detect"),
        ('["a", "b"]', "a", "multilabel"),
        (["a", "b"], "a", "multilabel"),
    ],
)
@pytest.mark.parametrize("place", [0, 20])
def test_one_cell_that_does_not_fit_changes_no_task(cell, other, task, place):
    cells = [cell] * 40
    cells[place] = other
    assert infer(profile_of(cells))[0] == task


def test_one_row_with_too_few_tags_and_one_missing_mask_change_no_task(tmp_path):
    words, tags = [["a", "b", "c"]] * 40, [["O", "B-x", "O"]] * 40
    tags[7] = ["O"]
    assert infer(profile_of(tags), list(zip(words, tags, strict=True)))[0] == "tag"
    masks = [str(tmp_path / f"{i}.png") for i in range(20)]
    for path in masks[1:]:
        Path(path).touch()
    assert infer(profile_of(masks))[0] == "segment"


@pytest.mark.parametrize(
    ("values", "words", "task"),
    [
        ([["N", "V"], ["N"], ["V", "D", "N"]], WORDS, "tag"),
        ([["N", "V"], None, ["V", "D", "N"]], WORDS, "tag"),
        ([["N", "V"], ["N"], ["V", "D"]], WORDS, "multilabel"),  # a tag is missing
        ([["N", "V"]], ["a b"], "multilabel"),  # a text is not a list of words
        ([["N"]] * 39 + [["N", "V"]], ["1.png"] * 40, "multilabel"),
        ([["N"]] * 39 + [["N", "V"]], [["a"]] * 40, "multilabel"),
        (["['N', 'V']", "['N']"] * 20, ["a b", "c"] * 20, "tag"),  # but it has as many words
        (["['N', 'V']", '["N"]'], ["['a', 'b']", '["c"]'], "tag"),  # as in a CSV file
        ([[], []], [["a"], ["b"]], "multilabel"),
        ([["N", "V"], ["N"], ["V", "D", "N"]], None, "multilabel"),
        (["red", "blue", "red"], WORDS, "classify"),
    ],
)
def test_lists_as_long_as_the_words_are_tags(values, words, task):
    rows = [] if words is None else list(zip(words, values, strict=False))
    assert infer(profile_of(values), rows)[0] == task


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([f"2026-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(120)], "84 different dates"),
        ([f"{1 + i % 28}.{1 + i % 12}.2026 12:30" for i in range(120)], "84 different dates"),
        ([datetime.date(2026, 1, 1 + i % 28) for i in range(120)], "28 different dates"),
        ([20260100 + i % 30 + 1 for i in range(120)], "30 different dates"),
        ([f"SKU-{i}" for i in range(400)], "identifiers such as 'SKU-0': 400 different values"),
        ([f"{i * 7919:x}f" for i in range(400)], "identifiers such as"),
        ([f"ann.{i}@example.com" for i in range(400)], "identifiers such as"),
    ],
)
def test_dates_and_identifiers_are_refused_with_the_options_that_help(values, sentence):
    with pytest.raises(UserError) as caught:
        infer(profile_of(values))
    message = str(caught.value)
    assert message.startswith("data.target: contains ")
    assert sentence in message
    assert "head=classify" in message


@pytest.mark.parametrize("written", [list, str, lambda cell: str(np.array(cell))])
def test_lists_of_numbers_with_a_fraction_are_no_labels(written):
    cells = [written([0.5, i + 0.25]) for i in range(20)]
    with pytest.raises(UserError, match=r"contains lists of numbers such as '?\[0\.5"):
        infer(profile_of(cells))


def test_a_few_lists_of_numbers_among_texts_are_texts():
    cells = [f"text {i}" if i % 4 else f"[0.5, {i}.5]" for i in range(60)]
    assert infer(profile_of(cells)) == ("generate", "")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (["red", "blue"] * 30, ""),
        ([0, 1] * 30, ""),
        ([0.5 * i for i in range(700)], ""),
        (
            [str(i % 30) for i in range(300)],
            "30 different whole numbers (0 to 29), in about 10 rows each: read as classes; set "
            "head=regress to predict them as a quantity",
        ),
        (
            [*[1, 2, 3] * 20, "n/a"],
            "3 different whole numbers (1 to 3), in about 20 rows each: read as classes; set "
            "head=regress to predict them as a quantity; 'n/a' is a class, too (leave the cell "
            "empty if the value is missing)",
        ),
        (
            [f"0{i % 10}" for i in range(50)],
            "10 different whole numbers (0 to 9), some start with a zero, as in codes: read as "
            "classes; set head=regress to predict them as a quantity",
        ),
        (
            [18 + i % 60 for i in range(600)],
            "60 different whole numbers (18 to 77) in 600 rows: read as a quantity; set "
            "head=classify to make each number a class",
        ),
        (
            [0.5 * (i % 10) for i in range(600)],
            "10 different numbers (0 to 4.5) in 600 rows: read as a quantity; set head=classify to "
            "make each number a class",
        ),
        (
            list(range(1000)),
            "1,000 different whole numbers in 1,000 rows: read as a quantity; if they are "
            "identifiers or row numbers, choose another column",
        ),
        (
            [*map(str, range(80)), *["red"] * 20],
            "80 of 100 values are numbers, but others are not, such as 'red': each value is a "
            "class; set head=regress data.on_bad=skip to predict the numbers",
        ),
        (
            ["".join(p) for p in itertools.permutations("abcd")],
            "24 different words in 24 rows are read as texts to write; set head=classify to make "
            "each word a class",
        ),
        ([f"a sentence {i}" for i in range(30)], ""),
    ],
)
def test_a_close_choice_has_a_reason_that_names_the_option(values, reason):
    assert infer(profile_of(values))[1] == reason


@pytest.mark.parametrize("values", [[], [None, None]])
def test_without_targets_no_task_is_chosen(values):
    with pytest.raises(UserError, match="there are no target values to infer a task from"):
        infer(profile_of(values))


@pytest.mark.parametrize(
    ("values", "cls"), [(["a", "b"], Classify), ([["a"], ["b"]], Multilabel), ([0.5, 2], Regress)]
)
def test_auto_passes_its_options_on(values, cls):
    auto = Auto(label_smoothing=0.1, balance="inverse", hidden="tanh", norm=True, dropout=0.3)
    task, node, _ = auto.resolve(values)
    assert type(task) is cls and node["_target_"] == f"dxn.tasks.{cls.__name__}"
    assert (task.hidden, task.norm, task.norm_eps, task.dropout) == ("tanh", True, 1e-5, 0.3)
    assert node["dropout"] == 0.3 and node["hidden"] == "tanh"
    assert ("balance" in node) == ("label_smoothing" in node) == (cls is not Regress)


def test_auto_leaves_out_options_that_a_task_does_not_have():
    task, node, _ = Auto(dropout=0.3).resolve([["N", "V"]], [["a", "b"]])
    assert type(task) is Tag and task.dropout == 0.3
    assert {"balance", "dropout"} <= set(node) and not {"task", "pair"} & set(node)
    _, node, _ = Auto(label_smoothing=0.1).resolve([0.5, 2])
    assert "label_smoothing" not in node


def test_the_hint_of_the_data_comes_first():
    assert type(Auto().resolve([0, 1], hint="regress")[0]) is Regress
    with pytest.raises(UserError, match="there is no task 'sort'; choose one of classify, mult"):
        Auto().resolve([0, 1], hint="sort")


def test_a_task_that_writes_needs_a_decoder():
    texts = [f"sentence number {i}" for i in range(20)]
    with pytest.raises(UserError, match="the task that fits the target is generate; set head=gen"):
        Auto().resolve(texts)

    class Decoder:
        def __init__(self):
            self.node = {"_target_": "dxn.models.Decoder", "_partial_": True}

        def __call__(self, **options):
            raise AssertionError

    task, node, reason = Auto(decoder=Decoder()).resolve(texts)
    assert reason == ""
    assert type(task) is Generate and task.label_smoothing == 0.1  # its own default
    assert node == {"_target_": "dxn.tasks.Generate", "decoder": Decoder().node}


def test_every_registered_task_has_the_name_it_is_registered_under():
    for name in TASKS:
        assert imported(TASKS[name]).name == name
