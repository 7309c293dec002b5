"""The three fusions: named inputs, missing inputs, and which input can influence which."""

import pytest
import torch
from helpers.reference import FUSIONS, assert_same, backbone_of, each_fusion, lively, numbers
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.core.tokens import Span, Tokens
from dxn.models import EarlyFusion, LateFusion
from dxn.models.fusion import InputEmbedding, place
from dxn.models.pooling import Pooling, masked_mean

D, H, DEPTH = 10, 5, 3
# Number of columns by input. Two inputs have the same modality, and their names hold dots, spaces
# and a word that nn.ModuleDict refuses as a key.
WIDTHS = {"text": 7, "front.photo v1.0": 3, "keys": 2, "back photo": 3}
MODALITIES = {"text": "text", "keys": "audio"}  # all others are images
NAMES = tuple(WIDTHS)
TEXT, FRONT, KEYS, BACK = NAMES
POOLS = ("mean", "max", "cls", "attention")

each_pool = pytest.mark.parametrize("pool", POOLS)


def part_of(name, lengths):
    """Random Tokens of one input. A length of 0 means that the sample does not have the input."""
    n = WIDTHS[name]
    mask = torch.arange(n) < torch.tensor(lengths)[:, None]
    coords = torch.zeros(len(lengths), n, 2)
    span = Span(name, MODALITIES.get(name, "image"), 0, n, coords)
    return Tokens(numbers(len(lengths), n, D), mask, (span,))


def build(fusion, pool="mean", names=NAMES, position="none", **options):
    fuse = lively(FUSIONS[fusion](D, inputs=names, pool=pool, **options))
    return fuse, lively(backbone_of(D, depth=DEPTH, num_heads=H, position=position))


def single(part, i):
    """Sample i's part as a batch of one without padding; None if it does not have the input."""
    n = int(part.mask[i].sum())
    if not n:
        return None
    (span,) = part.spans
    alone = Span(span.name, span.modality, 0, n, torch.zeros(1, n, 2))
    return Tokens(part.x[i : i + 1, :n], part.mask[i : i + 1, :n], (alone,))


def parts_of_sample(parts, i):
    return [alone for part in parts if (alone := single(part, i)) is not None]


# Pooling

MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.bool)


def reference_pooling(pool, x, mask):
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


# The softmax of attention pooling is in float32.
@pytest.mark.parametrize(("kind", "atol"), [("mean", 1e-12), ("max", 0), ("attention", 1e-6)])
def test_pooling_equals_its_reference_form_over_the_real_tokens_of_each_sample(kind, atol):
    pool = lively(Pooling(kind, D))
    x = numbers(3, 5, D) - 2  # mostly negative: zeros at padding would be the maximum
    assert_same(pool(x, MASK), reference_pooling(pool, x, MASK), atol=atol)
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


def test_the_class_token_is_the_first_column_and_the_pooled_one():
    pool, part = lively(Pooling("cls", D)), part_of(FRONT, [3, 0, 2])
    led = pool.lead(part)
    assert [(s.name, s.modality) for s in led.spans] == [("class", "class"), (FRONT, "image")]
    assert torch.equal(led.x[:, 0], pool.tokens[0].expand(3, D))
    assert torch.equal(led.x[:, 1:], part.x)
    assert led.mask[:, 0].tolist() == [True, False, True]  # padding for a sample without the input
    assert bool(led.spans[0].coords.isnan().all())
    assert torch.equal(pool(led.x, led.mask), led.x[:, 0])


@pytest.mark.parametrize("kind", ["mean", "max", "attention"])
def test_only_cls_adds_a_column(kind):
    part = part_of(TEXT, [7, 3])
    assert Pooling(kind, D).lead(part) is part


# Every fusion


@pytest.mark.parametrize(
    ("fusion", "pool", "position"),
    [
        (fusion, pool, ("none", "rotary", "alibi")[(i + j) % 3])
        for i, fusion in enumerate(FUSIONS)
        for j, pool in enumerate(POOLS)
    ],
)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_a_missing_input_equals_a_sample_without_its_columns(fusion, pool, position, data):
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    fuse, backbone = build(fusion, pool, position=position)
    sample = st.tuples(*(st.integers(0, n) for n in WIDTHS.values())).filter(any)
    samples = data.draw(st.lists(sample, min_size=3, max_size=3))
    lengths = zip(*samples, strict=True)
    parts = [part_of(name, of_input) for name, of_input in zip(NAMES, lengths, strict=True)]
    _, batched = fuse(parts, backbone)
    for i in range(3):
        own = parts_of_sample(parts, i)
        encoded, vector = fuse(own, backbone)
        # The softmax of attention pooling is in float32.
        assert_same(batched[i], vector[0], atol=1e-6 if pool == "attention" else 1e-12)
        assert {s.name for s in encoded.spans} - {"class"} == {p.spans[0].name for p in own}


