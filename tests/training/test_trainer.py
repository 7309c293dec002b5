"""The training loop: what each option does, and that it knows nothing but the task."""

import functools
import itertools
import json
import math

import pytest
import torch
from helpers.runs import checkpoint_of, interrupt, log_of, same_tensors
from helpers.training import fit, make_model, make_samples, make_task
from safetensors.torch import save_file

from dxn.core.errors import Interrupted, UserError
from dxn.core.files import write_sums
from dxn.data.dataset import Samples
from dxn.training.checkpoint import FILE, all_checkpoints, read
from dxn.training.loop import Fit
from dxn.training.optim import adamw, constant, sgd
from dxn.training.state import State
from dxn.training.trainer import Trainer


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_accumulated_batches_make_the_step_of_one_large_batch(tmp_path, dropout):
    """The masks of dropout do not depend on the batch."""
    results = []
    for batch_size, steps in ((22, 1), (11, 2)):
        task = make_task(dropout=dropout)
        model = make_model(task, dropout=dropout)
        fit(
            tmp_path / str(steps),
            count=22,
            epochs=1,
            model=model,
            task=task,
            batch_size=batch_size,
            grad_accum_steps=steps,
            optimizer=sgd,  # the first step of Adam has the same size for any gradient
        )
        results.append(model.state_dict())
    initial = make_model(task).state_dict()
    assert not torch.equal(results[0]["head.out.weight"], initial["head.out.weight"])
    for name, tensor in results[0].items():
        torch.testing.assert_close(tensor, results[1][name], rtol=0, atol=1e-6)


def test_checkpointed_activations_give_the_same_weights(tmp_path):
    """The backward pass computes each block again with its own dropout."""
    results = []
    for checkpointing in (False, True):
        model = make_model(make_task())
        model.backbone.activation_checkpointing = checkpointing
        fit(tmp_path / str(checkpointing), epochs=1, model=model)
        results.append(model.state_dict())
    for name, tensor in results[0].items():
        torch.testing.assert_close(tensor, results[1][name], rtol=0, atol=1e-6)


def test_a_gradient_above_the_limit_is_scaled_down(tmp_path):
    norms = []
    task = make_task()
    model = make_model(task)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.register_step_pre_hook(
        lambda *_: norms.append(
            float(
                torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in model.parameters()]))
            )
        )
    )
    trainer = Trainer(
        epochs=1, batch_size=11, precision="float32", device="cpu", max_grad_norm=0.01
    )
    run = Fit(
        trainer,
        model,
        task,
        optimizer=optimizer,
        schedule=constant(),
        train=make_samples(22, task),
        validation=None,
        folder=tmp_path,
        keep=lambda _: None,
    )
    run.run()
    assert norms == pytest.approx([0.01, 0.01], rel=1e-3)


def test_patience_stops_a_training_that_does_not_improve(tmp_path, capsys):
    _, state, _ = fit(tmp_path / "run", epochs=50, patience=2, lr=0.0)
    assert (state.epoch, state.best_epoch, state.worse) == (3, 1, 2)
    output = capsys.readouterr().out
    assert output.endswith("stopped early: no better accuracy or loss in 2 epochs\n")
    assert " left" not in output.splitlines()[-2]


@pytest.mark.parametrize(
    ("figures", "worse"),
    [
        ([(0.5, 1.0), (0.6, 2.0), (0.7, 3.0)], [0, 0, 0]),  # the accuracy alone improves
        ([(0.5, 3.0), (0.5, 2.0), (0.4, 1.0)], [0, 0, 0]),  # the loss alone improves
        ([(0.5, 1.0), (0.5, 1.0), (0.4, 2.0)], [0, 1, 2]),
        ([(0.5, 1.0), (0.4, 2.0), (0.6, 3.0), (0.5, 4.0)], [0, 1, 0, 1]),
        ([(0.5, math.nan), (0.5, math.nan), (0.6, math.nan)], [0, 1, 0]),  # a task without loss
        ([(math.nan, math.nan), (0.5, math.nan), (math.nan, 1.0)], [1, 0, 0]),
        ([(math.nan, math.nan), (math.nan, math.nan)], [1, 2]),
    ],
)
def test_the_metric_and_the_loss_reset_the_patience_and_nan_does_not(figures, worse):
    state = State()
    found = []
    for accuracy, loss in figures:
        state.epoch += 1
        state.record({"accuracy": accuracy, "loss": loss}, make_task())
        found.append(state.worse)
    assert found == worse


