"""Several labels per sample: encoding, loss and metrics, compared with other libraries."""

import math

import pytest
import sklearn.metrics
import torch
from helpers.tasks import WEIGHTS, B, K, assert_same, build_model, make_batch, overfit, predict
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.core.errors import UserError
from dxn.tasks import Multilabel
from dxn.tasks.infer import infer
from dxn.tokenize import TextAdapter, TokenizerOptions
from dxn.tokenize.column_profile import profile_of

NAMES = ("ant", "bee", "cat", "dog", "eel")
VALUES = [["a", "b"], ["b"], [], ["c", "b"], ["a", "b"]]
examples = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**31)


def task_of(names=NAMES, *, weights=None, **options):
    task = Multilabel(**options)
    task.target.load({"labels": list(names), "class_weights": weights})
    return task


def close(value):
    return pytest.approx(value, abs=1e-6)


# Targets


@pytest.mark.parametrize(
    ("cell", "labels"),
    [
        ("red|round", ["red", "round"]),
        (" red | round ", ["red", "round"]),
        ("red", ["red"]),
        ("", []),
        ("|", []),
        (["red", 3], ["red", "3"]),
        ([], []),
    ],
)
def test_cells_are_lists_or_strings_with_separators(cell, labels):
    assert Multilabel().target.read(cell, "row 1", {}) == labels


def test_a_cell_that_is_neither_is_refused():
    with pytest.raises(UserError, match=r"t\.csv:3: the target must be a list, got 7"):
        Multilabel().target.read(7, "t.csv:3", {})


def test_encoding_is_undone_by_the_names():
    task = Multilabel()
    task.target.fit(VALUES)
    assert task.target.labels == ("a", "b", "c")
    for value in VALUES:
        encoded = task.target.encode(value, {})
        assert encoded.dtype == torch.float32 and encoded.shape == (3,)
        assert [task.target.labels[i] for i in encoded.nonzero().flatten()] == sorted(value)


def test_an_unknown_label_is_ignored_and_its_row_counted():
    task = Multilabel()
    task.target.fit(VALUES)
    assert task.target.encode(["z", "b"], {}).tolist() == [0, 1, 0]
    assert len(task.target.unknown([["a"], ["a", "z"], [], ["y", "z"]])) == 2
    assert len(task.target.unknown(VALUES)) == 0


def test_the_weight_of_a_label_is_its_negatives_over_its_positives():
    # As BCEWithLogitsLoss takes pos_weight: of 5 rows, 2 have a, 4 have b and 1 has c.
    task = Multilabel(balance="inverse")
    task.target.fit(VALUES)
    assert task.target.class_weights == [3 / 2, 1 / 4, 4 / 1]
    roots = Multilabel(balance="root")
    roots.target.fit(VALUES)
    assert roots.target.class_weights == pytest.approx([(3 / 2) ** 0.5, 1 / 2, 2])
    # A label that all rows have needs a gradient, too.
    task.target.fit([["a"], ["a", "b"]])
    assert task.target.class_weights == [1 / 2, 1 / 1]


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        ([[0, 1], [1, 0]], [["1"], ["0"]]),
        (["[0, 1]", "[1, 0]"], [["1"], ["0"]]),
        ([[0, 0, 1]] * 19 + [[0, 1, 0]], [["2"]] * 19 + [["1"]]),
        ([[0, 1], [1], [0]], [["0", "1"], ["1"], ["0"]]),  # ids
        ([[0], [1]], [["0"], ["1"]]),
        ([[0, 2], [1, 0]], [["0", "2"], ["1", "0"]]),
    ],
)
def test_lists_of_0_and_1_of_one_length_say_whether_each_label_applies(cells, labels):
    target = Multilabel().target
    target.find_format(cells, [])
    assert [target.read(cell, "", {}) for cell in cells] == labels


def test_a_list_of_flags_that_is_too_short_is_an_error():
    target = Multilabel().target
    target.find_format([[0, 1]] * 19 + [[1]], [])
    with pytest.raises(UserError, match="row 7: the target must be a list of 2 values 0 or 1"):
        target.read([1], "row 7", {})


