"""Tiny runs that tests of several modules share; each is trained at its first use.

The fixture `trained_run` of conftest.py returns their folders. The data of a run lies beside its
folder. No test changes these files: one that needs other files takes `copied_run`.
"""

import csv
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from helpers.runs import PLAIN, SMALL, TEXT, TINY_DIGITS, table_of, train
from PIL import Image

ONCE = [*PLAIN, "trainer.epochs=1", "report=false"]
WORDS = ["apple", "pear", "plum", "cherry"]
COLORS = {"red": (220, 20, 20), "blue": (20, 20, 220)}
SAMPLE_RATE = 4000
SMALL_IMAGE = ["adapters.image.image_size=8", "adapters.image.patch_size=4"]
SMALL_SOUND = [
    *(f"adapters.audio.sample_rate={SAMPLE_RATE}", "adapters.audio.spectrogram.n_mels=8"),
    "adapters.audio.spectrogram.n_fft=256",
]


def write_rows(path: Path, rows: list[dict[str, object]]) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def write_picture(path: Path, color: str, i: int) -> None:
    """A picture of one color, except for one pixel: equal files would stay in one split."""
    pixels = np.full((9, 9, 3), COLORS[color], np.uint8)
    pixels[i % 9, i // 9 % 9] = i
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_tone(path: Path, frequency: float, i: int) -> None:
    """A quarter of a second, in which the i-th tone is louder than those before."""
    seconds = np.arange(SAMPLE_RATE // 4) / SAMPLE_RATE
    path.parent.mkdir(parents=True, exist_ok=True)
    tone = (0.1 + 0.01 * i) * np.sin(2 * math.pi * frequency * seconds)
    soundfile.write(path, tone, SAMPLE_RATE)


def texts(folder: Path) -> list[str]:
    """table.csv: a text and one of the classes a and b."""
    (folder / "table.csv").write_text(table_of(40))
    return [*SMALL, *TEXT, f"{folder / 'table.csv'}", "target=label"]


def numbers(folder: Path) -> list[str]:
    """houses.csv: numbers, categories and dates, some of them missing, and a price."""
    rows: list[dict[str, object]] = [
        {
            "area": "" if i % 7 == 3 else 30 + 37 * i % 170 + 0.5,
            "city": "" if i % 11 == 5 else ("Paris", "Lyon")[i % 2],
            "built": f"{1990 + i % 30}-{1 + i % 12:02}-{1 + i % 28:02}",
            "price": (30 + 37 * i % 170) * (2 - i % 2) + 0.25,
        }
        for i in range(60)
    ]
    return [*SMALL, write_rows(folder / "houses.csv", rows), "target=price"]


def pictures(folder: Path) -> list[str]:
    """pictures: one folder per class, red and blue."""
    for i in range(40):
        color = list(COLORS)[i % 2]
        write_picture(folder / "pictures" / color / f"{i}.png", color, i)
    return [*SMALL, f"{folder / 'pictures'}", *SMALL_IMAGE]


def sounds(folder: Path) -> list[str]:
    """sounds: one folder per class, low and high."""
    for i in range(40):
        name = ("low", "high")[i % 2]
        write_tone(folder / "sounds" / name / f"{i}.wav", (200, 900)[i % 2], i)
    return [*SMALL, f"{folder / 'sounds'}", *SMALL_SOUND]


def shop(folder: Path) -> list[str]:
    """shop.csv: a title, a photo, a sound and a weight, and the class color. Cells are missing."""
    rows: list[dict[str, object]] = []
    for i in range(60):
        color = list(COLORS)[i % 3 == 0]
        write_picture(folder / "photos" / f"{i}.png", color, i)
        write_tone(folder / "sounds" / f"{i}.wav", (200, 900)[i % 2], i)
        row = {
            "title": f"{color} shirt {i % 11}",
            "photo": f"photos/{i}.png",
            "sound": f"sounds/{i}.wav",
            "weight": i % 7 + 0.5,
        }
        missing = list(row)[i % 5] if i % 5 < 4 else None
        rows.append({**row, **({missing: ""} if missing else {}), "color": color})
    table = write_rows(folder / "shop.csv", rows)
    options = ["adapters.text.tokenizer.kind=word", *SMALL_IMAGE, *SMALL_SOUND]
    return [*SMALL, table, "target=color", *options]


def digits(folder: Path) -> list[str]:
    """The built-in data: a text, a picture and a sound per row."""
    return TINY_DIGITS


def pairs(folder: Path) -> list[str]:
    """pairs.csv: a text, and the text that the model writes. It is hardly trained."""
    rows = [f"{WORDS[i % 4]} number {i},{WORDS[i // 4 % 4]} no {i}" for i in range(40)]
    (folder / "pairs.csv").write_text("\n".join(["text,written", *rows]))
    return [*SMALL, *TEXT, "head=generate", f"{folder / 'pairs.csv'}", "target=written"]


def lines(folder: Path) -> list[str]:
    """lines.txt: texts of a language model whose tokens are bytes. It is hardly trained."""
    content = [f"{WORDS[i % 4]} größe {WORDS[i // 4 % 4]} 東京" for i in range(60)]
    (folder / "lines.txt").write_text("\n".join(content), encoding="utf-8")
    options = ["adapters=[text]", "adapters.text.vocab_size=270", "backbone.causal=true"]
    return [*SMALL, *options, "head=language", f"data.path={folder / 'lines.txt'}"]


def waves(folder: Path) -> list[str]:
    """waves.csv: steps of two series, of which the model forecasts the next four."""
    rows: list[dict[str, object]] = [
        {"step": i, "a": math.sin(i / 2), "b": math.cos(i / 3)} for i in range(120)
    ]
    table = f"data.path={write_rows(folder / 'waves.csv', rows)}"
    windows = ["data.horizon=4", "data.context=12", "data.season=7"]
    return [*SMALL, "data=timeline", table, *windows, "target=[a,b]"]


def boxes(folder: Path) -> list[str]:
    """Generated pictures with objects, which the model finds with few registers."""
    data = ["data=objects", "data.num_train=20", "data.num_validation=4", "data.num_test=4"]
    options = ["adapters=[image]", "adapters.image.image_size=32", "head=detect"]
    return [*SMALL, *data, *options, "head.threshold=0.001", "head.max_objects=5"]


RUNS = (texts, numbers, pictures, sounds, shop, digits, pairs, lines, waves, boxes)


class TrainedRuns:
    """The folder of the run of a name, which is trained at the first call."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[str, dict[Path, tuple[int, int]]] = {}

    def __call__(self, name: str) -> Path:
        folder = self.root / name
        if name not in self.files:
            options: Callable[[Path], list[str]] = {f.__name__: f for f in RUNS}[name]
            folder.mkdir()
            with pytest.MonkeyPatch.context() as patch:
                # Whatever the first module that uses the run says, see conftest.py.
                patch.setattr("dxn.runs.evaluation.evaluate.draw_tokens", lambda *_, **__: None)
                train(folder / "run", *options(folder), *ONCE)
            self.files[name] = files_of(folder)
        return folder / "run"

    def check_unchanged(self) -> None:
        for name, files in self.files.items():
            assert files_of(self.root / name) == files, f"a test changed the shared run {name}"


def files_of(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of each file of a folder."""
    stats = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}
