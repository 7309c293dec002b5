"""Build objects from configuration nodes.

A node is a mapping with the key `_target_`, the dotted name of a class or function, and the
arguments of the call. `dxn.config.targets` decides which targets are allowed.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from dxn.config.hints import Hint, option_group, suggestion, type_fault
from dxn.config.signatures import NO_DEFAULT
from dxn.config.targets import children, resolve, signature_of
from dxn.core.errors import UserError

Plain = Mapping[str, Any]

# Arguments that the calling code passes to `build`. They are not keys of the configuration.
FROM_CALLER = frozenset({"inputs", "readers", "adapters"})
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
    accepted, takes_any = signature.parameters, signature.others is not None
    # Not every class of a group needs all extra arguments, such as `inputs` of a fusion.
    known = {name: value for name, value in extra.items() if takes_any or name in accepted}
    faults = _argument_faults(node, key=key, trust=trust)
    if faults:
        raise UserError("\n".join(faults))
    if node.get("_partial_"):
        return Partial(node, key, tuple(trust), known)
    below = functools.partial(_build_value, trust=trust)
    arguments = {
        name: below(_as_group(value, signature.hint(name)), key=f"{key}.{name}")
        for name, value in node.items()
        if name not in SPECIAL and name not in known
    }
    arguments |= known
    missing = [n for n, parameter in accepted.items() if parameter.required and n not in arguments]
    if missing:
        raise UserError(f"{key}.{missing[0]}: needs a value, {key}.{missing[0]}=...")
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
    signature = signature_of(node["_target_"], key=key, trust=trust)
    # In the order of the signature, which is the order in which `dxn show` prints them.
    expanded = {name: node[name] for name in SPECIAL if name in node}
    for name, parameter in signature.parameters.items():
        # A copy, because configurations are changed in place, and signatures are shared.
        default = copy.deepcopy(parameter.default)
        if name in node:
            base = default if isinstance(default, Mapping) else None
            group = _as_group(node[name], parameter.hint, base)
            expanded[name] = expand_defaults(group, trust, key=f"{prefix}{name}")
        elif default is not NO_DEFAULT and name not in FROM_CALLER:
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
    for path, value in children(node, key):
        faults += type_errors(value, trust, key=path)
    return faults


def _build_value(value: Any, *, key: str, trust: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return build(value, key=key, trust=trust)
        return {n: _build_value(v, key=f"{key}.{n}", trust=trust) for n, v in value.items()}
    if isinstance(value, list | tuple):
        return [_build_value(v, key=f"{key}.{i}", trust=trust) for i, v in enumerate(value)]
    return value


def _argument_faults(node: Plain, *, key: str, trust: Sequence[str]) -> list[str]:
    signature = signature_of(node.get("_target_"), key=key, trust=trust)
    prefix = f"{key}." if key else ""
    faults = []
    for name, value in node.items():
        if name in SPECIAL:
            continue
        if name not in signature.parameters and signature.others is None:
            # Without a suggestion, the semicolon at the end is removed below.
            hint_at = suggestion(str(name), list(signature.parameters))
            faults.append(f"{prefix}{name}: {signature.name} has no such argument;{hint_at}")
            continue
        hint = signature.hint(name)
        if fault := _group_fault(value, hint, trust) or type_fault(value, hint):
            faults.append(f"{prefix}{name}: {fault}")
    return [fault.removesuffix(";") for fault in faults]


def _group_fault(value: Any, hint: Hint, trust: Sequence[str]) -> str | None:
    """Return what is wrong with a node whose class is not that of its option group."""
    group = option_group(hint)
    if group is None or not isinstance(value, Mapping) or "_target_" not in value:
        return None
    if group in signature_of(value["_target_"], key="_target_", trust=trust).bases:
        return None
    return f"must be {group.rpartition('.')[2]}, got {value['_target_']}"


def _as_group(value: Any, hint: Hint, default: Plain | None = None) -> Any:
    """Add the `_target_` to a mapping of options, such as `norm: {eps: 1e-6}`.

    Args:
        value: Value of an argument. Other values than option groups are returned unchanged.
        hint: Type hint of the argument.
        default: Node of the default, whose options are completed by those of `value`.
    """
    group = option_group(hint)
    if group is None or not isinstance(value, Mapping) or "_target_" in value:
        return value
    return merge_options(default or {"_target_": group}, value)
