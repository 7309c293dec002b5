"""Training of an ensemble: several seeds in one command, and one model folder (ensemble=N)."""

from __future__ import annotations

import copy
import json
import shutil
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor

from dxn.config.model_plan import read_model_plan
from dxn.config.settings import FOLDER, Settings, dump_yaml
from dxn.config.values import assign, leaves, lookup
from dxn.core.display import is_main_process, print_line, print_rule
from dxn.core.errors import Interrupted, UserError
from dxn.core.files import (
    CARD,
    CONFIG,
    METRICS,
    MODEL,
    STACK,
    SUMS,
    WEIGHTS,
    link,
    new_folder,
    replace_folder,
    write_sums,
    write_text,
)
from dxn.core.processes import from_first
from dxn.core.results import ALL, BEST, Results, read_results
from dxn.core.schema import Strict, validated
from dxn.core.tensors import read_tensors, write_tensors
from dxn.core.untrusted import load_json, load_yaml
from dxn.models.model import count_parameters
from dxn.runs.evaluation.after_training import about_split, complete
from dxn.runs.evaluation.data import open_data_of_run
from dxn.runs.evaluation.evaluate import evaluate_subsets
from dxn.runs.evaluation.next_commands import resume
from dxn.runs.folder import MEMBERS, is_started, locked, member_folder, member_folders, run_folder
from dxn.runs.monitoring import build_metrics
from dxn.runs.plan import folder_before_restart
from dxn.runs.saved import model_folder
from dxn.runs.saved.card import Card
from dxn.runs.train import Trained, connected, train_one
from dxn.stacking import stacked as stack_files

FILE = "ensemble.json"  # what the members that have not started yet need, besides the configuration
# Files of a model folder that those of an ensemble replace.
REPLACED = (
    *(WEIGHTS, CONFIG, CARD, SUMS),
    *(STACK, stack_files.TENSORS),
)
MEAN = f"mean of the {MEMBERS}"


class SavedEnsemble(Strict):
    """The content of ensemble.json."""

    chosen: list[str]


def train_ensemble(settings: Settings) -> Trained:
    """Train the members one after the other, and write the model folder of the ensemble.

    Each member is a complete run in RUN/members/N. All have the same splits and tokenizers.

    Raises:
        UserError: See `train_one`.
        Interrupted: If the user interrupts the training. The message says how to continue it.
    """
    size = settings.values["ensemble"]
    # First, because the processes must use the same folder.
    device = connected(settings)
    folder = from_first(lambda: ensemble_folder(settings))
    runs = _members(settings, folder, size)
    started = perf_counter()
    trained: list[Trained] = []
    with ExitStack() as stack:
        for number, run in enumerate(runs):
            print_rule(f"member {number + 1} of {size}")
            if run is None:
                print_line(f"finished earlier: {member_folder(folder, number)}")
                continue
            # All members have the tokenizers and labels of the first one.
            fitted_from = member_folder(folder, 0) if number else None
            try:
                spent = len(trained), perf_counter() - started
                trained.append(train_one(run, members=size, spent=spent, fitted_from=fitted_from))
            except Interrupted as error:
                raise Interrupted(
                    f"member {number + 1} of {size} was interrupted; continue with: "
                    f"{resume(folder, settings)}",
                    error.code,
                ) from None
            except UserError:
                # A training that is refused leaves no folder.
                is_new = not settings.is_resumed and not member_folders(folder)
                if is_new and is_main_process():
                    _remove_start(folder)
                raise
        print_rule(f"ensemble of {size}")
        from_first(lambda: stack.enter_context(locked(folder, main=True)))
        results = _write_ensemble(settings, folder, size, str(device))
    commands = trained[-1].next_commands if trained else []
    # The commands after the last member are those after the ensemble, with another folder.
    member_run, ensemble_run = f"run={member_folder(folder, size - 1)}", f"run={folder}"
    renamed = [
        [ensemble_run if word == member_run else word for word in words] for words in commands
    ]
    return Trained(folder, results, renamed)


def ensemble_folder(settings: Settings) -> Path:
    """Return the run folder of an ensemble: that of the resumed run, `run`, or a new one.

    Raises:
        UserError: If a new run would overwrite another one.
    """
    values = settings.values
    if values["resume"]["run"]:
        return Path(values["resume"]["run"])
    before_restart = folder_before_restart(values)
    if before_restart is not None:
        return before_restart
    data = values["data"]
    # The target is inferred when the data is read, so only one that the user set is known.
    name = str(values["name"] or data.get("target") or "ensemble")
    folder = run_folder(values, name)
    if not values["run"]:
        folder = new_folder(folder)
    if member_folders(folder):
        raise UserError(
            f"run: {folder} already contains an ensemble; set resume={folder} to continue it, or "
            "choose another folder"
        )
    return folder


def _members(settings: Settings, folder: Path, size: int) -> list[Settings | None]:
    """Return the settings of each member, None if it has finished, and write those of the run."""
    if settings.is_resumed:
        old = Settings.load(folder, settings.trust)
        saved = validated(SavedEnsemble, load_json(folder / FILE), folder / FILE)
        settings = replace(settings, chosen=settings.chosen | frozenset(saved.chosen))
        changed = {
            key: lookup(settings.values, key)[1]
            for key in leaves(settings.values)
            if lookup(settings.values, key) != lookup(old.values, key)
            and key.partition(".")[0] not in ("resume", "run", "ensemble")
        }
    else:
        changed = {}
    # Before anything is written: all processes must take the same decisions.
    members = [_member(settings, folder, number, changed) for number in range(size)]
    if is_main_process():
        values = {**settings.values, "resume": {"run": None, "force": False}, "run": None}
        replace(settings, values=values).save(folder)
        text = json.dumps({"chosen": sorted(settings.chosen)})
        write_text(folder / FILE, text)
    return members


