"""What a classical model learns from: features of each modality that need no training."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange, reduce, repeat
from torch import Tensor

from dxn.models.pooling import masked_mean
from dxn.tokenize.base import VALUES
from dxn.tokenize.encoded_adapter import EncodedAdapter
from dxn.tokenize.text.scripts import is_mark, is_unspaced

# Name of the features of cells of a table, from which also trees are grown.
COLUMNS = "columns"
# Before the name of an input: the key of the features that its encoder computes.
ENCODER = "#encoder "


@dataclass(frozen=True, slots=True)
class Features:
    """Features of one input of each sample, which need no training.

    Args:
        about: Name of the features, such as "TF-IDF". COLUMNS: cells of a table.
        dense: (B, F) float. Numbers, NaN where unknown. F can be 0.
        counted: Blocks of features that are counted: (2, n) int64 each, the sample and the code of
            each occurrence. A code is a number from 0 to 2^31.
        steps: (B, T, C) float. Values at each time step, for a task that continues them; NaN where
            unknown.
        known: (B, T + H, J) float. Values of the channels whose next H steps are known, too.
        level: (B, C) float. Mean of the values of each channel, in their standard deviations.
    """

    about: str
    dense: Tensor
    counted: tuple[Tensor, ...] = ()
    steps: Tensor | None = None
    known: Tensor | None = None
    level: Tensor | None = None

    def spread(self, rows: Tensor, batch_size: int) -> Features:
        """Return the features of a larger batch.

        Args:
            rows: (B,). Index of each sample in the larger batch. Other samples lack the input: they
                have NaN, and no counted features.
            batch_size: Number of samples of the larger batch.
        """
        if len(rows) == batch_size:  # all samples have this input
            return self
        counted = [torch.stack([rows[samples], codes]) for samples, codes in self.counted]

        def spread(x: Tensor) -> Tensor:
            return x.new_full((batch_size, *x.shape[1:]), torch.nan).index_copy(0, rows, x)

        steps = [None if x is None else spread(x) for x in (self.steps, self.known, self.level)]
        return Features(self.about, spread(self.dense), tuple(counted), *steps)


def time_statistics(x: Tensor, mask: Tensor) -> Tensor:
    """Return mean, standard deviation and mean absolute difference over time, (B, 3 F).

    Args:
        x: (B, T, F). Values at each step. Those that the mask excludes may be anything finite.
        mask: (B, T) or (B, T, F) bool. True at known values.

    Returns:
        NaN where a sample has no known value. Differences between unknown steps count as none.
    """
    weight = (mask if mask.ndim == 3 else mask[..., None]).to(x.dtype).expand_as(x)
    count = weight.sum(1)
    mean = (x * weight).sum(1) / count
    std = (((x - mean[:, None]) * weight).square().sum(1) / count).sqrt()
    pairs = weight[:, 1:] * weight[:, :-1]
    steps = ((x[:, 1:] - x[:, :-1]).abs() * pairs).sum(1) / pairs.sum(1).clamp(min=1)
    return torch.cat([mean, std, steps], 1)


def extremes(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum and the minimum over time, both (B, F). See `time_statistics`.

    They are infinite where a sample has no known value.
    """
    unknown = ~(mask if mask.ndim == 3 else mask[..., None])
    return x.masked_fill(unknown, -torch.inf).amax(1), x.masked_fill(unknown, torch.inf).amin(1)


# Texts

# Lengths of the character n-grams. The space before and after a word is one of the characters.
CHAR_LENGTHS = np.arange(2, 6)
SPACE = ord(" ")
# Polynomial hashes modulo a prime. Sums of five products of a character and a hash are below
# 2**63, the limit of int64.
PRIME = 2_147_483_647
BASE = 1_000_003
# (5, 4): column i has the factors of the characters of an n-gram of length CHAR_LENGTHS[i].
FACTORS = np.triu([[pow(BASE, i, PRIME)] * 4 for i in range(5)], -1)
PAIR = 998_244_353  # multiplier of the first word of a pair
# Kinds of characters: of words (w), marks (m) and others (p); in scripts without spaces u, n and q.
KINDS = "wumnpq"
# A word starts after another character, and at each character of a script without spaces. Marks
# belong to the letter before them.
WORDS = re.compile("[wumn](?:[mn]|(?<![un])w)*")
MAX_CACHED = 32  # characters of a part of a text whose words are kept


