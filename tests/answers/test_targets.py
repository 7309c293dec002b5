"""Targets that are rare, unknown, or of a large offset: the answers and metrics are right."""

import csv
import json
import math

import numpy as np
import pytest
from helpers.runs import SMALL, metrics_of, refused, train
from PIL import Image

import dxn
from dxn.cli import main
from dxn.core.results import UNSEEN

# With a baseline, which is the default.
OPTIONS = [*SMALL, "trainer.epochs=2", "preset=plain", "report=false", "target=label"]


def write(path, rows, header=("text", "label")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def films(count):
    return [(f"{['fine', 'dull'][i % 2]} film number {i}", "ab"[i % 2]) for i in range(count)]


# Classes that only the validation or the test split has


def test_rare_classes_of_a_drawn_split_do_not_lose_the_training(tmp_path, capsys):
    singles = [(f"film of its own kind {i}", f"only{i}") for i in range(20)]
    metrics = train(tmp_path / "run", write(tmp_path / "t.csv", [*films(90), *singles]), *OPTIONS)
    assert 0 < metrics["test/accuracy"] < 1 and "answers" in metrics
    output = capsys.readouterr().out
    assert "is not in the training split (only" in output
    assert (tmp_path / "run" / "predictions.csv").is_file()


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_new_class_of_a_given_split_counts_as_wrong(split, tmp_path, capsys):
    rows = [(text, label, "train") for text, label in films(40)]
    for name in ("validation", "test"):
        rows += [(text, label, name) for text, label in films(12)]
    rows += [(f"unseen {i}", "new", split) for i in range(4)]
    table = write(tmp_path / "t.csv", rows, ("text", "label", "split"))
    metrics = train(tmp_path / "run", table, *OPTIONS)
    note = f"note: {split}: the target of 4 rows is not in the training split (new)"
    assert capsys.readouterr().out.count(note) == 1
    if split == "test":
        assert metrics["test/accuracy"] <= 12 / 16
    counts = json.loads((tmp_path / "run" / "metrics.json").read_text())["data"]["classes"]
    assert counts[split][UNSEEN] == 4
    assert UNSEEN not in counts["train"]


def test_a_new_class_of_a_folder_of_pictures_counts_as_wrong(tmp_path, capsys):
    rand = np.random.default_rng(0)
    for split, names in (("train", "ab"), ("validation", "abc"), ("test", "ab")):
        for name in names:
            folder = tmp_path / "pictures" / split / name
            folder.mkdir(parents=True)
            for i in range(12):
                pixels = rand.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    train(tmp_path / "run", str(tmp_path / "pictures"), *OPTIONS[:-1])
    assert "the target of 12 rows is not in the training split (c)" in capsys.readouterr().out


def test_rows_of_unknown_classes_are_named_and_count_as_wrong_in_an_evaluation(tmp_path, capsys):
    train(tmp_path / "run", write(tmp_path / "t.csv", films(90)), *OPTIONS)
    new = write(tmp_path / "new.csv", [*films(10), *[(f"x {i}", "z") for i in range(10)]])
    capsys.readouterr()
    assert main(["evaluate", f"run={tmp_path / 'run'}", f"input={new}", f"output={tmp_path}"]) == 0
    assert "the target of 10 rows is not in the training split (z)" in capsys.readouterr().out
    metrics = metrics_of(tmp_path)
    assert metrics["input/accuracy"] <= 0.5
    # The mean over a, b and z, of which z is 0.
    assert metrics["input/f1_macro"] <= 2 / 3


def test_validation_rows_of_other_names_are_refused(tmp_path, capsys):
    rows = [(text, label, "train") for text, label in films(40)]
    rows += [(text, label.upper(), "validation") for text, label in films(20)]
    table = write(tmp_path / "t.csv", rows, ("text", "label", "split"))
    (line,) = refused(capsys, ["train", table, *OPTIONS])
    expected = "all targets of validation are unknown to the model, which was trained with a, b"
    assert expected in line and "got A, B" in line


def test_rows_with_only_unknown_labels_are_wrong(tmp_path):
    rows = [{"text": f"film {i}", "label": [["a"], ["b"], ["a", "b"]][i % 3]} for i in range(60)]
    table = tmp_path / "t.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    train(tmp_path / "run", str(table), *OPTIONS, "head=multilabel", "head.threshold=0.99")
    new = tmp_path / "new.jsonl"
    new.write_text("\n".join(json.dumps({"text": f"x {i}", "label": ["z"]}) for i in range(9)))
    known = tmp_path / "known.jsonl"
    known.write_text(new.read_text() + "\n" + json.dumps({"text": "film", "label": ["a"]}))
    command = ["evaluate", f"run={tmp_path / 'run'}", f"input={known}", f"output={tmp_path}"]
    assert main(command) == 0
    # No label reaches the threshold, so that the predicted labels equal the known ones: none.
    assert metrics_of(tmp_path)["input/exact_match"] == 0


# Numbers of a large offset


@pytest.mark.parametrize(("offset", "step"), [(1e12, 1.0), (-5e8, 0.5), (2024.0, 1e-3)])
def test_a_target_of_a_large_offset_keeps_its_digits(offset, step, tmp_path):
    rand = np.random.default_rng(0)
    rows = []
    for _ in range(120):
        x = int(rand.integers(0, 100))
        rows.append((f"{x / 10}", repr(offset + step * x)))
    table = write(tmp_path / "t.csv", rows, ("x", "label"))
    metrics = train(tmp_path / "run", table, *OPTIONS, "head=regress", "adapters=[number]")
    # A linear model is perfect. In float32, all targets would be nearly equal.
    assert metrics["test/r2[baseline alone]"] > 0.999
    with (tmp_path / "run" / "predictions.csv").open() as file:
        records = list(csv.DictReader(file))
    errors = [abs(float(r["prediction"]) - float(r["target"])) for r in records]
    assert max(errors) < 40 * step
    assert len({r["prediction"] for r in records}) == len({r["target"] for r in records})
    answer = dxn.load(tmp_path / "run").predict(x="5.0")["prediction"]
    assert math.isclose(answer, offset + 50 * step, abs_tol=40 * step)


# Names of classes


def test_white_space_and_the_unicode_form_do_not_make_new_classes(tmp_path):
    names = ["précis", "précis ", " pre\u0301cis", "vague"]
    rows = [(f"film {i}", names[i % 4]) for i in range(60)]
    train(tmp_path / "run", write(tmp_path / "t.csv", rows), *OPTIONS)
    assert dxn.load(tmp_path / "run").predict(text="film")["prediction"] in ("précis", "vague")
    with (tmp_path / "run" / "predictions.csv").open() as file:
        assert {r["target"] for r in csv.DictReader(file)} <= {"précis", "vague"}
