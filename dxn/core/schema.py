"""Checks the content of files that are not trusted with pydantic models.

This module is separate from `dxn.core.untrusted`, because pydantic takes time to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from dxn.core.errors import UserError
from dxn.core.untrusted import shortened

MAX_PROBLEMS = 5  # in one message
# Sentences for the types of problems that pydantic finds, with the names of its settings.
SENTENCES = {
    "missing": "is missing",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "list_type": "must be a list",
    "string_type": "must be a text",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "finite_number": "must be a finite number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "literal_error": "must be one of {expected}",
}

Schema = TypeVar("Schema", bound=BaseModel)


class Strict(BaseModel):
    """Base class of the models of files that are not trusted: no conversions, no NaN, no infinity.

    Unknown keys are ignored, because a later version of dxn may write more of them.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)


def validated(schema: type[Schema], content: Any, source: str | Path) -> Schema:
    """Return the content of a file as a pydantic model.

    Args:
        schema: The model.
        content: The parsed content of the file.
        source: The file, for messages.

    Raises:
        UserError: If the content does not fit the model.
    """
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        problems = [_problem(problem) for problem in error.errors(include_url=False)]
        more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        listed = "; ".join(problems[:MAX_PROBLEMS])
        raise UserError(f"{source}: not valid: {listed}{more}") from error


def _problem(problem: Mapping[str, Any]) -> str:
    """Return one problem that pydantic has found, with its place in the file."""
    place = ".".join(str(part) for part in problem["loc"])
    # A validator of dxn raises a ValueError, whose text is complete.
    if problem["type"] == "value_error":
        text = str(problem["ctx"]["error"])
        return f"{place}.{text}" if place else text
    sentence = SENTENCES.get(problem["type"])
    message = problem["msg"] if sentence is None else sentence.format(**problem.get("ctx", {}))
    value = "" if problem["type"] == "missing" else f", got {shortened(problem['input'])}"
    return f"{place or 'the content'} {message}{value}"
