"""The backbone: parity with torch's encoder, its laws in every combination, and the parts of a block."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from written_out import assert_same, lively, numbers, tokens_of

from dxn.models import Attention, Backbone, Block, Mlp
from dxn.models.attention import alibi_slopes, attention_bias, rotation_angles
from dxn.models.blocks import DropPath, make_norm
from dxn.models.dropout import Dropout

B, N, D, H, DEPTH = 3, 7, 10, 5, 2
POSITIONS, NORMS, MLPS = ("none", "rotary", "alibi"), ("layer", "rms"), ("gelu", "swiglu")
COMBINATIONS = list(itertools.product(POSITIONS, NORMS, MLPS))

every_combination = pytest.mark.parametrize(("position", "norm", "mlp"), COMBINATIONS)
examples = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**31)
lengths_of_a_batch = st.lists(st.integers(1, N), min_size=B, max_size=B)


def mask_of(lengths):
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def make(seed=0, **options):
    torch.manual_seed(seed)
    return lively(Backbone(D, **{"depth": DEPTH, "num_heads": H, **options}))


# Parity


def as_torchs_encoder(ours, *, norm_first, bias=True):
    """nn.TransformerEncoder with the weights of our backbone."""
    layer = nn.TransformerEncoderLayer(D, H, 4 * D, 0.0, "gelu", batch_first=True, norm_first=norm_first, bias=bias)
    last = nn.LayerNorm(D) if norm_first else None
    theirs = nn.TransformerEncoder(layer, len(ours.blocks), last, enable_nested_tensor=False).double()
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
    return theirs.train()  # its fast path in evaluation returns zeros at padding


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[7, 7, 7], [7, 3, 5]])
def test_a_backbone_equals_torchs_transformer_encoder(norm_first, causal, lengths):
    ours = make(depth=3, norm_first=norm_first, causal=causal)
    theirs = as_torchs_encoder(ours, norm_first=norm_first)
    x, mask = numbers(B, N, D), mask_of(lengths)
    later = torch.ones(N, N, dtype=torch.bool).triu(1) if causal else None
    expected = theirs(x, mask=later, src_key_padding_mask=~mask)
    assert_same(ours(tokens_of(x, mask)).x[mask], expected[mask])


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_gradients_equal_torchs_too(norm_first):
    ours = make(norm_first=norm_first)
    theirs = as_torchs_encoder(ours, norm_first=norm_first)
    x, mask, weight = numbers(B, N, D), mask_of([7, 3, 5]), numbers(15, D)
    (ours(tokens_of(x, mask)).x[mask] * weight).sum().backward()
    (theirs(x, src_key_padding_mask=~mask)[mask] * weight).sum().backward()
    assert_same(ours.blocks[0].attn.qkv.weight.grad, theirs.layers[0].self_attn.in_proj_weight.grad, atol=1e-10)
    assert_same(ours.blocks[1].mlp.up.bias.grad, theirs.layers[1].linear1.bias.grad, atol=1e-10)


def test_rms_norm_is_its_formula():
    norm, x = lively(make_norm("rms", D)), numbers(B, N, D)
    assert_same(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight)


def test_layer_norm_is_its_formula():
    norm, x = lively(make_norm("layer", D)), numbers(B, N, D)
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias
    assert_same(norm(x), expected)


def test_swiglu_is_its_formula():
    mlp, x = lively(Mlp(D, mlp_ratio=3.0, mlp="swiglu")), numbers(B, N, D)
    assert mlp.down.in_features == 20  # two thirds of 3 D
    value, gate = (x @ mlp.up.weight.T + mlp.up.bias).split(20, -1)
    expected = (value * gate / (1 + (-gate).exp())) @ mlp.down.weight.T + mlp.down.bias
    assert_same(mlp(x), expected)


def test_gelu_is_the_exact_one_and_not_its_approximation():
    mlp, x = lively(Mlp(D, mlp_ratio=3.0)), numbers(B, N, D)
    h = x @ mlp.up.weight.T + mlp.up.bias
    assert_same(mlp(x), (h * 0.5 * (1 + torch.erf(h / 2**0.5))) @ mlp.down.weight.T + mlp.down.bias)


@pytest.mark.parametrize("norm", NORMS)
def test_post_norm_norms_each_sum_and_nothing_at_the_end(norm):
    block, x = lively(Block(D, num_heads=H, norm=norm, norm_first=False)), numbers(B, N, D)
    middle = block.attn_norm(x + block.attn(x))
    assert_same(block(x), block.mlp_norm(middle + block.mlp(middle)))
    assert isinstance(make(norm=norm, norm_first=False).norm, nn.Identity)


def test_without_bias_no_linear_has_one():
    linears = [m for m in make(bias=False).modules() if isinstance(m, nn.Linear)]
    assert len(linears) == 4 * DEPTH
    assert all(m.bias is None for m in linears)


@pytest.mark.parametrize("dim", [64, 128])
def test_weights_start_by_their_inputs_and_smaller_where_they_add_to_the_residual_stream(dim):
    for name, module in Backbone(dim, depth=8, num_heads=4).named_modules():
        if isinstance(module, nn.Linear):
            std = (4 * dim if name.endswith("mlp.down") else dim) ** -0.5
            if name.endswith(("attn.proj", "mlp.down")):
                std /= 4  # the root of 2 * depth branches
            assert float(module.weight.detach().std()) == pytest.approx(std, rel=0.05), name
            assert not module.bias.any()


# Laws


@every_combination
@examples
@given(seed=seeds, lengths=lengths_of_a_batch, causal=st.booleans(), norm_first=st.booleans())
def test_padding_never_changes_a_real_token(position, norm, mlp, seed, lengths, causal, norm_first):
    backbone = make(seed, position=position, norm=norm, mlp=mlp, causal=causal, norm_first=norm_first)
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
@given(seed=seeds, n=st.integers(2, N), norm_first=st.booleans())
def test_without_positions_permuting_the_columns_permutes_the_output(norm, mlp, seed, n, norm_first):
    backbone = make(seed, norm=norm, mlp=mlp, norm_first=norm_first)
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
def test_causal_earlier_tokens_do_change_later_ones_and_otherwise_later_ones_earlier(position):
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
    angles = rotation_angles(torch.ones(1, shift + N, dtype=torch.bool), D * 2 // H)
    at_zero, shifted = attention(x, rotation=angles[:, :, :N]), attention(x, rotation=angles[:, :, shift:])
    assert_same(shifted, at_zero, atol=1e-5)  # the angles are float32
    assert not torch.allclose(attention(x), at_zero, atol=1e-3)


@pytest.mark.parametrize("causal", [False, True])
def test_alibi_adds_the_slope_times_the_distance_wherever_the_two_tokens_stand(causal):
    slopes = alibi_slopes(H).double()
    bias = attention_bias(torch.ones(1, N, dtype=torch.bool), causal=causal, slopes=slopes)
    for head, i, j in itertools.product(range(H), range(N), range(N)):
        expected = -torch.inf if causal and j > i else float(-slopes[head] * abs(i - j))
        assert float(bias[0, head, i, j]) == expected


def test_alibi_has_no_left_and_right_so_a_mirrored_sequence_gives_a_mirrored_output():
    x = numbers(B, N, D)
    for position, mirrors in {"alibi": True, "rotary": False}.items():
        backbone = make(position=position)
        mirrored = backbone(tokens_of(x.flip(1))).x.flip(1)
        assert torch.allclose(mirrored, backbone(tokens_of(x)).x, rtol=0, atol=1e-12) == mirrors


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize(("position", "causal"), list(itertools.product(POSITIONS, [False, True])))
def test_running_the_blocks_in_two_goes_equals_forward(position, causal, norm_first):
    backbone = make(depth=3, position=position, causal=causal, norm_first=norm_first)
    x, mask = numbers(B, N, D), mask_of([7, 3, 5])
    expected = backbone(tokens_of(x, mask)).x
    for k in range(4):
        again = backbone.norm(backbone.run(backbone.run(x, mask, 0, k), mask, k, None))
        assert torch.equal(again, expected)
    assert torch.equal(backbone.run(x, mask, 1, 1), x)


def test_forward_keeps_the_columns():
    tokens = tokens_of(numbers(B, N, D), mask_of([7, 3, 5]))
    encoded = make()(tokens)
    assert encoded.mask is tokens.mask and encoded.spans is tokens.spans


# Training


@pytest.mark.parametrize("position", POSITIONS)
def test_checkpointing_draws_the_same_randomness_and_gives_the_same_gradients(position):
    def run(checkpointing):
        backbone = make(
            position=position, dropout=0.3, attn_dropout=0.3, drop_path=0.5, checkpointing=checkpointing
        ).train()
        x = numbers(B, N, D).requires_grad_()
        out = backbone(tokens_of(x, mask_of([7, 3, 5]))).x
        out.square().sum().backward()
        return [out, x.grad, *(p.grad for p in backbone.parameters())]

    for plain, again in zip(run(False), run(True), strict=True):
        assert_same(again, plain)


def test_checkpointing_runs_each_block_again_backwards():
    calls = []
    backbone = make(checkpointing=True).train()
    for block in backbone.blocks:
        block.attn.proj.register_forward_hook(lambda *_: calls.append(1))
    out = backbone(tokens_of(numbers(B, N, D))).x
    assert len(calls) == DEPTH
    out.sum().backward()
    assert len(calls) == 2 * DEPTH


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_drop_path_keeps_the_mean_over_samples(rate):
    out = DropPath(rate).train()(torch.ones(10007, 2, 3))
    assert float((out[:, 0, 0] == 0).float().mean()) == pytest.approx(rate, abs=0.02)
    assert float(out.mean()) == pytest.approx(1, abs=0.05)
    assert bool((out == out[:, :1, :1]).all())


@pytest.mark.parametrize("part", [Dropout(0.5), DropPath(0.5)])
def test_in_evaluation_nothing_is_left_out(part):
    x = torch.randn(B, N, D)
    assert torch.equal(part.eval()(x), x)
    assert not torch.equal(part.train()(x), x)


@pytest.mark.parametrize("part", [Dropout(0.0), DropPath(0.0)])
def test_a_rate_of_zero_leaves_nothing_out_in_training(part):
    x = torch.randn(B, N, D)
    assert torch.equal(part.train()(x), x)


@pytest.mark.parametrize("option", ["dropout", "attn_dropout", "mlp_dropout", "drop_path"])
def test_each_rate_reaches_the_blocks_in_training_alone(option):
    backbone, x = make(**{option: 0.5}), tokens_of(numbers(B, N, D))
    plain = make()(x).x
    assert torch.equal(backbone(x).x, plain)
    assert not torch.allclose(backbone.train()(x).x, plain, atol=1e-3)


def test_the_middle_of_the_mlp_has_the_dropout_of_the_branches_unless_given_its_own():
    def rates(**options):
        return {(block.dropout.rate, block.mlp.dropout.rate) for block in make(depth=2, **options).blocks}

    assert rates(dropout=0.3) == {(0.3, 0.3)} and rates(dropout=0.3, mlp_dropout=0.0) == {(0.3, 0.0)}
    assert rates(mlp_dropout=0.2) == {(0.0, 0.2)}


def test_drop_path_grows_linearly_with_depth():
    rates = [block.drop_path.rate for block in make(depth=5, drop_path=0.4).blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_a_sample_that_leaves_every_branch_of_a_block_passes_through_it_unchanged():
    block, x = lively(Block(D, num_heads=H, drop_path=0.5)).train(), numbers(211, 3, D)
    unchanged = (block(x) == x).flatten(1).all(1)
    assert float(unchanged.double().mean()) == pytest.approx(0.25, abs=0.1)  # both its branches


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, "dim must be a multiple of num_heads, got 10 and 3"),
        ({"num_heads": 0}, "dim must be a multiple of num_heads, got 10 and 0"),
        ({"num_heads": 0, "position": "rotary"}, "dim must be a multiple of num_heads, got 10 and 0"),
        ({"num_heads": 10, "position": "rotary"}, r"rotary positions need an even dim / num_heads, got 10 / 10"),
        ({"depth": -1}, "depth must be at least 0, got -1"),
        ({"norm": "batch"}, "norm must be layer or rms, got 'batch'"),
        ({"mlp": "relu"}, "mlp must be one of gelu, gelu_tanh, quick_gelu, swiglu, geglu, got 'relu'"),
        ({"dropout": 1.0}, "dropout must be at least 0 and under 1, got 1.0"),
        ({"dropout": -0.1}, "dropout must be at least 0 and under 1, got -0.1"),
        ({"drop_path": 1.0}, "drop_path must be at least 0 and under 1, got 1.0"),
        ({"drop_path": -0.1}, "drop_path must be at least 0 and under 1, got -0.1"),
        ({"position": "rotory"}, "position must be none, rotary or alibi, got 'rotory'"),
        ({"attn_dropout": 1.5}, "attn_dropout must be at least 0 and under 1, got 1.5"),
    ],
)
def test_what_cannot_be_built_says_why(options, message):
    with pytest.raises(ValueError, match=message):
        Backbone(D, **{"depth": DEPTH, "num_heads": H, **options})
