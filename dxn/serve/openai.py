"""OpenAI's API: chat completions, completions, embeddings and the list of models.

A program that was written for that API reaches the model with another base URL. The answers are
those of `POST /generate` and `POST /embed`, in another form.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field, ValidationError
from pydantic import field_validator as validator

from dxn.core.errors import UserError
from dxn.core.untrusted import shortened
from dxn.runs.predictor.writing import MAX_SEED, Text, Writer
from dxn.serve.answers import Refusal, event_stream, json_answer, while_connected
from dxn.serve.body import check_count, read_json
from dxn.serve.operations import EMBED
from dxn.serve.prepare import BASE64, check_unicode
from dxn.serve.schema import (
    DESCRIBED,
    JSON_TYPE,
    MAX_PROMPT,
    REFUSED_BODIES,
    STRICT,
    Sampling,
    described,
    option_problem,
    refused,
)
from dxn.serve.service import Service
from dxn.tokenize.base import BadMedia
from dxn.tokenize.text.chat import Conversation, Message, check_messages, split_files, text_of
from dxn.tokenize.text.tokenizer import TextTokenizer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
MODELS = "/v1/models"
PATHS = {CHAT, COMPLETIONS, EMBEDDINGS, MODELS}
# A longer prompt is refused before it is tokenized. No text has so many characters per token.
MAX_CHARS = 32
MAX_STOPS = 16  # of a request
MAX_STOP = 1000  # characters
KEYS = ("role", "content")  # of a message
TOO_LONG = "context_length_exceeded"
TOKENS = "tokens, which the model reads"
# Keys that are refused, except with these values, which are the same as without the key. (): any
# value, because the key does not affect the answer.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("user", "safety_identifier", "metadata", "service_tier"), ()),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls"), ()),
    "store": (False,),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}


class OpenAIBody(BaseModel):
    """The body of a request."""

    model_config = STRICT
    model: str | None = Field(None, description="Name of the model, see GET /v1/models.")


class WritingBody(OpenAIBody, Sampling):
    """The body of a request that generates texts."""

    max_tokens: int | None = Field(None, ge=1, description="Maximum number of tokens of a text.")
    n: int = Field(1, ge=1, description="Number of texts per prompt.")
    stop: Any = Field((), description="Text or list of texts that end a generated text.")
    seed: int | None = Field(
        None, ge=-MAX_SEED, le=MAX_SEED, description="Random seed of sampling (default: random)."
    )
    stream_options: Any = Field(
        None, description='{"include_usage": true} adds the numbers of tokens to a stream.'
    )

    @validator("stop")
    @classmethod
    def _listed(cls, value: Any) -> Sequence[str]:
        stops = [value] if isinstance(value, str) else value
        are_texts = isinstance(stops, list) and all(isinstance(stop, str) for stop in stops)
        if not are_texts or len(stops) > MAX_STOPS or not all(stops):
            raise ValueError(
                f"must be a text or a list of at most {MAX_STOPS} texts that are not empty, got "
                f"{shortened(value)}"
            )
        if max(map(len, stops), default=0) > MAX_STOP:
            raise ValueError(
                f"a text must have at most {MAX_STOP:,} characters, got {max(map(len, stops)):,}"
            )
        return stops

    @validator("stream_options")
    @classmethod
    def _known(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not value.keys() <= {
            "include_usage",
            "include_obfuscation",
        }:
            raise ValueError(f'must be {{"include_usage": true}}, got {shortened(value)}')
        return value

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return bool(self.stream_options and self.stream_options.get("include_usage"))

    @property
    def limit(self) -> tuple[str, int | None]:
        """The name and the value of the maximum number of tokens."""
        return "max_tokens", self.max_tokens


class ChatBody(WritingBody):
    """A conversation to answer."""

    messages: list[Any] = Field(description='Messages, such as {"role": "user", "content": "Hi"}.')
    max_completion_tokens: int | None = Field(None, ge=1, description="Same as max_tokens.")

    @property
    def limit(self) -> tuple[str, int | None]:
        """The name and the value of the maximum number of tokens."""
        if self.max_completion_tokens is None:
            return super().limit
        if self.max_tokens not in (None, self.max_completion_tokens):
            raise UserError(
                f"max_tokens: differs from max_completion_tokens, got {self.max_tokens} and "
                f"{self.max_completion_tokens}; send only one of them"
            )
        return "max_completion_tokens", self.max_completion_tokens


class CompletionBody(WritingBody):
    """Texts to continue."""

    prompt: Any = Field(description="Text or list of texts to continue.")


class EmbeddingBody(OpenAIBody):
    """Texts whose embeddings are computed."""

    input: Any = Field(description="Text or list of texts.")
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="Format of an embedding; base64: of its numbers in float32."
    )
    dimensions: int | None = Field(
        None, ge=1, description="Size of an embedding, which must be that of the model."
    )


AnyBody = TypeVar("AnyBody", bound=OpenAIBody)


class OpenAI:
    """The paths of OpenAI's API for a model that is served.

    Args:
        service: Answers requests with the model.
        writer: Its generation of texts.
        name: Name of the model.
    """

    def __init__(self, service: Service, writer: Writer, name: str):
        self.service = service
        self.options = service.options
        self.predictor = service.predictor
        self.writer = writer
        self.name = name or "model"
        self.created = int(time.time())
        tokenizers = self.predictor.tokenizers.items()
        texts = [name for name, prepare in tokenizers if isinstance(prepare, TextTokenizer)]
        self.input = texts[0] if len(texts) == 1 else None

    def add_to(self, app: FastAPI) -> None:
        """Add the paths to an application."""
        task = self.predictor.task
        reason = chat_reason = ""
        if self.writer.obstacle or not self.writer.takes_prompt:
            advice = "/predict" if task.has_answers else "/embed"
            advice = "/generate" if task.writes or task.creates else advice
            reason = f"not for this model, whose task is {task.name}; use POST {advice}"
            chat_reason = reason
        elif self.writer.template is None:
            chat_reason = (
                "this model was not trained on conversations and has no chat template; use POST "
                f"{COMPLETIONS}"
            )
        inputs = ", ".join(self.predictor.inputs)
        needs_text = (
            f"needs a model with one text input, and the inputs are {inputs}; use POST /embed"
        )
        self._post(app, CHAT, self.chat, ChatBody, chat_reason)
        self._post(app, COMPLETIONS, self.complete, CompletionBody, reason)
        self._post(app, EMBEDDINGS, self.embed, EmbeddingBody, "" if self.input else needs_text)
        app.add_api_route(
            MODELS, self.models, methods=["GET"], **described("The served model, as a list")
        )
        app.add_api_route(MODELS + "/{model}", self.retrieve, include_in_schema=False)

    def _post(
        self,
        app: FastAPI,
        path: str,
        answer: Callable[[Request, Any], Any],
        body_model: type[OpenAIBody],
        obstacle: str,
    ) -> None:
        """Add a path. It is refused if there is an obstacle."""

        async def endpoint(request: Request) -> Response:
            if obstacle:
                raise Refusal(404, f"{path}: {obstacle}")
            body = checked(body_model, await read_json(request, self.options))
            self._check_model(body.model)
            return await answer(request, body)

        schema = body_model.model_json_schema()
        content = {"required": True, "content": {JSON_TYPE: {"schema": schema}}}
        app.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            name=body_model.__name__,
            summary=f"{body_model.__doc__} (OpenAI)",
            include_in_schema=not obstacle,
            responses=refused(REFUSED_BODIES),
            openapi_extra={"requestBody": content},
        )

    def _check_model(self, name: str | None) -> None:
        if name not in (None, self.name):
            raise Refusal(
                404,
                f"model: must be {self.name}, the model of this server, got {shortened(name)}",
                code="model_not_found",
            )

    @property
    def _model(self) -> dict[str, Any]:
        return {"id": self.name, "object": "model", "created": self.created, "owned_by": "dxn"}

    async def models(self) -> Response:
        """Answer GET /v1/models."""
        return json_answer({"object": "list", "data": [self._model]})

    async def retrieve(self, model: str) -> Response:
        """Answer GET /v1/models/NAME."""
        self._check_model(model)
        return json_answer(self._model)

    async def chat(self, request: Request, body: ChatBody) -> Response:
        """Answer POST /v1/chat/completions."""
        # Each message has tokens. Checking a million messages would block other requests.
        self._check_length("messages", len(body.messages), self._max_len, TOKENS)
        values, files = split_files(body.messages)
        messages = messages_of(values)
        num_chars = sum(len(text_of(message)) for message in messages)
        self._check_length("messages", num_chars, self._max_chars, "characters")
        sample = self._sample(files)

        def make_text() -> Text:
            try:
                return self.writer.answer_to(messages, sample, is_trusted=False)
            except BadMedia as error:
                raise UserError(f"messages: {error}") from error

        return await self._write(request, body, [make_text], "messages", sample)

    def _sample(self, files: Mapping[str, str]) -> dict[str, Any] | None:
        """Return the inputs of the files in messages, by the type of each. None: there are none.

        Raises:
            UserError: If the model has no such input, or several, or a file is not in the request.
        """
        sample: dict[str, Any] = {}
        for kind, url in files.items():
            tokenizers = self.predictor.tokenizers.items()
            names = [name for name, prepare in tokenizers if prepare.modality == kind]
            if len(names) != 1 or names[0] == self.input:
                raise UserError(
                    f"messages: this model reads {len(names)} inputs of the type "
                    f"{shortened(kind)}, and a message can have one"
                )
            start, comma, content = url.partition(f";{BASE64},")
            if not comma or not start.startswith("data:"):
                raise UserError(
                    f"messages: the {kind} must be the content of a file, as in "
                    f"data:{kind}/png;{BASE64},...; paths and other URLs are never opened, got "
                    f"{shortened(url)}"
                )
            sample[names[0]] = {BASE64: content}
        return sample or None

    async def complete(self, request: Request, body: CompletionBody) -> Response:
        """Answer POST /v1/completions."""
        prompts = texts_of("prompt", body.prompt)
        for prompt in prompts:
            self._check_length("prompt", len(prompt), self._max_chars, "characters")
        makers = [partial(self.writer.text_of, prompt, chat=False) for prompt in prompts]
        return await self._write(request, body, makers, "prompt")

    async def embed(self, request: Request, body: EmbeddingBody) -> Response:
        """Answer POST /v1/embeddings."""
        texts = texts_of("input", body.input)
        check_count("input", len(texts), self.options)
        for number, text in enumerate(texts, 1):
            if not text.strip():
                raise UserError(f"input: text {number} is empty; leave it out")
        name = self.input
        assert name is not None
        cells: list[Any] = list(texts)
        if self.writer.template is not None:
            # A model of conversations would read a text as a message of the user.
            cells = [Conversation([], text, []) for text in texts]
        answer = self.service.answer(EMBED, [{name: cell} for cell in cells])
        prepared, vectors = await while_connected(request, answer)
        size = len(vectors[0])
        if body.dimensions not in (None, size):
            raise UserError(f"dimensions: must be {size} or missing, got {body.dimensions}")
        if body.encoding_format == "base64":
            vectors = [base64.b64encode(np.asarray(v, "<f4").tobytes()).decode() for v in vectors]
        data = [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        ]
        num_tokens = sum(len(item[name]["ids"]) for item in prepared.items)
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        return json_answer({"object": "list", "data": data, "model": self.name, "usage": usage})

    async def _write(
        self,
        request: Request,
        body: WritingBody,
        makers: Sequence[Callable[[], Text]],
        name: str,
        sample: Mapping[str, Any] | None = None,
    ) -> Response:
        """Generate `n` texts for each prompt.

        Args:
            request: The request.
            body: Its options.
            makers: Function for each prompt that returns the text to generate.
            name: Name of the prompts in messages.
            sample: The other inputs of the only prompt. None: there are none.
        """
        is_chat = isinstance(body, ChatBody)
        limit = self._limit(body)
        count = body.n * len(makers)
        check_count(name if len(makers) > 1 else "n", count, self.options)

        def make_texts() -> list[Text]:
            prompts = [make() for make in makers]
            for text in prompts:
                text.shows_prompt = False
                text.stops = body.stop
                text.prompt_ids = text.prompt_ids or self.writer.encode(text)
                self._check_length(name, len(text.prompt_ids), self._max_len, TOKENS)
                # The model does not read the last token.
                text.max_new = min(limit, self._max_len + 1 - len(text.prompt_ids))
            seed = secrets.randbelow(MAX_SEED) if body.seed is None else body.seed
            samplers = body.samplers(self.predictor, count, seed)
            return [
                replace(prompts[i // body.n], new_sampler=new_sampler)
                for i, new_sampler in enumerate(samplers)
            ]

        head = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": "chat.completion" if is_chat else "text_completion",
            "created": int(time.time()),
            "model": self.name,
        }
        samples = [sample] * count
        if body.stream:
            parts = await self.service.stream(make_texts, samples, count=count)
            chunks = _chunks(parts, head, body)
            return event_stream(chunks, request.url.path, last="[DONE]")
        texts = await while_connected(request, self.service.write(make_texts, samples, count=count))
        choices: list[dict[str, Any]] = []
        for index, text in enumerate(texts):
            message = {"role": "assistant", "content": text.text, "refusal": None}
            content = {"message": message} if is_chat else {"text": text.text}
            choices.append(_choice(index, content, _finish_reason(text)))
        return json_answer({**head, "choices": choices, "usage": _usage(texts, body.n)})

    def _limit(self, body: WritingBody) -> int:
        """Return the maximum number of tokens of a text that a request asks for."""
        name, limit = body.limit
        if limit is not None and limit > self._max_len:
            raise UserError(
                f"{name}: must be at most {self._max_len:,}, the number of tokens that the model "
                f"reads, got {limit:,}"
            )
        return limit or self.options.max_new

    @property
    def _max_len(self) -> int:
        assert self.writer.language is not None
        return self.writer.language.max_len

    @property
    def _max_chars(self) -> int:
        """Maximum length of a prompt, because a longer one would take long to tokenize."""
        return max(MAX_PROMPT, MAX_CHARS * self._max_len)

    def _check_length(self, name: str, count: int, limit: int, unit: str) -> None:
        """Refuse a prompt that is too long."""
        if count > limit:
            message = (
                f"{name}: must have at most {limit:,} {unit}, got {count:,} or more; shorten it"
            )
            raise Refusal(400, message, code=TOO_LONG)


def checked(model: type[AnyBody], content: Any) -> AnyBody:
    """Return the parsed content of a request as its model.

    Raises:
        Refusal: If it has another format.
        UserError: If a value is wrong, or a key is not supported.
    """
    if not isinstance(content, dict):
        raise Refusal(400, f"the body must be a JSON object; {DESCRIBED}")
    # Clients send null for the keys that they do not set.
    options = {name: value for name, value in content.items() if value is not None}
    for name, neutral in NEUTRAL.items():
        value = options.pop(name, None)
        if value is None or not neutral:
            continue
        # 0 is no value of a key that can be false.
        if not any(type(value) is type(same) and value == same for same in neutral):
            raise UserError(
                f"{name}: is not supported by this server; leave it out, or send "
                f"{json.dumps(neutral[0])}, got {shortened(value)}"
            )
    try:
        return model.model_validate(options)
    except ValidationError as error:
        raise option_problem(model, error) from None


def messages_of(values: Sequence[Any]) -> list[Message]:
    """Check the messages of a conversation, and return their roles and contents.

    Raises:
        UserError: If a message has another form, or contains more than a text.
    """
    if not values:
        raise UserError("messages: must contain at least one message")
    unchecked: list[Any] = []
    for number, value in enumerate(values, 1):
        if isinstance(value, Mapping):
            # A newer name of the same role.
            value = {**value, "role": "system"} if value.get("role") == "developer" else value
            others = [name for name, content in value.items() if name not in KEYS and content]
            if others:
                raise UserError(
                    f"messages: message {number}: {shortened(others[0])} is not supported by this "
                    "server; leave it out"
                )
        unchecked.append(value)
    try:
        messages = check_messages(unchecked)
    except BadMedia as error:
        raise UserError(f"messages: {error}") from error
    for number, message in enumerate(messages, 1):
        check_unicode(text_of(message), f"messages: message {number}")
    return messages


def texts_of(name: str, value: Any) -> list[str]:
    """Return the texts of a key, which can be one text or a list.

    Raises:
        UserError: If they are no texts.
    """
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise UserError(
            f"{name}: must be a text or a list of texts, got {shortened(value)}; lists of token "
            "ids are not supported, because they belong to the tokenizer of another model"
        )
    for text in texts:
        check_unicode(text, name)
    return texts


async def _chunks(
    parts: AsyncIterator[tuple[int, str | Text]],
    head: Mapping[str, Any],
    body: WritingBody,
) -> AsyncIterator[dict[str, Any]]:
    """Return the events of a stream."""
    is_chat = isinstance(body, ChatBody)
    texts: dict[int, Text] = {}

    def chunk(*choices: dict[str, Any], **usage: Any) -> dict[str, Any]:
        usage = usage or ({"usage": None} if body.includes_usage else {})
        return {**head, "choices": choices, **usage}

    if is_chat:
        head = {**head, "object": "chat.completion.chunk"}
        for index in range(body.n):
            yield chunk(_choice(index, {"delta": {"role": "assistant", "content": ""}}))
    async for index, part in parts:
        if isinstance(part, Text):
            texts[index] = part
            content = {"delta": {}} if is_chat else {"text": ""}
            yield chunk(_choice(index, content, _finish_reason(part)))
        else:
            content = {"delta": {"content": part}} if is_chat else {"text": part}
            yield chunk(_choice(index, content))
    if body.includes_usage:
        yield chunk(usage=_usage([texts[index] for index in sorted(texts)], body.n))


def _choice(
    index: int, content: Mapping[str, Any], finish_reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": None, "finish_reason": finish_reason}


def _finish_reason(text: Text) -> str:
    return "stop" if text.is_stopped or len(text.ids) < text.max_new else "length"


def _usage(texts: Sequence[Text], n: int) -> dict[str, int]:
    """Return the numbers of tokens of texts, of which n have the same prompt."""
    num_prompt = sum(len(text.prompt_ids) for text in texts[::n])
    num_new = sum(len(text.ids) for text in texts)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_new,
        "total_tokens": num_prompt + num_new,
    }
