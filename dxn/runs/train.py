"""One training, from its settings to the metrics in its run folder."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from dxn.config.instantiate import build
from dxn.core.errors import Interrupted, UserError
from dxn.core.files import write_text
from dxn.core.randomness import named_draws, seed_of
from dxn.models.model import Model, count_parameters
from dxn.runs.build import adapters_of, make_head
from dxn.runs.evaluation import printing as report
from dxn.runs.evaluation.conclusion import (
    about_epochs,
    about_files,
    about_overfitting,
    about_split,
)
from dxn.runs.evaluation.data import default_split
from dxn.runs.evaluation.evaluate import ALL, after_all, by_split, evaluate_subsets
from dxn.runs.evaluation.figures import training_figures
from dxn.runs.evaluation.next_commands import next_commands, resume
from dxn.runs.evaluation.reporting import Recorder, report_of_training
from dxn.runs.folder import after_restart, has_checkpoint
from dxn.runs.paths import Member
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.prepare import Training, prepare, run_finetune
from dxn.runs.record import read_plan
from dxn.runs.saved import model_folder
from dxn.runs.saved.card import Card, data_name
from dxn.runs.settings import Settings
from dxn.stacking.files import write_stack
from dxn.stacking.metrics import about_stack, warn_about
from dxn.stacking.stacked import formula_of
from dxn.tasks import Task
from dxn.training.distributed import is_lost_connection, wait_for_all
from dxn.training.log import read_log
from dxn.training.optim import adamw, cosine
from dxn.training.state import State
from dxn.training.trainer import Trainer

LOG = "metrics.jsonl"
PRETRAINING = "pretrain"  # folder of the pretraining in the run folder
# Options of the trainer that are for the main task only, because they are tuned to its targets and
# its metric. Pretraining runs all of its epochs and does not average weights, and a masked sample
# has no target that mixup could mix.
MAIN_TASK_ONLY = {
    "patience": 0,
    "max_minutes": None,
    "ema_decay": 0.0,
    "mixup": 0.0,
    "r_drop": 0.0,
}


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Args:
        folder: The run folder.
        metrics: Content of metrics.json. Empty in all processes except the main one.
        monitored: Name of the metric that selected the best epoch.
        higher_is_better: Whether higher values of this metric are better.
        next_commands: Words of the commands that a user may want next, the most important one last.
    """

    folder: Path
    metrics: Mapping[str, Any]
    monitored: str
    higher_is_better: bool
    next_commands: Sequence[Sequence[str]]


def train_one(settings: Settings, member: Member | None = None) -> Trained:
    """Train and evaluate a model, and write the run folder.

    Args:
        settings: The settings.
        member: The member of an ensemble that the model is. Default: it is not one.

    Raises:
        UserError: If the settings, the data or the weights cannot be used, or another process of
            the training has stopped.
        Interrupted: If the user interrupts the training. The message says how to continue it.
    """
    settings = after_restart(settings)
    node = settings.values["trainer"]
    if settings.is_resumed and node["precision"] == "auto":
        # The precision that the run measured when it started.
        precision = read_plan(Path(settings.values["resume"]["run"])).precision
        node = {**node, "precision": precision}
    # The trainer first, because it starts the process group.
    trainer: Trainer = build(node, key="trainer", trust=settings.trust)
    run = None
    with ExitStack() as stack:
        try:
            run = prepare(settings, trainer, stack, member)
            trainer, task, config = run.trainer, run.task, run.plan.config
            # A run that was interrupted during pretraining has no checkpoint of the main task yet.
            # It resumes pretraining, and the main task starts from the beginning.
            is_resumed = settings.is_resumed
            if run.pretraining is not None:
                is_resumed = is_resumed and has_checkpoint(run.folder)
                if not is_resumed:
                    pretrain(run, run.pretraining)
                run_finetune(run.finetune, run.model, run.plan)
            card = card_of(run, run.model, task, config["head"], run.plan.name)
            torch.manual_seed(seed_of(config["seed"], "training"))
            state = trainer.fit(
                run.model,
                task,
                # After fine-tuning: frozen weights are not optimized, and LoRA weights are.
                optimizer=build(config["optimizer"], key="optimizer", trust=settings.trust)(
                    run.model
                ),
                schedule=build(config["scheduler"], key="scheduler", trust=settings.trust),
                train=run.training_samples(task),
                validation=run.validation_samples(task),
                folder=run.folder,
                keep=lambda figures: save_best(run, run.folder, run.model, card, figures),
                resume=is_resumed,
                batch_size=run.plan.batch_size,
                options=run.settings.plain(),
            )
            if not state.best_epoch:
                raise UserError(
                    f"the validation {task.metric.monitored} and loss were NaN in all "
                    f"{state.epoch} epochs, so there is no best epoch; lower optimizer.lr, and "
                    "look for extreme values with dxn check"
                )
            trainer.accelerator.end_training()
            # Only the main process evaluates: metrics such as F1 need all predictions in one
            # process.
            metrics = evaluate(run, state, card) if trainer.main else {}
        except KeyboardInterrupt as error:
            if run is None:
                raise
            stopped = error if isinstance(error, Interrupted) else Interrupted()
            raise Interrupted(f"{stopped}; {_how_to_continue(run)}", stopped.code) from None
        except RuntimeError as error:
            if not is_lost_connection(error):
                raise
            raise UserError(
                f"process {trainer.accelerator.process_index}: lost the connection to another "
                "process of this training, whose own message says why; continue from the last "
                "checkpoint with resume="
            ) from error
    return Trained(
        folder=run.folder,
        metrics=metrics,
        monitored=task.metric.monitored,
        higher_is_better=task.metric.higher_is_better,
        next_commands=next_commands(run),
    )


