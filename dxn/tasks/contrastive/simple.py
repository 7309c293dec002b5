"""Simple methods of search, with which a model is compared: equal words, and similar colors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dxn.core.display import print_line
from dxn.core.randomness import spaced_rows
from dxn.tasks.contrastive.search import Search, Similarity
from dxn.tasks.task import Raws
from dxn.tokenize.text.tokenizer import Conversation, plain_text

# Rows that are searched, and training rows. With more rows there is no method, because a search in
# a part of them would be easier.
MAX_ROWS = 20_000
MAX_FILES = 2_500  # training rows if an input is read from files
MAX_PAIRS = 80_000_000  # of queries and rows that are searched, in all directions: 10 seconds
SIDE, LEVELS = 64, 4  # pixels of a side, and levels of each of three colors
MAX_SAMPLES = 2**17  # of a sound: 8 s at 16 kHz
N_FFT, BANDS = 512, 32  # samples of a window, and bands of its spectrum
NOISE = 1e-5  # less than similarities differ, unless they are equal
CHUNK = 256  # rows that are compared at once

# Methods that compare inputs of a kind with each other.
DIRECT = {"words": "word overlap", "colors": "color histograms", "sounds": "spectra"}
COUNTERPART = "most similar training row"


def simple_searches(
    inputs: Sequence[str], train: Raws, raws: Raws, share: float
) -> Iterator[tuple[str, Search]]:
    """Yield how similar the inputs of rows are by each method, with its description.

    Inputs of one kind are compared with each other. The other method compares inputs of all kinds:
    it replaces a query by the other input of the training row whose input is most similar to it.

    Args:
        inputs: Names of the inputs.
        train: Raw values of the training split, by input name; None where missing.
        raws: Raw values of the rows that are searched.
        share: Share of the usual number of training rows, 0 to 1.
    """
    kinds = {name: kind_of(raws[name]) for name in inputs}
    if "" in kinds.values():
        return  # the mean over some directions cannot be compared with that over all
    if (size := len(raws[inputs[0]])) > MAX_ROWS:
        print_line(
            f"note: no simple method stands beside the search in {size:,} rows, which are more "
            f"than {MAX_ROWS:,}"
        )
        return
    limit = MAX_ROWS if set(kinds.values()) == {"words"} else MAX_FILES
    chosen = spaced_rows(len(train[inputs[0]]), max(round(share * limit), 1))
    values = {name: [train[name][i] for i in chosen] + list(raws[name]) for name in inputs}
    features = features_of(values, kinds)
    known = [features[name][: len(chosen)] for name in inputs]
    asked = [features[name][len(chosen) :] for name in inputs]
    has = [_norms(x) > 0 for x in known]

    def direct(a: int, b: int, rows: Tensor) -> Similarity:
        queries = asked[a][rows.numpy()]
        return similarity(lambda chosen: queries[chosen], asked[b][rows.numpy()])

    def counterparts(a: int, b: int, rows: Tensor) -> Similarity:
        pairs = np.flatnonzero(has[a] & has[b])
        first, second = known[a][pairs], known[b][pairs]
        queries = asked[a][rows.numpy()]
        return similarity(
            lambda chosen: second[nearest_rows(first, queries[chosen])], asked[b][rows.numpy()]
        )

    if len(set(kinds.values())) == 1:
        yield DIRECT[kinds[inputs[0]]], direct
    if all((x & y).any() for x in has for y in has):
        yield COUNTERPART, counterparts


def kind_of(values: Sequence[Any]) -> str:
    """Return what of an input is compared, a key of DIRECT; "": nothing."""
    example = next((value for value in values if value is not None), None)
    if isinstance(example, list | tuple):
        return "words" if all(isinstance(word, str) for word in example) else ""
    if isinstance(example, str | Conversation):
        return "words"
    if not isinstance(example, Tensor):
        return ""
    if example.dtype == torch.uint8 and example.ndim in (3, 4):
        return "colors"
    return "sounds" if example.is_floating_point() and example.ndim in (1, 2) else ""


def features_of(values: Mapping[str, Sequence[Any]], kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return a unit vector of each value (n, F), as a dense or sparse matrix; 0 where missing.

    Args:
        values: Raw values of n rows by input name; None where missing.
        kinds: Kind of each input.
    """
    features: dict[str, Any] = {}
    texts = {name: values[name] for name in values if kinds[name] == "words"}
    if texts:
        # Inputs that are compared with each other need the same words.
        words = tf_idf([value for column in texts.values() for value in column])
        size = len(next(iter(texts.values())))
        features = {name: words[i * size : (i + 1) * size] for i, name in enumerate(texts)}
    for name in values.keys() - texts.keys():
        describe = color_histogram if kinds[name] == "colors" else spectrum
        x = [None if value is None else describe(value) for value in values[name]]
        size = len(next(row for row in x if row is not None))
        dense = np.stack([np.full(size, np.nan) if row is None else row for row in x])
        if kinds[name] == "sounds":  # all spectra are similar
            dense -= np.nanmean(dense, 0)
        dense = np.nan_to_num(dense).astype(np.float32)
        features[name] = dense / np.maximum(np.linalg.norm(dense, axis=1, keepdims=True), 1e-9)
    return features


