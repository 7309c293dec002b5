"""Metrics of generated texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dxn.tasks.generate.target_tokenizer import TargetTokenizer
from dxn.tasks.metric import Metric


class TextMetric(Metric):
    """BLEU and chrF (0 to 100), word and character error rate, and exact match (0 to 1).

    BLEU and chrF are computed by sacrebleu with its default options. Reference texts are normalized
    by the tokenizer first, for example to lower case, because the model can generate only
    normalized texts.

    Args:
        tokenizer: Tokenizer of the texts.
    """

    monitored = "chrf"
    lower_is_better = ("wer", "cer")
    row: ClassVar = ("chrf", "chrF")

    def __init__(self, tokenizer: TargetTokenizer):
        self.tokenizer = tokenizer

    @cached_property
    def corpus_metrics(self) -> dict[str, tuple[Any, int]]:
        """BLEU and chrF by name, with the number of statistics of a row."""
        # Only this task needs the library, and it takes long to import.
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        metrics = {"bleu": BLEU(), "chrf": CHRF()}
        return {
            name: (metric, len(metric._extract_corpus_statistics([""], [[""]])[0]))
            for name, metric in metrics.items()
        }

    def rows(self, predictions: Sequence[str], targets: Sequence[str]) -> Tensor:
        """Return the statistics of sacrebleu, and those of the error rates and exact matches."""
        references = [self.tokenizer.normalize(target) for target in targets]
        # The same two methods as in the bootstrap of sacrebleu, which returns no single values.
        stats = [
            metric._extract_corpus_statistics(list(predictions), [references])
            for metric, _ in self.corpus_metrics.values()
        ]
        pairs = list(zip(predictions, references, strict=True))
        words = [(predicted.split(), true.split()) for predicted, true in pairs]
        errors = [
            (distance(*each), len(each[1]), distance(*pair), len(pair[1]), pair[0] == pair[1], 1)
            for each, pair in zip(words, pairs, strict=True)
        ]
        parts = [torch.tensor(each, dtype=torch.float64) for each in (*stats, errors)]
        return torch.cat(parts, 1)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the metrics. Without any reference, an error rate is the number of errors."""
        *stats, wrong_words, words, wrong_chars, chars, exact, total = sums.unbind(-1)
        results: dict[str, Tensor] = {}
        for name, (metric, size) in self.corpus_metrics.items():
            rows = torch.stack(stats[:size], -1).reshape(-1, size).tolist()
            scores = [metric._compute_score_from_stats(row).score for row in rows]
            results[name] = sums.new_tensor(scores).reshape(sums.shape[:-1])
            stats = stats[size:]
        return results | {
            "wer": wrong_words / words.clamp(min=1),
            "cer": wrong_chars / chars.clamp(min=1),
            "exact_match": exact / total.clamp(min=1),
        }


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