def pretrain(run: Training, task: Task) -> None:
    """Train the adapters, the fusion and the backbone of the run's model in place.

    The node `pretrain` of the configuration (conf/pretrain/masked.yaml) has the number of epochs,
    the peak learning rate, the warmup (the fraction of the steps in which the learning rate
    increases from 0) and the task. All other options are those of the main training.

    Pretraining has its own log and checkpoints in RUN/pretrain. It continues from its last
    checkpoint if the run is resumed. Afterwards, the model has the weights of its best epoch.

    Args:
        run: The prepared run. The head of its model is not changed.
        task: Task to pretrain on, bound to the model's adapters.
    """
    config = run.plan.config
    options = config["pretrain"]
    folder = run.folder / PRETRAINING
    node = {**config["trainer"], **MAIN_TASK_ONLY, "epochs": options["epochs"]}
    # Processes of accelerate share one precision, so a second measurement could change that of the
    # main task.
    node["precision"] = run.plan.precision
    trainer: Trainer = build(node, key="trainer", trust=run.settings.trust)
    model = run.model
    adapters = adapters_of(model)
    with named_draws(config["seed"], "pretrain.task"):
        head = make_head(task, adapters, model.inputs, model.fusion)
    student = Model(
        adapters, inputs=model.inputs, fusion=model.fusion, backbone=model.backbone, head=head
    )
    card = card_of(run, student, task, options["task"], f"{run.plan.name}, pretraining")
    torch.manual_seed(seed_of(config["seed"], PRETRAINING))
    state = trainer.fit(
        student,
        task,
        optimizer=adamw(lr=options["lr"])(student),
        schedule=cosine(warmup=options["warmup"]),
        train=run.training_samples(task),
        validation=run.validation_samples(task),
        folder=folder,
        keep=lambda figures: save_best(run, folder, student, card, figures),
        resume=run.settings.is_resumed,
        batch_size=run.plan.batch_size,
        name="pretraining",
    )
    wait_for_all(trainer.accelerator)  # until the main process has written the weights
    # The weights of the best epoch, which need not be the last one.
    best = load_file(folder / "model" / model_folder.WEIGHTS)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name in best and not name.startswith("head."):
                tensor.copy_(best[name])
    if trainer.main:
        metrics = training_figures(state, student)
        write_text(folder / "metrics.json", json.dumps(metrics, indent=1))


def card_of(run: Training, model: Model, task: Task, head: Mapping[str, Any], title: str) -> Card:
    """Return the model card, which also contains the configuration of the model.

    Args:
        run: The training.
        model: The model to save: that of the run, or that of pretraining.
        task: The task of its head.
        head: Configuration node of the task.
        title: Title of the card.
    """
    targets = run.splits["train"].targets or ()
    return Card(
        title=title,
        nodes=run.plan.model_nodes(head, run.plan.target if task.is_supervised else None),
        task=task,
        about_target=task.target.describe(targets) if task.is_supervised else "",
        data=data_name(run.plan.config["data"], run.source.name),
        sizes=run.sizes,
        overrides=run.overrides,
        parameters=count_parameters(model),
    )


def save_best(
    run: Training, folder: Path, model: Model, card: Card, figures: Mapping[str, float]
) -> None:
    """Save the model of the best epoch so far, in the main process.

    Args:
        run: The training.
        folder: The run folder, or that of its pretraining.
        model: The model to save.
        card: Its card.
        metrics: Validation metrics of this epoch.
    """
    if not run.trainer.main:
        return
    text = card.markdown({"validation": figures}, epochs="the best epoch so far")
    model_folder.save(folder / "model", model=model, nodes=card.nodes, task=card.task, card=text)


