"""Masks of objects with polygons and run lengths, as in COCO."""

import json
from collections import Counter

import numpy as np
import pytest
from helpers.newcomer import printed, refused
from helpers.runs import SMALL_IMAGES
from PIL import Image

from dxn.core.errors import UserError
from dxn.data import annotated
from dxn.datasets.objects import box, mask, scene
from dxn.datasets.shapes import SHAPES, draw, outline
from dxn.tasks import Segment
from dxn.tasks.detect.objects import list_of_objects, read_objects
from dxn.tasks.segment import drawn
from dxn.tasks.segment.drawn import Drawn, filled, read_areas, read_drawn, run_lengths
from dxn.tokenize import ImageAdapter
from dxn.tokenize.base import BadMedia
from dxn.tokenize.image.reader import ImageReader

SQUARE = [[1, 1, 4, 1, 4, 3, 1, 3]]
# The texts are those of pycocotools.
SMALL = np.array([[0, 1, 1, 0], [0, 1, 0, 0], [1, 0, 0, 1]], bool)
LARGE = np.zeros((40, 50), bool)
LARGE[3:30, 7:20] = True
LARGE[10:12] = True
LARGE_TEXT = ":2V100000000000Ii0^O000000000000000000000007WOb0" + 57 * "0" + "F"


@pytest.mark.parametrize("options", [{}, {"instances": True, "queries": 2}])
def test_objects_without_a_pixel_are_counted_and_fractions_refused(options):
    target = Segment(**options).target
    target.tokenizers = {"image": ImageAdapter(dim=8).tokenizer}
    shapes = [SQUARE, [[9, 1, 12, 1, 12, 3]], [[1, 1, 3, 3]], [[1, 1], [4, 1], [4, 3]]]
    cell = [{"label": "cat", "segmentation": shape} for shape in shapes]
    target.find_format([cell], ["row 1"])
    value = target.read(cell, "row 1", {"image": np.zeros((5, 6, 3), np.uint8)})
    text = "without a pixel inside of the picture, which are not used: 2 (row 1)"
    assert text in target.describe([value])
    fractions = [{"label": "cat", "segmentation": [[0.1, 0.1, 0.9, 0.1, 0.9, 0.9]]}]
    with pytest.raises(UserError, match="1 of 1 polygons lie within one pixel"):
        target.find_format([fractions], ["row 1"])


def runs_of(pixels):
    """Return the uncompressed run lengths of a mask."""
    flat = pixels.T.ravel()
    edges = np.flatnonzero(np.diff(flat.astype(int))) + 1
    lengths = np.diff([0, *edges, flat.size]).tolist()
    counts = [0, *lengths] if flat[0] else lengths
    return {"size": [*pixels.shape], "counts": counts}


@pytest.mark.parametrize(
    ("pixels", "text"), [(SMALL, "231N30"), (LARGE, LARGE_TEXT), (SMALL, b"231N30")]
)
def test_run_lengths_are_decoded(pixels, text):
    size = pixels.shape
    np.testing.assert_array_equal(run_lengths({"size": size, "counts": text}, size), pixels)
    np.testing.assert_array_equal(run_lengths(runs_of(pixels), size), pixels)


@pytest.mark.parametrize(
    ("area", "problem"),
    [
        ({"size": [3, 5], "counts": "231N30"}, r"of \(5, 3\) pixels do not fit .* \(4, 3\)"),
        ({"size": [3, 4], "counts": [2, 3]}, "a sum of 12 pixels, got 5"),
        ({"size": [3, 4], "counts": [13, -1]}, "a sum of 12"),
        # Their sum in 64 bits is 12.
        ({"size": [3, 4], "counts": [*[2**62] * 3, 2**62 + 12]}, "a sum of 12 pixels, got 18,44"),
        ({"size": [3, 4], "counts": "231N3P"}, "must have the keys size and counts"),
        ({"size": [3, 4], "counts": "é"}, "a sum of 12|must have the keys"),
        ({"size": 3, "counts": [12]}, "must have the keys"),
        ({"counts": [12]}, "must have the keys"),
        ({"size": [3, 4], "counts": None}, "must have the keys"),
    ],
)
def test_other_run_lengths_are_refused(area, problem):
    with pytest.raises(BadMedia, match=problem):
        run_lengths(area, (3, 4))


