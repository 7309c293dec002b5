"""Figures against scikit-learn's and against hand-worked ones."""

import math

import pytest
import sklearn.metrics as theirs
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.data.targets import Target
from dxn.train.evaluate import subsets
from dxn.train.metrics import better, confusion, entities, monitored, score

NAMES = ("ant", "bee", "cat", "dog", "eel")
K = len(NAMES)
CLASSES, LABELS, TAGS = Target("class", NAMES), Target("labels", NAMES), Target("tags", ("O", "B-x", "I-x"))
NUMBERS = Target("number", mean=3.0, std=2.0)

examples = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**31)


def certain(*names):
    """Probabilities that name these classes."""
    return list(0.9 * torch.eye(K)[[NAMES.index(n) for n in names]] + 0.02)


def close(value):
    return pytest.approx(value, abs=1e-6)


# Classes


@examples
@given(seeds, st.integers(1, 53), st.integers(2, K))
def test_figures_of_classes_equal_sklearns(seed, n, k):
    torch.manual_seed(seed)
    probabilities = torch.randn(n, k).softmax(1)
    true, guess = torch.randint(k, (n,)).tolist(), probabilities.argmax(1).tolist()
    found = score(Target("class", NAMES[:k]), list(probabilities), [NAMES[i] for i in true])
    assert found == {
        "accuracy": close(theirs.accuracy_score(true, guess)),
        "f1_macro": close(theirs.f1_score(true, guess, average="macro")),
    }


def test_a_true_class_that_training_never_saw_counts_as_wrong():
    found = score(CLASSES, certain("ant", "bee", "bee", "bee"), ["ant", "bee", "yak", "zebra"])
    assert found["accuracy"] == 0.5


def test_where_no_true_class_is_known_nothing_is_right():
    assert score(CLASSES, certain("ant", "bee"), ["yak", "zebra"]) == {"accuracy": 0.0}


def test_one_class_alone_has_no_f1():
    assert score(Target("class", ("ant",)), [torch.ones(1)] * 3, ["ant"] * 3) == {"accuracy": 1.0}


def test_a_row_of_the_confusion_is_a_true_class():
    found = confusion(CLASSES, certain("bee", "bee", "ant", "eel", "cat"), ["ant", "bee", "ant", "dog", "yak"])
    expected = torch.zeros(K, K, dtype=torch.long)
    expected[0, 1] = expected[1, 1] = expected[0, 0] = expected[3, 4] = 1  # the yak is left out
    assert torch.equal(found, expected)


@examples
@given(seeds, st.integers(1, 53))
def test_the_confusion_equals_sklearns(seed, n):
    torch.manual_seed(seed)
    probabilities, true = torch.randn(n, K).softmax(1), torch.randint(K, (n,)).tolist()
    found = confusion(CLASSES, list(probabilities), [NAMES[i] for i in true])
    expected = theirs.confusion_matrix(true, probabilities.argmax(1), labels=range(K))
    assert found.tolist() == expected.tolist()


# Labels


@examples
@given(seeds, st.integers(2, 53), st.integers(1, K))
def test_figures_of_labels_equal_sklearns(seed, n, k):
    torch.manual_seed(seed)
    probabilities, true = torch.rand(n, k), torch.rand(n, k) > 0.5
    true[0] = True  # average precision is not defined for a label without a positive row
    guess = probabilities >= 0.5
    names = [[name for name, has in zip(NAMES, row, strict=False) if has] for row in true.tolist()]
    by_row = (guess == true).all(1)
    f1s = [theirs.f1_score(true[:, i], guess[:, i], zero_division=0) for i in range(k)]
    assert score(Target("labels", NAMES[:k]), list(probabilities), names) == {
        "f1_micro": close(theirs.f1_score(true.flatten(), guess.flatten(), zero_division=0)),
        "f1_macro": close(sum(f1s) / k),
        "exact_match": close(float(by_row.double().mean())),
        "average_precision": close(theirs.average_precision_score(true, probabilities, average="macro")),
    }


