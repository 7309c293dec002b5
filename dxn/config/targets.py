"""Which code a configuration may name.

A node is a mapping with the key `_target_`, the dotted name of a class or function. Importing a
module runs its code, and a configuration may come from an untrusted source. Therefore a target
must belong
to dxn or to a package that the user trusts; any other target is refused before anything is
imported. Only this module imports what a configuration names.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dxn.config import signatures
from dxn.config.schema import Signature, signature_from
from dxn.core.errors import UserError

# Packages whose classes a node may name. A model folder may only name parts of a model. A data
# source, for example, could read other files.
MODEL_PACKAGES = ("dxn.tokenize", "dxn.models", "dxn.tasks")
PACKAGES = (*MODEL_PACKAGES, "dxn.data", "dxn.training", "dxn.datasets")
# The signatures of its groups of options, such as weights, can be read, but nothing can be built.
COMMANDS = "dxn.commands"
CONF = Path(__file__).parents[1] / "conf"
# The underscore is excluded at the start of each name, so that a target cannot reach __init__,
# __class__ or __builtins__.
DOTTED_NAME = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)+")


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
    problems = [
        problem
        for path, node in nodes_in(values, key)
        if (problem := _refusal(node["_target_"], path, trust, packages))
    ]
    if problems:
        raise UserError("\n".join(problems))


def resolve(
    target: Any, *, key: str, trust: Sequence[str] = (), packages: Sequence[str] = PACKAGES
) -> Callable[..., Any]:
    """Import the class or function that a target names.

    Raises:
        UserError: If it is refused or does not exist.
    """
    problem = _refusal(target, key, trust, packages)
    if problem:
        raise UserError(problem)
    module_name, _, name = target.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(f"{key}: {target} cannot be imported: {error}") from error
    except Exception as error:  # code of a trusted package that fails while it is imported
        raise UserError(f"{key}: importing {module_name} failed: {error!r}") from error
    part: Any = getattr(module, name, None)
    is_error = inspect.isclass(part) and issubclass(part, BaseException)
    # The module that defines it, because modules also contain what they import:
    # dxn.models.attention.nn.Linear is a class of torch.
    defined_in = f"{part.__module__}." if inspect.isclass(part) or inspect.isfunction(part) else ""
    if is_error or not defined_in.startswith(tuple(f"{each}." for each in (*packages, *trust))):
        raise UserError(f"{key}: {module_name} has no part {name}")
    return part


def signature_of(target: Any, *, key: str, trust: Sequence[str] = ()) -> Signature:
    """Return the signature of the class or function that a target names.

    A part of dxn is not imported if its signature is stored.

    Raises:
        UserError: If the target is refused or does not exist.
    """
    problem = _refusal(target, key, trust, (*PACKAGES, COMMANDS))
    if problem:
        raise UserError(problem)
    stored = signatures.find(target)
    if stored is not None:
        return stored
    return signature_from(resolve(target, key=key, trust=trust, packages=(*PACKAGES, COMMANDS)))


def _refusal(target: Any, key: str, trust: Sequence[str], packages: Sequence[str]) -> str | None:
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
    if target.rpartition(".")[2][0].islower() and target not in functions_of_dxn():
        return f"{key}: dxn has no part {target}"
    return None


# Cached, because it reads all YAML files and is needed for every function.
@functools.cache
def functions_of_dxn() -> frozenset[str]:
    """Return the dotted names of the parts in dxn's own YAML files."""
    pattern = re.compile(r"_target_: (dxn\.\S+)")
    names: set[str] = set()
    for path in CONF.rglob("*.yaml"):
        names.update(pattern.findall(path.read_text(encoding="utf-8")))
    return frozenset(names)


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
