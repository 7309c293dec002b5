"""Prepare a training: read the data, fit and build all parts, and check them before writing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate.utils import broadcast_object_list

from dxn.config.instantiate import build
from dxn.config.keys import lookup
from dxn.core.errors import UserError
from dxn.core.files import new_folder
from dxn.core.randomness import named_draws
from dxn.data.dataset import LoaderOptions
from dxn.data.inspect.fingerprint import fingerprint
from dxn.data.inspect.quality import find_warnings
from dxn.models import Model, count_parameters
from dxn.presets.preset import with_preset
from dxn.runs.build import (
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
    open_source,
    open_splits,
    preprocessors_of,
    without_target,
)
from dxn.runs.evaluation import printing as report
from dxn.runs.evaluation.data import print_paths
from dxn.runs.filling import InitialWeights
from dxn.runs.folder import refuse_other_run, run_folder, run_name
from dxn.runs.lock import locked
from dxn.runs.members import Member
from dxn.runs.monitoring import check_metrics, use_metrics
from dxn.runs.no_effect import refuse_without_effect
from dxn.runs.prepared import Prepared
from dxn.runs.record import (
    Decisions,
    check_config,
    check_data,
    launch,
    read_fitted,
    read_loaded,
    write_changes,
    write_start,
)
from dxn.runs.settings import Settings
from dxn.runs.weights import read_initial_weights, with_weights
from dxn.training.finetune import Finetune
from dxn.training.trainer import Schedule, Trainer
from dxn.weights.recommended import recommended_weights

# Options that depend on the metrics of the validation split.
NEED_VALIDATION = (
    *("trainer.patience_below", "trainer.mixup_below", "loader.input_dropout_below"),
    "trainer.monitor",
)


class Parts(NamedTuple):
    """The parts of a training that need no data, see `Prepared`."""

    finetune: Finetune
    loader: LoaderOptions
    make_optimizer: Callable[[Model], torch.optim.Optimizer]
    schedule: Schedule


def prepare(
    settings: Settings, trainer: Trainer, stack: ExitStack, member: Member | None = None
) -> Prepared:
    """Read the data, fit and build all parts, and only then create the run folder.

    Args:
        settings: The settings.
        trainer: The trainer.
        stack: Receives the lock of the run folder, which is held until the stack is closed.
        member: The member of an ensemble that the model is. Default: it is not one.

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
    if not resume:
        refuse_without_effect(settings)
    config = settings.values
    # All parts that need no data are built first: reading the data can take minutes, and a wrong
    # option should be reported before.
    task = build_task(config, trust)
    check_combinations(_of_ensemble(config, member), task, trust)
    pretraining = build_pretraining_task(config, trust)
    _build_parts(config, trust)  # a wrong option

    preprocessors = preprocessors_of(config, trust)
    if resume:
        print_paths(config["data"])
    source = open_source(config, preprocessors, trust, needs_target=task.needs_target)
    task, head, source = decide_task(task, config, source)
    settings = replace(settings, values={**config, "head": head})
    # Once more, now that head=auto has been replaced by the task that fits the targets.
    check_combinations(_of_ensemble(settings.values, member), task, trust)
    if not task.needs_target:
        source = without_target(source)
    inputs = assign_inputs(config, source.inputs, preprocessors, source.column)
    if not source.splits.get("validation") and not config["loader"]["overfit"]:
        _check_unvalidated(config)
    device = trainer.accelerator.device
    settings, chosen = with_preset(settings, task, source, inputs, preprocessors, device)
    if member is not None and not resume:
        settings = replace(settings, values=member.with_time(settings.values))
    if chosen or member is not None:
        config = settings.values
        trainer = _rebuilt(trainer, config["trainer"], trust)
        batch_size = trainer.batch_size * num_processes
        inputs = assign_inputs(config, source.inputs, preprocessors, source.column)
    if settings.values["head"] != head:
        # The preset has chosen options of the task. Its notes about the targets are the same.
        task, _, _ = decide_task(build_task(config, trust), config, source)
    finetune, loader, make_optimizer, schedule = _build_parts(config, trust)
    seed = config["seed"]
    adapters = build_adapters(inputs, trust, seed=seed)
    name = run_name(config, source)
    # Each process has another time, and the time of the first one names the folder.
    (folder,) = broadcast_object_list([run_folder(config, name, main=trainer.main)])
    start.prepare(adapters, task)
    if resume:
        # Training a tokenizer again can give another one: ties of a unigram model are broken by the
        # order of a hash table.
        read_fitted(folder, adapters, task)
    elif member is not None and member.fitted_in is not None:
        read_fitted(member.fitted_in, adapters, task)
    # After the labels have been read, which contain the metric that was monitored before.
    use_metrics(task, trainer, settings.metrics)

    for note in find_formats(adapters, inputs, source):
        report.print_line(f"note: {note}")
    named = by_input(adapters, inputs.adapters)
    prepare_input = {name: adapter.prepare for name, adapter in named.items()}
    data = open_splits(
        source,
        prepare_input,
        task,
        cache_gb=loader.cache_gb,
        num_workers=loader.num_workers,
    )
    rows = fingerprint(data.splits)
    if resume:
        check_data(folder, settings, rows)
    train = data.splits["train"]
    texts = task.vocabulary_texts(train.targets or ())
    fit_adapters(adapters, inputs, train, texts, seed=seed)
    task.bind(named)
    if not resume and (member is None or member.fitted_in is None):
        task.fit(train.targets or ())
    if pretraining is not None:
        pretraining.bind(named)
    truncations = report.truncations(train, prepare_input)
    report.describe(data, task, inputs, truncations)
    warnings = find_warnings(source, data.splits, task)
    for warning in warnings:
        report.print_line(f"warning: {warning}")
    for line in chosen:
        report.print_line(line)
    if not start.checkpoints and not resume:
        modalities = [spec.modality for spec in inputs.specs.values()]
        advice = recommended_weights(modalities, len(train))
        if advice is not None:
            report.print_line(f"note: {advice}")

    model = build_model(settings.values, task, adapters, inputs.adapters, trust=trust, seed=seed)
    for notice in start.fill(model, task):
        report.print_line(notice)
    if start.checkpoints:
        # A checkpoint can contain other statistics of the inputs than those of the data.
        task.bind(named)
    loaded = read_loaded(folder) if resume else start.loaded(model)
    # Pretraining trains all weights. The fine-tuning options are for the training after it, but a
    # wrong one should be reported before.
    if pretraining is None:
        run_finetune(finetune, model, loaded, seed)
    else:
        run_finetune(finetune, copy.deepcopy(model), loaded, seed)
    prepared = Prepared(
        settings=settings,
        trainer=trainer,
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
        warnings=warnings,
    )
    # Also of a resumed run: a function of a Python program is not in its configuration.
    check_metrics(prepared)
    if not resume and not config["run"]:
        # Only now, so that a training that is refused leaves no folder. Another training can have
        # started in the same moment, so only the creation decides about the name.
        if trainer.main:
            folder = new_folder(folder)
        (folder,) = broadcast_object_list([folder])
        prepared = replace(prepared, folder=folder)
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
        )
    if resume and trainer.main:
        write_changes(folder, settings, batch_size, rows)
    report.print_line(f"run folder: {folder}")
    report.print_line(f"precision: {trainer.precision_note}; device: {trainer.accelerator.device}")
    report.print_line(_size(model))
    return prepared


