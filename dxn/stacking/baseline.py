"""The baseline of a training: a small classical model beside the transformer (baseline=auto)."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dxn.core.display import duration
from dxn.data.dataset import Samples
from dxn.data.reading import Opened
from dxn.models import Model
from dxn.models.model import Batch
from dxn.models.past_regression import PastRegression
from dxn.runs.evaluation import printing as report
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.prepared import Prepared
from dxn.runs.saved import model_folder
from dxn.stacking.features import Features, model_features
from dxn.stacking.fit import fit_baseline, fit_mix
from dxn.stacking.mixture import Baseline
from dxn.tasks import Task
from dxn.training.evaluate import Predictions, as_float, run_batches, score
from dxn.training.state import State

AUTO, NONE = "auto", "none"  # values of the option `baseline`; the third one is "always"
# A transformer that is trained on more rows needs no baseline, and the baseline would take minutes.
MAX_ROWS = 50_000
MIN_ROWS = 10  # fewer cannot be divided into the rows that train a model and those that score it
# Dense features of all rows: 800 MB in float32.
MAX_NUMBERS = 200_000_000
# Counted features of all rows, of about 37 million characters. Training needs 61 bytes for each.
MAX_COUNTED = 120_000_000
MAX_PROBED = 64  # rows from which the number of counted features of all rows is estimated
# Names of the parts of an evaluated model, and of their weighted sum.
TRANSFORMER, BASELINE, MIXTURE = "transformer alone", "baseline alone", "mixture"

# A transformer whose best epoch is in this first part of the training does not lack epochs.
EARLY = 0.5

Figures = dict[str, dict[str, float]]


def add_baseline(run: Prepared, best: Predictor, *, batch_size: int) -> None:
    """Train a baseline, mix it with the best model of a run, and save both in its model folder.

    Args:
        run: The run. Its configuration and its data decide whether there is a baseline.
        best: The best model of the run, which gets the baseline and the factors of both.
        batch_size: Number of samples per batch.
    """
    # A run that is resumed after its end already has a baseline.
    best.model.set_baseline(None, None)
    baseline = train_baseline(run, best, batch_size=batch_size)
    if baseline is None:
        if run.settings.values["baseline"] == AUTO and _starts_trained(run):
            report.print_line(
                "note: no baseline, because the weights are not trained from the start; "
                "baseline=always trains one and mixes its output with that of the model"
            )
        return
    mix = torch.tensor([1.0, 0.0], device=best.device)
    best.model.set_baseline(baseline, mix)
    validation = run.validation_samples(best.task)
    if validation is not None:
        mix = mix.new_tensor(mix_with(best, validation, batch_size=batch_size))
        best.model.set_baseline(baseline, mix)
    report.print_line(_about_mix(best.model, validation is not None))
    saved = baseline if mix[1] > 0 else None
    model_folder.save_baseline(run.folder / "model", saved, mix, trust=run.settings.trust)


def train_baseline(
    run: Prepared, best: Predictor, *, batch_size: int
) -> Baseline | PastRegression | None:
    """Train a baseline on the training split of a run, and print its name.

    Args:
        run: The run.
        best: A model of the run, whose adapters compute the features.
        batch_size: Number of samples per batch.

    Returns:
        None if the user, the task or the inputs of the run want no baseline.
    """
    train = run.data.splits["train"]
    if not _is_wanted(run, train):
        return None
    started = time.perf_counter()
    task = best.task
    with torch.no_grad():
        baseline = task.make_baseline(train.targets or (), best.adapters)
        if baseline is None:
            baseline = _learn_scores(best, train, batch_size=batch_size)
    if baseline is None:
        return None
    took = duration(time.perf_counter() - started)
    report.print_line(f"baseline: {baseline.about}, trained {took}")
    return baseline.to(best.device)


def _learn_scores(best: Predictor, train: Opened, *, batch_size: int) -> Baseline | None:
    """Train a baseline on features of the inputs; None if the task or the inputs have none."""
    task = best.task
    samples = best.task_samples(train)
    _limit_counted(best, samples, batch_size=batch_size)
    rows, features = collect(best, samples, batch_size=batch_size)
    if not any(each.counted or each.dense.shape[1] for each in features.values()):
        return None
    learned = task.score_targets([(train.targets or ())[row] for row in rows])
    if learned is None:
        return None
    target = _task_batch(task, samples, rows)["target"]

    def loss_of_rows(output: Tensor, chosen: Tensor) -> Tensor:
        return task.loss(output, {"#size": len(chosen), "target": target[chosen]}).mean

    return fit_baseline(features, learned, loss_of_rows)


def _limit_counted(best: Predictor, samples: Samples, *, batch_size: int) -> None:
    """Keep as many samples as have MAX_COUNTED counted features, spread over all of them."""
    few = copy.copy(samples)
    few.keep(MAX_PROBED)
    _, features = collect(best, few, batch_size=batch_size)
    counted = [block for summary in features.values() for block in summary.counted]
    per_sample = sum(block.shape[1] for block in counted) / len(few)
    count = max(int(MAX_COUNTED / max(per_sample, 1)), MIN_ROWS)
    if count < len(samples):
        report.print_line(
            f"note: the baseline learns from {count:,} of {len(samples):,} rows, because the texts "
            "are long"
        )
        samples.keep(count)


def mix_with(predictor: Predictor, samples: Samples, *, batch_size: int) -> tuple[float, float]:
    """Return the factors of the head and of the baseline with the lowest loss, see `fit_mix`."""
    task = predictor.task
    rows, heads, baselines, kept = _outputs(predictor, samples, batch_size)
    batch = kept | _task_batch(task, samples, rows)
    learned = task.score_targets([(samples.opened.targets or ())[row] for row in rows])
    return fit_mix(
        heads,
        baselines,
        lambda output: task.loss(output, batch).mean,
        are_classes=learned is not None and learned.are_classes,
        are_forecasts=learned is None,
    )


def figures_alone(predictor: Predictor, samples: Samples, *, batch_size: int) -> Figures:
    """Return the metrics of the transformer without the baseline, and of the baseline alone.

    Empty if the model has no baseline.

    Args:
        predictor: The model.
        samples: Samples with targets.
        batch_size: Number of samples per batch.
    """
    model, task = predictor.model, predictor.task
    if all(each.baseline is None for each in predictor.models):
        return {}
    rows, heads, baselines, kept = _outputs(predictor, samples, batch_size)
    batch = kept | _task_batch(task, samples, rows)
    results: Figures = {}
    for name, output in ((TRANSFORMER, heads), (BASELINE, baselines)):
        predicted = task.predict(model.head, output, batch)
        predictions = Predictions(rows, predicted, float(task.loss(output, batch).mean))
        results[name] = score(predictions, samples, task)
    return results


def baseline_figures(predictor: Predictor) -> dict[str, object]:
    """Return the keys of metrics.json that describe the baseline of a model.

    An ensemble has only "answers", because each member has its own baseline and factors.
    """
    model = predictor.model
    answers = answering(predictor)
    if answers is None or predictor.num_members > 1 or model.baseline is None or model.mix is None:
        return {} if answers is None else {"answers": answers}
    mix = [round(x, 4) for x in model.mix.tolist()]
    return {"answers": answers, "baseline": model.baseline.about, "mix": mix}


def answering(predictor: Predictor) -> str | None:
    """Return which part of a model answers: TRANSFORMER or MIXTURE. None without a baseline."""
    models = [each for each in predictor.models if each.baseline is not None]
    if not models:
        return None
    is_mixed = any(each.mix is not None and each.mix[1] > 0 for each in models)
    return MIXTURE if is_mixed else TRANSFORMER


def warn_about(
    results: Figures, task: Task, state: State, *, max_minutes: float | None
) -> list[str]:
    """Return a warning if the baseline is better than the transformer, with advice that fits.

    Args:
        results: Metrics by the name of the row, see `figures_alone`.
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


