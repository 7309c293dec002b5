"""Detection: cells with boxes, matching, the metric, and trained models."""

import json
import math
import random

import numpy as np
import pytest
import torch
from helpers.newcomer import printed, refused
from helpers.runs import SMALL_IMAGES
from PIL import Image

import dxn
from dxn.core.errors import UserError
from dxn.datasets import objects
from dxn.models import Backbone, EarlyFusion
from dxn.report.examples import target_text
from dxn.runs.predictor import prediction_files
from dxn.tasks import Detect
from dxn.tasks.detect.head import log_odds
from dxn.tasks.detect.metric import AveragePrecision, Detected, best_threshold
from dxn.tasks.detect.objects import Ignored, Objects, read_objects
from dxn.tasks.detect.simple import usual_boxes
from dxn.tasks.detect.space import Detections, candidates, match
from dxn.tasks.detect.target import overlaps, to_places, to_prepared
from dxn.tasks.detect.task import without_duplicates
from dxn.tasks.infer import infer
from dxn.tokenize import AudioAdapter, ImageAdapter, ImageAugment
from dxn.tokenize.column_profile import profile_of

BOX = (2.0, 1.0, 12.0, 6.0)  # top, left, bottom, right


@pytest.mark.parametrize(
    "cell",
    [
        [{"label": "cat", "box": [1, 2, 6, 12]}],
        '[{"label": "cat", "box": [1, 2, 6, 12]}]',
        "[{'name': 'cat', 'bbox': [1, 2, 5, 10]}]",
        "[{'name': 'cat', 'bbox': array([1, 2, 5, 10])}]",  # as pandas writes arrays
        {"objects": [{"class": "cat", "cx": 3.5, "cy": 7, "w": 5, "h": 10}]},
        [{"type": " cat ", "xmin": "1", "ymin": 2, "xmax": 6, "ymax": 12}],
        [{"category": "cat", "x": 1, "y": 2, "width": 5, "height": 10}],
    ],
)
def test_a_box_can_be_written_in_several_ways(cell):
    assert read_objects(cell, "row 1", axes=2, order=None) == Objects(("cat",), (BOX,))


def test_events_have_a_start_and_a_stop():
    cell = [{"label": "bell", "start": 0.5, "end": 1.5}, {"label": 2, "onset": 1, "duration": 3}]
    events = read_objects(cell, "row 1", axes=1, order=None)
    assert events == Objects(("bell", "2"), ((0.5, 1.5), (1.0, 4.0)))


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("cat", "must be a list of objects"),
        ('[{"label": "cat"}]', "must have a place"),
        ([{"box": [1, 2, 3, 4]}], "must have a label"),
        ([{"label": "cat", "box": [1, 2, 3]}], "4 numbers"),
        ([{"label": "cat", "box": [1, 2, "x", 4]}], "finite numbers"),
        ([{"label": "cat", "box": [1, 2, math.nan, 4]}], "finite numbers"),
        ([{"label": "cat", "box": [1, 2, 10**400, 4]}], "finite numbers"),
        ([{"label": "cat", "box": "1 2 3 4"}], "finite numbers"),
        ([{"label": ["cat"], "box": [1, 2, 3, 4]}], "must have a label"),
        ([{"label": " ", "box": [1, 2, 3, 4]}], "must have a label"),
        ([{"label": "cat", "box": [5, 2, 3, 4]}], "must not be before its start"),
        ([3], "must have a place"),
        (7, "must be a list of objects"),
    ],
)
def test_other_cells_are_refused(cell, problem):
    with pytest.raises(UserError, match=f"row 1: .*{problem}"):
        read_objects(cell, "row 1", axes=2, order=None)


@pytest.mark.parametrize("cell", ["[{label: a", 7, [{"label": "cat", "box": [1, 2, 3]}], [None]])
def test_a_bad_row_does_not_turn_boxes_into_classes(cell):
    good = [{"label": "cat", "box": [1, 2, 3, 4]}]
    assert infer(profile_of([good, [], cell, good]))[0] == "detect"
    assert infer(profile_of([cell, [], cell, good]))[0] != "detect"


def target_of(adapter, labels=("cat",), order=None):
    target = Detect(order=order).target
    target.labels = labels
    target.bind({"image": adapter})
    return target