def tf_idf(values: Sequence[Any]) -> Any:
    """Return the TF-IDF of the words of texts as a sparse matrix with unit rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # it takes time to import

    # Each character that is no space, so that only empty texts have no word.
    vectorizer = TfidfVectorizer(token_pattern=r"\w+|[^\w\s]")
    texts = ["" if x is None else plain_text(x) for x in values]
    # Of empty texts alone, there is no vocabulary.
    return vectorizer.fit([*texts, "."]).transform(texts)


def color_histogram(pixels: Tensor) -> np.ndarray:
    """Return the square root of the share of each color (Swain and Ballard, IJCV 1991).

    Args:
        pixels: (C, H, W) or (T, C, H, W) uint8. Only the first three channels count.
    """
    steps = [max(size // SIDE, 1) for size in pixels.shape[-2:]]
    channels = pixels[..., :: steps[0], :: steps[1]].movedim(-3, 0).flatten(1)[:3]
    level = channels.long() * LEVELS // 256
    color = sum(row * LEVELS**i for i, row in enumerate(level))
    # As many numbers for grey pictures as for others.
    counts = torch.bincount(torch.as_tensor(color), minlength=LEVELS**3).double()
    return (counts / counts.sum()).sqrt().numpy()


def spectrum(x: Tensor) -> np.ndarray:
    """Return the mean and the deviation over time of the logarithmic spectrum, in bands.

    Args:
        x: A sound (T,) or a series (T, C).
    """
    x = x[:MAX_SAMPLES].reshape(len(x[:MAX_SAMPLES]), -1).T.nan_to_num()
    window = torch.hann_window(N_FFT)
    power = torch.stft(x, N_FFT, window=window, pad_mode="constant", return_complex=True).abs()
    bands = power.square()[:, 1:].unflatten(1, (BANDS, -1)).mean(2)
    levels = (bands + 1e-6).log().transpose(0, 1).flatten(1)
    return torch.cat([levels.mean(1), levels.std(1, correction=0)]).double().numpy()


def nearest_rows(known: Any, asked: Any) -> np.ndarray:
    """Return the row of `known` (m, F) that is most similar to each row of `asked` (n, F)."""
    parts = [asked[first : first + CHUNK] for first in range(0, asked.shape[0], CHUNK)]
    return np.concatenate([_product(part, known).argmax(1) for part in parts])


def similarity(queries: Callable[[np.ndarray], Any], candidates: Any) -> Similarity:
    """Return the function of the similarities of queries and candidates.

    Those that are equal get a random order: a query without a common word finds as much as chance.

    Args:
        queries: Function that returns the vectors (n, F) of the queries with these n indices.
        candidates: (N, F).
    """
    generator = torch.Generator().manual_seed(0)

    def similarities(rows: Tensor) -> Tensor:
        x = torch.from_numpy(_product(queries(rows.numpy()), candidates)).float()
        return x + NOISE * torch.rand(x.shape, generator=generator)

    return similarities


def _product(a: Any, b: Any) -> np.ndarray:
    """Return the dot products (n, m) of the rows of two dense or sparse matrices."""
    x = a @ b.T
    return x if isinstance(x, np.ndarray) else x.toarray()


def _norms(x: Any) -> np.ndarray:
    """Return the sum of the absolute values of each row (n,) of a dense or sparse matrix."""
    return np.asarray(abs(x).sum(1)).ravel()
