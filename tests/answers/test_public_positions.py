"""Positions of public models: images without a fixed size, and shorter sounds."""

import csv
import json
from types import SimpleNamespace

import pytest
import torch
from helpers.checkpoints import model_of
from helpers.peers import CASES, cases, parity
from helpers.runs import PLAIN, train, weights_of
from PIL import Image

import dxn
from dxn.weights import read_public

pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")

SIZES = cases.Sizes(dim=12, depth=2, heads=2, batch=2, side=72, length=11)  # 9x9 positions
NAMES = list("abcdefg")  # as many classes as the peer has
# Fewer and more patches than positions, in one direction and in both; not square.
SHAPES = [(24, 16), (40, 96), (88, 104), (72, 72)]
FAST = ["trainer.epochs=1", "batch_size=7", "trainer.precision=float32", "trainer.device=cpu"]
STILL = ["optimizer.lr=1e-30", "optimizer.weight_decay=0", "report=false"]  # changes nothing
STRETCH = "adapters.image.resize.mode=stretch"
ANY_SIZE = ["adapters.image.image_size=null", "adapters.image.resize.mode=within"]


def picture(height, width):
    pixels = torch.randint(256, (height, width, 3), dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())


def write_pictures(folder):
    rows = []
    for i, name in enumerate(NAMES * 3):
        picture(*SHAPES[i % len(SHAPES)]).save(folder / f"{i}.png")
        rows.append({"image": f"{i}.png", "label": name})
    with (folder / "data.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["image", "label"])
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture(scope="module", params=["DINOv2", "ViT (transformers)", "ViT (timm)"])
def trained(request, tmp_path_factory):
    """A run that starts from a public model, with images that keep their size."""
    folder = tmp_path_factory.mktemp("positions")
    torch.manual_seed(1)
    case = CASES[request.param]
    if "timm" in case.name:
        case = cases.timm_case("any", dynamic_img_size=True)
    peer = cases.randomize(case.make(SIZES))
    (folder / "peer").mkdir()
    cases.save(case, peer, folder / "peer", heads=SIZES.heads)
    path = folder / "peer" / "config.json"
    names = {"id2label": dict(enumerate(NAMES))}
    if "timm" in request.param:
        names = {"label_names": NAMES}
    path.write_text(json.dumps({**json.loads(path.read_text()), **names}))
    write_pictures(folder)
    options = [str(folder / "data.csv"), "target=label", *FAST, *PLAIN, *STILL]
    train(folder / "run", *options, *ANY_SIZE, f"weights={folder / 'peer'}")
    return SimpleNamespace(folder=folder, peer=peer, name=request.param, options=options)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_positions_are_interpolated_once_for_an_image_of_any_size(trained, shape):
    model = dxn.load(trained.folder / "run")
    image = picture(*shape)
    found = model.predict(image=image)["probabilities"]
    adapter = model.model.adapter("image")
    pixels = model.model.adapter("image").tokenizer.reader.read(image)[None] / 255
    pixels = (pixels - adapter.mean[:, None, None]) / adapter.std[:, None, None]
    options = {"interpolate_pos_encoding": True} if "ViT (trans" in trained.name else {}
    with torch.inference_mode():
        if "timm" in trained.name:
            logits = trained.peer(pixels)
        else:
            logits = trained.peer(pixel_values=pixels, **options).logits
    expected = logits.softmax(-1)[0].tolist()
    assert [found[name] for name in NAMES] == pytest.approx(expected, abs=1e-5)


def test_a_second_training_keeps_the_positions(trained, tmp_path):
    options = [*trained.options, *ANY_SIZE, f"weights={trained.folder / 'run'}"]
    train(tmp_path / "shrunk", *options, "adapters.image.image_size=32")
    train(tmp_path / "fixed", *options, "adapters.image.image_size=32", STRETCH)
    train(tmp_path / "any", *options, f"weights={tmp_path / 'shrunk'}")
    name = "adapters.image.pos_embed.weight"
    before = weights_of(trained.folder / "run")[name]
    assert before.shape[:2] == (9, 9)
    assert torch.equal(weights_of(tmp_path / "shrunk")[name], before)
    assert torch.equal(weights_of(tmp_path / "any")[name], before)
    # The usual way for images of one size: each position has its own embedding.
    assert weights_of(tmp_path / "fixed")[name].shape[:2] == (4, 4)


def test_a_sound_that_is_cut_has_the_first_positions(tmp_path):
    p = parity.pair(CASES["AST"], tmp_path, sizes=SIZES)
    models = []
    for options in ({}, {"max_len": 5}):
        plan = p.public.plan()
        plan.adapters["audio"] |= options
        plan.adapters["audio"]["spectrogram"]["num_frames"] = 56
        model = model_of(p.public, plan).eval()
        read_public(str(tmp_path)).fill(model)
        models.append(model)
    full, cut = models
    batch = full.adapter("audio").tokenizer.collate(
        [full.adapter("audio").tokenizer(torch.randn(8000)) for _ in range(2)]
    )
    batch = {"audio": {**batch, "rows": torch.arange(2)}, "#size": 2}
    with torch.inference_mode():
        torch.testing.assert_close(cut(batch), full(batch))
