"""Read signatures: the parameters of a class or function with their types, defaults and meanings.

All of it is plain data, see `dxn.config.hints`: `dxn.config.signature_index` stores the signatures
of dxn's own parts in a file, so that a configuration can be checked without importing them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Union

from dxn.config.hints import Hint

SCALARS: dict[Any, str] = {int: "int", float: "float", bool: "bool", str: "str"}
NOTHING = (None, type(None))
# The default of a parameter that has none, or whose default YAML cannot represent.
NO_DEFAULT: Any = inspect.Parameter.empty


@dataclass(frozen=True)
class Parameter:
    """A parameter of a class or function.

    Args:
        hint: Type of its values.
        default: Default as plain data; NO_DEFAULT if there is none that YAML can represent.
        required: Whether a call must set it.
        meaning: Its entry in the section Args of the docstring.
    """

    hint: Hint = "any"
    default: Any = NO_DEFAULT
    required: bool = False
    meaning: str = ""


@dataclass(frozen=True)
class Signature:
    """The parameters of a class or function.

    Args:
        path: Dotted name of the module that defines it, and its name there.
        summary: First paragraph of the docstring.
        parameters: Parameters by name, without *args and **kwargs.
        others: The **kwargs parameter; None if there is none.
        bases: Dotted names of the dataclass and its base classes, for a dataclass.
        modality: Class attribute `modality`, which adapters have.
    """

    path: str
    summary: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    others: Parameter | None = None
    bases: Sequence[str] = ()
    modality: str | None = None

    @property
    def name(self) -> str:
        """Name of the class or function."""
        return self.path.rpartition(".")[2]

    def hint(self, name: str) -> Hint:
        """Return the type of an argument; "any" if it is unknown."""
        parameter = self.parameters.get(name, self.others)
        return "any" if parameter is None else parameter.hint


# Cached, because evaluating postponed annotations is slow compared with the checks that need them.
@functools.cache
def signature_from(target: Callable[..., Any]) -> Signature:
    """Read the signature of a class or function."""
    doc = inspect.getdoc(target) or ""
    meanings = arguments_in(doc)
    hints = _annotations(target)
    parameters: dict[str, Parameter] = {}
    others = None
    for name, parameter in inspect.signature(target).parameters.items():
        hint = hint_from(hints.get(name, Any))
        if parameter.kind is parameter.VAR_KEYWORD:
            meaning = meanings.get(f"**{name}", meanings.get(name, ""))
            others = Parameter(hint, meaning=meaning)
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            required = parameter.default is parameter.empty
            default = plain_default(parameter.default)
            parameters[name] = Parameter(hint, default, required, meanings.get(name, ""))
    modality = getattr(target, "modality", None)
    return Signature(
        path=class_path(target),
        summary=doc.split("\n\n")[0].replace("\n", " "),
        parameters=parameters,
        others=others,
        bases=[class_path(c) for c in inspect.getmro(target) if dataclasses.is_dataclass(c)]
        if inspect.isclass(target)
        else (),
        # A property, which the class of an instance may have, is not a name.
        modality=modality if isinstance(modality, str) else None,
    )


def hint_from(annotation: Any) -> Hint:
    """Return a Python type as a type that is plain data, see `dxn.config.hints`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return [hint_from(member) for member in arguments]
    if origin is Literal:
        return {"choices": list(arguments)}
    if annotation in NOTHING:
        return "null"
    if annotation in SCALARS:
        return SCALARS[annotation]
    outer = origin or annotation
    # A type variable is no class. Any is one since Python 3.11. Nothing can be checked.
    if not isinstance(outer, type) or outer in (Any, inspect.Parameter.empty, object):
        return "any"
    if issubclass(outer, Mapping):
        return {"mapping": hint_from(arguments[1]) if len(arguments) == 2 else "any"}
    if issubclass(outer, Sequence):
        return {"list": hint_from(arguments[0]) if arguments else "any"}
    kind = "options" if dataclasses.is_dataclass(outer) else "part"
    return {kind: class_path(outer)}


def plain_default(default: Any) -> Any:
    """Return a default value as plain data; NO_DEFAULT if YAML cannot represent it."""
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        fields = [f.name for f in dataclasses.fields(default) if f.init]
        values = {name: plain_default(getattr(default, name)) for name in fields}
        return {"_target_": class_path(type(default)), **values}
    if isinstance(default, list | tuple):
        return [plain_default(item) for item in default]
    if isinstance(default, Mapping):
        return {name: plain_default(value) for name, value in default.items()}
    is_scalar = default is None or isinstance(default, bool | int | float | str)
    return default if is_scalar else NO_DEFAULT


def class_path(cls: Callable[..., Any]) -> str:
    """Return the dotted name of a class or function, for `_target_`."""
    return f"{cls.__module__}.{cls.__qualname__}"


def arguments_in(doc: str) -> dict[str, str]:
    """Return the Args section of a docstring as descriptions by name."""
    section = doc.partition("Args:\n")[2].partition("\n\n")[0]
    # A name is indented by four spaces, and the lines that continue its description by more.
    entries = re.findall(r"^    ([*\w]+): (.+(?:\n     .+)*)$", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _annotations(target: Callable[..., Any]) -> dict[str, Any]:
    # The generated __init__ of a dataclass has no access to the names that its module imports.
    is_plain_class = inspect.isclass(target) and not dataclasses.is_dataclass(target)
    try:
        return typing.get_type_hints(target.__init__ if is_plain_class else target)
    except (NameError, TypeError):
        return {}  # a module can import names for type checkers only
