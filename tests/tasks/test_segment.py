"""Segmentation: masks, their place in prepared pictures, the metric, and trained models."""

import csv
import io
import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.media import encoded
from helpers.newcomer import printed, refused, run
from helpers.runs import SMALL_IMAGES
from PIL import Image

import dxn
from dxn.core.errors import UserError
from dxn.core.marks import Areas
from dxn.data import annotated
from dxn.data.sources.detect import infer_source
from dxn.datasets import objects
from dxn.tasks import Segment
from dxn.tasks.segment.head import SegmentHead, starts
from dxn.tasks.segment.masks import data_url, decode, names_of, palette, png, read_mask
from dxn.tasks.segment.space import PerPixel
from dxn.tasks.segment.target import Overlap, Segmented
from dxn.tasks.target import IGNORED
from dxn.tokenize import ImageAdapter, ImageAugment, ResizeOptions
from dxn.tokenize.base import Placement, pad
from dxn.tokenize.image.reader import ImageReader
from dxn.viz.drawers.image import masks

VALUES = np.array([[0, 1, 1], [2, 2, 255]], np.uint8)


def palettized():
    image = Image.fromarray(VALUES, "P")
    image.putpalette(palette(256))
    return encoded(image)


@pytest.mark.parametrize(
    "cell",
    [
        VALUES,
        Image.fromarray(VALUES),
        encoded(Image.fromarray(VALUES)),
        encoded(Image.fromarray(VALUES), "BMP"),
        encoded(Image.fromarray(np.stack([VALUES] * 3, -1))),
        encoded(Image.fromarray(VALUES.astype(np.uint16))),
        palettized(),
        {"mask": VALUES, "names": {0: "sky"}},
    ],
)
def test_a_mask_can_be_written_in_several_ways(cell):
    np.testing.assert_array_equal(read_mask(cell, "row 1").values(), VALUES)


@pytest.mark.parametrize("names", [["sky"], {"sky": 0}, 7])
def test_names_of_classes_without_values_are_refused(names):
    with pytest.raises(UserError, match="must be an object with the value of the pixels"):
        names_of({"mask": VALUES, "names": names})


def test_each_color_of_a_mask_is_a_class():
    colors = np.zeros((2, 3, 3), np.uint8)
    colors[0, 1] = (255, 0, 1)
    colors[1] = 128
    values = decode(encoded(Image.fromarray(colors)))
    assert values.tolist() == [[0, 256 + 255 * 65536 + 1, 0], [128, 128, 128]]
    # A color is the same class in a mask that has no other colors.
    assert decode(encoded(Image.fromarray(colors[1:]))).tolist() == [[128, 128, 128]]


def test_an_array_of_truth_values_has_the_classes_0_and_1():
    mask = read_mask(np.array([[True, False]]), "row 1")
    assert mask.values().tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("no.png", "file not found"),
        (b"text", "not a picture without loss"),
        (encoded(Image.fromarray(VALUES), "JPEG"), "not a picture without loss"),
        (VALUES.astype(np.float32), "whole numbers"),
        (7, "must be a path, bytes or an array"),
    ],
)
def test_other_cells_are_refused(cell, problem):
    with pytest.raises(UserError, match=f"row 1: the mask .*{problem}"):
        read_mask(cell, "row 1")


def target_of(adapter=None, masks=(VALUES,), **options):
    target = Segment(**options).target
    target.bind({"image": adapter or ImageAdapter(dim=8)})
    target.find_format(masks, [])
    target.fit([read_mask(mask, "row 1") for mask in masks])
    return target


