"""Folders of pictures with boxes (COCO, Pascal VOC and YOLO) or with masks."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.core.untrusted import load_json, shortened
from dxn.data.columns.infer import Readers
from dxn.data.rows import TARGET, InputSpec, OnBad, Rows, Source
from dxn.data.sources.confine import confined
from dxn.data.sources.detect import (
    PICTURE_FOLDERS,
    SPLIT_NAMES,
    annotations_of,
    in_folder,
    mask_stem,
)
from dxn.data.splits.split import UNDIVIDED, complete_splits
from dxn.tokenize.media import SUFFIXES

LISTS = "ImageSets/Main"  # folder with the names of the pictures of each split in Pascal VOC
PICTURES = ("images", "JPEGImages")


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


def annotated(
    path: str,
    *,
    readers: Readers,
    fractions: Sequence[float] | None = (0.8, 0.1, 0.1),
    on_bad: OnBad = "error",
    confine: bool = True,
    seed: int = 0,
) -> Source:
    """Read a folder of pictures with the boxes of the objects in them, or with masks.

    The formats of boxes are COCO (a JSON file per split, whose polygons and run lengths are masks
    with head=segment), Pascal VOC (an XML file per picture) and YOLO (a text file per picture in
    folders called labels, and the names of the classes in data.yaml or classes.txt). Masks are in
    folders called masks, labels or annotations, and have the names of the pictures, which are in
    folders called images; the name can also have an ending such as _mask. The splits are those of
    the folders, of the names of the files, or of lists such as train.txt.

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
    found = annotations_of(root)
    if found is None:
        raise UserError(
            f"{root}: has no boxes in the format of COCO, Pascal VOC or YOLO, and no folders "
            "called images and masks; check the path"
        )
    form, files = found
    index = {path.stem: path for path in _pictures(root)}
    pictures = list(READERS[form](root, files, index))
    if not pictures:
        raise UserError(f"{root}: there are annotations, but none of their pictures was found")
    rows: dict[str, Rows] = {}
    for split in dict.fromkeys(picture.split for picture in pictures):
        own = [picture for picture in pictures if picture.split == split]
        cells: dict[str, list[Any]] = {
            "image": [confined(p.path, root) if confine else str(p.path) for p in own],
            TARGET: [
                _safe(picture.objects, root) if confine else picture.objects for picture in own
            ],
        }
        rows[split] = Rows(cells, [picture.origin for picture in own])
    has_masks = form == "masks"
    notes = [] if has_masks else [f"boxes in the format of {form}"]
    if UNDIVIDED in rows and len(rows) > 1:
        # Such as pictures that are in none of the lists of Pascal VOC.
        unused = rows.pop(UNDIVIDED)
        notes.append(f"not used: {count(len(unused), 'picture')} without a split")
    splits = complete_splits(rows, fractions, seed=seed, notes=notes, files=["image"])
    return Source(
        splits,
        inputs={"image": InputSpec("files", "image")},
        target="mask" if has_masks else "objects",
        task="segment" if has_masks else "detect",
        notes=notes,
        on_bad=on_bad,
        name=root.resolve().name,
        files=["image"],
    )


def _pictures(root: Path) -> list[Path]:
    """Return the files of pictures in a folder and in those below it."""
    return sorted(
        Path(folder, name)
        for folder, _, names in os.walk(root)
        for name in names
        if not name.startswith(".") and name.lower().endswith(SUFFIXES["image"])
    )


