"""The command `dxn compare`: runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dxn import report as pages
from dxn.config.settings import Settings
from dxn.config.values import leaves, lookup
from dxn.core.errors import UserError
from dxn.core.files import METRICS
from dxn.core.results import ALL, read_results
from dxn.runs.evaluation.reporting import read_log_of
from dxn.runs.folder import is_run

# Options that only name where a run is written or continued.
IGNORED = ("run", "resume", "output", "name")


def compare_runs(
    folders: Sequence[Path], path: Path, settings: Settings
) -> tuple[list[Any], list[str]]:
    """Write a page that compares runs.

    Args:
        folders: The run folders.
        path: The page.
        settings: The packages whose code the folders may use.

    Returns:
        The runs, and a sentence about each run except for the first one.

    Raises:
        UserError: If there are fewer than two runs, or one of them has not finished.
    """
    if len(folders) < 2:
        raise UserError(f"run: must be at least two run folders, got {len(folders)}; set run=[A,B]")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("run: the run folders must be different; remove the repeated one")
    names = _names(folders)
    runs = [_run(*each, settings) for each in zip(folders, names, strict=True)]
    pages.compare.write_comparison(runs, path)
    return runs, pages.compare.tests(runs)


def comparison_lines(runs: list[Any], tests: list[str]) -> list[str]:
    """Return the metrics of each run with their intervals, and the results of the paired tests."""
    lines: list[str] = []
    for run in runs:
        results = run.results
        value = results.figures().get(ALL, {}).get(results.monitored)
        shown = "no figure" if value is None else f"{value:.4f}"
        ends = pages.tables.interval_text(results.interval(ALL, results.monitored))
        interval = f" (95% interval {ends})" if ends else ""
        lines.append(f"{run.name}: {results.split} {results.monitored} {shown}{interval}")
    lines += [f"note: {note}" for note in pages.compare.notes(runs)]
    return [*lines, *tests]


def _run(folder: Path, name: str, settings: Settings) -> Any:
    if not is_run(folder):
        raise UserError(f"run: {folder}: not a run folder, it has no .hydra/config.yaml")
    values = Settings.load(folder, settings.folder_trust).values
    results = read_results(folder)
    if results is None:
        raise UserError(f"run: {folder}: has no {METRICS}, because its training has not finished")
    options = {
        key: lookup(values, key)[1]
        for key in leaves(values)
        if key.partition(".")[0] not in IGNORED
    }
    return pages.compare.Compared(
        name=name,
        folder=str(folder),
        options=options,
        results=results,
        log=read_log_of(folder),
        scores=pages.scores.read(folder),
    )


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that are all different."""
    longest = max(len(folder.parts) for folder in folders)
    for length in range(1, longest + 1):
        names = ["/".join(folder.parts[-length:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]
