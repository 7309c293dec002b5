"""Metrics of generated texts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def text_metrics(predictions: Sequence[str], truths: Sequence[str]) -> dict[str, float]:
    """Compare generated texts with reference texts.

    BLEU and chrF are computed by sacrebleu with its default options.
    """
    # Only this task needs these libraries, and they take long to import.
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from torchmetrics.functional.text import char_error_rate, word_error_rate

    predicted = list(predictions)
    true = list(truths)
    correct = sum(p == t for p, t in zip(predicted, true, strict=True))
    # torchmetrics divides by the length of the references. If they are all empty, use the number of
    # insertions, which are all predicted words or characters.
    has_words = any(truth.split() for truth in true)
    wer = float(word_error_rate(predicted, true)) if has_words else _count_words(predicted)
    cer = float(char_error_rate(predicted, true)) if any(true) else float(sum(map(len, predicted)))
    return {
        "bleu": BLEU().corpus_score(predicted, [true]).score,
        "chrf": CHRF().corpus_score(predicted, [true]).score,
        "wer": wer,
        "cer": cer,
        "exact_match": correct / max(len(true), 1),
    }


def _count_words(texts: Sequence[str]) -> float:
    return float(sum(len(text.split()) for text in texts))


def weighted_text_metrics(
    predictions: Sequence[str], truths: Sequence[str], counts: Tensor
) -> dict[str, Tensor]:
    """Compute the metrics from statistics of single texts.

    Args:
        predictions: The n generated texts.
        truths: The reference texts.
        counts: (R, n). How often each text counts.

    Returns:
        R values by metric. The character error rate is left out: to count the errors of every text
        takes as long as to generate it.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    results: dict[str, Tensor] = {}
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        # The same two methods as in the bootstrap of sacrebleu, which returns no single values.
        stats = metric._extract_corpus_statistics(predictions, [truths])
        sums = (counts @ torch.tensor(stats, dtype=counts.dtype)).tolist()
        scores = [metric._compute_score_from_stats(row).score for row in sums]
        results[name] = torch.tensor(scores, dtype=counts.dtype)
    pairs = list(zip(predictions, truths, strict=True))
    words = [(predicted.split(), true.split()) for predicted, true in pairs]
    errors = [(_distance(*each), len(each[1])) for each in words]
    wrong, total = (counts @ torch.tensor(errors, dtype=counts.dtype)).T
    results["wer"] = wrong / total.clamp(min=1)
    exact = torch.tensor([predicted == true for predicted, true in pairs], dtype=counts.dtype)
    results["exact_match"] = counts @ exact / counts.sum(1)
    return results


def sentence_chrf(predictions: Sequence[str], truths: Sequence[str]) -> list[float]:
    """Return the chrF score (0 to 100) of each text."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    pairs = zip(predictions, truths, strict=True)
    return [metric.sentence_score(predicted, [true]).score for predicted, true in pairs]


def _distance(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the Levenshtein distance of two lists of words."""
    row = list(range(len(right) + 1))
    for i, item in enumerate(left, 1):
        corner, row[0] = row[0], i
        for j, other in enumerate(right, 1):
            best = min(row[j] + 1, row[j - 1] + 1, corner + (item != other))
            corner, row[j] = row[j], best
    return row[-1]
