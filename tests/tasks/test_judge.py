"""A judge reads the values that a model of head=any creates: metrics, distances and errors."""

import csv
import json

import numpy as np
import pytest
import scipy.linalg
import torch
from helpers.newcomer import printed, refused
from helpers.runs import SMALL_IMAGES
from helpers.shades import SHADES, train_any
from PIL import Image

import dxn
from dxn.runs.evaluation.created_values import frechet_distance, share_equal
from dxn.tokenize import TextAdapter
from dxn.tokenize.text.options import TokenizerOptions

IMAGES = [o for o in SMALL_IMAGES if "image_size" not in o]
IMAGES += ["data.image=image", "adapters.image.image_size=16", "optimizer.lr=0.01"]
LEARNED = ["trainer.patience=0", "dim=32", "batch_size=8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table of plain pictures, and the runs of a model that creates them and of two judges."""
    folder = tmp_path_factory.mktemp("judge")
    rows = []
    for i in range(60):
        name = list(SHADES)[i % 3]
        pixels = np.full((16, 16), SHADES[name] + i // 3, np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
        split = "test" if i % 5 == 4 else "train"
        rows.append([f"a {name} one", f"{i}.png", name, split])
    # The same rows with other names of columns.
    heads = {"rows.csv": ("text", "shade", "split"), "drawn.csv": ("text", "shade", "number")}
    for file, (text, shade, split) in heads.items():
        with (folder / file).open("w", newline="") as out:
            csv.writer(out).writerows([[text, "image", shade, split], *rows])
    table = folder / "rows.csv"
    dxn.train(
        *(table, *IMAGES, "head=codec", "head.levels=[5,5]", "head.stages=2"),
        *(*LEARNED, "trainer.epochs=15", f"run={folder / 'codec'}"),
    )
    learned = ["backbone.dropout=0", "optimizer.lr=0.01", *LEARNED]
    train_any(folder, "any", *learned, "trainer.epochs=25")
    for target, run in (("shade", "judge"), ("text", "named")):
        options = [*IMAGES, *LEARNED, "trainer.epochs=8", "preset=plain", "head=classify"]
        dxn.train(table, f"target={target}", *options, f"run={folder / run}")
    return folder


def metrics(folder):
    return json.loads((folder / "metrics.json").read_text())


def test_created_pictures_are_judged_from_their_files(folder, tmp_path, capsys):
    out = printed(
        capsys,
        *("evaluate", f"run={folder / 'any'}", "create=image", f"judge={folder / 'judge'}"),
        *("only=[text]", "temperature=0", "guidance=1.5", f"output={tmp_path}"),
    )
    assert "12 image values from text" in out
    assert "frechet_distance is too large: it needs more rows than features (32), got 12" in out
    found = metrics(tmp_path)
    for row in ("created", "restored", "true"):
        assert found[f"test/accuracy[{row}]"] == 1
        assert found[f"test/frechet_distance[{row}]"] > 0
    assert found["test/frechet_distance[restored]"] != found["test/frechet_distance[true]"]
    assert len(list((tmp_path / "created").glob("*.png"))) == 12
    assert len(list((tmp_path / "restored").glob("*.png"))) == 12
    with (tmp_path / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    for i, row in enumerate(rows):
        number = 5 * i + 4
        assert row["row"] == str(number + 2) and row["target"] == list(SHADES)[number % 3]
        assert row["prediction"] == row["target"]


def test_the_target_of_the_judge_can_be_an_input_of_the_model(folder, tmp_path, capsys):
    printed(
        capsys,
        *("evaluate", f"run={folder / 'any'}", "create=image", f"judge={folder / 'named'}"),
        *("temperature=0", f"output={tmp_path}"),
    )
    assert metrics(tmp_path)["test/accuracy[created]"] == 1


@pytest.fixture
def right_names(folder):
    """The share of test pictures from which the model writes the true text."""
    numbers = range(4, 60, 5)
    given = [{"image": str(folder / f"{i}.png")} for i in numbers]
    texts = dxn.load(folder / "any").create("text", given, temperature=0)
    true = [f"a {list(SHADES)[i % 3]} one" for i in numbers]
    return np.mean([text == other for text, other in zip(texts, true, strict=True)])


def test_created_texts_need_no_judge(folder, right_names, tmp_path, capsys):
    options = [f"run={folder / 'any'}", "create=text", "temperature=0", f"output={tmp_path}"]
    printed(capsys, "evaluate", *options)
    found = metrics(tmp_path)
    assert found["test/equal_text[created]"] == pytest.approx(right_names)
    assert found["evaluated"] == 12
    assert "a dark one" in (tmp_path / "predictions.csv").read_text()


def test_an_evaluation_removes_the_files_of_an_earlier_one(folder, tmp_path, capsys):
    (folder / "three.csv").write_text(
        "text,image,shade\n"
        + "".join(f"a {name} one,{i}.png,{name}\n" for i, name in enumerate(SHADES))
    )
    (folder / "one.csv").write_text("text,image,shade\na dark one,0.png,dark\n")
    command = ["evaluate", f"run={folder / 'any'}", f"output={tmp_path}"]
    judged = ["create=image", f"judge={folder / 'judge'}"]
    printed(capsys, *command, *judged, f"data.path={folder / 'three.csv'}")
    (tmp_path / "created" / "notes.txt").write_text("mine")
    printed(capsys, *command, *judged, f"data.path={folder / 'one.csv'}")
    assert {path.name for path in (tmp_path / "created").iterdir()} == {"000000.png", "notes.txt"}
    assert [path.name for path in (tmp_path / "restored").iterdir()] == ["000000.png"]
    printed(capsys, *command, "create=text", f"data.path={folder / 'one.csv'}")
    assert [path.name for path in (tmp_path / "created").iterdir()] == ["notes.txt"]
    assert not (tmp_path / "restored").exists()


def test_an_evaluation_leaves_the_pictures_of_the_user(folder, tmp_path, capsys):
    (tmp_path / "created").mkdir()
    for name in ("1.png", "20260101.png"):
        (tmp_path / "created" / name).write_bytes(b"mine")
    command = ["evaluate", f"run={folder / 'any'}", "create=text", "temperature=0"]
    for _ in range(2):
        printed(capsys, *command, f"output={tmp_path}")
    assert len(list((tmp_path / "created").iterdir())) == 2


def test_the_target_of_the_judge_is_found_for_drawn_splits(folder, tmp_path, capsys):
    data = [f"data.path={folder / 'drawn.csv'}", "data.fractions=[0.5,0.2,0.3]"]
    printed(
        capsys,
        *("evaluate", f"run={folder / 'any'}", "create=image", f"judge={folder / 'judge'}"),
        *(*data, "only=[text]", "temperature=0", f"output={tmp_path}"),
    )
    assert metrics(tmp_path)["test/accuracy[created]"] == 1


def test_the_user_chooses_another_column_than_the_target_of_the_judge(folder, tmp_path, capsys):
    rows = [[f"a {name} one", f"{i}.png", "a dark one"] for i, name in enumerate(SHADES)]
    with (folder / "phrases.csv").open("w", newline="") as out:
        csv.writer(out).writerows([["text", "image", "phrase"], *rows])
    printed(
        capsys,
        *("evaluate", f"run={folder / 'any'}", "create=image", f"judge={folder / 'named'}"),
        *(f"data.path={folder / 'phrases.csv'}", "data.target=phrase", f"output={tmp_path}"),
    )
    assert metrics(tmp_path)["all/accuracy[true]"] == pytest.approx(1 / 3)


def test_tables_with_the_same_name_have_their_own_answers(folder, tmp_path, capsys):
    parts = [f"data.{split}={folder / split}/rows.csv" for split in ("train", "test")]
    for split, first in (("train", 0), ("test", 1)):
        (folder / split).mkdir()
        with (folder / split / "rows.csv").open("w", newline="") as out:
            names = [(i, list(SHADES)[i % 3]) for i in range(first, first + 9)]
            rows = [[f"a {name} one", folder / f"{i}.png", name] for i, name in names]
            csv.writer(out).writerows([["text", "image", "shade"], *rows])
    for split in ("train", "test"):
        printed(
            capsys,
            *("evaluate", f"run={folder / 'any'}", "create=image", f"judge={folder / 'judge'}"),
            *(*parts, "data.confine=false", f"split={split}", f"output={tmp_path / split}"),
        )
        assert metrics(tmp_path / split)[f"{split}/accuracy[true]"] == 1


def test_training_rows_without_the_created_input_give_no_distance(folder, tmp_path, capsys):
    for split, picture in (("train", ""), ("test", "{}.png")):
        names = enumerate(SHADES)
        rows = [[f"a {name} one", picture.format(i), name] for i, name in names]
        with (folder / f"{split}_part.csv").open("w", newline="") as out:
            csv.writer(out).writerows([["text", "image", "shade"], *rows])
    parts = [f"data.{split}={folder / split}_part.csv" for split in ("train", "test")]
    out = printed(
        capsys,
        *("evaluate", f"run={folder / 'any'}", "create=image", f"judge={folder / 'judge'}"),
        *(*parts, "only=[text]", f"output={tmp_path}"),
    )
    assert "no frechet_distance: the data has no training values besides these rows" in out
    assert metrics(tmp_path)["test/accuracy[true]"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["create=image", "judge=codec"], "judge: must predict a target, such as a classifier"),
        (["create=image", "judge=any"], "judge: must predict a target, such as a classifier"),
        (["create="], "create: needs the name of an input; the inputs that can be created are"),
        (["create=image"], "judge: needs the run of a model that reads image (image)"),
        (["create=text", "judge=JUDGE"], "judge: must read text (text), but its inputs are image"),
        (["create=sound"], "create: sound cannot be created"),
        (["create=image", "judge=JUDGE", "only=[image]"], "only: image can be created from text"),
        (["create=image", "judge=nowhere"], "judge: folder not found: nowhere"),
        (["create=text", "input=rows.csv"], "input: cannot be combined with create; set data.path"),
        (["guidance=2"], "guidance: has an effect only with create"),
        (["judge=JUDGE"], "judge: has an effect only with create"),
        (
            ["create=image", "judge=JUDGE", "data.path=few.csv"],
            "judge: predicts shade, which the data does not have (data.target: no column 'shade'",
        ),
        (
            ["create=image", "judge=JUDGE", "data.path=texts.csv"],
            "data.image: no column 'image' in texts.csv",
        ),
    ],
)
def test_wrong_options_are_refused(folder, options, message, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "one.csv").write_text("text,image\na dark one,0.png\n")
    (folder / "few.csv").write_text("text,image\na dark one,0.png\na gray one,1.png\n")
    (folder / "texts.csv").write_text("text,shade\na dark one,dark\na gray one,gray\n")
    words = [option.replace("JUDGE", "judge") for option in options]
    assert message in refused(capsys, "evaluate", "run=any", *words)


def test_values_that_the_judge_cannot_read_are_named(folder, capsys):
    rows = "".join(f"a {name} one,nowhere.png,{name}\n" for name in SHADES)
    (folder / "lost.csv").write_text(f"text,image,shade\n{rows}")
    options = ["create=image", f"judge={folder / 'judge'}", f"data.path={folder / 'lost.csv'}"]
    message = refused(capsys, "evaluate", f"run={folder / 'any'}", "only=[text]", *options)
    assert "judge: cannot read any of 3 values of image" in message
    assert "lost.csv row 2: image: " in message


def test_a_model_that_creates_nothing_is_refused(folder, capsys):
    run = f"run={folder / 'judge'}"
    assert "(train one with head=any)" in refused(capsys, "evaluate", run, "create=image")


# Features


def test_the_frechet_distance_is_that_of_the_matrix_square_root():
    rng = torch.Generator().manual_seed(0)
    a = torch.randn(23, 7, generator=rng, dtype=torch.float64)
    b = torch.randn(29, 7, generator=rng, dtype=torch.float64) * 2 + 1
    root = scipy.linalg.sqrtm((a.T.cov() @ b.T.cov()).numpy()).real
    shift = float((a.mean(0) - b.mean(0)).square().sum())
    expected = shift + float(a.T.cov().trace() + b.T.cov().trace()) - 2 * np.trace(root)
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(b, a) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("rows", [2, 5, 40])
def test_the_frechet_distance_of_singular_covariances_is_exact(rows):
    rng = torch.Generator().manual_seed(rows)
    a = torch.randn(rows, 11, generator=rng, dtype=torch.float64)
    a[:, 3] = 0
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-6)
    assert frechet_distance(a, a + 2) == pytest.approx(11 * 4, rel=1e-6)


@pytest.mark.parametrize(("lowercase", "share"), [(True, 1), (False, 0.5)])
def test_true_texts_are_compared_in_the_form_that_the_model_writes(lowercase, share):
    adapter = TextAdapter(16, tokenizer=TokenizerOptions(kind="word", lowercase=lowercase))
    adapter.fit(["A caf\N{LATIN SMALL LETTER E WITH ACUTE}", "a dark one"])
    written = ["a caf\N{LATIN SMALL LETTER E WITH ACUTE}", "a dark one"]
    true = ["a cafe\N{COMBINING ACUTE ACCENT}", "A dark one"]
    assert share_equal(written, true, adapter.tokenizer) == share
