"""R-Drop: two passes with different dropout, whose outputs are to agree."""

import pytest
import torch
import torch.nn.functional as F
from helpers.runs import checkpoint_of, interrupt, log_of, same_tensors
from helpers.training import (
    fit,
    make_model,
    make_task,
    without_randomness,
)

from dxn.core.errors import UserError
from dxn.core.lazy import imported
from dxn.tasks import IGNORED, TASKS, Classify, Multilabel, Regress, Tag
from dxn.training.optim import sgd


class Recorded:
    """Keeps what the trainer asks of a task."""

    def __init__(self, task, monkeypatch):
        self.losses, self.divergences, self.outputs = [], [], []
        loss, divergence = task.loss, task.space.divergence

        def record_loss(output, batch):
            self.losses.append(loss(output, batch).mean)
            return loss(output, batch)

        def record_divergence(output, other, batch):
            self.outputs.append((output.detach(), other.detach()))
            self.divergences.append(divergence(output, other, batch))
            return self.divergences[-1]

        monkeypatch.setattr(task, "loss", record_loss)
        monkeypatch.setattr(task.space, "divergence", record_divergence)


# The divergences


def test_the_divergence_of_classes_is_the_mean_of_both_kl_divergences():
    a, b = torch.randn(2, 7, 5, dtype=torch.float64).float()
    p, q = a.log_softmax(1), b.log_softmax(1)
    kl = [F.kl_div(x, y, reduction="batchmean", log_target=True) for x, y in ((p, q), (q, p))]
    got = Classify().space.divergence(a, b, {})
    torch.testing.assert_close(got, sum(kl) / 2, rtol=1e-5, atol=1e-6)
    assert float(Classify().space.divergence(a, a, {})) == 0


def test_the_divergence_of_labels_is_that_of_two_classes_for_each_label():
    a, b = torch.randn(2, 7, 5)
    pairs = [torch.stack([x, torch.zeros_like(x)], -1).flatten(0, 1) for x in (a, b)]
    expected = Classify().space.divergence(*pairs, {})
    torch.testing.assert_close(
        Multilabel().space.divergence(a, b, {}), expected, rtol=1e-5, atol=1e-6
    )


def test_the_divergence_of_tags_counts_words_only():
    a, b = torch.randn(2, 3, 7, 5)
    target = torch.full((3, 5), IGNORED)  # two columns are not tokens of the text
    target[0, :4], target[2, 1] = 2, 0
    rows = target != IGNORED
    expected = Classify().space.divergence(a[:, :5][rows], b[:, :5][rows], {})
    torch.testing.assert_close(Tag().space.divergence(a, b, {"target": target}), expected)
    nothing = {"target": torch.full((3, 5), IGNORED)}
    assert float(Tag().space.divergence(a, b, nothing)) == 0


def test_the_divergence_of_numbers_is_their_mean_squared_difference():
    a, b = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [5.0]])
    assert float(Regress().space.divergence(a, b, {})) == 4.5


@pytest.mark.parametrize("name", ["contrastive", "language", "masked"])
def test_tasks_without_a_space_are_refused(name):
    cls = imported(TASKS[name])
    message = f"^trainer.r_drop: cannot be combined with head={name}; set trainer.r_drop=0$"
    with pytest.raises(UserError, match=message):
        super(cls, cls()).check({"trainer": {"r_drop": 0.5}})


@pytest.mark.parametrize("name", ["classify", "multilabel", "regress", "tag", "forecast"])
def test_tasks_with_a_space_are_not_refused(name):
    imported(TASKS[name])().check({"trainer": {"r_drop": 0.5}})


# The training


def test_the_loss_is_that_of_both_passes_and_their_weighted_divergence(tmp_path, monkeypatch):
    task = make_task()
    recorded = Recorded(task, monkeypatch)
    fit(tmp_path, epochs=1, task=task, validation=False, r_drop=0.7, log_every=1)
    assert len(recorded.losses) == 2 * len(recorded.divergences) == 10
    means = [(a + b) / 2 for a, b in zip(recorded.losses[::2], recorded.losses[1::2], strict=True)]
    expected = [
        float((m + 0.7 * d).detach()) for m, d in zip(means, recorded.divergences, strict=True)
    ]
    logged = [row["train/loss"] for row in log_of(tmp_path) if "train/loss" in row]
    assert logged == pytest.approx(expected, rel=1e-6)


def test_only_the_dropout_of_the_two_passes_differs(tmp_path, monkeypatch):
    task = make_task()
    recorded = Recorded(task, monkeypatch)
    fit(tmp_path / "dropout", epochs=1, task=task, r_drop=0.7)
    assert all(not torch.equal(*pair) for pair in recorded.outputs)
    assert all(float(d.detach()) > 0 for d in recorded.divergences)
    exact = make_task()
    recorded = Recorded(exact, monkeypatch)
    fit(tmp_path / "none", epochs=1, task=exact, model=without_randomness(), r_drop=0.7)
    assert all(torch.equal(*pair) for pair in recorded.outputs)


def test_without_dropout_the_weights_are_those_without_r_drop(tmp_path):
    options = {"epochs": 2, "optimizer": sgd}
    plain, _, _ = fit(tmp_path / "plain", model=without_randomness(), **options)
    twice, _, _ = fit(tmp_path / "twice", model=without_randomness(), r_drop=3.0, **options)
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(twice.state_dict()[name], tensor, rtol=0, atol=1e-6)


def test_accumulated_batches_make_the_step_of_one_large_batch(tmp_path):
    """The masks do not depend on the batch, so this also holds with dropout."""
    results = []
    for batch_size, steps in ((22, 1), (11, 2)):
        task = make_task()
        options = {"batch_size": batch_size, "grad_accum_steps": steps, "r_drop": 0.7}
        model, _, _ = fit(
            tmp_path / str(steps),
            count=22,
            epochs=1,
            task=task,
            optimizer=sgd,
            **options,
        )
        results.append(model.state_dict())
    initial = make_model(make_task()).state_dict()
    assert not torch.equal(results[0]["head.out.weight"], initial["head.out.weight"])
    for name, tensor in results[0].items():
        torch.testing.assert_close(tensor, results[1][name], rtol=0, atol=1e-6)


def test_checkpointed_activations_give_the_same_weights(tmp_path):
    """The backward pass computes each pass again with its own dropout."""
    results = []
    for checkpointing in (False, True):
        model = make_model(make_task())
        model.backbone.activation_checkpointing = checkpointing
        fit(tmp_path / str(checkpointing), epochs=1, model=model, r_drop=0.7)
        results.append(model.state_dict())
    for name, tensor in results[0].items():
        torch.testing.assert_close(tensor, results[1][name], rtol=0, atol=1e-6)


def test_an_interrupted_training_is_resumed_bit_for_bit(tmp_path, monkeypatch):
    options = {"epochs": 2, "checkpoint_every": 2, "mixup": 0.5, "r_drop": 0.7}
    whole, _, _ = fit(tmp_path / "whole", **options)
    with interrupt(monkeypatch, step=7), pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", **options)
    resumed, _, _ = fit(tmp_path / "cut", resume=True, **options)
    assert same_tensors(whole.state_dict(), resumed.state_dict())
    assert same_tensors(checkpoint_of(tmp_path / "whole"), checkpoint_of(tmp_path / "cut"))
