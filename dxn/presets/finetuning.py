"""Options for a training that starts from public weights (preset=auto).

benchmarks/studies/presets.md lists the rules, and the measurements behind them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dxn.presets.rules import Advice
from dxn.tokenize.base import BadMedia
from dxn.tokenize.text.scripts import count_words

# Samples that a training sees over all epochs: published weights need fewer than random ones.
VIEWS = 60_000
MIN_EPOCHS, MAX_EPOCHS = 3, 30
MINUTES = 10.0
PATIENCE = 0.3
FEW = 2_000  # rows up to which batches are small
# Learning rates. All weights: as in the appendix of BERT (arXiv:1810.04805); published language
# models change less. New weights, such as those of a head or of low-rank updates, change more.
LR, WRITER_LR = 5e-5, 2e-5
NEW_LR, NEW_BACKBONE_LR = 5e-4, 1e-3
WARMUP, WEIGHT_DECAY, LAYER_DECAY = 0.1, 0.01, 0.9
# Epochs of all weights that must fit into the time limit: one, because the head starts from a ridge
# regression, and more for a random head, above all one that finds objects or classes of pixels.
# Otherwise the published weights stay as they are. Only large models, and those that write, which
# have no new weights, get low-rank updates. These need less memory than all weights, and two thirds
# of the time.
ENOUGH_EPOCHS, ENOUGH_RANDOM_EPOCHS, ENOUGH_EPOCHS_OF_PARTS = 1.0, 3.0, 10.0
LORA_RANK = 16
# Columns of an encoded input, by modality, for tasks that need no place in it. Their number decides
# how long a training takes. Others, such as texts, keep all of them.
MAX_COLUMNS = {"image": 16, "video": 64, "audio": 64, "series": 64}
# Parameters from which the state of an optimizer for all of them needs too much memory: 16 bytes
# for each, with its gradient.
MAX_TRAINED = 500_000_000
# Subwords of a word, and tokens of other inputs whose number is not known.
SUBWORDS = 1.4
UNKNOWN_TOKENS = 200
TOKENS_PER_SECOND = 50  # of Whisper's encoder


@dataclass(frozen=True)
class Start:
    """What is known about the published weights of a training.

    Args:
        rows: Number of training rows.
        parameters: Number of parameters of the blocks.
        writes: Whether the model writes texts.
        has_backbone: Whether the backbone has published weights. Otherwise only encoders of single
            inputs have them.
        epochs_within_limit: Epochs of all weights that fit into the time limit, from the measured
            speed.
        minutes: The time limit. None: there is none.
        is_kind_chosen: Whether the user chose which weights are trained.
        finds_parts: Whether the answers are objects or classes of pixels, whose new head takes many
            epochs.
        starts_linear: Whether a new head starts from a ridge regression.
    """

    rows: int
    parameters: int
    writes: bool
    has_backbone: bool
    epochs_within_limit: float
    minutes: float | None
    is_kind_chosen: bool = False
    finds_parts: bool = False
    starts_linear: bool = True

    @property
    def trains_all(self) -> bool:
        """Whether all weights are trained, for which there must be time and memory.

        Encoders that a new backbone reads memorize the rows before it has learned to read them.
        """
        is_read_alone = self.has_backbone or self.finds_parts
        return is_read_alone and self.has_time and self.parameters <= MAX_TRAINED

    @property
    def has_time(self) -> bool:
        """Whether enough epochs of all weights fit into the time limit."""
        is_slow = self.writes or not self.starts_linear
        enough = ENOUGH_RANDOM_EPOCHS if is_slow else ENOUGH_EPOCHS
        return self.epochs_within_limit >= (ENOUGH_EPOCHS_OF_PARTS if self.finds_parts else enough)

    @property
    def reason(self) -> str:
        """Why all weights are trained, or not."""
        if self.parameters > MAX_TRAINED:
            return f"{self.parameters:,} parameters"
        if self.has_time and not self.trains_all:
            return "a new backbone reads the tokens of the encoders"
        if self.minutes is None or self.epochs_within_limit >= self.epochs:
            return "all epochs fit into the time limit"
        fitting = f"{self.epochs_within_limit:.2g} epochs of all weights fit into"
        return f"{fitting} {self.minutes:g} minutes"

    @property
    def epochs(self) -> int:
        """Number of epochs without a time limit."""
        return min(max(math.ceil(VIEWS / self.rows), MIN_EPOCHS), MAX_EPOCHS)


def advise_finetuning(start: Start) -> Iterator[Advice]:
    """Yield the options of a training from published weights."""
    about = f"published weights, {start.rows:,} training rows"
    options: dict[str, Any] = {
        "trainer.epochs": start.epochs,
        "trainer.patience": PATIENCE,
        "trainer.max_minutes": start.minutes,
        "batch_size": _batch_size(start),
        "scheduler.warmup": WARMUP,
        "optimizer.weight_decay": WEIGHT_DECAY,
        "optimizer.new_lr": NEW_LR if start.has_backbone else NEW_BACKBONE_LR,
    }
    for key, value in options.items():
        if value is not None:
            yield Advice(key, value, about)
    if start.is_kind_chosen or start.trains_all:
        reason = about if start.is_kind_chosen else start.reason
        yield Advice("optimizer.lr", WRITER_LR if start.writes else LR, reason)
        yield Advice("optimizer.layer_decay", LAYER_DECAY, reason)
        return
    yield Advice("finetune.freeze", "all", start.reason)
    if start.parameters > MAX_TRAINED or start.writes:
        # The matrices of a new backbone are trained themselves.
        target = "all-linear" if start.has_backbone else "adapters.*.blocks.*"
        yield Advice("finetune.lora_rank", LORA_RANK, start.reason)
        yield Advice("finetune.lora_targets", [target], start.reason)


def _batch_size(start: Start) -> int:
    if start.rows >= FEW:
        return 32
    # A picture has several objects, or many pixels.
    return 8 if start.finds_parts else 16


def tokens_of(modality: str, node: Mapping[str, Any], cells: Sequence[Any]) -> float:
    """Estimate the mean number of tokens of an input.

    Args:
        modality: Its modality.
        node: Options of its adapter.
        cells: Some of its cells.
    """
    if modality == "text":
        texts = [cell if isinstance(cell, str) else " ".join(map(str, cell)) for cell in cells]
        limit = node.get("max_len") or math.inf
        return statistics.mean(min(SUBWORDS * count_words(text) + 2, limit) for text in texts)
    if modality == "image":
        size = node.get("image_size")
        sides = size if isinstance(size, Sequence) else [size, size]
        patch = node["patch_size"]
        lengths = patch if isinstance(patch, Sequence) else [patch, patch]
        # Null: the images are not resized.
        known = [(side, length) for side, length in zip(sides, lengths, strict=True) if side]
        if len(known) == len(sides):
            return math.prod(side / length for side, length in known)
    if modality == "audio":
        from dxn.tokenize.audio.reader import audio_seconds

        seconds: list[float] = []
        for cell in cells:
            try:
                seconds.append(audio_seconds(cell) or 0.0)
            except (BadMedia, ValueError):  # reported when the rows are read
                continue
        if seconds:
            return TOKENS_PER_SECOND * statistics.mean(seconds)
    return UNKNOWN_TOKENS