def evaluate(run: Training, state: State, card: Card) -> dict[str, Any]:
    """Evaluate the saved model, and write metrics.json and the final model card.

    The model folder is loaded in the same way as by `dxn.load`, so that the metrics are those of
    the files that the user gets.
    """
    trainer = run.trainer
    for line in about_epochs(state, run):
        report.print_line(line)
    best = model_folder.load(
        run.folder / "model", device=str(trainer.accelerator.device), trust=run.settings.trust
    )
    best.task.metric.own = run.task.metric.own
    split = default_split(run.splits)
    # Without gradients and optimizer state, twice the batch size fits in memory.
    batch_size = 2 * trainer.batch_size
    _stack(run, best, batch_size=batch_size)
    recorder = Recorder()
    results = evaluate_subsets(
        best, run.splits[split], split, run.folder, batch_size=batch_size, record=recorder
    )
    remarks = [
        *warn_about(results, best.task, state, max_minutes=trainer.max_minutes),
        *about_split(split),
        *about_overfitting(run, best, batch_size),
    ]
    for line in remarks:
        report.print_line(line)
    extra = {
        **training_figures(state, run.model),
        **about_stack(best.network),
        "shown": run.task.metric.shown(results[ALL]),
        "precision": run.plan.precision,
        "rows": run.sizes,
        "skipped": {name: opened.skipped for name, opened in run.splits.items()},
        "missing": {name: dict(opened.missing) for name, opened in run.splits.items()},
        "truncated": {name: asdict(truncation) for name, truncation in run.truncations.items()},
    }
    path: Path = run.folder / "metrics.json"
    report.write_metrics(path, by_split(split, results), extra)
    text = card.markdown(
        {"validation": _validation_figures(run.folder, state), split: results[ALL]},
        epochs=f"epoch {state.best_epoch} of {state.epoch}",
        others=after_all(results),
        answers=formula_of(best.network),
    )
    model_folder.write_card(run.folder / "model", text)
    # Read back, so that `metrics` is exactly what the file contains, such as lists for tuples.
    metrics = json.loads(path.read_text(encoding="utf-8"))
    trainer.track(run.folder, {k: v for k, v in metrics.items() if "/" in k}, state.step)
    report_of_training(run, best, recorder, metrics, remarks=remarks)
    report.print_line(about_files(run))
    return metrics


def _stack(run: Training, best: Predictor, *, batch_size: int) -> None:
    """Train a baseline, mix it with the best model of a run, and save it in the model folder."""
    choice = run.settings.values["baseline"]
    stack = None
    if choice == "auto" and _starts_trained(run):
        report.print_line(
            "note: no baseline, because the weights are not trained from the start; "
            "baseline=always trains one and mixes its output with that of the model"
        )
    elif choice != "none" and not run.loader.overfit:
        # Imported here, because it is used only after the training.
        train = importlib.import_module("dxn.stacking.train")
        stack = train.train_stack(
            best.model,
            best.task,
            best.task_samples(run.splits["train"]),
            run.validation_samples(best.task),
            batch_size=batch_size,
            say=report.print_line,
        )
    # A run that is resumed after its end already has a stacked model, which is replaced.
    if stack is not None or best.network is not best.model:
        write_stack(run.folder / "model", stack)
    best.network = stack or best.model


def _starts_trained(run: Training) -> bool:
    """Whether the user asked for a model whose weights are not all trained from random ones."""
    values = run.settings.values
    weights, finetune = values["weights"], run.finetune
    return bool(
        weights["source"]
        or weights["adapters"]
        or values.get("pretrain")
        or finetune.freeze is not None
        or finetune.rank
    )


def _validation_figures(folder: Path, state: State) -> dict[str, float]:
    """Return the validation metrics of the best epoch from the log, which a resumed run has too."""
    prefix = "validation/"
    figures: dict[str, float] = {}
    for row in read_log(folder / LOG):
        if row["epoch"] == state.best_epoch:
            names = [name for name in row if name.startswith(prefix)]
            figures |= {name.removeprefix(prefix): row[name] for name in names}
    return figures


def _how_to_continue(run: Training) -> str:
    if has_checkpoint(run.folder) or has_checkpoint(run.folder / PRETRAINING):
        return f"continue with: {resume(run.folder, run.settings)}"
    return "there is no checkpoint yet, so start the training again"
