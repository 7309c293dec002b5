"""Options that are chosen from the data, unless the user sets them (preset=auto).

The rules are few, and each is printed with its reason (docs/presets.md).
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch

from dxn.config.instantiate import build, completed
from dxn.config.values import assign, is_below, lookup, overriding
from dxn.core.randomness import evenly_spaced, spaced_rows
from dxn.core.tokens import Span, Tokens
from dxn.data.rows import FIT_ROWS, TARGET, Source
from dxn.presets.finetuning import MAX_TRAINED, Start, advise_finetuning, tokens_of
from dxn.presets.finetuning import MINUTES as MINUTES_OF_FINETUNING
from dxn.presets.grids import FEW as FEW_GRIDS
from dxn.presets.grids import TRAINING as GRIDS
from dxn.presets.grids import advise_frames, read_frames
from dxn.presets.pictures import OF_PARTS, advise_pictures
from dxn.presets.rules import (
    MUON,
    PER_TOKEN,
    Advice,
    Facts,
    advise_audio,
    advise_images,
    advise_series,
    advise_text,
    is_chosen,
)
from dxn.tasks import Task
from dxn.tasks.space import AnswerKind
from dxn.tokenize.base import Reader

if TYPE_CHECKING:
    from dxn.runs.filling import InitialWeights

AUTO = "auto"
# By modality, from some cells of the training split, which are not None. Others can be added.
RULES: dict[str, Callable[[Sequence[Any], Facts], list[Advice]]] = {
    "text": advise_text,
    "image": advise_images,
    "audio": advise_audio,
    "series": advise_series,
}
MAX_CELLS = 200  # of an input that a rule inspects
# Samples and tokens of the batch with which the speed of a backbone is measured, and repeats.
MEASURED = 16, 128
REPEATS = 3
SLOW = 0.25  # seconds of a step with one sample, of which more steps take too long
OVERHEAD = 1.3  # time of a step with embedding, head and optimizer, relative to the backbone's
# Samples that a training sees over all epochs. Fewer rows are repeated more often.
VIEWS = 200_000
JOINT_VIEWS = 500_000  # with several inputs, which must also learn how they belong together
WINDOW_VIEWS, MIN_WINDOW_EPOCHS = 30_000, 4  # windows of a forecast overlap
MAX_EPOCHS, MIN_EPOCHS = 100, 6
PATIENCE = 0.3  # of the epochs; the learning rate must have decayed before the training stops
FEW, SOME, MANY = 2_000, 5_000, 20_000  # rows for batch sizes; few rows are memorized soon
MINUTES, MANY_MINUTES = 5.0, 15.0
# With several inputs, batches are smaller if the time limit, by the measured speed of the backbone,
# has fewer steps than these. An input next to others has about so many tokens.
ENOUGH_STEPS, SMALL_BATCH, TOKENS_PER_INPUT = 2_500, 64, 20
CODEC_BATCH = 16  # each sample of a codec has hundreds of values to learn from
INPUT_DROPOUT = 0.3  # with several inputs, or several columns of a small table
# Options that can wait until a model of several inputs learns, by their name in once_learning.
WAITING = {
    "patience": "trainer.patience",
    "mixup": "trainer.mixup",
    "input_dropout": "loader.input_dropout",
}
SMALL_TABLE = 1_000  # rows of a table up to which one block with hidden cells is better
STRIDES = (2, 4, 8, 16, 32)  # of a stem, see `dxn.tokenize.patches.ConvStem`
ROTARY = "backbone.position.kind"
# What trainings of a kind have in common. `_training_advice` adds what depends on their rows.
FORECAST = {
    "trainer.ema_decay": 0.99,
    "backbone.depth": 2,
    "backbone.dropout": 0.3,
    "backbone.norm.final_norm": False,  # the level of a patch, which a norm removes, matters
    "head.dropout": 0.4,
}
CODEC = {"trainer.ema_decay": 0.99, "backbone.dropout": 0.0, MUON[0]: MUON[1]}
TABLE = {"backbone.depth": 2, "trainer.ema_decay": 0.99, "trainer.max_minutes": MINUTES}
SMALL_TABLE_OPTIONS = {
    "backbone.depth": 1,
    "backbone.dropout": 0.2,
    "batch_size": 32,
    "trainer.epochs": 40,
    "trainer.patience": 0,
    "trainer.precision": "float32",
}
JOINT = {
    "trainer.ema_decay": 0.998,
    "backbone.dropout": 0.0,
    "head.dropout": 0.0,
    "backbone.block.mlp": "swiglu",
    MUON[0]: MUON[1],
}


@dataclass(frozen=True)
class Situation:
    """What is known when the options of a training are chosen.

    Args:
        config: The configuration of the training.
        chosen: Dotted keys and groups that the user or the experiment set.
        task: The task.
        source: The data source.
        nodes: Key of the adapter of each input in the configuration, by input name.
        readers: Reader of each adapter, by adapter key in the configuration.
        device: Device of the training, whose speed is measured.
        trust: Top-level packages besides dxn whose code the configuration may use.
        weights: Checkpoints that the training starts from. None: random weights.
        members: Number of models that share the time limit.
        measured: The property `seconds`, if it has been measured already.
    """

    config: Mapping[str, Any]
    chosen: frozenset[str]
    task: Task
    source: Source
    nodes: Mapping[str, str]
    readers: Mapping[str, Reader]
    device: torch.device
    trust: Sequence[str] = ()
    weights: InitialWeights | None = None
    members: int = 1
    measured: float | None = None

    @cached_property
    def seconds(self) -> float:
        """The measured time of a training step of all weights, per row of the training split."""
        return seconds_per_row(self) if self.measured is None else self.measured

    @property
    def finetuning(self) -> Start:
        """What decides which published weights are trained."""
        task, weights, rows = self.task, self.weights, self.source.num_training_rows
        assert weights is not None
        _, growth = self.sized
        limit = self.finetuning_minutes
        return Start(
            rows,
            parameters=_parameters(self.config),
            writes=task.writes or task.target.source == "stream",
            has_backbone=weights.main is not None,
            epochs_within_limit=math.inf
            if limit is None
            else 60 * limit / (self.members * self.seconds * growth * rows),
            minutes=limit,
            is_kind_chosen=self.is_kind_chosen,
            finds_parts=task.answer_kind in OF_PARTS,
            # See `dxn.stacking.frozen`.
            starts_linear=self.config["baseline"] != "none" and self.source.stream is None,
        )

    @cached_property
    def sized(self) -> tuple[list[Advice], float]:
        """See `dxn.presets.pictures.advise_pictures`."""
        return advise_pictures(self)

    @property
    def finetuning_minutes(self) -> float | None:
        """The time limit of a training from published weights."""
        is_long = self.num_files > 1 or self.task.answer_kind in OF_PARTS
        return self.minutes(MANY_MINUTES if is_long else MINUTES_OF_FINETUNING)

    @property
    def is_kind_chosen(self) -> bool:
        """Whether the user chose which published weights are trained."""
        return any(is_below(key, ["finetune"]) for key in self.chosen)

    @property
    def has_rules(self) -> bool:
        """Whether there are rules for the task from random weights."""
        space = self.task.space
        is_codec = self.task.answer_kind is AnswerKind.CODES
        return is_codec or (space is not None and space.kind is not None)

    @property
    def num_files(self) -> int:
        """Number of inputs that are texts, images, sounds or other files."""
        return sum(not self.readers[key].tabular for key in self.nodes.values())

    @property
    def is_frozen(self) -> bool:
        """Whether no published weight is trained."""
        start, kind = self.finetuning, self.config["finetune"]
        if start.is_kind_chosen:
            return kind["freeze"] == "all" and not kind["lora_rank"]
        return not start.trains_all and not start.writes

    def minutes(self, default: float) -> float | None:
        """Return the time limit: that of the user, or the default of the preset."""
        limit = self.config["trainer"].get("max_minutes")
        return limit if is_chosen("trainer.max_minutes", self.chosen) else default


def choose_options(situation: Situation) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration with the options of the preset, and lines to print.

    Nothing is changed with preset=plain, with pretraining, for a task that has no preset, and with
    the weights of a model of dxn.
    """
    config, chosen = situation.config, situation.chosen
    source, trust, weights = situation.source, situation.trust, situation.weights
    values = copy.deepcopy(dict(config))
    has_preset = situation.has_rules if weights is None else weights.are_published
    is_used = config["preset"] == AUTO and not config.get("pretrain") and has_preset
    if not is_used or not source.splits.get("train"):
        return values, []
    used: list[Advice] = []
    advised: dict[str, Any] = {}
    advice_of = _all_advice if weights is None else _finetuning_advice
    for advice in advice_of(situation):
        # The rate that the user chose is the highest one.
        if advice.key == "optimizer.new_lr" and is_chosen("optimizer.lr", chosen):
            continue
        exists, old = lookup(values, advice.key)
        is_free = not is_chosen(advice.key, chosen) and overriding(values, advice.key) is None
        if advice.key == "batch_size":  # which is the default of the other option
            is_free = is_free and not is_chosen("trainer.batch_size", chosen)
        if advice.key.endswith(".stem"):
            is_free = is_free and _fits_stem(advice.key, values, chosen)
        if advice.follows:
            is_free = is_free and lookup(values, advice.follows)[1] == advised[advice.follows]
        advised[advice.key] = advice.value
        if exists and old != advice.value and is_free:
            assign(values, advice.key, advice.value)
            used.append(advice)
    if used:  # another optimizer has other arguments
        values = completed(values, trust)
    # Interpolations have been resolved already.
    if not is_chosen("trainer.batch_size", chosen):
        values["trainer"]["batch_size"] = values["batch_size"]
    reasons = []
    for reason, group in groupby(used, key=lambda advice: advice.reason):
        options = []
        for advice in group:
            value = str(advice.value).lower() if isinstance(advice.value, bool) else advice.value
            if advice.key.endswith("._target_"):
                # The options of a group have the names of their functions.
                value = value.rpartition(".")[2]
            options.append(f"{advice.key.removesuffix('._target_')}={value}")
        reasons.append(f"preset: {' '.join(options)} ({reason})")
    return values, reasons


