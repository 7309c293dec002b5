"""Segmentation with the weights of EoMT, beside transformers."""

import base64
import io
import json

import numpy as np
import pytest
import torch
import transformers
from helpers.newcomer import printed
from PIL import Image
from safetensors.torch import load_file, save_file

from dxn.core.errors import UserError
from dxn.runs.saved.loading import from_public
from dxn.tasks.segment.drawn import run_lengths

pytestmark = pytest.mark.filterwarnings("ignore:::transformers", "ignore::FutureWarning")

SIDE = 32
NAMES = ["sky", "tree", "road", "tree"]
SIZES = {
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": 8,
    "num_blocks": 2,
    "num_queries": 7,
    "num_register_tokens": 3,
    "id2label": dict(enumerate(NAMES)),
    "initializer_range": 0.4,
}
SETTINGS = {
    "size": {"shortest_edge": SIDE, "longest_edge": SIDE},
    "do_pad": True,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.3, 0.4],
}
DIVIDED = {
    **SETTINGS,
    "size": {"shortest_edge": SIDE, "longest_edge": None},
    "do_pad": False,
    "do_split_image": True,
}


def save(folder, *, settings=SETTINGS, **options):
    torch.manual_seed(0)
    model = transformers.EomtForUniversalSegmentation(
        transformers.EomtConfig(**{**SIZES, **options})
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Initial values of 0 and 1 would hide an exchange.
            if parameter.ndim == 1 or "token" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
        model.class_predictor.weight.mul_(6)  # so that the classes of the queries differ
        model.attn_mask_probs.zero_()
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return model


def pictures(*sizes):
    rng = np.random.default_rng(3)
    # Large areas, so that the classes differ between the pixels.
    small = [rng.integers(0, 256, (4, 4, 3), dtype=np.uint8) for _ in sizes]
    return [
        np.asarray(Image.fromarray(each).resize(size[::-1], Image.Resampling.NEAREST))
        for each, size in zip(small, sizes, strict=True)
    ]


def batch_of(ours, images):
    tokenizer = ours.tokenizers["image"]
    samples = tokenizer.collate([tokenizer(tokenizer.reader.read(each)) for each in images])
    rows = torch.arange(len(images))
    return {"#size": len(images), "#index": [*rows.tolist()], "image": {**samples, "rows": rows}}


@pytest.mark.parametrize(
    "options", [{}, {"use_swiglu_ffn": True}, {"num_upscale_blocks": 1, "num_blocks": 1}]
)
@torch.inference_mode()
def test_classes_and_masks_are_equal(tmp_path, options):
    theirs = save(tmp_path, **options)
    ours = from_public(str(tmp_path))
    images = pictures(*[(SIDE, SIDE)] * 3)
    processor = transformers.EomtImageProcessor(**SETTINGS)
    expected = theirs(**processor(images, return_tensors="pt"))
    # The output of a training: no dropout is set.
    found = ours.model.train()(batch_of(ours, images))
    torch.testing.assert_close(found.classes, expected.class_queries_logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.masks, expected.masks_queries_logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "size"), [(SETTINGS, (SIDE, 20)), (SETTINGS, (24, SIDE)), (DIVIDED, (SIDE, 71))]
)
@torch.inference_mode()
def test_the_classes_of_pixels_are_those_of_transformers(tmp_path, settings, size):
    theirs = save(tmp_path, settings=settings)
    ours = from_public(str(tmp_path))
    processor = transformers.EomtImageProcessor(**settings)
    for image in pictures(size, size):
        inputs = processor([image], return_tensors="pt")
        offsets = inputs.pop("patch_offsets", None)
        outputs = theirs(**inputs, patch_offsets=offsets)
        sizes = [size] if offsets else [(SIDE, SIDE)]
        (classes,) = processor.post_process_semantic_segmentation(outputs, sizes)
        answer = ours.predict({"image": image})
        shown = Image.open(io.BytesIO(base64.b64decode(answer["mask"].partition(",")[2])))
        expected = classes.numpy()[: size[0], : size[1]]
        assert len(np.unique(expected)) > 1
        np.testing.assert_array_equal(np.asarray(shown), expected)


