"""What a model takes and gives, as pydantic models: requests are checked and described by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    create_model,
)
from pydantic import field_validator as validator

from dxn.core.errors import UserError
from dxn.core.schema import SENTENCES
from dxn.core.untrusted import shortened
from dxn.models.decoding.search import Sampler
from dxn.runs.predictor.attention import encoders_of
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.writing import MAX_SCALE, MAX_SEED, Writer, make_samplers, usual_sampling
from dxn.serve.answers import KINDS, Refusal
from dxn.serve.options import ServeOptions
from dxn.serve.prepare import takes_text
from dxn.tokenize.base import Tokenizer

INPUTS = "inputs"
RESULTS = "results"
PROMPT = "prompt"  # key of the text to continue, in place of an input
GENERATED = "generated"  # key of a generated text, also in the files of dxn generate
JSON_TYPE = "application/json"
FORM_TYPE = "multipart/form-data"
MAX_LABELS = 1000  # class names in the description
MAX_PROMPT = 20_000  # characters; a model reads only the last tokens
MIN_TEMPERATURE = 1e-3
ADVICE = f'send {{"{INPUTS}": [{{"NAME": VALUE}}]}} with the names of the inputs (GET /model)'
DESCRIBED = "GET /openapi.json describes it"
# Status codes of every request, and those of requests with a body.
REFUSED = (403, 421, 431, 500)
REFUSED_BODIES = (400, 401, 403, 408, 413, 415, 421, 422, 431, 500, 503, 504)
TEXT_VALUES: list[dict[str, Any]] = TypeAdapter(str | float | list[Any]).json_schema()["anyOf"]
FILE_VALUE: dict[str, Any] = {
    "type": "object",
    "required": ["base64"],
    "properties": {"base64": {"type": "string", "format": "byte"}},
}


# Names in a request are checked, and nothing is converted.
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Body(BaseModel):
    """The body of a request."""

    model_config = STRICT
    inputs: list[Any]

    @validator(INPUTS, mode="before", check_fields=False)
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return [value] if isinstance(value, Mapping) else value

    @property
    def samples(self) -> list[dict[str, Any]]:
        """The values of each sample by input name."""
        samples: list[dict[str, Any]] = []
        for sample in self.inputs:
            fields = type(sample).model_fields
            values = vars(sample).items()
            chosen = [(n, value) for n, value in values if n in sample.model_fields_set]
            samples.append({fields[name].alias: value for name, value in chosen})
        return samples


class Sampling(BaseModel):
    """Options of a request that generates texts."""

    model_config = STRICT
    temperature: float | None = Field(
        None,
        ge=0,
        le=MAX_SCALE,
        description="Divisor of the logits; 0 chooses the most probable text (default: as in dxn "
        "generate).",
    )
    top_k: int | None = Field(
        None, ge=1, description="Sample from this number of most probable tokens."
    )
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Sample from the most probable tokens with this total probability.",
    )
    stream: bool = Field(
        False, description="Send the text as server-sent events while it is generated."
    )

    @validator("temperature")
    @classmethod
    def _not_tiny(cls, value: float | None) -> float | None:
        # The scores are divided by it, and would overflow.
        if value is not None and 0 < value < MIN_TEMPERATURE:
            raise ValueError(f"must be 0 or at least {MIN_TEMPERATURE}, got {value:g}")
        return value

    def samplers(
        self, predictor: Predictor, count: int, seed: int, create: str = ""
    ) -> list[Callable[[], Sampler] | None]:
        """Return what makes the sampler of each of `count` texts, see `make_samplers`."""
        return make_samplers(
            count,
            usual=usual_sampling(predictor.model, predictor.task, create),
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=seed,
            device=predictor.device,
        )


class GenerationBody(Body, Sampling):
    """The body of a request that generates texts."""

    max_new: int | None = Field(None, ge=1, description="Maximum number of tokens to generate.")
    seed: int = Field(0, ge=-MAX_SEED, le=MAX_SEED, description="Random seed of sampling.")


class CreationBody(Body, Sampling):
    """The body of a request that creates an input from the others."""

    create: str | None = Field(
        None, description="Input that is created (default: the only one that is not given)."
    )
    count: int = Field(1, ge=1, description="Number of values per sample.")
    guidance: float | None = Field(
        None,
        ge=0,
        le=MAX_SCALE,
        description="Scale of the classifier-free guidance: larger values follow the inputs more "
        "closely, with less variety (default: 2 if the model was trained for it; 1: none).",
    )
    seed: int = Field(0, ge=-MAX_SEED, le=MAX_SEED, description="Random seed of sampling.")


class MaskBody(Body):
    """The body of a request for masks with two classes."""

    pixel_probabilities: bool = Field(
        False,
        description='Also return the probability of the class "pixel_class" at each pixel, as a '
        "PNG file with 8 bits per pixel in a data URL.",
    )


class AttentionBody(Body):
    """The body of a request for the attention on a sample."""

    encoder: str | None = Field(
        None,
        description="Input with an encoder of its own, for the attention inside this encoder "
        "(default: that of the backbone that all inputs share).",
    )


class Problem(BaseModel):
    """What is wrong with a request."""

    type: str
    message: str


class Refused(BaseModel):
    """The answer to a request that is refused."""

    error: Problem


class Prediction(BaseModel):
    """The prediction, for classes their probabilities, and what is unusual about the values."""

    model_config = ConfigDict(extra="allow")
    prediction: Any
    probabilities: dict[str, float] | None = None
    note: str | None = None


class GeneratedText(BaseModel):
    """A generated text, and how much of a long prompt the model reads."""

    generated: str
    note: str | None = None


class CreatedValue(BaseModel):
    """A created value: a text, a file in base64 with its media type, or the list of a series."""

    generated: Any
    type: str | None = None


SUMMARIES: dict[str, tuple[str, Any]] = {
    "/predict": ("Predict for samples", Prediction),
    "/embed": ("Compute one embedding per sample", list[float]),
    "/attend": ("Compute the share of each token of one sample in the answer", dict[str, Any]),
    "/generate": ("Generate texts", GeneratedText),
}


def make_body(path: str, predictor: Predictor, options: ServeOptions, writer: Writer) -> type[Body]:
    """Return the model of the body of a request.

    Args:
        path: Path of the operation.
        predictor: The model that is served.
        options: Limits.
        writer: Its generation of texts.
    """
    writes = path == "/generate"
    if writes and writer.takes_prompt:
        text = Annotated[str, Field(max_length=MAX_PROMPT)]
        others = _before_prompt(predictor, writer)
        fields: dict[str, Any] = {
            PROMPT: (
                text,
                Field("" if others else ..., alias=PROMPT, description="Text to continue."),
            )
        }
    else:
        others = predictor.tokenizers
        fields = {}
    # Names of columns can be no names of Python.
    for i, (name, prepare) in enumerate(others.items()):
        fields[f"input{i}"] = (
            _value(prepare),
            Field(None, alias=name, description=prepare.modality),
        )
    sample = create_model("Sample", __config__=STRICT, **fields)
    keys: dict[str, Any] = {INPUTS: (list[sample], Field(min_length=1))}
    if writes and predictor.task.creates:
        field = CreationBody.model_fields["create"]
        names: Any = {"enum": list(predictor.task.creates)}
        named = Field(None, description=field.description, json_schema_extra=names)
        keys["create"] = (str | None, named)
    elif writes:
        field = GenerationBody.model_fields["max_new"]
        most = max(options.max_new, writer.language.max_len if writer.language else 1)
        limited = Field(options.max_new, ge=1, le=most, description=field.description)
        keys["max_new"] = (int, limited)
    base = AttentionBody if path == "/attend" else Body
    if path == "/predict" and predictor.task.pixel_class:
        base = MaskBody
    if writes:
        base = CreationBody if predictor.task.creates else GenerationBody
    return create_model(f"{path[1:].title()}Body", __base__=base, **keys)


def check_body(model: type[Body], content: Any) -> Body:
    """Return the parsed content of a request as its model.

    Raises:
        Refusal: If it has another format.
        UserError: If a value is wrong.
    """
    if not isinstance(content, dict) or INPUTS not in content:
        raise Refusal(400, f'the body must be an object with the key "{INPUTS}"; {ADVICE}')
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise _problem(model, content, error) from None


def _problem(model: type[Body], content: Mapping[str, Any], error: ValidationError) -> Exception:
    """Return the first problem of a request as one sentence."""
    first: Any = error.errors(include_url=False)[0]
    kind, place = first["type"], first["loc"]
    name = str(first["input"] if kind == "string_unicode" else place[-1])
    if not place or place[0] != INPUTS:
        return option_problem(model, error)
    # A name with an incomplete surrogate pair has no place.
    if len(place) < 3 and kind != "string_unicode":
        return Refusal(400, f"{INPUTS}: must be a list of at least one object; {ADVICE}")
    sample: Any = model.model_fields[INPUTS].annotation
    fields = sample.__args__[0].model_fields
    if PROMPT in fields:
        if kind == "string_unicode":
            return UserError(f"{PROMPT}: must be valid Unicode text")
        if kind == "string_too_long":
            return UserError(
                f"{PROMPT}: must have at most {MAX_PROMPT:,} characters, got "
                f"{len(first['input']):,}; send the end of the text"
            )
        return UserError(
            f'{INPUTS}: a language model continues a text: send {{"{PROMPT}": "..."}} for each '
            "sample"
        )
    is_one = len(content[INPUTS]) == 1 or isinstance(content[INPUTS], Mapping)
    where = "" if is_one else f"sample {int(place[1]) + 1}: "
    inputs = ", ".join(str(field.alias) for field in fields.values())
    return UserError(f"{where}{shortened(name)}: there is no such input; the inputs are {inputs}")


def option_problem(model: type[BaseModel], error: ValidationError) -> Exception:
    """Return the first problem of the options of a request as one sentence."""
    first: Any = error.errors(include_url=False)[0]
    kind = str(first["type"])
    # A name with an incomplete surrogate pair has no place.
    has_place = bool(first["loc"])
    name = str(first["loc"][-1] if has_place else first["input"])
    if kind == "missing":
        return UserError(f"{name}: is missing; set it")
    if kind in ("extra_forbidden", "invalid_key") or not has_place:
        keys = ", ".join(model.model_fields)
        return Refusal(400, f"{name[:60]!r}: there is no such key; the keys are {keys}")
    if kind == "value_error":
        return UserError(f"{name}: {first['ctx']['error']}")
    limits = {
        key: f"{value:g}" if isinstance(value, float) else value
        for key, value in first.get("ctx", {}).items()
    }
    sentence = SENTENCES.get(str(kind), str(first["msg"])).format(**limits)
    return UserError(f"{name}: {sentence}, got {shortened(first['input'])}")


def operation(path: str, body: type[Body]) -> dict[str, Any]:
    """Return the arguments with which FastAPI describes an operation on samples."""
    schema = body.model_json_schema()
    sample = schema["properties"][INPUTS]["items"] = schema.pop("$defs")["Sample"]
    options = {n: option for n, option in schema["properties"].items() if n != INPUTS}
    form = {
        name: {"type": "array", "items": _form_part(value)}
        for name, value in sample["properties"].items()
    }
    content = {
        JSON_TYPE: {"schema": schema},
        FORM_TYPE: {"schema": {"type": "object", "properties": {**form, **options}}},
    }
    summary, answer = SUMMARIES[path]
    if issubclass(body, CreationBody):
        summary, answer = "Create an input from the others", CreatedValue
    fields: dict[str, Any] = {RESULTS: (list.__class_getitem__(answer), ...)}
    results = create_model(f"{path[1:].title()}Results", **fields)
    responses: dict[int | str, Any] = {
        200: {"model": results, "description": "One result per sample."},
        **refused(REFUSED_BODIES),
    }
    if path == "/generate":
        responses[200]["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    return {
        "summary": summary,
        "responses": responses,
        "openapi_extra": {"requestBody": {"required": True, "content": content}},
    }


def described(summary: str, *, is_open: bool = False) -> dict[str, Any]:
    """Return the arguments with which FastAPI describes a request without a body.

    Args:
        summary: What the answer is.
        is_open: Whether the request needs no key, and is answered with 503 if the model is stuck.
    """
    return {
        "summary": summary,
        "response_description": "The answer.",
        "responses": refused((*REFUSED, 503 if is_open else 401)),
    }


def facts_of(predictor: Predictor, writer: Writer, name: str) -> dict[str, Any]:
    """Return what the page needs to know about a model, as JSON data."""
    creates = list(predictor.task.creates)
    generates = not writer.obstacle or bool(creates)
    inputs = [_input(key, prepare, predictor) for key, prepare in predictor.tokenizers.items()]
    if generates and writer.takes_prompt:
        prompt = {"name": PROMPT, "kind": PROMPT, "takes_text": True, "takes_file": False}
        others = _before_prompt(predictor, writer)
        inputs = [about for about in inputs if about["name"] in others]
        inputs.append({**prompt, "accept": "", "column": PROMPT, "choices": []})
    labels = list(predictor.labels or ()) if predictor.task.is_supervised and not generates else []
    return {
        "name": name,
        "about": repr(predictor).removeprefix("Predictor(").removesuffix(")"),
        "task": predictor.task.name,
        "target": predictor.target,
        "inputs": inputs,
        "labels": labels[:MAX_LABELS],
        "predicts": predictor.task.has_answers,
        "pixel_class": predictor.task.pixel_class,
        "generates": generates,
        "creates": creates,
        "encoders": encoders_of(predictor),
        "takes_prompt": generates and writer.takes_prompt,
    }


def _before_prompt(predictor: Predictor, writer: Writer) -> dict[str, Tokenizer]:
    """Return the inputs of a language model whose tokens come before the prompt, by name."""
    assert writer.language is not None
    text = writer.language.name
    return {n: tokenizer for n, tokenizer in predictor.tokenizers.items() if n != text}


def _input(name: str, prepare: Tokenizer, predictor: Predictor) -> dict[str, Any]:
    """Return how an input is entered."""
    choices = prepare.choices
    return {
        "name": name,
        "kind": prepare.modality,
        "takes_text": takes_text(prepare),
        "takes_file": prepare.reader.files,
        # The columns of a table are short, other texts can have many lines.
        "is_short": prepare.reader.tabular,
        "accept": prepare.reader.media,
        "column": predictor.columns.get(name, name),
        "choices": list(choices) if len(choices) <= MAX_LABELS else [],
    }


def _value(prepare: Tokenizer) -> Any:
    """Return the type of a value of an input. `dxn.serve.prepare` checks the value itself."""
    kinds = [*(TEXT_VALUES if takes_text(prepare) else []), *([FILE_VALUE] * prepare.reader.files)]
    return Annotated[Any, WithJsonSchema({"anyOf": kinds})]


def _form_part(value: Mapping[str, Any]) -> dict[str, Any]:
    is_file = FILE_VALUE in value.get("anyOf", ())
    return {"type": "string", "format": "binary"} if is_file else {"type": "string"}


def refused(codes: tuple[int, ...]) -> dict[int | str, Any]:
    """Return the descriptions of the answers with an error."""
    return {code: {"model": Refused, "description": KINDS[code][1]} for code in codes}
