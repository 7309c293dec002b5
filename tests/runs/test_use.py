"""The use of a trained model: new tables, files and folders, and what the commands write."""

import csv
import json
import re
import shutil
import warnings

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile
from helpers.runs import metrics_of, refused, train
from PIL import Image

import dxn
from dxn.cli import main
from dxn.core.errors import UserError

COLORS = {"red": (220, 20, 20), "blue": (20, 20, 220)}
TINY = [
    *("dim=12", "backbone.depth=1", "backbone.num_heads=2", "batch_size=16", "trainer.epochs=8"),
    *("trainer.device=cpu", "trainer.precision=float32", "optimizer.lr=5e-3"),
    *("preset=plain", "baseline=none"),
]
SMALL = [
    "adapters.text.tokenizer.kind=word",
    "adapters.image.image_size=8",
    "adapters.image.patch_size=4",
]


def write_csv(path, header, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def read_csv(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """shop.csv: 60 rows with a number, a title, a photo and the color that both of them show."""
    folder = tmp_path_factory.mktemp("use")
    (folder / "photos" / "more").mkdir(parents=True)
    rows = []
    for i in range(60):
        color = list(COLORS)[i % 3 == 0]
        pixels = np.full((9, 9, 3), COLORS[color], np.uint8)
        pixels[i % 9, i % 7] = i
        path = f"photos/{'more/' if i < 5 else ''}{i}.png"
        Image.fromarray(pixels).save(folder / path)
        rows.append([f"s{i}", f"{color} shirt {i % 11}", path, color])
    write_csv(folder / "shop.csv", ["sku", "title", "photo", "color"], rows)
    (folder / "photos" / "readme.md").write_text("photos of shirts")
    (folder / "photos" / ".hidden.png").write_text("")
    soundfile.write(folder / "a.wav", np.zeros(900), 4000)
    return folder


@pytest.fixture(scope="module")
def run(place):
    """A model of title and photo."""
    table = ["data=table", f"data.path={place / 'shop.csv'}", "data.target=color"]
    train(place / "run", *table, *TINY, *SMALL, "adapters=[text,image]")
    return place / "run"


@pytest.fixture
def predict(run, capsys):
    """Run `dxn predict`, and return its lines."""

    def call(*arguments, verb="predict"):
        capsys.readouterr()
        assert main([verb, f"run={run}", *map(str, arguments)]) == 0
        return capsys.readouterr().out.splitlines()

    return call


# The columns of the training


def test_the_columns_of_the_training_are_read_and_others_are_named(place, predict, tmp_path):
    header = ["note", "sku", "title", "photo"]
    rows = [[f"a long note {i}", f"s{i}", "blue shirt", "photos/7.png"] for i in range(3)]
    table = write_csv(place / "more.csv", header, rows)
    lines = predict(f"input={table}", f"output={tmp_path / 'a.csv'}")
    assert lines[0] == "columns: title, photo"
    assert sum("note" in line for line in lines) == 1
    assert [row["title"] for row in read_csv(tmp_path / "a.csv")] == ["blue shirt"] * 3


def test_a_moved_model_folder_reads_the_same_columns(place, run, tmp_path, capsys):
    shutil.copytree(run / "model", tmp_path / "elsewhere")
    answers = []
    for folder in (run, tmp_path / "elsewhere"):
        output = tmp_path / f"{folder.name}.csv"
        table = f"input={place / 'shop.csv'}"
        assert main(["predict", f"run={folder}", table, f"output={output}"]) == 0
        answers.append(output.read_text())
    assert answers[0] == answers[1]


def test_a_column_with_another_name_is_mapped(place, predict, run, capsys, tmp_path):
    table = write_csv(place / "other.csv", ["name", "photo"], [["red shirt", "photos/6.png"]])
    (line,) = refused(capsys, ["predict", f"run={run}", f"input={table}"])
    assert "'title'" in line and "columns.title=" in line
    lines = predict(f"input={table}", "columns.title=name", f"output={tmp_path / 'a.csv'}")
    assert lines[0] == "columns: title=name, photo"
    assert read_csv(tmp_path / "a.csv")[0]["title"] == "red shirt"


def test_other_columns_are_copied_with_keep(place, predict, tmp_path):
    predict(f"input={place / 'shop.csv'}", "keep=[color]", f"output={tmp_path / 'a.csv'}")
    row = read_csv(tmp_path / "a.csv")[4]
    assert (row["sku"], row["row"], row["color"]) == ("s4", "6", "red")


# Evaluation


def test_all_rows_of_a_new_table_are_evaluated(place, run, predict, tmp_path):
    """With input=, and with a data set that has no splits of its own."""
    table = place / "shop.csv"
    lines = predict(f"input={table}", f"output={tmp_path / 'a'}", verb="evaluate")
    assert any(line.strip() == f"{table}: 60 rows" for line in lines)
    first = metrics_of(tmp_path / "a")
    assert first["evaluated"] == 60 and "input/accuracy[title]" in first
    data = ["data=table", f"data.path={table}"]
    predict(*data, f"output={tmp_path / 'b'}", verb="evaluate")
    second = metrics_of(tmp_path / "b")
    assert second["evaluated"] == 60
    assert second["all/accuracy"] == first["input/accuracy"]
    predict(*data, "data.fractions=[0.5,0.25,0.25]", f"output={tmp_path / 'c'}", verb="evaluate")
    assert 10 < metrics_of(tmp_path / "c")["evaluated"] < 20
    assert [row["sku"] for row in read_csv(tmp_path / "a" / "predictions.csv")] == [
        f"s{i}" for i in range(60)
    ]


def test_the_figures_of_the_trivial_answer_are_below_the_others(run, predict, tmp_path):
    lines = predict(f"output={tmp_path / 'a'}", verb="evaluate")
    names = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    assert names == ["title", "photo", "all", "always red"]
    again = metrics_of(tmp_path / "a")
    key = "test/accuracy[always red]"
    assert 0.5 < again[key] == metrics_of(run)[key] < 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["input={place}/other.csv", "data=table"], "data: has no effect with input="),
        (["input={place}/photos"], "input: must be a table, got .*data=folder data.path="),
        (["input={place}/unlabelled.csv"], "has no column 'color', .*columns.color=COLUMN"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(place, run, tmp_path, capsys, arguments, message):
    write_csv(place / "unlabelled.csv", ["title", "photo"], [["red shirt", "photos/6.png"]])
    asked = [argument.format(place=place) for argument in arguments]
    output = f"output={tmp_path / 'out'}"
    (line,) = refused(capsys, ["evaluate", f"run={run}", *asked, output])
    assert re.search(message, line)
    assert not (tmp_path / "out").exists()


# Files


@pytest.mark.parametrize(
    ("given", "count"), [("photos", 60), ("photos/*.png", 55), ("photos/**/?.png", 10)]
)
def test_each_file_of_a_folder_or_pattern_is_a_row(place, predict, tmp_path, given, count):
    lines = predict(f"input={place / given}", f"output={tmp_path / 'a.csv'}")
    rows = read_csv(tmp_path / "a.csv")
    assert len(rows) == count
    assert [row["file"] for row in rows] == sorted(row["file"] for row in rows)
    assert list(rows[0])[:3] == ["file", "prediction", "confidence"]
    if given == "photos":
        assert lines[0] == "note: not used: 1 file of another kind (readme.md)"
    alone = dxn.load(place / "run").predict(photo=rows[0]["file"])
    assert alone["prediction"] == rows[0]["prediction"]


def test_one_file_is_one_sample(place, predict):
    lines = predict(f"input={place / 'photos' / '7.png'}")
    assert re.fullmatch("prediction: (red|blue)", lines[0]) and len(lines) == 3
    assert predict(place / "photos" / "7.png") == lines


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("none/*.png", "input: no file matches none/"),
        ("a.wav", "no input of this model reads files such as"),
        ("README", "no input of this model reads files such as"),
        ("folder", "no input of this model reads any of the 1 file of"),
    ],
)
def test_files_that_the_model_cannot_read_are_refused(place, run, capsys, given, message):
    (place / "folder").mkdir(exist_ok=True)
    (place / "folder" / "a.xyz").write_text("")
    (place / "README").write_text("blue shirt")
    path = given if "*" in given else place / given
    (line,) = refused(capsys, ["predict", f"run={run}", f"input={path}"])
    assert message in line


