"""Cells that name files as other programs and systems write them."""

import base64
import csv
import unicodedata

import numpy as np
import pytest
import soundfile
from helpers.newcomer import SMALL_IMAGES, TINY, refused, run
from PIL import Image

import dxn

FAST = [*TINY, "preset=plain", "baseline=none", "report=false", "trainer.epochs=1"]
COUNT = 8
ACCENT = unicodedata.normalize("NFC", "übung")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures whose names have capitals, accents and spaces."""
    root = tmp_path_factory.mktemp("paths")
    (root / "Photos" / ACCENT).mkdir(parents=True)
    for i in range(COUNT):
        pixels = np.random.default_rng(i).integers(0, 256, (9, 9, 3), np.uint8)
        Image.fromarray(pixels).save(root / "Photos" / ACCENT / f"{ACCENT} {i}.JPG", format="PNG")
    return root


def url(folder, path):
    return (folder / path).as_uri()


def encoded(folder, path):
    return base64.b64encode((folder / path).read_bytes()).decode()


WRITINGS = {
    "as it is": lambda folder, path: path,
    "absolute": lambda folder, path: str(folder / path),
    "backslashes": lambda folder, path: path.replace("/", "\\"),
    "file URL": url,
    "spaces": lambda folder, path: f"  {path} ",
    "case": lambda folder, path: path.lower(),
    "backslashes, case": lambda folder, path: ".\\" + path.replace("/", "\\").upper(),
    "decomposed": lambda folder, path: unicodedata.normalize("NFD", path),
    "data URL": lambda folder, path: f"data:image/png;base64,{encoded(folder, path)}",
    "base64": encoded,
}


def write_table(path, folder, write):
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["picture", "label"])
        for i in range(COUNT):
            rows.writerow([write(folder, f"Photos/{ACCENT}/{ACCENT} {i}.JPG"), "ab"[i % 2]])


@pytest.mark.parametrize("writing", WRITINGS)
def test_the_pictures_are_found_however_their_paths_are_written(folder, capsys, writing):
    table = folder / f"{writing}.csv"
    write_table(table, folder, WRITINGS[writing])
    assert run("check", table, "data.fractions=[1]") == 0
    output = capsys.readouterr().out
    assert f"picture: {COUNT}; all 9×9" in output and "bad" not in output


def test_a_training_and_a_prediction_read_the_same_pictures(folder, tmp_path):
    write_table(folder / "train.csv", folder, WRITINGS["base64"])
    write_table(folder / "new.csv", folder, WRITINGS["backslashes, case"])
    command = ["train", folder / "train.csv", "adapters=[image]", f"run={tmp_path}/run"]
    assert run(*command, *SMALL_IMAGES, *FAST, "data.fractions=[0.5,0.5]") == 0
    model = dxn.load(str(tmp_path / "run"))
    wanted = [
        model.predict(picture=str(folder / "Photos" / ACCENT / f"{ACCENT} {i}.JPG"))["prediction"]
        for i in range(COUNT)
    ]
    output = tmp_path / "p.csv"
    assert run("predict", f"run={tmp_path}/run", f"input={folder}/new.csv", f"output={output}") == 0
    with output.open(encoding="utf-8") as file:
        assert [row["prediction"] for row in csv.DictReader(file)] == wanted


def test_sounds_in_base64_are_sounds(tmp_path, capsys):
    lines = ["clip,label"]
    for i in range(6):
        soundfile.write(tmp_path / "x.wav", np.random.default_rng(i).uniform(-0.1, 0.1, 99), 8000)
        lines.append(f"{encoded(tmp_path, 'x.wav')},{'ab'[i % 2]}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    assert run("check", tmp_path / "t.csv", "data.fractions=[1]") == 0
    assert "clip (audio)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("a.png;b.png", "the cell has several paths, but there must be one path per column"),
        ("photos/a.png | photos/b.png", "the cell has several paths"),
        ("\"['a.png', 'b.png']\"", "the cell has several paths"),
        (r"C:\Users\me\a.png", "a path of Windows; write it relative to the folder of the table"),
        ("a.PNG", "file not found"),  # both a.png and A.png exist
        ("my photo.v2.png", "my photo.v2.png: file not found; "),
        ("none.png", "none.png: file not found; "),
    ],
)
def test_a_path_that_is_not_found_is_explained(tmp_path, capsys, cell, reason):
    for name in ("A.png", "a.png"):
        Image.new("RGB", (9, 9)).save(tmp_path / name)
    (tmp_path / "t.csv").write_text(f"picture,label\n{cell},a\nA.png,b\n")
    options = ["target=label", "data.image=picture", "adapters=[image]", "data.fractions=[1]"]
    assert reason in refused(capsys, "train", tmp_path / "t.csv", *options, *FAST)


def test_a_column_of_lists_of_paths_is_no_text(tmp_path, capsys):
    lines = [
        f'{{"pictures": ["{i}.png", "{i}b.png"], "note": "the {i} one is here", "label": {i % 2}}}'
        for i in range(8)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    assert run("check", tmp_path / "t.jsonl", "data.fractions=[1]") == 0
    output = capsys.readouterr().out
    assert "pictures (lists of file names; write one file name per column)" in output


def test_a_link_out_of_the_folder_stays_refused_in_any_writing(tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "Secret.png")
    for cell in (r"..\Secret.png", "../secret.PNG", (tmp_path / "Secret.png").as_uri()):
        (data / "t.csv").write_text(f"picture,label\n{cell},a\n{cell},b\n")
        options = ["target=label", "adapters=[image]", "data.fractions=[1]"]
        assert "leads out of the data folder" in refused(
            capsys, "train", data / "t.csv", *options, *FAST
        )
