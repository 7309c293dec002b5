"""One training, from its settings to the metrics in its run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import torch
from safetensors.torch import load_file

from dxn.config.instantiate import build
from dxn.config.settings import Settings, plain
from dxn.core.display import duration, print_line
from dxn.core.errors import Interrupted, UserError
from dxn.core.files import MODEL, PRETRAINING, VALIDATION, WEIGHTS
from dxn.core.processes import from_all, from_first, launch, processes
from dxn.core.randomness import named_draws, seed_of
from dxn.core.results import Results, read_results
from dxn.models.model import MultimodalModel
from dxn.runs.folder import has_checkpoint, is_started
from dxn.runs.plan import continued, folder_before_restart
from dxn.runs.prepare import Training, prepare, run_finetune
from dxn.runs.record import best_figures, results_of
from dxn.tasks import Task
from dxn.training.limit import Limit
from dxn.training.loop import Fit
from dxn.training.optim import adamw, cosine
from dxn.training.parallel import connect, is_lost_connection
from dxn.training.trainer import Trainer

# Options of the trainer that are for the main task only, because they are tuned to its targets and
# its metric. Pretraining runs all of its epochs and does not average weights, and a masked sample
# has no target that mixup could mix.
MAIN_TASK_ONLY = {
    "patience": 0,
    "ema_decay": 0.0,
    "mixup": 0.0,
}

LATE = 0.1  # of the time limit, from which a note says so


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Args:
        folder: The run folder.
        results: Content of metrics.json. None in all processes except the main one.
        next_commands: Words of the commands that a user may want next, the most important one last.
    """

    folder: Path
    results: Results | None
    next_commands: Sequence[Sequence[str]]


def train_one(
    settings: Settings,
    *,
    members: int = 1,
    spent: tuple[int, float] = (0, 0.0),
    fitted_from: Path | None = None,
    on_epoch: Callable[[int, int, float], None] | None = None,
) -> Trained:
    """Train and evaluate a model, and write the run folder.

    Args:
        settings: The settings.
        members: Number of models of the ensemble that the model is a member of.
        spent: Number of members that were trained before, and their seconds. If they took longer
            than their part of the time limit, this one has less time.
        fitted_from: Run folder whose tokenizers and labels the model uses. Default: it has its own.
        on_epoch: Callback with the number of each epoch but the last one, the number of all epochs
            and the monitored metric. The model of such a trial is not evaluated: resuming the run
            does that.

    Raises:
        UserError: If the settings, the data or the weights cannot be used, or another process of
            the training has stopped.
        Interrupted: If the user interrupts the training. The message says how to continue it.
    """
    # torchrun starts the same command again after one of its processes was lost.
    if launch() is not None and not settings.is_resumed:
        folder = folder_before_restart(settings.values)
        settings = settings if folder is None else continued(folder, settings)
    started = perf_counter()
    device = connected(settings)
    run = None
    with ExitStack() as stack:
        try:
            run = prepare(settings, device, stack, members=members, fitted_from=fitted_from)
            trainer, task, config = run.trainer, run.task, run.plan.config
            # A run that was interrupted during pretraining has no checkpoint of the main task yet.
            # It resumes pretraining, and the main task starts from the beginning.
            is_resumed = settings.is_resumed
            # The clock of the first process decides.
            limit = run.limit(from_first(lambda: perf_counter() - started), members)
            if limit.before > limit.seconds / 2:
                print_line(
                    f"note: reading took {duration(limit.before)} of the time limit of "
                    f"{duration(limit.seconds)}"
                )
            number, seconds = spent
            late = from_first(lambda: seconds - number * limit.seconds)
            if late > 0:
                limit = replace(limit, before=limit.before + late)
            if late > LATE * limit.seconds:
                print_line(
                    f"note: the earlier members took {duration(late)} longer than their part of "
                    "the time limit, so this one has less time"
                )
            if run.pretraining is not None:
                is_resumed = is_resumed and has_checkpoint(run.folder)
                if not is_resumed:
                    pretrain(run, run.pretraining, limit)
                took = from_first(lambda: seconds_of_pretraining(run.folder))
                limit = replace(limit, before=limit.before + took)
                run_finetune(run, run.model)
            monitored = task.metric.monitored
            torch.manual_seed(seed_of(config["seed"], "training"))
            fit = Fit(
                trainer,
                run.model,
                task,
                # After fine-tuning: frozen weights are not optimized, and LoRA weights are.
                optimizer=run.optimizer(run.model),
                schedule=run.schedule,
                train=run.training_samples(task),
                validation=run.validation_samples(task),
                folder=run.folder,
                keep=lambda figures: save_best(run, run.folder, run.model, task, figures),
                batch_size=run.plan.batch_size,
                options=plain(run.settings.values),
            )
            state = fit.run(
                limit=limit,
                resume=is_resumed,
                on_epoch=on_epoch
                and (lambda epoch, figures: on_epoch(epoch, trainer.epochs, figures[monitored])),
            )
            # It knows how long the training was prepared for, also that of an earlier start.
            limit, evaluation_size, log = fit.limit, fit.evaluation_size, fit.log
            del fit  # the evaluation needs its memory
            # Each process has met the bad files of its own samples.
            bad_later = {name: split.bad_later for name, split in run.splits.items()}
            for bad_files in from_all(lambda: bad_later):
                for name, reasons in bad_files.items():
                    run.splits[name].bad_later.update(reasons)
            if not state.best_epoch:
                few = f"; rows with fewer than {task.min_inputs} inputs have no loss"
                raise UserError(
                    f"the validation {monitored} and loss were NaN in all "
                    f"{state.epoch} epochs, so there is no best epoch; lower optimizer.lr, and "
                    "look for extreme values with dxn check"
                    f"{few if task.min_inputs > 1 else ''}"
                )
            # Imported here, as it is needed only after the training.
            from dxn.runs.evaluation.after_training import evaluate
            from dxn.runs.evaluation.next_commands import next_commands

            if on_epoch is not None:
                figures = best_figures(run.folder, state)
                results = results_of(run, run.model, task, figures, state)
                count = state.validated or len(run.validation_samples(task) or ())
                results = results.model_copy(update={"evaluated": count})
                if trainer.hardware.is_main:
                    results.write(run.folder, VALIDATION)
            else:
                if trainer.hardware.is_main:
                    # The best trial of a search is evaluated after it.
                    (run.folder / VALIDATION).unlink(missing_ok=True)
                results = evaluate(run, state, limit, batch_size=evaluation_size, log=log)
        except KeyboardInterrupt as error:
            if run is None:
                raise
            stopped = error if isinstance(error, Interrupted) else Interrupted()
            raise Interrupted(f"{stopped}; {_how_to_continue(run)}", stopped.code) from None
        except RuntimeError as error:
            if not is_lost_connection(error):
                raise
            raise UserError(
                f"process {processes()[0]}: lost the connection to another "
                "process of this training, whose own message says why; continue from the last "
                "checkpoint with resume="
            ) from error
    return Trained(run.folder, results, next_commands(run))


