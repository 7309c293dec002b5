import random
from pathlib import Path

rand = random.Random(0)
NOTES = {"calm": "flags hang down", "breezy": "leaves move", "stormy": "branches break"}
records = []
for i in range(200):
    force, day = rand.choice([(1, "calm"), (2, "breezy"), (3, "stormy")])
    speeds = [f"{abs(rand.gauss(4 * force, 2)):.1f}" for _ in range(12)]
    lines = [f"wind: {' '.join(speeds)}", f"day: {day}"]
    if i % 3:  # not every record has a note
        lines.append(f"note: {NOTES[day]}")
    records.append("\n".join(lines))
Path("logbook.txt").write_text("\n\n".join(records), encoding="utf-8")