def test_figures_of_labels_by_hand():
    probabilities = torch.tensor([[0.9, 0.5, 0.1], [0.2, 0.4, 0.8], [0.7, 0.6, 0.1]])
    found = score(Target("labels", NAMES[:3]), list(probabilities), [["ant", "bee"], ["bee"], []])
    # Named: ant bee; cat; ant bee. Right: ant and bee of the first row, whose 0.5 is enough.
    assert found == {
        "f1_micro": close(2 * 2 / (5 + 3)),
        "f1_macro": close((2 / 3 + 2 / 4 + 0) / 3),  # ant 1 of 2 and 1, bee 1 of 2 and 2, cat none
        "exact_match": close(1 / 3),
        # ant: first of its ranking. bee: ranked second (precision 1/2) and third (2/3). No row has cat.
        "average_precision": close((1 + (1 / 2 + 2 / 3) / 2) / 2),
    }


def test_a_label_that_no_row_has_is_left_out_of_the_average_precision():
    probabilities = torch.tensor([[0.9, 0.2, 0.1, 0.1, 0.1], [0.1, 0.8, 0.1, 0.1, 0.1]])
    found = score(LABELS, list(probabilities), [["ant"], ["bee"]])
    assert found["average_precision"] == 1 and found["exact_match"] == 1 and found["f1_micro"] == 1


def test_rows_without_any_label_give_figures_all_the_same():
    found = score(LABELS, list(torch.full((2, K), 0.1)), [[], []])
    assert found == {"f1_micro": 0, "f1_macro": 0, "exact_match": 1, "average_precision": 0}


# Numbers


@examples
@given(seeds, st.integers(2, 53), st.floats(-100, 100))
def test_figures_of_numbers_equal_sklearns(seed, n, middle):
    torch.manual_seed(seed)
    true, guess = middle + 10 * torch.randn(n), middle + 10 * torch.randn(n)
    assert score(NUMBERS, list(guess), true.tolist()) == {
        "rmse": pytest.approx(theirs.root_mean_squared_error(true, guess), rel=1e-4),
        "mae": pytest.approx(theirs.mean_absolute_error(true, guess), rel=1e-4),
        "r2": pytest.approx(theirs.r2_score(true, guess), rel=1e-3, abs=1e-3),
    }


def test_numbers_by_hand():
    # errors 0, 3 and -4: squares sum to 25; the true 1, 2, 6 lie -2, -1 and 3 from 3: 14
    found = score(NUMBERS, list(torch.tensor([1.0, 5.0, 2.0])), [1, 2, 6])
    assert found == {"rmse": close((25 / 3) ** 0.5), "mae": close(7 / 3), "r2": close(1 - 25 / 14)}


def test_without_spread_there_is_no_r2():
    found = score(NUMBERS, list(torch.tensor([1.0, 2.0])), [5.0, 5.0])
    assert math.isnan(found["r2"]) and found["mae"] == close(3.5)


# Tags


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", []),
        ("O O", []),
        ("B-x", [(0, 1, "x")]),
        ("O B-x I-x I-x O", [(1, 4, "x")]),
        ("B-x B-x", [(0, 1, "x"), (1, 2, "x")]),  # adjacent ones stay two
        ("B-x I-x B-x I-x", [(0, 2, "x"), (2, 4, "x")]),
        ("I-x I-x O", [(0, 2, "x")]),  # a stray I- begins a run
        ("O I-x", [(1, 2, "x")]),
        ("B-x O I-x", [(0, 1, "x"), (2, 3, "x")]),  # a gap ends one
        ("B-x I-y I-y", [(0, 1, "x"), (1, 3, "y")]),  # so does another type
        ("I-x I-y I-x", [(0, 1, "x"), (1, 2, "y"), (2, 3, "x")]),
        ("NOUN O VERB VERB", [(0, 1, "NOUN"), (2, 3, "VERB"), (3, 4, "VERB")]),  # no B- and I- at all
        ("B I", [(0, 1, "B"), (1, 2, "I")]),
        ("B-x-y I-x-y", [(0, 2, "x-y")]),
    ],
)
def test_entities_by_hand(tags, expected):
    assert entities(tags.split()) == expected


