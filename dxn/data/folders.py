"""Data sets with one folder of files per class, on disk or in a tar or zip archive."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dxn.data.columns import Preprocessors, infer_modality
from dxn.data.rows import TARGET, InputSpec, OnBad, Rows, Source
from dxn.data.sources import ARCHIVES, require_path
from dxn.data.splits import SPLIT_NAMES, SPLITS, UNDIVIDED, complete_splits
from dxn.errors import UserError
from dxn.tokenize.adapter import reads_files

# The exceptions that tarfile, zipfile and their decompressors raise for a damaged file.
DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    OSError,
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
)


@dataclass(frozen=True)
class Member:
    """A file of the folder or archive.

    Args:
        parts: Folder names and file name, relative to the folder or archive.
        source: What a preprocessor reads: the path of a file on disk, or the bytes of an archive
            member.
    """

    parts: tuple[str, ...]
    source: str | bytes

    @property
    def name(self) -> str:
        """Path relative to the folder or archive."""
        return "/".join(self.parts)


def folder(
    path: str,
    *,
    preprocessors: Preprocessors,
    fractions: Sequence[float] | None = (0.8, 0.1, 0.1),
    on_bad: OnBad = "error",
    seed: int = 0,
) -> Source:
    """Read a data set with one folder per class.

    The layout is CLASS/FILE, or train/CLASS/FILE together with validation/CLASS/FILE and
    test/CLASS/FILE.

    Args:
        path: The folder, or a .tar, .tar.gz or .zip archive, which is read into memory.
        preprocessors: Preprocessors in use, by modality. The caller sets this argument.
        fractions: Fractions of training, validation and test files, if there are no folders for the
            splits. Null: the files are not divided.
        on_bad: What to do with a bad file: error (stop), skip or missing (both leave the row out).
        seed: Random seed of the split.

    Raises:
        UserError: If the folder has another layout, or contains files of several modalities.
    """
    root = Path(path)
    members = [member for member in _members(root) if not _is_hidden(member)]
    # The file system returns files in any order, and a random split depends on their order.
    members.sort(key=lambda member: member.parts)
    modality, members, notes = _files_of_one_modality(members, preprocessors, root)
    rows: dict[str, Rows] = {}
    for name, files in _by_split(_without_common_folder(members), root).items():
        labels = [label for _, label in files]
        cells = {modality: [member.source for member, _ in files], TARGET: labels}
        rows[name] = Rows(cells, [member.name for member, _ in files])
    splits = complete_splits(rows, fractions, seed=seed, notes=notes, files=[modality])
    return Source(
        splits,
        inputs={modality: InputSpec("files", modality)},
        target="folder name",
        task="classify",
        notes=notes,
        on_bad=on_bad,
        name=_name_of(root),
        files=[modality],
    )


def _name_of(root: Path) -> str:
    """Return the name of the folder, or of the archive without its suffixes."""
    root = root.resolve()  # the name of "." is empty
    archive = next((suffix for suffix in ARCHIVES if root.name.lower().endswith(suffix)), "")
    return root.name if root.is_dir() else root.name[: len(root.name) - len(archive)]


def _files_of_one_modality(
    members: Sequence[Member], preprocessors: Preprocessors, root: Path
) -> tuple[str, list[Member], list[str]]:
    """Return the modality of the files, the files of that modality, and notes about the others."""
    # A preprocessor that does not read files would treat the file names as its values.
    readers = {m: p for m, p in preprocessors.items() if reads_files(p)}
    # Infer the modality from the name, not from the content: a damaged file is a bad file of its
    # modality.
    modalities = [infer_modality([member.parts[-1]], readers) for member in members]
    counts = Counter(modality for modality in modalities if modality is not None)
    if not counts:
        names = ", ".join(readers) or "none"
        raise UserError(
            f"{root}: none of its {len(members)} files can be read by an adapter in use (adapters "
            f"that read files: {names}); set adapters, or check the path"
        )
    # Class folders do not specify which files of two modalities belong to the same sample.
    if len(counts) > 1:
        got = ", ".join(f"{count} {modality} files" for modality, count in counts.items())
        raise UserError(
            f"{root}: all files must have the same modality, got {got}; for several inputs, write "
            "a table with the paths and use data=table"
        )
    modality = next(iter(counts))
    files = [m for m, inferred in zip(members, modalities, strict=True) if inferred == modality]
    num_others = len(members) - len(files)
    notes = [f"not used: {num_others} files of other types"] if num_others else []
    return modality, files, notes


def _by_split(members: Sequence[Member], root: Path) -> dict[str, list[tuple[Member, str]]]:
    """Return files and their classes by split, or all of them under "all"."""
    by_split: dict[str, list[tuple[Member, str]]] = {}
    for member in members:
        # The first part is the name of a split only if it is a folder, not the file itself.
        first = member.parts[0].lower() if len(member.parts) > 1 else ""
        split = SPLIT_NAMES.get(first, UNDIVIDED)
        folders = member.parts[:-1] if split == UNDIVIDED else member.parts[1:-1]
        if not folders:
            raise UserError(
                f"{root}: {member.name} is not in a class folder; "
                "put each file in a folder named after its class"
            )
        by_split.setdefault(split, []).append((member, folders[0]))
    # A file outside of the split folders belongs to no split, so its class would silently be lost.
    if UNDIVIDED in by_split and len(by_split) > 1:
        outside = by_split[UNDIVIDED][0][0].name
        raise UserError(
            f"{root}: {outside} is outside of the folders for the splits "
            f"({', '.join(name for name in SPLITS if name in by_split)}); move or delete it"
        )
    return by_split


def _members(root: Path) -> Iterator[Member]:
    """Yield all files of a folder or archive."""
    if root.is_dir():
        for file in root.rglob("*"):
            if file.is_file():
                yield Member(file.relative_to(root).parts, str(file))
        return
    require_path(root)
    try:
        # Detect the format from the content: downloaded archives often have no suffix or a wrong
        # one.
        if zipfile.is_zipfile(root):
            files = _read_zip(root)
        elif tarfile.is_tarfile(root):
            files = _read_tar(root)
        else:
            raise UserError(f"{root}: must be a folder, or a tar or zip archive")
        for name, data in files:
            # Zip and tar use "/" on every system. Some archives start all names with "./".
            parts = tuple(part for part in name.split("/") if part not in ("", "."))
            yield Member(parts, data)
    except DAMAGED as error:
        raise UserError(
            f"{root}: damaged or truncated archive ({error}); download or pack it again"
        ) from error


def _read_zip(path: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            # Reading also verifies the checksum of the member.
            if not info.is_dir():
                yield info.filename, archive.read(info)


def _read_tar(path: Path) -> Iterator[tuple[str, bytes]]:
    data = path.read_bytes()
    # Decompress a gzip file at once: tarfile would decompress it while seeking, which takes twice
    # as long.
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for info in archive:
            file = archive.extractfile(info) if info.isfile() else None
            if file is not None:
                yield info.name, file.read()
        _check_end_of_tar(archive)


def _check_end_of_tar(archive: tarfile.TarFile) -> None:
    """Check that the archive ends with a block of zeros.

    tarfile itself treats a damaged header, or the end of a truncated file, as the end of the
    archive, and silently returns fewer files.
    """
    if archive.fileobj is None:
        return
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(f"unexpected end at byte {archive.offset:,}")


def _is_hidden(member: Member) -> bool:
    # macOS adds a folder __MACOSX with metadata to zip archives.
    return any(part.startswith((".", "__MACOSX")) for part in member.parts)


def _without_common_folder(members: Sequence[Member]) -> Sequence[Member]:
    """Remove folders that contain all other folders, as archives often have."""
    while len({member.parts[0] for member in members}) == 1:
        # Keep the folder of the only class, and the folder of the only split.
        is_class = min(len(member.parts) for member in members) <= 2
        is_split = members[0].parts[0].lower() in SPLIT_NAMES
        if is_class or is_split:
            break
        members = [Member(member.parts[1:], member.source) for member in members]
    return members
