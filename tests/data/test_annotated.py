"""Folders of pictures with boxes in the formats of COCO, Pascal VOC and YOLO."""

import json
import random
from pathlib import Path

import pytest
from helpers.newcomer import refused
from PIL import Image

from dxn.core.errors import UserError
from dxn.data import annotated
from dxn.data.sources.coco import coco_ids
from dxn.data.sources.detect import infer_source
from dxn.runs.predictor.option import files_of, has_many_samples, tables_of
from dxn.tasks import Detect
from dxn.tokenize import ImageAugment
from dxn.tokenize.image.reader import ImageReader
from dxn.tokenize.image.tokenizer import ImageTokenizer, ResizeOptions

SIZE = (80, 40)  # width and height
# Class, and left, top, right and bottom in pixels, of the objects of three pictures.
OBJECTS = {
    "a": [("cat", (8, 4, 40, 20)), ("dog", (40, 10, 80, 40))],
    "b": [],
    "c": [("dog", (0, 0, 16, 10))],
}


def write_pictures(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name in OBJECTS:
        Image.new("RGB", SIZE).save(folder / f"{name}.png")


def coco_of(names, **changes):
    images = [{"id": i, "file_name": f"{n}.png"} for i, n in enumerate(names)]
    items = [
        {"image_id": i, "category_id": {"cat": 7, "dog": 3}[c], "bbox": [x0, y0, x1 - x0, y1 - y0]}
        for i, n in enumerate(names)
        for c, (x0, y0, x1, y1) in OBJECTS[n]
    ]
    categories = [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}]
    content = {"images": images, "annotations": items, "categories": categories}
    return json.dumps(content | changes)


def write_coco(root):
    write_pictures(root / "train2017")
    (root / "annotations").mkdir()
    (root / "annotations/instances_train2017.json").write_text(coco_of("abc"))


def write_coco_beside_pictures(root):
    write_pictures(root / "train")
    (root / "train/_annotations.coco.json").write_text(coco_of("abc"))


def write_voc(root):
    write_pictures(root / "JPEGImages")
    (root / "Annotations").mkdir()
    for name, found in OBJECTS.items():
        objects = "".join(
            f"<object><name>{c}</name><bndbox><xmin>{x0}</xmin><ymin>{y0}</ymin><xmax>{x1}</xmax>"
            f"<ymax>{y1}</ymax></bndbox></object>"
            for c, (x0, y0, x1, y1) in found
        )
        text = f"<annotation><filename>{name}.png</filename>{objects}</annotation>"
        (root / f"Annotations/{name}.xml").write_text(text)
    (root / "ImageSets/Main").mkdir(parents=True)
    (root / "ImageSets/Main/train.txt").write_text("a\nb\nc\n")


def write_yolo(root):
    write_pictures(root / "images/train")
    (root / "labels/train").mkdir(parents=True)
    (root / "data.yaml").write_text("names: {0: cat, 1: dog}\n")
    width, height = SIZE
    for name, found in OBJECTS.items():
        lines = [
            f"{['cat', 'dog'].index(c)} {(x0 + x1) / 2 / width} {(y0 + y1) / 2 / height} "
            f"{(x1 - x0) / width} {(y1 - y0) / height}"
            for c, (x0, y0, x1, y1) in found
        ]
        if lines:
            (root / f"labels/train/{name}.txt").write_text("\n".join(lines))


WRITERS = [write_coco, write_coco_beside_pictures, write_voc, write_yolo]


def objects_of(source):
    """The objects of each picture as fractions of it, by the name of the picture."""
    tokenizer = ImageTokenizer(
        image_size=32, resize=ResizeOptions(), in_channels=3, augment=ImageAugment()
    )
    target = Detect().target
    target.tokenizers = {"image": tokenizer}
    cells, _, origins = source.targets()
    target.find_format(cells, origins)
    rows = source.splits["train"]
    return {
        path.rpartition("/")[2][:1]: target.read(cell, "row", {"image": path})
        for path, cell in zip(rows.cells["image"], rows.cells["target"], strict=True)
    }


@pytest.mark.parametrize("write", WRITERS)
def test_every_format_has_the_same_objects(write, tmp_path):
    write(tmp_path)
    assert infer_source(tmp_path) == "annotated"
    source = annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None)
    assert source.task == "detect" and list(source.splits) == ["train"]
    found = objects_of(source)
    assert sorted(found) == ["a", "b", "c"]
    width, height = SIZE
    for name, objects in OBJECTS.items():
        assert found[name].labels == tuple(label for label, _ in objects)
        for box, (_, (x0, y0, x1, y1)) in zip(found[name].boxes, objects, strict=True):
            assert box == pytest.approx((y0 / height, x0 / width, y1 / height, x1 / width))


