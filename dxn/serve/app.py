"""The HTTP interface of a model, as a FastAPI application."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

import dxn
from dxn.core.errors import UserError
from dxn.runs.predictor.generating import created_input
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.writing import Text
from dxn.serve import openai, schema
from dxn.serve.answers import Refusal, error_answer, event_stream, json_answer, while_connected
from dxn.serve.body import check_count, read_body
from dxn.serve.conversation import has_conversation_page
from dxn.serve.guard import OPEN, Guard
from dxn.serve.operations import ATTEND, EMBED, PREDICT, PREDICT_PIXELS
from dxn.serve.options import ServeOptions
from dxn.serve.prepare import BASE64, value_data
from dxn.serve.schema import (
    GENERATED,
    INPUTS,
    PROMPT,
    RESULTS,
    AttentionBody,
    Body,
    CreationBody,
    GenerationBody,
    MaskBody,
)
from dxn.serve.service import Service
from dxn.viz.page import SCRIPT

STATIC = Path(__file__).with_name("static")
PARTIAL = "partial"  # key of an unfinished picture
# Paths with a label of their own in the metrics, besides those of the operations.
PATHS = {"/", "/docs", "/openapi.json", "/model", "/health", "/metrics"}


class App(FastAPI):
    """FastAPI with a `Guard` around it, and with short ways to some paths.

    The routing of FastAPI, and what it prepares for each request, take about as long as the
    prediction of a small model.

    Attributes:
        key: The API key. None: requests need no key.
        direct: What answers a POST request, by path. Its errors are answered by the guard.
    """

    key: str | None
    direct: dict[str, Callable[[Request], Awaitable[Response]]]

    def build_middleware_stack(self) -> ASGIApp:
        """Return what answers all requests."""
        stack = super().build_middleware_stack()
        # Its outermost part would answer an unexpected error as plain text, and print a traceback.
        assert isinstance(stack, ServerErrorMiddleware)
        others = stack.app

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            is_post = scope["type"] == "http" and scope["method"] == "POST"
            if is_post and scope["path"] in self.direct:
                response = await self.direct[scope["path"]](Request(scope, receive))
                await response(scope, receive, send)
            else:
                await others(scope, receive, send)

        return Guard(answer, self.state.service, self.key)


class MetricsPage(PlainTextResponse):
    """Metrics in the format of Prometheus, whose media type is in the description too."""

    media_type = "text/plain; version=0.0.4"


def make_app(
    predictor: Predictor,
    options: ServeOptions = ServeOptions(),
    *,
    key: str | None = None,
    name: str = "",
    examples: Sequence[Mapping[str, Any]] = (),
) -> App:
    """Build the application.

    Args:
        predictor: The model.
        options: Limits and sizes.
        key: The API key that requests need. None: no key.
        name: Name of the model on the page.
        examples: Samples that the page offers, see `read_examples`.
    """
    # The pages that FastAPI would make load their scripts from another server.
    app = App(
        title="dxn",
        version=dxn.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        # Behind a proxy with TLS, a redirection would send the key to an address without it.
        redirect_slashes=False,
    )
    service = Service(predictor, options, PATHS | set(schema.SUMMARIES) | openai.PATHS)
    app.state.service = service
    app.key = key
    app.direct = {}
    writer = service.operations.writer
    facts = schema.facts_of(predictor, writer, name)
    main = "chat.html" if has_conversation_page(predictor, writer) else "form.html"
    shell, content = ((STATIC / file).read_text("utf-8") for file in ("page.html", main))
    main_page = shell.replace("<!-- main -->", content)

    def post(path: str, answer: Callable[[Request, Any], Any]) -> None:
        body_model = schema.make_body(path, predictor, options, writer)

        async def endpoint(request: Request) -> Response:
            body = await read_body(request, body_model, predictor.inputs, options)
            return await answer(request, body)

        app.direct[path] = endpoint
        described = schema.operation(path, body_model)
        app.add_api_route(path, endpoint, methods=["POST"], name=path[1:], **described)

    def operation(path: str, kind: str) -> None:
        async def answer(request: Request, body: Body) -> Response:
            samples = body.samples
            has_pixels = isinstance(body, MaskBody) and body.pixel_probabilities
            is_plain = kind == PREDICT and not has_pixels
            if is_plain and (answers := service.predict_now(samples)) is not None:
                return json_answer({RESULTS: answers})
            asked: Any = PREDICT_PIXELS if has_pixels else kind
            if isinstance(body, AttentionBody):
                asked = (kind, body.encoder)
                if len(samples) > 1:
                    raise UserError(f"{INPUTS}: must be one sample, got {len(samples)}")
            prepared, results = await while_connected(request, service.answer(asked, samples))
            for i, result in enumerate(results if kind == PREDICT else ()):
                if note := prepared.note(i, predictor.tokenizers):
                    result["note"] = note
            return json_answer({RESULTS: results})

        post(path, answer)

    def lacks(path: str, advice: str) -> None:
        async def refuse(request: Request) -> Response:
            raise Refusal(404, f"{path}: not for this model, whose task is {task}; use {advice}")

        app.add_api_route(path, refuse, methods=["POST"], include_in_schema=False)

    task = predictor.task.name
    if facts["predicts"]:
        operation("/predict", PREDICT)
    else:
        lacks("/predict", "POST /embed" + " or POST /generate" * facts["generates"])
    operation("/embed", EMBED)
    operation("/attend", ATTEND)
    if facts["generates"]:
        generate = _create if predictor.task.creates else _generate
        post("/generate", partial(generate, service=service))
    else:
        lacks("/generate", "POST /predict" if facts["predicts"] else "POST /embed")

    openai.OpenAI(service, writer, name).add_to(app)

    @app.get("/model", **schema.described("What the model takes and gives"))
    async def model() -> Response:
        # The page asks for a file when the example is chosen.
        listed = [{**example, "files": list(example["files"])} for example in examples]
        return json_answer({**facts, "examples": listed})

    @app.head("/health", include_in_schema=False)
    @app.get("/health", **schema.described("Whether the server can answer", is_open=True))
    async def health() -> Response:
        problem = service.problem
        status = 503 if problem else 200
        return json_answer({"status": problem or "ok", "version": dxn.__version__}, status)

    @app.get(
        "/metrics",
        response_class=MetricsPage,
        **schema.described("Metrics in the format of Prometheus"),
    )
    async def metrics() -> Response:
        return MetricsPage(service.metrics.page())

    @app.get("/examples/{index}/{input}", include_in_schema=False)
    async def example(index: str, input: str) -> Response:
        # Examples are in memory: neither the number nor the name becomes a path.
        numbered = {str(i): example["files"] for i, example in enumerate(examples)}
        if (file := numbered.get(index, {}).get(input)) is None:
            raise Refusal(404, "there is no such example")
        return Response(file, media_type="application/octet-stream")

    def page(path: str, make_response: Callable[..., Response], content: Any) -> None:
        async def answer(request: Request) -> Response:
            return make_response(content, headers={"Cache-Control": "no-cache"})

        app.add_route(path, answer, include_in_schema=False)

    page("/", HTMLResponse, main_page)
    page("/docs", FileResponse, STATIC / "docs.html")
    page("/static/attention.js", FileResponse, SCRIPT)

    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    async def refused(request: Request, error: Exception) -> Response:
        return error_answer(error, request.url.path)

    # FastAPI answers these itself, and `Guard` all others.
    app.add_exception_handler(HTTPException, refused)
    app.openapi = lambda: _openapi(app, has_key=key is not None)
    return app


def _openapi(app: FastAPI, *, has_key: bool) -> dict[str, Any]:
    """Return the description of all requests, with the ways to send the API key."""
    described = FastAPI.openapi(app)
    if has_key:
        schemes = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
        described.setdefault("components", {})["securitySchemes"] = schemes
        for path, methods in described["paths"].items():
            for method in methods.values():
                # One of the two is enough; open paths need none.
                method["security"] = [] if path in OPEN else [{name: []} for name in schemes]
    return described


async def _generate(request: Request, body: GenerationBody, service: Service) -> Response:
    """Generate a text for each sample."""
    samples, writer = body.samples, service.operations.writer

    def make_texts() -> list[Text]:
        texts = [
            writer.text_of(sample.get(PROMPT, ""), sample=sample) if writer.takes_prompt else Text()
            for sample in samples
        ]
        samplers = body.samplers(service.predictor, len(texts), body.seed)
        for text, new_sampler in zip(texts, samplers, strict=True):
            # Here, so that a text that cannot be encoded does not affect others.
            if writer.takes_prompt:
                text.prompt_ids = writer.encode(text)
            text.new_sampler = new_sampler
            text.max_new = body.max_new or service.options.max_new
        return texts

    async def events(parts: AsyncIterator[tuple[int, Any]]) -> AsyncIterator[Any]:
        async for index, part in parts:
            is_complete = isinstance(part, Text)
            yield {"index": index, **(result_of(part) if is_complete else {"delta": part})}

    def result_of(text: Text) -> dict[str, Any]:
        note = writer.note(text)
        return {GENERATED: text.text, **({"note": note} if note else {})}

    count = len(samples)
    inputs = samples
    if writer.takes_prompt:
        # None: no input comes before the prompt.
        inputs = [{n: v for n, v in sample.items() if n != PROMPT} or None for sample in samples]
    if body.stream:
        parts = await service.stream(make_texts, inputs, count=count)
        return event_stream(events(parts), request.url.path)
    written = await while_connected(request, service.write(make_texts, inputs, count=count))
    return json_answer({RESULTS: [result_of(text) for text in written]})


async def _create(request: Request, body: CreationBody, service: Service) -> Response:
    """Create an input from the others.

    Raises:
        Refusal: If it has too many values, too many samples wait, or the time is over.
        UserError: If a sample or an option cannot be used.
    """
    predictor = service.predictor
    samples = [{n: v for n, v in sample.items() if v is not None} for sample in body.samples]
    count = body.count * len(samples)
    check_count("count", count, service.options)
    name = created_input(predictor, body.create, set().union(*samples))
    others = [{n: v for n, v in sample.items() if n != name} for sample in samples]
    if not all(others):
        raise UserError(f"{INPUTS}: needs another input than {name} in each sample")
    reader = predictor.tokenizers[name].reader

    def make_values() -> list[Text]:
        samplers = body.samplers(predictor, count, body.seed, name)
        return [Text(create=name, guidance=body.guidance, new_sampler=new) for new in samplers]

    async def data_of(key: str, value: Any) -> dict[str, Any]:
        # In another thread, because a large file takes long to write.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(service.readers, value_data, key, value, reader)

    async def events(stream: AsyncGenerator[tuple[int, Any]]) -> AsyncIterator[Any]:
        # Closed at once if the client leaves while a file is written, so that the model stops.
        async with aclosing(stream) as parts:
            async for index, part in parts:
                if isinstance(part, Text):
                    yield {"index": index, **await data_of(GENERATED, part.text)}
                elif isinstance(part, str):
                    yield {"index": index, "delta": part}
                else:
                    yield {"index": index, **await data_of(PARTIAL, part)}

    inputs = [sample for sample in others for _ in range(body.count)]
    if body.stream:
        parts = await service.stream(make_values, inputs, count=count)
        return event_stream(events(parts), request.url.path)
    written = await while_connected(request, service.write(make_values, inputs, count=count))
    results = [await data_of(GENERATED, text.text) for text in written]
    media_type = results[0].get("type")
    accepted = request.headers.get("accept", "").split(",")
    if count == 1 and media_type in [kind.partition(";")[0].strip() for kind in accepted]:
        content = base64.b64decode(results[0][GENERATED][BASE64])
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-store"})
    return json_answer({RESULTS: results})


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.service.start()
    try:
        yield
    finally:
        await app.state.service.stop()
