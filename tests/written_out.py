"""Slow forms of what a backbone is made of: one sample without its padding, one head and one token at a time."""

import math

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import nn

from dxn.models import Backbone, BottleneckFusion, EarlyFusion, LateFusion
from dxn.tokens import Span, Tokens

B, N, D, H, DEPTH = 3, 11, 20, 5, 4
MLPS = ("gelu", "gelu_tanh", "quick_gelu", "swiglu", "geglu")
POOLS = ("mean", "max", "cls", "attention", "first", "last", "cls_mean", "leading", "leading_cat")
FUSIONS = {"early": EarlyFusion, "late": LateFusion, "bottleneck": BottleneckFusion}
# Full, padding at the end, padding at the start and in the middle.
MASK = torch.tensor([[1] * 11, [1] * 7 + [0] * 4, [0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 1]], dtype=torch.bool)

examples = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**31)
masks = st.lists(st.lists(st.booleans(), min_size=N, max_size=N), min_size=2, max_size=2).map(torch.tensor)
both_norms = pytest.mark.parametrize("norm", ["layer", "rms"])
pre_and_post = pytest.mark.parametrize("norm_first", [True, False])
each_fusion = pytest.mark.parametrize("fusion", FUSIONS)
each_pool = pytest.mark.parametrize("pool", POOLS)


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def lively(module):
    """In float64 and with weights large enough that each part shows in the output, norms and biases too."""
    module = module.double()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return module.eval()


def make(seed=0, **options):
    torch.manual_seed(seed)
    return lively(Backbone(D, **{"depth": DEPTH, "num_heads": H, **options}))


def tokens_of(x, mask=None, modality="text"):
    mask = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    return Tokens(x, mask, (Span(modality, 0, x.shape[1], torch.zeros(*x.shape[:2], 2)),))


def assert_same(got, expected, atol=1e-12):
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


def differ(one, other, by=1e-3):
    return float((one - other).detach().abs().max()) > by


def norm_by_hand(x, norm, eps=1e-5):
    if isinstance(norm, nn.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * norm.weight
    return x + norm.bias if getattr(norm, "bias", None) is not None else x


def turned(x, at, base):
    """The pairs (x[k], x[k + d/2]) as complex numbers, each turned by at / base^(2k/d)."""
    half = len(x) // 2
    angle = torch.tensor([at / base ** (2 * k / len(x)) for k in range(half)], dtype=torch.float64)
    pairs = torch.complex(x[:half], x[half:]) * torch.complex(angle.cos(), angle.sin())
    return torch.cat([pairs.real, pairs.imag])


def attention_by_hand(attn, x, *, window, causal, slopes, base):
    n, d = len(x), D // H
    qkv = (x @ attn.qkv.weight.T + attn.qkv.bias).view(n, 3, H, d)
    out = torch.empty(n, H, d, dtype=x.dtype)
    for h in range(H):
        q, k, v = qkv[:, 0, h], qkv[:, 1, h], qkv[:, 2, h]
        if base is not None:
            q, k = (torch.stack([turned(row, at, base) for at, row in enumerate(rows)]) for rows in (q, k))
        for i in range(n):
            read = [j for j in range(n) if (not causal or j <= i) and (window is None or abs(i - j) <= window)]
            distance = torch.tensor([abs(i - j) for j in read])
            score = k[read] @ q[i] / math.sqrt(d) - (slopes[h] * distance if slopes is not None else 0)
            out[i, h] = score.softmax(0) @ v[read]
    return out.reshape(n, D) @ attn.proj.weight.T + attn.proj.bias


def backbone_by_hand(
    backbone, x, *, position, causal, window, global_every, rotary_base=10000.0, window_base=None, norm_first=True
):
    slopes = [2 ** (-8 * h / H) for h in range(1, H + 1)] if position == "alibi" else None
    for layer, block in enumerate(backbone.blocks):
        local = layer % global_every != 0
        base = window_base if local and window_base is not None else rotary_base
        sight = {
            "window": window if local else None,
            "causal": causal,
            "slopes": slopes,
            "base": base if position == "rotary" else None,
        }
        if norm_first:
            x = x + attention_by_hand(block.attn, norm_by_hand(x, block.attn_norm), **sight)
            x = x + block.mlp(norm_by_hand(x, block.mlp_norm))
        else:
            x = norm_by_hand(x + attention_by_hand(block.attn, x, **sight), block.attn_norm)
            x = norm_by_hand(x + block.mlp(x), block.mlp_norm)
    return norm_by_hand(x, backbone.norm) if norm_first else x


def gelu_of_erf(h):
    return 0.5 * h * (1 + torch.erf(h / math.sqrt(2)))


def expected_width(kind, registers):
    return D * {"cls_mean": 2, "leading_cat": 1 + registers}.get(kind, 1)