def test_yolo_polygons_are_boxes(tmp_path):
    write_yolo(tmp_path)
    (tmp_path / "labels/train/b.txt").write_text("1 0.1 0.2 0.5 0.3 0.4 0.9")
    found = objects_of(annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None))
    assert found["b"].boxes[0] == pytest.approx((0.2, 0.1, 0.9, 0.5))


def test_a_folder_of_classes_is_no_folder_of_boxes(tmp_path):
    write_pictures(tmp_path / "images")
    (tmp_path / "labels").mkdir()
    for name in OBJECTS:  # a photo, with more colors than a mask has
        pixels = random.Random(name).randbytes(3 * SIZE[0] * SIZE[1])
        Image.frombytes("RGB", SIZE, pixels).save(tmp_path / f"labels/{name}.png")
    assert infer_source(tmp_path) == "folder"


def test_a_folder_of_texts_called_labels_is_no_folder_of_boxes(tmp_path):
    for name in ("labels", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("a text")
    (tmp_path / "other.json").mkdir()
    assert infer_source(tmp_path) == "folder"


def test_pictures_of_several_splits_of_yolo_can_have_the_same_name(tmp_path):
    write_yolo(tmp_path)
    write_pictures(tmp_path / "images/val")
    (tmp_path / "labels/val").mkdir()
    (tmp_path / "labels/val/b.txt").write_text("1 0.5 0.5 0.2 0.2")
    source = annotated(str(tmp_path), readers={"image": ImageReader()})
    cells = {name: rows.cells["target"] for name, rows in source.splits.items()}
    assert [len(cell) for cell in cells["validation"]] == [0, 1, 0]
    train = [*cells["train"], *cells.get("test", ())]
    assert sorted(map(len, train)) == sorted(map(len, OBJECTS.values()))


def test_pictures_of_several_splits_of_coco_can_have_the_same_name(tmp_path):
    (tmp_path / "annotations").mkdir()
    for split in ("train2017", "val2017"):
        write_pictures(tmp_path / split)
        (tmp_path / f"annotations/instances_{split}.json").write_text(coco_of("abc"))
    source = annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None)
    for name, folder in (("train", "train2017"), ("validation", "val2017")):
        paths = source.splits[name].cells["image"]
        assert [Path(path).parent.name for path in paths] == [folder] * 3


def test_pictures_of_several_splits_of_voc_can_have_the_same_name(tmp_path):
    for split in ("train", "val"):
        write_pictures(tmp_path / split)
        for name in "ab":
            text = f"<annotation><filename>{name}.png</filename><object><name>cat</name><bndbox>"
            text += "<xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"
            (tmp_path / split / f"{name}.xml").write_text(f"{text}</annotation>")
    source = annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None)
    for name, folder in (("train", "train"), ("validation", "val")):
        paths = source.splits[name].cells["image"]
        assert [Path(path).parent.name for path in paths] == [folder] * 2


def test_boxes_of_coco_follow_from_polygons(tmp_path):
    write_coco(tmp_path)
    content = json.loads(coco_of("abc"))
    boxes = []
    for item in content["annotations"]:
        boxes.append(item.pop("bbox"))
        left, top, width, height = boxes[-1]
        corners = [left, top, left + width, top + height, left, top + height]
        item["segmentation"] = [corners[:4] + corners[:2], corners]
    # Run lengths are masks too; their box is unknown.
    runs = {"size": [4, 4], "counts": [3, 13]}
    content["annotations"].append({"image_id": 0, "category_id": 7, "segmentation": runs})
    (tmp_path / "annotations/instances_train2017.json").write_text(json.dumps(content))
    source = annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None)
    cells = source.splits["train"].cells["target"]
    objects = [each for cell in cells for each in cell]
    assert [each["bbox"] for each in objects if "bbox" in each] == boxes
    assert sum("bbox" not in each for each in objects) == 1


@pytest.mark.parametrize(
    "polygons", [[[]], [[1, 2, 3]], [5], [["a", "b"]], [{}, {}], [[10**400, 1, 2, 3, 4, 5]]]
)
def test_objects_of_coco_with_invalid_polygons_have_no_box(polygons, tmp_path):
    write_coco(tmp_path)
    content = json.loads(coco_of("a"))
    del content["annotations"][0]["bbox"]
    content["annotations"][0]["segmentation"] = polygons
    (tmp_path / "annotations/instances_train2017.json").write_text(json.dumps(content))
    source = annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None)
    assert source.splits["train"].cells["target"][0][0]["bbox"] is None


def test_ids_of_coco_can_have_a_decimal_point(tmp_path):
    write_coco(tmp_path)
    content = json.loads(coco_of("a"))
    for item in content["annotations"]:  # pandas writes a column with gaps like this
        item |= {key: float(item[key]) for key in ("image_id", "category_id")}
    expected = annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None)
    (tmp_path / "annotations/instances_train2017.json").write_text(json.dumps(content))
    source = annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None)
    assert len(source.splits["train"].cells["target"][0]) > 0
    assert expected.splits["train"].cells["target"][0] == source.splits["train"].cells["target"][0]


