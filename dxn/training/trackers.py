"""Copies of the figures of a training in TensorBoard, MLflow or Weights & Biases."""

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
from typing import Any, Literal

from accelerate.tracking import (
    GeneralTracker,
    MLflowTracker,
    TensorBoardTracker,
    WandBTracker,
)

from dxn.core.errors import UserError
from dxn.core.files import write_text
from dxn.core.untrusted import load_json

Tracker = Literal["tensorboard", "mlflow", "wandb"]
# How to install each tracker. Its name is that of its module.
INSTALL: dict[Tracker, str] = {
    "tensorboard": "pip install 'dxn[trackers]'",
    "mlflow": "pip install 'dxn[trackers]'",
    "wandb": "pip install wandb",
}
IDS = "trackers.json"  # in the run folder: what a resumed run continues
FOLDERS: dict[Tracker, str] = {"tensorboard": "tensorboard", "wandb": "wandb"}
MLFLOW_FOLDER = "mlruns"  # the folder that MLflow used by itself before it had databases
MLFLOW_NAME = re.compile(r"[^\w\-. :/]")  # characters that names of metrics may not have
MAX_REASON = 200  # characters of an error of a library
AXES = ("step", "epoch")


def as_names(tracker: Tracker | Sequence[Tracker]) -> Sequence[Tracker]:
    """Return the option `tracker`, which can be a single name, as a list of names."""
    return [tracker] if isinstance(tracker, str) else tracker


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


class Trackers:
    """Sends the rows of metrics.jsonl to trackers.

    A tracker that fails during the training is left out from then on: a server that is down must
    not end a training.

    Args:
        names: Names of the trackers. The caller passes none in all processes except the main one.
        folder: The run folder. The folder that contains it is the experiment.
        options: Options of the run, which the trackers show beside the figures.
        say: Function that prints a line.
        resumed_at: Step from which an earlier process is continued. What TensorBoard got after it
            is hidden there, because the training sends it again. None: a new training.

    Raises:
        UserError: If a tracker cannot start.
    """

    def __init__(
        self,
        names: Sequence[Tracker],
        folder: Path,
        *,
        options: Mapping[str, Any] | None = None,
        say: Callable[[str], None] = print,
        resumed_at: int | None = None,
    ):
        self.say = say
        self.started: dict[Tracker, GeneralTracker] = {}
        path = folder / IDS
        is_new = resumed_at is None
        ids = load_json(path) if not is_new and path.is_file() else {}
        for name in names:
            with _quiet():
                try:
                    tracker = _make(name, folder, ids.get(name), resumed_at)
                    tracker.start()
                    ids[name] = _id(name, tracker)
                    if options and is_new and name != "tensorboard":
                        tracker.store_init_configuration(dict(_leaves(options)))
                # Each library has exceptions of its own, also for a server that does not answer.
                except Exception as error:
                    raise UserError(
                        f"trainer.tracker: {name} cannot start ({_reason(error)}); change its "
                        "settings, or leave it out"
                    ) from error
            self.started[name] = tracker
            self.say(_place(name, folder))
        if names:
            write_text(path, json.dumps(ids))

    def log(self, row: Mapping[str, Any]) -> None:
        """Send a row of metrics.jsonl."""
        figures = {
            name: float(value)
            for name, value in row.items()
            if name not in AXES and isinstance(value, int | float)
        }
        step = int(row["step"])
        for name in list(self.started):
            self._try(name, lambda tracker, n=name: tracker.log(_named(n, figures), step=step))

    def close(self) -> None:
        """Send what is left, and end the runs of the trackers."""
        for name in list(self.started):
            self._try(name, lambda tracker: tracker.finish())
        self.started.clear()

    def _try(self, name: Tracker, act: Callable[[GeneralTracker], None]) -> None:
        try:
            with _quiet():
                act(self.started[name])
        except Exception as error:
            del self.started[name]
            self.say(f"warning: {name} gets no more figures: {_reason(error)}")


def _make(name: Tracker, folder: Path, old: str | None, resumed_at: int | None) -> GeneralTracker:
    """Create a tracker.

    Args:
        name: Its name.
        folder: The run folder.
        old: Identifier of its run, if an earlier process has started it.
        resumed_at: See `Trackers`.
    """
    experiment = folder.absolute().parent.name or folder.absolute().name
    if name == "tensorboard":
        # TensorBoard shows the path of the folder as the name of the run.
        purge_step = None if resumed_at is None else resumed_at + 1
        return TensorBoardTracker("", folder / FOLDERS[name], purge_step=purge_step)
    if name == "wandb":
        target = folder / FOLDERS[name]
        target.mkdir(parents=True, exist_ok=True)
        return WandBTracker(experiment, name=folder.name, dir=target, id=old, resume="allow")
    mlflow: Any = importlib.import_module("mlflow")
    if not mlflow.is_tracking_uri_set():
        # The default of MLflow is a database, which needs more packages.
        mlflow.set_tracking_uri(Path(MLFLOW_FOLDER).absolute().as_uri())
    return MLflowTracker(experiment, run_id=old, run_name=folder.name)


def _place(name: Tracker, folder: Path) -> str:
    """Return a line that says where the figures are."""
    if name == "mlflow":
        place = importlib.import_module("mlflow").get_tracking_uri()
        return f"mlflow: the figures are sent to {place}"
    how = "; tensorboard --logdir shows them" if name == "tensorboard" else ""
    return f"{name}: the figures are in {folder / FOLDERS[name]}{how}"


def _id(name: Tracker, tracker: GeneralTracker) -> str | None:
    # The run of the library, which each class of accelerate has, but not their base class.
    run: Any = getattr(tracker, "tracker")  # noqa: B009
    if name == "mlflow":
        return run.info.run_id
    return run.id if name == "wandb" else None


def _named(name: Tracker, figures: Mapping[str, float]) -> dict[str, float]:
    if name != "mlflow":
        return dict(figures)
    return {MLFLOW_NAME.sub("_", figure): value for figure, value in figures.items()}


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
