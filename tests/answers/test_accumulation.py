"""Several small batches make the step of one large batch, whatever the weight of each sample is."""

import json

import pytest
import torch
from helpers.runs import SMALL, log_of, train, weights_of

OPTIONS = [*SMALL, "preset=plain", "baseline=none", "report=false", "target=label"]
OPTIONS += ["optimizer=sgd", "optimizer.lr=0.01", "trainer.epochs=2", "trainer.max_grad_norm=0"]
OPTIONS += ["backbone.dropout=0", "trainer.log_every=1"]


def classes(i):
    """One row of ten has the rare class."""
    return "rare" if i % 10 == 3 else "common"


def labels(i):
    return [[], ["a"], ["b"], ["a", "b"]][i % 10 % 4]


def tags(i):
    return ["B", "O"] if i % 10 == 3 else ["O", "O"]


def number(i):
    return i % 7 + 0.5


@pytest.mark.parametrize(
    ("target", "options"),
    [
        (classes, ["head=classify", "head.balance=inverse", "head.dropout=0"]),
        (labels, ["head=multilabel", "head.balance=inverse", "head.dropout=0"]),
        (tags, ["head=tag", "head.balance=inverse"]),
        (number, ["head=regress", "head.dropout=0"]),
    ],
)
def test_two_batches_make_the_step_of_one(target, options, tmp_path):
    rows = []
    for i in range(80):
        words = [["fine", "dull"][i % 2], str(i % 9)]
        rows.append({"text": words if target is tags else " ".join(words), "label": target(i)})
    table = tmp_path / "rows.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    chosen = [str(table), *OPTIONS, *options]
    train(tmp_path / "one", *chosen, "batch_size=16")
    train(tmp_path / "two", *chosen, "batch_size=8", "trainer.grad_accum_steps=2")
    one, two = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    for name, tensor in one.items():
        assert torch.allclose(tensor, two[name], atol=2e-5), name
    # The mean over the samples of an epoch does not depend on the size of the batches either.
    whole, parts = (
        [row["train/epoch_loss"] for row in log_of(tmp_path / each) if "train/epoch_loss" in row]
        for each in ("one", "two")
    )
    if target is number:
        assert whole == pytest.approx(parts, rel=1e-5)