class KindOf(dict[int, str]):
    """The kind of each character by code point, for `str.translate`. It is computed once."""

    def __missing__(self, point: int) -> str:
        char = chr(point)
        number = 2 if is_mark(char) else 0 if char.isalnum() or char == "_" else 4
        kind = self[point] = KINDS[number + is_unspaced(char)]
        return kind


KIND_OF = KindOf()


def text_features(adapter: Any, batch: Mapping[str, Any]) -> Features:
    """Return hashes of the words and pairs of words, and of the character n-grams of texts.

    A character of a script without spaces is a word.
    """
    # NumPy, because starting an operation of torch takes several times longer, which is most of
    # the time of a short text.
    # The parts between white space. Composed, so that "é" has one form.
    composed = [unicodedata.normalize("NFC", text.lower()) for text in batch["text"]]
    texts = [text.replace("\0", " ").split() for text in composed]
    device = batch["ids"].device
    counted = [torch.from_numpy(f(texts)).to(device) for f in (_word_codes, _gram_codes)]
    return Features("TF-IDF", torch.zeros(len(texts), 0, device=device), tuple(counted))


def _word_codes(texts: Sequence[Sequence[str]]) -> np.ndarray:
    """Return the row and the hash (2, n) of words, pairs of words and punctuation."""
    rows: list[int] = []
    codes: list[int] = []
    for row, parts in enumerate(texts):
        words: list[int] = []
        for part in parts:
            found, marks = _words(part) if len(part) <= MAX_CACHED else _words.__wrapped__(part)
            words += found
            codes += marks
        codes += words
        codes += [(first * PAIR + second) % PRIME for first, second in pairwise(words)]
        rows += [row] * (len(codes) - len(rows))
    return np.array([rows, codes], np.int64)


@lru_cache(1 << 14)
def _words(part: str) -> tuple[list[int], list[int]]:
    """Return the hashes of the words, and those of single characters of punctuation."""
    kinds = part.translate(KIND_OF)
    words: list[int] = []
    for match in WORDS.finditer(kinds):
        code = 0
        for char in reversed(part[match.start() : match.end()]):
            code = (code * BASE + ord(char)) % PRIME
        words.append(code)
    return words, [ord(char) for char, kind in zip(part, kinds, strict=True) if kind in "pq"]


def _gram_codes(texts: Sequence[Sequence[str]]) -> np.ndarray:
    """Return the row and the hash (2, n) of character n-grams."""
    shown = [" ".join(["", *parts]) for parts in texts]
    # A space before each word, and one after the last, so that all texts are one sequence. It is
    # padded to the longest n-gram of the last character.
    joined = "".join([*shown, " \0\0\0\0"]).encode("utf-32-le", "surrogatepass")
    chars = np.frombuffer(joined, np.uint32).astype(np.int64)
    count = len(chars) - 5  # without the last space
    # n-grams have a space at most at their ends. A space between two texts counts to the second
    # one. It ends a word of the first one too, whose n-gram starts in the first text.
    spaces = (chars == SPACE).nonzero()[0]
    next_space = spaces[1:].repeat(spaces[1:] - spaces[:-1])
    is_gram = (next_space - np.arange(-1, count - 1))[:, None] >= CHAR_LENGTHS
    windows = np.ndarray((count, 5), np.int64, chars, strides=(8, 8))
    codes = (windows @ FACTORS)[is_gram] % PRIME
    rows = np.arange(len(texts)).repeat([len(text) for text in shown])
    return np.array([rows[is_gram.nonzero()[0]], codes])


