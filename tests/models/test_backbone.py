"""The backbone: parity with torch's encoder, and properties of every combination of options."""

import itertools

import pytest
import torch
from helpers.reference import (
    assert_same,
    backbone_of,
    block_of,
    lively,
    numbers,
    run_padded,
    tokens_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dxn.core.dropout import Dropout, Keys, number_layers
from dxn.models import Attention, Backbone, BlockOptions, Mlp
from dxn.models.blocks import make_norm
from dxn.models.layers import Alibi
from dxn.models.positions import make_attn_mask, rope_factors

B, N, D, H, DEPTH = 3, 7, 10, 5, 2
POSITIONS, NORMS, MLPS = ("none", "rotary", "alibi"), ("layer", "rms"), ("gelu", "swiglu")
# Each pair of options is in one of them.
COMBINATIONS = [
    ("none", "layer", "gelu"),
    ("none", "rms", "swiglu"),
    ("rotary", "layer", "swiglu"),
    ("rotary", "rms", "gelu"),
    ("alibi", "layer", "swiglu"),
    ("alibi", "rms", "gelu"),
]

every_combination = pytest.mark.parametrize(("position", "norm", "mlp"), COMBINATIONS)
examples = settings(max_examples=10, deadline=None)
seeds = st.integers(0, 2**31)
lengths_of_a_batch = st.lists(st.integers(1, N), min_size=B, max_size=B)


def mask_of(lengths):
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def make(seed=0, **options):
    torch.manual_seed(seed)
    return lively(backbone_of(D, **{"depth": DEPTH, "num_heads": H, **options}))


# Parity


def torch_encoder_with_the_weights_of(ours, *, pre_norm, bias=True):
    """An nn.TransformerEncoder with the weights of our backbone."""
    layer = nn.TransformerEncoderLayer(
        D, H, 4 * D, 0.0, "gelu", batch_first=True, norm_first=pre_norm, bias=bias
    )
    last = nn.LayerNorm(D) if pre_norm else None
    theirs = nn.TransformerEncoder(
        layer, len(ours.blocks), last, enable_nested_tensor=False
    ).double()
    names = {
        "attn.qkv.": "self_attn.in_proj_",
        "attn.proj": "self_attn.out_proj",
        "attn_norm": "norm1",
        "mlp_norm": "norm2",
        "mlp.up": "linear1",
        "mlp.down": "linear2",
        "blocks": "layers",
    }
    state = ours.state_dict()
    for our, their in names.items():
        state = {name.replace(our, their): value for name, value in state.items()}
    theirs.load_state_dict(state)
    return theirs.train()  # its fast path in evaluation mode returns zeros at padding


@pytest.mark.parametrize("pre_norm", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[7, 7, 7], [7, 3, 5]])
def test_a_backbone_equals_torchs_transformer_encoder(pre_norm, causal, lengths):
    ours = make(depth=3, pre_norm=pre_norm, causal=causal)
    theirs = torch_encoder_with_the_weights_of(ours, pre_norm=pre_norm)
    x, mask = numbers(B, N, D), mask_of(lengths)
    later = torch.ones(N, N, dtype=torch.bool).triu(1) if causal else None
    expected = theirs(x, mask=later, src_key_padding_mask=~mask)
    assert_same(ours(tokens_of(x, mask)).x[mask], expected[mask])


@pytest.mark.parametrize("pre_norm", [True, False])
def test_the_gradients_equal_those_of_torch(pre_norm):
    ours = make(pre_norm=pre_norm)
    theirs = torch_encoder_with_the_weights_of(ours, pre_norm=pre_norm)
    x, mask, weight = numbers(B, N, D), mask_of([7, 3, 5]), numbers(15, D)
    (ours(tokens_of(x, mask)).x[mask] * weight).sum().backward()
    (theirs(x, src_key_padding_mask=~mask)[mask] * weight).sum().backward()
    assert_same(
        ours.blocks[0].attn.qkv.weight.grad,
        theirs.layers[0].self_attn.in_proj_weight.grad,
        atol=1e-10,
    )
    assert_same(ours.blocks[1].mlp.up.bias.grad, theirs.layers[1].linear1.bias.grad, atol=1e-10)


def test_rms_norm_equals_its_formula():
    norm, x = lively(make_norm("rms", D)), numbers(B, N, D)
    assert_same(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight)


def test_layer_norm_equals_its_formula():
    norm, x = lively(make_norm("layer", D)), numbers(B, N, D)
    centred = x - x.mean(-1, keepdim=True)
    expected = (
        centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias
    )
    assert_same(norm(x), expected)


