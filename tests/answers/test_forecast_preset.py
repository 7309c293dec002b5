"""Forecasts of many windows have options of their own, and channels that share an output layer."""

import math

import pytest
import torch
import yaml
from helpers.data import write_table
from helpers.runs import SMALL, train

import dxn
from dxn.cli import main

HORIZON, CONTEXT = 3, 32
WINDOWS = ["data=timeline", f"data.horizon={HORIZON}", f"data.context={CONTEXT}", "target=[a,b]"]
OPTIONS = [*SMALL, "trainer.epochs=1", "baseline=none", "report=false"]


def waves(folder, count):
    rows = []
    for i in range(count):
        first = math.sin(2 * math.pi * i / 12)
        rows.append(
            {"step": i, "a": 50 + first, "b": 9 * math.cos(2 * math.pi * i / 7), "c": i % 5}
        )
    return write_table(folder / "waves.csv", rows)


def config_of(folder):
    return yaml.safe_load((folder / ".hydra" / "config.yaml").read_text())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forecast")
    table = waves(folder, 2700)
    train(folder / "run", f"data.path={table}", *WINDOWS, *OPTIONS, "batch_size=256")
    return folder / "run"


def test_the_preset_chooses_options_for_many_windows(run):
    config = config_of(run)
    assert config["backbone"]["norm"]["final_norm"] is False
    assert config["adapters"]["series"]["channels"] == "independent"
    assert config["trainer"]["batch_size"] == 256  # the user's


def test_few_windows_and_other_targets_keep_the_options(tmp_path):
    table = waves(tmp_path, 300)
    train(tmp_path / "run", f"data.path={table}", *WINDOWS, *OPTIONS)
    config = config_of(tmp_path / "run")
    assert config["backbone"]["norm"]["final_norm"] is True
    assert dxn.load(tmp_path / "run").model.head.season == 12
    assert config["adapters"]["series"]["channels"] == "joint"


def test_channels_with_tokens_of_their_own_share_the_output_layer(run):
    model = dxn.load(run)
    assert model.model.head.season == 0  # the season is learned
    series = torch.rand(CONTEXT, 3)
    answer = model.predict(series=series.numpy())
    assert torch.tensor(answer["prediction"]).shape == (HORIZON, 2)
    # The outputs of one channel: five quantiles of each step.
    assert model.model.head.out.out_features == HORIZON * 5
    # The forecasts of a channel depend on the other channels only through the attention.
    shifted = series.clone()
    shifted[:, 1] += 100
    moved = model.predict(series=shifted.numpy())["prediction"]
    first, second = zip(*moved, strict=True)
    before = list(zip(*answer["prediction"], strict=True))
    assert list(first) == pytest.approx(list(before[0]), rel=1e-4)
    assert list(second) == pytest.approx([value + 100 for value in before[1]], rel=1e-4)


def test_such_a_forecast_is_exported(run, tmp_path):
    assert main(["export", f"run={run}", "format=torch", f"output={tmp_path / 'graph'}"]) == 0
