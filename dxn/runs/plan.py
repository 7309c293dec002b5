"""The plan of a run: what settings, weights and data determine, as plain data.

The folder checkpoints/start of a run folder contains the plan, and the fitted tokenizers and
labels, so that a run that continues takes the same decisions. Such a run is refused if its options
or its data have changed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt

from dxn.config.model_plan import Input, ModelPlan
from dxn.config.settings import FOLDER as CONFIG_FOLDER
from dxn.config.settings import Settings, merge_overrides, plain
from dxn.config.values import is_below, leaves, lookup
from dxn.core.display import print_line
from dxn.core.errors import UserError
from dxn.core.files import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    SUMS,
    check_sums,
    link,
    replace_folder,
    write_sums,
)
from dxn.core.processes import launch
from dxn.core.results import Figure
from dxn.core.schema import Strict, validated
from dxn.core.untrusted import load_json
from dxn.data.inspect.fingerprint import differences
from dxn.runs.build import save_fitted
from dxn.runs.folder import has_model, is_run, is_started, member_folders, runs_below
from dxn.tasks import Task

FOLDER = Path(CHECKPOINTS) / "start"
PLAN = "plan.json"
# Keys that have no effect on the weights, or only on the end of the training.
MAY_CHANGE = (
    *("resume", "run", "output", "name", "trust", "report"),
    *("loader.num_workers", "loader.cache_gb", "loader.timeout"),
    *("trainer.epochs", "trainer.patience", "trainer.max_minutes"),
    *("trainer.log_every", "trainer.checkpoint_minutes", "trainer.tracker"),
    # The fingerprint tells whether it is the same data.
    *("data.path", "data.train", "data.validation", "data.test", "data.confine"),
    # Compared as the batch size over all processes.
    *("batch_size", "trainer.batch_size"),
)


class SplitFingerprint(Strict):
    """The fingerprint of one split."""

    rows: int
    columns: dict[str, str]
    order: str
    set: str


class Plan(Strict):
    """Everything that the settings, the data and the weights determine, as plain data.

    Args:
        config: All options, with those that the weights, the data and the preset determine.
        name: Name of the run, which is the title of its model card.
        inputs: The inputs by name, in the order of the model.
        nodes: Key of the options of each adapter in the configuration, by its key in the model.
            Several adapters can have the same options.
        target: Target column. None: the task needs none.
        layout: How tables were rearranged, see `dxn.data.rows.Source`.
        precision: Precision of matrix products, which the device determines by default.
        batch_size: Number of samples per batch over all processes.
        data: Fingerprint of each split.
        loaded: Names of the tensors that were loaded from a checkpoint.
        seconds: Measured time of a step of all published weights per row, see
            `dxn.presets.preset.Situation`. None: it was not measured.
        frozen: Metrics of a simple model on the vectors of published weights, by its description.
        start: Checkpoints that the run started from, with their licences and digests.
        launch: Identifies the torchrun that started the run. Empty without torchrun.
    """

    config: dict[str, Any]
    name: str
    inputs: dict[str, Input]
    nodes: dict[str, str]
    target: str | None
    layout: dict[str, Any] | None
    precision: Literal["float32", "tf32", "bf16", "fp16"]
    batch_size: PositiveInt
    data: dict[str, SplitFingerprint] = Field(default_factory=dict)
    loaded: list[str] = Field(default_factory=list)
    seconds: float | None = None
    frozen: dict[str, dict[str, Figure]] = Field(default_factory=dict)
    start: list[str] = Field(default_factory=list)
    launch: str = ""

    @functools.cached_property
    def model(self) -> ModelPlan:
        """The part of the plan that determines the model, which the model folder contains."""
        config = self.config
        return ModelPlan(
            inputs=self.inputs,
            target=self.target,
            layout=self.layout,
            adapters={key: config["adapters"][node] for key, node in self.nodes.items()},
            fusion=config["fusion"],
            share_backbone=config["share_backbone"],
            backbone=config["backbone"],
            head=config["head"],
        )


def write_plan(
    folder: Path, plan: Plan, settings: Settings, adapters: Mapping[str, Any], task: Task
) -> None:
    """Write the configuration and the plan of a new run.

    Args:
        folder: The run folder.
        plan: The plan.
        settings: The settings, whose secrets are not written.
        adapters: The fitted adapters.
        task: The fitted task.
    """
    settings.save(folder)
    with replace_folder(folder / FOLDER) as new:
        save_fitted(new, adapters, task)
        (new / PLAN).write_text(plan_text(plan, settings), encoding="utf-8")
        write_sums(new)


def read_plan(folder: Path) -> Plan:
    """Return the plan of a run, after checking the files of its start.

    Raises:
        UserError: If a file is missing or damaged.
    """
    start = folder / FOLDER
    if not (start / SUMS).is_file():
        if has_model(folder):
            raise UserError(
                f"resume: {start} is missing, without which a run cannot continue; copy the whole "
                f"folder again, or start a new training from its model with weights={folder}"
            )
        raise UserError(
            f"resume: {start} is missing, so the run stopped before its training began; start it "
            "again"
        )
    if PLAN not in check_sums(start):
        # A cut or empty list would otherwise hide damage.
        raise UserError(f"{start / SUMS}: must list {PLAN}; copy the whole folder again")
    plan = validated(Plan, load_json(start / PLAN, allow_nan=True), start / PLAN)
    # Imported here, because only a run that continues needs the check.
    from dxn.config.model_plan import RunConfig

    validated(RunConfig, plan.config, start / PLAN)
    return plan


def plan_text(plan: Plan, settings: Settings) -> str:
    """Return the content of plan.json."""
    content = {**plan.model_dump(), "config": plain(settings.values)}
    return json.dumps(content, indent=1, ensure_ascii=False)


def newest_unfinished(settings: Settings) -> Settings:
    """Return the settings for `resume=auto`, which continue a run of the same command, if any.

    That is the newest run in the folder `run`, or below the folder `output`, whose command had the
    same words, that has a checkpoint, and that has no metrics.json yet. Without one, a new run
    starts.
    """
    values = {**settings.values, "resume": {**settings.values["resume"], "run": None}}
    words = tuple(word for word in settings.overrides if not word.startswith("resume"))
    settings = replace(settings, values=values, overrides=words)
    folders = [Path(values["run"])] if values["run"] else runs_below(Path(values["output"]))
    candidates: list[tuple[int, Path]] = []
    for folder in folders:
        runs = [folder, *member_folders(folder)]
        started = any(is_started(run) for run in runs)
        # Members that are trained for more epochs have no metrics until they have finished.
        is_finished = all((run / METRICS).exists() for run in runs)
        if not started or is_finished or not is_run(folder):
            continue
        if Settings.load(folder, settings.trust).overrides == words:
            written = (folder / CONFIG_FOLDER / CONFIG).stat().st_mtime_ns
            candidates.append((written, folder))
    if not candidates:
        return settings
    _, folder = max(candidates)
    print_line(f"resume: {folder}")
    return continued(folder, settings)


def continued(folder: Path, settings: Settings) -> Settings:
    """Return the settings that continue a run, whose command is the same.

    Args:
        folder: The run folder.
        settings: The settings of the command.
    """
    saved = Settings.load(folder, settings.trust)
    resumed = {"resume": {"run": str(folder), "force": False}, "run": str(folder)}
    return replace(saved, values=saved.values | resumed)


def folder_before_restart(values: Mapping[str, Any]) -> Path | None:
    """Return the run folder of this training before torchrun restarted its processes.

    Returns:
        The folder. None if there was no restart, or the processes failed before the first
        checkpoint, so that the training starts again.
    """
    started = launch()
    if started is None or not started.is_restart:
        return None
    folders = [Path(values["run"])] if values["run"] else Path(values["output"]).glob("*/*")
    for folder in folders:
        # The folder of an ensemble has no plan of its own.
        runs = [folder] if values["ensemble"] == 1 else member_folders(folder)
        plans = [read_plan(run) for run in runs if (run / FOLDER / PLAN).is_file()]
        if any(plan.launch == started.id for plan in plans):
            # An ensemble decides for each of its members.
            may_continue = values["ensemble"] > 1 or is_started(folder)
            return folder if may_continue else None
    return None


def write_changes(folder: Path, plan: Plan, settings: Settings) -> None:
    """Save the options of a resumed run, so that the next resume continues with them.

    Args:
        folder: The run folder.
        plan: The plan of the resumed run.
        settings: Its settings.
    """
    start = folder / FOLDER
    # The next resume must be asked again, and it may be a resume of a copy of this folder.
    values = {**settings.values, "resume": {"run": None, "force": False}}
    saved = Settings.load(folder, settings.trust)
    overrides = merge_overrides(saved.overrides, settings.overrides)
    settings = replace(settings, values=values, overrides=overrides)
    text = plan_text(plan, settings)
    if (start / PLAN).read_text(encoding="utf-8") == text:
        return
    settings.save(folder)
    with replace_folder(start) as new:
        for path in start.iterdir():
            if path.name not in (PLAN, SUMS):
                link(path, new / path.name)
        (new / PLAN).write_text(text, encoding="utf-8")
        write_sums(new)


def check_config(old: Plan, settings: Settings, num_processes: int) -> int:
    """Compare the settings with those of the start of the run.

    Args:
        old: Its plan.
        settings: The settings of the resumed run.
        num_processes: Number of processes of the resumed run.

    Returns:
        Number of samples per batch over all processes.

    Raises:
        UserError: If an option changed, and resume.force is not set.
    """
    # Written and read in the same way as the old ones, so that equal values are equal.
    new = plain(settings.values)
    keys = dict.fromkeys([*leaves(old.config), *leaves(new)])
    changed = [
        f"{key} was {lookup(old.config, key)[1]!r} and is now {lookup(new, key)[1]!r}"
        for key in keys
        if not is_below(key, MAY_CHANGE) and lookup(old.config, key) != lookup(new, key)
    ]
    batch_size = old.batch_size
    # A run that continues with another number of processes keeps its batches. Only a user who
    # asks for another number of samples per process changes them.
    if old.config["trainer"]["batch_size"] != new["trainer"]["batch_size"]:
        batch_size = new["trainer"]["batch_size"] * num_processes
    if batch_size != old.batch_size:
        changed.append(
            f"batch_size: {old.batch_size} samples per batch over all processes, and now "
            f"{batch_size}"
        )
    stop_if_changed(changed, settings, "the configuration")
    return batch_size


def check_data(old: Plan, data: Mapping[str, Any], settings: Settings) -> None:
    """Compare the fingerprint of the data with that of the start of the run.

    Raises:
        UserError: If it changed, and resume.force is not set.
    """
    before = {name: split.model_dump() for name, split in old.data.items()}
    stop_if_changed(differences(before, data), settings, "the data")


def stop_if_changed(changes: Sequence[str], settings: Settings, what: str) -> None:
    """Raise an error that lists the changes, unless resume.force is set."""
    if changes and not settings.values["resume"]["force"]:
        raise UserError(
            f"resume: {what} changed since the run started: {'; '.join(changes)}; undo the change, "
            "train a new run, or set resume.force=true to continue nevertheless"
        )
