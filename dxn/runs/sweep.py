"""A sweep: one training per combination of options, and a table with one row per setting."""

from __future__ import annotations

import os
import statistics
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from dxn.config.settings import Settings
from dxn.core.display import count, format_number, now, print_line, print_rule, print_table
from dxn.core.errors import UserError
from dxn.core.files import new_folder
from dxn.core.results import BEST, Results
from dxn.runs.predictor.output import write_records
from dxn.runs.train import Trained, run_training
from dxn.stacking.metrics import BASELINE, TRANSFORMER

FOLDER = "sweeps"
FILE = "sweep.csv"
SEED = "seed"
FAILED = 2  # the exit code of a problem that the user can fix


@dataclass(frozen=True)
class Outcome:
    """The result of one run of a sweep.

    Args:
        options: Value of each option that differs between the runs, by key.
        trained: The finished training. None if it failed.
        error: Why it failed. Empty if it did not.
    """

    options: Mapping[str, str]
    trained: Trained | None = None
    error: str = ""

    @property
    def results(self) -> Results | None:
        """The content of metrics.json. None if the run failed."""
        return None if self.trained is None else self.trained.results

    @property
    def setting(self) -> str:
        """The options without the seed, such as "optimizer.lr=0.001"."""
        return " ".join(f"{key}={value}" for key, value in self.options.items() if key != SEED)

    @property
    def answers(self) -> str:
        """The part of the model that answers. Empty without a baseline."""
        return (self.results and self.results.answers) or ""

    @property
    def figures(self) -> dict[str, float]:
        """The best validation metric, and the metrics of the evaluation with all inputs.

        If the model has a baseline, the monitored metric of both of its parts is included.
        """
        results = self.results
        if results is None:
            return {}
        # The metrics of single inputs, such as test/accuracy[text], would make the table too wide.
        parts = [f"{results.monitored}[{part}]" for part in (TRANSFORMER, BASELINE)]
        # The metric that ranks the settings comes first.
        names = [BEST, *(f"{results.split}/{name}" for name in (*results.shown, *parts))]
        return {name: results.metrics[name] for name in names if name in results.metrics}


