"""The first hour of a new user: targets, splits and honest metrics.

Each test is a mistake or a wish that such a user had on the command line.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.newcomer import (
    TEXT,
    TINY,
    printed,
    read_csv,
    refused,
    run,
    texts,
    trained_task,
    write_csv,
)
from PIL import Image

from dxn.tokenize import ImageAdapter


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_training_table_itself_can_be_predicted(here, capsys):
    rows = [[f"a man number {i}", f"ein Mann mit {i}", ["yes", "no"][i % 2]] for i in range(40)]
    write_csv("two.csv", ["en", "de", "good"], rows)
    assert run("train", "two.csv", "target=good", *TINY, *TEXT, "run=model") == 0
    assert "en" in printed(capsys, "predict", "run=model", "input=two.csv")
    assert run("embed", "run=model", "input=two.csv", "output=vectors.csv") == 0


def test_a_large_photo_is_reduced_when_it_is_read(here):
    noise = np.random.default_rng(0).integers(0, 255, (300, 400, 3), np.uint8)
    Image.fromarray(noise).resize((4000, 3000)).save("phone.jpg")
    raw = ImageAdapter(image_size=64, patch_size=16, dim=32).tokenizer.reader.read("phone.jpg")
    assert raw.numel() < 100_000


def test_one_price_that_is_not_a_number_is_named(here, capsys):
    prices = [str(100 + 3 * i) for i in range(199)]
    rows = list(zip(texts(200), [*prices[:17], "N/A", *prices[17:]], strict=True))
    write_csv("prices.csv", ["text", "price"], rows)
    arguments = ["prices.csv", "target=price", *TINY, *TEXT, "debug=fast"]
    capsys.readouterr()
    code = run("train", *arguments)
    output = capsys.readouterr()
    assert "(regress)" in output.out if code == 0 else "row 19" in output.err
    skipped = printed(capsys, "train", *arguments, "data.on_bad=skip", "name=again")
    assert "(regress)" in skipped


@pytest.mark.parametrize(
    ("make", "task"),
    [
        (lambda i: f"{1 + i % 7},{100 + i}", "regress"),
        (lambda i: f"${1 + i % 7},{100 + i}.50", "regress"),
        (lambda i: str(i % 2 == 0).lower(), "classify"),
        (lambda i: str(i % 30), "classify"),
    ],
)
def test_everyday_numbers_and_booleans_get_the_right_task(make, task, here, capsys):
    targets = [make(i) for i in range(300)]
    assert trained_task(capsys, targets)[1] == task


def test_a_close_decision_between_classes_and_amounts_names_the_key(here, capsys):
    output, _ = trained_task(capsys, [str(i % 30) for i in range(300)])
    assert "head=" in output


def test_dates_and_several_numbers_as_targets_are_explained(here, capsys):
    dates = [f"2026-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(120)]
    rows = list(zip(texts(120), dates, range(120), range(500, 620), strict=True))
    write_csv("many.csv", ["text", "day", "price", "area"], rows)
    small = [*TINY, *TEXT, "debug=fast"]
    for target in ("target=day", "target=[price,area]"):
        capsys.readouterr()
        run("train", "many.csv", target, *small)
        output = capsys.readouterr()
        assert "head=" in output.out + output.err or "data.target" in output.out + output.err
        assert "Traceback" not in output.err


def test_the_check_never_counts_letters(here, capsys):
    write_csv("de.csv", ["text", "de"], [(text, f"ein Satz mit {text}") for text in texts(60)])
    output = printed(capsys, "check", "de.csv", "target=de")
    line = next(line for line in output.splitlines() if "target:" in line and "de (" not in line)
    assert not any(f"{letter} " in line for letter in ("e 2", "n 1", "i 1"))


def test_truncated_texts_are_counted(here, capsys):
    long = " ".join(texts(200))
    rows = [(f"{i} {long}", ["good", "bad"][i % 2]) for i in range(40)]
    write_csv("long.csv", ["text", "label"], rows)
    options = [*TINY, *TEXT, "adapters.text.max_len=16", "debug=fast", "run=model"]
    assert "truncated" in printed(capsys, "train", "long.csv", "target=label", *options)
    data = json.loads(Path("model/metrics.json").read_text())["data"]
    assert data["truncated"]["text"]["median_read"] < 0.1


def test_equal_inputs_stay_in_one_split(here):
    table = [(f"same text {i // 6}", ["good", "bad"][i % 2]) for i in range(240)]
    write_csv("dup.csv", ["text", "label"], table)
    assert run("train", "dup.csv", "target=label", *TINY, *TEXT, "run=model") == 0
    test = {row["text"] for row in read_csv("model/predictions.csv")}
    assert len(read_csv("model/predictions.csv")) == 6 * len(test)


def test_rows_of_a_group_stay_in_one_split(here, capsys):
    table = [(text, f"speaker{i % 20}", i % 2) for i, text in enumerate(texts(200))]
    write_csv("talks.csv", ["text", "speaker", "label"], table)
    options = ["data.group=speaker", "run=model", *TINY, *TEXT]
    assert run("train", "talks.csv", "target=label", *options) == 0
    speaker_of = {text: speaker for text, speaker, _ in table}
    tested = [speaker_of[row["text"]] for row in read_csv("model/predictions.csv")]
    assert len(tested) == 10 * len(set(tested))
    # In a new table, rows of a speaker are dependent, too: four speakers are too few to resample.
    write_csv("new.csv", ["text", "speaker", "label"], table[:3] + table[20:23] + table[40:44])
    for i, words in enumerate((["new.csv"], ["data=table", "data.path=new.csv"])):
        assert run("evaluate", "run=model", *words, f"output=new{i}") == 0
        assert "intervals" not in json.loads(Path(f"new{i}/metrics.json").read_text())
    capsys.readouterr()
    write_csv("other.csv", ["text", "label"], [(text, label) for text, _, label in table[:10]])
    note = "note: no column 'speaker', which the training used as data.group"
    words = ["data=table", "data.path=other.csv"]
    assert note in printed(capsys, "evaluate", "run=model", *words, "output=other")


def test_the_check_lists_all_bad_rows_even_if_a_split_has_no_good_one(here, capsys):
    rows = [[f"missing{i}.png", ["a", "b"][i % 2]] for i in range(8)]
    for i in range(2):
        Image.new("RGB", (9, 9), (i, 3, 5)).save(f"good{i}.png")
        rows.append([f"good{i}.png", ["a", "b"][i]])
    write_csv("bad.csv", ["image", "label"], rows)
    capsys.readouterr()
    assert run("check", "bad.csv", "target=label") == 1
    assert len([row for row in read_csv("bad_files.csv") if row["path"]]) == 8


def test_a_forgotten_target_is_named(here, capsys):
    write_csv("table.csv", ["text", "stars"], [(text, i % 5) for i, text in enumerate(texts(50))])
    error = refused(capsys, "train", "table.csv", *TINY, *TEXT)
    assert "data.target" in error or "target=" in error
    assert "stars" in error


@pytest.mark.parametrize("target", [["good"] * 60, ["3.5"] * 60, ["good"]])
def test_a_target_that_teaches_nothing_is_refused(target, here, capsys):
    write_csv("table.csv", ["text", "y"], list(zip(texts(len(target)), target, strict=True)))
    refused(capsys, "train", "table.csv", "target=y", *TINY, *TEXT)


def test_the_trivial_answer_stands_under_the_figures_and_small_splits_warn(here, capsys):
    targets = ["ham", "ham", "ham", "spam"] * 20
    write_csv("table.csv", ["text", "y"], list(zip(texts(80), targets, strict=True)))
    options = ["target=y", "run=model", "preset=plain", "report=false", *TINY, *TEXT]
    output = printed(capsys, "train", "table.csv", *options)
    assert "always ham" in output
    assert "warning" in output
    assert any("always ham" in key for key in json.loads(Path("model/metrics.json").read_text()))
