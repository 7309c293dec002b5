"""Tokens, losses and tiny models for tests of tasks."""

from types import SimpleNamespace

import torch

from dxn.core.tokens import Span, Tokens
from dxn.models import Backbone, EarlyFusion, MultimodalModel
from dxn.tasks import IGNORED

B, N, K, D = 3, 7, 5, 11
WEIGHTS = (0.5, 2.0, 1.0, 3.0, 0.25)


def part(name, n=N, *, batch=B, dim=D, modality="any"):
    """Random tokens of one input, without padding."""
    span = Span(name, modality, 0, n, torch.zeros(batch, n, 2))
    return Tokens(torch.randn(batch, n, dim), torch.ones(batch, n, dtype=torch.bool), (span,))


def assert_same(got, expected, atol=1e-6):
    expected = torch.as_tensor(expected)
    torch.testing.assert_close(got, expected, rtol=0, atol=atol, check_dtype=False)


def smoothed_cross_entropy(logits, target, *, smoothing, weights):
    """Label smoothing spreads a share over all classes, each with its own weight."""
    total, norm = 0.0, 0.0
    for row, k in zip(logits.log_softmax(-1).tolist(), target.tolist(), strict=True):
        if k == IGNORED:
            continue
        total -= (1 - smoothing) * weights[k] * row[k]
        total -= smoothing / len(row) * sum(w * p for w, p in zip(weights, row, strict=True))
        norm += weights[k]
    return total / norm


def adapters_stub(**inputs):
    """Adapters by input name, of which only these attributes of their readers are known."""
    return {
        name: SimpleNamespace(
            modality=name,
            dim=D,
            reader=SimpleNamespace(**attributes),
            check_columns_are_tokens=lambda task: None,
            has_vocabulary=False,
            masking=lambda **options: None,
        )
        for name, attributes in inputs.items()
    }


def build_model(task, adapters, *, dim=16, num_heads=2, **backbone):
    """A model of one block, whose head the bound and fitted task makes."""
    fusion = EarlyFusion(dim, inputs=tuple(adapters))
    trunk = Backbone(dim, depth=1, num_heads=num_heads, **backbone)
    head = task.make_head(dim, fusion.width, adapters)
    inputs = {name: name for name in adapters}
    return MultimodalModel(adapters, inputs=inputs, fusion=fusion, backbone=trunk, head=head)


def make_batch(task, adapters, raws, values=None, *, rand=None):
    """Prepare and collate raw inputs, given as lists by input name, as the data package does."""
    count = len(next(iter(raws.values())))
    samples = []
    for i in range(count):
        sample = {
            name: adapters[name].tokenizer(column[i], rand)
            for name, column in raws.items()
            if column[i] is not None
        }
        if values is not None or not task.is_supervised:
            value = None if values is None else values[i]
            encoded = task.target.encode(value, sample, rand)
            if encoded is not None:
                sample["target"] = encoded
        samples.append(sample)
    batch = {"#size": count, "#index": list(range(count))}
    for name in raws:
        rows = [i for i, sample in enumerate(samples) if name in sample]
        if rows:
            batch[name] = adapters[name].tokenizer.collate([samples[i][name] for i in rows])
            batch[name]["rows"] = torch.tensor(rows)
    if "target" in samples[0]:
        batch["target"] = task.target.collate([sample["target"] for sample in samples])
    return batch


def overfit(task, model, batch, *, lr=1e-2, steps=400, goal=0.05):
    """Train on one batch until the loss reaches the goal; return the losses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    losses = []
    model.train()
    for _ in range(steps):
        loss = task.loss(model(batch), batch).mean
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if losses[-1] < goal:
            break
    model.eval()
    return losses


@torch.inference_mode()
def predict(task, model, batch, **options):
    """Predictions of a model for one batch."""
    return task.predict(model.head, model(batch), batch, **options)