def _fits_stem(key: str, values: Mapping[str, Any], chosen: frozenset[str]) -> bool:
    """Whether convolutions with a stride of 2 make tokens of the size that the user has set."""
    sizes = [key.removesuffix("stem") + name for name in ("patch_size", "frame_size")]
    return all(lookup(values, s)[1] in STRIDES for s in sizes if is_chosen(s, chosen))


def _all_advice(situation: Situation, minutes: float | None = None) -> Iterator[Advice]:
    """Yield the options of a training from random weights, besides those of frozen encoders.

    Args:
        situation: What is known.
        minutes: The time limit. Default: it depends on the rows.
    """
    config, task, source = situation.config, situation.task, situation.source
    nodes, readers = situation.nodes, situation.readers
    train = source.splits["train"]
    kind = task.answer_kind
    frames = None
    if kind is AnswerKind.QUANTILES:
        from dxn.tasks.forecast.task import MANY_WINDOWS

        series = [name for name in nodes if readers[nodes[name]].steps and name in train.cells]
        if series and TARGET in train.cells:
            frames = read_frames(train.cells[series[0]], train.cells[TARGET])
        if frames is None and len(train) < MANY_WINDOWS:
            return
    num_files = situation.num_files
    sample = train.take(spaced_rows(len(train), FIT_ROWS)) if len(train) > FIT_ROWS else train
    marked = None
    if kind in OF_PARTS:
        marked = task.marked(sample.cells.get(TARGET, ()))
        if marked is None:
            return
    rows = source.num_training_rows
    has_many_values = marked is not None or kind is AnswerKind.CODES
    many = rows >= MANY or num_files > 1 or has_many_values
    minutes = minutes or (MANY_MINUTES if many else MINUTES)
    limit = situation.minutes(minutes)

    @cache
    def speed() -> float:
        return seconds_per_token(config, situation.device, situation.trust)

    def epochs_within_limit(tokens: float) -> float:
        if limit is None:
            return math.inf
        return 60 * limit / (OVERHEAD * speed() * tokens * rows)

    facts = Facts(
        rows,
        len(nodes),
        num_files,
        kind=kind,
        object_size=None if marked is None else marked.size,
        num_classes=0 if marked is None else marked.num_classes,
        minutes=minutes,
        epochs_within_limit=epochs_within_limit,
        has_frames=frames is not None,
    )
    is_validated = bool(source.splits.get("validation"))
    for advice in _training_advice(facts, situation.chosen, is_validated=is_validated):
        if advice.key != ROTARY or _can_rotate(config):
            yield advice
    for key in dict.fromkeys(nodes.values()):
        names = [name for name in nodes if nodes[name] == key and name in train.cells]
        cells = [cell for name in names for cell in sample.cells[name]]
        present = [cell for cell in cells if cell is not None]
        rules = RULES.get(readers[key].modality)
        is_encoder = "backbone" in config["adapters"][key]
        if frames is not None and readers[key].steps:
            yield from advise_frames(frames, facts, key)
            continue
        if present and rules is not None and not is_encoder:
            shown = list(evenly_spaced(present, MAX_CELLS))
            yield from rules(shown, replace(facts, prefix=f"adapters.{key}"))


