"""The plan of a run: what it decided when it started, so that it continues in the same way.

The folder checkpoints/start of a run folder contains the plan, and the fitted tokenizers and
labels.
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
from dxn.config.settings import Settings, merge_overrides
from dxn.config.values import is_below, leaves, lookup
from dxn.core.errors import UserError
from dxn.core.files import CHECKPOINTS, SUMS, check_sums, link, replace_folder, write_sums
from dxn.core.schema import Strict, validated
from dxn.core.untrusted import load_json
from dxn.runs.build import save_fitted
from dxn.tasks import Task

FOLDER = Path(CHECKPOINTS) / "start"
PLAN = "plan.json"
# Keys that have no effect on the weights, or only on the end of the training.
MAY_CHANGE = (
    *("resume", "run", "output", "name", "trust", "report"),
    *("loader.num_workers", "loader.cache_gb", "loader.timeout"),
    *("trainer.epochs", "trainer.patience", "trainer.patience_below", "trainer.max_minutes"),
    *("trainer.log_every", "trainer.checkpoint_minutes", "trainer.checkpoint_every"),
    *("trainer.max_skipped_steps", "trainer.tracker"),
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
        (new / PLAN).write_text(_plan_text(plan, settings), encoding="utf-8")
        write_sums(new)


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
    text = _plan_text(plan, settings)
    if (start / PLAN).read_text(encoding="utf-8") == text:
        return
    settings.save(folder)
    with replace_folder(start) as new:
        for path in start.iterdir():
            if path.name not in (PLAN, SUMS):
                link(path, new / path.name)
        (new / PLAN).write_text(text, encoding="utf-8")
        write_sums(new)


def read_plan(folder: Path) -> Plan:
    """Return the plan of a run, after checking the files of its start.

    Raises:
        UserError: If a file is missing or damaged.
    """
    start = folder / FOLDER
    if not (start / SUMS).is_file():
        raise UserError(
            f"resume: {start} is missing, so the run stopped before its training began; start it "
            "again"
        )
    if PLAN not in check_sums(start):
        # A cut or empty list would otherwise hide damage.
        raise UserError(f"{start / SUMS}: must list {PLAN}; copy the whole folder again")
    plan = validated(Plan, load_json(start / PLAN, allow_nan=True), start / PLAN)
    # Imported here, because only a run that continues needs the check.
    from dxn.config.run_config import RunConfig

    validated(RunConfig, plan.config, start / PLAN)
    return plan


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
    new = settings.plain()
    keys = dict.fromkeys([*leaves(old.config), *leaves(new)])
    changed = [
        f"{key} was {lookup(old.config, key)[1]!r} and is now {lookup(new, key)[1]!r}"
        for key in keys
        if not is_below(key, MAY_CHANGE) and lookup(old.config, key) != lookup(new, key)
    ]
    batch_size = old.batch_size
    # A run that continues with another number of processes keeps its batches. Only a user who
    # asks for another number of samples per process changes them.
    if old.config["batch_size"] != new["batch_size"]:
        batch_size = new["batch_size"] * num_processes
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
    from dxn.data.inspect.fingerprint import differences  # only a resumed run compares its data

    stop_if_changed(differences(before, data), settings, "the data")


def stop_if_changed(changes: Sequence[str], settings: Settings, what: str) -> None:
    """Raise an error that lists the changes, unless resume.force is set."""
    if changes and not settings.values["resume"]["force"]:
        raise UserError(
            f"resume: {what} changed since the run started: {'; '.join(changes)}; undo the change, "
            "train a new run, or set resume.force=true to continue nevertheless"
        )


def _plan_text(plan: Plan, settings: Settings) -> str:
    # Values of the environment can be secrets. The configuration is that of .hydra/config.yaml.
    content = {**plan.model_dump(), "config": settings.plain()}
    return json.dumps(content, indent=1, ensure_ascii=False)
