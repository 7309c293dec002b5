"""The parts of a report that need the predictions of a model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes

from dxn.core.display import count, percent
from dxn.report import classes, examples, tables
from dxn.report.evidence import Evidence, Subset
from dxn.tasks import Categorical, Task
from dxn.viz.chart import Chart, finish
from dxn.viz.charts import line_chart, task_charts
from dxn.viz.confusion import confused_pairs, confusion_counts
from dxn.viz.drawers import Shown
from dxn.viz.figure import COLORS, GREY
from dxn.viz.html import json_script
from dxn.viz.media import reduced
from dxn.viz.page import shares_data
from dxn.viz.sample import SampleView

ATTENDED = 4  # samples whose attention is drawn
MAX_PAIRS = 12  # confused classes that are listed


def plots(task: Task, evidence: Evidence) -> dict[str, Any]:
    """Return the charts of the predictions."""
    last = evidence.subsets[-1] if evidence.subsets else None
    if last is None or isinstance(task.space, Categorical):  # a table shows confusions
        return {"charts": []}
    found = task_charts(task, last.predictions.predicted, last.truths)
    return {"charts": [(each.title, each.svg()) for each in found.charts] if found else []}


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
    names = task.target.labels or ()
    if last is None or not last.truths:
        return empty
    scores = task.metric.class_scores(last.predictions.predicted, last.truths)
    if scores is None or len(scores.true) < 2:
        return empty
    rows, left_out = tables.class_rows(classes.class_figures(scores, names))
    found = classes.calibration(scores)
    content = {**empty, "per_class": rows, "more_per_class": left_out}
    if scores.threshold is None:
        answers = [task.answer(each)["prediction"] for each in last.predictions.predicted]
        counts = confusion_counts(names, answers, last.truths)
        content["matrix"] = tables.matrix(counts, names)
        content["pairs"] = [
            {"true": names[i], "predicted": names[j], "rows": count(int(counts[i, j]), "row")}
            for i, j in confused_pairs(counts)[:MAX_PAIRS]
        ]
    content["calibration"] = {
        "about": _calibrated(found, is_exclusive=scores.threshold is None),
        "svg": _calibration_chart(found).svg(),
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


def _calibration_chart(found: classes.Calibration) -> Chart:
    """Return the accuracy over the probability, with the interval of each bin."""
    x = [each.confidence for each in found.bins]
    y = [each.accuracy for each in found.bins]
    below = [max(each.accuracy - each.interval[0], 0) for each in found.bins]
    above = [max(each.interval[1] - each.accuracy, 0) for each in found.bins]

    def draw(axis: Axes) -> None:
        axis.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="perfectly calibrated")
        style: dict[str, Any] = {"fmt": "o", "color": COLORS[0], "capsize": 3, "markersize": 4}
        axis.errorbar(x, y, yerr=[below, above], label="this model, 95% interval", **style)
        axis.set(xlabel="probability", ylabel="share that is right")
        axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        finish(axis)

    gap = found.confidence - found.accuracy
    tendency = "too confident" if gap > 0 else "too cautious"
    alt = (
        f"calibration: mean probability {found.confidence:.3f}, share that is right "
        f"{found.accuracy:.3f}, so the model is {tendency} by {abs(gap):.3f}"
    )
    return Chart("Calibration", alt, draw)


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
        "svg": line_chart(
            effect.title,
            f"{effect.title}: {', '.join(effect.lines)} over the threshold",
            {name: (classes.THRESHOLDS, values) for name, values in effect.lines.items()},
            ("threshold", ""),
            vertical=effect.current,
            is_share=True,
        ).svg(),
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
    if task.writes:
        return {**content, "texts": examples.written(**options, budget=budget)}
    found = task.metric.class_scores(predicted, truths)
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
        encoded, shares = attended
        data = shares_data(SampleView(encoded, inputs), shares)
        for each in data["inputs"]:
            # The examples have players, and small pictures are enough to see where the colors are.
            each.pop("sound", None)
            if "source" in each:
                each["source"] = reduced(each["source"])
        predicted = last.predictions.predicted[i]
        answer = evidence.task.answer(predicted, {n: each.source for n, each in inputs.items()})
        script = f'<script type="application/json">{json_script(data)}</script>'
        found.append(
            {
                "prediction": examples.target_text(answer["prediction"]),
                "truth": examples.target_text(last.truths[i]),
                "where": last.origins[i],
                "html": budget.spend(f"<dxn-attention>{script}</dxn-attention>"),
            }
        )
    return found
