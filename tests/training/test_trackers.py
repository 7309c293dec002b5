"""Trackers: TensorBoard and MLflow for real, and what happens if one is missing or fails."""

import sys
import types

import pytest
from helpers.runs import PLAIN, SMALL, TEXT, table_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dxn.cli import main
from dxn.core.errors import UserError
from dxn.training.trackers import TrackerSink, check_trackers


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The folder of MLflow, which keeps it in variables of the process."""
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    mlflow.set_tracking_uri(uri)
    yield mlflow.MlflowClient(uri)
    mlflow.set_tracking_uri(None)


def scalars(folder, name):
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, round(event.value, 4)) for event in events.Scalars(name)]


@pytest.mark.filterwarnings("ignore")  # MLflow and TensorBoard use deprecated functions
def test_a_training_sends_its_log_and_its_test_metrics_to_both_trackers(tmp_path, store, capsys):
    (tmp_path / "t.csv").write_text(table_of(47))
    folder = tmp_path / "runs" / "first"
    options = [f"run={folder}", "trainer.epochs=2", "trainer.tracker=[tensorboard,mlflow]"]
    data = [str(tmp_path / "t.csv"), "target=label", "report=false"]
    assert main(["train", *data, *SMALL, *TEXT, *PLAIN, *options]) == 0
    printed = capsys.readouterr().out
    assert f"tensorboard: the metrics are in {folder / 'tensorboard'}" in printed.replace("\n", "")
    assert "mlflow: the metrics are sent to " in printed
    assert len(scalars(folder, "validation/loss")) == 2
    assert len(scalars(folder, "test/accuracy")) == 1
    (experiment,) = [e for e in store.search_experiments() if e.name == "runs"]
    (run,) = store.search_runs([experiment.experiment_id])
    assert run.info.run_name == "first"
    assert run.info.status == "FINISHED"
    assert run.data.params["backbone.depth"] == "1"
    assert "test/accuracy" in run.data.metrics
    assert len(store.get_metric_history(run.info.run_id, "train/epoch_loss")) == 2


@pytest.mark.filterwarnings("ignore")
def test_each_process_of_a_training_has_a_run_of_mlflow_with_its_options(tmp_path, store):
    folder = tmp_path / "runs" / "first"
    options = {"a": {"b": 3}, **{f"option{i}": "x" * 1000 for i in range(205)}}
    for step in (1, 2):
        # A stopped training does not close its trackers.
        tracker = TrackerSink("mlflow", folder, options=options)
        tracker.log({"step": step, "epoch": 1, "test/accuracy[text+image]": step / 7})
    tracker.close()
    (experiment,) = [e for e in store.search_experiments() if e.name == "runs"]
    runs = store.search_runs([experiment.experiment_id])
    assert [run.info.run_name for run in runs] == ["first", "first"]
    assert [run.info.status for run in runs] == ["FINISHED", "FINISHED"]
    for run in runs:
        assert len(run.data.params) == 206 and run.data.params["a.b"] == "3"
        name = "test/accuracy_text_image_"  # MLflow allows no brackets
        assert len(store.get_metric_history(run.info.run_id, name)) == 1


def test_wandb_gets_the_name_the_options_and_the_figures(tmp_path, monkeypatch):
    calls = []
    run = types.SimpleNamespace(
        id="abc",
        log=lambda values, step=None, **_: calls.append((step, values)),
        finish=lambda: calls.append("finished"),
    )
    fake = types.ModuleType("wandb")
    fake.init = lambda **options: calls.append(options) or run
    monkeypatch.setitem(sys.modules, "wandb", fake)
    tracker = TrackerSink("wandb", tmp_path / "runs" / "first", options={"dim": 16})
    tracker.log({"step": 3, "epoch": 1, "train/loss": 0.5})
    tracker.close()
    assert calls[0]["project"] == "runs"
    assert calls[0]["name"] == "first"
    assert calls[0]["config"] == {"dim": 16}
    assert calls[1:] == [(3, {"train/loss": 0.5}), "finished"]


def test_a_tracker_that_fails_is_left_out_and_the_training_continues(tmp_path, monkeypatch):
    lines = []
    tracker = TrackerSink("tensorboard", tmp_path / "run", say=lines.append)

    def fail(*_, **__):
        raise ConnectionError("the server is down\nmore")

    monkeypatch.setattr(tracker, "_send", fail)
    tracker.log({"step": 1, "loss": 1.0})
    tracker.log({"step": 2, "loss": 1.0})
    assert lines[1:] == ["warning: tensorboard gets no more metrics: the server is down"]
    tracker.close()


def test_a_tracker_that_cannot_start_is_one_sentence(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("the server is down")

    monkeypatch.setattr("dxn.training.trackers._tensorboard", fail)
    message = r"trainer.tracker: tensorboard cannot start \(the server is down\); change its set"
    with pytest.raises(UserError, match=message):
        TrackerSink("tensorboard", tmp_path)


def test_a_missing_or_unknown_tracker_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"mlflow is not installed; run pip install 'dxn\[tracke"):
        check_trackers(["mlflow"])
    with pytest.raises(UserError, match="must be a list of tensorboard, mlflow, wandb, got x"):
        check_trackers(["x"])  # type: ignore[list-item]
