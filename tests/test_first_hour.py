"""The first hour of a new user: each test is a mistake or a wish that such a user had.

The tests use the command line as a user does, on small tables, pictures and sounds that they write
themselves.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import openpyxl
import pytest
from PIL import Image

import dxn
from dxn.cli import main
from dxn.errors import UserError
from dxn.tokenize import ImageAdapter

COLOURS = {"red": (220, 20, 20), "blue": (20, 20, 220), "black": (10, 10, 10)}
# A model that trains in about a second.
TINY = [
    "dim=16",
    "backbone.depth=1",
    "backbone.num_heads=2",
    "trainer.epochs=2",
    "trainer.precision=float32",
    "trainer.device=cpu",
]
SMALL_IMAGES = ["adapters.image.image_size=16", "adapters.image.patch_size=8"]
TEXT = ["adapters=[text]", "adapters.text.tokenizer.kind=word"]


def write_csv(path, header, rows):
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def read_csv(path):
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_clothes(folder):
    """A table with a title, a photo, a description, a price and a date per row, and its photos."""
    (folder / "photos").mkdir()
    rows = []
    for i in range(90):
        colour = list(COLOURS)[i % 3]
        pixels = np.full((24, 18, 3), COLOURS[colour], np.uint8)
        pixels[i % 7, i % 5] = i
        Image.fromarray(pixels).save(folder / f"photos/{i}.png")
        title = f"{colour} shirt number {i}"
        rows.append([f"c{i}", title, f"photos/{i}.png", f"sold in week {i}", 5 + i, colour])
    header = ["sku", "title", "photo", "description", "price", "colour"]
    write_csv(folder / "clothes.csv", header, rows)


def run(*arguments):
    """The exit code of a command."""
    return main([str(argument) for argument in arguments])


def printed(capsys, *arguments):
    """What a command prints that must succeed."""
    capsys.readouterr()
    code = run(*arguments)
    output = capsys.readouterr()
    assert code == 0, output.err
    return output.out


def refused(capsys, *arguments):
    """The error of a command that must be refused in plain sentences."""
    capsys.readouterr()
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("dxn: ")
    assert "Traceback" not in error
    return error


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def clothes(tmp_path_factory):
    """A folder with a table of clothes, and a model that was trained on its title and photo."""
    folder = tmp_path_factory.mktemp("clothes")
    before = Path.cwd()
    os.chdir(folder)
    write_clothes(folder)
    options = [
        *TINY,
        *SMALL_IMAGES,
        "trainer.epochs=15",
        "optimizer.lr=3e-3",
        "adapters.text.tokenizer.kind=word",
    ]
    assert (
        run("train", "clothes.csv", "target=colour", "data.text=title", "run=model", *options) == 0
    )
    os.chdir(before)
    return folder


@pytest.fixture
def shop(clothes, monkeypatch):
    """The folder with the table and the model as the current folder."""
    monkeypatch.chdir(clothes)
    return clothes


# Findings 1 and 2: the columns of the training are used again


def test_prediction_reads_the_title_although_all_titles_are_equal(shop):
    rows = [[i, "blue", f"photos/{i}.png"] for i in range(12)]
    write_csv("same.csv", ["id", "title", "photo"], rows)
    assert run("predict", "run=model", "input=same.csv", "output=same_out.csv") == 0
    from_title = dxn.load("model").predict(text="blue", image="photos/0.png")["prediction"]
    assert read_csv("same_out.csv")[0]["prediction"] == from_title
    assert read_csv("same_out.csv")[0]["text"] == "blue"


def test_prediction_ignores_further_text_columns_and_names_them_once(shop, capsys):
    rows = [
        [i, "blue", f"customer {i} said the box was broken", f"photos/{i}.png"] for i in range(9)
    ]
    write_csv("comments.csv", ["id", "title", "comment", "photo"], rows)
    output = printed(
        capsys, "predict", "run=model", "input=comments.csv", "output=comments_out.csv"
    )
    assert "text=title" in output
    assert output.count("comment") >= 1
    assert read_csv("comments_out.csv")[0]["text"] == "blue"


def test_prediction_stops_at_a_missing_column_and_takes_a_mapping(shop, capsys):
    write_csv("other.csv", ["name", "photo"], [["blue", "photos/0.png"]])
    error = refused(capsys, "predict", "run=model", "input=other.csv")
    assert "title" in error
    assert "columns.title=name" in error or "columns.title=" in error
    output = printed(capsys, "predict", "run=model", "input=other.csv", "columns.title=name")
    assert "text=name" in output


def test_the_training_table_itself_can_be_predicted(here, capsys):
    rows = [[f"a man number {i}", f"ein Mann mit {i}", ["yes", "no"][i % 2]] for i in range(40)]
    write_csv("two.csv", ["en", "de", "good"], rows)
    assert run("train", "two.csv", "target=good", *TINY, *TEXT, "run=model") == 0
    assert "en" in printed(capsys, "predict", "run=model", "input=two.csv")
    assert run("embed", "run=model", "input=two.csv", "output=vectors.csv") == 0


# Finding 3: pictures are small in memory


def test_a_large_photo_is_reduced_when_it_is_read(here):
    noise = np.random.default_rng(0).integers(0, 255, (300, 400, 3), np.uint8)
    Image.fromarray(noise).resize((4000, 3000)).save("phone.jpg")
    raw = ImageAdapter(image_size=64, patch_size=16, dim=32).prepare.read("phone.jpg")
    assert raw.numel() < 100_000


# Findings 4 to 6: nothing is left out in silence


def test_choosing_a_text_column_keeps_the_photos_and_names_what_is_not_used(shop, capsys):
    options = [*TINY, *SMALL_IMAGES, "run=again", "debug=fast"]
    output = printed(capsys, "train", "clothes.csv", "target=colour", "data.text=title", *options)
    assert "image: photo" in output
    unused = next(line for line in output.splitlines() if "not used" in line)
    assert "description" in unused or "price" in output


def test_a_table_with_several_photos_per_row_trains(shop):
    rows = [[f"photos/{i}.png", f"photos/{i + 1}.png", list(COLOURS)[i % 3]] for i in range(60)]
    write_csv("pairs.csv", ["front", "back", "colour"], rows)
    options = [*TINY, *SMALL_IMAGES, "run=pairs"]
    assert run("train", "pairs.csv", "target=colour", *options) == 0


# Finding 7: all rows of a new table are evaluated


def test_evaluation_counts_all_rows_of_a_new_table(shop, capsys):
    rows = read_csv("clothes.csv")[:40]
    write_csv("new.csv", list(rows[0]), [list(row.values()) for row in rows])
    assert "40 rows" in printed(capsys, "evaluate", "run=model", "input=new.csv")
    assert "40 rows" in printed(
        capsys, "evaluate", "run=model", "data=table", "data.path=new.csv", "data.target=colour"
    )


# Finding 8: a model of pictures takes files and folders


@pytest.mark.parametrize("source", ["photos", "photos/*.png"])
def test_files_of_a_folder_are_predicted(source, shop):
    assert run("predict", "run=model", f"input={source}", "output=files.csv") == 0
    assert len(read_csv("files.csv")) == 90


def test_one_photo_is_predicted_and_the_answer_is_short(shop, capsys):
    output = printed(capsys, "predict", "run=model", "photos/0.png")
    assert any(colour in output for colour in COLOURS)
    assert len(output.splitlines()) < 15


# Finding 9: the task of everyday target columns


def texts(count):
    rand = random.Random(0)
    words = ["apple", "pear", "plum", "cherry", "fig"]
    return [" ".join(rand.choices(words, k=4)) + f" {i}" for i in range(count)]


def trained_task(capsys, targets, *options, name="y"):
    """The output of a short training on texts and these targets, and the name of its task."""
    rows = list(zip(texts(len(targets)), targets, strict=True))
    write_csv("table.csv", ["text", name], rows)
    small = [*TINY, *TEXT, "debug=fast"]
    output = printed(capsys, "train", "table.csv", f"target={name}", *small, *options)
    line = next(line for line in output.splitlines() if line.startswith("target: "))
    return output, line.rpartition("(")[2].rstrip(")")


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


# Findings 10 to 14: honest figures


def test_truncated_texts_are_counted(here, capsys):
    long = " ".join(texts(200))
    rows = [(f"{i} {long}", ["good", "bad"][i % 2]) for i in range(40)]
    write_csv("long.csv", ["text", "label"], rows)
    options = [*TINY, *TEXT, "adapters.text.max_len=16", "debug=fast", "run=model"]
    assert "truncated" in printed(capsys, "train", "long.csv", "target=label", *options)
    assert (
        json.loads(Path("model/metrics.json").read_text())["truncated"]["text"]["median_read"] < 0.1
    )


def test_equal_inputs_stay_in_one_split(here):
    table = [(f"same text {i // 6}", ["good", "bad"][i % 2]) for i in range(240)]
    write_csv("dup.csv", ["text", "label"], table)
    assert run("train", "dup.csv", "target=label", *TINY, *TEXT, "run=model") == 0
    test = {row["text"] for row in read_csv("model/predictions.csv")}
    assert len(read_csv("model/predictions.csv")) == 6 * len(test)


def test_rows_of_a_group_stay_in_one_split(here):
    table = [(text, f"speaker{i % 20}", i % 2) for i, text in enumerate(texts(200))]
    write_csv("talks.csv", ["text", "speaker", "label"], table)
    options = ["data.group=speaker", "run=model", *TINY, *TEXT]
    assert run("train", "talks.csv", "target=label", *options) == 0
    speaker_of = {text: speaker for text, speaker, _ in table}
    tested = [speaker_of[row["text"]] for row in read_csv("model/predictions.csv")]
    assert len(tested) == 10 * len(set(tested))


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
    output, _ = trained_task(capsys, targets, "run=model")
    assert "always ham" in output
    assert "warning" in output
    assert any("always ham" in key for key in json.loads(Path("model/metrics.json").read_text()))


# Findings 15 and 16: getting there


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


# Finding 17: sweeps


def test_a_sweep_has_one_row_per_setting_and_a_file(here, capsys):
    rows = [(text, ["good", "bad"][i % 2]) for i, text in enumerate(texts(60))]
    write_csv("reviews.csv", ["text", "label"], rows)
    command = ["train", "-m", "reviews.csv", "target=label", "seed=1,2", "optimizer.lr=1e-3,3e-4"]
    output = printed(capsys, *command, *TINY, *TEXT)
    table = output[output.rindex("sweep") - 2000 :]
    assert "optimizer.lr=0.001" in table or "optimizer.lr=1e-3" in table
    (path,) = here.rglob("sweep.csv")
    assert len(read_csv(path)) == 4


# Finding 18: no traceback


@pytest.mark.parametrize(
    "override",
    ["input.txt=Blue", "batch_size=abc", "device=gpu", "+foo=1"],
)
def test_slips_in_use_are_refused_in_one_sentence(override, shop, capsys):
    arguments = ["predict", "run=model", override]
    if not override.startswith("input"):
        arguments.append("input.text=Blue")
    refused(capsys, *arguments)


@pytest.mark.parametrize("text", ["12", "true", "100% ${HOME} blue", "[a, b]", "a=b"])
def test_a_text_input_is_taken_literally(text, shop, capsys):
    printed(capsys, "predict", "run=model", f"input.text={text}")


@pytest.mark.parametrize(
    "override", ["+trainer.foo=1", "output=/proc/x", "loss=focal", "adapters=text,image"]
)
def test_slips_in_training_are_refused_in_one_sentence(override, shop, capsys):
    error = refused(capsys, "train", "clothes.csv", "target=colour", override, *TINY)
    assert "backbone.cross" not in error


# Findings 19 to 21: devices, early stopping, speed of small commands


def test_a_missing_gpu_is_an_error(shop, capsys):
    tiny = [option for option in TINY if not option.startswith("trainer.device")]
    error = refused(capsys, "train", "clothes.csv", "target=colour", *tiny, "trainer.device=cuda")
    assert "cuda" in error


def test_training_stops_early_by_default(here, capsys):
    rows = [("good" if i % 2 else "bad", i % 2) for i in range(60)]
    write_csv(
        "easy.csv", ["text", "label"], [(f"{word} {i}", y) for i, (word, y) in enumerate(rows)]
    )
    fast = ["trainer.epochs=200", "optimizer.lr=0.05", "run=model"]
    output = printed(capsys, "train", "easy.csv", "target=label", *TINY, *TEXT, *fast)
    assert "epoch 200/200" not in output
    assert "stopped" in output


@pytest.mark.parametrize(
    "arguments",
    [["train", "trainer.epoch=3"], ["train", "backbone=smal"], ["train", "nothing.csv"], ["help"]],
)
def test_small_commands_do_not_import_torch_or_matplotlib(arguments, here):
    code = f"import sys; from dxn.cli import main; main({arguments!r}); "
    code += "sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_prediction_does_not_import_matplotlib(shop):
    code = (
        "import sys; from dxn.cli import main; main(['predict', 'run=model', 'input.text=blue']); "
    )
    code += "sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# Findings 22 to 25: the use of results


def test_training_says_what_to_do_next(shop, capsys):
    options = [*TINY, *SMALL_IMAGES, "debug=fast", "run=next"]
    output = printed(capsys, "train", "clothes.csv", "target=colour", *options)
    assert "dxn predict run=next" in output.splitlines()[-1] + output.splitlines()[-2]


def test_predictions_contain_ids_inputs_and_confidence(shop):
    row = read_csv("model/predictions.csv")[0]
    assert row["sku"].startswith("c")
    assert row["text"].endswith(row["sku"][1:])
    assert row["image"].endswith(".png")
    assert 0 < float(row["confidence"]) <= 1
    names = list(row)
    assert names.index("sku") < names.index("target") < names.index("prediction")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_the_ending_of_the_output_chooses_its_format(suffix, shop):
    assert run("predict", "run=model", "input=clothes.csv", f"output=answers.{suffix}") == 0
    start = Path(f"answers.{suffix}").read_bytes()[:4]
    assert start == b"PAR1" if suffix == "parquet" else start.startswith(b"{")


def test_many_classes_have_the_five_most_probable_ones(here):
    rows = [(text, f"class{i % 25}") for i, text in enumerate(texts(300))]
    write_csv("many.csv", ["text", "label"], rows)
    assert run("train", "many.csv", "target=label", *TINY, *TEXT, "run=model") == 0
    assert len(read_csv("model/predictions.csv")[0]) < 20


def test_a_list_of_texts_is_not_joined_to_one_text(shop):
    with pytest.raises(UserError, match="predict_many"):
        dxn.load("model").predict(text=["Blue shirt", "Red shirt"])


# Findings 28 to 33: paths, names, logs and formats


def test_a_tilde_is_expanded(here, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    rows = [(text, ["good", "bad"][i % 2]) for i, text in enumerate(texts(60))]
    write_csv("home.csv", ["text", "label"], rows)
    assert "label" in printed(capsys, "check", "data.path=~/home.csv", "target=label")


def test_the_newest_run_of_a_folder_is_used(shop, capsys):
    options = [*TINY, *SMALL_IMAGES, "debug=fast", "output=runs", "data.text=title"]
    assert run("train", "clothes.csv", "target=colour", *options) == 0
    newest = max(path.name for path in Path("runs/colour").iterdir())
    output = printed(capsys, "predict", "run=runs/colour", "input.text=blue")
    assert newest in output
    error = refused(capsys, "predict", "run=runs/color", "input.text=blue")
    assert "runs/colour" in error


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


# Findings 35 to 41: smaller ones


def test_overfitting_says_how_many_samples_were_learned(here, capsys):
    rows = [(text, ["good", "bad"][i % 2]) for i, text in enumerate(texts(40))]
    write_csv("reviews.csv", ["text", "label"], rows)
    options = [*TINY, *TEXT, "debug=overfit", "trainer.epochs=60", "optimizer.lr=1e-2"]
    output = printed(capsys, "train", "reviews.csv", "target=label", *options)
    assert "8 of 8" in output


def test_attend_refuses_a_table(shop, capsys):
    assert "table" in refused(capsys, "attend", "run=model", "input=clothes.csv")


def test_messages_of_predictions_do_not_speak_of_training(shop, capsys):
    write_csv("blank.csv", ["title", "photo"], [["", ""], ["blue", ""]])
    error = refused(capsys, "predict", "run=model", "input=blank.csv")
    assert "learn" not in error
    assert "dxn check" not in error


def test_everybody_can_read_the_weights(shop):
    mode = stat.S_IMODE(Path("model/model/model.safetensors").stat().st_mode)
    other = stat.S_IMODE(Path("model/metrics.json").stat().st_mode)
    assert mode == other


def test_the_model_card_has_test_figures_data_and_versions(shop):
    card = Path("model/model/README.md").read_text()
    for text in ("test accuracy", "clothes.csv", "colour", dxn.__version__, "dxn train"):
        assert text in card
    dxn.load("model")


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
    entities = dxn.load("model").predict(text="anna lives in paris")["entities"]
    assert [(e["text"], e["label"]) for e in entities] == [("anna", "PER"), ("paris", "LOC")]
    assert (entities[1]["start"], entities[1]["end"]) == (14, 19)
    assert all(0 < e["score"] <= 1 for e in entities)


# Findings 50 to 53: words and ids


def test_vectors_carry_ids(shop):
    assert run("embed", "run=model", "input=clothes.csv", "output=vectors.csv") == 0
    row = read_csv("vectors.csv")[0]
    assert row["sku"] == "c0"


def test_one_is_singular(here, capsys):
    rows = [(text, ["good", "bad"][i % 2]) for i, text in enumerate(texts(40))]
    write_csv("reviews.csv", ["text", "label"], rows)
    assert "2 classes" in printed(capsys, "check", "reviews.csv", "target=label")


# Further slips of a newcomer


def test_the_input_is_never_overwritten(shop, capsys):
    before = Path("clothes.csv").read_bytes()
    error = refused(capsys, "predict", "run=model", "clothes.csv", "output=clothes.csv")
    assert "overwritten" in error
    assert Path("clothes.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["predict", "run=model", "input.text=Cold", "soup"], "in quotes"),
        (["predict", "run=model", "Cold soup"], "input.NAME="),
        (["train", "my", "clothes.csv", "target=colour"], "in quotes"),
        (["train", "clothes.csv", "target", "=", "colour"], "without spaces"),
    ],
)
def test_missing_quotes_and_surplus_spaces_are_explained(arguments, advice, shop, capsys):
    assert advice in refused(capsys, *arguments)
