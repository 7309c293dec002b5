"""How a table is rearranged before its columns are chosen, for example into one series per row.

A layout is a small frozen dataclass. `apply` converts a `Table` into another `Table`, in which one
cell of the new column `values` holds a whole series; all later code sees an ordinary table. A data
source sets `Source.layout` to `Layout.node()`. The model folder stores it with the key `layout` in
config.yaml, `Predictor.layout` is the layout again, and `rows_of_table(..., layout=...)` applies it
to new tables, so that predict and evaluate rearrange them as the training did. A node is plain data
with one key, the kind, as in `{"wide": "t_*"}`. `layout_of` checks a node, which can come from a
stranger's model folder. A new kind of layout needs a subclass of `Layout` and a line in LAYOUTS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dxn.core.errors import UserError
from dxn.data.columns.chats import Chats
from dxn.data.columns.object_rows import ObjectRows
from dxn.data.columns.sentences import Sentences
from dxn.data.series.long import Long, WideColumns
from dxn.data.series.wide import Wide
from dxn.data.series.windows import Windows
from dxn.data.tables.read import Layout

LAYOUTS: dict[str, type[Layout]] = {
    "wide": Wide,
    "long": Long,
    "windows": Windows,
    "sentence": Sentences,
    "chat": Chats,
    "objects": ObjectRows,
}


def chosen_layout(wide: WideColumns | None, long: Long) -> Layout | None:
    """Return the layout that the options of a data source describe; None if there is none.

    Raises:
        UserError: If both options are set, or `wide` is not valid.
    """
    if wide is None:
        return long if long.id is not None else None
    if long.id is not None:
        raise UserError("data.wide: cannot be combined with data.long; remove one of them")
    try:
        return Wide(wide)
    except ValueError as error:
        raise UserError(f"data.wide: {error}") from error


def layout_of(node: Any) -> Layout:
    """Create the layout of a node, see `Layout.node`.

    Raises:
        ValueError: If the node is not valid.
    """
    if not isinstance(node, Mapping) or len(node) != 1:
        raise ValueError(f"layout must have one key, one of {', '.join(LAYOUTS)}, got {node!r}")
    (kind, value), *_ = node.items()
    if kind not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {kind!r}")
    layout: Any = LAYOUTS[kind]
    names = [field.name for field in fields(layout)]
    try:
        if names == ["columns"]:
            return layout(value)
        if not isinstance(value, Mapping):
            raise ValueError(f"{kind} must be a mapping with {', '.join(names)}, got {value!r}")
        return layout(**value)
    except TypeError as error:  # an unknown argument, or a value of a wrong type
        raise ValueError(f"layout.{kind}: {error}") from None