def test_the_values_of_masks_become_classes():
    target = target_of()
    assert target.labels == ("0", "1", "2") and target.ignored == 255
    assert target.frequencies == [0.2, 0.4, 0.4]
    two = np.array([[0, 255]], np.uint8)
    assert target_of(masks=[two]).labels == ("0", "255")
    assert target_of(masks=[two], names=["no", "yes"]).labels == ("no", "yes")
    assert target_of(ignore=-1).labels == ("0", "1", "2", "255")
    assert target_of(ignore=0).labels == ("1", "2", "255")
    named = {"mask": VALUES, "names": {0: "sky", 2: "sea", 3: "sun"}}
    assert target_of(masks=[named]).labels == ("sky", "1", "sea", "sun")
    assert target_of(names=["a", "b", "c", "d"]).values == [0, 1, 2, 3]
    # Inverse roots of the frequencies, whose mean over the pixels is 1.
    weights = target_of(balance="root").class_weights
    assert weights[0] / weights[1] == pytest.approx(2**0.5) and weights[1] == weights[2]
    assert 0.2 * weights[0] + 0.4 * weights[1] + 0.4 * weights[2] == pytest.approx(1)
    weights = target_of(balance="inverse").class_weights
    assert weights[0] / weights[1] == pytest.approx(2) and weights[1] == weights[2]
    # A class that only has a name does not change the weights of the others.
    named = target_of(balance="inverse", names=["a", "b", "c", "d"])
    assert dict(zip(named.values, named.class_weights, strict=True))[3] == 1
    assert sorted(named.class_weights) == pytest.approx(sorted([*weights, 1]))


@pytest.mark.parametrize(("options", "num_classes"), [({}, 2), ({"ignore": -1}, 3)])
def test_a_value_of_pixels_without_a_class_is_no_class_to_balance(options, num_classes):
    masks = [np.array([[0, 1, 255], [0, 0, 1]], np.uint8), np.array([[1, 1, 0]], np.uint8)]
    assert Segment(**options).marked(masks).num_classes == num_classes
    assert Segment(queries=3).marked(masks).num_classes == 0


# Values of the masks of some files, and which one is ignored.
VOIDS = [
    ([[0, 1, 255], [0, 2, 255], [0, 255]], 255),
    ([[0, 1]], 255),  # as in other data sets, if a later mask has it
    ([[0, 255], [0, 255]], None),
    ([[0, 1]] * 2 + [[0, 255]] * 3, None),  # of two exports
    ([[0, 128, 255]], None),
    ([[0, 85, 170, 255]], None),
    ([[0, 7, 42, 255]], 255),
    ([[*range(0, 256, 3)]], None),  # smooth edges
    ([[0, 255, 1000]], None),
]


@pytest.mark.parametrize(("files", "ignored"), VOIDS)
def test_whether_255_is_ignored_is_decided_by_all_masks(files, ignored):
    masks = [np.array([values]) for values in files]
    target = target_of(masks=masks)
    assert target.ignored == ignored
    assert target_of(masks=masks, ignore=-1).ignored == -1
    assert (255 in target.values) == (ignored is None and any(255 in values for values in files))


def test_what_is_unusual_about_masks_is_described():
    def described(*masks, target=None, **options):
        values = [read_mask(mask, "row 1") for mask in masks]
        return (target or Segment(**options).target).describe(values)

    void = np.array([[0, 0, 1, 255]], np.uint8)
    assert "the value 255 (25.0%) is ignored; head.ignore=-1 makes it a class" in described(void)
    white = np.array([[0, 0, 255, 255]], np.uint8)
    text = described(void, white, white, white)
    assert "255 (43.8%) is a class" in text and "3 masks have only 0 and 255, unlike" in text
    assert "255" not in described(np.array([[0, 1]]))
    edges = np.array([[0] * 5000 + [*range(1, 20)] + [20] * 5000])
    assert "19 values have less than 0.1% of the pixels each, as if edges" in described(edges)
    many = [np.array([[0] * 400_000 + [*range(n, n + 150)]]) for n in (0, 150)]
    assert "at most 256 are possible" in described(*many)
    # Rare classes among others are none of edges.
    assert "edges" not in described(np.array([[0] * 5000 + [1, 2] + [3] * 5000]))
    named = Segment().target
    named.names_by_value = {0: "sky"}
    assert "2 values without a name (1, 2)" in described(np.array([[0, 1, 2]]), target=named)
    palettes = [Image.fromarray(void) for _ in range(2)]
    for image, color in zip(palettes, ([255, 0, 0], [0, 255, 0]), strict=True):
        image.putpalette([0, 0, 0, *color])
    text = described(*map(encoded, palettes))
    assert "the index 1 is #00ff00 and #ff0000 in the palettes of different masks" in text


