"""Attention and its positions, compared with torch and with their formulas."""

import pytest
import torch
from helpers.reference import backbone_of, block_of, run_padded, tokens_of
from torch import nn

from dxn.core.dropout import Dropout
from dxn.models import Attention
from dxn.models.attention import attend
from dxn.models.blocks import Mlp
from dxn.models.layers import alibi_slopes
from dxn.models.positions import apply_rope, make_attn_mask, rope_factors, token_index

B, N, D, H = 3, 7, 20, 5


def mask_of(lengths, n=N):
    return torch.arange(n) < torch.tensor(lengths)[:, None]


def test_attention_equals_torchs_multihead_attention():
    ours, theirs = (
        Attention(D, num_heads=H).double(),
        nn.MultiheadAttention(D, H, batch_first=True).double(),
    )
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = ours.qkv.weight.data, ours.qkv.bias.data
    theirs.out_proj.weight.data, theirs.out_proj.bias.data = (
        ours.proj.weight.data,
        ours.proj.bias.data,
    )
    x, mask = torch.randn(B, N, D, dtype=torch.float64), mask_of([7, 3, 5])
    expected, _ = theirs(x, x, x, key_padding_mask=~mask)
    actual = run_padded(ours, x, attn_mask=make_attn_mask(mask))
    torch.testing.assert_close(actual[mask], expected[mask], rtol=0, atol=1e-12)


