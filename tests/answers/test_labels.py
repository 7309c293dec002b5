"""Labels and classes: every way to write them gives the same labels, with their types."""

import csv
import json
import unicodedata

import numpy as np
import pandas as pd
import pytest
from helpers.runs import PLAIN, SMALL, train

import dxn
from dxn.cli import main
from dxn.config.instantiate import build
from dxn.tasks import Auto

OPTIONS = [*SMALL, *PLAIN, "trainer.epochs=1", "report=false"]
KEYS = {"trainer.epochs": 1, "report": False, "preset": "plain", "baseline": "none"}
KEYS |= {"dim": 16, "backbone.depth": 1, "backbone.num_heads": 2, "trainer.device": "cpu"}
NAMES = ["blue", "clear", "green"]
ROWS = [[name for k, name in enumerate(NAMES) if i >> k & 1] for i in range(8)] * 5


def flags(row, yes=1, no=0):
    return [yes if name in row else no for name in NAMES]


def frame_of(cells):
    return pd.DataFrame({"text": [f"word {i}" for i in range(len(cells))], "label": cells})


def table(path, cells):
    """Write a column of targets to a file of any type."""
    frame = frame_of(cells)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    return str(path)


def labels_of(folder):
    state = json.loads((folder / "model" / "labels.json").read_text())
    return state["labels"]


WAYS = {
    "JSON": [json.dumps(row) for row in ROWS],
    "Python": [str(row) for row in ROWS],
    "NumPy": [str(np.array(row)) for row in ROWS],
    "separator": ["|".join(row) or "|" for row in ROWS],
    "lists": ROWS,
    "padded": [[f" {name}" for name in row] for row in ROWS],
}


def infer(cells, words=None):
    """The task that is chosen for target cells, its notes, and the parsed cells."""
    task, node, reason = Auto().resolve(cells, words)
    notes = [reason, *task.target.find_format(cells, [""] * len(cells))]
    parsed = [task.target.read(cell, "", {}) for cell in cells]
    task.target.fit(parsed)
    # A saved task reads the cells of other tables in the same way.
    state = json.loads(json.dumps(task.target.state()))
    loaded = build(node, key="head")
    loaded.target.load(state)
    assert [loaded.target.read(cell, "", {}) for cell in cells] == parsed
    return task, notes, parsed


@pytest.mark.parametrize("way", WAYS)
def test_every_text_of_a_list_has_the_labels_of_the_list(way):
    task, _, parsed = infer(WAYS[way])
    assert task.name == "multilabel" and parsed == ROWS and list(task.target.labels) == NAMES


@pytest.mark.parametrize("form", [list, str, lambda row: str(np.array(row)), json.dumps])
@pytest.mark.parametrize("yes_and_no", [(1, 0), (True, False), (1.0, 0.0)])
def test_lists_of_0_and_1_have_a_label_for_each_position(form, yes_and_no):
    task, _, parsed = infer([form(flags(row, *yes_and_no)) for row in ROWS])
    assert task.name == "multilabel" and list(task.target.labels) == ["0", "1", "2"]
    assert parsed == [[str(NAMES.index(name)) for name in row] for row in ROWS]


def test_texts_in_brackets_that_are_no_lists_stay_classes():
    for cells in (["[A]", "[B]"], ["[0.5, 1.5]", "[2.5, 1]"], ['[{"a": 1}]', "[[1, 2]]"]):
        assert infer(cells * 10)[0].name == "classify"


# Several columns


def columns_of(yes=1, no=0):
    """A data frame with a column for each label."""
    cells = [flags(row, yes, no) for row in ROWS]
    return pd.DataFrame(cells, columns=NAMES).assign(text=[f"word {i}" for i in range(40)])


@pytest.fixture(scope="module")
def sky(tmp_path_factory):
    """A model of three columns with yes and no, trained from a CSV file."""
    folder = tmp_path_factory.mktemp("sky")
    columns_of("Yes", "no").to_csv(folder / "sky.csv", index=False)
    chosen = [str(folder / "sky.csv"), *OPTIONS, f"target=[{','.join(NAMES)}]"]
    train(folder / "run", *chosen)
    return folder / "run"


def test_columns_of_yes_and_no_are_the_labels(sky):
    assert labels_of(sky) == NAMES
    answer = dxn.load(sky).predict(text="word 3")
    assert list(answer["probabilities"]) == NAMES


def test_a_new_table_of_one_kind_of_rows_has_the_labels_of_the_training(sky, tmp_path):
    table = columns_of("YES", "No").iloc[[7] * 4]  # all labels
    table.to_csv(tmp_path / "new.csv", index=False)
    arguments = [f"run={sky}", f"input={tmp_path / 'new.csv'}", f"output={tmp_path}"]
    assert main(["evaluate", *arguments]) == 0
    with (tmp_path / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["target"] for row in rows} == {"blue|clear|green"}


@pytest.mark.parametrize(("yes", "no"), [(1, 0), (True, False), (1.0, 0.0), ("t", "f")])
def test_columns_of_any_flags_in_a_data_frame_are_the_labels(yes, no):
    rows = columns_of(yes, no).drop(columns="text").to_dict("records")
    task, _, parsed = infer(rows)
    assert task.name == "multilabel" and parsed == ROWS


