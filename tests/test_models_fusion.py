"""Fusion: pooling written out, and who may see whom."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.models import Backbone, BottleneckFusion, EarlyFusion, LateFusion
from dxn.models.fusion import ModalityEmbedding, Pooling
from dxn.tokens import Span, Tokens

D, H, DEPTH = 10, 5, 3
WIDTHS = {"text": 7, "image": 3, "audio": 2}
NAMES = tuple(WIDTHS)
POOLS = ("mean", "max", "cls", "attention")
FUSIONS = {"early": EarlyFusion, "late": LateFusion, "bottleneck": BottleneckFusion}

each_fusion = pytest.mark.parametrize("fusion", FUSIONS)
each_pool = pytest.mark.parametrize("pool", POOLS)


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def lively(module):
    """In float64 and with weights large enough that each part shows in the output."""
    module = module.double().eval()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return module


def part_of(modality, lengths, width=None):
    """Random Tokens of one modality; a length of 0 is a sample that does not have it."""
    n = WIDTHS[modality] if width is None else width
    mask = torch.arange(n) < torch.tensor(lengths)[:, None]
    places = torch.zeros(len(lengths), n, 2)
    return Tokens(numbers(len(lengths), n, D), mask, (Span(modality, 0, n, places),))


def build(fusion, pool="mean", names=NAMES, position="none", **options):
    return (
        lively(FUSIONS[fusion](D, modalities=names, pool=pool, **options)),
        lively(Backbone(D, depth=DEPTH, num_heads=H, position=position)),
    )


def alone(part, i):
    """Sample i's part as a batch of one without padding, or None where it does not have the modality."""
    n = int(part.mask[i].sum())
    modality = part.spans[0].modality
    return (
        Tokens(part.x[i : i + 1, :n], part.mask[i : i + 1, :n], (Span(modality, 0, n, torch.zeros(1, n, 2)),))
        if n
        else None
    )


def assert_same(got, expected, atol=1e-12):
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


# Pooling


MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.bool)


def pooled_by_hand(pool, x, mask):
    vectors = []
    for tokens, real in zip(x, mask, strict=True):
        tokens = tokens[real]
        if pool.kind == "mean":
            vectors.append(tokens.mean(0))
        elif pool.kind == "max":
            vectors.append(tokens.max(0).values)
        else:
            weight = (tokens @ pool.score.weight[0] + pool.score.bias).exp()
            vectors.append((tokens * weight[:, None]).sum(0) / weight.sum())
    return torch.stack(vectors)


@pytest.mark.parametrize(("kind", "atol"), [("mean", 1e-12), ("max", 0), ("attention", 1e-6)])  # softmax in float32
def test_pooling_equals_the_written_out_form_over_each_samples_real_tokens(kind, atol):
    pool, x = lively(Pooling(kind, D)), numbers(3, 5, D) - 2  # mostly negative: a padding of zeros would win a max
    assert_same(pool(x, MASK), pooled_by_hand(pool, x, MASK), atol=atol)
    changed = torch.where(MASK[..., None], x, 1000.0)
    assert_same(pool(changed, MASK), pool(x, MASK))


