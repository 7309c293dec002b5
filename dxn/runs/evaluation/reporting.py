"""The report of a run: what it contains, and when it is written (dxn.report draws it)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dxn import report as pages
from dxn import viz
from dxn.config.settings import Settings, dump_yaml
from dxn.core.display import print_line
from dxn.core.errors import UserError
from dxn.core.files import LOG
from dxn.core.results import Results, read_results
from dxn.core.untrusted import check_file
from dxn.data.dataset import Opened, Samples
from dxn.report.answers import Answers, Evidence
from dxn.runs.evaluation.data import open_evaluation_data
from dxn.runs.evaluation.next_commands import report_again
from dxn.runs.folder import name_of
from dxn.runs.predictor.attention import MAX_WEIGHTS, attention_on, limits_of
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.writing import Text, Writer
from dxn.runs.record import data_name
from dxn.tokenize.text.chat import Conversation, text_of
from dxn.training.log import read_log
from dxn.training.predict import task_results

MAX_REASON = 200  # characters of an error in a warning
MAX_ANSWER = 100  # tokens of an answer, so that a report does not take longer than a training


def try_report(
    folder: Path,
    settings: Settings,
    overrides: Sequence[str],
    results: Results,
    best: Predictor,
    last: Answers,
) -> None:
    """Write the report at the end of a training.

    A failure is a warning, because the results of a training are complete without a report.

    Args:
        folder: The run folder.
        settings: Settings of the run.
        overrides: Options of the training as the user typed them.
        results: Content of metrics.json.
        best: The model of the best epoch.
        last: Its predictions from all inputs.
    """
    try:
        info = _info(folder, settings, overrides, results, best)
        pages.run.write_report(info, evidence(best, last))
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:MAX_REASON]
        print_line(
            f"warning: report.html is not written ({reason}); the run is complete without it, and "
            f"{report_again(folder, settings)} tries again"
        )


def write_again(
    folder: Path,
    predictor: Predictor,
    *,
    batch_size: int,
    confine: bool,
    trust: Sequence[str],
) -> Path:
    """Write the report of a run folder, which may come from an untrusted source.

    Args:
        folder: The run folder.
        predictor: Its model.
        batch_size: Number of samples per batch.
        confine: Whether the data of the run may not lead out of its folder.
        trust: Top-level packages besides dxn whose code the folder may use.

    Returns:
        The page.
    """
    settings = Settings.load(folder, trust)
    results = read_results(folder)
    last: Answers | None = None
    notes: list[str] = []
    if results is None:
        notes.append("The training has not finished, so there are no metrics yet.")
        results = task_results(predictor.task, "test", {}, target=predictor.target)
    else:
        try:
            opened = open_evaluation_data(
                predictor, str(folder), split=results.split, confine=confine, folder_trust=trust
            ).opened
            samples = predictor.task_samples(opened)
            last = Answers(samples, predictor.run(samples, batch_size=batch_size))
        except UserError as error:
            notes.append(f"Single rows are missing, because the data cannot be read: {error}")
            print_line(f"warning: {notes[-1]}")
    info = _info(folder, settings, settings.overrides, results, predictor)
    return pages.run.write_report(replace(info, notes=notes), evidence(predictor, last))


def evidence(predictor: Predictor, last: Answers | None) -> Evidence:
    """Return the model and its predictions in the form that the report needs."""
    samples = None if last is None else last.samples

    def shown(row: int) -> Any:
        assert samples is not None
        return _shown(predictor, samples.opened, row)

    def attended(i: int, names: Sequence[str]) -> Any:
        assert samples is not None
        batch = predictor.batch(samples, i)
        try:
            attention = attention_on(predictor, batch, names, max_weights=MAX_WEIGHTS)
        except UserError:  # no attention, or a sample that is too long
            return None
        return attention.encoded, attention.shares.cpu().numpy()

    def created(name: str, rows: Sequence[int]) -> Any:
        assert samples is not None
        # Without the task, which would remove an input as the target.
        chosen = Samples(samples.opened, predictor.tokenizers)
        chosen.rows = np.array(rows)
        prepare = predictor.tokenizers[name].plain_values
        values = predictor.create(name, chosen)
        return [viz.drawers.Shown(prepare.drawing, value, prepare, name=name) for value in values]

    answered = None
    if samples is not None and len(predictor.inputs) == 1 and samples.opened.raws:
        (column,) = samples.opened.raws.values()
        if len(column) and isinstance(column[0], Conversation):
            answered = partial(_answered, predictor, column)
    return Evidence(
        predictor.task,
        last,
        shown,
        attended,
        created,
        answered,
        limits=limits_of(predictor),
    )


def _answered(
    predictor: Predictor, column: Sequence[Conversation], rows: Sequence[int]
) -> list[tuple[str, str, str]]:
    """Return the messages before the last answer, this answer, and that of the model."""
    writer = Writer(predictor.model, predictor.task)
    parts: list[tuple[str, str]] = []
    texts: list[Text] = []
    for row in rows:
        messages = list(column[row].messages)
        last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
        before = "\n".join(f"{m['role']}: {text_of(m)}" for m in messages[:last])
        parts.append((before, text_of(messages[last])))
        text = writer.answer_to(messages[:last])
        text.max_new = MAX_ANSWER
        texts.append(text)
    answers = writer.write(texts, batch_size=len(texts))
    return [(*part, answer) for part, answer in zip(parts, answers, strict=True)]


def _shown(predictor: Predictor, opened: Opened, row: int) -> dict[str, Any]:
    raws = {name: column[row] for name, column in opened.raws.items()}
    sources = {name: cells[row] for name, cells in opened.cells.items()}
    return viz.sample.shown_inputs(predictor.adapters, raws, sources)


def read_log_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl; none for an ensemble, whose members have their own."""
    path = folder / LOG
    if not path.exists():
        return []
    check_file(path)
    # The folder may come from an untrusted source, and only numbers can be drawn.
    return [
        {key: value for key, value in row.items() if isinstance(value, int | float)}
        for row in read_log(path)
    ]


def _info(
    folder: Path,
    settings: Settings,
    overrides: Sequence[str],
    results: Results,
    predictor: Predictor,
) -> Any:
    values = settings.values
    about = [
        ("run folder", "/".join(folder.parts[-2:])),
        ("data", data_name(values["data"], values.get("name"))),
        ("backbone", f"{_part(values['backbone'])}, D = {values['dim']}"),
        ("fusion", _part(values["fusion"])),
        ("optimizer", f"{_part(values['optimizer'])}, lr {values['optimizer'].get('lr', '')}"),
        ("batch size", str(values["trainer"]["batch_size"])),
        ("seed", str(values["seed"])),
    ]
    if results.precision is not None:
        about.append(("precision", results.precision))
    about += [("initial weights", line) for line in results.start]
    return pages.run.RunInfo(
        folder=folder,
        title=str(values.get("name") or results.target or name_of(folder)),
        command=shlex.join(["dxn", "train", *overrides]),
        config=dump_yaml(settings.values),
        about=about,
        results=results,
        log=read_log_of(folder),
        columns=predictor.columns,
    )


def _part(node: Mapping[str, Any]) -> str:
    return str(node["_target_"]).rpartition(".")[2]
