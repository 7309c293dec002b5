"""Segmentation with learned queries: the head, its loss, and a trained model."""

import pytest
import torch
import torch.nn.functional as F
from helpers.newcomer import printed, refused
from helpers.runs import metrics_of, train

from dxn.core.tokens import Span, Tokens
from dxn.models import Backbone, EarlyFusion
from dxn.models.pooling import CLASS
from dxn.tasks import Segment
from dxn.tasks.detect.space import assign
from dxn.tasks.segment.head import MaskHead
from dxn.tasks.segment.space import Segments, match, points_of, set_loss
from dxn.tokenize.patches import PatchGrid

GRID = PatchGrid((8, 8), (8, 8))
DIM, QUERIES, CLASSES = 12, 5, 3


def tokens_of(columns, mask=None):
    """Return queries, then the columns (B, N, D) of a picture."""
    torch.manual_seed(1)
    queries = torch.randn(1, QUERIES, DIM).expand(len(columns), -1, -1)
    x = torch.cat([queries, columns], 1)
    mask = torch.ones(columns.shape[:2], dtype=torch.bool) if mask is None else mask
    mask = torch.cat([torch.ones(len(mask), QUERIES, dtype=torch.bool), mask], 1)
    nowhere = torch.zeros(len(x), 0, 1)
    spans = (
        Span(CLASS, CLASS, 0, QUERIES, lambda: nowhere),
        Span("photo", "image", QUERIES, x.shape[1], lambda: nowhere),
    )
    return Tokens(x, mask, spans)


def head_of(**options):
    torch.manual_seed(0)
    task = Segment(input="photo", queries=QUERIES, **options)
    task.target.labels = [str(number) for number in range(CLASSES)]
    task.target.grid = GRID
    return MaskHead(task, DIM).eval()


def batch_of(count, height, width):
    return {"#size": count, "photo": {"pixels": torch.zeros(count, 3, height, width)}}


@pytest.mark.parametrize("late_blocks", [0, 1, 3])
def test_late_registers_have_no_effect_before_the_last_blocks(late_blocks):
    torch.manual_seed(0)
    backbone = Backbone(DIM, depth=3, num_heads=2)
    fusion = EarlyFusion(DIM, registers=4, late_registers=3, late_blocks=late_blocks, pool="cls")
    columns = torch.randn(2, 6, DIM)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    part = Tokens(columns, mask, (Span("photo", "image", 0, 6, torch.zeros(2, 6, 1)),))
    found, _ = fusion([part], backbone)
    for row, count in enumerate((6, 4)):
        early = torch.cat([fusion.pool.tokens[:2], columns[row, :count]])[None]
        late = fusion.pool.tokens[None, 2:]
        full = torch.ones(1, 2 + count, dtype=torch.bool)
        x = backbone.run(early, full, 0, 3 - late_blocks)
        x = torch.cat([late, x], 1)
        full = torch.ones(x.shape[:2], dtype=torch.bool)
        x = backbone.norm(backbone.run(x, full, 3 - late_blocks))[0]
        torch.testing.assert_close(found.x[row, :2], x[3:5])
        torch.testing.assert_close(found.x[row, 2:5], x[:3])
        torch.testing.assert_close(found.x[row, 5 : 5 + count], x[5:])


def test_there_are_no_more_late_registers_than_registers():
    with pytest.raises(ValueError, match="at most 2, got 3"):
        EarlyFusion(DIM, registers=2, late_registers=3)


def test_padding_has_no_effect_on_masks():
    head = head_of()
    small = torch.randn(1, 2, 3, DIM)
    large = torch.randn(2, 4, 5, DIM)
    large[0, :2, :3] = small[0]
    mask = torch.zeros(2, 4, 5, dtype=torch.bool)
    mask[0, :2, :3] = True
    mask[1] = True
    with torch.inference_mode():
        alone = head(tokens_of(small.flatten(1, 2)), None, batch_of(1, 16, 20))
        joint = head(tokens_of(large.flatten(1, 2), mask.flatten(1)), None, batch_of(2, 32, 40))
    torch.testing.assert_close(joint[0, :, :16, :20], alone[0], rtol=0, atol=1e-5)


def test_points_are_the_pixels_of_an_interpolation():
    masks = torch.randn(2, 3, 8, 12)  # patches of 8 pixels, each divided into 2×2
    whole = F.interpolate(masks, (32, 48), mode="bilinear", align_corners=False)
    target = torch.zeros(2, 30, 45)
    points = points_of(masks, GRID, 1, target, 3)
    torch.testing.assert_close(points, whole[:, :, :30:3, :45:3].flatten(2))


