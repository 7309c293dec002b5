"""Dropout: how much it clears, of what, and what is left."""

import pytest
import torch

from dxn.models.attention import attend
from dxn.models.dropout import Dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean(rate):
    out = Dropout(rate).train()(torch.full((503, 509), 3.0))
    assert float((out == 0).float().mean()) == pytest.approx(rate, abs=0.005)
    assert float(out.mean()) == pytest.approx(3, rel=0.02)
    assert len(out.unique()) == 2  # zero and the scaled value


@pytest.mark.parametrize("size", [1, 7, 8, 9, 17])
def test_dropout_takes_any_number_of_numbers(size):
    out = torch.stack([Dropout(0.5).train()(torch.ones(size)) for _ in range(400)])
    assert out.mean(0).tolist() == pytest.approx([1] * size, abs=0.25)


def test_dropout_clears_neighbours_independently():
    kept = (Dropout(0.5).train()(torch.ones(20011, 8)) > 0).double()
    assert float((torch.corrcoef(kept.T) - torch.eye(8)).abs().max()) < 0.05


def test_dropout_passes_no_gradient_where_it_cleared():
    x = torch.ones(503, requires_grad=True)
    out = Dropout(0.5).train()(x)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


def test_the_highest_rates_of_dropout_still_leave_finite_numbers():
    out = Dropout(0.999).train()(torch.ones(503, 509))
    assert bool(torch.isfinite(out).all())
    assert float(out.mean()) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dropout_of_attention_clears_single_weights_and_scales_the_rest(dtype):
    query, key = torch.randn(2, 3, 101, 8, dtype=dtype).sin(), torch.randn(2, 3, 64, 8, dtype=dtype).sin()
    each = torch.eye(64, dtype=dtype).expand(2, 3, 64, 64)  # as values: what is answered is the weights
    kept, full = attend(query, key, each, dropout=0.25), attend(query, key, each)
    assert float((kept == 0).float().mean()) == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(kept[kept != 0], (full / 0.75)[kept != 0], rtol=2e-2, atol=0)


@pytest.mark.parametrize(
    "build", [lambda rate: Dropout(rate), lambda rate: attend(*[torch.ones(1, 3, 8)] * 3, dropout=rate)]
)
@pytest.mark.parametrize("rate", [1.0, -0.1])
def test_a_rate_that_is_no_probability_under_1_is_named(build, rate):
    with pytest.raises(ValueError, match=f"dropout must be at least 0 and under 1, got {rate}"):
        build(rate)
