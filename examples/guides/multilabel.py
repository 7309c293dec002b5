"""Write messages.jsonl, messages about up to three topics each.

python examples/guides/multilabel.py   # in the current folder
"""

import json
import random
from pathlib import Path

rand = random.Random(0)
problems = {
    "room": ["the bed was broken", "the shower was cold", "our window did not close"],
    "noise": ["the street was loud", "we heard the lift all night"],
    "staff": ["nobody answered the phone", "the waiter ignored us"],
    "price": ["the bill was wrong", "parking cost extra"],
}
lines = []
for _ in range(600):
    topics = rand.sample(sorted(problems), rand.choice([0, 1, 1, 2, 3]))
    message = " and ".join(rand.choice(problems[topic]) for topic in topics)
    lines.append(json.dumps({"message": message or "everything was fine", "topics": topics}))
Path("messages.jsonl").write_text("\n".join(lines), encoding="utf-8")
