"""Checks options and the content of files that are not trusted with pydantic.

This module is separate from `dxn.core.untrusted`, because pydantic takes time to import.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, dataclass_transform

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from dxn.core.errors import UserError
from dxn.core.untrusted import shortened

SIMILAR = 0.8  # similarity of names from which one is a misspelling of the other
MAX_PROBLEMS = 5  # in one message
# Sentences for the types of problems that pydantic finds, with the names of its settings.
SENTENCES = {
    "missing": "is missing",
    "unexpected_keyword_argument": "is not an option",
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
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "literal_error": "must be one of {expected}",
}

Schema = TypeVar("Schema", bound=BaseModel)
T = TypeVar("T")
P = ParamSpec("P")


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
        raise not_valid(source, problems) from error


def not_valid(source: str | Path, problems: Sequence[str]) -> UserError:
    """Return the error that lists the problems of a file."""
    more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
    return UserError(f"{source}: not valid: {'; '.join(problems[:MAX_PROBLEMS])}{more}")


@dataclass_transform(frozen_default=True)
def options(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass whose values have to fit their types.

    A wrong value raises a ValueError with a sentence, as a check of one's own would.
    """
    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    checked: Any = dataclass(frozen=True, config=config)(cls)
    names = [field.name for field in dataclasses.fields(checked)]
    initialize = checked.__init__

    @functools.wraps(initialize)
    def initialize_checked(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            initialize(self, *args, **kwargs)
        except ValidationError as error:
            problems = error.errors(include_url=False)
            for problem in problems:  # an argument without a name has a number
                first, *rest = problem["loc"] or ("",)
                problem["loc"] = (names[first] if isinstance(first, int) else first, *rest)
            raise ValueError("; ".join(map(_problem, problems))) from None

    checked.__init__ = initialize_checked
    return checked


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function, or a constructor, check its arguments as `check_arguments` does."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # A wrong number of arguments is an error of the function itself.
        check_arguments(function, signature.bind_partial(*args, **kwargs).arguments)
        return function(*args, **kwargs)

    return call


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Check arguments of a function or class whose types list their values or limit them.

    Raises:
        ValueError: If a value does not fit its type.
    """
    for name, adapter in _limited(function).items():
        if name not in arguments:
            continue
        try:
            adapter.validate_python(arguments[name])
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            # The place in a value of one of several types starts with the name of the type.
            place = () if "union" in adapter.core_schema["type"] else problem["loc"]
            raise ValueError(_problem({**problem, "loc": (name, *place)})) from None


@functools.cache
def _limited(function: Callable[..., Any]) -> dict[str, TypeAdapter]:
    """Return the types of the parameters of a function or class that list values or limit them."""
    # The fields of a dataclass can be from several modules.
    is_constructed = isinstance(function, type) and not dataclasses.is_dataclass(function)
    source: Any = function.__init__ if is_constructed else function
    try:
        hints = typing.get_type_hints(source, include_extras=True)
    except NameError:  # a type that is only imported for type checkers
        return {}
    names = inspect.signature(function).parameters
    config = ConfigDict(strict=True, allow_inf_nan=False)
    return {
        name: TypeAdapter(hint, config=config)
        for name, hint in hints.items()
        if name in names and _has_limit(hint)
    }


def _has_limit(hint: Any) -> bool:
    if typing.get_origin(hint) in (Literal, Annotated):
        return True
    return any(map(_has_limit, typing.get_args(hint)))


def _problem(problem: Mapping[str, Any]) -> str:
    """Return one problem that pydantic has found, with its place in the file."""
    place = ".".join(str(part) for part in problem["loc"])
    # A validator of dxn raises a ValueError, whose text is complete.
    if problem["type"] == "value_error":
        text = str(problem["ctx"]["error"])
        return f"{place}.{text}" if place else text
    sentence = SENTENCES.get(problem["type"])
    # pydantic returns the limit 1 of a float as 1.0. Very large ones stay 1e+37.
    limits = {
        name: f"{limit:.15g}" if isinstance(limit, float) else limit
        for name, limit in problem.get("ctx", {}).items()
    }
    message = problem["msg"] if sentence is None else sentence.format(**limits)
    value = "" if problem["type"] == "missing" else f", got {shortened(problem['input'])}"
    return f"{place or 'the content'} {message}{value}"


class CheckedMembers:
    """Refuses subclasses with a public member that is nearly one of their base class.

    The base class is the one that has `CheckedMembers` among its bases. Annotated fields, the
    options of a dataclass, may have any name.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        base = next(parent for parent in cls.__mro__ if CheckedMembers in parent.__bases__)
        names = [name for name in (*vars(base), *base.__annotations__) if not name.startswith("_")]
        members = {*dir(base), *names}
        for name in vars(cls).keys() - inspect.get_annotations(cls).keys():
            if name.startswith("_") or name in members:
                continue
            similar = difflib.get_close_matches(name, names, 1, SIMILAR)
            # A name such as `use_vocabulary` contains the whole name of a member.
            if similar and similar[0] not in name.replace("_", " ").split():
                raise TypeError(
                    f"{cls.__name__}.{name} is not a member of {base.__name__}; did you mean "
                    f"{similar[0]}? Otherwise choose a less similar name"
                )
