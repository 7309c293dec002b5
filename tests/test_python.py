"""Training from Python on data in memory, predictions of data frames, and what notebooks show."""

import inspect
import json
import pickle
import typing
from datetime import date
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import numpy as np
import pandas as pd
import pytest
from helpers.runs import PLAIN
from PIL import Image

import dxn
from dxn.api import data_overrides, to_overrides
from dxn.cli import main
from dxn.core.display import Display, is_notebook
from dxn.core.errors import UserError
from dxn.data.sources.memory import table_of, tables_of, write_tables
from dxn.data.tables.read import read_table
from dxn.viz.notebook import heatmap

WRITES_REPORTS = True  # see conftest.py
SMALL = {
    "dim": 16,
    "backbone": {"depth": 1, "num_heads": 2},
    "trainer": {"epochs": 1, "precision": "float32", "device": "cpu"},
    "batch_size": 11,
}


def frame_of(count):
    rows = [
        {"review": f"{'good' if i % 2 else 'poor'} film {i}", "stars": i % 7, "label": i % 2 > 0}
        for i in range(count)
    ]
    return pd.DataFrame(rows).replace({"label": {True: "pos", False: "neg"}})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("python") / "run"
    frame = frame_of(61)
    return dxn.train(frame, *PLAIN, target="label", run=folder, report=False, **SMALL)


def test_a_training_on_a_data_frame_returns_a_run_with_its_files(run):
    assert run.metrics == json.loads((run.folder / "metrics.json").read_text())
    assert run.model.columns == {"review": "review", "stars": "stars"}
    assert run.report is None
    assert "accuracy" in repr(run)
    assert dxn.Run(run.folder).metrics == run.metrics


def test_the_data_of_a_run_is_saved_so_that_the_run_can_be_evaluated_again(run, tmp_path):
    assert main(["evaluate", f"run={run.folder}", f"output={tmp_path}"]) == 0


def test_a_data_frame_is_predicted_with_the_same_index(run):
    new = frame_of(5).drop(columns="label").set_axis([*"vwxyz"])
    found = run.model.predict(new)
    assert list(found.index) == [*"vwxyz"]
    one = run.model.predict(review=new["review"]["x"], stars=int(new["stars"]["x"]))
    assert found["prediction"]["x"] == one["prediction"]
    probabilities = run.model.predict_proba(new)
    assert list(probabilities) == ["neg", "pos"]
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    assert probabilities.loc["x"].to_dict() == pytest.approx(one["probabilities"], abs=1e-5)


@pytest.mark.parametrize(
    ("predict", "message"),
    [
        (
            lambda m: m.predict(frame_of(3)[["stars"]]),
            r"its columns are stars \(add it, or rename another one: \.rename\(columns=",
        ),
        (
            lambda m: m.predict(frame_of(3).rename(columns={"review": "reviews"})),
            r"did you mean 'reviews'\? .*\.rename\(columns={'reviews': 'review'}\)\)$",
        ),
        (
            lambda m: m.predict(pd.DataFrame({"review": [None], "stars": [None]})),
            "are all missing; correct the data or drop the row$",
        ),
        (lambda m: m.predict(frame_of(3), review="x"), "review: cannot be combined"),
        (lambda m: m.predict([1, 2]), "this model has the inputs review, stars; name them"),
        (lambda m: m.predict(frame_of(0)), "no rows"),
        (
            lambda m: m.predict_proba([{"review": "x"}]),
            "^must be a pandas.DataFrame, got list; predict also accepts samples",
        ),
        (lambda m: m.predict_proba({"review": "x"}), "got dict"),
    ],
)
def test_wrong_data_frames_are_refused_in_one_sentence(run, predict, message):
    with pytest.raises(UserError, match=message):
        predict(run.model)


def test_notebooks_show_runs_models_answers_and_tokens_as_escaped_html(run):
    answer = run.model.predict(review="<script>", stars=3)
    assert answer == dict(answer)
    assert "<meter" in answer._repr_html_()
    assert "accuracy" in run._repr_html_()
    assert "review" in run.model._repr_html_()
    tokens = run.model.tokens(review="<script>", stars=3)
    assert "data:image/png;base64," in tokens._repr_html_()
    hostile = type(answer)({"prediction": "<script>", "probabilities": {"<b>": 1.0}})
    assert "<script>" not in hostile._repr_html_()
    assert "<b>&lt;script&gt;</b>" in hostile._repr_html_()


