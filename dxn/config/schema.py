"""What a configuration may contain: the parameters of a class or function, and their types.

The types are annotations of Python, which pydantic checks. Classes in them are replaced by their
dotted names (`Node`), so that the signatures of dxn's own parts can be stored in a file and checked
without importing torch, see `dxn.config.signatures`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union

from dxn.core.errors import similar

# The default of a parameter that has none, or whose default YAML cannot represent.
NO_DEFAULT: Any = inspect.Parameter.empty
# Arguments that the calling code passes to `build`. They are not keys of the configuration.
FROM_CALLER = ("inputs", "readers", "adapters")
NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    types.NoneType: "null",
    Any: "any value",
}
UNIONS = (Union, types.UnionType)  # of Optional[int] and int | None
# Sentences about a value that has the right type, by the type of the error of pydantic.
RANGES = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "too_short": "must have at least {min_length} items",
    "string_too_short": "must have at least {min_length} characters",
}


@dataclass(frozen=True)
class Node:
    """Marks the type of an argument that is built from a node: Annotated[Mapping, Node(CLASS)].

    Args:
        path: Dotted name of the class.
        is_group: Whether the class is a group of options, which is a dataclass.
    """

    path: str
    is_group: bool = False


@dataclass(frozen=True)
class Parameter:
    """A parameter of a class or function.

    Args:
        type: Type of its values, see `plain_type`.
        default: Default as plain data; NO_DEFAULT if there is none that YAML can represent.
        required: Whether a call must set it.
        meaning: Its entry in the section Args of the docstring.
    """

    type: Any = Any
    default: Any = NO_DEFAULT
    required: bool = False
    meaning: str = ""

    @functools.cached_property
    def marks(self) -> tuple[Any, ...]:
        """What annotations such as Annotated[str, PATH] add to the type, or to its alternatives."""
        members = (self.type, *typing.get_args(self.type))
        return tuple(mark for each in members for mark in getattr(each, "__metadata__", ()))

    @functools.cached_property
    def group(self) -> str | None:
        """Dotted name of the group of options that the parameter is, such as backbone.norm."""
        nodes = (mark for mark in self.marks if isinstance(mark, Node))
        return next((node.path for node in nodes if node.is_group), None)


@dataclass(frozen=True)
class Signature:
    """The parameters of a class or function that a configuration can set.

    Args:
        path: Dotted name of the module that defines it, and its name there.
        summary: First paragraph of the docstring.
        parameters: Parameters by name, without *args and **kwargs.
        from_caller: Further parameters, which the calling code of dxn passes.
        others: The **kwargs parameter; None if there is none.
        bases: Dotted names of the dataclass and its base classes, for a dataclass.
        modality: Class attribute `modality`, which adapters have.
    """

    path: str
    summary: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    from_caller: Sequence[str] = ()
    others: Parameter | None = None
    bases: Sequence[str] = ()
    modality: str | None = None

    @property
    def name(self) -> str:
        """Name of the class or function."""
        return self.path.rpartition(".")[2]

    def parameter(self, name: str) -> Parameter | None:
        """Return the parameter that an argument is for; None if there is no such argument."""
        # The calling code passes objects, which need no check.
        return self.parameters.get(name, Parameter() if name in self.from_caller else self.others)


# Cached, because evaluating postponed annotations is slow compared with the checks that need them.
@functools.cache
def signature_from(
    target: Callable[..., Any], from_caller: tuple[str, ...] | None = None
) -> Signature:
    """Read the signature of a class or function.

    Args:
        target: The class or function.
        from_caller: Names of the parameters that are not keys of the configuration. Default:
            FROM_CALLER, and none for a group of options.
    """
    record: Any = target
    fields = dataclasses.fields(record) if dataclasses.is_dataclass(record) else None
    if from_caller is None:
        from_caller = FROM_CALLER if fields is None else ()
    mro = [each for each in getattr(target, "__mro__", ()) if "__dataclass_fields__" in vars(each)]
    meanings: dict[str, str] = {}
    # A dataclass describes only the fields that it adds to those of its base classes.
    for each in (*reversed(mro), target):
        # A name is indented by four spaces, and the lines that continue its description by more.
        section = (inspect.getdoc(each) or "").partition("Args:\n")[2].partition("\n\n")[0]
        entries = re.findall(r"^    ([*\w]+): (.+(?:\n     .+)*)$", section, re.MULTILINE)
        meanings |= {name.lstrip("*"): " ".join(text.split()) for name, text in entries}
    try:
        # The generated __init__ of a dataclass has no access to the names of its module.
        source = target.__init__ if inspect.isclass(target) and fields is None else target
        annotations = typing.get_type_hints(source, include_extras=True)
    except (NameError, TypeError):
        annotations = {}  # a module can import names for type checkers only
    factories = {each.name: each.default_factory for each in fields or ()}
    parameters: dict[str, Parameter] = {}
    passed = []
    others = None
    for name, parameter in inspect.signature(target).parameters.items():
        annotation = plain_type(annotations.get(name, Any))
        meaning = meanings.get(name, "")
        if parameter.kind is parameter.VAR_KEYWORD:
            others = Parameter(annotation, meaning=meaning)
        elif name in from_caller:
            passed.append(name)
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            required = parameter.default is parameter.empty
            factory = factories.get(name, dataclasses.MISSING)
            has_factory = factory is not dataclasses.MISSING
            default = plain_default(factory() if has_factory else parameter.default)
            parameters[name] = Parameter(annotation, default, required, meaning)
    modality = getattr(target, "modality", None)
    return Signature(
        path=class_path(target),
        summary=(inspect.getdoc(target) or "").split("\n\n")[0].replace("\n", " "),
        parameters=parameters,
        from_caller=passed,
        others=others,
        bases=[class_path(each) for each in mro],
        # A property, which the class of an instance may have, is not a name.
        modality=modality if isinstance(modality, str) else None,
    )


def plain_type(annotation: Any) -> Any:
    """Return an annotation that needs no class of its module: classes become a `Node`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None:
        return types.NoneType
    if origin in UNIONS:
        return Union[tuple(plain_type(member) for member in arguments)]  # noqa: UP007
    if origin is Annotated:
        return Annotated[(plain_type(arguments[0]), *arguments[1:])]
    if origin is Literal or annotation in NAMES:
        return annotation
    outer = origin or annotation
    # A type variable is not a class. Any is one since Python 3.11. Nothing can be checked.
    if not isinstance(outer, type) or outer in (Any, inspect.Parameter.empty, object):
        return Any
    if issubclass(outer, Mapping):
        return Mapping[str, plain_type(arguments[1]) if len(arguments) == 2 else Any]
    if issubclass(outer, Sequence):
        return Sequence[plain_type(arguments[0]) if arguments else Any]
    # As the configuration has it: a node, from which the object is built.
    node = Node(class_path(outer), dataclasses.is_dataclass(outer))
    return Annotated[Mapping[str, Any], node]


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


