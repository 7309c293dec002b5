"""What follows a training: its classical baseline, the evaluation, and what the metrics mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from dxn.config.settings import Settings
from dxn.core.display import duration, number, print_line
from dxn.core.files import METRICS, MODEL, PREDICTIONS, REPORT, TOKENS
from dxn.core.processes import from_first
from dxn.core.results import ALL, BEST, Figures, Results
from dxn.report.answers import Answers
from dxn.runs.evaluation.data import EvaluationData
from dxn.runs.evaluation.evaluate import evaluate_subsets
from dxn.runs.evaluation.reporting import try_report
from dxn.runs.evaluation.subsets import default_split
from dxn.runs.folder import MEMBERS
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.record import best_figures, results_of
from dxn.runs.saved import model_folder
from dxn.runs.saved.card import Card, card_of
from dxn.stacking.metrics import warn_about
from dxn.stacking.stacked import write_stack
from dxn.training.limit import fitting, seconds_per_sample
from dxn.training.predict import score

if TYPE_CHECKING:
    from dxn.runs.prepare import Training
    from dxn.training.limit import Limit
    from dxn.training.log import Log
    from dxn.training.state import State


def evaluate(
    run: Training, state: State, limit: Limit, *, batch_size: int, log: Log
) -> Results | None:
    """Evaluate the saved model, and write what `complete` writes.

    All processes must call this. Only the first one gets the results.

    The model folder is loaded in the same way as by `dxn.load`, so that the metrics are those of
    the files that the user gets.

    Args:
        run: The training.
        state: Its state at the end.
        limit: Its time limit.
        batch_size: Number of samples per batch.
        log: Its log, which sends the final metrics to the trackers.
    """
    trainer = run.trainer
    for line in about_epochs(state, run):
        print_line(line)
    split = default_split(run.splits)
    best = _load(run) if trainer.hardware.is_main else None
    share = limit.share_of_baseline(state.elapsed, state.validation)
    started = perf_counter()
    from_first(lambda: add_baseline(run, best, share, batch_size=batch_size) if best else None)
    took = from_first(lambda: perf_counter() - started)
    best = best or _load(run)  # after the first process has written the baseline
    opened = run.splits[split]
    # A baseline reads values.
    opened = opened if best.network is best.model else opened.with_values
    data = EvaluationData(split, split, opened)
    only, max_samples, notes = _what_fits(
        run, best, data, limit, limit.of_evaluation(state.elapsed + took), batch_size
    )
    # Simple methods would look up the answers to rows that they have learned from.
    has_simple = run.settings.values["baseline"] != "none" and split != "train"
    # These are figures of all rows, with which those of some rows cannot be compared.
    frozen = run.plan.frozen if max_samples is None else {}
    evaluated = evaluate_subsets(
        best,
        data,
        run.folder,
        batch_size=batch_size,
        only=only,
        max_samples=max_samples,
        further=frozen,
        train=run.splits["train"] if has_simple else None,
        share=limit.share_of_methods,
        # A model that has seen a few samples only is worse than most methods.
        compares=not run.loader.overfit,
    )
    if evaluated is None:
        return None
    results, last = evaluated
    figures = best_figures(run.folder, state)
    remarks = [
        *warn_about(results.figures(), best.task, state, max_minutes=trainer.max_minutes),
        *about_frozen(results, frozen),
        *notes,
        *about_validation(state, run),
        *about_split(split),
        *about_overfitting(run, best, batch_size),
    ]
    results = complete(
        results.of_training(results_of(run, run.model, run.task, figures, state)),
        best,
        last,
        folder=run.folder,
        settings=run.settings,
        card=card_of(run, run.task),
        remarks=remarks,
    )
    # The validation metrics of the best epoch were sent when it ended.
    sent = (BEST, *(name for name in results.metrics if name.startswith(f"{split}/")))
    final = {name: results.metrics[name] for name in sent if name in results.metrics}
    log.close_trackers(final, state.step)
    return results


def _what_fits(
    run: Training,
    best: Predictor,
    data: EvaluationData,
    limit: Limit,
    seconds: float,
    batch_size: int,
) -> tuple[list[str] | None, int | None, list[str]]:
    """Return the inputs and the number of samples that are evaluated, and notes about them.

    None: all of them.

    Args:
        run: The training.
        best: The saved model.
        data: The rows that are evaluated.
        limit: The time limit.
        seconds: What is left of it. Twice as many are allowed, because times are estimated.
        batch_size: Number of samples per batch.
    """
    samples, inputs = best.task_samples(data.opened), list(run.model.inputs)
    size, total = len(samples), batch_size * run.trainer.hardware.num_processes
    if math.isinf(seconds) or not size:
        return None, None, []
    per_sample, _ = seconds_per_sample(
        lambda part: best.run(part, batch_size=batch_size, divided=True, may_be_bad=True),
        samples,
        total,
        seconds,
    )
    passes = limit.passes if len(inputs) > 1 else 1
    if passes * size * per_sample <= 2 * seconds:
        return None, None, []
    reason = f"because the time limit of {limit.about} has no time for"
    if size * per_sample <= 2 * seconds:
        note = (
            f"note: only all inputs together are evaluated, {reason} the others; dxn evaluate "
            "evaluates them"
        )
        return inputs, None, [note]
    kept = fitting(seconds, per_sample, size)
    # Otherwise the metrics of some rows estimate those of all.
    of_fewer = f"{about}; " if (about := best.task.metric.of_fewer) else ""
    note = (
        f"note: {kept:,} of {size:,} samples are evaluated, {reason} all of them, which take about "
        f"{duration(size * per_sample)}; {of_fewer}dxn evaluate evaluates them"
    )
    return inputs, kept, [note]


def _load(run: Training) -> Predictor:
    device = str(run.trainer.hardware.device)
    best = model_folder.load(run.folder / MODEL, device=device, trust=run.settings.trust)
    best.task.metric.own = run.task.metric.own
    return best


def complete(
    results: Results,
    best: Predictor,
    last: Answers,
    *,
    folder: Path,
    settings: Settings,
    card: Card,
    remarks: Sequence[str],
) -> Results:
    """Write metrics.json, the final model card and the report of a training or of an ensemble.

    Args:
        results: Metrics by set of inputs, and facts of the training.
        best: The saved model.
        last: Its predictions from all inputs.
        folder: The run folder.
        settings: Settings of the run.
        card: The model card.
        remarks: Lines about the metrics.

    Returns:
        The results with the remarks.
    """
    for line in remarks:
        print_line(line)
    sentences = [line.removeprefix("warning: ").removeprefix("note: ") for line in remarks]
    results = results.model_copy(update={"remarks": [*results.remarks, *sentences]})
    results.write(folder)
    model_folder.write_card(folder / MODEL, card.markdown(results))
    wants_report = settings.values.get("report", True)
    if wants_report:
        try_report(folder, settings, card.overrides, results, best, last)
    # A resumed run can have the report of an earlier end.
    names = [REPORT] if wants_report else []
    names += [f"{MODEL}/", METRICS, PREDICTIONS, TOKENS, f"{MEMBERS}/"]
    written = ", ".join(name for name in names if (folder / name).exists())
    print_line(f"written: {folder} ({written})")
    return results


def about_epochs(state: State, run: Training) -> list[str]:
    """Return how long the training took, and which epoch was saved."""
    took = f"trained {duration(state.seconds)}"
    if state.kept_loss is None:
        return [f"{took}, {state.epoch} epochs; no validation split: the last epoch is kept"]
    lines = [f"{took}, best epoch {state.best_epoch} of {state.epoch} (*)"]
    figure = run.task.metric.monitored
    if state.best is None:
        lines.append(
            f"note: the validation {figure} was NaN in all epochs, so the loss selected the epoch"
        )
        figure = "loss"
    # A model that memorizes a few samples may do so in the first epoch.
    if state.best_epoch == 1 < state.epoch and not run.loader.overfit:
        lines.append(f"note: no epoch after the first one had a better validation {figure}")
    return lines


def about_frozen(results: Results, frozen: Figures) -> list[str]:
    """Return a warning if a simple model on published weights is better than the trained one."""
    better = "higher" if results.higher_is_better else "lower"
    own = results.figures()[ALL].get(results.monitored, math.nan)
    lines: list[str] = []
    for about, figures in frozen.items():
        value = figures.get(results.monitored, math.nan)
        if (value > own) if results.higher_is_better else (value < own):
            pair = f"{results.monitored} {number(value)}, {better} than {number(own)}"
            lines.append(
                f"warning: the weights were better before the training: {about} has {pair}; train "
                "longer (trainer.max_minutes, trainer.epochs), lower optimizer.lr, or collect more "
                "rows"
            )
    return lines


def about_validation(state: State, run: Training) -> list[str]:
    """Return a note if the time limit had no time to validate all rows."""
    size = len(run.validation_samples(run.task) or ())
    if not 0 < state.validated < size:
        return []
    of_fewer = f", and {about}" if (about := run.task.metric.of_fewer) else ""
    return [
        f"note: the validation metrics of the epochs are those of {state.validated:,} of {size:,} "
        f"samples, because of the time limit{of_fewer}"
    ]


def about_split(split: str) -> list[str]:
    """Return a note if the metrics are not those of a test split."""
    if split == "train":
        return [
            "warning: there is no test split, so these are the metrics of the training rows; they "
            "do not tell how well the model answers for new data"
        ]
    if split == "validation":
        return [
            "note: there is no test split, so these are the metrics of the validation split, by "
            "which the epoch and other values were chosen; expect slightly worse ones for new data"
        ]
    return []


def about_overfitting(run: Training, best: Predictor, batch_size: int) -> list[str]:
    """Return how many of these few samples the model has learned, with loader.overfit."""
    samples = run.validation_samples(best.task)
    if not run.loader.overfit or samples is None:
        return []
    predictions = best.run(samples, batch_size=batch_size)
    targets = samples.opened.targets if best.task.is_supervised else None
    truths = [] if targets is None else [targets[row] for row in predictions.rows]
    # A model can predict a name, a text and a list of them exactly.
    if truths and all(
        isinstance(truth, Sequence) and all(isinstance(item, str) for item in truth)
        for truth in truths
    ):
        count = 0
        for predicted, truth in zip(predictions.predicted, truths, strict=True):
            answer = best.task.answer(predicted)["prediction"]
            target = best.task.target
            if target.prepared_inputs:  # the form depends on the sample, such as tags of tokens
                count += answer == truth
                continue
            # In the form that the model is trained on, in which the order of labels, for example,
            # makes no difference.
            pair = [target.encode(value, {}) for value in (answer, truth)]
            count += torch.equal(*map(torch.as_tensor, pair))
        result = f"{count} of {len(truths)} learned"
    else:
        # A number is never predicted exactly, so its error says more than a count.
        value = score(predictions, samples, best.task).get(best.task.metric.monitored, math.nan)
        result = f"{best.task.metric.monitored} {number(value)} for the {len(samples)} samples"
    return [
        f"loader.overfit={run.loader.overfit}: {result}; the model has seen no other samples, so "
        "the table above says nothing about the data"
    ]


def add_baseline(run: Training, best: Predictor, share: float, *, batch_size: int) -> None:
    """Train a baseline, mix it with the best model of a run, and save it in the model folder.

    Args:
        run: The training.
        best: Its model.
        share: Share of the usual time of a baseline that is left.
        batch_size: Number of samples per batch.
    """
    choice = run.settings.values["baseline"]
    stack = None
    if choice == "auto" and run.starts_trained:
        print_line(
            "note: no baseline, because the weights are not trained from the start; "
            "baseline=always trains one and mixes its output with that of the model"
        )
    elif choice != "none" and not run.loader.overfit:
        from dxn.stacking.train import train_stack

        # `pretrained` sets it, too: a published encoder of a single input is the backbone.
        is_published = bool(run.plan.config["weights"]["source"])
        stack = train_stack(
            best.model,
            best.task,
            best.task_samples(run.splits["train"].with_values),
            run.validation_samples(best.task, values=True),
            batch_size=batch_size,
            starts_trained=run.starts_trained or is_published,
            share=share,
            say=print_line,
        )
        if stack is None and choice == "always":
            print_line(
                f"note: no baseline, because there is none for the output space of "
                f"head={best.task.name}, for these inputs, or for this number of rows"
            )
    # A run that is resumed after its end already has a stacked model, which is replaced.
    if stack is not None or best.network is not best.model:
        write_stack(run.folder / MODEL, stack)
    best.network = stack or best.model