def test_a_heatmap_draws_matrices_with_zeros_and_infinity():
    for matrix in (np.zeros((3, 5)), np.array([[np.inf, np.nan, -1.0]]), np.zeros((3, 0))[:, :1]):
        if matrix.size:
            assert heatmap(matrix).startswith("data:image/png;base64,")


def test_options_of_python_become_overrides():
    options = {"a__b": 3, "c": {"d": {"e": None}}, "f": ["x, y", 2], "g": True, "h": "v w"}
    options["i"] = [{"x": None, "y": True}]
    lines = ["a.b=3", "c.d.e=null", 'f=["x, y",2]', "g=true", "h=v w", "i=[{x:null,y:true}]"]
    assert to_overrides(options) == lines
    arrays = {"a": np.array([2, 4]), "b": pd.Index(["x"]), "c": iter("y"), "d": np.float64(0.5)}
    assert to_overrides(arrays) == ["a=[2,4]", 'b=["x"]', 'c=["y"]', "d=0.5"]


def test_data_that_is_not_in_memory_becomes_a_path_or_a_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert data_overrides("digits") == ["data=digits"]
    assert data_overrides("new.csv") == ["data.path=new.csv"]
    assert data_overrides("data=digits") == ["data=digits"]
    assert data_overrides([tmp_path / "a.csv"]) == [f'data.path=["{tmp_path}/a.csv"]']
    (tmp_path / "a=b.csv").touch()
    assert data_overrides("a=b.csv") == ["data.path=a=b.csv"]
    with pytest.raises(UserError, match=r"must be a path.* got ndarray"):
        data_overrides(np.zeros(3))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"training2": frame_of(3)}, "'training2' is not the name of a split"),
        ({"test": frame_of(3)}, "a training split is required"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns are called 'a'"),
        (pd.DataFrame({"a": [1, "x"]}), r"column 'a' .*\(int, str\)"),
    ],
)
def test_data_in_memory_that_cannot_be_used_is_refused(data, message, tmp_path):
    with pytest.raises(UserError, match=message):
        write_tables(tables_of(data), tmp_path / "data")


