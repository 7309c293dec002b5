"""Pooling of one or several inputs, compared with reference forms."""

import pytest
import torch
from helpers.reference import (
    FUSIONS,
    MASK,
    B,
    D,
    N,
    assert_same,
    differ,
    each_fusion,
    each_pool,
    expected_width,
    lively,
    make,
    numbers,
    tokens_of,
)

from dxn.models import EarlyFusion, LateFusion
from dxn.models.pooling import MapOptions, Pooling


def reference_map(pool, real):
    """Attention with all values, and an MLP, of the tokens (N, D) of one sample."""
    weights, values = pool.score(real).softmax(0), pool.value(real).chunk(pool.num_heads, 1)
    x = pool.proj(torch.cat([weights[:, h] @ value for h, value in enumerate(values)]))
    return x + pool.mlp(pool.norm(x))


def reference_pooling(pool, led, part, mask):
    """Pooling of one sample: its leading tokens, its other tokens, and the mask of the latter."""
    real = part[mask]
    score = (
        (real @ pool.score.weight[0] + pool.score.bias).exp()[:, None]
        if pool.kind == "attention"
        else None
    )
    return {
        "mean": lambda: real.mean(0),
        "max": lambda: real.amax(0),
        "attention": lambda: (real * score).sum(0) / score.sum(),
        "map": lambda: reference_map(pool.map, real),
        "first": lambda: real[0],
        "last": lambda: real[-1],
        "mean_sqrt": lambda: real.sum(0) / len(real) ** 0.5,
        "mean_linear": lambda: (
            sum(i * row for i, row in enumerate(real, 1)) / sum(range(1, len(real) + 1))
        ),
        "cls": lambda: led[0],
        "cls_mean": lambda: torch.cat([led[0], real.mean(0)]),
        "leading": lambda: led.mean(0),
        "leading_cat": lambda: torch.cat(list(led)),
    }[pool.kind]()


@each_pool
@pytest.mark.parametrize("registers", [0, 1, 3])
def test_pooling_equals_its_reference_form_with_any_number_of_registers(pool, registers):
    pooling, part = (
        lively(Pooling(pool, D, registers=registers)),
        tokens_of(numbers(B, N, D) - 2, MASK),
    )
    led = pooling.lead(part)
    k = led.x.shape[1] - N
    assert k == registers + (pool in ("cls", "cls_mean", "leading", "leading_cat"))
    x = numbers(B, k + N, D) - 2  # mostly negative: zeros at padding would be the maximum
    expected = torch.stack(
        [reference_pooling(pooling, x[i, :k], x[i, k:], MASK[i]) for i in range(B)]
    )
    assert pooling.width == expected.shape[1] == expected_width(pool, registers)
    assert_same(
        pooling(x, led.mask), expected, atol=1e-6 if pool == "attention" else 1e-12
    )  # its softmax is in float32
    # Padding has no effect, and registers only if they are pooled.
    changed = torch.where(led.mask[..., None], x, 1000.0)
    if pool not in ("leading", "leading_cat"):
        changed[:, int(pool in ("cls", "cls_mean")) : k] = 1000.0
    assert_same(pooling(changed, led.mask), pooling(x, led.mask))


@pytest.mark.parametrize(
    ("pool", "count"), [("mean", 3), ("first", 3), ("cls", 4), ("leading_cat", 4)]
)
def test_registers_are_the_first_columns_and_belong_to_no_input(pool, count):
    mask = MASK.clone()
    mask[1] = False
    pooling, part = lively(Pooling(pool, D, registers=3)), tokens_of(numbers(B, N, D), mask)
    led = pooling.lead(part)
    assert [(s.modality, s.start, s.stop) for s in led.spans] == [
        ("class", 0, count),
        ("text", count, count + N),
    ]
    assert torch.equal(led.x[:, :count], pooling.tokens.expand(B, count, D)) and torch.equal(
        led.x[:, count:], part.x
    )
    assert len(pooling.tokens.unique(dim=0)) == count
    assert led.mask[:, :count].tolist() == [[True] * count, [False] * count, [True] * count]
    assert torch.equal(led.mask[:, count:], mask) and bool(led.spans[0].coords.isnan().all())


@each_pool
@pytest.mark.parametrize("registers", [0, 2])
def test_a_sample_without_a_real_token_pools_to_finite_numbers(pool, registers):
    mask = MASK.clone()
    mask[1] = False
    pooling = lively(Pooling(pool, D, registers=registers))
    led = pooling.lead(tokens_of(numbers(B, N, D), mask))
    x = led.x.detach().requires_grad_()
    out = pooling(x, led.mask)
    assert out.shape == (B, pooling.width)
    out.sum().backward()
    assert bool(out.isfinite().all()) and bool(x.grad.isfinite().all())


