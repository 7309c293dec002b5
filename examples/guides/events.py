"""Write signals.jsonl, series with bumps and waves, and signal.csv, one of them.

python examples/guides/events.py   # in the current folder
"""

import json
import math
import random
from pathlib import Path

rand = random.Random(0)
lines = []
for _ in range(300):
    values = [rand.gauss(0, 0.1) for _ in range(200)]
    events = []
    for label in rand.sample(["bump", "wave"], rand.randrange(3)):
        length = rand.randrange(15, 40)
        start = rand.randrange(0, 60) + (100 if label == "wave" else 0)
        for step in range(length):
            values[start + step] += 1.5 if label == "bump" else math.sin(step)
        events.append({"label": label, "start": start, "stop": start + length})
    lines.append(json.dumps({"signal": values, "events": events}))
Path("signals.jsonl").write_text("\n".join(lines), encoding="utf-8")
Path("signal.csv").write_text(
    "\n".join(map(str, json.loads(lines[-1])["signal"])), encoding="utf-8"
)
