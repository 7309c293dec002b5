"""Write news.jsonl, sentences whose words have tags.

python examples/guides/tag.py   # in the current folder
"""

import json
import random
from pathlib import Path

rand = random.Random(0)
first, last = ["Ada", "Alan", "Grace", "Paris"], ["Turing", "Hopper", "London"]
places = ["London", "Paris", "New York", "San Jose"]
forms = ["PERSON flew from PLACE to PLACE", "In PLACE , PERSON met PERSON", "PERSON left PLACE"]
lines = []
for _ in range(600):
    words, tags = [], []
    for part in rand.choice(forms).split():
        names = {
            "PERSON": f"{rand.choice(first)} {rand.choice(last)}",
            "PLACE": rand.choice(places),
        }
        for i, word in enumerate(names.get(part, part).split()):
            words.append(word)
            tags.append(f"{'I' if i else 'B'}-{part.lower()}" if part in names else "O")
    lines.append(json.dumps({"words": words, "tags": tags}))
Path("news.jsonl").write_text("\n".join(lines), encoding="utf-8")