def _finetuning_advice(situation: Situation) -> Iterator[Advice]:
    """Yield the options of a training from published weights."""
    config, start = situation.config, situation.finetuning
    yield from situation.sized[0]
    # Otherwise the adapters of a new backbone have weights, and fixed options.
    has_encoders = any("backbone" in config["adapters"][key] for key in situation.nodes.values())
    is_new = has_encoders and situation.has_rules
    if start.has_backbone or not situation.is_frozen or not is_new:
        yield from advise_finetuning(start)
        return
    # All that is trained is new.
    yield from _all_advice(situation, start.minutes)
    if not start.is_kind_chosen:
        yield Advice("finetune.freeze", "all", start.reason)


def seconds_per_row(situation: Situation) -> float:
    """Measure the time of a training step of all weights, per row of the training split.

    A large model is not measured: infinity.
    """
    config, source, device, trust = (
        situation.config,
        situation.source,
        situation.device,
        situation.trust,
    )
    if _parameters(config) > MAX_TRAINED:
        return math.inf
    train = source.splits["train"]
    sample = train.take(spaced_rows(len(train), MAX_CELLS)) if len(train) > MAX_CELLS else train
    of_backbone, of_encoders = 0.0, 0.0  # tokens of a row, and seconds
    speeds: dict[str, float] = {}
    for name, key in situation.nodes.items():
        node = config["adapters"][key]
        cells = [cell for cell in sample.cells.get(name, ()) if cell is not None]
        options = node.get("adapter") or node
        modality = situation.readers[key].modality
        tokens = tokens_of(modality, options, cells) if cells else 0.0
        of_backbone += tokens
        if node.get("backbone"):  # an adapter with an encoder of its own
            if key not in speeds:
                speeds[key] = seconds_per_token(node, device, trust, dim=options["dim"])
            of_encoders += speeds[key] * tokens
    of_encoders += seconds_per_token(config, device, trust) * of_backbone
    return max(OVERHEAD * of_encoders, 1e-12)


