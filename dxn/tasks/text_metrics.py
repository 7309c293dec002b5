"""Metrics of generated texts."""

from __future__ import annotations

from collections.abc import Sequence


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
