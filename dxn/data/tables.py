"""Tables of one's own: CSV, TSV, JSONL and Parquet, whose columns' meaning is inferred or given."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dxn.data.read import SUFFIXES, Table, joined, read
from dxn.data.rows import Rows, Source
from dxn.data.samples import OnBad
from dxn.data.splits import NAMES, complete
from dxn.errors import UserError

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
SOUNDS = (".wav", ".flac", ".ogg", ".mp3", ".oga", ".opus")
USUAL_TARGETS = ("label", "target", "class", "category")
Kind = Literal["class", "labels", "number", "tags", "text"]


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
        kind: class, labels, number, tags or text, which is to be written; inferred unless given.
        holdout: column and value whose rows are the test split, all others the rest.
        sep: separator of CSV columns, a comma in .csv and a tab in .tsv unless given.
        on_bad: error, skip the row, or use the rest of it (missing).
        seed: of the drawn splits.
    """
    files = _files(path, {"train": train, "validation": validation, "test": test})
    tables = {name: joined([read(p, sep=sep) for p in paths]) for name, paths in files.items()}
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
    whole = joined(list(tables.values()))
    notes: list[str] = []
    if not len(whole):
        raise UserError("data.path: the table has a header but no row")
    if holdout:
        split, parts = None, _hold_out(whole, holdout, notes)
    elif "all" in tables:
        split = split or _usual_split(whole)
        undivided = len(fractions) == 1  # every row is wanted: in use, not in training
        parts = _split_by(whole, split, notes) if split and not undivided else tables
    elif split:
        raise UserError("data.split: the tables are train, validation and test already; leave it out")
    else:
        parts = tables
    given = {name: _list(columns) for name, columns in given.items()}
    meaning = _meaning(whole, given, _list(target), kind, split=split, notes=notes)
    splits = {name: _rows(t, meaning) for name, t in parts.items()}
    splits = complete(splits, fractions, seed=seed, notes=notes)
    columns = {name: " + ".join(names) for name, names in meaning.inputs.items() if names}
    if meaning.target:
        columns["target"] = " + ".join(meaning.target)
    return Source(splits, meaning.kind, columns, notes, on_bad)


def _files(path, splits: Mapping[str, str | Sequence[str] | None]) -> dict[str, list[Path]]:
    """Paths by split, or all of them under "all"."""
    given = {name: [Path(p) for p in _list(value)] for name, value in splits.items() if value is not None}
    if path is not None and given:
        raise UserError(f"data.path: give it or data.{next(iter(given))}, not both")
    if given:
        if "train" not in given:
            raise UserError(f"data.train: needs a value where data.{next(iter(given))} is given")
        return given
    if not _list(path):
        raise UserError("data.path: needs a value, data.path=my.csv")
    paths = [Path(p) for p in _list(path)]
    if len(paths) > 1 or not paths[0].is_dir():
        return {"all": paths}
    found = sorted(p for p in paths[0].iterdir() if p.suffix.lower() in SUFFIXES)
    named = [p for p in found if p.stem.lower() in NAMES]
    if any(NAMES[p.stem.lower()] == "train" for p in named):
        order = ("train", "validation", "test")
        return {s: hits for s in order if (hits := [p for p in named if NAMES[p.stem.lower()] == s])}
    if len(found) == 1:
        return {"all": found}
    listed = ", ".join(p.name for p in found) or "no table"
    raise UserError(f"{paths[0]}: holds {listed}; name the table, or call them train, validation and test")


def _hold_out(whole: Table, holdout: Mapping[str, Any], notes: list[str]) -> dict[str, Table]:
    """Test: the rows that have one of the values; train: all others."""
    (column, value), *more = holdout.items()
    if more:
        raise UserError(f"data.holdout: one column, got {', '.join(holdout)}")
    wanted = {str(v) for v in _list(value)}
    values = [str(v) for v in _column(whole, column, "data.holdout")]
    if missing := wanted - set(values):
        some = ", ".join(sorted(set(values))[:10])
        raise UserError(f"data.holdout.{column}: no row has {min(missing)!r}; it holds {some}")
    if wanted >= set(values):
        raise UserError(f"data.holdout.{column}: holds out every row, so that none is left to train on")
    notes.append(f"test: the rows whose {column} is {', '.join(sorted(wanted))}")
    rows = range(len(whole))
    return {
        "train": whole.take([i for i in rows if values[i] not in wanted]),
        "test": whole.take([i for i in rows if values[i] in wanted]),
    }


def _usual_split(whole: Table) -> str | None:
    """The column called split, where all it says is train, validation and test."""
    named = {NAMES.get(str(v).lower()) for v in whole.columns.get("split", ())}
    return "split" if "train" in named and None not in named else None


