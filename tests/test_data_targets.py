"""Targets: raw values to tensors and back, and the weights that balance them."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight

from dxn.data.targets import IGNORED, Target

CLASSES = ["red", "blue", "red", "green", "red", "blue", "red"]
LABELS = [["a", "b"], ["b"], [], ["c", "b"], ["a", "b"]]
NUMBERS = [2.5, -1.0, 7.25, 4.0, 11.0]
TAGS = [["N", "V"], ["N"], ["V", "D", "N"]]
KINDS = {"class": CLASSES, "labels": LABELS, "number": NUMBERS, "tags": TAGS}


def decode(target, encoded):
    """The raw value of what encode gave, from the names alone."""
    if target.kind == "number":
        return encoded.item()
    if target.kind == "class":
        return target.names[encoded]
    indices = encoded.nonzero().flatten() if target.kind == "labels" else encoded
    return [target.names[i] for i in indices]


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_encoding_give_back_the_raw_value(kind):
    target = Target.fit(kind, KINDS[kind])
    for value in KINDS[kind]:
        assert decode(target, target.encode(value)) == (sorted(value) if kind == "labels" else value)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("class", "green", torch.tensor(1)),
        ("labels", ["c", "b"], torch.tensor([0.0, 1.0, 1.0])),
        ("labels", [], torch.zeros(3)),
        ("number", 2.5, torch.tensor(2.5)),
        ("tags", ["V", "D", "N", "N"], torch.tensor([2, 0, 1, 1])),
        ("tags", [], torch.zeros(0, dtype=torch.long)),
    ],
)
def test_each_kind_has_its_shape_and_type(kind, value, expected):
    encoded = Target.fit(kind, KINDS[kind]).encode(value)
    assert encoded.dtype == expected.dtype and torch.equal(encoded, expected)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [("class", "pink", IGNORED), ("labels", ["z", "b"], [0.0, 1.0, 0.0]), ("tags", ["N", "?"], [1, IGNORED])],
)
def test_a_name_that_training_never_saw_is_ignored(kind, value, expected):
    assert Target.fit(kind, KINDS[kind]).encode(value).tolist() == expected


@pytest.mark.parametrize(
    ("kind", "values", "count"),
    [
        ("class", ["red", "pink", "blue", "grey", "pink"], 3),
        ("labels", [["a"], ["a", "z"], [], ["y", "z"]], 2),
        ("tags", [["N"], ["?", "!"]], 1),
        ("number", [1e9, -5.0], 0),
    ],
)
def test_rows_with_unknown_names_are_counted(kind, values, count):
    target = Target.fit(kind, KINDS[kind])
    assert target.unknown(values) == count and target.unknown(KINDS[kind]) == 0


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
def test_numbers_stand_by_value_before_words_by_letter(values, names):
    for order in (values, values[::-1], values[2:] + values[:2]):
        assert Target.fit("class", order).names == names


@settings(max_examples=40, deadline=None)
@given(st.sets(st.sampled_from(["nan", "NaN", "-nan", "b", "a", "Z", "3", "20", "1", "-7", "0.5"])))
def test_names_that_are_no_numbers_stand_last_even_nan(names):
    # Not a number is neither less nor more than another, so that it would leave the order to chance.
    words = {name for name in names if name.strip("-").isalpha()}
    assert Target.fit("class", list(names)).names == (*sorted(names - words, key=float), *sorted(words))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=23))
def test_mean_and_deviation_are_those_of_numpy(values):
    target = Target.fit("number", values)
    assert target.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-9)
    assert target.std == pytest.approx(max(np.std(values), 1e-12), rel=1e-6, abs=1e-9)


def test_numbers_that_are_all_the_same_have_a_deviation_one_can_divide_by():
    assert Target.fit("number", [7.0] * 5).std > 0 and Target.fit("number", [7.0]).std > 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=53))
def test_balanced_weights_of_classes_and_tags_are_those_of_scikit_learn(values):
    target = Target.fit("class", values)
    expected = compute_class_weight("balanced", classes=np.array(target.names), y=np.array(values))
    np.testing.assert_allclose(target.balanced_weights(values), expected, rtol=1e-12)
    tags = [values[:5], values[5:]]
    np.testing.assert_allclose(Target.fit("tags", tags).balanced_weights(tags), expected, rtol=1e-12)


def test_balanced_weights_have_a_mean_of_one_over_the_samples():
    target = Target.fit("class", CLASSES)
    weights = dict(zip(target.names, target.balanced_weights(CLASSES), strict=True))
    assert sum(weights[value] for value in CLASSES) == pytest.approx(len(CLASSES), rel=1e-12)


def test_the_weight_of_a_label_is_its_negatives_over_its_positives():
    # As BCEWithLogitsLoss takes pos_weight: of 5 rows a has 2, b 4, c 1.
    assert Target.fit("labels", LABELS).balanced_weights(LABELS) == [3 / 2, 1 / 4, 4 / 1]


@pytest.mark.parametrize("kind", KINDS)
def test_json_gives_back_the_target(kind):
    target = Target.fit(kind, KINDS[kind])
    assert Target.from_json(json.loads(json.dumps(target.to_json()))) == target
