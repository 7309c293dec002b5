"""What a configuration may contain: the parameters of a class or function, and their types.

The types are annotations of Python. Classes in them are replaced by their dotted names (`Node`), so
that the signatures of dxn's own parts can be stored in conf/signatures.json, which git ignores.
Importing the parts themselves also imports torch, which takes seconds. With the stored signatures,
a mistyped option is answered at once. What Hydra composes from dxn's own YAML files is stored too.
Without the file, or if it is not current, everything works, but a command starts slower.

python -m dxn.config.signatures
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import hashlib
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import annotated_types

from dxn.core.files import write_text
from dxn.core.parts import class_path, imported

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
PATH = CONF / "signatures.json"
# Packages whose code determines a signature or an option. It is slower to find out which of their
# files do.
SOURCES = (
    "core",
    "config",
    "commands",
    "tokenize",
    "models",
    "tasks",
    "data",
    "datasets",
    "training",
)
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
        group: Dotted name of the group of options that it is, such as the one of backbone.norm.
    """

    type: Any = Any
    default: Any = NO_DEFAULT
    required: bool = False
    meaning: str = ""
    group: str | None = None


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


def marks_of(annotation: Any) -> list[Any]:
    """Return what Annotated[str, PATH], for example, adds to a type or to its alternatives."""
    members = (annotation, *typing.get_args(annotation))
    annotated = [member for member in members if typing.get_origin(member) is Annotated]
    return [mark for member in annotated for mark in member.__metadata__]


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
    classes = inspect.getmro(target) if inspect.isclass(target) else ()
    # The parameters are the fields unless a class derived from the dataclass has its own __init__.
    owner = next((base for base in classes if "__init__" in vars(base)), object)
    is_generated = "__dataclass_fields__" in vars(owner)
    fields = dataclasses.fields(record) if is_generated else None
    if from_caller is None:
        from_caller = FROM_CALLER if fields is None else ()
    # The descriptions of the parameters are those of the class that defines them.
    mro = [
        base
        for base in classes
        if "__dataclass_fields__" in vars(base) or vars(base).get("__init__") is target.__init__
    ]
    meanings: dict[str, str] = {}
    # A dataclass describes only the fields that it adds to those of its base classes.
    for base in (*reversed(mro), target):
        # A name is indented by four spaces, and the lines that continue its description by more.
        section = (inspect.getdoc(base) or "").partition("Args:\n")[2].partition("\n\n")[0]
        entries = re.findall(r"^    ([*\w]+): (.+(?:\n     .+)*)$", section, re.MULTILINE)
        meanings |= {name.lstrip("*"): " ".join(text.split()) for name, text in entries}
    try:
        # The generated __init__ of a dataclass has no access to the names of its module.
        source = target.__init__ if inspect.isclass(target) and fields is None else target
        annotations = typing.get_type_hints(source, include_extras=True)
    except (NameError, TypeError):
        annotations = {}  # a module can import names for type checkers only
    factories = {option.name: option.default_factory for option in fields or ()}
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
            marks = marks_of(annotation)
            groups = [mark.path for mark in marks if isinstance(mark, Node) and mark.is_group]
            group = groups[0] if groups else None
            parameters[name] = Parameter(annotation, default, required, meaning, group)
    modality = getattr(target, "modality", None)
    if not isinstance(modality, str):
        modality = getattr(getattr(target, "reader", None), "modality", None)
    return Signature(
        path=class_path(target),
        summary=(inspect.getdoc(target) or "").split("\n\n")[0].replace("\n", " "),
        parameters=parameters,
        from_caller=passed,
        others=others,
        bases=[class_path(base) for base in mro],
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


# The file

# The names in the types of the file, as Python prints them.
TYPES = {
    **vars(annotated_types),
    "typing": typing,
    "collections": collections,
    "NoneType": type(None),
    "Node": Node,
}


@dataclass(frozen=True)
class Stored:
    """The content of the file.

    Args:
        signatures: Signatures by the dotted names that a configuration may use, none if the file is
            missing or damaged.
        composed: What Hydra composes from dxn's own YAML files, by the name of the command and the
            files that it chooses.
        is_current: Whether the source code and the YAML files are those from which the file was
            written.
    """

    signatures: Mapping[str, Signature] = field(default_factory=dict)
    composed: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    is_current: bool = False


def update() -> None:
    """Write the file with the parts that dxn's own YAML files name, unless it is current."""
    if not read().is_current:
        # By name, because these modules import this one.
        commands = imported("dxn.commands.all_commands")().values()
        composed = imported("dxn.config.compose.compositions")(commands)
        write({name: imported(name) for name in functions_of_dxn()}, composed)


# Cached, because it reads all YAML files and is needed for every function.
@functools.cache
def functions_of_dxn() -> frozenset[str]:
    """Return the dotted names of the parts in dxn's own YAML files."""
    pattern = re.compile(r"_target_: (dxn\.\S+)")
    names: set[str] = set()
    for path in CONF.rglob("*.yaml"):
        names.update(pattern.findall(path.read_text(encoding="utf-8")))
    return frozenset(names)


def write(
    targets: Mapping[str, Callable[..., Any]], composed: Mapping[str, dict[str, Any]] | None = None
) -> None:
    """Write the file.

    Args:
        targets: Parts by dotted name. The groups of options of their parameters are added.
        composed: What Hydra composes, see `Stored`.
    """
    remaining = [signature_from(target) for target in targets.values()]
    signatures: dict[str, Any] = {}
    while remaining:
        signature = remaining.pop()
        if signature.path in signatures:
            continue
        plain = _changed(signature)
        plain["parameters"] = {
            n: _changed(parameter) for n, parameter in signature.parameters.items()
        }
        if signature.others is not None:
            plain["others"] = _changed(signature.others)
        signatures[signature.path] = plain
        for path in filter(None, (parameter.group for parameter in signature.parameters.values())):
            remaining.append(signature_from(imported(path)))
    names = {name: class_path(target) for name, target in sorted(targets.items())}
    content = {
        "sources": _digest(),
        "names": names,
        "signatures": dict(sorted(signatures.items())),
        "composed": composed or {},
    }
    write_text(PATH, json.dumps(content, indent=1, ensure_ascii=False))
    read.cache_clear()


@functools.cache
def read() -> Stored:
    """Read the file."""
    types: dict[str, Any] = {}
    try:
        content = json.loads(PATH.read_text(encoding="utf-8"))
        signatures: dict[str, Signature] = {}
        for path, plain in content["signatures"].items():
            for parameter in (*plain["parameters"].values(), *filter(None, [plain.get("others")])):
                text = parameter.get("type", "typing.Any")
                if text not in types:
                    # The file belongs to the package, like its modules.
                    types[text] = eval(text, TYPES)
                parameter["type"] = types[text]
            plain["parameters"] = {
                n: Parameter(**parameter) for n, parameter in plain["parameters"].items()
            }
            others = Parameter(**plain["others"]) if "others" in plain else None
            signatures[path] = Signature(**{**plain, "others": others})
        signatures |= {name: signatures[path] for name, path in content["names"].items()}
        return Stored(signatures, content["composed"], content["sources"] == _digest())
    except (OSError, ValueError, LookupError, TypeError, NameError, SyntaxError):
        return Stored()


def _digest() -> str:
    """Return a checksum of the source code and YAML: reading 350 short files takes 10 ms."""
    total = hashlib.sha256()
    sources = (path for name in SOURCES for path in sorted((ROOT / name).rglob("*.py")))
    for path in (*sources, *sorted(CONF.rglob("*.yaml"))):
        total.update(path.read_bytes())
    return total.hexdigest()


def _changed(record: Signature | Parameter) -> dict[str, Any]:
    """Return the values of a record that differ from its defaults, with types as text."""
    defaults = {option.name: option.default for option in dataclasses.fields(record)}
    changed = {name: value for name, value in vars(record).items() if value != defaults[name]}
    if "type" in changed:
        kind = changed["type"]
        changed["type"] = kind.__name__ if isinstance(kind, type) else repr(kind)
    return changed


if __name__ == "__main__":
    update()
