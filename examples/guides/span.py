"""Write homes.json, questions about short texts in the format of SQuAD.

python examples/guides/span.py   # in the current folder
"""

import json
import random
from pathlib import Path

rand = random.Random(0)
names, places = ["Ada", "Bruno", "Carla", "Dmitri"], ["Oslo", "New York", "Lima", "San Jose"]
articles = []
for i in range(3000):
    people = rand.sample(names, 3)
    homes = rand.sample(places, 3)
    text = " ".join(f"{name} lives in {home}." for name, home in zip(people, homes, strict=True))
    asked = rand.choice([name for name in names if name not in people] if i % 4 == 0 else people)
    answers = []
    if asked in people:
        home = homes[people.index(asked)]
        answers = [{"text": home, "answer_start": text.index(home)}]
    question = {"question": f"Where does {asked} live?", "answers": answers}
    articles.append({"paragraphs": [{"context": text, "qas": [question]}]})
Path("homes.json").write_text(json.dumps({"data": articles}), encoding="utf-8")