def test_coco_without_annotations_has_pictures_without_targets(tmp_path):
    write_coco(tmp_path)
    test = json.loads(coco_of("ab"))
    del test["annotations"]
    (tmp_path / "annotations/image_info_test2017.json").write_text(json.dumps(test))
    source = annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None)
    assert list(source.splits["test"].cells["target"]) == [None, None]


@pytest.mark.parametrize(
    ("write", "file", "text", "problem"),
    [
        (write_voc, "Annotations/a.xml", "<annotation><object>", "is not in the format of Pascal"),
        (write_voc, "Annotations/a.xml", "<annotation><object></object></annotation>", "no bndbox"),
        (write_yolo, "labels/train/a.txt", "cat 0.1 0.2", "line 1 must be a class"),
        (write_yolo, "labels/train/a.txt", "0 0.1 0.2 0.3", "line 1 must be a class"),
        (write_yolo, "data.yaml", "names: [", "cannot be read"),
        (write_yolo, "data.yaml", "names: {cat: 0}", "got {'cat': 0}"),
        (
            write_voc,
            "Annotations/a.xml",
            "<?xml version='1.0' encoding='no'?><annotation><object>",
            "unknown encoding",
        ),
        (
            write_coco,
            "annotations/instances_train2017.json",
            coco_of("abc", images=[{"file_name": "a.png"}]),
            "is not in the format of COCO",
        ),
    ],
)
def test_damaged_annotations_are_named(write, file, text, problem, tmp_path, capsys):
    write(tmp_path)
    (tmp_path / file).write_text(text)
    message = refused(capsys, "check", str(tmp_path))
    assert problem in message and file.rpartition("/")[2] in message


def test_masks_of_pascal_voc_are_not_its_pictures(tmp_path):
    write_voc(tmp_path)
    write_pictures(tmp_path / "SegmentationClass")
    source = annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None)
    paths = source.splits["train"].cells["image"]
    assert {Path(path).parent.name for path in paths} == {"JPEGImages"}


def test_pictures_in_no_list_of_pascal_voc_are_not_used(tmp_path):
    write_voc(tmp_path)
    (tmp_path / "ImageSets/Main/train.txt").write_text("a\nb\n")
    source = annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None)
    assert len(source.splits["train"]) == 2
    assert "not used: 1 picture without a split" in source.notes


def test_a_missing_picture_is_a_bad_row(tmp_path, capsys):
    write_voc(tmp_path)
    (tmp_path / "JPEGImages/c.png").unlink()
    assert "c.png" in refused(capsys, "train", str(tmp_path), "adapters=[image]")


# Pictures that have equal names, or another place than expected


def rows_of(root, **options):
    """The file and the target of each row, by split."""
    options = {"readers": {"image": ImageReader()}, "fractions": None, **options}
    source = annotated(str(root), **options)
    rows = {}
    for split, part in source.splits.items():
        paths = [str(Path(path).relative_to(root)) for path in part.cells["image"]]
        rows[split] = dict(zip(paths, part.cells["target"], strict=True))
    return rows


