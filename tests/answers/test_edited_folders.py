"""A model folder whose baseline does not fit its model is refused when it is loaded."""

import math

import pytest
import torch
from helpers.data import write_table
from helpers.runs import SMALL, changed_stack, train

import dxn
from dxn.core.errors import UserError
from dxn.stacking.past import ForecastColumns

HORIZON, CONTEXT, CHANNELS, QUANTILES = 3, 12, 2, 5
OPTIONS = [*SMALL, "trainer.epochs=1", "optimizer.lr=1e-5", "preset=plain", "report=false"]
WINDOWS = ["data=timeline", f"data.horizon={HORIZON}", f"data.context={CONTEXT}", "data.season=7"]


@pytest.fixture(scope="module")
def forecast(tmp_path_factory):
    """A run whose forecasts a regression on the past values makes."""
    folder = tmp_path_factory.mktemp("waves")
    rows = [{"step": i, "a": math.sin(i / 2), "b": math.cos(i / 3)} for i in range(120)]
    path = write_table(folder / "waves.csv", rows)
    train(folder / "run", *WINDOWS, f"data.path={path}", "target=[a,b]", *OPTIONS)
    assert dxn.load(folder / "run").network.baseline is not None
    return folder / "run"


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A run with a linear baseline of one number."""
    folder = tmp_path_factory.mktemp("numbers")
    rows = [{"size": i % 17, "price": 3.0 * (i % 17) + i % 2 / 7} for i in range(120)]
    path = write_table(folder / "numbers.csv", rows)
    train(folder / "run", path, "target=price", *OPTIONS)
    assert dxn.load(folder / "run").network.baseline is not None
    return folder / "run"


def regression(entry, tensors, *, input="series", steps=CONTEXT, shape=None):
    """Replace the baseline of a model folder by a regression on past values of this shape."""
    shape = shape or (HORIZON, CHANNELS, QUANTILES)
    baseline = {"about": "regression", "input": input, "shape": [steps, *shape]}
    entry["baseline"] = {**baseline, "columns": ForecastColumns()._asdict()}
    tensors.clear()
    tensors["weight"] = torch.zeros(steps + 1, shape[0])
    tensors["offsets"] = torch.zeros(shape)


def linear(entry, tensors, *, input="size", outputs=1, encoders=()):
    """Replace the baseline of a model folder by a linear model of one number."""
    counts = {"num_landmarks": 0, "num_trees": 0, "num_nodes": 0}
    vectors = {f"#encoder {name}": 3 for name in encoders}
    sizes = {"dense": {input: 1}, "linear": vectors, "counted": {}, "num_outputs": outputs}
    entry["baseline"] = {"about": "linear", **sizes, **counts}
    tensors.clear()
    tensors["bias"] = torch.zeros(outputs)
    for name, size in {"mean": (2,), "scale": (2,), "gamma": (), "landmarks": (0, 2)}.items():
        tensors[f"dense.{name}"] = torch.ones(size)
    tensors["dense.weight"] = torch.zeros(2, outputs)
    width = 4 * len(encoders)  # of the vectors, and whether there are some
    sizes = {"mean": (width,), "scale": (width,), "gamma": (), "landmarks": (0, width)}
    for name, size in {**sizes, "weight": (width, outputs)}.items() if width else ():
        tensors[f"linear.{name}"] = torch.ones(size)


HEAD = r"must have the output shape \(3, 2, 5\) of the head, got "


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input": "other"}, "names the input 'other', which the model does not have"),
        ({"steps": CONTEXT + 1}, "must read at most 12 past values of series, got 13"),
        ({"shape": (HORIZON + 1, CHANNELS, QUANTILES)}, HEAD + r"\(4, 2, 5\)"),
        ({"shape": (HORIZON, 1, QUANTILES)}, HEAD + r"\(3, 1, 5\)"),
        ({"shape": (HORIZON, CHANNELS, 1)}, HEAD + r"\(3, 2, 1\)"),
    ],
)
def test_a_regression_that_does_not_fit_the_forecast_is_refused(
    changes, message, forecast, tmp_path
):
    folder = changed_stack(forecast, tmp_path, lambda *parts: regression(*parts, **changes))
    with pytest.raises(UserError, match=message):
        dxn.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outputs": 2}, r"must have the output shape \(1,\) of the head, got \(2,\)"),
        ({"input": "weight"}, "names the input 'weight', which the model does not have"),
        ({"encoders": ["size"]}, "reads the vectors of an encoder of size, which has none"),
    ],
)
def test_a_linear_baseline_that_does_not_fit_the_numbers_is_refused(
    changes, message, numbers, tmp_path
):
    folder = changed_stack(numbers, tmp_path, lambda *parts: linear(*parts, **changes))
    with pytest.raises(UserError, match=message):
        dxn.load(folder)


def test_baselines_of_the_other_kind_are_refused(forecast, numbers, tmp_path):
    with pytest.raises(UserError, match=r"got \(1,\)"):
        folder = changed_stack(forecast, tmp_path / "a", lambda *p: linear(*p, input="series"))
        dxn.load(folder)
    with pytest.raises(UserError, match=r"got \(3, 2, 5\)"):
        folder = changed_stack(numbers, tmp_path / "b", lambda *p: regression(*p, input="size"))
        dxn.load(folder)


def test_a_fitting_baseline_is_loaded(forecast, numbers, tmp_path):
    series = dxn.load(changed_stack(forecast, tmp_path / "a", regression))
    assert series.predict([[[float(i), 1.0] for i in range(30)]])
    number = dxn.load(changed_stack(numbers, tmp_path / "b", linear))
    assert number.predict([{"size": 3}])