def picture(height=40, width=60):
    return np.zeros((height, width, 3), np.uint8)


def test_boxes_become_fractions_and_those_without_an_area_are_not_used():
    target = target_of(ImageAdapter(dim=8))
    cell = [
        {"label": "cat", "box": [6, 4, 30, 20]},
        {"label": "cat", "box": [50, 30, 90, 60]},  # partly outside
        {"label": "cat", "box": [10, 10, 10, 20]},  # without a width
        {"label": "cat", "box": [70, 10, 80, 20]},  # outside
    ]
    found = target.read(cell, "row 1", {"image": picture()})
    assert found.boxes == ((0.1, 0.1, 0.5, 0.5), (0.75, 50 / 60, 1.0, 1.0))
    line = target.describe([found, Objects()])
    assert "without a size inside of the input, which are not used: 2 (" in line
    assert "cut at the edge of the input: 1 (" in line and "1 row without an object" in line


def test_numbers_up_to_1_are_fractions():
    target = target_of(ImageAdapter(dim=8))
    cell = [{"label": "cat", "cxcywh": [0.5, 0.5, 0.2, 0.4]}]
    target.find_format([cell, []], ["row 1", "row 2"])
    found = target.read(cell, "row 1", {"image": picture()})
    np.testing.assert_allclose(found.boxes[0], (0.3, 0.4, 0.7, 0.6))


@pytest.mark.parametrize("are_fractions", [True, False])
def test_boxes_of_another_table_must_have_the_units_of_the_training(are_fractions):
    target = target_of(ImageAdapter(dim=8))
    target.fractions = are_fractions
    boxes = [[6, 4, 30, 20]] if are_fractions else [[0.1, 0.1, 0.5, 0.5], [0.1, 0.2, 1, 1]]
    cell = [{"label": "cat", "box": box} for box in boxes]
    with pytest.raises(UserError, match=r"row 1: the boxes are .*, but those of the training are"):
        target.read(cell, "row 1", {"image": picture()})
    one = [{"label": "cat", "box": [0.2, 0.2, 1.03, 0.8] if are_fractions else [0, 0, 9, 9]}]
    assert len(target.read(one, "row 1", {"image": picture()})) == 1


def test_names_with_a_comma_can_be_told_apart():
    cell = [{"label": label, "box": [1, 2, 6, 12]} for label in ("jar, big", "cup")]
    expected = '"jar, big", cup'
    assert str(read_objects(cell, "row", axes=2, order=None)) == expected
    # The page of dxn serve shows the cell.
    assert target_text(cell) == target_text({"objects": cell, "width": 9}) == expected
    assert target_text([]) == "none" and target_text(["a", "b"]) == "a, b"
    assert target_text({"mask": "a.png", "names": {0: "sky"}}) == "a.png"
    assert target_text([{"text": "a"}]) == '[{"text": "a"}]'


def test_a_box_of_fractions_that_reaches_beyond_the_picture_makes_no_pixels_of_the_others():
    target = target_of(ImageAdapter(dim=8))
    cell = [{"label": "cat", "cxcywh": [0.5, 0.5, 0.2, 0.4]}]
    outside = [{"label": "cat", "cxcywh": [0.93, 0.5, 0.2, 0.4]}]
    notes = target.find_format([cell, outside, cell], ["row 1", "row 2", "row 3"])
    assert target.fractions
    assert "1 box of 3 with larger numbers, such as in row 2, reach beyond it" in notes[0]
    found = target.read(cell, "row 1", {"image": picture()})
    np.testing.assert_allclose(found.boxes[0], (0.3, 0.4, 0.7, 0.6))


def test_objects_of_a_picture_of_another_size_are_refused():
    target = target_of(ImageAdapter(dim=8))
    cell = {"objects": [{"label": "cat", "bbox": [1, 2, 30, 20]}], "width": 60, "height": 40}
    assert len(target.read(cell, "row 1", {"image": picture()})) == 1
    problem = r"row 1: .* of 60×40 pixels, but it has 30×20; correct"
    with pytest.raises(UserError, match=problem):
        target.read(cell, "row 1", {"image": picture(20, 30)})
    with pytest.raises(UserError, match="has 40×60; if EXIF turns it, save it without"):
        target.read(cell, "row 1", {"image": picture(60, 40)})