@dataclass
class Sweep:
    """The outcomes of a sweep so far.

    Args:
        path: The file sweep.csv.
        outcomes: One per run that has ended.
    """

    path: Path
    outcomes: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a run, and write the file, so that an interruption loses nothing."""
        self.outcomes.append(outcome)
        names = _union(outcome.figures for outcome in self.outcomes)
        records = []
        for each in self.outcomes:
            folder = str(each.trained.folder) if each.trained else None
            figures = {name: each.figures.get(name) for name in names}
            record = {**each.options, "folder": folder, **figures, "answers": each.answers}
            records.append({**record, "error": each.error})
        write_records(self.path, records)

    def settings(self) -> dict[str, list[Outcome]]:
        """Return the outcomes without failures by setting; they differ in the seed only."""
        groups: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes:
            if outcome.trained is not None:
                groups.setdefault(outcome.setting, []).append(outcome)
        return groups

    def best(self) -> str | None:
        """Return the setting with the best mean validation metric, if they can be compared."""
        settings = self.settings()
        # Runs of different tasks have different metrics.
        results = [run.results for run in self.outcomes if run.results]
        kinds = {(each.monitored, each.higher_is_better) for each in results}
        if len(kinds) != 1:
            return None
        means = {}
        for setting, runs in settings.items():
            values = [run.figures[BEST] for run in runs if BEST in run.figures]
            if values:
                means[setting] = statistics.mean(values)
        ((_, higher_is_better),) = kinds
        choose = max if higher_is_better else min
        return choose(means, key=means.__getitem__) if len(means) > 1 else None

    def table(self) -> Table:
        """Return a table with one row per setting and one column per metric."""
        settings = self.settings()
        best = self.best()
        names = _union(run.figures for runs in settings.values() for run in runs)
        monitored = {run.results.monitored for run in self.outcomes if run.results}
        table = Table()
        table.add_column("setting")
        table.add_column("runs", justify="right")
        for name in names:
            metric = " or ".join(sorted(monitored)) if name == BEST else name.partition("/")[2]
            # Two lines, because the cells are narrower than "validation/accuracy".
            # Text, because rich would read brackets as markup.
            table.add_column(Text(f"{name.partition('/')[0]}\n{metric}"), justify="right")
        has_baseline = any(run.answers for run in self.outcomes)
        if has_baseline:
            table.add_column("answers")
        for setting, runs in settings.items():
            cells = [_mean_and_deviation(runs, name) for name in names]
            mark = " *" if setting == best else ""
            # Text, because rich would read the brackets of a list as markup.
            row = Text(f"{setting or 'all runs'}{mark}", style="bold" if mark else "")
            answers = [" or ".join(sorted({run.answers for run in runs}))] if has_baseline else []
            table.add_row(row, str(len(runs)), *cells, *answers)
        return table


def sweep(runs: Sequence[Settings]) -> int:
    """Train once per configuration, print one row per setting, and write sweep.csv.

    A run that fails does not end the sweep.

    Returns:
        The exit code: 0, or 2 if a run failed.
    """
    output = Path(runs[0].values["output"])
    result = Sweep(new_folder(output / FOLDER / now()) / FILE)
    for i, (settings, options) in enumerate(zip(runs, differing(runs), strict=True)):
        title = " ".join(f"{key}={value}" for key, value in options.items())
        print_rule(f"{i + 1} of {len(runs)}: {title}")
        outcome = _run(settings, options)
        if outcome.error:
            print_line(f"failed: {outcome.error}")
        # Only the main process has metrics. The others write and print nothing.
        if outcome.error or outcome.results:
            result.add(outcome)
    if result.settings():
        print_line("sweep: mean ± sd over the runs of a setting, best by validation: *")
        print_table(result.table())
    failures = [outcome for outcome in result.outcomes if outcome.error]
    for failed in failures:
        title = " ".join(f"{key}={value}" for key, value in failed.options.items())
        print_line(f"failed: {title}: {failed.error}")
    print_line(f"written: {result.path} ({count(len(result.outcomes), 'run')})")
    return FAILED if failures else 0


def differing(runs: Sequence[Settings]) -> list[dict[str, str]]:
    """Return the value of each override that differs between the runs, by key, for each run."""
    typed: list[dict[str, str]] = []
    for run in runs:
        parts = [line.partition("=") for line in run.overrides]
        typed.append({key: value for key, _, value in parts})
    keys = _union(typed)
    swept = [key for key in keys if len({options.get(key) for options in typed}) > 1]
    return [{key: options.get(key, "") for key in swept} for options in typed]


def _run(settings: Settings, options: Mapping[str, str]) -> Outcome:
    try:
        return Outcome(options, run_training(settings))
    except UserError as error:
        return Outcome(options, error=str(error))
    except Exception as error:
        # For example, not enough memory for one of the settings. The traceback shows where.
        if os.environ.get("DXN_DEBUG"):
            raise
        traceback.print_exc()
        return Outcome(options, error=f"{type(error).__name__}: {error}")


def _union(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the keys of all mappings, in the order in which they first appear."""
    names: dict[str, None] = {}
    for mapping in mappings:
        names |= dict.fromkeys(mapping)
    return list(names)


def _mean_and_deviation(runs: Sequence[Outcome], name: str) -> str:
    values = [run.figures[name] for run in runs if name in run.figures]
    if not values:
        return ""
    mean = statistics.mean(values)
    text = format_number(mean)
    if len(values) == 1:
        return text
    # The sample standard deviation (n - 1), as papers report it.
    return f"{text} ± {format_number(statistics.stdev(values), mean)}"
