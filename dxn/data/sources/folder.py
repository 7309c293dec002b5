"""Data sets with one folder of files per class, or a tar or zip archive of such a folder."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import stat
import tarfile
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp

from dxn.core.display import count, list_names
from dxn.core.errors import UserError
from dxn.data.cell_paths import confined, require_inside
from dxn.data.columns.infer import Readers
from dxn.data.formats import ARCHIVES, METADATA, SPLIT_NAMES, SPLITS, require_path
from dxn.data.rows import TARGET, InputSpec, OnBad, Rows, Source
from dxn.data.sources.detect import is_metadata
from dxn.data.splits.split import FRACTIONS, UNDIVIDED, complete_splits
from dxn.data.tables.files import CHUNK, check_expansion
from dxn.tokenize.base import Reader
from dxn.tokenize.column_profile import modality_of, profile_of

HIDDEN = (".", "__MACOSX")  # macOS adds the latter with metadata to zip archives
MAX_LISTED = 5  # folders in a note


@dataclass(frozen=True)
class Member:
    """A file of the folder or archive.

    Args:
        parts: Folder names and file name, relative to the folder or archive.
        path: Path of the file.
    """

    parts: tuple[str, ...]
    path: str

    @property
    def name(self) -> str:
        """Path relative to the folder or archive."""
        return "/".join(self.parts)


def folder(
    path: str,
    *,
    readers: Readers,
    read_as: Sequence[str] | None = None,
    fractions: Sequence[float] | None = FRACTIONS,
    on_bad: OnBad = "error",
    confine: bool = True,
    seed: int = 0,
) -> Source:
    """Read a data set with one folder per class.

    The layout is CLASS/FILE, or train/CLASS/FILE together with validation/CLASS/FILE and
    test/CLASS/FILE.

    Args:
        path: The folder, or a .tar, .tar.gz or .zip archive, which is extracted into a cache
            folder.
        readers: Readers in use, by modality. The caller sets this argument.
        read_as: Modalities as which each file is read. [video, audio] reads the pictures and the
            sound track of each video. Default: the modality that fits best.
        fractions: Fractions of training, validation and test files, if there are no folders for the
            splits. Null: the files are not divided.
        on_bad: What to do with a bad file: error (stop), skip or missing (both leave the row out).
        confine: Refuse files that lead out of the folder through symbolic links.
        seed: Random seed of the split.

    Raises:
        UserError: If the folder has another layout, or contains files of several modalities and
            `read_as` does not choose them.
    """
    root = Path(path)
    # A reader that does not read files would treat the file names as its values.
    files = {name: reader for name, reader in readers.items() if reader.files}
    if read_as is not None:
        files = _chosen(read_as, files)
    all_members = _members(root if root.is_dir() else extracted(root), confine=confine)
    members = [member for member in all_members if not _is_hidden(member)]
    if not root.is_dir() and any(is_metadata(member.parts[-1]) for member in members):
        raise UserError(
            f"{root}: the archive contains a table of its files ({METADATA}); extract it, and use "
            "the folder"
        )
    # The file system returns files in any order, and a random split depends on their order.
    members.sort(key=lambda member: member.parts)
    members, modalities, notes = _readable_files(members, files, root)
    names = [_only(modalities, root)] if read_as is None else list(files)
    rows: dict[str, Rows] = {}
    by_split = _by_split(_without_common_folder(members), root)
    if empty := _classes_without_files(by_split):
        listed = list_names([path.name for path in empty], MAX_LISTED)
        notes.append(f"not used: {count(len(empty), 'folder')} without a file to read: {listed}")
    notes += _note_inner(by_split)
    for name, members_of in by_split.items():
        labels = [label for _, label in members_of]
        cells: dict[str, list[str | None]] = {TARGET: labels}
        for modality in names:
            cells[modality] = [_cell(member, modality, files[modality]) for member, _ in members_of]
        rows[name] = Rows(cells, [member.name for member, _ in members_of])
    splits = complete_splits(rows, fractions, seed=seed, notes=notes, files=names)
    return Source(
        splits,
        inputs={modality: InputSpec("files", modality) for modality in names},
        target="folder name",
        task="classify",
        notes=notes,
        on_bad=on_bad,
        name=_name_of(root),
        files=names,
    )


def _name_of(root: Path) -> str:
    """Return the name of the folder, or of the archive without its suffixes."""
    root = root.resolve()  # the name of "." is empty
    archive = next((suffix for suffix in ARCHIVES if root.name.lower().endswith(suffix)), "")
    return root.name if root.is_dir() else root.name[: len(root.name) - len(archive)]


def _chosen(read_as: Sequence[str], readers: Readers) -> Readers:
    """Return the readers of the modalities that the user chose."""
    unknown = [name for name in read_as if name not in readers]
    if unknown or not read_as:
        raise UserError(
            f"data.read_as: must be adapters in use that read files, got [{', '.join(read_as)}]; "
            f"choose from {', '.join(readers) or 'other adapters'}"
        )
    return {name: readers[name] for name in readers if name in read_as}


def _readable_files(
    members: Sequence[Member], readers: Readers, root: Path
) -> tuple[list[Member], list[str], list[str]]:
    """Return the files that a reader reads, their modalities, and notes about the others."""
    files: list[Member] = []
    modalities: list[str] = []
    for member in members:
        # Infer the modality from the name, not from the content: a damaged file is a bad file of
        # its modality.
        modality = modality_of(profile_of([member.parts[-1]]), readers)
        if modality is not None:
            files.append(member)
            modalities.append(modality)
    if not members:
        raise UserError(f"{root}: the folder has no files; choose another one")
    if not files:
        names = ", ".join(readers) or "none"
        raise UserError(
            f"{root}: none of its {len(members)} files can be read by an adapter in use (adapters "
            f"that read files: {names}); set adapters, or check the path"
        )
    num_others = len(members) - len(files)
    notes = [f"not used: {count(num_others, 'file')} of another type"] if num_others else []
    return files, modalities, notes


def _only(modalities: Sequence[str], root: Path) -> str:
    """Return the modality of all files."""
    counts = Counter(modalities)
    # Class folders do not specify which files of two modalities belong to the same sample.
    if len(counts) > 1:
        got = ", ".join(f"{number} {modality} files" for modality, number in counts.items())
        raise UserError(
            f"{root}: all files must have the same modality, got {got}; for several inputs, write "
            "a table with the paths and use data=table; data.read_as="
            f"[{counts.most_common(1)[0][0]}] uses one kind of files"
        )
    return next(iter(counts))


def _cell(member: Member, modality: str, reader: Reader) -> str | None:
    """Return the path of a file; None if a reader cannot read this kind of file."""
    profile = profile_of([member.parts[-1]])
    return None if modality_of(profile, {modality: reader}) is None else member.path


def _by_split(members: Sequence[Member], root: Path) -> dict[str, list[tuple[Member, str | None]]]:
    """Return files and their classes by split, or all of them under "all". None: no class."""
    by_split: dict[str, list[tuple[Member, str | None]]] = {}
    names = _split_folders(members)
    for member in members:
        split = SPLIT_NAMES[member.parts[0].lower()] if member.parts[0] in names else UNDIVIDED
        folders = member.parts[:-1] if split == UNDIVIDED else member.parts[1:-1]
        # The test files of a competition have no classes. `without_unlabeled` leaves them out.
        is_unlabeled = not folders and split in ("validation", "test")
        if not folders and not is_unlabeled:
            raise UserError(
                f"{root}: {member.name} is not in a class folder; put each file in a folder named "
                f"after its class, or write a table of the files and their targets ({METADATA})"
            )
        by_split.setdefault(split, []).append((member, None if is_unlabeled else folders[0]))
    # A file outside of the split folders belongs to no split, so its class would silently be lost.
    if UNDIVIDED in by_split and len(by_split) > 1:
        outside = by_split[UNDIVIDED][0][0].name
        raise UserError(
            f"{root}: {outside} is outside of the folders for the splits "
            f"({', '.join(name for name in SPLITS if name in by_split)}); move or delete it, or, "
            "if these folders are classes, put all class folders into a folder called train"
        )
    return by_split


def _classes_without_files(
    by_split: Mapping[str, Sequence[tuple[Member, str | None]]],
) -> list[Path]:
    """Return the folders beside those of the classes that have no file of a class, sorted."""
    folders: set[Path] = set()
    for split, members in by_split.items():
        num_above = 1 if split == UNDIVIDED else 2  # names in front of the last one
        folders |= {
            Path(member.path).parents[len(member.parts) - 1 - num_above]
            for member, label in members
            if label is not None
        }
    beside = {path for parent in {f.parent for f in folders} for path in parent.iterdir()}
    return sorted(p for p in beside - folders if p.is_dir() and not p.name.startswith(HIDDEN))


def _note_inner(by_split: Mapping[str, Sequence[tuple[Member, str | None]]]) -> list[str]:
    """Return a note about folders in those of the classes that could be classes themselves."""
    classes: dict[str, set[str]] = {}  # by the name of an inner folder
    for split, members in by_split.items():
        for member, label in members:
            inner = member.parts[1 if split == UNDIVIDED else 2 : -1]
            if label is not None and inner:
                classes.setdefault(inner[0], set()).add(label)
    shared = sorted(name for name, labels in classes.items() if len(labels) > 1)
    # Such as images in the folder of each class.
    if len(shared) < 2:
        return []
    label = min(classes[shared[0]])
    return [
        f"classes: the first folders, such as {label}, and not those in them, such as "
        f"{' and '.join(shared[:2])}, which several of them have"
    ]


def _split_folders(members: Sequence[Member]) -> set[str]:
    """Return the folders whose names are those of splits, unless they are classes such as "test".

    They are classes if their files are directly in them, and other folders are not splits.
    """
    first = {member.parts[0] for member in members if len(member.parts) > 1}
    splits = {name for name in first if name.lower() in SPLIT_NAMES}
    has_classes = any(m.parts[0] in splits and len(m.parts) > 2 for m in members)
    return splits if has_classes or splits == first else set()


def _members(root: Path, *, confine: bool) -> Iterator[Member]:
    """Yield all files of a folder."""
    # A folder can be a link, unlike in Path.rglob: each of its files is confined.
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if not _is_circle(Path(folder, name))]
        # A link to a folder outside could lead to all files of the computer.
        for path in (Path(folder, name) for name in folders) if confine else ():
            require_inside(path, root)
        for file in (Path(folder, name) for name in names):
            # A link to a missing file is a bad file, and is not silently left out.
            if file.is_file() or file.is_symlink():
                location = confined(file, root) if confine else str(file)
                yield Member(file.relative_to(root).parts, location)


def _is_circle(folder: Path) -> bool:
    """Whether a folder is a link to a folder that contains it."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def _is_hidden(member: Member) -> bool:
    return any(part.startswith(HIDDEN) for part in member.parts)


