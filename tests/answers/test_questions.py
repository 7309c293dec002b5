"""Question answering from files to answers: formats, bad rows, long texts, and refusals."""

import base64
import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from dxn_examples.questions import questions
from helpers.exports import assert_answers_are_equal, example
from helpers.runs import PLAIN, SMALL, metrics_of, refused, train
from helpers.serving import client_of, error_of
from PIL import Image

import dxn
from dxn.cli import main
from dxn.data.rows import Origins, as_column
from dxn.data.tables.read import Table
from dxn.data.tables.squad import with_positions
from dxn.export.programs.answers import best
from dxn.tasks.windows import Windows

OPTIONS = [*PLAIN, *SMALL, "report=false", "trainer.epochs=1", "head=span"]
OPTIONS += ["adapters.text.max_len=48", "head.overlap=16"]


def rows_of(count):
    cells = questions(num_train=count, num_validation=1, num_test=1).splits["train"].cells
    return list(zip(cells["question"], cells["context"], cells["target"], strict=True))


def nested(rows):
    articles = []
    for number, (question, context, target) in enumerate(rows):
        pairs = zip(target["text"], target["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
        # Like a hash, which is not an input.
        asked = {"id": f"{number:x}", "question": question, "answers": answers}
        asked["is_impossible"] = not answers
        articles.append({"title": "T", "paragraphs": [{"context": context, "qas": [asked]}]})
    return json.dumps({"version": "v2.0", "data": articles})


def flat(rows):
    names = ("question", "context", "answers")
    return "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows)


def write_csv(path, rows, *, with_start):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "context", "answer", *(["start"] if with_start else [])])
        for question, context, target in rows:
            start = [*target["answer_start"], ""][:1] if with_start else []
            writer.writerow([question, context, [*target["text"], ""][0], *start])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qa")
    rows = rows_of(60)
    (folder / "nested.json").write_text(nested(rows), encoding="utf-8")
    (folder / "flat.jsonl").write_text(flat(rows), encoding="utf-8")
    write_csv(folder / "start.csv", rows, with_start=True)
    write_csv(folder / "plain.csv", rows, with_start=False)
    return folder


@pytest.mark.parametrize(
    ("start", "expected"),
    [(" 7 ", 7), (7.0, 7), ("-1", -1), ("--7", None), ("²", None), (None, None)],
)
def test_a_position_is_a_whole_number(start, expected):
    columns = {"question": ["q"], "answer": ["x"], "answer_start": [start]}
    table = Table(
        {n: as_column(c) for n, c in columns.items()}, Origins([Path("a.csv")], np.array([2]))
    )
    cell = with_positions(table).columns["answer"][0]
    assert cell == ("x" if expected is None else {"text": ["x"], "answer_start": [expected]})


@pytest.mark.parametrize("name", ["nested.json", "flat.jsonl", "start.csv", "plain.csv"])
def test_each_format_is_found(files, name, capsys):
    assert main(["check", str(files / name)]) == 0
    out = capsys.readouterr().out
    assert "(span)" in out and "context (text)" in out and "questions without an answer" in out
    assert "(number)" not in out and "id (text)" not in out


@pytest.mark.parametrize("form", ["flat", "nested"])
def test_one_cell_that_is_no_text_is_named(form, tmp_path, capsys):
    rows = rows_of(60)
    rows[7] = (rows[7][0], ["a", "list"], rows[7][2])
    path = tmp_path / ("qa.jsonl" if form == "flat" else "qa.json")
    path.write_text(flat(rows) if form == "flat" else nested(rows), encoding="utf-8")
    where = "qa.jsonl row 8: " if form == "flat" else "qa.json: article 8, paragraph 1: "
    (error,) = refused(capsys, ["check", path])
    assert where in error and "context must be a text" in error and "got ['a', 'list']" in error


