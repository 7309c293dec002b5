"""Categories: several values in a cell, and words that elsewhere mean that there is no value."""

import random

import pandas
import pytest
from helpers.runs import PLAIN, SMALL, train
from helpers.serving import client_of

import dxn
from dxn.cli import main

OPTIONS = [*SMALL, *PLAIN, "trainer.epochs=1", "report=false", "target=label"]
GENRES = ["Action", "Drama", "Comedy", "Horror", "Sci-Fi", "Romance"]


def run_of(folder, values, *options):
    rows = [f'"{value}",{i % 13 + 0.5},{"ab"[i % 2]}' for i, value in enumerate(values)]
    (folder / "t.csv").write_text("\n".join(["cell,x,label", *rows]))
    train(folder / "run", str(folder / "t.csv"), *OPTIONS, *options)
    return dxn.load(folder / "run")


def combinations(separator, count=200):
    rand = random.Random(0)
    return [separator.join(rand.sample(GENRES, rand.choice([1, 2, 3]))) for _ in range(count)]


@pytest.mark.parametrize("separator", ["|", ";", ", "])
def test_tags_of_a_cell_have_a_token_each(separator, tmp_path, capsys):
    model = run_of(tmp_path, combinations(separator), "adapters=[category,number]")
    note = f"note: cell: read as several values separated by {separator.strip()!r}"
    assert capsys.readouterr().out.count(note) == 1
    assert sorted(model.adapters["cell"].tokenizer.choices) == sorted(GENRES)
    tokens = model.tokens(cell=separator.join(["Drama", "Horror", "Comedy"]))
    assert int(tokens.mask.sum()) == 3


def test_cells_of_many_tags_are_not_too_long(tmp_path):
    rand = random.Random(0)
    tags = [f"works-with::format-{i}" for i in range(40)]
    cells = ["|".join(rand.sample(tags, rand.choice([1, 3, 25]))) for _ in range(200)]
    assert max(map(len, cells)) > 400
    model = run_of(tmp_path, cells)
    assert sorted(model.adapters["cell"].tokenizer.choices) == sorted(tags)


@pytest.mark.parametrize(
    "values",
    [
        ["Ships, boats", "Cars", "Planes"],
        ["Austin, TX", "Dallas, TX", "Boston, MA", "Salem, MA", "Reno, NV"],
        ["rock|pop", "jazz"],
    ],
)
def test_values_with_a_separator_stay_one_value(values, tmp_path):
    model = run_of(tmp_path, values * 20, "adapters=[category,number]")
    assert sorted(model.adapters["cell"].tokenizer.choices) == sorted(values)


def test_the_baseline_learns_from_single_tags(tmp_path):
    rand = random.Random(0)
    rows = []
    for _ in range(300):
        chosen = rand.sample(GENRES, rand.choice([1, 2, 3, 4]))
        price = len(chosen) + 5 * ("Horror" in chosen) + 0.25
        rows.append(f"{'|'.join(chosen)},{rand.random():.3f},{price}")
    (tmp_path / "t.csv").write_text("\n".join(["cell,x,label", *rows]))
    options = [*SMALL, "preset=plain", "trainer.epochs=1", "report=false", "head=regress"]
    table = str(tmp_path / "t.csv")
    metrics = train(tmp_path / "run", table, "target=label", *options)
    assert metrics["test/r2[baseline alone]"] > 0.99


@pytest.mark.exhaustive
def test_the_exported_program_reads_the_tags(tmp_path):
    run_of(tmp_path, combinations("|"), "adapters=[category,number]")
    out = str(tmp_path / "out")
    assert main(["export", f"run={tmp_path / 'run'}", f"output={out}"]) == 0


def test_a_country_called_na_is_a_value(tmp_path, capsys):
    model = run_of(tmp_path, ["DE", "FR", "NA", "JP"] * 15, "adapters=[category,number]")
    assert "NA" in model.adapters["cell"].tokenizer.choices
    assert "note: cell: NA: read as a code" in capsys.readouterr().out
    answers = [model.predict(cell=value)["probabilities"] for value in ("NA", "DE")]
    assert answers[0] != answers[1]
    with pytest.warns(UserWarning, match="cell: 'US' is not one of the 4 known values") as caught:
        model.predict_many([{"cell": "US"}])
        model.predict(pandas.DataFrame({"cell": ["US"], "x": [0.5]}))
        model.embed(cell="US")
    assert [warning.filename for warning in caught] == [__file__] * 3
    assert model.predict([]) == []
    with client_of(model) as client:
        body = {"inputs": [{"cell": "DE"}, {"cell": "US"}]}
        known, unknown = client.post("/predict", json=body).json()["results"]
    assert "note" not in known and unknown["note"].startswith("cell: 'US' is not one of")


@pytest.mark.parametrize("word", ["NA", "-", "?", "nil"])
def test_other_cells_without_a_value_are_counted_and_explained(word, tmp_path, capsys):
    model = run_of(tmp_path, ["small", "large", word, "medium"] * 15, "adapters=[category,number]")
    output = capsys.readouterr().out
    assert f"note: cell: 15 cells such as {word!r} are read as missing" in output
    assert word not in model.adapters["cell"].tokenizer.choices
