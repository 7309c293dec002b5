"""Figures for each kind of target, from what the head predicted and what the rows say."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from dxn.data.targets import IGNORED, Target

MONITORED = {
    "class": "accuracy",
    "labels": "f1_micro",
    "number": "rmse",
    "tags": "f1_entity",
    "text": "chrf",
    "next": "loss_per_char",
    "masked": "loss",
}
SMALLER_IS_BETTER = {"rmse", "loss", "loss_per_char"}


def score(target: Target, predicted: Sequence, truths: Sequence, threshold: float = 0.5) -> dict[str, float]:
    """Metrics by name. predicted: probabilities (n, K), numbers (n,), for tags a list of names a row, or texts.

    A row whose true class training never saw counts as wrong in the accuracy, and has no share in f1_macro.
    threshold: the probability from which on a label counts as predicted.
    """
    if target.kind == "class":
        return _classes(target, torch.stack(list(predicted)), truths)
    if target.kind == "labels":
        return _labels(target, torch.stack(list(predicted)), truths, threshold)
    if target.kind == "number":
        return _numbers(torch.stack(list(predicted)), torch.tensor([float(t) for t in truths]))
    if target.writing is not None:
        return _texts(predicted, [target.writing.normal(t) for t in truths])
    return _tags(predicted, truths)


def monitored(target: Target) -> str:
    """The metric that decides which epoch is best."""
    return MONITORED[target.kind]


def better(metric: str, new: float, old: float | None) -> bool:
    """Whether new beats old; anything but NaN beats nothing."""
    if old is None:
        return new == new
    return new < old if metric in SMALLER_IS_BETTER else new > old


def confusion(target: Target, predicted: Sequence[Tensor], truths: Sequence[str]) -> Tensor:
    """Counts (K, K): a row a true class, a column a predicted one. Unknown true classes are left out."""
    true = torch.stack([target.encode(t) for t in truths])
    guess = torch.stack(list(predicted)).argmax(1)
    known, k = true != IGNORED, len(target.names)
    return torch.bincount(true[known] * k + guess[known], minlength=k * k).reshape(k, k)


def _classes(target: Target, probabilities: Tensor, truths: Sequence[str]) -> dict[str, float]:
    from torchmetrics.functional.classification import multiclass_f1_score  # takes seconds to import

    true = torch.stack([target.encode(t) for t in truths])
    guess, known = probabilities.argmax(1), true != IGNORED
    figures = {"accuracy": float((guess == true).float().mean())}
    if known.any() and len(target.names) > 1:
        figures["f1_macro"] = float(
            multiclass_f1_score(guess[known], true[known], num_classes=len(target.names), average="macro")
        )
    return figures


def _labels(
    target: Target, probabilities: Tensor, truths: Sequence[Sequence[str]], threshold: float
) -> dict[str, float]:
    """The average precision is over the labels that some row has: it is not defined for the others."""
    from torchmetrics.functional.classification import binary_average_precision  # takes seconds to import

    true = torch.stack([target.encode(t) for t in truths]).bool()
    guess = probabilities >= threshold
    right, named = (guess & true).sum(0), guess.sum(0) + true.sum(0)
    precisions = [binary_average_precision(probabilities[:, k], true[:, k].long()) for k in true.any(0).nonzero()[:, 0]]
    return {
        "f1_micro": float(2 * right.sum() / named.sum().clamp(min=1)),
        "f1_macro": float((2 * right / named.clamp(min=1)).mean()),
        "exact_match": float((guess == true).all(1).float().mean()),
        "average_precision": float(torch.stack(precisions).mean()) if precisions else 0.0,
    }


def _numbers(guess: Tensor, true: Tensor) -> dict[str, float]:
    error = guess - true
    spread = (true - true.mean()).square().mean()
    return {
        "rmse": float(error.square().mean().sqrt()),
        "mae": float(error.abs().mean()),
        "r2": float(1 - error.square().mean() / spread) if spread > 0 else float("nan"),
    }


def _tags(predicted: Sequence[Sequence[str]], truths: Sequence[Sequence[str]]) -> dict[str, float]:
    pairs = [(p, t) for ps, ts in zip(predicted, truths, strict=True) for p, t in zip(ps, ts, strict=True)]
    figures = {"accuracy": sum(p == t for p, t in pairs) / max(len(pairs), 1)}
    found = [set(entities(p)) for p in predicted]
    true = [set(entities(t)) for t in truths]
    right = sum(len(f & t) for f, t in zip(found, true, strict=True))
    num_found, num_true = sum(map(len, found)), sum(map(len, true))
    figures["precision_entity"] = right / num_found if num_found else 0.0
    figures["recall_entity"] = right / num_true if num_true else 0.0
    figures["f1_entity"] = 2 * right / (num_found + num_true) if num_found + num_true else 0.0
    return figures


def _texts(predicted: Sequence[str], truths: Sequence[str]) -> dict[str, float]:
    """bleu and chrf (0 to 100) as sacrebleu has them by default; words and characters wrong per true one; the
    share of texts that are right throughout."""
    from sacrebleu.metrics.bleu import BLEU  # not needed elsewhere
    from sacrebleu.metrics.chrf import CHRF

    return {
        "bleu": BLEU().corpus_score(predicted, [truths]).score,
        "chrf": CHRF().corpus_score(predicted, [truths]).score,
        "wer": _error_rate([p.split() for p in predicted], [t.split() for t in truths]),
        "cer": _error_rate(predicted, truths),
        "exact_match": sum(p == t for p, t in zip(predicted, truths, strict=True)) / max(len(truths), 1),
    }


def _error_rate(predicted: Sequence[Sequence], truths: Sequence[Sequence]) -> float:
    """Insertions, deletions and substitutions per true element."""
    wrong = sum(edit_distance(p, t) for p, t in zip(predicted, truths, strict=True))
    return wrong / max(sum(map(len, truths)), 1)


def edit_distance(one: Sequence, other: Sequence) -> int:
    """The fewest insertions, deletions and substitutions that make one of the other (Levenshtein)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        corner, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (a != b))
    return row[-1]


def entities(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """(start, stop, type) of each run of B-x I-x I-x; a stray I-x begins a run, as conlleval has it.

    Without B- and I- each word whose tag is not O is an entity of its own.
    """
    found: list[tuple[int, int, str]] = []
    for i, tag in enumerate(tags):
        prefix, kind = tag[:2], tag[2:]
        if not re.match("[BI]-", tag):
            if tag != "O":
                found.append((i, i + 1, tag))
        elif prefix == "I-" and found and found[-1][1:] == (i, kind):
            found[-1] = (found[-1][0], i + 1, kind)
        else:
            found.append((i, i + 1, kind))
    return found
