"""Heads: losses written out, what they predict, and that each of them learns."""

import math

import pytest
import torch
from torch.nn import functional as F

from dxn.data.targets import IGNORED
from dxn.models import Backbone, Classify, EarlyFusion, Multilabel, Regress, Tag
from dxn.models.heads import BY_KIND, default_head
from dxn.tokens import Span, Tokens, join

B, N, K, D = 3, 7, 5, 11
WEIGHTS = [0.5, 2.0, 1.0, 3.0, 0.25]


def part_of(modality, n, batch=B, dim=D):
    mask = torch.ones(batch, n, dtype=torch.bool)
    return Tokens(torch.randn(batch, n, dim), mask, (Span(modality, 0, n, torch.zeros(batch, n, 2)),))


def assert_same(got, expected, atol=1e-6):
    torch.testing.assert_close(got, torch.as_tensor(expected), rtol=0, atol=atol, check_dtype=False)


def cross_entropy_by_hand(logits, target, *, smoothing, weights):
    """Label smoothing spreads a share over all classes; each class's weight multiplies its own log probability."""
    total, norm = 0.0, 0.0
    for row, k in zip(logits.log_softmax(-1).tolist(), target.tolist(), strict=True):
        if k == IGNORED:
            continue
        total -= (1 - smoothing) * weights[k] * row[k]
        total -= smoothing / len(row) * sum(w * p for w, p in zip(weights, row, strict=True))
        norm += weights[k]
    return total / norm


# Losses


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_loss_of_classes_is_the_written_out_cross_entropy(smoothing, weights):
    head = Classify(D, num_classes=K, label_smoothing=smoothing, class_weights=weights)
    logits, target = 3 * torch.randn(7, K), torch.tensor([0, 4, 2, 1, 3, 3, 0])
    expected = cross_entropy_by_hand(logits, target, smoothing=smoothing, weights=weights or [1.0] * K)
    assert_same(head.loss(logits, target), expected)


def test_the_loss_of_classes_takes_shares_as_mixup_makes_them():
    head, logits = Classify(D, num_classes=K), torch.randn(2, K)
    one, other = head.loss(logits, torch.tensor([0, 4])), head.loss(logits, torch.tensor([3, 1]))
    shares = 0.7 * F.one_hot(torch.tensor([0, 4]), K) + 0.3 * F.one_hot(torch.tensor([3, 1]), K)
    assert_same(head.loss(logits, shares), 0.7 * one + 0.3 * other)


def test_a_class_that_training_never_saw_costs_nothing():
    head, logits = Classify(D, num_classes=K), torch.randn(3, K)
    assert_same(head.loss(logits, torch.tensor([4, IGNORED, 2])), head.loss(logits[[0, 2]], torch.tensor([4, 2])))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_loss_of_labels_is_the_written_out_binary_cross_entropy(smoothing, weights):
    head = Multilabel(D, num_classes=K, label_smoothing=smoothing, class_weights=weights)
    logits, target = torch.randn(B, K), (torch.rand(B, K) > 0.5).float()
    costs = []
    for i in range(B):
        for k in range(K):
            p = 1 / (1 + math.exp(-float(logits[i, k])))
            t = float(target[i, k]) * (1 - smoothing) + 0.5 * smoothing
            costs.append(-((weights or [1.0] * K)[k] * t * math.log(p) + (1 - t) * math.log(1 - p)))
    assert_same(head.loss(logits, target), sum(costs) / len(costs))


def test_the_loss_of_numbers_is_the_squared_error_in_deviations_from_the_mean():
    head, logits = Regress(D, mean=100.0, std=20.0), torch.tensor([0.5, -1.0, 2.0])
    # 110, 80 and 140 are 0.5, -1 and 2 deviations from 100; the last is predicted one too low
    assert_same(head.loss(logits, torch.tensor([110.0, 80.0, 160.0])), 1 / 3)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_loss_of_tags_counts_words_and_not_what_is_ignored(smoothing, weights):
    head = Tag(D, num_classes=K, label_smoothing=smoothing, class_weights=weights)
    logits = torch.randn(2, 3, K)
    target = torch.tensor([[4, IGNORED, 1], [IGNORED, 0, IGNORED]])
    real = torch.stack([logits[0, 0], logits[0, 2], logits[1, 1]])
    expected = cross_entropy_by_hand(real, torch.tensor([4, 1, 0]), smoothing=smoothing, weights=weights or [1.0] * K)
    assert_same(head.loss(logits, target), expected)
    changed = logits.masked_fill((target == IGNORED)[..., None], 17.0)
    assert_same(head.loss(changed, target), expected)


def test_the_loss_of_tags_leaves_out_columns_beyond_the_last_target():
    head, logits = Tag(D, num_classes=K), torch.randn(B, N, K)
    target = torch.randint(K, (B, 5))
    assert_same(head.loss(logits, target), head.loss(logits[:, :5], target))