@pytest.mark.parametrize("key", ["iscrowd", "is_crowd", "difficult"])
def test_objects_with_a_flag_are_ignored(key):
    target = target_of(ImageAdapter(dim=8))
    box = {"label": "cat", "box": [6, 4, 30, 20]}
    cell = [box, {**box, key: "0"}, {**box, key: 1}, {**box, key: "1"}]
    found = target.read(cell, "row 1", {"image": picture()})
    assert found.boxes == ((0.1, 0.1, 0.5, 0.5),)
    assert [item.place for item in found.ignored] == [(0.1, 0.1, 0.5, 0.5)] * 2
    assert {item.is_crowd for item in found.ignored} == {key != "difficult"}
    assert "; 2 ignored (iscrowd or difficult)" in target.describe([found])


def test_an_object_that_occurs_again_is_used_once_and_counted():
    target = target_of(ImageAdapter(dim=8))
    cell = [{"label": label, "box": [6, 4, 30, 20]} for label in ("cat", "dog", "cat")]
    found = target.read(cell, "row 1", {"image": picture()})
    assert found.labels == ("cat", "dog")
    line = "that occur again with the same class and place, and are used once: 1"
    assert f"{line} (row 1)" in target.describe([found])


def test_results_have_the_ids_of_categories_that_most_objects_of_a_class_have():
    target = target_of(ImageAdapter(dim=8))
    box = [1, 2, 6, 12]
    cells = [[{"label": "cat", "box": box, "category_id": number}] for number in (0, 7, 7)]
    notes = target.find_format(cells, ["row"] * 3)
    assert target.category_ids == {"cat": 7}
    assert "the class 'cat' has several ids of categories (0, 7)" in notes[0]
    target.usual_size = [1.0, 1.0]
    restored = target_of(ImageAdapter(dim=8))
    restored.load(target.state())
    assert restored.category_ids == {"cat": 7}


@pytest.mark.parametrize("seed", range(12))
def test_boxes_move_with_an_augmented_picture(seed):
    augment = ImageAugment(flip=True, crop=6, zoom=0.4)
    adapter = ImageAdapter(dim=8, image_size=(48, 64), augment=augment)
    target = target_of(adapter)
    pixels = picture(60, 80)
    pixels[20:40, 30:62] = 255  # the object
    raw = adapter.tokenizer.reader.read(pixels)
    sample = {"image": adapter.tokenizer(raw, random.Random(seed))}
    value = Objects(("cat",), ((20 / 60, 30 / 80, 40 / 60, 62 / 80),))
    encoded = target.encode(value, sample)
    shown = sample["image"]["pixels"].float().mean(0) > 127
    height, width = shown.shape
    if not len(encoded["boxes"]):
        assert shown.float().mean() < 0.1
        return
    rows, columns = (shown.any(axis).nonzero().flatten() for axis in (1, 0))
    expected = [rows[0] / height, columns[0] / width]
    expected += [(rows[-1] + 1) / height, (columns[-1] + 1) / width]
    np.testing.assert_allclose(encoded["boxes"][0], expected, atol=1.5 / 48)


def test_places_are_undone_exactly():
    adapter = ImageAdapter(dim=8, image_size=(48, 64), augment=ImageAugment(flip=True, zoom=0.5))
    raw = adapter.tokenizer.reader.read(picture(60, 80))
    placement = adapter.tokenizer.placement(adapter.tokenizer(raw, random.Random(3)))
    boxes = torch.rand(5, 4)
    boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
    torch.testing.assert_close(to_places(to_prepared(boxes, placement), placement), boxes)


def test_the_generalized_overlap_tells_distant_boxes_apart():
    box = torch.tensor([0.0, 0.0, 2.0, 2.0])
    others = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 1.0, 2.0, 3.0], [0.0, 4.0, 2.0, 6.0]])
    iou, generalized = overlaps(box, others)
    torch.testing.assert_close(iou, torch.tensor([1.0, 1 / 3, 0.0]))
    torch.testing.assert_close(generalized, torch.tensor([1.0, 1 / 3, -1 / 3]))


