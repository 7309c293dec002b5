"""Draw the pictures of the pages in docs/images.

python docs/pictures.py                  # all of them: about half an hour
python docs/pictures.py text cells       # text.png and cells.png

The picture of a guide (docs/inputs, docs/tasks) is a picture that its commands write, or a part of
a page, as chromium shows it. The commands are run for real, in an empty
folder.
"""

import contextlib
import importlib
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from PIL import Image
from playwright.sync_api import sync_playwright
from sklearn.datasets import load_digits
from torch import Tensor

from dxn.models.attention import Score, attend, attention_weights
from dxn.viz.figure import BLUE, GREY, ORANGE, new_figure, save, set_title

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
PAGE = "attention/attention.html"  # what `dxn attend` writes
# By name of the picture: the guide, the file that is its picture, and which part of it, if it is a
# page. "*" is the folder of the run.
GUIDES = {
    "text": ("inputs/text.md", "tokens.png", ""),
    "image": ("inputs/image.md", "tokens.png", ""),
    "audio": ("inputs/audio.md", "tokens.png", ""),
    "series": ("inputs/series.md", "tokens.png", ""),
    "classify": ("tasks/classify.md", "outputs/digit/*/report.html", "table.matrix"),
    "multilabel": ("tasks/multilabel.md", PAGE, "#shown"),
    "regress": ("tasks/regress.md", "outputs/pressure/*/report.html", "#results .charts"),
    "forecast": ("tasks/forecast.md", "outputs/visits/*/report.html", "#results .charts"),
    "tag": ("tasks/tag.md", PAGE, "#heads"),
    "segment": ("tasks/segment.md", "masks/7.png", ""),
    "detect": ("tasks/detect.md", PAGE, "#shown"),
    "events": ("tasks/events.md", PAGE, "#shown"),
    "span": ("tasks/span.md", PAGE, "#shown"),
    "alignment": ("tasks/generate.md", PAGE, "#alignment"),
    "language": ("tasks/language.md", PAGE, "#heads"),
    "masked": ("tasks/masked.md", "outputs/pretrained/report.html", "#training .charts"),
}
# Transcription of rows of digits: each patch contains a quarter of a digit.
DIGITS = """numbers.csv target=number head=generate head.tokenizer.kind=word head.max_len=8
head.beams=1 adapters.image.image_size=80 adapters.image.patch_size=8 adapters.image.stem=conv
adapters.image.in_channels=1 backbone.depth=2 trainer.epochs=14 trainer.patience=0
batch_size=32"""
# The numbers of the worked example of the page: three tokens (3, 4), and the projections (4, 3).
X = torch.tensor([[1.0, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]])
W_KEY = torch.tensor([[0.0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]])
W_QUERY = torch.tensor([[1.0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]])
W_VALUE = torch.tensor([[0.0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]])


def worked_example() -> None:
    """Draw the queries, keys, weights, values and outputs of self-attention as tables."""
    queries = X @ W_QUERY
    keys = X @ W_KEY
    values = X @ W_VALUE
    dot = Score("dot", 3)
    weights = attention_weights(queries, keys, score=dot)
    outputs = attend(queries, keys, values, score=dot)
    figure = new_figure(9.6, 2.8)
    panels = figure.subplots(1, 5)
    tables = (
        (queries, "queries", "q"),
        (keys, "keys", "k"),
        (weights, "weights", "q"),
        (values, "values", "v"),
        (outputs, "outputs", "o"),
    )
    for axes, (matrix, title, letter) in zip(panels, tables, strict=True):
        _draw_table(axes, matrix, title, letter, decimals=title in ("weights", "outputs"))
        if title == "weights":
            axes.set_xticks(range(3), ["k1", "k2", "k3"])
    set_title(figure, "Self-attention of three inputs, score: dot product")
    save(figure, IMAGES / "worked_example.png")


