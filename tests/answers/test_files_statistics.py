"""What a model learns about all files before the training, although only some of them are read."""

import random

import numpy as np
import pytest
import soundfile
import torch
import yaml
from helpers.runs import SMALL
from PIL import Image

import dxn
from dxn.cli import main
from dxn.core.dropout import keyed
from dxn.tokenize import ImageAdapter, ImageAugment, ResizeOptions, SeriesAdapter

# One step with a few rows. The statistics are those of the whole training split.
FAST = [*SMALL, "debug=fast", "report=false"]


def trained(folder, *options):
    """The adapters of a model after a training of one step."""
    assert main(["train", *options, *FAST, f"run={folder}"]) == 0
    return dxn.load(str(folder)).adapters


def write_pictures(folder, counts):
    """Black and white pictures of 4×4 pixels, all of them different, one folder per class."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = np.full((4, 4, 3), 255 if name == "white" else 0, np.uint8)
            pixels[0, 0] = i % 256, i // 256, 0
            Image.fromarray(pixels).save(folder / name / f"{i:04}.bmp")


def test_the_mean_of_pictures_is_that_of_all_classes(tmp_path):
    write_pictures(tmp_path / "pictures", {"black": 1000, "white": 250})
    options = ["data.fractions=[0.9,0.1]", "adapters=[image]"]
    options += ["adapters.image.image_size=4", "adapters.image.patch_size=4"]
    image = trained(tmp_path / "run", str(tmp_path / "pictures"), *options)["image"]
    # A fifth of the pictures is white, except for the pixel that tells them apart.
    assert image.mean[2] == pytest.approx(0.2 * 15 / 16, abs=0.02)
    assert image.std[2] == pytest.approx(0.39, abs=0.02)


def test_classes_that_take_turns_do_not_hide_from_the_statistics():
    pictures = [torch.full((3, 2, 2), 255 * (i % 2), dtype=torch.uint8) for i in range(2000)]
    assert ImageAdapter(8).fit(pictures).mean[0] == pytest.approx(0.5, abs=0.05)


def test_the_mean_of_clips_is_that_of_all_classes(tmp_path):
    for name, value in {"dark": 0, "light": 255}.items():
        (tmp_path / "clips" / name).mkdir(parents=True)
        for i in range(200 if name == "dark" else 100):
            frames = [Image.new("L", (8, 8), value) for _ in range(2)]
            for frame in frames:
                frame.putpixel((i % 8, i // 8 % 8), 80 + i // 64)
            path = tmp_path / "clips" / name / f"{i:03}.gif"
            frames[0].save(path, save_all=True, append_images=frames[1:], duration=100)
    options = ["data.fractions=[0.9,0.1]", "adapters=[video]", "adapters.video.image_size=8"]
    options += ["adapters.video.patch_size=8", "adapters.video.sampling.num_frames=2"]
    video = trained(tmp_path / "run", str(tmp_path / "clips"), *options)["video"]
    assert video.mean[0] == pytest.approx(1 / 3, abs=0.07)


def test_the_mean_of_sounds_is_that_of_all_classes(tmp_path):
    rng = np.random.default_rng(0)
    for name, level in {"a": 0.001, "b": 0.5}.items():
        (tmp_path / "sounds" / name).mkdir(parents=True)
        for i in range(1000 if name == "a" else 250):
            path = tmp_path / "sounds" / name / f"{i:04}.wav"
            soundfile.write(path, level * rng.uniform(-1, 1, 400), 1000)
    options = ["data.fractions=[0.9,0.1]", "adapters=[audio]", "adapters.audio.sample_rate=1000"]
    options += ["adapters.audio.normalize.kind=dataset", "adapters.audio.spectrogram.n_mels=5"]
    audio = trained(tmp_path / "run", str(tmp_path / "sounds"), *options)["audio"]
    # The levels differ by 2 ln(500) = 12.4.
    assert audio.std.mean() == pytest.approx(12.4 * 0.4, abs=0.5)


def test_the_mean_of_series_is_that_of_all_classes_also_of_large_values():
    values = [1e6 + 1000 * (i >= 10_000) for i in range(12_500)]
    adapter = SeriesAdapter(8).fit([torch.full((2, 1), value) for value in values])
    assert adapter.tokenizer.mean[0] == pytest.approx(1e6 + 200, abs=20)
    assert adapter.tokenizer.std[0] == pytest.approx(400, abs=20)


def test_the_options_chosen_from_the_data_see_all_classes(tmp_path, capsys):
    # 300 rows: more than are inspected, but fewer than twice as many.
    for i in range(300):
        side, name = (20, "a") if i < 140 else (60, "b")
        (tmp_path / "pictures" / name).mkdir(parents=True, exist_ok=True)
        pixels = np.full((side, side), i % 256, np.uint8)
        pixels[0, 0] = i // 256
        Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{i:03}.bmp")
    options = [*SMALL, "trainer.epochs=1", "trainer.max_minutes=0.001", "report=false"]
    # Muon, which the preset chooses, takes most of the time of such a training.
    options += ["adapters=[image]", "baseline=none", f"run={tmp_path}/run", "optimizer=adamw"]
    assert main(["train", str(tmp_path / "pictures"), *options]) == 0
    assert "images of usually 60×60 pixels" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        # Most of the sound has higher frequencies than the most common rate can hold.
        ([8000] * 28 + [22_050] * 26 + [44_100] * 23 + [48_000] * 23, 22_050),
        ([8000] * 28 + [11_025] * 72, 11_025),
        ([8000] * 97 + [48_000] * 3, 8000),
        ([48_000] * 5, 22_050),
    ],
)
def test_the_sample_rate_keeps_most_of_the_sound(tmp_path, capsys, rates, chosen):
    for i, rate in enumerate(rates):
        (tmp_path / "sounds" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        tone = np.sin(np.arange(rate // 50) * (0.1 + 0.01 * i))
        soundfile.write(tmp_path / "sounds" / "ab"[i % 2] / f"{i}.wav", tone, rate)
    options = [*SMALL, "trainer.epochs=1", "trainer.max_minutes=0.001", "report=false"]
    options += ["adapters=[audio]", "baseline=none", f"run={tmp_path}/run"]
    assert main(["train", str(tmp_path / "sounds"), *options]) == 0
    config = yaml.safe_load((tmp_path / "run" / ".hydra" / "config.yaml").read_text())
    assert config["adapters"]["audio"]["sample_rate"] == chosen
    low, high = f"{min(rates):,}", f"{max(rates):,} Hz"
    reason = f"sounds of {high}" if min(rates) == max(rates) else f"sounds of {low} to {high}"
    assert reason in capsys.readouterr().out


def test_a_long_sound_counts_more_for_the_sample_rate_than_a_short_one(tmp_path, capsys):
    for i in range(20):
        rate, seconds = (16_000, 1.0) if i == 0 else (8000, 0.02)
        (tmp_path / "sounds" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        tone = np.sin(np.arange(int(rate * seconds)) * (0.1 + 0.01 * i))
        soundfile.write(tmp_path / "sounds" / "ab"[i % 2] / f"{i}.wav", tone, rate)
    options = [*SMALL, "trainer.epochs=1", "trainer.max_minutes=0.001", "report=false"]
    options += ["adapters=[audio]", "baseline=none", f"run={tmp_path}/run", "seed=1"]
    options += ["data.fractions=[1,0,0]", "trainer.patience=0"]
    assert main(["train", str(tmp_path / "sounds"), *options]) == 0
    config = yaml.safe_load((tmp_path / "run" / ".hydra" / "config.yaml").read_text())
    assert config["adapters"]["audio"]["sample_rate"] == 16_000


def pictures_of(adapter, sizes):
    raws = [torch.full((3, *size), 9, dtype=torch.uint8) for size in sizes]
    return adapter.tokenizer.collate([adapter.tokenizer(raw) for raw in raws])


def test_half_of_the_patches_are_dropped_from_pictures_of_any_size():
    adapter = ImageAdapter(
        8, image_size=None, patch_size=4, augment=ImageAugment(token_dropout=0.5)
    ).train()
    together = adapter(pictures_of(adapter, [(80, 80), (40, 40)]))
    assert together.mask.sum(1).tolist() == [200, 50]
    # The padding of the smaller one has no position.
    assert together.spans[0].coords.isnan().any(-1).equal(~together.mask)


def test_the_dropped_patches_of_a_picture_do_not_depend_on_the_other_pictures():
    adapter = ImageAdapter(
        8, image_size=None, patch_size=4, augment=ImageAugment(token_dropout=0.5)
    ).train()
    with keyed(torch.tensor([5, 7]), 3):
        together = adapter(pictures_of(adapter, [(80, 80), (40, 40)]))
    with keyed(torch.tensor([7]), 3):
        alone = adapter(pictures_of(adapter, [(40, 40)]))
    kept = together.mask[1]
    assert together.spans[0].coords[1][kept].equal(alone.spans[0].coords[0])


def test_a_zoomed_picture_has_the_interpolation_that_was_chosen():
    rng = np.random.default_rng(0)
    picture = torch.from_numpy(rng.integers(0, 256, (3, 16, 16), np.uint8))
    results = []
    for name in ("bilinear", "bicubic"):
        resize = ResizeOptions(interpolation=name)
        adapter = ImageAdapter(8, image_size=16, resize=resize, augment=ImageAugment(zoom=0.5))
        results.append(adapter.tokenizer(picture, random.Random(1))["pixels"])
    assert not results[0].equal(results[1])