def test_a_text_with_a_question_mark_is_no_pattern(place, run, tmp_path, capsys):
    table = ["data=table", f"data.path={place / 'shop.csv'}", "data.target=color"]
    train(tmp_path / "run", *table, *TINY, SMALL[0], "adapters=[text]", "trainer.epochs=1")
    capsys.readouterr()
    for text in ("is it red?", "red [shirt] *", "blue"):
        assert main(["predict", f"run={tmp_path / 'run'}", f"input={text}"]) == 0
        assert capsys.readouterr().out.startswith("prediction: ")


def test_a_bad_file_is_reported_without_a_word_about_training(place, run, predict, capsys):
    folder = place / "broken"
    shutil.copytree(place / "photos" / "more", folder, dirs_exist_ok=True)
    (folder / "0.png").write_bytes(b"not an image")
    (line,) = refused(capsys, ["predict", f"run={run}", f"input={folder}"])
    assert "0.png" in line and "on_bad=skip" in line
    assert "check" not in line and "learn" not in line
    lines = predict(f"input={folder}", "on_bad=skip")
    assert "1 row skipped" in lines and sum(".png: " in line for line in lines) == 4


def test_files_that_turn_out_to_be_bad_are_counted(place, run, predict, capsys, monkeypatch):
    folder = place / "cut"
    shutil.copytree(place / "photos" / "more", folder, dirs_exist_ok=True)
    for name in ("1.png", "2.png"):  # the header is good
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr("dxn.runs.predictor.inputs.PREDICTED_GB", 0)
    output = folder / "answers.json"
    # Also if a batch has no other file.
    for size in (1, 64):
        words = [f"input={folder}/*.png", "on_bad=skip", f"batch_size={size}"]
        lines = predict(*words, f"output={output}")
        assert lines[-1] == f"written: {output} (3 rows, 2 skipped)"
        assert "2.png: damaged or truncated image" in lines[-2]
        assert [row["file"][-5:] for row in json.loads(output.read_text())] == [
            "0.png",
            "3.png",
            "4.png",
        ]
    assert "2 rows skipped" in predict(*words)
    (line,) = refused(capsys, ["predict", f"run={run}", f"input={folder}/[12].png", "on_bad=skip"])
    assert "all rows of the data are bad; correct the data; the first problem is" in line


