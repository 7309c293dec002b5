"""Contrastive learning: losses, keys of equal inputs, metrics of a search, classification."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers.tasks import adapters_stub, build_model, overfit, predict
from torch import nn

from dxn.core.errors import UserError
from dxn.data.dataset import Opened, Samples
from dxn.models import InputVectors
from dxn.models.losses import sigmoid_loss, softmax_loss, unit
from dxn.tasks import Contrastive
from dxn.tasks.contrastive.search import (
    MISSING,
    Embedded,
    chance_metrics,
    key_of,
    search_metrics,
)
from dxn.tasks.contrastive.task import Aligned, Projection, SimilarityHead
from dxn.tokenize import TextAdapter

B, E = 7, 5
NAMES = ("title", "body", "note")


def random_units(*shape):
    return unit(torch.randn(*shape, dtype=torch.double))


def output_of(x, keys, *, scale=3.0, bias=0.0):
    own = Embedded(x, keys)
    return Aligned(own, own, 0, torch.tensor(scale).double(), torch.tensor(bias).double())


def searched(queries, candidates, query_keys, keys):
    """Return the metrics of a search with all queries."""
    every = torch.arange(len(queries))
    return search_metrics(lambda rows: queries[rows] @ candidates.T, query_keys, keys, every)


def distinct_keys(batch, inputs):
    return torch.arange(1, batch * inputs + 1).view(batch, inputs)


def task_for(*names, **options):
    task = Contrastive(**options)
    task.target.bind(dict.fromkeys(names))
    return task


def reference_softmax(a, b, scale, wrong):
    """CLIP's loss, written out: cross-entropy of each row and each column, wrong pairs only."""
    total = 0.0
    n = len(a)
    for left, right, is_wrong in ((a, b, wrong), (b, a, wrong.T)):
        for i in range(n):
            scores = [math.exp(scale * float(left[i] @ right[j])) for j in range(n)]
            rest = sum(scores[j] for j in range(n) if is_wrong[i, j])
            total -= math.log(scores[i] / (scores[i] + rest)) / (2 * n)
    return total


def reference_sigmoid(a, b, scale, bias, wrong):
    """SigLIP's loss, written out: one binary decision for each pair."""
    total = 0.0
    for i in range(len(a)):
        for j in range(len(a)):
            logit = scale * float(a[i] @ b[j]) + bias
            if i == j or wrong[i, j]:
                sign = 1 if i == j else -1
                total += math.log1p(math.exp(-sign * logit)) / len(a)
    return total


@pytest.mark.parametrize("with_equal_rows", [False, True])
def test_both_losses_equal_their_definitions(with_equal_rows):
    torch.manual_seed(0)
    x, keys = random_units(B, 2, E), distinct_keys(B, 2)
    wrong = ~torch.eye(B, dtype=torch.bool)
    if with_equal_rows:  # rows 1 and 4 share an input, rows 2 and 5 the other one
        keys[4, 0], keys[5, 1] = keys[1, 0], keys[2, 1]
        for i, j in ((1, 4), (2, 5)):
            wrong[i, j] = wrong[j, i] = False
    softmax = task_for("a", "b").loss(output_of(x, keys), {}).mean
    expected = reference_softmax(x[:, 0], x[:, 1], 3.0, wrong)
    assert float(softmax) == pytest.approx(expected, rel=1e-12)
    sigmoid = task_for("a", "b", loss="sigmoid").loss(output_of(x, keys, bias=-2.0), {}).mean
    expected = reference_sigmoid(x[:, 0], x[:, 1], 3.0, -2.0, wrong)
    assert float(sigmoid) == pytest.approx(expected, rel=1e-12)


def test_the_softmax_loss_smooths_like_torch_if_nothing_is_ignored():
    logits = torch.randn(B, 11, dtype=torch.double)
    at = torch.randint(11, (B,))
    nothing = torch.zeros(B, 11, dtype=torch.bool)
    expected = F.cross_entropy(logits, at, label_smoothing=0.2)
    torch.testing.assert_close(softmax_loss(logits, at, nothing, 0.2).mean(), expected)


