"""The baseline of very long texts: its memory is limited, and its answers stay the same."""

import pandas as pd
import pytest
from helpers.runs import SMALL, train
from safetensors.torch import load_file

from dxn.stacking import counted as baseline_counted
from dxn.stacking import train as baseline

OPTIONS = [*SMALL, "adapters=[text]", "trainer.epochs=1", "optimizer.lr=1e-6", "preset=plain"]
OPTIONS += ["report=false", "target=label", "adapters.text.max_len=10"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rows = [
        (" ".join(f"w{i * k % 97}" for k in range(40)) + [" good", " bad"][i % 2], "ab"[i % 2])
        for i in range(100)
    ]
    path = tmp_path_factory.mktemp("long") / "texts.csv"
    pd.DataFrame(rows, columns=["text", "label"]).to_csv(path, index=False)
    return str(path)


def test_features_that_are_counted_in_parts_give_the_same_baseline(table, tmp_path, monkeypatch):
    whole = train(tmp_path / "whole", table, *OPTIONS)
    monkeypatch.setattr(baseline_counted, "MAX_SORTED", 1000)
    parts = train(tmp_path / "parts", table, *OPTIONS)
    name = "test/loss[baseline alone]"
    assert parts[name] == whole[name]
    one, two = (
        load_file(tmp_path / run / "model" / "stack.safetensors") for run in ("whole", "parts")
    )
    assert all((one[key] == two[key]).all() for key in one)


def test_of_very_long_texts_some_rows_are_enough(table, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(baseline, "MAX_COUNTED", 15_000)
    figures = train(tmp_path / "run", table, *OPTIONS)
    assert "note: the baseline learns from" in capsys.readouterr().out
    assert figures["test/accuracy[baseline alone]"] == 1
