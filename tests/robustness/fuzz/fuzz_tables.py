"""The kind "tables" of fuzz.py: tables from an untrusted source, in all formats."""

from __future__ import annotations

import copy
import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow
import pyarrow.parquet
from fuzz_bytes import mutate
from fuzz_pool import canary
from PIL import Image

from dxn.commands.train import Check
from dxn.config.compose import compose
from dxn.core.printable import UNSAFE
from dxn.runs.check import check_data

ROWS = 24
COLUMNS = ("text", "size", "color", "day", "image", "label")
OPTIONS = (
    *("data=table", "data.path=table.csv", "adapters.text.vocab_size=300"),
    *("adapters=[text,image,number,category,date,series]", "adapters.image.image_size=16"),
)
# Cells that are written into valid tables.
HOSTILE = (
    *("", " ", "x" * 100_000, "\x1b]0;title\x07", "=cmd|' /C calc'!A0", "@SUM(A1)", "\ud800", "\0"),
    *("../../etc/passwd", "/etc/passwd", "/dev/zero", "~/x.png", "a\0b.png", "nan", "inf", "1e400"),
    *("9" * 5000, "-0", "1,2", "\u202eabc", "0001-01-01", "9999-12-31", "2026-02-30", "1 2 nan"),
    *(None, True, 10**400, -1, 0.5, [], {}, [[]], [1, [2]], {"bytes": None, "path": "/etc/passwd"}),
)


class Tables:
    """Mutated tables, which are checked as `dxn check` does."""

    name = "tables"

    def prepare(self, folder: Path) -> None:
        """Create valid tables of all formats, and compose the command."""
        self.rows = [_row(i) for i in range(ROWS)]
        self.files = {name: _write(name, self.rows) for name in WRITERS}
        self.picture = folder / "a.png"
        Image.new("RGB", (9, 7), "red").save(self.picture)
        table = folder / "table.csv"
        table.write_bytes(self.files["table.csv"])
        self.settings = compose(Check, [*OPTIONS, f"data.path={table}"])
        self._use(table)

    def mutate(self, rand: random.Random, folder: Path) -> str:
        """Write a table with mutated cells, or with mutated bytes."""
        name = rand.choice(sorted(self.files))
        (folder / "a.png").write_bytes(self.picture.read_bytes())
        content, description = self.files[name], "bytes"
        if rand.random() < 0.5:
            content, description = mutate(content, rand, list(self.files.values()))
        else:
            rows = copy.deepcopy(self.rows)
            description = _change(rows, rand)
            try:
                content = _write(name, rows)
            # Not every format can store every cell.
            except Exception:
                content, description = mutate(content, rand, list(self.files.values()))
        (folder / name).write_bytes(content)
        return f"{name}: {description}"

    def use(self, folder: Path) -> Any:
        """Check the table."""
        (path,) = [path for path in folder.iterdir() if path.name.startswith("table")]
        return self._use(path)

    def _use(self, path: Path) -> Any:
        output = path.with_name("bad.csv")
        values = copy.deepcopy(self.settings.values)
        values["data"]["path"] = str(path)
        result, _ = check_data(values, output, self.settings.trust)
        if output.exists():
            text = output.read_text(encoding="utf-8").replace("\r\n", "\n")
            assert UNSAFE.search(text) is None, UNSAFE.search(text)
            with output.open(encoding="utf-8", newline="") as file:
                cells = [cell for row in csv.reader(file) for cell in row]
            assert not any(cell.startswith(("=", "@")) for cell in cells), cells
        return bool(result.errors or result.bad)


def make_kind() -> Tables:
    """Return the kind, for fuzz.py."""
    return Tables()


def _row(i: int) -> dict[str, Any]:
    return {
        "text": f"some words of row {i} and {i * 7 % 11} more of them",
        "size": f"{i * 1.7:.2f}",
        "color": ("red", "green", "blue")[i * i % 3],
        "day": f"2026-01-{i + 1:02}",
        "image": "a.png",
        "label": "xy"[i % 2],
    }


def _change(rows: list[dict[str, Any]], rand: random.Random) -> str:
    """Change cells and columns in place."""
    commands = [
        f"$(touch {canary()})",
        f"`touch {canary()}`",
        f"!!python/os.system touch {canary()}",
    ]
    steps = []
    for _ in range(rand.choice((1, 2, 5))):
        value = rand.choice((*HOSTILE, *commands))
        name = rand.choice(COLUMNS)
        kind = rand.choice(("cell", "cell", "column", "name", "add", "remove", "repeat", "keys"))
        steps.append(f"{kind} {name} {str(value)[:20]!r}")
        match kind:
            case "cell":
                rand.choice(rows)[name] = value
            case "column":
                for row in rows:
                    row[name] = value
            case "name":
                for row in rows:
                    row[str(value)[:200]] = row.pop(name, None)
            case "add":
                for i, row in enumerate(rows):
                    row[f"more {name}"] = rand.choice((value, i))
            case "remove":
                for row in rows:
                    row.pop(name, None)
            case "repeat":
                rows *= 2
            case "keys":
                rows[0] |= {f"c{i}": 1 for i in range(rand.choice((10, 1000)))}
    return "; ".join(steps)


def _write(name: str, rows: list[dict[str, Any]]) -> bytes:
    return WRITERS[name](rows)


def _csv(rows: list[dict[str, Any]], delimiter: str = ",") -> bytes:
    file = io.StringIO(newline="")
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(file, delimiter=delimiter)
    writer.writerow(names)
    writer.writerows([row.get(name) for name in names] for row in rows)
    return file.getvalue().encode("utf-8", "surrogatepass")


def _jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


def _excel(rows: list[dict[str, Any]]) -> bytes:
    book = openpyxl.Workbook()
    sheet: Any = book.active
    sheet.append(list(rows[0]))
    for row in rows:
        sheet.append(list(row.values()))
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


WRITERS = {
    "table.csv": _csv,
    "table.tsv": lambda rows: _csv(rows, "\t"),
    "table.jsonl": _jsonl,
    "table.json": lambda rows: json.dumps(rows).encode(),
    "table.csv.gz": lambda rows: gzip.compress(_csv(rows)),
    "table.parquet": _parquet,
    "table.xlsx": _excel,
}
