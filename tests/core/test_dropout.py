"""Dropout: its rate, its independence, its gradients, and masks that do not depend on the batch."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dxn.core import dropout
from dxn.core.dropout import (
    FEATURE_PARTS,
    WIDTH,
    Dropout,
    Keys,
    Step,
    drop,
    keep_mask,
    keyed,
    number_layers,
    selected,
)
from dxn.models.attention import attend


def deviations(hits, count, probability):
    """How many standard deviations the number of hits is away from its mean."""
    mean = count * probability
    return abs(hits - mean) / math.sqrt(mean * (1 - probability))


def keys_of(samples, tokens, seed=0):
    """The keys of `tokens` tokens per sample: (B, N)."""
    with keyed(torch.tensor(samples), seed):
        return Keys.of_mask(torch.ones(len(samples), tokens, dtype=torch.bool))


def packed_keys(samples, tokens):
    """The same keys in one axis."""
    with keyed(torch.tensor(samples), 0):
        mask = torch.ones(len(samples), tokens, dtype=torch.bool)
        return Keys.of_mask(mask, torch.arange(mask.numel()))


def dropped(x, rate, layer=0):
    """Dropout of x (B, ..., D), with the keys of its shape."""
    return drop(x, rate, Keys.of(x.shape[:-1], x.device), layer)


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
    zeros = sum((dropped(torch.ones(1, size), rate)[0] == 0).int() for _ in range(repeats))
    worst = max(deviations(int(n), repeats, rate) for n in (zeros.min(), zeros.max()))
    assert worst < 6


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_features_tokens_and_samples_are_dropped_independently(rate):
    """Two features of different parts, two tokens and two samples, in every combination."""
    draws = []
    for _ in range(1001):
        out = dropped(torch.ones(2, 2, WIDTH + 8), rate)
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


@pytest.mark.parametrize("layer", [0, 1, 37, 1000])
def test_draws_of_neighbors_are_independent(layer):
    """Samples and steps have consecutive numbers, so their hashes have the most in common."""

    def draw(layer, seed=5):
        keys = keys_of(range(61), 257, seed)
        return keys.step.draw(keys.tokens, layer, 7)

    draws = draw(layer)
    pairs = {
        "rows": [draws],
        "samples": [draws[:-1], draws[1:]],
        "tokens": [draws[:, :-1], draws[:, 1:]],
        "parts": [draws[..., :-1], draws[..., 1:]],
        "steps": [draws, draw(layer, seed=6)],
        "layers": [draws, draw(layer + 1)],
        "tokens of layers": [draws[:, :-1], draw(layer + 1)[:, 1:]],
        "parts of layers": [draws[..., :-1], draw(layer + 1)[..., 1:]],
    }
    far = {name: chi_square(*pair) for name, pair in pairs.items()}
    assert max(map(abs, far.values())) < 4, far


def test_drop_path_is_independent_between_samples_layers_and_steps():
    layers, rate = 13, 0.2
    kept = []
    for seed in range(101):
        step = keys_of(range(64), 1, seed).step
        draws = torch.cat([step.draw(step.samples, layer) for layer in range(layers)], 1)
        kept.append(keep_mask(draws.T, rate).double())
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
    with keyed(torch.arange(8), 0):
        first = dropped(x, 0.5, layer=0)
        assert torch.equal(dropped(x, 0.5, layer=0), first)
        assert not torch.equal(dropped(x, 0.5, layer=1), first)
    with keyed(torch.arange(8), 1):
        assert not torch.equal(dropped(x, 0.5, layer=0), first)


def test_tokens_with_very_many_features_repeat_their_masks():
    count = FEATURE_PARTS * WIDTH
    out = dropped(torch.ones(1, 3, count + 5), 0.5)
    assert torch.equal(out[..., count:], out[..., :5])


def test_a_sample_has_the_same_mask_in_any_batch_and_with_any_padding():
    x = torch.ones(4, 6, 100)
    with keyed(torch.tensor([30, 10, 20, 40]), 0):
        together = dropped(x, 0.5)
    with keyed(torch.tensor([20]), 0):
        assert torch.equal(dropped(x[:1], 0.5), together[2:3])
        assert torch.equal(dropped(torch.ones(1, 9, 100), 0.5)[:, :6], together[2:3])


def test_padding_between_tokens_does_not_change_their_masks():
    mask = torch.tensor([[True, False, True, True], [True, True, True, False]])
    x = torch.ones(2, 4, 32)
    with keyed(torch.tensor([7, 7]), 0):
        out = Dropout(0.5).train()(x, mask=mask)
        assert torch.equal(out[0][mask[0]], out[1][mask[1]])
        module = Dropout(0.5).train()
        packed = module(x[mask], Keys.of_mask(mask, mask.flatten().nonzero().flatten()))
        assert torch.equal(packed, module(x, mask=mask)[mask])
        # Without padding, the keys of the shape are those of the mask.
        assert torch.equal(module(x[:, :3]), module(x[:, :3], mask=mask.new_ones(2, 3)))


def test_rows_of_a_part_of_the_batch_keep_their_masks():
    x = torch.ones(4, 3, 32)
    with keyed(torch.tensor([5, 6, 7, 8]), 0):
        with selected(torch.tensor([1, 3])):
            part = dropped(x[:2], 0.5)
        with selected(torch.arange(4)):
            assert torch.equal(dropped(x, 0.5)[[1, 3]], part)
        with selected(torch.arange(4), salt=1):
            assert not torch.equal(dropped(x, 0.5)[[1, 3]], part)


def test_drop_path_decides_by_sample_in_a_packed_batch_too():
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]] * 20)
    index = mask.flatten().nonzero().flatten()
    module = Dropout(0.0, drop_path=0.5).train()
    with keyed(torch.arange(40), 0):
        out = module(torch.ones(40, 5, 3), Keys.of_mask(mask))
        packed = module(torch.ones(len(index), 3), Keys.of_mask(mask, index))
        plain = module(torch.ones(40, 5, 3))
    assert torch.equal(packed, out[mask])
    assert torch.equal(plain, out)


def test_the_numbers_of_layers_depend_only_on_the_model():
    def model():
        return torch.nn.Sequential(Dropout(0.1), torch.nn.Linear(2, 2), Dropout(0.1))

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
    x = torch.ones(3, 2)
    assert dropped(x, 0.0) is x


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
    ("rate", "message"),
    [(1.0, "rate must be below 1, got 1.0"), (-0.1, "rate must be at least 0, got -0.1")],
)
def test_an_invalid_rate_raises_a_clear_error(rate, message):
    with pytest.raises(ValueError, match=message):
        Dropout(rate)


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
    keys, x = packed_keys([3, 5, 7], 11), torch.ones(33, WIDTH + 8)
    drop(x, 0.1, keys)
    with Operations() as operations:
        drop(x, 0.1, keys, layer=1)
    assert operations.names == ["mul", "__rshift__", "bitwise_and", "index_select", "mul"]
    path = Dropout(0.0, drop_path=0.1).train()
    with Operations() as operations:
        path(x, keys)
    assert operations.names == ["mul", "ge", "_to_copy", "mul", "mul"]


@pytest.mark.parametrize("fused", [True, False])
def test_a_compiled_dropout_has_the_same_masks(monkeypatch, fused):
    """Outside of a CPU, the graph has no operator that cannot be part of a kernel."""
    if fused:
        monkeypatch.setattr(dropout, "_select_op", dropout._select)
    graphs = []

    def backend(graph, inputs):
        graphs.append(str(graph.graph))
        return graph.forward

    module = Dropout(0.3, drop_path=0.4).train()

    def compute(x, tokens, samples, factor, constants, layer):
        keys = Keys(Step(samples, factor, constants), samples, tokens)
        module.layer = layer
        return module(x, keys)

    torch._dynamo.reset()
    compiled = torch.compile(compute, backend=backend, fullgraph=True, dynamic=True)
    keys = packed_keys([3, 5, 7], 11)
    for layer in (1, 2, 300 * 256):
        numbers = keys.tokens, keys.samples, keys.step.factor, keys.step.constants
        inputs = torch.ones(33, WIDTH + 8), *numbers, layer
        assert torch.equal(compiled(*inputs), compute(*inputs))
    assert ("dxn" in graphs[-1]) != fused
    # Number 1 can be a constant. All others share a graph.
    assert len(graphs) <= 2


@pytest.mark.exhaustive
def test_generated_code_has_the_same_masks_for_wide_tokens():
    """Sixteen parts: a vector of indices, whose products inductor would round."""
    torch._dynamo.reset()
    keys, x = packed_keys([3, 5, 7], 11), torch.ones(33, 16 * WIDTH)
    module = Dropout(0.3, drop_path=0.3).train()
    compiled = torch.compile(module, fullgraph=True)
    assert torch.equal(compiled(x, keys), module(x, keys))
