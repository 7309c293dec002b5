"""Regression: units, loss and metrics, compared with other libraries and by hand."""

import math

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
from helpers.data import write_table
from helpers.tasks import D, assert_same, build_model, make_batch, overfit, predict
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.cli import main
from dxn.core.errors import UserError
from dxn.tasks import Regress
from dxn.tokenize import TextAdapter, TokenizerOptions

examples = settings(max_examples=30, deadline=None)


def task_of(mean=100.0, std=20.0):
    task = Regress()
    task.target.load({"mean": mean, "std": std})
    return task


def close(value):
    return pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(("cell", "number"), [("3.5", 3.5), (" 7 ", 7.0), (2, 2.0), ("-1e3", -1e3)])
def test_cells_are_numbers(cell, number):
    assert Regress().target.read(cell, "row 1", {}) == number


@pytest.mark.parametrize("cells", [[True, False], ["true", "false"], ["red", "blue"]])
def test_targets_without_a_number_are_refused_with_the_head_for_classes(cells):
    target = Regress().target
    target.find_format(cells, ["row 1", "row 2"])
    with pytest.raises(UserError, match=r"no target is a number.*head=classify.*, got"):
        target.read(cells[0], "row 1", {})


@pytest.mark.parametrize("cell", ["red", "", "nan", "inf", [1.0], float("nan")])
def test_a_cell_that_is_no_finite_number_is_refused(cell):
    with pytest.raises(UserError, match=r"t\.csv:3: the target must be a number, got"):
        Regress().target.read(cell, "t.csv:3", {})


