"""A mask for each object of a picture: the target, the metric, and trained models."""

import json

import numpy as np
import pytest
import torch
from helpers.newcomer import printed, refused
from helpers.runs import SMALL_IMAGES, metrics_of, train
from PIL import Image, ImageColor

from dxn.core.errors import UserError
from dxn.tasks import Segment
from dxn.tasks.detect.metric import AveragePrecision
from dxn.tasks.detect.objects import Ignored
from dxn.tasks.segment.drawn import Area, compressed, run_lengths, runs_of
from dxn.tasks.segment.instances import FoundMasks, Instances, no_masks
from dxn.tokenize import ImageAdapter
from dxn.tokenize.base import Placement
from dxn.viz.marks import marked

LEFT, RIGHT = [[2, 2, 12, 2, 12, 12, 2, 12]], [[18, 16, 30, 16, 30, 28, 18, 28]]
SQUARES = [{"label": "square", "segmentation": each} for each in (LEFT, RIGHT)]
DATA = ["data=objects", "data.instances=true", "data.size=32", "data.num_train=24"]
SMALL = ["data.num_validation=8", "data.num_test=8", "head=segment", "head.instances=true"]
QUERY = ["head.queries=7", "fusion.registers=7", *SMALL_IMAGES]


def found_of(masks, scores, classes):
    masks = np.asarray(masks, bool)
    whole = Placement(torch.zeros(2), torch.ones(2), torch.ones(2))
    runs = tuple(map(runs_of, masks))
    scores = torch.tensor(scores)
    return FoundMasks(torch.tensor(classes), scores, runs, masks.shape[1:], whole)


def test_run_lengths_are_restored():
    rng = np.random.default_rng(0)
    for share in (0.0, 0.1, 0.5, 0.99, 1.0):
        mask = np.repeat(rng.random((13, 7)) < share, 5, 0)
        text = compressed(runs_of(mask))
        area = {"size": mask.shape, "counts": text}
        np.testing.assert_array_equal(run_lengths(area, mask.shape), mask)
    small = np.array([[0, 1, 1, 0], [0, 1, 0, 0], [1, 0, 0, 1]], bool)
    assert compressed(runs_of(small)) == "231N30"  # as pycocotools writes it


def test_objects_of_a_class_have_own_masks():
    task = Segment(queries=3, instances=True)
    task.target.bind({"image": ImageAdapter(dim=8)})
    picture = np.zeros((32, 32, 3), np.uint8)
    crowd = {"label": "tree", "segmentation": LEFT, "iscrowd": 1}
    value = task.target.read([*SQUARES, crowd], "row 1", {"image": picture})
    assert value.names == ("square", "square") and value.size == (32, 32)
    assert [(item.label, item.is_crowd) for item in value.ignored] == [("tree", True)]
    first, second = value.masks()
    assert first.sum() == 100 and second.sum() == 144 and not (first & second).any()
    with pytest.raises(UserError, match=r"row 1: head\.instances needs a list of objects"):
        task.target.read(np.zeros((32, 32), np.uint8), "row 1", {"image": picture})


def test_the_average_precision_compares_masks():
    target = Segment(queries=3, instances=True).target
    target.labels = ["square"]
    true = Instances((Area("square", LEFT), Area("square", RIGHT)), (32, 32))
    left, right = true.masks()
    half = left.copy()
    half[:, 9:] = False  # 70 of 100 pixels
    metric = AveragePrecision(target)

    def score(*args):
        return metric.metrics([found_of(*args)], [true], 0.0)

    assert score([right, left], [0.9, 0.8], [0, 0])["map"] == pytest.approx(1)
    # An object of which only a part is found counts at the overlaps up to 0.7.
    result = score([right, half], [0.9, 0.8], [0, 0])
    assert result["map50"] == pytest.approx(1)
    assert result["map75"] == pytest.approx(51 / 101)
    assert result["map"] == pytest.approx(0.5 + 0.5 * 51 / 101)
    # The box of an L-shaped mask would be right.
    corner = left.copy()
    corner[3:, 3:] = False
    assert score([right, corner], [0.9, 0.8], [0, 0])["map50"] == pytest.approx(51 / 101)
    # What lies in a crowd is neither right nor wrong.
    whole = [[0, 0, 32, 0, 32, 32, 0, 32]]
    true = Instances((Area("square", LEFT),), (32, 32), (Ignored("square", whole, True),))
    assert score([right, left], [0.9, 0.8], [0, 0])["map"] == pytest.approx(1)
    assert metric.metrics([no_masks()], [true], 0.0)["map"] == 0


