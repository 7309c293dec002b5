"""Which part of a stacked model answers, and the metrics of each part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dxn.core.display import number
from dxn.core.results import ALL
from dxn.data.dataset import Samples
from dxn.models.model import Batch, Network, as_float
from dxn.stacking.stacked import Stacked, stacks_of
from dxn.tasks import Task
from dxn.training.predict import Predictions, run_batches, score
from dxn.training.state import State

# Names of the parts of an evaluated model, and of their weighted sum.
TRANSFORMER, BASELINE, MIXTURE = "transformer alone", "baseline alone", "mixture"
# A transformer whose best epoch is in this first part of the training does not lack epochs.
EARLY = 0.5


def metrics_of_parts(
    network: Network, task: Task, samples: Samples, *, batch_size: int
) -> dict[str, dict[str, float]]:
    """Return the metrics of the transformer without the baseline, and of the baseline alone.

    Empty if the network has no baseline. The processes share the batches, and the first one gets
    the metrics.

    Args:
        network: The network.
        task: Its task.
        samples: Samples with targets.
        batch_size: Number of samples per batch.
    """
    if answering(network) is None:
        return {}

    def run(batch: Batch) -> tuple[list[int], list[tuple[list[Any], float, float]]]:
        parts = []
        for output in outputs_of_parts(network, task, batch):
            total, weight = task.loss(output, batch)
            predicted = task.predict(network.models[0].head, output, batch)
            parts.append((predicted, float(total), float(weight)))
        return batch["#index"], parts

    device = next(network.parameters()).device
    with torch.inference_mode():
        batches = list(run_batches(run, samples, batch_size, device=device, divided=True))
    if not batches:
        return {}
    rows = [row for index, _ in batches for row in index]
    results: dict[str, dict[str, float]] = {}
    for i, name in enumerate((TRANSFORMER, BASELINE)):
        predicted = [answer for _, parts in batches for answer in parts[i][0]]
        weight = sum(parts[i][2] for _, parts in batches)
        loss = sum(parts[i][1] for _, parts in batches) / weight if weight else math.nan
        results[name] = score(Predictions(rows, predicted, loss), samples, task)
    return results


def about_stack(network: Network) -> dict[str, Any]:
    """Return the fields of `Results` that describe the baseline of a network.

    An ensemble has only "answers", because each member has its own baseline and factors.
    """
    answers = answering(network)
    if answers is None or not isinstance(network, Stacked) or network.baseline is None:
        return {"answers": answers}
    mix = [round(x, 4) for x in network.mix.tolist()]
    baseline, formula = network.baseline.about, network.formula()
    return {"answers": answers, "baseline": baseline, "mix": mix, "formula": formula}


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
    """Return warnings if the baseline is better than the answers or the transformer, with advice.

    Args:
        results: Metrics by the name of the row, see `metrics_of_parts`.
        task: The task, whose monitored metric is compared.
        state: State of the finished training.
        max_minutes: Time limit of the training.
    """
    if TRANSFORMER not in results:
        return []
    metric = task.metric.monitored
    transformer = results[TRANSFORMER].get(metric, math.nan)
    baseline = results[BASELINE].get(metric, math.nan)
    answers = results.get(ALL, {}).get(metric, math.nan)
    lines: list[str] = []
    if answers != transformer and task.metric.is_better(baseline, answers):
        lines.append(
            f"warning: the baseline alone is better than the answers, which mix it with the "
            f"transformer ({metric} {number(baseline)} and {number(answers)}); the factors come "
            "from the validation split: use a larger one (data.fractions)"
        )
    # Equal metrics, such as two perfect ones, need no advice.
    if not task.metric.is_better(baseline, transformer):
        return lines
    pair = f"{metric} {number(baseline)} and {number(transformer)}"
    line = f"warning: the baseline is better than the transformer ({pair})"
    if state.best_epoch <= EARLY * state.epoch:
        return [
            *lines,
            f"{line}, which was best in epoch {state.best_epoch} of {state.epoch} and did not "
            "improve after it; collect more rows, or start from public weights (weights=..., see "
            "docs/public-models.md)",
        ]
    options = "trainer.epochs" if max_minutes is None else "trainer.max_minutes, trainer.epochs"
    return [*lines, f"{line}; train longer ({options}), or collect more rows"]


def outputs_of_parts(network: Network, task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the outputs (B, ...) of the model and of the baseline; members are combined."""
    # A member whose baseline does not lower the loss is saved without it.
    stacks = {s.model: s for s in stacks_of(network) if s.baseline is not None}
    outputs: list[Tensor] = []
    baseline_outputs: list[Tensor] = []
    for model in network.models:
        stack = stacks.get(model)
        read = batch if stack is None else stack.encode_once(batch)
        outputs.append(as_float(model(read)))
        if stack is not None:
            baseline_outputs.append(stack.baseline_output(read))
    if len(outputs) == 1:
        return outputs[0], baseline_outputs[0]
    assert task.space is not None
    return task.space.mean(outputs), task.space.mean(baseline_outputs)
