"""Which part of a stacked model answers, and the metrics of each part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dxn.data.dataset import Samples
from dxn.models.model import Batch, Network
from dxn.stacking.stacked import Stacked, stacks_of
from dxn.stacking.targets import kept_of_batch
from dxn.tasks import Task
from dxn.training.evaluate import Predictions, as_float, run_batches, score
from dxn.training.state import State

# Names of the parts of an evaluated model, and of their weighted sum.
TRANSFORMER, BASELINE, MIXTURE = "transformer alone", "baseline alone", "mixture"
# A transformer whose best epoch is in this first part of the training does not lack epochs.
EARLY = 0.5


def metrics_of_parts(
    network: Network, task: Task, samples: Samples, *, batch_size: int
) -> dict[str, dict[str, float]]:
    """Return the metrics of the transformer without the baseline, and of the baseline alone.

    Empty if the network has no baseline.

    Args:
        network: The network.
        task: Its task.
        samples: Samples with targets.
        batch_size: Number of samples per batch.
    """
    if answering(network) is None:
        return {}
    rows, own, other, batch = output_of_parts(network, task, samples, batch_size)
    results: dict[str, dict[str, float]] = {}
    for name, output in ((TRANSFORMER, own), (BASELINE, other)):
        predicted = task.predict(network.models[0].head, output, batch)
        predictions = Predictions(rows, predicted, float(task.loss(output, batch).mean))
        results[name] = score(predictions, samples, task)
    return results


def about_stack(network: Network) -> dict[str, object]:
    """Return the keys of metrics.json that describe the baseline of a network.

    An ensemble has only "answers", because each member has its own baseline and factors.
    """
    answers = answering(network)
    if answers is None:
        return {}
    if not isinstance(network, Stacked) or network.baseline is None:
        return {"answers": answers}
    mix = [round(x, 4) for x in network.mix.tolist()]
    return {"answers": answers, "baseline": network.baseline.about, "mix": mix}


def answering(network: Network) -> str | None:
    """Return which part of a network answers: TRANSFORMER or MIXTURE. None without a baseline."""
    stacks = [stack for stack in stacks_of(network) if stack.baseline is not None]
    if not stacks:
        return None
    return MIXTURE if any(stack.mix[1] > 0 for stack in stacks) else TRANSFORMER


def warn_about(
    results: Mapping[str, Mapping[str, float]],
    task: Task,
    state: State,
    *,
    max_minutes: float | None,
) -> list[str]:
    """Return a warning if the baseline is better than the transformer, with advice that fits.

    Args:
        results: Metrics by the name of the row, see `metrics_of_parts`.
        task: The task, whose monitored metric is compared.
        state: State of the finished training.
        max_minutes: Time limit of the training.
    """
    if TRANSFORMER not in results:
        return []
    metric = task.monitored
    own, other = (results[name].get(metric, math.nan) for name in (TRANSFORMER, BASELINE))
    # Equal metrics, such as two perfect ones, need no advice.
    if not task.is_better(other, own):
        return []
    line = (
        f"warning: the baseline is better than the transformer ({metric} {other:.4f} and {own:.4f})"
    )
    if state.best_epoch <= EARLY * state.epoch:
        return [
            f"{line}, which was best in epoch {state.best_epoch} of {state.epoch} and overfits "
            "after it; collect more rows, or start from public weights (weights=..., see "
            "docs/public-models.md)"
        ]
    options = "trainer.epochs" if max_minutes is None else "trainer.max_minutes, trainer.epochs"
    return [f"{line}; train longer ({options}), or collect more rows"]


def output_of_parts(
    network: Network, task: Task, samples: Samples, batch_size: int
) -> tuple[list[int], Tensor, Tensor, dict[str, Any]]:
    """Return the outputs of the models and of the baselines; those of members are combined.

    Returns:
        The row of each sample, the outputs (n, ...) of the model and of the baseline, and a batch
        with what the loss needs.
    """
    models = network.models
    # A member whose baseline does not lower the loss is saved without it.
    stacks = [stack for stack in stacks_of(network) if stack.baseline is not None]
    is_ensemble = len(models) > 1

    def run(batch: Batch) -> tuple[list[int], Tensor, Tensor, dict[str, Any]]:
        own = [as_float(model(batch)) for model in models]
        other = [stack.baseline_output(batch) for stack in stacks]
        output = task.combine(own) if is_ensemble else own[0]
        baseline_output = task.combine(other) if is_ensemble else other[0]
        return batch["#index"], output.cpu(), baseline_output.cpu(), kept_of_batch(task, batch)

    device = next(network.parameters()).device
    with torch.inference_mode():
        parts = list(run_batches(run, samples, batch_size, device=device))
    rows = [row for index, _, _, _ in parts for row in index]
    # Joined outside of the inference mode, whose tensors cannot be used to compute gradients.
    outputs = torch.cat([own for _, own, _, _ in parts])
    baseline_outputs = torch.cat([other for _, _, other, _ in parts])
    names = parts[0][3]
    kept = {
        name: {key: torch.cat([part[3][name][key].cpu() for part in parts]) for key in names[name]}
        for name in names
    }
    return rows, outputs, baseline_outputs, kept | task_batch(task, samples, rows)


def task_batch(task: Task, samples: Samples, rows: Sequence[int]) -> dict[str, Any]:
    """Return a batch with the targets of these rows, for the loss."""
    targets = samples.opened.targets or ()
    encoded = [task.encode(targets[row]) for row in rows]
    return {"#size": len(rows), "target": task.collate(encoded)}
