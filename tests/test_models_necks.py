"""What stands before a head's last linear, against its formulas."""

import pytest
import torch
from written_out import B, D, assert_same, gelu_of_erf, lively, norm_by_hand, numbers

from dxn.models import Classify, Embed, Multilabel, Regress
from dxn.models.heads import Neck, default_head

HIDDEN = {
    "linear": lambda h: h,
    "tanh": lambda h: 1 - 2 / (1 + (2 * h).exp()),
    "relu": lambda h: h.clamp(min=0),
    "gelu": gelu_of_erf,
}


def neck_by_hand(neck, pooled, *, hidden, norm, eps):
    if hidden != "none":
        pooled = HIDDEN[hidden](pooled @ neck.dense.weight.T + neck.dense.bias)
    return norm_by_hand(pooled, neck.norm, eps) if norm else pooled


@pytest.mark.parametrize("hidden", ["none", *HIDDEN])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    "build",
    [
        lambda **options: Classify(D, num_classes=7, **options),
        lambda **options: Multilabel(D, num_classes=7, **options),
        lambda **options: Regress(D, **options),
        lambda **options: Embed(D, **options),
        lambda **options: default_head(D, kind="class", num_classes=7, **options),
        lambda **options: default_head(D, kind="number", **options),
    ],
)
def test_a_heads_hidden_layer_and_norm_are_their_formulas(build, hidden, norm):
    options = {"hidden": hidden, "norm": norm, "norm_eps": 0.3}
    head, pooled = lively(build(**options)), numbers(B, D)
    out = neck_by_hand(head.neck, pooled, hidden=hidden, norm=norm, eps=0.3)
    if not isinstance(head, Embed):
        out = out @ head.out.weight.T + head.out.bias
    assert_same(head(None, pooled), out.squeeze(-1) if isinstance(head, Regress) else out)
    parts = {name.split(".")[1] for name, _ in head.named_parameters() if name.startswith("neck")}
    assert parts == ({"dense"} if hidden != "none" else set()) | ({"norm"} if norm else set())


@pytest.mark.parametrize(
    ("options", "width"),
    [
        ({}, D),
        ({"hidden_dim": 7}, D),  # no layer, so nothing that could have another width
        ({"hidden": "tanh"}, D),
        ({"hidden": "linear", "hidden_dim": 7}, 7),
        ({"hidden": "gelu", "hidden_dim": 29}, 29),
    ],
)
@pytest.mark.parametrize("norm", [False, True])
def test_a_neck_and_the_head_that_is_one_are_as_wide_as_they_say(options, width, norm):
    neck, head, pooled = Neck(D, norm=norm, **options), Embed(D, norm=norm, **options), torch.randn(B, D)
    assert neck.width == head.neck.width == width
    assert neck(pooled).shape == head(None, pooled).shape == (B, width)


def test_embed_alone_gives_the_pooled_vector_as_it_is():
    pooled, head = numbers(B, D), Embed(D)
    assert torch.equal(head.train()(None, pooled), pooled)
    assert not list(head.parameters())


def test_a_necks_dropout_comes_last_and_in_training_alone():
    neck, pooled = lively(Neck(D, hidden="tanh", norm=True, dropout=0.5)), numbers(101, D)
    whole = neck(pooled)
    dropped = neck.train()(pooled)
    kept = dropped != 0
    assert float(kept.double().mean()) == pytest.approx(0.5, abs=0.05)
    assert_same(dropped[kept], 2 * whole[kept])


def test_default_head_leaves_hidden_and_norm_from_tags():
    head = default_head(D, kind="tags", num_classes=7, hidden="tanh", norm=True, norm_eps=0.3, dropout=0.5)
    assert [name for name, _ in head.named_parameters()] == ["out.weight", "out.bias"]
    assert head.neck.dropout.p == 0.5


@pytest.mark.parametrize("build", [Neck, Regress, Embed])
def test_a_hidden_layer_that_is_not_known_is_named(build):
    with pytest.raises(ValueError, match="hidden must be none or one of linear, tanh, relu, gelu, got 'sigmoid'"):
        build(D, hidden="sigmoid")
