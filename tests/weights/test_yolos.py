"""Detection with the weights of YOLOS, beside transformers."""

import json

import numpy as np
import pytest
import torch
import transformers

from dxn.core.errors import UserError
from dxn.models.model import as_float
from dxn.runs.saved.loading import from_public

pytestmark = pytest.mark.filterwarnings("ignore:::transformers", "ignore::FutureWarning")

HEIGHT, WIDTH, QUERIES = 24, 40, 7
NAMES = ["N/A", "cat", "N/A", "dog", "bird"]
SIZES = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "image_size": [HEIGHT, WIDTH],
    "patch_size": 8,
    "num_detection_tokens": QUERIES,
    "id2label": dict(enumerate(NAMES)),
    "initializer_range": 0.4,
}
SETTINGS = {
    "size": {"height": HEIGHT, "width": WIDTH},
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.3, 0.4],
}


def save(folder, *, middle=False, settings=SETTINGS):
    torch.manual_seed(0)
    config = transformers.YolosConfig(**SIZES, use_mid_position_embeddings=middle)
    model = transformers.YolosForObjectDetection(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "token" in name or "position" in name or "bias" in name:
                parameter.normal_()
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return model


def pictures(count):
    rng = np.random.default_rng(3)
    return [rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8) for _ in range(count)]


@torch.inference_mode()
def expected_of(model, images):
    pixels = torch.tensor(np.stack(images)).movedim(3, 1) / 255
    mean, std = (torch.tensor(SETTINGS[f"image_{kind}"]) for kind in ("mean", "std"))
    return model(pixel_values=(pixels - mean[:, None, None]) / std[:, None, None])


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("yolos")
    return folder, save(folder)


@torch.inference_mode()
def test_logits_and_boxes_are_equal(peer):
    folder, model = peer
    ours = from_public(str(folder))
    images = pictures(3)
    theirs = expected_of(model, images)
    tokenizer = ours.tokenizers["image"]
    samples = tokenizer.collate([tokenizer(tokenizer.reader.read(each)) for each in images])
    batch = {"#size": 3, "#index": [0, 1, 2], "image": {**samples, "rows": torch.arange(3)}}
    output = as_float(ours.model(batch))
    logits, boxes = output.split([len(NAMES), 4], -1)
    probabilities = theirs.logits.softmax(-1)[..., :-1]
    torch.testing.assert_close(logits.sigmoid(), probabilities, rtol=0, atol=1e-5)
    # The logits are those against all other classes.
    others = [
        theirs.logits[..., [j for j in range(len(NAMES) + 1) if j != i]].logsumexp(-1)
        for i in range(len(NAMES))
    ]
    odds = theirs.logits[..., :-1] - torch.stack(others, -1)
    torch.testing.assert_close(logits, odds, rtol=0, atol=1e-4)
    center = theirs.pred_boxes[..., [1, 0]]
    half = theirs.pred_boxes[..., [3, 2]] / 2
    corners = torch.cat([center - half, center + half], -1)
    torch.testing.assert_close(boxes, corners, rtol=0, atol=1e-4)


def test_answers_are_those_of_transformers(peer):
    folder, model = peer
    ours = from_public(str(folder))
    images = pictures(5)
    outputs = expected_of(model, images)
    processor = transformers.YolosImageProcessor()
    sizes = torch.tensor([[HEIGHT, WIDTH]] * len(images))
    theirs = processor.post_process_object_detection(outputs, 0.5, sizes)
    assert sum(len(each["scores"]) for each in theirs) > 3
    limits = torch.tensor([WIDTH, HEIGHT] * 2)
    names = ["N/A", "cat", "N/A 2", "dog", "bird"]
    for image, result in zip(images, theirs, strict=True):
        order = result["scores"].argsort(descending=True)
        answers = ours.predict({"image": image})["prediction"]
        assert [a["label"] for a in answers] == [names[i] for i in result["labels"][order]]
        np.testing.assert_allclose(
            [a["score"] for a in answers], result["scores"][order], rtol=1e-3
        )
        expected = torch.minimum(result["boxes"][order].clamp(min=0), limits)
        got = [[a[side] for side in ("left", "top", "right", "bottom")] for a in answers]
        np.testing.assert_allclose(np.reshape(got, (-1, 4)), expected, atol=0.01)


@pytest.mark.parametrize(
    "size",
    [{"size": {"shortest_edge": 24, "longest_edge": 40}}, {"size": 24, "max_size": 40}],
    ids=["as a mapping", "as numbers"],
)
def test_pictures_keep_their_ratio_if_the_processor_keeps_it(size, tmp_path):
    save(tmp_path, settings={**SETTINGS, **size})
    ours = from_public(str(tmp_path))
    tokenizer = ours.tokenizers["image"]
    raw = tokenizer.reader.read(np.zeros((100, 50, 3), np.uint8))
    assert tokenizer(raw)["sizes"].tolist() == [40, 20]


def test_positions_in_every_block_are_refused(tmp_path):
    save(tmp_path, middle=True)
    with pytest.raises(UserError, match="position embeddings in every block"):
        from_public(str(tmp_path))