def test_swiglu_equals_its_formula():
    mlp, x = lively(Mlp(D, mlp_ratio=3.0, mlp="swiglu")), numbers(B, N, D)
    assert mlp.down.in_features == 20  # two thirds of 3 D
    value, gate = (x @ mlp.up.weight.T + mlp.up.bias).split(20, -1)
    expected = (value * gate / (1 + (-gate).exp())) @ mlp.down.weight.T + mlp.down.bias
    assert_same(mlp(x), expected)


def test_gelu_is_exact_and_not_approximated():
    mlp, x = lively(Mlp(D, mlp_ratio=3.0)), numbers(B, N, D)
    h = x @ mlp.up.weight.T + mlp.up.bias
    assert_same(mlp(x), (h * 0.5 * (1 + torch.erf(h / 2**0.5))) @ mlp.down.weight.T + mlp.down.bias)


@pytest.mark.parametrize("norm", NORMS)
def test_post_norm_normalizes_each_sum_and_has_no_final_norm(norm):
    block, x = lively(block_of(D, num_heads=H, norm=norm, pre_norm=False)), numbers(B, N, D)
    middle = block.attn_norm(x + run_padded(block.attn, x))
    assert_same(run_padded(block, x), block.mlp_norm(middle + block.mlp(middle)))
    assert isinstance(make(norm=norm, pre_norm=False).norm, nn.Identity)


def test_with_bias_false_no_linear_layer_has_a_bias():
    linears = [m for m in make(bias=False).modules() if isinstance(m, nn.Linear)]
    assert len(linears) == 4 * DEPTH
    assert all(m.bias is None for m in linears)


@pytest.mark.parametrize("dim", [64, 128])
def test_initial_weights_are_scaled_by_the_number_of_inputs_and_of_branches(dim):
    for name, module in backbone_of(dim, depth=8, num_heads=4).named_modules():
        if isinstance(module, nn.Linear):
            std = (4 * dim if name.endswith("mlp.down") else dim) ** -0.5
            if name.endswith(("attn.proj", "mlp.down")):
                std /= 4  # the root of 2 * depth branches
            assert float(module.weight.detach().std()) == pytest.approx(std, rel=0.05), name
            assert not module.bias.any()


# Properties


@every_combination
@examples
@given(seed=seeds, lengths=lengths_of_a_batch, causal=st.booleans(), pre_norm=st.booleans())
def test_padding_never_changes_a_real_token(position, norm, mlp, seed, lengths, causal, pre_norm):
    backbone = make(seed, position=position, norm=norm, mlp=mlp, causal=causal, pre_norm=pre_norm)
    x, mask = numbers(B, max(lengths), D), mask_of(lengths)
    batched = backbone(tokens_of(x, mask)).x
    for i, n in enumerate(lengths):
        assert_same(batched[i, :n], backbone(tokens_of(x[i : i + 1, :n])).x[0])


@every_combination
@examples
@given(seed=seeds, lengths=lengths_of_a_batch, causal=st.booleans())
def test_samples_of_a_batch_never_see_each_other(position, norm, mlp, seed, lengths, causal):
    backbone = make(seed, position=position, norm=norm, mlp=mlp, causal=causal)
    x, mask = numbers(B, max(lengths), D), mask_of(lengths)
    changed = numbers(*x.shape)
    changed[1] = x[1]
    assert_same(backbone(tokens_of(changed, mask)).x[1], backbone(tokens_of(x, mask)).x[1])


@pytest.mark.parametrize(("norm", "mlp"), list(itertools.product(NORMS, MLPS)))
@examples
@given(seed=seeds, n=st.integers(2, N), pre_norm=st.booleans())
def test_without_positions_permuting_the_columns_permutes_the_output(norm, mlp, seed, n, pre_norm):
    backbone = make(seed, norm=norm, mlp=mlp, pre_norm=pre_norm)
    x, mask = numbers(B, n, D), mask_of([n, n - 1, 1])
    order = torch.randperm(n)
    shuffled = backbone(tokens_of(x[:, order], mask[:, order])).x
    assert_same(shuffled, backbone(tokens_of(x, mask)).x[:, order])