def _can_rotate(config: Mapping[str, Any]) -> bool:
    """Whether the heads of the backbone have an even width, as rotary positions need."""
    backbone = config["backbone"]
    width = (backbone.get("block") or {}).get("head_dim")
    return (width or config["dim"] // backbone.get("num_heads", 1)) % 2 == 0


def _parameters(config: Mapping[str, Any]) -> int:
    """Return the number of parameters of the blocks of the backbone, and of those of encoders."""
    encoders = [node for node in config["adapters"].values() if node.get("backbone")]
    parts = [(config["dim"], config), *((node["adapter"]["dim"], node) for node in encoders)]
    # Of the matrices of the blocks: four of the attention, and eight of the layer after it.
    return sum(12 * dim**2 * part["backbone"].get("depth", 0) for dim, part in parts)


def _training_advice(
    facts: Facts, chosen: frozenset[str], *, is_validated: bool
) -> Iterator[Advice]:
    """Yield the options that depend on the number of rows and inputs only."""
    rows = facts.rows
    about = f"{rows:,} training rows"
    views, fewest = VIEWS, MIN_EPOCHS
    batch_size = 32 if rows < FEW else 128 if rows >= MANY else 64
    minutes: float | None = facts.minutes
    is_joint = False
    if facts.has_frames:
        batch_size = 16 if rows < FEW_GRIDS else 32
        views, fewest, options = WINDOW_VIEWS, MIN_WINDOW_EPOCHS, GRIDS
    elif facts.kind is AnswerKind.QUANTILES:
        views, fewest, batch_size, options = WINDOW_VIEWS, MIN_WINDOW_EPOCHS, 64, FORECAST
    elif facts.kind is AnswerKind.CODES:
        batch_size, options = CODEC_BATCH, CODEC
    elif facts.kind in PER_TOKEN:
        options = {"trainer.ema_decay": 0.99, ROTARY: "rotary"}
    elif facts.object_size is not None:
        # A picture has several objects, so that fewer pictures make a batch.
        is_picture = len(facts.object_size) == 2
        batch_size = 8 if rows < FEW and is_picture else batch_size
        options = {"trainer.ema_decay": 0.99}
    elif not facts.num_files:
        columns = "column" if facts.num_inputs == 1 else "columns"
        about = f"{about} of {facts.num_inputs} {columns}"
        options = TABLE
        if rows <= SMALL_TABLE:
            minutes, options = None, SMALL_TABLE_OPTIONS
            if facts.num_inputs > 1:
                # Hidden cells, so that no single column is memorized.
                options = {**options, "loader.input_dropout": INPUT_DROPOUT}
    elif facts.num_files == 1:
        dropout = 0.0 if rows >= MANY else 0.2
        options = {"trainer.ema_decay": 0.99, "backbone.dropout": dropout}
    else:
        is_joint, views, minutes, options = True, JOINT_VIEWS, None, {}
        batch_size = 128 if rows >= SOME else batch_size
        if batch_size > SMALL_BATCH:  # otherwise the speed is not measured
            samples = facts.epochs_within_limit(TOKENS_PER_INPUT * facts.num_inputs) * rows
            # The smaller size is the default of the option, so nothing is printed.
            batch_size = batch_size if samples >= ENOUGH_STEPS * batch_size else SMALL_BATCH
    schedule = {
        "trainer.epochs": min(max(math.ceil(views / rows), fewest), MAX_EPOCHS),
        "trainer.patience": PATIENCE,
        "batch_size": batch_size,
    }
    if minutes is not None:
        schedule["trainer.max_minutes"] = minutes
    for key, value in {**schedule, **options}.items():
        yield Advice(key, value, about)
    if not is_joint:
        return
    inputs = f"{facts.num_files} inputs of texts or files"
    yield Advice("trainer.max_minutes", facts.minutes, inputs)
    # A model memorizes few rows before the validation loss shows it, so with few rows only patience
    # waits. It would end the training of a model that is at chance for many epochs. A model of many
    # rows that is still at chance must combine its inputs, and needs all of them as they are. One
    # that learns early can rely on one input, and would ignore the others and memorize the rows.
    if is_validated:
        names = ["patience"] if rows < FEW else list(WAITING)
        # An option of the user has its full effect.
        names = [name for name in names if not is_chosen(WAITING[name], chosen)]
        if names:
            yield Advice("trainer.once_learning", names, inputs)
    if is_validated or rows < FEW:
        yield Advice("loader.input_dropout", INPUT_DROPOUT, about if rows < FEW else inputs)
        yield Advice("trainer.mixup", 1.0, about if rows < FEW else inputs)
    for key, value in JOINT.items():
        yield Advice(key, value, inputs)


def seconds_per_token(
    config: Mapping[str, Any],
    device: torch.device,
    trust: Sequence[str] = (),
    *,
    dim: int | None = None,
) -> float:
    """Measure the time of a training step of the backbone per token of a batch.

    Args:
        config: The configuration, or the node of an adapter, with the key backbone.
        device: Device of the training.
        trust: Top-level packages besides dxn whose code the configuration may use.
        dim: Width of a token. Default: the key dim of the configuration.
    """
    size, length = MEASURED

    def seconds_of_step(size: int) -> float:
        x = torch.randn(size, length, dim or config["dim"], device=device)
        mask = torch.ones(size, length, dtype=torch.bool, device=device)
        tokens = Tokens(x, mask, (Span("x", "x", 0, length, torch.zeros(size, length, 1)),))
        start = time.perf_counter()
        backbone(tokens).x.sum().backward()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return time.perf_counter() - start

    # The weights of the model must not depend on this measurement.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        backbone = build(config["backbone"], key="backbone", trust=trust).to(device)
        seconds_of_step(1)  # the first step takes longer
        seconds = seconds_of_step(1)
        if seconds > SLOW:
            return seconds / length
        times = [seconds_of_step(size) for _ in range(REPEATS)]
    return statistics.median(times) / (size * length)