def test_polygons_contain_the_pixels_whose_center_is_inside():
    values = Drawn(((7, SQUARE),), (4, 5)).values()
    expected = np.zeros((4, 5), int)
    expected[1:3, 1:4] = 7
    np.testing.assert_array_equal(values, expected)
    # Corners outside of the picture, and a polygon beside it.
    top, inside = filled(np.array([[-9.0, -9], [99, -9], [99, 99], [-9, 99]]), (4, 5))
    assert top == 0 and inside.shape == (4, 5) and inside.all()
    assert not filled(np.array([[9.0, 9], [12, 9], [12, 12]]), (4, 5))[1].any()


def test_later_objects_lie_over_earlier_ones_and_crowds_behind_all():
    crowd = {"size": [4, 5], "counts": [0, 20]}
    cell = [
        {"label": "cat", "segmentation": SQUARE},
        {"label": "dog", "segmentation": [[3, 0, 5, 0, 5, 2, 3, 2]]},
        {"label": "sheep", "segmentation": crowd, "iscrowd": 1},
        {"label": "background", "segmentation": [[0, 3, 5, 3, 5, 4, 0, 4]]},
    ]
    known = {"cat": 1, "dog": 2, "sheep": 3}
    for each in (cell, json.dumps(cell), {"objects": cell}):
        drawn = read_drawn(each, "row 1", known, (4, 5), Counter())
        assert drawn.values().tolist() == [
            [3, 3, 3, 2, 2],
            [3, 1, 1, 2, 2],
            [3, 1, 1, 1, 3],
            [0, 0, 0, 0, 0],
        ]
    # A class that the training split does not have.
    assert read_drawn(cell[:1], "row 1", {}, (4, 5), Counter()).values().max() == 65535
    assert read_drawn([], "row 1", {}, (4, 5), Counter()).values().max() == 0


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"label": "cat", "bbox": [1, 2, 3, 4]}, "must have a label and a segmentation"),
        ({"segmentation": SQUARE}, "must have a label and a segmentation"),
        ({"label": " ", "segmentation": SQUARE}, "must have a label and a segmentation"),
        ({"label": ["cat"], "segmentation": SQUARE}, "must have a label and a segmentation"),
        (7, "must have a label and a segmentation"),
        ({"label": "cat", "segmentation": [[1, 2, 3]]}, "must be a list of polygons"),
        ({"label": "cat", "segmentation": "x"}, "must be a list of polygons"),
        ({"label": "cat", "segmentation": 5}, "must be a list of polygons"),
        ({"label": "cat", "segmentation": [[1, 2, 3, 1e99]]}, "must be a list of polygons"),
        ({"label": "cat", "segmentation": [[1, 2, 3, 10**400]]}, "must be a list of polygons"),
    ],
)
def test_objects_without_an_area_are_refused(item, problem):
    with pytest.raises(UserError, match=f"row 1: .*{problem}"):
        read_drawn([item], "row 1", {"cat": 1}, (4, 5), Counter())


def test_objects_have_their_own_names():
    target = Segment(names=["sky", "sea"]).target
    target.bind({"image": ImageAdapter(dim=8)})
    with pytest.raises(UserError, match=r"head\.names: the objects already have classes"):
        target.find_format([[{"label": "cat", "segmentation": SQUARE}]], ["row 1"])