def write_file(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_picture(path, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, SIZE).save(path)


def voc_of(label, name="a.png"):
    return (
        f"<annotation><filename>{name}</filename><object><name>{label}</name><bndbox><xmin>1</xmin>"
        "<ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>"
    )


def labels_of(cells):
    return {path: [item["label"] for item in cell] for path, cell in cells.items()}


def test_files_of_two_cameras_have_their_own_boxes_in_yolo(tmp_path):
    (tmp_path / "data.yaml").write_text("names: [cat, dog]")
    for split in ("train", "val"):
        for kind, camera in enumerate(("cam1", "cam2")):
            write_picture(tmp_path / f"images/{split}/{camera}/000.png")
            write_file(tmp_path / f"labels/{split}/{camera}/000.txt", f"{kind} 0.5 0.5 0.2 0.2")
        # Without objects, in a camera of its own.
        write_picture(tmp_path / f"images/{split}/cam3/000.png")
    rows = rows_of(tmp_path)
    for split, name in (("train", "train"), ("validation", "val")):
        assert labels_of(rows[split]) == {
            f"images/{name}/cam1/000.png": ["cat"],
            f"images/{name}/cam2/000.png": ["dog"],
            f"images/{name}/cam3/000.png": [],
        }


def test_files_of_two_cameras_have_their_own_masks(tmp_path):
    for camera in ("cam1", "cam2"):
        write_picture(tmp_path / f"images/{camera}/000.png")
        write_picture(tmp_path / f"masks/{camera}/000.png", "L")
    rows = rows_of(tmp_path)["all"]
    for camera in ("cam1", "cam2"):
        mask = rows[f"images/{camera}/000.png"]["mask"]
        assert mask == str(tmp_path / f"masks/{camera}/000.png")


def test_files_of_two_cameras_have_their_own_boxes_in_voc(tmp_path):
    for label, camera in (("cat", "cam1"), ("dog", "cam2")):
        write_picture(tmp_path / f"JPEGImages/{camera}/000.png")
        write_file(tmp_path / f"Annotations/{camera}/000.xml", voc_of(label, "000.png"))
    assert labels_of(rows_of(tmp_path)["all"]) == {
        "JPEGImages/cam1/000.png": ["cat"],
        "JPEGImages/cam2/000.png": ["dog"],
    }


def test_files_of_two_cameras_have_their_own_boxes_in_coco(tmp_path):
    for camera in ("cam1", "cam2"):
        write_picture(tmp_path / f"train2017/{camera}/000.png")
    images = [{"id": i, "file_name": f"data/cam{i + 1}/000.png"} for i in range(2)]
    write_file(tmp_path / "annotations/instances_train2017.json", coco_of("ac", images=images))
    assert labels_of(rows_of(tmp_path)["train"]) == {
        "train2017/cam1/000.png": ["cat", "dog"],
        "train2017/cam2/000.png": ["dog"],
    }


def test_a_picture_that_cannot_be_told_from_another_one_is_an_error_with_both_paths(tmp_path):
    for camera in ("cam1", "cam2"):
        write_picture(tmp_path / f"train2017/{camera}/000.png")
    images = [{"id": 0, "file_name": "000.png"}]
    write_file(tmp_path / "annotations/instances_train2017.json", coco_of("a", images=images))
    with pytest.raises(UserError) as error:
        rows_of(tmp_path)
    assert "train2017/cam1/000.png and " in str(error.value)
    assert "train2017/cam2/000.png" in str(error.value)


def test_a_missing_picture_of_coco_is_not_that_of_another_split(tmp_path, capsys):
    (tmp_path / "annotations").mkdir()
    for split in ("train2017", "val2017"):
        write_pictures(tmp_path / split)
        (tmp_path / f"annotations/instances_{split}.json").write_text(coco_of("abc"))
    (tmp_path / "train2017/b.png").unlink()
    paths = rows_of(tmp_path.resolve())["train"]
    assert not any(path.startswith("val2017") for path in paths)
    message = refused(capsys, "train", str(tmp_path), "adapters=[image]")
    assert "b.png" in message and "not found" in message


@pytest.mark.parametrize("root", ["", "VOC2007"])
def test_the_lists_of_pascal_voc_can_have_names_with_dots_and_blanks(tmp_path, root):
    names = [f"{name} {i}.0" for name in ("cam1", "cam2") for i in range(6)]
    for name in names:
        write_picture(tmp_path / root / f"JPEGImages/{name}.png")
        write_file(tmp_path / root / f"Annotations/{name}.xml", voc_of("cat", f"{name}.png"))
    lists = {"train": names[:6], "val": names[6:8], "test": names[8:]}
    for split, listed in lists.items():
        write_file(tmp_path / root / f"ImageSets/Main/{split}.txt", "\n".join(listed))
    rows = rows_of(tmp_path, fractions=(0.8, 0.1, 0.1))
    assert {split: len(part) for split, part in rows.items()} == {
        "train": 6,
        "validation": 2,
        "test": 4,
    }
    assert {Path(path).stem for path in rows["test"]} == {*lists["test"]}


def test_the_lists_of_classes_of_pascal_voc_have_a_number_behind_each_name(tmp_path):
    write_voc(tmp_path)
    (tmp_path / "ImageSets/Main/train.txt").write_text("a  1\nb -1\n")
    (tmp_path / "ImageSets/Main/val.txt").write_text("c  0\n")
    assert {split: len(part) for split, part in rows_of(tmp_path).items()} == {
        "train": 2,
        "validation": 1,
    }


@pytest.mark.parametrize("form", ["folders", "outer folders", "lists", "lists without yaml"])
def test_yolo_names_its_splits(tmp_path, form):
    for folder in ("a", "b"):
        for i in range(3):
            write_picture(tmp_path / f"images/{folder}/{i}.png")
            write_file(tmp_path / f"labels/{folder}/{i}.txt", "0 0.5 0.5 0.2 0.2")
    values = {"train": "images/a", "val": "images/b"}
    if form == "outer folders":
        values = {split: f"../{folder}" for split, folder in values.items()}
    if form.startswith("lists"):
        for split, folder in (("train", "a"), ("val", "b")):
            lines = "\n".join(f"./images/{folder}/{i}.png" for i in range(3))
            write_file(tmp_path / f"{split}.txt", lines)
        values = {"train": "train.txt", "val": "val.txt"}
    if form == "lists without yaml":
        values = {}
    lines = "\n".join(f"{split}: {value}" for split, value in values.items())
    (tmp_path / "data.yaml").write_text(f"names: [cat]\n{lines}\n")
    rows = rows_of(tmp_path, fractions=(0.8, 0.1, 0.1))
    assert sorted(rows["train"]) == [f"images/a/{i}.png" for i in range(3)]
    assert sorted(rows["validation"]) == [f"images/b/{i}.png" for i in range(3)]


def test_lists_beside_masks_are_splits(tmp_path):
    for i in range(6):
        write_picture(tmp_path / f"images/{i}.png")
        write_picture(tmp_path / f"masks/{i}.png", "L")
    write_file(tmp_path / "train.txt", "0\n1\n2\n3\n")
    write_file(tmp_path / "val.txt", "4.png\nimages/5.png\n")
    rows = rows_of(tmp_path, fractions=(0.8, 0.1, 0.1))
    assert sorted(rows["train"]) == [f"images/{i}.png" for i in range(4)]
    assert sorted(rows["validation"]) == ["images/4.png", "images/5.png"]


# Folders that are never class folders


@pytest.mark.parametrize(
    ("picture", "mask"),
    [
        ("7", "7-mask"),
        ("7", "mask_7"),
        ("7", "7_gtFine_labelIds"),
        ("7_leftImg8bit", "7_gtFine_labelIds"),
        ("image_7", "mask_7"),
        ("7", "7_L"),
        ("7_l", "7_l"),
    ],
)
def test_names_of_masks_have_usual_words(tmp_path, picture, mask):
    write_picture(tmp_path / f"images/{picture}.png")
    write_picture(tmp_path / f"masks/{mask}.png", "L")
    assert infer_source(tmp_path) == "annotated"
    (cell,) = rows_of(tmp_path)["all"].values()
    assert cell["mask"] == str(tmp_path / f"masks/{mask}.png")


def test_masks_of_two_pictures_that_differ_in_an_ending_are_not_mixed(tmp_path):
    for side in ("", "_l", "_r"):
        write_picture(tmp_path / f"images/001{side}.png")
        write_picture(tmp_path / f"masks/001{side}.png", "L")
    for path, cell in rows_of(tmp_path)["all"].items():
        assert Path(cell["mask"]).name == Path(path).name


def test_masks_without_a_picture_of_their_name_are_no_classes(tmp_path, capsys):
    for i in range(3):
        write_picture(tmp_path / f"images/{i}.png")
        write_picture(tmp_path / f"masks/of {i}.png")
    message = refused(capsys, "train", str(tmp_path), "adapters=[image]")
    assert "masks/of 0.png: no picture has the name of this mask, such as images/0.png" in message


def test_boxes_beside_their_pictures_are_those_of_labelimg(tmp_path):
    for name in "ab":
        write_picture(tmp_path / f"{name}.png")
        write_file(tmp_path / f"{name}.txt", "1 0.5 0.5 0.2 0.2\n")
    write_file(tmp_path / "classes.txt", "cat\ndog\n")
    assert infer_source(tmp_path) == "annotated"
    assert labels_of(rows_of(tmp_path)["all"]) == {"a.png": ["dog"], "b.png": ["dog"]}


def test_a_picture_without_objects_can_be_the_first_one_of_pascal_voc(tmp_path):
    write_voc(tmp_path)
    empty = "<annotation><filename>a.png</filename></annotation>"
    (tmp_path / "Annotations/a.xml").write_text(empty)
    assert infer_source(tmp_path) == "annotated"
    assert labels_of(rows_of(tmp_path)["train"])["JPEGImages/a.png"] == []


def test_ids_of_coco_can_be_texts_in_one_list_and_numbers_in_the_other(tmp_path):
    write_coco(tmp_path)
    images = [{"id": str(i), "file_name": f"{n}.png"} for i, n in enumerate("abc")]
    write_file(tmp_path / "annotations/instances_train2017.json", coco_of("abc", images=images))
    assert labels_of(rows_of(tmp_path)["train"])["train2017/c.png"] == ["dog"]


def test_annotations_of_images_that_coco_does_not_list_are_counted(tmp_path):
    write_coco(tmp_path)
    images = [{"id": 0, "file_name": "a.png"}]
    write_file(tmp_path / "annotations/instances_train2017.json", coco_of("abc", images=images))
    source = annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None)
    assert (
        "not used: 1 annotation of images that instances_train2017.json does not list, such as "
        "image 2"
    ) in source.notes


