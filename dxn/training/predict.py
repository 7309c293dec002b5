"""Run a model over all samples of a split: predictions and their metrics, or embeddings."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dxn.core.display import Display, list_names, print_line
from dxn.core.errors import UserError
from dxn.core.processes import from_all, processes
from dxn.core.runtime import free_memory, is_out_of_memory, release_memory
from dxn.data.dataset import Samples
from dxn.models.model import Network, as_float
from dxn.tasks.metric import defined
from dxn.tasks.task import Task
from dxn.training.device import autocast, on_device, to_device

if TYPE_CHECKING:
    from dxn.core.results import Figures, Results
    from dxn.data.loader import BatchOrder

Result = TypeVar("Result")

MAX_NAMED = 5  # rows in a message
ROUND = 16  # batches of a process whose results are sent together


@dataclass(frozen=True)
class Predictions:
    """The predictions of a model for a split.

    Args:
        rows: Row in the split of each of the n predictions.
        predicted: The n predictions, in the format of `Task.predict`.
        loss: Mean loss over all targets. NaN if there are no targets.
    """

    rows: Sequence[int]
    predicted: Sequence[Any]
    loss: float


def predict(model: Network, task: Task, samples: Samples, **options: Any) -> Predictions:
    """Return the predictions of a model for all samples, see `predict_batches`.

    Args:
        model: Model to run.
        task: Task that created the head of the model.
        samples: Samples of one split.
        **options: Further arguments of `predict_batches`.
    """
    rows: list[int] = []
    predicted: list[Any] = []
    total = weight = 0.0
    for part in predict_batches(model, task, samples, **options):
        rows += part[0]
        predicted += part[1]
        total += part[2][0]
        weight += part[2][1]
    return Predictions(rows, predicted, total / weight if weight else math.nan)


def predict_batches(
    model: Network,
    task: Task,
    samples: Samples,
    *,
    batch_size: int,
    device: torch.device,
    precision: str = "float32",
    draft: bool = False,
    finite: bool = False,
    on_batch: Callable[[int], None] | None = None,
    start: int = 0,
    divided: bool = False,
    may_be_bad: bool = False,
) -> Iterator[tuple[list[int], list[Any], tuple[float, float]]]:
    """Run a model over all samples in order, without augmentation.

    Args:
        model: Model to run. Its training mode is restored afterwards.
        task: Task that created the head of the model.
        samples: Samples of one split.
        batch_size: Number of samples per batch. It is halved if the memory is too small.
        device: Device of the model.
        precision: Precision of matrix products: float32, tf32, bf16 or fp16.
        draft: For a task that generates sequences, use the fastest decoding, such as greedy search.
        finite: Whether an output of the model that is not finite is an error.
        on_batch: Function that is called after each batch with the number of samples that are done.
            Default: show the progress on stderr.
        start: Number of batches to leave out.
        divided: Whether the processes share the batches, see `run_batches`.
        may_be_bad: Whether all samples may turn out to be bad.

    Yields:
        For each batch, the rows of its samples in the split, their predictions in the format of
        `Task.predict`, and the sum of the losses with its weight, (0, 0) without targets.

    Raises:
        UserError: If the memory is too small for a single sample, a sample cannot be prepared, or
            an output is not finite and `finite` is set.
    """

    def run(batch: dict[str, Any]) -> tuple[list[int], list[Any], tuple[float, float]]:
        # Not around the loop: the contexts of a generator are entered again for each batch.
        with torch.inference_mode(), autocast(device, precision):
            output = as_float(model(batch))
            if finite:
                check_finite(output, batch, samples.describe_index)
            # Inside autocast, because a task that generates sequences runs its decoder here.
            predicted = task.predict(head, output, batch, draft=draft)
            loss = (0.0, 0.0)
            if "target" in batch:
                total, weight = task.loss(output, batch)
                loss = (float(total), float(weight))
        nonlocal done
        # The others are as fast. A batch that did not fit into the memory is counted again.
        done = min(done + count * batch["#size"], len(samples))
        if on_batch is not None:
            on_batch(done)
        elif display is not None and display.is_due():
            display.update("predicting", done, len(samples))
        return batch["#index"], predicted, loss

    done = start * batch_size
    count = processes()[1] if divided else 1
    head = model.models[0].head
    was_training = model.training
    if was_training:
        # Batches without gradients need blocks of other sizes than the training, so they would not
        # reuse its memory.
        release_memory()
        # Without dropout, and with the running statistics of batch norms. A model that is only used
        # is in this mode already, and to visit all of its modules takes longer than a sample.
        model.eval()
    # A single batch has no progress.
    display = Display(stderr=True) if on_batch is None and len(samples) > batch_size else None
    try:
        yield from run_batches(
            run,
            samples,
            batch_size,
            device=device,
            start=start,
            divided=divided,
            may_be_bad=may_be_bad,
        )
    finally:
        if display is not None:
            display.close()
        if was_training:
            model.train()


@torch.inference_mode()
def embed(
    model: Network,
    samples: Samples,
    *,
    batch_size: int,
    device: torch.device,
    start: int = 0,
    divided: bool = False,
) -> Iterator[tuple[list[int], Tensor]]:
    """Compute the embeddings of all samples in order.

    Args:
        model: Model to run.
        samples: Samples of one split.
        batch_size: Number of samples per batch. It is halved if the memory is too small.
        device: Device of the model.
        start: Number of batches to leave out.
        divided: Whether the processes share the batches, see `run_batches`.

    Yields:
        For each batch, the row of each sample in its split, and the embeddings (B, E).

    Raises:
        UserError: If an embedding is not finite, see also `run_batches`.
    """

    def run(batch: dict[str, Any]) -> tuple[list[int], Tensor]:
        vectors = model.vectors(batch).float().cpu()
        check_finite(vectors, batch, samples.describe_index)
        return batch["#index"], vectors

    yield from run_batches(run, samples, batch_size, device=device, start=start, divided=divided)


def run_batches(
    run: Callable[[dict[str, Any]], Result],
    samples: Samples,
    batch_size: int,
    *,
    device: torch.device,
    start: int = 0,
    divided: bool = False,
    may_be_bad: bool = False,
) -> Iterator[Result]:
    """Run a function on batches of all samples in order. The batches become smaller if necessary.

    The results of a batch that became several smaller ones follow each other at once.

    Args:
        run: Function of a batch on the device.
        samples: The samples.
        batch_size: Number of samples per batch.
        device: Device of the batches.
        start: Number of batches to leave out.
        divided: Whether the processes of a command share the batches, which do not depend on the
            number of processes. All processes must call this, and a result must be a tuple that
            starts with the rows of its batch. The first process gets all results, and the others
            get none.
        may_be_bad: Whether all samples may turn out to be bad.

    Yields:
        The results of the function, in order.

    Raises:
        UserError: If the memory is too small for a single sample, or all samples turn out to be
            bad. With `divided`, in all processes, if one of them raises it.
    """
    if divided and processes()[1] > 1:
        yield from _divided(run, samples, batch_size, device, start)
        return
    if len(samples) == 1 and start == 0 and not samples.reads_files:  # needs no loader
        try:
            yield run(to_device(samples.batch(0, [0]), device))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise _too_large(samples.describe(0)) from error
        return
    from dxn.data.loader import BatchOrder, Loader, all_bad

    assert not start or samples.batch_tokens is None  # its batches have other sizes
    order = BatchOrder(samples, batch_size)
    order.skip = start
    is_empty = start == 0
    loader = Loader(order, pin_memory=device.type == "cuda")
    try:
        while order.skip < len(order):
            results: list[Result] = []
            num_parts = 0
            try:
                for batch in on_device(loader, device):
                    num_parts += 1
                    if "#filler" not in batch and batch["#size"]:
                        is_empty = False
                        results.append(run(batch))
                    if num_parts == order.parts:
                        yield from results
                        results, num_parts = [], 0
                        order.skip += 1
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            # Outside of the `except` block, in which the traceback still refers to the tensors.
            if order.skip < len(order):
                first = order.ends[order.skip - 1] if order.skip else 0
                sample = samples.describe(first + max(num_parts - 1, 0))
                _use_more_parts(order, min(batch_size, len(samples)), sample)
    finally:
        loader.stop()
    # Another process may have good rows.
    if is_empty and samples.opened.bad_later and processes()[1] == 1 and not may_be_bad:
        raise all_bad("the data", samples.opened.bad_later)


def _divided(
    run: Callable[[dict[str, Any]], Any],
    samples: Samples,
    batch_size: int,
    device: torch.device,
    start: int,
) -> Iterator[Any]:
    """Run a function on the batches of this process, see `run_batches`.

    The results are sent to the first process in rounds, so that its memory does not grow with the
    samples.
    """
    rank, num_processes = processes()
    share = copy.copy(samples)
    batches = np.arange(len(samples)) // batch_size
    share.rows = samples.rows[(batches % num_processes == rank) & (batches >= start)]
    results = run_batches(run, share, batch_size, device=device)
    waiting: list[Any] = []  # the first result of the next round

    def results_of_round() -> list[Any]:
        of_round: list[Any] = []
        for result in chain(waiting, results):
            # The rows of samples without augmentation increase.
            if result[0][0] > last_row:
                waiting[:] = [result]
                return of_round
            of_round.append(result)
        waiting.clear()
        return of_round

    size = ROUND * num_processes * batch_size
    for end in range(start * batch_size + size, len(samples) + size, size):
        last_row = samples.rows[min(end, len(samples)) - 1]
        of_processes = from_all(results_of_round)
        yield from sorted(chain.from_iterable(of_processes), key=lambda result: result[0][0])


def _use_more_parts(order: BatchOrder, largest: int, sample: str) -> None:
    """Halve the batches, because memory was too short for those of `largest` samples or a part."""
    free_memory()
    size = math.ceil(largest / order.parts)
    if size == 1:
        raise _too_large(sample)
    order.parts *= 2
    print_line(
        f"note: out of memory with {size} samples per batch; continuing with "
        f"{math.ceil(largest / order.parts)}",
        stderr=True,
    )


def _too_large(sample: str) -> UserError:
    return UserError(
        f"{sample}: out of memory with a single sample; use smaller inputs, such as a smaller "
        "image_size or max_len, a smaller model, or a device with more memory"
    )


def check_finite(output: Any, batch: Mapping[str, Any], describe: Callable[[int], str]) -> None:
    """Check that a model gives numbers.

    Args:
        output: Output for a batch: a tensor (B, ...), or an object that contains such tensors.
        batch: The batch.
        describe: Function that names a row, given its index in `batch["#index"]`.

    Raises:
        UserError: If a number is NaN or infinite.
    """
    bad: set[int] = set()
    for tensor in _tensors(output):
        is_of_samples = tensor.ndim and len(tensor) == batch["#size"]
        # Unlike all numbers, their sum is tested in one operation.
        if is_of_samples and not math.isfinite(float(tensor.sum())):
            is_bad = ~tensor.isfinite().reshape(len(tensor), -1).all(1)
            bad |= set(is_bad.nonzero().flatten().tolist())
    if not bad:
        return
    named = list_names([describe(batch["#index"][i]) for i in sorted(bad)], MAX_NAMED)
    raise UserError(
        f"{named}: the output of the model is not finite (NaN or infinite); if this happens for "
        "all rows, train the model again with a lower optimizer.lr; otherwise look for extreme "
        "values in these rows"
    )


def name_rows(samples: Samples, epoch: int, rows: Sequence[int]) -> str:
    """Name the rows of a batch whose loss is not finite.

    These are the samples with values that are not finite, if there are any and the samples can be
    read again, or all rows of the batch.

    Args:
        samples: Samples of the training split.
        epoch: Epoch, which determines the augmentation.
        rows: Rows of the batch.
    """
    bad = [row for row in rows if not _is_finite(samples.sample_of(epoch, row))]
    kind = "values that are not finite in" if bad else "batch with"
    names = [samples.describe_index(row) for row in bad or rows]
    return f"{kind} {list_names(names, MAX_NAMED)}"


def _is_finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, Mapping):
        value = list(value.values())
    return not isinstance(value, list | tuple) or all(_is_finite(item) for item in value)


def _tensors(output: Any) -> Iterator[Tensor]:
    """Yield all tensors of floating-point numbers in an output."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _tensors(value)
    elif is_dataclass(output):
        for entry in fields(output):
            yield from _tensors(getattr(output, entry.name))


