"""Folders of pictures whose objects are in JSON files of COCO."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from dxn.core.display import count, list_names
from dxn.core.errors import UserError
from dxn.core.untrusted import load_json
from dxn.data.sources.detect import MASK_FOLDERS, annotations_of, in_folder, is_coco
from dxn.data.sources.picture_files import (
    Picture,
    name_of,
    pair,
    pictures_in,
    split_of_folders,
    split_of_name,
    with_size,
)
from dxn.tasks.names import class_name

PICTURES = ("images", "JPEGImages")
MAX_IDS = 10  # in a message


def _coco_files(root: Path, files: Sequence[Path]) -> dict[str, Path]:
    """Return the JSON file of COCO of each split."""
    by_split: dict[str, Path] = {}
    for file in files:
        split = split_of_name(file.stem) or split_of_folders(file, root)
        other = by_split.setdefault(split, file)
        # COCO also has files of keypoints and captions for the same pictures.
        are_instances = "instances" in file.name, "instances" in other.name
        if are_instances == (True, False):
            by_split[split] = file
        elif other != file and are_instances != (False, True):
            raise UserError(
                f"{root}: {other.name} and {file.name} are both annotations of the {split} split; "
                "keep one of them"
            )
    return by_split


def read_coco(root: Path, files: Sequence[Path], notes: list[str]) -> Iterator[Picture]:
    """Yield the pictures of the JSON files of COCO."""
    pictures = _pictures_of_coco(root)
    for split, file in _coco_files(root, files).items():
        content = load_json(file)
        with _explained(file):
            objects = _coco_objects(content, file)
            images = _coco_images(content, file, root, split, pictures)
            if unlisted := objects.keys() - images.keys():
                number = sum(len(objects[picture_id]) for picture_id in unlisted)
                notes.append(
                    f"not used: {count(number, 'annotation')} of images that {file.name} does not "
                    f"list, such as image {min(unlisted)}"
                )
            for picture_id, (path, image) in images.items():
                cell = None
                if "annotations" in content:
                    sides = image.get("width"), image.get("height")
                    cell = with_size(objects.get(picture_id, []), *sides)
                yield Picture(split, path, f"{file.name} image {picture_id}", cell)


def coco_ids(path: Path) -> tuple[dict[Path, Any], dict[str, Any]]:
    """Return the ids of the pictures and of the names of categories in JSON files of COCO.

    Both are empty without such files. A name that two categories have is left out.

    Args:
        path: A file, or a folder with files.

    Raises:
        UserError: If two pictures have the same id, or a file is damaged.
    """
    root = path
    if path.is_file():
        if not is_coco(path):
            return {}, {}
        form, files = "COCO", [path]
        # The folder of the annotations can lie beside those of the pictures.
        root = path.parent if pictures_in(path.parent) else path.parent.parent
    else:
        form, files = annotations_of(root) or ("", [])
    if form != "COCO":
        return {}, {}
    picture_ids: dict[Path, Any] = {}
    paths: dict[Any, Path] = {}
    ids_of_name: dict[str, set[Any]] = {}
    pictures = _pictures_of_coco(root)
    for split, file in _coco_files(root, files).items():
        content = load_json(file)
        with _explained(file):
            for picture, image in _coco_images(content, file, root, split, pictures).values():
                other = paths.setdefault(image["id"], picture)
                if other != picture:
                    raise UserError(
                        f"input: {picture} and {other} have the same id, {image['id']}, in two "
                        "files of COCO, so that their results could not be told apart; set input "
                        "to the folder of one of them"
                    )
                picture_ids[picture] = image["id"]
            for item in content["categories"]:
                ids_of_name.setdefault(class_name(item["name"]), set()).add(item["id"])
    return picture_ids, {name: ids.pop() for name, ids in ids_of_name.items() if len(ids) == 1}


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Name the file of COCO and its format if a key is missing or has another type."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{file}: is not in the format of COCO ({type(error).__name__}: {error}); an image "
            "must have id and file_name, an annotation image_id, category_id and bbox or "
            "segmentation"
        ) from error


def _pictures_of_coco(root: Path) -> list[Path]:
    return [path for path in pictures_in(root) if not in_folder(path, root, MASK_FOLDERS)]


def _coco_images(
    content: Mapping[str, Any], file: Path, root: Path, split: str, pictures: Sequence[Path]
) -> dict[str, tuple[Path, Mapping[str, Any]]]:
    """Return the path and the entry of each image of a file of COCO, by its id as a text.

    Args:
        content: Content of the file.
        file: The file.
        root: The folder of the data.
        split: Split of the file.
        pictures: All pictures of the folder.
    """
    image_of: dict[str, Mapping[str, Any]] = {}
    for image in content["images"]:
        other = image_of.setdefault(_id_of(image["id"]), image)
        if other["file_name"] != image["file_name"]:
            raise UserError(f"{file}: two images have the id {image['id']}; give each one its own")
    # Paths of Windows have backslashes.
    file_names = [image["file_name"].replace("\\", "/") for image in image_of.values()]
    paths = _coco_paths(file_names, file, root)
    missing = [i for i, path in enumerate(paths) if not path.is_file()]
    names = [name_of(PurePosixPath(file_names[i]), root, split) for i in missing]
    claimed = set(paths)
    others = [path for path in pictures if path not in claimed]
    for i, other in pair(names, [name_of(path, root) for path in others]).items():
        paths[missing[i]] = others[other]
    images = zip(paths, image_of.values(), strict=True)
    return dict(zip(image_of, images, strict=True))


def _coco_objects(content: Mapping[str, Any], file: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the objects of each image of a file of COCO, by its id as a text.

    Some programs write ids as numbers in one list, and as texts in another one.

    Raises:
        UserError: If an annotation has a category that the file does not list.
    """
    categories: dict[str, Mapping[str, Any]] = {}
    for item in content["categories"]:
        other = categories.setdefault(_id_of(item["id"]), item)
        if other["name"] != item["name"]:
            raise UserError(
                f"{file}: the categories {other['name']} and {item['name']} have the same id, "
                f"{item['id']}; give each one its own"
            )
    objects: dict[str, list[dict[str, Any]]] = {}
    unknown: list[Mapping[str, Any]] = []
    for item in content.get("annotations", ()):
        category = categories.get(_id_of(item["category_id"]))
        if category is None:
            unknown.append(item)
            continue
        annotation = {"label": category["name"], "category_id": category["id"]}
        annotation |= {"iscrowd": item["iscrowd"]} if item.get("iscrowd") else {}
        if item.get("segmentation"):
            annotation["segmentation"] = _compact(item["segmentation"])
        if "bbox" in item or "segmentation" not in annotation:
            annotation["bbox"] = item["bbox"]
        elif isinstance(annotation["segmentation"], list):
            annotation["bbox"] = _box_around(annotation["segmentation"])
        if rotation := _rotation_of(item):
            annotation["bbox"] = _around_rotated(annotation["bbox"], rotation)
        objects.setdefault(_id_of(item["image_id"]), []).append(annotation)
    if unknown:
        first = unknown[0]
        raise UserError(
            f"{file}: {count(len(unknown), 'annotation')} of a category that the file does not "
            f"list, such as category {first['category_id']} in image {first['image_id']}; its "
            f"categories have the ids {list_names([*categories], MAX_IDS)}; add the category or "
            "correct the annotations"
        )
    return objects