def test_each_object_is_matched_with_one_output_at_the_lowest_cost():
    boxes = torch.tensor([[[0.1, 0.1, 0.3, 0.3], [0.6, 0.6, 0.8, 0.8], [0.0, 0.0, 0.0, 0.0]]])
    labels = torch.tensor([[1, 0, -100]])
    found = boxes[0, [1, 0, 0, 1]][None].clone()
    logits = torch.full((1, 4, 2), -4.0)
    logits[0, 2, 1] = 4.0  # the better of two outputs at the first object
    logits[0, 0, 0] = 4.0
    pairs = match(logits, found, labels, boxes)
    assert sorted(zip(pairs.outputs.tolist(), pairs.objects.tolist(), strict=True)) == [
        (0, 1),
        (2, 0),
    ]
    chosen, quality = candidates(logits, found, labels, boxes)
    assert set(zip(chosen.outputs.tolist(), chosen.objects.tolist(), strict=True)) == {
        (0, 1),
        (1, 0),
        (2, 0),
        (3, 1),
    }
    best = dict(zip(chosen.outputs.tolist(), quality.tolist(), strict=True))
    assert best[0] == best[2] == 1 and 0 < best[1] < 1


def as_predictions(found, true):
    """Return predictions of the classes a and b, and targets."""
    predictions = []
    for row in found:
        row = sorted(row, key=lambda item: -item[1])
        classes = torch.tensor(["ab".index(c) for c, _, _ in row], dtype=torch.long)
        boxes = torch.tensor([box for _, _, box in row]).reshape(-1, 4)
        predictions.append(Detected(classes, torch.tensor([s for _, s, _ in row]), boxes))
    return predictions, [
        Objects(tuple(c for c, _ in row), tuple(b for _, b in row)) for row in true
    ]


def precision(found, true, counts=None, targets=None):
    """Return the metrics of lists of (class, score, box) and of (class, box), one per row."""
    target = Detect().target
    target.labels = ("a", "b")
    predictions, of_lists = as_predictions(found, true)
    targets = of_lists if targets is None else targets
    once = torch.ones(1, len(true), dtype=torch.float64) if counts is None else counts
    return AveragePrecision(target).weighted(predictions, targets, once)


A, B, C = (0.0, 0.0, 0.1, 0.1), (0.5, 0.5, 0.6, 0.6), (0.8, 0.8, 0.9, 0.9)
FAR = (0.3, 0.3, 0.35, 0.35)


def test_the_average_precision_is_that_of_coco():
    # Right, wrong, right, wrong, right: precisions 1, 2/3 and 3/5 at recalls 1/3, 2/3 and 1.
    found = [[("a", 0.9, A), ("a", 0.8, FAR), ("a", 0.7, B), ("a", 0.6, FAR), ("a", 0.5, C)]]
    results = precision(found, [[("a", A), ("a", B), ("a", C)]])
    expected = (34 * 1 + 33 * 2 / 3 + 34 * 3 / 5) / 101
    assert results["map"].item() == pytest.approx(expected)
    assert results["map(a)"].item() == pytest.approx(expected)
    assert results["map(b)"].isnan().all()  # no object of this class


def test_outputs_that_find_ignored_objects_are_neither_right_nor_wrong():
    # Parts of a crowd, whose union with them is large. All values are those of pycocotools.
    crowd = Ignored("a", (0.2, 0.2, 0.9, 0.9), is_crowd=True)
    true = Objects(("a",), (A,), (crowd,))
    found = [("a", 0.9, FAR), ("a", 0.8, B), ("b", 0.7, C), ("a", 0.6, A)]
    results = precision([found], [[]], targets=[true])
    assert results["map"].item() == results["map(a)"].item() == 1
    assert results["map(b)"].isnan().all()
    # A difficult object is compared as others are.
    for place, expected in ((FAR, 1.0), (crowd.place, 0.5)):
        difficult = Objects(("a",), (A,), (Ignored("a", place, is_crowd=False),))
        results = precision([[found[0], found[3]]], [[]], targets=[difficult])
        assert results["map"].item() == pytest.approx(expected)
    # An object that counts is preferred.
    both = Objects(("a",), (A,), (Ignored("a", A, is_crowd=False),))
    assert precision([[("a", 0.9, A)]], [[]], targets=[both])["map"].item() == 1
    target = Detect(threshold=0.1).target
    target.labels = ("a", "b")
    (prediction,), _ = as_predictions([found], [[]])
    assert AveragePrecision(target).rows([prediction], [true]).tolist() == [[1.0, 2.0, 1.0]]
    assert best_threshold([prediction], [true], ("a", "b")) == pytest.approx(0.3)


