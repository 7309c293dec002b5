"""The base class: a small task of one's own, structured targets, and untrusted files."""

import math
import pickle
import random

import pytest
import torch
from helpers.tasks import build_model, make_batch, overfit, predict
from torch import nn
from torch.nn import functional as F

from dxn.core.errors import UserError
from dxn.core.parts import imported
from dxn.report.answers import row_scores
from dxn.tasks import (
    TASKS,
    Classify,
    Detect,
    Embed,
    LossSum,
    Metric,
    Regress,
    Segment,
    Space,
    Target,
    Task,
)
from dxn.tokenize import ImageAdapter, ImageAugment, TextAdapter, TokenizerOptions


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Classify(balance="most"), "balance must be one of 'none', 'root' or 'inverse'"),
        (lambda: Classify(label_smoothing=2), "label_smoothing must be at most 1, got 2"),
        (lambda: Detect(threshold=5.0), "threshold must be at most 1, got 5.0"),
        (lambda: Segment(dice=-1.0), "dice must be at least 0, got -1.0"),
        (lambda: TextAdapter(pos_embed="rope"), "pos_embed must be one of 'learned'"),
    ],
)
def test_python_refuses_the_options_that_the_command_line_refuses(make, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


# A small task


class Direction(Target):
    """A direction as its sine and cosine."""

    def encode(self, value, sample, rand=None):
        return torch.tensor([math.sin(value), math.cos(value)])


class Plane(Space):
    def loss(self, output, batch):
        return LossSum.of((output - batch["target"]).square().mean(-1))

    def decode(self, output, batch):
        return {"angle": torch.atan2(output[:, 0], output[:, 1])}


class Error(Metric):
    monitored = "error"

    def rows(self, predictions, targets):
        pairs = zip(predictions, targets, strict=True)
        return torch.tensor([[1.0, abs(float(p) - t)] for p, t in pairs]).double()

    def value(self, sums):
        return {"error": sums[..., 1] / sums[..., 0]}


class Angle(Task):
    """Predict a direction."""

    name = "angle"

    def __init__(self):
        self.target, self.space, self.metric = Direction(), Plane(), Error()

    def make_head(self, dim, pooled_dim, adapters):
        return AngleHead(pooled_dim)


class AngleHead(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.out = nn.Linear(dim, 2)

    def forward(self, tokens, pooled, batch):
        return self.out(pooled)


def test_a_small_task_overfits_eight_samples_with_the_defaults(tmp_path):
    texts = [f"word{i} word{i * 5 % 8}" for i in range(8)]
    values = [i / 3 for i in range(8)]
    adapters = {"notes": TextAdapter(16, tokenizer=TokenizerOptions(kind="word")).fit(texts)}
    task = Angle()
    task.check({"trainer": {"mixup": 0.0}})
    task.target.bind(adapters)
    values = [task.target.read(value, "row 1", {}) for value in values]
    task.target.fit(values)
    model = build_model(task, adapters)
    batch = make_batch(task, adapters, {"notes": texts}, values)
    assert task.target.length(values[0]) == 0
    assert overfit(task, model, batch, goal=1e-4)[-1] < 1e-4
    predictions = predict(task, model, batch)
    assert [float(p) for p in predictions] == pytest.approx(values, abs=0.1)
    counts = torch.tensor([[1.0] * 8, [8.0] + [0.0] * 7]).double()
    errors = task.metric.weighted(predictions, values, counts)["error"]
    assert float(errors[0]) == task.metric.metrics(predictions, values, 0.0)["error"]
    assert float(errors[1]) == pytest.approx(abs(float(predictions[0]) - values[0]))
    assert task.columns(predictions[0]) == {"prediction": float(predictions[0])}
    assert task.naive([{}]) is None
    assert task.target.describe(values) == "8 values" and len(task.target.unknown(values)) == 0
    task.save(tmp_path)
    Angle().load(tmp_path)
    task.check({"trainer": {"mixup": 0.5}, "ensemble": 2})
    mixed = task.space.mix(batch["target"], torch.arange(8).flip(0), 0.5)
    assert torch.equal(mixed, mixed.flip(0))


def test_a_task_without_a_space_supports_no_options_that_need_one():
    task = Angle()
    task.space = None
    message = r"trainer\.mixup: cannot be combined with head=angle; set trainer\.mixup=0"
    with pytest.raises(UserError, match=message):
        task.check({"trainer": {"mixup": 0.5}})
    with pytest.raises(UserError, match="ensemble: cannot be combined with head=angle"):
        task.check({"ensemble": 2})


@pytest.mark.parametrize(
    ("higher", "new", "old", "is_better"),
    [
        (True, 0.6, 0.5, True),
        (True, 0.5, 0.5, False),  # the first of two equal epochs stays
        (True, 0.4, 0.5, False),
        (False, 0.4, 0.5, True),
        (False, 0.5, 0.5, False),
        (False, 0.6, 0.5, False),
        (True, 0.0, None, True),
        (False, 9.0, None, True),
        (True, math.nan, None, False),
        (False, math.nan, 0.5, False),
        (True, math.nan, 0.5, False),
    ],
)
def test_which_of_two_values_is_better(higher, new, old, is_better):
    task = Classify() if higher else Regress()
    assert task.metric.is_better(new, old) is is_better


class Distance(Metric):
    """A metric with a name that no metric of dxn has."""

    monitored = "distance"
    lower_is_better = ("distance",)
    row = ("distance", "distance")

    def rows(self, predictions, targets):
        return torch.tensor(predictions).double()[:, None]

    def value(self, sums):
        return {"distance": sums[..., 0]}


def test_a_metric_declares_that_lower_values_are_better():
    metric = Distance()
    assert not metric.higher_is_better
    assert metric.is_better(0.2, 0.8)
    scores = row_scores(metric, [0.2, 0.8], [0, 0])
    assert not scores.higher_is_better
    metric.monitored = "accuracy"
    assert metric.higher_is_better


@pytest.mark.parametrize(
    ("base", "member", "meant"),
    [(Target, "encod", "encode"), (Space, "decod", "decode"), (Metric, "weightd", "weighted")],
)
def test_a_misspelled_member_is_an_error_when_the_class_is_defined(base, member, meant):
    match = rf"Mine.{member} is not a member of {base.__name__}; did you mean {meant}\?"
    with pytest.raises(TypeError, match=match):
        type("Mine", (base,), {member: lambda self: None})


def test_every_task_says_which_metric_selects_the_best_epoch():
    options = {key: {"decoder": nn.Identity} for key in ("generate", "codec", "any")}
    tasks = {name: imported(TASKS[name])(**options.get(name, {})) for name in TASKS}
    assert {name: task.metric.monitored for name, task in tasks.items()} == {
        "classify": "accuracy",
        "multilabel": "f1_micro",
        "regress": "rmse",
        "tag": "f1_entity",
        "generate": "chrf",
        "ctc": "cer",
        "language": "loss_per_char",
        "masked": "loss",
        "contrastive": "mrr",
        "forecast": "mase",
        "detect": "map",
        "segment": "miou",
        "span": "f1_answer",
        "codec": "snr",
        "any": "loss",
    }
    lower = [name for name, task in tasks.items() if not task.metric.higher_is_better]
    assert lower == ["regress", "ctc", "language", "masked", "forecast", "any"]


# Structured and ragged targets: boxes in the raw picture


class RawBoxes(Target):
    """Boxes (top, left, bottom, right), whose number differs, in raw pixels."""

    def bind(self, adapters):
        self.required = self.prepared_inputs = ("photo",)

    def encode(self, value, sample, rand=None):
        # raw = origin + scale * pixel; a mirrored picture has a negative scale.
        frame = sample["photo"]["pixel_map"]
        origin, scale = frame[:2].repeat(2), frame[2:4].repeat(2)
        boxes = (torch.tensor(value, dtype=torch.float32).reshape(-1, 4) - origin) / scale
        low = torch.minimum(boxes[:, :2], boxes[:, 2:])
        high = torch.maximum(boxes[:, :2], boxes[:, 2:])
        return {"boxes": torch.cat([low, high], 1), "count": len(boxes)}

    def collate(self, targets):
        counts = torch.tensor([target["count"] for target in targets])
        return {"boxes": [target["boxes"] for target in targets], "counts": counts}


class Boxes(Task):
    name = "boxes"
    most = 3

    def __init__(self):
        self.target, self.metric = RawBoxes(), Metric()

    def make_head(self, dim, pooled_dim, adapters):
        return BoxHead(pooled_dim, self.most)

    def loss(self, output, batch):
        pairs = zip(output["boxes"], batch["target"]["boxes"], strict=True)
        wrong = torch.stack([(p[: len(t)] - t / 8).square().sum() for p, t in pairs])
        counts = batch["target"]["counts"]
        return LossSum.of(wrong + F.cross_entropy(output["counts"], counts, reduction="none"))

    def predict(self, head, output, batch, *, draft=False):
        frames = batch["photo"]["pixel_map"]
        boxes = frames[:, None, :2].repeat(1, 1, 2) + frames[:, None, 2:4].repeat(1, 1, 2) * (
            8 * output["boxes"]
        )
        low = torch.minimum(boxes[..., :2], boxes[..., 2:])
        boxes = torch.cat([low, torch.maximum(boxes[..., :2], boxes[..., 2:])], -1)
        counts = output["counts"].argmax(-1).tolist()
        return [b[:n].tolist() for b, n in zip(boxes, counts, strict=True)]


class BoxHead(nn.Module):
    def __init__(self, dim, most):
        super().__init__()
        self.boxes, self.counts = nn.Linear(dim, most * 4), nn.Linear(dim, most + 1)

    def forward(self, tokens, pooled, batch):
        return {"boxes": self.boxes(pooled).view(-1, 3, 4), "counts": self.counts(pooled)}


def picture_of(boxes, height=12, width=16):
    """Each box has its own color. The border stays black, because crops repeat it."""
    raw = torch.zeros(3, height, width, dtype=torch.uint8)
    for i, (top, left, bottom, right) in enumerate(boxes):
        raw[:, top:bottom, left:right] = torch.tensor([90, 170, 250][i])
    return raw


BOXES = [
    [(2, 3, 5, 9)],
    [],
    [(1, 1, 4, 4), (6, 10, 11, 15)],
    [(1, 1, 3, 4), (5, 2, 9, 5), (4, 9, 8, 15)],
]


@pytest.mark.parametrize(
    "augment",
    [
        ImageAugment(),
        ImageAugment(flip=True),
        ImageAugment(crop=3),
        ImageAugment(flip=True, crop=3),
    ],
    ids=["none", "flip", "crop", "both"],
)
@pytest.mark.parametrize("boxes", BOXES[2:])
def test_boxes_move_with_the_picture(augment, boxes):
    prepare = ImageAdapter(16, image_size=None, patch_size=4, augment=augment).tokenizer
    colors = [90, 170, 250]
    seen = set()
    for seed in range(12):
        sample = {"photo": prepare(picture_of(boxes), random.Random(seed))}
        seen.add(tuple(sample["photo"]["pixel_map"].tolist()))
        pixels = sample["photo"]["pixels"][0]
        height, width = pixels.shape
        moved = RawBoxes().encode(boxes, sample)["boxes"].round().long().tolist()
        for color, (top, left, bottom, right) in zip(colors, moved, strict=False):
            expected = torch.zeros_like(pixels, dtype=torch.bool)
            expected[max(top, 0) : min(bottom, height), max(left, 0) : min(right, width)] = True
            assert torch.equal(pixels == color, expected)
    assert (len(seen) > 1) == (augment != ImageAugment())


def test_ragged_boxes_are_overfitted_and_answered_in_raw_pixels():
    raws = [picture_of(boxes) for boxes in BOXES] + [picture_of(b).flip(0) for b in BOXES]
    values = BOXES + [[(12 - b, x, 12 - t, r) for t, x, b, r in boxes] for boxes in BOXES]
    adapter = ImageAdapter(16, image_size=(6, 8), patch_size=2, augment=ImageAugment(flip=True))
    adapters = {"photo": adapter.fit(raws)}
    task = Boxes()
    model = build_model(task, adapters)
    batch = make_batch(task, adapters, {"photo": raws}, values, rand=random.Random(1))
    pixel_maps = {tuple(row.tolist()) for row in batch["photo"]["pixel_map"]}
    assert len(pixel_maps) == 2  # some are mirrored
    losses = overfit(task, model, batch, steps=600)
    assert losses[-1] < 0.05
    predictions = predict(task, model, batch)
    assert [len(p) for p in predictions] == [len(v) for v in values]
    assert task.columns(predictions[2]) == {"prediction": predictions[2]}


def test_a_small_task_can_be_sent_to_a_worker():
    assert isinstance(pickle.loads(pickle.dumps(Boxes().target)), RawBoxes)


# No answer


def test_a_checkpoint_without_a_head_says_so():
    task = Embed()
    assert not task.is_supervised and task.target.encode(None, {"a": 1}) is None
    for call in (lambda: task.loss(None, {}), lambda: task.predict(None, None, {})):
        with pytest.raises(UserError, match="this checkpoint has no head to predict with; train"):
            call()


# Files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "file not found, but every model folder has one"),
        ("", "invalid JSON"),
        ("[1, 2]", "the content must be a mapping"),
        ("{}", "task is missing"),
        ('{"task": 3}', "task must be a text, got 3"),
        ('{"task": "regress"}', "was saved for the task 'regress', but the head"),
        ('{"task": "classify"}', "labels is missing"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_malformed_files_are_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "labels.json").write_text(text)
    with pytest.raises(UserError, match=message):
        Classify().load(tmp_path)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "labels.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"labels\.json: cannot be read as UTF-8"):
        Classify().load(tmp_path)


def test_names_keep_their_letters_in_the_file(tmp_path):
    task = Classify()
    task.target.fit(["Käse", "茶"])
    task.save(tmp_path)
    assert "茶" in (tmp_path / "labels.json").read_text(encoding="utf-8")
    assert Classify().load(tmp_path).target.labels == ("Käse", "茶")
