"""Folders of pictures with boxes (COCO, Pascal VOC and YOLO) or with masks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any
from xml.etree import ElementTree

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.core.untrusted import shortened
from dxn.data.cell_paths import confined
from dxn.data.columns.infer import Readers
from dxn.data.rows import TARGET, InputSpec, OnBad, Rows, Source
from dxn.data.sources.coco import read_coco
from dxn.data.sources.detect import (
    MASK_ONLY_FOLDERS,
    PICTURE_FOLDERS,
    annotations_of,
    has_colors,
    in_folder,
    stem_of_mask,
    stem_of_picture,
)
from dxn.data.sources.picture_files import (
    Picture,
    name_of,
    pair,
    pictures_in,
    split_of_folders,
    split_of_name,
    splits_of_lists,
    splits_of_yaml,
    with_size,
)
from dxn.data.splits.split import FRACTIONS, UNDIVIDED, complete_splits
from dxn.tasks.infer import value_of_color

HIDDEN = (".", "__MACOSX")  # macOS adds the latter to zip archives
DATA_YAML = ("data", "dataset")  # usual names of the YAML file of YOLO
MAX_FRACTION = 1.5  # of a corner of a polygon, which can lie a little outside of the picture


def annotated(
    path: str,
    *,
    readers: Readers,
    fractions: Sequence[float] | None = FRACTIONS,
    on_bad: OnBad = "error",
    confine: bool = True,
    seed: int = 0,
) -> Source:
    """Read a folder of pictures with the boxes of the objects in them, or with masks.

    The formats of boxes are COCO (a JSON file per split, whose polygons and run lengths are masks
    with head=segment), Pascal VOC (an XML file per picture) and YOLO (a text file per picture in
    folders called labels or beside the picture, and the names of the classes in data.yaml or
    classes.txt). Masks are in folders called masks, labels or annotations, and have the names of
    the pictures, which are in folders called images; the name can also have a word such as _mask.
    The splits are those of the folders, of the names of the files, of lists such as train.txt or of
    data.yaml.

    Args:
        path: The folder.
        readers: Readers in use, by modality. The caller sets this argument.
        fractions: Fractions of training, validation and test pictures, if there are no splits.
            Null: the pictures are not divided.
        on_bad: What to do with a bad picture: error (stop), skip or missing (both leave it out).
        confine: Refuse files that lead out of the folder through symbolic links.
        seed: Random seed of the split.

    Raises:
        UserError: If the folder has none of these formats, or a file of annotations is damaged.
    """
    root = Path(path)
    reader = readers.get("image")
    if reader is None:
        raise UserError(
            f"{root}: contains pictures, which no adapter in use reads; set adapters=[image]"
        )
    inner = _without_outer(root)
    annotations = annotations_of(inner)
    if annotations is None:
        raise UserError(
            f"{root}: has no boxes in the format of COCO, Pascal VOC or YOLO, and no folders "
            "called images and masks; check the path"
        )
    form, files = annotations
    notes = [] if form == "masks" else [f"boxes in the format of {form}"]
    pictures = list(READERS[form](inner, files, notes))
    if not pictures:
        raise UserError(f"{root}: there are annotations, but none of their pictures was found")
    if form != "COCO":  # whose files of annotations are those of the splits
        pictures = _with_listed_splits(inner, pictures, notes)
    rows: dict[str, Rows] = {}
    for split in dict.fromkeys(picture.split for picture in pictures):
        of_split = [picture for picture in pictures if picture.split == split]
        paths = [picture.path for picture in of_split]
        objects = [picture.objects for picture in of_split]
        cells: dict[str, list[Any]] = {
            "image": [confined(path, root) if confine else str(path) for path in paths],
            TARGET: [_safe(cell, root) for cell in objects] if confine else objects,
        }
        rows[split] = Rows(cells, [picture.origin for picture in of_split])
    if UNDIVIDED in rows and len(rows) > 1:
        # Such as pictures that are in none of the lists of Pascal VOC.
        others = rows.pop(UNDIVIDED)
        if "train" in rows:
            notes.append(f"not used: {count(len(others), 'picture')} without a split")
        else:
            rows["train"] = others
            notes.append(f"train: {count(len(others), 'picture')} that are in no other split")
    splits = complete_splits(
        rows, fractions, seed=seed, notes=notes, stratify=False, files=["image"]
    )
    return Source(
        splits,
        inputs={"image": InputSpec("files", "image")},
        target="mask" if form == "masks" else "objects",
        task="segment" if form == "masks" else "detect",
        notes=notes,
        on_bad=on_bad,
        name=root.resolve().name,
        files=["image"],
    )


def _without_outer(folder: Path) -> Path:
    """Return the folder in a folder that contains nothing else, as extracted archives often do.

    The names of classes and of splits are in files of the inner one.
    """
    while True:
        entries = [path for path in folder.iterdir() if not path.name.startswith(HIDDEN)]
        is_only = len(entries) == 1 and entries[0].is_dir()
        if not is_only or split_of_name(entries[0].name) is not None:
            return folder
        folder = entries[0]


def _with_listed_splits(root: Path, pictures: Sequence[Picture], notes: list[str]) -> list[Picture]:
    """Return the pictures with the splits that lists or data.yaml name, if there are any."""
    paths = [picture.path for picture in pictures]
    splits, lists = splits_of_lists(root, paths, notes)
    if not splits:
        for file, content in _yaml_files(root):
            splits |= splits_of_yaml(content, file, paths, notes)
            lists = [file.name] if splits else []
    if lists:
        notes.append(f"splits: from {', '.join(lists)}")
    return [p._replace(split=splits.get(p.path, p.split)) for p in pictures]


def _voc(root: Path, files: Sequence[Path], notes: list[str]) -> Iterator[Picture]:
    """Yield the pictures of the XML files of Pascal VOC."""
    # Masks in a folder SegmentationClass have the names of the pictures.
    pictures = [p for p in pictures_in(root) if not in_folder(p, root, MASK_ONLY_FOLDERS)]
    cells: dict[Path, Any] = {}
    file_names: dict[Path, str] = {}
    for file in files:
        try:
            tree = ElementTree.parse(file).getroot()
            if tree.tag != "annotation" and tree.find(".//bndbox") is None:
                continue
            objects: list[dict[str, Any]] = []
            for item in tree.iter("object"):
                boxes = item.findall("bndbox")
                if not boxes:
                    raise ElementTree.ParseError("an object has no bndbox")
                difficult = item.findtext("difficult")
                flag = {"difficult": difficult} if difficult else {}
                # Some programs write all boxes of a class in one object.
                for box in boxes:
                    numbers = {key: box.findtext(key) for key in ("xmin", "ymin", "xmax", "ymax")}
                    objects.append({"label": item.findtext("name"), **numbers, **flag})
            sides = tree.findtext("size/width"), tree.findtext("size/height")
            cells[file] = with_size(objects, *sides)
        # Others than ParseError: the file names an encoding that is unknown or not supported.
        except (ElementTree.ParseError, LookupError, ValueError) as error:
            raise UserError(
                f"{file}: is not in the format of Pascal VOC ({error}); correct or delete it"
            ) from error
        # Its folders, also those of Windows, are rarely those of the data.
        file_names[file] = PureWindowsPath(tree.findtext("filename") or "").name or file.stem
    # The name of the XML file is that of the picture. If there is none, the file names it.
    paths = _partners(list(cells), pictures, root)
    named = {file: file.with_name(name) for file, name in file_names.items() if file not in paths}
    left = sorted({*pictures} - {*paths.values()})
    of_names = _partners(list(named.values()), left, root)
    for file, cell in cells.items():
        path = paths.get(file) or of_names.get(named[file]) or named[file]
        yield Picture(split_of_folders(file, root), path, str(file.relative_to(root)), cell)


def _yolo(root: Path, files: Sequence[Path], notes: list[str]) -> Iterator[Picture]:
    """Yield the pictures of YOLO. A picture without a text file has no objects."""
    labels = _class_names(root, files)
    num_keypoints = _num_keypoint_values(root)
    pictures = [p for p in pictures_in(root) if not in_folder(p, root, MASK_ONLY_FOLDERS)]
    file_of = {picture: file for file, picture in _partners(files, pictures, root).items()}
    _note_unused({*files} - {*file_of.values()}, "file of boxes", root, notes)
    unnamed: list[str] = []
    for path in pictures:
        objects: list[dict[str, Any]] = []
        file = file_of.get(path)
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file else []
        for number, line in enumerate(lines, 1):
            if not line.split():
                continue
            try:
                kind, *numbers = map(float, line.split())
                if kind < 0 or not kind.is_integer():
                    raise ValueError
                if labels and kind not in labels:
                    unnamed.append(f"{file}: line {number} has the class {int(kind)}")
                label = labels.get(int(kind), str(int(kind)))
                objects.append({"label": label, **_yolo_box(numbers, num_keypoints)})
            except (ValueError, OverflowError):
                raise UserError(
                    f"{file}: line {number} must be a class, the center, the width and the height, "
                    "or a class and the corners of a polygon, all of them as fractions of the "
                    f"picture, got {line[:80]!r}; keypoints need kpt_shape in data.yaml"
                ) from None
        origin = str((file or path).relative_to(root))
        yield Picture(split_of_folders(path, root), path, origin, objects)
    if unnamed:
        raise UserError(
            f"{unnamed[0]}, which has no name; {count(len(unnamed), 'object')} of all files have "
            f"such a class, and the named ones are {min(labels)} to {max(labels)}; add the names, "
            "or correct the classes"
        )


def _masks(root: Path, files: Sequence[Path], notes: list[str]) -> Iterator[Picture]:
    """Yield the pictures with masks."""
    labels = _class_names(root, files) or _names_of_colors(root, files)
    masks = {*files}
    pictures = [
        path
        for path in pictures_in(root)
        if path not in masks and in_folder(path, root, PICTURE_FOLDERS)
    ]
    pairs = _partners(files, pictures, root)
    # Then without endings such as _mask, because 001_l can also be the left one of two pictures.
    rest = [file for file in files if file not in pairs]
    left = sorted({*pictures} - {*pairs.values()})
    stripped = [file.with_name(f"{stem_of_mask(file)}{file.suffix}") for file in rest]
    renamed = {path.with_name(f"{stem_of_picture(path)}{path.suffix}"): path for path in left}
    of_stripped = _partners(stripped, list(renamed), root)
    for file, name in zip(rest, stripped, strict=True):
        if name in of_stripped:
            pairs[file] = renamed[of_stripped[name]]
    mask_of = {picture: file for file, picture in pairs.items()}
    if not mask_of:
        names = ", ".join(str(path.relative_to(root)) for path in pictures[:1]) or "none"
        raise UserError(
            f"{files[0].relative_to(root)}: no picture has the name of this mask, such as "
            f"{names}; give a mask the name of its picture"
        )
    _note_unused({*files} - {*mask_of.values()}, "mask", root, notes)
    for path in pictures:
        mask = mask_of.get(path)
        cell = None if mask is None else {"mask": str(mask), "names": labels}
        yield Picture(split_of_folders(path, root), path, str(path.relative_to(root)), cell)


def _partners(files: Sequence[Path], pictures: Sequence[Path], root: Path) -> dict[Path, Path]:
    """Return the picture of each file that has one, see `pair`."""
    names = [name_of(path, root) for path in files]
    pairs = pair(names, [name_of(path, root) for path in pictures])
    return {files[i]: pictures[j] for i, j in pairs.items()}


def _note_unused(files: set[Path], what: str, root: Path, notes: list[str]) -> None:
    if files:
        notes.append(
            f"not used: {count(len(files), what)} without a picture, such as "
            f"{min(files).relative_to(root)}"
        )


def _safe(cell: Any, root: Path) -> Any:
    """Return a cell whose mask is not read if its path leads out of the folder."""
    has_mask = isinstance(cell, dict) and "mask" in cell
    return {**cell, "mask": confined(cell["mask"], root)} if has_mask else cell


def _yolo_box(numbers: Sequence[float], num_keypoints: int) -> dict[str, Any]:
    """Return the box of an object, which is written as one or as a polygon.

    Args:
        numbers: The numbers of the object.
        num_keypoints: How many of them can be those of keypoints, which follow a box.
    """
    if len(numbers) in (4, 4 + num_keypoints):
        return {"cxcywh": list(numbers[:4])}
    # A larger number is a pixel, or tells whether a keypoint is visible.
    if len(numbers) < 6 or len(numbers) % 2 or max(numbers) > MAX_FRACTION:
        raise ValueError
    across, down = numbers[0::2], numbers[1::2]
    return {"box": [min(across), min(down), max(across), max(down)]}


def _num_keypoint_values(root: Path) -> int:
    """Return how many numbers the keypoints of an object have; 0 without keypoints."""
    for file, content in _yaml_files(root):
        shape = content.get("kpt_shape")
        if shape is None:
            continue
        if isinstance(shape, list) and all(type(size) is int for size in shape):
            return math.prod(shape)
        raise UserError(
            f"{file}: kpt_shape must be the number of keypoints and of the numbers of each, such "
            f"as [17, 3], got {shortened(shape)}"
        )
    return 0


def _class_names(root: Path, files: Sequence[Path]) -> dict[int, str]:
    """Return the names of the classes of YOLO, by number."""
    found: dict[Path, dict[int, str]] = {}
    for file, content in _yaml_files(root):
        names = content.get("names")
        if isinstance(names, list):
            names = dict(enumerate(names))
        if isinstance(names, Mapping):
            try:
                found[file] = {int(key): str(name) for key, name in names.items()}
            except (TypeError, ValueError):
                raise UserError(
                    f"{file}: names must have the number of each class as a key, such as 0: cat, "
                    f"got {shortened(names)}"
                ) from None
    # A training with YOLO leaves other files, such as args.yaml.
    usual = {file: names for file, names in found.items() if file.stem in DATA_YAML} or found
    for file, names in usual.items():
        first = next(iter(usual))
        if names != usual[first]:
            raise UserError(
                f"{file}: has other names of classes than {first.name}; keep one of them"
            )
    if usual:
        return next(iter(usual.values()))
    for folder in (root, *{file.parent for file in files}):
        file = folder / "classes.txt"
        if file.exists():
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            # A blank line has a number too.
            return {i: line.strip() for i, line in enumerate(lines) if line.strip()}
    return {}


def _names_of_colors(root: Path, files: Sequence[Path]) -> dict[int, str]:
    """Return the names of the colors of masks in labelmap.txt, as CVAT writes it, by value."""
    file = root / "labelmap.txt"
    if not file.exists() or not has_colors(files[0]):
        return {}
    names: dict[int, str] = {}
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        # A line is name:red,green,blue:parts:actions.
        if match := re.match(r"([^#:][^:]*):(\d+),(\d+),(\d+)(:|$)", line):
            red, green, blue = (int(match[i]) for i in (2, 3, 4))
            names[int(value_of_color(red, green, blue))] = match[1]
    return names


def _yaml_files(root: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the YAML files of a folder and their content, if it is a mapping."""
    for file in (*sorted(root.glob("*.yaml")), *sorted(root.glob("*.yml"))):
        import yaml

        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
        # ValueError: the file is not UTF-8, or a date in it does not exist.
        except (yaml.YAMLError, ValueError) as error:
            raise UserError(f"{file}: cannot be read ({error}); correct it") from error
        if isinstance(content, Mapping):
            yield file, content


READERS = {"COCO": read_coco, "Pascal VOC": _voc, "YOLO": _yolo, "masks": _masks}