def test_the_box_around_a_turned_box_of_cvat_is_used(tmp_path):
    write_coco(tmp_path)
    content = json.loads(coco_of("c"))
    (item,) = content["annotations"]
    item |= {"bbox": [30, 10, 20, 4], "attributes": {"occluded": False, "rotation": 90.0}}
    write_file(tmp_path / "annotations/instances_train2017.json", json.dumps(content))
    source = annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None)
    assert objects_of(source)["c"].boxes[0] == pytest.approx((2 / 40, 38 / 80, 22 / 40, 42 / 80))


def test_an_object_of_pascal_voc_can_have_several_boxes_and_parts_are_none(tmp_path):
    write_voc(tmp_path)
    box = "<bndbox><xmin>{}</xmin><ymin>1</ymin><xmax>40</xmax><ymax>30</ymax></bndbox>"
    part = f"<part><name>head</name>{box.format(1)}</part>"
    text = f"<object>{part}<name>car</name>{box.format(2)}{box.format(3)}</object>"
    write_file(tmp_path / "Annotations/c.xml", f"<annotation>{text}</annotation>")
    source = annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None)
    found = objects_of(source)["c"]
    assert found.labels == ("car", "car")
    assert [box[1] for box in found.boxes] == [2 / 80, 3 / 80]