def test_figures_of_tags_by_hand():
    true = [["B-x", "I-x", "O", "B-y"], ["B-x", "O"], ["O"]]
    predicted = [["B-x", "I-x", "O", "B-x"], ["B-x", "I-x"], ["B-y"]]
    # True entities: 0-2 x, 3-4 y; 0-1 x. Found: 0-2 x, 3-4 x; 0-2 x; 0-1 y. One is right: its ends and its type.
    assert score(TAGS, predicted, true) == {
        "accuracy": close(4 / 7),
        "precision_entity": close(1 / 4),
        "recall_entity": close(1 / 3),
        "f1_entity": close(2 / 7),
    }


def test_an_entity_of_another_row_is_not_right():
    found = score(TAGS, [["B-x", "O"], ["O", "O"]], [["O", "O"], ["B-x", "O"]])
    assert found["f1_entity"] == 0 and found["accuracy"] == 0.5


@pytest.mark.parametrize(("predicted", "true"), [([["O"]], [["O"]]), ([], []), ([[]], [[]])])
def test_without_entities_the_figures_are_zero_and_finite(predicted, true):
    assert score(TAGS, predicted, true)["f1_entity"] == 0


@pytest.mark.parametrize(("predicted", "true"), [([["O"]], [["O", "O"]]), ([["O"], ["O"]], [["O"]])])
def test_a_tag_too_few_or_a_row_too_many_is_an_error(predicted, true):
    with pytest.raises(ValueError, match="argument 2 is"):
        score(TAGS, predicted, true)


@examples
@given(st.lists(st.sampled_from(["O", "B-x", "I-x", "B-y", "I-y"]), max_size=13))
def test_entities_never_overlap_and_cover_each_word_that_has_a_tag(tags):
    covered = [i for start, stop, _ in entities(tags) for i in range(start, stop)]
    assert covered == [i for i, tag in enumerate(tags) if tag != "O"]
    assert all(tags[i][2:] == kind for start, stop, kind in entities(tags) for i in range(start, stop))


# Which epoch is best


@pytest.mark.parametrize(
    ("metric", "new", "old", "is_better"),
    [
        ("accuracy", 0.6, 0.5, True),
        ("accuracy", 0.5, 0.5, False),  # the first of two equal epochs stays
        ("accuracy", 0.4, 0.5, False),
        ("rmse", 0.4, 0.5, True),
        ("rmse", 0.5, 0.5, False),
        ("rmse", 0.6, 0.5, False),
        ("loss_per_char", 0.4, 0.5, True),
        ("loss", 0.6, 0.5, False),
        ("chrf", 0.6, 0.5, True),
        ("accuracy", 0.0, None, True),
        ("rmse", 9.0, None, True),
        ("accuracy", math.nan, None, False),
        ("rmse", math.nan, 0.5, False),
        ("accuracy", math.nan, 0.5, False),
    ],
)
def test_which_of_two_figures_is_better(metric, new, old, is_better):
    assert better(metric, new, old) is is_better


@pytest.mark.parametrize(
    ("target", "predicted", "truths"),
    [
        (CLASSES, certain("ant", "bee"), ["ant", "bee"]),
        (LABELS, list(torch.eye(K)), [[n] for n in NAMES]),
        (NUMBERS, list(torch.tensor([1.0, 2.0])), [1, 2]),
        (TAGS, [["B-x"]], [["B-x"]]),
    ],
)
def test_the_monitored_figure_is_among_those_scored_and_at_its_best(target, predicted, truths):
    found = score(target, predicted, truths)
    assert found[monitored(target)] == (0 if target.kind == "number" else 1)


# Subsets of modalities


@pytest.mark.parametrize(
    ("modalities", "expected"),
    [
        ([], []),
        (["text"], []),
        (["text", "image"], [("text",), ("image",), ("text", "image")]),
        (
            ["text", "image", "audio"],
            [
                ("text",),
                ("image",),
                ("audio",),
                ("text", "image"),
                ("text", "audio"),
                ("image", "audio"),
                ("text", "image", "audio"),
            ],
        ),
    ],
)
def test_the_subsets_go_from_each_alone_to_all(modalities, expected):
    assert subsets(modalities) == expected
