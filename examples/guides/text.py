"""Write reviews.csv. The word "not" reverses the meaning of the word after it.

python examples/guides/text.py   # in the current folder
"""

import random
from pathlib import Path

rand = random.Random(0)
good, bad = ["lovely", "fresh", "tasty", "perfect"], ["cold", "stale", "salty", "terrible"]
rows = ["text,label"]
for _ in range(600):
    is_good, is_negated = rand.random() < 0.5, rand.random() < 0.4
    word = rand.choice(good if is_good != is_negated else bad)
    dish, verb = rand.choice(["soup", "bread", "fish", "salad"]), rand.choice(["was", "tasted"])
    rows.append(f"The {dish} {verb} {'not ' * is_negated}{word}.,{'good' if is_good else 'bad'}")
Path("reviews.csv").write_text("\n".join(rows), encoding="utf-8")
