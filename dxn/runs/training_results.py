"""The results of a training on its validation split, with the versions and the hardware."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dxn.core.files import LOG
from dxn.core.results import ALL, BEST, Results
from dxn.models.model import MultimodalModel, count_parameters
from dxn.tasks import Task
from dxn.training.log import read_log
from dxn.training.predict import task_results
from dxn.training.state import State

if TYPE_CHECKING:
    from dxn.runs.prepare import Training

# Whose versions a record of results has.
PACKAGES = ("dxn", "torch", "torchvision", "torchaudio", "tokenizers", "numpy")


def results_of(
    run: Training,
    model: MultimodalModel,
    task: Task,
    figures: Mapping[str, float],
    state: State | None = None,
) -> Results:
    """Return the results of a training on the validation split.

    Args:
        run: The training.
        model: The model: that of the run, or that of its pretraining.
        task: Its task.
        figures: Validation metrics of the best epoch.
        state: State of the finished training. None: it goes on.
    """
    fields: dict[str, Any] = {}
    if state is not None:
        fields = {
            "best_epoch": state.best_epoch,
            "epochs": state.epoch,
            "train_seconds": round(state.seconds, 1),
            "bad_files": sum(len(split.bad_later) for split in run.splits.values()),
        }
    results = task_results(
        task,
        "validation",
        {ALL: figures} if figures else {},
        inputs=list(model.inputs),
        subsets=[ALL],
        parameters=count_parameters(model),
        precision=run.plan.precision,
        data=run.facts,
        environment=environment(str(run.trainer.hardware.device)),
        **fields,
    )
    best = results.metrics.get(f"validation/{results.monitored}")
    metrics = results.metrics if best is None else {BEST: best, **results.metrics}
    return results.model_copy(update={"metrics": metrics})


def environment(device: str) -> dict[str, str]:
    """Return versions and hardware, without anything that identifies the machine or the user."""
    found = {
        "time": datetime.now().strftime("%Y-%m-%d %H:%M"),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": device,
        "threads": str(torch.get_num_threads()),
    }
    if device.startswith("cuda"):
        found["GPU"] = torch.cuda.get_device_name()
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def best_figures(folder: Path, state: State) -> dict[str, float]:
    """Return the validation metrics of the best epoch from the log, which a resumed run has too."""
    prefix = "validation/"
    figures: dict[str, float] = {}
    for row in read_log(folder / LOG):
        if row["epoch"] == state.best_epoch:
            names = [name for name in row if name.startswith(prefix)]
            figures |= {name.removeprefix(prefix): row[name] for name in names}
    return figures
