"""Signals, values that are not finite, short memory and damaged checkpoints."""

import json
import math
import os
import signal
from itertools import pairwise

import pytest
import torch
from helpers.runs import checkpoint_of, interrupt, log_of, same_tensors
from helpers.training import fit, without_randomness, without_time

from dxn.core.errors import Interrupted, UserError
from dxn.training import loop
from dxn.training.checkpoint import FILE, all_checkpoints, read
from dxn.training.loop import Fit
from dxn.training.optim import AdamW, sgd

EVERYTHING = {"ema_decay": 0.9, "mixup": 0.5, "epochs": 3, "log_every": 3}
BAD = math.nan


@pytest.fixture
def backward(monkeypatch):
    """Replaces the backward pass by a function of (the original one, the batch, its number)."""

    def patch(function):
        original = Fit.add_gradients
        count = 0

        def counted(trainer, batch, *, as_sum):
            nonlocal count
            count += 1
            return function(lambda changed: original(trainer, changed, as_sum=as_sum), batch, count)

        monkeypatch.setattr(Fit, "add_gradients", counted)

    return patch


def send(number):
    return lambda original, batch, count: (
        os.kill(os.getpid(), number) if count == 8 else None,
        original(batch),
    )[1]


def folders(run):
    return [path.name for path in all_checkpoints(run / "checkpoints")]


# Checkpoints


def test_there_is_a_checkpoint_after_each_epoch_and_two_are_kept(tmp_path, monkeypatch):
    seen = []
    original = Fit.save
    monkeypatch.setattr(Fit, "save", lambda run: (original(run), seen.append(folders(tmp_path)))[0])
    fit(tmp_path, epochs=3)
    steps = [f"step-{step:09}" for step in (5, 10, 15)]
    assert seen == [steps[:1], *([b, a] for a, b in pairwise(steps))]


def test_checkpoints_are_also_written_by_time(tmp_path, monkeypatch):
    steps = []
    original = Fit.save
    monkeypatch.setattr(Fit, "save", lambda run: (original(run), steps.append(run.state.step)))
    fit(tmp_path, epochs=1, checkpoint_minutes=1e-9)
    assert steps == [1, 2, 3, 4, 5, 5]


def test_a_training_killed_before_its_first_checkpoint_is_started_again(tmp_path, monkeypatch):
    whole, state, _ = fit(tmp_path / "whole", **EVERYTHING)
    with interrupt(monkeypatch, step=4), pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", **EVERYTHING)
    with pytest.raises(UserError, match="has no checkpoint yet"):
        fit(tmp_path / "cut", resume=True, **EVERYTHING)
    again, again_state, _ = fit(tmp_path / "cut", **EVERYTHING)
    assert same_tensors(whole.state_dict(), again.state_dict())
    assert without_time(state) == without_time(again_state)
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "cut")


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "bit":
        content[-3] ^= 0x40
    path.write_bytes({"cut": content[:-100], "empty": b"", "junk": b"junk"}.get(how, content))


@pytest.mark.parametrize("how", ["bit", "empty"])
def test_the_checkpoint_before_a_damaged_one_is_used(tmp_path, capsys, how):
    whole, _, _ = fit(tmp_path / "whole", **EVERYTHING)
    fit(tmp_path / "cut", **{**EVERYTHING, "epochs": 2})
    newest = all_checkpoints(tmp_path / "cut" / "checkpoints")[0]
    damage(newest / FILE, how)
    capsys.readouterr()
    resumed, _, _ = fit(tmp_path / "cut", resume=True, **EVERYTHING)
    assert f"damaged checkpoint, the one before it is used: {newest}" in capsys.readouterr().out
    assert (newest.parent / f"damaged-{newest.name}").is_dir()
    # The epochs set the schedule, so only the third epoch of `whole` differs from that of `cut`.
    assert log_of(tmp_path / "cut")[-1]["step"] == 15
    assert whole.state_dict().keys() == resumed.state_dict().keys()


def test_without_an_intact_checkpoint_each_damage_is_named(tmp_path):
    fit(tmp_path, epochs=2)
    for path in all_checkpoints(tmp_path / "checkpoints"):
        damage(path / FILE, "bit")
    with pytest.raises(UserError) as error:
        fit(tmp_path, epochs=3, resume=True)
    assert str(error.value).startswith("resume: all checkpoints in ")
    assert str(error.value).count("the file changed after it was saved") == 2


def test_a_cut_line_of_the_log_is_written_again(tmp_path):
    fit(tmp_path / "whole", **EVERYTHING)
    fit(tmp_path / "cut", **{**EVERYTHING, "epochs": 3})
    log = tmp_path / "cut" / "metrics.jsonl"
    expected = log_of(tmp_path / "cut")
    with log.open("a") as file:
        file.write('{"step": 28, "epo')
    fit(tmp_path / "cut", resume=True, **EVERYTHING)
    assert log_of(tmp_path / "cut") == expected
    assert all(json.loads(line) for line in log.read_text().splitlines())


