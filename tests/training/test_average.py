"""The moving average of the weights, and predictions during and after a training."""

import math
import os
import stat

import pytest
import torch
from helpers.runs import checkpoint_of, same_tensors
from helpers.training import fit, make_model, make_samples, make_task

from dxn.core.tensors import write_tensors
from dxn.training import checkpoint as checkpoints
from dxn.training.average import Average
from dxn.training.device import to_device
from dxn.training.optim import adamw
from dxn.training.predict import Predictions, predict, score

CPU = torch.device("cpu")


# The moving average


def test_the_average_equals_its_formula():
    """Weights and running statistics, with the decay min(decay, n / (n + 10)) at step n."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    average = Average(model, 0.6)
    expected = {n: t.clone() for n, t in model.state_dict().items() if t.is_floating_point()}
    for n in range(1, 30):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        model(torch.randn(7, 3))  # moves the running statistics
        average.update(n)
        decay = min(0.6, n / (n + 10))
        for name, tensor in model.state_dict().items():
            if name in expected:
                expected[name].lerp_(tensor, 1 - decay)
    for name, tensor in expected.items():
        assert torch.equal(average.tensors[name], tensor), name
    assert average.tensors["1.num_batches_tracked"] == 29


def test_the_average_is_used_inside_its_context_only():
    model = torch.nn.Linear(3, 5)
    average = Average(model, 0.9)
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    with pytest.raises(KeyError), average.in_use():
        assert torch.equal(model.weight, before)
        raise KeyError  # an error inside must not leave the average in the model
    torch.testing.assert_close(model.weight.detach(), before + 1)


def test_the_averaged_weights_are_validated_and_kept(tmp_path):
    model, _, saved = fit(tmp_path / "run", epochs=2, ema_decay=0.9, validation=False)
    last = saved[-1][1]
    stored = checkpoint_of(tmp_path / "run")
    for name, tensor in model.state_dict().items():
        assert torch.equal(stored[f"model/{name}"], tensor)
        assert torch.equal(stored[f"ema/{name}"], last[name])
    assert not same_tensors(last, model.state_dict())


def test_an_average_that_is_turned_on_later_starts_at_the_restored_weights(tmp_path):
    fit(tmp_path / "run", epochs=1)
    before = checkpoint_of(tmp_path / "run")
    model = make_model(make_task(), seed=2)
    average = Average(model, 0.9)
    scaler = torch.amp.GradScaler(enabled=False)
    folder = tmp_path / "run" / "checkpoints"
    checkpoints.load(folder, model=model, optimizer=adamw()(model), average=average, scaler=scaler)
    for name, tensor in average.tensors.items():
        assert torch.equal(tensor, before[f"model/{name}"]), name


def test_weights_have_the_permissions_of_ordinary_files(tmp_path):
    previous = os.umask(0o027)
    try:
        write_tensors(tmp_path / "a.safetensors", {"x": torch.zeros(3)})
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "a.safetensors").stat().st_mode) == 0o640


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
    task.metric.metrics = lambda predictions, truths, loss: {"loss": loss + 1, "other": 0.5}
    predictions = Predictions([0], [torch.zeros(2)], 2.0)
    assert score(predictions, make_samples(1, task), task) == {"loss": 3.0, "other": 0.5}


def test_nested_tensors_are_moved_to_the_device():
    batch = {"#size": 2, "target": {"boxes": [torch.zeros(2)]}, "a": {"x": torch.zeros(3)}}
    meta = torch.device("meta")
    moved = to_device(batch, meta)
    assert moved["target"]["boxes"][0].device == moved["a"]["x"].device == meta
    assert moved["#size"] == 2
    assert to_device(batch, CPU) is batch
