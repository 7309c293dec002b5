"""A model that was trained alone judges the values that another model creates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from dxn.core.display import count, print_line
from dxn.core.errors import UserError
from dxn.data.dataset import Samples
from dxn.data.reading import survey_rows
from dxn.data.rows import TARGET, Rows
from dxn.data.sources.table import JOINED
from dxn.runs.evaluation.data import EvaluationSource, source_of
from dxn.runs.evaluation.features import share_equal
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.table import Record, identify, prediction_records
from dxn.tasks.space import AnswerKind
from dxn.training.predict import score


@dataclass(frozen=True)
class Judge:
    """A model that reads one of its inputs alone.

    Args:
        model: The model.
        name: The input.
        batch_size: Number of values per batch.
    """

    model: Predictor
    name: str
    batch_size: int

    @classmethod
    def of(cls, model: Predictor, created: str, modality: str, batch_size: int) -> Judge:
        """Return the judge of a created input: it reads its input of the same modality.

        Raises:
            UserError: If it has no such input, or several of which none has the same name, or it
                is a codec, whose features do not tell values apart.
        """
        if model.task.answer_kind is AnswerKind.CODES:
            raise UserError(
                f"judge: a codec does not say what {created} shows; set judge to a classifier, or "
                "to another model that was trained alone"
            )
        same = [name for name, each in model.tokenizers.items() if each.modality == modality]
        names = [created] if created in same else same
        if len(names) != 1:
            inputs = [f"{name} ({each.modality})" for name, each in model.tokenizers.items()]
            raise UserError(
                f"judge: must read {created} ({modality}), but its inputs are {', '.join(inputs)}; "
                "set judge to the run of another model"
            )
        return cls(model, names[0], batch_size)

    @property
    def text(self) -> str | None:
        """The text that a judge of head=any writes from the input. None: there is none."""
        for name in self.model.task.creates:
            if name != self.name and not self.model.tokenizers[name].reader.formats:
                return name
        return None

    def truths(
        self, rows: Rows, data: EvaluationSource, creator: Predictor, created: str
    ) -> Sequence[Any] | None:
        """Return the true answer for each row: the target of the judge, or the text that it writes.

        Args:
            rows: The rows, with the inputs of the model that creates values.
            data: The data set that they are from.
            creator: The model that creates values.
            created: Its input that is created.

        Returns:
            Cells. None: the judge has no answers, but features.

        Raises:
            UserError: If the data has no column with the answers.
        """
        task = self.model.task
        if task.is_supervised:
            target = self.model.target
        elif self.text is not None:
            target = self.model.columns.get(self.text, self.text)
        else:
            print_line(
                f"note: the judge (head={task.name}) has no answers about {self.name}; the metrics "
                "are those of its features"
            )
            return None
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
                writes = not task.is_supervised or task.target.is_text
                texts = [n for n, each in creator.tokenizers.items() if each.reader.words]
                texts = [name for name in texts if name in rows.cells and name != created]
                if writes and len(texts) == 1:
                    print_line(
                        f"note: the data has no {target}, which the judge writes, so its texts are "
                        f"compared with {texts[0]}"
                    )
                    return rows.cells[texts[0]]
                missing = (
                    f"{target}, which the data does not have ({error}); set data.path=... "
                    "data.target=COLUMN to a column with the same content"
                )
                if task.is_supervised:
                    raise UserError(f"judge: predicts {missing}") from error
                print_line(f"note: there is no exact_match: the judge writes {missing}")
                return None
        own = source.splits.get(data.split)
        if own is not None and list(own.origin) == list(rows.origin):
            return own.cells.get(TARGET, [None] * len(rows))
        # Other rows were drawn for the split.
        known: dict[str, Any] = {}
        for each in source.splits.values():
            known |= zip(each.origin, each.cells.get(TARGET, ()), strict=False)
        return [known.get(origin) for origin in rows.origin]

    def samples(self, rows: Rows, values: Sequence[Any]) -> Samples:
        """Return a sample of each value that can be read, which an empty text cannot.

        Args:
            rows: The rows of the values, with the true answers as targets, if they are known.
            values: Cells.

        Raises:
            UserError: If none can be read.
        """
        task = self.model.task
        cells = {self.name: values}
        if has_answers := TARGET in rows.cells and task.is_supervised:
            cells[TARGET] = rows.cells[TARGET]
        opened = survey_rows(
            Rows(cells, rows.origin),
            {self.name: self.model.tokenizers[self.name]},
            task=task,
            on_bad="skip",
            need_target=has_answers,
        )
        if not len(opened):
            raise UserError(
                f"judge: cannot read any of {count(len(rows), 'value')} of {self.name}; the first "
                f"problem is {opened.bad[0].origin}: {opened.bad[0]}; check the data, the judge, "
                "and the model that creates values"
            )
        return Samples(opened, self.model.tokenizers, task=task if has_answers else None)

    def features(self, samples: Samples) -> Tensor:
        """Return the features (n, E) of values, float64."""
        return self.model.vectors(samples, batch_size=self.batch_size)[1].double()

    def answers(self, samples: Samples, rows: Rows) -> tuple[dict[str, float], list[Record]]:
        """Return metrics of the answers for values, and the rows of predictions.csv.

        Args:
            samples: The values.
            rows: The rows of all values, with the true answers as targets, if they are known.
        """
        model = self.model
        if model.task.is_supervised:
            predictions = model.run(samples, batch_size=self.batch_size)
            figures = score(predictions, samples, model.task)
            figures.pop("loss")
            return figures, prediction_records(predictions, samples.opened, model.task)
        if self.text is None or TARGET not in rows.cells:
            return {}, []
        texts = model.create(self.text, samples, temperature=0, batch_size=self.batch_size)
        kept = np.asarray(samples.opened.kept)[samples.rows]
        true = [rows.cells[TARGET][row] for row in kept.tolist()]
        found = zip(samples.rows.tolist(), true, texts, strict=True)
        records: list[Record] = [
            {**identify(samples.opened, row), "target": target, "prediction": text}
            for row, target, text in found
        ]
        tokenizer = model.tokenizers[self.text]
        return {"exact_match": share_equal(texts, true, tokenizer)}, records
