"""Prepare a training: plan it, build all parts, and check them before anything is written."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from dxn.config.instantiate import build
from dxn.config.model_plan import Input
from dxn.config.settings import Settings, merge_overrides
from dxn.config.values import refuse_without_effect
from dxn.core.display import print_line
from dxn.core.errors import UserError
from dxn.core.files import new_folder
from dxn.core.processes import from_all, from_first, launch
from dxn.core.randomness import named_draws
from dxn.core.results import DataFacts, Truncation
from dxn.core.runtime import release_memory
from dxn.data.dataset import Opened, Samples, make_samples
from dxn.data.inspect.fingerprint import differences, fingerprint
from dxn.data.inspect.quality import find_problems
from dxn.data.loader import InputDropout, LoaderOptions
from dxn.data.rows import Source
from dxn.models.model import MultimodalModel, count_parameters
from dxn.presets.preset import choose_options, recommended_weights
from dxn.runs.build import adapters_of, build_adapters, build_model
from dxn.runs.data import (
    count_classes,
    data_name,
    describe,
    find_formats,
    fit_adapters,
    fitted_files,
    input_lines,
    open_splits,
    read_fitted,
    use_files,
)
from dxn.runs.decide import (
    assign_inputs,
    check_combinations,
    check_unvalidated,
    decide_task,
    open_source,
    read_pretraining,
    readers_of,
    with_written_inputs,
    without_target,
)
from dxn.runs.folder import locked, refuse_other_run, run_folder
from dxn.runs.monitoring import check_metrics
from dxn.runs.plan import (
    Plan,
    SplitFingerprint,
    check_config,
    check_data,
    read_plan,
    write_changes,
    write_plan,
)
from dxn.tasks import Task
from dxn.tasks.metric import check_own_metrics
from dxn.tokenize.base import Adapter, Tokenizer
from dxn.training.finetune import Finetune
from dxn.training.trainer import Schedule, Trainer

# Parts that need no data. A wrong option of them is reported before the data is read.
PARTS = ("finetune", "loader", "optimizer", "scheduler")


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
    loader: LoaderOptions
    finetune: Finetune
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    schedule: Schedule
    truncations: Mapping[str, Truncation]
    warnings: Sequence[str] = ()

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """The tokenizer of each input, by input name."""
        # The model's own adapters, because loading weights can replace statistics of its inputs.
        return {name: self.model.adapter(name).tokenizer for name in self.model.inputs}

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

    def training_samples(self, task: Task) -> Samples:
        """Return the augmented samples of the training split for a task.

        With loader.overfit, these are a few samples, without augmentation.
        """
        loader = self.loader
        return self._samples(
            task,
            "train",
            augment=not loader.overfit,
            input_dropout=InputDropout(
                loader.input_dropout, loader.input_dropout_until, loader.input_dropout_below
            ),
            repeats=loader.repeats,
        )

    def validation_samples(self, task: Task) -> Samples | None:
        """Return the samples that select the best epoch; None if there is no validation split."""
        # Overfitting shows whether the model can memorize, so it is validated on what it learns.
        split = "train" if self.loader.overfit else "validation"
        return self._samples(task, split) if split in self.splits else None

    def _samples(self, task: Task, split: str, **options: Any) -> Samples:
        opened = self.splits[split]
        if split == "train" and self.source.stream is not None:
            from dxn.data.streaming import StreamSamples  # most data sets are in memory

            return StreamSamples(
                opened,
                self.tokenizers,
                task=task,
                source=self.source,
                seed=self.trainer.seed,
                **options,
            )
        samples = make_samples(task, opened, self.tokenizers, seed=self.trainer.seed, **options)
        if self.loader.overfit:
            samples.keep(self.loader.overfit)
        return samples


def prepare(
    settings: Settings,
    trainer: Trainer,
    stack: ExitStack,
    *,
    members: int = 1,
    fitted: Path | None = None,
) -> Training:
    """Plan a training, build all parts, and only then create the run folder.

    Args:
        settings: The settings.
        trainer: The trainer.
        stack: Receives the lock of the run folder, which is held until the stack is closed.
        members: Number of models that are trained one after the other, and share the time limit.
        fitted: Run folder whose tokenizers and labels are used. Default: new ones are fitted.

    Raises:
        UserError: If the settings, the data or the weights cannot be used.
    """
    trust = settings.trust
    num_processes = trainer.accelerator.num_processes
    # The run that continues. It takes its weights from its own checkpoint, and its saved
    # configuration contains the options that weights, data and preset determined.
    old = weights = batch_size = None
    config = copy.deepcopy(settings.values)
    if settings.is_resumed:
        fitted = Path(config["resume"]["run"])
        stack.enter_context(locked(fitted, main=trainer.main))
        old = read_plan(fitted)
        batch_size = check_config(old, settings, num_processes)
    # The options that the weights determine. Most trainings start from random weights, and need
    # none of the families of checkpoints.
    elif config["weights"]["source"] or config["weights"]["adapters"]:
        from dxn.runs.weights import read_initial_weights, with_weights

        weights = read_initial_weights(settings)
        config = with_weights(settings, weights)
    if old is None:
        refuse_without_effect(config, settings.overrides)
        if any(isinstance(node.get("codec"), str) for node in config["adapters"].values()):
            from dxn.runs.saved.codecs import with_codecs

            config = with_codecs(config, settings.trust)
        config = with_written_inputs(config, settings.trust)

    # The options that the data determines, and the parts that need no data.
    decided = _decide(config, settings, trainer, members, may_choose=weights is None)
    config, source, task, trainer = decided.config, decided.source, decided.task, decided.trainer
    settings = replace(settings, values=config)
    name = str(config["name"] or source.name or source.target or "run")
    # Each process has another time, and the time of the first one names the folder.
    folder = from_first(lambda: run_folder(config, name))
    if old is not None:
        launched = old.launch
    else:
        started = launch()
        launched = "" if started is None else started.id
    plan = Plan(
        config=config,
        name=name,
        inputs=decided.inputs,
        nodes=decided.nodes,
        target=source.target if task.is_supervised else None,
        layout=None if source.layout is None else dict(source.layout),
        precision=trainer.used_precision,
        batch_size=batch_size or trainer.batch_size * num_processes,
        launch=launched,
    )

    # The adapters and the data.
    adapters = build_adapters(plan.model.adapters, trust, seed=config["seed"])
    if weights is not None:
        weights.prepare(adapters, task)
    # Training a tokenizer again can give another one: ties of a unigram model are broken by the
    # order of a hash table.
    if fitted is not None:
        read_fitted(fitted, adapters, task, config["seed"])
    # After the labels have been read, which contain the metric that was monitored before.
    _use_metrics(task, trainer, settings)
    splits = _open_and_fit(plan, decided, adapters, is_fitted=fitted is not None)
    prints = fingerprint(splits)
    if num_processes > 1:
        _check_same(prints)
    if old is not None:
        check_data(old, prints, settings)
    tokenizers = {name: adapters[key].tokenizer for name, key in plan.model.keys.items()}
    truncations = describe(source, splits, task, plan, tokenizers)
    release_memory()  # that of the fingerprints, because finding problems needs as much
    warnings = [problem.reason for problem in find_problems(source, splits, task)]
    for line in [*(f"warning: {warning}" for warning in warnings), *decided.lines]:
        print_line(line)

    # The model.
    model = build_model(plan.model, task, adapters, trust=trust, seed=config["seed"])
    loaded = [] if old is None else old.loaded
    if weights is not None:
        for notice in weights.fill(model, task):
            print_line(notice)
        # A checkpoint can contain other statistics of the inputs than those of the data.
        task.target.bind({name: model.adapter(name) for name in model.inputs})
        loaded = sorted(weights.loaded(model, task))
    data = {name: SplitFingerprint(**each) for name, each in prints.items()}
    plan = plan.model_copy(update={"data": data, "loaded": loaded})
    # Pretraining trains all weights. The fine-tuning options are for the training after it, but a
    # wrong one should be reported before.
    tuned = model if decided.pretraining is None else copy.deepcopy(model)
    run_finetune(decided.parts["finetune"], tuned, plan)
    run = Training(
        settings=settings,
        plan=plan,
        folder=folder,
        trainer=trainer,
        source=source,
        splits=splits,
        task=task,
        pretraining=decided.pretraining,
        model=model,
        loader=decided.parts["loader"],
        finetune=decided.parts["finetune"],
        optimizer=decided.parts["optimizer"],
        schedule=decided.parts["scheduler"],
        truncations=truncations,
        warnings=warnings,
    )
    # Also of a resumed run: a function of a Python program is not in its configuration.
    validation = run.validation_samples(task)
    if validation is not None and (trainer.monitor is not None or task.metric.own):
        check_metrics(model, task, validation, trainer.monitor)
    # Only now, so that a training that is refused leaves no folder.
    run = replace(run, folder=_write_start(run, stack))
    print_line(f"run folder: {run.folder}")
    print_line(f"precision: {trainer.precision_note}; device: {trainer.accelerator.device}")
    total, trained = count_parameters(model), count_parameters(model, trained=True)
    note = f"; trained: {trained:,}" if trained < total else ""
    backbone = count_parameters(model.backbone)
    print_line(f"model: {total:,} parameters, {backbone:,} of them in the backbone{note}")
    return run


class _Decided(NamedTuple):
    """What is known before the data is opened.

    Attributes:
        config: All options, with those that the data and the preset determine.
        source: The data set.
        task: The task, not yet fitted.
        pretraining: The task of pretraining.
        inputs: The inputs of the model, by name.
        nodes: Key of the options of each adapter.
        trainer: The trainer.
        parts: The parts of PARTS, by name.
        lines: What the preset chose and advises, to print.
    """

    config: dict[str, Any]
    source: Source
    task: Task
    pretraining: Task | None
    inputs: dict[str, Input]
    nodes: dict[str, str]
    trainer: Trainer
    parts: dict[str, Any]
    lines: list[str]


def _decide(
    config: dict[str, Any],
    settings: Settings,
    trainer: Trainer,
    members: int,
    *,
    may_choose: bool,
) -> _Decided:
    """Find the options that the data determines: the task, the inputs, and those of the preset.

    Args:
        config: All options, with those that the weights determine.
        settings: The settings.
        trainer: The trainer.
        members: Number of models that share the time limit.
        may_choose: Whether the preset may choose options of a new run.
    """
    trust = settings.trust
    is_new = not settings.is_resumed
    # What can be checked before the data is read, which can take minutes.
    first = build(config["head"], key="head", trust=trust)
    check_combinations(config, first, trust, ensemble=members)
    pretraining = read_pretraining(config, trust) if config["pretrain"] else None
    parts = {name: build(config[name], key=name, trust=trust) for name in PARTS}

    readers = readers_of(config, trust)
    if not is_new:
        from dxn.runs.evaluation.data import print_paths

        print_paths(config["data"])
    source = open_source(config, readers, first, trust)
    task, config["head"], source = decide_task(first, config, source, readers)
    if not task.is_supervised:
        source = without_target(source)
    inputs, nodes = assign_inputs(config, source.inputs, readers, source.column)
    if not source.splits.get("validation") and not config["loader"]["overfit"]:
        check_unvalidated(config)
    lines: list[str] = []
    before = config
    if is_new and may_choose:
        used = {name: nodes[each.adapter] for name, each in inputs.items()}
        device = trainer.accelerator.device
        # The preset measures the speed of this machine, and the processes can be on several.
        config, lines = from_first(
            lambda: choose_options(
                config, settings.chosen, task, source, used, readers, device, trust
            )
        )
    # Again, because the targets can choose the task, and the preset other options.
    check_combinations(config, task, trust, ensemble=members)
    minutes = config["trainer"].get("max_minutes")
    if is_new and members > 1 and minutes is not None:
        config = {**config, "trainer": {**config["trainer"], "max_minutes": minutes / members}}
    # Only parts whose options have changed are built again.
    for name in PARTS:
        if config[name] != before[name]:
            parts[name] = build(config[name], key=name, trust=trust)
    if config["trainer"] != settings.values["trainer"]:
        trainer = build(config["trainer"], key="trainer", trust=trust)
    if config["head"] != before["head"]:
        # The notes about the targets are the same.
        task, _, _ = decide_task(
            build(config["head"], key="head", trust=trust), config, source, readers
        )
    if is_new and may_choose and task.is_supervised:  # for others, weights were not compared
        modalities = [each.modality for each in inputs.values()]
        advice = recommended_weights(modalities, source.num_training_rows)
        lines += [f"note: {advice}"] if advice else []
    return _Decided(config, source, task, pretraining, inputs, nodes, trainer, parts, lines)


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


def _open_and_fit(
    plan: Plan, decided: _Decided, adapters: Mapping[str, Adapter], *, is_fitted: bool
) -> dict[str, Opened]:
    """Open the splits, and fit the adapters and the task on the training split.

    Args:
        plan: The plan.
        decided: The data set and the tasks.
        adapters: The adapters by their key in the model.
        is_fitted: Whether vocabularies and labels have been read from another run.
    """
    release_memory()  # a table needs more memory while it is read
    task, source, seed = decided.task, decided.source, plan.config["seed"]
    for note in find_formats(adapters, plan.inputs, source):
        print_line(f"note: {note}")
    named = {name: adapters[key] for name, key in plan.model.keys.items()}
    tokenizers = {name: adapter.tokenizer for name, adapter in named.items()}
    splits = open_splits(source, tokenizers, task, loader=decided.parts["loader"])
    train = splits["train"]
    accelerator = decided.trainer.accelerator

    def fit() -> dict[str, bytes]:
        texts = task.target.texts(train.targets or ())
        fit_adapters(adapters, plan.inputs, train, texts, seed=seed)
        task.target.bind(named)
        if is_fitted:
            return {}
        task.target.fit(train.targets or ())
        return fitted_files(adapters, task) if accelerator.num_processes > 1 else {}

    if is_fitted:
        fit()
    else:
        # Two trainings of a tokenizer can give two tokenizers.
        files = from_first(fit)
        if not accelerator.is_main_process:
            use_files(files, adapters, task, seed)
            task.target.bind(named)
    if decided.pretraining is not None:
        decided.pretraining.target.bind(named)
    return splits


def _check_same(prints: Mapping[str, Any]) -> None:
    """Refuse data that differs between the processes, such as an old copy of a table."""
    received = from_all(lambda: prints)

    def compare() -> None:
        for number, own in enumerate(received[1:], 1):
            if changes := differences(received[0], own):
                raise UserError(
                    f"process {number}: reads other data than process 0: {'; '.join(changes)}; "
                    "copy the same files to all machines"
                )

    from_first(compare)


def _write_start(run: Training, stack: ExitStack) -> Path:
    """Create the run folder of a new run, or save the changed options of a resumed one.

    Args:
        run: The training.
        stack: Receives the lock of a new folder.

    Returns:
        The folder, whose name has a number if another training took the name in this moment.
    """
    folder, main = run.folder, run.trainer.main
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
        write_plan(folder, run.plan, run.settings, adapters_of(run.model), run.task)
    return folder


def run_finetune(finetune: Finetune, model: MultimodalModel, plan: Plan) -> None:
    """Freeze weights and add LoRA weights."""
    with named_draws(plan.config["seed"], "finetune"):
        finetune(model, set(plan.loaded))
