"""A GPU copies the next batch while it computes the current one, with the same results."""

import pytest
import torch
from helpers.runs import checkpoint_of, interrupt, log_of, same_tensors
from helpers.streams import copy_ahead
from helpers.training import fit, make_model, make_samples, make_task

from dxn.models.model import MultimodalModel
from dxn.training import predict

CPU = torch.device("cpu")


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_batches_are_copied_one_ahead_and_arrive_in_order(monkeypatch, count):
    log = copy_ahead(monkeypatch)
    for i, batch in enumerate(predict.on_device(({"x": i} for i in range(count)), CPU)):
        assert batch == {"x": i}
        assert log.count("copied") == min(i + 2, count)
        assert log[-1] == f"wait for {i + 1}"
    assert log.count("copied") == count


@pytest.mark.parametrize("grad_accum_steps", [1, 2])
def test_an_interrupted_training_is_resumed_bit_for_bit(tmp_path, monkeypatch, grad_accum_steps):
    options = {"checkpoint_every": 2, "grad_accum_steps": grad_accum_steps, "mixup": 0.5}
    options["epochs"] = 3 * grad_accum_steps
    whole, _, _ = fit(tmp_path / "whole", **options)
    log = copy_ahead(monkeypatch)
    with interrupt(monkeypatch, step=7), pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", **options)
    resumed, _, _ = fit(tmp_path / "cut", resume=True, **options)
    assert log
    assert same_tensors(whole.state_dict(), resumed.state_dict())
    assert same_tensors(checkpoint_of(tmp_path / "whole"), checkpoint_of(tmp_path / "cut"))
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "cut")


def test_divided_batches_are_those_of_a_training_without_copies(tmp_path, monkeypatch):
    forward = MultimodalModel.forward

    def limited(model, batch, *args):
        if model.training and batch["#size"] > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return forward(model, batch, *args)

    monkeypatch.setattr(MultimodalModel, "forward", limited)
    whole, _, _ = fit(tmp_path / "plain")
    copy_ahead(monkeypatch)
    ours, state, _ = fit(tmp_path / "ahead")
    assert state.parts == 4
    assert same_tensors(whole.state_dict(), ours.state_dict())


def test_predictions_in_smaller_batches_have_all_rows(monkeypatch, capsys):
    copy_ahead(monkeypatch)
    task = make_task()
    model = make_model(task)
    forward = model.forward

    def limited(batch, mixing=None):
        if batch["#size"] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return forward(batch, mixing)

    model.forward = limited
    samples = make_samples(13, task)
    result = predict.predict(model, task, samples, batch_size=5, device=CPU)
    assert result.rows == list(range(13))
    assert "continuing with 2" in capsys.readouterr().err
