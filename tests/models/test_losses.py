"""The chunked cross-entropy over a vocabulary, compared with torch's cross-entropy."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from dxn.models import losses
from dxn.models.losses import linear_cross_entropy

M, V, D = 37, 11, 7


def make_inputs(count=M, *, dtype=torch.float64, spread=1.0, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = (
        (spread * torch.randn(count, D, generator=draw, dtype=torch.float64))
        .to(dtype)
        .requires_grad_()
    )
    embedding = torch.randn(V, D, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()
    return x, embedding, torch.randint(0, V, (count,), generator=draw)


def torch_loss(x, embedding, targets, smoothing=0.0):
    return F.cross_entropy(x @ embedding.T, targets, label_smoothing=smoothing, reduction="sum")


def with_gradients(loss, x, embedding):
    return loss.detach(), *torch.autograd.grad(loss, (x, embedding))


def assert_all_same(left, right, *, rtol=0.0, atol=1e-11):
    for one, other in zip(left, right, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7, 1.0])
def test_the_loss_and_both_gradients_equal_those_of_torch(smoothing):
    x, embedding, targets = make_inputs()
    ours = linear_cross_entropy(x, embedding, targets, label_smoothing=smoothing)
    assert ours.shape == ()
    assert_all_same(
        with_gradients(ours, x, embedding),
        with_gradients(torch_loss(x, embedding, targets, smoothing), x, embedding),
    )


@pytest.mark.parametrize("count", [1, 15, 16, 17, 31, 32, 33, 37])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("group", [1, 2, 3])
def test_the_boundaries_of_the_chunks_change_nothing(monkeypatch, count, smoothing, group):
    """Chunks of 16 tokens, the minimum: counts around the edges of chunks and groups."""
    monkeypatch.setattr(losses, "CHUNK", 1)
    monkeypatch.setattr(losses, "GROUP", group)
    x, embedding, targets = make_inputs(count)
    ours = linear_cross_entropy(x, embedding, targets, label_smoothing=smoothing)
    assert_all_same(
        with_gradients(ours, x, embedding),
        with_gradients(torch_loss(x, embedding, targets, smoothing), x, embedding),
    )


@pytest.mark.parametrize("tokens", [17, 19, 36, 37, 38])
def test_a_chunk_has_the_requested_number_of_logits(monkeypatch, tokens):
    monkeypatch.setattr(losses, "CHUNK", tokens * V + V - 1)
    sizes, amax = [], torch.Tensor.amax
    monkeypatch.setattr(torch.Tensor, "amax", lambda t, d: sizes.append(len(t)) or amax(t, d))
    x, embedding, targets = make_inputs()
    ours = linear_cross_entropy(x, embedding, targets)
    assert sizes[::2] == [min(tokens, M - start) for start in range(0, M, tokens)]
    monkeypatch.undo()
    assert_all_same(
        with_gradients(ours, x, embedding),
        with_gradients(torch_loss(x, embedding, targets), x, embedding),
    )


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 40),
    smoothing=st.floats(0, 1),
    spread=st.floats(0.01, 30),
)
def test_it_equals_torch_for_random_inputs(seed, count, smoothing, spread):
    x, embedding, targets = make_inputs(count, seed=seed, spread=spread)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "CHUNK", 1)
        ours = with_gradients(
            linear_cross_entropy(x, embedding, targets, label_smoothing=smoothing), x, embedding
        )
    assert_all_same(
        ours,
        with_gradients(torch_loss(x, embedding, targets, smoothing), x, embedding),
        rtol=1e-11,
        atol=1e-9,
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_its_gradients_equal_numerical_differences(monkeypatch, smoothing):
    monkeypatch.setattr(losses, "CHUNK", 1)
    x, embedding, targets = make_inputs(19)

    # The forward pass computes the gradients and the backward pass only scales them.
    def loss(x, embedding):
        return linear_cross_entropy(x, embedding, targets, label_smoothing=smoothing)

    assert torch.autograd.gradcheck(loss, (x, embedding), eps=1e-6, atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("scale", [0.0, 1 / 13, -3.0])
def test_scaling_the_loss_scales_both_gradients(scale):
    x, embedding, targets = make_inputs()
    ours = with_gradients(
        scale * linear_cross_entropy(x, embedding, targets, label_smoothing=0.1), x, embedding
    )
    assert_all_same(
        ours, with_gradients(scale * torch_loss(x, embedding, targets, 0.1), x, embedding)
    )


def test_gradients_reach_the_layers_before_the_loss():
    x, embedding, targets = make_inputs()
    weight = torch.eye(D, dtype=torch.float64).requires_grad_()
    ours = torch.autograd.grad(
        linear_cross_entropy(x.detach() @ weight, embedding, targets), weight
    )
    assert_all_same(
        ours, torch.autograd.grad(torch_loss(x.detach() @ weight, embedding, targets), weight)
    )


def test_a_tied_embedding_gets_the_gradients_of_both_uses():
    _, embedding, targets = make_inputs()
    before = targets.roll(1)
    ours = torch.autograd.grad(
        linear_cross_entropy(embedding[before], embedding, targets), embedding
    )
    assert_all_same(
        ours, torch.autograd.grad(torch_loss(embedding[before], embedding, targets), embedding)
    )


def test_a_token_may_be_the_target_many_times_or_never():
    x, embedding, _ = make_inputs()
    targets = torch.full((M,), 3)
    ours = linear_cross_entropy(x, embedding, targets)
    assert_all_same(
        with_gradients(ours, x, embedding),
        with_gradients(torch_loss(x, embedding, targets), x, embedding),
    )


def test_no_tokens_give_a_loss_of_zero():
    x, embedding, targets = make_inputs(0)
    loss, grad_x, grad_embedding = with_gradients(
        linear_cross_entropy(x, embedding, targets, label_smoothing=0.1), x, embedding
    )
    assert float(loss) == 0 and grad_x.shape == (0, D) and not grad_embedding.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_logits_of_ten_thousand_stay_finite(dtype, smoothing):
    """exp(1e4) overflows. The true token may be the most probable, or its logit 2e4 below it."""
    x = torch.tensor([[1e4], [-1e4], [1e4]], dtype=dtype).requires_grad_()
    embedding = torch.tensor([[1.0], [0.5], [-1.0]], dtype=dtype).requires_grad_()
    targets = torch.tensor([0, 0, 2])
    ours = with_gradients(
        linear_cross_entropy(x, embedding, targets, label_smoothing=smoothing), x, embedding
    )
    assert all(bool(tensor.isfinite().all()) for tensor in ours)
    assert_all_same(
        ours,
        with_gradients(torch_loss(x, embedding, targets, smoothing), x, embedding),
        rtol=1e-5,
        atol=1e-4,
    )
    if not smoothing:
        assert float(ours[0]) == 4e4  # 0 for the first token, 2e4 for each of the others


def test_equal_vectors_give_the_logarithm_of_the_vocabulary_size():
    x, embedding, targets = make_inputs()
    loss = linear_cross_entropy(x, torch.ones_like(embedding), targets, label_smoothing=0.3)
    torch.testing.assert_close(
        loss, M * torch.tensor(float(V), dtype=torch.float64).log(), rtol=0, atol=1e-11
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_in_bfloat16_it_is_close_to_float64(smoothing):
    x, embedding, targets = make_inputs(dtype=torch.bfloat16)
    exact_x, exact_embedding = (t.detach().double().requires_grad_() for t in (x, embedding))
    ours = with_gradients(
        linear_cross_entropy(x, embedding, targets, label_smoothing=smoothing), x, embedding
    )
    exact = with_gradients(
        torch_loss(exact_x, exact_embedding, targets, smoothing), exact_x, exact_embedding
    )
    assert [t.dtype for t in ours] == [torch.float32, torch.bfloat16, torch.bfloat16]
    assert float(ours[0]) == pytest.approx(
        float(exact[0]), rel=5e-3
    )  # a mantissa of 8 bits: the error of a logit is 2^-9
    for mine, true in zip(ours[1:], exact[1:], strict=True):
        assert float((mine.double() - true).norm() / true.norm()) < 1e-2


def test_under_autocast_it_is_close_to_float64_and_gradients_keep_their_dtype():
    x, embedding, targets = make_inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = with_gradients(
            linear_cross_entropy(x, embedding, targets, label_smoothing=0.1), x, embedding
        )
    exact = with_gradients(torch_loss(x, embedding, targets, 0.1), x, embedding)
    assert [t.dtype for t in ours] == [torch.float32] * 3
    for mine, true in zip(ours, exact, strict=True):
        assert float((mine - true).norm() / true.norm()) < 2e-2


def test_under_autocast_x_may_be_bfloat16_and_the_embedding_float32():
    x, embedding, targets = make_inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = with_gradients(linear_cross_entropy(x.bfloat16(), embedding, targets), x, embedding)
    exact = with_gradients(torch_loss(x, embedding, targets), x, embedding)
    assert [t.dtype for t in ours] == [torch.float32] * 3
    for mine, true in zip(ours, exact, strict=True):
        assert float((mine - true).norm() / true.norm()) < 2e-2


def flops(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_without_gradients_the_loss_is_the_same_and_costs_one_product(mode, smoothing):
    x, embedding, targets = make_inputs()

    def loss():
        return linear_cross_entropy(x, embedding, targets, label_smoothing=smoothing)

    with mode():
        assert torch.equal(loss(), loss().detach())
        assert flops(loss) == 2 * M * V * D
    assert torch.equal(loss().detach(), mode()(loss)())
    assert flops(loss) == 3 * 2 * M * V * D


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_side_gets_no_gradient_and_costs_no_product(frozen):
    inputs = make_inputs()
    sides = [each.detach().requires_grad_(i != frozen) for i, each in enumerate(inputs[:2])]
    losses_of = [f(*sides, inputs[2]) for f in (linear_cross_entropy, torch_loss)]
    ours, theirs = (torch.autograd.grad(loss, sides[1 - frozen])[0] for loss in losses_of)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)
    assert flops(lambda: linear_cross_entropy(*sides, inputs[2])) == 2 * 2 * M * V * D


def test_other_devices_than_a_cpu_get_few_large_chunks():
    """2,048 tokens and GPT-2's vocabulary: one chunk, instead of one per 20 tokens."""
    x = torch.empty(2048, 8, device="meta", requires_grad=True)
    embedding = torch.empty(50257, 8, device="meta", requires_grad=True)
    targets = torch.empty(2048, dtype=torch.long, device="meta")
    shapes = []

    class Softmaxes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten._softmax.default:
                shapes.append(tuple(args[0].shape))
            return func(*args, **(kwargs or {}))

    with Softmaxes():
        linear_cross_entropy(x, embedding, targets)
    assert shapes == [(2048, 50257)]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("softcap", [None, 1.3])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("reads", [False, True])
def test_a_bias_and_a_limit_of_the_logits(monkeypatch, smoothing, softcap, has_bias, reads):
    monkeypatch.setattr(losses, "CHUNK", 1)
    monkeypatch.setattr(losses, "can_read", lambda tensor: reads)
    x, embedding, targets = make_inputs()
    bias = torch.linspace(-2, 2, V, dtype=torch.float64, requires_grad=True)
    parts = (x, embedding, bias) if has_bias else (x, embedding)
    targets[::5] = -100
    logits = x @ embedding.T + (bias if has_bias else 0)
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    expected = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    actual = linear_cross_entropy(
        x,
        embedding,
        targets,
        bias=bias if has_bias else None,
        softcap=softcap,
        label_smoothing=smoothing,
    )
    assert_all_same(
        (actual.detach(), *torch.autograd.grad(actual, parts)),
        (expected.detach(), *torch.autograd.grad(expected, parts)),
    )
