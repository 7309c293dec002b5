"""Which picture belongs to a file of annotations, to a mask, or to a line of a list."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, NamedTuple

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.data.formats import SPLIT_NAMES
from dxn.data.sources.detect import KINDS, indices_of_kinds
from dxn.data.splits.split import UNDIVIDED
from dxn.tokenize.media import SUFFIXES

# Folders with the names of the pictures of each split, below the folder of Pascal VOC.
LISTS = ("ImageSets/Main", "ImageSets/Segmentation")
PRESENCE = (" 1", " 0", " -1")  # behind the names in its lists of classes


class Picture(NamedTuple):
    """A picture and its objects.

    Args:
        split: Its split, or `UNDIVIDED`.
        path: Its file.
        origin: The file of its annotations, and the place in it.
        objects: Objects with their boxes, see `dxn.tasks.detect.objects`, or the path of a mask
            with the names of its classes. None: unknown.
    """

    split: str
    path: Path
    origin: str
    objects: Any


class Name(NamedTuple):
    """A path that is compared with others.

    Args:
        path: The path as it is written, for messages.
        parts: Its folders below the root, without that of its kind such as "images", and its name
            without the suffix.
        split: The split that a folder names, or `UNDIVIDED`.
    """

    path: PurePath
    parts: tuple[str, ...]
    split: str


def pictures_in(root: Path) -> list[Path]:
    """Return the files of pictures in a folder and in those below it, sorted."""
    return sorted(
        Path(folder, name)
        for folder, _, names in os.walk(root)
        for name in names
        if not name.startswith(".") and name.lower().endswith(SUFFIXES["image"])
    )


def name_of(path: PurePath, root: Path, split: str | None = None) -> Name:
    """Return the name of a file.

    Args:
        path: The file, below the root or relative.
        root: The folder of the data.
        split: Its split. Default: that of its folders.
    """
    if path.is_relative_to(root):
        split = split or split_of_folders(Path(path), root)
        parts = path.relative_to(root).parts
    else:
        parts = path.parts
    *folders, last = parts
    kinds = indices_of_kinds(folders)[-1:]
    kinds = kinds or [i for i, part in enumerate(folders) if part.lower().startswith(KINDS)]
    if kinds:
        del folders[kinds[0]]
    stem = last.removesuffix(path.suffix) if _has_format(last) else last
    return Name(path, (*folders, stem), split or UNDIVIDED)


def _has_format(name: str) -> bool:
    """Whether a name ends in the suffix of a picture or of a file of annotations."""
    return name.lower().endswith((*SUFFIXES["image"], ".txt", ".xml"))


def pair(names: Sequence[Name], files: Sequence[Name]) -> dict[int, int]:
    """Return the index of the file of each name. A name without a file is left out.

    Equal paths are a pair, then paths with the same end, the longest ends first, and last of all
    bare names. A file belongs to one name, and to none of another split.

    Raises:
        UserError: If several files that are left have the name of one that is left, or vice versa.
    """
    pairs: dict[int, int] = {}
    left = [set(range(len(names))), set(range(len(files)))]
    depth = max((len(name.parts) for name in (*names, *files)), default=0)
    for same_split in (True, False):
        for length in (None, *range(depth, 0, -1)):
            for group_names, group_files in _groups(names, files, left, length):
                for name, file in _only_pairs(names, files, group_names, group_files, same_split):
                    pairs[name] = file
                    left[0].discard(name)
                    left[1].discard(file)
    for group_names, group_files in _groups(names, files, left, 1):
        for name in group_names:
            fitting = [f for f in group_files if _fit(names[name], files[f], same_split=False)]
            if fitting:
                others = [files[f].path for f in fitting[:2]]
                if len(others) == 1:
                    others += [names[i].path for i in group_names if i != name][:1]
                raise UserError(
                    f"{names[name].path}: cannot be told from others with the same name: "
                    f"{' and '.join(map(str, others))}; use the same folders for pictures and for "
                    "what belongs to them, or rename the files"
                )
    return pairs


def _groups(
    names: Sequence[Name], files: Sequence[Name], left: Sequence[Iterable[int]], length: int | None
) -> list[tuple[list[int], list[int]]]:
    """Return the names and files that are left and have equal ends of so many parts.

    None: whose parts are all equal.
    """
    groups: dict[tuple[str, ...], tuple[list[int], list[int]]] = {}
    for side, entries in enumerate((names, files)):
        for i in sorted(left[side]):
            parts = entries[i].parts
            if length is None or len(parts) >= length:
                key = parts if length is None else parts[-length:]
                groups.setdefault(key, ([], []))[side].append(i)
    return [group for group in groups.values() if all(group)]


def _only_pairs(
    names: Sequence[Name],
    files: Sequence[Name],
    group_names: Sequence[int],
    group_files: Sequence[int],
    same_split: bool,
) -> list[tuple[int, int]]:
    """Return the names and files of a group that fit each other and no other one."""
    fitting = {
        name: [f for f in group_files if _fit(names[name], files[f], same_split=same_split)]
        for name in group_names
    }
    counts = Counter(file for of_name in fitting.values() for file in of_name)
    return [(n, of[0]) for n, of in fitting.items() if len(of) == 1 and counts[of[0]] == 1]


def _fit(name: Name, file: Name, *, same_split: bool) -> bool:
    """Whether the splits of a name and of a file are equal, or one of them is unknown."""
    return name.split == file.split or (not same_split and UNDIVIDED in (name.split, file.split))


def splits_of_lists(
    root: Path, pictures: Sequence[Path], notes: list[str]
) -> tuple[dict[Path, str], list[str]]:
    """Return the splits of pictures in lists such as train.txt, and the names of these lists.

    Args:
        root: The folder, whose lists are directly in it or in those of Pascal VOC.
        pictures: The pictures, some of which may be missing.
        notes: Sentences about lines without a picture are appended to this list.
    """
    splits: dict[Path, str] = {}
    used: list[str] = []
    folders = [(root, root)]
    for name in LISTS:
        folders += [(path, path.parent.parent) for path in sorted(root.glob(name))]
        folders += [(path, path.parent.parent) for path in sorted(root.glob(f"*/{name}"))]
    for folder, base in folders:
        below = [path for path in pictures if path.is_relative_to(base)]
        for file in sorted(folder.glob("*.txt")):
            split = SPLIT_NAMES.get(file.stem.lower())
            if split is not None and (listed := pictures_of_list(file, below, base, notes)):
                splits |= {picture: split for picture in listed if picture not in splits}
                used.append(str(file.relative_to(root)))
    return splits, used


def pictures_of_list(
    file: Path, pictures: Sequence[Path], base: Path, notes: list[str]
) -> list[Path]:
    """Return the pictures that the lines of a text file name.

    Args:
        file: The list, with a path or a name per line.
        pictures: Pictures, some of which may be missing.
        base: Folder to which the paths are relative.
        notes: A sentence about lines without a picture is appended to this list.
    """
    picture_names = {path.stem for path in pictures} | {path.name for path in pictures}
    names: list[Name] = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        text = line.strip()
        if PurePosixPath(text).name not in picture_names and text.endswith(PRESENCE):
            text = text.rsplit(None, 1)[0]
        if text:
            path = PurePosixPath(text)
            names.append(name_of(path if path.is_absolute() else base / path, base, UNDIVIDED))
    files = [name_of(path, base, UNDIVIDED) for path in pictures]
    names = list(dict.fromkeys(names))  # a line can occur twice
    pairs = pair(names, files)
    if missing := [name.path.name for i, name in enumerate(names) if i not in pairs]:
        notes.append(
            f"{file.name}: {len(missing):,} of {count(len(names), 'name')} in it are those of no "
            f"picture, such as {missing[0]}"
        )
    return [pictures[i] for i in pairs.values()]


def splits_of_yaml(
    content: Mapping[str, Any], file: Path, pictures: Sequence[Path], notes: list[str]
) -> dict[Path, str]:
    """Return the splits that data.yaml of YOLO names: folders, or lists of pictures.

    Sentences about those that are missing are appended to the notes.
    """
    splits: dict[Path, str] = {}
    for key, split in SPLIT_NAMES.items():
        values = content.get(key)
        for value in values if isinstance(values, list) else [values]:
            if not isinstance(value, str):
                continue
            bases = (file.parent / str(content.get("path") or ""), file.parent)
            # Data sets are also downloaded with paths such as ../train/images for train/images.
            inside = re.sub(r"^(\.\./)+", "", value)
            options = [base / text for base in bases for text in (value, inside)]
            existing = [option for option in options if option.exists()]
            if not existing:
                notes.append(f"{file.name}: {key}: {value} is missing, and is not used")
                continue
            # Absolute, because data.yaml can name its folder in this way.
            chosen = Path(os.path.abspath(existing[0]))  # noqa: PTH100 (without links and "..")
            if chosen.is_dir():
                listed = [path for path in pictures if path.absolute().is_relative_to(chosen)]
            else:
                listed = pictures_of_list(chosen, pictures, file.parent, notes)
            splits |= {path: split for path in listed if path not in splits}
    return splits


def split_of_name(name: str) -> str | None:
    """Return the split that a name contains as a word, such as instances_val2017."""
    words = re.findall(r"[a-z]+", name.lower())
    return next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), None)


def split_of_folders(file: Path, root: Path) -> str:
    """Return the split that a folder of a file, below the root, names."""
    splits = map(split_of_name, file.relative_to(root).parts[:-1])
    return next((split for split in splits if split is not None), UNDIVIDED)


def with_size(objects: list[Any], width: Any, height: Any) -> Any:
    """Return the cell of objects in a picture with a size, which some programs write as 0."""
    try:
        sides = float(width), float(height)
    except (TypeError, ValueError):
        return objects
    if not objects or min(sides) <= 0 or not all(side.is_integer() for side in sides):
        return objects
    return {"objects": objects, "width": int(sides[0]), "height": int(sides[1])}
