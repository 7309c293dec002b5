"""Write houses.csv, a table with semicolons and decimal commas.

python examples/guides/table.py   # in the current folder
"""

import csv
import random
from pathlib import Path

rand = random.Random(0)
with Path("houses.csv").open("w", newline="") as file:
    writer = csv.writer(file, delimiter=";")
    writer.writerow(["id", "area", "city", "garden", "built", "price"])
    for i in range(300):
        area, city = rand.uniform(30, 200), rand.choice(["Paris", "Lyon", "N/A"])
        price = area * (6 if city == "Paris" else 3)
        written = [f"{number:.1f}".replace(".", ",") for number in (area, price)]
        day = f"{rand.randint(1, 28)}.{rand.randint(1, 12)}.{rand.randint(1950, 2020)}"
        writer.writerow([1000 + i, written[0], city, rand.choice(["yes", "no"]), day, written[1]])
