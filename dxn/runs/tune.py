"""A search over options with Optuna: trials in one study, and the best one as a run folder."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import socket
import statistics
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, TrialPruned, UpdateFinishedTrialError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState

from dxn.config.instantiate import build
from dxn.config.settings import Settings
from dxn.config.space import Dimension, covering, number_text
from dxn.config.values import refuse_without_effect
from dxn.core.display import (
    Display,
    count,
    now,
    number,
    print_line,
    print_rule,
    records_table,
    silence,
)
from dxn.core.errors import Interrupted, UserError
from dxn.core.files import (
    CHECKPOINTS,
    atomic_file,
    has_ended,
    link,
    new_folder,
    replace_folder,
    this_process,
)
from dxn.core.results import BEST, read_results
from dxn.runs.decide import build_parts, decide_task, open_source, readers_of
from dxn.runs.folder import BEST_RUN, TRIALS, has_checkpoint, in_use, locked, refuse_other_run
from dxn.runs.monitoring import build_metrics
from dxn.runs.plan import continued
from dxn.runs.train import train_one
from dxn.tasks.metric import Metric
from dxn.viz.search import draw_search

STUDY = "study.db"
TABLE = "trials.csv"
CHART = "trials.png"
SEED = "seed"  # trials that differ only in this option are runs of one setting
DEFAULT_TRIALS = 20
MAX_FAILURES = 3  # trials that may fail before the first one succeeds
MAX_REPEATS = 20  # in a row, after which a search has tried all values that it finds good
MAX_ROWS = 20  # of the printed table
# A killed process of another machine is noticed after the second number of seconds, and its trial
# runs again.
HEARTBEAT, GRACE = 20, 60
# What Optuna stores about a trial, besides its values.
EPOCHS, FOLDER, HOST, LOSS, ERROR, REPEATS = "epochs", "folder", "host", "loss", "error", "repeats"
PROCESS, VALIDATED = "process", "validated"
SPACE, FIXED = "space", "fixed"  # what it stores about the study
GRID = "grid"

SettingsOf = Callable[[Sequence[str]], Settings]


class OutOfTime(Exception):
    """The time of the search is over, which says nothing about the options of a trial."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the messages of Optuna: heartbeats and charts are new in it, and dxn prints trials."""
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        # A trial whose process was lost reports some of its epochs again.
        warnings.filterwarnings("ignore", "The reported value is ignored")
        yield


@_quiet()
def tune(
    settings: Settings,
    fixed: Sequence[str],
    space: Sequence[Dimension],
    settings_of: SettingsOf,
) -> Sequence[Sequence[str]]:
    """Run trials until the budget is used, and evaluate the best one on the test split.

    Args:
        settings: The settings of the command, with the first value of each searched option.
        fixed: The words of the command line that all trials have.
        space: The searched options.
        settings_of: Function that returns the settings of a training from its words.

    Returns:
        The words of the commands that a user may want next.

    Raises:
        UserError: If an option, the data or the storage cannot be used, or no trial succeeds.
        Interrupted: If the user interrupts the search. The message says how to continue it.
    """
    values = settings.values
    # Problems of the options and of the data stop the search here, instead of each trial.
    for words in covering(space):
        _check_options(settings_of([*fixed, *words]))
    name, metric = _read_target(settings)
    folder = Path(values["run"] or Path(values["output"]) / name.replace("/", "_") / now())
    if values["run"]:
        refuse_other_run(folder)
        folder.mkdir(parents=True, exist_ok=True)
    else:
        folder = new_folder(folder)
    try:
        study = open_study(settings, space, folder, higher_is_better=metric.higher_is_better)
    except UserError:
        with suppress(OSError):  # it is not empty, because it is that of another search
            folder.rmdir()
        raise
    print_line(f"search folder: {folder}")
    search = Search(study, settings, fixed, space, settings_of, folder, metric.monitored)
    if earlier := len(search.finished()):
        print_line(f"the study already has {count(earlier, 'trial')}")
    first = study.user_attrs.get(FIXED, list(fixed))
    if {*first} != {*fixed}:
        old = shlex.join(word for word in first if word not in fixed) or "none of these"
        new = shlex.join(word for word in fixed if word not in first) or "none of these"
        print_line(
            f"warning: the first command of this study had other options ({old}) than this one "
            f"({new}), and the best trial is chosen from all trials"
        )
    study.set_user_attr(FIXED, first)
    trials = values["trials"]
    if trials is None and values["sampler"] == GRID:
        trials = math.prod(len(option.grid()) for option in space)
    elif trials is None and values["minutes"] is None:
        trials = DEFAULT_TRIALS
    try:
        search.run(trials=trials, minutes=values["minutes"])
        return search.finish()
    except optuna.exceptions.StorageInternalError as error:
        raise UserError(
            "storage: the database does not answer; when it is available again, run the same "
            f"command with run={folder}"
        ) from error
    except KeyboardInterrupt as error:
        stopped = error if isinstance(error, Interrupted) else Interrupted()
        words = [*settings.overrides, *([] if values["run"] else [f"run={folder}"])]
        command = shlex.join(["dxn", "tune", *words])
        # Without the command that would continue the trial alone.
        reason = str(stopped).partition(";")[0]
        raise Interrupted(f"{reason}; continue with: {command}", stopped.code) from None