def _rotation_of(item: Mapping[str, Any]) -> float:
    """Return the angle in degrees by which a box is turned around its center, as CVAT writes it."""
    attributes = item.get("attributes")
    value = attributes.get("rotation") if isinstance(attributes, Mapping) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _around_rotated(box: Any, degrees: float) -> Any:
    """Return the box around a turned one, both as left, top, width and height."""
    try:
        left, top, width, height = map(float, box)
    except (TypeError, ValueError):
        return box  # the row is reported when it is read
    cos, sin = abs(math.cos(math.radians(degrees))), abs(math.sin(math.radians(degrees)))
    size = width * cos + height * sin, width * sin + height * cos
    return [left + (width - size[0]) / 2, top + (height - size[1]) / 2, *size]


def _id_of(value: Any) -> str:
    """Return an id as a text. 1, "1" and 1.0, which pandas writes, are the same."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _coco_paths(names: Sequence[str], file: Path, root: Path) -> list[Path]:
    """Return the files with these names beside a file of annotations or in the usual folders.

    A file that is not there has the first possible path.
    """
    folders = [parent / name for parent in (file.parent, root) for name in ("", *PICTURES)]
    paths: list[Path] = []
    for name in names:
        options = [folder / name for folder in folders]
        paths.append(next((path for path in options if path.is_file()), options[0]))
    return paths


def _compact(area: Any) -> Any:
    """Return polygons as arrays, because millions of numbers in lists need much memory."""
    try:
        return (
            [np.asarray(polygon, np.float32) for polygon in area]
            if isinstance(area, list)
            else area
        )
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
