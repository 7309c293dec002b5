"""What the model thread computes of prepared samples: predictions, embeddings, attention, texts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from dxn.runs.predictor.predictor import Predictor
from dxn.serve.attention import attention_of
from dxn.serve.engine import Job
from dxn.serve.prepare import Prepared
from dxn.serve.texts import TextRow, Writer
from dxn.training.evaluate import as_float, check_finite, to_device

PREDICT = "predict"
EMBED = "embed"
ATTEND = "attend"
WRITE = "write"  # together with the maximum number of tokens


class Operations:
    """The functions of the model thread.

    Args:
        predictor: The model.
        batch_size: Maximum number of samples that are computed together.
    """

    def __init__(self, predictor: Predictor, *, batch_size: int):
        self.predictor = predictor
        self.batch_size = batch_size
        self.writer = Writer(predictor)

    def __call__(self, kind: Hashable, jobs: Sequence[Job]) -> list[Any]:
        """Compute the jobs of a batch, see `Engine`."""
        if kind == PREDICT:
            return self._by_job(jobs, self._predict)
        if kind == EMBED:
            return self._by_job(jobs, self._embed)
        if kind == ATTEND:
            return [attention_of(self.predictor, job.content) for job in jobs]
        return self._write(jobs)

    def _by_job(
        self, jobs: Sequence[Job], compute: Callable[[Prepared], list[Any]]
    ) -> list[list[Any]]:
        """Compute the samples of all jobs together, and return the results of each job."""
        merged = _merged([job.content for job in jobs])
        results: list[Any] = []
        for start in range(0, len(merged), self.batch_size):
            # A large request has many batches, and its client can leave before the last one.
            if all(job.is_cancelled for job in jobs):
                break
            stop = start + self.batch_size
            part = Prepared(merged.cells[start:stop], merged.items[start:stop], merged.samples)
            results += compute(part)
        parts: list[list[Any]] = []
        start = 0
        for job in jobs:
            parts.append(results[start : start + job.size])
            start += job.size
        return parts

    @torch.inference_mode()
    def _predict(self, prepared: Prepared) -> list[dict[str, Any]]:
        network, task = self.predictor.network, self.predictor.task
        batch = self._batch(prepared)
        output = as_float(network(batch))
        check_finite(output, batch, NUMBERED)
        predicted = task.predict(self.predictor.model.head, output, batch)
        pairs = zip(predicted, prepared.cells, strict=True)
        return [task.answer(each, cells) for each, cells in pairs]

    @torch.inference_mode()
    def _embed(self, prepared: Prepared) -> list[list[float]]:
        batch = self._batch(prepared)
        vectors = self.predictor.network.vectors(batch).float().cpu()
        check_finite(vectors, batch, NUMBERED)
        return vectors.tolist()

    def _batch(self, prepared: Prepared) -> dict[str, Any]:
        return to_device(prepared.collate(prepared.items), self.predictor.device)

    @torch.inference_mode()
    def _write(self, jobs: Sequence[Job]) -> list[list[str]]:
        rows: list[TextRow] = [row for job in jobs for row in job.content]
        for start in range(0, len(rows), self.batch_size):
            part = rows[start : start + self.batch_size]
            # A batch also encodes its inputs, before the writer sees that nobody waits for it.
            if not all(row.is_cancelled for row in part):
                self.writer.write(part)
        return [[row.text for row in job.content] for job in jobs]


class _Numbered:
    """Names the samples of a batch in messages, by their number in it."""

    def describe_index(self, row: int) -> str:
        return f"sample {row + 1}"


# Any: the check needs only this method of `Samples`.
NUMBERED: Any = _Numbered()


def _merged(parts: Sequence[Prepared]) -> Prepared:
    """Return the samples of several requests as one, numbered from 0."""
    cells = [each for part in parts for each in part.cells]
    items = [item for part in parts for item in part.items]
    numbered = [{**item, "index": i} for i, item in enumerate(items)]
    return Prepared(cells, numbered, parts[0].samples)
