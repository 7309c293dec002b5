"""Write four tar files with small pictures of three colors.

python examples/guides/streaming.py   # in the current folder
"""

import io
import tarfile

import numpy as np
from PIL import Image

rand = np.random.default_rng(0)
for shard in range(4):
    with tarfile.open(f"train-{shard:03}.tar", "w") as archive:
        for row in range(100):
            color = int(rand.integers(3))
            label = ("red", "green", "blue")[color]
            pixels = rand.integers(0, 100, (16, 16, 3), dtype=np.uint8)
            pixels[:, :, color] += 100
            picture = io.BytesIO()
            Image.fromarray(pixels).save(picture, "PNG")
            for column, content in (("png", picture.getvalue()), ("label.txt", label.encode())):
                info = tarfile.TarInfo(f"{shard}-{row:04}.{column}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
