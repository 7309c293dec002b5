"""Slow reference forms of a backbone, and helpers that build small models in float64.

The reference forms take one sample without its padding, one head and one token at a time.
"""

import dataclasses
import math

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn

from dxn.core.tokens import Span, Tokens
from dxn.models import (
    Backbone,
    BlockOptions,
    BottleneckFusion,
    EarlyFusion,
    LateFusion,
    NormOptions,
    PositionOptions,
)
from dxn.models.attention import Group

B, N, D, H, DEPTH = 3, 11, 20, 5, 4
MLPS = ("gelu", "gelu_tanh", "quick_gelu", "swiglu", "geglu", "geglu_tanh")
POOLS = (
    "mean",
    "max",
    "cls",
    "attention",
    "map",
    "first",
    "last",
    "mean_sqrt",
    "mean_linear",
    "cls_mean",
    "leading",
    "leading_cat",
)
FUSIONS = {"early": EarlyFusion, "late": LateFusion, "bottleneck": BottleneckFusion}
# No padding; padding at the end; padding at the start and in the middle.
MASK = torch.tensor(
    [[1] * 11, [1] * 7 + [0] * 4, [0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 1]], dtype=torch.bool
)

examples = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**31)
rows = st.lists(st.booleans(), min_size=N, max_size=N)
masks = st.lists(rows, min_size=2, max_size=2).map(torch.tensor)
both_norms = pytest.mark.parametrize("norm", ["layer", "rms"])
pre_and_post = pytest.mark.parametrize("pre_norm", [True, False])
each_fusion = pytest.mark.parametrize("fusion", FUSIONS)
each_pool = pytest.mark.parametrize("pool", POOLS)

# Names of the grouped options in the flat form that the tests use: group and field.
RENAMED = {
    "norm": ("norm", "kind"),
    "norm_eps": ("norm", "eps"),
    "norm_place": ("norm", "place"),
    "position": ("position", "kind"),
}
GROUPS = {"block": BlockOptions, "norm": NormOptions, "position": PositionOptions}
FIELDS = {
    field.name: (group, field.name)
    for group, options in GROUPS.items()
    for field in dataclasses.fields(options)
    if field.name not in ("kind", "eps", "place")
} | RENAMED


def backbone_of(dim, **options):
    """A backbone from flat options: backbone_of(20, depth=2, position="rotary", norm_eps=1e-6)."""
    groups = {group: {} for group in GROUPS}
    plain = {}
    for name, value in options.items():
        if name == "pre_norm":
            name, value = "norm_place", "pre" if value else "post"
        if name in FIELDS:
            group, field = FIELDS[name]
            groups[group][field] = value
        else:
            plain[name] = value
    built = {group: GROUPS[group](**values) for group, values in groups.items()}
    return Backbone(dim, **plain, **built)


def block_of(dim, *, num_heads, drop_path=0.0, **options):
    """One block from flat options."""
    # The rate of drop_path grows with the depth: only the last block has all of it.
    return backbone_of(dim, depth=2, num_heads=num_heads, drop_path=drop_path, **options).blocks[1]


def numbers(*shape):
    """Normally distributed numbers in float64."""
    return torch.randn(*shape, dtype=torch.float64)


def lively(module):
    """In float64 and with weights so large that each part shows in the output, biases included."""
    module = module.double()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return module.eval()


def make(seed=0, **options):
    """A backbone of width D from flat options, with lively weights."""
    torch.manual_seed(seed)
    return lively(backbone_of(D, **{"depth": DEPTH, "num_heads": H, **options}))


def tokens_of(x, mask=None, name="text", modality="text"):
    """Tokens of one input; by default all of them are real."""
    mask = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    coords = torch.zeros(*x.shape[:2], 2)
    return Tokens(x, mask, (Span(name, modality, 0, x.shape[1], coords),))


