"""Draw 1,000 pictures of shapes to shapes/, and write shapes.csv and texts.csv.

python examples/guides/any_to_any.py   # in the current folder
"""

import csv
from pathlib import Path
from random import Random

from PIL import Image, ImageDraw

rand = Random(0)
Path("shapes").mkdir(exist_ok=True)
rows = []
for i in range(1000):
    color, shape = rand.choice(["red", "green", "blue"]), rand.choice(["ellipse", "rectangle"])
    size = rand.randint(6, 9)
    left, top = rand.randint(0, 15 - size), rand.randint(0, 15 - size)
    picture = Image.new("RGB", (16, 16), "white")
    draw = getattr(ImageDraw.Draw(picture), shape)
    draw((left, top, left + size, top + size), fill=color)
    picture.save(f"shapes/{i}.png")
    rows.append([f"a {color} {shape}", f"shapes/{i}.png"])
with Path("shapes.csv").open("w", newline="") as file:
    csv.writer(file).writerows([["text", "image"], *rows])
with Path("texts.csv").open("w", newline="") as file:
    csv.writer(file).writerows([["text"], ["a red ellipse"], ["a blue rectangle"]])
