"""Trackers, which get the rows of metrics.jsonl too: TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate.tracking import (
    GeneralTracker,
    MLflowTracker,
    TensorBoardTracker,
    WandBTracker,
)

from dxn.core.errors import UserError
from dxn.core.files import write_text
from dxn.core.untrusted import load_json
from dxn.training.log import Tracker

# How to install each tracker. Its name is that of its module.
INSTALL: dict[Tracker, str] = {
    "tensorboard": "pip install 'dxn[trackers]'",
    "mlflow": "pip install 'dxn[trackers]'",
    "wandb": "pip install wandb",
}
IDS = "trackers.json"  # in the run folder: what a resumed run continues
MLFLOW_FOLDER = "mlruns"  # the folder that MLflow used by itself before it had databases
MLFLOW_NAME = re.compile(r"[^\w\-. :/]")  # characters that names of metrics may not have
MAX_REASON = 200  # characters of an error of a library


class TrackerSink:
    """Sends the rows of metrics.jsonl to a tracker.

    A tracker that fails during the training gets nothing from then on: a server that is down must
    not end a training.

    Args:
        name: Name of the tracker.
        folder: The run folder. The folder that contains it is the experiment.
        options: Options of the run, which the tracker shows beside the metrics.
        say: Function that prints a line.
        resumed_at: Step from which an earlier process is continued. What TensorBoard got after it
            is hidden there, because the training sends it again. None: a new training.

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
        resumed_at: int | None = None,
    ):
        self.name: Tracker = name
        self.say = say
        path = folder / IDS
        ids = load_json(path) if path.is_file() else {}
        old = None if resumed_at is None else ids.get(name)
        try:
            with _quiet():
                self.tracker, identifier, place = _start(name, folder, old, resumed_at)
                if options and resumed_at is None and name != "tensorboard":
                    self.tracker.store_init_configuration(dict(_leaves(options)))
        # Each library has exceptions of its own, also for a server that does not answer.
        except Exception as error:
            raise UserError(
                f"trainer.tracker: {name} cannot start ({_reason(error)}); change its settings, "
                "or leave it out"
            ) from error
        write_text(path, json.dumps({**ids, name: identifier}))
        say(f"{name}: the metrics are {place}")
        self.has_failed = False

    def log(self, row: Mapping[str, Any]) -> None:
        """Send a row of metrics.jsonl."""
        figures = {
            MLFLOW_NAME.sub("_", name) if self.name == "mlflow" else name: float(value)
            for name, value in row.items()
            if name not in ("step", "epoch") and isinstance(value, int | float)
        }
        self._try(lambda: self.tracker.log(figures, step=int(row["step"])))

    def close(self) -> None:
        """Send what is left, and end the run of the tracker."""
        self._try(self.tracker.finish)

    def _try(self, act: Callable[[], Any]) -> None:
        if self.has_failed:
            return
        try:
            with _quiet():
                act()
        except Exception as error:
            self.has_failed = True
            self.say(f"warning: {self.name} gets no more metrics: {_reason(error)}")


def check_trackers(names: Sequence[Tracker]) -> None:
    """Check that trackers exist and that their libraries are installed.

    Raises:
        UserError: If one is missing.
    """
    for name in names:
        if name not in INSTALL:
            known = ", ".join(INSTALL)
            raise UserError(f"trainer.tracker: must be a list of {known}, got {name}")
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"trainer.tracker: {name} is not installed; run {INSTALL[name]}, or leave it out"
            )


def send_final(
    names: Sequence[Tracker], folder: Path, metrics: Mapping[str, Any], step: int
) -> None:
    """Send the final metrics of a run to trackers.

    Args:
        names: Names of the trackers.
        folder: The run folder, after the training.
        metrics: Metrics by name.
        step: Number of optimizer steps of the training.
    """
    for name in names:
        try:
            tracker = TrackerSink(name, folder, resumed_at=step)
        except UserError as error:
            # The training is finished, and its report must still be written.
            print(f"warning: {name} does not get the final metrics: {error}")
            continue
        tracker.log({**metrics, "step": step})
        tracker.close()


def _start(
    name: Tracker, folder: Path, old: str | None, resumed_at: int | None
) -> tuple[GeneralTracker, str | None, str]:
    """Start a tracker.

    Args:
        name: Its name.
        folder: The run folder.
        old: Identifier of its run, if an earlier process has started it.
        resumed_at: See `TrackerSink`.

    Returns:
        The tracker, the identifier of its run, and where its metrics are.
    """
    experiment = folder.absolute().parent.name or folder.absolute().name
    own = folder / name
    if name == "tensorboard":
        # TensorBoard shows the path of the folder as the name of the run.
        purge_step = None if resumed_at is None else resumed_at + 1
        tensorboard = TensorBoardTracker("", own, purge_step=purge_step)
        tensorboard.start()
        return tensorboard, None, f"in {own}; tensorboard --logdir shows them"
    if name == "wandb":
        own.mkdir(parents=True, exist_ok=True)
        wandb = WandBTracker(experiment, name=folder.name, dir=own, id=old, resume="allow")
        wandb.start()
        return wandb, wandb.run.id, f"in {own}"
    module: Any = importlib.import_module("mlflow")
    if not module.is_tracking_uri_set():
        # The default of MLflow is a database, which needs more packages.
        module.set_tracking_uri(Path(MLFLOW_FOLDER).absolute().as_uri())
    mlflow = MLflowTracker(experiment, run_id=old, run_name=folder.name)
    mlflow.start()
    return mlflow, mlflow.active_run.info.run_id, f"sent to {module.get_tracking_uri()}"


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
