"""Options out of range are refused before the data is read, and leave no folder behind."""

import pytest
from helpers.runs import SMALL, TEXT, refused, table_of


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table that must not be read."""
    path = tmp_path / "table.csv"
    path.write_text(table_of(40))
    monkeypatch.setattr("dxn.runs.prepare.open_source", lambda *_: pytest.fail("read the data"))
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["optimizer.lr=-1"], "optimizer.lr: must be at least 0, got -1"),
        (["optimizer.weight_decay=-1"], "optimizer.weight_decay: must be at least 0, got -1"),
        (["optimizer.eps=-1"], "optimizer.eps: must be at least 0, got -1"),
        (
            ["optimizer.betas=[0.9,2]"],
            "optimizer: betas must be two numbers from 0 to below 1, got [0.9, 2]",
        ),
        (
            ["optimizer.layer_decay=3"],
            "optimizer.layer_decay: must be at most 1, got 3",
        ),
        (
            ["optimizer=sgd", "optimizer.momentum=-1"],
            "optimizer.momentum: must be at least 0, got -1",
        ),
        (["optimizer=sgd", "optimizer.lr=-1"], "optimizer.lr: must be at least 0, got -1"),
        (
            ["scheduler.warmup=1"],
            "scheduler.warmup: must be less than 1, got 1",
        ),
        (["scheduler.final=-1"], "scheduler.final: must be at least 0, got -1"),
        (["trainer.epochs=0"], "trainer.epochs: must be at least 1, got 0"),
        (["trainer.mixup=-1"], "trainer.mixup: must be at least 0, got -1"),
        (["batch_size=0"], "batch_size: must be at least 1, got 0"),
        (["trainer.ema_decay=1"], "trainer.ema_decay: must be less than 1, got 1"),
        (["loader.num_workers=-1"], "loader.num_workers: must be at least 0, got -1"),
        (["loader.overfit=-1"], "loader.overfit: must be at least 0, got -1"),
        (["finetune.lora_rank=-1"], "finetune.lora_rank: must be at least 0, got -1"),
        (["pretrain=masked", "pretrain.lr=-1"], "pretrain.lr: must be at least 0, got -1"),
        (["pretrain=masked", "pretrain.epochs=0"], "pretrain.epochs: must be at least 1, got 0"),
    ],
)
def test_an_option_out_of_range_is_refused_before_the_data_is_read(
    options, message, table, tmp_path, capsys
):
    run = tmp_path / "run"
    command = ["train", table, "target=label", *TEXT, *SMALL, *options, f"run={run}"]
    assert refused(capsys, command) == [f"dxn: {message}"]
    assert not run.exists()
