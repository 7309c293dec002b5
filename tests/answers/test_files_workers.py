"""The number of processes that read files."""

import multiprocessing

import numpy as np
from helpers.runs import SMALL
from PIL import Image

from dxn.cli import main


def test_without_workers_no_process_is_started_in_training_validation_and_evaluation(
    tmp_path, monkeypatch
):
    for i in range(24):
        (tmp_path / "pictures" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        pixels = np.full((9, 9, 3), 10 * i, np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / "ab"[i % 2] / f"{i}.png")

    def start(process):
        raise AssertionError(f"{process} was started")

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start)
    options = ["adapters=[image]", "adapters.image.image_size=8", "adapters.image.patch_size=8"]
    options += ["loader.num_workers=0", "loader.cache_gb=0", "trainer.epochs=2", "preset=plain"]
    command = ["train", str(tmp_path / "pictures"), f"run={tmp_path}/run", *options, *SMALL]
    assert main([*command, "report=false", "data.fractions=[0.5,0.25,0.25]"]) == 0
