"""Attention as a function: its scores, limiting cases, and an example with known numbers."""

import math

import pytest
import torch
from helpers.reference import backbone_of, run_padded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dxn.models.attention import Attention, Score, attend, attention_weights

M, N, D, E = 5, 7, 3, 11
KINDS = ("scaled_dot", "dot", "cosine", "additive", "bilinear")


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lively(kind, dim=D):
    torch.manual_seed(0)
    measure = Score(kind, dim).double()
    for parameter in measure.parameters():
        nn.init.normal_(parameter)
    return measure


def reference_score(kind, measure, q, k):
    """The score of one query and one key by its formula."""
    plain = sum(a * b for a, b in zip(q.tolist(), k.tolist(), strict=True))
    if kind == "dot":
        return plain
    if kind == "scaled_dot":
        return plain / math.sqrt(len(q))
    if kind == "cosine":
        return measure.factor.item() * plain / (float(q.norm()) * float(k.norm()))
    if kind == "bilinear":
        return sum(
            (q[i] * measure.weight[i, j] * k[j]).item()
            for i in range(len(q))
            for j in range(len(k))
        )
    hidden = measure.of_query.weight @ q + measure.of_key.weight @ k + measure.of_key.bias
    return (measure.weight * hidden.tanh()).sum().item()


