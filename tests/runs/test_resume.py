"""A run from the command line is repeatable, resumes bit for bit, and obeys its options."""

import pytest
import torch
from helpers.runs import (
    TINY_DIGITS,
    checkpoint_of,
    interrupt,
    log_of,
    same_tensors,
    train,
    weights_of,
)

from dxn.cli import main
from dxn.commands.train import Train
from dxn.config.compose import compose

# All randomness at once: what is drawn must not depend on where a run was interrupted.
RANDOM = [
    *(
        "loader.input_dropout=0.3",
        "trainer.mixup=0.5",
        "trainer.ema_decay=0.9",
        "trainer.log_every=1",
    ),
    *(
        "adapters.image.augment.flip=true",
        "adapters.audio.augment.noise=0.5",
        "adapters.image.augment.token_dropout=0.2",
    ),
]
SETTINGS = [*TINY_DIGITS, *RANDOM, "trainer.epochs=3", "trainer.checkpoint_minutes=1e-9"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that is not interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder, *SETTINGS)
    return folder


def test_equal_seeds_give_equal_weights_and_other_seeds_do_not(tmp_path, whole):
    train(tmp_path / "again", *SETTINGS)
    train(tmp_path / "other", *SETTINGS, "seed=1")
    assert same_tensors(weights_of(whole), weights_of(tmp_path / "again"))
    assert not same_tensors(weights_of(whole), weights_of(tmp_path / "other"))


@pytest.mark.parametrize(
    "cut_at",
    [
        pytest.param(5, id="epoch's end", marks=pytest.mark.exhaustive),
        pytest.param(7, id="mid-epoch"),
        pytest.param(9, id="between checkpoints", marks=pytest.mark.exhaustive),
    ],
)
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path, monkeypatch, whole, cut_at):
    with interrupt(monkeypatch, step=cut_at):
        assert main(["train", *SETTINGS, f"run={tmp_path / 'cut'}"]) == 130
    assert main(["train", f"resume={tmp_path / 'cut'}"]) == 0
    assert log_of(tmp_path / "cut") == log_of(whole)
    assert same_tensors(weights_of(tmp_path / "cut"), weights_of(whole))
    assert same_tensors(checkpoint_of(tmp_path / "cut"), checkpoint_of(whole))


@pytest.mark.exhaustive
def test_a_run_with_muon_resumes_bit_for_bit(tmp_path, monkeypatch):
    settings = [*SETTINGS, "optimizer=muon"]
    train(tmp_path / "whole", *settings)
    with interrupt(monkeypatch, step=7):
        assert main(["train", *settings, f"run={tmp_path / 'cut'}"]) == 130
    assert main(["train", f"resume={tmp_path / 'cut'}"]) == 0
    ours = checkpoint_of(tmp_path / "cut")
    assert any(name.endswith("momentum_buffer") for name in ours)
    assert same_tensors(ours, checkpoint_of(tmp_path / "whole"))


def test_resuming_does_not_train_the_tokenizer_again(tmp_path, monkeypatch):
    # Ties of a unigram model are broken by the order of a hash table: it would be another one.
    train(
        tmp_path / "run",
        *TINY_DIGITS,
        "adapters=[text]",
        "adapters.text.tokenizer.kind=unigram",
        "trainer.epochs=1",
    )
    before = (tmp_path / "run" / "model" / "tokenizer.json").read_bytes()
    monkeypatch.setattr(
        "dxn.tokenize.text.tokenizer.train_tokenizer",
        lambda *_, **__: pytest.fail("trained again"),
    )
    assert main(["train", f"resume={tmp_path / 'run'}", "trainer.epochs=2"]) == 0
    assert (tmp_path / "run" / "model" / "tokenizer.json").read_bytes() == before


@pytest.mark.exhaustive
def test_the_number_of_workers_does_not_change_the_result(tmp_path, whole):
    train(tmp_path / "two", *SETTINGS, "loader.num_workers=2")
    assert same_tensors(weights_of(tmp_path / "two"), weights_of(whole))


def test_accumulated_batches_equal_one_large_batch(tmp_path):
    plain = [
        "adapters=[image]",
        "backbone.dropout=0",
        "head.dropout=0",
        "trainer.epochs=1",
        "data.num_train=22",
        "optimizer=sgd",  # the first step of Adam has the same size for any gradient
    ]
    train(tmp_path / "one", *TINY_DIGITS, *plain, "batch_size=22")
    train(tmp_path / "two", *TINY_DIGITS, *plain, "batch_size=11", "trainer.grad_accum_steps=2")
    one, two = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-6)


def test_patience_stops_a_training_that_does_not_improve(tmp_path, capsys):
    found = train(
        tmp_path / "run", *TINY_DIGITS, "trainer.epochs=50", "trainer.patience=2", "optimizer.lr=0"
    )
    assert (found["epochs"], found["best_epoch"]) == (3, 1)
    output = capsys.readouterr().out
    assert "stopped early: no better accuracy or loss in 2 epochs" in output
    assert "best epoch 1 of 3 (*)" in output
    assert "note: no epoch after the first one had a better validation accuracy" in output


def test_the_best_epoch_is_kept(tmp_path):
    found = train(tmp_path / "run", *TINY_DIGITS, "trainer.epochs=4")
    rows = [row for row in log_of(tmp_path / "run") if "validation/accuracy" in row]
    # Equal accuracies are ranked by the loss.
    best = max(rows, key=lambda row: (row["validation/accuracy"], -row["validation/loss"]))
    assert found["validation/best"] == best["validation/accuracy"]
    assert found["best_epoch"] == best["epoch"]


def test_auto_continues_the_newest_unfinished_run_of_the_same_command(
    whole, tmp_path, monkeypatch, capsys
):
    command = ["train", *SETTINGS, f"output={tmp_path}", "name=digits", "resume=auto"]
    with interrupt(monkeypatch, step=8):
        assert main(command) == 130
    (first,) = (tmp_path / "digits").iterdir()
    # Another command starts a run of its own.
    other = [*command, "report=false"]
    with interrupt(monkeypatch, step=1):
        assert main(other) == 130
    assert len(list((tmp_path / "digits").iterdir())) == 2
    capsys.readouterr()
    assert main(command) == 0
    assert f"resume: {first}\n" in capsys.readouterr().out
    assert same_tensors(weights_of(whole), weights_of(first))
    # A finished run is not continued.
    with interrupt(monkeypatch, step=1):
        assert main(command) == 130
    assert len(list((tmp_path / "digits").iterdir())) == 3


def test_auto_starts_a_run_of_a_table(tmp_path):
    (tmp_path / "texts.csv").write_text("text,label\na,b\n")
    settings = compose(Train, [f"{tmp_path}/texts.csv", "target=label", "resume=auto"])
    assert settings.values["data"]["path"] == f"{tmp_path}/texts.csv"
    assert settings.values["resume"]["run"] == "auto"