def test_ignored_candidates_change_neither_loss():
    logits = torch.randn(B, 11, dtype=torch.double)
    at = torch.randint(10, (B,))
    right = F.one_hot(at, 11).bool()
    last = torch.zeros(B, 11, dtype=torch.bool)
    last[:, -1] = True
    nothing = last[:, :-1] & False
    for smoothing in (0.0, 0.3):
        ours = softmax_loss(logits, at, last, smoothing)
        torch.testing.assert_close(ours, softmax_loss(logits[:, :-1], at, nothing, smoothing))
    ours = sigmoid_loss(logits, right, last)
    torch.testing.assert_close(ours, sigmoid_loss(logits[:, :-1], right[:, :-1], nothing))


def test_the_loss_of_three_inputs_is_the_mean_over_the_pairs_that_samples_have():
    torch.manual_seed(1)
    x, keys = random_units(B, 3, E), distinct_keys(B, 3)
    keys[2, 0] = keys[3, 2] = MISSING
    task = task_for(*NAMES)
    pairs = []
    for a, b in ((0, 1), (0, 2), (1, 2)):
        rows = ((keys[:, a] != MISSING) & (keys[:, b] != MISSING)).nonzero().flatten()
        wrong = ~torch.eye(len(rows), dtype=torch.bool)
        pairs.append(reference_softmax(x[rows, a], x[rows, b], 3.0, wrong))
    loss = task.loss(output_of(x, keys), {}).mean
    assert float(loss) == pytest.approx(sum(pairs) / 3, rel=1e-12)
    assert task.loss(output_of(x, keys), {}).weight == B


def test_a_batch_without_any_pair_has_a_loss_of_zero_that_can_be_differentiated():
    x = random_units(3, 2, E).requires_grad_()
    keys = torch.tensor([[1, MISSING], [2, MISSING], [MISSING, 3]])
    task = task_for("a", "b")
    loss = task.loss(output_of(x, keys), {}).mean
    loss.backward()
    assert float(loss.detach()) == 0
    assert task.loss(output_of(x, keys), {}).weight == 0


def adapters_of(*names, dim=16, texts=("red cat", "blue dog", "a bird", "fish")):
    torch.manual_seed(0)
    result = {}
    for name in names:
        result[name] = TextAdapter(dim)
        result[name].fit(texts)
    return result


def samples_of(task, adapters, columns):
    count = len(next(iter(columns.values())))
    opened = Opened(columns, None, [f"row {i}" for i in range(count)])
    prepare = {name: adapter.tokenizer for name, adapter in adapters.items()}
    return Samples(opened, prepare, task=task)


def batch_of(samples):
    return samples.collate([samples[0, i] for i in range(len(samples))])


TEXTS = ["red cat", "blue dog", "a bird", "fish", "red dog", "blue cat", "cat bird", "dog fish"]


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_eight_samples_are_overfitted_and_found_first(loss):
    adapters = adapters_of("title", "body", texts=TEXTS)
    task = Contrastive(loss=loss, embedding_dim=11)
    task.target.bind(adapters)
    samples = samples_of(task, adapters, {"title": TEXTS, "body": TEXTS[::-1]})
    torch.manual_seed(0)
    model = build_model(task, adapters)
    batch = batch_of(samples)
    overfit(task, model, batch, goal=0.1)
    metrics = task.metric.metrics(predict(task, model, batch), [], 0.0)
    assert metrics["recall@1"] == metrics["strict_recall@1"] == metrics["mrr"] == 1


def test_rows_with_equal_inputs_have_equal_keys_although_their_files_differ():
    adapters = adapters_of("title", "body")
    task = Contrastive()
    task.target.bind(adapters)
    columns = {"title": ["red cat", "fish", "red cat", None], "body": ["a", "a", None, "b"]}
    keys = batch_of(samples_of(task, adapters, columns))["target"]
    assert keys[0, 0] == keys[2, 0] != keys[1, 0]
    assert keys[0, 1] == keys[1, 1] != keys[3, 1]
    assert keys[3, 0] == keys[2, 1] == MISSING
    assert (keys >= 0).all()
    assert key_of(bytes(16)) != MISSING