def test_a_file_can_have_one_article_per_line(tmp_path, capsys):
    articles = json.loads(nested(rows_of(60)))["data"]
    path = tmp_path / "qa.jsonl"
    path.write_text("\n".join(map(json.dumps, articles)), encoding="utf-8")
    assert main(["check", str(path)]) == 0
    assert "answers (span)" in capsys.readouterr().out
    articles[7]["paragraphs"][0]["qas"][0]["answers"] = ["not in the text"]
    path.write_text("\n".join(map(json.dumps, articles)), encoding="utf-8")
    (error,) = refused(capsys, ["train", path, *OPTIONS, f"run={tmp_path / 'run'}"])
    assert "qa.jsonl row 8: " in error


def test_answers_are_read_from_json_in_a_csv_file(tmp_path, capsys):
    path = tmp_path / "qa.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "context", "answers"])
        for i, (question, context, target) in enumerate(rows_of(60)):
            writer.writerow([question, context, json.dumps(target) if i % 2 else str(target)])
    assert main(["check", str(path)]) == 0
    assert "answers (span)" in capsys.readouterr().out


def test_an_answer_that_is_not_in_the_text_is_a_bad_row(files, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        (q, c, {"text": ["x y z"], "answer_start": [0]} if i == 5 else a)
        for i, (q, c, a) in enumerate(rows_of(60))
    ]
    path = tmp_path / "bad.jsonl"
    path.write_text(flat(rows), encoding="utf-8")
    assert main(["check", str(path)]) == 1
    assert "the answer 'x y z' does not occur in context" in capsys.readouterr().out
    error = refused(capsys, ["train", path, *OPTIONS, f"run={tmp_path / 'none'}"])
    assert any("does not occur in context" in line for line in error)
    train(tmp_path / "run", str(path), *OPTIONS, "data.on_bad=skip")
    assert "exact_match" in str(metrics_of(tmp_path / "run"))


