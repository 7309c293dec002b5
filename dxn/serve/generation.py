"""The options of a request that generates texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from dxn.core.errors import UserError
from dxn.models.decoding.search import make_sampler
from dxn.runs.predictor.predictor import Predictor
from dxn.serve.body import INPUTS, Body
from dxn.serve.options import ServeOptions
from dxn.serve.texts import TextRow, Writer

PROMPT = "prompt"  # key of the text to continue, in place of an input
MIN_TEMPERATURE = 1e-3
MAX_PROMPT = 20_000  # characters; a model reads only the last tokens
GENERATION = ("temperature", "top_k", "top_p", "max_new", "seed", "stream")
MAX_SEED = 2**63 - 1  # of torch.manual_seed


def text_rows(
    body: Body, predictor: Predictor, writer: Writer, options: ServeOptions
) -> tuple[list[TextRow], Sequence[Mapping[str, Any]], bool]:
    """Return the texts that a request asks for, their samples, and whether it wants a stream.

    Raises:
        UserError: If an option is wrong, or the model cannot use the inputs.
    """
    chosen = body.options
    max_new = _integer(chosen, "max_new", options.max_new, 1, options.max_new)
    seed = _integer(chosen, "seed", 0, -MAX_SEED, MAX_SEED)
    is_stream = chosen.get("stream", False)
    if not isinstance(is_stream, bool):
        raise UserError(f"stream: must be true or false, got {is_stream!r}")
    rows: list[TextRow] = []
    for i, sample in enumerate(body.samples):
        try:
            # Another seed for each sample, so that equal samples get different texts.
            new_sampler = partial(
                make_sampler,
                _temperature(chosen),
                top_k=_integer(chosen, "top_k", None, 1, MAX_SEED),
                top_p=None if chosen.get("top_p") is None else _number(chosen, "top_p", 1.0),
                seed=(seed + i) % MAX_SEED,
                device=predictor.device,
            )
            new_sampler()  # it checks the options
        except ValueError as error:
            raise UserError(str(error)) from error
        prompt = _prompt(sample, writer)
        rows.append(TextRow(None, prompt, new_sampler, max_new))
    samples = () if writer.takes_prompt else body.samples
    return rows, samples, is_stream


def _prompt(sample: Mapping[str, Any], writer: Writer) -> str:
    """Return the text to continue; "" for a model that generates a text for a sample."""
    if not writer.takes_prompt:
        return ""
    prompt = sample.get(PROMPT)
    if set(sample) != {PROMPT} or not isinstance(prompt, str | bytes):
        raise UserError(
            f'{INPUTS}: a language model continues a text: send {{"{PROMPT}": "..."}} for each '
            "sample"
        )
    try:
        text = prompt.decode("utf-8") if isinstance(prompt, bytes) else prompt
        text.encode("utf-8")
    except UnicodeError:
        raise UserError(f"{PROMPT}: must be valid Unicode text") from None
    if len(text) > MAX_PROMPT:
        raise UserError(
            f"{PROMPT}: must have at most {MAX_PROMPT:,} characters, got {len(text):,}; send the "
            "end of the text"
        )
    writer.check_prompt(text)
    return text


def _temperature(chosen: Mapping[str, Any]) -> float:
    value = _number(chosen, "temperature", 1.0)
    # The scores are divided by it, and would overflow.
    if 0 < value < MIN_TEMPERATURE:
        raise UserError(f"temperature: must be 0 or at least {MIN_TEMPERATURE}, got {value:g}")
    return value


def _number(chosen: Mapping[str, Any], name: str, default: float) -> float:
    value = chosen.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e6:
        raise UserError(f"{name}: must be a number, got {str(value)[:60]!r}")
    return float(value)


def _integer(
    chosen: Mapping[str, Any], name: str, default: Any, smallest: int, largest: int
) -> Any:
    value = chosen.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        shown = f"{smallest} to {largest}" if largest < MAX_SEED else f"at least {smallest}"
        raise UserError(f"{name}: must be an integer ({shown}), got {str(value)[:60]!r}")
    return value
