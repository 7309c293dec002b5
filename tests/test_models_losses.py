"""The cross-entropy over a vocabulary in chunks, against torch's own in one piece."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.models import losses
from dxn.models.losses import linear_cross_entropy

M, V, D = 37, 11, 7


def given_inputs(count=M, *, dtype=torch.float64, spread=1.0, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = (spread * torch.randn(count, D, generator=draw, dtype=torch.float64)).to(dtype).requires_grad_()
    table = torch.randn(V, D, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()
    return x, table, torch.randint(0, V, (count,), generator=draw)


def in_one_piece(x, table, targets, smoothing=0.0):
    return F.cross_entropy(x @ table.T, targets, label_smoothing=smoothing, reduction="sum")


def with_gradients(loss, x, table):
    return loss.detach(), *torch.autograd.grad(loss, (x, table))


def same(left, right, *, rtol=0.0, atol=1e-11):
    for one, other in zip(left, right, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7, 1.0])
def test_the_sum_and_both_gradients_are_those_of_one_piece(smoothing):
    x, table, targets = given_inputs()
    ours = linear_cross_entropy(x, table, targets, label_smoothing=smoothing)
    assert ours.shape == ()
    same(with_gradients(ours, x, table), with_gradients(in_one_piece(x, table, targets, smoothing), x, table))


@pytest.mark.parametrize("count", [1, 15, 16, 17, 31, 32, 33, 37])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("group", [1, 2, 3])
def test_where_the_chunks_are_cut_changes_nothing(monkeypatch, count, smoothing, group):
    """Of 16 tokens, the fewest there are: at, before and behind each edge, and that of a group of chunks."""
    monkeypatch.setattr(losses, "CHUNK", 1)
    monkeypatch.setattr(losses, "GROUP", group)
    x, table, targets = given_inputs(count)
    ours = linear_cross_entropy(x, table, targets, label_smoothing=smoothing)
    same(with_gradients(ours, x, table), with_gradients(in_one_piece(x, table, targets, smoothing), x, table))


@pytest.mark.parametrize("tokens", [17, 19, 36, 37, 38])
def test_a_chunk_holds_as_many_logits_as_it_says(monkeypatch, tokens):
    monkeypatch.setattr(losses, "CHUNK", tokens * V + V - 1)
    sizes, amax = [], torch.Tensor.amax
    monkeypatch.setattr(torch.Tensor, "amax", lambda t, d: sizes.append(len(t)) or amax(t, d))
    x, table, targets = given_inputs()
    ours = linear_cross_entropy(x, table, targets)
    assert sizes[::2] == [min(tokens, M - start) for start in range(0, M, tokens)]
    monkeypatch.undo()
    same(with_gradients(ours, x, table), with_gradients(in_one_piece(x, table, targets), x, table))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 40), smoothing=st.floats(0, 1), spread=st.floats(0.01, 30))
def test_it_is_one_piece_whatever_is_given(seed, count, smoothing, spread):
    x, table, targets = given_inputs(count, seed=seed, spread=spread)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "CHUNK", 1)
        ours = with_gradients(linear_cross_entropy(x, table, targets, label_smoothing=smoothing), x, table)
    same(ours, with_gradients(in_one_piece(x, table, targets, smoothing), x, table), rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_its_gradients_are_the_slopes_of_the_loss(monkeypatch, smoothing):
    monkeypatch.setattr(losses, "CHUNK", 1)
    x, table, targets = given_inputs(19)
    # The backward is worked out in the forward and only scaled, so one direction at a time is enough.
    loss = lambda x, table: linear_cross_entropy(x, table, targets, label_smoothing=smoothing)  # noqa: E731
    assert torch.autograd.gradcheck(loss, (x, table), eps=1e-6, atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("scale", [0.0, 1 / 13, -3.0])
def test_a_loss_that_is_scaled_scales_both_gradients(scale):
    x, table, targets = given_inputs()
    ours = with_gradients(scale * linear_cross_entropy(x, table, targets, label_smoothing=0.1), x, table)
    same(ours, with_gradients(scale * in_one_piece(x, table, targets, 0.1), x, table))


def test_gradients_reach_what_the_vectors_came_from():
    x, table, targets = given_inputs()
    weight = torch.eye(D, dtype=torch.float64).requires_grad_()
    ours = torch.autograd.grad(linear_cross_entropy(x.detach() @ weight, table, targets), weight)
    same(ours, torch.autograd.grad(in_one_piece(x.detach() @ weight, table, targets), weight))


def test_one_table_read_and_compared_with_gets_both_gradients():
    _, table, targets = given_inputs()
    before = targets.roll(1)
    ours = torch.autograd.grad(linear_cross_entropy(table[before], table, targets), table)
    same(ours, torch.autograd.grad(in_one_piece(table[before], table, targets), table))


def test_a_word_that_is_no_target_and_one_that_is_many_times():
    x, table, _ = given_inputs()
    targets = torch.full((M,), 3)
    ours = linear_cross_entropy(x, table, targets)
    same(with_gradients(ours, x, table), with_gradients(in_one_piece(x, table, targets), x, table))


def test_no_token_at_all_costs_nothing():
    x, table, targets = given_inputs(0)
    loss, grad_x, grad_table = with_gradients(linear_cross_entropy(x, table, targets, label_smoothing=0.1), x, table)
    assert float(loss) == 0 and grad_x.shape == (0, D) and not grad_table.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_logits_of_ten_thousand_stay_finite(dtype, smoothing):
    """exp(1e4) is no number: the true word may be the most probable, or be 2e4 below it."""
    x = torch.tensor([[1e4], [-1e4], [1e4]], dtype=dtype).requires_grad_()
    table = torch.tensor([[1.0], [0.5], [-1.0]], dtype=dtype).requires_grad_()
    targets = torch.tensor([0, 0, 2])
    ours = with_gradients(linear_cross_entropy(x, table, targets, label_smoothing=smoothing), x, table)
    assert all(bool(found.isfinite().all()) for found in ours)
    same(ours, with_gradients(in_one_piece(x, table, targets, smoothing), x, table), rtol=1e-5, atol=1e-4)
    if not smoothing:
        assert float(ours[0]) == 4e4  # nothing for the first, 2e4 for each of the others


def test_words_that_are_all_alike_cost_the_logarithm_of_their_number():
    x, table, targets = given_inputs()
    found = linear_cross_entropy(x, torch.ones_like(table), targets, label_smoothing=0.3)
    torch.testing.assert_close(found, M * torch.tensor(float(V), dtype=torch.float64).log(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_in_bfloat16_it_is_close_to_float64(smoothing):
    x, table, targets = given_inputs(dtype=torch.bfloat16)
    exact_x, exact_table = (t.detach().double().requires_grad_() for t in (x, table))
    ours = with_gradients(linear_cross_entropy(x, table, targets, label_smoothing=smoothing), x, table)
    exact = with_gradients(in_one_piece(exact_x, exact_table, targets, smoothing), exact_x, exact_table)
    assert [t.dtype for t in ours] == [torch.float32, torch.bfloat16, torch.bfloat16]
    assert float(ours[0]) == pytest.approx(float(exact[0]), rel=5e-3)  # 8 bits of mantissa: a logit is 2^-9 off
    for mine, true in zip(ours[1:], exact[1:], strict=True):
        assert float((mine.double() - true).norm() / true.norm()) < 1e-2


def test_under_autocast_it_is_close_to_float64_and_its_gradients_keep_their_types():
    x, table, targets = given_inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = with_gradients(linear_cross_entropy(x, table, targets, label_smoothing=0.1), x, table)
    exact = with_gradients(in_one_piece(x, table, targets, 0.1), x, table)
    assert [t.dtype for t in ours] == [torch.float32] * 3
    for mine, true in zip(ours, exact, strict=True):
        assert float((mine - true).norm() / true.norm()) < 2e-2


def test_a_table_in_float32_can_be_compared_with_bfloat16_under_autocast():
    x, table, targets = given_inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = with_gradients(linear_cross_entropy(x.bfloat16(), table, targets), x, table)
    exact = with_gradients(in_one_piece(x, table, targets), x, table)
    assert [t.dtype for t in ours] == [torch.float32] * 3
    for mine, true in zip(ours, exact, strict=True):
        assert float((mine - true).norm() / true.norm()) < 2e-2