def test_a_missing_input_and_batch_mates_change_no_embedding():
    adapters = adapters_of("title", "body")
    task = Contrastive()
    task.target.bind(adapters)
    model = build_model(task, adapters).eval()
    columns = {"title": ["red cat", "a bird and a fish", None], "body": [None, "fish", "fish"]}
    samples = samples_of(task, adapters, columns)
    x = model(batch_of(samples)).own.x
    for i in range(len(samples)):
        alone = model(samples.collate([samples[0, i]])).own.x
        torch.testing.assert_close(alone[0], x[i])
    assert x[0, 1].abs().sum() == x[2, 0].abs().sum() == 0
    torch.testing.assert_close(x[1, 1], x[2, 1])


def test_the_embedding_of_a_sample_is_the_direction_of_the_mean_over_its_inputs():
    adapters = adapters_of("title", "body")
    task = Contrastive(embedding_dim=E)
    task.target.bind(adapters)
    model = build_model(task, adapters).eval()
    samples = samples_of(task, adapters, {"title": ["cat", None], "body": ["dog", "bird"]})
    batch = batch_of(samples)
    _, pooled = model.encode(model.embed(batch))
    assert isinstance(pooled, InputVectors)
    each, vectors = model.head.pre.each(pooled), model.embedding(pooled)
    torch.testing.assert_close(vectors[0], unit(each[0].sum(0)))
    torch.testing.assert_close(vectors[1], each[1, 1])
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))


def test_ranks_count_equal_rows_as_right_and_strict_recall_only_the_own_row():
    queries = unit(torch.tensor([[1.0, 0], [1, 0.1], [0, 1]]))
    candidates = unit(torch.tensor([[0.0, 1], [1, 0], [1, 0.5]]))
    # The own candidate is third, first and second. The queries of rows 0 and 1 are equal.
    query_keys, keys = torch.tensor([1, 1, 2]), torch.tensor([3, 4, 5])
    figures = searched(queries, candidates, query_keys, keys)
    assert figures["recall@1"] == pytest.approx(2 / 3)
    assert figures["mrr"] == pytest.approx((1 + 1 + 1 / 2) / 3)
    assert figures["strict_recall@1"] == pytest.approx(1 / 3)
    assert figures["median_rank"] == 1


def test_equal_candidates_share_the_places_of_the_strict_recall():
    x = unit(torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]]))
    query_keys, keys = torch.arange(1, 5), torch.tensor([5, 5, 6, 6])
    figures = searched(x, x, query_keys, keys)
    assert figures["strict_recall@1"] == pytest.approx(1 / 2)  # that of a random one of the two
    # The vectors of equal candidates can differ by rounding.
    rounded = searched(x, x * torch.tensor([[1], [1 + 1e-6], [1], [1]]), query_keys, keys)
    assert rounded == figures


def test_the_median_of_an_even_number_of_ranks_is_the_mean_of_both_in_the_middle():
    x, keys = torch.eye(2), torch.arange(1, 3)
    # Both queries find the first candidate first.
    candidates = torch.tensor([[1.0, 1], [0, 0.5]])
    assert searched(x, candidates, keys, keys + 2)["median_rank"] == 1.5


def test_a_search_in_few_rows_or_in_a_part_of_them_has_a_note():
    task = task_for(*NAMES)
    keys = distinct_keys(120, 3)
    keys[:3, 2] = MISSING  # too few for a note
    keys[:30, 0] = MISSING
    notes = task.metric.notes([Embedded(torch.ones(3, E), row) for row in keys])
    assert len(notes) == 2  # only of one of the pairs with fewest rows
    assert notes[0].startswith("only the 90 of 120 rows with title and body are searched")
    assert "has only 90 rows, of which a random order finds 11% among the first 10" in notes[1]
    keys[:, 0] = keys[:, 1]
    assert not task.metric.notes([Embedded(torch.ones(3, E), row) for row in keys])
    full = distinct_keys(100, 3)
    assert task.metric.notes([Embedded(torch.ones(3, E), row) for row in full]) == []
    (single, *_) = task.metric.notes([Embedded(torch.ones(3, E), full[0])])
    assert "only 1 row" in single and "100%" in single


