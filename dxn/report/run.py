"""The report of a run: report.html, and report.json with the metrics that only it has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from dxn.core.display import count, duration, number, percent
from dxn.report import saved, tables
from dxn.report.classes import classes_and_probabilities
from dxn.report.evidence import Evidence, RunInfo, Subset
from dxn.report.examples import row_scores, single_rows
from dxn.report.intervals import metric_intervals
from dxn.report.saved import Facts, Saved
from dxn.tasks import Categorical, Task
from dxn.viz.charts import task_charts
from dxn.viz.curves import best_epoch, curve_charts, shown_rows
from dxn.viz.html import write_page
from dxn.viz.page import SCRIPT

__all__ = ["Evidence", "RunInfo", "Subset", "write_report"]

FILE = "report.html"
TEMPLATES = Path(__file__).with_name("templates")
MAX_CONFIG = 200_000  # characters
# The data counts as imbalanced if the most frequent class has this many times the rows of the
# rarest one.
IMBALANCED = 10.0


def write_report(info: RunInfo, evidence: Evidence) -> Path:
    """Write report.html and report.json in a run folder.

    Returns:
        The page.
    """
    task = evidence.task
    split = tables.split_of(info.metrics)
    figures = tables.figures_of(info.metrics, split)
    old = saved.read(info.folder)
    last = evidence.subsets[-1] if evidence.subsets else None
    scores = None
    if last is not None and last.truths and task.is_supervised:
        scores = row_scores(task.metric, last.predictions.predicted, last.truths)
    # If the data cannot be read, the intervals and scores of the training are kept.
    is_new = last is not None or old is None
    new = _saved(info, evidence, split, figures, scores) if is_new or old is None else old
    saved.write(info.folder, new)
    content = {
        **_head(info, task, new, figures, split),
        **_data(info, new),
        **_results(info, task, new, figures, evidence),
        **classes_and_probabilities(task, last),
        **single_rows(evidence, last, scores),
    }
    content["sections"] = _sections(content)
    path = info.folder / FILE
    write_page(TEMPLATES / "run.html", path, [TEMPLATES / "page.js", SCRIPT], **content)
    return path


def _saved(
    info: RunInfo, evidence: Evidence, split: str, figures: tables.Figures, scores: Any
) -> Saved:
    task = evidence.task
    intervals: dict[str, dict[str, list[float]]] = {}
    for subset in evidence.subsets if scores is not None else ():
        known = figures.get(subset.name, {})
        ends_by_name = metric_intervals(
            task, subset.predictions.predicted, subset.truths, known, num_rows=subset.num_rows
        )
        intervals[subset.name] = {name: list(ends) for name, ends in ends_by_name.items()}
    last = evidence.subsets[-1] if evidence.subsets else None
    keyed: dict[str, float] = {}
    cells: dict[str, list[Any]] = {}
    if scores is not None and last is not None:
        values = list(scores.values)[: saved.MAX_SCORES]
        keys = saved.row_keys(last.origins[: len(values)], last.truths[: len(values)])
        keep = [i for i, value in enumerate(values) if math.isfinite(value)]
        keyed = {keys[i]: float(f"{values[i]:.6g}") for i in keep}
        rows = [last.predictions.rows[i] for i in keep]
        cells = {
            info.columns.get(name, name): [column[row] for row in rows]
            for name, column in last.samples.opened.cells.items()
        }
    return Saved(
        split=split,
        task=task.name,
        target=info.target,
        monitored=task.metric.monitored,
        higher_is_better=task.metric.higher_is_better,
        rows=len(last.predictions.rows) if last is not None else 0,
        score=None if scores is None else scores.name,
        score_is_better_if_higher=True if scores is None else scores.higher_is_better,
        scores=keyed,
        contents=saved.contents(cells),
        intervals=intervals,
        facts=info.facts,
    )


def _head(
    info: RunInfo, task: Task, new: Saved, figures: tables.Figures, split: str
) -> dict[str, Any]:
    metrics = info.metrics
    cards: list[dict[str, str]] = []
    own = figures.get(tables.ALL, {})
    value = own.get(task.metric.monitored, math.nan)
    if math.isfinite(value):
        ends = tables.interval_text(new.interval(tables.ALL, task.metric.monitored))
        answers = metrics.get("answers")
        parts = [f"of the {answers}, which answers"] if isinstance(answers, str) else []
        note = "; ".join([*parts, *([f"95%: {ends}"] if ends else [])])
        cards.append(
            {"label": f"{split} {task.metric.monitored}", "value": number(value), "note": note}
        )
    for name in tables.references_of(figures):
        simple = figures[name].get(task.metric.monitored, math.nan)
        if math.isfinite(simple):
            label = f"for comparison: {name}"
            cards.append({"label": label, "value": number(simple), "note": task.metric.monitored})
    rows = metrics.get("rows")
    if isinstance(rows, Mapping) and isinstance(rows.get("train"), int):
        note = f"{count(new.rows, 'row')} of {split}" if new.rows else ""
        cards.append({"label": "training rows", "value": f"{rows['train']:,}", "note": note})
    if _is_number(seconds := metrics.get("train_seconds")):
        epochs = metrics.get("epochs")
        note = f"best epoch {metrics.get('best_epoch')} of {epochs}" if epochs else ""
        cards.append({"label": "training time", "value": duration(seconds), "note": note})
    if isinstance(size := metrics.get("parameters"), int):
        cards.append({"label": "parameters", "value": f"{size:,}", "note": ""})
    lead = f"This model predicts {info.target}" if info.target else "This model is trained"
    lead += f" from {_inputs(info)}" if info.facts.inputs else ""
    lead += f" (task: {task.name})."
    data = dict(info.about).get("data", "")
    if isinstance(rows, Mapping) and isinstance(rows.get("train"), int):
        lead += f" It was trained on {count(rows['train'], 'row')} of {data}"
        lead += f" and evaluated on {count(new.rows, 'other row')}." if new.rows else "."
    return {
        "title": info.title,
        "lead": lead,
        "cards": cards,
        "notes": list(info.notes),
        "command": info.command,
        "about": list(info.about),
        "config": info.config[:MAX_CONFIG],
        "environment": list(new.facts.environment.items()),
    }


def _data(info: RunInfo, new: Saved) -> dict[str, Any]:
    metrics, facts = info.metrics, new.facts
    rows = metrics.get("rows")
    splits = []
    for name, number_of_rows in (rows if isinstance(rows, Mapping) else {}).items():
        missing = _mapping(_mapping(metrics.get("missing")).get(name))
        skipped = _mapping(metrics.get("skipped")).get(name, 0)
        present = {key: value for key, value in missing.items() if _is_number(value) and value}
        splits.append(
            {
                "name": name,
                "rows": f"{number_of_rows:,}" if isinstance(number_of_rows, int) else "",
                "skipped": f"{skipped:,}" if isinstance(skipped, int) else "",
                "missing": ", ".join(f"{key} {value:,}" for key, value in present.items()),
                # The table of classes says more than this line.
                "target": "" if facts.classes else facts.targets.get(name, ""),
            }
        )
    truncated = []
    for name, found in _mapping(metrics.get("truncated")).items():
        part = _mapping(found)
        if all(_is_number(part.get(key)) for key in ("count", "total", "max_len", "median_read")):
            truncated.append(
                f"{name}: {part['count']:,} of {part['total']:,} samples are truncated to "
                f"{part['max_len']:,} tokens (median: {percent(part['median_read'])} of a "
                "truncated sample is kept)"
            )
    bars, left_out = tables.class_bars(facts.classes)
    return {
        "warnings": [*facts.warnings, *_imbalance(facts)],
        "splits": splits,
        "inputs": facts.inputs,
        "truncated": truncated,
        "classes": bars,
        "class_splits": list(facts.classes),
        "more_classes": left_out,
    }


def _imbalance(facts: Facts) -> list[str]:
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


def _results(
    info: RunInfo, task: Task, new: Saved, figures: tables.Figures, evidence: Evidence
) -> dict[str, Any]:
    inputs = evidence.inputs
    single = inputs[0] if len(inputs) == 1 else ""
    about = f"The metrics of the {new.split} split"
    about += f", {count(new.rows, 'row')}." if new.rows else "."
    if not single and figures:
        about += (
            " Each row uses only the inputs in its name; the difference to all inputs is what "
            "the others contribute."
        )
    table = None
    if isinstance(answers := info.metrics.get("answers"), str):
        single = f"{answers} (answers)"
        figures = {name: row for name, row in figures.items() if name != answers}
    if figures:
        shown = {
            row: {name: each[name] for name in task.metric.shown(each)}
            for row, each in figures.items()
        }
        table = tables.metrics_table(shown, task.metric.monitored, new.interval, single, about)
    best = best_epoch(info.log, task)
    charts = curve_charts(shown_rows(info.log, task), best=best) if info.log else []
    names = table["metrics"] if table else []
    glossary = [(name, tables.MEANINGS[name]) for name in names if name in tables.MEANINGS]
    if new.intervals:
        glossary.append(("interval", tables.INTERVAL))
    return {
        "table": table,
        "glossary": glossary,
        "curves": [(chart.title, chart.svg()) for chart in charts],
        "training": _training(info, evidence),
        "remarks": new.facts.remarks,
        "charts": _charts(task, evidence),
    }


def _charts(task: Task, evidence: Evidence) -> list[tuple[str, Any]]:
    """Return the titles and drawings of the charts of the predictions."""
    last = evidence.subsets[-1] if evidence.subsets else None
    if last is None or isinstance(task.space, Categorical):  # a table shows confusions
        return []
    found = task_charts(task, last.predictions.predicted, last.truths)
    return [(each.title, each.svg()) for each in found.charts] if found else []


def _training(info: RunInfo, evidence: Evidence) -> str:
    epoch, epochs = info.metrics.get("best_epoch"), info.metrics.get("epochs")
    task = evidence.task
    text = "The weights of the best epoch are saved."
    if epoch is not None and epochs is not None:
        better = "highest" if task.metric.higher_is_better else "lowest"
        text = (
            f"The weights of epoch {epoch} of {epochs} are saved: it had the {better} validation "
            f"{task.metric.monitored}"
        )
        text += (
            "."
            if task.metric.monitored == "loss"
            else "; of equal epochs, the lowest loss decides."
        )
    if evidence.formula:
        text += (
            " The curves are those of the transformer alone. The answers are "
            f"{evidence.formula}, with the factors that have the lowest validation loss."
        )
    return text


def _sections(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the ids and names of the sections that the page has."""
    optional = [
        ("training", "Training", content["curves"]),
        ("results", "Results", True),
        ("confusion", "Confusions", content["matrix"] or content["pairs"]),
        ("probabilities", "Probabilities", content["calibration"]),
        ("examples", "Examples", content["groups"]),
        ("texts", "Texts", content["texts"]),
        ("attention", "Attention", content["attention"]),
        ("environment", "Environment", True),
    ]
    shown = [(key, name) for key, name, is_there in optional if is_there]
    return [("run", "Run"), ("data", "Data"), *shown]


def _inputs(info: RunInfo) -> str:
    names = [line.partition(":")[0].partition(" (")[0] for line in info.facts.inputs]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of metrics.json, which is untrusted, is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