@pytest.mark.parametrize("recall", [7, 11, 19])
def test_a_recall_that_is_rounded_counts_as_in_pycocotools(recall):
    # 7 of 20 are less than the recall 0.35 in NumPy, but 11 of 20 and 19 of 20 are not less.
    places = [(i / 40, 0.0, i / 40 + 0.02, 0.1) for i in range(20)]
    found = [("a", 0.9 - i / 100, place) for i, place in enumerate(places[:recall])]
    result = precision([found], [[("a", place) for place in places]])["map50"].item()
    recalls = np.linspace(0, 1, 101)
    assert result == pytest.approx((recalls <= recall / 20).sum() / 101)


def test_an_object_is_found_once_and_by_its_class_only():
    assert precision([[("a", 0.9, A), ("a", 0.8, A)]], [[("a", A)]])["map"].item() == 1
    assert precision([[("b", 0.9, A)]], [[("a", A)]])["map"].item() == 0
    assert precision([[]], [[("a", A)]])["map"].item() == 0
    # A picture without an object lowers the precision only by what is found in it.
    assert precision([[("a", 0.9, A)], []], [[("a", A)], []])["map"].item() == 1
    half = precision([[("a", 0.5, A)], [("a", 0.9, B)]], [[("a", A)], []])["map"].item()
    assert half == pytest.approx(0.5)


def test_the_overlap_decides_at_which_thresholds_a_box_counts():
    shifted = (0.0, 0.0, 0.1, 0.08)  # an overlap of 0.8
    results = precision([[("a", 0.9, shifted)]], [[("a", A)]])
    assert results["map50"].item() == 1 and results["map75"].item() == 1
    assert results["map"].item() == pytest.approx(0.7)


def test_rows_count_as_often_as_they_are_drawn():
    found = [[("a", 0.9, A)], [("a", 0.8, FAR)]]
    true = [[("a", A)], [("a", B)]]
    counts = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    results = precision(found, true, counts)["map"]
    torch.testing.assert_close(results, torch.tensor([1.0, 0.0, 51 / 101]).double())


def test_the_threshold_is_chosen_once_and_saved(tmp_path):
    rows = random_rows(random.Random(0), 13)
    predictions, targets = as_predictions(*zip(*rows, strict=True))
    for option, expected in ((None, best_threshold(predictions, targets, ("a", "b"))), (0.3, 0.3)):
        task = Detect(threshold=option)
        task.target.labels = ("a", "b")
        task.target.usual_size = [0.2, 0.2]
        task.calibrate(predictions, targets)
        task.save(tmp_path)
        assert task.target.threshold == expected
        assert Detect().load(tmp_path).target.threshold == expected
        assert Detect(threshold=0.7).load(tmp_path).target.threshold == 0.7


def random_rows(rand, count, outputs=7):
    """Outputs and objects of rows, with overlaps of all sizes and an unknown class."""
    rows = []
    for _ in range(count):
        true = []
        for _ in range(rand.randrange(4)):
            top, left = rand.random(), rand.random()
            true.append((rand.choice("abc"), (top, left, top + 0.2, left + 0.2)))
        found = []
        for _ in range(outputs):
            label, box = rand.choice(true) if true else ("a", A)
            label = label if label != "c" and rand.random() < 0.8 else rand.choice("ab")
            found.append((label, rand.random(), [x + rand.gauss(0, 0.01) for x in box]))
        rows.append((found, true))
    return rows


@pytest.mark.parametrize("seed", range(5))
def test_a_resample_has_the_metrics_of_its_rows(seed):
    rand = random.Random(seed)
    rows = random_rows(rand, 13)
    draws = [[rand.randrange(len(rows)) for _ in rows] for _ in range(7)]
    counts = torch.tensor([[each.count(i) for i in range(len(rows))] for each in draws])
    found, true = zip(*rows, strict=True)
    results = precision(found, true, counts.double())
    for i, each in enumerate(draws):
        alone = precision([found[row] for row in each], [true[row] for row in each])
        for name, values in alone.items():
            torch.testing.assert_close(results[name][i], values[0], equal_nan=True)


