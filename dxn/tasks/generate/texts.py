"""What tasks share whose predictions are texts: error rates, and a description of targets."""

from __future__ import annotations

import re
import statistics
import string
import unicodedata
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dxn.tasks.metric import Metric

APOSTROPHES = re.compile("['\N{RIGHT SINGLE QUOTATION MARK}]")
ASCII_PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}]")


class ErrorRates(Metric):
    """Word and character error rate, and exact match (0 to 1).

    An error rate is the number of insertions, deletions and substitutions, divided by the number of
    words or characters of the references. wer_normalized is the word error rate of the texts
    without upper case and punctuation, see `bare_words`.

    Args:
        normalize: Function that returns a reference in the form that the model can write, for
            example in lower case.
    """

    monitored = "cer"
    lower_is_better = ("wer", "wer_normalized", "cer")
    row: ClassVar = ("cer", "character error rate")

    def __init__(self, normalize: Callable[[str], str]):
        self.normalize = normalize

    def rows(self, predictions: Sequence[str], targets: Sequence[str]) -> Tensor:
        """Count wrong words, words, the same of bare words and characters, exact matches, and 1."""
        rows: list[tuple[int, ...]] = []
        for predicted, target in zip(predictions, targets, strict=True):
            true = self.normalize(target)
            words = predicted.split(), true.split()
            bare = bare_words(predicted), bare_words(true)
            wrong = distance(*words)
            rows.append(
                (
                    *(wrong, len(words[1])),
                    *(wrong if bare == words else distance(*bare), len(bare[1])),
                    *(distance(predicted, true), len(true)),
                    *(predicted == true, 1),
                )
            )
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, 8)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the metrics. Without any reference, an error rate is the number of errors."""
        wrong_words, words, wrong_bare, bare, wrong_chars, chars, exact, total = sums.unbind(-1)
        return {
            "wer": wrong_words / words.clamp(min=1),
            "wer_normalized": wrong_bare / bare.clamp(min=1),
            "cer": wrong_chars / chars.clamp(min=1),
            "exact_match": exact / total.clamp(min=1),
        }


def bare_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation.

    Apostrophes are removed. Other punctuation and symbols separate words: Unicode categories P and
    S.
    """
    text = APOSTROPHES.sub("", unicodedata.normalize("NFC", text).lower())
    if text.isascii():
        return ASCII_PUNCTUATION.sub(" ", text).split()
    chars = (" " if unicodedata.category(char)[0] in "PS" else char for char in text)
    return "".join(chars).split()


def distance(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the Levenshtein distance of two lists of words, or of two texts."""
    others = np.array(list(right), dtype=object)
    steps = np.arange(len(right) + 1)
    row = steps
    for i, item in enumerate(left, 1):
        changed = np.minimum(row[:-1] + (others != item), row[1:] + 1)
        # An insertion continues the best way to the item before, so the minimum is a running one.
        best = np.concatenate([[i], changed])
        row = np.minimum.accumulate(best - steps) + steps
    return int(row[-1])


def describe_texts(values: Sequence[str]) -> str:
    """Return the range and the median of the lengths of texts in characters."""
    lengths = [len(value) for value in values]
    if not lengths:
        return "no texts"
    middle = statistics.median(lengths)
    return f"texts of {min(lengths):,} to {max(lengths):,} characters, median {middle:,.0f}"
