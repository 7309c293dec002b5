"""Write visits.csv, the daily visits of a museum: a trend, a weekly season, and noise.

python examples/guides/forecast.py   # in the current folder
"""

import datetime
import math
import random
from pathlib import Path

rand = random.Random(0)
day = datetime.date(2023, 1, 1)
with Path("visits.csv").open("w", encoding="utf-8") as file:
    file.write("day,visits\n")
    for i in range(500):
        week = 60 * math.sin(2 * math.pi * i / 7) + 30 * math.cos(4 * math.pi * i / 7)
        visits = 300 + 0.4 * i + week + rand.gauss(0, 12)
        file.write(f"{day + datetime.timedelta(days=i)},{visits:.0f}\n")
