"""Fingerprints of opened data, which tell whether a resumed run has the same rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dxn.core.display import count
from dxn.data.dataset import Opened
from dxn.data.files import digest
from dxn.data.raws import RawFiles, digest_of
from dxn.data.rows import TARGET, Column

ORDER = "order"  # the digest of the rows, and below the one that does not depend on their order
SET = "set"
NUM_BYTES = 16  # of each digest, also of those of `dxn.data.files`
MAX_KNOWN = 10_000  # texts whose digests are remembered

# {"rows": number of rows, "columns": {name: digest}, "order": digest, "set": digest}
Fingerprint = dict[str, Any]


def fingerprint(splits: Mapping[str, Opened]) -> dict[str, Fingerprint]:
    """Return a fingerprint of each split: the number of rows, and digests of their content."""
    prints: dict[str, Fingerprint] = {}
    for split, opened in splits.items():
        columns: dict[str, npt.NDArray[np.uint8]] = {}
        for name, raws in sorted(opened.raws.items()):
            columns[name] = _cells(raws, opened.present[name])
        if opened.targets is not None:
            present = np.array([target is not None for target in opened.targets], bool)
            columns[TARGET] = _cells(Column.of(opened.targets), present)
        # One digest per row, of all its cells. The widths tell apart rows whose joined cells are
        # equal.
        widths = repr([cells.shape[1] for cells in columns.values()]).encode()
        matrix = np.hstack([np.zeros((len(opened), 0), np.uint8), *columns.values()])
        rows = np.empty(len(opened), f"V{NUM_BYTES}")
        for i, row in enumerate(matrix):
            rows[i] = hashlib.blake2b(row, digest_size=NUM_BYTES).digest()
        # In the order of their bytes.
        high, low = rows.view(">u8").reshape(-1, 2).T
        ordered = rows[np.lexsort((low, high))]
        prints[split] = {
            "rows": len(opened),
            "columns": {name: _digest(cells.tobytes()) for name, cells in columns.items()},
            ORDER: _digest(widths + rows.tobytes()),
            SET: _digest(widths + ordered.tobytes()),
        }
    return prints


def differences(old: Mapping[str, Fingerprint], new: Mapping[str, Fingerprint]) -> list[str]:
    """Return one sentence per split that has changed."""
    lines: list[str] = []
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new:
            lines.append(f"the {name} split {'is new' if name in new else 'is missing'}")
        elif change := _difference(old[name], new[name]):
            lines.append(f"the {name} split has {change}")
    return lines


def _difference(old: Fingerprint, new: Fingerprint) -> str:
    if old["rows"] != new["rows"]:
        return f"{count(new['rows'], 'row')} instead of {old['rows']:,}"
    if old[SET] == new[SET]:
        return "" if old[ORDER] == new[ORDER] else "its rows in another order"
    columns = {name: new["columns"].get(name) for name in old["columns"]}
    changed = [name for name, value in old["columns"].items() if columns[name] != value]
    return f"other values of {', '.join(changed)}" if changed else "other columns"


def _cells(column: Column, present: np.ndarray) -> npt.NDArray[np.uint8]:
    """Return the content of a column as bytes, (rows, bytes per cell).

    Plain numbers are their own content. Hashing each of them would take seconds for a large table.
    """
    content = np.zeros(len(column), f"V{NUM_BYTES}")
    if isinstance(column.values, RawFiles):
        facts = column.values.facts[column.rows]
        has_digest = present & ~np.isnan(facts["num_tokens"])
        content[has_digest] = facts["digest"][has_digest]
        for i in np.flatnonzero(present & ~has_digest).tolist():
            content[i] = digest_of(column, i)
    elif present.any() and all(cell is None or type(cell) is float for cell in column):
        # A missing number becomes NaN, and the last byte tells it apart from a NaN in the data.
        content = np.array(list(column), np.float64)
    else:
        digest_of_text = lru_cache(MAX_KNOWN)(digest)  # texts often repeat
        for i, cell in enumerate(column):
            if present[i]:
                content[i] = digest_of_text(cell) if type(cell) is str else digest(cell)
    return np.hstack([content[:, None].view(np.uint8), present[:, None].view(np.uint8)])


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=NUM_BYTES).hexdigest()
