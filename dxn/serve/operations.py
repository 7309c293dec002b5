"""What the model thread computes of prepared samples: predictions, embeddings, attention, texts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch

from dxn.core.runtime import threads
from dxn.runs.predictor.attention import MAX_WEIGHTS, Attention, attention_on
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.writing import Text, Writer, Writing
from dxn.serve.answers import Refusal
from dxn.serve.engine import Job
from dxn.serve.prepare import Prepared, value_data
from dxn.serve.schema import GENERATED
from dxn.training.device import to_device
from dxn.training.predict import check_finite
from dxn.viz.page import shares_data
from dxn.viz.sample import SampleView

PREDICT = "predict"
PREDICT_PIXELS = "predict pixels"  # also the probabilities of pixels
EMBED = "embed"
# For samples, a kind together with the options that a batch has in common.
ATTEND = "attend"  # with the input whose encoder is drawn, or None
WRITE = "write"


class Operations:
    """The functions of the model thread.

    Args:
        predictor: The model.
        batch_size: Maximum number of samples that are computed together.
    """

    def __init__(self, predictor: Predictor, *, batch_size: int):
        self.predictor = predictor
        self.batch_size = batch_size
        self.writer = Writer(predictor.model, predictor.task)

    def __call__(self, kind: Hashable, jobs: Sequence[Job]) -> list[Any]:
        """Compute the jobs of a batch, see `Engine`."""
        if kind in (PREDICT, PREDICT_PIXELS):
            return self._by_job(jobs, partial(self._predict, pixels=kind == PREDICT_PIXELS))
        if kind == EMBED:
            return self._by_job(jobs, self._embed)
        if isinstance(kind, tuple) and kind[0] == ATTEND:
            return [attention_of(self.predictor, job.content, kind[1]) for job in jobs]
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
            with threads(self.predictor.threads_for(len(part))):
                results += compute(part)
        rest = iter(results)
        return [list(islice(rest, job.size)) for job in jobs]

    def _predict(self, prepared: Prepared, *, pixels: bool) -> list[dict[str, Any]]:
        batch = prepared.samples.batch_of(prepared.items)
        return self.predict(batch, prepared.cells, pixels=pixels)

    @torch.inference_mode()
    def predict(
        self, batch: dict[str, Any], cells: Sequence[Mapping[str, Any]], *, pixels: bool = False
    ) -> list[dict[str, Any]]:
        """Return the answer for each sample of a batch.

        Args:
            batch: The samples.
            cells: Their values.
            pixels: Whether the answers have the probability of a class at each pixel.
        """
        task = self.predictor.task
        batch, output = self.predictor.output(batch, _name)
        predicted = task.predict(self.predictor.model.head, output, batch)
        pairs = zip(predicted, cells, strict=True)
        answers = [task.answer(prediction, sample) for prediction, sample in pairs]
        for answer, prediction in zip(answers, predicted, strict=True):
            for name, raw in task.restored(prediction).items():
                reader = self.predictor.tokenizers[name].reader
                answer |= {**value_data("restored", raw, reader), "restored_in": name}
        for answer, more in zip(
            answers, task.beside(batch, self.predictor.tokenizers), strict=False
        ):
            answer |= more
        if pixels:
            files = task.pixel_probabilities(output, batch, cells)
            for answer, file in zip(answers, files, strict=True):
                answer |= {"pixel_class": task.pixel_class, "pixel_probabilities": file}
        return answers

    @torch.inference_mode()
    def _embed(self, prepared: Prepared) -> list[list[float]]:
        batch = to_device(prepared.samples.collate(prepared.items), self.predictor.device)
        vectors = self.predictor.network.vectors(batch).float().cpu()
        check_finite(vectors, batch, _name)
        return vectors.tolist()

    @torch.inference_mode()
    def _write(self, jobs: Sequence[Job]) -> list[list[Text]]:
        texts: list[Text] = [text for job in jobs for text in job.content]
        # The batch has failed, and its jobs are computed alone. Another attempt could contradict
        # what has been sent.
        if any(text.is_complete or (text.on_text is not None and text.text) for text in texts):
            raise Refusal(500, "the generation failed after its first words; send it again")
        self.writer.write(texts, batch_size=self.batch_size)
        return [job.content for job in jobs]


class WritingSteps:
    """The texts of a language model, which `Engine` generates together step by step.

    Args:
        writer: Generation of the texts of the model.
        batch_size: Maximum number of texts that are generated together.

    Attributes:
        kind: Kind of the jobs that are computed in this way.
    """

    kind: Hashable = WRITE

    def __init__(self, writer: Writer, *, batch_size: int):
        self.writer = writer
        self.batch_size = batch_size
        self.clear()

    def clear(self) -> None:
        """Forget all jobs."""
        self.writing = Writing(self.writer, batch_size=self.batch_size)

    def add(self, job: Job) -> None:
        """Add a job to those that are being computed."""
        self.writing.add(job.content)

    def step(self) -> int:
        """Compute the next step of all jobs, and return the number of samples."""
        size = len(self.writing.texts)
        self.writing.step()
        return max(size, len(self.writing.texts))

    def is_done(self, job: Job) -> bool:
        """Return whether a job needs no further step."""
        return all(text.is_done for text in job.content)


def _name(row: int) -> str:
    """Name a sample of a batch in messages, by its number in it."""
    return f"sample {row + 1}"


def _merged(parts: Sequence[Prepared]) -> Prepared:
    """Return the samples of several requests as one."""
    if len(parts) == 1:
        return parts[0]
    # Errors name samples by their number in their request: a batch that fails is computed again,
    # each request alone.
    cells = [sample for part in parts for sample in part.cells]
    items = [item for part in parts for item in part.items]
    return Prepared(cells, items, parts[0].samples)


@torch.inference_mode()
def attention_of(predictor: Predictor, prepared: Prepared, encoder: str | None) -> Attention:
    """Return the attention of a model on a sample, without the maps of each block.

    Args:
        predictor: The model.
        prepared: The sample.
        encoder: See `attention_on`.

    Raises:
        UserError: If the model has no attention that can be drawn, or the sample is too long.
    """
    # dxn attend has no such limit, but a request must not fill the memory.
    batch = to_device(prepared.samples.collate(prepared.items), predictor.device)
    attention = attention_on(
        predictor, batch, list(prepared.cells[0]), max_weights=MAX_WEIGHTS, encoder=encoder
    )
    return replace(attention, maps=[])


@torch.inference_mode()
def attention_data(
    predictor: Predictor, prepared: Prepared, attention: Attention
) -> dict[str, Any]:
    """Return the share of each token of a sample in the answer, and what to draw it on.

    To draw a picture or a sound takes longer than to compute its attention, so the model thread
    does not call this function.
    """
    # Without sources: a drawer may open a source that looks like a path.
    view = SampleView.of(attention.encoded, predictor.adapters, prepared.raws(0))
    return {
        **shares_data(view, attention.shares.cpu().numpy()),
        "note": attention.limits,
        GENERATED: None if attention.written is None else attention.written.text,
    }
