"""Write 80 clips of a bar that moves to clips/, with one folder per class.

python examples/guides/video.py   # in the current folder
"""

from pathlib import Path

import av
import numpy as np

rng = np.random.default_rng(0)
for i in range(80):
    path = Path("clips", "left" if i % 2 else "right", f"{i}.mp4")
    path.parent.mkdir(parents=True, exist_ok=True)
    start, step = rng.integers(48), -3 if i % 2 else 3
    color = rng.integers(100, 256, 3)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=16)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        for t in range(8):
            picture = np.zeros((32, 48, 3), "uint8")
            picture[:, (np.arange(start, start + 8) + step * t) % 48] = color
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())
