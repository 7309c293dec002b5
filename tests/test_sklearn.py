"""The estimators of scikit-learn: a part of `check_estimator`, which takes minutes."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_checks

import dxn
from dxn.sklearn import Classifier, Regressor

OPTIONS = {
    "preset": "plain",
    "baseline": "none",
    "dim": 16,
    "backbone": {"depth": 1, "num_heads": 2},
    "trainer.device": "cpu",
    "trainer.precision": "float32",
    "loader.num_workers": 0,
    "batch_size": 16,
    "optimizer.lr": 0.01,
}
# Without a training.
FAST = (
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_estimators_unfitted",
    "check_mixin_order",
    "check_parameters_default_constructible",
    "check_estimators_empty_data_messages",
    "check_estimators_nan_inf",
    "check_requires_y_none",
    "check_complex_data",
    "check_supervised_y_no_nan",
)


@pytest.fixture(scope="module")
def rows():
    rand = np.random.default_rng(0)
    return rand.normal(size=(61, 3))


@pytest.fixture(scope="module")
def classifier(rows):
    return Classifier(epochs=6, options=OPTIONS, random_state=0).fit(rows, rows[:, 0] > 0)


@pytest.mark.parametrize("estimator", [Classifier(), Regressor()], ids=["classifier", "regressor"])
@pytest.mark.parametrize("check", [name for name in FAST if name != "check_estimators_nan_inf"])
def test_checks_of_scikit_learn_pass(estimator, check):
    function = getattr(estimator_checks, check)
    function(type(estimator).__name__, clone(estimator))


def test_a_classifier_learns_from_an_array_and_keeps_the_type_of_its_classes(classifier, rows):
    assert classifier.score(rows, rows[:, 0] > 0) > 0.8
    assert classifier.classes_.dtype == bool
    probabilities = classifier.predict_proba(rows)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    with pytest.raises(ValueError, match="2 features"):
        classifier.predict(rows[:, :2])


def test_a_fitted_estimator_survives_pickle_with_equal_predictions(classifier, rows):
    copy = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(copy.predict_proba(rows), classifier.predict_proba(rows))
    with pytest.raises(NotFittedError):
        clone(classifier).predict(rows)


def test_a_series_or_list_of_texts_is_one_column():
    texts = [f"{'good' if i % 2 else 'poor'} film {i}" for i in range(60)]
    labels = [i % 2 for i in range(60)]
    model = Classifier(epochs=6, options=OPTIONS, random_state=0)
    series = pd.Series(texts, name="review")
    assert model.fit(series, labels).score(series, labels) > 0.9
    assert model.fit(texts, labels).score(np.array(texts), labels) > 0.9


def test_a_regressor_takes_a_data_frame_with_texts_and_missing_cells(rows):
    frame = pd.DataFrame({"size": rows[:, 0], "text": ["big", "small"] * 30 + [None]})
    frame.loc[3, "size"] = np.nan
    before = frame.copy()
    regressor = Regressor(epochs=1, options=OPTIONS, random_state=0).fit(frame, rows[:, 0])
    assert regressor.predict(frame).shape == (61,)
    pd.testing.assert_frame_equal(frame, before)
    assert list(regressor.feature_names_in_) == ["size", "text"]


def test_a_model_is_loaded_with_the_trust_of_its_training(rows, monkeypatch):
    calls = []
    loaded = dxn.load

    def load(*arguments, **options):
        calls.append(options)
        return loaded(*arguments, **options)

    monkeypatch.setattr(dxn, "load", load)
    options = {**OPTIONS, "trust": ["json"]}
    regressor = Regressor(epochs=1, options=options, random_state=0).fit(rows, rows[:, 0])
    pickle.loads(pickle.dumps(regressor))
    assert calls == [{"dtype": "float32", "trust": ["json"]}] * 2


def test_a_failed_fit_keeps_the_model_and_its_classes(classifier, rows, monkeypatch):
    def fail(*_, **__):
        raise ValueError("no data")

    copy = pickle.loads(pickle.dumps(classifier))
    monkeypatch.setattr(dxn, "train", fail)
    with pytest.raises(ValueError, match="no data"):
        copy.fit(rows[:, :2], np.arange(61) % 3)
    assert copy.classes_.tolist() == [False, True]
    assert copy.predict(rows).dtype == bool


def test_all_rows_and_columns_are_used(monkeypatch):
    count = 60
    frame = pd.DataFrame(
        {
            "split": ["train", "test", "validation"] * (count // 3),
            "row": range(count),  # numbers of the rows
            "same": 1.0,
            "made": ["x", "y"] * (count // 2),  # determines the class
            "name": [f"n{i % 37}" for i in range(count)],
        }
    )
    labels = np.array(["a", "b"] * (count // 2))
    labels[7] = "c"  # a single row
    frame.loc[3] = None
    trained = {}
    train = dxn.train
    monkeypatch.setattr(dxn, "train", lambda data, **o: trained.update(data) or train(data, **o))
    model = Classifier(epochs=1, options=OPTIONS, random_state=0).fit(frame, labels)
    assert sorted(model.model_.columns.values()) == sorted(frame.columns)
    rows = pd.concat(trained.values()).sort_index()
    assert rows.index.tolist() == [i for i in range(count) if i != 3]
    assert "class 2" in set(trained["train"]["target"])
    probabilities = model.predict_proba(frame[2:4])
    assert probabilities[1] == pytest.approx([30 / count, 29 / count, 1 / count])
    with pytest.raises(ValueError, match="all cells of X are missing"):
        Classifier(options=OPTIONS).fit(frame[["name"]].assign(name=None), labels)


def test_one_class_and_wrong_lengths_are_refused(rows):
    with pytest.raises(ValueError, match="1 class"):
        Classifier().fit(rows, np.zeros(61))
    with pytest.raises(ValueError, match="61 rows, but y has 3"):
        Regressor().fit(pd.DataFrame(rows), [1, 2, 3])
