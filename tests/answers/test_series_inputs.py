"""Several series inputs, with the same and with different numbers of channels."""

import json

import pytest
from helpers.runs import SMALL, train

import dxn
from dxn.cli import main

OPTIONS = [*SMALL, "report=false", "baseline=none", "preset=plain", "trainer.epochs=1"]


def series(i, steps, channels):
    rows = [[(i + t * (c + 1)) % 43 / 4 for c in range(channels)] for t in range(steps)]
    return [row[0] for row in rows] if channels == 1 else rows


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rows = [
        {
            "pulse": series(i, 12, 1),
            "motion": series(i, 9, 3),
            "heat": None if i % 3 else series(i, 7, 1),
            "turns": series(i, 10, 3),
            "label": "ab"[i % 2],
        }
        for i in range(40)
    ]
    path = tmp_path_factory.mktemp("series") / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_series_with_other_channels_have_adapters_of_their_own(table, tmp_path):
    train(tmp_path / "run", str(table), "target=label", *OPTIONS)
    model = dxn.load(tmp_path / "run")
    channels = {name: a.tokenizer.reader.num_channels for name, a in model.adapters.items()}
    assert channels == {"pulse": 1, "motion": 3, "heat": 1, "turns": 3}
    assert model.adapters["pulse"] is model.adapters["heat"]
    answer = model.predict(pulse=series(1, 12, 1), motion=series(1, 9, 3))
    assert answer["probabilities"].keys() == {"a", "b"}


def test_the_data_has_no_bad_rows(table, tmp_path, capsys):
    assert main(["check", str(table), "target=label", f"output={tmp_path / 'bad.csv'}"]) == 0
    assert "bad.csv" not in capsys.readouterr().out