def soft_database() -> None:
    """Draw attention as a soft lookup in a database of four pairs of a key and a value."""
    key = torch.tensor([-2.0, -1.0, 1.0, 2.5])
    value = torch.tensor([[1.0], [3.0], [2.0], [4.0]])
    query = torch.linspace(-3.2, 3.7, 300)
    figure = new_figure(6.4, 3.5)
    axes = figure.subplots()
    for scale, color in ((1, GREY), (4, BLUE), (40, ORANGE)):
        # The score is -(query - key)^2 = 2 query key - key^2 - query^2. The last term is the same
        # for all keys, so the softmax cancels it, and a dot product of two numbers is enough.
        left = torch.stack([query, torch.ones_like(query)], 1) * scale
        right = torch.stack([2 * key, -(key**2)], 1)
        result = attend(left, right, value, score=Score("dot", 2))[:, 0]
        axes.plot(query, result, color=color, label=f"scale of the scores: {scale}")
    axes.scatter(key, value[:, 0], color="black", zorder=3, label="keys and their values")
    axes.set(xlabel="query", ylabel="result")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    set_title(figure, "Attention is a soft lookup: the result for each query")
    save(figure, IMAGES / "soft_database.png")


def _draw_table(axes: Axes, matrix: Tensor, title: str, letter: str, *, decimals: bool) -> None:
    """Draw a matrix with its values. Cells with larger values are darker."""
    top = float(matrix.max())
    # 1.4: the darkest blue is not used, because text on it would be hard to read.
    axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1.4 * top, aspect="auto")
    for i, row in enumerate(matrix.tolist()):
        for j, cell in enumerate(row):
            dark = cell > 0.9 * top
            text = f"{cell:.2f}" if decimals else f"{cell:g}"
            color = "white" if dark else "black"
            axes.text(j, i, text, ha="center", va="center", fontsize=10, color=color)
    axes.set_yticks(range(len(matrix)), [f"{letter}{i + 1}" for i in range(len(matrix))])
    axes.set_xticks([])
    axes.set_title(title, fontsize=11)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def cells() -> None:
    """Draw which part of an image with several digits each written digit attends to."""
    rand = random.Random(0)
    digits: Any = load_digits()
    with empty_folder() as folder:
        rows = ["image,number"]
        for i in range(3000):
            chosen = rand.choices(range(len(digits.target)), k=rand.randrange(3, 6))
            pixels = np.concatenate([240 - digits.images[j] * 15 for j in chosen], 1)
            image = Image.fromarray(pixels.astype("uint8"))
            image.resize((2 * image.width, 16)).save(f"{i}.png")
            rows.append(f"{i}.png,{' '.join(str(digits.target[j]) for j in chosen)}")
        Path("numbers.csv").write_text("\n".join(rows), encoding="utf-8")
        dxn("train", *DIGITS.split())
        dxn("attend", "run=outputs/number", "input=8.png")
        screenshot(folder / PAGE, "#wordPictures", IMAGES / "cells.png")


def guide_picture(name: str) -> None:
    """Run the commands of a guide, and keep the file that is its picture."""
    guide, pattern, part = GUIDES[name]
    # The module that tests the guides also runs them.
    sys.path.append(str(DOCS.parent / "tests"))
    run_guide = importlib.import_module("helpers.pages").run_guide
    with empty_folder() as folder:
        run_guide(DOCS / guide, folder)
        [file] = folder.glob(pattern)
        if part:
            screenshot(file, part, IMAGES / f"{name}.png")
        else:
            shutil.copy(file, IMAGES / f"{name}.png")


def screenshot(page: Path, part: str, picture: Path) -> None:
    """Write a part of a page as a picture, such as "#heads" of the page of `dxn attend`."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        opened = browser.new_page(device_scale_factor=1.5, viewport={"width": 1300, "height": 900})
        opened.goto(page.resolve().as_uri())
        opened.locator(part).screenshot(path=picture)
        browser.close()


def dxn(*words: str) -> None:
    """Run a command of dxn."""
    subprocess.run([sys.executable, "-m", "dxn", *words], check=True)


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    """Make an empty folder the current one."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield Path(folder)


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    drawn = {function.__name__: function for function in (worked_example, soft_database, cells)}
    for name in sys.argv[1:] or [*drawn, *GUIDES]:
        drawn[name]() if name in drawn else guide_picture(name)
        print(f"wrote images/{name}.png")