def _member(
    settings: Settings, folder: Path, number: int, changed: Mapping[str, Any]
) -> Settings | None:
    """Return the settings of a member; None if it has finished.

    Args:
        settings: Settings of the ensemble.
        folder: Its run folder.
        number: Number of the member.
        changed: Options that the user changed to resume the training, by dotted key.
    """
    run_of_member = member_folder(folder, number)
    if (run_of_member / METRICS).exists() and not changed:
        return None
    started = is_started(run_of_member)
    values = copy.deepcopy(settings.values)
    seed = values["seed"] + number
    if started and settings.is_resumed:
        values = copy.deepcopy(Settings.load(run_of_member, settings.trust).values)
        for key, value in changed.items():
            is_limit = key == "trainer.max_minutes" and value is not None
            assign(values, key, value / settings.values["ensemble"] if is_limit else value)
    # The seed of the data remains, so that all members have the same splits.
    values["seed"] = values["trainer"]["seed"] = seed
    values["ensemble"] = 1
    values["run"] = str(run_of_member)
    values["resume"] = {
        "run": str(run_of_member) if started and settings.is_resumed else None,
        "force": settings.values["resume"]["force"] if started else False,
    }
    return replace(settings, values=values, overrides=_overrides(settings, seed))


def _overrides(settings: Settings, seed: int) -> tuple[str, ...]:
    """Return the overrides that train one member alone."""
    overrides = [
        line
        for line in settings.overrides
        if not line.startswith(("ensemble=", "seed=", "run=", "resume"))
    ]
    data_seed = settings.values["data"].get("seed")
    data = () if data_seed is None else (f"data.seed={data_seed}",)
    return (*overrides, f"seed={seed}", *data)


def _remove_start(folder: Path) -> None:
    """Remove what `_members` has written, and the folder if nothing else is in it."""
    shutil.rmtree(folder / FOLDER)
    (folder / FILE).unlink()
    with suppress(OSError):
        folder.rmdir()


def _write_ensemble(settings: Settings, folder: Path, size: int, device: str) -> Results | None:
    """Write model/, and what `complete` writes. Only the first process gets the results."""
    members = [member_folder(folder, number) for number in range(size)]
    from_first(lambda: save_ensemble(folder / MODEL, [member / MODEL for member in members]))
    best = model_folder.load(folder / MODEL, device=device, trust=settings.trust)
    built = build_metrics(settings.values, settings.trust)
    best.task.metric.own = {**built, **settings.metrics}
    data = open_data_of_run(settings.values["data"], best, settings.trust)
    trained = [results for results in map(read_results, members) if results is not None]
    # The rows for which the members had time, so that the metrics can be compared.
    counts = {member.evaluated for member in trained}
    mean = _mean([member.figures()[ALL] for member in trained])
    evaluated = evaluate_subsets(
        best,
        data,
        folder,
        batch_size=2 * settings.values["trainer"]["batch_size"],
        max_samples=min(counts),
        further={MEAN: mean} if len(counts) == 1 else {},
    )
    if evaluated is None:
        return None
    results, evaluation = evaluated
    notes: list[str] = []
    if results.evaluated < (total := len(best.task_samples(data.opened))):
        notes = [
            f"note: {results.evaluated:,} of {total:,} samples are evaluated, because the "
            "members had no time for more; dxn evaluate evaluates all of them"
        ]
    selected = _mean([member.metrics for member in trained]).get(BEST)
    training = trained[0].model_copy(
        update={
            "metrics": {} if selected is None else {BEST: selected},
            "best_epoch": None,
            "epochs": None,
            "train_seconds": round(sum(member.train_seconds or 0.0 for member in trained), 1),
            "parameters": count_parameters(best.network),
            "seeds": [settings.values["seed"] + number for number in range(size)],
        }
    )
    plan = read_model_plan(folder / MODEL, trust=settings.trust)
    name = settings.values["name"] or plan.target or folder.name
    overrides = tuple(line for line in settings.overrides if not line.startswith("resume"))
    return complete(
        results.of_training(training),
        best,
        evaluation,
        folder=folder,
        settings=settings,
        card=Card(
            f"{name}: ensemble of {size} models",
            plan,
            best.task,
            overrides,
        ),
        remarks=[*notes, *about_split(data.split)],
    )


def _mean(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric that all members have."""
    shared = [name for name in metrics[0] if all(name in figures for figures in metrics)]
    return {name: statistics.fmean(figures[name] for figures in metrics) for name in shared}


def save_ensemble(folder: Path, members: Sequence[Path]) -> None:
    """Write the model folder of an ensemble from the model folders of its members.

    Args:
        folder: Folder to write.
        members: Model folders with the same inputs, tokenizers and labels.
    """
    first, *_ = members
    tensors: dict[str, Tensor] = {}
    for number, path in enumerate(members):
        for name, tensor in read_tensors(path / WEIGHTS).items():
            tensors[f"{MEMBERS}.{number}.{name}"] = tensor
    nodes = {**load_yaml(first / CONFIG), MEMBERS: len(members)}
    with replace_folder(folder) as new:
        for path in first.iterdir():
            if path.name not in REPLACED and path.is_file():
                link(path, new / path.name)
        write_tensors(new / WEIGHTS, tensors)
        stack_files.join_stacks(new, members)
        (new / CONFIG).write_text(dump_yaml(nodes), encoding="utf-8")
        # `write_card` replaces it when the metrics are known.
        (new / CARD).write_text("", encoding="utf-8")
        write_sums(new)
