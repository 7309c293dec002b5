"""A training is repeatable, and it resumes bit for bit."""

import pytest
from helpers.runs import checkpoint_of, interrupt, log_of, same_tensors
from helpers.training import fit, without_time

from dxn.core.errors import UserError
from dxn.training.checkpoint import all_checkpoints, read
from dxn.training.loop import Fit
from dxn.training.optim import sgd

# Every source of randomness and every piece of state at once.
EVERYTHING = {"ema_decay": 0.9, "mixup": 0.5, "epochs": 3, "log_every": 3}


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(tmp_path):
    first, again, other = (
        fit(tmp_path / name, seed=seed, **EVERYTHING)[0].state_dict()
        for name, seed in (("first", 0), ("again", 0), ("other", 1))
    )
    assert same_tensors(first, again)
    assert not same_tensors(first, other)


@pytest.mark.parametrize(
    ("step", "grad_accum_steps", "batch"),
    # Up to 8 steps count as 8 tokens, so both have eleven samples per batch.
    [(6, 1, {}), (7, 2, {}), (8, 2, {}), (7, 1, {"batch_size": 99, "batch_tokens": 88})],
    ids=["1 after", "2 after, accumulated", "3 after, accumulated", "2 after, tokens"],
)
def test_an_interrupted_training_is_resumed_bit_for_bit(
    tmp_path, monkeypatch, step, grad_accum_steps, batch
):
    options = {**EVERYTHING, **batch, "checkpoint_every": 2, "grad_accum_steps": grad_accum_steps}
    options["epochs"] = 3 * grad_accum_steps
    whole, state, saved = fit(tmp_path / "whole", **options)
    with interrupt(monkeypatch, step=step), pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", **options)
    resumed, resumed_state, resumed_saved = fit(tmp_path / "cut", resume=True, **options)
    assert same_tensors(whole.state_dict(), resumed.state_dict())
    assert same_tensors(checkpoint_of(tmp_path / "whole"), checkpoint_of(tmp_path / "cut"))
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "cut")
    assert without_time(state) == without_time(resumed_state)
    if resumed_saved:
        assert same_tensors(saved[-1][1], resumed_saved[-1][1])


def test_momentum_is_resumed_bit_for_bit(tmp_path, monkeypatch):
    options = {"epochs": 2, "checkpoint_every": 2, "optimizer": sgd}
    whole, _, _ = fit(tmp_path / "whole", **options)
    with interrupt(monkeypatch, step=7), pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", **options)
    resumed, _, _ = fit(tmp_path / "cut", resume=True, **options)
    assert same_tensors(whole.state_dict(), resumed.state_dict())
    assert same_tensors(checkpoint_of(tmp_path / "whole"), checkpoint_of(tmp_path / "cut"))


@pytest.mark.parametrize("epochs", [2, 3, 4])
def test_early_stopping_is_the_same_after_a_resume(tmp_path, epochs):
    """The epochs without improvement before the interruption count."""
    options = {"patience": 2, "lr": 0.0, "ema_decay": 0.5}
    _, whole, _ = fit(tmp_path / "whole", epochs=50, **options)
    fit(tmp_path / "cut", epochs=epochs, **options)
    _, resumed, _ = fit(tmp_path / "cut", epochs=50, resume=True, **options)
    assert without_time(whole) == without_time(resumed)
    assert whole.epoch < 50
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "cut")


def test_a_stopped_training_continues_without_patience(tmp_path):
    fit(tmp_path / "run", epochs=6, patience=1, lr=0.0)
    _, state, _ = fit(tmp_path / "run", epochs=6, patience=0, lr=0.0, resume=True)
    assert state.epoch == 6


def test_a_training_killed_while_it_validates_has_no_row_twice(tmp_path, monkeypatch):
    options = {"epochs": 2, "checkpoint_every": 5}  # the last batch of an epoch saves one too
    fit(tmp_path / "whole", **options)
    original = Fit.save
    with monkeypatch.context() as patch:

        def save(trainer):
            if trainer.state.epoch:  # the checkpoint after the first validation is never written
                raise KeyboardInterrupt
            original(trainer)

        patch.setattr(Fit, "save", save)
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path / "cut", **options)
    assert len(log_of(tmp_path / "cut")) == 1
    fit(tmp_path / "cut", resume=True, **options)
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "cut")


def test_a_finished_training_can_be_continued_with_more_epochs(tmp_path, capsys):
    fit(tmp_path / "run", epochs=1)
    results = tmp_path / "run" / "metrics.json"
    results.touch()
    fit(tmp_path / "run", epochs=1, resume=True)
    assert results.exists()
    assert "note: the last epoch was trained before, so only the ev" in capsys.readouterr().out
    _, state, _ = fit(tmp_path / "run", epochs=2, resume=True)
    assert (state.epoch, state.step) == (2, 10)
    assert not results.exists()  # an interrupted run would otherwise have those of one epoch
    assert [row["epoch"] for row in log_of(tmp_path / "run") if "validation/loss" in row] == [1, 2]


def test_weights_of_an_epoch_whose_checkpoint_is_missing_are_not_those_of_another(tmp_path):
    sums = tmp_path / "model" / "SHA256SUMS"
    fit(tmp_path, epochs=1)
    newest = all_checkpoints(tmp_path / "checkpoints")[0]
    # What a process leaves that is killed after it has saved the model of the second epoch.
    sums.parent.mkdir()
    sums.write_text(f"{'0' * 64}  model.safetensors\n")
    with pytest.raises(UserError, match="other weights than those of the best epoch 1, such as"):
        fit(tmp_path, epochs=1, resume=True)
    assert all_checkpoints(tmp_path / "checkpoints") == [newest]


def test_another_batch_size_keeps_the_newest_checkpoints_and_all_rows_of_the_log(tmp_path):
    folder = tmp_path / "run"
    fit(folder, epochs=2, batch_size=4)
    _, state, _ = fit(folder, epochs=4, batch_size=22, resume=True)
    _, saved = read(all_checkpoints(folder / "checkpoints")[0])
    assert (saved["epoch"], saved["step"]) == (4, state.step) == (4, 24 + 6)
    assert [row["epoch"] for row in log_of(folder) if "validation/loss" in row] == [1, 2, 3, 4]


def test_workers_do_not_change_the_result(tmp_path):
    alone, together = (
        fit(tmp_path / str(n), num_workers=n, epochs=1)[0].state_dict() for n in (0, 2)
    )
    assert same_tensors(alone, together)


def test_a_finished_run_whose_checkpoints_were_deleted_can_only_give_its_weights(tmp_path):
    (tmp_path / "run" / "model").mkdir(parents=True)
    message = "run has a model, but no checkpoint to continue from; start .* with weights=.*run$"
    with pytest.raises(UserError, match=message):
        fit(tmp_path / "run", resume=True)


def test_a_folder_without_checkpoint_cannot_be_resumed(tmp_path):
    message = "^resume: .*run has no checkpoint yet, because it stopped before .*; start the"
    with pytest.raises(UserError, match=message):
        fit(tmp_path / "run", resume=True)