@torch.inference_mode()
def test_the_instances_are_those_of_transformers(tmp_path):
    theirs = save(tmp_path)
    ours = from_public(str(tmp_path), head={"instances": True, "threshold": 0.05})
    (image,) = pictures((SIDE, SIDE))
    processor = transformers.EomtImageProcessor(**SETTINGS)
    outputs = theirs(**processor([image], return_tensors="pt"))
    (expected,) = processor.post_process_instance_segmentation(outputs, [(SIDE, SIDE)], 0.05)
    found = ours.predict({"image": image})["prediction"]
    infos = sorted(expected["segments_info"], key=lambda each: -each["score"])
    assert len(infos) > 1 and len(found) == len(infos)
    labels = ours.labels
    for own, info in zip(found, infos, strict=True):
        assert own["label"] == labels[info["label_id"]]
        assert own["score"] == pytest.approx(info["score"], abs=1e-3)
        # In theirs, a later mask hides earlier ones.
        shown = expected["segmentation"].numpy() == info["id"]
        mask = run_lengths(own["segmentation"], (SIDE, SIDE))
        assert (mask | ~shown).all()


def test_a_model_whose_training_is_not_finished_is_refused(tmp_path):
    save(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["attn_mask_probs"] += 0.5
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(UserError, match="an unfinished training"):
        from_public(str(tmp_path))


def test_another_size_of_the_pictures_is_refused(tmp_path):
    save(tmp_path, settings={**SETTINGS, "size": {"shortest_edge": 24, "longest_edge": 32}})
    with pytest.raises(UserError, match="pictures of the size"):
        from_public(str(tmp_path))


def test_the_command_line_writes_masks_and_fine_tunes(tmp_path, capsys):
    save(tmp_path / "public", settings=DIVIDED)
    (image,) = pictures((50, 90))
    Image.fromarray(image).save(tmp_path / "photo.png")
    weights, photo = f"weights={tmp_path / 'public'}", f"input.image={tmp_path / 'photo.png'}"
    printed(capsys, "predict", weights, photo, f"output={tmp_path / 'masks'}")
    with Image.open(tmp_path / "masks" / "photo.png") as mask:
        assert mask.size == (90, 50) and mask.mode == "P"
    data = ["data=objects", "data.masks=true", "data.size=40", "data.num_train=40"]
    options = ["data.num_validation=8", "data.num_test=8", "head=segment", "trainer.epochs=1"]
    run = f"run={tmp_path / 'run'}"
    text = printed(capsys, "train", *data, *options, weights, run)
    assert "miou" in text
    config = (tmp_path / "run" / "model" / "config.yaml").read_text()
    assert "queries: 7" in config and "late_registers: 7" in config
    printed(capsys, "predict", run, photo, f"output={tmp_path / 'own'}")
    with Image.open(tmp_path / "own" / "photo.png") as mask:
        assert mask.size == (90, 50)


def test_queries_are_added_to_the_registers_of_another_vit(tmp_path, capsys):
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=12,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=8,
        num_register_tokens=3,
    )
    vit = transformers.Dinov2WithRegistersModel(config)
    vit.save_pretrained(tmp_path / "vit")
    data = ["data=objects", "data.masks=true", "data.size=32", "data.num_train=16"]
    options = ["data.num_validation=8", "data.num_test=8", "head=segment", "trainer.epochs=1"]
    options += ["head.queries=7", "fusion.registers=10", "fusion.late_registers=7"]
    frozen = ["adapters.image.image_size=32", "trainer.precision=float32"]
    weights, run = f"weights={tmp_path / 'vit'}", tmp_path / "run"
    printed(capsys, "train", *data, *options, *frozen, weights, f"run={run}")
    tokens = load_file(run / "model" / "model.safetensors")["fusion.pool.tokens"]
    assert tokens.shape == (11, 12)
    # One epoch does not move them far.
    registers = vit.embeddings.register_tokens[0].detach()
    torch.testing.assert_close(tokens[1:4], registers, rtol=0, atol=0.01)
    assert tokens[4:].std(0).min() > 0.005  # the queries differ