def connected(settings: Settings) -> torch.device:
    """Connect the processes that torchrun started, and return the device of this one."""
    try:
        return connect(settings.values["trainer"]["device"])
    except ValueError as error:
        raise UserError(f"trainer.{error}") from error


def pretrain(run: Training, task: Task, limit: Limit) -> None:
    """Train the adapters, the fusion and the backbone of the run's model in place.

    The node `pretrain` of the configuration (conf/pretrain/masked.yaml) has the number of epochs,
    the peak learning rate, the warmup (the fraction of the steps in which the learning rate
    increases from 0) and the task. All other options are those of the main training.

    Pretraining has its own log and checkpoints in RUN/pretrain. It continues from its last
    checkpoint if the run is resumed. Afterwards, the model has the weights of its best epoch.

    Args:
        run: The prepared run. The head of its model is not changed.
        task: Task to pretrain on, bound to the model's adapters.
        limit: Time limit of the command. Pretraining ends after half of it.
    """
    config = run.plan.config
    options = config["pretrain"]
    folder = run.folder / PRETRAINING
    node = {**config["trainer"], **MAIN_TASK_ONLY, "epochs": options["epochs"]}
    # The precision that is printed.
    node["precision"] = run.plan.precision
    trainer: Trainer = build(node, key="trainer", trust=run.settings.trust)
    model = run.model
    adapters = {name: model.adapter(name) for name in model.inputs}
    dim = next(iter(adapters.values())).dim
    with named_draws(config["seed"], "pretrain.task"):
        head = task.make_head(dim, model.fusion.width, adapters)
    student = MultimodalModel(
        {model.inputs[name]: adapter for name, adapter in adapters.items()},
        inputs=model.inputs,
        fusion=model.fusion,
        backbone=model.backbone,
        head=head,
    )
    torch.manual_seed(seed_of(config["seed"], PRETRAINING))
    fit = Fit(
        trainer,
        student,
        task,
        optimizer=adamw(lr=options["lr"])(student),
        schedule=cosine(warmup=options["warmup"]),
        train=run.training_samples(task),
        validation=run.validation_samples(task),
        folder=folder,
        keep=lambda figures: save_best(run, folder, student, task, figures),
        batch_size=run.plan.batch_size,
        name="pretraining",
    )
    half = None if limit.minutes is None else limit.minutes / 2
    state = fit.run(limit=Limit(half), resume=run.settings.is_resumed)
    # The weights of the best epoch, which need not be the last one.
    best = from_first(lambda: load_file(folder / MODEL / WEIGHTS))
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name in best and not name.startswith("head."):
                tensor.copy_(best[name])
    if trainer.hardware.is_main:
        results_of(run, student, task, best_figures(folder, state), state).write(folder)


def seconds_of_pretraining(folder: Path) -> float:
    """Return how long the pretraining of a run took, in seconds."""
    results = read_results(folder / PRETRAINING)
    return (results and results.train_seconds) or 0.0


def save_best(
    run: Training, folder: Path, model: MultimodalModel, task: Task, figures: Mapping[str, float]
) -> None:
    """Save the model of the best epoch so far, in the main process.

    Args:
        run: The training.
        folder: The run folder, or that of its pretraining.
        model: The model to save.
        task: Its task.
        figures: Validation metrics of this epoch.
    """
    if not run.trainer.hardware.is_main:
        return
    from dxn.runs.saved import model_folder
    from dxn.runs.saved.card import card_of

    card = card_of(run, task)
    text = card.markdown(results_of(run, model, task, figures))
    model_folder.save(folder / MODEL, model=model, plan=card.plan, task=task, card=text)


def _how_to_continue(run: Training) -> str:
    from dxn.runs.evaluation.next_commands import resume

    if is_started(run.folder):
        return f"continue with: {resume(run.folder, run.settings)}"
    return "there is no checkpoint yet, so start the training again"