def write_coco(root, count=20, size=48):
    """Write pictures of shapes with polygons and, for each third one, run lengths."""
    (root / "images").mkdir()
    images, items, masks = [], [], []
    for row in range(count):
        rng = np.random.default_rng([3, row])
        things = scene(rng)
        Image.fromarray(draw(rng, things, size)).save(root / f"images/{row}.png")
        images.append({"id": row, "file_name": f"{row}.png", "height": size, "width": size})
        masks.append(mask(things, size)["mask"])
        for thing in things:
            left, top, right, bottom = box(thing, size)["box"]
            item = {"image_id": row, "category_id": SHAPES.index(thing.shape)}
            item["bbox"] = [left, top, right - left, bottom - top]
            corners = [size * each for point in outline(thing) for each in point]
            item["segmentation"] = [corners]
            if row % 3 == 2:
                alone = Drawn(((1, [corners]),), (size, size)).values() > 0
                item |= {"segmentation": runs_of(alone), "iscrowd": int(row % 2)}
            items.append(item)
    categories = [{"id": i, "name": name} for i, name in enumerate(SHAPES)]
    content = {"images": images, "annotations": items, "categories": categories}
    (root / "annotations.json").write_text(json.dumps(content))
    return masks


def test_a_folder_in_the_format_of_coco_has_masks(tmp_path, capsys):
    masks = write_coco(tmp_path)
    source = annotated(str(tmp_path), readers={"image": ImageReader()}, fractions=None)
    (rows,) = source.splits.values()
    cells = list(rows.cells["target"])
    target = Segment().target
    target.bind({"image": ImageAdapter(dim=8)})
    target.find_format(cells, rows.origin)
    inputs = [{"image": each} for each in rows.cells["image"]]
    values = list(map(target.read, cells, rows.origin, inputs))
    target.fit(values)
    assert target.labels == ("background", *sorted(SHAPES))
    for value, path in zip(values, rows.cells["image"], strict=True):
        # The edges of the drawn pictures are an eighth of a pixel further out.
        true = masks[int(path.rpartition("/")[2].removesuffix(".png"))]
        names = np.array(["background", *SHAPES])[true]
        assert (np.array(target.labels)[target.index_of(value)] == names).mean() > 0.98
    for row, cell in enumerate(cells):
        found = read_objects(cell, "", axes=2, order=None)
        counted, crowds = (found.ignored, found) if row % 6 == 5 else (found, found.ignored)
        assert len(counted) == len(list_of_objects(cell)) and not len(crowds)
    run = tmp_path / "run"
    text = printed(
        capsys, "train", str(tmp_path), "head=segment", *SMALL_IMAGES, f"run={run}", "name=x"
    )
    assert "objects (segment)" in text and "always background" in text
    printed(capsys, "evaluate", f"run={run}", f"data.path={tmp_path}")


def test_boxes_alone_are_no_masks(tmp_path, capsys):
    write_coco(tmp_path, count=12)
    file = tmp_path / "annotations.json"
    content = json.loads(file.read_text())
    for item in content["annotations"]:
        del item["segmentation"]
    file.write_text(json.dumps(content))
    options = ["head=segment", *SMALL_IMAGES, f"run={tmp_path / 'run'}"]
    message = refused(capsys, "train", str(tmp_path), *options)
    assert "annotations.json image" in message and "need head=detect" in message


def test_a_polygon_is_filled_in_parts_and_one_with_too_many_edges_is_refused(monkeypatch):
    corners = np.random.default_rng(0).uniform(-5, 40, (50, 2))
    whole = filled(corners, (31, 29))
    monkeypatch.setattr(drawn, "CHUNK", 7)
    top, inside = filled(corners, (31, 29))
    assert top == whole[0] and (inside == whole[1]).all()
    # 8,000 edges from the top to the bottom of a picture of four columns.
    zigzag = [number for i in range(8000) for number in (i % 3, 4000 * (i % 2))]
    cell = [{"label": "a", "segmentation": [zigzag]}]
    with pytest.raises(UserError, match="row 1: the polygons have too many long edges"):
        read_areas(cell, "row 1", (4000, 4), Counter())