def test_a_class_that_is_only_in_the_last_of_many_masks_is_known():
    masks = [np.array([[0, i == 2100]], np.uint8) for i in range(2101)]
    assert target_of(masks=masks).labels == ("0", "1")


@pytest.mark.parametrize("kind", ["1", "L", "I;16", "P", "RGB"])
def test_predicted_masks_are_written_as_those_of_the_training(kind):
    top = {"1": 1, "L": 255, "I;16": 26001, "P": 7, "RGB": 1}[kind]
    values = np.array([[0, top], [top, top]])
    if kind == "RGB":
        image = Image.fromarray(np.array([[9, 8, 7], [255, 255, 255]], np.uint8)[values])
    else:
        types = {"1": bool, "I;16": np.uint16}
        image = Image.fromarray(values.astype(types.get(kind, np.uint8)))
    if kind == "P":
        image.putpalette([*range(24)])
    mask = encoded(image)
    target = target_of(masks=[mask])
    restored = target_of()
    restored.load(target.state())
    content = restored.file(restored.index_of(read_mask(mask, "row 1")))
    with Image.open(io.BytesIO(content)) as written, Image.open(io.BytesIO(mask)) as expected:
        assert written.mode == expected.mode == kind
        np.testing.assert_array_equal(np.asarray(written), np.asarray(expected))
        assert written.getpalette() == expected.getpalette()
    if kind in ("P", "RGB"):
        colors = {"P": ["#000102", "#151617"], "RGB": ["#ffffff", "#090807"]}[kind]
        assert restored.colors == colors
    if kind == "RGB":
        assert restored.labels == ("#ffffff", "#090807")


def test_a_mask_whose_classes_are_in_the_transparency_is_refused():
    pixels = np.zeros((2, 2, 4), np.uint8)
    pixels[0, :, 3] = 255
    with pytest.raises(UserError, match="row 1: the mask cannot be used: all pixels have the same"):
        target_of().read(encoded(Image.fromarray(pixels)), "row 1", {})


def test_masks_with_other_values_than_those_of_the_training_are_named():
    target = target_of(masks=[np.array([[0, 1]], np.uint8)])
    masks = [np.array([values], np.uint8) for values in ([0, 255], [0, 0], [0, 1, 7])]
    assert target.unknown([read_mask(mask, "") for mask in masks]) == ["255"]


def test_masks_are_equal_if_their_pixels_are(tmp_path):
    for name, value in (("a", 1), ("b", 1), ("c", 2)):
        Image.fromarray(np.full((2, 3), value, np.uint8)).save(tmp_path / f"{name}.png")
    first, same, other = (read_mask(str(tmp_path / f"{name}.png"), "") for name in "abc")
    assert first == same and first != other
    assert first != read_mask(np.ones((3, 2), np.uint8), "")


def test_check_lists_masks_that_are_cut(tmp_path, capsys):
    table = write_table(tmp_path, 30)
    for i in (3, 5):
        file = tmp_path / f"{i}_mask.png"
        file.write_bytes(file.read_bytes()[:-30])
    options = ["data.target=area", "adapters=[image]", f"output={tmp_path / 'bad.csv'}"]
    assert run("check", str(table), *options) == 1
    text = capsys.readouterr().out
    assert "bad: 2 × the mask cannot be used: damaged or truncated" in text


def test_classes_without_a_name_and_photos_are_refused():
    with pytest.raises(UserError, match=r"head.names: must have one name per class, got 2 names"):
        target_of(names=["a", "b"])


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ([str(i) for i in range(257)], "names for 257 classes, at most 256"),
        (["a", "b", "c", "a"], "several classes of the masks have the name 'a'"),
    ],
)
def test_too_many_or_repeated_names_of_classes_are_refused(names, problem):
    with pytest.raises(UserError, match=problem):
        target_of(names=names)
    halves = np.arange(300, dtype=np.uint16).reshape(2, 10, 15)
    with pytest.raises(UserError, match="300 different values, at most 256"):
        target_of(masks=halves)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (np.arange(300), "300 different values, at most 256"),  # a photo would fill the memory
        (np.array([0, -1]), "the value -1, but values are from 0"),
        (np.array([0, 1.5], np.float32), "the value of a class must be a whole number, got 1.5"),
        (np.array([0, np.nan], np.float32), "the value of a class must be a whole number, got nan"),
        (np.array([0, 300], np.float32), ""),
    ],
)
def test_a_mask_has_few_values_that_are_whole_numbers_from_0(values, problem):
    cell = values[None]
    if cell.dtype == np.float32:
        cell = encoded(Image.fromarray(cell), "TIFF")
    target = Segment().target
    if problem:
        with pytest.raises(UserError, match=f"row 1: the mask cannot be used: {problem}"):
            target.read(cell, "row 1", {})
    else:
        assert target.read(cell, "row 1", {}).values().tolist() == [[0, 300]]


