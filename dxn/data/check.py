"""Everything opened before any training: what there is, and what is wrong with it."""

from __future__ import annotations

import csv
import hashlib
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Any

from torch import Tensor

from dxn.data.rows import Rows, Source
from dxn.data.samples import Opened, open_rows
from dxn.tokenize.media import BadMedia, audio_rate

SHOWN = 20  # classes listed by name


@dataclass(frozen=True)
class Bad:
    """A file or row that cannot be used; modality and path are empty where the row as a whole is at fault."""

    split: str
    row: str
    modality: str
    path: str
    reason: str


@dataclass(frozen=True)
class Report:
    """What `check` found: the source, its splits with what could be opened, equal rows, and what is bad."""

    source: Source
    splits: Mapping[str, Opened]
    duplicates: Mapping[str, int]
    rates: Mapping[str, Counter[int]]  # how many sounds have which rate in hertz, by split
    sample_rate: int  # hertz at which they were read
    bad: Sequence[Bad]

    def lines(self) -> list[str]:
        """The report, to be printed."""
        kind = self.source.target_kind
        lines = [f"{name}: {column}" for name, column in self.source.columns.items() if name != "target"]
        if "target" in self.source.columns:
            lines.append(f"target: {self.source.columns['target']} ({kind})")
        lines += [f"note: {note}" for note in self.source.notes]
        for name, split in self.splits.items():
            lines.append(f"{name}: {len(split):,} rows" + (f", {split.skipped} left out" if split.skipped else ""))
            lines += [f"  {line}" for line in _inputs(self, name)]
            lines += [f"  {line}" for line in _targets(split, kind)]
        lines += [f"duplicates {where}: {count}" for where, count in self.duplicates.items() if count]
        reasons = Counter(" ".join(filter(None, (b.modality, b.reason))) for b in self.bad)
        lines += [f"bad: {count} × {reason}" for reason, count in reasons.most_common()]
        return lines


def check(source: Source, prepares: Mapping[str, Any]) -> Report:
    """Open every file of every split; prepares: the adapters' prepare halves, whose caps apply."""
    need = source.target_kind != "none"
    splits = {
        name: open_rows(rows, prepares, on_bad="missing", need_target=need)
        for name, rows in source.splits.items()
        if len(rows)
    }
    rates = {name: _rates(source.splits[name]) for name in splits if "audio" in prepares}
    sample_rate = prepares["audio"].sample_rate if "audio" in prepares else 0
    bad = [found for name, split in splits.items() for found in _bad(name, split, source.splits[name])]
    return Report(source, splits, _duplicates(splits), rates, sample_rate, bad)


def write_bad(report: Report, path: Path) -> None:
    """A CSV with a line for each of report.bad."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = [field.name for field in fields(Bad)]
        writer.writerow(names)
        writer.writerows([getattr(bad, name) for name in names] for bad in report.bad)


def _bad(name: str, split: Opened, rows: Rows) -> list[Bad]:
    """Of "image: photos/7.jpg truncated" the modality, the path and the reason."""
    index = {origin: i for i, origin in enumerate(rows.origin)}
    found = []
    for origin, text in split.bad:
        modality, _, reason = text.partition(": ")
        if modality not in rows.cells:
            found.append(Bad(name, origin, "", "", text))
            continue
        cell = rows.cells[modality][index[origin]]
        path = cell if modality != "text" and isinstance(cell, str) else ""
        found.append(Bad(name, origin, modality, path, reason.removeprefix(f"{path} ")))
    return found


def _rates(rows: Rows) -> Counter[int]:
    found: Counter[int] = Counter()
    for source in rows.cells.get("audio", ()):
        if source is not None:
            with suppress(BadMedia):  # listed among the bad
                found[audio_rate(source)] += 1
    return found


def _inputs(report: Report, name: str) -> list[str]:
    """A line a modality: how many there are, how many cells are empty, and how large they are."""
    lines = []
    for modality, column in report.splits[name].raws.items():
        present = [raw for raw in column if raw is not None]
        empty = sum(cell is None for cell in report.source.splits[name].cells[modality])
        lines.append(f"{modality}: {len(present):,}" + (f", {empty:,} empty" if empty else ""))
        if modality == "image" and present:
            lines[-1] += f"; {_areas(present)}"
        elif modality == "audio" and present:
            lines[-1] += f"; {_spread([len(r) / report.sample_rate for r in present], '.2f')} s"
            rates = report.rates[name].most_common(5)
            lines[-1] += "; " + ", ".join(f"{count:,} at {rate:,} Hz" for rate, count in rates)
        elif present:
            unit = "words" if isinstance(present[0], list) else "characters"
            lines[-1] += f"; {_spread([len(r) for r in present], ',.0f')} {unit}"
    return lines


def _areas(pictures: Sequence[Tensor]) -> str:
    """Width×height of the smallest, the middle and the largest."""
    sizes = sorted(((p.shape[2], p.shape[1]) for p in pictures), key=lambda size: size[0] * size[1])
    low, middle, high = (f"{w}×{h}" for w, h in (sizes[0], sizes[len(sizes) // 2], sizes[-1]))
    number = len(set(sizes))
    return f"all {low}" if number == 1 else f"{low} to {high}, median {middle}, {number:,} sizes"


def _spread(values: Sequence[float], form: str) -> str:
    return f"{min(values):{form}} to {max(values):{form}}, median {statistics.median(values):{form}}"


def _targets(split: Opened, kind: str) -> list[str]:
    if split.targets is None or kind == "none":
        return []
    if kind == "number":
        return [f"target: {_spread([float(v) for v in split.targets], 'g')}"]
    names = split.targets if kind == "class" else [n for v in split.targets for n in v]
    counts = Counter(names).most_common()
    shown = ", ".join(f"{name} {count:,}" for name, count in counts[:SHOWN])
    return [f"target: {shown}" + (f" and {len(counts) - SHOWN} more" if len(counts) > SHOWN else "")]


def _duplicates(splits: Mapping[str, Opened]) -> dict[str, int]:
    """Rows whose inputs are all the same as another's, within each split and between any two."""
    digests = {name: [_digest(split, i) for i in range(len(split))] for name, split in splits.items()}
    found = {f"within {name}": len(d) - len(set(d)) for name, d in digests.items()}
    for first, second in combinations(digests, 2):
        shared = set(digests[first])
        found[f"of {first} in {second}"] = sum(d in shared for d in digests[second])
    return found


def _digest(split: Opened, i: int) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, column in split.raws.items():
        raw = column[i]
        known = (name, tuple(raw.shape)) if isinstance(raw, Tensor) else (name, raw)
        digest.update(repr(known).encode())
        if isinstance(raw, Tensor):
            digest.update(raw.contiguous().numpy().data)
    return digest.digest()