def open_study(
    settings: Settings, space: Sequence[Dimension], folder: Path, *, higher_is_better: bool
) -> optuna.Study:
    """Create the study of a search, or open it if it exists.

    Args:
        settings: The settings of the command.
        space: The searched options.
        folder: The folder of the search, with the database unless the user named another one.
        higher_is_better: Whether higher values of the monitored metric are better.

    Raises:
        UserError: If the storage cannot be opened, or the study searches other options.
    """
    values = settings.values
    is_grid = values["sampler"] == GRID
    has_seeds = SEED in (option.key for option in space)
    prunes = not (is_grid or has_seeds) if values["prune"] is None else values["prune"]
    url = values["storage"] or f"sqlite:///{folder.absolute() / STUDY}"
    try:
        storage = RDBStorage(
            url,
            heartbeat_interval=HEARTBEAT,
            grace_period=GRACE,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
        )
        study = optuna.create_study(
            storage=storage,
            study_name=values["name"] or "dxn",
            direction="maximize" if higher_is_better else "minimize",
            pruner=optuna.pruners.HyperbandPruner() if prunes else optuna.pruners.NopPruner(),
            load_if_exists=True,
        )
    except Exception as error:
        # Of SQLAlchemy, of the driver of the database, or of the import of a missing driver.
        # The URL, which can contain a password, is not shown.
        shown = str(error).partition("\n")[0].replace(url, "the URL")
        is_locked = "database is locked" in shown  # by a process that was stopped, in SQLite
        advice = "another process uses it; run the command again" if is_locked else "check the URL"
        raise UserError(f"storage: cannot be opened ({shown}); {advice}") from error
    words = sorted(option.word for option in space)
    saved = study.user_attrs.get(SPACE, words)
    if saved != words:
        place = "storage" if values["storage"] else folder
        raise UserError(
            f"name: the study {study.study_name!r} in {place} searches "
            f"{' '.join(saved)}, got {' '.join(words)}; choose another "
            f"{'name' if values['storage'] else 'folder with run'}="
        )
    study.set_user_attr(SPACE, words)
    if is_grid:
        grid = {option.key: option.grid() for option in space}
        study.sampler = optuna.samplers.GridSampler(grid, seed=values["seed"] % 2**32)
    else:
        # A search that continues, or another process, must not repeat the same draws.
        number = len(study.get_trials(deepcopy=False))
        seed = None if values["storage"] else (values["seed"] + number) % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=seed)
    return study


def _check_options(settings: Settings) -> None:
    """Build the parts of a training that need no data, so that wrong options are found."""
    config, trust = settings.values, settings.trust
    refuse_without_effect(config, settings.overrides)
    build_parts(config, trust)
    build(config["backbone"], key="backbone", trust=trust)