def test_a_damaged_line_of_the_log_is_named(tmp_path):
    fit(tmp_path, epochs=1)
    log = tmp_path / "metrics.jsonl"
    log.write_text("junk\n" + log.read_text())
    with pytest.raises(UserError, match=r"metrics.jsonl line 1: not a row of a log: b'junk'"):
        fit(tmp_path, epochs=2, resume=True)


# Signals


@pytest.mark.parametrize(
    ("number", "code", "accumulated"),
    [
        (signal.SIGTERM, 143, 1),
        (signal.SIGUSR1, 138, 3),
        (signal.SIGHUP, 129, 1),
        (signal.SIGINT, 130, 3),
    ],
)
def test_a_signal_saves_a_checkpoint_from_which_the_training_continues(
    tmp_path, monkeypatch, backward, number, code, accumulated
):
    options = {**EVERYTHING, "grad_accum_steps": accumulated}
    whole, state, _ = fit(tmp_path / "whole", **options)
    handlers = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT)}
    with monkeypatch.context():
        backward(send(number))
        with pytest.raises(Interrupted) as error:
            fit(tmp_path / "cut", **options)
    monkeypatch.undo()
    assert error.value.code == code
    assert handlers == {name: signal.getsignal(name) for name in handlers}
    # The batches of a step that is not finished are computed again.
    _, saved = read(all_checkpoints(tmp_path / "cut" / "checkpoints")[0])
    assert (saved["epoch"], saved["batch"]) == (1, 3)
    resumed, resumed_state, _ = fit(tmp_path / "cut", resume=True, **options)
    assert same_tensors(whole.state_dict(), resumed.state_dict())
    assert same_tensors(checkpoint_of(tmp_path / "whole"), checkpoint_of(tmp_path / "cut"))
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "cut")
    assert without_time(state) == without_time(resumed_state)


def test_a_signal_during_validation_leaves_the_validation_for_the_resumed_training(
    tmp_path, monkeypatch
):
    whole, state, _ = fit(tmp_path / "whole", **EVERYTHING)
    original = Fit.validate

    def interrupted(trainer):
        if trainer.state.epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(trainer)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Fit, "validate", interrupted)
        fit(tmp_path / "cut", **EVERYTHING)
    resumed, resumed_state, _ = fit(tmp_path / "cut", resume=True, **EVERYTHING)
    assert same_tensors(whole.state_dict(), resumed.state_dict())
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "cut")
    assert without_time(state) == without_time(resumed_state)


def test_a_signal_after_the_last_batch_ends_the_training_with_its_code(tmp_path, monkeypatch):
    whole, state, _ = fit(tmp_path / "whole", **EVERYTHING)
    original = Fit.save

    def interrupted(run):
        original(run)
        if run.is_finished:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch, pytest.raises(Interrupted) as error:
        patch.setattr(Fit, "save", interrupted)
        fit(tmp_path / "cut", **EVERYTHING)
    assert error.value.code == 143
    resumed, resumed_state, _ = fit(tmp_path / "cut", resume=True, **EVERYTHING)
    assert same_tensors(whole.state_dict(), resumed.state_dict())
    assert without_time(state) == without_time(resumed_state)


def test_a_signal_that_nohup_ignores_does_not_stop_the_training(tmp_path, monkeypatch, backward):
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        backward(send(signal.SIGHUP))
        _, state, _ = fit(tmp_path, **EVERYTHING)
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert state.epoch == EVERYTHING["epochs"]


def test_a_second_interrupt_stops_at_once(tmp_path, backward):
    def twice(original, batch, count):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        return original(batch)

    backward(twice)
    with pytest.raises(KeyboardInterrupt) as error:
        fit(tmp_path, epochs=1)
    assert not isinstance(error.value, Interrupted)


# Values that are not finite


def spoil(batch):
    values = batch["series"]["values"].clone()
    values[0] = BAD
    return {**batch, "series": {**batch["series"], "values": values}}


def test_a_step_whose_loss_is_not_finite_is_left_out_and_named(tmp_path, capsys, backward):
    backward(lambda original, batch, count: original(spoil(batch) if count == 3 else batch))
    _, state, _ = fit(tmp_path, epochs=2, log_every=1)
    assert (state.step, state.skipped, state.skipped_in_row) == (10, 1, 0)
    printed = capsys.readouterr().out
    assert (
        "warning: no optimizer step at step 3 (epoch 1), where the loss is not finite (" in printed
    )
    assert all(
        bool(t.isfinite().all()) for t in checkpoint_of(tmp_path).values() if t.is_floating_point()
    )
    losses = [row["train/epoch_loss"] for row in log_of(tmp_path) if "train/epoch_loss" in row]
    assert len(losses) == 2 and all(map(math.isfinite, losses))


def test_the_rows_with_values_that_are_not_finite_are_named(tmp_path, capsys, monkeypatch):
    from helpers import training

    original = training.make_rows

    def rows(count, *, seed=0):
        opened = original(count, seed=seed)
        if seed == 0:
            opened.raws["series"][7][0][0] = BAD
        return opened

    monkeypatch.setattr(training, "make_rows", rows)
    fit(tmp_path, epochs=1)
    assert "(values that are not finite in row 7)" in capsys.readouterr().out


