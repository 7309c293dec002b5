"""The training of a classical model beside a trained one, and the factors of both."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch import Tensor

from dxn.core.display import duration
from dxn.data.dataset import Samples
from dxn.models.model import Batch, MultimodalModel
from dxn.stacking.features import COLUMNS, ENCODER, Features, features_of, model_features
from dxn.stacking.fit import InputKind, fit_baseline, fit_mix
from dxn.stacking.metrics import outputs_of_parts
from dxn.stacking.modules import Baseline, ScoreTargets
from dxn.stacking.past import fit_past_regression
from dxn.stacking.stacked import Stacked
from dxn.tasks import Number, Quantiles, Task
from dxn.tasks.metric import MIN_BLOCKS, one_hot
from dxn.tasks.space import WITH_BASELINE, AnswerKind
from dxn.tokenize.encoded_adapter import EncodedAdapter
from dxn.training.predict import run_batches

# A transformer that is trained on more rows needs no baseline, and the baseline would take minutes.
MAX_ROWS = 50_000
MIN_ROWS = 10  # fewer cannot be divided into the rows that train a model and those that score it
# Dense features of all rows: 800 MB in float32.
MAX_NUMBERS = 200_000_000
# Widths of the vectors of all frozen encoders, because the time of a linear model is cubic in them,
# and their numbers in all rows: 480 MB in float64, of which there are a few copies.
MAX_VECTORS = 2500
MAX_VECTOR_NUMBERS = 60_000_000
# Counted features of all rows, of about 37 million characters. Training needs 61 bytes for each.
MAX_COUNTED = 120_000_000
MAX_PROBED = 64  # rows from which the number of counted features of all rows is estimated


def train_stack(
    model: MultimodalModel,
    task: Task,
    train: Samples,
    validation: Samples | None,
    *,
    batch_size: int,
    starts_trained: bool = False,
    share: float = 1.0,
    say: Callable[[str], None],
) -> Stacked | None:
    """Train a baseline, and mix its output with that of a trained model.

    Args:
        model: The model, whose adapters compute the features.
        task: Its task.
        train: Samples of the training split.
        validation: Samples of the validation split, which determine the factors. None: the model
            answers alone.
        batch_size: Number of samples per batch.
        starts_trained: Whether the weights of the model were published or trained before.
        share: Share of the usual time of a baseline that is left, 0 to 1.
        say: Prints a line.

    Returns:
        None if the number of rows, the task or the inputs allow no baseline.
    """
    targets = train.opened.targets
    if targets is None or not MIN_ROWS <= len(train.opened) < MAX_ROWS:
        return None
    if task.answer_kind not in WITH_BASELINE:  # to read the inputs would take time for nothing
        return None
    started = time.perf_counter()
    limit = int(share * MAX_ROWS)
    if limit < len(train) and not isinstance(task.space, Quantiles):
        say(
            f"note: the baseline learns from {limit:,} of {len(train):,} rows, because the time "
            "limit leaves no time for more"
        )
        train.keep(limit)
    with torch.no_grad():
        if isinstance(task.space, Quantiles):
            series = task.space.target.input
            static = _column_features(model, train, [n for n in model.inputs if n != series])
            tokenizer = model.adapter(series).tokenizer
            baseline = fit_past_regression(task.space, targets, tokenizer, static)
        else:
            baseline = _learn_scores(
                model, task, train, batch_size=batch_size, share=share, say=say
            )
    if baseline is None:
        return None
    say(f"baseline: {baseline.about}, trained {duration(time.perf_counter() - started)}")
    stack = Stacked(model, baseline, (1.0, 0.0)).to(next(model.parameters()).device).eval()
    if validation is None:
        say(
            "note: the transformer answers; there is no validation split that could show how to "
            "mix it with the baseline"
        )
        return stack
    inputs = "other" if starts_trained else _input_kind(model)
    factors = _mix(stack, task, validation, inputs, batch_size=batch_size)
    stack.mix.copy_(torch.tensor(factors))
    if factors[1]:
        say(
            f"note: the mixture answers: {stack.formula()}; its factors have the lowest validation "
            "loss"
        )
    else:
        say(
            f"note: the transformer answers, scaled by {factors[0]:.2f}; the baseline does not "
            "lower the validation loss"
        )
    return stack


def _learn_scores(
    model: MultimodalModel,
    task: Task,
    train: Samples,
    *,
    batch_size: int,
    share: float,
    say: Callable[[str], None],
) -> Baseline | None:
    """Train a baseline on features of the inputs; None if the task or the inputs have none."""
    _limit_counted(model, train, batch_size=batch_size, say=say)
    limit = min(MAX_VECTORS, MAX_VECTOR_NUMBERS // len(train))
    encoded: list[str] = []
    for name, column in train.opened.encoded.items():
        limit -= column.shape[1]
        if limit >= 0:
            encoded.append(name)
    if others := [name for name in train.opened.encoded if name not in encoded]:
        say(
            f"note: the baseline does not read the vectors of {', '.join(others)}, because those "
            "of all frozen encoders have too many numbers"
        )
    rows, features = collect(model, train, encoded=encoded, batch_size=batch_size)
    if not any(summary.counted or summary.dense.shape[1] for summary in features.values()):
        return None
    values = [(train.opened.targets or ())[row] for row in rows]
    learned = score_targets(task, values)
    if learned is None:
        return None
    target = task.target.collate([task.target.encode(value, {}) for value in values])

    def loss_of_rows(output: Tensor, chosen: Tensor) -> Tensor:
        return task.loss(output, {"target": target[chosen]}).mean

    return fit_baseline(features, learned, loss_of_rows, share)


def score_targets(task: Task, values: Sequence[Any]) -> ScoreTargets | None:
    """Return what a baseline learns for a task. None: its output space allows none.

    Args:
        task: The fitted task.
        values: Targets of the training split.
    """
    kind = task.answer_kind
    if kind not in WITH_BASELINE:
        return None
    target = task.target.collate([task.target.encode(value, {}) for value in values])
    if kind is AnswerKind.LABELS:
        return ScoreTargets(2 * target - 1, are_classes=True)
    if kind is AnswerKind.NUMBER:
        return ScoreTargets(target[:, None], are_classes=False)
    # All values are -1 for a class that is not in the training split.
    true = one_hot(target, len(task.target.labels or ())).float()
    return ScoreTargets(2 * true - 1, are_classes=True, are_exclusive=True)


def _column_features(
    model: MultimodalModel, samples: Samples, names: Sequence[str]
) -> dict[str, Tensor]:
    """Return the features (n, F) of the inputs that are columns of a table, NaN where missing."""
    result: dict[str, Tensor] = {}
    for name in names:
        adapter = model.adapter(name)
        raws = samples.opened.raws[name]
        rows = [row for row, is_present in enumerate(samples.opened.present[name]) if is_present]
        if not adapter.reader.tabular or not rows:
            continue
        features = features_of(adapter, adapter.tokenizer.batch([raws[row] for row in rows]))
        if features is not None and features.about == COLUMNS:
            x = features.spread(torch.tensor(rows), len(raws)).dense
            result[name] = x.float()
    return result


def _limit_counted(
    model: MultimodalModel, samples: Samples, *, batch_size: int, say: Callable[[str], None]
) -> None:
    """Keep as many samples as have MAX_COUNTED counted features, spread over all of them."""
    few = copy.copy(samples)
    few.keep(MAX_PROBED)
    _, features = collect(model, few, batch_size=batch_size)
    counted = [block for summary in features.values() for block in summary.counted]
    per_sample = sum(block.shape[1] for block in counted) / len(few)
    count = max(int(MAX_COUNTED / max(per_sample, 1)), MIN_ROWS)
    if count < len(samples):
        say(
            f"note: the baseline learns from {count:,} of {len(samples):,} rows, because the texts "
            "are long"
        )
        samples.keep(count)


def _mix(
    stack: Stacked, task: Task, samples: Samples, inputs: InputKind, *, batch_size: int
) -> tuple[float, float]:
    """Return the factors of the model and of the baseline with the lowest loss, see `fit_mix`."""

    def run(batch: Batch) -> list[Tensor]:
        return [*outputs_of_parts(stack, task, batch), batch["target"]]

    device = next(stack.parameters()).device
    with torch.inference_mode():
        parts = list(run_batches(run, samples, batch_size, device=device))
    # Joined outside of the inference mode, whose tensors cannot be used to compute gradients.
    outputs, baseline_outputs, target = (
        torch.cat([part.cpu() for part in column]) for column in zip(*parts, strict=True)
    )
    blocks = task.metric.blocks(samples.opened.targets or ())
    independent = len(target) if blocks is None else len(set(blocks.ids))
    return fit_mix(
        outputs,
        baseline_outputs,
        lambda output: task.loss(output, {"target": target}).mean,
        are_classes=not isinstance(task.space, Number | Quantiles),
        inputs=inputs,
        are_forecasts=isinstance(task.space, Quantiles),
        are_few=independent < MIN_BLOCKS,
    )


def _input_kind(model: MultimodalModel) -> InputKind:
    """Return what a model reads. Texts that a published encoder reads are something else."""
    adapters = [model.adapter(name) for name in model.inputs]
    others = [adapter for adapter in adapters if not adapter.reader.tabular]
    if not others:
        return "cells"
    are_texts = (a.reader.words and not isinstance(a, EncodedAdapter) for a in others)
    return "texts" if all(are_texts) else "other"


def collect(
    model: MultimodalModel, samples: Samples, *, encoded: Container[str] = (), batch_size: int
) -> tuple[list[int], dict[str, Features]]:
    """Compute the features of all samples, without augmentation.

    Args:
        model: The model.
        samples: The samples.
        encoded: Inputs whose encoder is frozen, see `input_features`.
        batch_size: Number of samples per batch.

    Returns:
        The row of each sample in its split, and the features on the CPU, by input name. Samples
        that lack an input have NaN. Both are empty if the features would need too much memory.
    """

    def run(batch: Batch) -> tuple[list[int], dict[str, Features]]:
        features = model_features(model, batch, encoded=encoded)
        return batch["#index"], {name: _compact(part) for name, part in features.items()}

    device = next(model.parameters()).device
    rows: list[int] = []
    parts: dict[str, list[tuple[int, Features]]] = {}
    with torch.inference_mode():
        for index, features in run_batches(run, samples, batch_size, device=device):
            for name, summary in features.items():
                parts.setdefault(name, []).append((len(rows), summary))
            rows += index
            plain = [batches for key, batches in parts.items() if not key.startswith(ENCODER)]
            width = sum(batches[0][1].dense.shape[1] for batches in plain)
            if width * len(samples) > MAX_NUMBERS:
                return [], {}
    # In the order of the model, although the first batch can lack an input.
    names = [*model.inputs, *(ENCODER + name for name in model.inputs)]
    return rows, {name: _joined(parts[name], len(rows)) for name in names if name in parts}


def _compact(features: Features) -> Features:
    """Return features on the CPU, the counted ones in int32: half of the memory."""
    counted = tuple(block.int().cpu() for block in features.counted)
    return Features(features.about, features.dense.float().cpu(), counted)


def _joined(parts: Sequence[tuple[int, Features]], size: int) -> Features:
    """Join the features of batches, each with the number of the samples before it."""
    first = parts[0][1]
    dense = torch.full((size, first.dense.shape[1]), torch.nan)
    blocks: list[list[Tensor]] = [[] for _ in first.counted]
    for start, features in parts:
        dense[start : start + len(features.dense)] = features.dense
        for block, (rows, codes) in zip(blocks, features.counted, strict=True):
            block.append(torch.stack([rows + start, codes]))
    return Features(first.about, dense, tuple(torch.cat(block, 1) for block in blocks))
