"""The metric that selects the epoch, metrics of the user, and rare classes, by the command line."""

import json
import random
import sys

import pytest
from helpers.newcomer import TEXT, TINY, printed, read_csv, refused, write_csv
from helpers.runs import log_of, metrics_of

import dxn
from dxn.core.errors import UserError

MODEL = [*TINY, *TEXT, "preset=plain", "baseline=none", "report=false", "head.dropout=0"]
DATA = ["rare.csv", "target=y", "data.seed=0"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The folder of a table with a rare class, which a word of its texts hints at."""
    folder = tmp_path_factory.mktemp("rare")
    rand = random.Random(0)
    rows = []
    for i in range(400):
        is_rare = i < 24
        words = rand.choices(["apple", "pear", "plum", "fig"], k=3)
        if rand.random() < (0.7 if is_rare else 0.05):
            words[0] = "win"
        rows.append([f"{' '.join(words)} {i}", "spam" if is_rare else "ham"])
    rand.shuffle(rows)
    write_csv(folder / "rare.csv", ["text", "y"], rows)
    return folder


@pytest.fixture
def rare(table, monkeypatch):
    monkeypatch.chdir(table)
    return table


def trained(capsys, tmp_path, *options, name="run"):
    """The output, the metrics and the validation metrics by epoch of a training."""
    run = tmp_path / name
    output = printed(capsys, "train", *DATA, *MODEL, "trainer.epochs=6", f"run={run}", *options)
    epochs = [row for row in log_of(run) if "validation/loss" in row]
    return output, metrics_of(run), epochs


def best(epochs, metric, choose=max):
    """The epoch with the best value of a metric, of equal values the one with the lowest loss."""
    value = choose(row[f"validation/{metric}"] for row in epochs)
    equal = [row for row in epochs if row[f"validation/{metric}"] == value]
    return min(equal, key=lambda row: row["validation/loss"])["epoch"]


def test_the_table_of_a_rare_class_has_its_f1_and_the_metrics_of_its_ranking(
    rare, tmp_path, capsys
):
    output, metrics, _ = trained(capsys, tmp_path, "trainer.epochs=1")
    header = next(line for line in output.splitlines() if "inputs" in line)
    assert all(name in header for name in ("roc_auc", "average_precision", "f1:spam"))
    assert "f1:ham" not in header and "f1:ham" in str(list(metrics))
    assert "f1:spam" in output.partition("inputs")[0]  # in the lines of the epochs, too


def test_a_monitored_metric_selects_another_epoch_than_the_accuracy(rare, tmp_path, capsys):
    fast = ["optimizer.lr=0.03", "trainer.patience=0", "trainer.epochs=8"]
    _, metrics, epochs = trained(capsys, tmp_path, *fast, "trainer.monitor=f1:spam")
    assert metrics["best_epoch"] == best(epochs, "f1:spam") != best(epochs, "accuracy")
    assert metrics["validation/best"] == max(row["validation/f1:spam"] for row in epochs) > 0
    # The model folder knows the metric, so that dxn report and dxn evaluate name it, too.
    task = dxn.load(tmp_path / "run").task
    assert task.metric.monitored == "f1:spam" and task.metric.higher_is_better


def test_lower_values_of_an_error_are_better_if_it_is_monitored(rare, tmp_path, capsys):
    _, metrics, epochs = trained(capsys, tmp_path, "trainer.monitor=log_loss")
    assert metrics["best_epoch"] == best(epochs, "log_loss", min)


def test_a_wrong_name_is_answered_with_all_names_before_the_training(rare, tmp_path, capsys):
    run = tmp_path / "run"
    error = refused(capsys, "train", *DATA, *MODEL, "trainer.monitor=rocauc", f"run={run}")
    assert "trainer.monitor: head=classify has no metric 'rocauc'" in error
    assert "accuracy, log_loss, balanced_accuracy, f1_macro, roc_auc, average_precision" in error
    assert "did you mean roc_auc?" in error and not run.exists()


def test_a_metric_that_the_validation_rows_do_not_define_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split, names in (("train", "ab"), ("validation", "a"), ("test", "ab")):
        rows = [[f"{names[i % len(names)]} {i}", names[i % len(names)]] for i in range(30)]
        write_csv(f"{split}.csv", ["text", "y"], rows)
    files = [f"data.{split}={split}.csv" for split in ("train", "validation", "test")]
    error = refused(capsys, "train", *files, "target=y", *MODEL, "trainer.monitor=roc_auc")
    assert "roc_auc is not defined for the validation split" in error and "'a'" in error


def test_monitoring_needs_a_validation_split(rare, tmp_path, capsys):
    options = ["trainer.monitor=f1_macro", "data.fractions=[0.8,0,0.2]"]
    error = refused(capsys, "train", *DATA, *MODEL, *options)
    assert "trainer.monitor: got f1_macro, but there is no validation split" in error


COST = """
class Cost:
    higher_is_better = False

    def __init__(self, *, missed: float = 5.0):
        self.missed = missed

    def __call__(self, predictions, targets):
        pairs = zip(predictions, targets, strict=True)
        wrong = [target for predicted, target in pairs if predicted != target]
        return sum(self.missed if target == "spam" else 1.0 for target in wrong) / len(targets)
"""


def cost_of(rows, missed):
    wrong = [row["target"] for row in rows if row["prediction"] != row["target"]]
    return sum(missed if target == "spam" else 1.0 for target in wrong) / len(rows)


def test_a_metric_of_the_users_package_is_shown_saved_and_monitored(
    rare, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "own_shop.py").write_text(COST)
    options = ["trainer.metrics.cost._target_=own_shop.Cost", "trainer.metrics.cost.missed=7"]
    error = refused(capsys, "train", *DATA, *MODEL, *options)
    assert "if you trust the code of this package, add trust=[own_shop]" in error
    trust = "trust=[own_shop]"
    output, metrics, epochs = trained(capsys, tmp_path, *options, trust, "trainer.monitor=cost")
    rows = read_csv(tmp_path / "run/predictions.csv")
    assert metrics["test/cost"] == pytest.approx(cost_of(rows, 7))
    assert metrics["best_epoch"] == best(epochs, "cost", min)
    assert "test/cost[always ham]" in metrics and " cost " in output
    evaluation = tmp_path / "evaluation"
    run = f"run={tmp_path / 'run'}"
    printed(capsys, "evaluate", run, trust, f"output={evaluation}")
    saved = json.loads((evaluation / "metrics.json").read_text())
    assert saved["test/cost"] == pytest.approx(metrics["test/cost"])
    assert "trust=[own_shop]" in refused(capsys, "evaluate", run)


def python_options(folder):
    model = {"dim": 16, "report": False, "baseline": "none", "preset": "plain"}
    backbone = {"depth": 1, "num_heads": 2}
    trainer = {"epochs": 1, "precision": "float32", "device": "cpu"}
    return {"target": "y", "run": folder, "backbone": backbone, "trainer": trainer, **model}


def test_functions_of_a_program_are_metrics_and_get_probabilities(rare, tmp_path):
    def share(predictions, targets):
        assert set(targets) <= {"ham", "spam"} and len(predictions) == len(targets)
        return predictions.count("ham") / len(predictions)

    def mean(predictions, targets, probabilities):
        return sum(row["spam"] for row in probabilities) / len(probabilities)

    run = dxn.train(
        rare / "rare.csv",
        metrics={"share": share, "mean_spam": mean},
        **python_options(tmp_path / "run"),
    )
    rows = read_csv(tmp_path / "run/predictions.csv")
    expected = sum(float(row["p(spam)"]) for row in rows) / len(rows)
    assert run.metrics["test/mean_spam"] == pytest.approx(expected, rel=1e-3)
    assert run.metrics["test/share"] == sum(r["prediction"] == "ham" for r in rows) / len(rows)
    assert "share" in repr(run) and "balanced_accuracy" not in repr(run)


def test_a_resumed_run_says_that_a_function_of_a_program_is_missing(rare, tmp_path, capsys):
    options = {**python_options(tmp_path / "run"), "trainer__monitor": "own"}
    dxn.train(rare / "rare.csv", metrics={"own": lambda predictions, targets: 1.0}, **options)
    error = refused(capsys, "train", f"resume={tmp_path / 'run'}", "trainer.epochs=2")
    assert "trainer.monitor: head=classify has no metric 'own'; choose one of" in error


def test_after_a_forced_change_the_values_of_two_metrics_are_not_compared(rare, tmp_path, capsys):
    # The accuracy of the first epoch is above every balanced accuracy of the rare class.
    trained(capsys, tmp_path, "trainer.epochs=1", "trainer.monitor=accuracy")
    resumed = [
        f"resume={tmp_path / 'run'}",
        "trainer.epochs=3",
        "trainer.monitor=balanced_accuracy",
    ]
    assert "resume.force=true" in refused(capsys, "train", *resumed)
    printed(capsys, "train", *resumed, "resume.force=true")
    metrics = metrics_of(tmp_path / "run")
    epochs = [row for row in log_of(tmp_path / "run") if "validation/loss" in row][1:]
    assert metrics["best_epoch"] == best(epochs, "balanced_accuracy")
    assert metrics["validation/best"] == max(r["validation/balanced_accuracy"] for r in epochs)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"own": lambda predictions, targets: targets[0] + 1}, "metrics.own: failed with TypeErr"),
        ({"own": lambda predictions, targets: "much"}, "metrics.own: failed with ValueError"),
        ({"accuracy": lambda predictions, targets: 1.0}, "head=classify has a metric of this name"),
        ({"a/b": lambda predictions, targets: 1.0}, "must consist of letters"),
        ({"own": 3}, "metrics.own: must be a function of predictions and targets, got 3"),
        ({"own": "a.Cost"}, "got 'a.Cost'; write metrics.own._target_=a.Cost"),
    ],
)
def test_a_metric_that_does_not_work_is_refused_before_the_training(
    rare, tmp_path, metrics, message
):
    with pytest.raises(UserError) as error:
        dxn.train(rare / "rare.csv", metrics=metrics, **python_options(tmp_path / "run"))
    assert message in str(error.value) and not (tmp_path / "run").exists()


def test_rare_classes_are_named_with_their_rows_before_the_training(rare, tmp_path, capsys):
    sentence = (
        "warning: 1 of 2 classes is rare, so single rows decide about the metrics: 'spam' has"
    )
    check = printed(capsys, "check", *DATA, f"output={tmp_path / 'bad.csv'}")
    line = next(line for line in check.splitlines() if line.startswith(sentence))
    assert " in train, " in line and " in validation, " in line and line.endswith(" in test")
    output, _, _ = trained(capsys, tmp_path, "trainer.epochs=1")
    assert line in output.splitlines()


def test_several_rare_classes_are_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    targets = [*["a", "b"] * 200, *[f"rare {i % 5}" for i in range(30)]]
    rows = [[f"text {i}", target] for i, target in enumerate(targets)]
    write_csv("many.csv", ["text", "y"], rows)
    output = printed(capsys, "check", "many.csv", "target=y")
    (line,) = [line for line in output.splitlines() if "rare, so" in line]
    assert line.startswith("warning: 5 of 7 classes are rare") and line.endswith("; and 2 more")


def test_balanced_classes_are_not_rare_and_have_a_narrow_table(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [[f"{'abc'[i % 3]} {i}", "abc"[i % 3]] for i in range(300)]
    write_csv("even.csv", ["text", "y"], rows)
    options = ["even.csv", "target=y", *MODEL, "trainer.epochs=1", f"run={tmp_path / 'run'}"]
    output = printed(capsys, "train", *options)
    header = next(line for line in output.splitlines() if "inputs" in line)
    assert header.split("┃")[2:-1] == [f" {name} " for name in _padded(output, header)]
    assert "rare" not in output and "roc_auc" not in output
    assert "test/roc_auc" in metrics_of(tmp_path / "run")


def _padded(output, header):
    widths = [len(cell) - 2 for cell in header.split("┃")[2:-1]]
    names = ["loss", "accuracy", "f1_macro"]
    return [name.rjust(width) for name, width in zip(names, widths, strict=True)]


def test_classes_with_odd_names_have_figures_with_readable_names(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["a/b [c]", "new\nline", "L" * 90, "L" * 91]
    rows = [[f"{i % 4} {i}", names[i % 4]] for i in range(160)]
    write_csv("odd.csv", ["text", "y"], rows)
    run = tmp_path / "run"
    printed(capsys, "train", "odd.csv", "target=y", *MODEL, "trainer.epochs=1", f"run={run}")
    found = [
        name for name in metrics_of(run) if name.startswith("test/f1:") and "always" not in name
    ]
    assert found[2:] == ["test/f1:a/b (c)", "test/f1:new line"]
    assert all(len(name) < 50 for name in found) and len(found) == 4
