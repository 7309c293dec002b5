"""Build objects from configuration nodes. Only this module imports what a configuration names.

A node is a mapping with the key `_target_`, the dotted name of a class or function, and the
arguments of the call. Importing a module runs its code, and a configuration may come from a
stranger. Therefore a target must belong to dxn or to a package that the user trusts; any other
target is refused before anything is imported.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dxn.errors import UserError
from dxn.hints import option_group, suggestion, type_fault
from dxn.signatures import class_path, hints, parameters, plain_default, takes_any_name

Plain = Mapping[str, Any]

# Packages whose classes a node may name. A model folder may only name parts of a model. A data
# source, for example, could read other files.
MODEL_PACKAGES = ("dxn.tokenize", "dxn.models", "dxn.tasks")
PACKAGES = (*MODEL_PACKAGES, "dxn.data", "dxn.train")
CONF = Path(__file__).parent / "conf"
# Arguments that the calling code passes to `build`. They are not keys of the configuration.
FROM_CALLER = frozenset({"inputs", "preprocessors", "adapters", "model"})
SPECIAL = ("_target_", "_partial_")
# The underscore is excluded at the start of each name, so that a target cannot reach __init__,
# __class__ or __builtins__.
DOTTED_NAME = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)+")


def build(node: Plain, *, key: str, trust: Sequence[str] = (), **extra: Any) -> Any:
    """Build the object that a node describes, including all nodes among its arguments.

    Args:
        node: `_target_` and arguments. Arguments may be nodes or lists of nodes. With
            `_partial_: true`, the result is a `Partial`, which builds the object when it is called.
        key: Dotted key of the node in the configuration, for error messages.
        trust: Top-level packages besides dxn whose code may be used.
        extra: Further arguments. Those that the target does not have are ignored, and they have
            priority over arguments of the node.

    Raises:
        UserError: If the target is refused, an argument is wrong, or the constructor fails.
    """
    target = resolve(node.get("_target_"), key=key, trust=trust)
    accepted = parameters(target)
    takes_any = takes_any_name(target)
    # Not every class of a group needs all extra arguments, such as `inputs` of a fusion.
    known = {name: value for name, value in extra.items() if takes_any or name in accepted}
    faults = _argument_faults(node, key=key, trust=trust)
    if faults:
        raise UserError("\n".join(faults))
    if node.get("_partial_"):
        return Partial(node, key, tuple(trust), known)
    below = functools.partial(_build_value, trust=trust)
    arguments = {
        name: below(_as_group(value, hints(target).get(name)), key=f"{key}.{name}")
        for name, value in node.items()
        if name not in SPECIAL and name not in known
    }
    arguments |= known
    missing = [n for n, p in accepted.items() if p.default is p.empty and n not in arguments]
    if missing:
        raise UserError(f"{key}.{missing[0]}: needs a value, {key}.{missing[0]}=...")
    try:
        return target(**arguments)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{key}: {error}") from error
    except Exception as error:
        # The arguments come from the configuration, so any failure is a problem of the user. The
        # type of the error is part of the message, because KeyError alone prints only a name.
        raise UserError(f"{key}: {type(error).__name__}: {error}") from error


@dataclasses.dataclass(frozen=True)
class Partial:
    """A callable that builds the object of a node with further arguments of the caller.

    Nodes among the arguments are built in each call, too. Two calls therefore never share weights,
    and initial weights are drawn in the order in which the model is built.

    Args:
        node: The node, with `_partial_: true`.
        key: Dotted key of the node in the configuration.
        trust: Top-level packages besides dxn whose code may be used.
        known: The extra arguments that were passed to `build`.
    """

    node: Plain
    key: str
    trust: tuple[str, ...] = ()
    known: Plain = dataclasses.field(default_factory=dict)

    def __call__(self, **extra: Any) -> Any:
        """Build the object."""
        node = {name: value for name, value in self.node.items() if name != "_partial_"}
        return build(node, key=self.key, trust=self.trust, **{**self.known, **extra})


def check_targets(
    node: Any, trust: Sequence[str] = (), *, packages: Sequence[str] = PACKAGES, key: str = ""
) -> None:
    """Check all targets of a configuration without importing anything.

    Args:
        node: A configuration, or any part of one.
        trust: Top-level packages besides dxn whose code may be used.
        packages: Packages of dxn whose classes are allowed.
        key: Dotted key of the node in the configuration.

    Raises:
        UserError: One line per refused target.
    """
    faults = [
        fault
        for path, target in _targets(node, key)
        if (fault := _target_fault(target, path, trust, packages))
    ]
    if faults:
        raise UserError("\n".join(faults))


def resolve(
    target: Any, *, key: str, trust: Sequence[str] = (), packages: Sequence[str] = PACKAGES
) -> Callable[..., Any]:
    """Import the class or function that a target names.

    Raises:
        UserError: If it is refused or does not exist.
    """
    fault = _target_fault(target, key, trust, packages)
    if fault:
        raise UserError(fault)
    module_name, _, name = target.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(f"{key}: {target} cannot be imported: {error}") from error
    except Exception as error:  # code of a trusted package that fails while it is imported
        raise UserError(f"{key}: importing {module_name} failed: {error!r}") from error
    target_object = getattr(module, name, None)
    if not _is_part(target_object, trust, packages):
        raise UserError(f"{key}: {module_name} has no part {name}")
    return typing.cast("Callable[..., Any]", target_object)


def expand_defaults(node: Any, trust: Sequence[str] = (), *, key: str = "") -> Any:
    """Return a copy of a configuration with the defaults of all arguments that it leaves out.

    A default that is a dataclass (a group of options) becomes a node. A group with only some of its
    options, such as `norm: {eps: 1e-6}`, is completed. Arguments without a default are not added.
    """
    if isinstance(node, list | tuple):
        return [expand_defaults(item, trust, key=f"{key}.{i}") for i, item in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    prefix = f"{key}." if key else ""
    if "_target_" not in node:
        return {n: expand_defaults(v, trust, key=f"{prefix}{n}") for n, v in node.items()}
    target = resolve(node["_target_"], key=key, trust=trust)
    # In the order of the signature, which is the order in which `dxn show` prints them.
    expanded = {name: node[name] for name in SPECIAL if name in node}
    for name, parameter in parameters(target).items():
        default = plain_default(parameter.default)
        if name in node:
            base = default if isinstance(default, Mapping) else None
            group = _as_group(node[name], hints(target).get(name), base)
            expanded[name] = expand_defaults(group, trust, key=f"{prefix}{name}")
        elif default is not inspect.Parameter.empty and name not in FROM_CALLER:
            expanded[name] = default
    # Arguments of a **kwargs parameter, and unknown arguments, which are reported later.
    for name in node:
        if name not in expanded:
            expanded[name] = expand_defaults(node[name], trust, key=f"{prefix}{name}")
    return expanded


def merge_options(base: Plain, options: Plain) -> dict[str, Any]:
    """Return nested options, with values of `options` replacing those of `base`."""
    merged = dict(base)
    for name, new in options.items():
        old = merged.get(name)
        # A node with a class replaces the old one: the options of two classes do not mix.
        is_group = isinstance(new, Mapping) and "_target_" not in new
        merged[name] = merge_options(old, new) if is_group and isinstance(old, Mapping) else new
    return merged


def type_errors(node: Any, trust: Sequence[str] = (), *, key: str = "") -> list[str]:
    """Return one line per argument that a target does not have, or whose value has a wrong type."""
    faults: list[str] = []
    if isinstance(node, Mapping) and "_target_" in node:
        faults += _argument_faults(node, key=key, trust=trust)
    for path, value in _children(node, key):
        faults += type_errors(value, trust, key=path)
    return faults


def load_plain(path: Path) -> dict[str, Any]:
    """Read a YAML mapping that may come from a stranger.

    Only plain data is read: interpolations such as `${oc.env:TOKEN}` are not resolved. Aliases are
    refused, because nested aliases in a small file can expand to gigabytes.

    Raises:
        UserError: If the file cannot be read or is not a mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _NoAliasLoader)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    # A few kilobytes of brackets exceed the recursion limit of Python.
    except RecursionError as error:
        raise UserError(f"{path}: not valid YAML: nested too deeply") from error
    # ValueError: the file is not UTF-8, or a date in it does not exist.
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise UserError(
            f"{path}: must be a mapping whose keys are strings, got {type(content).__name__}"
        )
    return content


