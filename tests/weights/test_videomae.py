"""VideoMAE from its own files: clips, variants of the format, and the commands."""

import json

import numpy as np
import pytest
import torch
import transformers
from helpers.checkpoints import adapter_of, assert_refused, model_of
from helpers.peers import cases
from helpers.videos import moving_bar, write_video

import dxn
from dxn.cli import main
from dxn.weights import read_public

pytestmark = pytest.mark.filterwarnings("ignore:::transformers", "ignore:::torchvision")
SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 52,
    "image_size": 40,
    "patch_size": 8,
    "num_frames": 6,
}
NAMES = {i: f"kind {i}" for i in range(5)}
MEAN, STD = [0.41, 0.53, 0.47], [0.23, 0.29, 0.31]


def save(folder, name="VideoMAEForVideoClassification", **options):
    """Save a model with random weights and its preprocessing."""
    torch.manual_seed(0)
    config = transformers.VideoMAEConfig(**{**SIZES, "id2label": NAMES, **options})
    model = cases.randomize(getattr(transformers, name)(config))
    model.save_pretrained(folder)
    processor().save_pretrained(folder)
    return model


def processor(cls="VideoMAEImageProcessor"):
    return getattr(transformers, cls)(
        size={"shortest_edge": 44},
        crop_size={"height": 40, "width": 40},
        image_mean=MEAN,
        image_std=STD,
    )


def clip(height=40, width=40, frames=6, seed=0):
    rand = np.random.default_rng(seed)
    return rand.integers(256, size=(frames, height, width, 3), dtype=np.uint8)


def pixels_of(frames):
    """The normalized clip (1, T, C, H, W) of the image processor, which takes a list of frames."""
    return processor()(list(frames), return_tensors="pt")["pixel_values"]


@pytest.mark.parametrize("cls", ["VideoMAEImageProcessor", "VideoMAEVideoProcessor"])
@pytest.mark.parametrize("shape", [(60, 80), (40, 44), (30, 25), (44, 44)])
def test_clips_are_those_of_the_processor_of_transformers(cls, shape, tmp_path):
    save(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    processor(cls).save_pretrained(tmp_path)
    adapter = adapter_of(tmp_path, "video")
    frames = clip(*shape)
    sample = adapter.tokenizer(adapter.tokenizer.reader.read(frames))
    received = (sample["pixels"] / 255 - adapter.mean[:, None, None]) / adapter.std[:, None, None]
    levels = (received - pixels_of(frames)[0]).abs() * adapter.std[:, None, None] * 255
    assert levels.max() < 1 + 1e-4


VARIANTS = {
    "mean": {},
    "first token": {"use_mean_pooling": False},
    "no biases of queries and values": {"qv_bias": False},
    "tubelets of 3 frames": {"tubelet_size": 3},
    "another activation": {"hidden_act": "gelu_new"},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_probabilities_equal_those_of_transformers(options, tmp_path):
    peer = save(tmp_path, **options)
    model = dxn.from_public(str(tmp_path), dtype="float32")
    frames = clip(44, 44)
    with torch.inference_mode():
        expected = peer(pixel_values=pixels_of(frames)).logits.softmax(1)[0]
    answer = model.predict(video=frames)["probabilities"]
    assert list(answer) == list(NAMES.values())
    received = torch.tensor(list(answer.values()))
    torch.testing.assert_close(received, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["VideoMAEModel", "VideoMAEForPreTraining"])
@pytest.mark.parametrize("use_mean_pooling", [True, False])
def test_the_encoder_alone_and_the_pretrained_model_embed_clips(name, use_mean_pooling, tmp_path):
    peer = save(tmp_path, name, use_mean_pooling=use_mean_pooling)
    encoder = peer if name == "VideoMAEModel" else peer.videomae
    frames = clip(44, 44)
    with torch.inference_mode():
        hidden = encoder(pixel_values=pixels_of(frames)).last_hidden_state[0]
    expected = hidden.mean(0) if use_mean_pooling else hidden[0]
    received = dxn.from_public(str(tmp_path), dtype="float32").embed(video=frames)
    torch.testing.assert_close(received, expected, atol=1e-4, rtol=0)


def test_the_positions_of_another_size_are_those_of_a_model_of_that_size(tmp_path):
    peer = save(tmp_path, image_size=56, num_frames=10)
    save(tmp_path)  # the same weights, because none depends on the sizes
    public = read_public(str(tmp_path))
    plan = public.plan()
    plan.adapters["video"] |= {"image_size": 56, "sampling": {"num_frames": 10}}
    model = model_of(public, plan)
    public.fill(model)
    adapter = model.adapters["video"]
    ours = adapter.sequence_embed.flatten(0, 2)
    torch.testing.assert_close(
        ours, peer.videomae.embeddings.position_embeddings[0], atol=0, rtol=0
    )


REFUSED = [
    ({"image_size": 44}, "do not divide its clips (6 frames, 44 pixels)"),
    ({"num_frames": 5}, "do not divide its clips (5 frames, 40 pixels)"),
    ({"hidden_act": "tanh"}, "dxn does not support the activation function 'tanh'"),
    ({"image_size": [40, 48]}, "dxn does not support a VideoMAE whose clips are not square"),
    ({"num_channels": 1}, "dxn does not support a VideoMAE whose clips are not square"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=lambda v: str(v))
def test_other_models_are_refused(options, message, tmp_path):
    save(tmp_path, **options)
    assert message in assert_refused(tmp_path, str(tmp_path))


def test_a_model_is_used_and_fine_tuned_by_commands(tmp_path, capsys):
    peer = save(tmp_path / "model")
    lines = ["video,label"]
    for i in range(16):
        bar = moving_bar(frames=9, height=48, width=48, direction=(-1) ** i, step=3 + i // 4)
        write_video(tmp_path / f"{i}.mp4", bar)
        lines.append(f"{i}.mp4,{'left' if i % 2 else 'right'}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    command = ["predict", f"weights={tmp_path / 'model'}", f"input.video={tmp_path / '0.mp4'}"]
    assert main([*command, f"output={tmp_path / 'answer.json'}"]) == 0
    assert json.loads((tmp_path / "answer.json").read_text())[0]["prediction"] in NAMES.values()
    data = ["data=table", f"data.path={tmp_path / 'table.csv'}", "data.target=label"]
    weights = [f"weights={tmp_path / 'model'}", "adapters=[video]"]
    fast = ["trainer.epochs=1", "trainer.device=cpu", "batch_size=4"]
    assert main(["train", *data, *weights, *fast, f"run={tmp_path / 'run'}"]) == 0
    model = dxn.load(tmp_path / "run")
    model.save_public(tmp_path / "public", tmp_path / "model")
    again = transformers.VideoMAEForVideoClassification.from_pretrained(tmp_path / "public").eval()
    assert again.config.id2label == {0: "left", 1: "right"}
    frames = clip(44, 44)
    with torch.inference_mode():
        expected = again(pixel_values=pixels_of(frames)).logits.softmax(1)[0]
    received = torch.tensor(list(model.predict(video=frames)["probabilities"].values()))
    torch.testing.assert_close(received, expected, atol=1e-4, rtol=0)
    assert type(again) is type(peer)
