"""An input has the name of its column, in commands, in Python and in the files that dxn writes."""

import json

import numpy as np
import pandas as pd
import pytest

import dxn
from dxn.cli import main
from tests.helpers.newcomer import TEXT, TINY, read_csv, write_csv

FAST = [*TINY, *TEXT[1:], "adapters=[text,number]", "trainer.epochs=1", "baseline=none"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run on a table with one column of texts and a column called "size"."""
    folder = tmp_path_factory.mktemp("names")
    rows = [[f"{'ab'[i % 2]} film {i}", 1 + i / 7, i % 5, "ab"[i % 2]] for i in range(40)]
    write_csv(folder / "films.csv", ["title", "size", "index", "label"], rows)
    assert main(["train", str(folder / "films.csv"), *FAST, f"run={folder / 'run'}"]) == 0
    return folder


def test_the_only_text_column_and_columns_such_as_size_keep_their_names(folder):
    assert dxn.load(folder / "run").columns == {"title": "title", "size": "size", "index": "index"}
    assert set(read_csv(folder / "run/predictions.csv")[0]) >= {"title", "size", "index"}
    metrics = json.loads((folder / "run/metrics.json").read_text())
    assert {"test/accuracy[title]", "test/accuracy[size]"} <= set(metrics)


def test_commands_and_python_take_the_names_of_the_columns(folder, capsys):
    model = dxn.load(folder / "run")
    sample = {"title": "a film 3", "size": 2.5, "index": 1}
    answer = model.predict(**sample)
    frame = model.predict(pd.DataFrame([sample]))
    assert frame["prediction"].tolist() == [answer["prediction"]]
    asked = [f"input.{name}={value}" for name, value in sample.items()]
    assert main(["predict", f"run={folder / 'run'}", *asked]) == 0
    assert f"prediction: {answer['prediction']}" in capsys.readouterr().out


def test_a_name_that_is_no_column_is_refused_with_the_columns(folder, capsys):
    assert main(["predict", f"run={folder / 'run'}", "input.text=a film"]) == 2
    assert "the inputs are title, size, index" in capsys.readouterr().err


def test_a_folder_has_no_column_names_so_its_input_is_called_like_the_modality(tmp_path):
    for i in range(12):
        (tmp_path / "data" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "data" / "ab"[i % 2] / f"{i}.npy", np.arange(16.0) * (i + 1))
    run = dxn.train(
        tmp_path / "data", *TINY, "adapters=[series]", "baseline=none", output=tmp_path / "runs"
    )
    assert list(run.model.columns) == ["series"]
