"""A judge reads the values that a model of head=any creates: metrics, distances and errors."""

import csv
import json

import numpy as np
import pytest
import scipy.linalg
import torch
from helpers.newcomer import printed, refused
from helpers.runs import SMALL_IMAGES
from helpers.shades import SHADES, TINY, train_any
from PIL import Image

import dxn
from dxn.runs.evaluation.features import (
    diversity,
    frechet_distance,
    nearest_distance,
    share_equal,
)
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
        *(*LEARNED, "trainer.epochs=30", f"run={folder / 'codec'}"),
    )
    learned = ["backbone.dropout=0", "optimizer.lr=0.01", *LEARNED]
    train_any(folder, "any", *learned, "trainer.epochs=80")
    for target, run in (("shade", "judge"), ("text", "named")):
        options = [*IMAGES, *LEARNED, "trainer.epochs=15", "preset=plain", "head=classify"]
        dxn.train(table, f"target={target}", *options, f"run={folder / run}")
    dxn.train(
        table, *IMAGES, *LEARNED, "trainer.epochs=1", "head=masked", f"run={folder / 'masked'}"
    )
    return folder


@pytest.fixture(scope="module")
def captioner(folder):
    """A judge of head=any whose text is the column caption, and a table with it."""
    with (folder / "rows.csv").open(newline="") as file:
        rows = [{**row, "caption": row["text"].upper()} for row in csv.DictReader(file)]
    with (folder / "captions.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    run, data = folder / "captioner", ["data.text=caption", "data.image=image"]
    options = ["head=any", "adapters=[text,image_codes]", *TINY, f"run={run}"]
    codec = f"adapters.image_codes.codec={folder / 'codec'}"
    dxn.train(folder / "captions.csv", *data, codec, *options)
    return run


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
        for name in ("frechet_distance", "nearest_distance", "copied", "diversity"):
            assert np.isfinite(found[f"test/{name}[{row}]"])
    assert found["test/nearest_distance[restored]"] != found["test/nearest_distance[true]"]
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


def test_a_judge_of_head_any_writes_a_text(folder, right_names, tmp_path, capsys):
    run = folder / "any"
    options = [f"run={run}", "create=image", f"judge={run}", f"output={tmp_path}"]
    printed(capsys, "evaluate", *options)
    assert metrics(tmp_path)["test/exact_match[true]"] == pytest.approx(right_names)


def test_the_text_of_the_judge_is_found_under_its_own_name(folder, captioner, tmp_path, capsys):
    out = printed(
        capsys,
        *("evaluate", f"run={folder / 'any'}", "create=image", f"judge={captioner}"),
        *(f"data.path={folder / 'captions.csv'}", f"output={tmp_path}"),
    )
    assert "note: there is no" not in out
    assert "test/exact_match[true]" in metrics(tmp_path)
    assert "A DARK ONE" in (tmp_path / "predictions.csv").read_text()


def test_the_text_of_the_judge_is_compared_with_that_of_the_model(
    folder, captioner, tmp_path, capsys
):
    command = ["evaluate", f"run={folder / 'any'}", "create=image", f"judge={captioner}"]
    out = printed(capsys, *command, f"output={tmp_path}")
    assert "note: the data has no caption, which the judge writes, so its texts are compared" in out
    assert "test/exact_match[true]" in metrics(tmp_path)
    assert "a dark one" in (tmp_path / "predictions.csv").read_text()


def test_a_captioner_whose_target_has_another_name_is_compared_too(folder, tmp_path, capsys):
    with (folder / "rows.csv").open(newline="") as file:
        rows = [[row["text"], row["image"]] for row in csv.DictReader(file)]
    with (folder / "sentences.csv").open("w", newline="") as out:
        csv.writer(out).writerows([["sentence", "image"], *rows])
    options = [*IMAGES, *LEARNED, "trainer.epochs=1", "head=generate", "target=sentence"]
    dxn.train(folder / "sentences.csv", *options, f"run={tmp_path / 'judge'}")
    command = ["evaluate", f"run={folder / 'any'}", "create=image", "only=[text]"]
    out = printed(capsys, *command, f"judge={tmp_path / 'judge'}", f"output={tmp_path}")
    assert "note: the data has no sentence, which the judge writes, so its texts are" in out
    assert "test/exact_match[true]" in metrics(tmp_path)


def test_a_note_says_why_the_text_of_the_judge_is_not_compared(folder, captioner, tmp_path, capsys):
    """There are two texts to compare with."""
    run, data = tmp_path / "two", ["data.text=[text,shade]", "data.image=image", "head=any"]
    codec = f"adapters.image_codes.codec={folder / 'codec'}"
    dxn.train(
        *(folder / "rows.csv", *data, "adapters=[text,image_codes]", codec, *TINY, f"run={run}")
    )
    command = ["evaluate", f"run={run}", "create=image", f"judge={captioner}"]
    out = printed(capsys, *command, f"output={tmp_path}")
    assert "note: there is no exact_match: the judge writes caption, which the data does" in out
    assert "set data.path=... data.target=COLUMN to a column with the same content" in out
    assert not any("exact_match" in key for key in metrics(tmp_path))


def test_a_judge_without_answers_is_said_to_have_none(folder, tmp_path, capsys):
    command = ["evaluate", f"run={folder / 'any'}", "create=image", f"judge={folder / 'masked'}"]
    out = printed(capsys, *command, f"output={tmp_path}")
    assert "note: the judge (head=masked) has no answers about image" in out
    assert "test/frechet_distance[true]" in metrics(tmp_path)


def test_what_the_codec_restores_from_a_training_picture_is_a_copy(folder, tmp_path, capsys):
    # The training has some of the pictures that are evaluated, and pictures of other shades.
    heading = ["text", "image", "shade"]
    numbers = {"train": [0, 1, 3, 4], "test": [*range(6), 29, 59]}
    for split, chosen in numbers.items():
        rows = [[f"a {list(SHADES)[i % 3]} one", f"{i}.png", "dark"] for i in chosen]
        with (folder / f"{split}_copies.csv").open("w", newline="") as out:
            csv.writer(out).writerows([heading, *rows])
    parts = [f"data.{split}={folder / split}_copies.csv" for split in numbers]
    printed(
        capsys,
        *("evaluate", f"run={folder / 'any'}", "create=image", f"judge={folder / 'judge'}"),
        *(*parts, "temperature=0", f"output={tmp_path}"),
    )
    codec = dxn.load(folder / "any").adapters["image"].codec

    def restored(i):
        [codes] = codec.encode([codec.reader.read(str(folder / f"{i}.png"))])
        return codec.decode(codes).numpy().tobytes()

    known = {restored(i) for i in numbers["train"]}
    true = np.mean([restored(i) in known for i in numbers["test"]])
    created = [codec.reader.read(str(path)) for path in (tmp_path / "created").glob("*.png")]
    copies = np.mean([pixels.numpy().tobytes() in known for pixels in created])
    found = metrics(tmp_path)
    assert true >= 0.5
    assert found["test/copied[true]"] == found["test/copied[restored]"] == pytest.approx(true)
    assert found["test/copied[created]"] == pytest.approx(copies)


def test_copied_texts_are_found_by_their_words(folder, tmp_path, capsys):
    run = folder / "any"
    options = [f"run={run}", "create=text", "temperature=0", f"judge={run}", f"output={tmp_path}"]
    printed(capsys, "evaluate", *options)
    assert metrics(tmp_path)["test/copied[true]"] == 1


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


def test_a_smaller_distance_is_better(folder, tmp_path, capsys):
    for split in ("train", "test"):
        (folder / f"{split}_single.csv").write_text("text,image\na dark one,0.png\n")
    parts = [f"data.{split}={folder / split}_single.csv" for split in ("train", "test")]
    command = ["evaluate", f"run={folder / 'any'}", "create=image", f"judge={folder / 'masked'}"]
    printed(capsys, *command, *parts, f"output={tmp_path}")
    found = metrics(tmp_path)
    assert found["monitored"] == "nearest_distance" and not found["higher_is_better"]


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


def test_training_rows_without_the_created_input_give_no_distances(folder, tmp_path, capsys):
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
    assert "there are no distances: the data has no training values besides these rows" in out
    assert metrics(tmp_path)["test/accuracy[true]"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["create=image", "judge=masked", "data.path=one.csv"], "judge: it has no answers for"),
        (["create=image", "judge=codec"], "judge: a codec does not say what image shows"),
        (["create="], "create: needs the name of an input; the inputs that can be created are"),
        (["create=image"], "judge: needs the run of a model that reads image (image)"),
        (["create=text", "judge=JUDGE"], "judge: must read text (text), but its inputs are image"),
        (["create=sound"], "create: sound cannot be created"),
        (["create=image", "judge=JUDGE", "only=[image]"], "only: image can be created from text"),
        (["create=image", "judge=nowhere"], "judge: folder not found: nowhere"),
        (["create=text", "input=rows.csv"], "input: cannot be combined with create; set data.path"),
        (["guidance=2"], "guidance: needs create=NAME"),
        (["judge=JUDGE"], "judge: needs create=NAME"),
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


def test_diversity_is_the_mean_over_pairs():
    vectors = torch.randn(13, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cosines = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=2)
    pairs = cosines[~torch.eye(13, dtype=torch.bool)]
    assert diversity(vectors) == pytest.approx(1 - float(pairs.mean()))
    assert diversity(vectors[:1].expand(3, -1)) == pytest.approx(0)


def test_the_nearest_distance_of_equal_features_is_0():
    vectors = torch.arange(6, dtype=torch.float64).reshape(3, 2)
    assert nearest_distance(vectors, vectors) == 0
    assert nearest_distance(vectors[:1], vectors[:1] + torch.tensor([3.0, 4.0])) == 5


def test_the_nearest_distance_is_a_median():
    vectors, others = torch.tensor([[0.0], [10.0]]).double(), torch.tensor([[1.0], [13.0]]).double()
    assert nearest_distance(vectors, others) == 2


@pytest.mark.parametrize(("lowercase", "share"), [(True, 1), (False, 0.5)])
def test_true_texts_are_compared_in_the_form_that_the_model_writes(lowercase, share):
    adapter = TextAdapter(16, tokenizer=TokenizerOptions(kind="word", lowercase=lowercase))
    adapter.fit(["A caf\N{LATIN SMALL LETTER E WITH ACUTE}", "a dark one"])
    written = ["a caf\N{LATIN SMALL LETTER E WITH ACUTE}", "a dark one"]
    true = ["a cafe\N{COMBINING ACUTE ACCENT}", "A dark one"]
    assert share_equal(written, true, adapter.tokenizer) == share