def _without_common_folder(members: Sequence[Member]) -> Sequence[Member]:
    """Remove folders that contain all other folders, as archives often have."""
    while len({member.parts[0] for member in members}) == 1:
        # Keep the folder of the only class, and the folder of the only split.
        is_class = min(len(member.parts) for member in members) <= 2
        is_split = members[0].parts[0].lower() in SPLIT_NAMES
        if is_class or is_split:
            break
        members = [Member(member.parts[1:], member.path) for member in members]
    return members


ENCRYPTED = 1  # bit of the flags of a file in a zip archive
MAX_EXTRACTION = 24 * 3600  # seconds after which an unfinished folder is taken for abandoned
# The exceptions that tarfile, zipfile and their decompressors raise for a damaged file.
DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    zlib.error,
    lzma.LZMAError,
)


def extracted(path: Path) -> Path:
    """Return a folder with the files of an archive, which is extracted if it is new or changed.

    Args:
        path: The archive, whose format is recognized by its content.

    Raises:
        UserError: If it is not an archive, is damaged, expands to too many bytes, or contains a
            name or a link that leads out of it.
    """
    require_path(path)
    status = path.stat()
    version = f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dxn" / "archives"
    folder = cache / hashlib.blake2b(version.encode(), digest_size=16).hexdigest()
    if folder.is_dir():
        return folder
    if not (zipfile.is_zipfile(path) or _is_tar(path)):
        raise UserError(
            f"{path}: must be a folder, or a tar or zip archive; if it is called like an archive, "
            "it is damaged or truncated, so download or pack it again"
        )
    cache.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(cache)
    # Renamed at the end, so that an extraction that was interrupted is not taken for a whole one.
    partial = Path(mkdtemp(prefix=f".{folder.name}-", dir=cache))
    try:
        if zipfile.is_zipfile(path):
            _extract_zip(path, partial)
        else:
            _extract_tar(path, partial)
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise, another process was faster
                raise
    except UserError:  # is a ValueError
        raise
    except tarfile.FilterError as error:
        raise UserError(f"{path}: {error}; pack it again without this file") from error
    except DAMAGED as error:
        raise UserError(
            f"{path}: cannot be extracted to {cache}, or is a damaged or truncated archive "
            f"({error}); download or pack it again"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _remove_abandoned(cache: Path) -> None:
    """Remove the unfinished folders of extractions that were killed."""
    for folder in cache.glob(".*"):
        with suppress(OSError):  # another process can remove it, too
            if time.time() - folder.stat().st_mtime > MAX_EXTRACTION:
                shutil.rmtree(folder, ignore_errors=True)


def _is_tar(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except DAMAGED:
        return False


def _extract_zip(path: Path, folder: Path) -> None:
    """Extract a zip archive. `ZipFile.extract` itself would change a name that leads out of it."""
    with zipfile.ZipFile(path) as archive:
        check_expansion(path, sum(info.file_size for info in archive.infolist()))
        for info in archive.infolist():
            # Old programs of Windows separate folders by backslashes.
            info.filename = info.filename.replace("\\", "/")
            name = PurePosixPath(info.filename)
            if name.is_absolute() or ".." in name.parts:
                raise UserError(
                    f"{path}: the name {info.filename!r} leads out of the archive; pack it again "
                    "without this file"
                )
            if stat.S_ISLNK(info.external_attr >> 16):
                raise UserError(
                    f"{path}: {info.filename} is a link; pack it again with the file itself (zip "
                    "without --symlinks)"
                )
            if info.flag_bits & ENCRYPTED:
                raise UserError(
                    f"{path}: {info.filename} is encrypted; extract the archive with its password, "
                    "and use the folder"
                )
            # Also names that differ only in upper case, if the disk does not tell them apart.
            if (folder / name).is_file():
                raise UserError(
                    f"{path}: contains two files called {info.filename}; pack it again with "
                    "different names"
                )
            archive.extract(info, folder)


def _extract_tar(path: Path, folder: Path) -> None:
    """Extract a tar archive. The filter refuses devices, and what leads out of the folder."""
    num_bytes = 0
    with tarfile.open(path) as archive:
        for info in archive:
            num_bytes += info.size
            check_expansion(path, num_bytes)
            archive.extract(info, folder, filter="data")
        # tarfile takes a damaged header, or the end of a truncated file, for the end of the
        # archive, which is at least two blocks of zeros. A compressed file ends with a checksum.
        assert archive.fileobj is not None
        has_end = False
        while rest := archive.fileobj.read(CHUNK):
            has_end = True
            if any(rest):
                raise tarfile.ReadError(f"unexpected end at byte {archive.offset:,}")
        if not has_end:
            raise tarfile.ReadError(f"unexpected end at byte {archive.offset:,}")