def collect(
    predictor: Predictor, samples: Samples, *, batch_size: int
) -> tuple[list[int], dict[str, Features]]:
    """Compute the features of all samples, without augmentation.

    Returns:
        The row of each sample in its split, and the features on the CPU, by input name. Samples
        that lack an input have NaN. Both are empty if the features would need too much memory.
    """
    model = predictor.model

    def run(batch: Batch) -> tuple[list[int], dict[str, Features]]:
        return batch["#index"], {n: _compact(s) for n, s in model_features(model, batch).items()}

    rows: list[int] = []
    parts: dict[str, list[tuple[int, Features]]] = {}
    with torch.inference_mode():
        for index, features in run_batches(run, samples, batch_size, device=predictor.device):
            for name, summary in features.items():
                parts.setdefault(name, []).append((len(rows), summary))
            rows += index
            width = sum(each[0][1].dense.shape[1] for each in parts.values())
            if width * len(samples) > MAX_NUMBERS:
                return [], {}
    # In the order of the model, although the first batch can lack an input.
    joined = {name: _joined(parts[name], len(rows)) for name in model.inputs if name in parts}
    return rows, joined


def _is_wanted(run: Prepared, train: Opened) -> bool:
    """Whether a baseline can be trained, and the user wants one."""
    choice = run.settings.values["baseline"]
    if choice == NONE or run.loader.overfit or (choice == AUTO and _starts_trained(run)):
        return False
    return train.targets is not None and MIN_ROWS <= len(train) < MAX_ROWS


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


