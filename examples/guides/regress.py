"""Draw 600 pressure gauges to gauges/, and write their pressures to gauges.csv.

python examples/guides/regress.py   # in the current folder
"""

import math
import random
from pathlib import Path

from PIL import Image, ImageDraw

rand = random.Random(0)
rows = ["photo,pressure"]
Path("gauges").mkdir(exist_ok=True)
for i in range(600):
    pressure = rand.uniform(0, 10)
    angle = math.pi * (1 - pressure / 10)
    photo = Image.new("L", (32, 32), rand.randrange(180, 256))
    needle = (16, 24, 16 + 14 * math.cos(angle), 24 - 14 * math.sin(angle))
    ImageDraw.Draw(photo).line(needle, fill=rand.randrange(100), width=2)
    photo.save(f"gauges/{i}.png")
    rows.append(f"gauges/{i}.png,{pressure:.2f}")
Path("gauges.csv").write_text("\n".join(rows), encoding="utf-8")
