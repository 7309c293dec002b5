"""Classification: labels, loss and metrics, compared with other libraries and by hand."""

import json
import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from helpers.tasks import (
    WEIGHTS,
    K,
    assert_same,
    build_model,
    make_batch,
    overfit,
    predict,
    smoothed_cross_entropy,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F

from dxn.core.errors import UserError
from dxn.tasks import IGNORED, Classify
from dxn.tokenize import TextAdapter, TokenizerOptions

NAMES = ("ant", "bee", "cat", "dog", "eel")
COLORS = ["red", "blue", "red", "green", "red", "blue", "red"]
examples = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**31)


def task_of(names=NAMES, *, weights=None, **options):
    task = Classify(**options)
    task.target.load({"labels": list(names), "class_weights": weights})
    return task


def certain(*names):
    """Probabilities that favor these classes."""
    return list(0.9 * torch.eye(K)[[NAMES.index(n) for n in names]] + 0.02)


def close(value):
    return pytest.approx(value, abs=1e-6)


# Targets


def test_encoding_is_undone_by_the_names():
    task = Classify()
    task.target.fit(COLORS)
    assert task.target.labels == ("blue", "green", "red")
    for value in COLORS:
        encoded = task.target.encode(value, {})
        assert encoded.dtype == torch.long and encoded.shape == ()
        assert task.target.labels[encoded] == value


def test_an_unknown_class_is_ignored_and_counted():
    task = Classify()
    task.target.fit(COLORS)
    assert task.target.encode("pink", {}) == IGNORED
    assert len(task.target.unknown(["red", "pink", "blue", "gray", "pink"])) == 3
    assert len(task.target.unknown(COLORS)) == 0


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["10", "9", "1", "2"], ("1", "2", "9", "10")),
        (["b", "10", "a", "-2.5", "9"], ("-2.5", "9", "10", "a", "b")),
        (["Zebra", "apple", "1e3", "20"], ("20", "1e3", "Zebra", "apple")),
        (["2", "nan", "10", "apple"], ("2", "10", "apple", "nan")),
        (["b", "inf", "a", "Infinity", "3"], ("3", "Infinity", "a", "b", "inf")),
        (["1.0", "1", "01"], ("01", "1", "1.0")),
    ],
)
def test_numbers_are_sorted_by_value_and_come_before_words(values, names):
    for order in (values, values[::-1], values[2:] + values[:2]):
        task = Classify()
        task.target.fit(order)
        assert task.target.labels == names


@settings(max_examples=40, deadline=None)
@given(
    st.sets(
        st.sampled_from(["nan", "NaN", "-nan", "b", "a", "Z", "3", "20", "1", "-7", "0.5"]),
        min_size=1,
    )
)
def test_names_that_are_no_numbers_come_last_even_nan(names):
    # NaN is neither less nor more than another number, so it would leave the order to chance.
    words = {name for name in names if name.strip("-").isalpha()}
    task = Classify()
    task.target.fit(list(names))
    assert task.target.labels == (*sorted(names - words, key=float), *sorted(words))


@examples
@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=53))
def test_balanced_weights_equal_those_of_scikit_learn(values):
    task = Classify(balance="inverse")
    task.target.fit(values)
    expected = compute_class_weight(
        "balanced", classes=np.array(task.target.labels), y=np.array(values)
    )
    np.testing.assert_allclose(task.target.class_weights, expected, rtol=1e-12)


@pytest.mark.parametrize("balance", ["root", "inverse"])
def test_balanced_weights_have_a_mean_of_one_over_the_samples(balance):
    task = Classify(balance=balance)
    task.target.fit(COLORS)
    weights = dict(zip(task.target.labels, task.target.class_weights, strict=True))
    assert sum(weights[value] for value in COLORS) == pytest.approx(len(COLORS), rel=1e-12)


def test_any_cell_is_a_class_name():
    assert Classify().target.read(3, "row 1", {}) == "3"
    assert Classify().target.read("a|b", "row 1", {}) == "a|b"


def test_a_description_counts_the_classes():
    assert Classify().target.describe(COLORS) == "3 classes (red 4, blue 2, green 1)"
    lines = Classify().target.describe(["two\nlines", "l" * 99])
    assert lines == f"2 classes (two lines 1, {'l' * 59}… 1)"
    many = Classify().target.describe([str(i) for i in range(20)])
    assert many.startswith("20 classes (0 1, 1 1") and many.endswith("and 8 more)")


