"""Dropout: its rate, its independence, its gradients, and masks that do not depend on the batch."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dxn.core import dropout
from dxn.core.dropout import (
    MAX_LAYERS,
    WIDTH,
    Dropout,
    DropPath,
    Keys,
    Noise,
    drop,
    keyed,
    number_layers,
    selected,
)
from dxn.models.attention import attend


def deviations(hits, count, probability):
    """How many standard deviations the number of hits is away from its mean."""
    mean = count * probability
    return abs(hits - mean) / math.sqrt(mean * (1 - probability))


def noise(rows, seed=0):
    return Noise.of_step(torch.tensor(rows), seed)


def keys_of(noise, tokens):
    """The keys of `tokens` tokens per sample, in one axis."""
    count = len(noise.rows)
    with keyed(noise):
        keys = Keys.of((count, tokens), noise.rows.device)
    return keys.select(torch.arange(count * tokens))


@pytest.mark.parametrize("rate", [0.003, 0.1, 0.15, 0.3, 0.5, 0.9, 0.997])
def test_the_rate_is_exact_over_many_steps(rate):
    # A step has 2^16 random numbers, which all of its masks share.
    steps, size = 101, 2**16
    zeros = 0
    for _ in range(steps):
        out = Dropout(rate).train()(torch.ones(64, 16, WIDTH))
        zeros += int((out == 0).sum())
    assert out.unique().tolist() == pytest.approx([0, 1 / (1 - rate)])
    # Rows that are used twice add to the variance: at most as if only a half of them counted.
    assert deviations(zeros, steps * size, rate) < 4.5 * math.sqrt(3)


@pytest.mark.parametrize("size", [1, 7, WIDTH - 1, WIDTH, WIDTH + 1, 200])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_every_position_is_dropped_at_the_same_rate(size, rate):
    repeats = 503
    zeros = sum((drop(torch.ones(1, size), rate)[0] == 0).int() for _ in range(repeats))
    worst = max(deviations(int(n), repeats, rate) for n in (zeros.min(), zeros.max()))
    assert worst < 6


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_features_tokens_and_samples_are_dropped_independently(rate):
    """Two features of different parts, two tokens and two samples, in every combination."""
    draws = []
    for _ in range(1001):
        out = drop(torch.ones(2, 2, WIDTH + 8), rate)
        draws.append(out[..., [0, 1, WIDTH]].flatten())
    kept = (torch.stack(draws) > 0).double()
    assert float((torch.corrcoef(kept.T) - torch.eye(12)).abs().max()) < 0.15


def chi_square(*draws, bits=5):
    """How far the joint distribution of the upper bits is from a uniform one, in deviations."""
    codes = torch.zeros_like(draws[0])
    for each in draws:
        codes = codes * 2**bits + (each >> 64 - bits & 2**bits - 1)
    counts = torch.bincount(codes.flatten(), minlength=2 ** (bits * len(draws))).double()
    freedom = len(counts) - 1
    return float(counts.var() / counts.mean() * freedom - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("layer", [0, 1, 37, MAX_LAYERS])
def test_draws_of_neighbors_are_independent(layer):
    """Samples and steps have consecutive numbers, so their hashes have the most in common."""
    parts = []
    for seed in (5, 6):
        with keyed(noise(range(61), seed)):
            parts.append(Keys.of_mask(torch.ones(61, 257, dtype=torch.bool)).parts(7 * WIDTH))
    step = noise(range(61), 5)
    draws = step.draw(parts[0], layer)
    pairs = {
        "rows": [draws],
        "samples": [draws[:-1], draws[1:]],
        "tokens": [draws[:, :-1], draws[:, 1:]],
        "parts": [draws[..., :-1], draws[..., 1:]],
        "steps": [draws, noise(range(61), 6).draw(parts[1], layer)],
        "layers": [draws, step.draw(parts[0], layer + 1)],
        "branches": [draws, step.draw(parts[0], layer + MAX_LAYERS)],
        "tokens of layers": [draws[:, :-1], step.draw(parts[0], layer + 1)[:, 1:]],
    }
    far = {name: chi_square(*pair) for name, pair in pairs.items()}
    assert max(map(abs, far.values())) < 4, far


def test_drop_path_is_independent_between_samples_layers_and_steps():
    layers, rate = 13, 0.2
    kept = []
    for seed in range(101):
        step = noise(range(64), seed)
        draws = torch.stack([step.draw(step.rows, layer) for layer in range(layers)])
        kept.append((draws >= dropout.threshold(rate)).double())
    kept = torch.stack(kept)  # (steps, layers, samples)
    zeros = (kept == 0).sum((0, 2))
    assert max(deviations(int(n), kept[:, 0].numel(), rate) for n in zeros) < 4.5
    flat = kept.transpose(0, 1).flatten(1)
    pairs = [flat, flat[:, 1:], flat[:, 64:]]
    for shifted in pairs:
        shift = flat.shape[1] - shifted.shape[1]
        both = torch.corrcoef(torch.cat([flat[:, : flat.shape[1] - shift], shifted]))
        own = both[:layers, layers:]
        if not shift:
            own = own - torch.eye(layers)
        assert float(own.abs().max()) < 4.5 / math.sqrt(flat.shape[1])


def test_layers_and_steps_have_different_masks():
    x = torch.ones(8, 5, 16)
    with keyed(noise(range(8))):
        first = drop(x, 0.5, layer=0)
        assert torch.equal(drop(x, 0.5, layer=0), first)
        assert not torch.equal(drop(x, 0.5, layer=1), first)
    with keyed(noise(range(8), seed=1)):
        assert not torch.equal(drop(x, 0.5, layer=0), first)


def test_a_sample_has_the_same_mask_in_any_batch_and_with_any_padding():
    x = torch.ones(4, 6, 100)
    with keyed(noise([30, 10, 20, 40])):
        together = drop(x, 0.5)
    with keyed(noise([20])):
        assert torch.equal(drop(x[:1], 0.5), together[2:3])
        assert torch.equal(drop(torch.ones(1, 9, 100), 0.5)[:, :6], together[2:3])


def test_padding_between_tokens_does_not_change_their_masks():
    mask = torch.tensor([[True, False, True, True], [True, True, True, False]])
    x = torch.ones(2, 4, 32)
    with keyed(noise([7, 7])):
        out = drop(x, 0.5, Keys.of_mask(mask))
        assert torch.equal(out[0][mask[0]], out[1][mask[1]])
        packed = drop(x[mask], 0.5, Keys.of_mask(mask).select(mask.flatten().nonzero().flatten()))
    assert torch.equal(packed, out[mask])


def test_rows_of_a_part_of_the_batch_keep_their_masks():
    x = torch.ones(4, 3, 32)
    with keyed(noise([5, 6, 7, 8])):
        with selected(torch.tensor([1, 3])):
            part = drop(x[:2], 0.5)
        with selected(torch.arange(4)):
            assert torch.equal(drop(x, 0.5)[[1, 3]], part)
        with selected(torch.arange(4), salt=1):
            assert not torch.equal(drop(x, 0.5)[[1, 3]], part)


def test_drop_path_decides_by_sample_in_a_packed_batch_too():
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]] * 20)
    index = mask.flatten().nonzero().flatten()
    module = DropPath(0.5).train()
    with keyed(noise(range(40))):
        out = module(torch.ones(40, 5, 3), Keys.of_mask(mask))
        packed = module(torch.ones(len(index), 3), Keys.of_mask(mask).select(index))
        plain = module(torch.ones(40, 5, 3))
    assert torch.equal(packed, out[mask])
    assert torch.equal(plain, out)


def test_the_numbers_of_layers_depend_only_on_the_model():
    def model():
        return torch.nn.Sequential(Dropout(0.1), torch.nn.Linear(2, 2), DropPath(0.1))

    first, second = model(), model()
    assert first[0].layer != second[0].layer
    for one in (first, second):
        number_layers(one)
    assert [first[0].layer, first[2].layer] == [second[0].layer, second[2].layer] == [0, 1]


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("size", [503, 20_011])
def test_dropped_numbers_get_no_gradient(rate, size):
    x = torch.ones(1, size, requires_grad=True)
    out = Dropout(rate).train()(x)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


def test_high_rates_keep_the_mean_and_finite_numbers():
    dropout = Dropout(0.999).train()
    # The mean of one draw has a standard deviation of 0.14.
    out = torch.stack([dropout(torch.ones(503, 509)) for _ in range(20)])
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


class Operations(TorchDispatchMode):
    """Records the names of the operations that read or write memory."""

    VIEWS = ("view", "_unsafe_view", "unsqueeze", "slice", "select")

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name not in self.VIEWS:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def test_layers_after_the_first_start_few_operations():
    """Three of the hash, the choice of a row, and the product."""
    keys, x = keys_of(noise([3, 5, 7]), 11), torch.ones(33, WIDTH + 8)
    drop(x, 0.1, keys)
    with Operations() as operations:
        drop(x, 0.1, keys, layer=1)
    assert operations.names == ["mul", "__rshift__", "bitwise_and", "index_select", "mul"]
    path = DropPath(0.1).train()
    with Operations() as operations:
        path(x, keys)
    assert operations.names == ["mul", "ge", "_to_copy", "mul", "mul"]


@pytest.mark.parametrize("fused", [True, False])
def test_a_compiled_dropout_has_the_same_masks(monkeypatch, fused):
    """Outside of a CPU, the graph has no operator that cannot be part of a kernel."""
    monkeypatch.setattr(dropout, "_is_compiling_for_cpu", lambda x: not fused)
    graphs = []

    def backend(graph, inputs):
        graphs.append(str(graph.graph))
        return graph.forward

    path = DropPath(0.4).train()

    def both(x, tokens, rows, step, constants, layer):
        keys = Keys(Noise(rows, step, constants), tokens, rows)
        path.layer = layer
        return drop(x, 0.3, keys, layer=layer), path(x, keys)

    torch._dynamo.reset()
    compiled = torch.compile(both, backend=backend, fullgraph=True, dynamic=True)
    keys = keys_of(noise([3, 5, 7]), 11)
    for layer in (1, 2, 300 * 256):
        numbers = keys.tokens, keys.rows, keys.noise.step, keys.noise.constants
        inputs = torch.ones(33, WIDTH + 8), *numbers, layer
        for ours, theirs in zip(compiled(*inputs), both(*inputs), strict=True):
            assert torch.equal(ours, theirs)
    assert ("dxn" in graphs[-1]) != fused
    # Number 1 can be a constant. All others share a graph.
    assert len(graphs) <= 2


def test_generated_code_has_the_same_masks_for_wide_tokens():
    """Sixteen parts: a vector of indices, whose products inductor would round."""
    torch._dynamo.reset()
    keys, x = keys_of(noise([3, 5, 7]), 11), torch.ones(33, 16 * WIDTH)
    path = DropPath(0.3).train()
    compiled = torch.compile(lambda x, keys: (drop(x, 0.3, keys), path(x, keys)), fullgraph=True)
    ours = compiled(x, Keys(keys.noise, keys.tokens, keys.rows))
    assert torch.equal(ours[0], drop(x, 0.3, keys))
    assert torch.equal(ours[1], path(x, keys))
