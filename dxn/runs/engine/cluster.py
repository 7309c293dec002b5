"""Ray, which computes parts of the work of a command on all cores, or on several machines."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import pickle
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from dxn.core.display import Display, count, print_line
from dxn.core.errors import UserError
from dxn.core.runtime import num_cores
from dxn.runs.engine.bulk import (
    ANSWERS,
    BAD,
    BATCHES,
    FILE_BATCHES,
    Answering,
    BulkInput,
    Part,
    Reading,
    Tokenized,
    answer,
    open_folder,
    read_progress,
    unfinished,
    unify,
)
from dxn.runs.index import check_only
from dxn.runs.predictor.inputs import ModelInputs
from dxn.runs.predictor.option import has_many_samples, tables_of
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.table import predicted_rows

if TYPE_CHECKING:
    from dxn.commands.options import RayOptions

# Logical processors of a task, which reads or tokenizes, as a part of a small cluster. It must have
# room for a task of either kind beside the model: otherwise, Ray would wait for ever.
TASK_CPUS = 0.45
# A copy of the model reserves almost none: after the loss of a machine, it must be able to start on
# one of the others, even if they are full.
MODEL_CPUS = 0.001
CONNECT_SECONDS = 10.0
LOCALHOST = "127.0.0.1"


def require_ray() -> None:
    """Check that Ray is installed, before any data is read."""
    if find_spec("ray") is None:
        raise UserError("engine: ray is not installed; run pip install 'dxn[ray]'")


def start(address: str | None) -> Any:
    """Connect to a cluster, or start Ray in this process. Return the module `ray`.

    Args:
        address: Address of the cluster. None: Ray on this machine only, until the process ends.

    Raises:
        UserError: If Ray is not installed, or there is no cluster at the address.
    """
    require_ray()
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
        where = {
            "address": "local",  # otherwise, Ray connects to a cluster that runs on this machine
            "num_cpus": num_cores(),
            "include_dashboard": False,
            "_node_ip_address": LOCALHOST,
        }
    elif ":" in address:
        _require_port(address)
    try:
        with quiet():
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)
    except (ConnectionError, RuntimeError, ValueError) as error:
        place = "this machine" if address is None else address
        raise UserError(
            f"ray.address: Ray does not start on {place} ({first_line(error)})"
        ) from error
    return ray


def _require_port(address: str) -> None:
    """Check that something answers at an address: Ray itself would try for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise UserError(
            f"ray.address: no Ray cluster answers at {address} ({error}); start one with "
            "ray start --head, or leave the option out"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress what threads and the C++ code of Ray print. Errors are exceptions."""
    saved = os.dup(2)
    try:
        with open(os.devnull, "w") as null, redirect_stdout(null):  # noqa: PTH123
            os.dup2(null.fileno(), 2)
            yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def replicas_on(ray: Any, chosen: int | None) -> tuple[int, int, int]:
    """Return how the copies of the model divide a cluster.

    Args:
        ray: The module.
        chosen: Number of copies. None: one per GPU, without GPUs one per core.

    Returns:
        The number of copies, and the numbers of GPUs and of threads of each. Ray itself would give
        it a single thread.
    """
    resources = ray.cluster_resources()
    num_gpus, num_cpus = int(resources.get("GPU", 0)), resources.get("CPU", 1)
    size = chosen or num_gpus or max(int(num_cpus), 1)
    return size, min(num_gpus, 1), max(int(num_cpus / size), 1)


def answer_rows(
    load: Callable[..., Predictor],
    input: Any,
    output: str | None,
    rows_of: Answering,
    *,
    command: Mapping[str, Any],
    ray_options: RayOptions,
    table_options: Mapping[str, Any],
    batch_size: int = 64,
    only: Sequence[str] | None = None,
) -> int:
    """Compute the answers of all rows of the option `input` on Ray, and write them to a folder.

    Args:
        load: Function that loads the model. It is called here, and by each copy of the model.
        input: A table, a folder, or a pattern of files.
        output: The folder, see `dxn.runs.engine.bulk`.
        rows_of: Function that computes the answers of samples.
        command: The options that determine the answers.
        ray_options: The cluster, and the number of copies of the model.
        table_options: Options of tables and bad rows, see `ModelInputs.option`.
        batch_size: Number of samples per batch.
        only: Names of the inputs to use. Default: all.

    Returns:
        The exit code: 1 if there are bad rows, and on_bad is "error".
    """
    if output is None or Path(output).suffix:
        received = "no output" if output is None else output
        raise UserError(f"output: engine=ray writes a folder, got {received}; set output=FOLDER")
    if not has_many_samples(input):
        raise UserError(
            f"input: engine=ray computes a table, a folder or a pattern of files, got {input}; "
            "leave engine out"
        )
    require_ray()
    folder = Path(output).absolute()
    # Only its inputs are used here, so that it needs no GPU of this machine.
    predictor = load(device="cpu", dtype="float32")
    only = check_only(only, predictor)
    if rows_of is predicted_rows:
        predictor.require_answers()
    reading, sources, files, size = plan(
        predictor.model_inputs, str(input), batch_size, only, dict(table_options)
    )
    progress = open_folder(folder, {**command, "part_rows": reading.part_rows}, files)
    left = unfinished(sources, progress)
    done = sum(part["rows"] for part in progress.values())
    if progress:
        print_line(f"continues in {folder}: {count(done, 'row')} are done")
    if left:
        del predictor  # each copy of the model is in a process of its own
        ray = start(ray_options.address)
        display = Display(stderr=True)
        try:
            for part in compute(ray, left, reading, load, rows_of, folder, ray_options.replicas):
                done += part["rows"]
                if display.is_due():
                    display.update("computing", min(done, size), size, f"{done:,} rows")
        finally:
            display.close()
    unify(folder)
    progress = read_progress(folder)
    num_rows = sum(part["rows"] for part in progress.values())
    print_line(f"written: {folder / ANSWERS} ({count(num_rows, 'row')})")
    if not (bad := sum(part["bad"] for part in progress.values())):
        return 0
    number = count(bad, "row or file", "rows and files")
    print_line(f"bad: {folder / BAD} ({number}, with the reason of each)")
    return int(table_options["on_bad"] == "error")


def plan(
    inputs: ModelInputs,
    input: str,
    batch_size: int,
    only: Sequence[str] | None,
    options: dict[str, Any],
) -> tuple[Reading, list[BulkInput], list[str], int]:
    """Return how the input is read, its sources, its files, and about how many rows it has."""
    on_bad, confine = options.pop("on_bad"), options["confine"]
    has_files = any(reader.files for reader in inputs.readers.values())
    part_rows = batch_size * (FILE_BATCHES if has_files else BATCHES)
    on_bad = "missing" if on_bad == "missing" else "skip"
    tables = [str(Path(table).absolute()) for table in tables_of(input, confine=confine)]
    if not tables:
        rows = inputs.rows(input, confine=confine)
        reading = Reading(inputs, batch_size, part_rows, only=only, on_bad=on_bad)
        starts = range(0, len(rows), part_rows)
        parts = [rows.take(range(i, min(i + part_rows, len(rows)))) for i in starts]
        sources = [BulkInput(index, part) for index, part in enumerate(parts)]
        return reading, sources, list(rows.origin), len(rows)
    # The first table determines the columns of all of them.
    reading_options = {n: value for n, value in options.items() if n not in ("columns", "keep")}
    inputs, names = inputs.with_columns(tables[0], options["columns"], only, **reading_options)
    only = only or names
    first = inputs.rows(tables[0], only=only, **options)
    options["keep"] = list(first.ids)
    reading = Reading(inputs, batch_size, part_rows, only, on_bad, options)
    sources = [BulkInput(index, table) for index, table in enumerate(tables)]
    return reading, sources, tables, len(first) * len(tables)


def compute(
    ray: Any,
    sources: Sequence[BulkInput],
    reading: Reading,
    load: Callable[..., Predictor],
    rows_of: Answering,
    folder: Path,
    replicas: int | None,
) -> Iterator[dict[str, int]]:
    """Compute and write the unfinished parts of sources with Ray Data.

    Args:
        ray: The module.
        sources: The sources.
        reading: How parts are read and tokenized.
        load: Function that loads the model, which each copy of it calls.
        rows_of: Function that computes the answers of samples.
        folder: Folder of the answers, which all machines can write to.
        replicas: Number of copies of the model. Default: see `replicas_on`.

    Yields:
        The numbers of rows of each part as soon as it is written, see `bulk.answer`.

    Raises:
        UserError: If Ray fails.
    """
    data = importlib.import_module("ray.data")
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # A block per part, so that several tasks tokenize the parts of one table.
    context.target_max_block_size = 1
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    # Few parts do not need all copies of the model.
    warnings.filterwarnings("ignore", "The minimum number of concurrent actors", UserWarning)
    size, num_gpus, num_threads = replicas_on(ray, replicas)
    # One task per processor, because each process that runs tasks imports torch.
    task_cpus = TASK_CPUS * min(ray.cluster_resources().get("CPU", 1), 2)
    held = ray.put(reading)
    contents = [{"content": pickle.dumps(source)} for source in sources]
    one_part = {"batch_size": 1, "batch_format": "numpy"}
    parts = (
        data.from_items(contents, override_num_blocks=len(contents))
        .map_batches(read, fn_kwargs={"held": [held]}, num_cpus=task_cpus, **one_part)
        .map_batches(tokenize, fn_kwargs={"held": [held]}, num_cpus=task_cpus, **one_part)
        .map_batches(
            Answers,
            fn_constructor_args=(load, rows_of, folder, num_threads),
            compute=data.ActorPoolStrategy(size=size),
            num_cpus=MODEL_CPUS,
            num_gpus=num_gpus,
            **one_part,
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

    def __init__(
        self, load: Callable[..., Predictor], rows_of: Answering, folder: Path, num_threads: int
    ):
        torch.set_num_threads(num_threads)
        self.predictor = load()
        self.rows_of = rows_of
        self.folder = folder

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        values = pickle.loads(batch["content"][0])
        part = Tokenized(**tree_map_only(np.ndarray, torch.from_numpy, values))
        counts = answer(part, self.predictor, self.rows_of, self.folder)
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
    while (cause := getattr(error, "cause", None) or error.__cause__) is not None:
        error = cause
    if isinstance(error, UserError):
        return error
    return UserError(f"engine: Ray stopped the work ({type(error).__name__}: {first_line(error)})")


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an exception."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
