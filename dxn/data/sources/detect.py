"""The formats of data sets, judged by path. This module imports neither torch nor pyarrow."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from dxn.core.errors import UserError
from dxn.data.formats import (
    ARCHIVES,
    ARRAYS,
    JSON,
    SPLIT_NAMES,
    TABLES,
    TEXT,
    require_path,
    table_format,
)

YOLO = "labels"  # folder with a text file per picture
# What files of annotations contain.
COCO = (b'"images"', b'"categories"', b'"file_name"')
VOC = (b"<annotation", b"<object")
LABELME = (b'"shapes"', b'"imagePath"')
# Starts of the names of folders with masks and with their pictures, and of the formats of masks.
MASK_FOLDERS = ("mask", "label", "annotation", "segmentation")
MASK_ONLY_FOLDERS = ("mask", "segmentation")
OBJECT_MASKS = "segmentationobject"
PICTURE_FOLDERS = ("image", "img", "picture", "jpegimages")
KINDS = (*MASK_FOLDERS, *PICTURE_FOLDERS)  # folders that only tell what their files are
MAX_DEPTH = 4  # of a file of annotations below the folder
MASKS = (".png", ".bmp", ".gif", ".tif", ".tiff")
PICTURES = (*MASKS, ".jpg", ".jpeg", ".webp", ".avif", ".ppm")
MAX_BOX = 10_000  # characters of a line with a box or a polygon
# What names of masks have beside the name of the picture, and names of pictures beside it.
MASK_WORDS = "masks?|labels?|labelids|labeltrainids|gtfine|seg|segmentation|gt|l"
PICTURE_WORDS = "image|img|picture|leftimg8bit|0000"  # 0000: the first channel of nnU-Net
MAX_COLORS = 256  # of a mask
MAX_ANNOTATIONS = 2**31  # bytes
AnnotationFormat = Literal["COCO", "Pascal VOC", "YOLO", "masks"]


def infer_source(path: str | Path | Sequence[str]) -> str:
    """Return the name of the data source that reads a path, as in data=NAME.

    Args:
        path: A file, a folder or an archive, or a list of files with the same format.

    Raises:
        UserError: If the path does not exist, or no data source reads it.
    """
    first = Path(path if isinstance(path, str | Path) else path[0])
    require_path(first)
    if first.is_dir():
        return _source_of_folder(first)
    name = first.name.lower()
    if table_format(first) is not None:
        return "table"
    if name.endswith(TEXT):
        return "text"
    if name.endswith(ARRAYS):
        return "grid"
    if name.endswith(ARCHIVES):
        return "folder"
    raise UserError(
        f"{first}: unknown format; use a table ({', '.join(TABLES)}), a text file ({TEXT}), frames "
        f"of cells ({', '.join(ARRAYS)}), or a folder or archive ({', '.join(ARCHIVES)}) with one "
        "folder per class"
    )


def tables_in(folder: Path) -> list[Path]:
    """Return the tables directly in a folder, sorted by name."""
    files = [file for file in folder.iterdir() if file.is_file() and not _is_hidden(file)]
    tables = sorted(file for file in files if table_format(file) is not None)
    # A .json file next to other tables, or next to class folders, usually describes the data set.
    is_described = any(entry.is_dir() for entry in folder.iterdir() if not _is_hidden(entry))
    others = [file for file in tables if table_format(file) != JSON]
    return others if others or is_described else tables


def tables_of_splits(folder: Path) -> dict[str, Path]:
    """Return the tables in the folders of the splits, such as train/metadata.csv, by split.

    Raises:
        UserError: If only some of the folders have a table, or there are two for a split.
    """
    tables: dict[str, Path] = {}
    without: list[Path] = []
    for part in sorted(folder.iterdir()):
        split = SPLIT_NAMES.get(part.name.lower())
        if split is None or not part.is_dir():
            continue
        metadata = [table for table in tables_in(part) if is_metadata(table.name)]
        if not metadata:
            without.append(part)
            continue
        if len(metadata) > 1 or split in tables:
            raise UserError(
                f"{folder}: there is more than one table of the {split} split; set data.train and "
                "data.test to the tables"
            )
        tables[split] = metadata[0]
    if tables and without:
        table = next(iter(tables.values()))
        raise UserError(
            f"{without[0]}: the folder has no table of its files, unlike {table.parent}; add one, "
            f"or set data.train={table} and the tables of other splits"
        )
    return tables


def annotations_of(folder: Path) -> tuple[AnnotationFormat, list[Path]] | None:
    """Return the format and the files of the boxes of the objects in pictures, or of their masks.

    The files are sorted by name. None: the folder has no annotations.
    """
    files = _files_below(folder)
    coco = list(filter(is_coco, files))
    if coco:
        return "COCO", coco
    voc = [file for file in files if file.suffix.lower() == ".xml"]
    # A picture without objects can be the first one.
    if any(_contains(file, VOC) for file in voc):
        return "Pascal VOC", voc
    texts = [file for file in files if file.suffix.lower() == TEXT and file.name != "classes.txt"]
    labels = [file for file in texts if YOLO in _folders_of(file, folder)]
    # A folder per class can have any name, also this one.
    has_names = any(any(folder.glob(name)) for name in ("*.yaml", "*.yml", "classes.txt"))
    has_pictures = any("images" in _folders_of(file, folder) for file in files)
    if labels and (has_names or has_pictures):
        return "YOLO", labels
    # Beside its picture, as labelImg writes it.
    pictures = {file.with_suffix("") for file in files if file.suffix.lower() in PICTURES}
    beside = [file for file in texts if file.with_suffix("") in pictures]
    if any(map(_has_boxes, beside)):
        return "YOLO", beside
    masks = [file for file in files if file.suffix.lower() in MASKS]
    masks = [file for file in masks if in_folder(file, folder, MASK_FOLDERS)]
    # Beside the classes, Pascal VOC and CVAT have a mask with the number of each object.
    of_classes = [file for file in masks if not in_folder(file, folder, (OBJECT_MASKS,))]
    masks = of_classes or masks
    others = [file for file in files if in_folder(file, folder, PICTURE_FOLDERS)]
    others = [file for file in others if file.suffix.lower() in PICTURES]
    # Classes can be folders of any name, whose files have the same names. But nobody calls classes
    # images and masks or segmentation, so such folders have masks even if the names differ.
    stems = {stem_of_mask(file) for file in masks}
    has_pairs = any(stem_of_picture(file) in stems for file in others)
    is_named = any(in_folder(file, folder, MASK_ONLY_FOLDERS) for file in masks)
    if others and masks and (is_named or (has_pairs and _is_mask(masks[0]))):
        return "masks", masks
    return None


def _files_below(folder: Path) -> list[Path]:
    """Return the files in a folder and those below it, sorted by depth and name."""
    files: list[Path] = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        depth = len(Path(parent).relative_to(folder).parts) + 1
        folders[:] = [name for name in folders if depth < MAX_DEPTH and not _is_hidden(Path(name))]
        files += [Path(parent, name) for name in names if not _is_hidden(Path(name))]
    return sorted(files, key=lambda file: (len(file.parts), file))


def _has_boxes(file: Path) -> bool:
    """Whether the first line of a text file is a class and the numbers of a box."""
    if not file.is_file():
        return False
    with file.open(encoding="utf-8", errors="replace") as lines:
        return re.fullmatch(r"\d+(\s+[\d.eE+-]+){4,}\s*", next(lines, "")[:MAX_BOX]) is not None


def _is_mask(file: Path) -> bool:
    """Whether a picture has a palette, levels of gray, or few colors."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            is_gray = image.mode in ("1", "L", "P", "I", "I;16")
            return is_gray or image.convert("RGB").getcolors(MAX_COLORS) is not None
    except OSError:
        return False


