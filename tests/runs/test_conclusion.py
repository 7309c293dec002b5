"""What a training says about its metrics and the next commands, and the model card."""

import hashlib
import json
import math
import re
from pathlib import Path

import pytest
import torch
from helpers.runs import SMALL, TEXT, TINY_DIGITS, interrupt, log_of, refused, table_of, train

import dxn
from dxn.cli import main
from dxn.core.display import number
from dxn.runs.record import data_name
from dxn.tasks.classify import ClassMetric
from dxn.training.loop import Fit


def output_of(capsys, tmp_path, *options, content=None):
    """What `dxn train` prints for a table of texts."""
    (tmp_path / "t.csv").write_text(content or table_of(60))
    capsys.readouterr()
    command = [
        "train",
        str(tmp_path / "t.csv"),
        "target=label",
        *TEXT,
        *SMALL,
        "baseline=none",
        *options,
    ]
    assert main([*command, f"run={tmp_path / 'run'}"]) == 0
    return capsys.readouterr().out


def test_debug_fast_runs_one_epoch(tmp_path):
    assert train(tmp_path / "fast", *TINY_DIGITS, "debug=fast")["epochs"] == 1


def test_debug_overfit_counts_the_learned_samples(tmp_path, capsys):
    output = output_of(capsys, tmp_path, "debug=overfit", "optimizer.lr=0.01")
    assert "loader.overfit=8: 8 of 8 learned; the model has seen no other samples" in output
    assert output.count("epoch ") < 40  # of 100 epochs
    assert "epoch 100/100" in output


def test_debug_overfit_is_not_compared_with_simple_methods(tmp_path, capsys):
    # The text says nothing about the rare label, so that the most frequent one is the best answer.
    rows = "\n".join(f"text {i * 37 % 101},{'rare' if i % 7 == 0 else 'usual'}" for i in range(90))
    content = f"text,label\n{rows}"
    output = output_of(
        capsys, tmp_path, "debug=overfit", "trainer.epochs=2", "baseline=auto", content=content
    )
    assert "simple methods" not in output and "always usual" not in output
    assert "learned; the model has seen no other samples" in output


def test_debug_overfit_of_numbers_prints_their_error(tmp_path, capsys):
    numbers = "\n".join(["text,label", *(f"number {i},{i}.5" for i in range(60))])
    output = output_of(capsys, tmp_path, "debug=fast", content=numbers)
    assert re.search(r"loader\.overfit=64: rmse \d+\.\d+ for the 48 samples", output)


def test_debug_overfit_counts_the_samples_whose_tags_are_learned(tmp_path, capsys):
    rows = "\n".join(f"text {i} b,\"['N', 'V', 'N']\"" for i in range(60))
    output = output_of(capsys, tmp_path, "debug=fast", content=f"text,label\n{rows}")
    assert "target: label (tag)" in output
    assert re.search(r"loader\.overfit=64: \d+ of 48 learned", output)


def test_without_a_validation_split_the_last_epoch_is_kept(tmp_path, capsys):
    output = output_of(capsys, tmp_path, "data.fractions=[0.8,0,0.2]", "trainer.epochs=3")
    assert "3 epochs; no validation split: the last epoch is kept" in output
    assert "warning: there is no validation split" in output
    assert "best epoch 0" not in output and "(*)" not in output
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["best_epoch"] == 3


def test_an_option_that_waits_for_the_validation_loss_needs_a_validation_split(tmp_path, capsys):
    (tmp_path / "table.csv").write_text(table_of(30))
    command = ["train", f"{tmp_path}/table.csv", "target=label", f"run={tmp_path}/run"]
    command += ["data.fractions=[0.8,0,0.2]", "trainer.once_learning=[patience]"]
    (line,) = refused(capsys, command)
    assert line == (
        "dxn: trainer.once_learning: got ['patience'], but there is no validation split, whose "
        "metrics this option needs; add one, or set trainer.once_learning=[]"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fractions", "sentence"),
    [
        ("[1,0,0]", "warning: there is no test split, so these are the metrics of the training"),
        ("[0.5,0.5,0]", "note: there is no test split, so these are the metrics of the validation"),
    ],
)
def test_figures_that_are_not_those_of_a_test_split_are_marked(
    tmp_path, capsys, fractions, sentence
):
    options = [f"data.fractions={fractions}", "trainer.epochs=1"]
    assert sentence in output_of(capsys, tmp_path, *options)


def test_warnings_about_the_data_are_printed(tmp_path, capsys):
    repeated = table_of(60) + "\napple number 0,b\n"
    output = output_of(capsys, tmp_path, "trainer.epochs=1", content=repeated)
    assert "warning: 1 row has the same inputs as another row, but another target" in output
    assert "warning: test has only 6 rows, too few for reliable metrics" in output


def test_if_a_metric_is_always_nan_the_loss_selects_the_epoch(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ClassMetric, "metrics", lambda *_: {"accuracy": math.nan})
    metrics = train(tmp_path / "run", *TINY_DIGITS, "trainer.epochs=2")
    output = capsys.readouterr().out
    assert "the validation accuracy was NaN in all epochs, so the loss selected" in output
    assert metrics["best_epoch"] > 0 and "test/accuracy" not in metrics


