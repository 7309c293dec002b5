"""The first hour of a new user: getting there, formats and slips.

Each test is a mistake or a wish that such a user had on the command line.
"""

import csv
import gzip
import json
from pathlib import Path

import openpyxl
import pytest
from helpers.newcomer import (
    SMALL_IMAGES,
    TEXT,
    TINY,
    printed,
    read_csv,
    refused,
    run,
    texts,
    write_csv,
)
from PIL import Image

import dxn


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_names_the_keys_that_everybody_needs(capsys):
    page = printed(capsys, "train", "--help")
    for key in ("data.text", "target", "trainer.epochs", "optimizer.lr", "batch_size", "weights"):
        assert key in page
    assert "patience" in printed(capsys, "help", "trainer.patience")
    assert "on_bad" in printed(capsys, "help", "data=table")


def test_the_source_is_inferred_from_the_path(here, capsys):
    rows = [(text, ["good", "bad"][i % 2]) for i, text in enumerate(texts(60))]
    write_csv("reviews.csv", ["text", "label"], rows)
    small = [*TINY, *TEXT, "debug=fast"]
    assert "(classify)" in printed(capsys, "train", "reviews.csv", "target=label", *small)
    assert "(classify)" in printed(capsys, "train", "data.path=reviews.csv", "name=b", *small)


def test_training_stops_early_by_default(here, capsys):
    rows = [("good" if i % 2 else "bad", i % 2) for i in range(60)]
    write_csv(
        "easy.csv", ["text", "label"], [(f"{word} {i}", y) for i, (word, y) in enumerate(rows)]
    )
    fast = ["trainer.epochs=200", "optimizer.lr=0.2", "run=model"]
    output = printed(capsys, "train", "easy.csv", "target=label", *TINY, *TEXT, *fast)
    assert "epoch 200/200" not in output
    assert "stopped" in output


def test_many_classes_have_the_five_most_probable_ones(here):
    rows = [(text, f"class{i % 25}") for i, text in enumerate(texts(300))]
    write_csv("many.csv", ["text", "label"], rows)
    assert run("train", "many.csv", "target=label", *TINY, *TEXT, "run=model") == 0
    assert len(read_csv("model/predictions.csv")[0]) < 20


def test_a_tilde_is_expanded(here, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    rows = [(text, ["good", "bad"][i % 2]) for i, text in enumerate(texts(60))]
    write_csv("home.csv", ["text", "label"], rows)
    assert "label" in printed(capsys, "check", "data.path=~/home.csv", "target=label")


def test_a_folder_of_photos_gives_its_name_to_the_run(here, capsys):
    for i in range(40):
        folder = here / "animals" / ("cat" if i % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (i, 5 * (i % 2), 9)).save(folder / f"{i}.png")
    assert run("train", "animals", *TINY, "adapters=[image]", *SMALL_IMAGES, "debug=fast") == 0
    assert [path.name for path in Path("outputs").iterdir()] == ["animals"]


def test_a_split_column_is_found_in_any_case(here, capsys):
    names = ["Train", "Dev", "TEST"]
    rows = [(text, i % 2, names[i % 3]) for i, text in enumerate(texts(90))]
    write_csv("divided.csv", ["text", "label", "Split"], rows)
    output = printed(capsys, "check", "divided.csv", "target=label")
    assert "column Split" in output
    assert "validation: 30 rows" in output


def test_overfitting_says_how_many_samples_were_learned(here, capsys):
    rows = [(text, ["good", "bad"][i % 2]) for i, text in enumerate(texts(40))]
    write_csv("reviews.csv", ["text", "label"], rows)
    options = [*TINY, *TEXT, "debug=overfit", "trainer.epochs=60", "optimizer.lr=1e-2"]
    output = printed(capsys, "train", "reviews.csv", "target=label", *options)
    assert "8 of 8" in output


def test_an_empty_table_is_named(here, capsys):
    write_csv("empty.csv", ["text", "label"], [])
    assert "empty.csv" in refused(capsys, "train", "empty.csv", "target=label")


def test_entities_have_words_offsets_and_scores(here):
    names, cities = ["anna", "bob", "carl", "dora"], ["paris", "rome", "oslo", "bern"]
    verbs = ["lives", "works", "stays", "sleeps"]
    sentences = [[n, verb, "in", city] for n in names for verb in verbs for city in cities]
    tags = dict.fromkeys(names, "B-PER") | dict.fromkeys(cities, "B-LOC")
    lines = [
        json.dumps({"tokens": words, "tags": [tags.get(word, "O") for word in words]})
        for words in sentences
    ]
    Path("ner.jsonl").write_text("\n".join(lines))
    options = [*TINY, *TEXT, "trainer.epochs=30", "optimizer.lr=1e-2", "run=model"]
    assert run("train", "ner.jsonl", "target=tags", *options) == 0
    entities = dxn.load("model").predict(tokens="anna lives in paris")["entities"]
    assert [(e["text"], e["label"]) for e in entities] == [("anna", "PER"), ("paris", "LOC")]
    assert (entities[1]["start"], entities[1]["end"]) == (14, 19)
    assert all(0 < e["score"] <= 1 for e in entities)


def test_one_is_singular(here, capsys):
    rows = [(text, ["good", "bad"][i % 2]) for i, text in enumerate(texts(40))]
    write_csv("reviews.csv", ["text", "label"], rows)
    assert "2 classes" in printed(capsys, "check", "reviews.csv", "target=label")


def write_gzip(rows, header):
    with gzip.open("table.csv.gz", "wt", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return "table.csv.gz"


def write_json(rows, header):
    Path("table.json").write_text(json.dumps([dict(zip(header, r, strict=True)) for r in rows]))
    return "table.json"


def write_excel(rows, header):
    book = openpyxl.Workbook()
    for row in [header, *rows]:
        book.active.append(row)
    book.save("table.xlsx")
    return "table.xlsx"


def write_utf16(rows, header):
    write_csv("table8.csv", header, rows)
    Path("table.csv").write_text(Path("table8.csv").read_text(), encoding="utf-16")
    return "table.csv"


def write_semicolons(rows, header):
    lines = [";".join(map(str, row)) for row in [header, *rows]]
    Path("semicolons.csv").write_text("\n".join(lines))
    return "semicolons.csv"


@pytest.mark.parametrize(
    "write", [write_gzip, write_json, write_excel, write_utf16, write_semicolons]
)
def test_common_formats_are_read(write, here, capsys):
    rows = [(text, ["good", "bad"][i % 2]) for i, text in enumerate(texts(40))]
    path = write(rows, ("text", "label"))
    assert "label (classify)" in printed(capsys, "check", path, "target=label")


def test_another_encoding_is_named_and_can_be_set(here, capsys):
    rows = [(f"schön {text}", ["gut", "schlecht"][i % 2]) for i, text in enumerate(texts(40))]
    write_csv("table8.csv", ["text", "label"], rows)
    Path("latin.csv").write_text(Path("table8.csv").read_text(), encoding="cp1252")
    assert "data.encoding" in refused(capsys, "check", "latin.csv", "target=label")
    printed(capsys, "check", "latin.csv", "target=label", "data.encoding=cp1252")
