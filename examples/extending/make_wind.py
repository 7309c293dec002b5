import csv
import random
from pathlib import Path

rand = random.Random(0)
with Path("wind.csv").open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["speeds", "day"])  # mean wind speed of each hour in m/s
    for _ in range(200):
        force, day = rand.choice([(1, "calm"), (2, "breezy"), (3, "stormy")])
        speeds = [f"{abs(rand.gauss(4 * force, 2)):.1f}" for _ in range(24)]
        writer.writerow([" ".join(speeds), day])