# Images and videos

SIDE = 32  # pixels of the reduced picture
GRID = 8  # cells along each side, for colors and for histograms
NUM_LEVELS = 8  # of each channel in the histogram of colors
NUM_BINS = 9  # orientations of a gradient, as in HOG (Dalal and Triggs, CVPR 2005)
EPS = 1e-2  # about the contrast of noise; it keeps the noise of plain areas small
MIN_SHARE = 1e-3  # of the area of a picture; smaller areas of a color matter little


def image_features(adapter: Any, batch: Mapping[str, Tensor]) -> Features:
    """Return a small picture and histograms of each image of a batch."""
    return Features("small pictures", picture_features(batch["pixels"], batch["sizes"]))


def video_features(adapter: Any, batch: Mapping[str, Tensor]) -> Features:
    """Return the statistics over time of a small picture and of its histograms."""
    pixels, lengths = batch["pixels"], batch["lengths"]
    frames = rearrange(pixels, "b t c h w -> (b t) c h w")
    sizes = repeat(batch["sizes"], "b s -> (b t) s", t=pixels.shape[1])
    x = rearrange(picture_features(frames, sizes), "(b t) f -> b t f", b=pixels.shape[0])
    mask = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return Features("small pictures", time_statistics(x, mask))


def picture_features(pixels: Tensor, sizes: Tensor) -> Tensor:
    """Return the colors and the gradients of a grid of cells, and a histogram of colors, (B, F).

    Args:
        pixels: uint8 (B, C, H, W), padded at the bottom and on the right.
        sizes: (B, 2). Height and width of each picture.
    """
    small = _reduced(pixels, sizes)
    cell = SIDE // GRID
    colors = reduce(small, "b c (h p) (w q) -> b (c h w)", "mean", p=cell, q=cell)
    return torch.cat([colors, _histograms(small.mean(1), cell), _color_histogram(small)], 1)


