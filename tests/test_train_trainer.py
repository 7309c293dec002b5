"""The training loop: repeatable, resumable bit for bit, and aware of nothing but the task."""

import itertools
import json
import math
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.training import fit, make_model, make_samples, make_task
from safetensors.torch import load_file

from dxn.display import Display, duration, track
from dxn.errors import UserError
from dxn.train import checkpoint as checkpoints
from dxn.train.ema import make_ema, use_ema
from dxn.train.evaluate import Predictions, predict, score, to_device
from dxn.train.optim import adamw, constant, sgd
from dxn.train.progress import MAX_LINES, Progress
from dxn.train.trainer import Run, State, Trainer

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[1]
# Every source of randomness and every piece of state at once.
EVERYTHING = {"ema_decay": 0.9, "mixup": 0.5, "epochs": 3, "log_every": 3}


def lines(folder):
    """Rows of metrics.jsonl without the speed."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "samples/s"} for row in rows]


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def checkpoint(folder):
    return load_file(folder / "checkpoints" / "last.safetensors")


def without_time(state):
    return {**vars(state), "seconds": 0, "elapsed": 0}


# Repeatable and resumable


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(tmp_path):
    first, again, other = (
        fit(tmp_path / name, seed=seed, **EVERYTHING)[0].state_dict()
        for name, seed in (("first", 0), ("again", 0), ("other", 1))
    )
    assert same(first, again)
    assert not same(first, other)


def cut_at(monkeypatch, step):
    """Interrupt a training after this optimizer step."""
    original = Run.step

    def step_and_stop(run):
        original(run)
        if run.state.step == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "step", step_and_stop)


@pytest.mark.parametrize("grad_accum_steps", [1, 2])
@pytest.mark.parametrize("step", [6, 7, 8], ids=["1 after", "2 after", "3 after"])
def test_an_interrupted_training_is_resumed_bit_for_bit(
    tmp_path, monkeypatch, step, grad_accum_steps
):
    options = {**EVERYTHING, "checkpoint_every": 2, "grad_accum_steps": grad_accum_steps}
    options["epochs"] = 3 * grad_accum_steps
    whole, state, saved = fit(tmp_path / "whole", **options)
    with monkeypatch.context() as patch:
        cut_at(patch, step)
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path / "cut", **options)
    resumed, resumed_state, resumed_saved = fit(tmp_path / "cut", resume=True, **options)
    assert same(whole.state_dict(), resumed.state_dict())
    assert same(checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "cut"))
    assert lines(tmp_path / "whole") == lines(tmp_path / "cut")
    assert without_time(state) == without_time(resumed_state)
    if resumed_saved:
        assert same(saved[-1][1], resumed_saved[-1][1])


def test_momentum_is_resumed_bit_for_bit(tmp_path, monkeypatch):
    options = {"epochs": 2, "checkpoint_every": 2, "optimizer": sgd}
    whole, _, _ = fit(tmp_path / "whole", **options)
    with monkeypatch.context() as patch:
        cut_at(patch, 7)
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path / "cut", **options)
    resumed, _, _ = fit(tmp_path / "cut", resume=True, **options)
    assert same(whole.state_dict(), resumed.state_dict())
    assert same(checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "cut"))


@pytest.mark.parametrize("epochs", [2, 3, 4])
def test_early_stopping_is_the_same_after_a_resume(tmp_path, epochs):
    """The epochs without improvement before the interruption count."""
    options = {"patience": 2, "lr": 0.0, "ema_decay": 0.5}
    _, whole, _ = fit(tmp_path / "whole", epochs=50, **options)
    fit(tmp_path / "cut", epochs=epochs, **options)
    _, resumed, _ = fit(tmp_path / "cut", epochs=50, resume=True, **options)
    assert without_time(whole) == without_time(resumed)
    assert whole.epoch < 50
    assert lines(tmp_path / "whole") == lines(tmp_path / "cut")


def test_a_stopped_training_continues_without_patience(tmp_path):
    fit(tmp_path / "run", epochs=6, patience=1, lr=0.0)
    _, state, _ = fit(tmp_path / "run", epochs=6, patience=0, lr=0.0, resume=True)
    assert state.epoch == 6


def test_a_training_killed_while_it_validates_has_no_row_twice(tmp_path, monkeypatch):
    options = {"epochs": 2, "checkpoint_every": 5}  # the last batch of an epoch saves one too
    fit(tmp_path / "whole", **options)
    original = Run.save
    with monkeypatch.context() as patch:

        def save(run):
            if run.state.epoch:  # the checkpoint after the first validation is never written
                raise KeyboardInterrupt
            original(run)

        patch.setattr(Run, "save", save)
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path / "cut", **options)
    assert len(lines(tmp_path / "cut")) == 1
    fit(tmp_path / "cut", resume=True, **options)
    assert lines(tmp_path / "whole") == lines(tmp_path / "cut")


def test_a_finished_training_can_be_continued_with_more_epochs(tmp_path):
    fit(tmp_path / "run", epochs=1)
    _, state, _ = fit(tmp_path / "run", epochs=2, resume=True)
    assert (state.epoch, state.step) == (2, 10)
    assert [row["epoch"] for row in lines(tmp_path / "run") if "validation/loss" in row] == [1, 2]


def test_workers_do_not_change_the_result(tmp_path):
    alone, together = (
        fit(tmp_path / str(n), num_workers=n, epochs=1)[0].state_dict() for n in (0, 2)
    )
    assert same(alone, together)


def test_a_folder_without_checkpoint_cannot_be_resumed(tmp_path):
    message = "^resume: no checkpoint in .*checkpoints; a run can be resumed once it has saved one$"
    with pytest.raises(UserError, match=message):
        fit(tmp_path / "run", resume=True)


# Several processes

SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
from helpers.training import fit
from dxn.train.trainer import Run

folder, cut, resume = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "resume"
original = Run.step

def step(run):
    original(run)
    if run.state.step == cut:
        run.settings.accelerator.wait_for_everyone()
        run.settings.accelerator.end_training()
        sys.exit(0)

Run.step = step
options = dict(epochs=2, checkpoint_every=1, ema_decay=0.9, mixup=0.5, log_every=1, batch_size=5)
fit(folder, resume=resume, **options)
first = fit(folder / "second", epochs=1)  # two trainings in one process
"""


