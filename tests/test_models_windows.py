"""Windows of attention against a form that is written out."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from written_out import (
    DEPTH,
    MASK,
    B,
    D,
    H,
    N,
    assert_same,
    backbone_by_hand,
    differ,
    examples,
    make,
    masks,
    numbers,
    seeds,
    tokens_of,
)

from dxn.models.attention import alibi_slopes, attention_bias


@pytest.mark.parametrize("with_slopes", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@examples
@given(mask=masks, window=st.integers(1, N + 1))
def test_a_window_allows_the_real_tokens_up_to_so_many_real_tokens_away(with_slopes, causal, mask, window):
    slopes = alibi_slopes(H).double() if with_slopes else None
    bias = attention_bias(mask, causal=causal, slopes=slopes, window=window)
    assert bias is not None and bias.is_floating_point() == with_slopes
    bias = bias.expand(2, H, N, N)
    for b in range(2):
        real = mask[b].nonzero().flatten().tolist()
        for (rank, i), j in itertools.product(enumerate(real), range(N)):
            away = abs(rank - real.index(j)) if j in real else math.inf
            allowed = away <= window and not (causal and j > i)
            if slopes is not None:
                assert bias[b, :, i, j].tolist() == [-float(s) * away if allowed else -math.inf for s in slopes]
            else:
                assert bias[b, :, i, j].tolist() == [allowed] * H
    # A softmax over nothing would be NaN, also where the query is padding.
    assert bool((bias > -math.inf if with_slopes else bias).any(-1).all())


@pytest.mark.parametrize(
    ("position", "causal", "norm_first"),
    [
        ("none", False, True),
        ("none", True, True),
        ("rotary", False, True),
        ("rotary", True, False),
        ("alibi", False, True),
        ("alibi", True, True),
    ],
)
def test_a_backbone_with_windows_equals_the_written_out_one(position, causal, norm_first):
    where = {"position": position, "causal": causal, "norm_first": norm_first}
    wide = {"window": 2, "global_every": 3, "rotary_base": 503.0, "window_base": 7.0}
    backbone, x = make(**where, **wide), numbers(B, N, D)
    encoded = backbone(tokens_of(x, MASK)).x
    for i in range(B):
        expected = backbone_by_hand(backbone, x[i, MASK[i]], **where, **wide)
        # The angles and the slopes are float32.
        assert_same(encoded[i, MASK[i]], expected, atol=1e-12 if position == "none" else 1e-5)


@pytest.mark.parametrize("changed", [{"rotary_base": 7.0}, {"window_base": 503.0}, {"window": 3}, {"global_every": 2}])
def test_the_written_out_backbone_tells_each_of_these_options(changed):
    options = {"position": "rotary", "causal": False, "window": 2, "global_every": 3, "rotary_base": 503.0}
    options |= {"window_base": 7.0}
    backbone, x = make(**options), numbers(1, N, D)
    assert differ(backbone(tokens_of(x)).x[0], backbone_by_hand(backbone, x[0], **{**options, **changed}))


@pytest.mark.parametrize(("global_every", "everywhere"), [(1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (3, [0, 3]), (7, [0])])
def test_the_first_block_and_every_so_manieth_after_it_read_every_token(global_every, everywhere):
    backbone = make(depth=5, window=2, global_every=global_every)
    x, mask = numbers(1, N, D), MASK[:1]
    changed = x.clone()
    changed[:, -1] = numbers(D)
    reach = []
    for i in range(5):
        one, other = backbone.run(x, mask, i, i + 1), backbone.run(changed, mask, i, i + 1)
        reach.append(((one - other).abs().amax(-1) > 1e-9)[0].tolist())
    local = [False] * (N - 3) + [True] * 3
    assert reach == [[True] * N if i in everywhere else local for i in range(5)]


def test_blocks_with_a_window_rotate_with_its_base_and_the_others_with_theirs():
    options = {"position": "rotary", "window": 3, "global_every": 2}
    x, mask = numbers(1, N, D), MASK[:1]

    def each_block(**bases):
        backbone = make(**options, **bases)
        return [backbone.run(x, mask, i, i + 1) for i in range(DEPTH)]

    plain = each_block(rotary_base=503.0)
    for bases, moved in [
        ({"rotary_base": 503.0, "window_base": 503.0}, []),
        ({"rotary_base": 503.0, "window_base": 7.0}, [1, 3]),
        ({"rotary_base": 7.0, "window_base": 503.0}, [0, 2]),
        ({"rotary_base": 7.0}, [0, 1, 2, 3]),  # the same for both unless given
    ]:
        now = each_block(**bases)
        assert [i for i in range(DEPTH) if not torch.equal(now[i], plain[i])] == moved


@examples
@given(
    seed=seeds,
    mask=masks.filter(lambda mask: bool(mask.any(1).all())),
    position=st.sampled_from(["none", "rotary", "alibi"]),
    window=st.sampled_from([None, 1, 2, 5]),
    options=st.fixed_dictionaries({name: st.booleans() for name in ("causal", "norm_first", "qk_norm", "bias")}),
)
def test_padding_never_changes_a_real_token_wherever_it_stands(seed, mask, position, window, options):
    options = {**options, "window": window, "global_every": 2, "window_base": 7.0, "layer_scale": 0.5}
    backbone, x = make(seed, position=position, **options), numbers(2, N, D)
    encoded = backbone(tokens_of(x, mask)).x
    assert bool(encoded.isfinite().all())
    for i in range(2):
        assert_same(encoded[i, mask[i]], backbone(tokens_of(x[i : i + 1, mask[i]])).x[0])


@pytest.mark.parametrize("position", ["none", "rotary", "alibi"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_window_as_wide_as_the_sequence_equals_none_and_a_narrower_one_does_not(position, causal):
    x, options = tokens_of(numbers(B, N, D), MASK), {"position": position, "causal": causal, "global_every": 2}
    plain = make(**options)(x).x[MASK]
    for window in (N - 1, N, 97):
        assert_same(make(**options, window=window)(x).x[MASK], plain)
    assert differ(make(**options, window=N - 2)(x).x[MASK], plain, by=1e-9)  # one pair of tokens less


def test_a_sample_without_a_real_token_gives_finite_numbers_through_a_window():
    mask = MASK.clone()
    mask[1] = False
    for position, causal in itertools.product(["none", "rotary", "alibi"], [False, True]):
        backbone = make(position=position, causal=causal, window=2, global_every=3)
        assert bool(backbone(tokens_of(numbers(B, N, D), mask)).x.isfinite().all())


def test_running_the_blocks_in_two_goes_keeps_each_blocks_window():
    backbone, x = make(position="rotary", window=2, global_every=3, window_base=7.0), numbers(B, N, D)
    whole = backbone.run(x, MASK)
    for k in range(DEPTH + 1):
        assert torch.equal(backbone.run(backbone.run(x, MASK, 0, k), MASK, k), whole)


def test_checkpointing_changes_nothing_about_windows():
    x, grads = numbers(B, N, D), []
    for checkpointing in (False, True):
        backbone = make(position="rotary", window=2, global_every=3, checkpointing=checkpointing).train()
        backbone(tokens_of(x, MASK)).x[MASK].square().sum().backward()
        grads.append([p.grad for p in backbone.parameters()])
    for plain, again in zip(*grads, strict=True):
        assert_same(again, plain)
