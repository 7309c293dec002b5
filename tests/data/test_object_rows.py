"""Tables in which each row is an object in a file: a class and a place."""

import json

import numpy as np
import pytest
import soundfile
from helpers.newcomer import printed, refused, run, write_csv
from helpers.runs import SMALL_IMAGES
from PIL import Image

from dxn.core.errors import UserError
from dxn.data.columns.object_rows import OBJECTS, ObjectRows, find_object_rows
from dxn.data.rows import AUTO, as_column
from dxn.data.series.layouts import layout_of
from dxn.data.tables.read import Table, read_table
from dxn.tasks.detect.objects import read_objects

TENSORFLOW = (
    "filename,width,height,class,xmin,ymin,xmax,ymax",
    ["a.png", 64, 48, "cat", 1, 2, 11, 12],
    ["b.png", 64, 48, "", "", "", "", ""],
    ["a.png", 64, 48, "dog", 3, 4, 5, 6],
)
OPEN_IMAGES = (
    "ImageID,Source,LabelName,XMin,XMax,YMin,YMax",
    ["a", "x", "cat", 0.1, 0.5, 0.2, 0.6],
    ["b", "y", "dog", 0, 1, 0, 1],
)
BOXES = (
    "photo,type,bbox",
    ["a.png", "cat", "[1, 2, 10, 10]"],
    ["a.png", "dog", "[3.5, 4, 2, 2]"],
)
EVENTS = (
    "recording,onset,offset,event_label",
    ["a.wav", 0.5, 1.5, "bell"],
    ["a.wav", 2, 3, "dog"],
    ["c.wav", "", "", ""],
)


def found_in(folder, header, *rows, column=AUTO, inputs=(), targets=("label", "class")):
    """The layout of a table, and the table that it makes."""
    write_csv(folder / "table.csv", header.split(","), rows)
    table = read_table(folder / "table.csv")
    layout = find_object_rows(table, column, inputs=inputs, targets=targets)
    return layout, None if layout is None else layout.apply(table)


def as_number(cell):
    """The number in a cell of a CSV file, which is a text."""
    is_number = isinstance(cell, str) and cell.replace(".", "").isdecimal()
    return float(cell) if is_number else cell


@pytest.mark.parametrize(
    ("content", "file", "expected"),
    [
        (
            TENSORFLOW,
            "filename",
            {
                "a.png": [
                    {"label": "cat", "xmin": 1, "ymin": 2, "xmax": 11, "ymax": 12},
                    {"label": "dog", "xmin": 3, "ymin": 4, "xmax": 5, "ymax": 6},
                ],
                "b.png": [],
            },
        ),
        (
            OPEN_IMAGES,
            "ImageID",
            {
                "images/a.jpg": [
                    {"label": "cat", "xmin": 0.1, "ymin": 0.2, "xmax": 0.5, "ymax": 0.6}
                ],
                "b": [{"label": "dog", "xmin": 0, "ymin": 0, "xmax": 1, "ymax": 1}],
            },
        ),
        (
            BOXES,
            "photo",
            {
                "a.png": [
                    {"label": "cat", "bbox": [1, 2, 10, 10]},
                    {"label": "dog", "bbox": [3.5, 4, 2, 2]},
                ]
            },
        ),
        (
            EVENTS,
            "recording",
            {
                "a.wav": [
                    {"label": "bell", "onset": 0.5, "offset": 1.5},
                    {"label": "dog", "onset": 2, "offset": 3},
                ],
                "c.wav": [],
            },
        ),
    ],
)
def test_the_rows_of_a_file_become_one_row(content, file, expected, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(b"")
    layout, table = found_in(tmp_path, *content)
    assert layout.file == file
    objects = {}
    for path, found in zip(table.columns[file], table.columns[OBJECTS], strict=True):
        objects[path] = [{key: as_number(value) for key, value in each.items()} for each in found]
    assert objects == expected
    assert layout_of(json.loads(json.dumps(layout.node()))) == layout
    # New data needs only the files.
    alone = Table({file: as_column(["a.png", "a.png"])}, table.origins.take(np.array([0, 0])))
    assert list(layout.apply(alone, key="", with_target=False).columns) == [file]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("text,start,end,label", ["some words", 0, 4, "x"]),  # positions in a text
        ("filename,xmin,ymin,xmax", ["a.png", 1, 2, 3]),
        ("filename,label", ["a.png", "cat"]),
        ("filename,start,end,text", ["a.wav", 1, 2, "hello"]),  # no class
        ("photo,label,bbox", ["a.png", "cat", "[[1, 2, 3, 4]]"]),  # the boxes of a picture
    ],
)
def test_other_tables_stay_as_they_are(header, row, tmp_path):
    assert found_in(tmp_path, header, row)[0] is None


@pytest.mark.parametrize("name", ["My Kind", "sort"])
def test_the_class_can_be_a_target_with_any_name(name, tmp_path):
    content = f"filename,{name},x1,y1,x2,y2", ["a.png", "cat", 1, 2, 11, 12]
    layout, _ = found_in(tmp_path, *content, targets=[name])
    assert layout.label == name


def test_a_table_without_classes_has_one_class(tmp_path):
    rows = ["a", "[1, 2, 3, 4]"], ["b", ""], ["a", "[5, 6, 7, 8]"]
    layout, table = found_in(tmp_path, "image_id,bbox", *rows, column="image_id")
    assert layout == ObjectRows("image_id", "", {"bbox": "bbox"})
    first, second = table.columns[OBJECTS]
    assert [each["bbox"] for each in first] == [[1, 2, 3, 4], [5, 6, 7, 8]] and not second
    assert {each["label"] for each in first} == {"object"}


