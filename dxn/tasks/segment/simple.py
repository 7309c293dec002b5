"""Simple methods for masks, with which a model is compared: the place of a pixel, and a forest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dxn.core.randomness import spaced_rows
from dxn.tasks.segment.masks import Mask
from dxn.tasks.segment.target import PixelClasses, Segmented, nearest
from dxn.tasks.target import IGNORED
from dxn.tokenize.base import Placement

# A mask that covers its picture.
WHOLE = Placement(torch.zeros(2), torch.ones(2), torch.ones(2))
GRID = 64  # rows and columns of the places
# Pictures and pixels from which the forest learns, and pixels that it classifies: 20 seconds.
MAX_PICTURES, MAX_LEARNED, MAX_PIXELS = 500, 50_000, 1_000_000
MAX_READ = 30_000_000  # pixels whose features are computed; larger pictures are reduced
TREES, FEWEST = 20, 5  # and pixels of a leaf
WINDOWS = (5, 13, 31)  # pixels whose mean and deviation are features
SEED = 0


def simple_masks(
    target: PixelClasses,
    pictures: Sequence[Any],
    masks: Sequence[Mask],
    others: Sequence[Any],
    share: float = 1.0,
) -> Iterator[tuple[str, list[Segmented]]]:
    """Yield the answers of two methods, with their description.

    Args:
        target: The target, fitted to the masks.
        pictures: Training pictures (C, H, W) uint8, None where missing.
        masks: Their masks.
        others: Pictures that are answered.
        share: Share of the usual time of the forest, 0 to 1.
    """
    counts = np.zeros((GRID, GRID, len(target.labels)), np.int64)
    rows, columns = np.indices((GRID, GRID))
    for mask in masks:
        classes = _sampled(target.index_of(mask), (GRID, GRID))
        has_class = _is_known(classes, target)
        np.add.at(counts, (rows[has_class], columns[has_class], classes[has_class]), 1)
    places = Segmented(torch.from_numpy(counts.argmax(2)).byte(), WHOLE)
    yield "most frequent class of each place", [places] * len(others)
    chosen = spaced_rows(len(pictures), max(round(share * MAX_PICTURES), 1))
    num_pixels = others[0][0].numel() * (len(chosen) + len(others))
    factor = math.ceil((num_pixels / (share * MAX_READ)) ** 0.5)
    random = np.random.default_rng(SEED)
    features: list[np.ndarray] = []
    known: list[np.ndarray] = []
    for row in chosen:
        if (picture := pictures[row]) is None:
            continue
        pixels = picture[:, ::factor, ::factor]
        classes = _sampled(target.index_of(masks[row]), (pixels.shape[-2], pixels.shape[-1]))
        places_known = np.flatnonzero(_is_known(classes, target))
        count = min(round(share * MAX_LEARNED / len(chosen)), len(places_known))
        picked = random.choice(places_known, count, replace=False)
        x = pixel_features(pixels)
        features.append(x.reshape(len(x), -1).T[picked])
        known.append(classes.ravel()[picked])
    if not any(map(len, known)):
        return
    from sklearn.ensemble import RandomForestClassifier  # it takes time to import

    forest = RandomForestClassifier(
        TREES, min_samples_leaf=FEWEST, n_jobs=torch.get_num_threads(), random_state=SEED
    )
    forest.fit(np.concatenate(features), np.concatenate(known))
    answers: list[Segmented] = []
    for picture in others:
        x = pixel_features(picture[:, ::factor, ::factor])
        step = math.ceil((x[0].size * len(others) / (share * MAX_PIXELS)) ** 0.5)
        x = x[:, step // 2 :: step, step // 2 :: step]
        classes = forest.predict(x.reshape(len(x), -1).T).reshape(x.shape[1:])
        answers.append(Segmented(torch.from_numpy(classes).byte(), WHOLE))
    yield "random forest of local colors", answers


def pixel_features(pixels: Tensor) -> np.ndarray:
    """Return features (F, H, W) of each pixel of a picture.

    They are its colors, the slope of the brightness, the mean and the standard deviation of windows
    around it, and its place.

    Args:
        pixels: (C, H, W) uint8.
    """
    from scipy.ndimage import uniform_filter  # it takes time to import

    x = pixels.numpy().astype(np.float32) / 255
    gray = x.mean(0)
    slope = np.hypot(*(np.diff(gray, axis=axis, append=gray.take([-1], axis)) for axis in (0, 1)))
    layers = np.stack([*x, slope, gray**2])
    parts = [x, slope[None]]
    for size in WINDOWS:
        mean = uniform_filter(layers, size, mode="nearest", axes=(1, 2))
        variance = mean[-1] - mean[:-2].mean(0) ** 2
        parts += [mean[:-1], np.sqrt(variance.clip(0))[None]]
    places = np.indices(gray.shape, np.float32)
    return np.concatenate([*parts, places / np.array(gray.shape, np.float32)[:, None, None]])


def _sampled(classes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return the classes (h, w) of a mask (H, W) at another number of pixels."""
    index = [nearest(WHOLE, i, n, classes.shape[i]) for i, n in enumerate(size)]
    return classes[np.ix_(*index)]


def _is_known(classes: np.ndarray, target: PixelClasses) -> np.ndarray:
    return (classes != IGNORED) & (classes < len(target.labels))
