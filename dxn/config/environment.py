"""Values that a configuration takes from environment variables, as in `${oc.env:TOKEN}`.

They can be secrets. The text is used, but what is saved and shown is the interpolation.
A saved interpolation is never resolved again: a run folder of a stranger could name any variable.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from dxn.core.errors import UserError
from dxn.core.printable import hide

RESOLVER = "oc.env"
INTERPOLATION = re.compile(r"\$\{")
# A trained model must be complete without the environment.
MODEL_KEYS = ("adapters", "backbone", "fusion", "head", "dim")
OTHER = "another value"

# Path of a value, such as ("data", "path"). List items have their index as a name.
Path = tuple[str | int, ...]
Texts = dict[Path, str]

_reader: ContextVar[Callable[..., Any]] = ContextVar("reader", default=oc.env)


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

    is_read = False

    def read(*args: Any) -> Any:
        nonlocal is_read
        is_read = True
        value = oc.env(*args)
        if value is not None:
            hide(str(value), f"${{{RESOLVER}:{args[0]}}}")
        return value

    with _replaced(read):
        resolved: Any = OmegaConf.to_container(OmegaConf.create(dict(values)), resolve=True)
    # The text of the configuration does not tell: ${oc.${x}:TOKEN} is resolved in steps.
    if not is_read:
        return resolved, {}
    # What differs in another environment depends on a variable, also through another key.
    try:
        with _replaced(lambda *_: OTHER):
            other = OmegaConf.to_container(OmegaConf.create(dict(values)), resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(
            f"{RESOLVER}: an environment variable can only be the value of an option, not a name"
        ) from error
    texts = dict(_different(values, resolved, other, ()))
    for path in texts:
        if path[0] in MODEL_KEYS:
            raise UserError(
                f"{dotted(path)}: cannot come from the environment, because it is saved with the "
                "model; write the value itself"
            )
    return resolved, texts


def with_interpolations(values: Mapping[str, Any], texts: Texts) -> dict[str, Any]:
    """Return a copy of a configuration in which values of the environment are interpolations."""
    result: Any = copy.deepcopy(dict(values))
    for path, text in texts.items():
        node = result
        for name in path[:-1]:
            node = node[name]
        node[path[-1]] = text
    return result


def interpolations(values: Any, path: Path = ()) -> Texts:
    """Return the interpolations that a saved configuration contains, by path."""
    if isinstance(values, str):
        return {path: values} if INTERPOLATION.search(values) else {}
    items: Any = ()
    if isinstance(values, Mapping):
        items = values.items()
    elif isinstance(values, list):
        items = enumerate(values)
    found: Texts = {}
    for name, value in items:
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


def _read_variable(*args: Any) -> Any:
    """Resolve `${oc.env:...}`."""
    return _reader.get()(*args)


@contextmanager
def _replaced(read: Callable[..., Any]) -> Iterator[None]:
    """Use another function for `${oc.env:...}` in this thread."""
    # Resolvers belong to the whole process. Other threads still get the function of OmegaConf.
    OmegaConf.register_new_resolver(RESOLVER, _read_variable, replace=True)
    token = _reader.set(read)
    try:
        yield
    finally:
        _reader.reset(token)


def _different(raw: Any, value: Any, other: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(raw, str):
        # A number, such as the seed of ${oc.decode:${oc.env:SEED}}, is no secret.
        if value != other and not isinstance(value, bool | int | float):
            yield path, raw
    elif isinstance(raw, Mapping):
        for name in raw:
            yield from _different(raw[name], value[name], other[name], (*path, name))
    elif isinstance(raw, list):
        for i, item in enumerate(raw):
            yield from _different(item, value[i], other[i], (*path, i))
