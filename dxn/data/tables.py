"""Tables of one's own: CSV, TSV, JSONL and Parquet, whose columns' meaning is inferred or given."""

from __future__ import annotations

import csv
import difflib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet

from dxn.data.rows import Rows, Source
from dxn.data.samples import OnBad
from dxn.data.splits import NAMES, draw, strata
from dxn.errors import UserError

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
SOUNDS = (".wav", ".flac", ".ogg", ".mp3", ".oga", ".opus")
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
USUAL_TARGETS = ("label", "target", "class", "category")
Kind = Literal["class", "labels", "number", "tags"]


@dataclass
class Table:
    """Columns as read, and for each row its file and line."""

    columns: dict[str, list]
    files: list[Path]
    lines: list[int]

    def __len__(self) -> int:
        return len(self.files)

    def take(self, indices: Sequence[int]) -> Table:
        """The rows of these indices."""
        columns = {name: [values[i] for i in indices] for name, values in self.columns.items()}
        return Table(columns, [self.files[i] for i in indices], [self.lines[i] for i in indices])


@dataclass(frozen=True)
class Meaning:
    """Which column is what; several text columns are joined, several target columns are labels."""

    inputs: Mapping[str, Sequence[str]]
    target: Sequence[str]
    kind: str
    notes: list[str] = field(default_factory=list)


def table(
    path: str | Sequence[str] | None = None,
    *,
    train: str | Sequence[str] | None = None,
    validation: str | Sequence[str] | None = None,
    test: str | Sequence[str] | None = None,
    split: str | None = None,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    text: str | Sequence[str] | None = None,
    image: str | None = None,
    audio: str | None = None,
    target: str | Sequence[str] | None = None,
    kind: Kind | None = None,
    holdout: Mapping[str, Any] | None = None,
    sep: str | None = None,
    on_bad: OnBad = "error",
    seed: int = 0,
) -> Source:
    """A Source from tables; see the arguments. UserError for whatever does not fit, with the file and the row.

    Args:
        path: a table, a list of tables, or a folder that holds one or has train, validation and test tables.
        train: table or tables of the training split, in place of path.
        validation: of the validation split.
        test: of the test split.
        split: column that says which split a row is in; a column called split is used unasked.
        fractions: shares of training, validation and test where nothing else decides.
        text: column or columns of text, joined by line breaks; inferred unless a column is given.
        image: column of picture paths, relative to the table.
        audio: column of sound paths, relative to the table.
        target: column to predict; several columns become labels column=value.
        kind: class, labels, number or tags; inferred unless given.
        holdout: column and value whose rows are the test split, all others the rest.
        sep: separator of CSV columns, a comma in .csv and a tab in .tsv unless given.
        on_bad: error, skip the row, or use the rest of it (missing).
        seed: of the drawn splits.
    """
    files = _files(path, {"train": train, "validation": validation, "test": test})
    tables = {name: _joined([read(p, sep=sep) for p in paths]) for name, paths in files.items()}
    given = {"text": text, "image": image, "audio": audio}
    return from_tables(
        tables,
        given,
        target=target,
        kind=kind,
        split=split,
        holdout=holdout,
        fractions=fractions,
        on_bad=on_bad,
        seed=seed,
    )


def from_tables(
    tables: dict[str, Table],
    given: Mapping[str, str | Sequence[str] | None],
    *,
    target: str | Sequence[str] | None,
    kind: Kind | None,
    fractions: Sequence[float],
    on_bad: OnBad,
    seed: int,
    split: str | None = None,
    holdout: Mapping[str, Any] | None = None,
) -> Source:
    """A Source from tables by split, or from one under "all"; the arguments are those of `table`."""
    whole = _joined(list(tables.values()))
    notes: list[str] = []
    parts = _split(tables, split, holdout, notes)
    meaning = _meaning(whole, {m: _list(c) for m, c in given.items()}, _list(target), kind, split=split, notes=notes)
    splits = {name: _rows(t, meaning) for name, t in parts.items()}
    splits = complete_splits(splits, fractions, seed, notes, drawn=list(parts) == ["all"])
    columns = {name: " + ".join(names) for name, names in meaning.inputs.items() if names}
    if meaning.target:
        columns["target"] = " + ".join(meaning.target)
    return Source(splits, meaning.kind, columns, notes, on_bad)