def squares(path, count=24):
    """Write a table with pictures of two squares at random places."""
    rng = np.random.default_rng(0)
    lines = []
    for row in range(count):
        pixels = np.zeros((32, 32, 3), np.uint8)
        objects = []
        for left in (rng.integers(1, 4), rng.integers(17, 20)):
            top = int(rng.integers(1, 20))
            left = int(left)
            pixels[top : top + 10, left : left + 10] = 255
            corners = [left, top, left + 10, top, left + 10, top + 10, left, top + 10]
            objects.append({"label": "square", "segmentation": [corners]})
        Image.fromarray(pixels).save(path / f"{row}.png")
        lines.append(json.dumps({"image": f"{row}.png", "objects": objects}))
    (path / "table.jsonl").write_text("\n".join(lines))
    return path / "table.jsonl"


@pytest.mark.exhaustive
def test_two_squares_get_two_masks(tmp_path, capsys):
    table, run = squares(tmp_path), tmp_path / "run"
    options = ["data.target=objects", "head=segment", "head.instances=true", "head.queries=4"]
    options += ["fusion.registers=4", "adapters.image.image_size=32", "adapters.image.patch_size=4"]
    options += ["dim=32", "backbone.depth=2", "trainer.epochs=120", "optimizer.lr=0.003"]
    options += ["trainer.patience=0", "batch_size=12"]
    printed(capsys, "train", str(table), *options, f"run={run}")
    output = tmp_path / "answers.coco.json"
    printed(capsys, "predict", f"run={run}", f"input={table}", f"output={output}")
    results = json.loads(output.read_text())
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    overlaps = []
    for row in rows:
        own = [r for r in results if r["file_name"] == row["image"]]
        masks = [run_lengths(r["segmentation"], (32, 32)) for r in own]
        areas = tuple(Area(o["label"], o["segmentation"]) for o in row["objects"])
        for true in Instances(areas, (32, 32)).masks():
            each = [(true & mask).sum() / (true | mask).sum() for mask in masks]
            overlaps.append(max(each, default=0))
    assert np.mean(overlaps) > 0.7


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("objects") / "run"
    train(folder, *DATA, *SMALL, *QUERY, "trainer.epochs=1", "baseline=none", "report=false")
    return folder


def test_generated_objects_are_trained_and_evaluated(run, tmp_path, capsys):
    assert 0 <= metrics_of(run)["test/map50"] <= 1
    assert "no object" in printed(capsys, "evaluate", f"run={run}", f"output={tmp_path}")


@pytest.mark.exhaustive
def test_a_model_of_objects_is_exported(run, tmp_path, capsys):
    printed(capsys, "export", f"run={run}", f"output={tmp_path / 'exported'}", "format=torch")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["head.queries=0"], "head.instances: needs queries"),
        ([*QUERY, "head.tile=8"], "head.tile: cannot be combined with head.instances=true"),
        ([*QUERY, "head.ignore=0"], "head.ignore: cannot be combined with head.instances"),
        ([*QUERY, "head.names=[a]"], "head.names: cannot be combined with head.instances"),
        ([*QUERY, "data.masks=true"], "data.instances: cannot be combined"),
    ],
)
def test_options_that_do_not_fit_instances_are_refused(tmp_path, capsys, options, problem):
    run = f"run={tmp_path / 'run'}"
    assert problem in refused(capsys, "train", *DATA, *SMALL, *options, run)


def test_true_and_predicted_masks_are_drawn_in_the_colors_of_their_classes():
    task = Segment(queries=3, instances=True, threshold=0.3)
    task.target.bind({"image": ImageAdapter(dim=8)})
    task.target.labels = ("square", "tree")
    gray = np.full((64, 64, 3), 100, np.uint8)
    colors = [(np.array(ImageColor.getrgb(c)) + 100) / 2 for c in ("#e69f00", "#56b4e9")]

    def drawn_at(value, *places):
        pixels = marked(gray, task.marks(value, {})["image"])
        return [pixels[len(pixels) * y // 32, len(pixels) * x // 32] for y, x in places]

    true = task.target.read(SQUARES, "row 1", {"image": gray[:32, :32]})
    inside, other, outside = drawn_at(true, (8, 8), (24, 26), (28, 8))
    assert np.allclose([inside, other], colors[0], atol=1) and (outside == 100).all()
    left, top = np.zeros((2, 8, 8), bool)
    left[:, :4], top[:4] = True, True
    found = found_of([left, top, ~left], [0.9, 0.4, 0.1], [0, 1, 1])
    # The mask with the higher score is on top, and one below the threshold is left out.
    best, second, none = drawn_at(found, (10, 8), (10, 24), (28, 24))
    assert np.allclose([best, second], colors, atol=1) and (none == 100).all()
