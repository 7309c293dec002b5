"""Trackers, which get the rows of metrics.jsonl too: TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dxn.core.errors import UserError
from dxn.training.log import Tracker

# How to install each tracker. Its name is that of its module.
INSTALL: dict[Tracker, str] = {
    "tensorboard": "pip install 'dxn[trackers]'",
    "mlflow": "pip install 'dxn[trackers]'",
    "wandb": "pip install wandb",
}
MLFLOW_FOLDER = "mlruns"  # the folder that MLflow used by itself before it had databases
MLFLOW_NAME = re.compile(r"[^\w\-. :/]")  # characters that names of metrics may not have
# Limits of a server of MLflow: the options of a call, and the characters of an option.
MLFLOW_OPTIONS = 100
MLFLOW_CHARACTERS = 500
MAX_REASON = 200  # characters of an error of a library


class TrackerSink:
    """Sends the rows of metrics.jsonl to a run of a tracker.

    A tracker that fails during the training gets nothing from then on: a server that is down must
    not end a training.

    Args:
        name: Name of the tracker.
        folder: The run folder. The folder that contains it is the experiment.
        options: Options of the run, which MLflow and Weights & Biases show beside the metrics.
        say: Function that prints a line.

    Raises:
        UserError: If the tracker cannot start.
    """

    def __init__(
        self,
        name: Tracker,
        folder: Path,
        *,
        options: Mapping[str, Any] | None = None,
        say: Callable[[str], None] = print,
    ):
        self.name: Tracker = name
        self.say = say
        start = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}[name]
        try:
            with _quiet():
                self._send, self._finish, place = start(folder, dict(_leaves(options or {})))
        # Each library has exceptions of its own, also for a server that does not answer.
        except Exception as error:
            raise UserError(
                f"trainer.tracker: {name} cannot start ({_reason(error)}); change its settings, "
                "or leave it out"
            ) from error
        say(f"{name}: the metrics are {place}")

    def log(self, row: Mapping[str, Any]) -> None:
        """Send a row of metrics.jsonl."""
        figures = {
            name: float(value)
            for name, value in row.items()
            if name not in ("step", "epoch") and isinstance(value, int | float)
        }
        self._try(lambda: self._send(figures, int(row["step"])))

    def close(self) -> None:
        """Send what is left, and end the run of the tracker."""
        self._try(self._finish)

    def _try(self, act: Callable[[], Any]) -> None:
        try:
            with _quiet():
                act()
        except Exception as error:
            self.say(f"warning: {self.name} gets no more metrics: {_reason(error)}")
            self._send, self._finish = lambda figures, step: None, lambda: None


# What starts a tracker returns: a function that sends metrics of a step, one that ends the run, and
# where the metrics are.
Started = tuple[Callable[[dict[str, float], int], Any], Callable[[], Any], str]


def check_trackers(names: Sequence[Tracker]) -> None:
    """Check that trackers exist and that their libraries are installed.

    Raises:
        UserError: If one is missing.
    """
    for name in names:
        if name not in INSTALL:
            choices = ", ".join(INSTALL)
            raise UserError(f"trainer.tracker: must be a list of {choices}, got {name}")
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"trainer.tracker: {name} is not installed; run {INSTALL[name]}, or leave it out"
            )


def _tensorboard(folder: Path, options: dict[str, Any]) -> Started:
    from torch.utils.tensorboard.writer import SummaryWriter

    # TensorBoard shows the path of the folder as the name of the run.
    path = folder / "tensorboard"
    writer = SummaryWriter(path)

    def send(figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return send, writer.close, f"in {path}; tensorboard --logdir shows them"


def _mlflow(folder: Path, options: dict[str, Any]) -> Started:
    mlflow: Any = importlib.import_module("mlflow")
    if not mlflow.is_tracking_uri_set():
        # The default of MLflow is a database, which needs more packages.
        mlflow.set_tracking_uri(Path(MLFLOW_FOLDER).absolute().as_uri())
    mlflow.set_experiment(_experiment(folder))
    mlflow.end_run()  # that of an earlier training of this process, such as a pretraining
    run = mlflow.start_run(run_name=folder.name).info.run_id
    shown = [(name, str(value)[:MLFLOW_CHARACTERS]) for name, value in options.items()]
    for start in range(0, len(shown), MLFLOW_OPTIONS):
        mlflow.log_params(dict(shown[start : start + MLFLOW_OPTIONS]), run_id=run)

    def send(figures: dict[str, float], step: int) -> None:
        named = {MLFLOW_NAME.sub("_", name): value for name, value in figures.items()}
        mlflow.log_metrics(named, step=step, run_id=run)

    return send, mlflow.end_run, f"sent to {mlflow.get_tracking_uri()}"


def _wandb(folder: Path, options: dict[str, Any]) -> Started:
    wandb: Any = importlib.import_module("wandb")
    path = folder / "wandb"
    path.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        project=_experiment(folder),
        name=folder.name,
        dir=path,
        config=options,
        reinit="finish_previous",
    )
    return lambda figures, step: run.log(figures, step=step), run.finish, f"in {path}"


def _experiment(folder: Path) -> str:
    return folder.absolute().parent.name or folder.absolute().name


def _leaves(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield options by dotted name, as texts and numbers."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, int | float) else str(value)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:MAX_REASON]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what a library says about itself, such as the end of a way to store runs."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # dxn sends nothing by itself
    # MLflow refuses its own folder of files otherwise, from version 3.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
