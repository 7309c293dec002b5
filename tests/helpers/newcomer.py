"""Commands, tables and photos of a new user."""

import csv
import random
from pathlib import Path

import numpy as np
from PIL import Image

from dxn.cli import main

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