@pytest.mark.parametrize("seed", range(5))
def test_the_threshold_has_the_highest_f1(seed):
    rows = random_rows(random.Random(seed), 13)
    predictions, targets = as_predictions(*zip(*rows, strict=True))
    target = Detect().target
    target.labels = ("a", "b")

    def f1(threshold):
        target.threshold = threshold
        metric = AveragePrecision(target)
        return float(metric.value(metric.rows(predictions, targets).sum(0))["f1"])

    best = best_threshold(predictions, targets, target.labels)
    scores = [score for each in predictions for score in each.scores.tolist()]
    assert f1(best) == pytest.approx(max(map(f1, scores)))
    assert best_threshold(predictions, [Objects()] * 13, target.labels) is None
    assert best_threshold([], [], target.labels) is None


def write_pictures(folder, count):
    source = objects(num_train=count, num_validation=1, num_test=1, size=48)
    rows = source.splits["train"]
    lines = []
    for i, (pixels, found) in enumerate(
        zip(rows.cells["image"], rows.cells["target"], strict=True)
    ):
        Image.fromarray(pixels).save(folder / f"{i}.png")
        lines.append(json.dumps({"photo": f"{i}.png", "objects": found}))
    (folder / "boxes.jsonl").write_text("\n".join(lines))
    return folder / "boxes.jsonl"


def test_the_usual_boxes_are_those_of_the_training():
    usual, rare = (0.1, 0.1, 0.3, 0.3), (0.6, 0.6, 0.9, 0.9)
    boxes = usual_boxes(["b", "a"], [Objects(("a",), (usual,))] * 3 + [Objects(("a",), (rare,))], 2)
    assert boxes.classes.tolist() == [1, 1] and boxes.scores.tolist() == [0.75, 0.25]
    torch.testing.assert_close(boxes.boxes, torch.tensor([usual, rare]))
    assert len(usual_boxes(["a"], [Objects()], 1).classes) == 0


def test_a_table_with_boxes_trains_predicts_and_evaluates(tmp_path, capsys):
    table = write_pictures(tmp_path, 30)
    run = tmp_path / "run"
    options = ["data.target=objects", "head=detect", "head.threshold=0.5", *SMALL_IMAGES]
    text = printed(capsys, "train", str(table), *options, f"run={run}")
    assert "objects (detect)" in text and "map" in text and "no object" in text
    assert "usual boxes" in text
    # One epoch is not enough.
    assert "simple methods are better than the model (map " in " ".join(text.split())
    metrics = json.loads((run / "metrics.json").read_text())
    assert 0 <= metrics["test/map"] <= 1
    text = printed(capsys, "predict", f"run={run}", f"input.photo={tmp_path / '0.png'}")
    assert "no objects" in text  # all scores are low
    printed(capsys, "report", f"run={run}")
    page = (run / "report.html").read_text()
    assert "<figcaption>true</figcaption>" in page
    assert "<figcaption>predicted</figcaption>" in page
    assert "{&#39;label" not in page
    answers = tmp_path / "answers.jsonl"
    printed(capsys, "predict", f"run={run}", f"input={table}", f"output={answers}")
    assert len(answers.read_text().splitlines()) == 30


def test_check_names_classes_that_only_the_validation_split_has(tmp_path, capsys):
    table = write_pictures(tmp_path, 12)
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    for i, row in enumerate(rows):
        row["split"] = "train" if i < 8 else "validation"
        new = [{"label": "new", "box": [1, 2, 13, 14]}] if i == 9 else []
        row["objects"] = [{"label": "old", "box": [i, 2, i + 9, 14]}, *new]
    table.write_text("\n".join(map(json.dumps, rows)))
    output = f"output={tmp_path / 'bad.csv'}"
    text = printed(capsys, "check", str(table), "target=objects", "adapters=[image]", output)
    assert "validation: classes that train does not have: new" in text


