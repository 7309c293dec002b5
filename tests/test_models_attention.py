"""Attention and its positions, against torch's own and against the written-out form."""

import pytest
import torch
from torch import nn

from dxn.models import Attention, Backbone, Block
from dxn.models.attention import alibi_slopes, attend, attention_bias, rotate, rotation_angles, token_index
from dxn.models.blocks import DropPath, Mlp
from dxn.tokens import Span, Tokens

B, N, D, H = 3, 7, 20, 5


def mask_of(lengths, n=N):
    return torch.arange(n) < torch.tensor(lengths)[:, None]


def tokens_of(x, mask):
    return Tokens(x, mask, (Span("text", 0, x.shape[1], torch.zeros(*x.shape[:2], 2)),))


def test_attention_equals_torchs_multihead_attention():
    ours, theirs = Attention(D, num_heads=H).double(), nn.MultiheadAttention(D, H, batch_first=True).double()
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = ours.qkv.weight.data, ours.qkv.bias.data
    theirs.out_proj.weight.data, theirs.out_proj.bias.data = ours.proj.weight.data, ours.proj.bias.data
    x, mask = torch.randn(B, N, D, dtype=torch.float64), mask_of([7, 3, 5])
    expected, _ = theirs(x, x, x, key_padding_mask=~mask)
    got = ours(x, attention_bias(mask))
    torch.testing.assert_close(got[mask], expected[mask], rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_block_equals_torchs_encoder_layer(norm_first):
    theirs = nn.TransformerEncoderLayer(D, H, 4 * D, 0.0, "gelu", batch_first=True, norm_first=norm_first).double()
    ours = Block(D, num_heads=H, norm_first=norm_first).double()
    names = {
        "attn_norm": "norm1",
        "attn.qkv.weight": "self_attn.in_proj_weight",
        "attn.qkv.bias": "self_attn.in_proj_bias",
        "attn.proj": "self_attn.out_proj",
        "mlp_norm": "norm2",
        "mlp.up": "linear1",
        "mlp.down": "linear2",
    }
    state = {}
    for name in ours.state_dict():
        our = next(prefix for prefix in names if name.startswith(prefix))
        state[name] = theirs.state_dict()[name.replace(our, names[our])]
    ours.load_state_dict(state)
    x, mask = torch.randn(B, N, D, dtype=torch.float64), mask_of([7, 3, 5])
    theirs.train()  # its fast path in evaluation returns zeros at padding
    expected = theirs(x, src_key_padding_mask=~mask)
    torch.testing.assert_close(ours(x, attention_bias(mask))[mask], expected[mask], rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", [[7, 7, 7], [7, 3, 5]])
def test_the_bf16_form_equals_the_fused_kernel(lengths):
    q, k, v = torch.randn(3, B, H, N, 4)
    bias = attention_bias(mask_of(lengths))
    fused = attend(q, k, v, bias)
    written_out = attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), bias)
    torch.testing.assert_close(written_out.float(), fused, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("position", ["none", "rotary", "alibi"])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_never_changes_a_real_token(position, causal):
    backbone = Backbone(D, depth=2, num_heads=H, position=position, causal=causal).double().eval()
    x, mask = torch.randn(B, N, D, dtype=torch.float64), mask_of([7, 3, 5])
    batched = backbone(tokens_of(x, mask)).x
    for i, length in enumerate([7, 3, 5]):
        alone = backbone(tokens_of(x[i : i + 1, :length], mask[i : i + 1, :length])).x
        torch.testing.assert_close(batched[i, :length], alone[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", ["none", "rotary", "alibi"])
def test_padding_before_a_token_changes_nothing_either(position):
    backbone = Backbone(D, depth=2, num_heads=H, position=position).double().eval()
    x = torch.randn(1, 5, D, dtype=torch.float64)
    holes = torch.tensor([[False, True, False, True, True, False, True, True]])
    wide = torch.randn(1, 8, D, dtype=torch.float64).masked_scatter(holes[..., None], x)
    alone = backbone(tokens_of(x, torch.ones(1, 5, dtype=torch.bool))).x
    torch.testing.assert_close(backbone(tokens_of(wide, holes)).x[holes], alone[0], rtol=0, atol=1e-12)


def test_without_positions_permuting_the_columns_permutes_the_output():
    backbone = Backbone(D, depth=2, num_heads=H).double().eval()
    x, mask, order = torch.randn(B, N, D, dtype=torch.float64), mask_of([7, 7, 7]), torch.randperm(N)
    shuffled = backbone(tokens_of(x[:, order], mask)).x
    torch.testing.assert_close(shuffled, backbone(tokens_of(x, mask)).x[:, order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", ["rotary", "alibi"])
def test_with_positions_it_does_not(position):
    backbone = Backbone(D, depth=2, num_heads=H, position=position).double().eval()
    x, mask, order = torch.randn(B, N, D, dtype=torch.float64), mask_of([7, 7, 7]), torch.arange(N).flip(0).roll(2)
    shuffled = backbone(tokens_of(x[:, order], mask)).x
    assert not torch.allclose(shuffled, backbone(tokens_of(x, mask)).x[:, order], atol=1e-6)


def test_samples_of_a_batch_never_see_each_other():
    backbone = Backbone(D, depth=2, num_heads=H).double().eval()
    x, mask = torch.randn(B, N, D, dtype=torch.float64), mask_of([7, 3, 5])
    before = backbone(tokens_of(x, mask)).x[0]
    changed = x.clone()
    changed[1:] = torch.randn(2, N, D, dtype=torch.float64)
    assert torch.equal(backbone(tokens_of(changed, mask)).x[0], before)


def test_a_causal_token_reads_only_those_before_it():
    backbone = Backbone(D, depth=2, num_heads=H, causal=True).double().eval()
    x, mask = torch.randn(B, N, D, dtype=torch.float64), mask_of([7, 7, 7])
    before = backbone(tokens_of(x, mask)).x[:, :4]
    changed = torch.cat([x[:, :4], torch.randn(B, 3, D, dtype=torch.float64)], 1)
    torch.testing.assert_close(backbone(tokens_of(changed, mask)).x[:, :4], before, rtol=0, atol=1e-12)


def test_a_sample_without_a_real_token_gives_finite_numbers():
    backbone = Backbone(D, depth=2, num_heads=H, position="alibi").eval()
    x, mask = torch.randn(B, N, D), mask_of([7, 0, 5])
    assert bool(torch.isfinite(backbone(tokens_of(x, mask)).x).all())


def test_rotary_scores_depend_on_the_distance_alone():
    q, k = torch.randn(2, 1, 1, 1, 6, dtype=torch.float64).expand(2, 1, 1, N, 6)
    angles = rotation_angles(torch.ones(1, N, dtype=torch.bool), 6)
    scores = rotate(q, angles) @ rotate(k, angles).transpose(-2, -1)
    for offset in range(N):
        diagonal = scores[0, 0].diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-6)


def test_alibi_slopes_are_those_of_the_paper():
    assert alibi_slopes(8).tolist() == [2**-i for i in range(1, 9)]


def test_the_index_of_a_token_counts_real_ones_only():
    assert token_index(torch.tensor([[False, True, False, True, True]])).tolist() == [[0, 0, 0, 1, 2]]


def test_checkpointing_changes_neither_output_nor_gradient():
    def run(checkpointing):
        torch.manual_seed(1)
        backbone = Backbone(D, depth=2, num_heads=H, checkpointing=checkpointing).double().train()
        x = torch.ones(B, N, D, dtype=torch.float64).cumsum(1).sin()
        out = backbone(tokens_of(x, mask_of([7, 3, 5]))).x
        out.sum().backward()
        return out, backbone.blocks[0].attn.qkv.weight.grad

    for plain, again in zip(run(False), run(True), strict=True):
        torch.testing.assert_close(again, plain, rtol=0, atol=1e-12)


def test_drop_path_leaves_out_whole_samples():
    out = DropPath(0.5).train()(torch.ones(1009, 3, 2))
    per_sample = out.flatten(1)
    assert bool((per_sample == per_sample[:, :1]).all())
    assert set(per_sample[:, 0].tolist()) == {0.0, 2.0}


def test_swiglu_has_about_as_many_weights_as_gelu():
    count = [sum(p.numel() for p in Mlp(96, mlp=kind, bias=False).parameters()) for kind in ("gelu", "swiglu")]
    assert count[0] == count[1]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Attention(30, num_heads=4), "dim must be a multiple of num_heads, got 30 and 4"),
        (lambda: Mlp(8, mlp="relu"), "mlp must be one of gelu, gelu_tanh, quick_gelu, swiglu, geglu, got 'relu'"),
        (lambda: Backbone(8, norm="batch"), "norm must be layer or rms, got 'batch'"),
        (lambda: Backbone(12, num_heads=4, position="rotary"), "rotary positions need an even dim / num_heads"),
    ],
)
def test_wrong_sizes_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
