"""dxn.Model: a model made of parts, in a loop of the user, saved and loaded."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import dxn
from dxn.models import Backbone, Decoder, LateFusion, SeparateBackbones
from dxn.tasks import Classify, Contrastive, Forecast, Generate, Regress
from dxn.tasks.forecast.futures import Future
from dxn.tokenize import (
    ImageAdapter,
    NumberAdapter,
    SeriesAdapter,
    TextAdapter,
    TokenizerOptions,
)

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
    with pytest.raises(dxn.UserError, match="no embeddings: no sample has a usable input"):
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
    ],
)
def test_a_row_that_cannot_be_read(row, message):
    model = dxn.Model(
        {"text": text_adapter()}, backbone=backbone(), head=Classify(), targets=LABELS
    )
    with pytest.raises(dxn.UserError, match=message):
        model.collate([row])


def test_a_part_that_cannot_be_saved(tmp_path):
    class Scaled(Backbone):
        def __init__(self, dim: int, scale: object):
            super().__init__(dim, depth=1, num_heads=2)

    model = dxn.Model(
        {"text": text_adapter()}, backbone=Scaled(16, np.ones(2)), head=Classify(), targets=LABELS
    )
    with pytest.raises(dxn.UserError, match=r"backbone\.scale: ndarray cannot be saved"):
        model.save(tmp_path / "m")
