"""Random raw values of each modality, with which an exported model is traced and checked.

The values differ in all sizes that can differ, because sizes that are equal in all examples become
constants of the graph.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dxn.core.errors import UserError
from dxn.tokenize.audio.tokenizer import AudioTokenizer
from dxn.tokenize.base import Tokenizer
from dxn.tokenize.cells.category import CategoryTokenizer
from dxn.tokenize.cells.date import DateTokenizer
from dxn.tokenize.cells.dates import SECONDS_PER_DAY, Moment
from dxn.tokenize.cells.number import NumberTokenizer
from dxn.tokenize.image.tokenizer import ImageTokenizer
from dxn.tokenize.series.tokenizer import SeriesTokenizer
from dxn.tokenize.text.tokenizer import TextTokenizer
from dxn.tokenize.video.tokenizer import VideoTokenizer

MAX_WORDS = 40
MAX_SECONDS = 1.5
MAX_SIDE = 1.6  # longest side of an example picture, relative to the size of the model
MAX_TOKENS = 20  # of a series
NO_SIZE = 64  # pixels of the side of a picture for a model that does not resize pictures


def examples(name: str, tokenizer: Tokenizer, count: int, rand: random.Random) -> list[Any]:
    """Return raw values for the tokenizer of the input `name`.

    Raises:
        UserError: If there is no function for the modality.
    """
    make = EXAMPLES.get(tokenizer.modality)
    if make is None:
        raise UserError(
            f"export: the input {name} cannot be exported, because dxn has no examples of the "
            f"modality {tokenizer.modality}; add a function to dxn.export.examples.EXAMPLES"
        )
    return make(tokenizer, count, rand)


def random_texts(tokenizer: TextTokenizer, count: int, rand: random.Random) -> list[str]:
    """Return texts of different lengths from the tokens of the vocabulary."""
    size = tokenizer.vocabulary.get_vocab_size()
    texts: list[str] = []
    for _ in range(count):
        ids = [rand.randrange(size) for _ in range(rand.randint(1, MAX_WORDS))]
        # Special tokens have no text.
        texts.append(tokenizer.vocabulary.decode(ids).strip() or "a")
    return texts


def random_images(tokenizer: ImageTokenizer, count: int, rand: random.Random) -> list[Tensor]:
    """Return pictures uint8 (C, H, W)."""
    return _pictures(tokenizer, count, rand, frames=0)


def random_videos(tokenizer: VideoTokenizer, count: int, rand: random.Random) -> list[Tensor]:
    """Return clips uint8 (T, C, H, W)."""
    return _pictures(tokenizer.image, count, rand, frames=2 * tokenizer.sampling.num_frames)


def _pictures(
    tokenizer: ImageTokenizer, count: int, rand: random.Random, *, frames: int
) -> list[Tensor]:
    """Return pictures uint8 (C, H, W), or clips (T, C, H, W) with up to `frames` frames."""
    height, width = tokenizer.image_size or (NO_SIZE, NO_SIZE)
    channels = tokenizer.in_channels
    pictures: list[Tensor] = []
    # The largest picture of a batch differs, too.
    largest = [rand.uniform(0.5, MAX_SIDE) for _ in range(2)]
    for _ in range(count):
        h, w = (
            max(2, round(side * rand.uniform(0.4, limit)))
            for side, limit in zip((height, width), largest, strict=True)
        )
        shape = (rand.randint(1, frames), channels, h, w) if frames else (channels, h, w)
        pictures.append(_noise(shape, rand).mul(255).to(torch.uint8))
    return pictures


def random_sounds(tokenizer: AudioTokenizer, count: int, rand: random.Random) -> list[Tensor]:
    """Return waveforms (T,) of different lengths and loudness."""
    rate = tokenizer.sample_rate
    lengths = [int(rate * rand.uniform(0.1, MAX_SECONDS)) for _ in range(count)]
    return [(_noise((n,), rand) * 2 - 1) * rand.uniform(0.1, 0.9) for n in lengths]


def random_series(tokenizer: SeriesTokenizer, count: int, rand: random.Random) -> list[Tensor]:
    """Return series (T, C) with the statistics of the training, and a few missing values."""
    mean, std = tokenizer.mean, tokenizer.std
    patches = min(tokenizer.max_len, MAX_TOKENS)
    longest = (patches - 1) * tokenizer.stride + tokenizer.patch_size
    series: list[Tensor] = []
    for _ in range(count):
        steps = rand.randint(min(2 * tokenizer.patch_size, longest), longest)
        values = (_noise((steps, len(mean)), rand) * 4 - 2) * std + mean
        is_missing = _noise(tuple(values.shape), rand) < 0.05
        is_missing[-1] = False  # at least one value
        series.append(values.masked_fill(is_missing, torch.nan))
    return series


def random_numbers(tokenizer: NumberTokenizer, count: int, rand: random.Random) -> list[float]:
    """Return numbers of the range of the training, and beyond."""
    return [rand.gauss(tokenizer.center, 2 * tokenizer.scale) for _ in range(count)]


def random_categories(
    tokenizer: CategoryTokenizer, count: int, rand: random.Random
) -> list[tuple[str, ...]]:
    """Return known and unknown values, also several in one cell."""
    known = [*tokenizer.choices, "a value that no training contains"]
    largest = min(len(known), 4)
    return [tuple(rand.sample(known, rand.randint(1, largest))) for _ in range(count)]


def random_dates(tokenizer: DateTokenizer, count: int, rand: random.Random) -> list[Moment]:
    """Return dates, times, and dates with a time."""
    moments: list[Moment] = []
    for _ in range(count):
        # 365: the first year of the calendar. The last one has the number 3,652,059.
        day = min(max(round(rand.gauss(tokenizer.center, tokenizer.scale)), 365), 3_600_000)
        second = rand.randrange(SECONDS_PER_DAY)
        parts = [(day, None), (None, second), (day, second)]
        moments.append(Moment(*rand.choice(parts)))
    return moments


def _noise(shape: tuple[int, ...], rand: random.Random) -> Tensor:
    """Return uniform random numbers from 0 to 1."""
    generator = torch.Generator().manual_seed(rand.randrange(2**31))
    return torch.rand(shape, generator=generator)


# By modality, from a tokenizer, a number of values and a random generator. Others can be added.
EXAMPLES: dict[str, Callable[[Any, int, random.Random], list[Any]]] = {
    "text": random_texts,
    "image": random_images,
    "audio": random_sounds,
    "video": random_videos,
    "series": random_series,
    "number": random_numbers,
    "category": random_categories,
    "date": random_dates,
}