def test_a_mask_must_have_the_size_of_its_picture():
    target = target_of()
    picture = np.zeros((3, 2, 3), np.uint8)
    with pytest.raises(UserError, match="row 1: the mask has 3×2 pixels, but the picture 2×3"):
        target.read(VALUES, "row 1", {"image": picture})


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("mode", ["within", "stretch", "crop", "cover", "pad"])
def test_masks_move_with_an_augmented_picture(seed, mode):
    # A turned picture would mostly be padding with mode=pad.
    turn = mode != "pad" and seed % 2 == 1
    augment = ImageAugment(flip=True, turn=turn, jitter=0.02, crop=6, zoom=0.4)
    adapter = ImageAdapter(
        dim=8, image_size=(48, 64), augment=augment, resize=ResizeOptions(mode=mode)
    )
    values = np.zeros((61, 83), np.uint8)
    values[20:40, 30:62] = 1
    target = target_of(adapter, [values])
    raw = adapter.tokenizer.reader.read(np.stack([255 * values] * 3, -1))
    sample = {"image": adapter.tokenizer(raw, random.Random(seed))}
    found = target.encode(read_mask(values, "row 1"), sample)
    shown = sample["image"]["pixels"].float().mean(0)
    assert found.shape == shown.shape
    clear = ((shown < 10) | (shown > 245)) & (found != IGNORED)
    assert clear.float().mean() > 0.6
    assert (found[clear] == (shown[clear] > 127).long()).float().mean() > 0.99


@pytest.mark.parametrize("patch_size", [3, 4, 6])
def test_other_pictures_of_a_batch_have_no_effect(patch_size):
    adapter = ImageAdapter(dim=8, image_size=None, patch_size=patch_size, stride=patch_size)
    task = Segment(input="image", names=["a", "b", "c"], channels=4)
    task.target.labels = task.names
    head = SegmentHead(task, 8, adapter).eval()
    small, large = (
        adapter.tokenizer(torch.randint(256, (3, *size), dtype=torch.uint8))
        for size in ((13, 17), (19, 23))
    )
    alone, both = (
        {**pad(samples, {}), "rows": torch.arange(len(samples))}
        for samples in ([small], [small, large])
    )
    outputs = []
    for part in (alone, both):
        tokens = adapter(part).renamed("image")
        outputs.append(head(tokens, tokens.x.mean(1), {"image": part, "#size": len(part["rows"])}))
    torch.testing.assert_close(outputs[1][:1, :, :13, :17], outputs[0], rtol=1e-4, atol=1e-5)


def test_masks_of_several_sizes_are_padded():
    target = target_of()
    batch = target.collate([torch.zeros(2, 3).long(), torch.ones(3, 1).long()])
    expected = [[0, 0, 0], [0, 0, 0], [IGNORED] * 3]
    assert batch[0].tolist() == expected
    assert batch[1].tolist() == [[1, IGNORED, IGNORED]] * 3


def whole():
    return Placement(torch.zeros(2), torch.ones(2), torch.ones(2))


