"""Forecasts have a ridge regression on the past values beside the transformer."""

import csv
import json
import math
import random

import numpy as np
import pytest
import torch
from helpers.data import write_table
from helpers.runs import SMALL, metrics_of, train

import dxn
from dxn.cli import main
from dxn.stacking.fit import fit_mix

HORIZON, CONTEXT, STEPS = 4, 24, 220
# Far too few steps to learn anything, so that the baseline is the better model.
OPTIONS = [*SMALL, "trainer.epochs=1", "optimizer.lr=1e-5", "preset=plain", "report=false"]
WINDOWS = ["data=timeline", f"data.horizon={HORIZON}", f"data.context={CONTEXT}", "data.season=7"]
BASELINE, NAIVE = "test/mase[baseline alone]", "test/mase[seasonal naive (7)]"


def waves(count=STEPS, *, jump=0.0):
    """Two channels, each a sum of two waves and so a linear function of its past values.

    Their last fifth, which is later than the training part, is higher by a jump.
    """
    rows = []
    for i in range(count):
        level = jump if i >= 0.8 * count else 0.0
        first = math.sin(2 * math.pi * i / 11) + 0.5 * math.cos(2 * math.pi * i / 4.3)
        second = math.sin(2 * math.pi * i / 8.5) - 0.3 * math.sin(2 * math.pi * i / 3.1)
        rows.append({"step": i, "a": 50 + first + level, "b": 9 * second + level})
    return rows


def forecast(folder, rows, *options):
    """The metrics of a training on these rows."""
    path = write_table(folder / "waves.csv", rows)
    return train(folder / "run", *WINDOWS, f"data.path={path}", *OPTIONS, *options)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("waves")
    forecast(folder, waves(), "target=[a,b]")
    return folder


def test_the_baseline_learns_a_linear_recurrence(run):
    metrics = metrics_of(run / "run")
    assert "ridge regression" in metrics["baseline"]
    assert metrics[BASELINE] < 0.02 < 0.5 < metrics[NAIVE]
    assert metrics["test/mase"] < 0.1
    assert metrics["answers"] == "mixture"


def test_a_jump_between_training_and_test_changes_no_forecast_after_it(tmp_path, run):
    figures = []
    for offset in (0.0, 1e6):
        rows = [{**row, "a": row["a"] + offset, "b": row["b"] + offset} for row in waves()[-60:]]
        table = write_table(tmp_path / f"{offset:g}.csv", rows)
        output = tmp_path / f"{offset:g}"
        assert main(["evaluate", f"run={run / 'run'}", table, f"output={output}"]) == 0
        figures.append(metrics_of(output)["input/mae"])
    # Numbers of a million have an error of 0.03 in float32.
    assert figures[1] == pytest.approx(figures[0], abs=0.2)
    metrics = forecast(tmp_path, waves(jump=40.0), "target=a")
    assert metrics["test/mase"] < metrics[NAIVE]


def test_unknown_values_and_channels_that_are_not_forecast_are_no_problem(tmp_path):
    rand = random.Random(0)
    rows = [{**row, "other": row["step"] % 5} for row in waves()]
    for row in rows:
        if rand.random() < 0.1:
            row["a"] = None
    metrics = forecast(tmp_path, rows, "target=a")
    assert metrics[BASELINE] < 0.5 * metrics[NAIVE]


def test_a_saved_model_predicts_what_the_training_evaluated(run, tmp_path):
    # The last test window starts HORIZON steps before the end of the table.
    with (run / "run" / "predictions.csv").open() as file:
        last = list(csv.DictReader(file))[-HORIZON:]
    past = [[row["a"], row["b"]] for row in waves()[-HORIZON - CONTEXT : -HORIZON]]
    answer = dxn.load(run / "run").predict(series=past)
    for step, row in enumerate(last):
        expected = [float(row["prediction_a"]), float(row["prediction_b"])]
        assert answer["prediction"][step] == pytest.approx(expected, rel=1e-3, abs=1e-2)


@pytest.mark.exhaustive
def test_an_exported_forecast_contains_the_baseline(run, tmp_path):
    # The export compares its graph with the model, and fails if they differ.
    output = tmp_path / "export"
    assert main(["export", f"run={run / 'run'}", f"output={output}"]) == 0
    about = json.loads((output / "preprocess.json").read_text())
    assert "quantiles" in json.dumps(about)
    with np.load(output / "example.npz") as file:
        assert np.isfinite(file["quantiles"]).all()


def test_few_windows_and_constant_values_have_a_forecast(tmp_path):
    rand = random.Random(0)
    rows = [{"step": i, "a": 3.0 if i < 30 else rand.gauss(3, 1)} for i in range(60)]
    metrics = forecast(tmp_path, rows, "target=a", "data.horizon=6")
    assert math.isfinite(metrics["test/mae"])
    # A single validation window does not shrink forecasts.
    assert sum(metrics["mix"]) == pytest.approx(1)


def test_the_factors_of_a_forecast_do_not_enlarge_it():
    generator = torch.Generator().manual_seed(0)
    target, noise = torch.randn(2, 200, 3, generator=generator)

    def loss(output):
        return (output - target).square().mean()

    # Both are too small on these rows.
    parts = 0.7 * target + 0.1 * noise, 0.8 * target - 0.1 * noise
    assert sum(fit_mix(*parts, loss, are_classes=False)) > 1.2
    assert sum(fit_mix(*parts, loss, are_classes=False, are_forecasts=True)) == pytest.approx(1)


def test_a_few_windows_do_not_shrink_a_forecast():
    generator = torch.Generator().manual_seed(0)
    target, noise = torch.randn(2, 30, 3, generator=generator)

    def loss(output):
        return (output - target).square().mean()

    # The model knows nothing, and the baseline is too large on these rows.
    parts, options = (noise, 1.2 * target), {"are_classes": False, "are_forecasts": True}
    assert sum(fit_mix(*parts, loss, **options)) == pytest.approx(1 / 1.2, abs=0.02)
    model, baseline = fit_mix(*parts, loss, **options, are_few=True)
    assert model + baseline == pytest.approx(1)
    assert loss(model * parts[0] + baseline * parts[1]) <= loss(parts[1])