def run_together(folder, *, cut=0, resume=False):
    """Two processes that train one model, interrupted after the step `cut`."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    script = folder.parent / "script.py"
    script.write_text(SCRIPT)
    arguments = [str(script), str(folder), str(cut), "resume" if resume else "new"]
    done = subprocess.run(
        [*launch, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr[:6000]
    return done.stdout


def test_two_processes_train_one_model_and_resume_bit_for_bit(tmp_path):
    output = run_together(tmp_path / "whole")
    # 47 samples are ten batches of five: each process has five of them in an epoch.
    steps = [row["step"] for row in lines(tmp_path / "whole") if "train/loss" in row]
    assert steps == list(range(1, 11))
    assert output.count("epoch 2/2") == 1  # one of the processes prints
    run_together(tmp_path / "cut", cut=8)  # in the middle of the second epoch
    assert len(checkpoint(tmp_path / "cut")["generators/cpu"]) == 2
    run_together(tmp_path / "cut", resume=True)
    assert same(checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "cut"))
    assert lines(tmp_path / "whole") == lines(tmp_path / "cut")


# What the options do


def test_accumulated_batches_make_the_step_of_one_large_batch(tmp_path):
    results = []
    for batch_size, steps in ((22, 1), (11, 2)):
        task = make_task(dropout=0.0)
        model = make_model(task, dropout=0.0)
        model.adapters["series"].norm = torch.nn.Identity()  # batch norm depends on the batch
        fit(
            tmp_path / str(steps),
            count=22,
            epochs=1,
            model=model,
            task=task,
            batch_size=batch_size,
            grad_accum_steps=steps,
        )
        results.append(model.state_dict())
    for name, tensor in results[0].items():
        torch.testing.assert_close(tensor, results[1][name], rtol=0, atol=1e-5)


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
    trainer.fit(
        model,
        task,
        optimizer=optimizer,
        schedule=constant(),
        train=make_samples(22, task),
        validation=None,
        folder=tmp_path,
        keep=lambda _: None,
    )
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


def test_the_best_epoch_depends_on_the_monitored_metric_alone():
    state = State(epoch=1)
    assert state.record({"accuracy": 0.5, "loss": 2.0}, make_task())
    state.epoch = 2
    assert not state.record({"accuracy": 0.4, "loss": 1.0}, make_task())
    assert (state.best, state.best_epoch, state.best_loss) == (0.5, 1, 1.0)


def test_the_reason_names_the_metric_alone_if_there_is_no_loss(tmp_path, capsys):
    task = make_task()
    task.metrics = lambda *_: {"accuracy": 0.5, "loss": math.nan}
    fit(tmp_path / "run", epochs=9, patience=3, task=task)
    assert capsys.readouterr().out.endswith("stopped early: no better accuracy in 3 epochs\n")


def test_a_time_limit_reduces_the_number_of_epochs(tmp_path, capsys):
    _, state, saved = fit(tmp_path / "run", epochs=4, max_minutes=1e-9)
    assert state.epoch == len(saved) == 1
    output = capsys.readouterr().out
    assert "epoch 1/1" in output
    assert "stopped early: 1 of 4 epochs fit into the time limit of 0 s" in output
    _, state, _ = fit(tmp_path / "run", epochs=4, max_minutes=60, resume=True)
    assert state.epoch == 4


@pytest.mark.parametrize(
    ("epoch", "elapsed", "limit", "epochs"),
    [(1, 10.0, 60.0, 6), (1, 50.0, 60.0, 1), (1, 70.0, 60.0, 1), (3, 30.0, 65.0, 6), (2, 9, 1, 2)],
)
def test_the_epochs_that_fit_follow_from_their_mean_duration(epoch, elapsed, limit, epochs):
    assert State(epoch=epoch, elapsed=elapsed).epochs_within(limit) == epochs


def test_a_schedule_reaches_its_end_within_the_time_limit(tmp_path, monkeypatch):
    """The number of epochs that fit is known after the first one."""
    monkeypatch.setattr(State, "epochs_within", lambda *_: 2)
    progress = []
    task = make_task()
    model = make_model(task)
    trainer = Trainer(
        epochs=9, max_minutes=1.0, batch_size=11, precision="float32", device="cpu", patience=0
    )
    trainer.fit(
        model,
        task,
        optimizer=adamw(model),
        schedule=lambda fraction: progress.append(fraction) or 1.0,
        train=make_samples(22, task),
        validation=None,
        folder=tmp_path,
        keep=lambda _: None,
    )
    assert progress == [1 / 18, 2 / 18, 3 / 4, 1.0]


def test_the_best_epoch_is_kept(tmp_path):
    _, state, saved = fit(tmp_path / "run", epochs=5)
    rows = [row for row in lines(tmp_path / "run") if "validation/accuracy" in row]
    accuracies = [row["validation/accuracy"] for row in rows]
    assert state.best == max(accuracies) == saved[-1][0]["accuracy"]
    assert state.best_epoch == 1 + accuracies.index(max(accuracies))


def test_without_validation_every_epoch_is_kept(tmp_path):
    _, state, saved = fit(tmp_path / "run", epochs=3, validation=False)
    assert [metrics for metrics, _ in saved] == [{}, {}, {}]
    assert state.best is None
    assert state.best_epoch == 3  # the epoch that is kept


def test_mixup_asks_the_task_to_mix_the_targets(tmp_path):
    task = make_task()
    calls = []
    original = task.mix_targets

    def mix_targets(target, order, share):
        calls.append((target, order, share))
        mixed = original(target, order, share)
        torch.testing.assert_close(mixed.sum(1), torch.ones(len(target)))
        return mixed

    task.mix_targets = mix_targets
    fit(tmp_path / "run", epochs=1, task=task, mixup=0.5)
    assert len(calls) == 5
    for target, order, share in calls:
        assert sorted(order.tolist()) == list(range(len(target))) and 0 <= share <= 1


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
        ({"max_minutes": 0.0}, "max_minutes must be above 0 or null, got 0.0"),
        ({"checkpoint_every": -1}, "checkpoint_every must be at least 0, got -1"),
        ({"ema_decay": 1.0}, "ema_decay must be at least 0 and less than 1, got 1.0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Trainer(**options)


def test_a_device_that_is_not_there_is_refused():
    missing = "cuda" if not torch.cuda.is_available() else "mps"
    message = f"^device: {missing} is not available on this machine; set device=auto$"
    with pytest.raises(ValueError, match=message):
        Trainer(device=missing)


# The moving average


def test_the_average_equals_its_formula():
    """Weights and running statistics, with the decay min(decay, n / (n + 10)) at step n."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    ema = make_ema(model, 0.6)
    expected = {n: t.clone() for n, t in model.state_dict().items() if t.is_floating_point()}
    for n in range(1, 30):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        model(torch.randn(7, 3))  # moves the running statistics
        ema.update_parameters(model)
        decay = min(0.6, n / (n + 10))
        for name, tensor in model.state_dict().items():
            if name in expected:
                expected[name].lerp_(tensor, 1 - decay)
    averaged = ema.module.state_dict()
    for name, tensor in expected.items():
        assert torch.equal(averaged[name], tensor), name
    assert averaged["1.num_batches_tracked"] == 29


