"""The record of results: the flat metrics of metrics.json, and the rows of a table."""

import json

from dxn.core.results import Results, flat, read_results

FIGURES = {
    "a+b": {"accuracy": 0.5},
    "all": {"accuracy": 0.75, "f1:x[y]": 0.7},
    "always [x]": {"accuracy": 0.25},
}


def results(**options):
    fields = {
        "split": "test",
        "task": "classify",
        "monitored": "accuracy",
        "higher_is_better": True,
        "metrics": {**flat("test", FIGURES), "validation/best": 0.9, "validation/loss": 1.5},
        "subsets": ["a+b", "all"],
        "references": ["always [x]"],
    }
    return Results(**(fields | options))


def test_a_record_is_read_back_as_it_was_written(tmp_path):
    record = results(
        intervals={"all": {"accuracy": (0.5, 1.0)}}, data={"rows": {"train": 7}}, mix=[0.5, 0.25]
    )
    record.write(tmp_path)
    assert read_results(tmp_path) == record
    assert read_results(tmp_path / "missing") is None


def test_the_metrics_of_all_inputs_are_the_first_lines_of_the_file(tmp_path):
    results().write(tmp_path)
    content = json.loads((tmp_path / "metrics.json").read_text())
    assert list(content)[:4] == [
        *("test/accuracy", "test/f1:x[y]"),
        *("test/accuracy[a+b]", "test/accuracy[always [x]]"),
    ]


def test_metrics_are_returned_by_row_of_the_table():
    assert results().figures() == FIGURES
    assert results().figures("validation")["all"] == {"loss": 1.5}


def test_what_answers_has_one_row_with_its_name():
    assert list(results().headings().values()) == ["a+b", "all", "always [x]"]
    assert results(inputs=["text"]).headings()["all"] == "text"
    mixture = results(references=["transformer alone"], answers="mixture").headings()
    assert list(mixture.values()) == ["a+b", "mixture (answers)", "transformer alone"]
    alone = results(references=["transformer alone"], answers="transformer alone").headings()
    assert list(alone.values()) == ["a+b", "transformer alone (answers)"]


def test_metrics_of_an_evaluated_validation_split_are_those_of_the_complete_model():
    training = results(epochs=3, data={"name": "t.csv"})
    evaluation = results(split="validation", metrics={"validation/loss": 0.5}, evaluated=5)
    joined = evaluation.of_training(training)
    assert joined.metrics["validation/loss"] == 0.5
    assert joined.metrics["validation/best"] == 0.9
    assert (joined.evaluated, joined.epochs, joined.data.name) == (5, 3, "t.csv")