def _coco(root: Path, files: Sequence[Path], index: Mapping[str, Path]) -> Iterator[Picture]:
    """Yield the pictures of the JSON files of COCO."""
    by_split: dict[str, Path] = {}
    for file in files:
        split = _split_of(file.stem) or _split_in(file, root)
        other = by_split.setdefault(split, file)
        # COCO also has files of keypoints and captions for the same pictures.
        if other != file and "instances" in file.name:
            by_split[split] = file
        elif other != file and "instances" not in other.name:
            raise UserError(
                f"{root}: {other.name} and {file.name} are both annotations of the {split} split; "
                "keep one of them"
            )
    pictures = _pictures(root)
    for split, file in by_split.items():
        content = load_json(file)
        try:
            names = {item["id"]: item["name"] for item in content["categories"]}
            objects: dict[Any, list[dict[str, Any]]] = {}
            for item in content.get("annotations", ()):
                known = {"label": names[item["category_id"]]}
                known |= {"iscrowd": 1} if item.get("iscrowd") else {}
                if item.get("segmentation"):
                    known["segmentation"] = _compact(item["segmentation"])
                if "bbox" in item or "segmentation" not in known:
                    known["bbox"] = item["bbox"]
                elif isinstance(known["segmentation"], list):
                    known["bbox"] = _box_around(known["segmentation"])
                objects.setdefault(item["image_id"], []).append(known)
            # Pictures of different splits can have the same name.
            own = {p.stem: p for p in pictures if _split_in(p, root) == split}
            own = {**index, **own}
            for image in content["images"]:
                path = _picture(image["file_name"], (file.parent, root), own)
                known = objects.get(image["id"], []) if "annotations" in content else None
                yield Picture(split, path, f"{file.name} image {image['id']}", known)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{file}: is not in the format of COCO ({type(error).__name__}: {error}); an image "
                "must have id and file_name, an annotation image_id, category_id and bbox or "
                "segmentation"
            ) from error


def _compact(area: Any) -> Any:
    """Return polygons as arrays, because millions of numbers in lists need much memory."""
    try:
        return [np.asarray(each, np.float32) for each in area] if isinstance(area, list) else area
    except (TypeError, ValueError, OverflowError):
        return area  # the row is reported when it is read


def _box_around(polygons: list[Any]) -> list[float] | None:
    """Return the left, top, width and height of polygons. None: they are not valid."""
    try:
        corners = np.concatenate(polygons, dtype=np.float32).reshape(-1, 2)
        start, stop = corners.min(0), corners.max(0)
    except (TypeError, ValueError):
        return None  # the row is reported when it is read
    return [*start.tolist(), *(stop - start).tolist()]


def _voc(root: Path, files: Sequence[Path], index: Mapping[str, Path]) -> Iterator[Picture]:
    """Yield the pictures of the XML files of Pascal VOC."""
    lists = root / LISTS if (root / LISTS).is_dir() else root
    splits: dict[str, str] = {}
    for file in sorted(lists.glob("*.txt")):
        split = SPLIT_NAMES.get(file.stem.lower())
        if split is not None:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            splits.update({Path(line.split()[0]).stem: split for line in lines if line.split()})
    by_split = {(_split_in(path, root), path.stem): path for path in _pictures(root)}
    for file in files:
        try:
            tree = ElementTree.parse(file)
            objects: list[dict[str, Any]] = []
            for item in tree.iter("object"):
                box = item.find("bndbox")
                if box is None:
                    raise ElementTree.ParseError("an object has no bndbox")
                numbers = {key: box.findtext(key) for key in ("xmin", "ymin", "xmax", "ymax")}
                objects.append({"label": item.findtext("name"), **numbers})
        # Others than ParseError: the file names an encoding that is unknown or not supported.
        except (ElementTree.ParseError, LookupError, ValueError) as error:
            raise UserError(
                f"{file}: is not in the format of Pascal VOC ({error}); correct or delete it"
            ) from error
        name = tree.findtext("filename") or file.stem
        near = (file.parent, *(file.parent.parent / each for each in PICTURES))
        split = _split_in(file, root)
        path = by_split.get((split, file.stem)) or index.get(file.stem)
        # Masks in a folder SegmentationClass have the names of the pictures.
        if path is None or Path(name).stem == file.stem:
            path = _picture(name, near, index if path is None else {file.stem: path})
        split = splits.get(file.stem) or split
        yield Picture(split, path, str(file.relative_to(root)), objects)