def test_the_average_is_used_inside_its_context_only():
    model = torch.nn.Linear(3, 5)
    ema = make_ema(model, 0.9)
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    with pytest.raises(KeyError), use_ema(model, ema):
        assert torch.equal(model.weight, before)
        raise KeyError  # an error inside must not leave the average in the model
    torch.testing.assert_close(model.weight.detach(), before + 1)


def test_the_averaged_weights_are_validated_and_kept(tmp_path):
    model, _, saved = fit(tmp_path / "run", epochs=2, ema_decay=0.9, validation=False)
    last = saved[-1][1]
    stored = checkpoint(tmp_path / "run")
    for name, tensor in model.state_dict().items():
        assert torch.equal(stored[f"model/{name}"], tensor)
        assert torch.equal(stored[f"ema/module.{name}"], last[name])
    assert not same(last, model.state_dict())
    assert int(stored["ema/n_averaged"]) == 11  # the copy at the start, and ten steps


def test_an_average_that_is_turned_on_later_starts_at_the_restored_weights(tmp_path):
    fit(tmp_path / "run", epochs=1)
    before = checkpoint(tmp_path / "run")
    ema = make_ema(make_model(make_task(), seed=1), 0.9)
    model = make_model(make_task(), seed=2)
    folder = tmp_path / "run" / "checkpoints"
    checkpoints.load(folder, model=model, optimizer=adamw(model), ema=ema)
    for name, tensor in ema.module.state_dict().items():
        assert torch.equal(tensor, before[f"model/{name}"]), name