def test_a_run_answers_with_parts_of_long_texts(files, tmp_path, capsys):
    run = tmp_path / "run"
    train(run, str(files / "flat.jsonl"), *OPTIONS)
    with (run / "predictions.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        if row["prediction"]:
            assert row["context"][int(row["start"]) : int(row["end"])] == row["prediction"]
        else:
            assert not row["start"] and not row["end"]
        assert 0 <= float(row["score"]) <= 1
    # The form that the script of SQuAD reads.
    written = tmp_path / "answers.squad.json"
    nested_file = files / "nested.json"
    assert main(["predict", f"run={run}", f"input={nested_file}", f"output={written}"]) == 0
    table = tmp_path / "answers.csv"
    assert main(["predict", f"run={run}", f"input={nested_file}", f"output={table}"]) == 0
    with table.open(encoding="utf-8") as file:
        expected = {row["id"]: row["prediction"] for row in csv.DictReader(file)}
    assert json.loads(written.read_text(encoding="utf-8")) == expected and len(expected) == 60
    flat_file = files / "flat.jsonl"
    error = refused(capsys, ["predict", f"run={run}", f"input={flat_file}", f"output={written}"])
    assert "there is no column id" in error[0]
    one = ["input.question=Where does Ada live?", f"input.context={rows[0]['context']}"]
    capsys.readouterr()
    assert main(["predict", f"run={run}", *one, f"output={written}"]) == 2
    printed = capsys.readouterr()
    assert "there is no column id" in printed.err and not printed.out  # no answer
    model = dxn.load(run, device="cpu")
    model.task.target.is_optional = False
    text = " ".join(row["context"] for row in rows)
    answer = model.predict(question="Where does Ada live?", context=text)
    before, found, after = answer["excerpt"]
    assert text[answer["start"] : answer["end"]] == answer["prediction"] == found != ""
    assert f"{before.removeprefix('...')}{found}{after.removesuffix('...')}" in text
    exported = tmp_path / "exported"
    assert main(["export", f"run={run}", f"output={exported}", "format=torch"]) == 0
    # The program without dxn reads the windows of a long text, and texts with combining marks.
    for context in (text, rows[0]["context"], "Zoe\u0301  \U0001f600 lives in Cafe\u0301 Town"):
        assert_answers_are_equal(model, exported, "Where does Ada live?", context)
    assert "context: missing" in example(exported, "question=Where?").stderr


def test_an_exported_program_cuts_another_long_text_like_the_model():
    windows = Windows(
        "context", max_len=8, lead=(1,), tail=(2,), num_tail=1, others=("note",), overlap=2
    )
    lengths = {"context": 5, "note": 13}
    arrays = {}
    for name, length in lengths.items():
        ids = np.arange(length)[None] + 3
        ids[:, 0], ids[:, -1] = 1, 2
        arrays |= {f"{name}.ids": ids, f"{name}.mask": ids > 0}
    batch = {
        name: {key: torch.tensor(arrays[f"{name}.{key}"]) for key in ("ids", "mask")}
        | {"rows": torch.zeros(1)}
        for name in lengths
    }
    (window,) = windows.cut(batch)
    options = {"input": "context", "question": "", "others": ["note"], "max_len": 8, "overlap": 2}
    options |= {"lead": 1, "middle": 0, "tail": 1, "end": 1, "max_answer": 3, "can_be_none": False}
    seen = []

    def run(arrays):
        seen.append(arrays)
        return {"start": np.zeros((1, 4)), "end": np.zeros((1, 4))}

    best(run, arrays, options)
    assert len(seen) == 1
    for name in lengths:
        assert seen[0][f"{name}.ids"].tolist() == window[name]["ids"].tolist()


def listed(colors):
    return ", ".join(f"the {name} shape" for name in colors)


@pytest.mark.parametrize("fusion", ["early", "bottleneck"])
def test_the_question_can_be_a_picture(fusion, tmp_path, capsys):
    colors = {"red": 0, "green": 1, "blue": 2}
    lines = ["photo,context,answer"]
    for i in range(120):
        order = random.Random(i).sample(sorted(colors), 3)
        asked = order[i % 3]
        # Rows with the same picture would be in the same split.
        pixel = [i] * 3
        pixel[colors[asked]] = 255
        Image.new("RGB", (8, 8), tuple(pixel)).save(tmp_path / f"{i}.png")
        lines.append(f'{i}.png,"{listed(order)}",the {asked} shape')
    path = tmp_path / "colors.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    run = tmp_path / "run"
    options = [*PLAIN, *SMALL, "report=false", "head=span", "target=answer", f"fusion={fusion}"]
    # The texts repeat, so that they would be categories.
    options += ["data.text=context", "data.image=photo"]
    options += ["adapters.image.image_size=8", "adapters.image.patch_size=8", "trainer.epochs=2"]
    options += ["adapters.text.tokenizer.kind=word", "adapters.text.conv_kernel=3"]
    train(run, str(path), *options)
    model = dxn.load(run, device="cpu")
    text = listed(["blue", "red", "green"])
    for row in model.predict_many(
        [{"photo": str(tmp_path / f"{i}.png"), "context": text} for i in range(2)]
    ):
        assert text[row["start"] : row["end"]] == row["prediction"] != ""
    # Without a question, the answer is still a part of the text.
    alone = model.predict(context=text)
    assert text[alone["start"] : alone["end"]] == alone["prediction"]
    for function in (model.predict, model.embed):
        with pytest.raises(dxn.UserError, match="no value of the input context"):
            function(photo=str(tmp_path / "0.png"))
    path.write_text(f'photo,context\n0.png,"{text}"\n1.png,\n', encoding="utf-8")
    capsys.readouterr()
    assert main(["predict", f"run={run}", str(path), "on_bad=missing"]) == 0
    assert "colors.csv row 3" not in (told := capsys.readouterr().out) and "1 row skipped" in told
    with client_of(model) as client:
        photo = {"base64": base64.b64encode((tmp_path / "0.png").read_bytes()).decode()}
        body = {"inputs": [{"context": text}, {"photo": photo}]}
        assert "sample 2: no value" in error_of(client.post("/predict", json=body), 422)