def test_without_any_finite_metric_or_loss_there_is_no_best_epoch(tmp_path, capsys, monkeypatch):
    nan = {"accuracy": math.nan, "loss": math.nan}
    monkeypatch.setattr(ClassMetric, "metrics", lambda *_: nan)
    command = ["train", *TINY_DIGITS, "trainer.epochs=2", f"run={tmp_path / 'run'}"]
    (error,) = refused(capsys, command)
    assert error.startswith("dxn: the validation accuracy and loss were NaN in all 2 epochs")


def test_the_last_lines_name_the_folder_and_the_next_commands(tmp_path, capsys):
    run = tmp_path / "run"
    lines = output_of(capsys, tmp_path, "trainer.epochs=1").splitlines()
    assert lines[-4] == f"written: {run} (model/, metrics.json, predictions.csv)"
    assert lines[-3].startswith(f"next: dxn attend run={run} 'input.text=")
    assert lines[-2:] == [
        f"next: dxn evaluate run={run}",
        f"next: dxn predict run={run} input={tmp_path / 't.csv'} output=answers.csv",
    ]


def test_an_interruption_prints_the_command_that_continues(tmp_path, capsys, monkeypatch):
    command = ["train", *TINY_DIGITS, "trainer.epochs=2"]
    with interrupt(monkeypatch, step=7):
        assert main([*command, f"run={tmp_path / 'a b'}"]) == 130
    error = capsys.readouterr().err
    assert error.endswith(f"interrupted; continue with: dxn train 'resume={tmp_path / 'a b'}'\n")
    assert main(["train", f"resume={tmp_path / 'a b'}"]) == 0


def test_a_run_without_a_checkpoint_is_started_again(tmp_path, capsys, monkeypatch):
    run = tmp_path / "early"
    command = ["train", *TINY_DIGITS, "trainer.epochs=2", "trainer.log_every=1", f"run={run}"]
    with interrupt(monkeypatch, step=1):
        assert main(command) == 130
    assert "there is no checkpoint yet, so start the training again" in capsys.readouterr().err
    (line,) = refused(capsys, ["train", f"resume={run}"])
    assert line == (
        f"dxn: resume: {run} has no checkpoint yet, because it stopped before the first one was "
        "saved; start the training again"
    )
    assert main(command) == 0
    steps = [row["step"] for row in log_of(run) if "lr" in row]
    assert steps == list(range(1, len(steps) + 1))


def test_a_run_killed_while_it_wrote_its_first_checkpoint_is_started_again(tmp_path, monkeypatch):
    command = ["train", *TINY_DIGITS, "trainer.epochs=2", f"run={tmp_path / 'run'}"]

    def stop(run):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Fit, "save", stop)
        assert main(command) == 130
    assert (tmp_path / "run" / "model").is_dir()
    assert main(command) == 0


# The model card


def test_the_card_has_the_figures_the_data_the_command_and_versions(tmp_path, capsys):
    output_of(capsys, tmp_path, "trainer.epochs=2", "baseline=auto")
    model = tmp_path / "run" / "model"
    card = (model / "README.md").read_text()
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    for text in (
        "# label\n",
        f"dxn {dxn.__version__} and torch {torch.__version__}",
        "- task: classify\n",
        "- target: label: 2 classes",
        "- inputs: text (column text)\n",
        "rows: train 48, validation 6, test 6\n",
        "- license: not set\n",
        f"- validation accuracy: {number(metrics['validation/best'])}\n",
        f"- test accuracy: {number(metrics['test/accuracy'])} (transformer alone: ",
        "target=label ",
        "t.csv",
        "model.predict(text=...)",
    ):
        assert text in card
    for line in (model / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((model / name).read_bytes()).hexdigest() == digest


def test_the_card_of_a_resumed_run_has_the_original_command(tmp_path):
    run = tmp_path / "run"
    train(run, *TINY_DIGITS, "trainer.epochs=1")
    assert main(["train", f"resume={run}", "trainer.epochs=2"]) == 0
    card = (run / "model" / "README.md").read_text()
    command = next(line for line in card.splitlines() if line.startswith("dxn train"))
    assert command.startswith("dxn train data.num_train=47 ")
    assert command.endswith(f"trainer.epochs=2 run={run}")
    assert "resume=" not in card
    assert re.search(r"those of epoch [12] of 2\n", card)


@pytest.mark.parametrize(
    ("node", "name", "expected"),
    [
        ({"path": "reviews.csv"}, None, "reviews.csv"),
        ({"path": str(Path.home() / "data" / "reviews.csv")}, None, "~/data/reviews.csv"),
        ({"path": None, "train": "train.csv"}, None, "train.csv"),
        ({"path": ["a.csv", "b.csv"]}, "both", "both"),
        ({"_target_": "dxn.data.digits"}, None, "digits"),
    ],
)
def test_the_card_names_the_data_without_the_home_folder(node, name, expected):
    assert data_name(node, name) == expected