def _reduced(pixels: Tensor, sizes: Tensor) -> Tensor:
    """Return pictures (B, C, SIDE, SIDE) from 0 to 1."""
    result = torch.zeros(len(pixels), pixels.shape[1], SIDE, SIDE, device=pixels.device)
    # Usually all pictures have the same size.
    for height, width in sizes.unique(dim=0).tolist():
        rows = (sizes == sizes.new_tensor([height, width])).all(1).nonzero()[:, 0]
        part = pixels[rows, :, :height, :width].float() / 255
        small = F.interpolate(
            part, (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False
        )
        result.index_copy_(0, rows, small)
    return result


def _histograms(gray: Tensor, cell: int) -> Tensor:
    """Return normalized histograms of the orientations of gradients, (B, F)."""
    padded = F.pad(gray[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    dx = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    dy = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    strength = (dx.square() + dy.square()).sqrt()
    # The two nearest bins share a gradient. Opposite directions have the same orientation.
    position = torch.atan2(dy, dx).remainder(math.pi) / math.pi * NUM_BINS
    bins = torch.arange(NUM_BINS, device=gray.device)[:, None, None]
    distance = (position[:, None] - bins).abs()
    distance = torch.minimum(distance, NUM_BINS - distance)
    votes = strength[:, None] * (1 - distance).clamp(min=0)
    histograms = reduce(votes, "b k (h p) (w q) -> b k h w", "mean", p=cell, q=cell)
    # Relative to the neighboring cells, because the contrast depends on the light.
    energy = histograms.square().sum(1, keepdim=True)
    around = F.avg_pool2d(energy, 3, stride=1, padding=1, count_include_pad=False)
    return rearrange(histograms / (around.sqrt() + EPS), "b k h w -> b (k h w)")


def _color_histogram(small: Tensor) -> Tensor:
    """Return the area of each color, (B, F), wherever it is (Swain and Ballard, IJCV 1991).

    Args:
        small: (B, C, SIDE, SIDE), from 0 to 1.

    Returns:
        A number for each combination of NUM_LEVELS levels of the C channels. It is the square root
        of the area, so that small areas count too.
    """
    levels = torch.arange(NUM_LEVELS, device=small.device)[:, None]
    x = rearrange(small, "b c h w -> b c 1 (h w)") * NUM_LEVELS - 0.5
    x = x.clamp(0, NUM_LEVELS - 1)
    # The two nearest levels share a pixel.
    shares = (1 - (x - levels).abs()).clamp(min=0)
    *others, last = shares.unbind(1)
    joint = torch.ones_like(last[:, :1])
    for share in others:
        joint = rearrange(joint[:, :, None] * share[:, None], "b j k p -> b (j k) p")
    areas = (joint @ last.mT).flatten(1) / SIDE**2
    return (areas + MIN_SHARE).sqrt()


# Sounds

NUM_MFCC = 20  # cepstral coefficients, as many as librosa computes
NUM_PARTS = 4  # parts of a clip that are described separately


def audio_features(adapter: Any, batch: Mapping[str, Tensor]) -> Features | None:
    """Return statistics of the spectrogram and of its MFCC. None: there is no spectrogram.

    They are those of the levels before `normalize.kind=clip`: how loud a sound is tells what it is,
    and so does a short click, which only the maximum over time shows.
    """
    if adapter.tokenizer.spectrogram is None:
        return None
    from torchaudio.functional import create_dct  # it takes time to import

    x, lengths = batch["features"].float(), batch["lengths"]
    if "level" in batch:
        mean, std = batch["level"].float().split([x.shape[2], 1], 1)
        x = x * std[..., None] + mean[:, None]
    mask = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    count = x.shape[2]
    mfcc = x @ create_dct(min(NUM_MFCC, count), count, "ortho").to(x.device)
    parts = [time_statistics(mfcc, mask), time_statistics(x, mask), *extremes(x, mask)]
    dense = torch.cat([*parts, means_of_parts(mfcc, lengths, NUM_PARTS)], 1)
    return Features("MFCC statistics", dense)


def means_of_parts(x: Tensor, lengths: Tensor, num_parts: int) -> Tensor:
    """Return the mean of each of equally long parts of a sequence, (B, num_parts F).

    Args:
        x: (B, T, F).
        lengths: (B,). Number of steps of each sample.
        num_parts: Number of parts.
    """
    steps = torch.arange(x.shape[1], device=x.device)
    means: list[Tensor] = []
    for part in range(num_parts):
        start = lengths * part // num_parts
        # At least one step, because a sequence can be shorter than the number of parts.
        stop = torch.maximum(lengths * (part + 1) // num_parts, start + 1)
        inside = (steps >= start[:, None]) & (steps < stop[:, None])
        weights = inside.to(x.dtype) / (stop - start)[:, None]
        means.append((x * weights[..., None]).sum(1))
    return torch.cat(means, 1)


# Cells of a table, and series

# Values of a category that have a feature each. More would be 0 in nearly all rows.
MAX_DENSE = 64


def number_features(adapter: Any, batch: Mapping[str, Tensor]) -> Features:
    """Return the standardized number of each sample of a batch."""
    return Features(COLUMNS, batch["value"][:, 0])


def date_features(adapter: Any, batch: Mapping[str, Tensor]) -> Features:
    """Return the features of each date of a batch, NaN where it lacks them."""
    return Features(COLUMNS, batch["value"].masked_fill(~batch["valid"], torch.nan)[:, 0])


def category_features(adapter: Any, batch: Mapping[str, Tensor]) -> Features:
    """Return how often each value occurs in each sample of a batch.

    The most frequent values, which have the first ids, have a dense feature each. If there are more
    values, all of them are counted as well.
    """
    ids, mask = batch["ids"], batch["mask"]
    size = adapter.embedding.num_embeddings
    dense = torch.zeros(ids.shape[0], min(size, MAX_DENSE), device=ids.device)
    known = mask & (ids < dense.shape[1])
    dense = dense.scatter_add_(1, ids.masked_fill(~known, 0), known.float())
    if size <= MAX_DENSE:
        return Features(COLUMNS, dense)
    return Features(COLUMNS, dense, (torch.stack([mask.nonzero()[:, 0], ids[mask]]),))


def series_features(adapter: Any, batch: Mapping[str, Tensor]) -> Features:
    """Return statistics over time of each channel, NaN for a channel without values."""
    x, observed = batch["values"], batch["observed"]
    # The padding of a batch counts as not observed.
    high, low = extremes(x, observed)
    dense = torch.cat([time_statistics(x, observed), low, high], 1)
    dense = dense.masked_fill(dense.isinf(), torch.nan)
    tokenizer = adapter.tokenizer
    if not tokenizer.history_steps:
        return Features("statistics", dense)
    known = None
    if tokenizer.num_known:
        known = x.masked_fill(~observed, torch.nan)[..., -tokenizer.num_known :]
    level = batch["loc"] / batch["scale"]
    return Features("statistics", dense, (), tokenizer.history(batch), known, level)


# All modalities

# From an adapter and a collated batch.
Compute = Callable[[Any, Mapping[str, Tensor]], Features | None]
# By modality: the function that computes the features, and a key that the batch needs, which the
# adapter of a user can lack. Other modalities can be added.
FEATURES: dict[str, tuple[Compute, str]] = {
    "text": (text_features, "text"),
    "image": (image_features, "pixels"),
    "audio": (audio_features, "features"),
    "video": (video_features, "pixels"),
    "series": (series_features, "values"),
    "number": (number_features, "value"),
    "category": (category_features, "ids"),
    "date": (date_features, "valid"),
}
# Modalities whose features are not computed by operations of torch alone, or by a loop whose length
# depends on the values. An exported graph cannot contain them.
NOT_IN_GRAPHS = ("text", "image", "video")


def features_of(adapter: Any, batch: Mapping[str, Any]) -> Features | None:
    """Return the features of the samples of a collated batch. None: the modality has none."""
    batch = batch.get(VALUES, batch)
    compute, key = FEATURES.get(adapter.modality, (None, ""))
    if compute is None or key not in batch:
        return None
    return compute(adapter.plain_values, batch)


def input_features(
    model: Any, name: str, batch: Mapping[str, Any], *, encoded: Container[str]
) -> dict[str, Features]:
    """Return the features of an input of a batch, and those that its encoder computes.

    Args:
        model: A `dxn.models.MultimodalModel`.
        name: Name of the input, which some sample of the batch has.
        batch: Batch of the model.
        encoded: Inputs whose encoder is frozen. The mean of its output vectors is a feature, too,
            with ENCODER before the name as the key.
    """
    adapter, part = model.adapter(name), batch[name]
    features = features_of(adapter, part)
    result = {} if features is None else {name: features}
    if name in encoded:
        mean = mean_vectors(adapter, part)
        result[ENCODER + name] = Features("vectors of frozen encoders", mean)
    return result


def model_features(
    model: Any, batch: Mapping[str, Any], *, encoded: Container[str] = ()
) -> dict[str, Features]:
    """Return the features of each input of a model, see `input_features`.

    Samples that lack an input have NaN.
    """
    result: dict[str, Features] = {}
    for name in model.inputs:
        if name in batch:
            for key, features in input_features(model, name, batch, encoded=encoded).items():
                result[key] = features.spread(batch[name]["rows"], batch["#size"])
    return result


def mean_vectors(adapter: Any, batch: Mapping[str, Any]) -> Tensor:
    """Return the means (B, E) of the tokens of an input, or of the output vectors of its encoder.

    Not of what a projection, which can have random weights, computes from the output vectors.
    """
    tokens = adapter.columns(batch) if isinstance(adapter, EncodedAdapter) else adapter(batch)
    return masked_mean(tokens.x.float(), tokens.mask)
