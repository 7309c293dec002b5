"""Write patients.csv, series of 200 patients, and walk.npy, a series with missing values.

python examples/guides/series.py   # in the current folder
"""

import csv
import math
import random
from pathlib import Path

import numpy as np

rand = random.Random(0)
with Path("patients.csv").open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["patient", "hour", "pulse", "pressure", "state"])
    for i in range(200):
        state, start = rand.choice([("ill", 2), ("well", 0)]), rand.uniform(0, 6)
        for hour in sorted(rand.uniform(0, 40) for _ in range(rand.randint(30, 60))):
            pressure = math.sin(start + hour / 2) + rand.gauss(0, 0.1)
            pulse = math.sin(start + hour / 2 - state[1]) + rand.gauss(0, 0.1)
            known = rand.random() < 0.9
            row = [f"p{i}", f"{hour:.2f}", f"{pulse:.2f}", f"{pressure:.2f}" if known else ""]
            writer.writerow([*row, state[0]])

time = np.arange(43)
walk = np.stack([np.sin(time / 3), np.cos(time / 4)], 1)
walk[12:21, 0] = np.nan
np.save("walk.npy", walk)
