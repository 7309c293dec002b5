"""Options for forecasts of frames of cells, such as maps of rain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dxn.core.display import count
from dxn.core.randomness import evenly_spaced
from dxn.presets.rules import Advice, Facts
from dxn.tasks.forecast.futures import Future, seasonal_naive
from dxn.tokenize.patches import CellPatches

MAX_WINDOWS = 200  # of which the simple forecasts are compared
# Patches of a frame. More show smaller motions, and are chosen if so many epochs fit into the time
# limit by the measured speed. Their embedding and the output take GRID_COST times as long as the
# tokens in the backbone.
FEW_PATCHES, MANY_PATCHES, ENOUGH_EPOCHS, GRID_COST = 64, 256, 20, 4
MAX_INPUTS = 50_000  # numbers that a token reads, for each of which the first layer has D weights
FEW = 2_000  # windows for small batches
# All cells share the weights, so that few windows have much to learn from.
TRAINING = {
    "trainer.ema_decay": 0.99,
    "optimizer.lr": 2e-3,
    "backbone.depth": 2,
    "backbone.dropout": 0.0,
    "backbone.norm.final_norm": False,  # the level of a patch, which a norm removes, matters
    "head.dropout": 0.0,
}


@dataclass(frozen=True)
class Frames:
    """What is known about the frames.

    Args:
        size: Height and width of a frame in cells.
        context: Number of frames that the model reads.
        horizon: Number of frames to predict.
        errors: Mean squared errors of the simple forecasts in the training split, by their name in
            `head.residual`.
    """

    size: tuple[int, int]
    context: int
    horizon: int
    errors: dict[str, float]

    @property
    def about(self) -> str:
        """What is known, in words."""
        height, width = self.size
        read = count(self.context, "frame")
        return f"{read} of {height}×{width} cells, {self.horizon} to predict"


def read_frames(histories: Sequence[Any], futures: Sequence[Any]) -> Frames | None:
    """Return what windows of frames show. None: they are no frames.

    Args:
        histories: Cells of the input, of which some are read.
        futures: Cells of the target.
    """
    pairs = zip(histories, futures, strict=True)
    known = [(h, f) for h, f in pairs if isinstance(h, Tensor) and isinstance(f, Future)]
    size = known[0][1].frame if known else None
    if size is None:
        return None
    chosen = list(evenly_spaced(known, MAX_WINDOWS))
    errors: dict[str, list[float]] = {"last": [], "mean": []}
    for history, future in chosen:
        past = history.flatten(1)
        # As the head does: of a cell that the last frame lacks, the last known value.
        last = seasonal_naive(past, 1, 1)
        for name, forecast in (("last", last), ("mean", past.nanmean(0))):
            errors[name].append(float((future.values - forecast).square().nanmean()))
    # A window can have no cell with a history and a future.
    means = {name: float(torch.tensor(each).nanmean()) for name, each in errors.items()}
    context = max(len(history) for history, _ in chosen)
    return Frames(size, context, len(chosen[0][1].values), means)


def advise_frames(frames: Frames, facts: Facts, key: str) -> list[Advice]:
    """Return the options of the adapter and the head.

    Args:
        frames: What is known about the frames.
        facts: What is known about the training.
        key: Key of the adapter.
    """
    # If it fits, a future patch is one token, and the past ones have about the same size.
    num_past = -(-frames.context // min(frames.horizon, frames.context))
    patch_size = -(-frames.context // num_past)
    sizes = [1]
    while len(CellPatches(frames.size, sizes[-1])) > FEW_PATCHES:
        sizes.append(2 * sizes[-1])

    def suffices(size: int) -> bool:
        patches = len(CellPatches(frames.size, size))
        per_place = num_past + -(-frames.horizon // patch_size)
        fitting = facts.epochs_within_limit(GRID_COST * patches * per_place)
        return patches <= MANY_PATCHES and fitting >= ENOUGH_EPOCHS

    cells = next((size for size in sizes if suffices(size)), sizes[-1])
    # A token reads as many cells beyond each side of its patch, and whether each one is known.
    while 2 * patch_size * (3 * cells) ** 2 > MAX_INPUTS and patch_size > 1:
        patch_size = -(-patch_size // 2)
    options = {"patch_size": patch_size, "patch.cells": cells}
    prefix = f"adapters.{key}"
    advice = [Advice(f"{prefix}.{name}", value, frames.about) for name, value in options.items()]
    best = min(frames.errors, key=frames.errors.__getitem__)
    names = {"last": "the last frame", "mean": "the mean of the read frames"}
    other = next(name for name in frames.errors if name != best)
    if math.isnan(frames.errors[best]):
        return advice
    # Equal errors are those of a single frame, or of frames that do not change.
    is_nearer = frames.errors[best] < frames.errors[other]
    reason = (
        f"{names[best]} is {'nearer' if is_nearer else 'as near'} to the next ones "
        f"{'than' if is_nearer else 'as'} {names[other]}, mean squared errors "
        f"{frames.errors[best]:.3g} and {frames.errors[other]:.3g}"
    )
    return [*advice, Advice("head.residual", best, reason)]