@pytest.mark.parametrize("vectors", [torch.ones(13, 2), torch.full((13, 2), torch.nan)])
def test_vectors_that_are_all_equal_or_nan_have_the_last_rank(vectors):
    keys = torch.arange(1, 14)
    figures = searched(vectors, vectors, keys, keys + 13)
    assert figures["median_rank"] == 13
    assert figures["recall@10"] == figures["strict_recall@10"] == 0


def test_the_chance_level_is_the_mean_over_random_orders():
    generator = torch.Generator().manual_seed(0)
    keys = torch.tensor([1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
    other = torch.arange(100, 100 + len(keys))
    totals = dict.fromkeys(("mrr", "recall@1", "recall@5", "strict_recall@10"), 0.0)
    rounds = 400
    for _ in range(rounds):
        x, y = torch.randn(2, len(keys), E, generator=generator)
        figures = searched(unit(x), unit(y), keys, other)
        totals = {name: total + figures[name] / rounds for name, total in totals.items()}
    chance = chance_metrics(keys, other)
    for name, value in totals.items():
        assert chance[name] == pytest.approx(value, abs=0.02), name
    assert chance["strict_recall@10"] == pytest.approx(10 / 17)


def test_the_metrics_of_each_direction_are_parts_and_their_mean_is_the_result():
    torch.manual_seed(2)
    task = task_for(*NAMES)
    keys = distinct_keys(B, 3)
    keys[0, 2] = MISSING
    predictions = [Embedded(x, k) for x, k in zip(random_units(B, 3, E), keys, strict=True)]
    parts = task.metric.further_rows(predictions)
    chance = parts.pop("random order")
    assert set(parts) == {f"{a} to {b}" for a in NAMES for b in NAMES if a != b}
    metrics = task.metric.metrics(predictions, [], 0.0)
    assert metrics["mrr"] == pytest.approx(sum(part["mrr"] for part in parts.values()) / 6)
    assert set(chance) == set(metrics)


def test_rows_without_two_inputs_have_no_metrics():
    task = task_for("a", "b")
    with pytest.raises(UserError, match="no row of the evaluated split has two of the inputs a, b"):
        task.metric.metrics([Embedded(torch.ones(2, E), torch.tensor([1, MISSING]))], [], 0.0)


def test_a_classifier_chooses_the_class_with_the_most_similar_vector():
    adapters = adapters_of("title", "body")
    task = Contrastive(embedding_dim=E)
    task.target.bind(adapters)
    model = build_model(task, adapters).eval()
    vectors = random_units(3, E).float()
    head = SimilarityHead(Projection([model.head.pre.layers[1]]), vectors / 0.07)
    pooled = InputVectors(torch.randn(B, 1, 16), torch.ones(B, 1, dtype=torch.bool))
    logits = head(None, pooled, {})
    own = unit(model.head.pre.layers[1](pooled.x[:, 0]))
    torch.testing.assert_close(logits, own @ vectors.T / 0.07)


def test_the_temperature_does_not_fall_below_its_limit():
    adapters = adapters_of("title", "body")
    task = Contrastive(temperature=0.02)
    task.target.bind(adapters)
    head = task.make_head(16, 16, adapters)
    nn.init.constant_(head.log_scale, 9.0)
    assert float(head.scale.detach()) == pytest.approx(100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "triplet"}, "loss must be one of 'softmax' or 'sigmoid', got 'triplet'"),
        ({"embedding_dim": 0}, "embedding_dim must be at least 1, got 0"),
        ({"temperature": 0.001}, "temperature must be at least 0.01, got 0.001"),
        ({"label_smoothing": 1.0}, "label_smoothing must be below 1, got 1.0"),
        ({"loss": "sigmoid", "label_smoothing": 0.1}, "label_smoothing needs loss=softmax"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Contrastive(**options)


def test_one_input_and_input_dropout_are_refused():
    with pytest.raises(UserError, match="needs at least two inputs, got image; add one"):
        Contrastive().target.bind(adapters_stub(image={}))
    config = {"loader": {"input_dropout": 0.1}, "trainer": {"mixup": 0.0}}
    with pytest.raises(UserError, match=r"loader.input_dropout: cannot be combined"):
        Contrastive().check(config)
    with pytest.raises(UserError, match=r"trainer.mixup: cannot be combined"):
        Contrastive().check({"trainer": {"mixup": 0.2}})
