"""Fingerprints of opened data, which tell whether a resumed run has the same rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from dxn.data.opening import Opened
from dxn.data.raws import digest, digest_of, is_present
from dxn.display import count

TARGET = "target"
ORDER = "order"  # the digest of the rows, and below the one that does not depend on their order
SET = "set"

# {"rows": number of rows, "columns": {name: digest}, "order": digest, "set": digest}
Fingerprint = dict[str, Any]


def fingerprint(splits: Mapping[str, Opened]) -> dict[str, Fingerprint]:
    """Return a fingerprint of each split: the number of rows, and digests of their content."""
    return {name: _of_split(opened) for name, opened in splits.items()}


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


def _of_split(opened: Opened) -> Fingerprint:
    columns = {
        name: [digest_of(raws, row) if is_present(raws, row) else b"" for row in range(len(opened))]
        for name, raws in sorted(opened.raws.items())
    }
    if opened.targets is not None:
        columns[TARGET] = [digest(target) for target in opened.targets]
    rows = [b"".join(cells) for cells in zip(*columns.values(), strict=True)]
    return {
        "rows": len(opened),
        "columns": {name: _joined(digests) for name, digests in columns.items()},
        ORDER: _joined(rows),
        SET: _joined(sorted(rows)),
    }


def _joined(parts: Iterable[bytes]) -> str:
    content = hashlib.blake2b(digest_size=16)
    for part in parts:
        # With its length, so that two cells cannot be taken for other ones.
        content.update(len(part).to_bytes(4, "big"))
        content.update(part)
    return content.hexdigest()
