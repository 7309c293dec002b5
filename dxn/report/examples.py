"""Single rows of a report: which ones are shown, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from dxn.core.display import cut, join_names, number, percent
from dxn.core.marks import Areas, Described, Mark
from dxn.core.printable import json_text
from dxn.report.answers import Answers, Evidence, RowScores
from dxn.tasks import Task
from dxn.tasks.detect.objects import label_of, list_of_objects
from dxn.tasks.infer import MASK
from dxn.tasks.metric import ClassScores
from dxn.tasks.space import AnswerKind
from dxn.tokenize.text.tokenizer import plain_text
from dxn.viz.drawers import Shown, get_drawer
from dxn.viz.html import json_script
from dxn.viz.media import reduced
from dxn.viz.page import shares_data
from dxn.viz.sample import SampleView, answer_line, listed_probabilities

PER_GROUP = 8  # rows of a group
CANDIDATES = 4 * PER_GROUP  # rows that are looked at, because rows with equal inputs are shown once
ATTENDED = 4  # samples whose attention is drawn
MAX_INPUTS = 12  # inputs of a row that are shown; a wide table has hundreds
HINT = "Many of these rows have a wrong label or an unusual input."
MAX_TEXT = 400  # characters of a target or an answer
# Bytes of all pictures, sounds and clips. With charts and tables, a page has at most 5 MB.
MAX_MEDIA = 3_600_000
# Bytes of a sound. A page has up to 18 of them, so that they take at most 1.5 MB.
MAX_SOUND = 60_000


class Budget:
    """The room that is left for pictures, sounds and clips in a page.

    Args:
        size: Number of bytes.

    Attributes:
        sound: Maximum number of bytes of a sound.
    """

    def __init__(self, size: int = MAX_MEDIA):
        self.left = size
        self.sound = MAX_SOUND

    def spend(self, html: str) -> Markup:
        """Return a part of the page, or a note if there is no room for it."""
        if len(html) > self.left:
            return Markup('<p class="note">left out: the report is limited to 5 MB</p>')
        self.left -= len(html)
        # The drawers escape everything from data.
        return Markup(html)


def single_rows(
    evidence: Evidence, last: Answers | None, scores: Any, budget: Budget
) -> dict[str, Any]:
    """Return the parts of the report that show single rows."""
    empty: dict[str, Any] = {"groups": [], "attention": [], "limits": evidence.limits}
    if last is None or scores is None or not all(map(is_readable, last.truths)):
        return empty
    task, predicted, truths = evidence.task, last.predictions.predicted, last.truths

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
    if task.target.is_text:
        return content
    class_scores = task.metric.class_scores(predicted, truths)
    content["groups"] = [
        {
            "title": title,
            "about": about,
            "rows": examples(rows, task=task, **options, budget=budget),
        }
        for title, about, rows in choose(scores, class_scores)
    ]
    return content


def _attention(
    evidence: Evidence,
    last: Answers,
    scores: Any,
    shown: Callable[[int], dict[str, Shown]],
    budget: Budget,
) -> list[dict[str, Any]]:
    samples: list[dict[str, Any]] = []
    positions = {row: i for i, row in enumerate(last.samples.rows)}
    for i in right_and_wrong(scores, ATTENDED):
        inputs = shown(i)
        attended = evidence.attended(positions[last.predictions.rows[i]], list(inputs))
        if attended is None:
            continue
        encoded, shares = attended
        data = shares_data(SampleView(encoded, inputs), shares)
        for data_of_input in data["inputs"]:
            # The examples have players, and small pictures are enough to see where the colors are.
            data_of_input.pop("sound", None)
            if "source" in data_of_input:
                data_of_input["source"] = reduced(data_of_input["source"])
        predicted = last.predictions.predicted[i]
        sources = {name: value.source for name, value in inputs.items()}
        answer = evidence.task.answer(predicted, sources)
        script = f'<script type="application/json">{json_script(data)}</script>'
        samples.append(
            {
                "prediction": _line(answer),
                "truth": true_line(evidence.task, last.truths[i], inputs),
                "where": last.origins[i],
                "html": budget.spend(f"<dxn-attention>{script}</dxn-attention>"),
            }
        )
    return samples


def choose(scores: RowScores, classes: ClassScores | None) -> list[tuple[str, str, list[int]]]:
    """Return the rows that tell most about a model, in groups.

    Args:
        scores: Score of each row.
        classes: Probabilities of the classes. None: the task has none.

    Returns:
        What the rows of a group have in common, why they are worth a look, and their indices.
    """
    sign = 1 if scores.higher_is_better else -1
    values = [sign * value for value in scores.values]
    if classes is None:
        worst = sorted(range(len(values)), key=lambda i: values[i])[:CANDIDATES]
        title = "Worst answers" if scores.higher_is_better else "Largest errors"
        about = f"The rows with the worst score ({scores.name})."
        return [(title, f"{about} {HINT}", worst)]
    sure = _certainty(classes)
    wrong = [i for i, value in enumerate(values) if value < 1]
    # The worst first, and of equal scores the one that the model was most certain of.
    mistakes = sorted(wrong, key=lambda i: (values[i], -sure[i]))[:CANDIDATES]
    unsure = sorted(range(len(values)), key=lambda i: sure[i])[:CANDIDATES]
    groups = [
        ("Most confident mistakes", f"The model is certain, and wrong. {HINT}", mistakes),
        (
            "Least certain answers",
            "The model hesitates between classes. More rows of this kind would teach it most.",
            unsure,
        ),
    ]
    return [group for group in groups if group[2]]


def right_and_wrong(scores: RowScores, count: int) -> list[int]:
    """Return rows for a closer look: half of them answered best, half of them worst."""
    sign = 1 if scores.higher_is_better else -1
    order = sorted(range(len(scores.values)), key=lambda i: -sign * scores.values[i])
    half = (count + 1) // 2
    return list(dict.fromkeys([*order[:half], *order[::-1][: count - half]]))


def examples(
    rows: Sequence[int],
    *,
    task: Task,
    predictions: Sequence[Any],
    truths: Sequence[Any],
    scores: RowScores,
    origins: Sequence[str],
    shown: Callable[[int], Mapping[str, Shown]],
    budget: Budget,
) -> list[dict[str, Any]]:
    """Return rows with their inputs, at most PER_GROUP rows with different inputs.

    Args:
        rows: Indices of the rows, the most important one first.
        task: Task that converts predictions to answers.
        predictions: Predictions of all rows.
        truths: Parsed targets of all rows.
        scores: Score of each row.
        origins: Origin of each row.
        shown: Function that returns the inputs of a row.
        budget: Room for pictures, sounds and clips.
    """
    shown_rows: list[dict[str, Any]] = []
    seen: set[object] = set()
    for i in rows:
        inputs = shown(i)
        key = _key(inputs, i)
        if key in seen or len(shown_rows) == PER_GROUP:
            continue
        seen.add(key)
        answer = task.answer(predictions[i], {name: value.source for name, value in inputs.items()})
        probabilities = answer.get("probabilities") or {}
        prediction = answer["prediction"]
        is_named = isinstance(prediction, str) and prediction in probabilities
        is_right = bool(scores.values[i] >= 1) if probabilities else None
        note = "" if is_right else f"{scores.name}: {number(scores.values[i])}"
        if is_named:
            note = f"{percent(probabilities[prediction])} certain"
        shown_rows.append(
            {
                "where": origins[i],
                "prediction": cut(_line(answer, is_named=is_named), MAX_TEXT),
                "truth": cut(true_line(task, truths[i], inputs), MAX_TEXT),
                "is_right": is_right,  # None: it is neither right nor wrong
                "note": note,
                "shares": [(n, p, percent(p)) for n, p in listed_probabilities(answer)[:3]],
                "inputs": fragments(
                    inputs, budget, _marks(task, inputs, truths[i], predictions[i])
                ),
                "more": max(len(inputs) - MAX_INPUTS, 0),  # inputs that are left out
            }
        )
    return shown_rows


def fragments(
    inputs: Mapping[str, Shown | None],
    budget: Budget,
    marks: Mapping[str, Sequence[Mark | Areas]] | None = None,
) -> list[tuple[str, Markup]]:
    """Return the name and the HTML of each input, at most MAX_INPUTS of them.

    Args:
        inputs: The inputs of a row. A dash is shown for None.
        budget: Room for pictures, sounds and clips.
        marks: What is marked in an input, by its name.
    """
    html_of_inputs: list[tuple[str, Markup]] = []
    for name, value in list(inputs.items())[:MAX_INPUTS]:
        if value is None:
            html_of_inputs.append((name, Markup("–")))
            continue
        drawer = get_drawer(value.modality)
        marks_of_input = (marks or {}).get(name)
        shown = replace(value, max_sound=budget.sound)
        html = (
            drawer.marked_fragment(shown, marks_of_input)
            if marks_of_input
            else drawer.fragment(shown)
        )
        html_of_inputs.append((name, budget.spend(html)))
    return html_of_inputs


def _marks(task: Task, inputs: Mapping[str, Shown], *values: Any) -> dict[str, list[Mark | Areas]]:
    """Return the marks of several values, by input name."""
    by_input: dict[str, list[Mark | Areas]] = {}
    raws = {name: shown.raw for name, shown in inputs.items()}
    for value in values:
        for name, marks in task.marks(value, raws).items():
            by_input.setdefault(name, []).extend(marks)
    return by_input


def target_text(target: Any) -> str:
    """Return a target as a line of text: of objects, their names; of a mask, its file."""
    if isinstance(target, float):
        return number(target)
    if isinstance(target, Mapping) and MASK in target:
        return target[MASK] if isinstance(target[MASK], str) else MASK
    if not isinstance(target, Mapping | list | tuple):
        return str(target)
    items = list_of_objects(target) or ()
    names = [label_of(item) if isinstance(item, Mapping) else str(item) for item in items]
    if None in names or (isinstance(target, Mapping) and not names):
        return json_text(target)
    return join_names(filter(None, names)) or "none"


def is_readable(target: Any) -> bool:
    """Whether a target can be shown as a line of text."""
    if isinstance(target, list | tuple):
        return all(isinstance(item, str) for item in target)
    return isinstance(target, str | int | float | Described)


def _certainty(classes: ClassScores) -> list[float]:
    """Return how certain each answer is: how far the decision is from another one."""
    if classes.threshold is not None:
        return (classes.probabilities - classes.threshold).abs().min(1).values.tolist()
    best = classes.probabilities.topk(min(2, classes.probabilities.shape[1]), 1).values
    return (best[:, 0] - best[:, -1]).tolist() if best.shape[1] > 1 else best[:, 0].tolist()


def _line(answer: Mapping[str, Any], *, is_named: bool = False) -> str:
    """Return a prediction as a line, without the text in which it is marked.

    Args:
        answer: Result of `Task.answer`.
        is_named: Whether the prediction is shown beside its probability.
    """
    is_short = is_named or "excerpt" in answer
    return answer["prediction"] if is_short else answer_line(answer)


def true_line(task: Task, truth: Any, inputs: Mapping[str, Shown]) -> str:
    """Return a target as a line. Tags become entities, such as "Ann (PER)"."""
    if task.answer_kind is not AnswerKind.TAGS:
        return target_text(truth) or "none"
    names = [
        f"{plain_text(inputs[name].raw)[int(mark.box[0]) : int(mark.box[1])]} ({mark.label})"
        for name, marks in _marks(task, inputs, truth).items()
        for mark in marks
        if isinstance(mark, Mark)
    ]
    return ", ".join(names) or "no entities"


def _key(inputs: Mapping[str, Shown], row: int) -> object:
    """Return a key that is equal for rows with equal texts, files and cells."""
    sources = [shown.source for shown in inputs.values()]
    # Values in memory, such as arrays, have no source.
    return row if None in sources else tuple(map(str, sources))
