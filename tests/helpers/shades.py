"""Plain pictures with their names, a codec of them, and a model that writes either of the two."""

import csv

import numpy as np
from PIL import Image

import dxn
from helpers.runs import SMALL_IMAGES

TINY = ["dim=16", "backbone.depth=1", "backbone.num_heads=2", "trainer.epochs=1"]
TINY += ["trainer.device=cpu", "adapters.text.tokenizer.kind=word", "batch_size=8"]
SHADES = {"dark": 40, "gray": 120, "light": 220}


def train_codec(folder, epochs=15):
    """Write rows.csv and its pictures to a folder, and train the run codec."""
    rows = []
    for i in range(40):
        name = list(SHADES)[i % 3]
        # Each one differs, because equal pictures would be in one split.
        pixels = np.full((16, 16), SHADES[name] + i // 3, np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
        rows.append({"text": f"a {name} one" if i else "", "image": f"{i}.png"})
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["text", "image"])
        writer.writeheader()
        writer.writerows(rows)
    options = [o for o in SMALL_IMAGES if "image_size" not in o]
    dxn.train(
        folder / "rows.csv",
        *(*options, "data.image=image", "adapters.image.image_size=16", "head=codec"),
        *("head.levels=[5,5]", "head.stages=2", f"trainer.epochs={epochs}", "optimizer.lr=0.01"),
        *("trainer.patience=0", "preset=plain", f"run={folder / 'codec'}"),
    )


def train_any(folder, run, *options, codec="codec", table="rows.csv"):
    """Train a model of the texts and pictures of `train_codec`."""
    dxn.train(
        folder / table,
        *("data.text=text", "data.image=image", "head=any", "adapters=[text,image_codes]"),
        *(*TINY, f"adapters.image_codes.codec={folder / codec}", *options, f"run={folder / run}"),
    )
