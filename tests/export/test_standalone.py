"""The programs that prepare inputs without dxn equal the tokenizers of dxn."""

from __future__ import annotations

import ast
import importlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from helpers.videos import moving_bar, write_video
from PIL import Image

import dxn
from dxn.export.examples import examples
from dxn.export.folder import DXN_IMPORT, PACKAGE
from dxn.export.recipes import INPUTS
from dxn.tokenize import (
    AudioAdapter,
    CategoryAdapter,
    DateAdapter,
    ImageAdapter,
    NumberAdapter,
    SeriesAdapter,
    TextAdapter,
    VideoAdapter,
)
from dxn.tokenize.audio.spectrogram import SpectrogramOptions
from dxn.tokenize.audio.tokenizer import AudioNormalization
from dxn.tokenize.base import BadMedia
from dxn.tokenize.image.tokenizer import ResizeOptions
from dxn.tokenize.text.options import TokenizerOptions
from dxn.tokenize.video.reader import VideoSampling

FOLDER = Path(dxn.__file__).parent / "export" / "programs"
# What an example may need besides Python itself.
ALLOWED = {"numpy", "tokenizers", "PIL", "soundfile", "av", "__future__", *sys.stdlib_module_names}
TEXTS = ["A cup of tea, please!", "two  words", "Ünïcode and numbers 123_4", "tea"]


def both(adapter, values, **more):
    """What dxn and the program return for the same values."""
    prepare = adapter.tokenizer
    ours = prepare.collate([prepare(prepare.reader.read(value)) for value in values])
    options = json.loads(json.dumps({**INPUTS[prepare.modality](prepare), **more}))
    module = importlib.import_module(f"dxn.export.programs.{options['prepare']}")
    return ours, module.prepare([module.read(value, options) for value in values], options)


def agree(ours, theirs, tolerance=0.0):
    for key, array in theirs.items():
        expected = ours[key].numpy()
        assert expected.shape == array.shape, key
        assert expected.dtype == array.dtype, key
        np.testing.assert_allclose(array, expected, atol=tolerance, rtol=tolerance, err_msg=key)


@pytest.mark.parametrize("kind", ["word", "character", "bpe"])
@pytest.mark.parametrize("max_len", [3, 50])
def test_texts_have_the_same_ids(kind, max_len):
    options = TokenizerOptions(kind=kind)
    adapter = TextAdapter(8, tokenizer=options, vocab_size=90, max_len=max_len).fit(TEXTS)
    agree(*both(adapter, TEXTS))


def test_texts_are_padded_as_in_the_training():
    options = TokenizerOptions(kind="word", pad_to=9, pad_token="[UNK]")
    ours, theirs = both(TextAdapter(8, tokenizer=options, max_len=9).fit(TEXTS), TEXTS)
    agree(ours, theirs)
    assert theirs["mask"].sum() == 9 * len(TEXTS)


def test_conversations_can_only_be_prepared_with_dxn():
    adapter = TextAdapter(8)
    adapter.tokenizer.reader.learn([[{"role": "user", "content": "tea"}]])
    assert "prepare" not in INPUTS["text"](adapter.tokenizer)


@pytest.mark.parametrize("kind", ["word", "bpe"])
@pytest.mark.parametrize("max_len", [3, 50])
def test_lists_of_words_have_the_same_ids(kind, max_len):
    adapter = TextAdapter(
        8,
        tokenizer=TokenizerOptions(kind=kind),
        vocab_size=90,
        max_len=max_len,
    ).fit(TEXTS)
    words = [["A", "cup", "of tea,", "please!"], ["Cafe\u0301s", "123_4"], ["don't"]]
    agree(*both(adapter, words, words=r"\S+"))