def test_the_loss_decides_only_between_epochs_with_equal_metrics():
    state = State(epoch=1)
    assert state.record({"accuracy": 0.5, "loss": 2.0}, make_task())
    state.epoch = 2
    assert not state.record({"accuracy": 0.4, "loss": 1.0}, make_task())
    assert (state.best, state.best_epoch, state.best_loss) == (0.5, 1, 1.0)
    # Not the lowest loss so far, but lower than that of the first epoch.
    state.epoch = 3
    assert state.record({"accuracy": 0.5, "loss": 1.5}, make_task())
    state.epoch = 4
    assert not state.record({"accuracy": 0.5, "loss": 1.5}, make_task())
    assert (state.best, state.best_epoch, state.kept_loss) == (0.5, 3, 1.5)
    assert state.best_loss == 1.0


def test_the_reason_names_the_metric_alone_if_there_is_no_loss(tmp_path, capsys):
    task = make_task()
    task.metric.metrics = lambda *_: {"accuracy": 0.5, "loss": math.nan}
    fit(tmp_path / "run", epochs=9, patience=3, task=task)
    assert capsys.readouterr().out.endswith("stopped early: no better accuracy in 3 epochs\n")


def test_a_time_limit_reduces_the_number_of_epochs(tmp_path, capsys):
    _, state, saved = fit(tmp_path / "run", epochs=4, max_minutes=1e-9)
    assert state.epoch == len(saved) == 1
    output = capsys.readouterr().out
    assert "epoch 1/1" in output
    assert "stopped early: the time limit of 0 s ended the first epoch" in output
    _, state, _ = fit(tmp_path / "run", epochs=4, max_minutes=60, resume=True)
    assert state.epoch == 4