@examples
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=23))
def test_mean_and_standard_deviation_are_those_of_numpy(values):
    task = Regress()
    task.target.fit(values)
    assert task.target.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-9)
    assert task.target.std == pytest.approx(max(np.std(values), 1e-12), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("values", [[7.0] * 5, [7.0]])
def test_equal_numbers_have_a_standard_deviation_to_divide_by(values):
    task = Regress()
    task.target.fit(values)
    assert task.target.std > 0


def test_the_loss_is_the_squared_error_in_standard_deviations():
    output = torch.tensor([[0.5], [-1.0], [2.0]])
    # 110, 80 and 140 are 0.5, -1 and 2 deviations from 100; the last prediction is one too low.
    task = task_of()
    target = task.target.collate([task.target.encode(value, {}) for value in (110.0, 80.0, 160.0)])
    assert_same(task.loss(output, {"target": target}).mean, 1 / 3)


def test_a_prediction_is_in_the_unit_of_the_numbers():
    task, output = task_of(), torch.randn(5, 1)
    predicted = torch.stack(task.predict(None, output, {}))
    assert_same(predicted, 100 + 20 * output[:, 0], atol=1e-5)
    target = task.target.collate([task.target.encode(value, {}) for value in predicted])
    assert_same(task.loss(output, {"target": target}).mean, 0.0, atol=1e-12)
    assert task.answer(predicted[0]) == {"prediction": pytest.approx(float(predicted[0]))}
    assert task.columns(torch.tensor(3.5)) == {"prediction": 3.5}
    assert task.columns(torch.tensor(3.5), 3.0) == {"prediction": 3.5, "error": 0.5}
    assert task.make_head(2, D, {})(None, torch.randn(5, D), {}).shape == (5, 1)


def test_mixed_numbers_are_between_both():
    mixed = task_of().space.mix(torch.tensor([0.0, 8.0]), torch.tensor([1, 0]), 0.75)
    assert mixed.tolist() == [2.0, 6.0]


@examples
@given(st.integers(0, 2**31), st.integers(2, 53), st.floats(-100, 100))
def test_metrics_equal_those_of_scikit_learn(seed, n, middle):
    torch.manual_seed(seed)
    true, predicted = middle + 10 * torch.randn(n), middle + 10 * torch.randn(n)
    figures = Regress().metric.metrics(list(predicted), true.tolist(), 0.0)
    expected = {
        "rmse": sklearn.metrics.root_mean_squared_error(true, predicted),
        "mae": sklearn.metrics.mean_absolute_error(true, predicted),
        "r2": sklearn.metrics.r2_score(true, predicted),
        "median_absolute_error": sklearn.metrics.median_absolute_error(true, predicted),
        "spearman": scipy.stats.spearmanr(true, predicted).statistic,
    }
    assert figures == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_metrics_by_hand():
    # Errors 0, 3 and -4: squares sum to 25; the true 1, 2, 6 lie -2, -1 and 3 from 3: 14.
    figures = Regress().metric.metrics(list(torch.tensor([1.0, 5.0, 2.0])), [1, 2, 6], 0.0)
    assert figures == {
        "rmse": close((25 / 3) ** 0.5),
        "mae": close(7 / 3),
        "r2": close(1 - 25 / 14),
        "median_absolute_error": close(3),
        "spearman": close(0.5),  # ranks 1, 3, 2 and 1, 2, 3
    }


def test_the_trivial_answer_is_the_mean():
    task = Regress()
    task.target.fit([1.0, 2.0, 6.0])
    description, (prediction,) = task.naive([{}])
    assert description == "always the mean" and float(prediction) == 3.0
    assert task.metric.metrics([prediction] * 3, [1.0, 2.0, 6.0], math.nan)["r2"] == close(0)


def test_without_variance_there_is_no_r2():
    figures = Regress().metric.metrics(list(torch.tensor([1.0, 2.0])), [5.0, 5.0], 0.0)
    assert math.isnan(figures["r2"]) and figures["mae"] == close(3.5)


def test_a_description_gives_the_range():
    assert Regress().target.describe([3.0, -1.5, 10.0]) == "-1.5 to 10, median 3"
    assert not Regress().target.unknown([1e9])


def test_a_saved_task_is_restored(tmp_path):
    task = Regress()
    task.target.fit([2.5, -1.0, 7.25])
    task.save(tmp_path)
    restored = Regress().load(tmp_path)
    assert (restored.target.mean, restored.target.std) == (task.target.mean, task.target.std)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "mean is missing; std is missing"),
        ({"mean": 1.0}, "std is missing"),
        ({"mean": "1", "std": 1.0}, "mean must be a number, got '1'"),
        ({"mean": 0.0, "std": 0}, "std must be greater than 0"),
        ({"mean": 0.0, "std": -1.0}, "std must be greater than 0"),
        ({"mean": True, "std": 1.0}, "mean must be a number, got True"),
        ({"mean": float("nan"), "std": 1.0}, "mean must be a finite number"),
        ({"mean": 0.0, "std": float("inf")}, "std must be a finite number"),
        ({"mean": 0.0, "std": 1e300}, r"std must be at most 1e\+37, got 1e\+300"),
        ({"mean": 0.0, "std": 1.0, "decimal": ";"}, "decimal must be one of '.' or ','"),
        ({"mean": 0.0, "std": 1.0, "unit": 3}, "unit must be a text, got 3"),
    ],
)
def test_malformed_state_is_refused(state, message):
    with pytest.raises(UserError, match=message):
        Regress().target.load(state)


def test_eight_samples_are_overfitted():
    texts = [f"word{i} word{i * 5 % 8}" for i in range(8)]
    values = [7.0, -3.0, 11.0, 2.0, -5.0, 13.0, 17.0, 0.0]
    adapters = {"notes": TextAdapter(16, tokenizer=TokenizerOptions(kind="word")).fit(texts)}
    task = Regress(dropout=0.0)
    task.target.fit(values)
    model = build_model(task, adapters)
    batch = make_batch(task, adapters, {"notes": texts}, values)
    losses = overfit(task, model, batch, goal=1e-3)
    assert losses[0] > 0.4 and losses[-1] < 1e-3
    assert_same(torch.stack(predict(task, model, batch)), values, atol=1.0)


def test_a_target_that_a_model_folder_cannot_hold_is_refused_before_the_training(tmp_path, capsys):
    rows = [{"text": f"word{i % 5}", "y": f"{i}e38"} for i in range(40)]
    write_table(tmp_path / "t.csv", rows)
    assert main(["train", str(tmp_path / "t.csv"), "target=y", f"run={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert "the target must be from -1e+37 to 1e+37, got '1e38'; use a larger unit" in error
    assert not (tmp_path / "run" / "model").exists()
