"""One training, from its settings to the metrics in its run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dxn.config.instantiate import build
from dxn.core.errors import Interrupted, UserError
from dxn.core.randomness import seed_of
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
from dxn.runs.members import Member
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.prepare import prepare, run_finetune
from dxn.runs.prepared import Prepared
from dxn.runs.pretrain import pretrain
from dxn.runs.record import read_decisions
from dxn.runs.saved import model_folder
from dxn.runs.saved.card import Card
from dxn.runs.settings import Settings
from dxn.stacking.files import write_stack
from dxn.stacking.metrics import about_stack, warn_about
from dxn.stacking.stacked import formula_of
from dxn.stacking.train import train_stack
from dxn.training.distributed import is_lost_connection
from dxn.training.log import read_log
from dxn.training.state import State
from dxn.training.trainer import Trainer

LOG = "metrics.jsonl"


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
    # The trainer first, because it starts the process group.
    trainer: Trainer = build(_trainer_node(settings), key="trainer", trust=settings.trust)
    with ExitStack() as stack:
        try:
            run = prepare(settings, trainer, stack, member)
            return _train_and_evaluate(run.trainer, run)
        except RuntimeError as error:
            if not is_lost_connection(error):
                raise
            raise UserError(
                f"process {trainer.accelerator.process_index}: lost the connection to another "
                "process of this training, whose own message says why; continue from the last "
                "checkpoint with resume="
            ) from error


def _trainer_node(settings: Settings) -> dict[str, Any]:
    """Return the configuration of the trainer, with the precision that a run measured before."""
    node = settings.values["trainer"]
    if not settings.is_resumed or node.get("precision", "auto") != "auto":
        return node
    decisions = read_decisions(Path(settings.values["resume"]["run"]))
    return {**node, "precision": decisions.precision}


def _train_and_evaluate(trainer: Trainer, run: Prepared) -> Trained:
    card = run.card(run.model, run.task, run.settings.values["head"], run.name)
    try:
        state = _train(trainer, run, card)
        # Only the main process evaluates: metrics such as F1 need all predictions in one
        # process.
        trainer.accelerator.end_training()
        metrics = _evaluate(trainer, run, state, card) if trainer.main else {}
    except Interrupted as error:
        raise Interrupted(f"{error}; {_how_to_continue(run)}", error.code) from None
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {_how_to_continue(run)}") from None
    return Trained(
        folder=run.folder,
        metrics=metrics,
        monitored=run.task.monitored,
        higher_is_better=run.task.higher_is_better,
        next_commands=next_commands(run),
    )


def _train(trainer: Trainer, run: Prepared, card: Card) -> State:
    """Pretrain if the run has pretraining, then train, and save the best epoch in model/."""
    # A run that was interrupted during pretraining has no checkpoint of the main task yet. It
    # resumes pretraining, and the main task starts from the beginning.
    resume = run.settings.is_resumed and (has_checkpoint(run.folder) or run.pretraining is None)
    if run.pretraining is not None:
        if not resume:
            pretrain(run, run.pretraining)
        run_finetune(run.finetune, run.model, run.loaded, run.settings.values["seed"])

    def save_best(figures: Mapping[str, float]) -> None:
        if trainer.main:
            run.save_model(run.folder / "model", run.model, card, figures)

    torch.manual_seed(seed_of(run.settings.values["seed"], "training"))
    state = trainer.fit(
        run.model,
        run.task,
        # After fine-tuning: frozen weights are not optimized, and LoRA weights are.
        optimizer=run.make_optimizer(run.model),
        schedule=run.schedule,
        train=run.training_samples(run.task),
        validation=run.validation_samples(run.task),
        folder=run.folder,
        keep=save_best,
        resume=resume,
        batch_size=run.batch_size,
        num_workers=run.loader.num_workers,
        timeout=run.loader.timeout,
        options=run.settings.plain(),
    )
    if not state.best_epoch:
        raise UserError(
            f"the validation {run.task.monitored} and loss were NaN in all {state.epoch} epochs, "
            "so there is no best epoch; lower optimizer.lr, and look for extreme values with dxn "
            "check"
        )
    return state


def _evaluate(trainer: Trainer, run: Prepared, state: State, card: Card) -> dict[str, Any]:
    """Evaluate the saved model, and write metrics.json and the final model card.

    The model folder is loaded in the same way as by `dxn.load`, so that the metrics are those of
    the files that the user gets.
    """
    for line in about_epochs(state, run):
        report.print_line(line)
    splits = run.data.splits
    best = model_folder.load(
        run.folder / "model", device=str(trainer.accelerator.device), trust=run.settings.trust
    )
    best.task.own_metrics = run.task.own_metrics
    split = default_split(splits)
    # Without gradients and optimizer state, twice the batch size fits in memory.
    batch_size = 2 * trainer.batch_size
    _stack(run, best, batch_size=batch_size)
    recorder = Recorder()
    results = evaluate_subsets(
        best, splits[split], split, run.folder, batch_size=batch_size, record=recorder
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
        "shown": run.task.shown(results[ALL]),
        "precision": "bf16" if trainer.bf16 else "float32",
        "rows": run.sizes,
        "skipped": {name: opened.skipped for name, opened in splits.items()},
        "missing": {name: dict(opened.missing) for name, opened in splits.items()},
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


def _stack(run: Prepared, best: Predictor, *, batch_size: int) -> None:
    """Train a baseline, mix it with the best model of a run, and save it in the model folder."""
    choice = run.settings.values["baseline"]
    stack = None
    if choice == "auto" and _starts_trained(run):
        report.print_line(
            "note: no baseline, because the weights are not trained from the start; "
            "baseline=always trains one and mixes its output with that of the model"
        )
    elif choice != "none" and not run.loader.overfit:
        stack = train_stack(
            best.model,
            best.task,
            best.task_samples(run.data.splits["train"]),
            run.validation_samples(best.task),
            batch_size=batch_size,
            say=report.print_line,
        )
    # A run that is resumed after its end already has a stacked model, which is replaced.
    if stack is not None or best.network is not best.model:
        write_stack(run.folder / "model", stack)
    best.network = stack or best.model


def _starts_trained(run: Prepared) -> bool:
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


def _how_to_continue(run: Prepared) -> str:
    # Pretraining can always be resumed: it starts again if it has no checkpoint either.
    if has_checkpoint(run.folder) or run.pretraining is not None:
        return f"continue with: {resume(run.folder, run.settings)}"
    return "there is no checkpoint yet, so start the training again"