def reference_attention(kind, measure, query, key, value, allowed=None, added=None):
    """Attention of one query and one key at a time."""
    rows = []
    for m, q in enumerate(query):
        shares = []
        for n, k in enumerate(key):
            score = reference_score(kind, measure, q, k) + (
                float(added[m, n]) if added is not None else 0.0
            )
            shares.append(math.exp(score) if allowed is None or bool(allowed[m, n]) else 0.0)
        rows.append(sum(s * v for s, v in zip(shares, value, strict=True)) / sum(shares))
    return torch.stack(rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("masked", ["nothing", "keys", "added"])
def test_attention_with_every_score_equals_its_formula(kind, masked):
    measure, query, key, value = (
        lively(kind),
        numbers(M, D),
        numbers(N, D, seed=1),
        numbers(N, E, seed=2),
    )
    allowed = (
        torch.rand(M, N, generator=torch.Generator().manual_seed(3)) < 0.6
        if masked == "keys"
        else None
    )
    if allowed is not None:
        allowed[:, 2] = True
    added = numbers(M, N, seed=4) if masked == "added" else None
    bias = allowed if allowed is not None else added
    expected = reference_attention(kind, measure, query, key, value, allowed, added)
    torch.testing.assert_close(
        attend(query, key, value, bias, score=measure), expected, rtol=0, atol=1e-12
    )
    weights = attention_weights(query, key, bias, score=measure)
    torch.testing.assert_close(weights @ value, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(weights.sum(-1), torch.ones(M, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_attention_in_bf16_is_close_to_float64(kind):
    measure, query, key, value = (
        lively(kind),
        numbers(2, M, D),
        numbers(2, N, D, seed=1),
        numbers(2, N, E, seed=2),
    )
    exact = attend(query, key, value, score=measure)
    rough = attend(query.bfloat16(), key.bfloat16(), value.bfloat16(), score=measure.bfloat16())
    torch.testing.assert_close(rough.double(), exact, rtol=0, atol=0.15)


def test_an_example_with_known_numbers():
    x = torch.tensor([[1.0, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]])
    key = x @ torch.tensor([[0.0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]])
    query = x @ torch.tensor([[1.0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]])
    value = x @ torch.tensor([[0.0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]])
    assert key.tolist() == [[0, 1, 1], [4, 4, 0], [2, 3, 1]]
    assert value.tolist() == [[1, 2, 3], [2, 8, 0], [2, 6, 3]]
    assert query[0].tolist() == [1, 0, 2] and (query[0] @ key.T).tolist() == [2, 4, 4]
    # softmax of (2, 4, 4): e^-2 / (2 + e^-2) and 1 / (2 + e^-2) twice
    small, large = math.exp(-2) / (2 + math.exp(-2)), 1 / (2 + math.exp(-2))
    weights = attention_weights(query, key, score=Score("dot", D))[0]
    torch.testing.assert_close(weights, torch.tensor([small, large, large]))
    assert [round(w, 3) for w in weights.tolist()] == [0.063, 0.468, 0.468]
    output = attend(query, key, value, score=Score("dot", D))[0]
    assert [round(o, 2) for o in output.tolist()] == [1.94, 6.68, 1.60]


@given(n=st.integers(1, 40), at=st.integers(0, 39), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_an_exact_match_gives_the_value_of_its_key_for_any_number_of_keys(n, at, seed):
    at %= n
    key = torch.nn.functional.normalize(numbers(n, 13, seed=seed), dim=-1)
    value = numbers(n, E, seed=seed + 1)
    gap = (
        1 - (key @ key[at]).masked_fill(torch.arange(n) == at, -1).max()
    )  # to the next most similar key
    answer = attend(key[at : at + 1] * 60 / gap, key, value, score=Score("dot", D))
    torch.testing.assert_close(answer[0], value[at], rtol=0, atol=1e-12)


def test_a_zero_query_gives_the_mean_of_the_values():
    value = numbers(N, E)
    answer = attend(
        torch.zeros(1, D, dtype=torch.float64), numbers(N, D, seed=1), value, score=Score("dot", D)
    )
    torch.testing.assert_close(answer[0], value.mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_the_keys_does_not_matter(kind):
    measure, query, key, value = (
        lively(kind),
        numbers(M, D),
        numbers(N, D, seed=1),
        numbers(N, E, seed=2),
    )
    order = torch.randperm(N, generator=torch.Generator().manual_seed(5))
    expected = attend(query, key, value, score=measure)
    torch.testing.assert_close(
        attend(query, key[order], value[order], score=measure), expected, rtol=0, atol=1e-12
    )


def test_cosine_ignores_the_length_of_a_key_and_dot_does_not():
    query, key, value = numbers(M, D), numbers(N, D, seed=1), numbers(N, E, seed=2)
    longer = key * torch.arange(1, N + 1)[:, None]
    same = attend(query, longer, value, score=Score("cosine", D)) - attend(
        query, key, value, score=Score("cosine", D)
    )
    assert same.detach().abs().max() < 1e-6  # its factor is in float32
    assert not torch.allclose(
        attend(query, longer, value, score=Score("dot", D)),
        attend(query, key, value, score=Score("dot", D)),
    )


def test_a_bilinear_score_starts_as_the_scaled_dot_product():
    query, key, value = (
        numbers(M, D).float(),
        numbers(N, D, seed=1).float(),
        numbers(N, E, seed=2).float(),
    )
    torch.testing.assert_close(
        attend(query, key, value, score=Score("bilinear", D)), attend(query, key, value)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_head_of_an_attention_uses_the_score(kind):
    """One head at a time: project, attend, concatenate, project."""
    torch.manual_seed(0)
    attn = Attention(12, num_heads=4, score=kind).double()
    x = numbers(2, N, 12)
    q, k, v = attn.qkv(x).chunk(3, -1)
    heads = [
        attend(
            q[..., 3 * h : 3 * h + 3],
            k[..., 3 * h : 3 * h + 3],
            v[..., 3 * h : 3 * h + 3],
            score=attn.score,
        )
        for h in range(4)
    ]
    torch.testing.assert_close(
        run_padded(attn, x), attn.proj(torch.cat(heads, -1)), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_of_a_score_get_a_gradient(kind):
    backbone = backbone_of(12, depth=1, num_heads=2, score=kind)
    x = torch.randn(2, N, 12, requires_grad=True)
    backbone.run(x, torch.ones(2, N, dtype=torch.bool)).square().sum().backward()
    learned = [p for name, p in backbone.named_parameters() if ".attn.score." in name]
    assert len(learned) == {"cosine": 1, "bilinear": 1, "additive": 4}.get(kind, 0)
    assert all(
        p.grad is not None and bool(p.grad.abs().sum() > 0)
        for p in learned
        if p.ndim != 1 or len(p) > 1
    )


def test_an_unknown_score_is_an_error():
    message = "kind must be one of 'scaled_dot', 'dot', 'cosine', 'additive' or 'bilinear'"
    with pytest.raises(ValueError, match=message):
        Score("euclid", D)
