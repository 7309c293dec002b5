"""The metrics of a report: intervals, classes, calibration, thresholds and the paired test."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from dxn.report import answers, tables
from dxn.report.answers import row_scores
from dxn.report.classes import (
    THRESHOLDS,
    calibration,
    class_figures,
    confusion_counts,
    threshold_effects,
    wilson,
)
from dxn.report.intervals import MIN_ROWS, draw_counts, draw_rows, metric_intervals, paired
from dxn.tasks import Classify, Generate, Multilabel, Regress, Tag
from dxn.tasks.forecast.futures import ForecastMetric, Future
from dxn.tasks.metric import Blocks, ClassScores, one_hot
from dxn.tasks.tag import Tagged
from dxn.viz.charts import line_chart

N, K = 41, 3
NAMES = ["ant", "bee", "cow"]


def classify(names=NAMES):
    task = Classify()
    task.target.fit(list(names))
    return task


def probabilities(rows=N, classes=K, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randn(rows, classes, generator=generator).mul(2).softmax(-1))


def targets(rows=N, names=NAMES, *, seed=0):
    rng = random.Random(seed)
    return [rng.choice(names) for _ in range(rows)]


def cases():
    many = [f"c{i:02}" for i in range(23)]
    labels = Multilabel()
    labels.target.fit([[name] for name in NAMES])
    rng = random.Random(1)
    sets = [[name for name in NAMES if rng.random() < 0.4] for _ in range(N)]
    tag = Tag()
    tag.target.load({"labels": ["O", "B-x", "I-x"], "class_weights": None})
    tags = [[rng.choice(["O", "B-x", "I-x"]) for _ in range(rng.randint(0, 7))] for _ in range(N)]
    shorter = [Tagged(row[: rng.randint(0, len(row))], []) for row in tags]
    numbers = Regress()
    true = [rng.gauss(1000, 7) for _ in range(N)]
    yield "classes", classify(), probabilities(), [*targets(N - 2), "yak", "yak"]
    yield "many classes", classify(many), probabilities(N, 23), targets(N, many)
    yield "labels", labels, list(torch.rand(N, K, generator=torch.manual_seed(5))), sets
    yield "tags", tag, shorter, tags
    yield "numbers", numbers, [torch.tensor(t + rng.gauss(0, 3)) for t in true], true


def resampled(task, predictions, truths, counts):
    """The metrics of each resample: of its rows, each as often as it was drawn."""
    results = []
    for count in counts.long():
        rows = torch.arange(len(truths)).repeat_interleave(count).tolist()
        chosen = [predictions[i] for i in rows], [truths[i] for i in rows]
        results.append(task.metric.metrics(*chosen, 0.0))
    return {name: [each[name] for each in results] for name in results[0]}


@pytest.mark.parametrize(("task", "predictions", "truths"), [
    pytest.param(*case, id=name) for name, *case in cases()
])  # fmt: skip
def test_metrics_from_sums_are_those_of_the_resampled_rows(task, predictions, truths):
    counts = draw_counts(draw_rows(N)[:17], N)
    expected = resampled(task, predictions, truths, counts)
    got = task.metric.weighted(predictions, truths, counts)
    assert set(got) == set(expected)
    assert task.metric.monitored in got
    for name, values in got.items():
        same = pytest.approx(expected[name], abs=2e-4, nan_ok=True)
        assert values.tolist() == same, name


def test_metrics_of_texts_from_sums_are_those_of_the_resampled_texts():
    rng = random.Random(0)
    words = ["one", "red", "ball", "two", "blue", "birds", "sing", "a", "cat"]
    truths = [" ".join(rng.choices(words, k=rng.randint(3, 9))) for _ in range(N)]
    predictions = [" ".join(rng.choices(t.split(), k=len(t.split()))) for t in truths]
    predictions[0] = truths[0]
    task = Generate(decoder=lambda **_: None)
    task.target.fit(truths)
    counts = draw_counts(draw_rows(N)[:5], N)
    expected = resampled(task, predictions, truths, counts)
    got = task.metric.weighted(predictions, truths, counts)
    assert set(got) == {"bleu", "chrf", "wer", "wer_normalized", "cer", "exact_match"}
    for name, values in got.items():
        assert values.tolist() == pytest.approx(expected[name], abs=1e-4), name


def test_the_interval_of_an_accuracy_is_close_to_that_of_the_binomial_distribution():
    rows, right = 400, 300
    predictions = [torch.tensor([0.9, 0.05, 0.05])] * rows
    truths = ["ant"] * right + ["bee"] * (rows - right)
    low, high = metric_intervals(classify(), predictions, truths, {"accuracy": 0.75})["accuracy"]
    exact = binomtest(right, rows).proportion_ci(method="wilson")
    assert low == pytest.approx(exact.low, abs=0.012)
    assert high == pytest.approx(exact.high, abs=0.012)


def test_more_rows_than_are_drawn_have_a_narrower_interval():
    def width(rows):
        predictions = [torch.tensor([0.9, 0.05, 0.05])] * rows
        truths = ["ant", "bee"] * (rows // 2)
        low, high = metric_intervals(classify(), predictions, truths, {"accuracy": 0.5})["accuracy"]
        return high - low

    assert width(8000) == pytest.approx(width(2000) / 2, rel=0.15)


def test_many_rows_that_are_sorted_by_class_have_the_interval_of_all_rows():
    rows = 30_000
    right, wrong = torch.tensor([0.9, 0.05, 0.05]), torch.tensor([0.05, 0.9, 0.05])
    predictions, truths = [right] * (rows // 2) + [wrong] * (rows // 2), ["ant"] * rows
    half = metric_intervals(classify(), predictions, truths, {"accuracy": 0.5})["accuracy"]
    assert half == pytest.approx(binomtest(rows // 2, rows).proportion_ci(), abs=0.002)
    names = ["ant"] * (rows // 2) + ["bee"] * (rows // 2)
    scores = classify().metric.class_scores(predictions[: rows // 4] * 4, names)
    ends, none, _ = (each["interval"] for each in class_figures(scores, NAMES))
    assert ends[1] - ends[0] < 0.02
    assert none is None  # no row of the class is found


def test_names_with_dollar_signs_are_no_formulas():
    lines = {"a$_$b": ([1.0, 2.0], [0.5, 0.7])}
    assert "a$_$b" in line_chart("accuracy", "", lines, ("epoch", "accuracy")).svg()


@pytest.mark.parametrize(("name", "expected"), [("ant", (0.9549, 1)), ("bee", (0, 0.0451))])
def test_a_share_of_all_or_no_rows_has_the_exact_interval(name, expected):
    predictions = [torch.tensor([0.9, 0.05, 0.05])] * 80
    share = float(name == "ant")
    figures = {"accuracy": share, "f1_macro": share}
    found = metric_intervals(classify(), predictions, [name] * 80, figures)
    assert found == dict.fromkeys(figures, pytest.approx(expected, abs=1e-4))
    exact = binomtest(80 * int(share), 80).proportion_ci(method="exact")
    assert found["accuracy"] == pytest.approx((exact.low, exact.high), abs=1e-6)


@pytest.mark.parametrize("rare", [40, 8])
def test_the_mean_over_classes_of_right_rows_depends_on_the_rarest_class(rare):
    truths = ["ant"] * (80 - rare) + ["bee"] * rare
    predictions = [
        torch.tensor([0.9, 0.05, 0.05] if t == "ant" else [0.05, 0.9, 0.05]) for t in truths
    ]
    figures = {"accuracy": 1.0, "f1_macro": 1.0}
    found = metric_intervals(classify(), predictions, truths, figures)
    edges = {40: 0.025 ** (1 / 80), 8: 0.025 ** ((1 / 8 + 1 / 72) / 4)}
    assert found["f1_macro"] == pytest.approx((edges[rare], 1))
    assert found["accuracy"] == pytest.approx((edges[40], 1))


def test_all_labels_of_all_rows_right_have_an_interval():
    labels = Multilabel()
    labels.target.fit([[name] for name in NAMES])
    predictions = [torch.tensor([0.9, 0.1, 0.9]), torch.tensor([0.1, 0.1, 0.1])] * 20
    truths = [["ant", "cow"], []] * 20
    figures = {"exact_match": 1.0, "f1_micro": 1.0, "f1_macro": 1.0}
    found = metric_intervals(labels, predictions, truths, figures)
    assert found == dict.fromkeys(figures, pytest.approx((0.025 ** (1 / 40), 1)))


def test_few_rows_have_no_interval():
    few = MIN_ROWS - 1
    assert metric_intervals(classify(), probabilities(few), targets(few), {"accuracy": 1.0}) == {}
    assert paired([1.0] * few, [0.0] * few) is None


@pytest.mark.parametrize(("lost", "won"), [(3, 9), (0, 8), (10, 11), (2, 20)])
def test_the_paired_test_of_right_and_wrong_answers_is_a_sign_test(lost, won):
    first = [1.0] * lost + [0.0] * won + [1.0] * 29
    second = [0.0] * lost + [1.0] * won + [1.0] * 29
    _, difference, (low, high), p = paired(first, second)
    assert difference == pytest.approx((won - lost) / len(first))
    assert low <= difference <= high
    assert p == pytest.approx(binomtest(lost, lost + won).pvalue, abs=0.02)


def test_equal_answers_have_no_difference():
    result = paired([0.5] * 20, [0.5] * 20)
    assert result == (20, 0.0, (0.0, 0.0), 1.0)


def test_the_figures_of_classes_are_those_of_scikit_learn():
    predictions, truths = probabilities(), targets()
    scores = classify().metric.class_scores(predictions, truths)
    figures = class_figures(scores, NAMES)
    named = [NAMES[int(each.argmax())] for each in predictions]
    expected = precision_recall_fscore_support(truths, named, labels=NAMES, zero_division=0)
    got = [(each["precision"], each["recall"], each["f1"], each["rows"]) for each in figures]
    assert pytest.approx(np.array(expected)) == np.array(got).T
    assert all(each["interval"][0] <= each["f1"] <= each["interval"][1] for each in figures)
    few = class_figures(scores, NAMES, Blocks([i % 5 for i in range(N)]))
    assert {each["interval"] for each in few} == {None}  # as of the other metrics
    expected_counts = confusion_matrix(truths, named, labels=NAMES)
    assert (confusion_counts(NAMES, named, truths) == expected_counts).all()


def test_a_class_without_rows_has_no_figures_instead_of_zero():
    scores = ClassScores(torch.stack(probabilities()), one_hot(torch.zeros(N, dtype=torch.long), K))
    figures = class_figures(scores, NAMES)
    assert math.isnan(figures[1]["recall"])
    assert figures[1]["interval"] is None
    assert tables.share(figures[1]["recall"]) == "–"


def test_a_class_without_a_mistake_has_no_interval():
    right = one_hot(torch.arange(N) % K, K)
    figures = class_figures(ClassScores(right.float(), right), NAMES)
    assert [(each["f1"], each["interval"]) for each in figures] == [(1, None)] * K


def test_a_calibrated_model_has_no_calibration_error():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 20_000)
    right = rng.uniform(size=20_000) < confidence
    true = torch.tensor(np.where(right, 0, 1))
    both = torch.tensor(np.stack([confidence, 1 - confidence], 1))
    found = calibration(ClassScores(both, one_hot(true, 2)))
    assert found["error"] < 0.02
    assert sum(each["rows"] for each in found["bins"]) == 20_000
    overconfident = calibration(ClassScores(both.clamp(0.99).double(), one_hot(true, 2)))
    assert overconfident["error"] == pytest.approx(0.24, abs=0.02)


@given(st.floats(0, 1), st.integers(1, 10_000))
@settings(max_examples=60, deadline=None)
def test_the_interval_of_a_share_contains_it_and_is_a_share(share, rows):
    low, high = wilson(share, rows)
    assert 0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1


def test_a_higher_threshold_answers_fewer_rows():
    scores = classify().metric.class_scores(probabilities(), targets())
    (effect,) = threshold_effects(scores, NAMES)
    answered = effect["lines"]["answered rows"]
    assert answered == sorted(answered, reverse=True)
    assert answered[0] == 1.0
    assert answered[THRESHOLDS.index(effect["best"])] >= 0.5
    accuracy = classify().metric.metrics(probabilities(), targets(), 0.0)["accuracy"]
    assert effect["lines"]["right answers among them"][0] == pytest.approx(accuracy)


def test_two_classes_have_a_threshold_of_the_rarer_one():
    task = classify(["no", "yes"])
    truths = ["no"] * 30 + ["yes"] * 11
    scores = task.metric.class_scores(probabilities(41, 2), truths)
    effect = threshold_effects(scores, task.target.labels)[1]
    assert effect["title"] == "Threshold of yes"
    assert effect["lines"]["recall"][0] == 1.0
    assert effect["lines"]["precision"][0] == pytest.approx(11 / 41)
    best = max(value for value in effect["lines"]["F1"] if not math.isnan(value))
    assert effect["lines"]["F1"][THRESHOLDS.index(effect["best"])] == best


def test_labels_have_one_threshold_at_which_the_figures_are_those_of_the_task():
    task = Multilabel(threshold=0.3)
    task.target.fit([[name] for name in NAMES])
    truths = [["ant", "cow"], ["bee"], []] * 7
    predictions = list(torch.rand(21, K, generator=torch.manual_seed(7)))
    (effect,) = threshold_effects(task.metric.class_scores(predictions, truths), NAMES)
    figures = task.metric.metrics(predictions, truths, 0.0)
    assert effect["current"] == 0.3
    assert effect["lines"]["F1"][30] == pytest.approx(figures["f1_micro"])


def test_row_scores_are_high_for_good_answers_and_errors_for_numbers():
    labels = Multilabel()
    labels.target.fit([[name] for name in NAMES])
    found = row_scores(
        labels.metric, list(torch.tensor([[0.9, 0.9, 0.1], [0.1, 0.1, 0.1]])), [["ant"], []]
    )
    assert found.values == pytest.approx([2 / 3, 1.0])
    errors = row_scores(Regress().metric, [torch.tensor(3.0)], [5.0])
    assert (errors.values, errors.higher_is_better) == ([2.0], False)
    assert row_scores(classify().metric, [torch.tensor([0.1, 0.8, 0.1])], ["bee"]).values == [1.0]


def test_rows_of_two_runs_are_the_same_if_their_origin_target_and_common_columns_are():
    keys = answers.row_keys(["a/data/t.csv row 1", "a/data/t.csv row 2", "x", "x"], [1, 2, 3, 3])
    moved = answers.row_keys(["/b/a/data/t.csv row 1", "a/data/t.csv row 2"], [1, 9])
    assert keys[0] == moved[0]
    assert keys[1] != moved[1]
    assert len(set(keys)) == 4
    score = {"name": "correct", "higher_is_better": True}
    first = answers.Scores(
        **score,
        values={"k": 1.0, "l": 2.0, "m": 3.0},
        contents=answers.contents({"title": ["one", "two", None], "price": [1.5, 2.5, 3.5]}),
    )
    second = answers.Scores(
        **score,
        values={"l": 7.0, "k": 8.0, "m": 9.0},
        contents=answers.contents({"title": ["2", "one", ""]}),
    )
    assert answers.common_scores(first, second) == ([(1.0, 8.0)], None)
    # Only one of the runs knows which rows are dependent, such as one with data.group.
    grouped = second.model_copy(update={"blocks": [4, 5, 4], "spread": 2.0})
    for pair in ((first, grouped), (grouped, first)):
        assert answers.common_scores(*pair)[1] == ([5], 2.0)
    assert answers.common_scores(grouped, first.model_copy(update={"values": {}})) == ([], None)


def _futures(num_windows: int, horizon: int, num_series: int = 1) -> list[Future]:
    values = torch.zeros(horizon, 1)
    return [
        Future(values, time=start, end=start + horizon - 1, series=name)
        for name in range(num_series)
        for start in range(num_windows)
    ]


def test_overlapping_windows_of_all_series_are_one_block():
    metric = ForecastMetric([0.5])
    blocks = metric.blocks(_futures(23, 2, 3))
    assert blocks.ids == [i // 2 for i in range(23)] * 3
    assert blocks.spread > 1
    # One window of each series: few blocks of time, and each series is one.
    assert metric.blocks(_futures(3, 5, 11)) == (sorted([*range(11)] * 3), 1.0)
    # Windows that do not overlap are independent, and so are those without a time.
    separate = [Future(torch.zeros(2, 1), time=2 * i, end=2 * i + 1) for i in range(5)]
    assert metric.blocks(separate) is None
    assert metric.blocks([Future(torch.zeros(2, 1))] * 3) is None


def test_blocks_of_equal_rows_have_the_interval_of_one_row_each():
    generator = torch.Generator().manual_seed(0)
    right = (torch.rand(50, generator=generator) < 0.7).tolist()
    once = [NAMES[0] if is_right else NAMES[1] for is_right in right]
    figures = {"accuracy": sum(right) / 50}

    def width(copies: int, blocks: Blocks | None = None) -> float:
        named = torch.tensor([NAMES.index(name) for name in once for _ in range(copies)])
        rows = list(one_hot(named, len(NAMES)).float())
        truths = [NAMES[0]] * len(named)
        low, high = metric_intervals(classify(), rows, truths, figures, blocks)["accuracy"]
        return high - low

    ids = [i for i in range(50) for _ in range(7)]
    assert width(7) < 0.5 * width(1)
    assert width(7, Blocks(ids)) == pytest.approx(width(1), rel=0.15)


def test_signs_of_dependent_rows_are_flipped_together():
    generator = np.random.default_rng(0)
    # 9 blocks of 20 equal differences: by rows, their mean seems to differ from 0.
    differences = np.repeat(generator.normal(0.2, 1, 9), 20)
    blocks = Blocks(np.repeat(range(9), 20).tolist())
    zeros = [0.0] * 180
    _, _, narrow, p_rows = paired(zeros, differences)
    _, _, wide, p_blocks = paired(zeros, differences, blocks)
    assert p_rows < 0.001 < 0.05 < p_blocks
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    assert paired(zeros[:100], differences[:100], Blocks(blocks.ids[:100])) is None
