"""The sides of benchmarks/training.py: the same model at the start, and both learn."""

import pytest
import torch
from benchmark import load
from peers import parity
from torch.nn.functional import cross_entropy

pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")
CPU = torch.device("cpu")


training = load("training")


def answers(monkeypatch, peer, dropout=0.0):
    """The logits of two steps of ours, then those of two of the peer's."""
    seen = []

    def watched(logits, labels):
        seen.append(logits.detach())
        return cross_entropy(logits, labels)

    monkeypatch.setattr(training.F, "cross_entropy", watched)
    sizes = parity.Sizes(dim=44, depth=2, heads=2, batch=5, side=24, length=13)
    ours, theirs = training.steps(training.Case("", peer, sizes, dropout), CPU)
    for step in (ours, ours, theirs, theirs):
        step()
    return seen


@pytest.mark.parametrize("peer", ["ViT (timm)", "BERT", "AST"])
def test_both_sides_begin_with_the_same_answers_and_learn(monkeypatch, peer):
    ours, ours_then, theirs, theirs_then = answers(monkeypatch, peer)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.1)
    assert not torch.equal(ours, ours_then)
    assert not torch.equal(theirs, theirs_then)


def test_dropout_reaches_both_sides(monkeypatch):
    plain, dropped = answers(monkeypatch, "BERT"), answers(monkeypatch, "BERT", dropout=0.5)
    for side in (0, 2):
        assert float((plain[side] - dropped[side]).abs().max()) > 0.1
