"""Random raw values of each modality, with which an exported model is traced and checked.

A preprocessor offers them by its optional method `examples(count, rand)`. The values differ in all
sizes that can differ, because sizes that are equal in all examples become constants of the graph.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from dxn.core.errors import UserError
from dxn.tokenize.base import Preprocessor
from dxn.tokenize.cells.date_format import SECONDS_PER_DAY, Moment

MAX_WORDS = 40
MAX_SECONDS = 1.5
MAX_SIDE = 1.6  # longest side of an example picture, relative to the size of the model
NO_SIZE = 64  # pixels of the side of a picture for a model that does not resize pictures


def examples(name: str, prepare: Preprocessor, count: int, rand: random.Random) -> list[Any]:
    """Return raw values for the preprocessor of the input `name`.

    Raises:
        UserError: If the preprocessor has no method `examples`.
    """
    make = getattr(prepare, "examples", None)
    if make is None:
        raise UserError(
            f"export: the input {name} cannot be exported, because "
            f"{type(prepare).__name__} has no method examples(count, rand); add it"
        )
    return make(count, rand)


def random_texts(tokenizer: Tokenizer, count: int, rand: random.Random) -> list[str]:
    """Return texts of different lengths from the tokens of a vocabulary."""
    vocabulary = tokenizer.get_vocab_size()
    texts: list[str] = []
    for _ in range(count):
        ids = [rand.randrange(vocabulary) for _ in range(rand.randint(1, MAX_WORDS))]
        # Special tokens have no text.
        texts.append(tokenizer.decode(ids).strip() or "a")
    return texts


def random_pictures(
    size: tuple[int, int] | None, channels: int, count: int, rand: random.Random, frames: int = 0
) -> list[Tensor]:
    """Return pictures uint8 (C, H, W), or clips (T, C, H, W) with up to `frames` frames."""
    height, width = size or (NO_SIZE, NO_SIZE)
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


def random_clips(sample_rate: int, count: int, rand: random.Random) -> list[Tensor]:
    """Return waveforms (T,) of different lengths and loudness."""
    lengths = [int(sample_rate * rand.uniform(0.1, MAX_SECONDS)) for _ in range(count)]
    return [(_noise((n,), rand) * 2 - 1) * rand.uniform(0.1, 0.9) for n in lengths]


def random_series(
    mean: Tensor, std: Tensor, lengths: tuple[int, int], count: int, rand: random.Random
) -> list[Tensor]:
    """Return series (T, C) with the statistics of the training, and a few missing values."""
    series: list[Tensor] = []
    for _ in range(count):
        steps = rand.randint(*lengths)
        values = (_noise((steps, len(mean)), rand) * 4 - 2) * std + mean
        is_missing = _noise(tuple(values.shape), rand) < 0.05
        is_missing[-1] = False  # at least one value
        series.append(values.masked_fill(is_missing, torch.nan))
    return series


def random_categories(
    values: Sequence[str], count: int, rand: random.Random
) -> list[tuple[str, ...]]:
    """Return known and unknown values, also several in one cell."""
    known = [*values, "a value that no training contains"]
    largest = min(len(known), 4)
    return [tuple(rand.sample(known, rand.randint(1, largest))) for _ in range(count)]


def random_moments(center: float, scale: float, count: int, rand: random.Random) -> list[Moment]:
    """Return dates, times, and dates with a time."""
    moments: list[Moment] = []
    for _ in range(count):
        # 365: the first year of the calendar. The last one has the number 3,652,059.
        day = min(max(round(rand.gauss(center, scale)), 365), 3_600_000)
        second = rand.randrange(SECONDS_PER_DAY)
        parts = [(day, None), (None, second), (day, second)]
        moments.append(Moment(*rand.choice(parts)))
    return moments


def _noise(shape: tuple[int, ...], rand: random.Random) -> Tensor:
    """Return uniform random numbers from 0 to 1."""
    generator = torch.Generator().manual_seed(rand.randrange(2**31))
    return torch.rand(shape, generator=generator)
