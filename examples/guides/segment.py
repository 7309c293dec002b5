"""Write pictures of colored shapes, and their masks, to shapes/.

python examples/guides/segment.py   # in the current folder
"""

from pathlib import Path

from PIL import Image

from dxn.datasets import objects

rows = objects(num_train=400, num_validation=1, num_test=1, size=64, masks=True).splits["train"]
colors = bytes.fromhex("000000 800000 008000 808000 000080 800080 008080 808080 400000")
for i, (picture, cell) in enumerate(zip(rows.cells["image"], rows.cells["target"], strict=True)):
    for folder, pixels in ("images", picture), ("masks", cell["mask"]):
        Path("shapes", folder).mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(pixels)
        if folder == "masks":
            image.putpalette(colors)
        image.save(f"shapes/{folder}/{i}.png")
Path("shapes/classes.txt").write_text(
    "\n".join(rows.cells["target"][0]["names"].values()), encoding="utf-8"
)
