"""The number and the width of the heads, compared with heads that repeat their keys and values."""

import pytest
import torch
from helpers.reference import MASK, B, N, assert_same, backbone_of, lively, numbers, tokens_of

from dxn.models import Attention, Decoder
from dxn.models.attention import Group, Score, attend


@pytest.mark.parametrize("position", ["none", "rotary", "alibi"])
@pytest.mark.parametrize(("groups", "head_dim"), [(1, None), (2, None), (3, 10), (6, 2)])
def test_grouped_heads_equal_heads_that_repeat_their_keys_and_values(groups, head_dim, position):
    options = {"depth": 2, "num_heads": 6, "head_dim": head_dim, "position": position}
    options |= {"qkv_bias": True, "bias": False, "qk_norm": True, "causal": True}
    torch.manual_seed(0)
    grouped = lively(backbone_of(24, num_kv_heads=groups, **options))
    full = lively(backbone_of(24, **options))
    state = grouped.state_dict()
    for name in [name for name in state if ".qkv." in name]:
        rows = state[name].unflatten(0, (6 + 2 * groups, -1))
        q, k, v = rows.split((6, groups, groups))
        repeated = [part.repeat_interleave(6 // groups, 0) for part in (k, v)]
        state[name] = torch.cat([q, *repeated]).flatten(0, 1)
    full.load_state_dict(state)
    x = tokens_of(numbers(B, N, 24), MASK)
    assert_same(grouped(x).x[MASK], full(x).x[MASK])
    group = Group(slice(None), slice(None), (B, N), torch.arange(N)[None])
    rows = x.x.flatten(0, 1)
    for ours, theirs in zip(grouped.blocks, full.blocks, strict=True):
        assert_same(ours.attn.weights(rows, group), theirs.attn.weights(rows, group))


def test_only_the_layer_of_queries_keys_and_values_has_a_bias():
    attention = Attention(24, num_heads=6, bias=False, qkv_bias=True)
    assert attention.qkv.bias is not None and attention.proj.bias is None


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("score", [None, "additive", "cosine"])
def test_grouped_heads_of_every_kernel_equal_repeated_ones(size, dtype, masked, score):
    q, k, v = (torch.randn(B, heads, n, 8).to(dtype) for heads, n in ((6, size), (2, N), (2, N)))
    mask = MASK[:, None, None] if masked else None
    score = score and Score(score, 8).to(dtype)
    expected = attend(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), mask, score=score)
    torch.testing.assert_close(attend(q, k, v, mask, score=score), expected)


def test_the_cache_has_only_the_heads_of_the_keys():
    decoder = Decoder(
        backbone_of(24, num_heads=6, num_kv_heads=2, head_dim=5, causal=True), vocab_size=7
    )
    caches = decoder.caches()
    decoder(torch.zeros(3, 4, dtype=torch.long), torch.ones(3, 4, dtype=torch.bool), None, caches)
    assert caches[0]._tokens[0].shape == (3, 2, 4, 5)