def _split_by(whole: Table, column: str, notes: list[str]) -> dict[str, Table]:
    parts: dict[str, list[int]] = {}
    for i, value in enumerate(_column(whole, column, "data.split")):
        name = NAMES.get(str(value).lower())
        if name is None:
            got = "nothing" if value is None else repr(value)
            raise UserError(f"{whole.origin(i)}: column {column!r} must be train, validation or test, got {got}")
        parts.setdefault(name, []).append(i)
    notes.append(f"splits: as column {column} says")
    return {name: whole.take(parts[name]) for name in ("train", "validation", "test") if name in parts}


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
        if len(columns) > 1 and name != "text":
            raise UserError(f"data.{name}: one column, got {', '.join(columns)}")
        for column in columns:
            _column(whole, column, f"data.{name}")
    if not target:
        target = [c for c in USUAL_TARGETS if c in whole.columns][:1]
        named = ", ".join(whole.columns)
        notes.append(f"target: column {target[0]}, by its name" if target else f"target: none chosen of {named}")
    for column in target:
        _column(whole, column, "data.target")
        if any(column in columns for columns in given.values()):
            raise UserError(f"data.target: column {column!r} is an input too; a model would only copy it")
    if len(target) > 1 and kind not in (None, "labels"):
        raise UserError(f"data.kind: several target columns make labels, got {kind}; choose one column for it")
    inputs = {name: columns for name, columns in given.items() if columns}
    if not inputs:
        inputs = _infer_inputs(whole, {*target, split}, notes)
    return Meaning(inputs, target, kind or _infer_kind(whole, inputs, target))


def _infer_inputs(whole: Table, taken: set[str | None], notes: list[str]) -> dict[str, list[str]]:
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
        return "audio" if _is_sound(present[0]) else "image"
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


def _is_sound(data: bytes) -> bool:
    """By the first bytes of a WAV, FLAC, OGG or MP3."""
    return data.startswith((b"fLaC", b"OggS", b"ID3", b"\xff\xfb")) or data[:4] + data[8:12] == b"RIFFWAVE"


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
    if len(values) >= 20 and len(set(map(str, values))) > len(values) / 2 and _guess(values) == "text":
        return "text"
    barred = [str(v).split("|") for v in values if "|" in str(v)]
    pieces = [piece.strip() for value in barred for piece in value]
    repeat = len(set(pieces)) <= len(pieces) / 2
    return "labels" if repeat and len(barred) > len(values) / 20 else "class"


def _rows(t: Table, meaning: Meaning) -> Rows:
    cells: dict[str, list] = {}
    for name, columns in meaning.inputs.items():
        if name == "text":
            cells[name] = [_text(t, columns, i) for i in range(len(t))]
        else:
            cells[name] = [
                str(f.parent / v) if isinstance(v, str) else v
                for v, f in zip(t.columns[columns[0]], t.files, strict=True)
            ]
    if meaning.target:
        cells["target"] = [_target_value(t, meaning, i) for i in range(len(t))]
    return Rows(cells, [t.origin(i) for i in range(len(t))])


def _text(t: Table, columns: Sequence[str], i: int) -> str | list[str] | None:
    """One str of all columns, or the words of a single one that holds lists."""
    present = [t.columns[c][i] for c in columns if t.columns[c][i] not in (None, [])]
    if len(columns) == 1 and present and isinstance(present[0], list):
        if odd := [word for word in present[0] if not isinstance(word, str)]:
            raise UserError(f"{t.origin(i)}: column {columns[0]!r} must be a list of words, got {odd[0]!r} in it")
        return present[0]
    return "\n".join(map(str, present)) or None


def _target_value(t: Table, meaning: Meaning, i: int) -> Any:
    if len(meaning.target) > 1:
        return [f"{c}={t.columns[c][i]}" for c in meaning.target if t.columns[c][i] is not None]
    value = t.columns[meaning.target[0]][i]
    if value is None:
        return None
    if meaning.kind in ("class", "text"):
        return str(value)
    if meaning.kind == "number":
        number = _number(value)
        if number is None:
            raise UserError(f"{t.origin(i)}: column {meaning.target[0]!r} must be a number, got {value!r}")
        return number
    if meaning.kind == "labels" and isinstance(value, str):
        return [piece.strip() for piece in value.split("|") if piece.strip()]
    if not isinstance(value, list):
        raise UserError(f"{t.origin(i)}: column {meaning.target[0]!r} must be a list, got {value!r}")
    if meaning.kind == "tags":
        words = t.columns[meaning.inputs["text"][0]][i] if "text" in meaning.inputs else None
        if words is not None and not isinstance(words, list):
            column, got = meaning.inputs["text"][0], str(words)[:40]
            raise UserError(f"{t.origin(i)}: column {column!r} must be a list of words for tags, got {got!r}")
        if words is None or len(words) != len(value):
            raise UserError(f"{t.origin(i)}: {len(value)} tags for {len(words or [])} words; give one a word")
    return [str(v) for v in value]


def _column(t: Table, name: str, key: str) -> list:
    if name not in t.columns:
        close = difflib.get_close_matches(name, t.columns, 1)
        meant = f" did you mean {close[0]!r}?" if close else ""
        where = t.files[0].name if t.files else "the table"
        raise UserError(f"{key}: no column {name!r} in {where};{meant} columns: {', '.join(t.columns)}")
    return t.columns[name]


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _list(value: Any) -> list:
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
