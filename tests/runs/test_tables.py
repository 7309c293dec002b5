"""Tables of numbers, categories and dates, from training to prediction."""

import csv
import json
import math
import random

import pytest

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.runs.evaluation.subsets import evaluated_groups, subsets
from dxn.runs.record import input_lines

SMALL = ["dim=16", "backbone.depth=1", "backbone.num_heads=2", "trainer.precision=float32"]
FUSIONS = ("early", "late", "bottleneck")


def write(path, rows, sep=";"):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=sep)
        writer.writeheader()
        writer.writerows(rows)


def houses(count=90):
    """Houses whose price depends on the area and the city. Decimals have a comma."""
    rand = random.Random(0)
    rows = []
    for i in range(count):
        area, city = rand.uniform(30, 200), rand.choice(["Paris", "Lyon"])
        rows.append(
            {
                "id": 1000 + i,
                "area": "N/A" if i % 7 == 3 else f"{area:.1f}".replace(".", ","),
                "city": "" if i % 11 == 5 else city,
                "garden": rand.choice(["yes", "no"]),
                "built": f"{1 + i % 28}.{1 + i % 12}.{1990 + i % 30}",
                "price": f"{area * (2 if city == 'Paris' else 1):.1f}".replace(".", ","),
            }
        )
    return rows


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("houses")
    write(folder / "houses.csv", houses())
    return folder


@pytest.fixture(scope="module")
def run(place):
    """A trained model. Training it also checks that a table without texts and files trains."""
    options = [str(place / "houses.csv"), "target=price", "trainer.epochs=2"]
    assert main(["train", *options, f"run={place / 'run'}", *SMALL]) == 0
    return place / "run"


def printed(capsys, *arguments, code=0):
    capsys.readouterr()
    assert main(list(map(str, arguments))) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


@pytest.mark.parametrize("fusion", FUSIONS)
def test_cells_can_be_missing_in_every_fusion(place, tmp_path, capsys, fusion):
    options = [str(place / "houses.csv"), "target=price", f"fusion={fusion}", "trainer.epochs=1"]
    options += ["baseline=none"]
    told = printed(capsys, "train", *options, f"run={tmp_path / 'run'}", *SMALL)
    assert "not used: id (row numbers or identifiers)" in told
    assert "without area" in told and "without city" in told
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert math.isfinite(metrics["test/rmse"])
    model = dxn.load(tmp_path / "run")
    whole = {"area": 55.5, "city": "Paris", "garden": "yes", "built": "1.2.2020"}
    for name in whole:
        partly = {**whole, name: None}
        assert math.isfinite(model.predict(**partly)["prediction"])


def test_each_column_has_weights_of_its_own(run):
    model = dxn.load(run)
    assert list(model.model.adapters) == ["area", "city", "garden", "built"]
    assert model.inputs == ["area", "city", "garden", "built"]


def test_one_sample_is_predicted_in_the_format_of_the_training(run, capsys):
    told = printed(capsys, "predict", f"run={run}", "input.area=82,5", "input.city=paris")
    model = dxn.load(run)
    expected = model.predict(area=82.5, city="Paris")["prediction"]
    assert model.predict(area="82,5", city="PARIS", garden="N/A")["prediction"] == expected
    assert model.predict(area=82.5, city="Paris", garden=math.nan)["prediction"] == expected
    assert float(told.split()[1].replace(",", "")) == pytest.approx(expected, rel=1e-4)
    error = printed(capsys, "predict", f"run={run}", "input.area=82.5", code=2)
    assert error == "dxn: area: must be a number with a decimal comma, got '82.5'\n"


@pytest.mark.filterwarnings("ignore:.* as unknown")
def test_an_unknown_category_and_a_boolean_are_predicted(run):
    model = dxn.load(run)
    unknown = model.predict(city="Rome")
    assert unknown == model.predict(city="Oslo") != model.predict(city="Paris")
    assert math.isfinite(model.predict(garden=False)["prediction"])


@pytest.mark.filterwarnings("ignore:.* as unknown")
@pytest.mark.parametrize(
    "sample",
    [
        {"area": "82,5", "city": "Paris"},
        {"area": 82.5, "city": "Rome", "built": "31.1.2020"},
        {"city": "Paris", "garden": "N/A"},
    ],
)
def test_one_sample_has_the_answer_of_a_batch(run, sample):
    model = dxn.load(run)
    answer = model.predict(**sample)
    assert answer == model.predict_many([sample])[0]
    (first, second) = model.predict_many([sample, sample])
    assert first["prediction"] == pytest.approx(answer["prediction"], rel=1e-5)
    assert second == first


def test_a_problem_of_one_sample_is_told_as_that_of_a_batch(run):
    model = dxn.load(run)
    for sample, message in (
        ({"area": "many"}, "area: must be a number with a decimal comma, got 'many'"),
        ({"height": 3}, "this model has the inputs .*, got height"),
        ({"area": None}, "no input: "),
    ):
        with pytest.raises(UserError, match=message):
            model.predict(**sample)


