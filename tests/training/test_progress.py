"""What is shown and logged of a training."""

import math

import pytest
import torch
from helpers.runs import log_of

from dxn.core.display import Display, duration, track
from dxn.training.log import MAX_LINES, Log
from dxn.training.state import State


def test_epochs_are_printed_with_their_metrics_and_the_name_of_the_training(tmp_path, capsys):
    log = Log(tmp_path, log_every=1, batches=2, epochs=3, name="pretraining")
    state = State(epoch=0, batch=1, step=1)
    log.step(torch.tensor(0.5), 4, 1, 0.1, state)
    for metrics, epoch in (({"accuracy": 0.25}, 1), ({}, 2)):
        state = State(epoch=epoch, step=epoch, best_epoch=1)
        log.write_epoch(metrics, state)
        log.print_epoch(metrics, state)
    log.close()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("pretraining epoch 1/3  train loss 0.5  validation accuracy 0.25")
    assert first.endswith("left *")
    assert "validation" not in second and not second.endswith("*")
    assert [row["step"] for row in log_of(tmp_path)] == [1, 1, 2]


def test_an_epoch_with_fewer_batches_than_a_line_has_its_mean_loss_in_the_log(tmp_path):
    log = Log(tmp_path, log_every=10, batches=3, epochs=2)
    for epoch, losses in enumerate([(0.5, 1.0, 3.0), (0.25, 0.75, 2.0)]):
        for batch, loss in enumerate(losses, start=1):
            state = State(epoch=epoch, batch=batch, step=3 * epoch + batch)
            log.step(torch.tensor(loss), 4, 1, 0.1, state)
        log.write_epoch({"loss": 7.0}, State(epoch=epoch + 1, step=3 * (epoch + 1)))
    log.close()
    assert log_of(tmp_path) == [
        {"step": 3, "epoch": 1, "train/epoch_loss": 1.5, "validation/loss": 7.0},
        {"step": 6, "epoch": 2, "train/epoch_loss": 1.0, "validation/loss": 7.0},
    ]


def test_only_the_main_process_prints_and_writes(tmp_path, capsys):
    log = Log(tmp_path, log_every=10, batches=2, epochs=3, main=False)
    log.write_epoch({"accuracy": 0.25}, State(epoch=1, step=1))
    log.print_epoch({"accuracy": 0.25}, State(epoch=1, step=1))
    log.close()
    assert capsys.readouterr().out == "" and not (tmp_path / "metrics.jsonl").exists()


def test_many_short_epochs_print_few_lines_and_always_the_last(tmp_path, capsys):
    epochs = 5 * MAX_LINES
    log = Log(tmp_path, log_every=10, batches=1, epochs=epochs)
    for epoch in range(1, epochs + 1):
        log.write_epoch({}, State(epoch=epoch, step=epoch))
        log.print_epoch({}, State(epoch=epoch, step=epoch), last=epoch == epochs)
    log.close()
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) < MAX_LINES
    assert shown[0].startswith("epoch 1/100 ") and shown[-1].startswith("epoch 100/100 ")
    assert len(log_of(tmp_path)) == epochs


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_log_file_has_lines_at_growing_intervals(capsys):
    clock = Clock()
    display = Display(clock=clock)
    for second in range(200):
        clock.now = second
        if display.is_due():
            display.update("epoch 1/3", second, 200, f"at {second} s")
    display.close()
    assert capsys.readouterr().out.splitlines() == [
        "epoch 1/3  5 %  at 10 s",
        "epoch 1/3  15 %  at 30 s",
        "epoch 1/3  30 %  at 60 s",
        "epoch 1/3  60 %  at 120 s",
        "epoch 1/3  90 %  at 180 s",
    ]


def test_a_printed_line_starts_the_interval_again():
    clock = Clock()
    display = Display(clock=clock)
    clock.now = 9
    display.line("epoch 1/3")
    clock.now = 18
    assert not display.is_due()
    clock.now = 19
    assert display.is_due()


def test_only_the_main_process_shows_progress(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    clock = Clock()
    display = Display(clock=clock)
    clock.now = 1000
    assert not display.is_due()
    display.line("epoch 1/3")
    assert capsys.readouterr().out == ""


def test_progress_within_an_epoch_has_the_loss_the_speed_and_the_time_left(tmp_path, capsys):
    log = Log(tmp_path, log_every=10, batches=4, epochs=3)
    log.display.since = -math.inf
    state = State(epoch=0, batch=1, step=1)
    log.epoch_start -= 800  # seconds
    log.step(torch.tensor(0.5), 4, 1, 0.1, state)
    log.display.since = -math.inf
    log.validation(10, 20, State(epoch=1))
    log.close()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("epoch 1/3  25 %  loss 0.500  ")
    assert first.endswith(" left") and "  0.005 samples/s  " in first
    assert second == "epoch 1/3 validation  50 %"


def test_no_batch_waits_for_its_loss(tmp_path):
    """float(loss) waits for the GPU, so it is called for a line that is printed or written only."""

    class Loss(torch.Tensor):
        def __float__(self):
            raise AssertionError

    log = Log(tmp_path, log_every=100, batches=99, epochs=3)
    for batch in range(1, 50):
        state = State(batch=batch, step=batch)
        log.step(Loss(), 4, 1, 0.1, state)
    log.close()


def test_tracked_items_are_all_yielded(capsys):
    assert list(track(iter("abc"), 3, "reading")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.6, "1 min 0 s"),
        (61, "1 min 1 s"),
        (3599, "59 min 59 s"),
        (7320, "2 h 2 min"),
    ],
)
def test_durations_are_readable(seconds, text):
    assert duration(seconds) == text
