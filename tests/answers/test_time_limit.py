"""A training with a time limit: its learning rate, its number of epochs, and its patience."""

import itertools
import math
import re

import pytest
from helpers.runs import SMALL, interrupt, log_of, metrics_of, refused, train

from dxn.cli import main
from dxn.training.limit import Limit
from dxn.training.loop import Fit

PEAK = 1e-3
OPTIONS = [*SMALL, "preset=plain", "baseline=none", "report=false", "trainer.log_every=1"]
OPTIONS += ["scheduler.warmup=0.1", f"optimizer.lr={PEAK}", "target=label"]


@pytest.fixture
def table(tmp_path):
    rows = [f"{['fine', 'dull'][i % 2]} film number {i},{'ab'[i % 2]}" for i in range(110)]
    path = tmp_path / "films.csv"
    path.write_text("\n".join(["text,label", *rows]))
    return str(path)


@pytest.fixture
def clock(monkeypatch):
    """A clock that is one second later each time it is read: a batch takes one second."""
    count = itertools.count()
    monkeypatch.setattr("dxn.training.loop.perf_counter", lambda: float(next(count)))
    # Neither reading nor the measurement of a validation takes time.
    monkeypatch.setattr("dxn.runs.train.perf_counter", lambda: 0.0)
    monkeypatch.setattr("dxn.training.limit.monotonic", lambda: 0.0)


def rates(folder):
    return [row["lr"] / PEAK for row in log_of(folder) if "lr" in row]


# An epoch takes ten seconds: eight batches, a validation and a checkpoint.
@pytest.mark.parametrize("seconds", [15, 61])
def test_the_learning_rate_reaches_its_end_without_a_jump(seconds, table, tmp_path, clock):
    limit = f"trainer.max_minutes={seconds / 60}"
    train(tmp_path / "run", table, *OPTIONS, "trainer.epochs=200", "trainer.patience=0", limit)
    found = rates(tmp_path / "run")
    assert seconds - 20 <= len(found) <= seconds
    assert found[-1] < 0.01
    peak = found.index(max(found))
    assert all(a >= b for a, b in itertools.pairwise(found[peak:]))
    # The steepest part of the schedule is the warm-up, a tenth of the training. A step after a
    # validation is up to three seconds later than the one before.
    steepest = 3 / (0.1 * 0.95 * seconds)
    assert all(abs(a - b) <= steepest for a, b in itertools.pairwise([0.0, *found]))


def test_a_time_limit_that_is_not_reached_changes_nothing(table, tmp_path, clock):
    folders = [tmp_path / "free", tmp_path / "limited"]
    train(folders[0], table, *OPTIONS, "trainer.epochs=3")
    train(folders[1], table, *OPTIONS, "trainer.epochs=3", "trainer.max_minutes=1")
    assert rates(folders[0]) == rates(folders[1])
    assert metrics_of(folders[0])["test/loss"] == metrics_of(folders[1])["test/loss"]


def test_the_patience_follows_the_epochs_that_fit(table, tmp_path, clock, capsys):
    options = [*OPTIONS, "trainer.epochs=1000", "trainer.patience=0.3", "trainer.max_minutes=5"]
    # Without a learning rate, no epoch after the first one is better.
    metrics = train(tmp_path / "run", table, *options, "optimizer.lr=0")
    # 30 epochs of ten seconds fit into five minutes, and the patience is 30 % of them.
    assert 9 <= metrics["epochs"] <= 12
    assert "stopped early: no better" in capsys.readouterr().out


def test_a_patience_that_is_neither_a_number_of_epochs_nor_a_fraction_is_refused(table, capsys):
    (line,) = refused(capsys, ["train", table, "target=label", "trainer.patience=2.5"])
    assert "trainer" in line and "patience must be a whole number of epochs or a fraction" in line