def _yolo(root: Path, files: Sequence[Path], index: Mapping[str, Path]) -> Iterator[Picture]:
    """Yield the pictures of YOLO. A picture without a text file has no objects.

    Files of different splits can have the same name.
    """
    names = _class_names(root, files)
    pictures = _pictures(root)
    num_pictures = Counter(path.stem for path in pictures)
    by_stem = {file.stem: file for file in files}
    by_split = {(_split_in(file, root), file.stem): file for file in files}
    for path in pictures:
        split, stem = _split_in(path, root), path.stem
        objects: list[dict[str, Any]] = []
        file = by_stem.get(stem) if num_pictures[stem] == 1 else by_split.get((split, stem))
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file else []
        for number, line in enumerate(lines, 1):
            if not line.split():
                continue
            try:
                kind, *numbers = map(float, line.split())
                label = names.get(int(kind), str(int(kind)))
                objects.append({"label": label, **_yolo_box(numbers)})
            except (ValueError, OverflowError):
                raise UserError(
                    f"{file}: line {number} must be a class, the center, the width and the height, "
                    f"or a class and the corners of a polygon, got {line[:80]!r}"
                ) from None
        origin = str((file or path).relative_to(root))
        yield Picture(split, path, origin, objects)


def _masks(root: Path, files: Sequence[Path], index: Mapping[str, Path]) -> Iterator[Picture]:
    """Yield the pictures with masks. Files of different splits can have the same name."""
    names = _class_names(root, files)
    masks = {(_split_in(file, root), mask_stem(file)): file for file in files}
    known = {*files}
    for path in _pictures(root):
        if path in known or not in_folder(path, root, PICTURE_FOLDERS):
            continue
        split = _split_in(path, root)
        mask = masks.get((split, path.stem))
        cell = None if mask is None else {"mask": str(mask), "names": names}
        yield Picture(split, path, str(path.relative_to(root)), cell)


def _safe(cell: Any, root: Path) -> Any:
    """Return a cell whose mask is not read if its path leads out of the folder."""
    return {**cell, "mask": confined(cell["mask"], root)} if isinstance(cell, dict) else cell


def _yolo_box(numbers: Sequence[float]) -> dict[str, Any]:
    """Return the box of an object, which is written as one or as a polygon."""
    if len(numbers) == 4:
        return {"cxcywh": list(numbers)}
    if len(numbers) < 6 or len(numbers) % 2:
        raise ValueError
    across, down = numbers[0::2], numbers[1::2]
    return {"box": [min(across), min(down), max(across), max(down)]}


def _class_names(root: Path, files: Sequence[Path]) -> dict[int, str]:
    """Return the names of the classes of YOLO, by number."""
    for file in (*sorted(root.glob("*.yaml")), *sorted(root.glob("*.yml"))):
        import yaml

        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
        # ValueError: the file is not UTF-8, or a date in it does not exist.
        except (yaml.YAMLError, ValueError) as error:
            raise UserError(f"{file}: cannot be read ({error}); correct it") from error
        names = content.get("names") if isinstance(content, Mapping) else None
        if isinstance(names, Mapping):
            try:
                return {int(key): str(name) for key, name in names.items()}
            except (TypeError, ValueError):
                raise UserError(
                    f"{file}: names must have the number of each class as a key, such as 0: cat, "
                    f"got {shortened(names)}"
                ) from None
        if isinstance(names, list):
            return dict(enumerate(map(str, names)))
    for folder in (root, *{file.parent for file in files}):
        file = folder / "classes.txt"
        if file.exists():
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            return dict(enumerate(line.strip() for line in lines if line.strip()))
    return {}


def _picture(name: str, folders: Sequence[Path], index: Mapping[str, Path]) -> Path:
    """Return the file of a picture, which need not exist."""
    for folder in folders:
        for file in (folder / name, *(folder / each / name for each in PICTURES)):
            if file.is_file():
                return file
    return index.get(Path(name).stem, folders[0] / name)


def _split_of(name: str) -> str | None:
    """Return the split that a name contains as a word, such as instances_val2017."""
    words = re.findall(r"[a-z]+", name.lower())
    return next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), None)


def _split_in(file: Path, root: Path) -> str:
    """Return the split that a folder of a file, below the root, names."""
    splits = map(_split_of, file.relative_to(root).parts[:-1])
    return next((split for split in splits if split is not None), UNDIVIDED)


READERS = {"COCO": _coco, "Pascal VOC": _voc, "YOLO": _yolo, "masks": _masks}