# Loss


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weights", [None, list(WEIGHTS)])
def test_the_loss_is_the_written_out_cross_entropy(smoothing, weights):
    task = task_of(weights=weights, label_smoothing=smoothing)
    logits, target = 3 * torch.randn(7, K), torch.tensor([0, 4, 2, 1, 3, 3, 0])
    expected = smoothed_cross_entropy(
        logits, target, smoothing=smoothing, weights=weights or [1.0] * K
    )
    assert_same(task.loss(logits, {"target": target}).mean, expected)


def test_mixed_targets_mix_the_losses():
    task, logits = task_of(), torch.randn(2, K)
    target = torch.tensor([0, 4])
    mixed = task.space.mix(target, torch.tensor([1, 0]), 0.7)
    shares = 0.7 * F.one_hot(target, K) + 0.3 * F.one_hot(target.flip(0), K)
    assert_same(mixed, shares)
    own = task.loss(logits, {"target": target}).mean
    other = task.loss(logits, {"target": target.flip(0)}).mean
    assert_same(task.loss(logits, {"target": mixed}).mean, 0.7 * own + 0.3 * other)


def test_an_unknown_class_adds_nothing_to_the_loss():
    task, logits = task_of(), torch.randn(3, K)
    batch = {"target": torch.tensor([4, IGNORED, 2])}
    known = task.loss(logits[[0, 2]], {"target": torch.tensor([4, 2])}).mean
    assert_same(task.loss(logits, batch).mean, known)
    assert task.loss(logits, batch).weight == 2


def test_the_loss_is_computed_in_float32():
    task, logits = task_of(), torch.randn(3, K).bfloat16()
    target = torch.tensor([0, 1, 2])
    assert torch.equal(
        task.loss(logits, {"target": target}).mean,
        task.loss(logits.float(), {"target": target}).mean,
    )


# Metrics


@examples
@given(seeds, st.integers(1, 53), st.integers(2, K))
def test_metrics_equal_those_of_scikit_learn(seed, n, k):
    torch.manual_seed(seed)
    probabilities = torch.randn(n, k).softmax(1)
    true, predicted = torch.randint(k, (n,)).tolist(), probabilities.argmax(1).tolist()
    figures = task_of(NAMES[:k]).metric.metrics(list(probabilities), [NAMES[i] for i in true], 0.0)
    assert figures["accuracy"] == close(sklearn.metrics.accuracy_score(true, predicted))
    f1 = sklearn.metrics.f1_score(true, predicted, average="macro")
    assert figures["f1_macro"] == close(f1)


def test_an_unknown_true_class_counts_as_wrong_in_every_metric():
    truths = ["ant", "bee", "yak", "zebra"]
    figures = task_of().metric.metrics(certain("ant", "bee", "bee", "bee"), truths, 0.0)
    assert figures["accuracy"] == 0.5
    predicted = ["ant", "bee", "bee", "bee"]
    assert figures["f1_macro"] == close(
        sklearn.metrics.f1_score(truths, predicted, average="macro")
    )
    assert figures["f1:bee"] == close(0.5)
    assert figures["balanced_accuracy"] == close(0.5)
    assert figures["log_loss"] > 5


def test_without_a_known_true_class_nothing_is_correct():
    figures = task_of().metric.metrics(certain("ant", "bee"), ["yak", "zebra"], 0.0)
    assert figures["accuracy"] == figures["f1_macro"] == figures["balanced_accuracy"] == 0
    assert math.isnan(figures["roc_auc"])


def test_a_single_class_has_no_f1():
    figures = task_of(("ant",)).metric.metrics([torch.ones(1)] * 3, ["ant"] * 3, 0.0)
    assert figures["accuracy"] == 1 and "f1_macro" not in figures


# Answers and files


