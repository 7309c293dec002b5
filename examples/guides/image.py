"""Write 600 handwritten digits to digits/, with one folder per class.

python examples/guides/image.py   # in the current folder
"""

from pathlib import Path

from PIL import Image

from dxn.datasets.digits import load_digits

pixels, digits = load_digits()
for i in range(600):
    folder = Path("digits", str(digits[i]))
    folder.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray((240 - pixels[i].reshape(8, 8) * 15).astype("uint8"))
    picture.resize((32, 32)).save(folder / f"{i}.png")