@each_fusion
@pytest.mark.parametrize(("missing", "row"), list(zip(NAMES, (0, 1, 2, 0), strict=True)))
def test_any_input_may_be_missing_in_any_row(fusion, missing, row):
    fuse, backbone = build(fusion, position="rotary")
    lengths = {name: [n, 1, n - 1] for name, n in WIDTHS.items()}
    lengths[missing][row] = 0
    parts = [part_of(name, of_input) for name, of_input in lengths.items()]
    _, batched = fuse(parts, backbone)
    for i in range(3):
        assert_same(batched[i], fuse(parts_of_sample(parts, i), backbone)[1][0])


@each_fusion
def test_two_inputs_of_one_modality_are_different_inputs(fusion):
    fuse, backbone = build(fusion)
    front = part_of(FRONT, [3, 2])
    (span,) = front.spans
    back = Tokens(front.x, front.mask, (Span(BACK, span.modality, 0, 3, span.coords),))
    vectors = [fuse([part], backbone)[1] for part in (front, back)]
    assert not torch.allclose(*vectors, atol=1e-3)
    encoded, _ = fuse([front, back], backbone)
    assert encoded.select(FRONT).x.shape == encoded.select(BACK).x.shape == (2, 3, D)


@each_fusion
def test_the_names_of_the_inputs_are_no_keys_of_the_state(fusion):
    fuse, _ = build(fusion)
    assert not [key for key in fuse.state_dict() for name in NAMES if name in key.split(".")]
    renamed = FUSIONS[fusion](D, inputs=["a", "b", "c", "d"]).double()
    renamed.load_state_dict(fuse.state_dict())


@each_fusion
def test_an_unknown_input_raises_a_clear_error(fusion):
    fuse, backbone = build(fusion, names=(TEXT, FRONT))
    with pytest.raises(
        ValueError, match=r"unknown input 'keys': this fusion has text, front\.photo"
    ):
        fuse([part_of(TEXT, [7, 5]), part_of(KEYS, [2, 1])], backbone)


@each_fusion
def test_inputs_must_have_different_names(fusion):
    with pytest.raises(ValueError, match="the names of the inputs must be unique, got a, b, a"):
        FUSIONS[fusion](D, inputs=["a", "b", "a"])


@each_fusion
def test_encoded_columns_equal_those_of_the_sample_alone(fusion):
    fuse, backbone = build(fusion, position="rotary")
    parts = [part_of(TEXT, [7, 0, 5]), part_of(FRONT, [0, 3, 2])]
    encoded, _ = fuse(parts, backbone)
    for name, part in zip((TEXT, FRONT), parts, strict=True):
        for i in range(3):
            if part.mask[i].any():
                expected = fuse(parts_of_sample(parts, i), backbone)[0].select(name).x[0]
                assert_same(encoded.select(name).x[i][part.mask[i]], expected)


@each_fusion
@each_pool
def test_samples_of_one_batch_never_see_each_other(fusion, pool):
    fuse, backbone = build(fusion, pool)
    parts = [part_of(TEXT, [7, 3, 5]), part_of(FRONT, [3, 2, 0])]
    others = [part_of(TEXT, [7, 3, 5]), part_of(FRONT, [3, 2, 0])]
    for part, other in zip(parts, others, strict=True):
        other.x[1] = part.x[1]
    assert_same(fuse(others, backbone)[1][1], fuse(parts, backbone)[1][1])


@each_fusion
@each_pool
def test_every_real_column_affects_the_vector_and_padding_does_not(fusion, pool):
    fuse, backbone = build(fusion, pool)
    parts = [part_of(TEXT, [7, 0]), part_of(FRONT, [2, 3])]
    for part in parts:
        part.x.requires_grad_()
    (fuse(parts, backbone)[1] * numbers(2, D)).sum().backward()
    for part in parts:
        has_effect = part.x.grad.abs().sum(-1) > 1e-9
        assert torch.equal(has_effect, part.mask)