# Results


@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl", "parquet"])
def test_one_sample_is_written_as_one_row(predict, tmp_path, suffix):
    output = tmp_path / f"answer.{suffix}"
    lines = predict("input.title=blue shirt", f"output={output}")
    assert lines[0].startswith("prediction: ") and lines[-1] == f"written: {output} (1 row)"
    assert output.exists()
    if suffix == "json":
        (row,) = json.loads(output.read_text())
        assert list(row) == ["title", "prediction", "confidence", "p(blue)", "p(red)"]


@pytest.mark.parametrize("verb", ["predict", "embed"])
def test_a_wrong_suffix_is_refused_before_the_model_is_loaded(verb, capsys, tmp_path):
    asked = [verb, f"run={tmp_path}", "input.title=blue", "output=a.txt"]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.yaml").write_text("")
    assert "output: must be a file that ends in" in refused(capsys, asked)[0]


def test_of_a_long_table_the_first_rows_are_printed(place, predict):
    lines = predict(f"input={place / 'shop.csv'}")
    assert sum(line.startswith("shop.csv row ") for line in lines) == 20
    assert "and 40 more rows" in lines and lines[-1].endswith(" output=answers.csv")


def test_embeddings_of_one_sample_and_of_a_folder(place, predict, run, tmp_path):
    lines = predict("input.title=blue shirt", verb="embed")
    assert lines[0] == "embedding: 12 numbers" and lines[1].count(",") == 6
    lines = predict(f"input={place / 'photos'}", f"output={tmp_path / 'v.npy'}", verb="embed")
    assert f"written: {tmp_path / 'v.npy'} (60 rows; 12 numbers each)" in lines
    files = [row["file"] for row in read_csv(tmp_path / "v.ids.csv")]
    assert len(files) == 60
    expected = dxn.load(run).embed(photo=files[-1])
    np.testing.assert_allclose(np.load(tmp_path / "v.npy")[-1], expected, atol=1e-5)
    predict("input.title=blue", f"output={tmp_path / 'one.npy'}", verb="embed")
    assert np.load(tmp_path / "one.npy").shape == (1, 12)


