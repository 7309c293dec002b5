"""Trainings on series from the command line: archives, long and wide tables, waves."""

import csv
import json
import math
import random

import pytest
from helpers.data import EXAMPLES
from helpers.runs import SMALL, metrics_of, refused, train

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.core.files import write_sums

SERIES = ["adapters=[series]", *SMALL]


def write_long(path, num_series=37, *, with_label=True, seed=0):
    """A long table: the label says which of two curves a series follows."""
    rand = random.Random(seed)
    columns = ["patient", "hour", "hr", "bp", *["outcome"] * with_label]
    lines = [columns]
    for i in range(num_series):
        label = rand.choice(["well", "ill"])
        hours = sorted(rand.sample(range(31), rand.randint(11, 23)))
        rand.shuffle(hours)
        for hour in hours:
            value = math.sin(hour / 3) * (1 if label == "ill" else -1) + rand.gauss(0, 0.1)
            other = "" if rand.random() < 0.2 else f"{rand.gauss(5, 1):.2f}"
            lines.append([f"p{i}", hour, f"{value:.3f}", other, *[label] * with_label])
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)
    return path


LONG = ["data.long.id=patient", "data.long.time=hour", "data.long.values=[hr,bp]"]


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("series")
    path = write_long(folder / "long.csv", 61)
    options = [f"data.path={path}", "data=table", *LONG, "data.long.step=1"]
    options += [
        "data.fractions=[0.6,0.1,0.3]",
        "data.target=outcome",
        "trainer.epochs=8",
        "optimizer.lr=0.01",
    ]
    train(folder / "run", *SERIES, *options)
    return folder


def test_a_long_table_is_learned(long_run):
    assert metrics_of(long_run / "run")["test/accuracy"] > 0.7


def test_a_new_long_table_is_rearranged_like_that_of_the_training(long_run, tmp_path, capsys):
    new = write_long(tmp_path / "new.csv", 5, with_label=False, seed=1)
    answers = tmp_path / "answers.csv"
    assert main(["predict", f"run={long_run / 'run'}", f"input={new}", f"output={answers}"]) == 0
    rows = list(csv.DictReader(answers.read_text(encoding="utf-8").splitlines()))
    assert [row["patient"] for row in rows] == [f"p{i}" for i in range(5)]
    assert {row["prediction"] for row in rows} <= {"ill", "well"}
    labelled = write_long(tmp_path / "labelled.csv", 13, seed=2)
    for data in ([f"input={labelled}"], ["data=table", f"data.path={labelled}"]):
        assert main(["evaluate", f"run={long_run / 'run'}", *data]) == 0
        assert ": 13 rows" in capsys.readouterr().out.replace("\n", " ")


def test_a_new_table_without_the_columns_of_the_layout_is_refused(long_run, tmp_path, capsys):
    path = tmp_path / "other.csv"
    path.write_text("patient,hour,hr\np0,1,2\n", encoding="utf-8")
    lines = refused(capsys, ["predict", f"run={long_run / 'run'}", f"input={path}"])
    assert "no column 'bp' in other.csv" in lines[0]


def test_a_model_folder_with_a_wrong_layout_is_refused(long_run, tmp_path, capsys):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (long_run / "run" / "model").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = folder / "config.yaml"
    text = config.read_text(encoding="utf-8").replace("  long:", "  tall:")
    config.write_text(text, encoding="utf-8")
    write_sums(folder)
    lines = refused(capsys, ["predict", f"run={folder}", "input.series=1 2 3 4"])
    assert "layout must be one of" in lines[0]


def test_single_series_in_python_and_from_the_command_line(long_run, tmp_path, capsys):
    model = dxn.load(long_run / "run")
    values = [[math.sin(hour / 3), 5.0] for hour in range(24)]
    assert model.predict(series=values)["prediction"] == "ill"
    with pytest.raises(UserError, match="same number of channels, got 1 instead of 2"):
        model.predict(series=[1.0, 2.0, 3.0])
    text = json.dumps(values)
    output = tmp_path / "attention"
    for command in (
        ["predict", f"run={long_run / 'run'}", f"input.series={text}"],
        ["attend", f"run={long_run / 'run'}", f"input.series={text}", f"output={output}"],
        [
            "tokenize",
            f"run={long_run / 'run'}",
            f"input.series={text}",
            f"output={tmp_path / 'tokens.png'}",
        ],
    ):
        assert main(command) == 0
    assert (output / "attention.html").exists() and (tmp_path / "tokens.png").exists()
    assert "patches of 1 time steps; 24 time steps, 2 channels" in capsys.readouterr().out


def test_independent_channels_are_drawn_and_pretrained(tmp_path, capsys):
    path = write_long(tmp_path / "long.csv")
    options = [f"data.path={path}", "data=table", *LONG, "data.target=outcome"]
    options += ["adapters.series.channels=independent", "trainer.epochs=1"]
    run = tmp_path / "run"
    train(run, *SERIES, *options, "pretrain=masked", "pretrain.epochs=1")
    values = json.dumps([[1, None], [2, 4], [3, 5], [None, None], [2, 1]])
    output = tmp_path / "attention"
    assert main(["attend", f"run={run}", f"input.series={values}", f"output={output}"]) == 0
    assert "channel" in (output / "attention.html").read_text(encoding="utf-8")


def test_a_wide_table_is_checked_and_trained(tmp_path, capsys):
    rand = random.Random(0)
    lines = ["name,t_0,t_1,t_2,t_3,t_4,t_5,label"]
    for i in range(41):
        values = ["" if rand.random() < 0.2 else f"{rand.gauss(i % 2, 1):.2f}" for _ in range(6)]
        lines.append(f"s{i},{','.join(values)},{'ab'[i % 2]}")
    path = tmp_path / "wide.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    options = ["data=table", f"data.path={path}", "data.wide=t_*"]
    report = f"output={tmp_path / 'bad.jsonl'}"
    assert main(["check", "adapters=[series]", *options, report]) == 0
    assert "6 columns of each row, t_0 to t_5" in capsys.readouterr().out.replace("\n", " ")
    run = tmp_path / "run"
    train(run, *SERIES, *options, "trainer.epochs=1")
    assert main(["predict", f"run={run}", f"input={path}"]) == 0
    bad = tmp_path / "bad.csv"
    bad.write_text(path.read_text(encoding="utf-8").replace("s3,", "s3,x", 1), encoding="utf-8")
    lines = refused(capsys, ["predict", f"run={run}", f"input={bad}"])
    assert "bad.csv row 5: series: must contain only numbers, got 'x" in lines[0]


def test_eight_waves_are_overfitted(tmp_path, capsys):
    options = [
        EXAMPLES,
        "data=waves",
        "data.num_train=8",
        "data.num_validation=7",
        "data.num_test=7",
    ]
    options += ["debug=overfit", "trainer.epochs=40", "optimizer.lr=0.01"]
    train(tmp_path / "run", *SERIES, *options)
    assert "8 of 8 learned" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_the_phase_between_two_channels_is_learned(tmp_path):
    # tests/examples/test_waves.py shows that one channel says nothing.
    options = [EXAMPLES, "data=waves", "data.num_train=400", "data.corrupt=0", "data.missing=0.05"]
    options += ["trainer.epochs=5", "optimizer.lr=0.005", "dim=32", "backbone.num_heads=4"]
    metrics = train(tmp_path / "run", *SERIES, *options, "data.num_test=101")
    assert metrics["test/accuracy"] > 0.5  # chance is 25%
