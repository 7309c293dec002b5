"""Draw pictures of disks and squares to shapes/, and write their boxes to shapes.jsonl.

python examples/guides/detect.py   # in the current folder
"""

import json
import random
from pathlib import Path

from PIL import Image, ImageDraw

rand = random.Random(0)
folder = Path("shapes")
folder.mkdir(exist_ok=True)
lines = []
for row in range(300):
    picture = Image.new("RGB", (64, 48), "black")
    draw = ImageDraw.Draw(picture)
    objects = []
    for label in rand.sample(["disk", "square"], rand.randrange(3)):
        size = rand.randrange(8, 16)
        left = rand.randrange(0, 16) + (32 if label == "disk" else 0)
        top = rand.randrange(0, 32)
        box = [left, top, left + size, top + size]
        shape = draw.ellipse if label == "disk" else draw.rectangle
        shape(box, fill=rand.choice(["red", "green", "yellow"]))
        objects.append({"label": label, "box": box})
    picture.save(folder / f"{row}.png")
    lines.append(json.dumps({"photo": f"shapes/{row}.png", "objects": objects}))
Path("shapes.jsonl").write_text("\n".join(lines), encoding="utf-8")