@pytest.mark.parametrize("pre_norm", [True, False])
def test_a_block_equals_torchs_encoder_layer(pre_norm):
    theirs = nn.TransformerEncoderLayer(
        D, H, 4 * D, 0.0, "gelu", batch_first=True, norm_first=pre_norm
    ).double()
    ours = block_of(D, num_heads=H, pre_norm=pre_norm).double()
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
    theirs.train()  # its fast path in evaluation mode returns zeros at padding
    expected = theirs(x, src_key_padding_mask=~mask)
    torch.testing.assert_close(
        run_padded(ours, x, attn_mask=make_attn_mask(mask))[mask],
        expected[mask],
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("lengths", [[7, 7, 7], [7, 3, 5]])
def test_the_unfused_bf16_path_equals_the_fused_kernel(lengths):
    q, k, v = torch.randn(3, B, H, N, 4)
    attn_mask = make_attn_mask(mask_of(lengths))
    fused = attend(q, k, v, attn_mask)
    unfused = attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), attn_mask)
    torch.testing.assert_close(unfused.float(), fused, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("position", ["none", "rotary", "alibi"])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_never_changes_a_real_token(position, causal):
    backbone = (
        backbone_of(D, depth=2, num_heads=H, position=position, causal=causal).double().eval()
    )
    x, mask = torch.randn(B, N, D, dtype=torch.float64), mask_of([7, 3, 5])
    batched = backbone(tokens_of(x, mask)).x
    for i, length in enumerate([7, 3, 5]):
        alone = backbone(tokens_of(x[i : i + 1, :length], mask[i : i + 1, :length])).x
        torch.testing.assert_close(batched[i, :length], alone[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", ["none", "rotary", "alibi"])
def test_padding_before_a_token_changes_nothing(position):
    backbone = backbone_of(D, depth=2, num_heads=H, position=position).double().eval()
    x = torch.randn(1, 5, D, dtype=torch.float64)
    mask = torch.tensor([[False, True, False, True, True, False, True, True]])
    wide = torch.randn(1, 8, D, dtype=torch.float64).masked_scatter(mask[..., None], x)
    alone = backbone(tokens_of(x, torch.ones(1, 5, dtype=torch.bool))).x
    torch.testing.assert_close(
        backbone(tokens_of(wide, mask)).x[mask], alone[0], rtol=0, atol=1e-12
    )


def test_without_positions_permuting_the_columns_permutes_the_output():
    backbone = backbone_of(D, depth=2, num_heads=H).double().eval()
    x, mask, order = (
        torch.randn(B, N, D, dtype=torch.float64),
        mask_of([7, 7, 7]),
        torch.randperm(N),
    )
    shuffled = backbone(tokens_of(x[:, order], mask)).x
    torch.testing.assert_close(
        shuffled, backbone(tokens_of(x, mask)).x[:, order], rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("position", ["rotary", "alibi"])
def test_with_positions_permuting_the_columns_changes_the_output(position):
    backbone = backbone_of(D, depth=2, num_heads=H, position=position).double().eval()
    x, mask, order = (
        torch.randn(B, N, D, dtype=torch.float64),
        mask_of([7, 7, 7]),
        torch.arange(N).flip(0).roll(2),
    )
    shuffled = backbone(tokens_of(x[:, order], mask)).x
    assert not torch.allclose(shuffled, backbone(tokens_of(x, mask)).x[:, order], atol=1e-6)


def test_samples_of_a_batch_never_see_each_other():
    backbone = backbone_of(D, depth=2, num_heads=H).double().eval()
    x, mask = torch.randn(B, N, D, dtype=torch.float64), mask_of([7, 3, 5])
    before = backbone(tokens_of(x, mask)).x[0]
    changed = x.clone()
    changed[1:] = torch.randn(2, N, D, dtype=torch.float64)
    assert torch.equal(backbone(tokens_of(changed, mask)).x[0], before)


def test_a_causal_token_depends_only_on_the_tokens_before_it():
    backbone = backbone_of(D, depth=2, num_heads=H, causal=True).double().eval()
    x, mask = torch.randn(B, N, D, dtype=torch.float64), mask_of([7, 7, 7])
    before = backbone(tokens_of(x, mask)).x[:, :4]
    changed = torch.cat([x[:, :4], torch.randn(B, 3, D, dtype=torch.float64)], 1)
    torch.testing.assert_close(
        backbone(tokens_of(changed, mask)).x[:, :4], before, rtol=0, atol=1e-12
    )


def test_a_sample_without_a_real_token_gives_finite_numbers():
    backbone = backbone_of(D, depth=2, num_heads=H, position="alibi").eval()
    x, mask = torch.randn(B, N, D), mask_of([7, 0, 5])
    assert bool(torch.isfinite(backbone(tokens_of(x, mask)).x).all())


def test_rotary_scores_depend_only_on_the_distance():
    q, k = torch.randn(2, 1, 1, 1, 6, dtype=torch.float64).expand(2, 1, 1, N, 6)
    angles = rope_factors(torch.arange(N)[None], 6)
    scores = apply_rope(q, angles) @ apply_rope(k, angles).transpose(-2, -1)
    for offset in range(N):
        diagonal = scores[0, 0].diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-6)


def test_alibi_slopes_equal_those_of_the_paper():
    assert alibi_slopes(8).tolist() == [2**-i for i in range(1, 9)]


def test_the_index_of_a_token_counts_only_real_tokens():
    assert token_index(torch.tensor([[False, True, False, True, True]])).tolist() == [
        [0, 0, 0, 1, 2]
    ]


def test_activation_checkpointing_changes_neither_output_nor_gradient():
    def run(activation_checkpointing):
        torch.manual_seed(1)
        backbone = (
            backbone_of(D, depth=2, num_heads=H, activation_checkpointing=activation_checkpointing)
            .double()
            .train()
        )
        x = torch.ones(B, N, D, dtype=torch.float64).cumsum(1).sin()
        out = backbone(tokens_of(x, mask_of([7, 3, 5]))).x
        out.sum().backward()
        return out, backbone.blocks[0].attn.qkv.weight.grad

    for plain, recomputed in zip(run(False), run(True), strict=True):
        torch.testing.assert_close(recomputed, plain, rtol=0, atol=1e-12)


def test_drop_path_omits_a_branch_for_whole_samples():
    out = Dropout(0.0, drop_path=0.5).train()(torch.ones(1009, 3, 2))
    per_sample = out.flatten(1)
    assert bool((per_sample == per_sample[:, :1]).all())
    assert set(per_sample[:, 0].tolist()) == {0.0, 2.0}


def test_swiglu_has_about_as_many_weights_as_gelu():
    count = [
        sum(p.numel() for p in Mlp(96, mlp=kind, bias=False).parameters())
        for kind in ("gelu", "swiglu")
    ]
    assert count[0] == count[1]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Attention(30, num_heads=4), "dim must be a multiple of num_heads, got 30 and 4"),
        (
            lambda: Attention(30, num_heads=6, num_kv_heads=4),
            "num_heads must be a multiple of num_kv_heads, got 6 and 4",
        ),
        (
            lambda: Mlp(8, mlp="tanh"),
            "mlp must be one of 'gelu', 'gelu_tanh', 'quick_gelu', 'relu', 'silu'",
        ),
        (lambda: backbone_of(8, norm="batch"), "kind must be one of 'layer' or 'rms', got 'batch'"),
        (
            lambda: backbone_of(12, num_heads=4, position="rotary"),
            "rotary positions need an even number of rotated features of a head, got 3 of 3",
        ),
    ],
)
def test_invalid_options_raise_a_clear_error(build, message):
    with pytest.raises(ValueError, match=message):
        build()
