"""Both sides of benchmarks/training.py: the same model at the start, and both learn."""

import pytest
import torch
from helpers.benchmarks import load
from torch.nn.functional import cross_entropy

pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")
CPU = torch.device("cpu")
SIZES = {"dim": 44, "depth": 2, "heads": 2, "batch": 5, "side": 24, "length": 13}

training = load("training")


def logits_of(monkeypatch, peer, dropout=0.0):
    """The logits of two steps of dxn's model, then those of two steps of the peer."""
    recorded = []

    def record(logits, labels):
        recorded.append(logits.detach())
        return cross_entropy(logits, labels)

    monkeypatch.setattr(training.F, "cross_entropy", record)
    case = training.Case("", peer, training.Sizes(**SIZES), dropout)
    ours, theirs = training.steps(case, CPU)
    for step in (ours, ours, theirs, theirs):
        step()
    return recorded


@pytest.mark.parametrize("peer", ["ViT (timm)", "BERT", "AST"])
def test_both_sides_start_with_the_same_logits_and_learn(monkeypatch, peer):
    ours, ours_later, theirs, theirs_later = logits_of(monkeypatch, peer)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.1)
    assert not torch.equal(ours, ours_later)
    assert not torch.equal(theirs, theirs_later)


def test_dropout_reaches_both_sides(monkeypatch):
    plain = logits_of(monkeypatch, "BERT")
    dropped = logits_of(monkeypatch, "BERT", dropout=0.5)
    for side in (0, 2):
        assert float((plain[side] - dropped[side]).abs().max()) > 0.1
