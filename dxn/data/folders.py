"""A folder a class, of pictures or sounds: on disk, or packed in a tar or zip."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from dxn.data.rows import Rows, Source
from dxn.data.samples import OnBad
from dxn.data.splits import NAMES
from dxn.data.tables import IMAGES, SOUNDS, complete_splits
from dxn.errors import UserError

Member = tuple[PurePosixPath, str | bytes]  # path inside, and what media reads


def folder(
    path: str, *, fractions: Sequence[float] = (0.8, 0.1, 0.1), on_bad: OnBad = "error", seed: int = 0
) -> Source:
    """A Source from class/file, or train/class/file, validation/... and test/... UserError where it is neither.

    Args:
        path: the folder, or a .tar, .tar.gz or .zip of it, which is read into memory.
        fractions: shares of training, validation and test where the folder has no such folders.
        on_bad: error, skip the file, or use the rest of its row (missing).
        seed: of the drawn splits.
    """
    place = Path(path)
    members = sorted(_members(place), key=lambda m: m[0])
    media = [(name, source) for name, source in members if name.suffix.lower() in (*IMAGES, *SOUNDS)]
    kinds = {"image" if name.suffix.lower() in IMAGES else "audio" for name, _ in media}
    if len(kinds) != 1:
        found = "pictures and sounds" if kinds else f"neither ({len(members)} other files)"
        raise UserError(f"{place}: must hold pictures or sounds, got {found}; for both, write a table of their paths")
    notes = [f"not used: {len(members) - len(media)} files of other kinds"] if len(members) > len(media) else []
    media = _without_common_root(media)
    by_split: dict[str, list[tuple[str, str, str | bytes]]] = {}
    for name, source in media:
        split, label = _split_and_label(name, place)
        by_split.setdefault(split, []).append((str(name), label, source))
    if "all" in by_split and len(by_split) > 1:
        stray = by_split["all"][0][0]
        raise UserError(f"{place}: {stray} is in none of train, validation and test, but such folders are there")
    kind = kinds.pop()
    splits = {name: _rows(kind, found) for name, found in by_split.items()}
    splits = complete_splits(splits, fractions, seed, notes, drawn="all" in splits)
    return Source(splits, "class", {kind: "files", "target": "folder"}, notes, on_bad)


def _rows(kind: str, found: Sequence[tuple[str, str, str | bytes]]) -> Rows:
    cells = {kind: [source for _, _, source in found], "target": [label for _, label, _ in found]}
    return Rows(cells, [name for name, _, _ in found])


def _members(place: Path) -> Iterator[Member]:
    if place.is_dir():
        for p in place.rglob("*"):
            name = PurePosixPath(p.relative_to(place).as_posix())
            if p.is_file() and not _hidden(name):
                yield name, str(p)
    elif not place.is_file():
        raise UserError(f"{place}: no such folder or archive")
    elif zipfile.is_zipfile(place):
        with zipfile.ZipFile(place) as archive:
            for info in archive.infolist():
                name = PurePosixPath(info.filename)
                if not info.is_dir() and not _hidden(name):
                    yield name, archive.read(info)
    elif tarfile.is_tarfile(place):
        with tarfile.open(place) as archive:
            for info in archive:
                name, file = PurePosixPath(info.name), archive.extractfile(info) if info.isfile() else None
                if file is not None and not _hidden(name):
                    yield name, file.read()
    else:
        raise UserError(f"{place}: neither a folder nor a tar or zip archive")


def _hidden(name: PurePosixPath) -> bool:
    return any(part.startswith(".") for part in name.parts)


def _without_common_root(media: Sequence[Member]) -> list[Member]:
    """Archives are often packed with one folder around everything: it says nothing."""
    while len({name.parts[0] for name, _ in media}) == 1 and min(len(name.parts) for name, _ in media) > 2:
        media = [(PurePosixPath(*name.parts[1:]), source) for name, source in media]
    return list(media)


def _split_and_label(name: PurePosixPath, place: Path) -> tuple[str, str]:
    if len(name.parts) < 2:
        raise UserError(f"{place}: {name} is in no class's folder; put each file in a folder named after its class")
    split = NAMES.get(name.parts[0].lower())
    if split is not None and len(name.parts) > 2:
        return split, name.parts[1]
    return "all", name.parts[0]
