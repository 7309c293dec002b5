"""dxn.Model: a model made of parts, in a loop of the user, saved and loaded."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import dxn
from dxn.models import (
    Backbone,
    BottleneckFusion,
    Decoder,
    EarlyFusion,
    LateFusion,
    SeparateBackbones,
)
from dxn.models.blocks import PositionOptions
from dxn.tasks import Classify, Contrastive, Forecast, Generate, Language, Masked, Regress
from dxn.tasks.forecast.futures import Future
from dxn.tokenize import (
    ImageAdapter,
    NumberAdapter,
    SeriesAdapter,
    TextAdapter,
    TokenizerOptions,
)
from dxn.tokenize.image.augment import ImageAugment

TEXTS = ["a red cup", "a blue cup"] * 4
LABELS = ["red", "blue"] * 4
PICTURES = [np.full((8, 8, 3), 200 if label == "red" else 20, "uint8") for label in LABELS]


def text_adapter() -> TextAdapter:
    return TextAdapter(dim=16, tokenizer=TokenizerOptions(kind="word")).fit(TEXTS)


def image_adapter() -> ImageAdapter:
    return ImageAdapter(dim=16, image_size=8, patch_size=4)


def backbone() -> Backbone:
    return Backbone(16, depth=1, num_heads=2)


def rows(**columns) -> list[dict]:
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def train(model: dxn.Model, data: Any, epochs: int = 1) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    value = torch.tensor(torch.nan)
    for _ in range(epochs):
        for batch in DataLoader(data, 4, shuffle=True, collate_fn=model.collate):
            value = model.loss(model(batch), batch)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    return value.item()


def test_a_saved_model_answers_as_before(tmp_path):
    inputs = {"text": text_adapter(), "image": image_adapter()}
    model = dxn.Model(inputs, backbone=backbone(), head=Classify(), targets=LABELS)
    data = rows(text=TEXTS, image=PICTURES, target=LABELS)
    data[1]["image"] = None
    del data[2]["text"]
    assert train(model, data, epochs=10) < 0.3
    model.save(tmp_path / "m")
    loaded = dxn.load(tmp_path / "m")
    sample = {"text": "a blue cup", "image": PICTURES[1]}
    assert loaded.predict(**sample) == model.predictor.predict(**sample)
    assert loaded.predict(**sample)["prediction"] == "blue"
    assert (
        "| classify" in (card := (tmp_path / "m" / "README.md").read_text()) or "classify" in card
    )


def test_no_samples_have_no_predictions_and_no_embeddings():
    inputs = {"text": text_adapter()}
    predictor = dxn.Model(inputs, backbone=backbone(), head=Classify(), targets=LABELS).predictor
    assert predictor.predict([]) == []
    with pytest.raises(dxn.UserError, match="there is no sample; pass at least one"):
        predictor.embed([])


def test_inputs_share_an_adapter_and_have_backbones_of_their_own(tmp_path):
    shared = text_adapter()
    names = ["title", "body"]
    model = dxn.Model(
        {"title": shared, "body": shared},
        backbone=SeparateBackbones([backbone(), backbone()], inputs=names),
        fusion=LateFusion(16, inputs=names),
        head=Regress(),
        targets=[1.0, 2.0] * 4,
    )
    train(model, rows(title=TEXTS, body=TEXTS, target=[1.0, 2.0] * 4))
    model.save(tmp_path / "m")
    loaded = dxn.load(tmp_path / "m")
    sample = {"title": "red", "body": "a cup"}
    assert loaded.predict(**sample) == model.predictor.predict(**sample)
    assert loaded.model.adapter("title") is loaded.model.adapter("body")


def test_a_task_without_targets(tmp_path):
    inputs = {"text": text_adapter(), "image": image_adapter()}
    model = dxn.Model(inputs, backbone=backbone(), head=Contrastive(embedding_dim=8))
    train(model, rows(text=TEXTS, image=PICTURES))
    model.save(tmp_path / "m")
    vector = dxn.load(tmp_path / "m").embed(text="a cup")
    np.testing.assert_allclose(vector, model.predictor.embed(text="a cup"), atol=1e-6)


def test_texts_are_generated(tmp_path):
    layers = Backbone(16, depth=1, num_heads=2, causal=True, cross=True)
    head = Generate(decoder=functools.partial(Decoder, layers, max_len=16), max_len=16)
    model = dxn.Model({"image": image_adapter()}, backbone=backbone(), head=head, targets=TEXTS)
    train(model, rows(image=PICTURES, target=TEXTS))
    model.save(tmp_path / "m")
    sample = {"image": PICTURES[0]}
    assert dxn.load(tmp_path / "m").predict(**sample) == model.predictor.predict(**sample)


def test_a_model_of_numbers():
    adapter = NumberAdapter(dim=16).fit([1.0, 2.0, 3.0, 4.0])
    targets = [2.0, 4.0, 6.0, 8.0]
    model = dxn.Model({"size": adapter}, backbone=backbone(), head=Regress(), targets=targets)
    assert np.isfinite(train(model, rows(size=[1.0, 2.0, 3.0, 4.0], target=targets)))


def test_a_forecast_needs_the_series_of_its_targets():
    series = [torch.arange(9.0)[:, None] for _ in range(4)]
    futures = [Future(torch.ones(2, 1), season=1, history=history) for history in series]
    inputs = {"series": SeriesAdapter(16, patch_size=2).fit(series)}
    model = dxn.Model(inputs, backbone=backbone(), head=Forecast(), targets=futures)
    assert len(model.predictor.predict(series=series[0])) == 2
    with pytest.raises(dxn.UserError, match="targets: a forecast needs the series"):
        dxn.Model(inputs, backbone=backbone(), head=Forecast(), targets=[[1.0, 2.0]] * 4)


class Deeper(Backbone):
    """A backbone of the user."""

    def __init__(self, dim: int, *, scale: float = 1.0):
        super().__init__(dim, depth=1, num_heads=2)
        self.scale = scale


def test_a_part_of_the_user_is_saved_with_the_arguments_of_its_own_class(tmp_path):
    model = dxn.Model(
        {"text": text_adapter()}, backbone=Deeper(16, scale=2.0), head=Classify(), targets=LABELS
    )
    model.save(tmp_path / "m")
    config = (tmp_path / "m" / "config.yaml").read_text()
    assert "test_parts.Deeper" in config
    assert "scale: 2.0" in config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backbone": Backbone(32, depth=1, num_heads=2)}, "text 16 and backbone 32"),
        ({"inputs": {}}, "at least one input"),
        ({"head": torch.nn.Linear(16, 2)}, r"head: must be a task, .*, got Linear; `make_head`"),
    ],
)
def test_parts_that_do_not_fit(change, message):
    parts = {"inputs": {"text": text_adapter()}, "backbone": backbone(), "head": Classify()}
    with pytest.raises(dxn.UserError, match=message):
        dxn.Model(**(parts | {"targets": LABELS} | change))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"txt": "a cup"}, "has the inputs text, got txt"),
        ({"text": None, "target": "red"}, "sample 1"),
        ({"text": "a cup", "target": "green"}, "'green': not a target"),
        (("a cup", "red"), r"sample 1: must be a dict .*, got \('a cup', 'red'\)"),
    ],
)
def test_a_row_that_cannot_be_read(row, message):
    model = dxn.Model(
        {"text": text_adapter()}, backbone=backbone(), head=Classify(), targets=LABELS
    )
    with pytest.raises(dxn.UserError, match=message):
        model.collate([row])
    with pytest.raises(dxn.UserError, match=r"must be what model\.collate\(rows\) returns"):
        model([row])


def late(names, *, order=None, towers=None, fused=None):
    inputs = {name: text_adapter() for name in names}
    towers = towers or [backbone() for _ in names]
    return dxn.Model(
        inputs,
        backbone=SeparateBackbones(towers, inputs=order or names),
        fusion=LateFusion(16, inputs=fused or names),
        head=Classify(),
        targets=LABELS,
    )


@pytest.mark.parametrize("change", [{"order": ["b", "a"]}, {"fused": ["b", "a"]}])
def test_weights_of_inputs_have_the_order_of_the_inputs(change):
    with pytest.raises(dxn.UserError, match=r"in the same order, inputs=\['a', 'b'\], got \['b'"):
        late(["a", "b"], **change)


def test_backbones_with_other_arguments_are_not_saved_as_equal_ones(tmp_path):
    rotary = PositionOptions(kind="rotary")
    towers = [backbone(), Backbone(16, depth=1, num_heads=2, position=rotary)]
    with pytest.raises(dxn.UserError, match="the same arguments in a saved model, but that of b"):
        late(["a", "b"], towers=towers).save(tmp_path / "m")


def test_a_backbone_that_two_inputs_have_is_saved(tmp_path):
    same = backbone()
    model = late(["a", "b"], towers=[same, same])
    model.save(tmp_path / "m")
    sample = {"a": "a red cup", "b": "blue"}
    assert dxn.load(tmp_path / "m").predict(**sample) == model.predictor.predict(**sample)


CAUSAL = {"backbone": Backbone(16, depth=1, num_heads=2, causal=True)}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({**CAUSAL, "fusion": EarlyFusion(16, pool="cls")}, "a causal backbone they cannot attend"),
        ({**CAUSAL, "fusion": BottleneckFusion(16, inputs=["text"])}, "they cannot attend to them"),
        ({"head": Language(), "targets": None}, "head=language: needs a causal backbone"),
        ({"fusion": EarlyFusion(32)}, r"the same width, got 16, and fusion\.dim=32"),
        ({"targets": None}, "targets: head=classify has to learn from the targets"),
        ({"targets": [None, float("nan")]}, "targets: a training needs some, got none"),
    ],
)
def test_parts_that_cannot_be_combined(parts, message):
    usual = {"backbone": backbone(), "head": Classify(), "targets": LABELS}
    with pytest.raises(dxn.UserError, match=message):
        dxn.Model({"text": text_adapter()}, **(usual | parts))


def test_a_missing_target_is_no_class():
    targets = [None, float("nan"), np.float32("nan"), " ", *LABELS]
    model = dxn.Model(
        {"text": text_adapter()}, backbone=backbone(), head=Classify(), targets=iter(targets)
    )
    assert [*model.task.target.labels] == ["blue", "red"]
    with pytest.raises(dxn.UserError, match="sample 2: no target"):
        model.collate(rows(text=["a", "b"], target=["red", float("nan")]))
    batch = model.collate([{"text": "a red cup"}])
    with pytest.raises(dxn.UserError, match="the rows of the batch have no targets"):
        model.loss(model(batch), batch)


def test_two_models_with_one_task_have_classes_of_their_own():
    task = Classify()
    first, second = (
        dxn.Model({"text": text_adapter()}, backbone=backbone(), head=task, targets=targets)
        for targets in (LABELS, ["up", "down", "left"])
    )
    assert first.predictor.predict(text="a")["prediction"] in LABELS
    assert [*second.task.target.labels] == ["down", "left", "up"]


def test_numbers_of_a_tensor_are_classes():
    model = dxn.Model(
        {"text": text_adapter()}, backbone=backbone(), head=Classify(), targets=torch.tensor([0, 1])
    )
    batch = model.collate(rows(text=TEXTS[:2], target=torch.tensor([0, 1])))
    assert [*model.task.target.labels] == ["0", "1"]
    assert batch["target"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("head", "part"), [(Masked(), backbone()), (Language(), CAUSAL["backbone"])]
)
def test_a_task_whose_targets_are_the_inputs_has_a_loss(head, part):
    model = dxn.Model({"text": text_adapter()}, backbone=part, head=head)
    batches = [model.collate(rows(text=TEXTS)) for _ in range(2)]
    assert all(model.loss(model(batch), batch) > 0 for batch in batches)
    if head.name == "masked":
        first, second = (batch["text"]["masked"] for batch in batches)
        assert not torch.equal(first, second)


def test_pictures_are_augmented_in_training_only():
    adapter = ImageAdapter(dim=16, image_size=8, patch_size=4, augment=ImageAugment(flip=True))
    model = dxn.Model({"image": adapter}, backbone=backbone(), head=Classify(), targets=LABELS)
    picture = np.arange(192, dtype="uint8").reshape(8, 8, 3)

    def pictures() -> set[bytes]:
        batch = model.collate(rows(image=[picture] * 8, target=LABELS))
        return {str(image.tolist()) for image in batch["image"]["pixels"]}

    torch.manual_seed(0)
    assert len(pictures()) == 2
    model.eval()
    assert len(pictures()) == 1


def test_arguments_are_saved_as_they_were_when_a_part_was_made(tmp_path):
    inputs = {"a": text_adapter(), "b": text_adapter()}
    ratios = {"a": 0.5}
    head = Masked(mask_ratio=ratios)
    fused = EarlyFusion(16, inputs=inputs.keys())
    model = dxn.Model(inputs, backbone=backbone(), head=head, fusion=fused)
    ratios["c"] = 0.5
    del inputs["a"]
    model.save(tmp_path / "m")
    loaded = dxn.load(tmp_path / "m")
    assert list(loaded.model.inputs) == ["a", "b"]
    assert loaded.task.target.mask_ratio == {"a": 0.5}


def test_arguments_of_numpy_are_saved(tmp_path):
    part = Backbone(
        np.int64(16),
        depth=np.int8(1),
        num_heads=2,
        dropout=np.float64(0.1),
        drop_path=np.float32(0),
    )
    model = dxn.Model({"text": text_adapter()}, backbone=part, head=Classify(), targets=LABELS)
    model.save(tmp_path / "m")
    assert dxn.load(tmp_path / "m").model.backbone.blocks[0].mlp.dropout.rate == 0.1


def test_a_saved_model_can_be_loaded_or_is_not_saved(tmp_path):
    def model(theta: float) -> dxn.Model:
        options = PositionOptions(kind="rotary", rope_theta=theta)
        part = Backbone(16, depth=1, num_heads=2, position=options)
        return dxn.Model({"text": text_adapter()}, backbone=part, head=Classify(), targets=LABELS)

    model(1e9).save(tmp_path / "m")
    assert dxn.load(tmp_path / "m").predict(text="a")
    with pytest.raises(dxn.UserError, match=r"backbone.position.rope_theta must be at most"):
        model(1e20).save(tmp_path / "m")


def test_a_part_that_cannot_be_saved(tmp_path):
    class Scaled(Backbone):
        def __init__(self, dim: int, scale: object):
            super().__init__(dim, depth=1, num_heads=2)

    model = dxn.Model(
        {"text": text_adapter()}, backbone=Scaled(16, np.ones(2)), head=Classify(), targets=LABELS
    )
    with pytest.raises(dxn.UserError, match=r"backbone\.scale: ndarray cannot be saved"):
        model.save(tmp_path / "m")