def _compact(summary: Features) -> Features:
    """Return the summary on the CPU, with counted features in int32: half of the memory."""
    counted = tuple(block.int().cpu() for block in summary.counted)
    return Features(summary.about, summary.dense.float().cpu(), counted)


def _joined(parts: Sequence[tuple[int, Features]], size: int) -> Features:
    """Join the features of batches, each with the number of the samples before it."""
    first = parts[0][1]
    dense = torch.full((size, first.dense.shape[1]), torch.nan)
    blocks: list[list[Tensor]] = [[] for _ in first.counted]
    for start, summary in parts:
        dense[start : start + len(summary.dense)] = summary.dense
        for block, (rows, codes) in zip(blocks, summary.counted, strict=True):
            block.append(torch.stack([rows + start, codes]))
    return Features(first.about, dense, tuple(torch.cat(block, 1) for block in blocks))


def _outputs(
    predictor: Predictor, samples: Samples, batch_size: int
) -> tuple[list[int], Tensor, Tensor, dict[str, Any]]:
    """Return the row of each sample, and the outputs (n, K) of the head and of the baseline.

    Those of the members of an ensemble are combined. The last item is that of `Task.kept`.
    """
    models, task = predictor.models, predictor.task

    def run(batch: Batch) -> tuple[list[int], Tensor, Tensor, dict[str, Any]]:
        heads = [as_float(model.head_output(batch)) for model in models]
        # A member whose baseline does not lower the loss is saved without it.
        others = [model.baseline_output(batch) for model in models if model.baseline is not None]
        is_ensemble = len(models) > 1
        head = task.combine(heads) if is_ensemble else heads[0]
        other = task.combine(others) if is_ensemble else others[0]
        return batch["#index"], head.cpu(), other.cpu(), task.kept(batch)

    with torch.inference_mode():
        parts = list(run_batches(run, samples, batch_size, device=predictor.device))
    rows = [row for index, _, _, _ in parts for row in index]
    # Joined outside of the inference mode, whose tensors cannot be used to compute gradients.
    heads = torch.cat([head for _, head, _, _ in parts])
    baselines = torch.cat([baseline for _, _, baseline, _ in parts])
    names = parts[0][3]
    kept = {
        name: {key: torch.cat([part[3][name][key].cpu() for part in parts]) for key in names[name]}
        for name in names
    }
    return rows, heads, baselines, kept


def _task_batch(task: Task, samples: Samples, rows: Sequence[int]) -> dict[str, Any]:
    """Return a batch with the targets of these rows, for the loss."""
    targets = samples.opened.targets or ()
    encoded = [task.encode(targets[row]) for row in rows]
    return {"#size": len(rows), "target": task.collate(encoded)}


def _about_mix(model: Model, is_validated: bool) -> str:
    if not is_validated or model.mix is None:
        return (
            "note: the transformer answers; there is no validation split that could show how to "
            "mix it with the baseline"
        )
    own, other = model.mix.tolist()
    if not other:
        return (
            f"note: the transformer answers, scaled by {own:.2f}; the baseline does not lower the "
            "validation loss"
        )
    return (
        f"note: the mixture answers: {model.formula()}; its factors have the lowest validation loss"
    )