class _NoAliasLoader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed")
        return super().compose_node(parent, index)


def _build_value(value: Any, *, key: str, trust: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return build(value, key=key, trust=trust)
        return {n: _build_value(v, key=f"{key}.{n}", trust=trust) for n, v in value.items()}
    if isinstance(value, list | tuple):
        return [_build_value(v, key=f"{key}.{i}", trust=trust) for i, v in enumerate(value)]
    return value


def _target_fault(
    target: Any, key: str, trust: Sequence[str], packages: Sequence[str]
) -> str | None:
    if not isinstance(target, str) or not DOTTED_NAME.fullmatch(target):
        return f"{key}: _target_ must be the dotted name of a class or function, got {target!r}"
    top = target.partition(".")[0]
    # The standard library contains no parts of models, but functions that run programs.
    may_be_trusted = top != "dxn" and top not in sys.stdlib_module_names
    if top in trust and may_be_trusted:
        return None
    if not any(target.startswith(f"{package}.") for package in packages):
        advice = f"; if you trust the code of this package, add trust=[{top}]"
        return (
            f"{key}: {target} does not belong to dxn and was not imported"
            f"{advice if may_be_trusted else ''}"
        )
    # "Building" a function calls it, and not every function of dxn is harmless. Only the functions
    # that dxn's own YAML files name are allowed.
    if target.rpartition(".")[2][0].islower() and target not in _functions_of_dxn():
        return f"{key}: dxn has no part {target}"
    return None


def _is_part(target: Any, trust: Sequence[str], packages: Sequence[str]) -> bool:
    """Whether a target is a class or function that is defined in an allowed package."""
    if not (inspect.isclass(target) or inspect.isfunction(target)):
        return False
    if inspect.isclass(target) and issubclass(target, BaseException):
        return False
    # The module that defines it, because modules also contain what they import:
    # dxn.models.attention.nn.Linear is a class of torch.
    module = f"{target.__module__}."
    return any(module.startswith(f"{package}.") for package in (*packages, *trust))


# Cached, because it reads all YAML files and is needed for every function.
@functools.cache
def _functions_of_dxn() -> frozenset[str]:
    """Return the targets in dxn's own YAML files."""
    pattern = re.compile(r"_target_: (dxn\.\S+)")
    names: set[str] = set()
    for path in CONF.rglob("*.yaml"):
        names.update(pattern.findall(path.read_text(encoding="utf-8")))
    return frozenset(names)


def _targets(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield the key and the `_target_` of every node in a configuration."""
    if isinstance(node, Mapping) and "_target_" in node:
        yield key, node["_target_"]
    for path, value in _children(node, key):
        yield from _targets(value, path)


def _children(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of a mapping or list with their dotted keys; nothing for other values."""
    prefix = f"{key}." if key else ""
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield f"{prefix}{name}", value
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            yield f"{prefix}{i}", value


def _argument_faults(node: Plain, *, key: str, trust: Sequence[str]) -> list[str]:
    target = resolve(node.get("_target_"), key=key, trust=trust)
    accepted, expected = parameters(target), hints(target)
    prefix = f"{key}." if key else ""
    faults = []
    for name, value in node.items():
        if name in SPECIAL:
            continue
        if name not in accepted and "**" not in expected:
            # Without a suggestion, the semicolon at the end is removed below.
            hint_at = suggestion(str(name), list(accepted))
            faults.append(f"{prefix}{name}: {target.__name__} has no such argument;{hint_at}")
            continue
        hint = expected.get(name, expected.get("**", Any) if name not in accepted else Any)
        if fault := _group_fault(value, hint, trust) or type_fault(value, hint):
            faults.append(f"{prefix}{name}: {fault}")
    return [fault.removesuffix(";") for fault in faults]


def _group_fault(value: Any, hint: Any, trust: Sequence[str]) -> str | None:
    """Return what is wrong with a node whose class is not that of its option group."""
    group = option_group(hint)
    if group is None or not isinstance(value, Mapping) or "_target_" not in value:
        return None
    target = resolve(value["_target_"], key="_target_", trust=trust)
    if inspect.isclass(target) and issubclass(target, group):
        return None
    return f"must be {group.__name__}, got {value['_target_']}"


def _as_group(value: Any, hint: Any, default: Plain | None = None) -> Any:
    """Add the `_target_` to a mapping of options, such as `norm: {eps: 1e-6}`.

    Args:
        value: Value of an argument. Other values than option groups are returned unchanged.
        hint: Type hint of the argument.
        default: Node of the default, whose options are completed by those of `value`.
    """
    group = option_group(hint)
    if group is None or not isinstance(value, Mapping) or "_target_" in value:
        return value
    return merge_options(default or {"_target_": class_path(group)}, value)
