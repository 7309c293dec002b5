"""One training, from its settings to the metrics in its run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dxn.instantiate import build
from dxn.run import model_folder, report
from dxn.run.evaluation import by_split, default_split, evaluate_subsets
from dxn.run.prepare import Prepared, prepare
from dxn.run.pretraining import pretrain
from dxn.run.settings import Settings
from dxn.train.checkpoint import NAME as CHECKPOINT
from dxn.train.progress import duration
from dxn.train.trainer import State, Trainer


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Args:
        folder: The run folder.
        metrics: Content of metrics.json. Empty in all processes except the main one.
    """

    folder: Path
    metrics: Mapping[str, Any]


def train_one(settings: Settings) -> Trained:
    """Train and evaluate a model, and write the run folder.

    Raises:
        UserError: If the settings, the data or the weights cannot be used.
    """
    # The trainer first: it starts the process group, and only the main process may print.
    trainer: Trainer = build(settings.values["trainer"], key="trainer", trust=settings.trust)
    with report.quiet(not trainer.main):
        # Before anything is built: the seed determines the initial weights.
        torch.manual_seed(settings.values["seed"])
        run = prepare(settings, trainer)
        state = _train(trainer, run)
        # Only the main process evaluates: metrics such as F1 need all predictions in one process.
        trainer.accelerator.end_training()
        metrics = _evaluate(trainer, run, state) if trainer.main else {}
        return Trained(run.folder, metrics)


def _train(trainer: Trainer, run: Prepared) -> State:
    """Pretrain if the run has pretraining, then train, and save the best epoch in model/."""
    config = run.settings.values
    trust = run.settings.trust
    # A run that was interrupted during pretraining has no checkpoint of the main task yet. It
    # resumes pretraining, and the main task starts from the beginning.
    has_checkpoint = (run.folder / "checkpoints" / CHECKPOINT).exists()
    resume = bool(config["resume"]) and (has_checkpoint or run.pretraining is None)
    if run.pretraining is not None:
        if not resume:
            pretrain(run, run.pretraining)
        run.finetune(run.model, run.loaded)

    def save_best(figures: Mapping[str, float]) -> None:
        if trainer.main:
            folder = run.folder / "model"
            title = run.folder.parent.name
            run.save_model(folder, run.model, run.task, config["head"], figures, title=title)

    return trainer.fit(
        run.model,
        run.task,
        # After fine-tuning: frozen weights are not optimized, and LoRA weights are.
        optimizer=build(config["optimizer"], key="optimizer", trust=trust, model=run.model),
        schedule=build(config["scheduler"], key="scheduler", trust=trust),
        train=run.training_samples(run.task),
        validation=run.validation_samples(run.task),
        folder=run.folder,
        keep=save_best,
        resume=resume,
        num_workers=run.loader.num_workers,
    )


def _evaluate(trainer: Trainer, run: Prepared, state: State) -> dict[str, Any]:
    """Evaluate the saved model, and write metrics.json.

    The model folder is loaded in the same way as by `dxn.load`, so that the metrics are those of
    the files that the user gets.
    """
    took = duration(state.seconds)
    report.print_line(f"trained {took}, best epoch {state.best_epoch} of {state.epoch}")
    splits = run.data.splits
    best = model_folder.load(
        run.folder / "model", device=str(trainer.accelerator.device), trust=run.settings.trust
    )
    split = default_split(splits)
    # Without gradients and optimizer state, twice the batch size fits in memory.
    batch_size = 2 * trainer.batch_size
    results = evaluate_subsets(best, splits[split], split, run.folder, batch_size=batch_size)
    extra = {
        **report.training_figures(state, run.model),
        "precision": "bf16" if trainer.bf16 else "float32",
        "rows": run.sizes,
        "skipped": {name: opened.skipped for name, opened in splits.items()},
        "missing": {name: dict(opened.missing) for name, opened in splits.items()},
        "truncated": {name: asdict(truncation) for name, truncation in run.truncations.items()},
    }
    path: Path = run.folder / "metrics.json"
    report.write_metrics(path, by_split(split, results), extra)
    # Read back, so that `metrics` is exactly what the file contains, such as lists for tuples.
    return json.loads(path.read_text(encoding="utf-8"))