@every_combination
@examples
@given(seed=seeds, kept=st.integers(1, N - 1))
def test_causal_later_tokens_never_change_earlier_ones(position, norm, mlp, seed, kept):
    backbone = make(seed, position=position, norm=norm, mlp=mlp, causal=True)
    x = numbers(B, N, D)
    changed = torch.cat([x[:, :kept], numbers(B, N - kept, D)], 1)
    before, after = backbone(tokens_of(x)).x, backbone(tokens_of(changed)).x
    assert_same(after[:, :kept], before[:, :kept])
    assert not torch.allclose(after[:, kept:], before[:, kept:], atol=1e-3)


@pytest.mark.parametrize("position", POSITIONS)
def test_causal_information_flows_only_from_earlier_to_later_tokens(position):
    x = numbers(1, N, D)
    first, last = x.clone(), x.clone()
    first[:, 0], last[:, -1] = numbers(1, D), numbers(1, D)
    for changed, causal, seen in [(first, True, -1), (last, False, 0)]:
        backbone = make(position=position, causal=causal)
        before, after = backbone(tokens_of(x)).x[:, seen], backbone(tokens_of(changed)).x[:, seen]
        assert float((after - before).abs().max().detach()) > 1e-3


@pytest.mark.parametrize("shift", [1, 11, 97])
def test_rotary_attention_does_not_change_when_all_tokens_shift(shift):
    attention, x = lively(Attention(D * 2, num_heads=H)), numbers(B, N, D * 2)
    at_zero, shifted = (
        run_padded(
            attention, x, rope=rope_factors(torch.arange(start, start + N)[None], D * 2 // H)
        )
        for start in (0, shift)
    )
    assert_same(shifted, at_zero, atol=1e-5)  # the angles are float32
    assert not torch.allclose(run_padded(attention, x), at_zero, atol=1e-3)


@pytest.mark.parametrize("causal", [False, True])
def test_alibi_adds_the_slope_times_the_distance_of_two_tokens(causal):
    alibi = Alibi(H).double()
    bias = make_attn_mask(torch.ones(1, N, dtype=torch.bool), causal=causal, bias=alibi)
    for head, i, j in itertools.product(range(H), range(N), range(N)):
        expected = -torch.inf if causal and j > i else float(-alibi.slopes[head] * abs(i - j))
        assert float(bias[0, head, i, j]) == expected


def test_alibi_is_symmetric_so_a_mirrored_sequence_gives_a_mirrored_output():
    x = numbers(B, N, D)
    for position, mirrors in {"alibi": True, "rotary": False}.items():
        backbone = make(position=position)
        mirrored = backbone(tokens_of(x.flip(1))).x.flip(1)
        assert torch.allclose(mirrored, backbone(tokens_of(x)).x, rtol=0, atol=1e-12) == mirrors


@pytest.mark.parametrize("pre_norm", [True, False])
@pytest.mark.parametrize(("position", "causal"), list(itertools.product(POSITIONS, [False, True])))
def test_running_the_blocks_in_two_parts_equals_forward(position, causal, pre_norm):
    backbone = make(depth=3, position=position, causal=causal, pre_norm=pre_norm)
    x, mask = numbers(B, N, D), mask_of([7, 3, 5])
    expected = backbone(tokens_of(x, mask)).x
    for k in range(4):
        in_parts = backbone.norm(backbone.run(backbone.run(x, mask, 0, k), mask, k, None))
        assert_same(in_parts[mask], expected[mask])
    assert torch.equal(backbone.run(x, mask, 1, 1)[mask], x[mask])


def test_forward_keeps_the_columns():
    tokens = tokens_of(numbers(B, N, D), mask_of([7, 3, 5]))
    encoded = make()(tokens)
    assert encoded.mask is tokens.mask and encoded.spans is tokens.spans


# Training


@pytest.mark.parametrize("position", POSITIONS)
def test_activation_checkpointing_gives_the_same_dropout_and_gradients(position):
    def run(activation_checkpointing):
        backbone = make(
            position=position,
            dropout=0.3,
            attn_dropout=0.3,
            drop_path=0.5,
            activation_checkpointing=activation_checkpointing,
        ).train()
        number_layers(backbone)
        x = numbers(B, N, D).requires_grad_()
        torch.manual_seed(0)
        out = backbone(tokens_of(x, mask_of([7, 3, 5]))).x
        out.square().sum().backward()
        return [out, x.grad, *(p.grad for p in backbone.parameters())]

    for plain, recomputed in zip(run(False), run(True), strict=True):
        assert_same(recomputed, plain)


def test_activation_checkpointing_recomputes_each_block_in_the_backward_pass():
    calls = []
    backbone = make(activation_checkpointing=True).train()
    for block in backbone.blocks:
        block.attn.proj.register_forward_hook(lambda *_: calls.append(1))
    out = backbone(tokens_of(numbers(B, N, D))).x
    assert len(calls) == DEPTH
    out.sum().backward()
    assert len(calls) == 2 * DEPTH


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_drop_path_keeps_the_mean_over_samples(rate):
    out = Dropout(0.0, drop_path=rate).train()(torch.ones(10007, 2, 3))
    assert float((out[:, 0, 0] == 0).float().mean()) == pytest.approx(rate, abs=0.02)
    assert float(out.mean()) == pytest.approx(1, abs=0.05)
    assert bool((out == out[:, :1, :1]).all())


@pytest.mark.parametrize("part", [Dropout(0.5), Dropout(0.0, drop_path=0.5)])
def test_nothing_is_dropped_in_evaluation_mode(part):
    x = torch.randn(B, N, D)
    assert torch.equal(part.eval()(x), x)
    assert not torch.equal(part.train()(x), x)


def test_a_rate_of_zero_drops_nothing_in_training():
    x = torch.randn(B, N, D)
    assert Dropout(0.0).train()(x) is x


@pytest.mark.parametrize("option", ["dropout", "attn_dropout", "mlp_dropout", "drop_path"])
def test_each_rate_has_an_effect_only_in_training(option):
    backbone, x = make(**{option: 0.5}), tokens_of(numbers(B, N, D))
    plain = make()(x).x
    assert torch.equal(backbone(x).x, plain)
    assert not torch.allclose(backbone.train()(x).x, plain, atol=1e-3)


def test_mlp_dropout_defaults_to_the_dropout_of_the_branches():
    def rates(**options):
        return {
            (block.attn_out_dropout.rate, block.mlp_out_dropout.rate, block.mlp.dropout.rate)
            for block in make(depth=2, **options).blocks
        }

    assert rates(dropout=0.3) == {(0.3, 0.3, 0.3)}
    assert rates(dropout=0.3, mlp_dropout=0.0) == {(0.3, 0.3, 0.0)}
    assert rates(mlp_dropout=0.2) == {(0.0, 0.0, 0.2)}


def test_drop_path_increases_linearly_with_depth():
    rates = [block.mlp_out_dropout.drop_path for block in make(depth=5, drop_path=0.4).blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_a_sample_whose_branches_are_all_omitted_passes_through_unchanged():
    block, x = lively(block_of(D, num_heads=H, drop_path=0.5)).train(), numbers(211, 3, D)
    keys = Keys.of_mask(torch.ones(211, 3, dtype=torch.bool), torch.arange(211 * 3))
    out = run_padded(block, x, None, None, keys)
    unchanged = (out == x).flatten(1).all(1)
    assert float(unchanged.double().mean()) == pytest.approx(0.25, abs=0.1)  # both its branches


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, "dim must be a multiple of num_heads, got 10 and 3"),
        ({"num_heads": 0}, "num_heads must be at least 1, got 0"),
        (
            {"num_heads": 10, "position": "rotary"},
            r"rotary positions need an even number of rotated features of a head, got 1 of 1",
        ),
        ({"depth": -1}, "depth must be at least 0, got -1"),
        ({"norm": "batch"}, "kind must be one of 'layer' or 'rms', got 'batch'"),
        (
            {"mlp": "tanh"},
            "mlp must be one of 'gelu', 'gelu_tanh', 'quick_gelu', 'relu', 'silu', 'swiglu', "
            "'geglu' or 'geglu_tanh', got 'tanh'",
        ),
        ({"dropout": 1.0}, "dropout must be below 1, got 1.0"),
        ({"dropout": -0.1}, "dropout must be at least 0, got -0.1"),
        ({"drop_path": 1.0}, "drop_path must be below 1, got 1.0"),
        ({"drop_path": -0.1}, "drop_path must be at least 0, got -0.1"),
        (
            {"position": "rotory"},
            "kind must be one of 'none', 'rotary', 'alibi' or 'buckets', got 'rotory'",
        ),
        ({"attn_dropout": 1.5}, "attn_dropout must be below 1, got 1.5"),
    ],
)
def test_invalid_options_raise_a_clear_error(options, message):
    with pytest.raises(ValueError, match=message):
        backbone_of(D, **{"depth": DEPTH, "num_heads": H, **options})


def test_a_ratio_without_an_effect_is_refused():
    with pytest.raises(ValueError, match=r"mlp_ratio has no effect with block.hidden_dim, got 2.0"):
        Backbone(D, mlp_ratio=2.0, block=BlockOptions(hidden_dim=7))