def read(path: Path, *, sep: str | None = None) -> Table:
    """One file. CSV cells are text as they stand; only an empty or blank one is missing (None)."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return _read_csv(path, sep or ("\t" if suffix == ".tsv" else ","))
    if suffix == ".jsonl":
        return _read_jsonl(path)
    if suffix == ".parquet":
        columns = pyarrow.parquet.read_table(path).to_pydict()
        columns = {name: [_blank(v) for v in values] for name, values in columns.items()}
        count = len(next(iter(columns.values()), []))
        return Table(columns, [path] * count, list(range(1, count + 1)))
    raise UserError(f"{path}: not a table this reads ({', '.join(TABLES)})")


def _read_csv(path: Path, sep: str) -> Table:
    csv.field_size_limit(2**31 - 1)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=sep, strict=True)
            header = next(reader, None)
            if not header:
                raise UserError(f"{path}: empty, a table begins with a row of column names")
            if twice := [name for name, n in Counter(header).items() if n > 1]:
                raise UserError(f"{path} row 1: two columns called {twice[0]!r}; rename one")
            rows, lines = [], []
            for number, row in enumerate(reader, 2):
                if not row:
                    continue
                if len(row) != len(header):
                    raise UserError(
                        f"{path} row {number}: {len(row)} cells, the header has {len(header)};"
                        " quote cells that hold the separator"
                    )
                rows.append(row)
                lines.append(number)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from error
    except csv.Error as error:
        raise UserError(f"{path}: not a CSV that can be read ({error})") from error
    columns = {name: [_blank(row[i]) for row in rows] for i, name in enumerate(header)}
    return Table(columns, [path] * len(rows), lines)


def _read_jsonl(path: Path) -> Table:
    rows, lines = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path} row {number}: not JSON ({error.msg}, column {error.colno})") from error
        if not isinstance(row, dict):
            raise UserError(f'{path} row {number}: must be an object {{"column": value}}, got {line[:40]}')
        rows.append(row)
        lines.append(number)
    names = dict.fromkeys(name for row in rows for name in row)
    return Table({n: [_blank(row.get(n)) for row in rows] for n in names}, [path] * len(rows), lines)


def _blank(value: Any) -> Any:
    return None if value is None or value == [] or (isinstance(value, str) and not value.strip()) else value


def _files(path, splits: Mapping[str, str | Sequence[str] | None]) -> dict[str, list[Path]]:
    """Paths by split, or all of them under "all"."""
    given = {name: [Path(p) for p in _list(value)] for name, value in splits.items() if value is not None}
    if path is not None and given:
        raise UserError(f"data.path: give it or data.{next(iter(given))}, not both")
    if given:
        if "train" not in given:
            raise UserError(f"data.train: needs a value where data.{next(iter(given))} is given")
        return given
    if path is None:
        raise UserError("data.path: needs a value, data.path=my.csv")
    paths = [Path(p) for p in _list(path)]
    if len(paths) > 1 or not paths[0].is_dir():
        return {"all": paths}
    found = sorted(p for p in paths[0].iterdir() if p.suffix.lower() in TABLES)
    named = [p for p in found if p.stem.lower() in NAMES]
    if any(NAMES[p.stem.lower()] == "train" for p in named):
        order = ("train", "validation", "test")
        return {s: hits for s in order if (hits := [p for p in named if NAMES[p.stem.lower()] == s])}
    if len(found) == 1:
        return {"all": found}
    listed = ", ".join(p.name for p in found) or "no table"
    raise UserError(f"{paths[0]}: holds {listed}; name the table, or call them train, validation and test")


def _joined(tables: Sequence[Table]) -> Table:
    first = tables[0]
    for other in tables[1:]:
        if set(other.columns) != set(first.columns):
            odd = sorted(set(other.columns) ^ set(first.columns))
            raise UserError(f"{other.files[0] if len(other) else 'a table'}: column {odd[0]!r} is not in every table")
    columns = {name: [v for t in tables for v in t.columns[name]] for name in first.columns}
    return Table(columns, [f for t in tables for f in t.files], [n for t in tables for n in t.lines])


def _split(
    tables: dict[str, Table], split: str | None, holdout: Mapping[str, Any] | None, notes: list[str]
) -> dict[str, Table]:
    """By the held-out value, by the split column, or as they are."""
    whole = _joined(list(tables.values()))
    if not len(whole):
        raise UserError("data.path: the table has a header but no row")
    if holdout:
        (column, value), *more = holdout.items()
        if more:
            raise UserError(f"data.holdout: one column, got {', '.join(holdout)}")
        wanted = {str(v) for v in _list(value)}
        values = [str(v) for v in _column(whole, column, "data.holdout")]
        if missing := wanted - set(values):
            some = ", ".join(sorted(set(values))[:10])
            raise UserError(f"data.holdout.{column}: no row has {sorted(missing)[0]!r}; it holds {some}")
        notes.append(f"test: the rows whose {column} is {', '.join(sorted(wanted))}")
        held = [v in wanted for v in values]
        return {
            "train": whole.take([i for i, h in enumerate(held) if not h]),
            "test": whole.take([i for i, h in enumerate(held) if h]),
        }
    if list(tables) != ["all"]:
        return tables
    if split is None and "split" in whole.columns:
        values = {str(v).lower() for v in whole.columns["split"]}
        split = "split" if values <= set(NAMES) and "train" in values else None
    if split is None:
        return tables
    parts: dict[str, list[int]] = {}
    for i, value in enumerate(_column(whole, split, "data.split")):
        name = NAMES.get(str(value).lower())
        if name is None:
            raise UserError(f"{_origin(whole, i)}: column {split!r} must be train, validation or test, got {value!r}")
        parts.setdefault(name, []).append(i)
    notes.append(f"splits: as column {split} says")
    if "train" not in parts:
        raise UserError(f"data.split: no row of column {split!r} says train")
    return {name: whole.take(parts[name]) for name in ("train", "validation", "test") if name in parts}


def complete_splits(
    splits: dict[str, Rows], fractions: Sequence[float], seed: int, notes: list[str], *, drawn: bool
) -> dict[str, Rows]:
    """Draw the splits that are not given: all of them, or a tenth of the training rows for validation."""
    if drawn:
        rows = splits["all"]
        labels = strata(rows.cells.get("target", [None] * len(rows)))
        parts = draw(labels, fractions, seed=seed)
        names = ("train", "validation", "test")[: len(parts)]
        shares = ", ".join(f"{name} {share:g}" for name, share in zip(names, fractions, strict=False))
        notes.append(f"splits: drawn by seed {seed}: {shares}")
        return {name: rows.take(part) for name, part in zip(names, parts, strict=True) if part}
    if "validation" in splits or len(splits["train"]) < 2:
        return splits
    rows = splits["train"]
    labels = strata(rows.cells.get("target", [None] * len(rows)))
    kept, held = draw(labels, (0.9, 0.1), seed=seed)
    notes.append(f"validation: a tenth of the training rows, drawn by seed {seed}")
    return {
        "train": rows.take(kept),
        "validation": rows.take(held),
        **{k: v for k, v in splits.items() if k != "train"},
    }


def _meaning(
    whole: Table,
    given: Mapping[str, list[str]],
    target: list[str],
    kind: str | None,
    *,
    split: str | None,
    notes: list[str],
) -> Meaning:
    for name, columns in given.items():
        for column in columns:
            _column(whole, column, f"data.{name}")
    if not target:
        target = [c for c in USUAL_TARGETS if c in whole.columns][:1]
        notes += [f"target: column {target[0]}, by its name"] if target else []
    for column in target:
        _column(whole, column, "data.target")
    inputs = {name: columns for name, columns in given.items() if columns}
    if not inputs:
        inputs = _infer_inputs(whole, {*target, split or "split"}, notes)
    return Meaning(inputs, target, kind or _infer_kind(whole, inputs, target))


def _infer_inputs(whole: Table, taken: set[str], notes: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for column, values in whole.columns.items():
        if column not in taken:
            found.setdefault(_guess(values), []).append(column)
    if other := found.pop("", None):
        notes.append(f"not used: {', '.join(other)} (numbers or categories)")
    for name, columns in found.items():
        if len(columns) > 1:
            raise UserError(
                f"data.{name}: columns {', '.join(columns)} could all be {name}; choose one, data.{name}={columns[0]}"
            )
    if not found:
        raise UserError(
            f"data: no text, image or audio among the columns {', '.join(whole.columns)}; name one, data.text=..."
        )
    return {m: found[m] for m in ("text", "image", "audio") if m in found}


def _guess(values: Sequence) -> str:
    """text, image or audio, or "" for numbers and categories."""
    present = [v for v in values if v is not None][:2000]
    if present and all(isinstance(v, bytes) for v in present):
        return "image"
    if present and all(isinstance(v, list) and all(isinstance(w, str) for w in v) for v in present):
        return "text"
    if not present or not all(isinstance(v, str) for v in present):
        return ""
    for name, suffixes in (("image", IMAGES), ("audio", SOUNDS)):
        if sum(v.lower().endswith(suffixes) for v in present) > len(present) / 2:
            return name
    if all(_number(v) is not None for v in present):
        return ""
    words = sum(len(v.split()) for v in present) / len(present)
    unique = len(set(present)) / len(present)
    return "text" if (words > 1.5 and unique > 0.05) or (unique > 0.5 and words > 1) or unique > 0.9 else ""


def _infer_kind(whole: Table, inputs: Mapping[str, Sequence[str]], target: Sequence[str]) -> str:
    if not target:
        return "none"
    if len(target) > 1:
        return "labels"
    values = [v for v in whole.columns[target[0]] if v is not None]
    if values and all(isinstance(v, list) for v in values):
        words = whole.columns[inputs["text"][0]] if "text" in inputs else []
        both = [(w, t) for w, t in zip(words, whole.columns[target[0]], strict=False) if w and t]
        return "tags" if both and all(isinstance(w, list) and len(w) == len(t) for w, t in both) else "labels"
    numbers = [_number(v) for v in values]
    if values and all(n is not None for n in numbers):
        whole_numbers = all(float(n).is_integer() for n in numbers if n is not None)
        return "class" if whole_numbers and len(set(numbers)) <= 20 else "number"
    barred = sum("|" in str(v) for v in values)
    return "labels" if barred > len(values) / 20 else "class"


def _rows(t: Table, meaning: Meaning) -> Rows:
    cells: dict[str, list] = {}
    for name, columns in meaning.inputs.items():
        if name == "text":
            cells[name] = [_text([t.columns[c][i] for c in columns]) for i in range(len(t))]
        else:
            cells[name] = [
                str(f.parent / v) if isinstance(v, str) else v
                for v, f in zip(t.columns[columns[0]], t.files, strict=True)
            ]
    if meaning.target:
        cells["target"] = [_target_value(t, meaning, i) for i in range(len(t))]
    return Rows(cells, [_origin(t, i) for i in range(len(t))])


def _text(values: Sequence) -> str | list[str] | None:
    present = [v for v in values if v is not None]
    if len(present) == 1 and isinstance(present[0], list):
        return present[0]
    return "\n".join(map(str, present)) or None


def _target_value(t: Table, meaning: Meaning, i: int) -> Any:
    if len(meaning.target) > 1:
        return [f"{c}={t.columns[c][i]}" for c in meaning.target if t.columns[c][i] is not None]
    value = t.columns[meaning.target[0]][i]
    if value is None:
        return None
    if meaning.kind == "class":
        return str(value)
    if meaning.kind == "number":
        number = _number(value)
        if number is None:
            raise UserError(f"{_origin(t, i)}: column {meaning.target[0]!r} must be a number, got {value!r}")
        return number
    if meaning.kind == "labels" and isinstance(value, str):
        return [piece.strip() for piece in value.split("|") if piece.strip()]
    if not isinstance(value, list):
        raise UserError(f"{_origin(t, i)}: column {meaning.target[0]!r} must be a list, got {value!r}")
    if meaning.kind == "tags":
        words = t.columns[meaning.inputs["text"][0]][i] if "text" in meaning.inputs else None
        if not isinstance(words, list) or len(words) != len(value):
            raise UserError(f"{_origin(t, i)}: {len(value)} tags for {len(words or [])} words; give one a word")
    return [str(v) for v in value]


def _column(t: Table, name: str, key: str) -> list:
    if name not in t.columns:
        close = difflib.get_close_matches(name, t.columns, 1)
        meant = f" did you mean {close[0]!r}?" if close else ""
        where = t.files[0].name if t.files else "the table"
        raise UserError(f"{key}: no column {name!r} in {where};{meant} columns: {', '.join(t.columns)}")
    return t.columns[name]


def _origin(t: Table, i: int) -> str:
    return f"{t.files[i].name} row {t.lines[i]}"


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _list(value: Any) -> list:
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
