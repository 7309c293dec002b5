"""The report of a run: report.html, and the scores of its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dxn.core.display import count, duration, number
from dxn.core.files import REPORT
from dxn.core.results import ALL, DataFacts, Results
from dxn.report import tables
from dxn.report.answers import Evidence, row_scores, write_scores
from dxn.report.classes import classes_and_probabilities
from dxn.report.examples import Budget, single_rows
from dxn.report.sides import side_by_side
from dxn.viz.charts import task_charts
from dxn.viz.curves import best_epoch, curve_charts, shown_rows
from dxn.viz.html import write_page
from dxn.viz.page import SCRIPT

TEMPLATES = Path(__file__).with_name("templates")
MAX_CONFIG = 200_000  # characters
# The data counts as imbalanced if the most frequent class has this many times the rows of the
# rarest one.
IMBALANCED = 10.0


@dataclass(frozen=True)
class RunInfo:
    """What a report says about a run besides its predictions.

    Args:
        folder: The run folder.
        title: Name of the run.
        command: Command line of the training.
        config: The configuration as YAML.
        about: Names and values that describe the training.
        results: Content of metrics.json.
        log: Rows of metrics.jsonl.
        columns: Column that each input was read from, by input name.
        notes: Sentences about parts of the report that are missing.
    """

    folder: Path
    title: str
    command: str
    config: str
    about: Sequence[tuple[str, str]]
    results: Results
    log: Sequence[Mapping[str, Any]]
    columns: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = field(default_factory=list)


def write_report(info: RunInfo, evidence: Evidence) -> Path:
    """Write report.html in a run folder, and scores.json if the data can be read.

    Returns:
        The page.
    """
    task, last = evidence.task, evidence.last
    scored = None
    if last is not None and last.truths and task.is_supervised:
        scored = row_scores(task.metric, last.predictions.predicted, last.truths)
        if scored is not None:
            blocks = last.blocks(task.metric)
            write_scores(info.folder, scored, last, info.columns, blocks)
    budget = Budget()
    content = {
        **_head(info),
        **_data(info.results.data),
        **_results(info, evidence),
        **classes_and_probabilities(task, last),
        **single_rows(evidence, last, scored, budget),
        "sides": side_by_side(evidence, last, scored, budget),
    }
    content["sections"] = _sections(content)
    path = info.folder / REPORT
    write_page(TEMPLATES / "run.html", path, [TEMPLATES / "page.js", SCRIPT], **content)
    return path


def _head(info: RunInfo) -> dict[str, Any]:
    results = info.results
    figures, monitored = results.figures(), results.monitored
    cards: list[dict[str, str]] = []
    value = figures.get(ALL, {}).get(monitored, math.nan)
    if math.isfinite(value):
        ends = tables.interval_text(results.interval(ALL, monitored), value)
        parts = [f"of the {results.answers}, which answers"] if results.answers else []
        note = "; ".join([*parts, *([f"95%: {ends}"] if ends else [])])
        cards.append(
            {"label": f"{results.split} {monitored}", "value": number(value), "note": note}
        )
    for name in results.references:
        simple = figures[name].get(monitored, math.nan)
        if math.isfinite(simple):
            label = f"for comparison: {name}"
            shown = number(simple, value if math.isfinite(value) else None)
            cards.append({"label": label, "value": shown, "note": monitored})
    rows = results.data.rows.get("train")
    if rows is not None:
        note = count(results.evaluated, f"{results.split} row") if results.evaluated else ""
        cards.append({"label": "training rows", "value": f"{rows:,}", "note": note})
    if results.train_seconds is not None:
        seconds, epoch, epochs = results.train_seconds, results.best_epoch, results.epochs
        note = f"best epoch {epoch} of {epochs}" if epochs else ""
        cards.append({"label": "training time", "value": duration(seconds), "note": note})
    if results.parameters is not None:
        cards.append({"label": "parameters", "value": f"{results.parameters:,}", "note": ""})
    lead = f"This model predicts {results.target}" if results.target else "This model is trained"
    names = [line.partition(":")[0].partition(" (")[0] for line in results.data.inputs]
    inputs = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
    lead += f" from {inputs}" if inputs else ""
    lead += f" (task: {results.task})."
    if rows is not None:
        lead += f" It was trained on {count(rows, 'row')} of {results.data.name}"
        other = count(results.evaluated, "other row")
        lead += f" and evaluated on {other}." if results.evaluated else "."
    return {
        "title": info.title,
        "lead": lead,
        "cards": cards,
        "notes": list(info.notes),
        "command": info.command,
        "about": list(info.about),
        "config": info.config[:MAX_CONFIG],
        "environment": list(results.environment.items()),
    }


def _data(facts: DataFacts) -> dict[str, Any]:
    splits = []
    for name, rows in facts.rows.items():
        missing = {key: value for key, value in facts.missing.get(name, {}).items() if value}
        splits.append(
            {
                "name": name,
                "rows": f"{rows:,}",
                "skipped": f"{facts.skipped.get(name, 0):,}",
                "missing": ", ".join(f"{key} {value:,}" for key, value in missing.items()),
                # The table of classes says more than this line.
                "target": "" if facts.classes else facts.targets.get(name, ""),
            }
        )
    bars, left_out = tables.class_bars(facts.classes)
    return {
        "warnings": [*facts.warnings, *_imbalance(facts)],
        "splits": splits,
        "has_targets": any(split["target"] for split in splits),
        "inputs": facts.inputs,
        "truncated": [f"{name}: {note}" for name, note in facts.truncated.items()],
        "classes": bars,
        "class_splits": list(facts.classes),
        "more_classes": left_out,
    }


def _imbalance(facts: DataFacts) -> list[str]:
    counts = facts.classes.get("train", {})
    if len(counts) < 2:
        return []
    common, rare = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    if counts[common] < IMBALANCED * counts[rare]:
        return []
    return [
        f"the classes are imbalanced: {common} has {count(counts[common], 'row')} in train, and "
        f"{rare} has {counts[rare]:,}; the accuracy mostly measures the frequent classes"
    ]


def _results(info: RunInfo, evidence: Evidence) -> dict[str, Any]:
    results, task, last = info.results, evidence.task, evidence.last
    about = f"The metrics of the {results.split} split"
    about += f", {count(results.evaluated, 'row')}." if results.evaluated else "."
    if len(results.subsets) > 1:
        about += (
            " Each row uses only the inputs in its name; the difference to all inputs is what "
            "the others contribute."
        )
    table = tables.metrics_table(results, about) if results.metrics else None
    best = best_epoch(info.log, task)
    charts = curve_charts(shown_rows(info.log, task), best=best) if info.log else []
    prediction_charts = (
        [] if last is None else task_charts(task, last.predictions.predicted, last.truths)
    )
    names = table["metrics"] if table else []
    glossary = [(name, tables.MEANINGS[name]) for name in names if name in tables.MEANINGS]
    if results.intervals:
        glossary.append(("interval", tables.INTERVAL))
    return {
        "table": table,
        "glossary": glossary,
        "curves": [(chart.title, chart.svg()) for chart in charts],
        "training": _training(results),
        "remarks": results.remarks,
        "charts": [(chart.title, chart.svg()) for chart in prediction_charts],
    }


def _training(results: Results) -> str:
    text = "The weights of the best epoch are saved."
    if results.epochs is not None:
        better = "highest" if results.higher_is_better else "lowest"
        text = (
            f"The weights of epoch {results.best_epoch} of {results.epochs} are saved: it had the "
            f"{better} validation {results.monitored}"
        )
        text += (
            "." if results.monitored == "loss" else "; of equal epochs, the lowest loss decides."
        )
    if results.formula:
        text += (
            " The curves are those of the transformer alone. The answers are "
            f"{results.formula}, with the factors that have the lowest validation loss."
        )
    return text


def _sections(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the ids and names of the sections that the page has."""
    sides = content["sides"]
    optional = [
        ("training", "Training", content["curves"]),
        ("results", "Results", True),
        ("confusion", "Confusions", content["matrix"] or content["pairs"]),
        ("probabilities", "Probabilities", content["calibration"]),
        ("examples", "Examples", content["groups"]),
        *([(sides["id"], sides["title"], sides["groups"])] if sides else []),
        ("attention", "Attention", content["attention"]),
        ("environment", "Environment", True),
    ]
    shown = [(key, name) for key, name, is_there in optional if is_there]
    return [("run", "Run"), ("data", "Data"), *shown]
