"""Predictions over a split, and their figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from dxn.data.samples import BatchOrder, Samples, first_subwords, make_loader
from dxn.data.stream import Stream
from dxn.data.targets import IGNORED, Target
from dxn.errors import UserError
from dxn.models import Model
from dxn.models.masked import guess_figures
from dxn.models.model import LOSSES
from dxn.train.metrics import score


@dataclass(frozen=True)
class Predictions:
    """rows (n,) of the opened split, what was predicted for each (see metrics.score), the mean loss.

    threshold: the probability from which on a label counts as predicted.
    """

    rows: Sequence[int]
    predicted: Sequence
    loss: float
    threshold: float = 0.5


@torch.inference_mode()
def predict(
    model: Model,
    samples: Samples,
    target: Target,
    *,
    batch_size: int,
    device: torch.device,
    bf16: bool = False,
    beams: int | None = None,
) -> Predictions:
    """The model over all samples in order, without augmentation; beams: of a search, the head's unless given.

    UserError where samples ask for an answer of a model that only guesses what is hidden.
    """
    if target.kind == "masked" and samples.target is None:
        raise UserError("this model only guesses what is hidden: train one that answers from it, dxn train weights=RUN")
    was_training = model.training
    model.eval()
    rows, predicted, losses = [], [], []
    for batch in make_loader(BatchOrder(samples, batch_size)):
        batch = model.shown(to_device(batch, device))
        rows += batch["index"]
        known = "target" in batch and bool((batch["target"] != IGNORED).any())
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            encoded = model.encode(model.embed(batch))
            logits = model.answer(*encoded, batch).float() if known or target.kind not in LOSSES else None
            if target.writing is not None:
                said = model.head.write(encoded[0], begin=target.writing.begin, end=target.writing.end, beams=beams)
                predicted += [target.writing.decode(one.ids) for one in said]
        if target.kind == "masked":
            assert logits is not None
            predicted.append(logits.double().cpu())
        elif target.kind not in LOSSES:
            predicted += _decode(model.head.predict(logits).cpu(), batch, target)
        if known:
            loss, count = model.head.loss(logits, batch["target"]), (batch["target"] != IGNORED).sum()
            losses.append((float(loss), int(count)))
    model.train(was_training)
    total = sum(n for _, n in losses)
    mean = sum(loss * n for loss, n in losses) / total if total else float("nan")
    return Predictions(rows, predicted, mean, getattr(model.head, "threshold", 0.5))


def figures(predictions: Predictions, samples: Samples, target: Target) -> dict[str, float]:
    """loss, and the metrics of the target's kind; of a language model also its loss a character and its perplexity;
    of one that guesses what is hidden each modality's loss, and their mean."""
    if isinstance(samples, Stream):
        a_char = predictions.loss / samples.chars_per_token
        return {"loss": predictions.loss, "loss_per_char": a_char, "perplexity": math.exp(min(predictions.loss, 700))}
    if target.kind == "masked":
        each = guess_figures(torch.stack(list(predictions.predicted)).sum(0))
        losses = [value for name, value in each.items() if name.startswith("loss_")]
        return {"loss": sum(losses) / max(len(losses), 1), **each}
    targets = samples.opened.targets
    assert targets is not None
    truths = [targets[i] for i in predictions.rows]
    return {"loss": predictions.loss, **score(target, predictions.predicted, truths, predictions.threshold)}


def subsets(modalities: Sequence[str]) -> list[tuple[str, ...]]:
    """Each modality alone, each pair ... and all: none where there is one modality."""
    if len(modalities) < 2:
        return []
    return [c for size in range(1, len(modalities) + 1) for c in combinations(modalities, size)]


def to_device(batch: dict, device: torch.device) -> dict:
    """The batch with every tensor in it on device."""
    if device.type == "cpu":
        return batch

    def move(value):
        if isinstance(value, Tensor):
            return value.to(device, non_blocking=True)
        return {k: move(v) for k, v in value.items()} if isinstance(value, dict) else value

    return {name: move(value) for name, value in batch.items()}


def _decode(predicted: Tensor, batch: dict, target: Target) -> list:
    """A row's probabilities or number; for tags the name of each word's."""
    if target.kind != "tags":
        return list(predicted)
    words = batch["text"]["words"].cpu()
    firsts = first_subwords(words)
    guess = predicted[:, : words.shape[1]].argmax(-1)
    names = []
    for guessed, word, first in zip(guess, words, firsts, strict=True):
        count = int(word.max()) + 1 if word.numel() else 0
        row = ["O"] * count  # a word that max_len cut in the middle of its sentence has no subword
        for k, w in zip(guessed[first].tolist(), word[first].tolist(), strict=True):
            row[w] = target.names[k]
        names.append(row)
    return names
