"""Check configuration values against the types of a signature.

A type is plain data, so that the types of all signatures can be stored in a file:

    "int", "float", "bool", "str", "null"   a value of this type
    "any"                                   any value
    {"choices": [VALUE, ...]}               one of these values
    {"list": TYPE}, {"mapping": TYPE}       a list, or a mapping, whose values have a type
    {"options": CLASS}                      a group of options: a dataclass, by its dotted name
    {"part": CLASS}                         an object that is built from a node
    [TYPE, ...]                             one of several types
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Hint = str | list[Any] | dict[str, Any]

NAMES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "null": "null",
    "any": "any value",
}
# Minimum similarity of a suggestion, from 0 to 1. Below it, suggestions mislead more often than
# they help: with the default of difflib, 0.6, `loss` suggests `cross`, and `gpu` suggests `cpu`.
MIN_SIMILARITY = 0.75


def type_fault(value: Any, hint: Hint) -> str | None:
    """Return what is wrong with a value, such as "must be a number, got 'x'". None if it fits.

    A node (a mapping with `_target_`) fits every class, because an object is built from it.
    """
    if fits(value, hint):
        return None
    if listed := choices(hint):
        if "bool" in members(hint):
            listed = [True, False, *listed]
        hint_at = similar(str(value), [str(choice) for choice in listed])
        names = ", ".join(_written(choice) for choice in listed)
        return (
            f"must be one of {names}, got {value!r}{f'; did you mean {hint_at}?' * bool(hint_at)}"
        )
    return f"must be {describe(hint)}, got {value!r}"


def fits(value: Any, hint: Hint) -> bool:
    """Whether a configuration value, or an object that is already built, fits a type."""
    match hint:
        case list():
            return any(fits(value, member) for member in hint)
        case "any":
            return True
        case "null":
            return value is None
        case "bool":
            return isinstance(value, bool)
        case "str":
            return isinstance(value, str)
        # In Python, True is an int, but as a number of epochs it is a mistake.
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        # YAML reads 1 as an int, and 1 is a valid float.
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case {"choices": listed}:
            # Without the type, `1 == True` would accept true for a choice of 1.
            return any(value == choice and type(value) is type(choice) for choice in listed)
        case {"mapping": inner}:
            return isinstance(value, Mapping) and all(fits(v, inner) for v in value.values())
        # Not every Sequence: a str is one too, but not a list of names.
        case {"list": inner}:
            return isinstance(value, list | tuple) and all(fits(item, inner) for item in value)
    # A part: a node, or an object that is already built, but no other plain value.
    return isinstance(value, Mapping) or not isinstance(
        value, bool | int | float | str | list | tuple | None
    )


def members(hint: Hint) -> Sequence[Hint]:
    """Return the alternatives of a type, or the type itself if it has none."""
    return hint if isinstance(hint, list) else [hint]


def choices(hint: Hint) -> list[Any]:
    """Return the values of all choices of a type."""
    return [v for m in members(hint) if isinstance(m, dict) for v in m.get("choices", ())]


def option_group(hint: Hint) -> str | None:
    """Return the dotted name of the dataclass among the alternatives; None if there is none.

    A parameter with such a type is a group of options, such as backbone.norm.
    """
    return next(
        (m["options"] for m in members(hint) if isinstance(m, dict) and "options" in m), None
    )


def takes_mapping(hint: Hint) -> bool:
    """Whether a parameter takes a mapping whose keys the user chooses, such as data.holdout."""
    return any(isinstance(member, dict) and "mapping" in member for member in members(hint))


def value_hint(hint: Hint) -> Hint:
    """Return the type of a mapping's values; "any" if it has none."""
    found = (m["mapping"] for m in members(hint) if isinstance(m, dict) and "mapping" in m)
    return next(found, "any")


def describe(hint: Hint) -> str:
    """Return a type in words, for a message or a help page."""
    *others, last = [_name(member) for member in members(hint)]
    return f"{', '.join(others)} or {last}" if others else last


def suggestion(wrong: str, known: Sequence[str]) -> str:
    """Return " did you mean KEY?" for the known dotted key most similar to a wrong one, or "".

    The leading space lets the result be appended to a sentence whether it is empty or not.
    """
    parent, _, last = wrong.rpartition(".")
    # First a key with the same last name: `lr` means optimizer.lr.
    same = [key for key in known if key.rpartition(".")[2] == last]
    # Then a similar name at the same place. The place alone must not count as similarity:
    # trainer.foo has most of its letters in common with trainer.seed.
    siblings = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == parent}
    # Finally, a similar name anywhere.
    anywhere = {key.rpartition(".")[2]: key for key in reversed(known)}
    close = same[:1]
    for names in (siblings, anywhere):
        if not close and (match := similar(last, list(names))):
            close = [names[match]]
    return f" did you mean {close[0]}?" if close else ""


def similar(wrong: str, known: Iterable[str]) -> str | None:
    """Return the name most similar to a wrong one; None if none is similar enough."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wrong.lower(), list(by_lower), 1, MIN_SIMILARITY)
    return by_lower[close[0]] if close else None


def _name(hint: Hint) -> str:
    match hint:
        case str():
            return NAMES[hint]
        case {"choices": listed}:
            return f"one of {', '.join(_written(choice) for choice in listed)}"
        case {"mapping": _}:
            return "a mapping"
        case {"list": _}:
            return "a list"
        case {"options": path} | {"part": path}:
            return path.rpartition(".")[2]
    return str(hint)


def _written(value: Any) -> str:
    # As YAML writes it.
    return str(value).lower() if isinstance(value, bool) else str(value)
