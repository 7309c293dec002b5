"""Plain text files, to learn a language from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from dxn.data.rows import Rows, Source
from dxn.data.splits import check_fractions
from dxn.errors import UserError

SPLITS = ("train", "validation", "test")


def text(path: str | Sequence[str], *, fractions: Sequence[float] = (0.9, 0.1)) -> Source:
    """A Source of whole files: no target, each split a run of every file.

    Args:
        path: a text file in UTF-8, a list of them, or a folder whose .txt files are meant.
        fractions: shares of training, validation and test, in this order from the beginning of each file to its end.
    """
    check_fractions(fractions)
    cells: dict[str, list[str]] = {name: [] for name in SPLITS}
    origin: dict[str, list[str]] = {name: [] for name in SPLITS}
    for file in _files([path] if isinstance(path, str) else path):
        for name, part in zip(SPLITS, _cut(_read(file), fractions), strict=False):
            if part.strip():
                cells[name].append(part)
                origin[name].append(file.name)
    if not cells["train"]:
        raise UserError(f"{path}: holds no text to train on")
    splits = {name: Rows({"text": cells[name]}, origin[name]) for name in SPLITS if cells[name]}
    sizes = ", ".join(f"{name} {sum(map(len, cells[name])):,}" for name in splits)
    return Source(splits, "none", {"text": "files"}, [f"splits: one after another in each file; characters: {sizes}"])


def _files(paths: Sequence[str]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(path.glob("*.txt")) if path.is_dir() else [path]
        if not inside:
            raise UserError(f"{path}: holds no .txt file")
        found += inside
    return found


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"{file}: no such file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 at byte {error.start}; convert it first") from error


def _cut(whole: str, fractions: Sequence[float]) -> list[str]:
    """Runs of these shares, one after another."""
    edges = [0, *(round(share * len(whole)) for share in accumulate(fractions))]
    return [whole[start:stop] for start, stop in pairwise(edges)]
