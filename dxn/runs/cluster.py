"""Ray, which computes parts of the work of a command on all cores, or on several machines."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from dxn.core.errors import UserError
from dxn.data.loader import num_cores
from dxn.runs.bulk import Part, Reading, Records, Source, Tokenized, answer
from dxn.runs.predictor.predictor import Predictor

# Logical processors. A task that reads or tokenizes uses one. A copy of the model uses almost none
# without a GPU: it must be able to start again on the machines that are left, even if they are full.
TASK_CPUS = 1.0
MODEL_CPUS = 0.01
LOCALHOST = "127.0.0.1"


def start(address: str | None) -> Any:
    """Connect to a cluster, or start Ray in this process. Return the module `ray`.

    Args:
        address: Address of the cluster. None: Ray on this machine only, until the process ends.

    Raises:
        UserError: If Ray is not installed, or there is no cluster at the address.
    """
    if find_spec("ray") is None:
        raise UserError("engine: ray is not installed; run pip install 'dxn[ray]'")
    # Ray reads them when it is imported. A user can set them otherwise.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    if address is None:
        # Ray as one machine, which listens on 127.0.0.1 only.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    ray = importlib.import_module("ray")
    if ray.is_initialized():
        return ray
    where: dict[str, Any] = {"address": address}
    if address is None:
        where = {"num_cpus": num_cores(), "include_dashboard": False, "_node_ip_address": LOCALHOST}
    try:
        with _without_stderr():
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)
    except (ConnectionError, RuntimeError, ValueError) as error:
        place = "this machine" if address is None else address
        raise UserError(
            f"ray.address: Ray does not start on {place} ({first_line(error)})"
        ) from error
    return ray


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Suppress what the C++ code of Ray prints while it starts. Errors are exceptions."""
    saved = os.dup(2)
    try:
        with open(os.devnull, "w") as null:  # noqa: PTH123
            os.dup2(null.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def num_replicas(ray: Any, chosen: int | None) -> tuple[int, int]:
    """Return the number of copies of the model, and the number of GPUs of each of them."""
    resources = ray.cluster_resources()
    num_gpus = int(resources.get("GPU", 0))
    return chosen or num_gpus or max(int(resources.get("CPU", 1)), 1), min(num_gpus, 1)


def compute(
    ray: Any,
    sources: Sequence[Source],
    reading: Reading,
    load: Callable[[], Predictor],
    records: Records,
    folder: Path,
    replicas: int | None,
) -> Iterator[dict[str, int]]:
    """Compute and write the unfinished parts of sources with Ray Data.

    Args:
        ray: The module.
        sources: The sources.
        reading: How parts are read and tokenized.
        load: Function that loads the model, which each copy of it calls.
        records: Function that computes the answers of samples.
        folder: Folder of the answers, which all machines can write to.
        replicas: Number of copies of the model. Default: see `num_replicas`.

    Yields:
        The numbers of rows of each part, see `dxn.runs.bulk.answer`, as soon as it is written.
    """
    data = importlib.import_module("ray.data")
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    size, num_gpus = num_replicas(ray, replicas)
    held = ray.put(reading)
    contents = [{"content": pickle.dumps(source)} for source in sources]
    one = {"batch_size": 1, "batch_format": "numpy"}
    parts = (
        data.from_items(contents, override_num_blocks=len(contents))
        .map_batches(read, fn_kwargs={"held": [held]}, num_cpus=TASK_CPUS, **one)
        # A message per part, so that several tasks tokenize the parts of one table.
        .repartition(target_num_rows_per_block=1)
        .map_batches(tokenize, fn_kwargs={"held": [held]}, num_cpus=TASK_CPUS, **one)
        .map_batches(
            Answers,
            fn_constructor_args=(load, records, folder),
            compute=data.ActorPoolStrategy(size=size),
            num_cpus=MODEL_CPUS,
            num_gpus=num_gpus,
            **one,
        )
    )
    try:
        yield from parts.iter_rows()
    except ray.exceptions.RayError as error:
        raise explained(error) from error


def read(batch: dict[str, Any], held: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Read the unfinished parts of a source: a task of Ray Data."""
    for part in fetch(held[0]).read(pickle.loads(batch["content"][0])):
        yield _message(part)


def tokenize(batch: dict[str, Any], held: Sequence[Any]) -> dict[str, Any]:
    """Tokenize a part: a task of Ray Data."""
    part: Part = pickle.loads(batch["content"][0])
    # NumPy arrays, because pickle copies them much faster than tensors.
    return _message(tree_map_only(Tensor, Tensor.numpy, vars(fetch(held[0]).tokenize(part))))


class Answers:
    """A copy of the model in a process of its own: an actor of Ray Data."""

    def __init__(self, load: Callable[[], Predictor], records: Records, folder: Path):
        self.predictor = load()
        self.records = records
        self.folder = folder

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        values = pickle.loads(batch["content"][0])
        part = Tokenized(**tree_map_only(np.ndarray, torch.from_numpy, values))
        counts = answer(part, self.predictor, self.records, self.folder)
        return {name: [value] for name, value in counts.items()}


@functools.lru_cache(maxsize=1)
def fetch(reference: Any) -> Any:
    """Return an object of Ray, which stays in memory for the next task of this process."""
    return importlib.import_module("ray").get(reference)


def _message(content: Any) -> dict[str, Any]:
    # Bytes, because Arrow would divide the objects into columns.
    return {"content": np.array([pickle.dumps(content, protocol=5)], object)}


def explained(error: BaseException) -> UserError:
    """Return a failure of Ray as one sentence."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError) and not hasattr(cause, "cause"):
            return cause
        last = cause
        cause = getattr(cause, "cause", None) or cause.__cause__
    return UserError(f"engine: Ray stopped the work ({type(last).__name__}: {first_line(last)})")


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an exception."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
