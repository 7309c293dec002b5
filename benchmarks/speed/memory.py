"""Measure the memory and the time that a training on photos needs.

    python benchmarks/speed/memory.py phone [OPTION=VALUE ...]
    python benchmarks/speed/memory.py web [OPTION=VALUE ...]

`phone` trains on 100 photos of 4000×3000 pixels, and `web` on 4,000 photos of about 600×450 pixels.
The photos are made by this script: smooth colors with noise, so that their files have about the
size of real photos. The model is small, so that the time is that of reading and resizing.

The script prints the maximum memory of the training process (the "maximum resident set size" of
/usr/bin/time -v), and the seconds of the whole command and of one epoch. Further options are passed
to `dxn train`: loader.cache_gb=0 shows a training that reads its files again in each epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("a", "b")
QUALITY = 90  # of the JPEG files; cameras use 85 to 95
EPOCHS = 2


@dataclass(frozen=True)
class Photos:
    """A set of photos.

    Args:
        count: Number of photos.
        width: Width in pixels.
        height: Height in pixels.
        spread: Largest change of both sides, as a fraction.
        noise: Standard deviation of the noise. It determines the size of the files.
        options: Options of the training.
    """

    count: int
    width: int
    height: int
    spread: float
    noise: float
    options: tuple[str, ...]


SETS = {
    "phone": Photos(
        100, 4000, 3000, spread=0.0, noise=3.0, options=("adapters.image.image_size=64",)
    ),
    "web": Photos(4000, 600, 450, spread=0.2, noise=6.0, options=()),
}
# A small model: the time of a large one would hide that of the photos.
MODEL = (
    *("adapters=[image]", "dim=32", "backbone.depth=1", "backbone.num_heads=2"),
    "pretrained=none",
)


def make_photos(photos: Photos, folder: Path) -> None:
    """Write the photos to one folder per class, unless they exist."""
    for name in CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)
    # In other processes: the system counts the memory of this one as memory of the training too.
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(partial(make_photo, photos, folder), range(photos.count)))


def make_photo(photos: Photos, folder: Path, i: int) -> None:
    """Write photo i: smooth colors, enlarged from a few pixels, and noise."""
    path = folder / CLASSES[i % len(CLASSES)] / f"{i:05}.jpg"
    if path.exists():
        return
    rand = np.random.default_rng(i)
    scale = 1 + photos.spread * rand.uniform(-1, 1)
    size = round(photos.width * scale), round(photos.height * scale)
    colors = Image.fromarray(rand.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    smooth = np.asarray(colors.resize(size, Image.Resampling.BICUBIC), np.float32)
    noise = rand.standard_normal(smooth.shape, np.float32)
    pixels = (smooth + photos.noise * noise).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path, quality=QUALITY)


def measure(command: list[str]) -> tuple[float, float]:
    """Run a command; return its maximum memory in GB and its seconds."""
    started = time.perf_counter()
    process = subprocess.Popen(command)
    # Popen.wait does not return the memory. It must know that the process has ended, though.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"failed: {' '.join(command)}")
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return usage.ru_maxrss * unit / 1e9, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("photos", choices=SETS)
    parser.add_argument("options", nargs="*", help="further options of dxn train")
    parser.add_argument(
        "--folder", type=Path, help="folder of the photos; default: a temporary one"
    )
    arguments = parser.parse_intermixed_args()
    photos = SETS[arguments.photos]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        data = folder / arguments.photos
        run = Path(temporary) / "run"
        make_photos(photos, data)
        size = sum(path.stat().st_size for path in data.rglob("*.jpg"))
        command = [
            *(sys.executable, "-c", "import sys; from dxn.cli import main; sys.exit(main())"),
            *("train", "data=folder", f"data.path={data}", f"run={run}"),
            *(f"trainer.epochs={EPOCHS}", *MODEL),
            *(*photos.options, *arguments.options),
        ]
        memory, seconds = measure(command)
        metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
        epoch = metrics["train_seconds"] / metrics["epochs"]
        print(
            f"{photos.count:,} photos, {size / 1e6:,.0f} MB: {memory:.2f} GB, {seconds:.0f} s in "
            f"all, {epoch:.1f} s per epoch"
        )


if __name__ == "__main__":
    main()
