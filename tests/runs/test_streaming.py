"""Trainings on streamed rows: resume, two processes, and options that do not fit."""

import itertools
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.hub import offline
from helpers.ranks import run_ranks
from helpers.runs import (
    PLAIN,
    SMALL,
    interrupt,
    log_of,
    refused,
    same_tensors,
    train,
    weights_of,
)
from helpers.shards import SIZES, write_tars
from helpers.streams import copy_ahead

import dxn

ASKED = [
    *("data=hub", "data.streaming=true", "data.target=label.txt", "data.shuffle_buffer=9"),
    *("trainer.epochs=2", "trainer.log_every=1", "report=false", *PLAIN, *SMALL),
    *("batch_size=4", "backbone.dropout=0.1", "adapters.image.augment.crop=2"),
]

# Two processes that write which rows they have read in each epoch.
SCRIPT = """
import json, os, sys
from collections import defaultdict
from pathlib import Path
from dxn.cli import main
from dxn.training.loop import Fit

rows = defaultdict(list)
add = Fit.add_gradients

def counted(trainer, batch, **options):
    if not batch.get("#filler"):
        rows[trainer.state.epoch] += batch["#index"]
    return add(trainer, batch, **options)

Fit.add_gradients = counted
assert main(["train", *sys.argv[2:]]) == 0
Path(sys.argv[1], os.environ["RANK"] + ".json").write_text(json.dumps(rows))
"""


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory):
    with offline(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def name(tmp_path_factory):
    return write_tars(tmp_path_factory.mktemp("shards") / "tar")


@pytest.fixture(scope="module")
def whole(name, tmp_path_factory):
    """A training that is not interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(
        folder,
        *ASKED,
        f"data.name={name}",
        "trainer.checkpoint_minutes=1e-9",
        "loader.num_workers=2",
    )
    return folder


def test_a_model_is_trained_and_used(whole):
    metrics = json.loads((whole / "metrics.json").read_text())
    rows = metrics["data"]["rows"]
    assert sum(rows.values()) == sum(SIZES)
    steps = [row["step"] for row in log_of(whole) if "train/loss" in row]
    assert steps == list(range(1, len(steps) + 1))
    # Two workers have rows for about two batches more than one.
    assert 2 * rows["train"] / 4 <= len(steps) <= 2 * (rows["train"] / 4 + 2)
    answer = dxn.load(whole).predict(txt="picture number 3")
    assert answer["prediction"] in ("red", "green", "blue")


@pytest.mark.parametrize("ahead", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_an_interrupted_training_continues_and_loses_at_most_the_shuffle_buffer(
    whole, name, tmp_path, monkeypatch, ahead
):
    if ahead:
        copy_ahead(monkeypatch)
    folder = tmp_path / "run"
    asked = [*ASKED, f"data.name={name}", "trainer.checkpoint_minutes=1e-9", "loader.num_workers=2"]
    with interrupt(monkeypatch, step=8):
        assert dxn.cli.main(["train", *asked, f"run={folder}"]) != 0
    assert dxn.cli.main(["train", f"resume={folder}"]) == 0
    epochs = [row for row in log_of(folder) if "validation/loss" in row]
    assert len(epochs) == 2
    steps = [row["step"] for row in log_of(folder) if "train/loss" in row]
    assert steps == list(range(1, len(steps) + 1))
    all_steps = [row["step"] for row in log_of(whole) if "train/loss" in row]
    # Two workers, each with a buffer of 9 rows, in batches of 4.
    assert len(all_steps) - 2 * 4 <= len(steps) <= len(all_steps)


def test_another_number_of_workers_starts_the_epoch_again(name, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    asked = [*ASKED, f"data.name={name}", "trainer.checkpoint_minutes=1e-9", "loader.num_workers=0"]
    with interrupt(monkeypatch, step=5):
        assert dxn.cli.main(["train", *asked, f"run={folder}"]) != 0
    assert dxn.cli.main(["train", f"resume={folder}", "loader.num_workers=3"]) == 0
    assert "note: epoch 1 starts again because the number of" in capsys.readouterr().out


def test_the_learning_rate_never_rises_if_a_stream_has_more_rows_than_estimated(tmp_path):
    # The number of rows is estimated from the last file.
    for number, count in enumerate([40, 40, 40, 12]):
        rows = [{"text": f"{'ab'[i % 2]} film {i}", "label": "xy"[i % 2]} for i in range(count)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{number}.parquet")
    folder = tmp_path / "run"
    options = [*("data=hub", "data.streaming=true", "data.sample_shards=1", "trainer.log_every=1")]
    options += ["data.target=label", f"data.name={tmp_path}/{{0..3}}.parquet", *PLAIN, *SMALL]
    options += ["trainer.epochs=2", "batch_size=4", "loader.num_workers=0", "report=false"]
    train(folder, *options)
    rates = [row["lr"] for row in log_of(folder) if "lr" in row]
    assert len(rates) > 2 * 4 * 12 / 4
    decay = rates[rates.index(max(rates)) :]
    assert all(after <= before for before, after in itertools.pairwise(decay))
    assert decay[-1] < 0.01 * decay[0]


def test_a_training_continues_if_all_remaining_rows_were_in_the_shuffle_buffer(
    tmp_path, monkeypatch
):
    rows = [{"text": f"{'ab'[i % 2]} film {i}", "label": "xy"[i % 2]} for i in range(40)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "0.parquet")
    options = [*("data=hub", "data.streaming=true", f"data.name={tmp_path}/0.parquet")]
    options += ["data.target=label", "data.shuffle_buffer=40", "trainer.log_every=1", *PLAIN]
    options += [*SMALL, "trainer.epochs=1", "batch_size=4", "report=false", "loader.num_workers=0"]
    runs = [tmp_path / "run", tmp_path / "copy"]
    with interrupt(monkeypatch, step=3):
        words = ["train", *options, "trainer.checkpoint_minutes=1e-9", f"run={runs[0]}"]
        assert dxn.cli.main(words) != 0
    shutil.copytree(*runs)
    for run in runs:
        assert dxn.cli.main(["train", f"resume={run}"]) == 0
        assert [row["step"] for row in log_of(run)] == [1, 2, 3, 3]
    assert same_tensors(*map(weights_of, runs))


@pytest.mark.exhaustive
def test_two_processes_read_every_row_once(name, tmp_path):
    options = [f"data.name={name}", "loader.num_workers=0", f"run={tmp_path}/run"]
    output, _ = run_ranks(SCRIPT, tmp_path, *ASKED, *options)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    for epoch in ("0", "1"):
        rows = found[0][epoch] + found[1][epoch]
        assert len(rows) == len(set(rows)) == 43
        assert min(len(found[0][epoch]), len(found[1][epoch])) > 10
    assert found[0]["0"] != found[0]["1"]
    assert output.count("train: 43 rows in 5 shards, read in each epoch") == 1


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("loader.repeats=2", "loader.repeats: cannot be combined with data.streaming=true"),
        ("loader.overfit=3", "loader.overfit: cannot be combined with data.streaming=true"),
        (
            "head=language backbone.causal=true",
            "data.streaming: cannot be combined with head=language",
        ),
        (
            "trainer.batch_tokens=99",
            "trainer.batch_tokens: cannot be combined with data.streaming=true, whose rows have",
        ),
        ("data.sample_rows=0", "data.sample_rows: must be at least 1, got 0"),
    ],
)
def test_options_that_need_all_rows_are_refused_before_the_data_is_read(capsys, option, words):
    without = ("data.target", "adapters.image.augment")
    asked = [text for text in ASKED if not text.startswith(without)]
    (line,) = refused(capsys, ["train", *asked, "data.name=missing.tar", *option.split()])
    assert words in line