def score(
    predictions: Predictions, samples: Samples, task: Task, *, calibrate: bool = False
) -> dict[str, float]:
    """Return the loss and the metrics of the task for these predictions.

    Args:
        predictions: Predictions of rows of the samples.
        samples: The samples.
        task: The task.
        calibrate: Whether the task chooses what answers need, see `Task.calibrate`.
    """
    # A task such as masked prediction derives its targets from the inputs.
    targets = samples.opened.targets if task.is_supervised else None
    truths = [] if targets is None else [targets[row] for row in predictions.rows]
    if calibrate:
        task.calibrate(predictions.predicted, truths)
    return task.score(predictions.predicted, truths, predictions.loss)


def task_results(task: Task, split: str, figures: Figures, **others: Any) -> Results:
    """Return the results of a model.

    Args:
        task: Its task.
        split: Name of the evaluated split.
        figures: Metrics by row of the table.
        **others: Further fields of `Results`.
    """
    from dxn.core.results import Results, flat  # a prediction has none

    return Results(
        split=split,
        task=task.name,
        monitored=task.metric.monitored,
        higher_is_better=task.metric.higher_is_better,
        metrics=flat(split, {row: defined(values) for row, values in figures.items()}),
        shown=task.metric.shown(dict.fromkeys(chain.from_iterable(figures.values()))),
        **others,
    )
