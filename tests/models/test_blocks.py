"""The options of a block, each compared with its formula."""

import itertools
import math
from functools import partial

import pytest
import torch
from helpers.reference import (
    DEPTH,
    MASK,
    MLPS,
    B,
    D,
    H,
    N,
    assert_same,
    backbone_of,
    block_of,
    both_norms,
    differ,
    exact_gelu,
    lively,
    make,
    numbers,
    pre_and_post,
    reference_norm,
    reference_rope,
    run_padded,
    tokens_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dxn.models import Attention, Mlp
from dxn.models.blocks import make_norm
from dxn.models.layers import LayerScale
from dxn.models.positions import rope_factors


@both_norms
@pytest.mark.parametrize("rotary", [False, True])
def test_qk_norm_normalizes_queries_and_keys_of_each_head_before_the_rotation(norm, rotary):
    eps, d = 0.05, D // H
    block = lively(block_of(D, num_heads=H, norm=norm, norm_eps=eps, qk_norm=True))
    attn, x = block.attn, numbers(B, N, D)
    q, k, v = (x @ attn.qkv.weight.T + attn.qkv.bias).view(B, N, 3, H, d).permute(2, 0, 3, 1, 4)
    q, k = reference_norm(q, attn.q_norm, eps), reference_norm(k, attn.k_norm, eps)
    if rotary:
        for heads in (q, k):
            for b, h, at in itertools.product(range(B), range(H), range(N)):
                heads[b, h, at] = reference_rope(heads[b, h, at], at, 10000.0)
    out = (q @ k.transpose(-2, -1) / math.sqrt(d)).softmax(-1) @ v
    expected = out.transpose(1, 2).reshape(B, N, D) @ attn.proj.weight.T + attn.proj.bias
    rope = rope_factors(torch.arange(N)[None], d) if rotary else None
    assert_same(run_padded(attn, x, rope=rope), expected, atol=1e-6 if rotary else 1e-12)


def test_qk_norms_have_the_width_of_a_head_and_are_absent_by_default():
    for block in make(qk_norm=True).blocks:
        assert block.attn.q_norm.weight.shape == block.attn.k_norm.weight.shape == (D // H,)
        assert block.attn.q_norm is not block.attn.k_norm
    assert not [
        name for name, _ in make().named_parameters() if "q_norm" in name or "k_norm" in name
    ]


def test_a_norm_of_all_heads_together_has_their_width_and_keeps_their_ratio():
    """With two heads whose queries differ by a factor, only a norm of each head hides it."""
    results = []
    for scale in (1.0, 5.0):
        for norm_all in (False, True):
            torch.manual_seed(0)
            make_rms = partial(make_norm, "rms", eps=0.0)
            attn = Attention(D, num_heads=H, norm=make_rms, norm_all=norm_all).double()
            with torch.no_grad():
                attn.qkv.weight[: D // H] *= scale
                attn.qkv.bias.zero_()
            results.append(run_padded(attn, numbers(B, N, D)))
            assert attn.k_norm.weight.shape == (D if norm_all else D // H,)
    assert_same(results[0], results[2])
    assert differ(results[1], results[3])


def test_qk_norm_makes_the_scale_of_queries_and_keys_irrelevant():
    attention = Attention(D, num_heads=H, norm=lambda d: make_norm("rms", d, eps=0.0)).double()
    x = numbers(B, N, D)
    before = run_padded(attention, x)
    with torch.no_grad():
        attention.qkv.weight[: 2 * D] *= 3
        attention.qkv.bias[: 2 * D] *= 3
    assert_same(run_padded(attention, x), before)


@both_norms
def test_qk_norm_works_in_bf16_under_autocast_without_a_warning(norm):
    backbone = backbone_of(
        D, depth=DEPTH, num_heads=H, norm=norm, qk_norm=True, position="rotary", windows=[2]
    )
    x = torch.randn(B, N, D)
    expected = backbone(tokens_of(x, MASK)).x
    torch.set_warn_always(True)  # otherwise torch shows a warning only once per process
    try:
        with torch.autocast("cpu", torch.bfloat16):
            actual = backbone(tokens_of(x, MASK)).x
    finally:
        torch.set_warn_always(False)
    torch.testing.assert_close(actual.float()[MASK], expected[MASK], rtol=0.05, atol=0.1)


@pre_and_post
def test_layer_scale_multiplies_each_feature_of_each_branch_before_the_sum(pre_norm):
    block, x = (
        lively(block_of(D, num_heads=H, pre_norm=pre_norm, layer_scale=0.5)),
        numbers(B, N, D),
    )
    attn_factor, mlp_factor = block.attn_out.factor, block.mlp_out.factor
    assert len(attn_factor.unique()) == len(mlp_factor.unique()) == D  # one factor per feature
    if pre_norm:
        middle = x + attn_factor * run_padded(block.attn, block.attn_norm(x))
        expected = middle + mlp_factor * block.mlp(block.mlp_norm(middle))
    else:
        middle = block.attn_norm(x + attn_factor * run_padded(block.attn, x))
        expected = block.mlp_norm(middle + mlp_factor * block.mlp(middle))
    assert_same(run_padded(block, x), expected)


@pytest.mark.parametrize("initial", [1e-5, 0.1, 0.0, 1])
def test_layer_scale_starts_at_its_initial_value_in_every_block(initial):
    scales = [
        m
        for m in backbone_of(D, depth=3, num_heads=H, layer_scale=initial).modules()
        if isinstance(m, LayerScale)
    ]
    assert len(scales) == 6
    for scale in scales:
        assert scale.factor.requires_grad and torch.equal(
            scale.factor, torch.full((D,), float(initial))
        )


def test_with_a_layer_scale_of_zero_only_the_final_norm_remains():
    backbone, x = backbone_of(D, num_heads=H, layer_scale=0.0).double(), numbers(B, N, D)
    assert torch.equal(backbone.run(x, MASK)[MASK], x[MASK])
    assert torch.equal(backbone(tokens_of(x, MASK)).x[MASK], backbone.norm(x)[MASK])


def test_there_is_no_layer_scale_by_default():
    assert not any(isinstance(m, LayerScale) for m in make().modules())


@both_norms
@pre_and_post
@pytest.mark.parametrize("mlp", MLPS)
def test_with_bias_false_no_parameter_of_the_backbone_is_a_bias(norm, pre_norm, mlp):
    options = {"norm": norm, "pre_norm": pre_norm, "mlp": mlp, "qk_norm": True, "layer_scale": 0.1}
    names = {
        bias: [name for name, _ in make(bias=bias, **options).named_parameters()]
        for bias in (True, False)
    }
    # RMS norm never has a bias. Layer norm: four per block and the final one.
    norms = 0 if norm == "rms" else 4 * DEPTH + pre_norm
    assert sum(name.endswith("bias") for name in names[True]) == 4 * DEPTH + norms
    assert not [name for name in names[False] if "bias" in name]
    assert [name for name in names[True] if not name.endswith("bias")] == names[False]


@both_norms
@pytest.mark.parametrize("eps", [1e-12, 1e-6, 0.5])
def test_norm_eps_is_added_to_the_variance(norm, eps):
    # Numbers so small that even the smallest eps changes the result.
    module, x = lively(make_norm(norm, D, eps=eps)), numbers(B, N, D) * 1e-4
    assert_same(module(x), reference_norm(x, module, eps), atol=1e-10)


@both_norms
@pre_and_post
def test_norm_eps_reaches_every_norm(norm, pre_norm):
    backbone = make(norm=norm, pre_norm=pre_norm, norm_eps=0.25, qk_norm=True)
    epsilons = [m.eps for m in backbone.modules() if isinstance(m, (nn.LayerNorm, nn.RMSNorm))]
    assert epsilons == [0.25] * (4 * DEPTH + pre_norm)


def test_without_the_input_norm_the_first_block_attends_to_the_unnormalized_tokens():
    backbone, x = make(input_norm=False), numbers(B, N, D)
    first = backbone.blocks[0]
    middle = x + run_padded(first.attn, x)
    expected = middle + first.mlp(first.mlp_norm(middle))
    for block in backbone.blocks[1:]:
        expected = expected + run_padded(block.attn, block.attn_norm(expected))
        expected = expected + block.mlp(block.mlp_norm(expected))
    assert_same(backbone(tokens_of(x)).x, backbone.norm(expected))
    assert all(isinstance(block.attn_norm, nn.LayerNorm) for block in backbone.blocks[1:])
    assert not [
        name for name, _ in backbone.named_parameters() if name.startswith("blocks.0.attn_norm")
    ]


def test_without_the_final_norm_the_output_is_that_of_the_last_block():
    backbone, x = make(final_norm=False), numbers(B, N, D)
    assert torch.equal(backbone(tokens_of(x, MASK)).x, backbone.run(x, MASK))
    assert not [name for name, _ in backbone.named_parameters() if name.startswith("norm")]
    assert differ(make()(tokens_of(x, MASK)).x, backbone(tokens_of(x, MASK)).x)


def test_post_norm_ignores_input_norm_and_final_norm():
    x = tokens_of(numbers(B, N, D), MASK)
    plain = make(pre_norm=False)(x).x
    assert torch.equal(make(pre_norm=False, input_norm=False, final_norm=False)(x).x, plain)


def gelu_of_tanh(h):
    return 0.5 * h * (1 + (math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)).tanh())


@pytest.mark.parametrize(
    ("mlp", "act"),
    [("gelu_tanh", gelu_of_tanh), ("quick_gelu", lambda h: h / (1 + (-1.702 * h).exp()))],
)
def test_an_approximated_gelu_equals_its_formula(mlp, act):
    module, x = lively(Mlp(D, mlp_ratio=1.65, mlp=mlp)), numbers(B, N, D)
    assert module.up.out_features == module.down.in_features == 33
    h = x @ module.up.weight.T + module.up.bias
    assert_same(module(x), act(h) @ module.down.weight.T + module.down.bias)
    assert differ(act(h), exact_gelu(h), by=1e-4)  # and it is not the exact one


@pytest.mark.parametrize(("mlp", "act"), [("geglu", exact_gelu), ("geglu_tanh", gelu_of_tanh)])
def test_a_gated_gelu_equals_its_formula(mlp, act):
    module, x = lively(Mlp(D, mlp_ratio=1.725, mlp=mlp)), numbers(B, N, D)
    assert (module.up.out_features, module.down.in_features) == (
        46,
        23,
    )  # two thirds of 34.5, and twice that
    value, gate = (x @ module.up.weight.T + module.up.bias).split(23, -1)
    assert_same(module(x), (value * act(gate)) @ module.down.weight.T + module.down.bias)


@pytest.mark.parametrize("mlp", MLPS)
def test_every_block_of_a_backbone_has_the_requested_mlp(mlp):
    backbone, x = make(mlp=mlp), numbers(B, N, D)
    module = lively(Mlp(D, mlp=mlp))
    for block in backbone.blocks:
        module.load_state_dict(block.mlp.state_dict())
        assert torch.equal(block.mlp(x), module(x))


@settings(max_examples=40, deadline=None)
@given(hidden=st.integers(1, 257), dim=st.integers(1, 257), mlp=st.sampled_from(MLPS))
def test_the_hidden_layer_has_the_requested_width(hidden, dim, mlp):
    with torch.device("meta"):
        module = Mlp(dim, hidden_dim=hidden, mlp=mlp)
    assert module.down.in_features == hidden
    assert module.up.out_features == hidden * (1 + module.gated)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windows": [0]}, "windows.0 must be at least 1, got 0"),
        ({"windows": [None, -2]}, "windows.1 must be at least 1, got -2"),
        (
            {"mlp": "gelu_quick"},
            "mlp must be one of 'gelu', 'gelu_tanh', 'quick_gelu', 'relu', 'silu', 'swiglu', "
            "'geglu' or 'geglu_tanh', got 'gelu_quick'",
        ),
        ({"norm": "group", "qk_norm": True}, "kind must be one of 'layer' or 'rms', got 'group'"),
    ],
)
def test_invalid_options_raise_a_clear_error(options, message):
    with pytest.raises(ValueError, match=message):
        backbone_of(D, depth=DEPTH, num_heads=H, **options)