def _check_unvalidated(config: Mapping[str, Any]) -> None:
    """Refuse options that would have no effect without a validation split."""
    for key in NEED_VALIDATION:
        _, value = lookup(config, key)
        if value is not None:
            raise UserError(
                f"{key}: got {value}, but there is no validation split, whose metrics this option "
                f"needs; add one, or set {key}=null"
            )


def _of_ensemble(config: Mapping[str, Any], member: Member | None) -> Mapping[str, Any]:
    """Return the configuration with the option of the ensemble, which that of a member lacks."""
    return config if member is None else {**config, "ensemble": member.size}


def _build_parts(config: Mapping[str, Any], trust: Sequence[str]) -> Parts:
    """Build the parts that need no data."""
    return Parts(
        build(config["finetune"], key="finetune", trust=trust),
        build(config["loader"], key="loader"),
        build(config["optimizer"], key="optimizer", trust=trust),
        build(config["scheduler"], key="scheduler", trust=trust),
    )


def _rebuilt(trainer: Trainer, node: Mapping[str, Any], trust: Sequence[str]) -> Trainer:
    """Return a trainer with other options. The precision is not measured again."""
    if node["precision"] != "auto":
        return build(node, key="trainer", trust=trust)
    measured = "bf16" if trainer.bf16 else "float32"
    new: Trainer = build({**node, "precision": measured}, key="trainer", trust=trust)
    new.precision_note = trainer.precision_note
    return new


def run_finetune(finetune: Finetune, model: Model, loaded: set[str], seed: int) -> None:
    """Freeze weights and add LoRA weights."""
    with named_draws(seed, "finetune"):
        finetune(model, loaded)


def _size(model: Model) -> str:
    total = count_parameters(model)
    trained = count_parameters(model, trained=True)
    part = f"; trained: {trained:,}" if trained < total else ""
    backbone = count_parameters(model.backbone)
    return f"model: {total:,} parameters, {backbone:,} of them in the backbone{part}"
