"""The options that public models need, each against a slow form that is written out here."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dxn.models import (
    Attention,
    Backbone,
    Block,
    BottleneckFusion,
    Classify,
    EarlyFusion,
    Embed,
    LateFusion,
    Mlp,
    Multilabel,
    Regress,
)
from dxn.models.attention import alibi_slopes, attention_bias, rotation_angles
from dxn.models.blocks import LayerScale, make_norm
from dxn.models.fusion import Pooling
from dxn.models.heads import Neck, default_head
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


# The slow forms: one sample without its padding, one head and one token at a time.


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


# Windows


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


# Inside a block


@both_norms
@pytest.mark.parametrize("rotary", [False, True])
def test_qk_norm_norms_each_heads_queries_and_keys_before_they_are_rotated(norm, rotary):
    eps, d = 0.05, D // H
    block = lively(Block(D, num_heads=H, norm=norm, norm_eps=eps, qk_norm=True))
    attn, x, mask = block.attn, numbers(B, N, D), torch.ones(B, N, dtype=torch.bool)
    q, k, v = (x @ attn.qkv.weight.T + attn.qkv.bias).view(B, N, 3, H, d).permute(2, 0, 3, 1, 4)
    q, k = norm_by_hand(q, attn.q_norm, eps), norm_by_hand(k, attn.k_norm, eps)
    if rotary:
        for heads in (q, k):
            for b, h, at in itertools.product(range(B), range(H), range(N)):
                heads[b, h, at] = turned(heads[b, h, at], at, 10000.0)
    out = (q @ k.transpose(-2, -1) / math.sqrt(d)).softmax(-1) @ v
    expected = out.transpose(1, 2).reshape(B, N, D) @ attn.proj.weight.T + attn.proj.bias
    rotation = rotation_angles(mask, d) if rotary else None
    assert_same(attn(x, rotation=rotation), expected, atol=1e-6 if rotary else 1e-12)


def test_norms_of_queries_and_keys_are_as_wide_as_a_head_and_absent_unless_asked_for():
    for block in make(qk_norm=True).blocks:
        assert block.attn.q_norm.weight.shape == block.attn.k_norm.weight.shape == (D // H,)
        assert block.attn.q_norm is not block.attn.k_norm
    assert not [name for name, _ in make().named_parameters() if "q_norm" in name or "k_norm" in name]


def test_qk_norm_makes_the_scale_of_queries_and_keys_irrelevant():
    attention = Attention(D, num_heads=H, norm=lambda d: make_norm("rms", d, eps=0.0)).double()
    x = numbers(B, N, D)
    before = attention(x)
    with torch.no_grad():
        attention.qkv.weight[: 2 * D] *= 3
        attention.qkv.bias[: 2 * D] *= 3
    assert_same(attention(x), before)


@both_norms
def test_qk_norm_takes_bf16_under_autocast_without_a_warning(norm):
    backbone = Backbone(D, depth=DEPTH, num_heads=H, norm=norm, qk_norm=True, position="rotary", window=2)
    x = torch.randn(B, N, D)
    expected = backbone(tokens_of(x, MASK)).x
    torch.set_warn_always(True)  # else only the process' first would show
    try:
        with torch.autocast("cpu", torch.bfloat16):
            got = backbone(tokens_of(x, MASK)).x
    finally:
        torch.set_warn_always(False)
    torch.testing.assert_close(got.float()[MASK], expected[MASK], rtol=0.05, atol=0.1)


@pre_and_post
def test_layer_scale_multiplies_each_feature_of_each_branch_before_the_sum(norm_first):
    block, x = lively(Block(D, num_heads=H, norm_first=norm_first, layer_scale=0.5)), numbers(B, N, D)
    of_attn, of_mlp = block.attn_scale.factor, block.mlp_scale.factor
    assert len(of_attn.unique()) == len(of_mlp.unique()) == D  # a feature each
    if norm_first:
        middle = x + of_attn * block.attn(block.attn_norm(x))
        expected = middle + of_mlp * block.mlp(block.mlp_norm(middle))
    else:
        middle = block.attn_norm(x + of_attn * block.attn(x))
        expected = block.mlp_norm(middle + of_mlp * block.mlp(middle))
    assert_same(block(x), expected)


@pytest.mark.parametrize("initial", [1e-5, 0.1, 0.0, 1])
def test_layer_scale_starts_at_the_given_value_in_every_block(initial):
    scales = [m for m in Backbone(D, depth=3, num_heads=H, layer_scale=initial).modules() if isinstance(m, LayerScale)]
    assert len(scales) == 6
    for scale in scales:
        assert scale.factor.requires_grad and torch.equal(scale.factor, torch.full((D,), float(initial)))


def test_with_a_layer_scale_of_zero_nothing_but_the_last_norm_is_left():
    backbone, x = Backbone(D, num_heads=H, layer_scale=0.0).double(), numbers(B, N, D)
    assert torch.equal(backbone.run(x, MASK), x)
    assert torch.equal(backbone(tokens_of(x, MASK)).x, backbone.norm(x))


def test_there_is_no_layer_scale_unless_asked_for():
    assert not any(isinstance(m, LayerScale) for m in make().modules())


@both_norms
@pre_and_post
@pytest.mark.parametrize("mlp", MLPS)
def test_without_bias_no_parameter_of_the_backbone_is_one(norm, norm_first, mlp):
    options = {"norm": norm, "norm_first": norm_first, "mlp": mlp, "qk_norm": True, "layer_scale": 0.1}
    names = {bias: [name for name, _ in make(bias=bias, **options).named_parameters()] for bias in (True, False)}
    # Rms norm never has one; layer norm: two a block, those of queries and keys, and the last.
    norms = 0 if norm == "rms" else 4 * DEPTH + norm_first
    assert sum(name.endswith("bias") for name in names[True]) == 4 * DEPTH + norms
    assert not [name for name in names[False] if "bias" in name]
    assert [name for name in names[True] if not name.endswith("bias")] == names[False]


@both_norms
@pytest.mark.parametrize("eps", [1e-12, 1e-6, 0.5])
def test_norm_eps_is_added_to_the_variance(norm, eps):
    # Numbers as small as the smallest of the epsilons' roots: each of them shows.
    made, x = lively(make_norm(norm, D, eps=eps)), numbers(B, N, D) * 1e-4
    assert_same(made(x), norm_by_hand(x, made, eps), atol=1e-10)


@both_norms
@pre_and_post
def test_norm_eps_reaches_every_norm(norm, norm_first):
    backbone = make(norm=norm, norm_first=norm_first, norm_eps=0.25, qk_norm=True)
    found = [m.eps for m in backbone.modules() if isinstance(m, (nn.LayerNorm, nn.RMSNorm))]
    assert found == [0.25] * (4 * DEPTH + norm_first)


def test_without_its_first_norm_the_first_block_attends_to_the_tokens_as_they_come():
    backbone, x = make(first_norm=False), numbers(B, N, D)
    first = backbone.blocks[0]
    middle = x + first.attn(x)
    expected = middle + first.mlp(first.mlp_norm(middle))
    for block in backbone.blocks[1:]:
        expected = expected + block.attn(block.attn_norm(expected))
        expected = expected + block.mlp(block.mlp_norm(expected))
    assert_same(backbone(tokens_of(x)).x, backbone.norm(expected))
    assert all(isinstance(block.attn_norm, nn.LayerNorm) for block in backbone.blocks[1:])
    assert not [name for name, _ in backbone.named_parameters() if name.startswith("blocks.0.attn_norm")]


def test_without_its_final_norm_the_backbone_ends_with_the_last_block():
    backbone, x = make(final_norm=False), numbers(B, N, D)
    assert torch.equal(backbone(tokens_of(x, MASK)).x, backbone.run(x, MASK))
    assert not [name for name, _ in backbone.named_parameters() if name.startswith("norm")]
    assert differ(make()(tokens_of(x, MASK)).x, backbone(tokens_of(x, MASK)).x)


def test_post_norm_keeps_all_its_norms_without_the_first_and_the_final_one():
    x = tokens_of(numbers(B, N, D), MASK)
    plain = make(norm_first=False)(x).x
    assert torch.equal(make(norm_first=False, first_norm=False, final_norm=False)(x).x, plain)


def gelu_of_tanh(h):
    return 0.5 * h * (1 + (math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)).tanh())


def gelu_of_erf(h):
    return 0.5 * h * (1 + torch.erf(h / math.sqrt(2)))


@pytest.mark.parametrize(
    ("mlp", "act"), [("gelu_tanh", gelu_of_tanh), ("quick_gelu", lambda h: h / (1 + (-1.702 * h).exp()))]
)
def test_an_approximated_gelu_is_its_formula(mlp, act):
    made, x = lively(Mlp(D, mlp_ratio=1.65, mlp=mlp)), numbers(B, N, D)
    assert made.up.out_features == made.down.in_features == 33
    h = x @ made.up.weight.T + made.up.bias
    assert_same(made(x), act(h) @ made.down.weight.T + made.down.bias)
    assert differ(act(h), gelu_of_erf(h), by=1e-4)  # and is not the exact one


def test_geglu_is_its_formula():
    made, x = lively(Mlp(D, mlp_ratio=1.725, mlp="geglu")), numbers(B, N, D)
    assert (made.up.out_features, made.down.in_features) == (46, 23)  # two thirds of 34.5, and twice that
    value, gate = (x @ made.up.weight.T + made.up.bias).split(23, -1)
    assert_same(made(x), (value * gelu_of_erf(gate)) @ made.down.weight.T + made.down.bias)


@pytest.mark.parametrize("mlp", MLPS)
def test_the_backbone_hands_its_mlp_to_every_block(mlp):
    backbone, x = make(mlp=mlp), numbers(B, N, D)
    made = lively(Mlp(D, mlp=mlp))
    for block in backbone.blocks:
        made.load_state_dict(block.mlp.state_dict())
        assert torch.equal(block.mlp(x), made(x))


@settings(max_examples=40, deadline=None)
@given(hidden=st.integers(1, 257), dim=st.integers(1, 257), mlp=st.sampled_from(MLPS))
def test_a_ratio_worked_out_from_a_width_gives_that_width_back(hidden, dim, mlp):
    ratio = hidden / dim * (1.5 if mlp in ("swiglu", "geglu") else 1)
    with torch.device("meta"):
        assert Mlp(dim, mlp_ratio=ratio, mlp=mlp).down.in_features == hidden


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window and global_every must be at least 1, got 0 and None"),
        ({"window": -2, "global_every": 3}, "window and global_every must be at least 1, got -2 and 3"),
        ({"window": 5, "global_every": 0}, "window and global_every must be at least 1, got 5 and 0"),
        ({"mlp": "gelu_quick"}, "mlp must be one of gelu, gelu_tanh, quick_gelu, swiglu, geglu, got 'gelu_quick'"),
        ({"norm": "group", "qk_norm": True}, "norm must be layer or rms, got 'group'"),
    ],
)
def test_what_a_backbone_cannot_be_says_why(options, message):
    with pytest.raises(ValueError, match=message):
        Backbone(D, depth=DEPTH, num_heads=H, **options)


# Pooling


def pooled_by_hand(pool, led, part, mask):
    """Of one sample: its leading tokens (the class token first), its other tokens and which of those are real."""
    real = part[mask]
    score = (real @ pool.score.weight[0] + pool.score.bias).exp()[:, None] if pool.kind == "attention" else None
    return {
        "mean": lambda: real.mean(0),
        "max": lambda: real.amax(0),
        "attention": lambda: (real * score).sum(0) / score.sum(),
        "first": lambda: real[0],
        "last": lambda: real[-1],
        "cls": lambda: led[0],
        "cls_mean": lambda: torch.cat([led[0], real.mean(0)]),
        "leading": lambda: led.mean(0),
        "leading_cat": lambda: torch.cat(list(led)),
    }[pool.kind]()


def expected_width(kind, registers):
    return D * {"cls_mean": 2, "leading_cat": 1 + registers}.get(kind, 1)


@each_pool
@pytest.mark.parametrize("registers", [0, 1, 3])
def test_pooling_is_its_written_out_form_whatever_its_leading_tokens(pool, registers):
    made, part = lively(Pooling(pool, D, registers=registers)), tokens_of(numbers(B, N, D) - 2, MASK)
    led = made.lead(part)
    k = led.x.shape[1] - N
    assert k == registers + (pool in ("cls", "cls_mean", "leading", "leading_cat"))
    x = numbers(B, k + N, D) - 2  # mostly negative: a padding of zeros would win a maximum
    expected = torch.stack([pooled_by_hand(made, x[i, :k], x[i, k:], MASK[i]) for i in range(B)])
    assert made.width == expected.shape[1] == expected_width(pool, registers)
    assert_same(made(x, led.mask), expected, atol=1e-6 if pool == "attention" else 1e-12)  # its softmax is float32
    # Neither padding nor, where they are not what is pooled, registers count.
    changed = torch.where(led.mask[..., None], x, 1000.0)
    if pool not in ("leading", "leading_cat"):
        changed[:, int(pool in ("cls", "cls_mean")) : k] = 1000.0
    assert_same(made(changed, led.mask), made(x, led.mask))


@pytest.mark.parametrize(("pool", "count"), [("mean", 3), ("first", 3), ("cls", 4), ("leading_cat", 4)])
def test_registers_lead_as_columns_of_their_own(pool, count):
    mask = MASK.clone()
    mask[1] = False
    made, part = lively(Pooling(pool, D, registers=3)), tokens_of(numbers(B, N, D), mask)
    led = made.lead(part)
    assert [(s.modality, s.start, s.stop) for s in led.spans] == [("class", 0, count), ("text", count, count + N)]
    assert torch.equal(led.x[:, :count], made.tokens.expand(B, count, D)) and torch.equal(led.x[:, count:], part.x)
    assert len(made.tokens.unique(dim=0)) == count
    assert led.mask[:, :count].tolist() == [[True] * count, [False] * count, [True] * count]
    assert torch.equal(led.mask[:, count:], mask) and bool(led.spans[0].places.isnan().all())


@each_pool
@pytest.mark.parametrize("registers", [0, 2])
def test_a_sample_without_a_real_token_pools_to_finite_numbers(pool, registers):
    mask = MASK.clone()
    mask[1] = False
    made = lively(Pooling(pool, D, registers=registers))
    led = made.lead(tokens_of(numbers(B, N, D), mask))
    x = led.x.detach().requires_grad_()
    out = made(x, led.mask)
    assert out.shape == (B, made.width)
    out.sum().backward()
    assert bool(out.isfinite().all()) and bool(x.grad.isfinite().all())


def test_other_tokens_read_the_registers():
    fuse, backbone, part = lively(EarlyFusion(D, registers=2)), make(), tokens_of(numbers(B, N, D), MASK)
    encoded, before = fuse([part], backbone)
    assert encoded.select("text").x.shape == (B, N, D)
    with torch.no_grad():
        fuse.pool.tokens[1] = numbers(D)
    assert differ(fuse([part], backbone)[1], before)


@pytest.mark.parametrize("build", [Pooling, *FUSIONS.values()])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "median"}, "pool must be one of mean, max, cls, attention, first, last, .*, got 'median'"),
        ({"kind": "mean", "registers": -1}, "registers must be at least 0, got -1"),
        ({"kind": "cls", "registers": -1}, "registers must be at least 0, got -1"),
    ],
)
def test_what_cannot_be_pooled_says_why(build, options, message):
    kind = {"kind" if build is Pooling else "pool": options["kind"]}
    with pytest.raises(ValueError, match=message):
        build(dim=D, **kind, **{k: v for k, v in options.items() if k != "kind"})


# Fusions


def two_parts():
    """A text and an image a sample, but no image in the second and no text in the third."""
    text, image = MASK.clone(), MASK[:, 2:7].clone()
    image[1], text[2] = False, False
    return [tokens_of(numbers(B, N, D), text), tokens_of(numbers(B, 5, D), image, "image")]


@each_fusion
@each_pool
@pytest.mark.parametrize("names", [["text"], ["text", "image"]])
@pytest.mark.parametrize("registers", [0, 2])
def test_a_fusions_width_is_that_of_the_vectors_it_gives(fusion, pool, names, registers):
    fuse = lively(FUSIONS[fusion](D, modalities=names, pool=pool, registers=registers))
    parts = two_parts() if len(names) == 2 else [tokens_of(numbers(B, N, D), MASK)]
    encoded, vector = fuse(parts, make(depth=2, window=2, global_every=2))
    assert vector.shape == (B, fuse.width) and bool(vector.isfinite().all())
    # Late fusion brings what differs in kind to one width before it averages.
    mixed = fusion == "late" and len(names) == 2
    assert fuse.width == (D if mixed else expected_width(pool, registers))
    assert encoded.x.shape[2] == D


@each_fusion
@each_pool
def test_each_sample_is_fused_as_if_it_were_alone_and_without_padding(fusion, pool):
    fuse = lively(FUSIONS[fusion](D, modalities=["text", "image"], pool=pool, registers=2))
    backbone = make(depth=3, position="rotary", window=2, global_every=2, qk_norm=True)
    parts = two_parts()
    _, batched = fuse(parts, backbone)
    for i in range(B):
        own = [tokens_of(p.x[i : i + 1, p.mask[i]], None, p.spans[0].modality) for p in parts if p.mask[i].any()]
        assert_same(fuse(own, backbone)[1][0], batched[i], atol=1e-10)


@pytest.mark.parametrize("pool", ["cls_mean", "leading_cat"])
def test_late_fusion_mixes_each_modalitys_wider_vector_and_averages_what_is_there(pool):
    fuse = lively(LateFusion(D, modalities=["text", "image"], pool=pool, registers=1))
    backbone, parts = make(), two_parts()
    _, vectors = fuse(parts, backbone)
    for i in range(B):
        mixed = []
        for part in parts:
            name, real = part.spans[0].modality, part.x[i, part.mask[i]]
            if not len(real):
                continue
            x = torch.cat([fuse.pool.tokens, real + fuse.embedding.vectors[name]])[None]
            x = backbone.norm(backbone.run(x, torch.ones(x.shape[:2], dtype=torch.bool)))[0]
            wide = torch.cat([x[0], x[2:].mean(0) if pool == "cls_mean" else x[1]])
            mixed.append(fuse.mix[name].weight @ wide + fuse.mix[name].bias)
        assert_same(vectors[i], torch.stack(mixed).mean(0))


# Necks and heads

HIDDEN = {
    "linear": lambda h: h,
    "tanh": lambda h: 1 - 2 / (1 + (2 * h).exp()),
    "relu": lambda h: h.clamp(min=0),
    "gelu": gelu_of_erf,
}


def neck_by_hand(neck, pooled, *, hidden, norm, eps):
    if hidden != "none":
        pooled = HIDDEN[hidden](pooled @ neck.dense.weight.T + neck.dense.bias)
    return norm_by_hand(pooled, neck.norm, eps) if norm else pooled


@pytest.mark.parametrize("hidden", ["none", *HIDDEN])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    "build",
    [
        lambda **options: Classify(D, num_classes=7, **options),
        lambda **options: Multilabel(D, num_classes=7, **options),
        lambda **options: Regress(D, **options),
        lambda **options: Embed(D, **options),
        lambda **options: default_head(D, kind="class", num_classes=7, **options),
        lambda **options: default_head(D, kind="number", **options),
    ],
)
def test_a_heads_hidden_layer_and_norm_are_their_formulas(build, hidden, norm):
    options = {"hidden": hidden, "norm": norm, "norm_eps": 0.3}
    head, pooled = lively(build(**options)), numbers(B, D)
    out = neck_by_hand(head.neck, pooled, hidden=hidden, norm=norm, eps=0.3)
    if not isinstance(head, Embed):
        out = out @ head.out.weight.T + head.out.bias
    assert_same(head(None, pooled), out.squeeze(-1) if isinstance(head, Regress) else out)
    parts = {name.split(".")[1] for name, _ in head.named_parameters() if name.startswith("neck")}
    assert parts == ({"dense"} if hidden != "none" else set()) | ({"norm"} if norm else set())


@pytest.mark.parametrize(
    ("options", "width"),
    [
        ({}, D),
        ({"hidden_dim": 7}, D),  # no layer, so nothing that could have another width
        ({"hidden": "tanh"}, D),
        ({"hidden": "linear", "hidden_dim": 7}, 7),
        ({"hidden": "gelu", "hidden_dim": 29}, 29),
    ],
)
@pytest.mark.parametrize("norm", [False, True])
def test_a_neck_and_the_head_that_is_one_are_as_wide_as_they_say(options, width, norm):
    neck, head, pooled = Neck(D, norm=norm, **options), Embed(D, norm=norm, **options), torch.randn(B, D)
    assert neck.width == head.neck.width == width
    assert neck(pooled).shape == head(None, pooled).shape == (B, width)


def test_embed_alone_gives_the_pooled_vector_as_it_is():
    pooled, head = numbers(B, D), Embed(D)
    assert torch.equal(head.train()(None, pooled), pooled)
    assert not list(head.parameters())


def test_a_necks_dropout_comes_last_and_in_training_alone():
    neck, pooled = lively(Neck(D, hidden="tanh", norm=True, dropout=0.5)), numbers(101, D)
    whole = neck(pooled)
    dropped = neck.train()(pooled)
    kept = dropped != 0
    assert float(kept.double().mean()) == pytest.approx(0.5, abs=0.05)
    assert_same(dropped[kept], 2 * whole[kept])


def test_default_head_leaves_hidden_and_norm_from_tags():
    head = default_head(D, kind="tags", num_classes=7, hidden="tanh", norm=True, norm_eps=0.3, dropout=0.5)
    assert [name for name, _ in head.named_parameters()] == ["out.weight", "out.bias"]
    assert head.neck.dropout.p == 0.5


@pytest.mark.parametrize("build", [Neck, Regress, Embed])
def test_a_hidden_layer_that_is_not_known_is_named(build):
    with pytest.raises(ValueError, match="hidden must be none or one of linear, tanh, relu, gelu, got 'sigmoid'"):
        build(D, hidden="sigmoid")
