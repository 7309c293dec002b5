"""Check configuration values against the type hints of a signature."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union

NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    type(None): "null",
}
# Minimum similarity of a suggestion, from 0 to 1. Below it (the default of difflib), suggestions
# mislead more often than they help.
MIN_SIMILARITY = 0.6


def type_fault(value: Any, hint: Any) -> str | None:
    """Return what is wrong with a value, such as "must be a number, got 'x'". None if it fits.

    A node (a mapping with `_target_`) fits every class, because an object is built from it.
    """
    if fits(value, hint):
        return None
    choices = [choice for member in members(hint) for choice in _literals(member)]
    if choices:
        listed = ", ".join(str(choice) for choice in choices)
        hint_at = suggestion(str(value), [str(choice) for choice in choices])
        return f"must be one of {listed}, got {value!r}{';' + hint_at if hint_at else ''}"
    return f"must be {describe(hint)}, got {value!r}"


def fits(value: Any, hint: Any) -> bool:
    """Whether a configuration value, or an object that is already built, fits a type hint."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, member) for member in arguments)
    if origin is Literal:
        # Without the type, `1 == True` would accept true for a choice of 1.
        return any(value == choice and type(value) is type(choice) for choice in arguments)
    if hint is None or hint is type(None):
        return value is None
    if hint is bool or hint is str:
        return isinstance(value, hint)
    # In Python, True is an int, but as a number of epochs it is a mistake.
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    # YAML reads 1 as an int, and 1 is a valid float.
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    outer = origin or hint
    if not isinstance(outer, type) or outer in (inspect.Parameter.empty, object):
        return True  # Any or a type variable: nothing can be checked
    if issubclass(outer, Mapping):
        return isinstance(value, Mapping) and _all_fit(value.values(), arguments[1:])
    # Not every Sequence: a str is one too, but not a list of names.
    if issubclass(outer, Sequence):
        return isinstance(value, list | tuple) and _all_fit(value, arguments[:1])
    return isinstance(value, Mapping) or _is_instance(value, outer)


def members(hint: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union, or the hint itself if it is not a union."""
    is_union = typing.get_origin(hint) in (Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def option_group(hint: Any) -> type | None:
    """Return the dataclass among the alternatives of a hint; None if there is none.

    A parameter with such a hint is a group of options, such as backbone.norm.
    """
    for member in members(hint):
        if isinstance(member, type) and dataclasses.is_dataclass(member):
            return member
    return None


def takes_mapping(hint: Any) -> bool:
    """Whether a parameter takes a mapping whose keys the user chooses, such as data.holdout."""
    outers = [typing.get_origin(member) or member for member in members(hint)]
    return any(isinstance(outer, type) and issubclass(outer, Mapping) for outer in outers)


def describe(hint: Any) -> str:
    """Return a type hint in words, for a message."""
    return " or ".join(_name(member) for member in members(hint))


def suggestion(wrong: str, known: Sequence[str]) -> str:
    """Return " did you mean KEY?" for the known dotted key most similar to a wrong one, or "".

    The leading space lets the result be appended to a sentence whether it is empty or not.
    """
    # First a key with the same last name: `lr` means optimizer.lr. Then the most similar full key.
    last = wrong.rpartition(".")[2]
    close = [key for key in known if key.rpartition(".")[2] == last]
    close = close or difflib.get_close_matches(wrong, known, 1, MIN_SIMILARITY)
    if not close:
        # Finally, a key with a similar last name anywhere in the configuration.
        by_last = {key.rpartition(".")[2]: key for key in known}
        matches = difflib.get_close_matches(last, list(by_last), 1, MIN_SIMILARITY)
        close = [by_last[match] for match in matches]
    return f" did you mean {close[0]}?" if close else ""


def _name(hint: Any) -> str:
    outer = typing.get_origin(hint) or hint
    if outer in NAMES:
        return NAMES[outer]
    if isinstance(outer, type) and issubclass(outer, Mapping):
        return "a mapping"
    if isinstance(outer, type) and issubclass(outer, Sequence):
        return "a list"
    return getattr(outer, "__name__", str(outer))


def _literals(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is Literal else ()


def _all_fit(values: typing.Iterable[Any], hints: Sequence[Any]) -> bool:
    return not hints or all(fits(value, hints[0]) for value in values)


def _is_instance(value: Any, outer: type) -> bool:
    try:
        return isinstance(value, outer)
    except TypeError:  # a Protocol that is not runtime_checkable cannot be checked
        return True