def test_the_time_before_an_interruption_counts(table, tmp_path, clock, monkeypatch, capsys):
    options = [table, *OPTIONS, "trainer.epochs=200", "trainer.max_minutes=0.5"]
    with interrupt(monkeypatch, step=13):
        assert main(["train", *options, f"run={tmp_path / 'run'}"]) != 0
    metrics = train(tmp_path / "run", f"resume={tmp_path / 'run'}")
    # 30 seconds: three epochs of eight batches, a validation and a checkpoint.
    assert metrics["epochs"] <= 4
    assert metrics["train_seconds"] <= 30
    output = capsys.readouterr().out
    assert re.search(
        r"has used \d+ s of the time limit of 30 s .*before, and \d+ s are left", output
    )


def test_an_interrupted_epoch_is_validated_if_no_time_is_left(
    table, tmp_path, clock, monkeypatch, capsys
):
    run = tmp_path / "run"
    with interrupt(monkeypatch, step=5):  # of eight steps
        often = ["trainer.epochs=200", "trainer.checkpoint_minutes=1e-9"]
        assert main(["train", table, *OPTIONS, *often, f"run={run}"]) != 0
    metrics = train(run, f"resume={run}", "trainer.max_minutes=0.05")
    assert metrics["epochs"] == 1
    output = capsys.readouterr().out
    assert "to train longer, set a higher trainer.max_minutes" in output
    # More minutes continue the training.
    assert train(run, f"resume={run}", "trainer.max_minutes=1")["epochs"] > 1


def test_reading_counts_and_the_rest_is_shared(table, tmp_path, monkeypatch, capsys, clock):
    # The table takes 40 s to read. Of the 20 s that are left, a quarter is for the baseline.
    moments = iter([0.0, 40.0, 0.0, 1.0])
    monkeypatch.setattr("dxn.runs.train.perf_counter", lambda: next(moments))
    monkeypatch.setattr("dxn.stacking.train.MAX_ROWS", 200)
    options = [table, *OPTIONS, "baseline=auto", "trainer.epochs=200", "trainer.patience=0"]
    metrics = train(tmp_path / "run", *options, "trainer.max_minutes=1")
    lines = capsys.readouterr().out.splitlines()
    assert "note: reading took 40 s of the time limit of 1 min 0 s" in lines
    assert any(
        "fit into the time limit of 1 min 0 s (training: at most 15 s)" in line for line in lines
    )
    # It has less than half of its usual minute.
    assert any(line.startswith("note: the baseline learns from 50 of 88 rows") for line in lines)
    assert any(line.startswith("baseline: ") for line in lines)
    assert metrics["epochs"] == 2  # of eight batches, a validation and a checkpoint
    # It has the same time if the next start is faster.
    assert train(tmp_path / "run", f"resume={tmp_path / 'run'}")["epochs"] == 2


def test_each_part_has_its_share_of_the_limit():
    limit = Limit(10, before=60.0, baseline=True, evaluations=4.0)
    assert limit.of_training(validation=10.0) == 600 - 60 - 60 - 40
    assert limit.share_of_baseline(trained=440.0, validation=10.0) == 1.0
    assert limit.share_of_baseline(trained=470.0, validation=10.0) == 0.5
    # Long reading and long evaluations leave a quarter of the limit to the training.
    assert Limit(10, before=700.0, evaluations=4.0).of_training(validation=100.0) == 150
    assert limit.of_evaluation(spent=500.0) == 40
    assert limit.of_evaluation(spent=900.0) == 30
    assert limit.share_of_methods == 1.0
    assert Limit(1).share_of_methods == 0.15
    # However long an evaluation takes, most of the limit is for the training.
    assert Limit(10, evaluations=4.0).of_training(validation=60.0) == 450
    assert Limit().of_training(validation=5.0) == math.inf
    assert Limit().share_of_baseline(trained=9e9, validation=5.0) == 1.0


def test_pretraining_has_half_of_the_limit(table, tmp_path, clock):
    options = [table, *OPTIONS, "pretrain=masked", "pretrain.epochs=200", "trainer.epochs=200"]
    train(tmp_path / "run", *options, "trainer.patience=0", "trainer.max_minutes=1")
    pretrained = metrics_of(tmp_path / "run" / "pretrain")["train_seconds"]
    trained = metrics_of(tmp_path / "run")["train_seconds"]
    assert 15 <= pretrained <= 30
    assert 15 <= trained <= 60 - pretrained


