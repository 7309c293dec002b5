"""Build objects from configuration nodes.

A node is a mapping with the key `_target_`, the dotted name of a class or function, and the
arguments of the call. `dxn.config.targets` decides which targets are allowed.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from dxn.config.schema import NO_DEFAULT, Signature, problem, suggestion
from dxn.config.targets import check_targets, nodes_in, resolve, signature_of
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
    check_targets(node if "_target_" in node else {**node, "_target_": None}, trust, key=key)
    expanded = expand_defaults(node, trust, key=key)
    if problems := problems_of(expanded, trust, key=key):
        raise UserError("\n".join(problems))
    return _make(expanded, key, trust, extra)


def _make(value: Any, key: str, trust: Sequence[str], extra: Plain) -> Any:
    """Build the nodes of a configuration that has been checked.

    Args:
        value: A node, or any other value.
        key: Dotted key of the value.
        trust: Top-level packages besides dxn whose code may be used.
        extra: Further arguments, if the value is a node.
    """
    if isinstance(value, list | tuple):
        return [_make(item, f"{key}.{i}", trust, {}) for i, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if "_target_" not in value:
        return {name: _make(item, f"{key}.{name}", trust, {}) for name, item in value.items()}
    signature = signature_of(value["_target_"], key=key, trust=trust)
    # Not every class of a group needs all extra arguments, such as `inputs` of a fusion.
    known = {name: each for name, each in extra.items() if signature.parameter(name) is not None}
    if value.get("_partial_"):
        return Partial(value, key, tuple(trust), known)
    arguments = {
        name: _make(item, f"{key}.{name}", trust, {})
        for name, item in value.items()
        if name not in SPECIAL and name not in known
    }
    arguments |= known
    for name, parameter in signature.parameters.items():
        if parameter.required and name not in arguments:
            raise UserError(f"{key}.{name}: needs a value, {key}.{name}=...")
    target = resolve(value["_target_"], key=key, trust=trust)
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
        return _make(node, self.key, self.trust, {**self.known, **extra})


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
    others = None if signature is None else signature.others
    for name in [*parameters, *node]:
        # Names that are not parameters are arguments of **kwargs, or unknown: reported later.
        if name in expanded:
            continue
        parameter = parameters.get(name, others)
        # A copy, because configurations are changed in place, and signatures are shared.
        default = copy.deepcopy(NO_DEFAULT if parameter is None else parameter.default)
        if name not in node:
            if default is not NO_DEFAULT:
                expanded[name] = default
            continue
        value = node[name]
        group = None if parameter is None else parameter.group
        if group is not None and isinstance(value, Mapping) and "_target_" not in value:
            base = default if isinstance(default, Mapping) else {"_target_": group}
            value = merge_options(base, value)
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


def problems_of(values: Any, trust: Sequence[str] = (), *, key: str = "") -> list[str]:
    """Return one line per argument that a target does not have, or whose value has a wrong type."""
    problems = []
    for path, node in nodes_in(values, key):
        signature = signature_of(node["_target_"], key=path, trust=trust)
        for name, value in node.items():
            parameter = signature.parameter(name)
            if name in SPECIAL:
                continue
            if parameter is None:
                hint = suggestion(str(name), list(signature.parameters))
                wrong = f"{signature.name} has no such argument{';' if hint else ''}{hint}"
            elif parameter.group is not None and isinstance(value, Mapping):
                target = value.get("_target_", parameter.group)
                bases = signature_of(target, key=f"{path}.{name}", trust=trust).bases
                expected = parameter.group.rpartition(".")[2]
                wrong = None if parameter.group in bases else f"must be {expected}, got {target}"
            else:
                wrong = problem(value, parameter.type, parameter.default)
            if wrong is not None:
                problems.append(f"{path}.{name}: {wrong}" if path else f"{name}: {wrong}")
    return problems
