"""The first hour of a new user: the results of a model of titles and photos.

Each test is a mistake or a wish that such a user had on the command line.
"""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.newcomer import (
    COLOURS,
    SMALL_IMAGES,
    TINY,
    printed,
    read_csv,
    refused,
    run,
    write_clothes,
    write_csv,
)

import dxn
from dxn.core.errors import UserError


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


def test_prediction_reads_the_title_although_all_titles_are_equal(shop):
    rows = [[i, "blue", f"photos/{i}.png"] for i in range(12)]
    write_csv("same.csv", ["id", "title", "photo"], rows)
    assert run("predict", "run=model", "input=same.csv", "output=same_out.csv") == 0
    from_title = dxn.load("model").predict(title="blue", photo="photos/0.png")["prediction"]
    assert read_csv("same_out.csv")[0]["prediction"] == from_title
    assert read_csv("same_out.csv")[0]["title"] == "blue"


def test_prediction_ignores_further_text_columns_and_names_them_once(shop, capsys):
    rows = [
        [i, "blue", f"customer {i} said the box was broken", f"photos/{i}.png"] for i in range(9)
    ]
    write_csv("comments.csv", ["id", "title", "comment", "photo"], rows)
    output = printed(
        capsys, "predict", "run=model", "input=comments.csv", "output=comments_out.csv"
    )
    assert "columns: title, photo" in output
    assert output.count("comment") >= 1
    assert read_csv("comments_out.csv")[0]["title"] == "blue"


def test_prediction_stops_at_a_missing_column_and_takes_a_mapping(shop, capsys):
    write_csv("other.csv", ["name", "photo"], [["blue", "photos/0.png"]])
    error = refused(capsys, "predict", "run=model", "input=other.csv")
    assert "title" in error
    assert "columns.title=name" in error or "columns.title=" in error
    output = printed(capsys, "predict", "run=model", "input=other.csv", "columns.title=name")
    assert "title=name" in output


def test_choosing_a_text_column_keeps_the_photos_and_names_what_is_not_used(shop, capsys):
    options = [*TINY, *SMALL_IMAGES, "run=again", "debug=fast"]
    output = printed(capsys, "train", "clothes.csv", "target=colour", "data.text=title", *options)
    assert "photo (image)" in output
    unused = next(line for line in output.splitlines() if "not used" in line)
    assert "description" in unused or "price" in output


def test_a_table_with_several_photos_per_row_trains(shop):
    rows = [[f"photos/{i}.png", f"photos/{i + 1}.png", list(COLOURS)[i % 3]] for i in range(60)]
    write_csv("pairs.csv", ["front", "back", "colour"], rows)
    options = [*TINY, *SMALL_IMAGES, "run=pairs"]
    assert run("train", "pairs.csv", "target=colour", *options) == 0


def test_evaluation_counts_all_rows_of_a_new_table(shop, capsys):
    rows = read_csv("clothes.csv")[:40]
    write_csv("new.csv", list(rows[0]), [list(row.values()) for row in rows])
    assert "40 rows" in printed(capsys, "evaluate", "run=model", "input=new.csv")
    assert "40 rows" in printed(
        capsys, "evaluate", "run=model", "data=table", "data.path=new.csv", "data.target=colour"
    )


@pytest.mark.parametrize("source", ["photos", "photos/*.png"])
def test_files_of_a_folder_are_predicted(source, shop):
    assert run("predict", "run=model", f"input={source}", "output=files.csv") == 0
    assert len(read_csv("files.csv")) == 90


def test_one_photo_is_predicted_and_the_answer_is_short(shop, capsys):
    output = printed(capsys, "predict", "run=model", "photos/0.png")
    assert any(colour in output for colour in COLOURS)
    assert len(output.splitlines()) < 15


@pytest.mark.parametrize(
    "override",
    ["input.txt=Blue", "batch_size=abc", "device=gpu", "+foo=1"],
)
def test_slips_in_use_are_refused_in_one_sentence(override, shop, capsys):
    arguments = ["predict", "run=model", override]
    if not override.startswith("input"):
        arguments.append("input.title=Blue")
    refused(capsys, *arguments)


@pytest.mark.parametrize("text", ["12", "true", "100% ${HOME} blue", "[a, b]", "a=b"])
def test_a_text_input_is_taken_literally(text, shop, capsys):
    printed(capsys, "predict", "run=model", f"input.title={text}")


@pytest.mark.parametrize(
    "override", ["+trainer.foo=1", "output=/proc/x", "loss=focal", "adapters=text,image"]
)
def test_slips_in_training_are_refused_in_one_sentence(override, shop, capsys):
    error = refused(capsys, "train", "clothes.csv", "target=colour", override, *TINY)
    assert "backbone.cross" not in error


def test_a_missing_gpu_is_an_error(shop, capsys):
    tiny = [option for option in TINY if not option.startswith("trainer.device")]
    error = refused(capsys, "train", "clothes.csv", "target=colour", *tiny, "trainer.device=cuda")
    assert "cuda" in error


def test_a_check_and_a_prediction_import_neither_the_training_nor_what_they_do_not_use(shop):
    write_csv("texts.csv", ["text", "label"], [("a b", "x"), ("c d", "y"), ("e f", "x")])
    code = """
import sys
from dxn.cli import main
main(["check", "texts.csv"])
unused = {"torch._dynamo", "torchaudio", "matplotlib", "pandas", "av", "dxn.training.loop"}
print("imported:", *sorted(unused & {*sys.modules}))
main(["predict", "run=model", "input.title=blue"])
print("imported:", *sorted({"matplotlib", "pandas", "dxn.training.loop"} & {*sys.modules}))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines().count("imported:") == 2


def test_training_says_what_to_do_next(shop, capsys):
    options = [*TINY, *SMALL_IMAGES, "debug=fast", "run=next"]
    output = printed(capsys, "train", "clothes.csv", "target=colour", *options)
    assert "dxn predict run=next" in output.splitlines()[-1] + output.splitlines()[-2]


def test_predictions_contain_ids_inputs_and_confidence(shop):
    row = read_csv("model/predictions.csv")[0]
    assert row["sku"].startswith("c")
    assert row["title"].endswith(row["sku"][1:])
    assert row["photo"].endswith(".png")
    assert 0 < float(row["confidence"]) <= 1
    names = list(row)
    assert names.index("sku") < names.index("target") < names.index("prediction")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_the_ending_of_the_output_chooses_its_format(suffix, shop):
    assert run("predict", "run=model", "input=clothes.csv", f"output=answers.{suffix}") == 0
    start = Path(f"answers.{suffix}").read_bytes()[:4]
    assert start == b"PAR1" if suffix == "parquet" else start.startswith(b"{")


def test_a_list_of_texts_is_not_joined_to_one_text(shop):
    with pytest.raises(UserError, match="predict_many"):
        dxn.load("model").predict(title=["Blue shirt", "Red shirt"])


def test_the_newest_run_of_a_folder_is_used(shop, capsys):
    options = [*TINY, *SMALL_IMAGES, "debug=fast", "output=runs", "data.text=title"]
    assert run("train", "clothes.csv", "target=colour", *options) == 0
    newest = max(path.name for path in Path("runs/colour").iterdir())
    output = printed(capsys, "predict", "run=runs/colour", "input.title=blue")
    assert newest in output
    error = refused(capsys, "predict", "run=runs/color", "input.title=blue")
    assert "runs/colour" in error


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


def test_vectors_carry_ids(shop):
    assert run("embed", "run=model", "input=clothes.csv", "output=vectors.csv") == 0
    row = read_csv("vectors.csv")[0]
    assert row["sku"] == "c0"


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