def test_a_few_other_values_do_not_make_labels_of_flags():
    target = Multilabel().target
    rows = [{"red": 1, "big": "yes"}] * 19 + [{"red": "maybe", "big": "no"}]
    (note,) = target.find_format(rows, [])
    assert "the column 'red' has 0 and 1 in 19 of 20 rows, but not in others" in note
    target.find_format([[0, 1]] * 19 + [[2, 1]], [])
    assert target.read([0, 1], "", {}) == ["1"]
    with pytest.raises(UserError, match="row 7: must be 0 or 1, as in the training, got 2"):
        target.read([2, 1], "row 7", {})


def test_a_description_counts_the_labels():
    assert Multilabel().target.describe(VALUES) == "3 labels (b 4, a 2, c 1)"


# Loss


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, list(WEIGHTS)])
def test_the_loss_is_the_written_out_binary_cross_entropy(smoothing, weights):
    task = task_of(label_smoothing=smoothing, weights=weights)
    logits, target = torch.randn(B, K), (torch.rand(B, K) > 0.5).float()
    losses = []
    for i in range(B):
        for k in range(K):
            p = 1 / (1 + math.exp(-float(logits[i, k])))
            t = float(target[i, k]) * (1 - smoothing) + 0.5 * smoothing
            weight = (weights or [1.0] * K)[k]
            losses.append(-(weight * t * math.log(p) + (1 - t) * math.log(1 - p)))
    assert_same(task.loss(logits, {"target": target}).mean, sum(losses) / len(losses))


def test_mixed_targets_are_shares():
    target = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    mixed = task_of().space.mix(target, torch.tensor([1, 0]), 0.75)
    assert_same(mixed, [[0.75, 0.25], [0.25, 0.75]])


# Metrics


@examples
@given(seeds, st.integers(2, 53), st.integers(1, K))
def test_metrics_equal_those_of_scikit_learn(seed, n, k):
    torch.manual_seed(seed)
    probabilities, true = torch.rand(n, k), torch.rand(n, k) > 0.5
    true[0] = True  # average precision is undefined for a label that no row has
    predicted = probabilities >= 0.5
    truths = [[m for m, has in zip(NAMES, row, strict=False) if has] for row in true.tolist()]
    figures = task_of(NAMES[:k]).metric.metrics(list(probabilities), truths, 0.0)
    micro = sklearn.metrics.f1_score(true.flatten(), predicted.flatten(), zero_division=0)
    assert figures["f1_micro"] == close(micro)
    f1s = [sklearn.metrics.f1_score(true[:, i], predicted[:, i], zero_division=0) for i in range(k)]
    assert figures["f1_macro"] == close(sum(f1s) / k)
    assert figures["exact_match"] == close(float((predicted == true).all(1).double().mean()))
    precision = sklearn.metrics.average_precision_score(true, probabilities, average="macro")
    assert figures["average_precision"] == close(precision)


def test_metrics_by_hand():
    probabilities = torch.tensor([[0.9, 0.5, 0.1], [0.2, 0.4, 0.8], [0.7, 0.6, 0.1]])
    truths = [["ant", "bee"], ["bee"], []]
    # Predicted: ant bee; cat; ant bee. Correct: ant and bee of the first row; 0.5 is enough.
    figures = task_of(NAMES[:3]).metric.metrics(list(probabilities), truths, 0.0)
    assert figures["f1_micro"] == close(2 * 2 / (5 + 3))
    # ant 1 of 2 and 1, bee 1 of 2 and 2, cat none
    assert figures["f1_macro"] == close((2 / 3 + 2 / 4 + 0) / 3)
    assert figures["exact_match"] == close(1 / 3)
    # ant is ranked first; bee second (precision 1/2) and third (2/3); no row has cat.
    assert figures["average_precision"] == close((1 + (1 / 2 + 2 / 3) / 2) / 2)


def test_the_threshold_decides_what_is_predicted():
    probabilities = torch.tensor([0.9, 0.5, 0.3, 0.1, 0.1])
    for threshold, chosen in ((0.2, ["ant", "bee", "cat"]), (0.5, ["ant", "bee"]), (0.95, [])):
        task = task_of(threshold=threshold)
        assert task.answer(probabilities)["prediction"] == chosen
        assert task.metric.metrics([probabilities], [chosen], 0.0)["exact_match"] == 1


def test_a_label_that_no_row_has_is_left_out_of_the_average_precision():
    probabilities = torch.tensor([[0.9, 0.2, 0.1, 0.1, 0.1], [0.1, 0.8, 0.1, 0.1, 0.1]])
    figures = task_of().metric.metrics(list(probabilities), [["ant"], ["bee"]], 0.0)
    assert figures["average_precision"] == figures["exact_match"] == figures["f1_micro"] == 1


