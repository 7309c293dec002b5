"""ensemble=N: members, the combined outputs, the model folder, resuming and refusals."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
import yaml
from helpers.runs import SMALL, TEXT, interrupt, refused, same_tensors, table_of, train, weights_of
from helpers.training import make_model, make_task

import dxn
from dxn.cli import main
from dxn.commands.train import Train
from dxn.config.compose import compose
from dxn.core.errors import UserError
from dxn.core.files import write_sums
from dxn.core.processes import Launch
from dxn.models import Ensemble
from dxn.models.model import split_tensors
from dxn.runs.ensemble import MEAN, ensemble_folder
from dxn.runs.folder import trained_run
from dxn.tasks import Classify, Contrastive, Multilabel, Regress, Tag

OPTIONS = [*SMALL, *TEXT, "trainer.epochs=2", "preset=plain", "baseline=none", "ensemble=2"]
LIMIT = "trainer.max_minutes=9"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("ensemble") / "texts.csv"
    path.write_text(table_of(60))
    return path


@pytest.fixture(scope="module")
def run(table):
    """A finished ensemble of two members."""
    folder = table.parent / "label" / "run"
    train(folder, str(table), "target=label", *OPTIONS, LIMIT)
    return folder


def members_of(folder, count=2):
    return [folder / "members" / str(i) for i in range(count)]


def test_a_member_has_less_time_if_the_earlier_ones_took_too_long(table, monkeypatch, capsys):
    times = iter([0.0, 0.0, 500.0])
    monkeypatch.setattr("dxn.runs.ensemble.perf_counter", lambda: next(times))
    train(table.parent / "late", str(table), "target=label", *OPTIONS, LIMIT)
    printed = " ".join(capsys.readouterr().out.split())
    assert "the earlier members took 3 min 50 s longer than their part of the time limit" in printed


# Combining outputs


@pytest.mark.parametrize("make", [Classify, Tag])
def test_class_outputs_are_combined_to_the_mean_of_the_probabilities(make):
    outputs = list(torch.randn(3, 5, 7))
    combined = make().space.mean(outputs)
    mean = torch.stack([output.softmax(-1) for output in outputs]).mean(0)
    torch.testing.assert_close(combined.softmax(-1), mean)
    torch.testing.assert_close(combined.exp(), mean)


def test_label_outputs_are_combined_to_the_mean_of_the_probabilities():
    outputs = list(3 * torch.randn(3, 5, 7))
    mean = torch.stack([output.sigmoid() for output in outputs]).mean(0)
    torch.testing.assert_close(Multilabel().space.mean(outputs).sigmoid(), mean)


def test_extreme_label_outputs_stay_finite():
    outputs = [torch.tensor([[200.0, -200.0]]), torch.tensor([[150.0, -150.0]])]
    assert Multilabel().space.mean(outputs).isfinite().all()


def test_numbers_are_combined_to_their_mean():
    outputs = list(torch.randn(3, 5, 1))
    torch.testing.assert_close(Regress().space.mean(outputs), sum(outputs) / 3)


def test_an_ensemble_of_equal_models_predicts_what_one_of_them_does():
    task = make_task()
    model = make_model(task).eval()
    values = torch.randn(5, 3, 3)
    inputs = {"values": values, "mask": torch.ones(5, 3, dtype=torch.bool), "rows": torch.arange(5)}
    batch = {"#size": 5, "#index": list(range(5)), "series": inputs}
    ensemble = Ensemble([model, model, model], task.space.mean).eval()
    torch.testing.assert_close(ensemble(batch).softmax(-1), model(batch).softmax(-1))
    own = model.vectors(batch)
    torch.testing.assert_close(ensemble.vectors(batch), torch.cat([own] * 3, -1))


# Training


def test_members_differ_in_their_weights_and_share_splits_tokenizers_and_labels(run):
    first, second = members_of(run)
    assert not same_tensors(weights_of(first), weights_of(second))
    for name in ("labels.json", "tokenizer-text.json"):
        paths = [folder / "model" / name for folder in (first, second, run)]
        texts = {path.read_text() for path in paths if path.exists()}
        assert len(texts) <= 1
    plans = [folder / "checkpoints" / "start" / "plan.json" for folder in (first, second)]
    one, other = (json.loads(path.read_text()) for path in plans)
    assert one["data"] == other["data"]


def test_the_model_folder_has_the_weights_of_all_members(run):
    tensors = weights_of(run)
    for number, folder in enumerate(members_of(run)):
        prefix = f"members.{number}."
        own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        assert same_tensors(own, weights_of(folder))


def test_the_probabilities_are_the_mean_of_those_of_the_members(run):
    models = [dxn.load(folder) for folder in (run, *members_of(run))]
    assert models[0].num_members == 2
    answers = [model.predict(text="apple number 3")["probabilities"] for model in models]
    for label in "ab":
        mean = (answers[1][label] + answers[2][label]) / 2
        assert answers[0][label] == pytest.approx(mean, abs=1e-6)


def test_the_embedding_is_that_of_the_members_side_by_side(run):
    whole, *parts = [
        dxn.load(folder).embed(text="apple number 3") for folder in (run, *members_of(run))
    ]
    torch.testing.assert_close(whole, torch.cat(parts))


def test_metrics_contain_the_mean_of_the_members(run):
    metrics = json.loads((run / "metrics.json").read_text())
    own = [json.loads((path / "metrics.json").read_text()) for path in members_of(run)]
    mean = (own[0]["test/accuracy"] + own[1]["test/accuracy"]) / 2
    assert metrics[f"test/accuracy[{MEAN}]"] == pytest.approx(mean)
    assert metrics["seeds"] == [0, 1]
    assert "validation/best" in metrics


def test_a_member_is_an_ordinary_run_with_its_own_seed(run):
    for number, folder in enumerate(members_of(run)):
        config = yaml.safe_load((folder / ".hydra" / "config.yaml").read_text())
        seeds = config["seed"], config["trainer"]["seed"], config["data"]["seed"]
        assert seeds == (number, number, 0)
        assert config["ensemble"] == 1


def test_a_folder_of_runs_does_not_contain_the_members(run):
    assert trained_run(str(run.parent))[0] == run


def test_the_time_limit_is_divided_among_the_members(run):
    for folder in (run, *members_of(run)):
        config = yaml.safe_load((folder / ".hydra" / "config.yaml").read_text())
        assert config["trainer"]["max_minutes"] == (9 if folder == run else 4.5)


# Using the model


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_predict_and_evaluate_use_all_members(run, table, tmp_path, dtype):
    use = [f"run={run}", f"dtype={dtype}"]
    assert main(["predict", *use, str(table), f"output={tmp_path / 'answers.csv'}"]) == 0
    assert main(["evaluate", *use, f"output={tmp_path / 'evaluate'}", "confine=false"]) == 0
    metrics = json.loads((tmp_path / "evaluate" / "metrics.json").read_text())
    own = json.loads((run / "metrics.json").read_text())
    assert metrics["test/loss"] == pytest.approx(own["test/loss"], abs=0.02)


def test_attend_draws_the_attention_of_the_first_member(run, tmp_path):
    arguments = ["attend", f"run={run}", "input.text=apple number 3", f"output={tmp_path}"]
    assert main(arguments) == 0
    assert (tmp_path / "attention.html").exists()


def test_verify_checks_the_ensemble_and_its_members(run, tmp_path, capsys):
    assert main(["verify", f"run={run}"]) == 0
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "members" / "1" / "model" / "labels.json").write_text("{}")
    lines = refused(capsys, ["verify", f"run={copy}"])
    assert "members/1" in lines[0]


# Resuming


@pytest.mark.parametrize("step", [3, 13])
def test_a_resumed_ensemble_has_the_same_bits(run, table, tmp_path, monkeypatch, step):
    folder = tmp_path / "run"
    data = [str(table), "target=label", *OPTIONS, "trainer.checkpoint_minutes=1e-9"]
    with interrupt(monkeypatch, step=step):
        assert main(["train", *data, f"run={folder}"]) == 130
    assert main(["train", f"resume={folder}"]) == 0
    assert same_tensors(weights_of(folder), weights_of(run))


def test_an_interruption_names_the_command_that_continues(table, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    with interrupt(monkeypatch, step=2):
        main(["train", str(table), "target=label", *OPTIONS, f"run={folder}"])
    error = capsys.readouterr().err
    assert f"continue with: dxn train resume={folder}\n" in error
    assert "member 1 of 2" in error


# Refusals


def test_a_task_that_cannot_be_combined_is_refused_before_data_is_read():
    with pytest.raises(UserError, match="ensemble: cannot be combined with head=contrastive"):
        Contrastive().check({"trainer": {}, "ensemble": 2})


def test_a_wrong_number_of_members_is_refused(table, capsys):
    lines = refused(capsys, ["train", str(table), "target=label", "ensemble=0"])
    assert "ensemble: must be at least 1, got 0" in lines[0]


def test_an_ensemble_that_is_refused_leaves_no_folder(table, tmp_path, capsys):
    command = ["train", str(table), "target=lable", "ensemble=2", f"run={tmp_path / 'run'}"]
    assert "lable" in refused(capsys, command)[-1]
    assert not (tmp_path / "run").exists()


def test_an_ensemble_is_not_overwritten(run, table, capsys):
    lines = refused(capsys, ["train", str(table), "target=label", *OPTIONS, f"run={run}"])
    assert f"set resume={run}" in lines[0]


def test_weights_of_an_ensemble_are_refused(run, table, tmp_path, capsys):
    arguments = ["train", str(table), "target=label", f"weights={run}", f"run={tmp_path / 'new'}"]
    assert "is an ensemble" in refused(capsys, arguments)[0]


def test_tensors_of_no_member_are_an_error():
    with pytest.raises(ValueError, match="belongs to none of the 2 members"):
        split_tensors({"members.2.mix": torch.ones(2)}, 2)


def test_a_member_without_tensors_is_refused(run, tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(run / "model", copy)
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config["members"] += 1
    (copy / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    write_sums(copy)
    with pytest.raises(UserError, match="does not match config"):
        dxn.load(copy)


def test_a_restart_continues_the_ensemble_in_the_folder_run(tmp_path, monkeypatch):
    """torchrun starts the same command again after a process was killed."""
    (tmp_path / "members" / "0").mkdir(parents=True)
    settings = compose(Train, ["ensemble=2", f"run={tmp_path}"])
    with pytest.raises(UserError, match="already contains an ensemble"):
        ensemble_folder(settings)
    launched = Launch("torchrun", is_restart=True, connection={})
    monkeypatch.setattr("dxn.runs.plan.launch", lambda: launched)
    with pytest.raises(UserError, match="already contains an ensemble"):
        ensemble_folder(settings)  # of another torchrun
    plan = tmp_path / "members" / "0" / "checkpoints" / "start" / "plan.json"
    plan.parent.mkdir(parents=True)
    plan.touch()
    monkeypatch.setattr("dxn.runs.plan.read_plan", lambda run: SimpleNamespace(launch="torchrun"))
    assert ensemble_folder(settings) == tmp_path
