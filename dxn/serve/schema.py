"""The description of a model: for the page, and for the OpenAPI documentation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.responses import Response

from dxn.runs.predictor.predictor import Predictor
from dxn.serve.body import FORM_TYPE, INPUTS, JSON_TYPE
from dxn.serve.generation import GENERATION, PROMPT
from dxn.serve.prepare import takes_text
from dxn.serve.refusal import KINDS
from dxn.serve.texts import Writer
from dxn.tokenize.base import Tokenizer

MAX_LABELS = 1000  # class names in the description
# Status codes of a request without a body, beside 401 and 503.
REFUSED_WITHOUT_BODY = ("403", "421", "431", "500")
# Parts of the OpenAPI description that do not depend on the model.
PARTS: dict[str, Any] = json.loads(
    Path(__file__).with_name("descriptions.json").read_text(encoding="utf-8")
)


def facts_of(predictor: Predictor, name: str) -> dict[str, Any]:
    """Return what the page needs to know about a model, as JSON data."""
    writer = Writer(predictor)
    generates = not writer.obstacle
    inputs = [_input(key, prepare, predictor) for key, prepare in predictor.preprocessors.items()]
    if generates and writer.takes_prompt:
        prompt = {"name": PROMPT, "kind": PROMPT, "takes_text": True, "takes_file": False}
        inputs = [{**prompt, "accept": "", "column": PROMPT, "choices": []}]
    labels = list(predictor.labels or ()) if predictor.task.answers and not generates else []
    return {
        "name": name,
        "about": repr(predictor).removeprefix("Predictor(").removesuffix(")"),
        "task": predictor.task.name,
        "target": predictor.target,
        "inputs": inputs,
        "labels": labels[:MAX_LABELS],
        "predicts": predictor.task.answers,
        "generates": generates,
        "takes_prompt": generates and writer.takes_prompt,
    }


def paths_of(facts: Mapping[str, Any]) -> set[str]:
    """Return the paths of the interface, for the labels of the metrics."""
    paths = {"/", "/docs", "/openapi.json", "/model", "/health", "/metrics", "/embed", "/attend"}
    paths |= {"/predict"} if facts["predicts"] else set()
    return paths | ({"/generate"} if facts["generates"] else set())


def operation(path: str, predictor: Predictor, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with which FastAPI describes an operation on samples."""
    writes = path == "/generate"
    options = {name: PARTS["options"][name] for name in GENERATION} if writes else {}
    # The other operations of a language model take its text input, and not a prompt.
    is_prompt = writes and facts["takes_prompt"]
    sample = _sample(facts["inputs"]) if is_prompt else _sample(_inputs(predictor))
    json_schema = {
        "type": "object",
        "required": [INPUTS],
        "properties": {INPUTS: {"type": "array", "minItems": 1, "items": sample}, **options},
    }
    form = {
        name: {"type": "array", "items": _form_part(value)}
        for name, value in sample["properties"].items()
    }
    content = {
        JSON_TYPE: {"schema": json_schema},
        FORM_TYPE: {"schema": {"type": "object", "properties": {**form, **options}}},
    }
    described_answer = {
        "type": "object",
        "properties": {"results": {"type": "array", "items": PARTS["answers"][path]}},
    }
    answers: dict[str, Any] = {JSON_TYPE: {"schema": described_answer}}
    if writes:
        answers["text/event-stream"] = {"schema": {"type": "string"}}
    responses = {code: _refused(code, text) for code, text in PARTS["refused"].items()}
    return {
        "summary": PARTS["summaries"][path],
        "openapi_extra": {
            "requestBody": {"required": True, "content": content},
            "responses": {
                "200": {"description": "One result per sample.", "content": answers},
                **responses,
            },
        },
    }


def described(summary: str, media: str = JSON_TYPE, *, is_open: bool = False) -> dict[str, Any]:
    """Return the arguments with which FastAPI describes a request without a body.

    Args:
        summary: What the answer is.
        media: Media type of the answer.
        is_open: Whether the request needs no key, and is answered with 503 if the model is stuck.
    """
    codes = (*REFUSED_WITHOUT_BODY, "503" if is_open else "401")
    responses = {code: _refused(code, PARTS["refused"][code]) for code in sorted(codes)}
    success = {"description": summary, "content": {media: {"schema": {}}}}
    return {
        "summary": summary,
        # Otherwise FastAPI describes each answer as JSON.
        "response_class": Response,
        "openapi_extra": {"responses": {"200": success, **responses}},
    }


def _inputs(predictor: Predictor) -> list[dict[str, Any]]:
    return [_input(key, prepare, predictor) for key, prepare in predictor.preprocessors.items()]


def _input(name: str, prepare: Tokenizer, predictor: Predictor) -> dict[str, Any]:
    """Return how an input is entered."""
    known = prepare.choices
    return {
        "name": name,
        "kind": prepare.modality,
        "takes_text": takes_text(prepare),
        "takes_file": prepare.reader.files,
        # The columns of a table are short, other texts can have many lines.
        "is_short": prepare.reader.tabular,
        "accept": prepare.reader.media,
        "column": predictor.columns.get(name, name),
        "choices": list(known) if len(known) <= MAX_LABELS else [],
    }


def _sample(inputs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON schema of a sample. Every input can be missing."""
    properties: dict[str, Any] = {}
    for each in inputs:
        kinds = list(PARTS["text_values"]) if each["takes_text"] else []
        kinds += [PARTS["file_value"]] if each["takes_file"] else []
        properties[each["name"]] = {"anyOf": kinds, "description": f"Input ({each['kind']})."}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _form_part(value: Mapping[str, Any]) -> dict[str, Any]:
    is_file = any(kind.get("type") == "object" for kind in value["anyOf"])
    return {"type": "string", "format": "binary"} if is_file else {"type": "string"}


def _refused(code: str, description: str) -> dict[str, Any]:
    error = {
        "type": "object",
        "properties": {
            "type": {"type": "string", "const": KINDS[int(code)]},
            "message": {"type": "string"},
        },
    }
    schema = {"type": "object", "properties": {"error": error}}
    return {"description": description, "content": {JSON_TYPE: {"schema": schema}}}
