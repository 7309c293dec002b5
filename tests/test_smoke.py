"""The whole way of one table with text, photos and numbers: run it before each commit."""

from __future__ import annotations

import csv
import json

import pytest
from helpers.newcomer import COLOURS, TINY, read_csv, write_clothes

import dxn
from dxn.cli import main

INPUTS = ["data.exclude=[sku,description]", "adapters.image.image_size=32"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_clothes(folder)
        words = ["train", "clothes.csv", "target=colour", *TINY, *INPUTS, "run=out"]
        assert main(words) == 0
        yield folder


def test_a_table_is_learned_and_all_files_of_a_run_are_there(shop):
    run = shop / "out"
    assert json.loads((run / "metrics.json").read_text())
    for name in ("model/config.yaml", "metrics.jsonl", "predictions.csv", "model"):
        assert (run / name).exists(), name


def test_predictions_of_a_table_and_of_one_sample_agree(shop, monkeypatch):
    monkeypatch.chdir(shop)
    assert main(["predict", "run=out", "input=clothes.csv", "output=answers.csv"]) == 0
    rows = read_csv(shop / "answers.csv")
    assert len(rows) == 90
    model = dxn.load(shop / "out")
    with (shop / "clothes.csv").open(newline="", encoding="utf-8") as file:
        first = next(csv.DictReader(file))
    one = model.predict(title=first["title"], photo=first["photo"])
    assert one["prediction"] == rows[0]["prediction"]


def test_a_missing_input_is_handled(shop, monkeypatch):
    monkeypatch.chdir(shop)
    assert dxn.load("out").predict(title="red shirt")["prediction"] in COLOURS


@pytest.mark.exhaustive
def test_a_run_is_exported(shop, monkeypatch):
    monkeypatch.chdir(shop)
    assert main(["export", "run=out", "format=torch", "output=exported"]) == 0


def test_a_run_is_evaluated_verified_and_explained(shop, monkeypatch):
    monkeypatch.chdir(shop)
    assert main(["evaluate", "run=out"]) == 0
    assert main(["verify", "run=out"]) == 0
    assert main(["attend", "run=out", "input.title=red shirt", "output=seen"]) == 0


def test_a_training_is_resumed(shop, monkeypatch):
    monkeypatch.chdir(shop)
    assert main(["train", "resume=out", "trainer.epochs=3"]) == 0