def test_the_metrics_count_pixels_of_the_original_picture():
    target = target_of()
    metric = Overlap(target)
    true = read_mask(np.array([[0, 0, 1, 1], [0, 0, 2, 255]], np.uint8), "row 1")
    small = Segmented(torch.tensor([[0, 1]], dtype=torch.uint8), whole())
    results = metric.metrics([small], [true], 0.0)
    assert results["pixel_accuracy"] == pytest.approx(6 / 7)
    assert results["iou(0)"] == 1 and results["iou(1)"] == pytest.approx(2 / 3)
    assert results["iou(2)"] == 0 and results["miou"] == pytest.approx(5 / 9)
    # A class that the training split does not have is always wrong.
    other = read_mask(np.array([[0, 9]], np.uint8), "row 2")
    results = metric.metrics([small], [other], 0.0)
    assert results["pixel_accuracy"] == 0.5


def test_the_loss_of_an_ensemble_member_ignores_pixels_without_a_class():
    space = PerPixel(target_of(), dice=1.0)
    output = torch.randn(2, 3, 4, 5)
    target = torch.full((2, 4, 5), IGNORED)
    assert space.loss(output, {"target": target}).mean == 0
    target[0, 0] = 1
    changed = output.clone()
    changed[1] += 5
    one, other = (space.loss(each, {"target": target}).mean for each in (output, changed))
    torch.testing.assert_close(one, other)
    log_mean = space.mean([output, changed])
    expected = (output.softmax(1) + changed.softmax(1)) / 2
    torch.testing.assert_close(log_mean.exp(), expected)


def test_a_mask_in_an_answer_is_a_file():
    content = png(np.array([[0, 2]]), range(3), "", palette(3))
    assert np.asarray(Image.open(io.BytesIO(content))).tolist() == [[0, 2]]
    assert data_url(content).startswith("data:image/png;base64,iVBOR")


def test_a_report_has_both_masks_and_the_overlap_of_their_classes():
    true = np.array([[0, 0, 1, 1], [0, 0, 2, 255]])
    found = np.array([[0, 0, 1, 1], [0, 1, 1, 0]])

    def areas(values, size=None):
        whole_mask = Segmented(torch.from_numpy(np.where(values == 255, IGNORED, values)), whole())
        return Areas(
            whole_mask.at, ["sky", "<sea>", "sun"], ["#000000", "#800000", "#008000"], size
        )

    picture = np.zeros((2, 4, 3), np.uint8)
    html = masks(picture, "a picture", [areas(true, true.shape), areas(found)])
    assert html.count("<img") == 3 and html.count("swatch") == 4
    assert "sky, IoU 75%" in html and "&lt;sea&gt;, IoU 50%" in html and "sun, IoU 0%" in html
    assert "no class" in html
    alone = masks(picture, "a picture", [areas(found)])
    assert alone.count("<img") == 2 and "IoU" not in alone and "sun" not in alone


def write_table(folder, count, size=48):
    rows = objects(num_train=count, num_validation=1, num_test=1, size=size, masks=True)
    cells = rows.splits["train"].cells
    lines = [("photo", "area")]
    for i, (pixels, cell) in enumerate(zip(cells["image"], cells["target"], strict=True)):
        # Pictures of several sizes.
        cut = size - 4 * (i % 3)
        Image.fromarray(pixels[:cut]).save(folder / f"{i}.png")
        Image.fromarray(cell["mask"][:cut]).save(folder / f"{i}_mask.png")
        lines.append((f"{i}.png", f"{i}_mask.png"))
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    return folder / "table.csv"