# Checks of values


def problem(value: Any, annotation: Any, default: Any = NO_DEFAULT) -> str | None:
    """Return what is wrong with a value, such as "must be a number, got 'x'". None if it fits.

    A node (a mapping with `_target_`) fits every class, because an object is built from it.

    Args:
        value: The value.
        annotation: Its type, see `plain_type`.
        default: A value that fits.
    """
    # Most values are defaults, and checking them would take a tenth of a second.
    if type(value) is type(default) and value == default:
        return None
    from pydantic import ValidationError

    try:
        _adapter(annotation).validate_python(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
    else:
        return None
    for each in errors:
        # Only of the value itself, and not of one of its items.
        if each["type"] in RANGES and not isinstance(value, list | tuple | Mapping):
            # pydantic returns the limit 1 of a float as 1.0.
            limits = {n: int(v) if v == int(v) else v for n, v in each.get("ctx", {}).items()}
            return f"{RANGES[each['type']].format(**limits)}, got {value!r}"
    if not any(typing.get_origin(member) is Literal for member in members(annotation)):
        return f"must be {describe(annotation)}, got {value!r}"
    listed = choices(annotation)
    match = similar(str(value), listed)
    hint = f"; did you mean {match}?" if match else ""
    return f"must be one of {', '.join(listed)}, got {value!r}{hint}"


@functools.cache
def _adapter(annotation: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    # Strict: in Python, True is an int, but as a number of epochs it is a mistake.
    return TypeAdapter(annotation, config=ConfigDict(strict=True))


def members(annotation: Any) -> Sequence[Any]:
    """Return the alternatives of a type, or the type itself if it has none.

    What an annotation adds is left out, except for the class of a node.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in UNIONS:
        return [part for each in arguments for part in members(each)]
    if origin is Annotated and not isinstance(arguments[1], Node):
        return members(arguments[0])
    return [annotation]


def value_type(annotation: Any) -> Any:
    """Return the type of the values of a mapping whose keys the user chooses, or None.

    Such a mapping is the value of data.holdout.
    """
    for member in members(annotation):
        if typing.get_origin(member) is collections.abc.Mapping:
            return typing.get_args(member)[1]
    return None


def choices(annotation: Any) -> list[str]:
    """Return the values of a type that has only some, as YAML writes them."""
    listed: list[str] = []
    for member in members(annotation):
        if member is bool:
            listed += ["true", "false"]
        elif typing.get_origin(member) is Literal:
            listed += map(_written, typing.get_args(member))
    return listed


def describe(annotation: Any) -> str:
    """Return a type in words, for a message or a help page."""
    *others, last = dict.fromkeys(_name(member) for member in members(annotation))
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


def _name(member: Any) -> str:
    origin = typing.get_origin(member)
    if origin is Literal:
        return f"one of {', '.join(map(_written, typing.get_args(member)))}"
    if origin is Annotated:
        return typing.get_args(member)[1].path.rpartition(".")[2]
    return NAMES.get(member) or ("a mapping" if issubclass(origin, Mapping) else "a list")


def _written(value: Any) -> str:
    # As YAML writes it.
    return str(value).lower() if isinstance(value, bool) else str(value)
