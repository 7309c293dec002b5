"""Frozen linear layers with 8 or 4 bits."""

import pytest
import torch
from torch import nn

from dxn.training.finetune import FrozenLinear, _levels, to_nf4

# The table of arXiv:2305.14314, appendix E.
NF4 = [
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
]
KINDS = {"int8": 0.01, "nf4": 0.12}


def test_the_levels_are_those_of_the_paper():
    torch.testing.assert_close(_levels(), torch.tensor(NF4), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [64, 127, 131])
def test_a_quantized_layer_is_close_to_the_original(kind, columns):
    torch.manual_seed(0)
    linear = nn.Linear(columns, 53)
    frozen = FrozenLinear(linear, kind)
    x = torch.randn(7, 3, columns, requires_grad=True)
    out = frozen(x)
    dense = frozen.dense()
    error = (dense - linear.weight).square().mean().sqrt() / linear.weight.std()
    assert error < KINDS[kind]
    torch.testing.assert_close(out, x @ dense.T + linear.bias)
    grad = torch.randn_like(out)
    torch.testing.assert_close(torch.autograd.grad(out, x, grad)[0], grad @ dense)


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_and_the_largest_number_are_exact(kind):
    linear = nn.Linear(70, 3)
    with torch.no_grad():
        linear.weight.zero_()
        linear.weight[1, 69] = -0.3
    torch.testing.assert_close(FrozenLinear(linear, kind).dense(), linear.weight.detach())


def test_nf4_has_two_numbers_per_byte():
    quantized, scale = to_nf4(torch.randn(5, 130))
    assert (quantized.dtype, quantized.shape, scale.shape) == (torch.uint8, (5, 96), (5, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_the_backward_pass_keeps_no_weights_in_full(kind):
    frozen = FrozenLinear(nn.Linear(128, 192), kind)
    sizes = []

    def pack(tensor):
        sizes.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        frozen(torch.randn(2, 128, requires_grad=True))
    assert sum(sizes) <= 128 * 192 + 192 * 4


@pytest.mark.parametrize("kind", KINDS)
def test_with_autocast_products_are_in_bf16(kind):
    frozen = FrozenLinear(nn.Linear(64, 8), kind)
    x = torch.randn(3, 64, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = frozen(x)
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert x.grad.dtype == torch.float32
