"""Several small batches make the step of one large batch: dropout, and tasks of several losses."""

import json

import pytest
import torch
from helpers.runs import PLAIN, SMALL, train, weights_of
from PIL import Image

from dxn.core.dropout import Dropout, Keys, keyed

SIZE = [o for o in SMALL if not o.startswith("backbone.num")]
OPTIONS = [*SIZE, *PLAIN, "report=false", "optimizer=sgd", "optimizer.lr=0.3"]
OPTIONS += ["trainer.epochs=2", "trainer.max_grad_norm=0"]
IMAGE = ["adapters.image.patch_size=8", "adapters.image.image_size=32"]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Texts of several lengths and images of several sizes, in the second table with gaps."""
    folder = tmp_path_factory.mktemp("rows")
    rows = []
    rand = torch.Generator().manual_seed(0)
    for i in range(40):
        size = (8 + 8 * (i % 4), 8 + 8 * (i % 3), 3)
        pixels = torch.randint(256, size, generator=rand, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")
        text = " ".join(["fine", "dull", "long"][(i + k) % 3] for k in range(1 + i % 7))
        rows.append({"text": text, "image": f"{i}.png", "label": "ab"[i % 2]})
    full = folder / "full.jsonl"
    full.write_text("\n".join(map(json.dumps, rows)))
    for i, row in enumerate(rows):
        if i % 3 == 0:
            row[["text", "image"][i % 2]] = None
    gaps = folder / "gaps.jsonl"
    gaps.write_text("\n".join(map(json.dumps, rows)))
    return str(full), str(gaps)


def assert_same_steps(tmp_path, chosen, *, batch_size):
    """All 32 training rows in one batch, or in several."""
    steps = f"trainer.grad_accum_steps={32 // batch_size}"
    train(tmp_path / "one", *OPTIONS, *chosen, "batch_size=32")
    train(tmp_path / "two", *OPTIONS, *chosen, f"batch_size={batch_size}", steps)
    one, two = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    for name, tensor in one.items():
        assert torch.allclose(tensor, two[name], atol=2e-5), name


@pytest.mark.parametrize(
    "options",
    [
        ["adapters=[image]", *IMAGE, "adapters.image.dropout=0.5"],
        pytest.param(
            ["adapters=[text]", "backbone=gru", "backbone.dropout=0.5"],
            marks=pytest.mark.exhaustive,
        ),
        [
            *("adapters=[text,image]", *IMAGE, "fusion=late"),
            *("backbone.dropout=0.5", "head.dropout=0.5"),
        ],
    ],
    ids=["images", "recurrent", "late fusion"],
)
def test_dropout_does_not_depend_on_the_other_samples_of_a_batch(options, tables, tmp_path):
    table = tables["text,image" in options[0]]
    assert_same_steps(tmp_path, [table, "target=label", *options], batch_size=1)


@pytest.mark.parametrize(
    "options",
    [["adapters=[text,image]", *IMAGE, "backbone.dropout=0.5"], ["adapters=[text]"]],
    ids=["two inputs", "one input"],
)
def test_masked_pretraining_does_not_depend_on_the_size_of_a_batch(options, tables, tmp_path):
    table = tables["text,image" in options[0]]
    assert_same_steps(tmp_path, [table, "head=masked", *options], batch_size=2)


def test_dropout_refuses_a_tensor_whose_first_axis_is_not_the_batch():
    dropout = Dropout(0.5).train()
    words = torch.ones(2 * 5, 3)
    with keyed(torch.arange(2), 7):
        with pytest.raises(ValueError, match=r"the batch of 2 samples, got the shape \(10, 'D'\)"):
            dropout(words)
        keys = Keys.of_mask(torch.ones(2, 5, dtype=torch.bool), torch.arange(10))
        assert torch.equal(dropout(words, keys).view(2, 5, 3), dropout(words.view(2, 5, 3)))
