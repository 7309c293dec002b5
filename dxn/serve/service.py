"""A model that answers requests: admission, preparation, batching and time limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Hashable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from dxn.core.runtime import threads
from dxn.data.files import READER_THREADS
from dxn.runs.predictor.attention import Attention
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.writing import Text
from dxn.serve.answers import busy, timed_out
from dxn.serve.engine import Engine, Job
from dxn.serve.metrics import Metrics
from dxn.serve.operations import (
    PREDICT,
    PREDICT_PIXELS,
    WRITE,
    Operations,
    WritingSteps,
    attention_data,
)
from dxn.serve.options import ServeOptions
from dxn.serve.prepare import Prepared, checked_samples, is_light, to_cells

MakeTexts: TypeAlias = Callable[[], Sequence[Text]]
# New parts of texts, unfinished values and complete texts, with their index. None is the end.
Parts: TypeAlias = "asyncio.Queue[tuple[int, Any] | None]"
# The model thread counts as stuck if one batch takes this multiple of the time limit.
STUCK = 2
MAX_CONNECTIONS = 500  # on more, requests are answered with 503; each needs a file descriptor


class Service:
    """Answers requests with one model.

    All methods run in the event loop, so that counters need no lock.

    Args:
        predictor: The model.
        options: Limits and sizes.
        paths: Paths of the HTTP interface, for the metrics.
    """

    def __init__(self, predictor: Predictor, options: ServeOptions, paths: set[str]):
        self.predictor = predictor
        self.options = options
        self.operations = Operations(predictor, batch_size=options.batch_size)
        writer = self.operations.writer
        self.engine = Engine(
            self.operations,
            batch_size=options.batch_size,
            max_wait=options.max_wait,
            steps=WritingSteps(writer, batch_size=options.batch_size) if writer.language else None,
        )
        self.metrics = Metrics(
            paths, waiting=lambda: self.engine.waiting, restarts=lambda: self.engine.restarts
        )
        self.engine.on_batch = self.metrics.observe_batch
        self.is_stopping = False
        # Requests that are not answered, and connections. `dxn.serve.server.Server` sets them.
        self.requests: Collection[Any] = ()
        self.connections: Collection[Any] = ()
        self.admitted = 0
        # Few threads: each of them can hold a decoded picture or clip in memory.
        self.readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="dxn-reader")
        # A single thread, because Matplotlib must not be used by several at once.
        self.drawer = ThreadPoolExecutor(1, thread_name_prefix="dxn-drawer")

    @property
    def problem(self) -> str:
        """Why the server cannot answer; "" if it can."""
        since = self.engine.busy_since
        limit = STUCK * self.options.timeout
        if since is not None and time.monotonic() - since > limit:
            return f"the model has been computing one batch for more than {limit:g} seconds"
        return ""

    @property
    def is_crowded(self) -> bool:
        """Whether there are too many connections."""
        return len(self.connections) > MAX_CONNECTIONS

    def start(self) -> None:
        """Start the model thread. The caller is in the event loop."""
        self.engine.start(asyncio.get_running_loop())

    async def stop(self) -> None:
        """Finish what waits, and end the threads."""
        # Meanwhile, the event loop cancels the requests that have taken too long.
        await asyncio.to_thread(self.engine.stop, self.options.timeout)
        for pool in (self.readers, self.drawer):
            pool.shutdown(wait=False, cancel_futures=True)

    def predict_now(self, samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
        """Return the prediction for one sample if no other request waits, and the model is fast.

        None: use `answer`. Several requests are computed together, in the model thread.

        Raises:
            UserError: If the sample cannot be used.
        """
        is_lone = len(self.requests) == len(samples) == 1
        if not (is_lone and self.predictor.is_short and self.engine.is_fast):
            return None
        if not self._is_light(samples):
            return None
        cells = to_cells(samples[0], self.predictor, "")
        with threads(self.predictor.threads_for(1)):
            batch = self.predictor.model_inputs.single_batch(cells)
            if batch is None:
                return None
            return self.engine.compute_now(lambda: self.operations.predict(batch, [cells]))

    async def answer(
        self, kind: Hashable, samples: Sequence[Mapping[str, Any]]
    ) -> tuple[Prepared, Any]:
        """Return the prepared samples, and the result of an operation for them.

        Raises:
            Refusal: If too many samples wait, or the time is over.
            UserError: If a sample cannot be used.
        """
        with self._admitted(len(samples)) as hand_over:
            try:
                async with asyncio.timeout(self.options.timeout):
                    # Embeddings are answered with the number of tokens of each sample.
                    prepared = await self.prepare(
                        samples, together=kind in (PREDICT, PREDICT_PIXELS)
                    )
                    job = self.engine.submit(kind, prepared, len(prepared))
                    hand_over(job)
                    result = await _result(job)
                    if isinstance(result, Attention):
                        result = await self._drawn(prepared, result)
                    return prepared, result
            except TimeoutError:
                raise timed_out(self.options.timeout) from None

    async def _drawn(self, prepared: Prepared, attention: Attention) -> list[dict[str, Any]]:
        """Return the attention on the only sample of a request, as the page draws it."""
        loop = asyncio.get_running_loop()
        drawing = partial(attention_data, self.predictor, prepared, attention)
        return [await loop.run_in_executor(self.drawer, drawing)]

    async def write(
        self,
        make_texts: MakeTexts,
        samples: Sequence[Mapping[str, Any] | None],
        *,
        count: int,
    ) -> list[Text]:
        """Return the generated texts, see `stream`."""
        stream = await self.stream(make_texts, samples, count=count, only_texts=True)
        texts = {index: part async for index, part in stream if isinstance(part, Text)}
        return [texts[index] for index in range(count)]

    async def stream(
        self,
        make_texts: MakeTexts,
        samples: Sequence[Mapping[str, Any] | None],
        *,
        count: int,
        only_texts: bool = False,
    ) -> AsyncGenerator[tuple[int, Any]]:
        """Start to generate texts.

        Args:
            make_texts: Function that returns the texts to generate. It runs in another thread.
            samples: The sample of each text, for a model that writes a text for an input, or after
                other inputs. None: it has none.
            count: Number of texts.
            only_texts: Yield only the complete texts.

        Returns:
            An iterator of (i, new part of text i), or (i, unfinished value i), and of (i, complete
            text i) when a text has ended.

        Raises:
            Refusal: If too many samples wait, or the time is over. The iterator raises it too.
            UserError: If a sample cannot be used.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self.options.timeout
        parts: Parts = asyncio.Queue()
        with self._admitted(count) as hand_over:
            try:
                async with asyncio.timeout_at(end):
                    # A chat template can take seconds.
                    texts = await loop.run_in_executor(self.readers, make_texts)
                    prepared = before = None
                    for text, sample in zip(texts, samples, strict=False):
                        if sample is None:
                            continue
                        # Several values of one sample: its files are decoded once.
                        if prepared is None or sample is not before:
                            prepared, before = await self.prepare([sample]), sample
                        text.item, text.samples = prepared.items[0], prepared.samples
            except TimeoutError:
                raise timed_out(self.options.timeout) from None
            for index, text in enumerate(texts):
                send = partial(_send, loop, parts, count, index)
                text.on_text = None if only_texts else send
                text.on_end = partial(send, text)
            # Only texts and values for samples with the same options are generated together.
            first = texts[0]
            is_sampled = first.new_sampler is not None
            shared = (WRITE, first.max_new, first.create, first.guidance, is_sampled)
            kind = shared if self.engine.steps is None else WRITE
            job = self.engine.submit(kind, texts, count)
            hand_over(job)
        job.future.add_done_callback(lambda _: parts.put_nowait(None))
        return self._parts(job, texts, parts, end, renews=not only_texts)

    async def _parts(
        self,
        job: Job,
        texts: Sequence[Text],
        parts: Parts,
        end: float,
        *,
        renews: bool,
    ) -> AsyncGenerator[tuple[int, Any]]:
        """Yield the parts of a stream. None marks the end of the job.

        The arguments are those of `stream`, and whether the time begins again with each part.
        """
        # No asyncio.timeout around a yield: the iterator can continue in another task.
        loop = asyncio.get_running_loop()
        try:
            # Other texts of the batch can take longer than these.
            num_left = len(texts)
            while num_left:
                part = await asyncio.wait_for(parts.get(), max(end - loop.time(), 0))
                if part is None:
                    job.future.result()  # raises the error for which texts are missing
                    break
                yield part
                if renews:
                    end = loop.time() + self.options.timeout
                num_left -= isinstance(part[1], Text)
        except TimeoutError:
            raise timed_out(self.options.timeout) from None
        finally:
            # The client has gone, or the time is over: the thread stops after the next token.
            job.is_cancelled = True
            for text in texts:
                text.is_cancelled = True

    async def prepare(
        self, samples: Sequence[Mapping[str, Any]], *, together: bool = False
    ) -> Prepared:
        """Check, decode and prepare samples, see `checked_samples`."""
        checked = partial(checked_samples, samples, self.predictor, together=together)
        if self._is_light(samples):
            return checked()
        return await asyncio.get_running_loop().run_in_executor(self.readers, checked)

    def _is_light(self, samples: Sequence[Mapping[str, Any]]) -> bool:
        """Whether samples can be prepared in the event loop."""
        # A chat template is a program that can take seconds.
        return self.operations.writer.template is None and is_light(samples)

    @contextmanager
    def _admitted(self, count: int) -> Iterator[Callable[[Job], None]]:
        """Count samples from their preparation to their result.

        Yields:
            A function that lets a job count until its result is there, and not only in the context.
        """
        limit = self.options.max_queue
        # A request that is larger than the queue is answered if nothing else waits.
        if self.admitted and self.admitted + count > limit:
            raise busy(
                f"{self.admitted} samples are waiting, and at most {limit} may (max_queue); try "
                "again later"
            )
        self.admitted += count
        jobs: list[Job] = []
        try:
            yield jobs.append
        finally:
            if jobs:
                jobs[0].future.add_done_callback(lambda _: self._release(count))
            else:
                self._release(count)

    def _release(self, count: int) -> None:
        self.admitted -= count


async def _result(job: Job) -> Any:
    try:
        return await job.future
    finally:
        # If the time is over, a job that still waits is not computed.
        job.is_cancelled = True


def _send(loop: asyncio.AbstractEventLoop, parts: Parts, count: int, index: int, part: Any) -> None:
    """Pass a part of one of `count` texts from the model thread to the event loop."""
    # A slow client gets fewer unfinished values, which would otherwise fill the memory.
    if isinstance(part, str | Text) or parts.qsize() < count:
        loop.call_soon_threadsafe(parts.put_nowait, (index, part))