def test_a_new_table_is_predicted_and_evaluated(place, run, tmp_path, capsys):
    write(tmp_path / "new.csv", houses(20))
    told = printed(capsys, "evaluate", f"run={run}", f"input={tmp_path / 'new.csv'}")
    assert "all but area" in told and "20 rows" in told
    output = tmp_path / "answers.csv"
    printed(capsys, "predict", f"run={run}", f"input={tmp_path / 'new.csv'}", f"output={output}")
    with output.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 20


def test_the_cells_are_drawn_and_described(place, run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sample = ["input.area=70", "input.city=Lyon", "input.built=31.1.2020"]
    told = printed(capsys, "tokenize", f"run={run}", *sample)
    assert "city: 16×1  Lyon" in told and "built: 16×1  2020-01-31 (Friday)" in told
    told = printed(capsys, "attend", f"run={run}", *sample, "output=attention")
    assert "of the attention" in told
    page = (tmp_path / "attention" / "attention.html").read_text()
    assert "area = 70" in page and "city = Lyon" in page
    told = printed(capsys, "tokenize", "input.number=3,5", "input.category=red")
    assert "number: 128×1  3.5" in told and "category: 128×1  red" in told
    error = printed(capsys, "tokenize", "input.number=N/A", code=2)
    assert "'N/A' means that there is no value" in error


def test_the_check_describes_the_columns(place, tmp_path, capsys):
    options = [place / "houses.csv", "target=price", f"output={tmp_path / 'bad.csv'}"]
    told = printed(capsys, "check", *options)
    assert "garden: 72; 2 different: " in told
    assert any(line.strip().startswith("area: ") and "empty" in line for line in told.splitlines())


def test_a_bad_cell_is_named_with_its_row(place, tmp_path, capsys):
    rows = houses()
    rows[4]["area"] = "soon"
    write(tmp_path / "bad.csv", rows)
    error = printed(capsys, "train", tmp_path / "bad.csv", "target=price", code=2)
    assert "bad.csv row 6: area: must be a number with a decimal comma, got 'soon'" in error


def test_cells_are_pretrained_by_masking(place, tmp_path):
    options = [str(place / "houses.csv"), "target=price", "pretrain=masked", "pretrain.epochs=1"]
    run = tmp_path / "run"
    assert main(["train", *options, "trainer.epochs=1", f"run={run}", *SMALL]) == 0
    lines = (run / "pretrain" / "metrics.jsonl").read_text()
    assert "loss_area" in lines and "loss_city" in lines and "loss_built" in lines


def test_many_columns_are_printed_and_evaluated_together(tmp_path, capsys):
    rand = random.Random(0)
    rows = []
    for _ in range(60):
        values = {f"x {i}": f"{rand.gauss(0, 1):.3f}" for i in range(11)}
        kind = rand.choice(["u", "v"])
        rows.append({**values, "kind": kind, "label": "ab"[float(values["x 3"]) > 0]})
    write(tmp_path / "wide.csv", rows, sep=",")
    run = tmp_path / "run"
    told = printed(capsys, "train", tmp_path / "wide.csv", f"run={run}", "trainer.epochs=1", *SMALL)
    assert "number: 11 columns (x 0, x 1, x 2 and 8 more)" in told
    assert "kind (category)" in told
    metrics = json.loads((run / "metrics.json").read_text())
    assert "test/accuracy[number columns]" in metrics and "test/accuracy[x 3]" not in metrics
    printed(capsys, "evaluate", f"run={run}", "only=[x 3]")
    assert math.isfinite(dxn.load(run).predict(**{"x 3": 0.5})["probabilities"]["a"])


def test_groups_of_columns_are_bounded():
    readers = {f"n{i}": dxn.tokenize.NumberAdapter.reader() for i in range(9)}
    readers["title"] = dxn.tokenize.TextAdapter.reader()
    groups = evaluated_groups(readers, list(readers))
    assert list(groups) == ["number columns", "title"]
    assert list(subsets(list(readers), 1, groups)) == ["number columns", "title", "all"]
    few = evaluated_groups(readers, ["n0", "n1", "title"])
    assert few == {"n0": ("n0",), "n1": ("n1",), "title": ("title",)}
    assert input_lines({}) == []


def test_columns_can_have_any_name(tmp_path):
    long = "How satisfied are you with " + "everything " * 40
    names = ["280/315 of wines", "C:\\temp", "é.ü", long.strip(), "../up"]
    words = ["good and red", "bad and blue", "fine and dry"]
    rows = []
    for i in range(40):
        numbers = {name: f"{(i * 7 + j) % 11}.5" for j, name in enumerate(names)}
        texts = {"a/b": f"{words[i % 3]} {i}", "c\\d": f"{words[i % 2]} number {i}"}
        rows.append({**numbers, **texts, "label": "xy"[i % 2]})
    write(tmp_path / "wines.csv", rows)
    options = [str(tmp_path / "wines.csv"), "target=label", "share_adapters=false"]
    folder = tmp_path / "run"
    assert main(["train", *options, "trainer.epochs=1", f"run={folder}", *SMALL]) == 0
    model = dxn.load(folder)
    assert {"a/b", "c\\d", *names} <= set(model.inputs)
    assert model.predict(**{"a/b": "good", "280/315 of wines": 3.5})["prediction"] in "xy"