@pytest.mark.parametrize("build", [Classify, Multilabel, Tag])
def test_class_weights_move_and_are_saved_with_the_model(build):
    head = build(D, num_classes=K, class_weights=WEIGHTS)
    assert head.state_dict()["class_weights"].tolist() == WEIGHTS
    assert "class_weights" not in build(D, num_classes=K).state_dict()


# Predictions


def test_classes_are_predicted_as_probabilities_that_sum_to_one():
    head, pooled = Classify(D, num_classes=K), torch.randn(B, D)
    logits = head(part_of("text", N), pooled)
    assert logits.shape == (B, K)
    assert_same(head.predict(logits), logits.exp() / logits.exp().sum(-1, keepdim=True))


def test_labels_are_predicted_each_by_itself():
    head, pooled = Multilabel(D, num_classes=K), torch.randn(B, D)
    logits = head(part_of("text", N), pooled)
    assert logits.shape == (B, K)
    assert_same(head.predict(logits), 1 / (1 + (-logits).exp()))


def test_a_number_is_predicted_in_its_own_units():
    head, pooled = Regress(D, mean=100.0, std=20.0), torch.randn(B, D)
    logits = head(part_of("text", N), pooled)
    assert logits.shape == (B,)
    assert_same(head.predict(logits), 100 + 20 * logits, atol=1e-5)
    assert_same(head.loss(logits, head.predict(logits)), 0.0)


@pytest.mark.parametrize("text_first", [True, False])
def test_tags_are_predicted_at_the_texts_columns_wherever_they_stand(text_first):
    head, text, image = Tag(D, num_classes=K), part_of("text", N), part_of("image", 2)
    tokens = join([text, image] if text_first else [image, text])
    logits = head(tokens, torch.randn(B, D))
    assert logits.shape == (B, N, K)
    assert_same(logits, head.out(text.x))
    assert_same(head.predict(logits).sum(-1), torch.ones(B, N))


def test_tags_without_text_name_what_there_is():
    with pytest.raises(KeyError, match=r"no text columns, only \['image'\]"):
        Tag(D, num_classes=K)(part_of("image", 2), torch.randn(B, D))


@pytest.mark.parametrize("kind", BY_KIND)
def test_dropout_is_of_training_alone(kind):
    head = default_head(D, kind=kind, dropout=0.5, **({} if kind == "number" else {"num_classes": K}))
    tokens, pooled = part_of("text", N), torch.randn(B, D)
    assert torch.equal(head.eval()(tokens, pooled), head(tokens, pooled))
    assert not torch.equal(head.train()(tokens, pooled), head(tokens, pooled))


# Learning


TARGETS = {
    "class": torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]),
    "labels": torch.tensor([[i >> bit & 1 for bit in range(3)] for i in range(8)]).float(),
    "number": torch.tensor([7.0, -3.0, 11.0, 2.0, -5.0, 13.0, 17.0, 0.0]),
    "tags": torch.tensor([[(i + j) % 3 if (i * j) % 5 else IGNORED for j in range(N)] for i in range(8)]),
}


@pytest.mark.parametrize("kind", BY_KIND)
def test_each_head_overfits_eight_samples(kind):
    target = TARGETS[kind]
    found = {"mean": float(target.mean()), "std": float(target.std())} if kind == "number" else {"num_classes": 3}
    fusion, backbone = EarlyFusion(24), Backbone(24, depth=1, num_heads=2)
    head = default_head(24, kind=kind, **found)
    tokens = part_of("text", N, batch=8, dim=24)
    parameters = [p for m in (fusion, backbone, head) for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.0)

    losses = []
    for _ in range(60):
        logits = head(*fusion([tokens], backbone))
        loss = head.loss(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 0.4 and losses[-1] < 0.05

    predicted = head.predict(logits.detach())
    if kind == "class":
        assert predicted.argmax(1).tolist() == target.tolist()
    elif kind == "labels":
        assert ((predicted >= head.threshold) == target.bool()).all()
    elif kind == "number":
        assert_same(predicted, target, atol=2.0)
    else:
        real = target != IGNORED
        assert predicted.argmax(-1)[real].tolist() == target[real].tolist()


# The default head


@pytest.mark.parametrize(
    ("kind", "head"), [("class", Classify), ("labels", Multilabel), ("number", Regress), ("tags", Tag)]
)
def test_the_default_head_fits_the_kind_of_target(kind, head):
    found = {"mean": 3.0, "std": 2.0} if kind == "number" else {"num_classes": K, "class_weights": WEIGHTS}
    built = default_head(D, kind=kind, label_smoothing=0.1, dropout=0.3, **found)
    assert type(built) is head and head.kind == kind
    assert built.neck.dropout.p == 0.3
    if kind == "number":
        assert (float(built.mean), float(built.std)) == (3.0, 2.0)
    else:
        assert built.out.out_features == K
        assert built.label_smoothing == 0.1 and built.class_weights.tolist() == WEIGHTS