def test_a_table_with_masks_trains_predicts_and_evaluates(tmp_path, capsys):
    table = write_table(tmp_path, 30)
    run = tmp_path / "run"
    options = ["data.target=area", *SMALL_IMAGES, f"run={run}"]
    text = printed(capsys, "train", str(table), *options)
    assert "area (segment)" in text and "miou" in text and "always 0" in text
    metrics = json.loads((run / "metrics.json").read_text())
    assert 0 <= metrics["test/miou"] <= 1
    # Colors tell the shapes from what is behind them, and places do not.
    places, forest = (
        metrics[f"test/pixel_accuracy[{name}]"]
        for name in ("most frequent class of each place", "random forest of local colors")
    )
    assert places < forest and forest > 0.8
    with (run / "predictions.csv").open() as file:
        row = next(csv.DictReader(file))
    assert row["target"].endswith("_mask.png")
    assert sum(float(value) for name, value in row.items() if "share(" in name) > 0.99
    printed(capsys, "report", f"run={run}")
    page = (run / "report.html").read_text()
    assert '<div class="masks">' in page and "<figcaption>predicted</figcaption>" in page
    assert 'class="legend"' in page and ", IoU " in page
    printed(capsys, "predict", f"run={run}", f"input.photo={tmp_path / '0.png'}")
    answers = tmp_path / "answers.jsonl"
    printed(capsys, "predict", f"run={run}", f"input={table}", f"output={answers}")
    assert len(answers.read_text().splitlines()) == 30
    folder = tmp_path / "masks"
    printed(capsys, "predict", f"run={run}", f"input={table}", f"output={folder}")
    with Image.open(tmp_path / "2.png") as picture, Image.open(folder / "2.png") as mask:
        assert mask.size == picture.size and mask.mode == "L"
    message = refused(capsys, "predict", f"run={run}", f"input={table}", "output=a.coco.json")
    assert "only a model that finds objects in pictures" in message
    printed(capsys, "evaluate", f"run={run}", f"input={table}")


def test_a_mask_that_is_missing_is_reported(tmp_path, capsys):
    table = write_table(tmp_path, 12)
    (tmp_path / "3_mask.png").unlink()
    options = ["data.target=area", "head=segment", *SMALL_IMAGES, f"run={tmp_path / 'run'}"]
    message = refused(capsys, "train", str(table), *options)
    assert "table.csv row 5" in message and "3_mask.png" in message and "not found" in message


@pytest.mark.parametrize("option", ["randaugment=5", "token_dropout=0.5"])
def test_augmentation_that_masks_cannot_follow_is_refused(tmp_path, capsys, option):
    table = write_table(tmp_path, 12)
    options = [
        "data.target=area",
        "head=segment",
        f"adapters.image.augment.{option}",
        *SMALL_IMAGES,
    ]
    message = refused(capsys, "train", str(table), *options, f"run={tmp_path / 'run'}")
    assert f"adapters.image.augment.{option.partition('=')[0]}" in message


def test_large_pictures_are_divided_into_tiles(tmp_path, capsys):
    table = write_table(tmp_path, 20, size=64)
    run = tmp_path / "run"
    options = ["data.target=area", "head=segment", "head.tile=32", *SMALL_IMAGES]
    options = [each.replace("image_size=48", "image_size=null") for each in options]
    printed(capsys, "train", str(table), *options, f"run={run}")
    model = dxn.load(str(run)).network.models[0]
    whole = torch.randint(256, (1, 3, 60, 70), dtype=torch.uint8)
    part = {
        "pixels": whole,
        "sizes": torch.tensor([[60, 70]]),
        "pixel_map": torch.tensor([[0.0, 0, 1, 1, 60, 70]]),
        "rows": torch.arange(1),
    }
    with torch.inference_mode():
        output = model({"#size": 1, "photo": part})
        assert output.shape[-2:] == (60, 70) and output.isfinite().all()
        corner = {**part, "pixels": whole[..., :32, :32], "sizes": torch.tensor([[32, 32]])}
        alone = model({"#size": 1, "photo": corner})
    # No other tile has the first pixels.
    torch.testing.assert_close(output[..., :4, :4], alone[..., :4, :4], rtol=1e-3, atol=1e-3)
    message = refused(capsys, "export", f"run={run}", f"output={tmp_path / 'out'}")
    assert "a model with head.tile, which divides large pictures, cannot be exported" in message


@pytest.mark.parametrize("length", [5, 32, 33, 64, 100])
def test_tiles_cover_a_length_and_overlap(length):
    found = starts(length, 32)
    assert found[0] == 0 and found[-1] + 32 >= length
    assert all(b - a <= 24 for a, b in pairwise(found))


def test_tiles_need_pictures_as_the_only_input(tmp_path, capsys):
    options = ["data=objects", "data.masks=true", "data.ask=true", "head.tile=32", "head=segment"]
    small = ["data.num_train=8", "data.num_validation=4", "data.num_test=4"]
    message = refused(capsys, "train", *options, *small, f"run={tmp_path / 'run'}")
    assert "head.tile: needs pictures as the only input" in message