def test_objects_become_coco_results_and_pictures_with_boxes(tmp_path, capsys, monkeypatch):
    table = write_pictures(tmp_path, 30)
    run, coco, drawn = tmp_path / "run", tmp_path / "answers.coco.json", tmp_path / "drawn"
    options = ["head=detect", "head.threshold=0.001", "head.max_objects=3", "report=false"]
    printed(
        capsys, "train", str(table), "data.target=objects", *options, *SMALL_IMAGES, f"run={run}"
    )
    single = tmp_path / "single.coco.json"
    picture = f"input.photo={tmp_path / '0.png'}"
    calls = []
    predict = Detect.predict
    count = lambda *given, **options: calls.append(1) or predict(*given, **options)  # noqa: E731
    monkeypatch.setattr(Detect, "predict", count)
    printed(capsys, "predict", f"run={run}", picture, f"output={tmp_path / 'one'}")
    text = printed(capsys, "predict", f"run={run}", picture, f"output={single}")
    assert len(calls) == 2
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["0.png"]
    lines = [line for line in text.splitlines() if ": left " in line]
    assert len(lines) == 3
    printed(capsys, "predict", f"run={run}", f"input={table}", f"output={coco}")
    results = json.loads(coco.read_text())
    assert len(results) == 90
    alone = json.loads(single.read_text())
    assert [each["bbox"] for each in alone] == [each["bbox"] for each in results[:3]]
    assert alone[0]["file_name"] == "0.png"
    label, score = results[0]["category_name"], results[0]["score"]
    assert results[0]["file_name"] == "0.png" and lines[0].startswith(f"{score:.4f}  {label}: ")
    left, top, width, height = results[0]["bbox"]
    assert 0 <= left < left + width <= 48 and 0 <= top < top + height <= 48
    # Pictures without objects are normal, also in the first batch, and in all of them.
    records_of = prediction_files.coco_records
    for without in (range(8), range(30)):

        def partly(*args, without=without):
            return [] if args[2] in without else records_of(*args)

        with monkeypatch.context() as patch:
            patch.setattr(prediction_files, "coco_records", partly)
            command = ["predict", f"run={run}", f"input={table}", "batch_size=4"]
            printed(capsys, *command, f"output={coco}")
        assert len(json.loads(coco.read_text())) == 3 * (30 - len(without))
    printed(capsys, "predict", f"run={run}", f"input={table}", f"output={drawn}")
    assert sorted(path.name for path in drawn.iterdir()) == sorted(f"{i}.png" for i in range(30))
    attend = ["attend", f"run={run}", f"input.photo={tmp_path / '0.png'}"]
    text = printed(capsys, *attend, f"output={tmp_path / 'attention'}")
    assert f"{label} (" in text


def test_only_objects_are_written_as_coco_results(tmp_path, capsys):
    lines = [f"{'good' if i % 2 else 'bad'} word {i},{i % 2}" for i in range(30)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *lines]))
    run = tmp_path / "run"
    options = ["preset=plain", "dim=16", "backbone.depth=1", "trainer.epochs=1", "report=false"]
    printed(capsys, "train", str(tmp_path / "texts.csv"), *options, f"run={run}")
    for output in ("a.coco.json", "folder"):
        option = f"output={tmp_path / output}"
        message = refused(capsys, "predict", f"run={run}", "input.text=good", option)
        assert "only a model that finds objects in pictures" in message


def test_augmentation_that_boxes_cannot_follow_is_refused(tmp_path, capsys):
    table = write_pictures(tmp_path, 12)
    options = ["data.target=objects", "adapters.image.augment.randaugment=5", *SMALL_IMAGES]
    message = refused(capsys, "train", str(table), *options, f"run={tmp_path / 'run'}")
    assert "adapters.image.augment.randaugment" in message and "boxes cannot follow" in message


def test_log_odds_are_those_of_a_softmax_also_if_it_is_certain():
    logits = torch.tensor([[40.0, -3.0, 2.0, 1.0], [0.5, 0.2, -1.0, 60.0]], requires_grad=True)
    odds = log_odds(logits)
    for i in range(3):
        others = logits.detach().double()[:, [j for j in range(4) if j != i]]
        expected = logits.detach().double()[:, i] - others.logsumexp(1)
        torch.testing.assert_close(odds[:, i].double(), expected, rtol=1e-5, atol=1e-5)
    odds.sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


