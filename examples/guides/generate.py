"""Write dates.csv, 3,000 dates in three forms.

python examples/guides/generate.py   # in the current folder
"""

import random
from datetime import date, timedelta
from pathlib import Path

rand = random.Random(0)
forms = ["{d:%A}, {d.day} {d:%B} {d.year}", "{d:%B} {d.day}, {d.year}", "{d.day} {d:%b} {d.year}"]
rows = ["written;iso"]
for _ in range(3000):
    day = date(1980, 1, 1) + timedelta(rand.randrange(50 * 365))
    rows.append(f"{rand.choice(forms).format(d=day)};{day:%Y %m %d}")
Path("dates.csv").write_text("\n".join(rows), encoding="utf-8")
