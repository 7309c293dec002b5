"""Options of the Python interface as overrides of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dxn.config.groups import options as options_of
from dxn.core.errors import UserError
from dxn.core.printable import quoted

SEPARATOR = "__"  # stands for a dot in the name of a Python argument
PATH = "data.path"


def to_overrides(options: Mapping[str, Any], parent: str = "") -> list[str]:
    """Return options as overrides, such as trainer={"epochs": 3} as trainer.epochs=3.

    Args:
        options: Values by name. Two underscores in a name stand for a dot. A mapping contains
            options of a part.
        parent: Key of the part, with a dot at its end.
    """
    lines: list[str] = []
    for name, value in options.items():
        key = f"{parent}{name.replace(SEPARATOR, '.')}"
        if isinstance(value, Mapping):
            lines += to_overrides(value, f"{key}.")
        else:
            lines.append(f"{key}={_text(value)}")
    return lines


def data_overrides(data: Any) -> list[str]:
    """Return the overrides for data that is not in memory: a path, several paths, or a source.

    Args:
        data: None, a path, a list of paths, an override such as "data=digits", or the name of a
            data source.

    Raises:
        UserError: If it is something else.
    """
    if data is None:
        return []
    if isinstance(data, Path):
        return [f"{PATH}={data}"]
    if isinstance(data, str):
        if Path(data).exists():
            return [f"{PATH}={data}"]
        if "=" in data:
            return [data]
        return [f"data={data}" if data in options_of("data") else f"{PATH}={data}"]
    if isinstance(data, list | tuple) and all(isinstance(item, str | Path) for item in data):
        return [f"{PATH}={_item([str(item) for item in data])}"]
    raise UserError(
        "data: must be a path, a pandas.DataFrame, a datasets.Dataset, or a dict of splits such as "
        f"{{'train': frame, 'test': frame}}, got {type(data).__name__}; convert it with "
        "pandas.DataFrame(...)"
    )


def _text(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        # The command line removes spaces around a value, and an empty value is an error there.
        return value if value and value == value.strip() else quoted(value)
    return _item(value)


def _item(value: Any) -> str:
    """Return a value in Hydra's grammar, in which the texts of a list need quotes."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return quoted(str(value))
    if isinstance(value, Sequence):
        return f"[{','.join(map(_item, value))}]"
    return str(value)
