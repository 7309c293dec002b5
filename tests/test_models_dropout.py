"""Dropout: its exact rate, its independence, its gradients and its scale."""

import math

import pytest
import torch

from dxn.models import dropout as module
from dxn.models.attention import attend
from dxn.models.dropout import Dropout, drop

SIZE = 4_194_301  # a prime, so that the number of bytes is not a multiple of eight


def deviations(hits, count, probability):
    """How many standard deviations the number of hits is away from its mean."""
    mean = count * probability
    return abs(hits - mean) / math.sqrt(mean * (1 - probability))


# None of these is a multiple of 1/256. Rounded to one, 0.1 would be 0.1016: 11 deviations away.
@pytest.mark.parametrize("rate", [0.0005, 0.003, 0.1, 0.15, 0.3, 0.5, 0.9, 0.997, 0.9995])
def test_the_rate_is_exact(rate):
    out = Dropout(rate).train()(torch.ones(SIZE))
    assert deviations(int((out == 0).sum()), SIZE, rate) < 4.5
    assert out.unique().tolist() == pytest.approx([0, 1 / (1 - rate)])


@pytest.mark.parametrize("rate", [0.003, 0.1, 0.5])
def test_the_rate_of_small_tensors_is_exact(rate):
    count, repeats = 1009, 2003
    zeros = sum(int((drop(torch.ones(count), rate) == 0).sum()) for _ in range(repeats))
    assert deviations(zeros, count * repeats, rate) < 4.5


@pytest.mark.parametrize("size", [1, 7, 8, 9, 17, module.SMALL, module.SMALL + 1])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_every_position_is_dropped_at_the_same_rate(size, rate):
    repeats = 2003
    zeros = sum((drop(torch.ones(size), rate) == 0).int() for _ in range(repeats))
    worst = max(deviations(int(n), repeats, rate) for n in (zeros.min(), zeros.max()))
    assert worst < 6
    assert zeros[[0, -1]].tolist() == pytest.approx([repeats * rate] * 2, rel=0.35)


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("rows", [101, 40_009])
def test_neighbours_are_dropped_independently(rate, rows):
    count = 40_009 // rows
    draws = [Dropout(rate).train()(torch.ones(rows, 8)) for _ in range(count)]
    kept = (torch.cat(draws) > 0).double()
    assert float((torch.corrcoef(kept.T) - torch.eye(8)).abs().max()) < 0.03


@pytest.mark.parametrize("rate", [0.1, 0.003])
def test_the_rare_positions_are_independent_of_each_other(rate):
    """The gaps between dropped numbers have a geometric distribution."""
    dropped = (drop(torch.ones(SIZE), rate) == 0).nonzero().flatten()
    gaps = dropped.diff().double()
    deviation = float(gaps.std()) / math.sqrt(len(gaps))
    assert float(gaps.mean()) == pytest.approx(1 / rate, abs=5 * deviation)
    assert float(gaps.std()) == pytest.approx(math.sqrt(1 - rate) / rate, rel=0.05)
    assert deviations(int((gaps == 1).sum()), len(gaps), rate) < 5


def test_the_rare_positions_reach_the_last_number_even_if_few_are_drawn():
    hits = torch.zeros(1009)
    for _ in range(3001):
        for positions in module._rare_positions(1009, 0.004):
            hits[positions[positions < 1009]] += 1
    assert deviations(int(hits.sum()), 1009 * 3001, 0.004) < 4.5
    assert deviations(int(hits[-100:].sum()), 100 * 3001, 0.004) < 4.5


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("size", [503, 20_011])
def test_dropped_numbers_get_no_gradient(rate, size):
    x = torch.ones(size, requires_grad=True)
    out = Dropout(rate).train()(x)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


def test_high_rates_keep_the_mean_and_finite_numbers():
    out = Dropout(0.999).train()(torch.ones(503, 509))
    assert bool(torch.isfinite(out).all())
    assert float(out.mean()) == pytest.approx(1, abs=0.3)


def test_a_rate_of_zero_returns_the_same_tensor():
    x = torch.ones(3)
    assert drop(x, 0.0) is x


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dropout_of_attention_drops_single_weights_and_scales_the_others(dtype):
    query, key = torch.randn(2, 2, 3, 101, 8, dtype=dtype).sin()
    key = key[..., :64, :]
    identity = torch.eye(64, dtype=dtype).expand(2, 3, 64, 64)  # the output is the weights
    dropped = attend(query, key, identity, dropout=0.25)
    weights = attend(query, key, identity)
    assert float((dropped == 0).float().mean()) == pytest.approx(0.25, abs=0.02)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], (weights / 0.75)[kept], rtol=2e-2, atol=0)


@pytest.mark.parametrize(
    "build",
    [lambda rate: Dropout(rate), lambda rate: attend(*[torch.ones(1, 3, 8)] * 3, dropout=rate)],
)
@pytest.mark.parametrize("rate", [1.0, -0.1])
def test_an_invalid_rate_raises_a_clear_error(build, rate):
    with pytest.raises(ValueError, match=f"dropout must be at least 0 and below 1, got {rate}"):
        build(rate)