def has_colors(file: Path) -> bool:
    """Whether a picture has colors instead of levels of gray or indices of a palette."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            return image.mode in ("RGB", "RGBA")
    except OSError:
        return False


def in_folder(file: Path, root: Path, names: tuple[str, ...]) -> bool:
    """Whether the folder that tells what a file is starts with one of these names."""
    folders = _folders_of(file, root)
    kinds = indices_of_kinds(folders)
    return any(folders[i].startswith(names) for i in kinds[-1:] or range(len(folders)))


def indices_of_kinds(folders: Sequence[str]) -> list[int]:
    """Return the indices of the folders that are called images, masks, labels or similar.

    Others, such as labeled_by_ann, only start with such a name. They can be above or below.
    """
    names = [folder.lower() for folder in folders]
    return [i for i, n in enumerate(names) if n in KINDS or n.removesuffix("s") in KINDS]


def _folders_of(file: Path, root: Path) -> list[str]:
    """Return the names of the folders of a file below the root, in lower case."""
    return [part.lower() for part in file.relative_to(root).parts[:-1]]


def stem_of_mask(file: Path) -> str:
    """Return the name of the picture of a mask, such as 7 for 7.png, 7_mask.png and mask-7.png."""
    return _without_words(file.stem, MASK_WORDS)


def stem_of_picture(file: Path) -> str:
    """Return the name of a picture without words such as image, as in image_7.png."""
    return _without_words(file.stem, PICTURE_WORDS)


def _without_words(stem: str, words: str) -> str:
    shorter = re.sub(rf"([-_. ]({words}))+$", "", stem, flags=re.IGNORECASE)
    return re.sub(rf"^(({words})[-_. ])+", "", shorter, flags=re.IGNORECASE) or stem


def is_coco(file: Path) -> bool:
    """Whether a file has annotations in the format of COCO."""
    return file.suffix.lower() == JSON and _contains(file, COCO)


def _contains(file: Path, words: Sequence[bytes]) -> bool:
    """Whether a file contains all of these words."""
    if not file.is_file() or file.stat().st_size > MAX_ANNOTATIONS:
        return False
    content = file.read_bytes()
    return all(word in content for word in words)


def is_metadata(name: str) -> bool:
    """Whether a file has the usual name of a table of the files of its folder."""
    return table_format(name) is not None and name.lower().partition(".")[0] == "metadata"


def _source_of_folder(folder: Path) -> str:
    # Tables have priority over class folders: a table usually refers to files in its folder.
    if annotations_of(folder) is not None:
        return "annotated"
    described = sorted(file for file in folder.glob(f"*{JSON}") if not _is_hidden(file))
    if described and _contains(described[0], LABELME):
        raise UserError(
            f"{described[0]}: is in the format of labelme, which is not read; convert the folder "
            "to COCO or YOLO"
        )
    if tables_in(folder) or tables_of_splits(folder):
        return "table"
    entries = [entry for entry in folder.iterdir() if not _is_hidden(entry)]
    has_folders = any(entry.is_dir() for entry in entries)
    return "text" if any(map(is_text, entries)) and not has_folders else "folder"


def is_text(file: Path) -> bool:
    """Whether a path is that of a text file, which is not hidden."""
    return file.suffix.lower() == TEXT and file.is_file() and not _is_hidden(file)


def _is_hidden(path: Path) -> bool:
    # Excel creates a lock file such as ~$prices.xlsx next to an open file.
    return path.name.startswith((".", "~$"))