@each_fusion
def test_the_spans_keep_the_order_of_the_parts_with_class_tokens_first(fusion):
    fuse, backbone = build(fusion, "cls")
    encoded, _ = fuse([part_of(FRONT, [3, 2]), part_of(TEXT, [7, 5])], backbone)
    joined = ["class", FRONT, TEXT]
    separate = ["class", FRONT, "class", TEXT]
    assert [s.name for s in encoded.spans] == (joined if fusion == "early" else separate)


@each_fusion
@each_pool
def test_every_weight_of_a_fusion_of_one_input_gets_a_gradient(fusion, pool):
    fuse, backbone = build(fusion, pool, names=(TEXT,))
    (fuse([part_of(TEXT, [7, 3])], backbone)[1] * numbers(2, D)).sum().backward()
    unused = {n for n, p in fuse.named_parameters() if p.grad is None}
    assert unused == ({"mix.0.weight", "mix.0.bias"} if fusion == "late" else set())


# Early, late, bottleneck: which input can influence which


def influence(fuse, backbone, of=FRONT, on=TEXT):
    """The largest gradient of the encoded columns of `on` with respect to the columns of `of`."""
    parts = {TEXT: part_of(TEXT, [7, 5]), FRONT: part_of(FRONT, [3, 2])}
    source = parts[of].x.requires_grad_()
    encoded = fuse(list(parts.values()), backbone)[0].select(on)
    total = (encoded.x * numbers(*encoded.x.shape)).sum()
    (grad,) = torch.autograd.grad(total, source, allow_unused=True)
    return 0.0 if grad is None else float(grad.abs().max())


@pytest.mark.parametrize(
    ("fusion", "expected"), [("early", True), ("late", False), ("bottleneck", True)]
)
@pytest.mark.parametrize("pair", [(TEXT, FRONT), (FRONT, TEXT)])
def test_encoded_columns_depend_on_another_input(fusion, expected, pair):
    largest = influence(*build(fusion), *pair)
    assert largest > 1e-6 if expected else largest == 0


@pytest.mark.parametrize(("start", "expected"), [(0, True), (1, True), (2, False)])
def test_in_a_bottleneck_inputs_influence_each_other_from_the_second_block_on(start, expected):
    """The first block with shared tokens fills them; only the next one can read them."""
    largest = influence(*build("bottleneck", start=start))
    assert largest > 1e-9 if expected else largest == 0


def test_before_its_start_a_bottleneck_runs_the_backbone_over_each_input_alone():
    fuse, backbone = build("bottleneck", start=2)
    text, front = part_of(TEXT, [7, 5]), part_of(FRONT, [3, 2])
    embedded = fuse.input_embedding([text])[0]
    middle = backbone.run(embedded.x, embedded.mask, 0, 2)
    shared = fuse.shared.expand(2, -1, -1)
    mask = torch.cat([torch.ones(2, 4, dtype=torch.bool), text.mask], 1)
    last = backbone.run(torch.cat([shared, middle], 1), mask, 2)[:, 4:]
    assert_same(fuse([text, front], backbone)[0].select(TEXT).x, backbone.norm(last))


def test_a_bottleneck_passes_only_the_mean_of_the_shared_tokens():
    fuse, backbone = build("bottleneck", num_tokens=2, start=1)
    parts = [part_of(TEXT, [7, 5]), part_of(FRONT, [3, 3])]
    embedded = fuse.input_embedding(parts)
    xs = [backbone.run(p.x, p.mask, 0, 1) for p in embedded]
    shared = fuse.shared.expand(2, -1, -1)
    for layer in (1, 2):
        new_shared = []
        for m, part in enumerate(parts):
            mask = torch.cat([torch.ones(2, 2, dtype=torch.bool), part.mask], 1)
            out = backbone.run(torch.cat([shared, xs[m]], 1), mask, layer, layer + 1)
            new_shared.append(out[:, :2])
            xs[m] = out[:, 2:]
        shared = (new_shared[0] + new_shared[1]) / 2
    encoded, vector = fuse(parts, backbone)
    expected = [backbone.norm(x) for x in xs]
    assert_same(encoded.x, torch.cat(expected, 1))
    pooled = [masked_mean(x, part.mask) for x, part in zip(expected, parts, strict=True)]
    assert_same(vector, (pooled[0] + pooled[1]) / 2)