def _read_target(settings: Settings) -> tuple[str, Metric]:
    """Return the name of the data set or its target, and the metric that ranks the trials."""
    config, trust = settings.values, settings.trust
    head = build(config["head"], key="head", trust=trust)
    readers = readers_of(config, trust)
    source = open_source(config, readers, head, trust)
    task, _, _ = decide_task(head, config, source, readers, trust)
    if not source.splits.get("validation"):
        raise UserError(
            "tune: the data has no validation split, which ranks the trials; set data.fractions or "
            "data.validation"
        )
    if task.is_supervised:
        print_line(f"target: {source.target} ({task.name})")
    metric = task.metric
    metric.own = build_metrics(config, trust)
    metric.monitored = config["trainer"]["monitor"] or metric.monitored
    return str(config["name"] or source.name or source.target or "run"), metric


@dataclass
class Search:
    """The trials of a study that this process runs.

    Args:
        study: The study, which other processes may share.
        settings: The settings of the command.
        fixed: The words of the command line that all trials have.
        space: The searched options.
        settings_of: Function that returns the settings of a training from its words.
        folder: The folder of the search.
        monitored: Name of the metric that ranks the trials.
    """

    study: optuna.Study
    settings: Settings
    fixed: Sequence[str]
    space: Sequence[Dimension]
    settings_of: SettingsOf
    folder: Path
    monitored: str
    has_lost_trial: bool = False  # whether another process has taken over the last trial

    @property
    def _keys(self) -> list[str]:
        return [option.key for option in self.space]

    def run(self, *, trials: int | None, minutes: float | None) -> None:
        """Run trials until the study has enough of them, or the time is over.

        Args:
            trials: Number of trials of the study.
            minutes: Time limit.

        Raises:
            UserError: If no trial succeeds.
        """
        self.deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
        is_over = trials is not None and len(self.finished()) >= trials
        self._end_killed(again=not is_over)

        def after_trial(study: optuna.Study, trial: FrozenTrial) -> None:
            nonlocal is_over
            self._write()
            finished = self.finished()
            failed = [trial for trial in finished if ERROR in trial.user_attrs]
            has_enough = trials is not None and len(finished) >= trials
            only_fails = len(failed) == len(finished) >= MAX_FAILURES
            last = study.get_trials(deepcopy=False)[-MAX_REPEATS:]
            repeats = [trial for trial in last if REPEATS in trial.user_attrs]
            if has_enough or only_fails or len(repeats) == MAX_REPEATS:
                is_over = True
                study.stop()

        caught = (OutOfTime,) if os.environ.get("DXN_DEBUG") else (Exception,)
        # Several times, because a trial that repeats another one does not count.
        while not is_over and (left := self.deadline - time.monotonic()) > 0:
            try:
                self.study.optimize(
                    self._train_unless_lost,
                    n_trials=None if trials is None else trials - len(self.finished()),
                    timeout=None if minutes is None else left,
                    catch=caught,
                    callbacks=[after_trial],
                    gc_after_trial=True,
                )
            except (UpdateFinishedTrialError, ValueError):  # Optuna cannot end such a trial either
                if not self.has_lost_trial:
                    raise
                self.has_lost_trial = False
        if not self._complete():
            errors = [
                trial.user_attrs[ERROR] for trial in self.finished() if ERROR in trial.user_attrs
            ]
            raise UserError("\n".join(dict.fromkeys(errors)) or "tune: no trial was completed")

    def _end_killed(self, *, again: bool) -> None:
        """End the trials of killed processes of this machine, and let them run again."""
        for trial in self.study.get_trials(states=(TrialState.RUNNING,)):
            if has_ended(trial.user_attrs.get(PROCESS, "")):
                with suppress(UpdateFinishedTrialError, ValueError):  # another process ended it
                    self.study.tell(trial.number, state=TrialState.FAIL)
                    if again:
                        RetryHeartbeatStaleTrialCallback()(self.study, trial)

    def finish(self) -> list[list[str]]:
        """Print the trials, and evaluate the best setting on the test split.

        Returns:
            The words of the commands that a user may want next.
        """
        with ExitStack() as stack:
            # Several processes can end at the same time, and each can have the best trial.
            while not self._locked(stack):
                time.sleep(1)
            self._write()
            self._draw()
            self._print()
            best = self._settings()[0]
            figures: dict[str, list[float]] = {}
            commands: list[list[str]] = []
            start: Sequence[str] = ()
            for trial in best:
                run = Path(trial.user_attrs[FOLDER])
                if not has_checkpoint(run):
                    print_line(f"trial {trial.number} is on {trial.user_attrs[HOST]}: {run}")
                    continue
                results = read_results(run)
                if results is None:  # otherwise, it was evaluated before
                    print_rule(f"best: trial {trial.number}")
                    print_line(self._title(trial.params))
                    trained = train_one(continued(run, self.settings))
                    results, commands = trained.results, [*map(list, trained.next_commands)]
                assert results is not None  # this process is the main one
                start = results.start
                for name in (f"{results.split}/{metric}" for metric in results.shown):
                    if name in results.metrics:
                        figures.setdefault(name, []).append(results.metrics[name])
            best_run = self.folder / BEST_RUN
            run = Path(best[0].user_attrs[FOLDER])
            is_here = has_checkpoint(run)
            if is_here:
                with replace_folder(best_run) as new:
                    shutil.copytree(
                        run,
                        new,
                        copy_function=lambda path, other: link(Path(path), Path(other)),
                        dirs_exist_ok=True,
                    )
        if figures:
            texts = [f"{name} {_mean_and_deviation(values)}" for name, values in figures.items()]
            print_line(f"{count(len(best), 'run')} of the best setting: {', '.join(texts)}")
        print_line(f"best options: {self._title(best[0].params)}")
        for line in start:
            print_line(f"initial weights: {line}")
        names = [*([f"{BEST_RUN}/"] if is_here else []), TABLE, CHART, f"{TRIALS}/"]
        print_line(f"written: {self.folder} ({', '.join(names)})")
        new_word = f"run={best_run}"
        return [[new_word if w.startswith("run=") else w for w in words] for words in commands]

    def _locked(self, stack: ExitStack) -> bool:
        try:
            stack.enter_context(locked(self.folder, main=True))
        except UserError:  # another process has the lock
            return False
        return True

    def finished(self) -> list[FrozenTrial]:
        """Return the trials that count: neither interrupted ones nor repeats of others."""
        ended = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        trials = self.study.get_trials(deepcopy=False, states=ended)
        return [
            trial
            for trial in trials
            if (trial.state is not TrialState.FAIL or ERROR in trial.user_attrs)
            and REPEATS not in trial.user_attrs
        ]

    def _train_unless_lost(self, trial: optuna.Trial) -> float:
        """Run one trial, unless another process of the search takes it over.

        That is so if this process did not answer for a minute, such as on a machine that slept.
        """
        try:
            return self._train(trial)
        except UpdateFinishedTrialError:
            self.has_lost_trial = True
            print_line(
                f"note: trial {trial.number}: this process did not answer for {GRACE} seconds, so "
                "another process of the search runs the trial again"
            )
            raise

    def _train(self, trial: optuna.Trial) -> float:
        """Run one trial, and return the best value of the monitored metric."""
        options = {option.key: self._suggest(trial, option) for option in self.space}
        words = self._title(options)
        for earlier in self.finished():
            # The result of a trial with the same options would be the same.
            if self._title(earlier.params) == words and ERROR not in earlier.user_attrs:
                trial.set_user_attr(REPEATS, earlier.number)
                if earlier.state is TrialState.PRUNED:
                    raise TrialPruned
                return _value(earlier)
        title = f"trial {trial.number} ({words})"
        display = Display()

        def on_epoch(epoch: int, epochs: int, value: float) -> None:
            trial.report(value, epoch)
            trial.set_user_attr(EPOCHS, epoch)
            if time.monotonic() > self.deadline and self._complete():
                raise OutOfTime(f"stopped after epoch {epoch}: the time is over")
            if trial.should_prune():
                raise TrialPruned(f"pruned after epoch {epoch}: worse than other trials")
            if display.is_due():
                figure = f"validation {self.monitored} {number(value)}"
                display.update(f"{title}, epoch {epoch}/{epochs}", epoch, epochs, figure)

        try:
            with silence():  # the log is in the run folder
                results = train_one(self._start(trial, options), on_epoch=on_epoch).results
            assert results is not None  # this process is the main one
            value = results.metrics.get(BEST)
            if results.monitored != self.monitored:
                raise UserError(
                    f"trainer.monitor: the trials must have the same metric, got "
                    f"{results.monitored} and {self.monitored}; set trainer.monitor"
                )
            if value is None:
                raise UserError(f"the validation {self.monitored} was NaN in all epochs")
            loss = results.metrics.get("validation/loss", 0.0)
            # A model whose outputs are NaN has an accuracy nevertheless.
            if not math.isfinite(loss):
                raise UserError(
                    f"the training diverged, its validation loss is {loss}; lower optimizer.lr"
                )
            trial.report(value, results.epochs or 0)
            trial.set_user_attr(EPOCHS, results.epochs)
            trial.set_user_attr(LOSS, loss)
            trial.set_user_attr(VALIDATED, results.evaluated)
        except (KeyboardInterrupt, OutOfTime) as error:
            # As that of a killed process, the trial runs again when the search continues.
            interrupted = self.study.get_trials()[trial.number]
            RetryHeartbeatStaleTrialCallback()(self.study, interrupted)
            if isinstance(error, OutOfTime):
                print_line(f"{title}: {error}")
            raise
        except TrialPruned as error:
            print_line(f"{title}: {error}")
            raise
        except UpdateFinishedTrialError:
            raise
        except Exception as error:
            shown = str(error)
            if not isinstance(error, UserError):
                traceback.print_exc()
                shown = f"{type(error).__name__}: {error}"
            trial.set_user_attr(ERROR, shown)
            print_line(f"{title}: failed: {shown}")
            raise
        finally:
            display.close()
        print_line(
            f"{title}: validation {self.monitored} {number(value)} after "
            f"{count(results.epochs or 0, 'epoch')}"
        )
        return value

    def _start(self, trial: optuna.Trial, options: Mapping[str, str]) -> Settings:
        """Return the settings of a trial, which continues the run of a killed process."""
        trial.set_user_attr(HOST, socket.gethostname())
        trial.set_user_attr(PROCESS, this_process())
        killed = trial.user_attrs.get(FOLDER)
        # A process that did not answer can still use the folder, so the trial starts again.
        if killed is not None and has_checkpoint(Path(killed)) and not in_use(Path(killed)):
            return continued(Path(killed), self.settings)
        run = str(self.folder.absolute() / TRIALS / str(trial.number))
        trial.set_user_attr(FOLDER, run)
        words = [f"{key}={text}" for key, text in options.items()]
        settings = self.settings_of([*self.fixed, *words])
        return replace(settings, values={**settings.values, "run": run})

    def _suggest(self, trial: optuna.Trial, option: Dimension) -> str:
        """Return the text of the value that the sampler chooses for an option."""
        key = option.key
        if not option.is_range or self.settings.values["sampler"] == GRID:
            return trial.suggest_categorical(key, option.grid())
        low, high = map(float, option.values)
        step = None if option.step is None else float(option.step)
        if option.is_whole:
            whole = trial.suggest_int(
                key, int(low), int(high), step=int(step or 1), log=option.is_log
            )
            return str(whole)
        return number_text(trial.suggest_float(key, low, high, step=step, log=option.is_log))

    def _complete(self) -> list[FrozenTrial]:
        return [trial for trial in self.finished() if trial.state is TrialState.COMPLETE]

    def _settings(self) -> list[list[FrozenTrial]]:
        """Return the complete trials by setting, the best one first.

        Trials of a setting differ in the seed only, and their mean counts. The best is the first.
        As between epochs, the lower validation loss decides between equal metrics. A setting whose
        training failed with another seed comes after all others: the mean of the seeds that
        worked would be too good.
        """
        groups: dict[str, list[FrozenTrial]] = {}
        failing: set[str] = set()
        for trial in self.finished():
            setting = self._title(trial.params, without=SEED)
            if trial.state is TrialState.COMPLETE:
                groups.setdefault(setting, []).append(trial)
            elif trial.state is TrialState.FAIL:
                failing.add(setting)
        sign = -1 if self.study.direction == optuna.study.StudyDirection.MAXIMIZE else 1

        def rank(trials: Sequence[FrozenTrial]) -> tuple[float, float]:
            losses = [trial.user_attrs[LOSS] for trial in trials]
            return sign * statistics.fmean(map(_value, trials)), statistics.fmean(losses)

        for trials in groups.values():
            trials.sort(key=lambda trial: rank([trial]))
        order = sorted(groups, key=lambda setting: (setting in failing, rank(groups[setting])))
        return [groups[setting] for setting in order]

    def _title(self, params: Mapping[str, Any], without: str = "") -> str:
        """Return the options of a trial as words of a command line."""
        keys = [key for key in self._keys if key in params and key != without]
        return " ".join(f"{key}={_text(params[key])}" for key in keys)

    def _write(self) -> None:
        """Write trials.csv, and remove checkpoints that are of no use any more."""
        attributes = ("value", "params", "state", "duration", "user_attrs")
        names = {"value": f"validation/{self.monitored}", "duration": "seconds"}
        table = self.study.trials_dataframe(attrs=attributes).rename(columns=names)
        table["state"] = table["state"].str.lower()
        table["seconds"] = table["seconds"].dt.total_seconds().round(1)
        table = table.drop(columns=f"user_attrs_{PROCESS}", errors="ignore")
        table = table.rename(columns=lambda name: re.sub("^(params|user_attrs)_", "", name))
        with atomic_file(self.folder / TABLE) as path:
            table.convert_dtypes().to_csv(path, index_label="trial")
        # The mean of further seeds can make any complete trial that of the best setting.
        # Those that finish from now on stay.
        finished = self.finished()
        useful = self._settings() if SEED in self._keys else self._settings()[:1]
        numbers = {trial.number for trials in useful for trial in trials}
        for trial in finished:
            is_here = trial.user_attrs.get(HOST) == socket.gethostname()
            if is_here and trial.number not in numbers:
                shutil.rmtree(Path(trial.user_attrs[FOLDER]) / CHECKPOINTS, ignore_errors=True)

    def _print(self) -> None:
        """Print one row per setting, the best ones first, and the number of trials by state."""
        settings = self._settings()
        records: list[dict[str, str]] = []
        for i, trials in enumerate(settings[:MAX_ROWS]):
            numbers = ", ".join(str(trial.number) for trial in trials)
            params = trials[0].params
            records.append(
                {
                    "trial": numbers + (" *" if i == 0 else ""),
                    **{key: _text(params[key]) for key in self._keys if key != SEED},
                    f"validation {self.monitored}": _mean_and_deviation(list(map(_value, trials))),
                }
            )
        records_table(records)
        if len(settings) > MAX_ROWS:
            print_line(f"and {count(len(settings) - MAX_ROWS, 'more setting')}, see {TABLE}")
        states = [trial.state.name.lower() for trial in self.finished()]
        numbers = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        print_line(f"{count(len(states), 'trial')} ({numbers}); best by validation: *")
        counts = {trial.user_attrs[VALIDATED] for trials in settings for trial in trials}
        if len(counts) > 1:
            shown = " and ".join(f"{number:,}" for number in sorted(counts))
            print_line(
                f"warning: the trials were validated on different numbers of rows ({shown}), "
                "because the time limit had no time for all; set a higher trainer.max_minutes to "
                "compare them"
            )

    def _draw(self) -> None:
        """Draw the value of each trial by each searched option."""
        points = [(trial.params, _value(trial)) for trials in self._settings() for trial in trials]
        logs = [option.key for option in self.space if option.is_log]
        metric = f"validation {self.monitored}"
        with atomic_file(self.folder / CHART) as path:
            draw_search(points, self._keys, metric, path, logs=logs)


def _value(trial: FrozenTrial) -> float:
    assert trial.value is not None  # of a complete trial
    return trial.value


def _text(value: Any) -> str:
    return number_text(value) if isinstance(value, int | float) else value


def _mean_and_deviation(values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    text = number(mean, mean)
    # The sample standard deviation (n - 1), as papers report it.
    more = f" ± {number(statistics.stdev(values), mean)}" if len(values) > 1 else ""
    return text + more