def write_folder(root, picture, mask, count=12):
    rows = objects(num_train=count, num_validation=1, num_test=1, size=48, masks=True)
    cells = rows.splits["train"].cells
    for i, (pixels, cell) in enumerate(zip(cells["image"], cells["target"], strict=True)):
        for pattern, array in ((picture, pixels), (mask, cell["mask"])):
            file = root / pattern.format(i=i, split="train" if i < count - 4 else "val")
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(file)


@pytest.mark.parametrize(
    ("picture", "mask"),
    [
        ("images/{i}.jpg", "masks/{i}.png"),
        ("image/{i}.png", "label/{i}.png"),
        ("{split}/images/{i}.png", "{split}/masks/{i}_mask.png"),
        ("images/{split}/{i}.png", "annotations/{split}/{i}.png"),
    ],
)
def test_folders_of_pictures_and_masks_are_found(tmp_path, picture, mask):
    write_folder(tmp_path, picture, mask)
    (tmp_path / "classes.txt").write_text("nothing\ncircle\n")
    assert infer_source(tmp_path) == "annotated"
    source = annotated(str(tmp_path), readers={"image": ImageReader()})
    assert source.task == "segment"
    sizes = {name: len(rows.cells["target"]) for name, rows in source.splits.items()}
    assert sum(sizes.values()) == 12
    if "split" in picture:
        assert sizes["train"] + sizes.get("test", 0) == 8 and sizes["validation"] == 4
    for rows in source.splits.values():
        for path, cell in zip(rows.cells["image"], rows.cells["target"], strict=True):
            stems = [Path(each).stem.removesuffix("_mask") for each in (path, cell["mask"])]
            assert stems[0] == stems[1] and cell["names"] == {0: "nothing", 1: "circle"}


def test_a_folder_with_masks_trains(tmp_path, capsys):
    write_folder(tmp_path, "images/{i}.png", "masks/{i}.png", count=20)
    (tmp_path / "masks/3.png").unlink()
    run = tmp_path / "run"
    message = refused(capsys, "train", str(tmp_path), *SMALL_IMAGES, f"run={run}")
    assert "3.png: no target" in message
    text = printed(capsys, "train", str(tmp_path), *SMALL_IMAGES, "data.on_bad=skip", f"run={run}")
    assert "mask (segment)" in text and "miou" in text


def test_a_mask_outside_of_the_folder_is_not_read(tmp_path, capsys):
    table = write_table(tmp_path, 12)
    outside = tmp_path.parent / f"{tmp_path.name}.png"
    (tmp_path / "3_mask.png").rename(outside)
    (tmp_path / "3_mask.png").symlink_to(outside)
    options = ["data.target=area", "head=segment", *SMALL_IMAGES, f"run={tmp_path / 'run'}"]
    message = refused(capsys, "train", str(table), *options)
    assert "table.csv row 5" in message and "leads out of the data folder" in message


def test_odd_masks_train(tmp_path, capsys):
    table = write_table(tmp_path, 24)
    pixel = np.zeros((1, 1), np.uint8)
    for row in (0, 7, 14):
        Image.fromarray(np.stack([pixel] * 3, -1)).save(tmp_path / f"{row}.png")
        Image.fromarray(pixel).save(tmp_path / f"{row}_mask.png")
    for row in range(2, 24, 3):  # without any class, with 16 bits
        with Image.open(tmp_path / f"{row}_mask.png") as image:
            values = np.asarray(image).astype(np.uint16)
        Image.fromarray(np.full_like(values, 255)).save(tmp_path / f"{row}_mask.png")
    run = tmp_path / "run"
    options = ["data.target=area", "head=segment", *SMALL_IMAGES, f"run={run}"]
    printed(capsys, "train", str(table), *options, "head.dice=1")
    assert "nan" not in (run / "metrics.json").read_text().lower()
    # A class that the training split does not have, in a picture with 16 bits.
    Image.fromarray(np.full((1, 1), 300, np.uint16)).save(tmp_path / "0_mask.png")
    printed(capsys, "evaluate", f"run={run}", f"input={table}")
    printed(capsys, "predict", f"run={run}", f"input.photo={tmp_path / '0.png'}")