@pytest.mark.parametrize("start", [3, 7])
def test_a_bottleneck_cannot_start_after_the_last_block(start):
    fuse, backbone = build("bottleneck", start=start)
    message = rf"start must be at least 0 and below the depth of the backbone \(3\), got {start}"
    with pytest.raises(ValueError, match=message):
        fuse([part_of(TEXT, [7, 5])], backbone)


def test_a_bottleneck_needs_a_shared_token():
    with pytest.raises(ValueError, match="num_tokens must be at least 1, got 0"):
        FUSIONS["bottleneck"](D, num_tokens=0)


def test_late_fusion_averages_a_linear_map_of_each_input_that_is_present():
    fuse, backbone = build("late", names=(FRONT, TEXT))
    text, front = part_of(TEXT, [7, 5, 0]), part_of(FRONT, [3, 0, 2])
    _, vector = fuse([text, front], backbone)

    def mixed(part, k):
        encoded = backbone(fuse.input_embedding([part])[0])
        return fuse.mix[k](masked_mean(encoded.x, part.mask))

    f, t = mixed(front, 0), mixed(text, 1)
    assert_same(vector, torch.stack([(t[0] + f[0]) / 2, t[1], f[2]]))


def test_early_fusion_is_the_backbone_over_one_joined_sequence():
    fuse, backbone = build("early", names=(TEXT, FRONT))
    text, front = part_of(TEXT, [7, 5]), part_of(FRONT, [3, 2])
    vectors = fuse.input_embedding.weight
    x = torch.cat([text.x + vectors[0], front.x + vectors[1]], 1)
    mask = torch.cat([text.mask, front.mask], 1)
    expected = backbone.norm(backbone.run(x, mask))
    encoded, vector = fuse([text, front], backbone)
    assert_same(encoded.x, expected)
    assert_same(vector, masked_mean(expected, mask))


# Input embedding


def test_each_input_has_its_own_vector():
    embedding = InputEmbedding(D, NAMES)
    parts = [part_of(name, [2, 1]) for name in reversed(NAMES)]
    for part, out in zip(parts, embedding(parts), strict=True):
        vector = embedding.weight[NAMES.index(part.spans[0].name)]
        assert_same(out.x, part.x + vector)
        assert out.spans is part.spans and out.mask is part.mask
    assert len(embedding.weight.unique(dim=0)) == len(NAMES)
    assert float(embedding.weight.detach().std()) == pytest.approx(0.02, rel=0.5)


@pytest.mark.parametrize("names", [(), (TEXT,)])
def test_one_input_needs_no_vector(names):
    assert EarlyFusion(D, inputs=names).input_embedding is None
    assert LateFusion(D, inputs=names).input_embedding is None


@pytest.mark.parametrize("fusion", [EarlyFusion, LateFusion])
def test_a_fusion_without_inputs_accepts_any(fusion):
    fuse = fusion(D).double()
    _, vectors = fuse([part_of(TEXT, [7, 5])], backbone_of(D, depth=1, num_heads=H).double())
    assert vectors.shape == (2, D)


def test_other_inputs_stand_in_the_places_of_their_marks():
    # Columns of two inputs (2 and 3, with padding), and of a text of 4.
    mask = torch.tensor(
        [
            [1, 1, 1, 1, 0, 1, 1, 1, 1],  # both inputs, two marks
            [1, 0, 1, 1, 1, 1, 1, 1, 0],  # both, one mark: the second one is before the text
            [0, 0, 1, 1, 0, 1, 1, 1, 1],  # the second input alone replaces the first mark
            [0, 0, 0, 0, 0, 1, 1, 1, 0],  # no input: a mark is unchanged
        ],
        dtype=torch.bool,
    )
    marks = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]) > 0
    places = place(mask, [2, 3], marks)
    rows = [
        [column for column, real in zip(order, there, strict=True) if real]
        for order, there in zip(places.order.tolist(), places.mask.tolist(), strict=True)
    ]
    assert rows == [[5, 0, 1, 7, 2, 3], [2, 3, 4, 5, 6, 0], [2, 3, 6, 7, 8], [5, 6, 7]]
    for row, columns in enumerate(rows):
        for column in range(9):
            if column in columns:
                assert places.order[row, places.back[row, column]] == column
    # The output of a mark is that of the last column in its place.
    ends = places.order.gather(1, places.back)[:, 5:]
    assert ends[0].tolist() == [5, 1, 7, 3]
    assert ends[1, 2] == 0
    assert ends[2, 0] == 3