def assert_same(actual, expected, atol=1e-12):
    """Equal up to the rounding of float64."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def differ(first, second, by=1e-3):
    """Whether two tensors differ somewhere."""
    return float((first - second).detach().abs().max()) > by


def reference_norm(x, norm, eps=1e-5):
    """Layer norm or RMS norm by its formula."""
    if isinstance(norm, nn.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * norm.weight
    return x + norm.bias if getattr(norm, "bias", None) is not None else x


def reference_rope(x, position, theta):
    """The pairs (x[k], x[k + d/2]) as complex numbers, rotated by position / theta^(2k/d)."""
    half = len(x) // 2
    exponents = torch.arange(half, dtype=torch.float64) * 2 / len(x)
    angle = position / theta**exponents
    pairs = torch.complex(x[:half], x[half:]) * torch.complex(angle.cos(), angle.sin())
    return torch.cat([pairs.real, pairs.imag])


def reference_attention(attn, x, *, window, causal, slopes, theta):
    """Attention of one sample, one head and one query at a time."""
    n, d = len(x), D // H
    qkv = (x @ attn.qkv.weight.T + attn.qkv.bias).view(n, 3, H, d)
    out = torch.empty(n, H, d, dtype=x.dtype)
    for h in range(H):
        q, k, v = qkv[:, 0, h], qkv[:, 1, h], qkv[:, 2, h]
        if theta is not None:
            q = torch.stack([reference_rope(row, i, theta) for i, row in enumerate(q)])
            k = torch.stack([reference_rope(row, i, theta) for i, row in enumerate(k)])
        for i in range(n):
            keys = [
                j
                for j in range(n)
                if (not causal or j <= i) and (window is None or abs(i - j) <= window)
            ]
            distance = torch.tensor([abs(i - j) for j in keys])
            score = k[keys] @ q[i] / math.sqrt(d)
            if slopes is not None:
                score = score - slopes[h] * distance
            out[i, h] = score.softmax(0) @ v[keys]
    return out.reshape(n, D) @ attn.proj.weight.T + attn.proj.bias


def reference_backbone(
    backbone,
    x,
    *,
    position,
    causal,
    windows,
    rope_theta=10000.0,
    window_rope_theta=None,
    pre_norm=True,
):
    """The output of a backbone for one sample without padding (N, D)."""
    slopes = [2 ** (-8 * h / H) for h in range(1, H + 1)] if position == "alibi" else None
    for layer, block in enumerate(backbone.blocks):
        reach = windows[layer % len(windows)]
        is_local = reach is not None
        theta = window_rope_theta if is_local and window_rope_theta is not None else rope_theta
        options = {
            "window": reach,
            "causal": causal,
            "slopes": slopes,
            "theta": theta if position == "rotary" else None,
        }
        if pre_norm:
            x = x + reference_attention(block.attn, reference_norm(x, block.attn_norm), **options)
            x = x + block.mlp(reference_norm(x, block.mlp_norm))
        else:
            attended = reference_attention(block.attn, x, **options)
            x = reference_norm(x + attended, block.attn_norm)
            x = reference_norm(x + block.mlp(x), block.mlp_norm)
    return reference_norm(x, backbone.norm) if pre_norm else x


def exact_gelu(h):
    """GELU by the error function."""
    return 0.5 * h * (1 + torch.erf(h / math.sqrt(2)))


def expected_width(kind, registers):
    """The width of a pooled vector."""
    return D * {"cls_mean": 2, "leading_cat": 1 + registers}.get(kind, 1)


def whole(x, **restriction):
    """Return one group with all samples of x (B, N, D)."""
    positions = torch.arange(x.shape[1])[None]
    return Group(slice(None), slice(None), (x.shape[0], x.shape[1]), positions, **restriction)


def run_padded(module, x, *args, attn_mask=None, rope=None):
    """Apply a block or an attention to x (B, N, D), as one group."""
    group = whole(x, attn_mask=attn_mask, rope=rope)
    return module(x.flatten(0, 1), [group], *args).unflatten(0, x.shape[:2])


def lively_writer(peer):
    """Draw weights of a model of transformers that writes, so that it does not repeat one token."""
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            if parameter.ndim == 1:  # norms and biases stay near their initial values
                parameter.add_(0.1 * torch.randn_like(parameter))
            elif "embed_positions" not in name:  # constant in Marian
                std = 1 if "wpe" in name else 2 * parameter.shape[-1] ** -0.5
                parameter.normal_(std=std)
    return peer


def save_words(folder, vocab_size):
    """Save the tokenizer of the words w0, w1, ..., whose numbers are their ids."""
    words = {f"w{i}": i for i in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.save(str(folder / "tokenizer.json"))
