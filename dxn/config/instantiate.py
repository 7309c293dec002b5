"""Build objects from configuration nodes.

A node is a mapping with the key `_target_`, the dotted name of a class or function, and the
arguments of the call. `dxn.config.targets` decides which targets are allowed.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from dxn.config.schema import NO_DEFAULT, Signature, option_group, problem, suggestion
from dxn.config.targets import children, resolve, signature_of
from dxn.core.errors import UserError

Plain = Mapping[str, Any]

SPECIAL = ("_target_", "_partial_")


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
    signature = signature_of(node.get("_target_"), key=key, trust=trust)
    accepted = {*signature.parameters, *signature.from_caller}
    # Not every class of a group needs all extra arguments, such as `inputs` of a fusion.
    known = {n: v for n, v in extra.items() if signature.others is not None or n in accepted}
    if problems := _own_problems(node, signature, key, trust):
        raise UserError("\n".join(problems))
    if node.get("_partial_"):
        return Partial(node, key, tuple(trust), known)
    arguments = {
        name: _build_value(_as_group(value, signature.type_of(name)), f"{key}.{name}", trust)
        for name, value in node.items()
        if name not in SPECIAL and name not in known
    }
    arguments |= known
    for name, parameter in signature.parameters.items():
        if parameter.required and name not in arguments:
            raise UserError(f"{key}.{name}: needs a value, {key}.{name}=...")
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


def expand_defaults(
    node: Any, trust: Sequence[str] = (), *, key: str = "", signature: Signature | None = None
) -> Any:
    """Return a copy of a configuration with the defaults of all arguments that it leaves out.

    A default that is a dataclass (a group of options) becomes a node. A group with only some of its
    options, such as `norm: {eps: 1e-6}`, is completed. Arguments without a default are not added.

    Args:
        node: The configuration, or a part of it.
        trust: Top-level packages besides dxn whose code may be used.
        key: Dotted key of the node in the configuration.
        signature: That of the node. Default: that of its `_target_`, if it has one.
    """
    if isinstance(node, list | tuple):
        return [expand_defaults(item, trust, key=f"{key}.{i}") for i, item in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    if signature is None and "_target_" in node:
        signature = signature_of(node["_target_"], key=key, trust=trust)
    # In the order of the signature, which is the order in which `dxn show` prints them.
    expanded = {name: node[name] for name in SPECIAL if name in node}
    parameters = {} if signature is None else signature.parameters
    for name in [*parameters, *node]:
        # Names that are not parameters are arguments of **kwargs, or unknown: reported later.
        if name in expanded:
            continue
        parameter = parameters.get(name)
        # A copy, because configurations are changed in place, and signatures are shared.
        default = copy.deepcopy(NO_DEFAULT if parameter is None else parameter.default)
        if name not in node:
            if default is not NO_DEFAULT:
                expanded[name] = default
            continue
        value = node[name]
        if parameter is not None:
            value = _as_group(value, parameter.type, default)
        expanded[name] = expand_defaults(value, trust, key=f"{key}.{name}" if key else name)
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


def problems_of(node: Any, trust: Sequence[str] = (), *, key: str = "") -> list[str]:
    """Return one line per argument that a target does not have, or whose value has a wrong type."""
    problems: list[str] = []
    if isinstance(node, Mapping) and "_target_" in node:
        signature = signature_of(node["_target_"], key=key, trust=trust)
        problems += _own_problems(node, signature, key, trust)
    for path, value in children(node, key):
        problems += problems_of(value, trust, key=path)
    return problems


def _build_value(value: Any, key: str, trust: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return build(value, key=key, trust=trust)
        return {name: _build_value(v, f"{key}.{name}", trust) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_build_value(v, f"{key}.{i}", trust) for i, v in enumerate(value)]
    return value


def _own_problems(node: Plain, signature: Signature, key: str, trust: Sequence[str]) -> list[str]:
    """Return what is wrong with the arguments of a node, but not what is wrong below them."""
    problems = []
    for name, value in node.items():
        if name in SPECIAL:
            continue
        # Most values are defaults, and checking them would take a tenth of a second.
        if name in signature.parameters and signature.parameters[name].is_default(value):
            continue
        annotation = signature.type_of(name)
        group = option_group(annotation)
        if annotation is None:
            hint = suggestion(str(name), list(signature.parameters))
            wrong = f"{signature.name} has no such argument{';' if hint else ''}{hint}"
        elif group is not None and isinstance(value, Mapping) and "_target_" in value:
            bases = signature_of(value["_target_"], key=f"{key}.{name}", trust=trust).bases
            expected = group.rpartition(".")[2]
            wrong = None if group in bases else f"must be {expected}, got {value['_target_']}"
        else:
            wrong = problem(value, annotation)
        if wrong is not None:
            problems.append(f"{key}.{name}: {wrong}" if key else f"{name}: {wrong}")
    return problems


def _as_group(value: Any, annotation: Any, default: Any = None) -> Any:
    """Add the `_target_` to a mapping of options, such as `norm: {eps: 1e-6}`.

    Args:
        value: Value of an argument. Other values than option groups are returned unchanged.
        annotation: Type of the argument.
        default: Node of the default, whose options are completed by those of `value`.
    """
    group = option_group(annotation)
    if group is None or not isinstance(value, Mapping) or "_target_" in value:
        return value
    return merge_options(default if isinstance(default, Mapping) else {"_target_": group}, value)
