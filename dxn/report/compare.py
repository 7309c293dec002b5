"""The comparison of runs: what differs in their configuration, their metrics, and a paired test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dxn.core.display import number
from dxn.core.results import ALL, Results
from dxn.report import tables
from dxn.report.intervals import paired
from dxn.report.scores import Scores, common_scores
from dxn.viz.charts import line_chart
from dxn.viz.html import write_page

PREFIX = "validation/"
SIGNIFICANT = 0.05
MAX_VALUE = 80  # characters of an option


@dataclass(frozen=True)
class Compared:
    """A run that is compared.

    Args:
        name: Short name of the run, different from that of the others.
        folder: The run folder.
        options: Values of its configuration, by dotted key.
        results: Content of metrics.json.
        log: Rows of metrics.jsonl.
        scores: Content of scores.json. None: there is none.
    """

    name: str
    folder: str
    options: Mapping[str, Any]
    results: Results
    log: Sequence[Mapping[str, Any]]
    scores: Scores | None


def differing(runs: Sequence[Compared]) -> list[tuple[str, list[str]]]:
    """Return the options whose values differ, with the value of each run."""
    keys = list(dict.fromkeys(key for run in runs for key in run.options))
    rows: list[tuple[str, list[str]]] = []
    for key in keys:
        values = [_text(run.options[key]) if key in run.options else "–" for run in runs]
        if len(set(values)) > 1:
            rows.append((key, values))
    return rows


def figures_table(runs: Sequence[Compared]) -> list[tuple[str, list[tables.Cell | None]]]:
    """Return the metrics with all inputs, one row per metric and one cell per run."""
    figures = [run.results.figures().get(ALL, {}) for run in runs]
    names = list(dict.fromkeys(name for each in figures for name in each))
    rows: list[tuple[str, list[tables.Cell | None]]] = []
    for name in names:
        ends = [run.results.interval(ALL, name) for run in runs]
        rows.append((name, tables.cells([each.get(name) for each in figures], ends)))
    return rows


def tests(runs: Sequence[Compared]) -> list[str]:
    """Compare each run with the first one on the rows that both have answered, in a sentence."""
    first = runs[0]
    return [_test(first, other) for other in runs[1:]]


def notes(runs: Sequence[Compared]) -> list[str]:
    """Return why metrics of the runs cannot be compared with each other."""
    found: list[str] = []
    if len({run.results.task for run in runs}) > 1:
        found.append("The runs have different tasks, so most of their metrics differ in meaning.")
    if len({run.results.split for run in runs}) > 1:
        found.append("The runs were evaluated on different splits.")
    return found


def write_comparison(runs: Sequence[Compared], path: Path) -> None:
    """Write the comparison as an HTML page."""
    first = runs[0].results
    lines = {}
    for run in runs:
        points = [
            (row["epoch"], value)
            for row in run.log
            if (value := row.get(PREFIX + first.monitored)) is not None
        ]
        if points:
            lines[run.name] = tuple(zip(*points, strict=True))
    overlay: Markup | None = None
    if lines:
        title = f"validation {first.monitored}"
        alt = f"{title} of {', '.join(lines)} over the epochs"
        overlay = line_chart(title, alt, lines, ("epoch", first.monitored)).svg()
    differences = differing(runs)
    content = {
        "title": f"Comparison of {len(runs)} runs",
        "runs": [(run.name, run.folder, run.results.evaluated) for run in runs],
        "monitored": first.monitored,
        "figures": figures_table(runs),
        "tests": tests(runs),
        "curves": overlay,
        "options": differences,
        "notes": notes(runs),
    }
    templates = Path(__file__).with_name("templates")
    write_page(templates / "compare.html", path, [templates / "page.js"], **content)


def _test(first: Compared, other: Compared) -> str:
    a, b = first.scores, other.scores
    if a is None or b is None or a.name != b.name:
        return (
            f"{other.name}: no paired test, because the runs have no common scores of single rows; "
            "dxn report writes those of a run, if its task has any."
        )
    pairs = common_scores(a, b)
    result = paired([x for x, _ in pairs], [y for _, y in pairs])
    if result is None:
        return (
            f"{other.name}: no paired test, because both runs have evaluated only {len(pairs):,} "
            "rows in common; use the same data and data.seed."
        )
    rows, difference, (low, high), p = result
    better = (difference > 0) == a.higher_is_better
    shown = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    detail = (
        f'the mean of "{a.name}" differs by {difference:+.3g} (95% interval '
        f"{low:+.3g} to {high:+.3g}, {shown}) on {rows:,} common rows"
    )
    if p >= SIGNIFICANT:
        verdict = f"{other.name} does not differ significantly from {first.name}"
    else:
        direction = "better" if better else "worse"
        verdict = f"{other.name} is significantly {direction} than {first.name}"
    return f"{verdict}: {detail}."


def _text(value: Any) -> str:
    text = number(value, 6) if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"
