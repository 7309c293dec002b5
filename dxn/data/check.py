"""Everything opened before any training: what there is, and what is wrong with it."""

from __future__ import annotations

import csv
import hashlib
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dxn.data.rows import Source
from dxn.data.samples import Opened, open_rows

SHOWN = 20  # classes listed by name


@dataclass(frozen=True)
class Report:
    """What `check` found: the source, its splits with what could be opened, and (row, reason) of the rest."""

    source: Source
    splits: Mapping[str, Opened]
    duplicates: Mapping[str, int]

    @property
    def bad(self) -> list[tuple[str, str, str]]:
        """(split, row, reason) of every file or row that cannot be used."""
        return [(name, row, reason) for name, split in self.splits.items() for row, reason in split.bad]

    def lines(self) -> list[str]:
        """The report, to be printed."""
        lines = [f"{name}: {column}" for name, column in self.source.columns.items()]
        lines[-1:] = [f"{lines[-1]} ({self.source.target_kind})"] if "target" in self.source.columns else lines[-1:]
        lines += [f"note: {note}" for note in self.source.notes]
        for name, split in self.splits.items():
            lines.append(f"{name}: {len(split):,} rows")
            lines += [f"  {line}" for line in _inputs(split)]
            lines += [f"  {line}" for line in _targets(split, self.source.target_kind)]
        lines += [f"duplicates {where}: {count}" for where, count in self.duplicates.items() if count]
        reasons = Counter(_reason(reason) for _, _, reason in self.bad)
        lines += [f"bad: {count} × {reason}" for reason, count in reasons.most_common()]
        return lines or ["nothing there"]


def check(source: Source, prepares: Mapping[str, Any]) -> Report:
    """Open every file of every split; prepares: the adapters' prepare halves, whose caps apply."""
    need = source.target_kind != "none"
    splits = {
        name: open_rows(rows, prepares, on_bad="missing", need_target=need)
        for name, rows in source.splits.items()
        if len(rows)
    }
    return Report(source, splits, _duplicates(splits))


def write_bad(report: Report, path: Path) -> None:
    """A CSV of split, row and reason."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["split", "row", "reason"])
        writer.writerows(report.bad)


def _inputs(split: Opened) -> list[str]:
    lines = []
    for name, column in split.raws.items():
        present = [raw for raw in column if raw is not None]
        missing = f", {len(column) - len(present)} missing" if len(present) < len(column) else ""
        lines.append(f"{name}: {len(present):,}{missing}; {_sizes(name, present)}")
    return lines


def _sizes(name: str, raws: Sequence) -> str:
    if not raws:
        return "none"
    if name == "image":
        sizes = Counter(f"{r.shape[2]}×{r.shape[1]}" for r in raws)
        return f"{len(sizes)} sizes (width×height), most often {', '.join(s for s, _ in sizes.most_common(3))}"
    lengths = [len(r) for r in raws]
    spread = f"{min(lengths):,} to {max(lengths):,}, median {statistics.median(lengths):,.0f}"
    unit = (
        "samples at the adapter's rate" if name == "audio" else "words" if isinstance(raws[0], list) else "characters"
    )
    return f"{spread} {unit}"


def _targets(split: Opened, kind: str) -> list[str]:
    if split.targets is None or kind == "none":
        return []
    if kind == "number":
        values = [float(v) for v in split.targets]
        return [f"target: {min(values):g} to {max(values):g}, mean {statistics.mean(values):g}"]
    names = split.targets if kind == "class" else [n for v in split.targets for n in v]
    counts = Counter(names).most_common()
    shown = ", ".join(f"{name} {count}" for name, count in counts[:SHOWN])
    return [f"target: {shown}" + (f" and {len(counts) - SHOWN} more" if len(counts) > SHOWN else "")]


def _duplicates(splits: Mapping[str, Opened]) -> dict[str, int]:
    """Rows whose inputs are all the same as another's, within each split and between any two."""
    digests = {name: [_digest(split, i) for i in range(len(split))] for name, split in splits.items()}
    found = {f"within {name}": len(d) - len(set(d)) for name, d in digests.items()}
    names = list(digests)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            shared = set(digests[first])
            found[f"of {first} in {second}"] = sum(d in shared for d in digests[second])
    return found


def _digest(split: Opened, i: int) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, column in split.raws.items():
        raw = column[i]
        digest.update(name.encode())
        digest.update(raw.numpy().tobytes() if isinstance(raw, Tensor) else repr(raw).encode())
    return digest.digest()


def _reason(reason: str) -> str:
    """Without the file's own name, so that like reasons are counted together."""
    modality, _, rest = reason.partition(": ")
    first, _, after = rest.partition(" ")
    return f"{modality}: {after}" if "/" in first or "." in first else reason
