"""The parts of a report that need the predictions of a model."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image

from dxn.core.display import count
from dxn.report import attention as attending
from dxn.report import charts, classes, examples, tables
from dxn.report.evidence import Evidence, Subset
from dxn.tasks import Task, Writes
from dxn.viz.drawers import Shown
from dxn.viz.drawers.html import picture
from dxn.viz.numbers import percent
from dxn.viz.plots import draw_task

ATTENDED = 4  # samples whose attention is drawn
PLOT_SIDE = 900  # pixels of a plot that only matplotlib can draw
# Plots of `Task.plots` that the report draws itself.
OWN_PLOTS = ("confusion", "scatter")


def plots(task: Task, evidence: Evidence) -> dict[str, Any]:
    """Return the charts of the predictions."""
    last = evidence.subsets[-1] if evidence.subsets else None
    if last is None or not last.truths or task.plots is None:
        return {"charts": [], "pictures": []}
    predicted, truths = last.predictions.predicted, last.truths
    if task.plots == "scatter":
        answers = [float(task.answer(each)["prediction"]) for each in predicted]
        true = [float(truth) for truth in truths]
        errors = [a - t for a, t in zip(answers, true, strict=True)]
        drawn = [
            ("Predicted and true values", charts.scatter_chart(answers, true)),
            ("Errors", charts.error_chart(errors)),
        ]
        return {"charts": drawn, "pictures": []}
    if task.plots in OWN_PLOTS:
        return {"charts": [], "pictures": []}
    with tempfile.TemporaryDirectory() as folder:
        path = draw_task(task, predicted, truths, Path(folder))
        if path is None:
            return {"charts": [], "pictures": []}
        pixels = np.asarray(Image.open(path).convert("RGB"))
    name = task.plots.capitalize()
    html = picture(pixels, f"plot of the {task.plots}", drawing=True, side=PLOT_SIDE)
    return {"charts": [], "pictures": [(name, Markup(html))]}


def classes_and_probabilities(task: Task, last: Subset | None) -> dict[str, Any]:
    """Return the parts of the report about classes and probabilities."""
    empty: dict[str, Any] = {
        "per_class": [],
        "more_per_class": 0,
        "matrix": None,
        "pairs": [],
        "calibration": None,
        "thresholds": [],
    }
    names = task.labels or ()
    if last is None or not last.truths:
        return empty
    scores = task.class_scores(last.predictions.predicted, last.truths)
    if scores is None or len(scores.true) < 2:
        return empty
    rows, left_out = tables.class_rows(classes.class_figures(scores, names))
    found = classes.calibration(scores)
    content = {**empty, "per_class": rows, "more_per_class": left_out}
    if scores.threshold is None:
        counts = classes.confusion(scores)
        content["matrix"] = tables.matrix(counts, names)
        content["pairs"] = [
            {"true": names[i], "predicted": names[j], "rows": count(n, "row")}
            for i, j, n in classes.confused(counts)
        ]
    content["calibration"] = {
        "about": _calibrated(found, is_exclusive=scores.threshold is None),
        "svg": charts.calibration_chart(found),
        "rows": [
            (
                tables.share(each.confidence),
                tables.share(each.accuracy),
                tables.interval_text(each.interval),
                f"{each.rows:,}",
            )
            for each in found.bins
        ],
    }
    content["thresholds"] = [_effect(effect) for effect in classes.threshold_effects(scores, names)]
    return content


def _calibrated(found: classes.Calibration, *, is_exclusive: bool) -> str:
    gap = found.confidence - found.accuracy
    tendency = "too confident" if gap > 0 else "too cautious"
    verdict = "" if abs(gap) < 0.02 else f": the model is {tendency}"
    mean, share = percent(found.confidence), percent(found.accuracy)
    sentence = f"The mean probability of the answers is {mean}, and {share} of them are right"
    if not is_exclusive:
        sentence = f"The mean probability of all labels is {mean}, and {share} of them are true"
        verdict = ""
    return f"{sentence}{verdict}. The expected calibration error is {found.error:.3f}."


def _effect(effect: classes.ThresholdEffect) -> dict[str, Any]:
    lines = {
        name: [None if math.isnan(value) else round(value, 4) for value in values]
        for name, values in effect.lines.items()
    }
    best = ""
    if effect.current is not None and effect.best is not None:
        best = f"On these rows, F1 is highest at {effect.best:.2f}."
    start = effect.current if effect.current is not None else effect.best or 0.0
    return {
        "title": effect.title,
        "about": effect.about,
        "svg": charts.threshold_chart(effect),
        "lines": json.dumps(lines),
        "best": best,
        "start": round(100 * start),
    }


def single_rows(evidence: Evidence, last: Subset | None, scores: Any) -> dict[str, Any]:
    """Return the parts of the report that show single rows."""
    empty: dict[str, Any] = {"groups": [], "texts": [], "attention": [], "limits": evidence.limits}
    if last is None or scores is None or not all(map(examples.is_readable, last.truths)):
        return empty
    task, predicted, truths = evidence.task, last.predictions.predicted, last.truths
    budget = examples.Budget()

    def shown(i: int) -> dict[str, Shown]:
        return evidence.shown(last.predictions.rows[i])

    options: dict[str, Any] = {
        "predictions": predicted,
        "truths": truths,
        "scores": scores,
        "origins": last.origins,
        "shown": shown,
    }
    content = {**empty, "attention": _attention(evidence, last, scores, shown, budget)}
    if isinstance(task, Writes):
        return {**content, "texts": examples.written(**options, budget=budget)}
    found = task.class_scores(predicted, truths)
    content["groups"] = [
        {
            "title": group.title,
            "about": group.about,
            "rows": examples.examples(group.rows, task=task, **options, budget=budget),
        }
        for group in examples.choose(scores, found)
    ]
    return content


def _attention(
    evidence: Evidence,
    last: Subset,
    scores: Any,
    shown: Callable[[int], dict[str, Shown]],
    budget: examples.Budget,
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    positions = {row: i for i, row in enumerate(last.samples.rows)}
    for i in examples.right_and_wrong(scores, ATTENDED):
        inputs = shown(i)
        attended = evidence.attended(positions[last.predictions.rows[i]], list(inputs))
        if attended is None:
            continue
        parts = attending.attention(*attended, inputs)
        predicted = last.predictions.predicted[i]
        answer = evidence.task.answer(predicted, {n: each.source for n, each in inputs.items()})
        found.append(
            {
                "prediction": examples.target_text(answer["prediction"]),
                "truth": examples.target_text(last.truths[i]),
                "where": last.origins[i],
                "parts": [
                    {"name": p.name, "share": p.share, "html": budget.spend(p.html)} for p in parts
                ],
            }
        )
    return found