def test_queries_find_objects_and_need_as_many_registers(tmp_path, capsys):
    table = write_pictures(tmp_path, 30)
    options = ["data.target=objects", "head=detect", "head.queries=7", *SMALL_IMAGES]
    message = refused(capsys, "train", str(table), *options, f"run={tmp_path / 'bad'}")
    assert "set fusion.registers=7" in message
    run = tmp_path / "run"
    printed(capsys, "train", str(table), *options, "fusion.registers=7", f"run={run}")
    metrics = json.loads((run / "metrics.json").read_text())
    assert 0 <= metrics["test/map"] <= 1
    model = dxn.load(run)
    found = model.predict({"photo": tmp_path / "0.png"})
    assert isinstance(found["prediction"], list)


def test_queries_overfit_a_few_pictures():
    source = objects(num_train=8, num_validation=1, num_test=1, size=48).splits["train"]
    torch.manual_seed(0)
    adapter = ImageAdapter(dim=32, image_size=48, patch_size=8)
    targets = [
        [{**each, "box": [number / 48 for number in each["box"]]} for each in found]
        for found in source.cells["target"]
    ]
    model = dxn.Model(
        {"image": adapter.fit(source.cells["image"])},
        backbone=Backbone(32, depth=2),
        fusion=EarlyFusion(32, registers=9),
        head=Detect(queries=9),
        targets=targets,
    )
    pairs = zip(source.cells["image"], targets, strict=True)
    batch = model.collate([{"image": image, "target": target} for image, target in pairs])
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(60):
        loss = model.loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize("option", ["trainer.mixup=1", "ensemble=2"])
def test_what_needs_one_output_per_sample_is_refused(option, tmp_path, capsys):
    options = ["data=objects", "head=detect", "adapters=[image]", f"run={tmp_path / 'run'}"]
    message = refused(capsys, "train", *options, option)
    assert option.partition("=")[0] in message and "head=detect" in message


@pytest.mark.parametrize(
    "fusion",
    [
        "early",
        pytest.param("late", marks=pytest.mark.exhaustive),
        pytest.param("bottleneck", marks=pytest.mark.exhaustive),
    ],
)
def test_a_text_can_say_which_object_to_find(fusion, tmp_path, capsys):
    options = ["data=objects", "data.ask=true", "data.num_train=40", "data.size=48"]
    options += [
        "data.num_validation=10",
        "data.num_test=10",
        *SMALL_IMAGES,
        "adapters=[text,image]",
    ]
    options += ["preset=plain", f"fusion={fusion}", "loader.input_dropout=0.3"]
    printed(capsys, "train", *options, f"run={tmp_path / 'run'}")
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert 0 <= metrics["test/map"] <= 1


def test_of_two_boxes_that_overlap_the_better_one_of_a_class_is_kept():
    boxes = torch.tensor([[0.1, 0.1, 0.3, 0.3], [0.1, 0.1, 0.3, 0.31], [0.1, 0.1, 0.3, 0.3]])
    kept = without_duplicates(boxes, torch.tensor([0.5, 0.7, 0.6]), torch.tensor([0, 0, 1]), 0.6)
    assert kept.tolist() == [1, 2]
    events = torch.tensor([[0.1, 0.3], [0.1, 0.31], [0.4, 0.5]])
    kept = without_duplicates(events, torch.tensor([0.5, 0.7, 0.6]), torch.zeros(3).long(), 0.6)
    assert kept.tolist() == [1, 2]


def test_boxes_are_in_the_picture_and_events_in_the_sound():
    adapters = {"sound": AudioAdapter(dim=8), "photo": ImageAdapter(dim=8)}
    for cell, name in (
        ([{"label": "cat", "box": [1, 2, 3, 4]}], "photo"),
        ([{"label": "bell", "start": 1, "end": 2}], "sound"),
    ):
        target = Detect().target
        target.find_format([cell, []], ["row 1", "row 2"])
        target.bind(adapters)
        assert target.input == name


def test_pictures_without_an_object_teach_that_there_is_none():
    target = target_of(ImageAdapter(dim=8))
    space = Detections(target, once=False)
    output = torch.zeros(2, 3, 5, requires_grad=True)
    none = {"labels": torch.zeros(2, 0, dtype=torch.long), "boxes": torch.zeros(2, 0, 4)}
    loss = space.loss(output, {"target": none})
    loss.mean.backward()
    assert output.grad is not None and (output.grad[..., 0] > 0).all()