def test_probabilities_sum_to_one_and_the_answer_is_the_most_probable_class():
    task, logits = task_of(), torch.randn(7, K)
    predictions = task.predict(None, logits, {})
    assert_same(torch.stack(predictions), logits.exp() / logits.exp().sum(-1, keepdim=True))
    answer = task.answer(predictions[0])
    assert answer["prediction"] == NAMES[logits[0].argmax()]
    assert sum(answer["probabilities"].values()) == close(1)
    fields = task.columns(predictions[0])
    assert list(fields) == ["prediction", "confidence", *(f"p({name})" for name in NAMES)]
    assert fields["prediction"] == answer["prediction"]
    assert fields["confidence"] == close(max(answer["probabilities"].values()))
    assert list(fields.values())[2:] == [close(p) for p in answer["probabilities"].values()]


def test_of_many_classes_only_the_five_most_probable_ones_have_columns():
    names = [f"class {i}" for i in range(21)]
    task = task_of(names)
    fields = task.columns(torch.arange(21) / 210)
    best = [f"class {i}" for i in range(20, 15, -1)]
    assert [fields[f"top{i}"] for i in range(1, 6)] == best
    assert fields["p(top2)"] == close(19 / 210) and len(fields) == 12
    assert fields["prediction"] == "class 20" and fields["confidence"] == fields["p(top1)"]
    # The fifth most probable class is correct, the sixth is not.
    figures = task.metric.metrics(
        [torch.arange(21) / 210] * 3, ["class 16", "class 15", "yak"], 0.0
    )
    assert figures["accuracy_top5"] == close(1 / 3) and figures["accuracy"] == 0


def test_the_trivial_answer_is_the_most_frequent_class(tmp_path):
    task = Classify()
    task.target.fit(COLORS)
    task.save(tmp_path)
    description, (prediction,) = Classify().load(tmp_path).naive([{}])
    assert description == "always red" and task.answer(prediction)["prediction"] == "red"
    assert task.metric.metrics([prediction] * 7, COLORS, math.nan)["accuracy"] == close(4 / 7)
    assert task_of().naive([{}]) is None  # of a model that was saved without frequencies


@pytest.mark.parametrize("balance", ["none", "root"])
def test_a_saved_task_is_restored(tmp_path, balance):
    task = Classify(balance=balance)
    task.target.fit(COLORS)
    task.save(tmp_path)
    assert json.loads((tmp_path / "labels.json").read_text())["task"] == "classify"
    assert vars(Classify().load(tmp_path).target) == {**vars(task.target), "balance": "none"}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "labels is missing"),
        ({"labels": "red"}, "labels must be a list, got 'red'"),
        ({"labels": ["red", 3]}, "labels.1 must be a text, got 3"),
        ({"labels": [["red"]]}, "labels.0 must be a text, got"),
        ({"labels": {"red": 0}}, "labels must be a list, got"),
        ({"labels": []}, "labels must have at least 1 items"),
        ({"labels": ["red", "red"]}, "labels must be distinct"),
        ({"labels": ["red"], "class_weights": ["x"]}, "class_weights.0 must be a number"),
        ({"labels": ["red"], "class_weights": 1.0}, "class_weights must be a list"),
        ({"labels": ["red"], "class_weights": [float("nan")]}, "must be a finite number"),
        ({"labels": ["red"], "class_weights": [1, 2]}, "2 class_weights for 1 labels"),
        ({"labels": ["red"], "frequencies": [0.5, 0.5]}, "2 frequencies for 1 labels"),
        ({"labels": ["red"], "frequencies": ["x"]}, "frequencies.0 must be a number"),
        ({"labels": ["red"], "frequencies": "x"}, "frequencies must be a list"),
    ],
)
def test_malformed_state_is_refused(state, message):
    with pytest.raises(UserError, match=message):
        Classify().target.load(state)


# Learning


def test_eight_samples_are_overfitted():
    texts = [f"word{i} word{i * 5 % 8}" for i in range(8)]
    values = [NAMES[i % 3] for i in range(8)]
    adapters = {"notes": TextAdapter(16, tokenizer=TokenizerOptions(kind="word")).fit(texts)}
    task = Classify(dropout=0.0)
    task.target.bind(adapters)
    task.target.fit(values)
    model = build_model(task, adapters)
    batch = make_batch(task, adapters, {"notes": texts}, values)
    losses = overfit(task, model, batch)
    assert losses[0] > 0.5 and losses[-1] < 0.05
    assert [task.answer(p)["prediction"] for p in predict(task, model, batch)] == values