# Python


def test_a_model_describes_itself(run):
    text = repr(dxn.load(run))
    assert text.startswith("Predictor(classify color from title, photo")
    assert "2 labels: blue, red" in text and "parameters" in text


def test_a_list_of_texts_is_not_one_text(run):
    model = dxn.load(run)
    with pytest.raises(
        UserError, match=r"^title: must be one text, got a list of 2; .*predict_many"
    ):
        model.predict(title=["blue shirt", "red shirt"])
    assert len(model.predict_many([{"title": "blue shirt"}, {"title": "red shirt"}])) == 2


def test_a_read_only_array_is_no_reason_for_a_warning(run):
    pixels = np.zeros((9, 9, 3), np.uint8)
    pixels.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dxn.load(run).predict(photo=pixels)


@pytest.mark.parametrize("verb", ["attend", "tokenize"])
def test_several_samples_are_refused_where_one_is_needed(place, run, capsys, verb):
    for given in ("shop.csv", "photos", "photos/*.png"):
        (line,) = refused(capsys, [verb, f"run={run}", f"input={place / given}"])
        assert "input: must be one sample" in line


@pytest.mark.parametrize("given", ["shop.csv", "photos", "photos/*.png"])
def test_no_sample_gets_a_text_from_a_classifier(place, run, capsys, given):
    (line,) = refused(capsys, ["generate", f"run={run}", f"input={place / given}"])
    assert "this model generates no text (its task is classify); use dxn predict" in line


@pytest.mark.parametrize("given", ["shop.csv", "photos/*.png"])
def test_the_matrices_of_all_samples_are_written(place, run, given, tmp_path):
    files = [tmp_path / "tokens.parquet", tmp_path / "tokens.npz"]
    for file in files:
        assert main(["tokenize", f"run={run}", f"input={place / given}", f"output={file}"]) == 0
    table, arrays = pq.read_table(files[0]).to_pylist(), np.load(files[1])
    assert len(table) == len(arrays["matrix"])
    row, names = np.array(table[0]["matrix"]), table[0]["input"]
    size = len(names)
    assert row.shape == (12, size)
    np.testing.assert_allclose(arrays["matrix"][0, :, :size], row, atol=1e-6)
    assert arrays["mask"][0].tolist() == [i < size for i in range(arrays["mask"].shape[1])]
    assert arrays["input"][0, :size].tolist() == names
    assert table[0]["file"].endswith(given.rpartition("/")[2].lstrip("*"))
    if given == "shop.csv":
        expected = dxn.load(run).tokens(title="blue shirt 0", photo=place / "photos/more/0.png")
        np.testing.assert_allclose(row, expected.matrix[0].detach().numpy(), atol=1e-5)


def test_matrices_of_a_data_set_need_fitted_adapters(place, capsys, tmp_path):
    words = ["tokenize", f"input={place / 'shop.csv'}", f"output={tmp_path / 't.npz'}"]
    (line,) = refused(capsys, words)
    assert "needs fitted adapters; set run=RUN" in line
