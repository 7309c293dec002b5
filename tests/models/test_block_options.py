"""Scores, positions and norms of public models, compared with formulas and with transformers."""

import math

import pytest
import torch
import transformers
from helpers.reference import (
    MASK,
    B,
    D,
    H,
    N,
    assert_same,
    differ,
    make,
    numbers,
    reference_norm,
    tokens_of,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.t5.modeling_t5 import T5Attention

from dxn.models.attention import Score, attend, attention_weights
from dxn.models.backbone import Backbone
from dxn.models.blocks import BlockOptions, PositionOptions, RopeScaling
from dxn.models.layers import BucketBias
from dxn.models.positions import apply_rope, rope_factors

SCALINGS = [
    (RopeScaling("linear", 8.0), {"rope_type": "linear", "factor": 8.0}),
    (
        RopeScaling("llama3", 32.0, original_len=64, high=4.0),
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    (
        RopeScaling("yarn", 4.0, original_len=512),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    ),
    (
        RopeScaling("yarn", 4.0, original_len=4096, low=2.0, high=16.0, attn_factor=0.75),
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "attention_factor": 0.75,
            "original_max_position_embeddings": 4096,
        },
    ),
]


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize(("scaling", "theirs"), SCALINGS, ids=str)
def test_scaled_frequencies_are_those_of_transformers(scaling, theirs, share):
    config = transformers.LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=8192,
        rope_parameters={**theirs, "rope_theta": 503.0, "partial_rotary_factor": share},
    )
    frequency, factor = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config, torch.device("cpu"))
    index = torch.tensor([[0, 1, 7, 211]])
    angles = index[..., None] * frequency
    cos, sin = rope_factors(index, int(64 * share), 503.0, scaling)
    expected = torch.cat([angles.cos(), angles.cos()], -1) * factor
    torch.testing.assert_close(cos[:, 0], expected, rtol=0, atol=2e-5)
    expected = torch.cat([-angles.sin(), angles.sin()], -1) * factor
    torch.testing.assert_close(sin[:, 0], expected, rtol=0, atol=2e-5)


def test_only_the_first_features_of_a_head_are_rotated():
    x = numbers(B, H, N, 12)
    factors = rope_factors(torch.arange(N)[None], 4)
    rotated = apply_rope(x, factors)
    assert_same(rotated[..., :4], apply_rope(x[..., :4], factors))
    assert torch.equal(rotated[..., 4:], x[..., 4:])


def test_a_block_without_rotary_positions_is_one_of_a_backbone_without_positions():
    mixed = make(position="rotary", rope_blocks=[True, False])
    rotary, plain, x = make(position="rotary"), make(), numbers(B, N, D)
    for i, expected in enumerate([rotary, plain, rotary, plain]):
        outputs = [model.run(x, MASK, i, i + 1)[MASK] for model in (mixed, expected)]
        assert_same(*outputs)


def test_the_frequencies_of_blocks_with_a_window_are_not_scaled_if_they_have_a_base_of_their_own():
    options = {"position": "rotary", "windows": [2, None]}
    scaling = {"rope_scaling": RopeScaling("linear", 8.0)}
    x = numbers(B, N, D)

    def changed(**own):
        first, second = make(**options, **own), make(**options, **own, **scaling)
        return [differ(first.run(x, MASK, i, i + 1), second.run(x, MASK, i, i + 1)) for i in (0, 1)]

    assert changed() == [True, True]
    assert changed(window_rope_theta=7.0) == [False, True]


@pytest.mark.parametrize("causal", [False, True])
def test_the_buckets_of_distances_are_those_of_t5(causal):
    bias = BucketBias(3, 32, 128, causal=causal)
    relative = torch.arange(-300, 300)
    buckets = T5Attention._relative_position_bucket(
        relative, bidirectional=not causal, num_buckets=32, max_distance=128
    )
    assert torch.equal(bias(relative[None, None])[0, :, 0], bias.weight[buckets].T)