def test_a_time_limit_ends_the_first_epoch_too(tmp_path, monkeypatch, capsys):
    clock = itertools.count()
    monkeypatch.setattr("dxn.training.loop.perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr("dxn.training.limit.monotonic", lambda: 0.0)
    # Each of the five batches of an epoch takes a second.
    _, state, saved = fit(tmp_path / "run", epochs=4, max_minutes=3 / 60, log_every=1)
    assert (state.epoch, state.step, len(saved)) == (1, 3, 1)
    lines = capsys.readouterr().out.splitlines()
    # It is said as soon as two steps have been measured.
    assert lines[0].startswith("note: an epoch takes about 5 s at the measured speed, so the time")
    assert "limit of 3 s will end the first one after 60%" in lines[0]
    assert lines[-1].startswith("stopped early: the time limit of 3 s ended the first epoch")
    # The number of batches of an epoch that was ended says nothing about the next one.
    assert state.batches_per_epoch == 0
    _, state, _ = fit(tmp_path / "run", epochs=4, max_minutes=60, log_every=1, resume=True)
    assert (state.epoch, state.step, state.batches_per_epoch) == (4, 3 + 3 * 5, 5)


def test_the_time_limit_includes_the_checkpoints(tmp_path, monkeypatch, capsys):
    minutes = [0.0]
    save = Fit.save

    def save_slowly(self):
        minutes[0] += 1
        save(self)

    monkeypatch.setattr("dxn.training.loop.perf_counter", lambda: 60 * minutes[0])
    monkeypatch.setattr(Fit, "save", save_slowly)
    _, state, _ = fit(tmp_path / "run", epochs=9, max_minutes=4)
    # Another epoch would have no time for a step before its checkpoint.
    assert state.epoch == 3
    output = capsys.readouterr().out
    assert " left" in output.splitlines()[-3] and " left" not in output.splitlines()[-2]
    assert output.endswith("stopped early: 3 of 9 epochs fit into the time limit of 4 min 0 s\n")


def test_a_signal_that_only_another_process_has_received_stops_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr("dxn.training.loop.is_any", lambda value, device: True)
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", epochs=1)


def test_a_resume_with_a_smaller_batch_size_starts_with_undivided_batches(tmp_path):
    fit(tmp_path / "run", epochs=1)
    (checkpoint,) = all_checkpoints(tmp_path / "run" / "checkpoints")
    tensors, state = read(checkpoint)
    save_file(tensors, checkpoint / FILE, {"state": json.dumps({**state, "parts": 8})})
    write_sums(checkpoint)
    _, state, _ = fit(tmp_path / "run", epochs=2, batch_size=5, resume=True)
    assert (state.parts, state.batches_per_epoch) == (1, 10)


@pytest.mark.parametrize(
    ("epoch", "elapsed", "limit", "epochs"),
    [(1, 10.0, 60.0, 6), (1, 50.0, 60.0, 2), (1, 70.0, 60.0, 1), (3, 30.0, 65.0, 7), (2, 9, 1, 2)],
)
def test_the_epochs_that_begin_in_time_follow_from_their_mean_duration(
    epoch, elapsed, limit, epochs
):
    assert State(epoch=epoch, elapsed=elapsed).epochs_within(limit) == epochs


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_every_step_of_a_short_training_has_a_learning_rate_above_0(tmp_path, epochs):
    fit(tmp_path / "run", epochs=epochs, batch_size=47, log_every=1)
    rates = [row["lr"] for row in log_of(tmp_path / "run") if "lr" in row]
    assert len(rates) == epochs
    assert 1e-2 >= max(rates) > 0.5e-2
    assert min(rates) > 0.05 * 1e-2


def test_the_best_epoch_is_kept(tmp_path):
    _, state, saved = fit(tmp_path / "run", epochs=5)
    rows = [row for row in log_of(tmp_path / "run") if "validation/accuracy" in row]
    # Equal accuracies are ranked by the loss.
    best = max(rows, key=lambda row: (row["validation/accuracy"], -row["validation/loss"]))
    assert state.best == best["validation/accuracy"] == saved[-1][0]["accuracy"]
    assert state.best_epoch == best["epoch"]


def test_without_validation_every_epoch_is_kept(tmp_path):
    _, state, saved = fit(tmp_path / "run", epochs=3, validation=False)
    assert [metrics for metrics, _ in saved] == [{}, {}, {}]
    assert state.best is None
    assert state.best_epoch == 3  # the epoch that is kept


# The second loss is far below the first one, or later ones are, or the third one has risen, which
# shows that the model memorizes.
@pytest.mark.parametrize(
    ("losses", "option", "expected"),
    [
        ([2.0, 0.9, 0.9, 0.9], "patience", [0, 1, 2, 3]),
        ([2.0, 0.9, 0.9, 0.9], "input_dropout", []),
        ([2.0, 0.9, 0.9, 0.9, 0.9, 0.9], "input_dropout", [2]),
        ([2.0, 1.1, 0.9, 0.9, 0.9, 0.9], "input_dropout", []),
        ([2.0, 2.3, 2.3, 2.3, 2.3, 2.3], "input_dropout", [2]),
        ([2.0, 1.9, 2.2, 2.2, 2.2, 2.2, 2.2, 2.2], "input_dropout", [3]),
    ],
)
def test_inputs_are_dropped_at_the_stages_of_the_training_that_need_it(
    tmp_path, monkeypatch, losses, option, expected
):
    epochs, figures = len(losses), iter(losses)
    dropped = set()
    batch = Samples.batch

    def record(samples, epoch, indices, *, drop_inputs):
        if samples.augment and drop_inputs:
            dropped.add(epoch)
        return batch(samples, epoch, indices, drop_inputs=drop_inputs)

    monkeypatch.setattr(Samples, "batch", record)
    monkeypatch.setattr(
        "dxn.training.loop.score",
        lambda *_, **__: {"loss": next(figures), "accuracy": 0.5, "f1_macro": 0.5},
    )
    fit(tmp_path, count=10, epochs=epochs, patience=0, once_learning=[option])
    assert sorted(dropped) == expected


def test_mixup_asks_the_task_to_mix_the_targets(tmp_path):
    task = make_task()
    calls = []
    original = task.space.mix

    def mix_targets(target, order, share):
        calls.append((target, order, share))
        mixed = original(target, order, share)
        torch.testing.assert_close(mixed.sum(1), torch.ones(len(target)))
        return mixed

    task.space.mix = mix_targets
    fit(tmp_path / "run", epochs=1, task=task, mixup=0.5)
    assert len(calls) == 5
    for target, order, share in calls:
        assert sorted(order.tolist()) == list(range(len(target))) and 0 <= share <= 1


# Losses after three epochs that have fallen, that stay at chance, and that rise.
@pytest.mark.parametrize(
    ("early", "epochs_with_mixup"),
    [((2.0, 0.9, 0.5), {2, 3}), ((2.0, 1.0, 0.5), {3}), ((2.0, 1.6, 1.5), set()),
     ((2.0, 2.1, 2.0), set()), ((2.0, 2.3, 2.0), {2, 3}), ((1.0, 0.6, 0.71), {3})],
)  # fmt: skip
def test_mixup_begins_when_the_validation_loss_has_fallen_or_risen(
    tmp_path, monkeypatch, early, epochs_with_mixup
):
    losses, mixed = iter([*early, 1.5]), set()
    task = make_task()
    mix_targets = task.space.mix
    add_gradients = Fit.add_gradients

    def record(trainer, batch, **options):
        epoch = trainer.state.epoch
        task.space.mix = lambda *arguments: mixed.add(epoch) or mix_targets(*arguments)
        return add_gradients(trainer, batch, **options)

    monkeypatch.setattr(Fit, "add_gradients", record)
    monkeypatch.setattr(
        "dxn.training.loop.score",
        lambda *_, **__: {"loss": next(losses), "accuracy": 0.5, "f1_macro": 0.5},
    )
    fit(tmp_path, count=10, epochs=4, task=task, mixup=0.5, once_learning=["mixup"])
    assert mixed == epochs_with_mixup


@pytest.mark.parametrize(
    ("losses", "count"),
    [((2.0, 0.9, 0.9, 0.9), 4), ((2.0, 1.0, 1.05, 1.05), 6), ((2.0, 1.0, 1.05, 1.25), 4)],
)
def test_patience_begins_when_the_validation_loss_has_fallen_or_risen(
    tmp_path, monkeypatch, losses, count
):
    losses = iter([*losses, 1.05, 1.05])
    monkeypatch.setattr(
        "dxn.training.loop.score",
        lambda *_, **__: {"loss": next(losses), "accuracy": 0.5, "f1_macro": 0.5},
    )
    _, state, _ = fit(tmp_path, count=10, epochs=6, patience=2, once_learning=["patience"])
    assert state.epoch == count


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": -3}, "batch_size must be at least 1, got -3"),
        ({"grad_accum_steps": 0}, "grad_accum_steps must be at least 1, got 0"),
        ({"log_every": 0}, "log_every must be at least 1, got 0"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be at least 0, got -1.0"),
        ({"mixup": -0.1}, "mixup must be at least 0, got -0.1"),
        ({"patience": -1}, "patience must be at least 0, got -1"),
        ({"max_minutes": 0.0}, "max_minutes must be greater than 0, got 0.0"),
        ({"ema_decay": 1.0}, "ema_decay must be below 1, got 1.0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Trainer(**options)


def test_a_device_that_is_not_there_is_refused():
    missing = "cuda" if not torch.cuda.is_available() else "mps"
    message = f"^trainer.device: {missing} is not available on this machine; set device=auto$"
    with pytest.raises(UserError, match=message):
        _ = Trainer(device=missing).hardware


def test_more_processes_than_gpus_are_refused(monkeypatch):
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    message = r"torchrun started 2 processes on this machine, which has 1 GPU; .* set device=cpu$"
    with pytest.raises(UserError, match=message):
        _ = Trainer().hardware
    assert Trainer(device="cpu").hardware.device.type == "cpu"


def test_a_schedule_scales_every_group_from_its_own_rate(tmp_path):
    """Layer decay gives groups different rates; the schedule keeps their ratio."""
    task = make_task()
    model = make_model(task, depth=2)
    optimizer = adamw(lr=1e-2, layer_decay=0.5)(model)
    base = [group["lr"] for group in optimizer.param_groups]
    seen = []
    optimizer.register_step_pre_hook(
        lambda o, *_: seen.append([group["lr"] for group in o.param_groups])
    )
    trainer = Trainer(epochs=1, batch_size=11, precision="float32", device="cpu")
    run = Fit(
        trainer,
        model,
        task,
        optimizer=optimizer,
        schedule=lambda progress: 1 - progress / 2,
        train=make_samples(44, task),
        validation=None,
        folder=tmp_path,
        keep=lambda _: None,
    )
    run.run()
    factors = [1 - (step + 1) / 5 / 2 for step in range(4)]
    for rates, factor in zip(seen, factors, strict=True):
        assert rates == pytest.approx([rate * factor for rate in base])
    assert all(a > b for a, b in itertools.pairwise(rates[0] for rates in seen))


# fp16


def test_a_training_in_fp16_is_close_to_one_in_float32_and_resumes_bit_for_bit(
    tmp_path, monkeypatch
):
    options = {"epochs": 3, "batch_size": 11, "checkpoint_every": 1, "log_every": 1}
    _, state, _ = fit(tmp_path / "whole", precision="fp16", **options)
    fit(tmp_path / "float32", precision="float32", **options)
    ours, theirs = (
        [row["train/loss"] for row in log_of(tmp_path / name) if "train/loss" in row]
        for name in ("whole", "float32")
    )
    assert ours == pytest.approx(theirs, rel=2e-2) and ours != theirs
    saved = checkpoint_of(tmp_path / "whole")
    assert state.skipped == 0 and saved["scaler/scale"] == 2**16
    assert saved["scaler/_growth_tracker"] == state.step
    with interrupt(monkeypatch, step=7), pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", precision="fp16", **options)
    fit(tmp_path / "cut", precision="fp16", resume=True, **options)
    last = [checkpoint_of(tmp_path / name) for name in ("cut", "whole")]
    assert same_tensors(*last)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_the_loss_is_scaled_by_less_until_its_gradient_fits_into_fp16(
    tmp_path, monkeypatch, capsys, accumulated
):
    largest = 2.0**24
    scaler = functools.partial(torch.amp.GradScaler, init_scale=largest)
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)
    options = {"epochs": 3, "batch_size": 3, "grad_accum_steps": accumulated}
    model, state, _ = fit(tmp_path / "run", precision="fp16", **options)
    saved = checkpoint_of(tmp_path / "run")
    scale, taken = float(saved["scaler/scale"]), int(saved["scaler/_growth_tracker"])
    assert 1 < scale < largest and 0 < taken < state.step
    assert state.step - taken >= math.log2(largest / scale)
    assert state.skipped == 0 and "warning" not in capsys.readouterr().out
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_a_factor_of_the_loss_that_is_not_positive_is_refused(tmp_path):
    fit(tmp_path, epochs=1, precision="fp16")
    folder = all_checkpoints(tmp_path / "checkpoints")[0]
    tensors, state = read(folder)
    tensors["scaler/scale"] = torch.tensor(-1.0)
    save_file(tensors, folder / FILE, {"state": json.dumps(state)})
    write_sums(folder)
    with pytest.raises(UserError, match="scaler: not a state of the factor of the loss"):
        fit(tmp_path, epochs=2, precision="fp16", resume=True)
