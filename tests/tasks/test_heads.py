"""Head modules, compared with their formulas."""

import pytest
import torch
from helpers.tasks import B, D, K, N, assert_same, part
from torch import nn

from dxn.core.tokens import join
from dxn.tasks import Classify, Embed, LinearHead, Multilabel, PreHead, Regress, Tag

ACTIVATIONS = {
    "linear": lambda h: h,
    "tanh": lambda h: 1 - 2 / (1 + (2 * h).exp()),
    "relu": lambda h: h.clamp(min=0),
    "gelu": lambda h: 0.5 * h * (1 + torch.erf(h / 2**0.5)),
}
NAMES = [str(i) for i in range(K)]


def scaled(module):
    """Float64 weights that are large enough for every part to matter, norms and biases too."""
    module = module.double()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return module.eval()


def normalized(x, norm, eps):
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * norm.weight + norm.bias


def expected_pre(pre, pooled, *, hidden, norm, eps):
    if hidden != "none":
        pooled = ACTIVATIONS[hidden](pooled @ pre.dense.weight.T + pre.dense.bias)
    return normalized(pooled, pre.norm, eps) if norm else pooled


def fitted(task):
    values = {"classify": NAMES, "multilabel": [NAMES], "regress": [1.0, 2.0], "embed": []}
    task.target.fit(values[task.name])
    return task


@pytest.mark.parametrize("hidden", ["none", *ACTIVATIONS])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("cls", [Classify, Multilabel, Regress, Embed])
def test_the_hidden_layer_and_the_norm_follow_their_formulas(cls, hidden, norm):
    task = fitted(cls(hidden=hidden, norm=norm, norm_eps=0.3))
    head = scaled(task.make_head(2, D, {}))
    pooled = torch.randn(B, D, dtype=torch.float64)
    out = expected_pre(head.pre, pooled, hidden=hidden, norm=norm, eps=0.3)
    if cls is not Embed:
        out = out @ head.out.weight.T + head.out.bias
    assert_same(head(None, pooled, {}), out, atol=1e-12)
    parts = {name.split(".")[1] for name, _ in head.named_parameters() if name.startswith("pre")}
    assert parts == ({"dense"} if hidden != "none" else set()) | ({"norm"} if norm else set())


@pytest.mark.parametrize(
    ("options", "width"),
    [
        ({}, D),
        ({"hidden_dim": 7}, D),  # without a layer nothing can have another width
        ({"hidden": "tanh"}, D),
        ({"hidden": "linear", "hidden_dim": 7}, 7),
        ({"hidden": "gelu", "hidden_dim": 29}, 29),
    ],
)
@pytest.mark.parametrize("norm", [False, True])
def test_a_pre_head_has_the_width_that_it_says(options, width, norm):
    pre = PreHead(D, norm=norm, **options)
    head = Embed(norm=norm, **options).make_head(2, D, {})
    pooled = torch.randn(B, D)
    assert pre.width == head.pre.width == width
    assert pre(pooled).shape == head(None, pooled, {}).shape == (B, width)
    assert LinearHead(pre, K)(None, pooled, {}).shape == (B, K)


def test_embed_without_options_returns_the_pooled_vector():
    pooled = torch.randn(B, D)
    head = Embed().make_head(2, D, {})
    assert torch.equal(head.train()(None, pooled, {}), pooled)
    assert not list(head.parameters())


def test_dropout_comes_last_and_only_in_training():
    pre = scaled(PreHead(D, hidden="tanh", norm=True, dropout=0.5))
    pooled = torch.randn(101, D, dtype=torch.float64)
    whole = pre(pooled)
    dropped = pre.train()(pooled)
    kept = dropped != 0
    assert float(kept.double().mean()) == pytest.approx(0.5, abs=0.05)
    assert_same(dropped[kept], 2 * whole[kept], atol=1e-12)


@pytest.mark.parametrize("cls", [Classify, Multilabel, Regress])
def test_the_dropout_of_a_task_is_that_of_its_head(cls):
    head = fitted(cls(dropout=0.5)).make_head(2, D, {})
    pooled = torch.randn(B, D)
    assert torch.equal(head.eval()(None, pooled, {}), head(None, pooled, {}))
    assert not torch.equal(head.train()(None, pooled, {}), head(None, pooled, {}))


@pytest.mark.parametrize("words_first", [True, False])
def test_a_token_head_uses_the_columns_of_its_input_wherever_they_are(words_first):
    head = LinearHead(PreHead(D), K, input="words")
    words, other = part("words"), part("other", 2)
    tokens = join([words, other] if words_first else [other, words])
    logits = head(tokens, torch.randn(B, D), {})
    assert logits.shape == (B, N, K)
    assert_same(logits, head.out(words.x))


def test_a_token_head_without_its_input_names_the_inputs_that_there_are():
    with pytest.raises(KeyError, match=r"no columns of 'words', only of \['other'\]"):
        LinearHead(PreHead(D), K, input="words")(part("other", 2), torch.randn(B, D), {})


def test_the_names_of_the_weights_are_pre_and_out():
    task = Classify(hidden="tanh", norm=True)
    task.target.fit(NAMES)
    names = {name for name, _ in task.make_head(2, D, {}).named_parameters()}
    layers = ("pre.dense", "pre.norm", "out")
    assert names == {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
    tag = Tag()
    tag.target.fit([NAMES])
    assert [name for name, _ in tag.make_head(D, 2, {}).named_parameters()] == [
        "out.weight",
        "out.bias",
    ]


def test_an_unknown_hidden_layer_is_refused():
    with pytest.raises(ValueError, match=r"one of 'none', .* or 'gelu', got 'sigmoid'"):
        PreHead(D, hidden="sigmoid")


def test_random_numbers_are_drawn_for_the_hidden_layer_first():
    torch.manual_seed(3)
    head = LinearHead(PreHead(D, hidden="gelu", norm=True), K)
    torch.manual_seed(3)
    dense, out = nn.Linear(D, D), nn.Linear(D, K)
    assert torch.equal(head.pre.dense.weight, dense.weight)
    assert torch.equal(head.out.weight, out.weight)