# Predictions


def test_predictions_are_those_of_each_sample_alone_whatever_the_batch():
    task = make_task()
    model = make_model(task).train()
    samples = make_samples(13, task)
    together, alone = (predict(model, task, samples, batch_size=n, device=CPU) for n in (5, 1))
    assert model.training  # in the mode that it was in
    assert list(together.rows) == list(range(13))
    for left, right in zip(together.predicted, alone.predicted, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-6)
    # The loss is the mean over samples, although the last batch is smaller.
    assert together.loss == pytest.approx(alone.loss, abs=1e-6)
    metrics = score(together, samples, task)
    assert metrics["loss"] == together.loss and 0 <= metrics["accuracy"] <= 1


def test_samples_without_targets_are_predicted_without_a_loss():
    task = make_task()
    model = make_model(task)
    samples = make_samples(7, None)
    found = predict(model, task, samples, batch_size=5, device=CPU)
    assert len(found.predicted) == 7 and math.isnan(found.loss)


def test_validation_asks_for_drafts_and_evaluation_does_not(tmp_path):
    task = make_task()
    drafts = []
    original = task.predict

    def recording(head, output, batch, *, draft=False):
        drafts.append(draft)
        return original(head, output, batch, draft=draft)

    task.predict = recording
    model, _, _ = fit(tmp_path / "run", epochs=1, task=task)
    assert set(drafts) == {True}
    drafts.clear()
    predict(model, task, make_samples(7, task), batch_size=5, device=CPU)
    assert set(drafts) == {False}


def test_a_loss_that_the_task_computes_itself_counts():
    task = make_task()
    task.metrics = lambda predictions, truths, loss: {"loss": loss + 1, "other": 0.5}
    predictions = Predictions([0], [torch.zeros(2)], 2.0)
    assert score(predictions, make_samples(1, task), task) == {"loss": 3.0, "other": 0.5}


def test_nested_tensors_are_moved_to_the_device():
    batch = {"size": 2, "target": {"boxes": [torch.zeros(2)]}, "a": {"x": torch.zeros(3)}}
    meta = torch.device("meta")
    moved = to_device(batch, meta)
    assert moved["target"]["boxes"][0].device == moved["a"]["x"].device == meta
    assert moved["size"] == 2
    assert to_device(batch, CPU) is batch


