"""Write mails.csv, a table with a rare class.

python examples/guides/classify.py   # in the current folder
"""

import random
from pathlib import Path

rand = random.Random(0)
texts = {"ham": ["see you at {} pm", "lunch at {} pm?"], "spam": ["you won {} dollars"]}
rows = ["text,label"]
for _ in range(400):
    label = "spam" if rand.random() < 0.1 else "ham"
    rows.append(f"{rand.choice(texts[label]).format(rand.randrange(1, 999))},{label}")
Path("mails.csv").write_text("\n".join(rows), encoding="utf-8")
