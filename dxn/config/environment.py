"""Values that a configuration takes from environment variables, as in `${oc.env:TOKEN}`.

They can be secrets. The text is used, but what is saved and shown is the interpolation.
A saved interpolation is never resolved again: an untrusted run folder could name any variable.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dxn.core.errors import UserError
from dxn.core.printable import hide

INTERPOLATION = re.compile(r"\$\{")
# An interpolation that names its resolver by another one, such as ${oc.${x}:TOKEN}: it could read
# the environment unnoticed.
HIDDEN_RESOLVER = re.compile(r"\$\{[\w.]*\$\{.*\}[\w.]*:")
# Whether a configuration may read the environment.
MAY_READ = re.compile(r"oc\.(?!select)|\$\{[^}]*\$\{")
# A trained model must be complete without the environment.
MODEL_KEYS = ("adapters", "backbone", "fusion", "head", "dim")
# Around each value of the environment until all interpolations are resolved, so that every text
# that contains it is known. Unicode has no meaning for this character.
MARK = "\ue0e0"

# Path of a value, such as ("data", "path"). List items have their index as a name.
Path = tuple[str | int, ...]
Texts = dict[Path, str]


def resolve(values: Mapping[str, Any]) -> tuple[dict[str, Any], Texts]:
    """Resolve all interpolations of a configuration.

    The values of environment variables are hidden from now on, see `dxn.core.printable.hide`.

    Returns:
        The resolved configuration, and the interpolation of each text that depends on an
        environment variable, by path.

    Raises:
        OmegaConfBaseException: If an interpolation cannot be resolved.
        UserError: If an environment variable is used in another way than as a value of an option.
    """
    if "${" not in str(values):
        return dict(values), {}
    # It takes a tenth of a second, and commands without interpolations do not need it.
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    raw = _with_own_resolvers(dict(values))
    # Names of dxn: the resolvers of OmegaConf itself belong to the whole process.
    OmegaConf.register_new_resolver("dxn.env", _read, replace=True)
    OmegaConf.register_new_resolver("dxn.decode", _decode, replace=True)
    try:
        marked: Any = OmegaConf.to_container(OmegaConf.create(raw), resolve=True)
    except OmegaConfBaseException as error:
        if MARK not in str(error):
            raise
        raise UserError(
            "oc.env: an environment variable can only be the value of an option, not a name"
        ) from error
    texts = dict(_marked(values, marked, ()))
    for path in texts:
        if path[0] in MODEL_KEYS:
            raise UserError(
                f"{dotted(path)}: cannot come from the environment, because it is saved with the "
                "model; write the value itself"
            )
    return _without_mark(marked), texts


def interpolations(values: Any, path: Path = ()) -> Texts:
    """Return the interpolations that a saved configuration contains, by path."""
    if isinstance(values, str):
        return {path: values} if INTERPOLATION.search(values) else {}
    found: Texts = {}
    for name, value in _items(values):
        found |= interpolations(value, (*path, name))
    return found


def fill(saved: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[dict[str, Any], Texts]:
    """Fill the interpolations of a saved configuration with the values of the same options.

    Returns:
        The configuration, and its interpolations by path.
    """
    texts = interpolations(saved)
    result: Any = copy.deepcopy(dict(saved))
    for path in texts:
        node: Any = result
        other: Any = values
        for name in path[:-1]:
            node, other = node[name], other[name]
        node[path[-1]] = other[path[-1]]
    return result, texts


def require_no_interpolations(values: Any, advice: str = "") -> None:
    """Check that no value of a saved configuration came from the environment.

    Args:
        values: The configuration, or a part of it.
        advice: What to do. Default: write the option again.

    Raises:
        UserError: One line per value that did.
    """
    lines = []
    for path, text in interpolations(values).items():
        key = dotted(path)
        lines.append(
            f"{key}: came from the environment ({text}) and is not saved; "
            f"{advice or f'write {key}=... again'}"
        )
    if lines:
        raise UserError("\n".join(lines))


def dotted(path: Path) -> str:
    """Return a path as the user types it, such as data.path."""
    return ".".join(map(str, path))


def _read(*args: Any) -> Any:
    """Resolve `${oc.env:NAME}` or `${oc.env:NAME,DEFAULT}`."""
    from omegaconf.resolvers import oc

    value = oc.env(*args)
    if value is None:
        return None
    hide(str(value), f"${{oc.env:{args[0]}}}")
    return f"{MARK}{value}{MARK}"


def _decode(text: Any, _parent_: Any, _node_: Any) -> Any:
    """Resolve `${oc.decode:TEXT}`, such as a number that is the text of a variable."""
    from omegaconf.resolvers import oc

    is_marked = isinstance(text, str) and MARK in text
    value = oc.decode(_without_mark(text), _parent_, _node_)
    return f"{MARK}{value}{MARK}" if is_marked and isinstance(value, str) else value


def _with_own_resolvers(value: Any) -> Any:
    if isinstance(value, str):
        if HIDDEN_RESOLVER.search(value):
            raise UserError(f"{value}: the name of a resolver cannot be an interpolation")
        for name in ("env", "decode"):
            value = re.sub(rf"\$\{{\s*oc\.{name}\s*:", f"${{dxn.{name}:", value)
        return value
    if isinstance(value, Mapping):
        return {name: _with_own_resolvers(item) for name, item in value.items()}
    return [_with_own_resolvers(item) for item in value] if isinstance(value, list) else value


def _without_mark(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(MARK, "")
    if isinstance(value, Mapping):
        return {name: _without_mark(item) for name, item in value.items()}
    return [_without_mark(item) for item in value] if isinstance(value, list) else value


def _marked(raw: Any, value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path and the interpolation of each text that depends on the environment."""
    if isinstance(raw, str):
        # An interpolation can also be that of a whole mapping or list.
        if _without_mark(value) != value:
            yield path, raw
    else:
        for name, item in _items(raw):
            yield from _marked(item, value[name], (*path, name))


def _items(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()