@pytest.mark.parametrize("kind", ["mean", "max", "attention"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_sample_without_a_real_token_pools_to_zero(kind, dtype):
    pool, x = Pooling(kind, D).to(dtype), torch.randn(2, 5, D).to(dtype).requires_grad_()
    mask = torch.tensor([[False] * 5, [True, True, False, False, False]])
    out = pool(x, mask)
    assert torch.equal(out[0], torch.zeros(D, dtype=dtype)) and bool(out[1].any())
    out.sum().backward()
    assert bool(torch.isfinite(x.grad).all()) and not x.grad[0].any()


def test_attention_pooling_with_equal_scores_is_the_mean():
    pool, x = Pooling("attention", D).double(), numbers(3, 5, D)
    torch.nn.init.zeros_(pool.score.weight)
    assert_same(pool(x, MASK), Pooling("mean", D)(x, MASK), atol=1e-6)


def test_the_class_token_leads_and_is_what_is_pooled():
    pool, part = lively(Pooling("cls", D)), part_of("text", [7, 0, 5])
    led = pool.lead(part)
    assert [s.modality for s in led.spans] == ["class", "text"]
    assert torch.equal(led.x[:, 0], pool.tokens[0].expand(3, D)) and torch.equal(led.x[:, 1:], part.x)
    assert led.mask[:, 0].tolist() == [True, False, True]  # it is no token where there is nothing to lead
    assert bool(led.spans[0].places.isnan().all())
    assert torch.equal(pool(led.x, led.mask), led.x[:, 0])


@pytest.mark.parametrize("kind", ["mean", "max", "attention"])
def test_only_cls_adds_a_column(kind):
    part = part_of("text", [7, 3])
    assert Pooling(kind, D).lead(part) is part


# Every fusion


@each_fusion
@each_pool
@pytest.mark.parametrize("position", ["none", "rotary", "alibi"])
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_a_sample_without_a_modality_equals_itself_without_those_columns(fusion, pool, position, data):
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    fuse, backbone = build(fusion, pool, position=position)
    present = st.tuples(*(st.integers(0, n) for n in WIDTHS.values())).filter(any)
    lengths = data.draw(st.lists(present, min_size=3, max_size=3))
    parts = [part_of(name, of_modality) for name, of_modality in zip(NAMES, zip(*lengths, strict=True), strict=True)]
    _, batched = fuse(parts, backbone)
    for i in range(3):
        own = [a for part in parts if (a := alone(part, i)) is not None]
        encoded, vector = fuse(own, backbone)
        # Attention pooling softmaxes in float32.
        assert_same(batched[i], vector[0], atol=1e-6 if pool == "attention" else 1e-12)
        assert {s.modality for s in encoded.spans} - {"class"} == {a.spans[0].modality for a in own}


@each_fusion
def test_the_encoded_columns_are_those_of_a_sample_alone_too(fusion):
    fuse, backbone = build(fusion, position="rotary")
    parts = [part_of("text", [7, 0, 5]), part_of("image", [0, 3, 2])]
    encoded, _ = fuse(parts, backbone)
    for name, part in zip(("text", "image"), parts, strict=True):
        for i in range(3):
            own = [a for p in parts if (a := alone(p, i)) is not None]
            if part.mask[i].any():
                expected = fuse(own, backbone)[0].select(name).x[0]
                assert_same(encoded.select(name).x[i][part.mask[i]], expected)


@each_fusion
@each_pool
def test_samples_of_one_batch_never_see_each_other(fusion, pool):
    fuse, backbone = build(fusion, pool)
    parts = [part_of("text", [7, 3, 5]), part_of("image", [3, 2, 0])]
    others = [part_of("text", [7, 3, 5]), part_of("image", [3, 2, 0])]
    for part, other in zip(parts, others, strict=True):
        other.x[1] = part.x[1]
    assert_same(fuse(others, backbone)[1][1], fuse(parts, backbone)[1][1])


@each_fusion
@each_pool
def test_every_real_column_has_a_say_in_the_vector_and_padding_has_none(fusion, pool):
    fuse, backbone = build(fusion, pool)
    parts = [part_of("text", [7, 0]), part_of("image", [2, 3])]
    for part in parts:
        part.x.requires_grad_()
    (fuse(parts, backbone)[1] * numbers(2, D)).sum().backward()
    for part in parts:
        felt = part.x.grad.abs().sum(-1) > 1e-9
        assert torch.equal(felt, part.mask)


@each_fusion
def test_a_sample_with_no_columns_at_all_is_named(fusion):
    fuse, backbone = build(fusion)
    parts = [part_of("text", [7, 0, 5, 0]), part_of("image", [3, 0, 0, 0])]
    with pytest.raises(ValueError, match=r"no tokens at all in sample 1, 3$"):
        fuse(parts, backbone)


@each_fusion
def test_the_spans_stand_in_the_parts_order_with_class_tokens_before_what_they_lead(fusion):
    fuse, backbone = build(fusion, "cls")
    encoded, _ = fuse([part_of("image", [3, 2]), part_of("text", [7, 5])], backbone)
    expected = ["class", "image", "text"] if fusion == "early" else ["class", "image", "class", "text"]
    assert [s.modality for s in encoded.spans] == expected


@each_fusion
@each_pool
def test_every_fusion_of_one_modality_learns_with_every_weight(fusion, pool):
    fuse, backbone = build(fusion, pool, names=("text",))
    (fuse([part_of("text", [7, 3])], backbone)[1] * numbers(2, D)).sum().backward()
    unused = {n for n, p in fuse.named_parameters() if p.grad is None}
    assert unused == ({"mix.text.weight", "mix.text.bias"} if fusion == "late" else set())


# Early, late, bottleneck: who sees whom


def influence(fuse, backbone, column_of="text", on="image"):
    """The largest gradient of the encoded columns of one modality with respect to another's columns."""
    parts = {"text": part_of("text", [7, 5]), "image": part_of("image", [3, 2])}
    source = parts[on].x.requires_grad_()
    encoded = fuse(list(parts.values()), backbone)[0].select(column_of)
    (grad,) = torch.autograd.grad((encoded.x * numbers(*encoded.x.shape)).sum(), source, allow_unused=True)
    return 0.0 if grad is None else float(grad.abs().max())


@pytest.mark.parametrize(("fusion", "sees"), [("early", True), ("late", False), ("bottleneck", True)])
@pytest.mark.parametrize("pair", [("text", "image"), ("image", "text")])
def test_encoded_columns_depend_on_the_other_modality(fusion, sees, pair):
    felt = influence(*build(fusion), *pair)
    assert felt > 1e-6 if sees else felt == 0


@pytest.mark.parametrize(("start", "sees"), [(0, True), (1, True), (2, False)])
def test_in_a_bottleneck_the_columns_learn_of_each_other_one_block_after_it_starts(start, sees):
    """The first block that passes shared tokens fills them; only the next can read them."""
    felt = influence(*build("bottleneck", start=start))
    assert felt > 1e-9 if sees else felt == 0


def test_before_start_a_bottleneck_is_the_backbone_over_each_modality_alone():
    fuse, backbone = build("bottleneck", start=2)
    text, image = part_of("text", [7, 5]), part_of("image", [3, 2])
    text_in = fuse.embedding([text])[0]
    middle = backbone.run(text_in.x, text_in.mask, 0, 2)
    shared = fuse.shared.expand(2, -1, -1)
    mask = torch.cat([torch.ones(2, 4, dtype=torch.bool), text.mask], 1)
    last = backbone.run(torch.cat([shared, middle], 1), mask, 2)[:, 4:]
    assert_same(fuse([text, image], backbone)[0].select("text").x, backbone.norm(last))


def test_a_bottleneck_passes_nothing_but_the_mean_of_the_shared_tokens():
    """The two-modality bottleneck, written out block by block."""
    fuse, backbone = build("bottleneck", num_tokens=2, start=1)
    parts = [part_of("text", [7, 5]), part_of("image", [3, 3])]
    embedded = fuse.embedding(parts)
    xs = [backbone.run(p.x, p.mask, 0, 1) for p in embedded]
    shared = fuse.shared.expand(2, -1, -1)
    for layer in (1, 2):
        made = []
        for m, part in enumerate(parts):
            mask = torch.cat([torch.ones(2, 2, dtype=torch.bool), part.mask], 1)
            out = backbone.run(torch.cat([shared, xs[m]], 1), mask, layer, layer + 1)
            made.append(out[:, :2])
            xs[m] = out[:, 2:]
        shared = (made[0] + made[1]) / 2
    encoded, vector = fuse(parts, backbone)
    expected = [backbone.norm(x) for x in xs]
    assert_same(encoded.x, torch.cat(expected, 1))
    pooled = [Pooling("mean", D)(x, part.mask) for x, part in zip(expected, parts, strict=True)]
    assert_same(vector, (pooled[0] + pooled[1]) / 2)


@pytest.mark.parametrize("start", [3, 7, -1])
def test_a_bottleneck_cannot_start_beyond_the_last_block(start):
    fuse, backbone = build("bottleneck", start=start)
    with pytest.raises(ValueError, match=f"start must be below the backbone's depth 3, got {start}"):
        fuse([part_of("text", [7, 5])], backbone)


def test_late_fusion_averages_a_linear_of_each_modality_that_is_there():
    fuse, backbone = build("late", names=("text", "image"))
    text, image = part_of("text", [7, 5, 0]), part_of("image", [3, 0, 2])
    _, vector = fuse([text, image], backbone)
    t = fuse.mix["text"](Pooling("mean", D)(backbone(fuse.embedding([text])[0]).x, text.mask))
    i = fuse.mix["image"](Pooling("mean", D)(backbone(fuse.embedding([image])[0]).x, image.mask))
    assert_same(vector, torch.stack([(t[0] + i[0]) / 2, t[1], i[2]]))


def test_early_fusion_is_the_backbone_over_one_joined_sequence():
    fuse, backbone = build("early", names=("text", "image"))
    text, image = part_of("text", [7, 5]), part_of("image", [3, 2])
    x = torch.cat([text.x + fuse.embedding.vectors["text"], image.x + fuse.embedding.vectors["image"]], 1)
    mask = torch.cat([text.mask, image.mask], 1)
    expected = backbone.norm(backbone.run(x, mask))
    encoded, vector = fuse([text, image], backbone)
    assert_same(encoded.x, expected)
    assert_same(vector, Pooling("mean", D)(expected, mask))


# Modality embedding


def test_each_modality_has_a_vector_of_its_own():
    embedding = ModalityEmbedding(D, ("text", "image"))
    parts = [part_of("text", [7, 5]), part_of("image", [3, 2])]
    for part, out in zip(parts, embedding(parts), strict=True):
        vector = embedding.vectors[part.spans[0].modality]
        assert_same(out.x, part.x + vector)
        assert out.spans is part.spans and out.mask is part.mask
    assert not torch.equal(embedding.vectors["text"], embedding.vectors["image"])


@pytest.mark.parametrize("names", [(), ("text",)])
def test_one_modality_needs_no_vector(names):
    embedding, part = ModalityEmbedding(D, names), part_of("text", [7, 5])
    assert list(embedding.parameters()) == []
    assert embedding([part])[0] is part