def test_an_infinite_gradient_makes_no_step(tmp_path, capsys, monkeypatch):
    original = Fit.add_gradients

    def add_gradients(trainer, batch, *, as_sum):
        loss = original(trainer, batch, as_sum=as_sum)
        if trainer.state.step == 3:
            next(p for p in trainer.model.parameters() if p.grad is not None).grad[0] = math.inf
        return loss

    monkeypatch.setattr(Fit, "add_gradients", add_gradients)
    _, state, _ = fit(tmp_path, epochs=1, ema_decay=0.9, max_grad_norm=0.0)
    assert state.skipped == 1
    assert "where the gradient is not finite" in capsys.readouterr().out


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.01])
def test_a_step_that_the_optimizer_skips_is_counted_later(
    tmp_path, capsys, backward, monkeypatch, max_grad_norm
):
    """As on a GPU, which is asked for the steps that are logged, and before each checkpoint."""
    found = []
    for name in ("asked", "later"):
        monkeypatch.setattr(Fit, "skips_on_device", property(lambda _, name=name: name == "later"))
        with monkeypatch.context() as patch:
            original = Fit.add_gradients

            def add_gradients(trainer, batch, *, as_sum, original=original):
                bad = trainer.state.step == 8  # shortly before the end, for the average
                return original(trainer, spoil(batch) if bad else batch, as_sum=as_sum)

            patch.setattr(Fit, "add_gradients", add_gradients)
            folder = tmp_path / name
            options = {"log_every": 4, "ema_decay": 0.9}
            state = fit(folder, max_grad_norm=max_grad_norm, **options)[1]
        assert (state.step, state.skipped, state.skipped_in_row) == (10, 1, 0)
        printed = capsys.readouterr().out.splitlines()
        warning = next(line for line in printed if line.startswith("warning"))
        found.append((warning, checkpoint_of(folder)))
    (warning, one), (same, other) = found
    assert warning == same
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-3, atol=1e-4)


def test_a_training_stops_after_too_many_steps_without_a_finite_loss(
    tmp_path, backward, monkeypatch
):
    monkeypatch.setattr(loop, "MAX_SKIPPED", 4)
    backward(lambda original, batch, count: original(spoil(batch) if count > 2 else batch))
    message = (
        "^training stopped: 4 optimizer steps in a row were not possible; the last one was step 6 "
        r"\(epoch 2\), where the loss is not finite \(batch with row 19, row 41, row 22\); lower "
    )
    with pytest.raises(UserError, match=message):
        fit(tmp_path, epochs=3)


def test_weights_that_are_not_finite_are_never_saved(tmp_path, monkeypatch):
    original = Fit._update

    def update(trainer, *arguments, **options):
        original(trainer, *arguments, **options)
        if trainer.state.step == 7:
            with torch.no_grad():
                next(trainer.model.parameters()).fill_(BAD)

    monkeypatch.setattr(Fit, "_update", update)
    monkeypatch.setattr(loop, "name_rows", lambda *_: "rows")
    with pytest.raises(UserError):
        fit(tmp_path, epochs=2, checkpoint_every=1)
    newest = all_checkpoints(tmp_path / "checkpoints")[0]
    assert newest.name == "step-000000006"


# Memory


def short_of_memory(limit):
    """Fail as torch does if a batch has more samples than the memory can hold."""

    def function(original, batch, count):
        if batch["#size"] > limit:
            original(batch)  # the gradients of a part of the model can be there already
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 1 TB")
        return original(batch)

    return function


@pytest.mark.parametrize(
    "sizes",
    [{}, {"grad_accum_steps": 2}, {"batch_tokens": 64}],
    ids=["batch", "accumulated", "tokens"],
)
def test_a_batch_that_does_not_fit_is_divided_with_the_same_result(
    tmp_path, capsys, backward, sizes
):
    # Dropout would draw other numbers for smaller batches.
    options = {"epochs": 2, "optimizer": sgd, **sizes}
    whole, state, _ = fit(tmp_path / "whole", model=without_randomness(), **options)
    backward(short_of_memory(3))
    parted, parted_state, _ = fit(tmp_path / "parted", model=without_randomness(), **options)
    assert (
        "out of memory; each batch of 11 samples is now computed in 4 parts"
        in capsys.readouterr().out
    )
    assert parted_state.parts == 4 and parted_state.step == state.step
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(parted.state_dict()[name], tensor, rtol=0, atol=1e-5)


def test_a_sample_that_does_not_fit_alone_ends_the_training_with_advice(tmp_path, backward):
    backward(short_of_memory(0))
    with pytest.raises(UserError, match=r"^out of memory with a single sample; use a"):
        fit(tmp_path, epochs=1)


def test_too_little_memory_for_the_optimizer_is_no_reason_for_smaller_batches(
    tmp_path, monkeypatch
):
    def step(optimizer, *arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(AdamW, "step", step)
    with pytest.raises(UserError, match=r"^out of memory for the state of the optimizer, whose"):
        fit(tmp_path, epochs=1)