# What is shown


def test_epochs_are_printed_with_their_metrics_and_the_name_of_the_training(tmp_path, capsys):
    progress = Progress(tmp_path, batches=2, epochs=3, name="pretraining")
    state = State(epoch=0, batch=1, step=1)
    progress.batch(torch.tensor(0.5), 4, lr=0.1, state=state, log_every=1)
    progress.epoch({"accuracy": 0.25}, State(epoch=1, step=1, best_epoch=1))
    progress.epoch({}, State(epoch=2, step=2, best_epoch=1))
    progress.close()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("pretraining epoch 1/3  train loss 0.5000  validation accuracy 0.2500")
    assert first.endswith("left *")
    assert "validation" not in second and not second.endswith("*")
    assert [row["step"] for row in lines(tmp_path)] == [1, 1, 2]


def test_only_the_main_process_prints_and_writes(tmp_path, capsys):
    progress = Progress(tmp_path, batches=2, epochs=3, main=False)
    progress.epoch({"accuracy": 0.25}, State(epoch=1, step=1))
    progress.close()
    assert capsys.readouterr().out == "" and not (tmp_path / "metrics.jsonl").exists()


def test_many_short_epochs_print_few_lines_and_always_the_last(tmp_path, capsys):
    epochs = 5 * MAX_LINES
    progress = Progress(tmp_path, batches=1, epochs=epochs)
    for epoch in range(1, epochs + 1):
        progress.epoch({}, State(epoch=epoch, step=epoch), last=epoch == epochs)
    progress.close()
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) < MAX_LINES
    assert shown[0].startswith("epoch 1/100 ") and shown[-1].startswith("epoch 100/100 ")
    assert len(lines(tmp_path)) == epochs


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
    progress = Progress(tmp_path, batches=4, epochs=3)
    progress.display.next = 0.0
    state = State(epoch=0, batch=1, step=1)
    progress.batch(torch.tensor(0.5), 4, lr=0.1, state=state, log_every=10)
    progress.display.next = 0.0
    progress.validation(10, 20, State(epoch=1))
    progress.close()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("epoch 1/3  25 %  loss 0.500  ")
    assert first.endswith(" left") and " samples/s  " in first
    assert second == "epoch 1/3 validation  50 %"


def test_no_batch_waits_for_its_loss(tmp_path):
    """float(loss) waits for the GPU, so it is called for a line that is printed or written only."""

    class Loss(torch.Tensor):
        def __float__(self):
            raise AssertionError

    progress = Progress(tmp_path, batches=99, epochs=3)
    for batch in range(1, 50):
        state = State(batch=batch, step=batch)
        progress.batch(Loss(), 4, lr=0.1, state=state, log_every=100)
    progress.close()


def test_tracked_items_are_all_yielded(capsys):
    assert list(track(iter("abc"), 3, "reading")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


def test_weights_have_the_permissions_of_ordinary_files(tmp_path):
    previous = os.umask(0o027)
    try:
        checkpoints.write_safely(tmp_path / "a.safetensors", {"x": torch.zeros(3)})
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "a.safetensors").stat().st_mode) == 0o640


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


def test_a_schedule_scales_every_group_from_its_own_rate(tmp_path):
    """Layer decay gives groups different rates; the schedule keeps their ratio."""
    task = make_task()
    model = make_model(task, depth=2)
    optimizer = adamw(model, lr=1e-2, layer_decay=0.5)
    base = [group["lr"] for group in optimizer.param_groups]
    seen = []
    optimizer.register_step_pre_hook(
        lambda o, *_: seen.append([group["lr"] for group in o.param_groups])
    )
    trainer = Trainer(epochs=1, batch_size=11, precision="float32", device="cpu")
    trainer.fit(
        model,
        task,
        optimizer=optimizer,
        schedule=lambda progress: 1 - progress / 2,
        train=make_samples(44, task),
        validation=None,
        folder=tmp_path,
        keep=lambda _: None,
    )
    factors = [1 - (step + 1) / 4 / 2 for step in range(4)]
    for rates, factor in zip(seen, factors, strict=True):
        assert rates == pytest.approx([rate * factor for rate in base])
    assert all(a > b for a, b in itertools.pairwise(rates[0] for rates in seen))
