"""The classical baseline of a run, which is trained beside its best model and mixed with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dxn.core.display import print_line
from dxn.core.files import MODEL
from dxn.runs.predictor.predictor import Predictor
from dxn.stacking.stacked import write_stack

if TYPE_CHECKING:
    from dxn.runs.prepare import Training


def add_baseline(run: Training, best: Predictor, *, batch_size: int) -> None:
    """Train a baseline, mix it with the best model of a run, and save it in the model folder."""
    choice = run.settings.values["baseline"]
    stack = None
    if choice == "auto" and _starts_trained(run):
        print_line(
            "note: no baseline, because the weights are not trained from the start; "
            "baseline=always trains one and mixes its output with that of the model"
        )
    elif choice != "none" and not run.loader.overfit:
        from dxn.stacking.train import train_stack

        stack = train_stack(
            best.model,
            best.task,
            best.task_samples(run.splits["train"]),
            run.validation_samples(best.task),
            batch_size=batch_size,
            say=print_line,
        )
        if stack is None and choice == "always":
            print_line(
                f"note: no baseline, because there is none for the output space of "
                f"head={best.task.name}, for these inputs, or for this number of rows"
            )
    # A run that is resumed after its end already has a stacked model, which is replaced.
    if stack is not None or best.network is not best.model:
        write_stack(run.folder / MODEL, stack)
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
