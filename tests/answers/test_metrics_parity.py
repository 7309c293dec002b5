"""The metrics of `dxn evaluate` are those of scikit-learn for the written predictions."""

import json
import random

import pytest
import scipy.stats
import sklearn.metrics
from helpers.newcomer import TEXT, TINY, printed, read_csv, write_csv

NAMES = ["a", "b", "c"]
MODEL = [*TINY, *TEXT, "preset=plain", "baseline=none", "report=false", "trainer.epochs=1"]


def noise(count, seed):
    """Texts that tell little about the targets, so that the answers are wrong and right."""
    rand = random.Random(seed)
    return [" ".join(rand.choices(["apple", "pear", "plum", "fig"], k=3)) for _ in range(count)]


def targets(kind, count, seed):
    rand = random.Random(seed)
    if kind == "numbers":
        return [f"{rand.gauss(5, 2):.2f}" for _ in range(count)]
    if kind == "labels":
        return ["|".join(n for n in NAMES if rand.random() < 0.4) or "a" for _ in range(count)]
    names = NAMES[:2] if kind == "binary" else NAMES
    return rand.choices(names, weights=[6, 2, 1][: len(names)], k=count)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Train a model, evaluate it on other rows, and return its metrics and its predictions."""

    def evaluate(capsys, kind, change=lambda rows: rows):
        folder = tmp_path_factory.mktemp(kind)
        for name, count in (("train", 120), ("new", 90)):
            texts = noise(count, f"{name} texts")
            rows = list(zip(texts, targets(kind, count, name), strict=True))
            rows = change(rows) if name == "new" else rows
            write_csv(folder / f"{name}.csv", ["text", "y"], rows)
        run, output = folder / "run", folder / "evaluation"
        printed(capsys, "train", folder / "train.csv", "target=y", *MODEL, f"run={run}")
        table = printed(capsys, "evaluate", f"run={run}", folder / "new.csv", f"output={output}")
        metrics = json.loads((output / "metrics.json").read_text())
        figures = {k.partition("/")[2]: v for k, v in metrics.items() if "[" not in k}
        return figures, read_csv(output / "predictions.csv"), table

    return evaluate


def close(value):
    return pytest.approx(value, abs=2e-3)  # the file has few digits of each probability


def test_the_metrics_of_two_classes_are_those_of_scikit_learn(evaluated, capsys):
    figures, rows, table = evaluated(capsys, "binary")
    true, predicted = [r["target"] for r in rows], [r["prediction"] for r in rows]
    scores, is_b = [float(r["p(b)"]) for r in rows], [r["target"] == "b" for r in rows]
    f1 = sklearn.metrics.f1_score(true, predicted, average=None, labels=["a", "b"], zero_division=0)
    assert figures["accuracy"] == close(sklearn.metrics.accuracy_score(true, predicted))
    assert figures["roc_auc"] == close(sklearn.metrics.roc_auc_score(is_b, scores))
    assert figures["average_precision"] == close(
        sklearn.metrics.average_precision_score(is_b, scores)
    )
    assert figures["log_loss"] == close(sklearn.metrics.log_loss(is_b, scores))
    assert figures["balanced_accuracy"] == close(
        sklearn.metrics.balanced_accuracy_score(true, predicted)
    )
    assert [figures["f1:a"], figures["f1:b"]] == close(f1.tolist())
    # Neither class is rare, so the table is narrow. It has the intervals of the metrics.
    assert "roc_auc" not in table and "95% from" in table


def test_the_metrics_of_three_classes_are_those_of_scikit_learn(evaluated, capsys):
    figures, rows, _ = evaluated(capsys, "classes")
    true, predicted = [r["target"] for r in rows], [r["prediction"] for r in rows]
    scores = [[float(r[f"p({name})"]) for name in NAMES] for r in rows]
    sums = [sum(row) for row in scores]
    scores = [[p / total for p in row] for row, total in zip(scores, sums, strict=True)]
    f1 = sklearn.metrics.f1_score(true, predicted, average="macro")
    assert figures["f1_macro"] == close(f1)
    area = sklearn.metrics.roc_auc_score(true, scores, multi_class="ovr", labels=NAMES)
    assert figures["roc_auc"] == close(area)
    indicator = [[r["target"] == name for name in NAMES] for r in rows]
    assert figures["average_precision"] == close(
        sklearn.metrics.average_precision_score(indicator, scores)
    )
    assert figures["log_loss"] == close(sklearn.metrics.log_loss(true, scores, labels=NAMES))


def test_the_metrics_of_labels_are_those_of_scikit_learn(evaluated, capsys):
    figures, rows, _ = evaluated(capsys, "labels")
    true = [[name in r["target"].split("|") for name in NAMES] for r in rows]
    predicted = [[name in r["prediction"].split("|") for name in NAMES] for r in rows]
    scores = [[float(r[f"p({name})"]) for name in NAMES] for r in rows]
    assert figures["exact_match"] == close(sklearn.metrics.accuracy_score(true, predicted))
    for average in ("micro", "macro"):
        f1 = sklearn.metrics.f1_score(true, predicted, average=average, zero_division=0)
        assert figures[f"f1_{average}"] == close(f1)
    assert figures["roc_auc"] == close(sklearn.metrics.roc_auc_score(true, scores))
    assert figures["average_precision"] == close(
        sklearn.metrics.average_precision_score(true, scores)
    )


def test_the_metrics_of_numbers_are_those_of_scikit_learn(evaluated, capsys):
    figures, rows, table = evaluated(capsys, "numbers")
    true, predicted = [float(r["target"]) for r in rows], [float(r["prediction"]) for r in rows]
    expected = {
        "rmse": sklearn.metrics.root_mean_squared_error(true, predicted),
        "mae": sklearn.metrics.mean_absolute_error(true, predicted),
        "r2": sklearn.metrics.r2_score(true, predicted),
        "median_absolute_error": sklearn.metrics.median_absolute_error(true, predicted),
        "spearman": scipy.stats.spearmanr(true, predicted).statistic,
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected, abs=2e-3)
    assert "95% from" in table and "spearman" not in table


def test_a_split_with_one_class_has_no_roc_auc_and_a_note(evaluated, capsys):
    figures, _, table = evaluated(capsys, "binary", lambda rows: [(t, "a") for t, _ in rows])
    assert figures["accuracy"] > 0.5 and "roc_auc" not in figures
    assert figures["f1:a"] > 0.5 and "nan" not in table.lower()


def test_equal_numbers_have_no_r2_and_the_reason_is_printed(evaluated, capsys):
    figures, _, table = evaluated(capsys, "numbers", lambda rows: [(t, "3.5") for t, _ in rows])
    assert "r2" not in figures and figures["rmse"] > 0
    assert "note: r2 is not defined for these rows: all targets are 3.5" in table


def test_classes_that_the_model_does_not_know_count_as_wrong(evaluated, capsys):
    half = lambda rows: [(t, "a" if i % 2 else "yak") for i, (t, _) in enumerate(rows)]  # noqa: E731
    figures, rows, _ = evaluated(capsys, "binary", half)
    true, predicted = [r["target"] for r in rows], [r["prediction"] for r in rows]
    right = sum(t == p for t, p in zip(true, predicted, strict=True))
    assert figures["accuracy"] == close(right / 90)
    f1 = sklearn.metrics.f1_score(true, predicted, average="macro", zero_division=0)
    assert figures["f1_macro"] == close(f1)


def test_a_single_row_has_no_correlation_and_causes_no_warning(evaluated, capsys):
    figures, rows, _ = evaluated(capsys, "numbers", lambda rows: rows[:1])
    error = abs(float(rows[0]["prediction"]) - float(rows[0]["target"]))
    assert figures["mae"] == figures["median_absolute_error"] == close(error)
    assert "spearman" not in figures and "r2" not in figures