def test_all_blocks_share_a_bias_per_bucket_and_train_it():
    backbone, x = make(position="buckets", num_buckets=8, max_distance=5), numbers(1, N, D)
    index = torch.arange(N)
    mask = backbone.bias((index[None] - index[:, None])[None])
    expected = x[0]
    for block in backbone.blocks:
        normed = reference_norm(expected, block.attn_norm)
        qkv = block.attn.qkv(normed).view(N, 3, H, -1).permute(1, 2, 0, 3)
        scores = qkv[0] @ qkv[1].mT / math.sqrt(D // H) + mask[0]
        out = scores.softmax(-1) @ qkv[2]
        expected = expected + block.attn.proj(out.transpose(0, 1).flatten(1))
        expected = expected + block.mlp(reference_norm(expected, block.mlp_norm))
    encoded = backbone(tokens_of(x)).x[0]
    assert_same(encoded, reference_norm(expected, backbone.norm))
    encoded.sum().backward()
    assert bool(backbone.bias.weight.grad.abs().sum() > 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scale_and_softcap_of_the_scores_equal_their_formula(dtype):
    q, k, v = (numbers(B, H, N, 4).to(dtype) for _ in range(3))
    scores = (q @ k.mT).float() * 0.3
    scores = 0.7 * (scores / 0.7).tanh()
    expected = scores.masked_fill(~MASK[:, None, None], -torch.inf).softmax(-1)
    score = Score("scaled_dot", 4, scale=0.3, softcap=0.7)
    weights = attention_weights(q, k, MASK[:, None, None], score=score).float()
    atol = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(weights, expected, rtol=0, atol=atol)
    out = attend(q, k, v, MASK[:, None, None], score=score).float()
    torch.testing.assert_close(out, weights @ v.float(), rtol=0, atol=3 * atol)


def test_a_scale_alone_keeps_the_fused_kernel_and_its_numbers():
    q, k, v = (numbers(B, H, N, 4) for _ in range(3))
    out = attend(q, k, v, score=Score("scaled_dot", 4, scale=0.3))
    assert_same(out, (q @ k.mT * 0.3).softmax(-1) @ v)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("layer_scale", [None, 0.5])
@pytest.mark.parametrize("place", ["both", "out"])
def test_norms_after_each_branch_equal_their_formula(place, norm, layer_scale):
    options = {"norm": norm, "norm_place": place, "layer_scale": layer_scale}
    backbone, x = make(**options, depth=2), numbers(1, N, D)
    expected = x[0]
    for block in backbone.blocks:
        for name in ("attn", "mlp"):
            normed = expected
            if place == "both":
                normed = reference_norm(expected, getattr(block, f"{name}_norm"))
            branch = getattr(block, name)
            out = reference_attention(branch, normed) if name == "attn" else branch(normed)
            after = getattr(block, f"{name}_out")
            if layer_scale is None:
                out = reference_norm(out, after)
            else:
                out = reference_norm(out, after[0]) * after[1].factor
            expected = expected + out
    assert_same(backbone(tokens_of(x)).x[0], reference_norm(expected, backbone.norm))


def reference_attention(attn, x):
    """Attention of one sample x (N, D) by its formula."""
    q, k, v = attn.qkv(x).view(N, 3, H, -1).permute(1, 2, 0, 3)
    out = (q @ k.mT / math.sqrt(D // H)).softmax(-1) @ v
    return attn.proj(out.transpose(0, 1).flatten(1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "cosine", "score_scale": 2.0}, "score_scale needs score=scaled_dot, got cosine"),
        (
            {"num_heads": 2, "position": "rotary", "rope_share": 0.75},
            "an even number of rotated features",
        ),
        ({"position": "buckets", "max_distance": 8}, "max_distance must be larger than the 8 dist"),
    ],
)
def test_invalid_options_raise_a_clear_error(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize("limits", [{"low": 4.0, "high": 4.0}, {"low": 4.0}])
def test_limits_of_a_rope_scaling_in_the_wrong_order_are_refused(limits):
    scaling = RopeScaling("llama3", 8.0, original_len=64, **limits)
    with pytest.raises(ValueError, match=r"rope_scaling.high must be above low, got 4.0 and 4.0"):
        Backbone(32, position=PositionOptions(kind="rotary", rope_scaling=scaling))


def test_yarn_needs_wavelengths_that_differ():
    options = PositionOptions(
        kind="rotary", rope_theta=1.0, rope_scaling=RopeScaling("yarn", factor=8.0)
    )
    with pytest.raises(ValueError, match=r"rope_theta must be above 1, got 1.0"):
        Backbone(32, position=options)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_option_is_a_finite_number(value):
    with pytest.raises(ValueError, match="layer_scale must be a finite number, got"):
        BlockOptions(layer_scale=value)


def test_an_mlp_without_features_is_refused():
    with pytest.raises(ValueError, match=r"mlp_ratio: .* at least one feature, got 0.01 for dim=3"):
        Backbone(32, mlp_ratio=0.01)
