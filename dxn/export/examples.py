"""Random samples of each modality, with which an exported model is traced and checked.

The values differ in all sizes that can differ, because sizes that are equal in all examples become
constants of the graph.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dxn.core.errors import UserError
from dxn.tokenize.audio.tokenizer import AudioTokenizer
from dxn.tokenize.base import TIME_MAP, Tokenizer
from dxn.tokenize.cells.category import CategoryTokenizer
from dxn.tokenize.cells.date import DateTokenizer
from dxn.tokenize.cells.date_values import SECONDS_PER_DAY, Moment
from dxn.tokenize.cells.number import NumberTokenizer
from dxn.tokenize.code_adapters import CodeTokenizer
from dxn.tokenize.image.tokenizer import ImageTokenizer
from dxn.tokenize.series.tokenizer import SeriesTokenizer
from dxn.tokenize.text.tokenizer import TextTokenizer
from dxn.tokenize.video.tokenizer import VideoTokenizer

MAX_WORDS = 40
SHORT_TEXT = 12  # tokens of a text that is read in windows: it must fit into one
MAX_SECONDS = 1.5
MAX_SIDE = 1.6  # longest side of an example picture, relative to the size of the model
MAX_TOKENS = 20  # of a series
NO_SIZE = 64  # pixels of the side of a picture for a model that does not resize pictures
PRESENT = "present"  # key of the tensor that tells which samples have an input
# Sizes of the example batches. Different ones, because equal sizes become constants of the graph.
SIZES = (5, 3, 7, 4, 6, 2)
DRAWS = 24  # samples that show which sizes of an input can vary, and how large they become
MAX_DRAWS = 200  # attempts to draw a batch in which all of these sizes differ from the first ones

# Tensors by name, such as "text.ids".
Tensors = dict[str, Tensor]
# Random samples in both forms: the batch of the model, in which a sample without an input is left
# out of that input, and the inputs of the graph, in which every sample has a row.
Example = tuple[dict[str, Any], Tensors]


def make_examples(
    model: Any,
    seed: int,
    sizes: Sequence[int] = SIZES,
    *,
    required: Collection[str] = (),
) -> list[Example]:
    """Return batches of random samples for a model.

    Args:
        model: The model.
        seed: Random seed.
        sizes: Number of samples of each batch.
        required: Names of the inputs that every sample has.

    Raises:
        UserError: If a tokenizer cannot create random values.
    """
    rand = random.Random(seed)
    names = list(model.inputs)
    rows = [_rows(names, size, rand, required) for size in sizes]
    inputs = {
        name: _varied(_drawing(model, name, rand), [len(present[name]) for present in rows])
        for name in names
    }
    return [
        _example(size, rows[i], {name: batches[i] for name, batches in inputs.items()})
        for i, size in enumerate(sizes)
    ]


def _drawing(model: Any, name: str, rand: random.Random) -> Callable[[int], Example]:
    """Return the function that draws a number of random samples of an input."""
    tokenizer: Tokenizer = model.adapter(name).tokenizer

    def draw(count: int) -> Example:
        raws = examples(name, tokenizer, count, rand)
        collated = tokenizer.collate([tokenizer(raw) for raw in raws])
        # Only places of tokens depend on it, which no graph returns.
        collated.pop(TIME_MAP, None)
        tensors = {key: value for key, value in collated.items() if isinstance(value, Tensor)}
        return collated, tensors

    return draw


def _varied(draw: Callable[[int], Example], counts: Sequence[int]) -> list[Example]:
    """Draw batches in which every size that can vary does.

    Otherwise, sizes that are equal by chance would become constants of the graph. The graph is
    traced with the first batch, whose sizes are large: torch.export takes 0 and 1 for constants,
    also if it is a number that depends on a size, such as that of the patches in a row.
    """
    singles = [_sizes(draw(1)) for _ in range(DRAWS)]
    free = [key for key, size in singles[0].items() if any(s[key] != size for s in singles)]
    largest = {key: max(sizes[key] for sizes in singles) for key in free}

    def smallest_share(drawn: Example) -> float:
        sizes = _sizes(drawn)
        return min((sizes[key] / largest[key] for key in free), default=1)

    first = max((draw(counts[0]) for _ in range(DRAWS)), key=smallest_share)
    traced = _sizes(first)
    others = [draw(count) for count in counts[1:]]
    for _ in range(MAX_DRAWS):
        if not others or all(_sizes(others[0])[key] != traced[key] for key in free):
            break
        others[0] = draw(counts[1])
    return [first, *others]


def _sizes(drawn: Example) -> dict[tuple[str, int], int]:
    """Return the size of each axis but that of the samples."""
    _, tensors = drawn
    return {
        (key, axis): tensor.shape[axis]
        for key, tensor in tensors.items()
        for axis in range(1, tensor.ndim)
    }


def _example(size: int, rows: Mapping[str, list[int]], inputs: Mapping[str, Example]) -> Example:
    """Return samples from the values of each input and the samples that have it."""
    batch: dict[str, Any] = {"#size": size, "#index": list(range(size))}
    tensors: Tensors = {}
    for name, (collated, prepared) in inputs.items():
        index = torch.tensor(rows[name])
        batch[name] = {**collated, "rows": index}
        # A sample without the input has the values of another one, which the graph must ignore.
        source = torch.zeros(size, dtype=torch.long).index_copy(0, index, torch.arange(len(index)))
        for key, value in prepared.items():
            tensors[f"{name}.{key}"] = value[source]
        if len(inputs) > 1:
            present = torch.zeros(size, dtype=torch.bool).index_fill(0, index, True)
            tensors[f"{name}.{PRESENT}"] = present
    return batch, tensors


def _rows(
    names: Sequence[str], size: int, rand: random.Random, required: Collection[str]
) -> dict[str, list[int]]:
    """Return the samples that have each input. Every sample has one, and every input a sample."""
    rows: dict[str, list[int]] = {name: [] for name in names}
    for sample in range(size):
        has = [name for name in names if rand.random() < 0.7 or name in required]
        has = has or [rand.choice(names)]
        for name in names if sample == 0 else has:
            rows[name].append(sample)
    return rows


def examples(name: str, tokenizer: Tokenizer, count: int, rand: random.Random) -> list[Any]:
    """Return raw values for the tokenizer of the input `name`.

    Raises:
        UserError: If there is no function for the modality.
    """
    if isinstance(tokenizer, CodeTokenizer):
        raise UserError(
            f"export: the codes of the input {name} cannot be read by an exported model; set "
            f"adapters.{name}_codes.read=values and train again, or use dxn serve"
        )
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
    short = min(SHORT_TEXT, tokenizer.max_len // 4)
    # The longest text of a batch differs, too: with a prompt, most texts fill a small max_len.
    longest = rand.randint(1, min(MAX_WORDS, tokenizer.max_len) if tokenizer.is_cut else short)
    texts: list[str] = []
    for _ in range(count):
        ids = [rand.randrange(size) for _ in range(rand.randint(1, longest))]
        # Special tokens have no text.
        text = tokenizer.vocabulary.decode(ids).strip() or "a"
        while not tokenizer.is_cut and len(text) > 1 and tokenizer.length(text) > short:
            text = text[: len(text) // 2].strip() or "a"
        texts.append(text)
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
    # As in texts: all but short clips can have the same number of frames.
    window = tokenizer.spectrogram and tokenizer.spectrogram.window_seconds
    longest = rand.uniform(0.1, min(MAX_SECONDS, window or MAX_SECONDS))
    lengths = [int(rate * rand.uniform(0.1, longest)) for _ in range(count)]
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
    values = [*tokenizer.choices, "a value that no training contains"]
    largest = min(len(values), 4)
    return [tuple(rand.sample(values, rand.randint(1, largest))) for _ in range(count)]


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
