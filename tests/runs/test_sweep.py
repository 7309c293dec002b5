"""A sweep: one row per setting, statistics over the seeds, and sweep.csv."""

import csv
import json
import statistics
from pathlib import Path

from helpers.runs import SMALL, TEXT, TINY_DIGITS, interrupt, table_of

from dxn.cli import main

SWEEP = ["train", "-m", *TINY_DIGITS, "trainer.epochs=1"]


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def sweep(tmp_path, *overrides, code=0):
    """Run a sweep; return the rows of sweep.csv."""
    assert main([*SWEEP, f"output={tmp_path}", *overrides]) == code
    (path,) = tmp_path.glob("sweeps/*/sweep.csv")
    return rows_of(path)


def test_a_sweep_has_one_row_per_setting_with_statistics_over_the_seeds(tmp_path, capsys):
    rows = sweep(tmp_path, "optimizer.lr=0.001,0.1", "seed=1,2")
    table = capsys.readouterr().out.rpartition("best by validation: *")[2]
    assert [(row["optimizer.lr"], row["seed"]) for row in rows] == [
        *(("0.001", "1"), ("0.001", "2"), ("0.1", "1"), ("0.1", "2"))
    ]
    means = {}
    for lr in ("0.001", "0.1"):
        same = [row for row in rows if row["optimizer.lr"] == lr]
        values = [float(row["test/accuracy"]) for row in same]
        line = next(line for line in table.splitlines() if f"optimizer.lr={lr} " in line)
        assert "2 │" in line
        assert f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}" in line
        means[lr] = statistics.mean(float(row["validation/best"]) for row in same)
        for row in same:
            metrics = json.loads((Path(row["folder"]) / "metrics.json").read_text())
            assert float(row["test/accuracy"]) == metrics["test/accuracy"]
    best = max(means, key=means.__getitem__)
    assert f"optimizer.lr={best} *" in table and table.count(" * ") == 1
    assert table.splitlines()[-1].endswith("/sweep.csv (4 runs)")


def test_a_failed_run_is_listed_and_does_not_end_the_sweep(tmp_path, capsys):
    rows = sweep(tmp_path, "optimizer.lr=-1,0.01", code=2)
    assert rows[0]["error"] == "optimizer: lr must be at least 0, got -1"
    assert rows[1]["error"] == "" and rows[1]["test/accuracy"]
    output = capsys.readouterr().out
    assert "failed: optimizer.lr=-1: optimizer: lr must be at least 0, got -1" in output
    assert "optimizer.lr=0.01" in output.rpartition("sweep: mean")[2]


def test_a_sweep_without_test_rows_has_the_validation_metrics(tmp_path, capsys):
    (tmp_path / "t.csv").write_text(table_of(40))
    options = [str(tmp_path / "t.csv"), "target=label", *TEXT, *SMALL, "data.fractions=[0.5,0.5,0]"]
    options += ["backbone.depth=1,2", "trainer.epochs=1"]
    assert main(["train", "-m", *options, f"output={tmp_path}"]) == 0
    (path,) = tmp_path.glob("sweeps/*/sweep.csv")
    assert all(row["validation/accuracy"] for row in rows_of(path))
    assert "backbone.depth=2" in capsys.readouterr().out.rpartition("sweep: mean")[2]


def test_an_interrupted_sweep_keeps_the_finished_runs(tmp_path, monkeypatch):
    with interrupt(monkeypatch, step=7):  # each run has five steps
        assert main([*SWEEP, "seed=1,2", f"output={tmp_path}"]) == 130
    (path,) = tmp_path.glob("sweeps/*/sweep.csv")
    assert [row["seed"] for row in rows_of(path)] == ["1"]