def test_masks_of_cvat_have_the_names_of_their_colors(tmp_path):
    write_picture(tmp_path / "JPEGImages/a.png")
    for kind in ("Class", "Object"):
        (tmp_path / f"Segmentation{kind}").mkdir()
        Image.new("RGB", SIZE, (250, 50, 83)).save(tmp_path / f"Segmentation{kind}/a.png")
    lines = "# label:color_rgb:parts:actions\nbackground:0,0,0::\nship:250,50,83::\n"
    write_file(tmp_path / "labelmap.txt", lines)
    (rows,) = rows_of(tmp_path).values()
    (cell,) = rows.values()
    value = 256 + (250 << 16) + (50 << 8) + 83
    assert cell["names"] == {0: "background", value: "ship"}
    assert cell["mask"].endswith("SegmentationClass/a.png")


def test_pictures_of_nnunet_have_the_number_of_a_channel(tmp_path):
    write_picture(tmp_path / "imagesTr/a_000_0000.png")
    (tmp_path / "labelsTr").mkdir()
    Image.new("L", SIZE).save(tmp_path / "labelsTr/a_000.png")
    (rows,) = rows_of(tmp_path).values()
    (cell,) = rows.values()
    assert cell["mask"].endswith("labelsTr/a_000.png")


def test_colored_masks_in_a_folder_called_labels_are_no_classes(tmp_path):
    write_picture(tmp_path / "images/a.png")
    (tmp_path / "labels").mkdir()
    Image.new("RGB", SIZE, (250, 50, 83)).save(tmp_path / "labels/a.png")
    assert infer_source(tmp_path) == "annotated"


def test_a_folder_of_labelme_is_named(tmp_path):
    write_picture(tmp_path / "a.png")
    write_file(tmp_path / "a.json", json.dumps({"shapes": [], "imagePath": "a.png"}))
    with pytest.raises(UserError, match=r"a.json: is in the format of labelme, which is not read"):
        infer_source(tmp_path)


def test_a_category_that_coco_does_not_list_is_named_with_the_number_of_its_objects(tmp_path):
    write_coco(tmp_path)
    content = coco_of("abc", categories=[{"id": 7, "name": "cat"}])
    write_file(tmp_path / "annotations/instances_train2017.json", content)
    problem = "2 annotations of a category that the file does not list, such as category 3 in "
    with pytest.raises(UserError, match=f"{problem}image 0; its categories have the ids 7;"):
        rows_of(tmp_path)


def test_difficult_objects_of_pascal_voc_keep_their_flag(tmp_path):
    write_voc(tmp_path)
    file = tmp_path / "Annotations/a.xml"
    text = file.read_text().replace(
        "<object><name>cat", "<object><difficult>1</difficult><name>cat"
    )
    write_file(file, text.replace("<object><name>dog", "<object><difficult>0</difficult><name>dog"))
    source = annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None)
    found = objects_of(source)["a"]
    assert found.labels == ("dog",) and [item.label for item in found.ignored] == ["cat"]


@pytest.mark.parametrize("write", [write_coco, write_voc])
@pytest.mark.parametrize("size", [SIZE, (40, 80), (800, 400), (0, 0)])
def test_the_size_of_a_picture_is_compared_with_that_of_its_annotations(write, size, tmp_path):
    write(tmp_path)
    width, height = size
    if write is write_coco:
        images = [{"id": 0, "file_name": "a.png", "width": width, "height": height}]
        content = coco_of("a", images=images)
        write_file(tmp_path / "annotations/instances_train2017.json", content)
    else:
        file = tmp_path / "Annotations/a.xml"
        sides = f"<size><width>{width}</width><height>{height}</height></size>"
        write_file(file, file.read_text().replace("<object>", f"{sides}<object>", 1))
    source = annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None)
    if size in (SIZE, (0, 0)):
        assert len(objects_of(source)["a"]) == 2
        return
    with pytest.raises(UserError, match=f"of {width}×{height} pixels, but it has 80×40"):
        objects_of(source)