def test_rows_without_labels_have_no_f1_and_all_of_them_are_exact():
    figures = task_of().metric.metrics(list(torch.full((2, K), 0.1)), [[], []], 0.0)
    assert figures["exact_match"] == 1
    assert all(math.isnan(figures[name]) for name in ("f1_micro", "f1_macro", "roc_auc"))


def test_a_row_with_an_unknown_label_only_counts_as_wrong():
    figures = task_of().metric.metrics(list(torch.full((2, K), 0.1)), [["yak"], ["zebra"]], 0.0)
    assert figures["exact_match"] == figures["f1_micro"] == figures["f1_macro"] == 0


# Answers and files


def test_each_label_has_a_probability_of_its_own():
    task, logits = task_of(), torch.randn(3, K)
    predictions = task.predict(None, logits, {})
    assert_same(torch.stack(predictions), 1 / (1 + (-logits).exp()))
    answer = task.answer(torch.tensor([0.9, 0.6, 0.1, 0.1, 0.1]))
    assert answer["prediction"] == ["ant", "bee"]
    fields = task.columns(torch.tensor([0.9, 0.6, 0.1, 0.1, 0.1]))
    assert fields == {
        "prediction": ["ant", "bee"],
        **{f"p({name})": close(p) for name, p in answer["probabilities"].items()},
    }


@pytest.mark.parametrize(
    ("values", "description", "constant"),
    [
        (VALUES, "always b", ["b"]),
        ([["a", "b"], ["b", "a"], ["c"], ["d"]], "always a, b", ["a", "b"]),
        ([[], ["a"], [], ["b"], []], "always no label", []),
    ],
)
def test_the_trivial_answer_has_the_usual_labels(tmp_path, values, description, constant):
    task = Multilabel()
    task.target.fit(values)
    task.save(tmp_path)
    restored = Multilabel().load(tmp_path)
    told, (prediction,) = restored.naive([{}])
    assert told == description and restored.answer(prediction)["prediction"] == constant
    assert task_of().naive([{}]) is None
    with pytest.raises(UserError, match="constant must be a list of labels"):
        task.target.load({"labels": ["a"], "constant": ["b"]})


def test_a_saved_task_is_restored(tmp_path):
    task = Multilabel(balance="inverse")
    task.target.fit(VALUES)
    task.save(tmp_path)
    assert vars(Multilabel().load(tmp_path).target) == {**vars(task.target), "balance": "none"}
    with pytest.raises(UserError, match="labels must be a list, got None"):
        Multilabel().target.load({"labels": None})


def test_eight_samples_are_overfitted():
    texts = [f"word{i} word{i * 5 % 8}" for i in range(8)]
    values = [[NAMES[bit] for bit in range(3) if i >> bit & 1] for i in range(8)]
    adapters = {"notes": TextAdapter(16, tokenizer=TokenizerOptions(kind="word")).fit(texts)}
    task = Multilabel(dropout=0.0)
    task.target.fit(values)
    model = build_model(task, adapters)
    batch = make_batch(task, adapters, {"notes": texts}, values)
    losses = overfit(task, model, batch)
    assert losses[0] > 0.4 and losses[-1] < 0.05
    assert [task.answer(p)["prediction"] for p in predict(task, model, batch)] == values


def test_whether_a_text_is_a_list_is_decided_for_the_whole_column():
    target = Multilabel().target
    notes = target.find_format([*["a|b", "c"] * 10, "[1, 2]"], [])
    assert notes == [
        "target: 1 of 21 texts look like lists, such as '[1, 2]': each is read like the other texts"
    ]
    assert target.read("[1, 2]", "", {}) == ["[1, 2]"]


def test_one_cell_does_not_turn_lists_of_flags_into_lists_of_names():
    cells = [*["[0, 1, 1]", "[1, 0, 0]"] * 10, "unknown"]
    assert infer(profile_of(cells))[0] == "multilabel"
    target = Multilabel().target
    target.find_format(cells, [])
    assert target.read("[0, 1, 1]", "", {}) == ["1", "2"]
    with pytest.raises(UserError, match="row 21: the target must be a list, got 'unknown'"):
        target.read("unknown", "row 21", {})
