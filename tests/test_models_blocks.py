"""The options of a block, each against its formula written out."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from written_out import (
    DEPTH,
    MASK,
    MLPS,
    B,
    D,
    H,
    N,
    assert_same,
    both_norms,
    differ,
    gelu_of_erf,
    lively,
    make,
    norm_by_hand,
    numbers,
    pre_and_post,
    tokens_of,
    turned,
)

from dxn.models import Attention, Backbone, Block, Mlp
from dxn.models.attention import rotation_angles
from dxn.models.blocks import LayerScale, make_norm


@both_norms
@pytest.mark.parametrize("rotary", [False, True])
def test_qk_norm_norms_each_heads_queries_and_keys_before_they_are_rotated(norm, rotary):
    eps, d = 0.05, D // H
    block = lively(Block(D, num_heads=H, norm=norm, norm_eps=eps, qk_norm=True))
    attn, x, mask = block.attn, numbers(B, N, D), torch.ones(B, N, dtype=torch.bool)
    q, k, v = (x @ attn.qkv.weight.T + attn.qkv.bias).view(B, N, 3, H, d).permute(2, 0, 3, 1, 4)
    q, k = norm_by_hand(q, attn.q_norm, eps), norm_by_hand(k, attn.k_norm, eps)
    if rotary:
        for heads in (q, k):
            for b, h, at in itertools.product(range(B), range(H), range(N)):
                heads[b, h, at] = turned(heads[b, h, at], at, 10000.0)
    out = (q @ k.transpose(-2, -1) / math.sqrt(d)).softmax(-1) @ v
    expected = out.transpose(1, 2).reshape(B, N, D) @ attn.proj.weight.T + attn.proj.bias
    rotation = rotation_angles(mask, d) if rotary else None
    assert_same(attn(x, rotation=rotation), expected, atol=1e-6 if rotary else 1e-12)


def test_norms_of_queries_and_keys_are_as_wide_as_a_head_and_absent_unless_asked_for():
    for block in make(qk_norm=True).blocks:
        assert block.attn.q_norm.weight.shape == block.attn.k_norm.weight.shape == (D // H,)
        assert block.attn.q_norm is not block.attn.k_norm
    assert not [name for name, _ in make().named_parameters() if "q_norm" in name or "k_norm" in name]


def test_qk_norm_makes_the_scale_of_queries_and_keys_irrelevant():
    attention = Attention(D, num_heads=H, norm=lambda d: make_norm("rms", d, eps=0.0)).double()
    x = numbers(B, N, D)
    before = attention(x)
    with torch.no_grad():
        attention.qkv.weight[: 2 * D] *= 3
        attention.qkv.bias[: 2 * D] *= 3
    assert_same(attention(x), before)


@both_norms
def test_qk_norm_takes_bf16_under_autocast_without_a_warning(norm):
    backbone = Backbone(D, depth=DEPTH, num_heads=H, norm=norm, qk_norm=True, position="rotary", window=2)
    x = torch.randn(B, N, D)
    expected = backbone(tokens_of(x, MASK)).x
    torch.set_warn_always(True)  # else only the process' first would show
    try:
        with torch.autocast("cpu", torch.bfloat16):
            got = backbone(tokens_of(x, MASK)).x
    finally:
        torch.set_warn_always(False)
    torch.testing.assert_close(got.float()[MASK], expected[MASK], rtol=0.05, atol=0.1)


@pre_and_post
def test_layer_scale_multiplies_each_feature_of_each_branch_before_the_sum(norm_first):
    block, x = lively(Block(D, num_heads=H, norm_first=norm_first, layer_scale=0.5)), numbers(B, N, D)
    of_attn, of_mlp = block.attn_scale.factor, block.mlp_scale.factor
    assert len(of_attn.unique()) == len(of_mlp.unique()) == D  # a feature each
    if norm_first:
        middle = x + of_attn * block.attn(block.attn_norm(x))
        expected = middle + of_mlp * block.mlp(block.mlp_norm(middle))
    else:
        middle = block.attn_norm(x + of_attn * block.attn(x))
        expected = block.mlp_norm(middle + of_mlp * block.mlp(middle))
    assert_same(block(x), expected)


@pytest.mark.parametrize("initial", [1e-5, 0.1, 0.0, 1])
def test_layer_scale_starts_at_the_given_value_in_every_block(initial):
    scales = [m for m in Backbone(D, depth=3, num_heads=H, layer_scale=initial).modules() if isinstance(m, LayerScale)]
    assert len(scales) == 6
    for scale in scales:
        assert scale.factor.requires_grad and torch.equal(scale.factor, torch.full((D,), float(initial)))


def test_with_a_layer_scale_of_zero_nothing_but_the_last_norm_is_left():
    backbone, x = Backbone(D, num_heads=H, layer_scale=0.0).double(), numbers(B, N, D)
    assert torch.equal(backbone.run(x, MASK), x)
    assert torch.equal(backbone(tokens_of(x, MASK)).x, backbone.norm(x))


def test_there_is_no_layer_scale_unless_asked_for():
    assert not any(isinstance(m, LayerScale) for m in make().modules())


@both_norms
@pre_and_post
@pytest.mark.parametrize("mlp", MLPS)
def test_without_bias_no_parameter_of_the_backbone_is_one(norm, norm_first, mlp):
    options = {"norm": norm, "norm_first": norm_first, "mlp": mlp, "qk_norm": True, "layer_scale": 0.1}
    names = {bias: [name for name, _ in make(bias=bias, **options).named_parameters()] for bias in (True, False)}
    # Rms norm never has one; layer norm: two a block, those of queries and keys, and the last.
    norms = 0 if norm == "rms" else 4 * DEPTH + norm_first
    assert sum(name.endswith("bias") for name in names[True]) == 4 * DEPTH + norms
    assert not [name for name in names[False] if "bias" in name]
    assert [name for name in names[True] if not name.endswith("bias")] == names[False]


@both_norms
@pytest.mark.parametrize("eps", [1e-12, 1e-6, 0.5])
def test_norm_eps_is_added_to_the_variance(norm, eps):
    # Numbers as small as the smallest of the epsilons' roots: each of them shows.
    made, x = lively(make_norm(norm, D, eps=eps)), numbers(B, N, D) * 1e-4
    assert_same(made(x), norm_by_hand(x, made, eps), atol=1e-10)


@both_norms
@pre_and_post
def test_norm_eps_reaches_every_norm(norm, norm_first):
    backbone = make(norm=norm, norm_first=norm_first, norm_eps=0.25, qk_norm=True)
    found = [m.eps for m in backbone.modules() if isinstance(m, (nn.LayerNorm, nn.RMSNorm))]
    assert found == [0.25] * (4 * DEPTH + norm_first)


def test_without_its_first_norm_the_first_block_attends_to_the_tokens_as_they_come():
    backbone, x = make(first_norm=False), numbers(B, N, D)
    first = backbone.blocks[0]
    middle = x + first.attn(x)
    expected = middle + first.mlp(first.mlp_norm(middle))
    for block in backbone.blocks[1:]:
        expected = expected + block.attn(block.attn_norm(expected))
        expected = expected + block.mlp(block.mlp_norm(expected))
    assert_same(backbone(tokens_of(x)).x, backbone.norm(expected))
    assert all(isinstance(block.attn_norm, nn.LayerNorm) for block in backbone.blocks[1:])
    assert not [name for name, _ in backbone.named_parameters() if name.startswith("blocks.0.attn_norm")]


def test_without_its_final_norm_the_backbone_ends_with_the_last_block():
    backbone, x = make(final_norm=False), numbers(B, N, D)
    assert torch.equal(backbone(tokens_of(x, MASK)).x, backbone.run(x, MASK))
    assert not [name for name, _ in backbone.named_parameters() if name.startswith("norm")]
    assert differ(make()(tokens_of(x, MASK)).x, backbone(tokens_of(x, MASK)).x)


def test_post_norm_keeps_all_its_norms_without_the_first_and_the_final_one():
    x = tokens_of(numbers(B, N, D), MASK)
    plain = make(norm_first=False)(x).x
    assert torch.equal(make(norm_first=False, first_norm=False, final_norm=False)(x).x, plain)


def gelu_of_tanh(h):
    return 0.5 * h * (1 + (math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)).tanh())


@pytest.mark.parametrize(
    ("mlp", "act"), [("gelu_tanh", gelu_of_tanh), ("quick_gelu", lambda h: h / (1 + (-1.702 * h).exp()))]
)
def test_an_approximated_gelu_is_its_formula(mlp, act):
    made, x = lively(Mlp(D, mlp_ratio=1.65, mlp=mlp)), numbers(B, N, D)
    assert made.up.out_features == made.down.in_features == 33
    h = x @ made.up.weight.T + made.up.bias
    assert_same(made(x), act(h) @ made.down.weight.T + made.down.bias)
    assert differ(act(h), gelu_of_erf(h), by=1e-4)  # and is not the exact one


def test_geglu_is_its_formula():
    made, x = lively(Mlp(D, mlp_ratio=1.725, mlp="geglu")), numbers(B, N, D)
    assert (made.up.out_features, made.down.in_features) == (46, 23)  # two thirds of 34.5, and twice that
    value, gate = (x @ made.up.weight.T + made.up.bias).split(23, -1)
    assert_same(made(x), (value * gelu_of_erf(gate)) @ made.down.weight.T + made.down.bias)


@pytest.mark.parametrize("mlp", MLPS)
def test_the_backbone_hands_its_mlp_to_every_block(mlp):
    backbone, x = make(mlp=mlp), numbers(B, N, D)
    made = lively(Mlp(D, mlp=mlp))
    for block in backbone.blocks:
        made.load_state_dict(block.mlp.state_dict())
        assert torch.equal(block.mlp(x), made(x))


@settings(max_examples=40, deadline=None)
@given(hidden=st.integers(1, 257), dim=st.integers(1, 257), mlp=st.sampled_from(MLPS))
def test_a_ratio_worked_out_from_a_width_gives_that_width_back(hidden, dim, mlp):
    ratio = hidden / dim * (1.5 if mlp in ("swiglu", "geglu") else 1)
    with torch.device("meta"):
        assert Mlp(dim, mlp_ratio=ratio, mlp=mlp).down.in_features == hidden


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window and global_every must be at least 1, got 0 and None"),
        ({"window": -2, "global_every": 3}, "window and global_every must be at least 1, got -2 and 3"),
        ({"window": 5, "global_every": 0}, "window and global_every must be at least 1, got 5 and 0"),
        ({"mlp": "gelu_quick"}, "mlp must be one of gelu, gelu_tanh, quick_gelu, swiglu, geglu, got 'gelu_quick'"),
        ({"norm": "group", "qk_norm": True}, "norm must be layer or rms, got 'group'"),
    ],
)
def test_what_a_backbone_cannot_be_says_why(options, message):
    with pytest.raises(ValueError, match=message):
        Backbone(D, depth=DEPTH, num_heads=H, **options)