def test_results_have_the_ids_of_the_file_of_annotations(tmp_path):
    write_coco(tmp_path)
    ids = {tmp_path / f"train2017/{n}.png": i for i, n in enumerate("abc")}, {"cat": 7, "dog": 3}
    file = tmp_path / "annotations/instances_train2017.json"
    assert coco_ids(tmp_path) == coco_ids(file) == ids
    # The pictures of a file of annotations, and no table beside them.
    assert has_many_samples(str(file)) and not tables_of(str(file))
    assert files_of(str(file))[0] == [str(path) for path in ids[0]]
    write_file(tmp_path / "test2017/instances_test2017.json", coco_of("a"))
    write_picture(tmp_path / "test2017/a.png")
    with pytest.raises(UserError, match="have the same id, 0, in two files of COCO"):
        coco_ids(tmp_path)
    assert not tables_of(str(tmp_path / "test2017"))


def test_masks_are_not_predicted_as_pictures(tmp_path):
    for folder in ("images", "masks"):
        write_picture(tmp_path / folder / "a.png")
    assert files_of(str(tmp_path))[0] == [str(tmp_path / "images/a.png")]


def test_two_images_of_coco_with_one_id_are_refused(tmp_path):
    write_coco(tmp_path)
    images = [{"id": 0, "file_name": f"{n}.png"} for n in "ab"]
    write_file(tmp_path / "annotations/instances_train2017.json", coco_of("abc", images=images))
    with pytest.raises(UserError, match=r"instances_train2017.json: two images have the id 0"):
        rows_of(tmp_path)


def test_two_files_of_instances_of_one_split_are_refused(tmp_path):
    write_coco(tmp_path)
    write_file(tmp_path / "annotations/instances_train2014.json", coco_of("a"))
    with pytest.raises(UserError, match="are both annotations of the train split"):
        rows_of(tmp_path)


def test_annotations_made_on_windows_have_backslashes(tmp_path):
    write_picture(tmp_path / "train/cam1/a.png")
    images = [{"id": 0, "file_name": "cam1\\a.png"}]
    write_file(tmp_path / "train/instances.json", coco_of("a", images=images))
    assert labels_of(rows_of(tmp_path)["train"]) == {"train/cam1/a.png": ["cat", "dog"]}


def test_a_file_of_xml_that_has_no_annotation_is_no_picture(tmp_path):
    write_voc(tmp_path)
    write_file(tmp_path / "dataset.xml", "<project><name>a</name></project>")
    assert len(rows_of(tmp_path)["train"]) == 3


@pytest.mark.parametrize("outer", ["labeled", "segmentation_data", "annotations_v2"])
@pytest.mark.parametrize("write", [write_voc, write_yolo])
def test_a_folder_around_pictures_can_start_with_a_word_of_masks(write, outer, tmp_path):
    (tmp_path / outer).mkdir(parents=True)
    write(tmp_path / outer)
    if write is write_yolo:
        (tmp_path / outer / "data.yaml").rename(tmp_path / "data.yaml")
    assert len(rows_of(tmp_path)["train"]) == 3


def test_a_folder_around_masks_can_start_with_a_word_of_masks(tmp_path):
    write_picture(tmp_path / "labeled/images/7.png")
    write_picture(tmp_path / "labeled/masks/7.png", "L")
    assert list(rows_of(tmp_path)["all"]) == ["labeled/images/7.png"]


def test_suffixes_of_annotations_can_be_in_upper_case(tmp_path):
    write_yolo(tmp_path / "yolo")
    for file in (tmp_path / "yolo/labels/train").iterdir():
        file.rename(file.with_suffix(".TXT"))
    write_voc(tmp_path / "voc")
    for file in (tmp_path / "voc/Annotations").iterdir():
        file.rename(file.with_suffix(".XML"))
    for folder, picture in (("yolo", "images/train/c.png"), ("voc", "JPEGImages/c.png")):
        assert infer_source(tmp_path / folder) == "annotated"
        assert labels_of(rows_of(tmp_path / folder)["train"])[picture] == ["dog"]


def test_hidden_folders_have_no_annotations(tmp_path):
    write_coco(tmp_path)
    hidden = tmp_path / "annotations/.ipynb_checkpoints/instances_train2017-checkpoint.json"
    write_file(hidden, coco_of("a"))
    assert len(rows_of(tmp_path)["train"]) == 3


def test_keypoints_of_yolo_are_not_corners_of_a_polygon(tmp_path):
    write_yolo(tmp_path)
    line = "0 0.5 0.5 0.2 0.2 0.45 0.45 2 0.55 0.55 2"
    (tmp_path / "labels/train/b.txt").write_text(line)
    with pytest.raises(UserError, match=r"b.txt: line 1 .* keypoints need kpt_shape in data.yaml"):
        rows_of(tmp_path)
    (tmp_path / "data.yaml").write_text("names: {0: cat, 1: dog}\nkpt_shape: [2, 3]\n")
    (cell,) = rows_of(tmp_path)["train"]["images/train/b.png"]
    assert cell == {"label": "cat", "cxcywh": [0.5, 0.5, 0.2, 0.2]}


