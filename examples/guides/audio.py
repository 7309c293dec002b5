"""Write 300 tones in noise to sounds/, with one folder per class.

python examples/guides/audio.py   # in the current folder
"""

from pathlib import Path

import numpy as np
import soundfile

rng = np.random.default_rng(0)
for i in range(300):
    low, high = rng.uniform(200, 800), rng.uniform(1200, 3000)
    name, start, stop = [("rising", low, high), ("falling", high, low), ("steady", low, low)][i % 3]
    frequency = np.linspace(start, stop, int(rng.uniform(0.5, 1.5) * 16000))
    tone = np.sin(2 * np.pi * frequency.cumsum() / 16000) + rng.normal(0, 0.3, len(frequency))
    Path("sounds", name).mkdir(parents=True, exist_ok=True)
    soundfile.write(f"sounds/{name}/{i}.wav", 0.3 * tone, 16000)