def test_other_tokens_attend_to_the_registers():
    fuse, backbone, part = (
        lively(EarlyFusion(D, registers=2)),
        make(),
        tokens_of(numbers(B, N, D), MASK),
    )
    encoded, before = fuse([part], backbone)
    assert encoded.select("text").x.shape == (B, N, D)
    with torch.no_grad():
        fuse.pool.tokens[1] = numbers(D)
    assert differ(fuse([part], backbone)[1], before)


@pytest.mark.parametrize("build", [Pooling, *FUSIONS.values()])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"kind": "median"},
            "one of 'mean', 'max', .* got 'median'",
        ),
        ({"kind": ["mean", "cls"]}, "one of 'mean', 'max', .* got"),
        ({"kind": []}, "one of 'mean', 'max', .* got"),
        ({"kind": "mean", "registers": -1}, "registers must be at least 0, got -1"),
        ({"kind": "cls", "registers": -1}, "registers must be at least 0, got -1"),
    ],
)
def test_invalid_options_raise_a_clear_error(build, options, message):
    kind = {"kind" if build is Pooling else "pool": options["kind"]}
    with pytest.raises(ValueError, match=message):
        build(dim=D, **kind, **{k: v for k, v in options.items() if k != "kind"})


# Fusions


def two_parts():
    """Text and image per sample, but no image in the second and no text in the third sample."""
    text, image = MASK.clone(), MASK[:, 2:7].clone()
    image[1], text[2] = False, False
    return [tokens_of(numbers(B, N, D), text), tokens_of(numbers(B, 5, D), image, "image", "image")]


@each_fusion
@each_pool
@pytest.mark.parametrize(("names", "registers"), [(["text"], 0), (["text", "image"], 2)])
def test_the_width_of_a_fusion_is_that_of_its_vectors(fusion, pool, names, registers):
    fuse = lively(FUSIONS[fusion](D, inputs=names, pool=pool, registers=registers))
    parts = two_parts() if len(names) == 2 else [tokens_of(numbers(B, N, D), MASK)]
    encoded, vector = fuse(parts, make(depth=2, windows=[None, 2]))
    assert vector.shape == (B, fuse.width) and bool(vector.isfinite().all())
    # Late fusion maps all inputs to the width D before it averages them.
    mixed = fusion == "late" and len(names) == 2
    assert fuse.width == (D if mixed else expected_width(pool, registers))
    assert encoded.x.shape[2] == D


@each_fusion
@each_pool
def test_a_sample_in_a_batch_gives_the_same_vector_as_alone_without_padding(fusion, pool):
    fuse = lively(FUSIONS[fusion](D, inputs=["text", "image"], pool=pool, registers=2))
    backbone = make(depth=3, position="rotary", windows=[None, 2], qk_norm=True)
    parts = two_parts()
    _, batched = fuse(parts, backbone)
    for i in range(B):
        own = [
            tokens_of(p.x[i : i + 1, p.mask[i]], None, p.spans[0].name, p.spans[0].modality)
            for p in parts
            if p.mask[i].any()
        ]
        # The softmax of attention pooling is in float32.
        atol = 1e-6 if pool == "attention" else 1e-10
        assert_same(fuse(own, backbone)[1][0], batched[i], atol=atol)


@pytest.mark.parametrize("pool", ["cls_mean", "leading_cat"])
def test_late_fusion_averages_a_linear_map_of_each_input_that_is_present(pool):
    fuse = lively(LateFusion(D, inputs=["text", "image"], pool=pool, registers=1))
    backbone, parts = make(), two_parts()
    _, vectors = fuse(parts, backbone)
    for i in range(B):
        mixed = []
        for k, part in enumerate(parts):
            real = part.x[i, part.mask[i]]
            if not len(real):
                continue
            x = torch.cat([fuse.pool.tokens, real + fuse.input_embedding.weight[k]])[None]
            x = backbone.norm(backbone.run(x, torch.ones(x.shape[:2], dtype=torch.bool)))[0]
            wide = torch.cat([x[0], x[2:].mean(0) if pool == "cls_mean" else x[1]])
            mixed.append(fuse.mix[k](wide))
        assert_same(vectors[i], torch.stack(mixed).mean(0))


def test_the_width_must_be_a_multiple_of_the_heads_of_the_pooling():
    with pytest.raises(ValueError, match=r"dim must be a multiple of map.num_heads, got 12 and 5"):
        Pooling("map", 12, map=MapOptions(num_heads=5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_pooling_by_attention_works_in_16_bits(dtype):
    pooling = Pooling("map", D).to(dtype)
    mask = MASK.clone()
    mask[1] = False
    out = pooling(torch.randn(B, N, D).to(dtype), mask)
    assert out.dtype == dtype and bool(out.isfinite().all())
