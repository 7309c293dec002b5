"""head=auto: which task fits which targets."""

import pytest

from dxn.errors import UserError
from dxn.tasks import TASKS, Auto, Classify, Generate, Multilabel, Regress, Tag, infer_task
from dxn.tasks.auto import task_class

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
        (["a|b", "b", "a|b"], "multilabel"),
        (["a|b", "c|d", "e|f"], "classify"),  # no label occurs twice
        (["a|a", *["red", "blue"] * 20], "classify"),  # hardly any value has a separator
        ([f"sentence number {i}" for i in range(20)], "generate"),
        ([f"word{i}" for i in range(20)], "generate"),  # (nearly) all are different
        ([f"sentence number {i}" for i in range(19)], "classify"),  # too few to tell
        ([f"sentence number {i % 9}" for i in range(20)], "classify"),  # they occur again
        ([f"word{i % 15}" for i in range(20)], "classify"),
        ([None, "red", None, "blue"], "classify"),
        ([None, 0.5, 0.25], "regress"),
    ],
)
def test_the_targets_decide_the_task(values, task):
    assert infer_task(values) == task


@pytest.mark.parametrize(
    ("values", "words", "task"),
    [
        ([["N", "V"], ["N"], ["V", "D", "N"]], WORDS, "tag"),
        ([["N", "V"], None, ["V", "D", "N"]], WORDS, "tag"),
        ([["N", "V"], ["N"], ["V", "D"]], WORDS, "multilabel"),  # a tag is missing
        ([["N", "V"]], ["a b"], "multilabel"),  # a text is no list of words
        ([[], []], [["a"], ["b"]], "multilabel"),
        ([["N", "V"], ["N"], ["V", "D", "N"]], None, "multilabel"),
        (["red", "blue", "red"], WORDS, "classify"),
    ],
)
def test_lists_as_long_as_the_words_are_tags(values, words, task):
    assert infer_task(values, words) == task


@pytest.mark.parametrize("values", [[], [None, None]])
def test_without_targets_no_task_is_chosen(values):
    with pytest.raises(UserError, match="there are no target values to infer a task from"):
        infer_task(values)


@pytest.mark.parametrize(
    ("values", "cls"), [(["a", "b"], Classify), ([["a"], ["b"]], Multilabel), ([0.5, 2], Regress)]
)
def test_auto_passes_its_options_on(values, cls):
    auto = Auto(label_smoothing=0.1, balance=True, hidden="tanh", norm=True, dropout=0.3)
    task, node = auto.resolve(values)
    assert type(task) is cls and node["_target_"] == f"dxn.tasks.{cls.__name__}"
    assert task.pre_options == {"hidden": "tanh", "norm": True, "norm_eps": 1e-5, "dropout": 0.3}
    assert node["dropout"] == 0.3 and node["hidden"] == "tanh"
    assert ("balance" in node) == ("label_smoothing" in node) == (cls is not Regress)


def test_auto_leaves_out_options_that_a_task_does_not_have():
    task, node = Auto(hidden="tanh", dropout=0.3).resolve([["N", "V"]], [["a", "b"]])
    assert type(task) is Tag and task.dropout == 0.3
    assert set(node) == {"_target_", "balance", "dropout"}


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

    task, node = Auto(decoder=Decoder()).resolve(texts)
    assert type(task) is Generate and task.label_smoothing == 0.1  # its own default
    assert node == {"_target_": "dxn.tasks.Generate", "decoder": Decoder().node}


def test_every_registered_task_has_the_name_it_is_registered_under():
    for name in TASKS:
        assert task_class(name).name == name


def test_an_unknown_hidden_layer_is_refused_at_once():
    with pytest.raises(ValueError, match="hidden must be one of"):
        Auto(hidden="sigmoid")
