"""Exact match and F1 of answers, as SQuAD defines them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from dxn.tasks.metric import Metric

if TYPE_CHECKING:
    from dxn.tasks.span.target import Answers
    from dxn.tasks.span.task import SpanAnswer

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(?:a|an|the)\b")


class SpanMetric(Metric):
    """The share of answers that are equal to a right one, and the mean F1 of their words.

    Upper case, punctuation, English articles and the number of spaces have no effect (SQuAD,
    arXiv:1606.05250, section 6.1). Of several right answers, the best counts. Without a right
    answer, an empty one has the score 1, and any other 0 (arXiv:1806.03822).
    """

    monitored = "f1_answer"
    row: ClassVar = ("f1_answer", "F1 of the words")

    def rows(self, predictions: Sequence[SpanAnswer], targets: Sequence[Answers]) -> Tensor:
        """Return for all questions, and for those without an answer: exact matches, F1 and 1."""
        rows: list[tuple[float, ...]] = []
        for prediction, target in zip(predictions, targets, strict=True):
            references = target.texts or ("",)
            exact = max(normalized(prediction.text) == normalized(text) for text in references)
            f1 = max(f1_of_words(prediction.text, text) for text in references)
            is_none = not target.texts
            rows.append((exact, f1, 1, exact * is_none, f1 * is_none, is_none))
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, 6)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the metrics. Those of a kind of questions that does not occur are NaN."""
        exact, f1, total, exact_none, f1_none, none = sums.unbind(-1)
        # 0 / 0 is NaN. With questions of one kind only, the others would repeat the metrics.
        has_both = torch.where((none > 0) & (none < total), 1.0, torch.nan)
        return {
            "exact_match": exact / total,
            "f1_answer": f1 / total,
            "f1_with_answer": has_both * (f1 - f1_none) / (total - none),
            "accuracy_without_answer": has_both * exact_none / none,
        }

    @property
    def details(self) -> Collection[str]:
        """The metrics that tables do not show."""
        return {"f1_with_answer", "accuracy_without_answer"}


def normalized(text: str) -> str:
    """Return a text in lower case without punctuation, articles and repeated spaces."""
    plain = ARTICLES.sub(" ", text.lower().translate(PUNCTUATION))
    return " ".join(plain.split())


def f1_of_words(predicted: str, true: str) -> float:
    """Return the harmonic mean of precision and recall of the words of an answer."""
    words, known = normalized(predicted).split(), normalized(true).split()
    if not words or not known:
        return float(words == known)
    common = (Counter(words) & Counter(known)).total()
    return 2 * common / (len(words) + len(known))
