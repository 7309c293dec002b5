"""Build objects from configuration nodes, and decide which code a configuration may name.

A node is a mapping with the key `_target_`, the dotted name of a class or function, and the
arguments of the call. Importing a module runs its code, and a configuration may come from an
untrusted source. Therefore a target must belong to dxn or to a package that the user trusts; any
other target is refused before anything is imported. Only this module imports what a configuration
names.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dxn.config import signatures
from dxn.config.signatures import NO_DEFAULT, Parameter, Signature, functions_of_dxn, signature_from
from dxn.config.values import problem, suggestion
from dxn.core.errors import UserError

Plain = Mapping[str, Any]

SPECIAL = ("_target_", "_partial_")
# Values that are not known yet: interpolations, and values that the user must set.
UNRESOLVED = re.compile(r"\$\{|\?\?\?")
ANYTHING = Signature("", others=Parameter())  # of a mapping without a class
# Packages whose classes a node may name. A model folder may only name parts of a model. A data
# source, for example, could read other files.
MODEL_PACKAGES = ("dxn.tokenize", "dxn.models", "dxn.tasks")
PACKAGES = (*MODEL_PACKAGES, "dxn.data", "dxn.training", "dxn.datasets")
# The signatures of its groups of options, such as weights, can be read, but nothing can be built.
COMMANDS = "dxn.commands"
# The underscore is excluded at the start of each name, so that a target cannot reach __init__,
# __class__ or __builtins__.
DOTTED_NAME = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)+")


def build(node: Plain, *, key: str, trust: Sequence[str] = (), **extra: Any) -> Any:
    """Build the object that a node describes, including all nodes among its arguments.

    Args:
        node: `_target_` and arguments, as `complete` returns them: neither names nor types of the
            arguments are checked again. Arguments may be nodes or lists of nodes. With
            `_partial_: true`, the result is a `Partial`, which builds the object when it is called.
        key: Dotted key of the node in the configuration, for error messages.
        trust: Top-level packages besides dxn whose code may be used.
        extra: Further arguments. Those that the target does not have are ignored, and they have
            priority over arguments of the node.

    Raises:
        UserError: If the target is refused, an argument is missing, or the constructor fails.
    """
    # A node without a class is refused, too.
    target_name = node.get("_target_")
    signature = signature_of(target_name, key=key, trust=trust)
    # Not every class of a group needs all extra arguments, such as `inputs` of a fusion.
    takes_any = signature.others is not None
    names = {*signature.parameters, *signature.from_caller}
    passed = {name: value for name, value in extra.items() if takes_any or name in names}
    if node.get("_partial_"):
        return Partial(node, key, tuple(trust), passed)
    arguments = {
        name: _build_nodes_in(value, f"{key}.{name}", trust)
        if isinstance(value, Mapping | list | tuple)
        else value
        for name, value in node.items()
        if name not in SPECIAL and name not in passed
    }
    arguments |= passed
    for name, parameter in signature.parameters.items():
        if parameter.required and name not in arguments:
            raise UserError(f"{key}.{name}: needs a value, {key}.{name}=...")
    target = resolve(target_name, key=key, trust=trust)
    try:
        return target(**arguments)
    # CPython raises SystemError if it has no memory for the exception itself.
    except (UserError, MemoryError, SystemError):
        raise
    except ValueError as error:
        raise UserError(f"{key}: {error}") from error
    except Exception as error:
        # In classes of dxn, these are caused by a defect and not by the arguments.
        is_own = target.__module__.partition(".")[0] == "dxn"
        if is_own and isinstance(error, AttributeError | LookupError | NameError | AssertionError):
            raise
        # The type of the error is part of the message, because KeyError alone prints only a name.
        raise UserError(f"{key}: {type(error).__name__}: {error}") from error


def _build_nodes_in(value: Plain | Sequence[Any], key: str, trust: Sequence[str]) -> Any:
    """Return a mapping or list with objects instead of its nodes, or the object of one node."""
    if isinstance(value, Mapping) and "_target_" in value:
        return build(value, key=key, trust=trust)
    is_mapping = isinstance(value, Mapping)
    built = [
        (name, _build_nodes_in(item, f"{key}.{name}", trust))
        if isinstance(item, Mapping | list | tuple)
        else (name, item)
        for name, item in (value.items() if is_mapping else enumerate(value))
    ]
    return dict(built) if is_mapping else [item for _, item in built]


@dataclass(frozen=True)
class Partial:
    """A callable that builds the object of a node with further arguments of the caller.

    Nodes among the arguments are built in each call, too. Two calls therefore never share weights,
    and initial weights are drawn in the order in which the model is built.

    Args:
        node: The node, with `_partial_: true`.
        key: Dotted key of the node in the configuration.
        trust: Top-level packages besides dxn whose code may be used.
        passed: The extra arguments that were passed to `build`.
    """

    node: Plain
    key: str
    trust: tuple[str, ...] = ()
    passed: Plain = field(default_factory=dict)

    def __call__(self, **extra: Any) -> Any:
        """Build the object."""
        node = {name: value for name, value in self.node.items() if name != "_partial_"}
        return build(node, key=self.key, trust=self.trust, **{**self.passed, **extra})


def completed(node: Any, trust: Sequence[str] = (), *, key: str = "") -> Any:
    """Return a copy of a configuration with all defaults, see `complete`.

    Raises:
        UserError: If something is wrong in it.
    """
    problems: list[str] = []
    result = complete(node, trust, problems=problems, key=key)
    if problems:
        raise UserError("\n".join(problems))
    return result


def complete(
    node: Plain | Sequence[Any],
    trust: Sequence[str] = (),
    *,
    problems: list[str],
    key: str = "",
    signature: Signature | None = None,
    group: str | None = None,
) -> Any:
    """Return a copy of a configuration with all defaults, and find what is wrong in it.

    A default that is a dataclass (a group of options) becomes a node. A group with only some of its
    options, such as `norm: {eps: 1e-6}`, is completed. Arguments without a default are not added.
    Types of values with interpolations are not checked.

    Args:
        node: The configuration, or a mapping or list in it.
        trust: Top-level packages besides dxn whose code may be used.
        problems: List to which problems are appended: one line per target that is refused, argument
            that a target does not have, and value of a wrong type.
        key: Dotted key of the node in the configuration.
        signature: That of the node. Default: that of its `_target_`, if it has one.
        group: Dotted name of the class that the node must describe. Default: any class.
    """
    if not isinstance(node, Mapping):
        return [
            complete(item, trust, problems=problems, key=f"{key}.{i}")
            if isinstance(item, Mapping | list | tuple)
            else item
            for i, item in enumerate(node)
        ]
    if signature is None and "_target_" in node:
        try:
            signature = signature_of(node["_target_"], key=key, trust=trust)
        except UserError as error:
            problems.append(str(error))
            return node
        if group is not None and group not in signature.bases:
            expected = group.rpartition(".")[2]
            problems.append(f"{key}: must be {expected}, got {node['_target_']}")
    signature = signature or ANYTHING
    # In the order of the signature, which is the order in which `dxn show` prints them.
    expanded = {name: node[name] for name in SPECIAL if name in node}
    for name, parameter in signature.parameters.items():
        if name in node:
            expanded[name] = node[name]
        elif parameter.default is not NO_DEFAULT:
            # A copy, because configurations are changed in place, and signatures are shared.
            expanded[name] = copy.deepcopy(parameter.default)
    for name, value in node.items():
        path = f"{key}.{name}" if key else str(name)
        parameter = signature.parameters.get(name, signature.others)
        if name in SPECIAL:
            continue
        if name in signature.from_caller:
            expanded[name] = value
            continue
        if parameter is None:
            hint = suggestion(str(name), list(signature.parameters))
            wrong = f"{signature.name} has no such argument{';' if hint else ''}{hint}"
            problems.append(f"{path}: {wrong}")
            expanded[name] = value
            continue
        expected = parameter.group if isinstance(value, Mapping) else None
        if expected is not None and "_target_" not in value:
            default = parameter.default
            base = default if isinstance(default, Mapping) else {"_target_": expected}
            value = merge_options(base, value)
        elif expected is None and not (isinstance(value, str) and UNRESOLVED.search(value)):
            wrong = problem(value, parameter.type, parameter.default)
            problems += [f"{path}: {wrong}"] if wrong else []
        if isinstance(value, Mapping | list | tuple):
            value = complete(value, trust, problems=problems, key=path, group=expected)
        expanded[name] = value
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


# Targets


def check_targets(
    values: Any, trust: Sequence[str] = (), *, packages: Sequence[str] = PACKAGES, key: str = ""
) -> None:
    """Check all targets of a configuration without importing anything.

    Args:
        values: A configuration, or any part of one.
        trust: Top-level packages besides dxn whose code may be used.
        packages: Packages of dxn whose classes are allowed.
        key: Dotted key of the values in the configuration.

    Raises:
        UserError: One line per refused target.
    """
    refusals = [
        _refusal(node["_target_"], path, trust, packages) for path, node in nodes_in(values, key)
    ]
    if any(refusals):
        raise UserError("\n".join(filter(None, refusals)))


def resolve(
    target: Any, *, key: str, trust: Sequence[str] = (), packages: Sequence[str] = PACKAGES
) -> Callable[..., Any]:
    """Import the class or function that a target names.

    Raises:
        UserError: If it is refused or does not exist.
    """
    if refusal := _refusal(target, key, trust, packages):
        raise UserError(refusal)
    module_name, _, name = target.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        package = target.partition(".")[0]
        advice = f"; install {package}, or set conf_dir to the folder of its YAML files"
        end = "" if package == "dxn" else advice
        raise UserError(f"{key}: {target} cannot be imported: {error}{end}") from error
    except Exception as error:  # code of a trusted package that fails while it is imported
        raise UserError(f"{key}: importing {module_name} failed: {error!r}") from error
    part: Any = getattr(module, name, None)
    is_error = inspect.isclass(part) and issubclass(part, BaseException)
    # The module that defines it, because modules also contain what they import:
    # dxn.models.attention.nn.Linear is a class of torch.
    defined_in = f"{part.__module__}." if inspect.isclass(part) or inspect.isfunction(part) else ""
    if is_error or not defined_in.startswith(
        tuple(f"{package}." for package in (*packages, *trust))
    ):
        raise UserError(f"{key}: {module_name} has no part {name}")
    return part


def signature_of(target: Any, *, key: str, trust: Sequence[str] = ()) -> Signature:
    """Return the signature of the class or function that a target names.

    A part of dxn is not imported if its signature is stored.

    Raises:
        UserError: If the target is refused or does not exist.
    """
    packages = (*PACKAGES, COMMANDS)
    if refusal := _refusal(target, key, trust, packages):
        raise UserError(refusal)
    stored = signatures.read()
    if stored.is_current and target in stored.signatures:
        return stored.signatures[target]
    return signature_from(resolve(target, key=key, trust=trust, packages=packages))


def _refusal(target: Any, key: str, trust: Sequence[str], packages: Sequence[str]) -> str | None:
    if not isinstance(target, str) or not DOTTED_NAME.fullmatch(target):
        return f"{key}: _target_ must be the dotted name of a class or function, got {target!r}"
    top = target.partition(".")[0]
    # The standard library contains no parts of models, but functions that run programs.
    may_be_trusted = top != "dxn" and top not in sys.stdlib_module_names
    if top in trust and may_be_trusted:
        return None
    if not any(target.startswith(f"{package}.") for package in packages):
        advice = (
            f"; if you trust the code of this package, add trust=[{top}], or conf_dir=FOLDER with "
            "its YAML files if it is not installed"
        )
        return (
            f"{key}: {target} does not belong to dxn and was not imported"
            f"{advice if may_be_trusted else ''}"
        )
    # "Building" a function calls it, and not every function of dxn is harmless. Only the functions
    # that dxn's own YAML files name are allowed.
    if target.rpartition(".")[2][0].islower() and target not in functions_of_dxn():
        return f"{key}: dxn has no part {target}"
    return None


def nodes_in(values: Any, key: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield all nodes of a configuration, which are mappings with `_target_`, with their keys."""
    if isinstance(values, Mapping):
        if "_target_" in values:
            yield key, values
        items: Iterable[tuple[Any, Any]] = values.items()
    elif isinstance(values, list | tuple):
        items = enumerate(values)
    else:
        return
    prefix = f"{key}." if key else ""
    for name, value in items:
        yield from nodes_in(value, f"{prefix}{name}")