def test_answers_that_take_long_are_validated_and_evaluated_on_fewer_rows(
    tmp_path, monkeypatch, capsys
):
    rows = "\n".join(f"{i} {i * 7},{i} {i * 3}" for i in range(400))
    (tmp_path / "pairs.csv").write_text(f"text,answer\n{rows}")
    options = ["target=answer", "head=generate", "preset=plain", *SMALL, "report=false"]
    moments = itertools.count()  # each prediction takes a minute
    monkeypatch.setattr("dxn.training.limit.monotonic", lambda: 60.0 * next(moments))
    limit = "trainer.max_minutes=2"
    run = tmp_path / "run"
    metrics = train(run, str(tmp_path / "pairs.csv"), *options, "trainer.epochs=1", limit)
    output = capsys.readouterr().out
    assert re.search(r"note: each validation uses \d+ of 40 samples, because all of them ", output)
    assert re.search(r"note: \d+ of 40 samples are evaluated, because the time limit ", output)
    assert metrics["evaluated"] == 8
    assert len((run / "predictions.csv").read_text().splitlines()) == 1 + metrics["evaluated"]
    # Both are said wherever the metrics are.
    remarks = [
        "8 of 40 samples are evaluated, because the time limit",
        "the validation metrics of the epochs are those of 8 of 40 samples, because of the time",
    ]
    card = (run / "model" / "README.md").read_text()
    for remark in remarks:
        assert any(remark in line for line in metrics["remarks"])
        assert f"- {remark}" in card
    # It has the same validation rows after more epochs.
    more = train(run, f"resume={run}", "trainer.epochs=2", "trainer.max_minutes=1000")
    assert more["evaluated"] == 40


def test_runs_of_different_numbers_of_rows_are_not_compared_silently(
    table, tmp_path, monkeypatch, capsys
):
    options = [table, *OPTIONS, "trainer.epochs=1", "trainer.max_minutes=2"]
    all_rows = train(tmp_path / "all", *options)
    moments = itertools.count()  # each prediction takes a minute
    monkeypatch.setattr("dxn.training.limit.monotonic", lambda: 60.0 * next(moments))
    few_rows = train(tmp_path / "few", *options, "ensemble=2")
    assert (all_rows["evaluated"], few_rows["evaluated"]) == (11, 8)
    # The members and their ensemble have the same rows.
    assert metrics_of(tmp_path / "few" / "members" / "0")["evaluated"] == 8
    assert "test/accuracy[mean of the members]" in few_rows
    assert main(["compare", f"run=[{tmp_path / 'all'},{tmp_path / 'few'}]"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "note: the runs were evaluated on different numbers of rows: 8 and 11" in shown


def test_a_resumed_training_has_no_more_steps_than_before(table, tmp_path, monkeypatch):
    now = 0.0
    add_gradients = Fit.add_gradients

    def tick(seconds=0.1):
        nonlocal now
        now += seconds
        return now

    def slow(*arguments, **options):
        tick(10.0)
        return add_gradients(*arguments, **options)

    monkeypatch.setattr("dxn.training.loop.perf_counter", tick)
    monkeypatch.setattr(Fit, "add_gradients", slow)
    monkeypatch.setattr("dxn.runs.train.perf_counter", lambda: 0.0)
    monkeypatch.setattr("dxn.training.limit.monotonic", lambda: tick(1.0))
    # After the fifth step, 0.7 s are left, in which less than half of a step fits.
    options = [table, *OPTIONS, "trainer.epochs=9", f"trainer.max_minutes={53.7 / 60}"]
    run = tmp_path / "run"
    first = train(run, *options)
    assert [row["step"] for row in log_of(run)] == [1, 2, 3, 4, 5, 5]
    assert train(run, f"resume={run}")["epochs"] == first["epochs"]
