"""Attention windows, compared with a reference form."""

import itertools
import math

import pytest
import torch
from helpers.reference import (
    DEPTH,
    MASK,
    B,
    D,
    H,
    N,
    assert_same,
    differ,
    examples,
    make,
    masks,
    numbers,
    reference_backbone,
    seeds,
    tokens_of,
)
from hypothesis import given
from hypothesis import strategies as st

from dxn.models.layers import Alibi
from dxn.models.positions import make_attn_mask


@pytest.mark.parametrize("with_slopes", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@examples
@given(mask=masks, window=st.integers(1, N + 1))
def test_a_window_allows_the_real_tokens_within_its_distance(with_slopes, causal, mask, window):
    bias = Alibi(H).double() if with_slopes else None
    slopes = None if bias is None else bias.slopes
    attn_mask = make_attn_mask(mask, causal=causal, bias=bias, window=window)
    assert attn_mask is not None and attn_mask.is_floating_point() == with_slopes
    attn_mask = attn_mask.expand(2, H, N, N)
    for b in range(2):
        real = mask[b].nonzero().flatten().tolist()
        for (rank, i), j in itertools.product(enumerate(real), range(N)):
            away = abs(rank - real.index(j)) if j in real else math.inf
            allowed = away <= window and not (causal and j > i)
            if slopes is not None:
                assert attn_mask[b, :, i, j].tolist() == [
                    -float(s) * away if allowed else -math.inf for s in slopes
                ]
            else:
                assert attn_mask[b, :, i, j].tolist() == [allowed] * H
    # A row without any key would be NaN after the softmax, even if its query is padding.
    assert bool((attn_mask > -math.inf if with_slopes else attn_mask).any(-1).all())


@pytest.mark.parametrize(
    ("position", "causal", "pre_norm"),
    [
        ("none", False, True),
        ("none", True, True),
        ("rotary", False, True),
        ("rotary", True, False),
        ("alibi", False, True),
        ("alibi", True, True),
    ],
)
def test_a_backbone_with_windows_equals_its_reference_form(position, causal, pre_norm):
    where = {"position": position, "causal": causal, "pre_norm": pre_norm}
    wide = {"windows": [None, 2, 2], "rope_theta": 503.0, "window_rope_theta": 7.0}
    backbone, x = make(**where, **wide), numbers(B, N, D)
    encoded = backbone(tokens_of(x, MASK)).x
    for i in range(B):
        expected = reference_backbone(backbone, x[i, MASK[i]], **where, **wide)
        # The angles and the slopes are in float32.
        assert_same(encoded[i, MASK[i]], expected, atol=1e-12 if position == "none" else 1e-5)


@pytest.mark.parametrize(
    "changed",
    [
        {"rope_theta": 7.0},
        {"window_rope_theta": 503.0},
        {"windows": [None, 3, 3]},
        {"windows": [None, 2]},
    ],
)
def test_the_reference_form_depends_on_each_of_these_options(changed):
    options = {
        "position": "rotary",
        "causal": False,
        "windows": [None, 2, 2],
        "rope_theta": 503.0,
    }
    options |= {"window_rope_theta": 7.0}
    backbone, x = make(**options), numbers(1, N, D)
    assert differ(
        backbone(tokens_of(x)).x[0], reference_backbone(backbone, x[0], **{**options, **changed})
    )


@pytest.mark.parametrize(
    ("windows", "everywhere"),
    [
        ([None], [0, 1, 2, 3, 4]),
        ([None, 2], [0, 2, 4]),
        ([2, 2, None], [2]),
        ([None, 2, 2, 2, 2, 2, None], [0]),
        ([2], []),
    ],
)
def test_each_block_has_the_window_of_its_place_in_the_list(windows, everywhere):
    backbone = make(depth=5, windows=windows)
    x, mask = numbers(1, N, D), MASK[:1]
    changed = x.clone()
    changed[:, -1] = numbers(D)
    reach = []
    for i in range(5):
        one, other = backbone.run(x, mask, i, i + 1), backbone.run(changed, mask, i, i + 1)
        reach.append(((one - other).abs().amax(-1) > 1e-9)[0].tolist())
    local = [False] * (N - 3) + [True] * 3
    assert reach == [[True] * N if i in everywhere else local for i in range(5)]


def test_window_rope_theta_applies_to_the_blocks_with_a_window():
    options = {"position": "rotary", "windows": [None, 3]}
    x, mask = numbers(1, N, D), MASK[:1]

    def each_block(**bases):
        backbone = make(**options, **bases)
        return [backbone.run(x, mask, i, i + 1) for i in range(DEPTH)]

    plain = each_block(rope_theta=503.0)
    for bases, moved in [
        ({"rope_theta": 503.0, "window_rope_theta": 503.0}, []),
        ({"rope_theta": 503.0, "window_rope_theta": 7.0}, [1, 3]),
        ({"rope_theta": 7.0, "window_rope_theta": 503.0}, [0, 2]),
        ({"rope_theta": 7.0}, [0, 1, 2, 3]),  # default: the same for both
    ]:
        now = each_block(**bases)
        assert [i for i in range(DEPTH) if not torch.equal(now[i], plain[i])] == moved


@examples
@given(
    seed=seeds,
    mask=masks.filter(lambda mask: bool(mask.any(1).all())),
    position=st.sampled_from(["none", "rotary", "alibi"]),
    windows=st.sampled_from([[], [None, 1], [None, 2], [5, None]]),
    options=st.fixed_dictionaries(
        {name: st.booleans() for name in ("causal", "pre_norm", "qk_norm", "bias")}
    ),
)
def test_padding_anywhere_never_changes_a_real_token(seed, mask, position, windows, options):
    options = {
        **options,
        "windows": windows,
        "window_rope_theta": 7.0,
        "layer_scale": 0.5,
    }
    backbone, x = make(seed, position=position, **options), numbers(2, N, D)
    encoded = backbone(tokens_of(x, mask)).x
    assert bool(encoded.isfinite().all())
    for i in range(2):
        assert_same(encoded[i, mask[i]], backbone(tokens_of(x[i : i + 1, mask[i]])).x[0])


@pytest.mark.parametrize("position", ["none", "rotary", "alibi"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_window_of_the_whole_sequence_equals_full_attention_and_a_narrower_one_does_not(
    position, causal
):
    x, options = (
        tokens_of(numbers(B, N, D), MASK),
        {"position": position, "causal": causal},
    )
    plain = make(**options)(x).x[MASK]
    for window in (N - 1, N, 97):
        assert_same(make(**options, windows=[None, window])(x).x[MASK], plain)
    assert differ(
        make(**options, windows=[None, N - 2])(x).x[MASK], plain, by=1e-9
    )  # one pair of tokens fewer


def test_a_sample_without_a_real_token_gives_finite_numbers_through_a_window():
    mask = MASK.clone()
    mask[1] = False
    for position, causal in itertools.product(["none", "rotary", "alibi"], [False, True]):
        backbone = make(position=position, causal=causal, windows=[None, 2, 2])
        assert bool(backbone(tokens_of(numbers(B, N, D), mask)).x.isfinite().all())


def test_running_the_blocks_in_two_parts_keeps_the_window_of_each_block():
    backbone, x = (
        make(position="rotary", windows=[None, 2, 2], window_rope_theta=7.0),
        numbers(B, N, D),
    )
    whole = backbone.run(x, MASK)
    for k in range(DEPTH + 1):
        assert torch.equal(backbone.run(backbone.run(x, MASK, 0, k), MASK, k), whole)


def test_activation_checkpointing_changes_nothing_with_windows():
    x, grads = numbers(B, N, D), []
    for activation_checkpointing in (False, True):
        backbone = make(
            position="rotary",
            windows=[None, 2, 2],
            activation_checkpointing=activation_checkpointing,
        ).train()
        backbone(tokens_of(x, MASK)).x[MASK].square().sum().backward()
        grads.append([p.grad for p in backbone.parameters()])
    for plain, recomputed in zip(*grads, strict=True):
        assert_same(recomputed, plain)
