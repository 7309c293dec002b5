"""How the cells of a target column write the labels of their rows."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from dxn.core.errors import UserError
from dxn.core.schema import Strict
from dxn.tasks.names import class_name
from dxn.tokenize.cells.numbers import are_numbers

SEPARATOR = "|"  # usual text between the labels of one cell, as in "red|round"
# Other texts between labels. They also occur in the names of classes, so they are only suggested.
SUGGESTED = (";", ",", " / ", "/", " + ", "+", "&", "\t", " ")
YES = frozenset({"1", "1.0", "true", "yes", "t", "y"})
NO = frozenset({"0", "0.0", "false", "no", "f", "n"})
QUOTES = "'\""


class LabelFormat(Strict):
    """How target cells write labels.

    Args:
        separator: Text between the labels of one cell.
        flags: Those of several target columns that say whether a label applies, such as 0 and 1.
        num_flags: Length of lists that say by 0 and 1 whether each label applies. 0: lists contain
            the labels themselves.
    """

    separator: Annotated[str, Field(min_length=1)] = SEPARATOR
    flags: list[str] = Field(default_factory=list)
    num_flags: Annotated[int, Field(ge=0)] = 0

    @classmethod
    def find(cls, values: Sequence[Any], separator: str) -> LabelFormat:
        """Return the format of the cells of a column, which are never None."""
        rows = [value for value in values if isinstance(value, Mapping)]
        columns = dict.fromkeys(name for row in rows for name in row)
        flags = [c for c in columns if _are_flags([row[c] for row in rows if c in row])]
        num_flags = _num_flags(list(map(list_of, values)))
        return cls(separator=separator, flags=flags, num_flags=num_flags)

    def parse(self, value: Any, origin: str) -> list[str]:
        """Return the labels of a cell.

        Raises:
            UserError: If the cell has another format.
        """
        if isinstance(value, Mapping):
            items = self._labels_of(value, origin)
        elif (listed := list_of(value)) is not None:
            items = self._listed(listed, origin)
        elif isinstance(value, str):
            items = value.split(self.separator)
        else:
            raise UserError(f"{origin}: the target must be a list, got {value!r}")
        names = [class_name(item) for item in items if item is not None]
        return [name for name in dict.fromkeys(names) if name]

    def _labels_of(self, row: Mapping[str, Any], origin: str) -> list[str]:
        """Return the labels of several columns: the name of a flag, or "name=value"."""
        labels: list[str] = []
        for name, value in row.items():
            if value is None:
                continue
            if name not in self.flags:
                labels.append(f"{name}={class_name(value)}")
            elif _is_yes(value, f"{origin}: column {name!r}"):
                labels.append(name)
        return labels

    def _listed(self, items: list[Any], origin: str) -> list[Any]:
        if not self.num_flags:
            return items
        if len(items) != self.num_flags:
            raise UserError(
                f"{origin}: the target must be a list of {self.num_flags} values 0 or 1, got "
                f"{len(items)} values"
            )
        return [i for i, item in enumerate(items) if _is_yes(item, origin)]


def are_label_lists(values: Sequence[Any]) -> bool:
    """Return whether there are cells, and all of them are lists, or rows of several columns."""
    return bool(values) and all(
        isinstance(value, Mapping) or list_of(value) is not None for value in values
    )


def are_joined(values: Sequence[Any], separator: str = SEPARATOR) -> bool:
    """Return whether cells are labels with a separator between them."""
    if are_numbers(values):
        return False  # a number never contains a separator
    joined = [str(value).split(separator) for value in values if separator in str(value)]
    pieces = [piece.strip() for parts in joined for piece in parts]
    # Labels repeat. If most pieces are distinct, the separator is punctuation in a text.
    labels_repeat = len(set(pieces)) <= len(pieces) / 2
    # If at most 5% of the rows contain the separator, it is a character of a class name.
    return labels_repeat and len(joined) > len(values) / 20


def list_of(value: Any) -> list[Any] | None:
    """Return the labels of a list, or of its text in JSON, Python or NumPy; None if neither."""
    if isinstance(value, list | tuple):
        return list(value)
    if not isinstance(value, str) or not (value[:1] == "[" and value[-1:] == "]"):
        return None
    items = _read_list(value)
    # A list of objects, lists or quantities contains no labels.
    is_plain = items is not None and all(_is_label(item) for item in items)
    return items if is_plain else None


def explain_joined(values: Sequence[Any]) -> str:
    """Return a sentence about cells that seem to join a few labels. "": they do not."""
    distinct = {class_name(value) for value in values if isinstance(value, str)}
    for separator in SUGGESTED:
        rows = [[part.strip() for part in value.split(separator)] for value in distinct]
        joined = [row for row in rows if len(row) > 1]
        parts = sorted({part for row in rows for part in row if part})
        # The words of names such as "very good" and "good" have few combinations.
        enough = 2 * len(parts) if separator == " " else len(parts) + 1
        if len(parts) < 2 or len(joined) < 1 or len(distinct) < enough:
            continue
        return (
            f"{len(distinct):,} different values are combinations of {len(parts)} parts "
            f"({', '.join(parts[:3])}{', ...' if len(parts) > 3 else ''}) with {separator!r} "
            f"between them: each combination is a class; set head=multilabel and head.separator="
            f"{separator!r} to make each part a label"
        )
    return ""


def _read_list(text: str) -> list[Any] | None:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    inner = text[1:-1]
    try:
        # NumPy writes no commas. Python would join its texts 'a' 'b' to 'ab'.
        if "," not in inner:
            items = shlex.split(inner)
            is_quoted = any(quote in inner for quote in QUOTES)
            # Words without quotes are the name of a class, such as [UNK].
            return items if is_quoted else [_whole(item) for item in items]
        # A backslash is a character of a label here: Python warns about unknown escapes.
        read = ast.literal_eval(text.replace("\\", "\\\\"))
    except (ValueError, SyntaxError, RecursionError, MemoryError, OverflowError):
        return None
    return read if isinstance(read, list) else None


def _whole(text: str) -> int | bool:
    if text in ("True", "False"):
        return text == "True"
    number = float(text)
    if not number.is_integer():
        raise ValueError(f"must be a whole number, got {text}")
    return int(number)


def _is_label(item: Any) -> bool:
    is_whole = isinstance(item, float) and item.is_integer()
    return item is None or is_whole or isinstance(item, str | int)


def _num_flags(lists: Sequence[list[Any] | None]) -> int:
    """Return the length of lists of 0 and 1, if all lists have it; 0 for lists of other labels."""
    if not lists or any(items is None for items in lists):
        return 0
    rows = [items for items in lists if items is not None]
    length = len(rows[0])
    if length < 2 or any(len(row) != length or not _are_flags(row) for row in rows):
        return 0
    # Lists of the ids 0 and 1 contain neither of them twice.
    return length if any(len(set(map(str, row))) < length for row in rows) else 0


def _are_flags(values: Sequence[Any]) -> bool:
    present = {str(value).strip().lower() for value in values if value is not None}
    return bool(present) and present <= YES | NO


def _is_yes(value: Any, where: str) -> bool:
    name = str(value).strip().lower()
    if name not in YES | NO:
        raise UserError(f"{where}: must be 0 or 1, as in the training, got {value!r}")
    return name in YES