@pytest.mark.parametrize("kind", ["2", "-1", "0.5"])
def test_a_class_of_yolo_that_has_no_name_is_refused(kind, tmp_path):
    write_yolo(tmp_path)
    write_file(tmp_path / "labels/train/a.txt", f"0 0.5 0.5 0.1 0.1\n{kind} 0.5 0.5 0.1 0.1")
    problem = "line 2 must be a class"
    if kind == "2":
        problem = "line 2 has the class 2, which has no name; 1 object of all files"
    with pytest.raises(UserError, match=problem):
        rows_of(tmp_path)


def test_the_names_of_classes_are_those_of_data_yaml_and_blank_lines_have_a_number(tmp_path):
    write_yolo(tmp_path)
    write_file(tmp_path / "args.yaml", "names: [one, two]")
    assert labels_of(rows_of(tmp_path)["train"])["images/train/a.png"] == ["cat", "dog"]
    (tmp_path / "data.yaml").unlink()
    write_file(tmp_path / "other.yaml", "names: [three, four]")
    with pytest.raises(UserError, match=r"other.yaml: has other names of classes than args.yaml"):
        rows_of(tmp_path)
    (tmp_path / "other.yaml").unlink()
    (tmp_path / "args.yaml").unlink()
    write_file(tmp_path / "classes.txt", "cat\n\ndog\n")
    label = tmp_path / "labels/train/c.txt"
    write_file(label, label.read_text().replace("1 ", "2 ", 1))
    (tmp_path / "labels/train/a.txt").unlink()
    assert labels_of(rows_of(tmp_path)["train"])["images/train/c.png"] == ["dog"]


def test_a_list_can_name_a_picture_twice(tmp_path):
    write_voc(tmp_path)
    (tmp_path / "ImageSets/Main/train.txt").write_text("a\nb\nb\nc\n")
    assert len(rows_of(tmp_path)["train"]) == 3


def test_pictures_in_no_list_are_the_training_split_if_there_is_none(tmp_path):
    write_voc(tmp_path)
    (tmp_path / "ImageSets/Main/train.txt").rename(tmp_path / "ImageSets/Main/test.txt")
    (tmp_path / "ImageSets/Main/test.txt").write_text("c\n")
    rows = rows_of(tmp_path)
    assert {split: len(part) for split, part in rows.items()} == {"train": 2, "test": 1}


def test_data_yaml_can_name_its_folder_by_an_absolute_path(tmp_path, monkeypatch):
    for folder in ("a", "b"):
        write_picture(tmp_path / f"images/{folder}/0.png")
        write_file(tmp_path / f"labels/{folder}/0.txt", "0 0.5 0.5 0.2 0.2")
    lines = f"path: {tmp_path}\ntrain: images/a\nval: images/b\nnames: [cat]\n"
    (tmp_path / "data.yaml").write_text(lines)
    monkeypatch.chdir(tmp_path)
    source = annotated(".", readers={"image": ImageReader()})
    assert {split: len(rows) for split, rows in source.splits.items()} == {
        "train": 1,
        "validation": 1,
    }


def test_a_mask_without_any_picture_is_named(tmp_path):
    write_picture(tmp_path / "masks/7.png", "L")
    write_file(tmp_path / "images/readme.png")
    write_picture(tmp_path / "images/8.png")
    with pytest.raises(UserError, match=r"masks/7.png: no picture has the name of this mask"):
        rows_of(tmp_path)


def test_a_folder_that_contains_only_a_folder_is_the_same_data_set(tmp_path):
    write_yolo(tmp_path / "download/set")
    labels = labels_of(rows_of(tmp_path)["train"])
    assert {label for of_picture in labels.values() for label in of_picture} == {"cat", "dog"}


def test_two_categories_of_coco_with_one_id_are_refused(tmp_path):
    write_pictures(tmp_path / "images")
    categories = [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}, {"id": "3", "name": "cow"}]
    write_file(tmp_path / "a.json", coco_of("abc", categories=categories))
    with pytest.raises(UserError, match="categories dog and cow have the same id, 3"):
        rows_of(tmp_path)


def test_names_in_lists_and_folders_in_data_yaml_that_are_missing_are_noted(tmp_path):
    write_yolo(tmp_path)
    names = (tmp_path / "data.yaml").read_text()
    write_file(tmp_path / "data.yaml", f"{names}val: other/images\n")
    notes = annotated(str(tmp_path), readers={"image": ImageReader()}).notes
    assert "data.yaml: val: other/images is missing, and is not used" in notes
    write_file(tmp_path / "train.txt", "images/a.png\nimages/b.png\nimages/gone.png\n")
    notes = annotated(str(tmp_path), readers={"image": ImageReader()}).notes
    assert "train.txt: 1 of 3 names in it are those of no picture, such as gone.png" in notes