def write_pictures(folder, count, rows):
    for i in range(count):
        pixels = np.zeros((32, 40, 3), np.uint8)
        pixels[4:20, 2 + i % 7 : 18 + i % 7] = 255
        Image.fromarray(pixels).save(folder / f"{i}.png")
        rows.append([f"{i}.png", 40, 32, "square", 2 + i % 7, 4, 18 + i % 7, 20])


def test_a_table_of_boxes_trains_evaluates_and_predicts(tmp_path, capsys):
    rows = []
    write_pictures(tmp_path, 20, rows)
    rows += [["0.png", 40, 32, "disk", 20, 20, 30, 30], ["1.png", 40, 32, "disk", 0, 0, 500, 5]]
    table, folder = tmp_path / "boxes.csv", tmp_path / "run"
    write_csv(table, TENSORFLOW[0].split(","), rows)
    options = [*SMALL_IMAGES, f"run={folder}", "report=false"]
    text = printed(capsys, "train", str(table), "head=detect", *options)
    assert "one row per object: the rows with the same filename become one row" in text
    assert "that are cut at the edge of the input: 1 (boxes.csv row 3)" in text
    text = printed(capsys, "evaluate", f"run={folder}", f"input={table}")
    assert "20 rows" in text
    answers = tmp_path / "answers.csv"
    printed(capsys, "predict", f"run={folder}", str(table), f"output={answers}")
    assert len(answers.read_text().splitlines()) == 21


def test_problems_of_an_object_are_named_with_its_row(tmp_path, capsys):
    rows = []
    write_pictures(tmp_path, 12, rows)
    rows[5][4] = "left"
    table = tmp_path / "boxes.csv"
    write_csv(table, TENSORFLOW[0].split(","), rows)
    message = refused(capsys, "train", str(table), "head=detect", *SMALL_IMAGES)
    assert "boxes.csv row 7: a box must consist of finite numbers" in message
    output = f"output={tmp_path / 'bad.csv'}"
    assert run("check", table, "data.on_bad=skip", "head=detect", output) == 1
    assert "bad: 1 × a box must consist of finite numbers" in capsys.readouterr().out
    assert "row 7" in (tmp_path / "bad.csv").read_text()


def test_a_table_of_events_in_sounds_is_read(tmp_path, capsys):
    for name in "ac":
        sound = np.full(32_000, 0.1 if name == "a" else 0.2, np.float32)
        soundfile.write(tmp_path / f"{name}.wav", sound, 8000)
    write_csv(tmp_path / "events.csv", EVENTS[0].split(","), EVENTS[1:])
    text = printed(capsys, "check", str(tmp_path / "events.csv"), f"output={tmp_path / 'bad.csv'}")
    assert "target: objects (detect)" in text and "recording (audio)" in text


@pytest.mark.parametrize("name", ["a.png", "photo 1.png", "a.tga"])
def test_a_column_of_decimal_numbers_before_the_files_does_not_group_the_objects(tmp_path, name):
    other = name.replace("a", "b").replace("1", "2")
    rows = [
        [12.25, name, "cat", 1, 2, 11, 12],
        [12.25, other, "dog", 3, 4, 5, 6],
        [30.5, name, "dog", 5, 6, 9, 10],
    ]
    layout, table = found_in(tmp_path, "area,filename,class,xmin,ymin,xmax,ymax", *rows)
    assert layout.file == "filename"
    assert list(table.columns["filename"]) == [name, other]
    assert [len(objects) for objects in table.columns[OBJECTS]] == [2, 1]


def test_a_box_of_decimal_numbers_is_no_column_of_files(tmp_path):
    rows = [["a", "cat", 0.125, 0.5123, 0.25, 0.625], ["a", "dog", 0.375, 0.75, 0.125, 0.875]]
    layout, table = found_in(tmp_path, "ImageID,LabelName,XMin,XMax,YMin,YMax", *rows)
    assert layout.file == "ImageID"
    assert [len(objects) for objects in table.columns[OBJECTS]] == [2]


def test_columns_of_flags_belong_to_the_objects(tmp_path):
    header = "file,label,xmin,ymin,xmax,ymax,difficult"
    rows = ["a.png", "cat", 1, 2, 11, 12, 0], ["a.png", "dog", 3, 4, 5, 6, 1]
    layout, table = found_in(tmp_path, header, *rows)
    objects = read_objects(table.columns[OBJECTS][0], "row", axes=2, order=None)
    assert objects.labels == ("cat",) and [item.label for item in objects.ignored] == ["dog"]
    # A table without them has no ignored objects.
    _, plain = found_in(tmp_path, header.removesuffix(",difficult"), *(row[:-1] for row in rows))
    assert len(layout.apply(plain).columns[OBJECTS]) == 1


def test_a_name_without_a_suffix_that_several_files_have_needs_its_folder(tmp_path):
    header = "image_id,label,xmin,ymin,xmax,ymax"
    for name in ("cam1/a.png", "cam2/a.png", "cam2/b.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    rows = ["cam2/a", "cat", 1, 2, 11, 12], ["b", "cat", 1, 2, 11, 12]
    _, table = found_in(tmp_path, header, *rows)
    assert list(table.columns["image_id"]) == ["cam2/a.png", "cam2/b.png"]
    with pytest.raises(UserError, match=r"a can be cam1/a\.png, cam2/a\.png; write the folder"):
        found_in(tmp_path, header, ["a", "cat", 1, 2, 11, 12])
