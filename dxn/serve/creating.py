"""`POST /generate` of a model of head=any: an input is created from the others."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import Request, Response

from dxn.core.errors import UserError
from dxn.runs.predictor.generating import created_input
from dxn.runs.predictor.writing import Text, make_samplers
from dxn.serve.answers import event_stream, json_answer, while_connected
from dxn.serve.body import check_count
from dxn.serve.prepare import BASE64, value_data
from dxn.serve.schema import GENERATED, INPUTS, RESULTS, CreationBody
from dxn.serve.service import Service

PARTIAL = "partial"  # key of an unfinished picture


async def create(request: Request, body: CreationBody, service: Service) -> Response:
    """Answer a request.

    Raises:
        Refusal: If it has too many values, too many samples wait, or the time is over.
        UserError: If a sample or an option cannot be used.
    """
    predictor = service.predictor
    samples = [{n: v for n, v in each.items() if v is not None} for each in body.samples]
    count = body.count * len(samples)
    check_count("count", count, service.options)
    name = created_input(predictor, body.create, set().union(*samples))
    others = [{n: v for n, v in each.items() if n != name} for each in samples]
    if not all(others):
        raise UserError(f"{INPUTS}: needs another input than {name} in each sample")
    reader = predictor.tokenizers[name].reader

    def make_values() -> list[Text]:
        samplers = make_samplers(
            count,
            temperature=body.temperature,
            top_k=body.top_k,
            top_p=body.top_p,
            seed=body.seed,
            device=predictor.device,
        )
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

    inputs = [each for each in others for _ in range(body.count)]
    if body.stream:
        parts = await service.stream(make_values, inputs, count=count)
        return event_stream(events(parts), request.url.path)
    written = await while_connected(request, service.write(make_values, inputs, count=count))
    results = [await data_of(GENERATED, each.text) for each in written]
    kind = results[0].get("type")
    accepted = request.headers.get("accept", "").split(",")
    if count == 1 and kind in [each.partition(";")[0].strip() for each in accepted]:
        content = base64.b64decode(results[0][GENERATED][BASE64])
        return Response(content, media_type=kind, headers={"Cache-Control": "no-store"})
    return json_answer({RESULTS: results})
