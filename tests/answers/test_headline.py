"""The metrics that a run shows first are those of the model that was asked for, and say whose."""

import json

import pytest
import yaml
from helpers.runs import SMALL, metrics_of, train

import dxn
from dxn.cli import main
from dxn.core.display import number

# Far too few steps to learn anything, so that the baseline is the better model.
OPTIONS = [*SMALL, "trainer.epochs=1", "optimizer.lr=1e-5", "preset=plain", "report=false"]


def table_of(path, count=60):
    """A table of texts whose class is that of one of their words, which a linear model learns."""
    words = {"good": ["fine", "lovely", "great"], "bad": ["cold", "dull", "awful"]}
    rows = [
        f"the {words[label][i // 2 % 3]} film number {i},{label}"
        for i in range(count)
        for label in [["good", "bad"][i % 2]]
    ]
    path.write_text("\n".join(["text,label", *rows]))
    return str(path)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """The folder and the output of a training whose baseline answers, too."""
    folder = tmp_path_factory.mktemp("headline")
    table = table_of(folder / "texts.csv")
    train(folder / "run", table, "target=label", *OPTIONS)
    return folder / "run", table


@pytest.mark.parametrize(
    "options",
    [
        ["weights={run}", "finetune.freeze=all"],
        ["finetune.lora_rank=2"],
        ["pretrain=masked"],
    ],
)
def test_a_model_that_starts_from_other_weights_answers_alone(options, mixed, tmp_path, capsys):
    run, table = mixed
    chosen = [option.format(run=run) for option in options]
    metrics = train(tmp_path / "run", table, "target=label", *OPTIONS, *chosen)
    assert metrics["test/accuracy"] < 1  # a baseline would answer all rows
    assert not {"answers", "baseline", "mix"} & metrics.keys()
    assert "baseline=always trains one" in " ".join(capsys.readouterr().out.split())
    assert not list((tmp_path / "run" / "model").glob("stack.*"))


def test_a_baseline_beside_given_weights_is_mixed_in_only_if_asked_for(mixed, tmp_path):
    run, table = mixed
    options = [f"weights={run}", "finetune.freeze=all", "baseline=always"]
    metrics = train(tmp_path / "run", table, "target=label", *OPTIONS, *options)
    assert metrics["answers"] == "mixture"
    assert metrics["test/accuracy"] == metrics["test/accuracy[baseline alone]"] == 1
    assert metrics["test/accuracy[transformer alone]"] < 1


def test_the_final_table_shows_both_parts_and_names_the_one_that_answers(mixed, tmp_path, capsys):
    run, _ = mixed
    assert main(["evaluate", f"run={run}", f"output={tmp_path / 'again'}"]) == 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    rows = {line.split("│")[1].strip(): line.split("│")[2:] for line in table}
    assert list(rows)[:3] == ["mixture (answers)", "transformer alone", "baseline alone"]
    assert metrics_of(tmp_path / "again")["answers"] == "mixture"


def test_a_transformer_that_answers_has_one_row(mixed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("dxn.stacking.train.fit_mix", lambda *_, **__: (0.5, 0.0))
    metrics = train(tmp_path / "run", mixed[1], "target=label", *OPTIONS)
    output = capsys.readouterr().out
    assert metrics["answers"] == "transformer alone"
    assert output.count("transformer alone") == 1
    assert "│ transformer alone (answers)" in output and "│ baseline alone " in output


def test_a_run_in_python_shows_both_parts(mixed):
    run = dxn.Run(mixed[0])
    assert "test, mixture (answers): loss" in repr(run)
    assert "test, transformer alone: loss" in repr(run)
    assert "test, baseline alone: loss" in repr(run)
    assert "mixture (answers)" in run._repr_html_()


def test_the_model_card_shows_both_parts(mixed):
    card = (mixed[0] / "model" / "README.md").read_text()
    metrics = metrics_of(mixed[0])
    formula = f"{metrics['mix'][0]:.2f} x transformer + {metrics['mix'][1]:.2f} x baseline"
    assert f"- answers: the mixture {formula}" in card
    own, other = (metrics[f"test/accuracy[{part} alone]"] for part in ("transformer", "baseline"))
    parts = f"(transformer alone: {number(own)}, baseline alone: {number(other)}, always"
    assert f"- test accuracy: 1 {parts}" in card


def test_the_report_shows_both_parts(mixed):
    assert main(["report", f"run={mixed[0]}"]) == 0
    page = (mixed[0] / "report.html").read_text()
    assert "of the mixture, which answers" in page
    assert "mixture (answers)" in page
    assert "for comparison: transformer alone" in page


def test_an_ensemble_shows_both_parts(mixed, tmp_path):
    metrics = train(tmp_path / "run", mixed[1], "target=label", *OPTIONS, "ensemble=2")
    assert metrics["answers"] == "mixture"
    members = [
        json.loads((tmp_path / "run" / "members" / str(i) / "metrics.json").read_text())
        for i in range(2)
    ]
    alone = "test/accuracy[transformer alone]"
    assert metrics["test/accuracy[baseline alone]"] == 1
    lowest, highest = sorted(member[alone] for member in members)
    assert lowest - 0.3 <= metrics[alone] <= highest + 0.3
    assert yaml.safe_load((tmp_path / "run/model/config.yaml").read_text())["members"] == 2