def test_wrong_options_are_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"trainer\.epoch"):
        dxn.train(frame_of(7), target="label", trainer={"epoch": 3})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "target", "message"),
    [
        (frame_of(7), "lable", "no column 'lable' in the DataFrame; its columns .* 'label'"),
        (frame_of(7), "null", "no column 'null' in the DataFrame"),
        (frame_of(7), "[label]", r"no column '\[label\]' in the DataFrame"),
        (frame_of(0), "label", "the DataFrame: the table has no rows"),
        (
            pd.DataFrame({"photo": ["a.png", "b.png"] * 10, "label": ["x", "y"] * 10}),
            "label",
            r"^row 2 of the DataFrame \(the first row is 1\): photo: .*b\.png: file not found",
        ),
        (
            {"train": frame_of(7), "test": frame_of(7).drop(columns="review")},
            "label",
            "the DataFrame of test: has no column 'review'",
        ),
    ],
)
def test_data_that_is_refused_leaves_no_files(data, target, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        dxn.train(data, target=target)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(UserError, match=message):
        dxn.train(data, target=target, run="mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_the_files_of_another_run_are_kept(run, tmp_path):
    before = (run.folder / "data" / "all.parquet").read_bytes()
    with pytest.raises(UserError, match="already contains a run"):
        dxn.train(frame_of(7), target="label", run=run.folder)
    assert (run.folder / "data" / "all.parquet").read_bytes() == before
    with pytest.raises(UserError, match="without data"):
        dxn.train(frame_of(7), resume=run.folder)
    (tmp_path / "data").mkdir()
    with pytest.raises(UserError, match="data already exists"):
        dxn.train(frame_of(7), target="label", run=tmp_path)
    assert (tmp_path / "data").is_dir()


def test_cells_of_a_data_frame_survive_the_table_that_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").touch()
    pixels = np.arange(75, dtype=np.uint8).reshape(5, 5, 3)
    frame = pd.DataFrame(
        {
            "missing": [np.nan, 3.0],
            "time": pd.to_datetime(["2026-01-31", None]),
            "kind": pd.Categorical(["x", "y"]),
            "picture": [Image.fromarray(pixels), pixels],
            "sound": [(np.zeros(7), 8000), None],
            "series": [np.arange(3.0), [1.0, 2.0]],
            "file": ["a.txt", None],
            7: [True, False],
        }
    )
    files, has_paths = write_tables({"all": table_of(frame)}, tmp_path / "data")
    columns = read_table(files["all"]).columns
    assert has_paths
    assert columns["missing"] == [None, 3.0]
    assert [str(value)[:10] for value in columns["time"]] == ["2026-01-31", "None"]
    assert columns["kind"] == ["x", "y"]
    assert columns["picture"][0] == columns["picture"][1]
    assert columns["picture"][0].startswith(b"\x89PNG")
    assert columns["sound"][0].startswith(b"RIFF")
    assert columns["series"] == [[0.0, 1.0, 2.0], [1.0, 2.0]]
    assert columns["file"] == [str(tmp_path / "a.txt"), None]
    assert columns["7"] == [True, False]


@pytest.mark.parametrize(
    ("values", "cells"),
    [
        (pd.period_range("2026-01", periods=2, freq="M"), ["2026-01-01", "2026-02-01"]),
        (pd.to_timedelta([90, None], unit="s"), [90.0, None]),
        (pd.interval_range(0, 2), ["(0,1]", "(1,2]"]),
        (pd.array([5, None], dtype="Int64"), [5, None]),
        (pd.arrays.SparseArray([0.0, 1.5]), [0.0, 1.5]),
        (pd.Categorical(["u", None]), ["u", None]),
        ([Decimal("0.50"), Decimal("NaN")], [0.5, None]),
        ([{"b", "a"}, set()], [["a", "b"], []]),
        ([UUID(int=7), None], [str(UUID(int=7)), None]),
    ],
)
def test_special_types_of_a_frame_are_plain_cells(values, cells):
    (column,) = table_of(pd.DataFrame({"x": values})).columns.values()
    assert [str(v)[:10] if isinstance(v, date) else v for v in column] == cells


def test_decimals_and_durations_of_parquet_are_numbers(tmp_path):
    frame = pd.DataFrame({"a": [Decimal("1.5"), None], "b": pd.to_timedelta([60, 90], unit="s")})
    frame.to_parquet(tmp_path / "a.parquet")
    columns = read_table(tmp_path / "a.parquet").columns
    assert columns == {"a": [1.5, None], "b": [60.0, 90.0]}


def test_a_data_set_of_the_library_datasets_is_a_table():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    (table,) = tables_of(rows).values()
    assert table.columns == {"text": ["a", "b"], "label": ["yes", "no"]}
    assert set(tables_of(datasets.DatasetDict(train=rows, test=rows))) == {"train", "test"}


def test_a_notebook_gets_one_line_of_progress_that_is_removed_at_the_end(monkeypatch):
    shown = []

    class Handle:
        def update(self, fragment, *, raw):
            shown.append(fragment["text/html"])

    def display(fragment, *, display_id, raw):
        shown.append(fragment["text/html"])
        return Handle()

    monkeypatch.setattr("dxn.core.display.is_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", display)
    progress = Display(main=True)
    progress.update("epoch 1/2", 3, 7, "loss 0.5")
    progress.update("epoch 2/2", 7, 7)
    progress.close()
    assert 'value="3" max="7"' in shown[0]
    assert "epoch 2/2" in shown[1]
    assert shown[2:] == [""]


def test_a_test_process_is_no_notebook():
    assert not is_notebook()


def test_the_package_shows_only_its_interface_with_types():
    assert set(dir(dxn)) == {*dxn.__all__, "__version__"}
    assert list(inspect.signature(dxn.train).parameters) == [
        "data",
        "overrides",
        "target",
        "metrics",
        "options",
    ]
    for function in (dxn.train, dxn.load, dxn.from_public):
        assert typing.get_type_hints(function)["return"] in (dxn.Run, dxn.Predictor)
    assert pickle.loads(pickle.dumps(dxn.train)) is dxn.train
    assert Path(dxn.__file__).with_name("py.typed").exists()
