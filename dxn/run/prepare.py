"""Prepare a training: read the data, fit and build all parts, and check them before writing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dxn.data.check import Truncation
from dxn.data.fingerprint import fingerprint
from dxn.data.quality import find_warnings
from dxn.data.samples import LoaderOptions, Samples
from dxn.data.stream import make_samples
from dxn.instantiate import build
from dxn.models import Model, count_parameters
from dxn.run import model_folder, report
from dxn.run.build import (
    Data,
    Inputs,
    assign_inputs,
    build_adapters,
    build_model,
    build_pretraining_task,
    build_task,
    by_input,
    check_combinations,
    decide_task,
    find_formats,
    fit_adapters,
    model_nodes,
    open_source,
    open_splits,
    preprocessors_of,
    without_target,
)
from dxn.run.card import Card, data_name
from dxn.run.filling import InitialWeights
from dxn.run.initial_weights import read_initial_weights, with_weights
from dxn.run.lock import locked
from dxn.run.run_folder import refuse_other_run, run_folder, run_name
from dxn.run.settings import Settings
from dxn.run.start import (
    FOLDER,
    Decisions,
    check_config,
    check_data,
    launch,
    read_loaded,
    restore_initial,
    write_start,
)
from dxn.tasks import Task
from dxn.tokenize.adapter import Preprocessor
from dxn.train.finetune import Finetune
from dxn.train.trainer import Schedule, Trainer
from dxn.weights.recommended import recommended_weights


@dataclass(frozen=True)
class Prepared:
    """Everything that a training needs.

    Args:
        settings: The settings, including the options that weights and data determine.
        folder: The run folder.
        name: Name of the run, which is the title of its model card.
        data: The opened data.
        inputs: The inputs of the model.
        task: The fitted task.
        pretraining: The task of pretraining. None: no pretraining.
        model: The model, with initial weights if there are any.
        finetune: Freezes weights and adds LoRA weights.
        make_optimizer: Creates the optimizer of a model.
        schedule: Maps the progress of the training, 0 to 1, to the multiplier of the learning rate.
        batch_size: Number of samples per batch over all processes.
        loader: Options for loading samples.
        seed: Random seed of augmentation.
        truncations: Inputs of the training split that are truncated, by input name.
        loaded: Names of the tensors that were loaded from a checkpoint.
    """

    settings: Settings
    folder: Path
    name: str
    data: Data
    inputs: Inputs
    task: Task
    pretraining: Task | None
    model: Model
    finetune: Finetune
    make_optimizer: Callable[[Model], torch.optim.Optimizer]
    schedule: Schedule
    batch_size: int
    loader: LoaderOptions
    seed: int
    truncations: Mapping[str, Truncation]
    loaded: set[str]

    @property
    def preprocessors(self) -> dict[str, Preprocessor]:
        """The preprocessor of each input, by input name."""
        # The model's own adapters, because loading weights can replace statistics of its inputs.
        return {name: self.model.adapter(name).prepare for name in self.model.inputs}

    @property
    def overrides(self) -> tuple[str, ...]:
        """The options of the training as the user typed them, with those of resuming it."""
        if not self.settings.is_resumed:
            return self.settings.overrides
        added = [line for line in self.settings.overrides if not line.startswith("resume")]
        return (*Settings.load(self.folder, self.settings.trust).overrides, *added)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of rows of each split."""
        return {name: len(split) for name, split in self.data.splits.items()}

    def training_samples(self, task: Task) -> Samples:
        """Return the augmented samples of the training split for a task.

        With loader.overfit, these are the first few samples, without augmentation.
        """
        dropout = self.loader.input_dropout
        return self._samples(task, "train", augment=not self.loader.overfit, input_dropout=dropout)

    def validation_samples(self, task: Task) -> Samples | None:
        """Return the samples that select the best epoch; None if there is no validation split."""
        # Overfitting shows whether the model can memorize, so it is validated on what it learns.
        split = "train" if self.loader.overfit else "validation"
        return self._samples(task, split) if split in self.data.splits else None

    def _samples(self, task: Task, split: str, **options: Any) -> Samples:
        opened = self.data.splits[split]
        samples = make_samples(task, opened, self.preprocessors, seed=self.seed, **options)
        if self.loader.overfit:
            samples.keep_first(self.loader.overfit)
        return samples

    def card(self, model: Model, task: Task, head: Mapping[str, Any], title: str) -> Card:
        """Return the model card, which also contains the configuration of the model.

        Args:
            model: The model to save: that of the run, or that of pretraining.
            task: The task of its head.
            head: Configuration node of the task.
            title: Title of the card.
        """
        about_target = ""
        target = None
        if task.needs_target:
            about_target = task.describe(self.data.splits["train"].targets or ())
            target = self.data.source.target
        return Card(
            title=title,
            nodes=model_nodes(
                self.settings.values, self.inputs, head, target, self.data.source.layout
            ),
            task=task,
            about_target=about_target,
            data=data_name(self.settings.values["data"], self.data.source.name),
            sizes=self.sizes,
            overrides=self.overrides,
            parameters=count_parameters(model),
        )

    def save_model(
        self, folder: Path, model: Model, card: Card, figures: Mapping[str, float]
    ) -> None:
        """Save a model folder.

        Args:
            folder: Folder to write.
            model: The model to save.
            card: Its card.
            figures: Validation metrics of this epoch.
        """
        text = card.markdown({"validation": figures}, epochs="the best epoch so far")
        model_folder.save(folder, model=model, nodes=card.nodes, task=card.task, card=text)


