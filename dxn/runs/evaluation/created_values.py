"""`dxn evaluate create=NAME`: metrics of the values that a model of head=any creates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dxn.core.display import count, print_line, track
from dxn.core.errors import UserError
from dxn.core.files import METRICS, PREDICTIONS
from dxn.core.processes import processes
from dxn.core.results import DataFacts, Figures, Results, flat
from dxn.data.dataset import Samples
from dxn.data.reading import open_rows, survey_rows
from dxn.data.rows import TARGET, Rows
from dxn.data.sources.table import JOINED
from dxn.runs.evaluation.data import EvaluationSource, source_of
from dxn.runs.evaluation.evaluate import print_results
from dxn.runs.predictor.generating import write_values
from dxn.runs.predictor.output import write_records
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.table import Record, identify, prediction_records
from dxn.tasks.codec.stored import StoredCodec
from dxn.tasks.metric import defined
from dxn.tokenize.base import BadMedia
from dxn.tokenize.code_adapters import CodeAdapter
from dxn.training.predict import score

CREATED, RESTORED, TRUE = "created", "restored", "true"  # rows of the table of metrics
FILES = "created"  # folder of the created files
FRECHET = "frechet_distance"


def evaluate_created(
    predictor: Predictor,
    judging: Predictor | None,
    data: EvaluationSource,
    folder: Path,
    *,
    create: str,
    only: Sequence[str] | None,
    batch_size: int,
    **sampling: Any,
) -> None:
    """Create a value for each row, compare the values with the true ones, and write the results.

    The judge reads the created values alone, without the inputs that they were created from. It
    also reads the true values, and those that the codec restores from them, to show what it loses.

    Args:
        predictor: The model of head=any.
        judging: A classifier that was trained alone. None: texts are compared with the true ones.
        data: Rows with the created input and others.
        folder: Folder to write to.
        create: Input that is created.
        only: Inputs that values are created from. Default: all others.
        batch_size: Number of values per batch.
        **sampling: The arguments temperature, guidance and seed of `Predictor.create`.

    Raises:
        UserError: If the model, the judge and the data do not fit each other.
    """
    if processes()[1] > 1:
        raise UserError("create: a single process creates values; start dxn without torchrun")
    predictor.check_created(create)
    tokenizer = predictor.tokenizers[create]
    are_files = bool(tokenizer.reader.formats)
    judge = None
    if judging is not None:
        judge = Judge.of(judging, create, tokenizer.modality, batch_size)
    elif are_files:
        raise UserError(
            f"judge: needs the run of a model that reads {create} ({tokenizer.modality}), such as "
            "a classifier; set judge=RUN"
        )
    rows = predictor.model_inputs.of_source(data.source, data.split)
    others = _inputs_beside(predictor, rows, create, only)
    cells: dict[str, Sequence[Any]] = {name: rows.cells[name] for name in (create, *others)}
    if judge is not None:
        cells[TARGET] = judge.truths(rows, data, predictor)
    rows = _complete(replace(rows, cells=cells), create, others)
    used = {name: predictor.tokenizers[name] for name in others}
    opened = open_rows(rows, used, on_bad=data.source.on_bad)
    rows = rows.take(opened.kept)
    values = predictor.create(create, Samples(opened, used), batch_size=batch_size, **sampling)
    if (folder / METRICS).exists():  # otherwise, the files are those of the user
        _remove_files(folder / FILES, folder / RESTORED)
    folder.mkdir(parents=True, exist_ok=True)
    created = values
    if are_files:
        created = [str(path) for path in write_values(tokenizer.reader, values, folder / FILES)]
    records: Sequence[Record] = [{**identify(opened, i), create: v} for i, v in enumerate(created)]
    figures: dict[str, dict[str, float]] = {}
    remarks: list[str] = []
    if judge is not None:
        true, adapter = rows.cells[create], predictor.adapters[create]
        columns: dict[str, Sequence[Any]] = {TRUE: true}
        if isinstance(adapter, CodeAdapter):
            columns[RESTORED] = _restored_files(adapter.codec, true, folder / RESTORED)
        columns[CREATED] = created
        training = _training_rows(predictor, data, create)
        figures, remarks, records = _judged(judge, rows, columns, training)
    if not are_files:
        equal = share_equal(values, rows.cells[create], tokenizer)
        figures[CREATED] = {"equal_text": equal} | figures.get(CREATED, {})
    answering = predictor if judge is None else judge.model
    results = _results(figures, answering, data, others, remarks)
    print_line(f"{data.about}: {count(len(rows), f'{create} value')} from {' and '.join(others)}")
    print_results(results)
    for remark in results.remarks:
        print_line(f"note: {remark}")
    update = {"task": predictor.task.name, "evaluated": len(rows), "dtype": predictor.dtype}
    results.model_copy(update=update).write(folder)
    write_records(folder / PREDICTIONS, records)
    written = [METRICS, PREDICTIONS, *([f"{FILES}/"] if are_files else [])]
    if RESTORED in figures:
        written.append(f"{RESTORED}/")
    print_line(f"written: {folder}: {', '.join(written)}")


def share_equal(texts: Sequence[str], others: Sequence[Any], tokenizer: Any) -> float:
    """Return the share of texts that have the same words as others, pair by pair.

    Args:
        texts: Texts that a model wrote.
        others: True texts.
        tokenizer: Tokenizer of the texts, which can convert them to lower case.
    """
    normalizer = tokenizer.vocabulary.normalizer
    expected = [str(other) for other in others]
    if normalizer is not None:
        expected = [normalizer.normalize_str(other) for other in expected]
    pairs = zip(texts, expected, strict=True)
    return sum(text.split() == other.split() for text, other in pairs) / len(texts)


def _judged(
    judge: Judge, rows: Rows, columns: Mapping[str, Sequence[Any]], training: Rows | None
) -> tuple[dict[str, dict[str, float]], list[str], Sequence[Record]]:
    """Judge several columns of values of the same rows.

    Args:
        judge: Classifier that reads the values.
        rows: The rows, with the true answers as targets.
        columns: Cells by the name of their row in the table of metrics.
        training: The training rows, with their values alone. None: there are none.

    Returns:
        The metrics of each column, remarks about them, and the answers for the last column.
    """
    metrics: dict[str, dict[str, float]] = {}
    remarks: list[str] = []
    records: Sequence[Record] = []
    reference = None
    if training is None:
        remarks.append(f"no {FRECHET}: the data has no training values besides these rows")
    else:
        (values,) = training.cells.values()
        reference = judge.features(judge.samples(values, training, None))
    fewest = 0
    for name, cells in columns.items():
        samples = judge.samples(cells, rows, rows.cells[TARGET])
        metrics[name], records = judge.answers(samples)
        if len(samples) < len(rows):
            unread = count(len(rows) - len(samples), f"{name} value")
            remarks.append(f"the metrics are without {unread} that the judge cannot read")
        if reference is not None:
            fewest = min(len(samples), len(reference))
            if fewest > 1:  # a single value has no covariance
                metrics[name][FRECHET] = frechet_distance(judge.features(samples), reference)
    if reference is not None and 1 < fewest <= reference.shape[1]:
        # The covariance is singular, and the distance also depends on the number of rows.
        remarks.append(
            f"{FRECHET} is too large: it needs more rows than features ({reference.shape[1]}), "
            f"got {fewest}"
        )
    return metrics, remarks, records


def _restored_files(codec: StoredCodec, cells: Sequence[Any], folder: Path) -> list[Any]:
    """Return files with what a codec restores, and cells that it cannot read as they are.

    The judge cannot read these either.
    """
    restored: dict[int, Any] = {}
    for i, cell in enumerate(track(cells, len(cells), "restoring true values")):
        with suppress(BadMedia):
            (codes,) = codec.encode([codec.reader.read(cell)])
            restored[i] = codec.decode(codes)
    paths = write_values(codec.reader, [*restored.values()], folder)
    files = dict(zip(restored, map(str, paths), strict=True))
    return [files.get(i, cell) for i, cell in enumerate(cells)]


def _remove_files(*folders: Path) -> None:
    """Remove the values that an earlier evaluation has written to the same folder."""
    for folder in folders:
        for path in folder.glob(f"{'[0-9]' * 6}.*"):  # see `write_values`
            path.unlink()
        with suppress(OSError):  # it has other files, or there is none
            folder.rmdir()


def _training_rows(creator: Predictor, data: EvaluationSource, create: str) -> Rows | None:
    """Return the training rows with the created input alone; None: there are none, or the same."""
    if data.split == "train" or not data.source.splits.get("train"):
        return None
    rows = creator.model_inputs.of_source(data.source, "train")
    rows = replace(rows, cells={create: rows.cells[create]})
    rows = rows.take(np.flatnonzero([value is not None for value in rows.cells[create]]))
    return rows if len(rows) else None


def _results(
    figures: Figures,
    answering: Predictor,
    data: EvaluationSource,
    others: list[str],
    remarks: list[str],
) -> Results:
    """Return the results, in which the created values are the only set of inputs."""
    shown = {name: defined(metrics) for name, metrics in figures.items()}
    names = list(shown[CREATED])
    metric = answering.task.metric
    monitored = metric.monitored if metric.monitored in names else names[0]
    return Results(
        split=data.split,
        task=answering.task.name,
        monitored=monitored,
        higher_is_better=metric.is_higher_better(monitored),
        metrics=flat(data.split, shown),
        shown=metric.shown(names),
        inputs=others,
        subsets=[CREATED],
        references=[key for key in shown if key != CREATED],
        remarks=remarks,
        data=DataFacts(name=data.about),
    )


def _inputs_beside(
    predictor: Predictor, rows: Rows, create: str, only: Sequence[str] | None
) -> list[str]:
    """Return the inputs that values are created from.

    Raises:
        UserError: If the data or the model does not have one of them, or the created input.
    """
    usable = [name for name in predictor.inputs if name in rows.cells]
    others = [name for name in usable if name != create]
    if len(others) == len(usable) or not others:
        raise UserError(
            f"create: needs rows with {create} and another input of the model, but the data has "
            f"{', '.join(usable) or 'none of them'}"
        )
    if wrong := [name for name in only or () if name not in others]:
        raise UserError(
            f"only: {create} can be created from {', '.join(others)}, got {', '.join(wrong)}"
        )
    return [name for name in others if not only or name in only]


def _complete(rows: Rows, create: str, others: Sequence[str]) -> Rows:
    """Return the rows with a value to compare with, an input to create it from, and an answer.

    Raises:
        UserError: If there are none.
    """
    present = {name: [v is not None for v in column] for name, column in rows.cells.items()}
    has_input = np.any([present.pop(name) for name in others], axis=0)
    complete_rows = np.flatnonzero(np.all([has_input, *present.values()], axis=0))
    if not len(complete_rows):
        raise UserError(
            f"create: none of {count(len(rows), 'row')} has {create}, one of "
            f"{', '.join(others)}, and an answer for the judge; set split or data to other rows"
        )
    return rows.take(complete_rows)


@dataclass(frozen=True)
class Judge:
    """A model with a target that reads one of its inputs alone.

    Args:
        model: Predictor of a task with a target.
        name: Input that it reads the values as.
        batch_size: Number of values per batch.
    """

    model: Predictor
    name: str
    batch_size: int

    @classmethod
    def of(cls, model: Predictor, created: str, modality: str, batch_size: int) -> Judge:
        """Return the judge of a created input: it reads its input of the same modality.

        Raises:
            UserError: If it predicts no target, or has no such input, or several of which none has
                the same name.
        """
        if not model.task.is_supervised:
            raise UserError(
                f"judge: must predict a target, such as a classifier, but head={model.task.name} "
                "has none; set judge to the run of another model"
            )
        tokenizers = model.tokenizers
        same = [name for name in tokenizers if tokenizers[name].modality == modality]
        names = [created] if created in same else same
        if len(names) != 1:
            inputs = ", ".join(f"{name} ({tokenizers[name].modality})" for name in tokenizers)
            raise UserError(
                f"judge: must read {created} ({modality}), but its inputs are {inputs}; "
                "set judge to the run of another model"
            )
        return cls(model, names[0], batch_size)

    def truths(self, rows: Rows, data: EvaluationSource, creator: Predictor) -> Sequence[Any]:
        """Return the true answer for each row, the cell of the target of the judge.

        Args:
            rows: The rows, with the inputs of the model that creates values.
            data: The data set that they are from.
            creator: The model that creates values.

        Raises:
            UserError: If the data has no column with the answers.
        """
        target = self.model.target
        source = data.source
        # The user can choose another column with the same content, such as data.target=digit. The
        # data of a run of head=any has an empty list.
        is_chosen = bool(data.node.get("target"))
        for name, column in creator.columns.items():
            if column == target and name in rows.cells and not is_chosen:
                return rows.cells[name]
        if target is not None and source.target != target and not is_chosen:
            # Read again, because a target can change which rows are drawn for a split.
            node = {**data.node, "target": target.split(JOINED)}
            try:
                source = source_of(node, creator, data.trust)
            except UserError as error:
                raise UserError(
                    f"judge: predicts {target}, which the data does not have ({error}); set "
                    "data.path=... data.target=COLUMN to a column with the same content"
                ) from error
        split = source.splits.get(data.split)
        if split is not None and list(split.origin) == list(rows.origin):
            return split.cells.get(TARGET, [None] * len(rows))
        # Other rows were drawn for the split.
        by_origin: dict[str, Any] = {}
        for other in source.splits.values():
            by_origin |= zip(other.origin, other.cells.get(TARGET, ()), strict=False)
        return [by_origin.get(origin) for origin in rows.origin]

    def samples(self, cells: Sequence[Any], rows: Rows, truths: Sequence[Any] | None) -> Samples:
        """Return a sample of each value that can be read.

        Args:
            cells: Cells with the values.
            rows: Their rows.
            truths: The true answers for them. None: they are not needed.

        Raises:
            UserError: If none can be read.
        """
        has_answers = truths is not None
        columns = {self.name: cells, TARGET: truths} if has_answers else {self.name: cells}
        opened = survey_rows(
            Rows(columns, rows.origin),
            {self.name: self.model.tokenizers[self.name]},
            task=self.model.task,
            on_bad="skip",
            need_target=has_answers,
        )
        if not len(opened):
            raise UserError(
                f"judge: cannot read any of {count(len(rows), 'value')} of {self.name}; the first "
                f"problem is {opened.bad[0].origin}: {opened.bad[0]}; check the data, the judge, "
                "and the model that creates values"
            )
        task = self.model.task if has_answers else None
        return Samples(opened, self.model.tokenizers, task=task)

    def features(self, samples: Samples) -> Tensor:
        """Return the features (n, E) of values, float64."""
        return self.model.vectors(samples, batch_size=self.batch_size)[1].double()

    def answers(self, samples: Samples) -> tuple[dict[str, float], list[Record]]:
        """Return metrics of the answers for values, and the rows of predictions.csv."""
        model = self.model
        predictions = model.run(samples, batch_size=self.batch_size)
        metrics = score(predictions, samples, model.task)
        metrics.pop("loss")
        return metrics, prediction_records(predictions, samples.opened, model.task)


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """Return the Fréchet distance of two Gaussians that are fitted to features (arXiv:1706.08500).

    It is |mean(a) - mean(b)|² + tr(A + B - 2 (A B)^½), where A and B are the covariances.

    Args:
        a: (n, E), n > 1.
        b: (m, E), m > 1.
    """
    shift = (a.mean(0) - b.mean(0)).square().sum()
    cov_a, cov_b = torch.atleast_2d(a.T.cov()), torch.atleast_2d(b.T.cov())
    # (A B)^½ has the trace of (A^½ B A^½)^½. This matrix is symmetric, so its eigenvalues are real
    # and not negative, also of singular covariances. Only rounding errors are below 0.
    values, basis = torch.linalg.eigh(cov_a)
    root = basis * values.clamp(min=0).sqrt() @ basis.T
    cross = torch.linalg.eigvalsh(root @ cov_b @ root).clamp(min=0).sqrt().sum()
    return max(float(shift + cov_a.trace() + cov_b.trace() - 2 * cross), 0.0)
