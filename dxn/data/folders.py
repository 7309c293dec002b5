"""A folder a class, of pictures or sounds: on disk, or packed in a tar or zip."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from dxn.data.rows import Rows, Source
from dxn.data.samples import OnBad
from dxn.data.splits import NAMES, complete
from dxn.data.tables import IMAGES, SOUNDS
from dxn.errors import UserError

Member = tuple[tuple[str, ...], str | bytes]  # its folders and name, and what tokenize.media reads
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, RuntimeError, zlib.error, lzma.LZMAError)


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
    members = sorted((m for m in _members(place) if not _hidden(m[0])), key=lambda member: member[0])
    media = [m for m in members if m[0][-1].lower().endswith((*IMAGES, *SOUNDS))]
    kinds = {"image" if name[-1].lower().endswith(IMAGES) else "audio" for name, _ in media}
    if len(kinds) != 1:
        found = "pictures and sounds" if kinds else f"neither ({len(members)} other files)"
        raise UserError(f"{place}: must hold pictures or sounds, got {found}; for both, write a table of their paths")
    notes = [f"not used: {len(members) - len(media)} files of other kinds"] if len(members) > len(media) else []
    kind = kinds.pop()
    splits = {name: _rows(kind, found) for name, found in _by_split(_without_common_root(media), place).items()}
    splits = complete(splits, fractions, seed=seed, notes=notes)
    return Source(splits, "class", {kind: "files", "target": "folder"}, notes, on_bad)


def _by_split(media: Sequence[Member], place: Path) -> dict[str, list[tuple[str, str, str | bytes]]]:
    """(name, class, source) by split, or all of them under "all"."""
    found: dict[str, list[tuple[str, str, str | bytes]]] = {}
    for name, source in media:
        split = NAMES.get(name[0].lower(), "all") if len(name) > 1 else "all"
        folders = name[:-1] if split == "all" else name[1:-1]
        if not folders:
            shown = "/".join(name)
            raise UserError(
                f"{place}: {shown} is in no class's folder; put each file in a folder named after its class"
            )
        found.setdefault(split, []).append(("/".join(name), folders[0], source))
    if "all" in found and len(found) > 1:
        stray = found["all"][0][0]
        raise UserError(f"{place}: {stray} is in none of train, validation and test, but such folders are there")
    return found


def _rows(kind: str, found: Sequence[tuple[str, str, str | bytes]]) -> Rows:
    cells = {kind: [source for _, _, source in found], "target": [label for _, label, _ in found]}
    return Rows(cells, [name for name, _, _ in found])


def _members(place: Path) -> Iterator[Member]:
    if place.is_dir():
        for p in place.rglob("*"):
            if p.is_file():
                yield p.relative_to(place).parts, str(p)
        return
    if not place.is_file():
        raise UserError(f"{place}: no such folder or archive")
    try:
        read = _zipped if zipfile.is_zipfile(place) else _tarred if tarfile.is_tarfile(place) else None
        if read is None:
            raise UserError(f"{place}: neither a folder nor a tar or zip archive")
        for name, data in read(place):
            yield _parts(name), data
    except DAMAGE as error:
        raise UserError(f"{place}: damaged or truncated archive ({error})") from error


def _zipped(place: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(place) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                yield info.filename, archive.read(info)


def _tarred(place: Path) -> Iterator[tuple[str, bytes]]:
    data = place.read_bytes()
    if data.startswith(b"\x1f\x8b"):  # unpacked at once: half the time of seeking through it
        data = gzip.decompress(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for info in archive:
            if info.isfile() and (file := archive.extractfile(info)) is not None:
                yield info.name, file.read()
        # tarfile takes a damaged header, or the end of the file, for the end of the archive; that is a zero block.
        if archive.fileobj is not None:
            archive.fileobj.seek(archive.offset)
            if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError(f"it breaks off at byte {archive.offset:,}")


def _parts(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.split("/") if part not in ("", "."))


def _hidden(name: Sequence[str]) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in name)


def _without_common_root(media: Sequence[Member]) -> Sequence[Member]:
    """Archives are often packed with one folder around everything: it says nothing, unless it is called train."""
    while len({name[0] for name, _ in media}) == 1 and min(len(name) for name, _ in media) > 2:
        if media[0][0][0].lower() in NAMES:
            break
        media = [(name[1:], source) for name, source in media]
    return media