def test_the_loss_is_small_for_right_queries_only():
    true = torch.zeros(1, 2, 20)
    true[0, 0, :6] = true[0, 1, 6:15] = 1
    segments = Segments(torch.tensor([[1, 2]]), true, torch.ones(1, 20))
    masks = torch.full((1, QUERIES, 20), -9.0)
    masks[0, 3], masks[0, 1] = 18 * true[0, 0] - 9, 18 * true[0, 1] - 9
    classes = torch.full((1, QUERIES, CLASSES + 1), -9.0)
    classes[..., -1] = 9.0
    for query, label in ((3, 1), (1, 2)):
        classes[0, query] = -9.0
        classes[0, query, label] = 9.0
    pairs = match(classes, masks, segments)
    assert sorted(zip(pairs.outputs.tolist(), pairs.objects.tolist(), strict=True)) == [
        (1, 1),
        (3, 0),
    ]
    right = set_loss(classes, masks, segments)
    assert right.weight == 2 and right.mean < 0.01
    assert set_loss(classes, masks.roll(1, 1), segments).mean > 5
    assert set_loss(classes.roll(1, 2), masks, segments).mean > 5


def test_points_without_a_class_have_no_effect_on_the_loss():
    true = (torch.rand(2, 2, 20) > 0.5).float()
    known = torch.ones(2, 20)
    known[:, 15:] = 0
    masks, classes = torch.randn(2, QUERIES, 20), torch.randn(2, QUERIES, CLASSES + 1)
    labels = torch.tensor([[1, 2], [0, -1]])
    own = true * known[:, None]
    loss = set_loss(classes, masks, Segments(labels, own, known)).total
    masks[..., 15:] = 7.0
    torch.testing.assert_close(set_loss(classes, masks, Segments(labels, own, known)).total, loss)


def test_a_batch_without_segments_still_teaches_that_there_are_none():
    segments = Segments(torch.full((2, 1), -1), torch.zeros(2, 1, 20), torch.ones(2, 20))
    result = set_loss(torch.zeros(2, QUERIES, CLASSES + 1), torch.zeros(2, QUERIES, 20), segments)
    assert result.weight == 0 and result.total > 0


def test_costs_that_are_not_finite_are_matched():
    cost = torch.tensor([[[torch.nan, 1.0], [torch.inf, 0.0], [0.0, 5.0]]])
    pairs = assign(cost, torch.tensor([[True, True]]))
    assert pairs.outputs.tolist() == [1, 2] and pairs.objects.tolist() == [1, 0]


DATA = ["data=objects", "data.masks=true", "data.size=32", "data.num_train=24"]
SMALL = ["data.num_validation=8", "data.num_test=8", "trainer.epochs=1", "head=segment"]
QUERY = ["head.queries=6", "fusion.registers=8", "fusion.late_registers=6", "fusion.late_blocks=1"]
IMAGES = ["adapters.image.image_size=32", "adapters.image.patch_size=8", "dim=16"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("queries") / "run"
    train(folder, *DATA, *SMALL, *QUERY, *IMAGES, "baseline=none", "report=false")
    return folder


def test_a_model_with_queries_trains_and_predicts(run, tmp_path, capsys):
    assert 0 <= metrics_of(run)["test/miou"] <= 1
    text = printed(capsys, "evaluate", f"run={run}", f"output={tmp_path}")
    assert "always background" in text


@pytest.mark.exhaustive
def test_an_exported_model_with_queries_answers_like_the_original(run, tmp_path, capsys):
    printed(capsys, "export", f"run={run}", f"output={tmp_path / 'exported'}", "format=torch")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["head.queries=6"], "there are 0 for 6"),
        ([*QUERY, "head.threshold=0.5"], "head.threshold: has an effect on objects only"),
        ([*QUERY, "head.dice=1"], "head.dice: has no effect on queries"),
        ([*QUERY, "head.channels=32"], "head.channels: has no effect on queries"),
        ([*QUERY, "adapters.image.stride=4"], "patches that do not overlap"),
        ([*QUERY, "trainer.mixup=1"], "trainer.mixup: cannot be combined"),
    ],
)
def test_options_that_do_not_fit_queries_are_refused(tmp_path, capsys, options, problem):
    arguments = [*DATA, *SMALL, *options, *IMAGES, f"run={tmp_path / 'run'}"]
    assert problem in refused(capsys, "train", *arguments)
