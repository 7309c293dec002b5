"""Prepare a training: decide its plan, build each part, and check them before anything is written.

`prepare` is read from top to bottom. Its six steps are in the order in which a wrong command is
noticed: options, data, decisions, parts, tokenizers and labels, model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dxn.config.instantiate import build
from dxn.config.settings import Settings, merge_overrides
from dxn.config.values import is_below, refuse_without_effect
from dxn.core.display import print_line
from dxn.core.errors import UserError
from dxn.core.files import CHECKPOINTS, new_folder
from dxn.core.processes import from_all, from_first, launch, processes
from dxn.core.randomness import named_draws
from dxn.core.results import DataFacts, Truncation
from dxn.core.runtime import release_memory
from dxn.data.dataset import Opened, Samples
from dxn.data.inspect.fingerprint import differences, fingerprint
from dxn.data.inspect.quality import find_problems
from dxn.data.loader import LoaderOptions
from dxn.data.rows import Source
from dxn.data.token_windows import make_samples
from dxn.models.model import MultimodalModel, count_parameters
from dxn.presets.pictures import notes_on_crops
from dxn.presets.preset import Situation, choose_options
from dxn.runs.build import (
    build_adapters,
    build_model,
    find_formats,
    fit_adapters,
    fitted_files,
    open_splits,
    read_fitted,
    use_files,
)
from dxn.runs.decide import (
    PARTS,
    assign_inputs,
    build_parts,
    check_combinations,
    check_unvalidated,
    decide_task,
    open_source,
    print_paths,
    readers_of,
    with_written_inputs,
    without_target,
)
from dxn.runs.encoding import encoded_once
from dxn.runs.folder import locked, refuse_other_run, run_folder
from dxn.runs.monitoring import check_metrics
from dxn.runs.plan import (
    FOLDER,
    Plan,
    SplitFingerprint,
    check_config,
    check_data,
    read_plan,
    write_changes,
    write_plan,
)
from dxn.runs.pretrained import start_pretrained
from dxn.runs.record import count_classes, data_name, describe, describe_start, input_lines
from dxn.tasks import Task
from dxn.tasks.metric import check_own_metrics
from dxn.tasks.space import WITH_BASELINE
from dxn.tokenize.base import Adapter, Tokenizer
from dxn.training.checkpoint import load_frozen
from dxn.training.finetune import Finetune
from dxn.training.limit import Limit
from dxn.training.loop import Schedule
from dxn.training.trainer import Trainer

if TYPE_CHECKING:
    from dxn.runs.filling import InitialWeights
    from dxn.stacking.frozen import Frozen


# Share of the time limit that a simple model on published weights may take.
FROZEN_SHARE = 0.15


@dataclass(frozen=True)
class Training:
    """A training that is ready to start.

    Args:
        settings: The settings, with the options of the plan.
        plan: What settings, weights and data determine.
        folder: The run folder.
        trainer: The trainer.
        source: The data set.
        splits: Its splits, with all files read and all targets parsed.
        task: The fitted task.
        pretraining: The task of pretraining. None: no pretraining.
        model: The model, with initial weights if there are any.
        tokenizers: The tokenizer of each input, by input name.
        loader: Options for loading samples.
        finetune: Freezes weights and adds LoRA weights.
        optimizer: Creates the optimizer of the model.
        schedule: Maps the progress of the training to the multiplier of the learning rate.
        truncations: Inputs of the training split that are truncated, by input name.
        warnings: Problems of the data that do not stop the training.
    """

    settings: Settings
    plan: Plan
    folder: Path
    trainer: Trainer
    source: Source
    splits: Mapping[str, Opened]
    task: Task
    pretraining: Task | None
    model: MultimodalModel
    tokenizers: Mapping[str, Tokenizer]
    loader: LoaderOptions
    finetune: Finetune
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    schedule: Schedule
    truncations: Mapping[str, Truncation]
    warnings: Sequence[str] = ()

    @property
    def overrides(self) -> tuple[str, ...]:
        """The options of the training as the user typed them, with those of resuming it."""
        if not self.settings.is_resumed:
            return self.settings.overrides
        saved = Settings.load(self.folder, self.settings.trust)
        return merge_overrides(saved.overrides, self.settings.overrides)

    @cached_property
    def facts(self) -> DataFacts:
        """What the record of the training says about the data."""
        targets = {}
        if self.task.is_supervised:
            targets = {name: split.targets or () for name, split in self.splits.items()}
        stream = self.source.stream
        streamed = {} if stream is None else {"train": stream.num_rows}
        return DataFacts(
            name=data_name(self.plan.config["data"], self.source.name),
            rows={name: len(split) for name, split in self.splits.items()} | streamed,
            skipped={name: split.skipped for name, split in self.splits.items()},
            missing={name: dict(split.missing) for name, split in self.splits.items()},
            truncated=dict(self.truncations),
            inputs=input_lines(self.plan.inputs),
            targets={name: self.task.target.describe(values) for name, values in targets.items()},
            classes=count_classes(self.task, targets),
            warnings=list(self.warnings),
        )

    @property
    def starts_trained(self) -> bool:
        """Whether the user asked for a model whose weights are not all trained from random ones."""
        # Not the values: the preset and `pretrained`, which has a default, set the same options.
        words = (word.lstrip("+~").partition("=")[0] for word in self.overrides)
        asked = [*words, *self.settings.experiment]
        return any(is_below(key, ("weights", "pretrain", "finetune")) for key in asked)

    @property
    def compares_frozen(self) -> bool:
        """Whether a simple model on published weights can stand beside the trained one."""
        is_wanted = self.settings.values["baseline"] != "none" and not self.loader.overfit
        return is_wanted and self.pretraining is None and self.source.stream is None

    def frozen(self) -> Frozen | None:
        """Return a simple model on the vectors of published weights."""
        from dxn.runs.evaluation.subsets import default_split
        from dxn.stacking.frozen import frozen_model

        train, evaluated = (
            make_samples(self.task, self.splits[split], self.tokenizers, seed=self.trainer.seed)
            for split in ("train", default_split(self.splits))
        )
        minutes = self.trainer.max_minutes
        return frozen_model(
            self.model.to(self.trainer.hardware.device),
            self.task,
            train,
            evaluated,
            batch_size=2 * self.trainer.batch_size,
            seconds=math.inf if minutes is None else FROZEN_SHARE * 60 * minutes,
        )

    def limit(self, before: float, members: int = 1) -> Limit:
        """Return the time limit of the training, and what of it the other parts need.

        Args:
            before: Seconds until now.
            members: Number of models of the ensemble, which is evaluated like each of them.
        """
        from dxn.runs.evaluation.subsets import default_split, evaluated_groups, subsets

        validation = self.splits.get("validation", ())
        evaluated = self.splits[default_split(self.splits)]
        readers = {name: self.model.adapter(name).reader for name in self.model.inputs}
        groups = evaluated_groups(readers, tuple(readers))
        passes = len(subsets(tuple(readers), self.task.min_inputs, groups))
        passes *= 2 if members > 1 else 1
        choice = self.settings.values["baseline"]
        is_wanted = choice == "always" or (choice == "auto" and not self.starts_trained)
        return Limit(
            self.trainer.max_minutes,
            before,
            baseline=is_wanted
            and not self.loader.overfit
            and self.task.answer_kind in WITH_BASELINE,
            evaluations=passes * len(evaluated) / len(validation) if validation else 0.0,
            passes=passes,
        )

    def training_samples(self, task: Task) -> Samples:
        """Return the augmented samples of the training split for a task.

        With loader.overfit, these are a few samples, without augmentation.
        """
        loader = self.loader
        options: dict[str, Any] = {
            "task": task,
            "augment": not loader.overfit,
            "input_dropout": loader.input_dropout,
            "repeats": loader.repeats,
            "seed": self.trainer.seed,
        }
        if self.source.stream is not None:
            from dxn.data.streaming import StreamedSamples  # most data sets are in memory

            train = self.splits["train"]
            return StreamedSamples(train, self.tokenizers, source=self.source, **options)
        samples = make_samples(opened=self.splits["train"], tokenizers=self.tokenizers, **options)
        if loader.overfit:
            samples.keep(loader.overfit)
        return samples

    def validation_samples(self, task: Task, *, values: bool = False) -> Samples | None:
        """Return the samples that select the best epoch; None if there is no validation split.

        Args:
            task: The task that encodes the targets.
            values: Whether they have values beside the output vectors of encoders.
        """
        # Overfitting shows whether the model can memorize, so it is validated on what it learns.
        split = "train" if self.loader.overfit else "validation"
        if split not in self.splits:
            return None
        opened = self.splits[split].with_values if values else self.splits[split]
        samples = make_samples(task, opened, self.tokenizers, seed=self.trainer.seed)
        if self.loader.overfit:
            samples.keep(self.loader.overfit)
        return samples


def prepare(
    settings: Settings,
    device: torch.device,
    stack: ExitStack,
    *,
    members: int = 1,
    fitted_from: Path | None = None,
) -> Training:
    """Plan a training, build all parts, and only then create the run folder.

    Args:
        settings: The settings.
        device: Device of the training in this process.
        stack: Receives the lock of the run folder, which is held until the stack is closed.
        members: Number of models that are trained one after the other, and share the time limit.
        fitted_from: Run folder whose tokenizers and labels are used. Default: new ones are fitted.

    Raises:
        UserError: If the settings, the data or the weights cannot be used.
    """
    trust = settings.trust
    rank, num_processes = processes()
    # 1. The options before the data is known. A run that continues takes its weights from its own
    # checkpoint, and its saved configuration contains everything that was decided at its start.
    old = weights = batch_size = seconds = None
    if settings.is_resumed:
        fitted_from = Path(settings.values["resume"]["run"])
        stack.enter_context(locked(fitted_from, main=rank == 0))
        old = read_plan(fitted_from)
        batch_size = check_config(old, settings, num_processes)
        asked = settings.values
    else:
        asked, weights = _options_of_weights(settings)
    options = asked
    if old is not None and asked["trainer"]["precision"] == "auto":
        # The precision that the run measured when it started.
        options = {**asked, "trainer": {**asked["trainer"], "precision": old.precision}}
    parts = build_parts(options, trust, ensemble=members)

    # 2. The data, which determines the task and the inputs.
    if old is not None:
        print_paths(asked["data"])
    readers = readers_of(asked, trust)
    source = open_source(asked, readers, parts["head"], trust)
    task, head_options, notes = decide_task(parts["head"], asked, source, readers, trust)
    if not task.is_supervised:
        source = without_target(source)
    inputs, option_keys = assign_inputs(asked, source.inputs, readers, source.column)
    is_free = old is None and weights is None and not asked["pretrain"]
    if is_free and fitted_from is not None:
        # The members of an ensemble start from what the first one started from.
        first = read_plan(fitted_from)
        is_free, seconds = bool(first.loaded), first.seconds
    if old is None and not is_free:
        asked = {**asked, "pretrained": "none"}
    elif old is None and source.splits.get("train"):
        new = replace(settings, values=asked)
        start = start_pretrained(
            new,
            task,
            source,
            inputs,
            option_keys,
            readers,
            device,
            members=members,
            seconds=seconds,
        )
        asked, weights, seconds = start.config, start.weights, start.seconds
        for line in start.lines:
            print_line(line)
        refuse_without_effect(asked, settings.overrides)
        if weights is not None:
            # The checkpoints determine options of the adapters and of the head.
            readers = readers_of(asked, trust)
            head = build(asked["head"], key="head", trust=trust)
            task, head_options, notes = decide_task(head, asked, source, readers, trust)
            inputs, option_keys = assign_inputs(asked, source.inputs, readers, source.column)
    checkpoints = [] if old is None else old.start
    if weights is not None:
        checkpoints = from_first(partial(describe_start, asked, weights))
        weights = weights.by_adapter(option_keys)
    if not source.splits.get("validation") and not asked["loader"]["overfit"]:
        check_unvalidated(asked)

    # 3. The options that the preset chooses for this data.
    config, lines = {**asked, "head": head_options}, list[str]()
    if old is None:
        in_use = {name: option_keys[spec.adapter] for name, spec in inputs.items()}
        # The preset measures the speed of this machine, and the processes can be on several.
        config, lines = from_first(
            lambda: choose_options(
                Situation(
                    config,
                    settings.chosen,
                    task,
                    source,
                    in_use,
                    readers,
                    device,
                    trust,
                    weights=weights,
                    members=members,
                    measured=seconds,
                )
            )
        )
    used = {key: readers[key] for key in dict.fromkeys(option_keys.values())}
    notes += notes_on_crops(config, task.answer_kind, used, settings.values["adapters"])
    # Again, because the targets can choose the task, and the preset other options.
    check_combinations(config, task, trust, ensemble=members)
    minutes = config["trainer"].get("max_minutes")
    if old is None and members > 1 and minutes is not None:
        config["trainer"] = {**config["trainer"], "max_minutes": minutes / members}

    # 4. The parts whose options the preset has chosen, and the plan.
    if config["head"] != head_options:
        task = build(config["head"], key="head", trust=trust)
    for name in PARTS:
        if config[name] != asked[name]:
            parts[name] = build(config[name], key=name, trust=trust)
    trainer: Trainer = parts["trainer"]
    pretraining: Task | None = parts["pretrain"]
    if task.is_supervised:
        targets, _, origins = source.targets()
        notes += task.target.find_format(targets, origins)
    name = str(config["name"] or source.name or source.target or "run")
    started = launch()
    plan = Plan(
        config=config,
        name=name,
        inputs=inputs,
        nodes=option_keys,
        target=source.target if task.is_supervised else None,
        layout=None if source.layout is None else dict(source.layout),
        precision=trainer.hardware.precision,
        batch_size=batch_size or trainer.batch_size * num_processes,
        start=checkpoints,
        launch=old.launch if old is not None else "" if started is None else started.id,
    )
    plan.model.check_limits()
    # Each process has another time, and the time of the first one names the folder.
    folder = from_first(lambda: run_folder(config, name))

    # 5. The tokenizers and the labels, and everything that is wrong in the data.
    adapters = build_adapters(plan.model.adapters, trust, seed=config["seed"])
    if weights is not None:
        weights.prepare(adapters, task)
    # Training a tokenizer again can give another one: ties of a unigram model are broken by the
    # order of a hash table.
    if fitted_from is not None:
        read_fitted(fitted_from / FOLDER, adapters, task, config["seed"])
    # After the labels have been read, which contain the metric that was monitored before.
    _use_metrics(task, trainer, settings)
    by_input = {name: adapters[key] for name, key in plan.model.keys.items()}
    tokenizers = {name: adapter.tokenizer for name, adapter in by_input.items()}
    for note in find_formats(adapters, inputs, source):
        print_line(f"note: {note}")
    release_memory()  # a table needs more memory while it is read
    splits = open_splits(
        source, tokenizers, task, loader=parts["loader"], batch_tokens=trainer.batch_tokens
    )
    fit = partial(_fit, plan, splits["train"], adapters, task, is_fitted=fitted_from is not None)
    if fitted_from is not None:
        fit()
    else:
        # Two trainings of a tokenizer can give two tokenizers.
        files = from_first(fit)
        if rank:
            use_files(files, adapters, task, config["seed"])
            task.target.bind(by_input)
    if pretraining is not None:
        pretraining.target.bind(by_input)
    fingerprints = fingerprint(splits)
    if num_processes > 1:
        _check_same(fingerprints)
    if old is not None:
        check_data(old, fingerprints, settings)
    truncations = describe(source, splits, task, plan, tokenizers, notes)
    release_memory()  # that of the fingerprints, because finding problems needs as much
    warnings = [problem.reason for problem in find_problems(source, splits, task)]
    for line in [*(f"warning: {warning}" for warning in warnings), *lines]:
        print_line(line)

    # 6. The model.
    model = build_model(plan.model, task, adapters, trust=trust, seed=config["seed"])
    loaded = [] if old is None else old.loaded
    if weights is not None:
        for notice in weights.fill(model, task):
            print_line(notice)
        # A checkpoint can contain other statistics of the inputs than those of the data.
        task.target.bind({name: model.adapter(name) for name in model.inputs})
        loaded = sorted(weights.loaded(model, task))
    model.loaded = frozenset(loaded)
    data = {name: SplitFingerprint(**content) for name, content in fingerprints.items()}
    run = Training(
        settings=replace(settings, values=config),
        plan=plan.model_copy(
            update={
                "data": data,
                "loaded": loaded,
                "seconds": seconds if old is None else old.seconds,
                "frozen": {} if old is None else old.frozen,
            }
        ),
        folder=folder,
        trainer=trainer,
        source=source,
        splits=splits,
        task=task,
        pretraining=pretraining,
        model=model,
        # The model's own adapters, because loading weights can replace statistics of its inputs.
        tokenizers={name: model.adapter(name).tokenizer for name in model.inputs},
        loader=parts["loader"],
        finetune=parts["finetune"],
        optimizer=parts["optimizer"],
        schedule=parts["scheduler"],
        truncations=truncations,
        warnings=warnings,
    )
    # Pretraining trains all weights. The fine-tuning options are for the training after it, but a
    # wrong one should be reported before.
    run_finetune(run, model if pretraining is None else copy.deepcopy(model))
    # Without the weights of the encoder, a training that continues encodes the values each time.
    if pretraining is None and (old is None or load_frozen(run.folder / CHECKPOINTS, model)):
        run = replace(run, splits=encoded_once(run))
    # Also of a resumed run: a function of a Python program is not in its configuration. The metrics
    # of dxn itself need no check, which takes seconds if the model is large.
    is_built_in = type(task.metric).__module__.startswith("dxn.")
    if trainer.monitor is not None or task.metric.own or not is_built_in:
        validation = run.validation_samples(task)
        if validation is not None:
            check_metrics(model, task, validation, trainer.monitor)
    if weights is not None and weights.are_published and run.compares_frozen:
        from dxn.stacking.frozen import FROZEN

        if (simple := from_first(run.frozen)) is not None:
            figures = {FROZEN: simple.figures}
            run = replace(run, plan=run.plan.model_copy(update={"frozen": figures}))
            if simple.layer is not None and not weights.has_head(task):
                weight, bias = simple.layer
                model.head.out.load_state_dict({"weight": weight, "bias": bias})
                print_line(
                    "head: starts from a ridge regression on the vectors of the published weights, "
                    f"of {simple.rows:,} rows"
                )
    # Only now, so that a training that is refused leaves no folder.
    run = replace(run, folder=_write_start(run, adapters, stack))
    print_line(f"run folder: {run.folder}")
    print_line(f"precision: {trainer.hardware.precision_note}; device: {device}")
    total, trained = count_parameters(model), count_parameters(model, trained=True)
    note = f"; trained: {trained:,}" if trained < total else ""
    backbone = count_parameters(model.backbone)
    print_line(f"model: {total:,} parameters, {backbone:,} of them in the backbone{note}")
    return run


def _options_of_weights(settings: Settings) -> tuple[dict[str, Any], InitialWeights | None]:
    """Return the options of a new run with those that its weights determine, and the weights.

    The weights are None for a training that starts from random weights.
    """
    config, trust, weights = settings.values, settings.trust, None
    # Most trainings start from random weights, and need none of the families of checkpoints.
    if config["weights"]["source"] or config["weights"]["adapters"]:
        from dxn.runs.weights import read_initial_weights, with_weights

        weights = read_initial_weights(settings)
        config = with_weights(settings, weights)
    refuse_without_effect(config, settings.overrides)
    if any(isinstance(node.get("codec"), str) for node in config["adapters"].values()):
        from dxn.runs.saved.codecs import with_codecs

        config = with_codecs(config, trust)
    return with_written_inputs(config, trust), weights


def _use_metrics(task: Task, trainer: Trainer, settings: Settings) -> None:
    """Add the metrics of the user to the task, and choose the one that selects the best epoch."""
    task.metric.own = {**trainer.metrics, **settings.metrics}
    if task.metric.own:
        check_own_metrics(task.metric.own)
        if not task.is_supervised:
            raise UserError(
                f"metrics: head={task.name} has no targets that a metric could compare; remove "
                f"{', '.join(task.metric.own)}"
            )
    if trainer.monitor not in (None, task.metric.monitored):
        task.metric.monitored = trainer.monitor


def _fit(
    plan: Plan, train: Opened, adapters: Mapping[str, Adapter], task: Task, *, is_fitted: bool
) -> dict[str, bytes]:
    """Fit the adapters and the task on the training split.

    Args:
        plan: The plan.
        train: The opened training split.
        adapters: The adapters by their key in the model.
        task: The task.
        is_fitted: Whether vocabularies and labels have been read from another run.

    Returns:
        What they have learned, as files for the other processes. Empty: there are none.
    """
    texts = task.target.texts(train.targets or ())
    fit_adapters(adapters, plan.inputs, train, texts, seed=plan.config["seed"])
    task.target.bind({name: adapters[key] for name, key in plan.model.keys.items()})
    if is_fitted:
        return {}
    task.target.fit(train.targets or ())
    return fitted_files(adapters, task) if processes()[1] > 1 else {}


def _check_same(fingerprints: Mapping[str, Any]) -> None:
    """Refuse data that differs between the processes, such as an old copy of a table."""
    received = from_all(lambda: fingerprints)

    def compare() -> None:
        for number, others in enumerate(received[1:], 1):
            if changes := differences(received[0], others):
                raise UserError(
                    f"process {number}: reads other data than process 0: {'; '.join(changes)}; "
                    "copy the same files to all machines"
                )

    from_first(compare)


def _write_start(run: Training, adapters: Mapping[str, Adapter], stack: ExitStack) -> Path:
    """Create the run folder of a new run, or save the changed options of a resumed one.

    Args:
        run: The training.
        adapters: Its fitted adapters.
        stack: Receives the lock of a new folder.

    Returns:
        The folder, whose name has a number if another training took the name in this moment.
    """
    folder, main = run.folder, run.trainer.hardware.is_main
    if run.settings.is_resumed:
        if main:
            write_changes(folder, run.plan, run.settings)
        return folder
    if not run.plan.config["run"]:
        # Only the creation decides about the name.
        folder = from_first(lambda: new_folder(run.folder))
    if main:
        stack.enter_context(locked(folder, main=True))
        # Another training may have started in the same folder since the first check.
        refuse_other_run(folder)
        write_plan(folder, run.plan, run.settings, adapters, run.task)
    return folder


def run_finetune(run: Training, model: MultimodalModel) -> None:
    """Freeze weights of a model, and add LoRA weights."""
    with named_draws(run.plan.config["seed"], "finetune"):
        run.finetune(model, set(run.plan.loaded))