@pytest.mark.parametrize("mode", ["within", "stretch", "crop", "cover", "pad"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_have_the_same_size_and_nearly_the_same_pixels(mode, channels, tmp_path):
    rand = np.random.default_rng(0)
    paths = []
    for number, (height, width) in enumerate([(23, 41), (64, 30), (7, 5)]):
        # Smooth pictures: libraries round the weights of an interpolation differently.
        small = Image.fromarray(rand.integers(0, 255, (3, 4, 3), np.uint8))
        paths.append(tmp_path / f"{number}.png")
        small.resize((width, height), Image.Resampling.BICUBIC).save(paths[-1])
    options = ResizeOptions(mode=mode)
    adapter = ImageAdapter(
        8, image_size=(24, 32), patch_size=8, in_channels=channels, resize=options
    )
    ours, theirs = both(adapter, paths)
    assert ours["sizes"].tolist() == theirs["sizes"].tolist()
    difference = ours["pixels"].numpy().astype(int) - theirs["pixels"].astype(int)
    assert np.abs(difference).max() <= 2
    # dxn reduces a picture when it reads it, so that only fractions of it can be compared.
    ours, theirs = (np.asarray(each["pixel_map"]).reshape(-1, 3, 2) for each in (ours, theirs))
    np.testing.assert_allclose(ours[:, :2] / ours[:, 2:], theirs[:, :2] / theirs[:, 2:], atol=1e-6)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16", "L", "CMYK", "1"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_of_every_mode_have_the_same_pixels(mode, channels, tmp_path):
    rand = np.random.default_rng(0)
    if mode == "I;16":
        picture = Image.fromarray(rand.integers(0, 65535, (8, 8), np.uint16))
    else:
        picture = Image.fromarray(rand.integers(0, 255, (8, 8, 4), np.uint8), "RGBA").convert(mode)
    path = tmp_path / ("picture.jpg" if mode == "CMYK" else "picture.png")
    picture.save(path, **({"transparency": 3} if mode == "P" else {}))
    ours, theirs = both(ImageAdapter(8, image_size=8, patch_size=4, in_channels=channels), [path])
    assert ours["pixels"].tolist() == theirs["pixels"].tolist()


@pytest.mark.parametrize(
    "sampling",
    [
        VideoSampling(num_frames=5),
        VideoSampling(num_frames=50),
        VideoSampling(num_frames=5, fps=7),
        VideoSampling(num_frames=5, mode="first"),
        VideoSampling(num_frames=5, mode="random"),
    ],
)
@pytest.mark.parametrize("mode", ["within", "crop"])
def test_clips_have_the_same_frames(sampling, mode, tmp_path):
    clips = [tmp_path / "a.mp4", tmp_path / "b.gif", tmp_path / "c.mkv"]
    write_video(clips[0], moving_bar(frames=12))
    write_video(clips[1], moving_bar(frames=7, height=32, direction=-1), fps=5)
    write_video(clips[2], moving_bar(frames=9), times=[0, 40, 90, 200, 210, 300, 450, 500, 800])
    resize = ResizeOptions(mode=mode)
    adapter = VideoAdapter(8, image_size=(24, 32), sampling=sampling, resize=resize)
    ours, theirs = both(adapter, clips)
    for key in ("lengths", "sizes"):
        assert ours[key].tolist() == theirs[key].tolist()
    difference = ours["pixels"].numpy().astype(int) - theirs["pixels"].astype(int)
    # Libraries round the weights of an interpolation differently.
    assert np.abs(difference).max() <= 2
    with clips[0].open("rb") as file:
        options = INPUTS[adapter.modality](adapter.tokenizer)
        video = importlib.import_module("dxn.export.programs.video")
        again = video.prepare([video.read(file, options)], options)
    assert np.array_equal(again["pixels"][0], theirs["pixels"][0, : again["lengths"][0]])


@pytest.mark.parametrize(
    "options",
    [
        SpectrogramOptions(n_mels=23),
        SpectrogramOptions(n_mels=23, top_db=60.0, num_frames=50),
        SpectrogramOptions(n_mels=23, hop_length=100),
        SpectrogramOptions(n_mels=23, frontend="kaldi"),
        SpectrogramOptions(n_mels=23, frontend="kaldi", n_fft=300, num_frames=50),
        SpectrogramOptions(n_mels=23, frontend="whisper"),
        SpectrogramOptions(n_mels=23, frontend="whisper", n_fft=256, num_frames=50),
    ],
)
def test_sounds_have_the_same_spectrogram(options, tmp_path):
    rand = np.random.default_rng(0)
    paths = []
    for number, length in enumerate([5000, 1700]):
        paths.append(tmp_path / f"{number}.wav")
        soundfile.write(paths[-1], rand.uniform(-0.5, 0.5, length).astype(np.float32), 8000)
    adapter = AudioAdapter(8, sample_rate=8000, spectrogram=options)
    ours, theirs = both(adapter, paths)
    agree(ours, theirs, 1e-4)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_sounds_of_any_sample_rate_have_the_same_spectrogram(rate, tmp_path):
    rand = np.random.default_rng(0)
    path = tmp_path / "sound.wav"
    soundfile.write(path, rand.uniform(-0.5, 0.5, (rate // 4, 2)).astype(np.float32), rate)
    agree(*both(AudioAdapter(8, sample_rate=16_000), [path]), 1e-3)


@pytest.mark.parametrize("normalize", ["clip", "none"])
def test_a_waveform_has_the_same_numbers(normalize, tmp_path):
    path = tmp_path / "sound.wav"
    soundfile.write(path, np.random.default_rng(0).uniform(-0.5, 0.5, 3000), 8000)
    options = AudioNormalization(kind=normalize)
    adapter = AudioAdapter(8, sample_rate=8000, tokens="waveform", normalize=options)
    agree(*both(adapter, [path]), 1e-5)


def test_numbers_are_standardized_in_the_same_way():
    values = [1.0, 2.5, -7.0, 1e6]
    agree(*both(NumberAdapter(8).fit([3.0, 1.0, 4.0, 1.5, 9.0]), values), 1e-6)


def test_categories_have_the_same_ids():
    adapter = CategoryAdapter(8, min_count=1, separator="|").fit([("Red",), ("blue",), ("green",)])
    agree(*both(adapter, ["red", "blue|green", "unseen", "Red|Red"]))


def test_dates_have_the_same_features():
    adapter = DateAdapter(8)
    values = ["2024-02-29", "12:30", "2023-12-31 23:59:30", "1999-01-01"]
    moments: list[Any] = [adapter.tokenizer.reader.read(value) for value in values]
    agree(*both(adapter.fit(moments), values), 1e-5)


@pytest.mark.parametrize("normalize", ["train", "sample", "none"])
@pytest.mark.parametrize("window", [0, 13])
def test_series_are_normalized_in_the_same_way(normalize, window):
    rand = np.random.default_rng(0)
    values = [rand.normal(5, 2, (length, 3)).astype(np.float32) for length in (11, 29)]
    values[0][2, 1] = np.nan
    values[1][:, 2] = 7.0  # a constant channel
    adapter = SeriesAdapter(8, patch_size=4, normalize=normalize)
    adapter.fit([torch.from_numpy(value) for value in values])
    if window:
        adapter.tokenizer.continue_from(window)
    agree(*both(adapter, values), 1e-5)


@pytest.mark.parametrize("text", ["1 2.5 nan 4 7", "1, 2.5; nan,4,7", "[1, 2.5, None, 4, 7]"])
def test_a_text_of_numbers_is_the_same_series(text):
    adapter = SeriesAdapter(8, patch_size=4, normalize="none")
    adapter.fit([adapter.tokenizer.reader.read(text)])
    agree(*both(adapter, [text]), 1e-5)


def test_series_with_missing_values_at_both_ends_are_cut_in_the_same_way():
    values = [np.ones((29, 2), np.float32) * np.arange(29)[:, None] for _ in range(3)]
    values[0][:17] = np.nan
    values[1][19:] = np.nan
    values[2][5:] = np.nan
    values = [value.astype(np.float32) for value in values]
    adapter = SeriesAdapter(8, patch_size=4, max_len=3, normalize="none")
    adapter.fit([torch.from_numpy(value) for value in values])
    agree(*both(adapter, values), 1e-5)


def test_pictures_and_sounds_can_be_bytes_and_arrays(tmp_path):
    rand = np.random.default_rng(0)
    pixels = rand.integers(0, 255, (8, 8, 3), np.uint8)
    picture = Image.fromarray(pixels)
    picture.save(tmp_path / "a.png")
    values = [picture, pixels, pixels[..., 0], (tmp_path / "a.png").read_bytes()]
    agree(*both(ImageAdapter(8, image_size=8, patch_size=4), values))
    samples = rand.uniform(-0.5, 0.5, 3000).astype(np.float32)
    soundfile.write(tmp_path / "a.wav", samples, 8000)
    clips = [(tmp_path / "a.wav").read_bytes(), (samples, 8000), (samples, 16_000)]
    clips += [
        (np.stack([samples, -0.5 * samples]), 8000),
        ((samples * 9999).astype(np.int16), 8000),
    ]
    agree(*both(AudioAdapter(8, sample_rate=8000), clips), 1e-3)


def test_files_that_dxn_refuses_are_refused(tmp_path):
    gray = np.arange(64).reshape(8, 8)
    Image.fromarray(gray.astype(np.float32)).save(tmp_path / "float.tif")
    Image.fromarray((gray * 9999).astype(np.int32)).save(tmp_path / "large.tif")
    Image.fromarray(gray.astype(np.uint8)).resize((50, 50)).save(tmp_path / "many.png")
    small = ResizeOptions(max_pixels=2000)
    _refuse_both(
        ImageAdapter(8, image_size=8, patch_size=4, resize=small), sorted(tmp_path.iterdir())
    )
    sounds = tmp_path / "sounds"
    sounds.mkdir()
    samples = np.linspace(-0.5, 0.5, 4000, dtype=np.float32)
    soundfile.write(sounds / "whole.wav", samples, 8000)
    (sounds / "cut.wav").write_bytes((sounds / "whole.wav").read_bytes()[:5000])
    (sounds / "whole.wav").unlink()
    soundfile.write(sounds / "empty.wav", samples[:0], 8000)
    soundfile.write(sounds / "long.wav", np.tile(samples, 9), 8000)
    samples[7] = np.nan
    soundfile.write(sounds / "nan.wav", samples, 8000, subtype="FLOAT")
    short = SpectrogramOptions(max_seconds=3.0)
    transposed = np.zeros((999, 2), np.float32)
    arrays = [(transposed, 8000), (np.arange(999), 8000), (np.zeros((1, 1, 9)), 8000)]
    paths = sorted(sounds.iterdir())
    _refuse_both(AudioAdapter(8, sample_rate=8000, spectrogram=short), [*paths, *arrays])


def _refuse_both(adapter, paths):
    assert paths
    options = INPUTS[adapter.modality](adapter.tokenizer)
    module = importlib.import_module(f"dxn.export.programs.{options['prepare']}")
    for path in paths:
        with pytest.raises(BadMedia):
            adapter.tokenizer.reader.read(path)
        with pytest.raises(ValueError, match=r"\w"):
            module.read(path, options)


@pytest.mark.parametrize("name", ["steps.npy", "steps.csv"])
def test_series_are_read_from_files(name, tmp_path):
    values = np.arange(24, dtype=np.float32).reshape(12, 2)
    path = tmp_path / name
    if path.suffix == ".npy":
        np.save(path, values)
    else:
        rows = [",".join(map(str, row)) for row in values.tolist()]
        path.write_text("\n".join(["a,b", *rows, "N/A,"]))
    adapter = SeriesAdapter(8, patch_size=4, normalize="none")
    adapter.fit([adapter.tokenizer.reader.read(str(path))])
    agree(*both(adapter, [str(path)]), 1e-6)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_program_needs_no_other_library(path):
    text = path.read_text(encoding="utf-8")
    copied = DXN_IMPORT.findall(text)
    for package, name in copied:
        imported = PACKAGE / package.replace(".", "/") / f"{name}.py"
        test_a_program_needs_no_other_library(imported)
    names = set()
    for node in ast.walk(ast.parse(DXN_IMPORT.sub("from json import", text))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).partition(".")[0])
    assert names <= ALLOWED


def test_examples_of_all_adapters_have_different_sizes():
    text = TextAdapter(8, vocab_size=90).fit(TEXTS)
    rand = random.Random(0)
    adapters: list[Any] = [text, ImageAdapter(8, image_size=32, patch_size=8), AudioAdapter(8)]
    for adapter in adapters:
        prepare = adapter.tokenizer
        samples = [prepare(raw) for raw in examples("x", prepare, 7, rand)]
        first = next(iter(samples[0]))
        assert len({tuple(sample[first].shape) for sample in samples}) > 1
