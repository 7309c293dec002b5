"""Photos in a run: the same pixels in training and in use, whatever fits into memory."""

import json
import shutil

import numpy as np
import pytest
import torch
from helpers.runs import SMALL, train, weights_of
from PIL import Image

import dxn
import dxn.runs.train
from dxn.cli import main
from dxn.data.dataset import Samples

WIDTH, HEIGHT = 1300, 900  # so large that the decoder of JPEG reduces them
OPTIONS = [
    *SMALL,
    *("data=folder", "adapters=[image]", "adapters.image.image_size=24"),
    *("adapters.image.patch_size=8", "adapters.image.augment.zoom=0.3", "trainer.epochs=2"),
    "baseline=none",
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photos of two classes in folders for the splits, some of them rotated."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for split, count in (("train", 8), ("validation", 3), ("test", 3)):
        for label in "ab":
            (folder / split / label).mkdir(parents=True)
            for i in range(count):
                colors = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
                exif = Image.Exif()
                exif[0x0112] = (1, 6, 3)[i % 3]
                photo = colors.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
                photo.save(folder / split / label / f"{i}.jpg", exif=exif, quality=90)
    return folder


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory):
    """The folder of a run, and what it prepared."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    prepared = []
    prepare = dxn.runs.train.prepare

    def recorded(*arguments, **options):
        prepared.append(prepare(*arguments, **options))
        return prepared[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dxn.runs.train.prepare", recorded)
        train(folder, *OPTIONS, f"data.path={photos}")
    return folder, prepared[0]


def pixels_of(samples: Samples, i):
    return samples[0, i]["image"]["pixels"]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_photo_has_the_same_pixels_in_training_evaluation_and_prediction(photos, run, split):
    folder, prepared = run
    model = dxn.load(folder)
    opened = prepared.splits[split]
    in_training = Samples(opened, prepared.tokenizers)
    in_evaluation = model.task_samples(opened)
    for i, cell in enumerate(opened.cells["image"]):
        predicted = pixels_of(model.samples([{"image": cell}]), 0)
        assert torch.equal(pixels_of(in_training, i), predicted)
        assert torch.equal(pixels_of(in_evaluation, i), predicted)


def test_training_photos_keep_pixels_for_the_random_crop(run):
    _, prepared = run
    sides = {
        name: max(raw.shape[1] for raw in split.raws["image"])
        for name, split in prepared.splits.items()
    }
    assert sides == {"train": 44, "validation": 24, "test": 24}  # 24 / 0.3**0.5 = 43.8


def test_a_run_has_the_same_bits_if_no_photo_fits_into_memory(photos, run, tmp_path, capsys):
    folder, _ = run
    again = tmp_path / "again"
    train(again, *OPTIONS, f"data.path={photos}", "loader.cache_gb=0")
    assert "image: 0 MB in memory, 28 of 28 files are read again in each epoch" in (
        capsys.readouterr().out
    )
    assert weights_of(again).keys() == weights_of(folder).keys()
    for name, tensor in weights_of(again).items():
        assert torch.equal(tensor, weights_of(folder)[name]), name


def test_a_photo_that_is_deleted_during_the_training_stops_it_with_one_sentence(
    photos, tmp_path, capsys, monkeypatch
):
    folder = tmp_path / "photos"
    for label in "ab":
        (folder / label).mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (30, 20), (40 * i, 0, 0)).save(folder / label / f"{i}.png")
    prepare = dxn.runs.train.prepare

    def deleted(*arguments, **options):
        prepared = prepare(*arguments, **options)
        for file in folder.rglob("*.png"):
            file.unlink()
        return prepared

    monkeypatch.setattr("dxn.runs.train.prepare", deleted)
    options = [*OPTIONS, f"data.path={folder}", f"run={tmp_path / 'run'}", "loader.cache_gb=0"]
    assert main(["train", *options, "loader.num_workers=2"]) == 2
    error = capsys.readouterr().err.strip()
    assert error.endswith(
        " was changed or deleted after it had been checked; run the command again"
    )
    assert "\n" not in error


def test_long_texts_are_counted_as_truncated(tmp_path, capsys):
    rows = [f"{'word ' * 50}number {i},{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "long.csv").write_text("\n".join(["text,label", *rows]))
    metrics = train(
        tmp_path / "run",
        *SMALL,
        *("data=table", f"data.path={tmp_path / 'long.csv'}", "data.target=label"),
        *("adapters=[text]", "adapters.text.tokenizer.kind=word", "trainer.epochs=1"),
        *("adapters.text.max_len=13", "adapters.text.max_chars=130"),
    )
    counted = metrics["data"]["truncated"]["text"]
    assert (counted["count"], counted["total"], counted["max_len"]) == (32, 32, 13)
    # 130 of 258 characters are 26 of 52 tokens, of which 13 are kept.
    assert counted["median_read"] == pytest.approx(0.25, abs=0.01)
    printed = capsys.readouterr().out
    assert "text: 32 of 32 samples are truncated to 13 tokens (median: 25% of a" in printed
    assert "sample is kept); set adapters.text.max_len\n" in printed
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["data"]["truncated"]


def test_the_record_counts_files_that_turn_out_to_be_bad_during_the_training(photos, tmp_path):
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    damaged = folder / "train" / "a" / "3.jpg"
    damaged.write_bytes(damaged.read_bytes()[:-3000])  # its header is complete
    options = [*OPTIONS, f"data.path={folder}", "data.on_bad=skip", "loader.cache_gb=0"]
    train(tmp_path / "run", *options)
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["bad_files"] == 1


def test_a_time_limit_can_be_measured_with_bad_files(photos, tmp_path, capsys):
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    for split in ("validation", "test"):
        # All but the first one.
        for damaged in sorted((folder / split).rglob("*.jpg"))[1:]:
            damaged.write_bytes(damaged.read_bytes()[:-3000])
    options = [*OPTIONS, f"data.path={folder}", "data.on_bad=skip", "loader.cache_gb=0"]
    options += ["preset=plain", "trainer.max_minutes=5", "loader.num_workers=0", "report=false"]
    assert train(tmp_path / "run", *options)["bad_files"] == 10
