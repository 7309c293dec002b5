"""A classifier that was trained alone judges the values that another model creates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.data.dataset import Samples
from dxn.data.reading import survey_rows
from dxn.data.rows import TARGET, Rows
from dxn.data.sources.table import JOINED
from dxn.runs.evaluation.data import EvaluationSource, source_of
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.table import Record, prediction_records
from dxn.training.predict import score


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