def prepare(settings: Settings, trainer: Trainer, stack: ExitStack) -> Prepared:
    """Read the data, fit and build all parts, and only then create the run folder.

    The order of the steps is the order of the random draws. Do not change it: equal seeds must keep
    giving equal models.

    Args:
        settings: The settings.
        trainer: The trainer.
        stack: Receives the lock of the run folder, which is held until the stack is closed.

    Raises:
        UserError: If the settings, the data or the weights cannot be used.
    """
    trust = settings.trust
    resume = settings.is_resumed
    num_processes = trainer.accelerator.num_processes
    batch_size = trainer.batch_size * num_processes
    if resume:
        folder = Path(settings.values["resume"]["run"])
        stack.enter_context(locked(folder, main=trainer.main))
        batch_size = check_config(folder, settings, num_processes)
    # A resumed run takes its weights from its own checkpoint, and its saved configuration contains
    # the options that the initial weights determined.
    start = InitialWeights() if resume else read_initial_weights(settings)
    settings = with_weights(settings, start)
    config = settings.values
    # All parts that need no data are built first: reading the data can take minutes, and a wrong
    # option should be reported before.
    task = build_task(config, trust)
    check_combinations(config, task, trust)
    pretraining = build_pretraining_task(config, trust)
    finetune = build(config["finetune"], key="finetune", trust=trust)
    loader = build(config["loader"], key="loader")
    make_optimizer = build(config["optimizer"], key="optimizer", trust=trust)
    schedule = build(config["scheduler"], key="scheduler", trust=trust)

    preprocessors = preprocessors_of(config, trust)
    source = open_source(config, preprocessors, trust)
    task, head, source = decide_task(task, config, source)
    settings = replace(settings, values={**config, "head": head})
    # Once more, now that head=auto has been replaced by the task that fits the targets.
    check_combinations(settings.values, task, trust)
    if not task.needs_target:
        source = without_target(source)
    inputs = assign_inputs(config, source.inputs, preprocessors)
    adapters = build_adapters(inputs, trust)
    name = run_name(config, source)
    folder = run_folder(config, name, main=trainer.main)
    start.prepare(adapters, task)
    if resume:
        # Training a tokenizer again can give another one: ties of a unigram model are broken by the
        # order of a hash table.
        model_folder.load_fitted(folder / FOLDER, adapters, task)

    find_formats(adapters, inputs, source)
    named = by_input(adapters, inputs.adapters)
    prepare_input = {name: adapter.prepare for name, adapter in named.items()}
    data = open_splits(source, prepare_input, task, cache_gb=loader.cache_gb)
    rows = fingerprint(data.splits)
    if resume:
        check_data(folder, settings, rows)
    train = data.splits["train"]
    fit_adapters(adapters, inputs, train, task.vocabulary_texts(train.targets or ()))
    task.bind(named)
    if not resume:
        task.fit(train.targets or ())
    if pretraining is not None:
        pretraining.bind(named)
    truncations = report.truncations(train, prepare_input)
    report.describe(data, task, inputs, truncations)
    for warning in find_warnings(source, data.splits, task):
        report.print_line(f"warning: {warning}")
    if not start.checkpoints and not resume:
        modalities = [spec.modality for spec in inputs.specs.values()]
        advice = recommended_weights(modalities, len(train))
        if advice is not None:
            report.print_line(f"note: {advice}")

    model = build_model(settings.values, task, adapters, inputs.adapters, trust=trust)
    for notice in start.fill(model, task):
        report.print_line(notice)
    if start.checkpoints:
        # A checkpoint can contain other statistics of the inputs than those of the data.
        task.bind(named)
    loaded = read_loaded(folder) if resume else start.loaded(model)
    _finetune(finetune, model, loaded, postponed=pretraining is not None)
    if not resume and trainer.main:
        stack.enter_context(locked(folder, main=True))
        # Another training may have started in the same folder since the first check.
        refuse_other_run(folder)
        decisions = Decisions(
            precision="bf16" if trainer.bf16 else "float32", batch_size=batch_size, launch=launch()
        )
        write_start(
            folder,
            settings,
            decisions,
            data=rows,
            model=model,
            task=task,
            loaded=loaded,
            initial=pretraining is not None,
        )
    if resume and pretraining is not None:
        restore_initial(folder, model)
    report.print_line(f"run folder: {folder}")
    report.print_line(f"precision: {trainer.precision_note}; device: {trainer.accelerator.device}")
    report.print_line(_size(model))
    return Prepared(
        settings=settings,
        folder=folder,
        name=name,
        data=data,
        inputs=inputs,
        task=task,
        pretraining=pretraining,
        model=model,
        finetune=finetune,
        make_optimizer=make_optimizer,
        schedule=schedule,
        batch_size=batch_size,
        loader=loader,
        seed=trainer.seed,
        truncations=truncations,
        loaded=loaded,
    )


def _finetune(finetune: Finetune, model: Model, loaded: set[str], *, postponed: bool) -> None:
    """Freeze weights and add LoRA weights, or with pretraining only check that this is possible.

    Pretraining trains all weights. The fine-tuning options are for the training after it.
    """
    if not postponed:
        finetune(model, loaded)
        return
    # On a copy and without random draws, so that the check has no effect on the training. Without
    # the check, a wrong option would be reported only after pretraining.
    with torch.random.fork_rng(devices=[]):
        finetune(copy.deepcopy(model), loaded)


def _size(model: Model) -> str:
    total = count_parameters(model)
    trained = count_parameters(model, trained=True)
    part = f"; trained: {trained:,}" if trained < total else ""
    backbone = count_parameters(model.backbone)
    return f"model: {total:,} parameters, {backbone:,} of them in the backbone{part}"