def test_a_column_of_values_keeps_its_name_in_its_labels():
    rows = [{"clear": i % 2, "size": ["big", "small"][i // 2 % 2]} for i in range(20)]
    _, _, parsed = infer(rows)
    assert parsed[:2] == [["size=big"], ["clear", "size=big"]]


# Texts of joined labels


@pytest.mark.parametrize("separator", [",", "; ", " / ", "/", "+", " "])
def test_many_combinations_of_few_parts_are_reported_with_the_option(separator, tmp_path, capsys):
    cells = [separator.join(row) or "clear" for row in ROWS]
    task, notes, _ = infer(cells)
    assert task.name == "classify"
    (note,) = [note for note in notes if note]
    part = separator if separator in (" ", " / ") else separator.strip()
    assert "7 different values are combinations of 3 parts (blue, clear, green)" in note
    assert f"set head=multilabel and head.separator={part!r}" in note


def test_the_separator_of_the_note_splits_the_labels(tmp_path, capsys):
    cells = [", ".join(row) or "clear" for row in ROWS]
    path = table(tmp_path / "rows.csv", cells)
    assert main(["check", path, "target=label"]) == 0
    assert capsys.readouterr().out.count("set head=multilabel and head.separator=','") == 1
    options = [*OPTIONS, "target=label", "head=multilabel", "head.separator=','"]
    train(tmp_path / "run", path, *options)
    assert labels_of(tmp_path / "run") == NAMES
    assert "combinations" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "classes",
    [
        ["Ships, boats", "Cars", "Planes", "Trains, trams"],
        ["very good", "good", "bad", "very bad"],
        ["small/red", "small/blue", "large/red", "large/blue"],
        ["New York", "York", "New Jersey", "San Jose"],
    ],
)
def test_names_with_a_comma_or_a_blank_stay_classes_without_a_note(classes):
    task, notes, _ = infer(classes * 10)
    assert task.name == "classify" and not any(notes)


# Names that differ in blanks, normal form and case


def test_blanks_and_normal_forms_do_not_make_a_class(tmp_path):
    names = ["café", unicodedata.normalize("NFD", "café"), " café", "thé", "thé "]
    path = table(tmp_path / "rows.jsonl", names * 8)
    train(tmp_path / "run", path, *OPTIONS, "target=label")
    assert labels_of(tmp_path / "run") == ["café", "thé"]
    new = table(tmp_path / "new.csv", [f"{names[1]} "] * 4)
    arguments = [f"run={tmp_path / 'run'}", f"input={new}", f"output={tmp_path / 'new'}"]
    assert main(["evaluate", *arguments]) == 0
    with (tmp_path / "new" / "predictions.csv").open() as file:
        assert {row["target"] for row in csv.DictReader(file)} == {"café"}
    _, _, parsed = infer([[name, "café"] for name in names])
    assert parsed == [["café"]] * 3 + [["thé", "café"]] * 2


@pytest.mark.parametrize("form", [str, lambda name: [name], lambda name: json.dumps([name])])
def test_classes_that_differ_in_case_only_are_named(form):
    task, notes, _ = infer([form(name) for name in ["pos", "neg", "Pos"] * 10])
    assert len(task.target.labels) == 3
    (note,) = [note for note in notes if note]
    assert "'Pos' and 'pos' differ only in upper and lower case and are different classes" in note


def test_tags_that_differ_in_case_only_are_named():
    words = [["a", "b"]] * 10
    _, notes, _ = infer([["B-per", "O"], ["B-PER", "O"]] * 5, words)
    assert "'B-PER' and 'B-per' differ only" in " ".join(notes)


# Types


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([True, False] * 20),
        pd.Series([True, False] * 20, dtype="boolean"),
        pd.Series([3, 5] * 20, dtype="Int64"),
        pd.Series([1.5, 2.5] * 20),
        pd.Series([3, 5] * 20, dtype="category"),
        pd.Series(["a", "b"] * 20, dtype="category"),
        pd.Series([[3], [3, 5]] * 20),
    ],
)
def test_answers_have_the_type_of_the_target(column, tmp_path):
    frame = frame_of(column)
    head = "multilabel" if column.map(type).eq(list).any() else "classify"
    run = dxn.train(frame, target="label", run=tmp_path / "run", head=head, **KEYS)
    values = column.dropna().tolist()
    for answer in (*run.model.predict(frame)["prediction"], run.model.predict("x")["prediction"]):
        if head == "multilabel":
            assert set(answer) <= {3, 5}
        else:
            assert answer in values and type(answer) is type(values[0])
    # Files contain texts.
    with (tmp_path / "run" / "predictions.csv").open() as file:
        names = set(map(str, values)) | {"3|5", "5", "3", ""}
        assert all(row["prediction"] in names for row in csv.DictReader(file))


def test_a_new_table_may_write_the_classes_in_another_type():
    for cells, others in (
        ([True, False] * 10, ["true", "FALSE"]),
        ([3, 5] * 10, [3.0, "5"]),
        ([1.5, 2.0] * 10, ["1.50", 2]),
    ):
        task, _, parsed = infer(cells)
        assert [task.target.read(cell, "", {}) for cell in others] == parsed[:2]


def test_the_classes_of_scikit_learn_keep_their_type():
    sklearn = pytest.importorskip("dxn.sklearn")
    texts = pd.DataFrame({"text": [f"word {i}" for i in range(20)]})
    for classes in ([True, False], [3, 5], ["a", "b"]):
        model = sklearn.Classifier(epochs=1, options=KEYS, random_state=0)
        answers = model.fit(texts, classes * 10).predict(texts)
        assert answers.dtype == np.asarray(classes).dtype and set(answers) <= set(classes)
