"""SigLIP 2 from its own files: images, texts, similarities, classifiers, and the commands."""

import json
import re

import numpy as np
import pytest
import torch
import transformers
from helpers.checkpoints import adapter_of, assert_refused, save_peer
from helpers.peers import cases
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

import dxn
from dxn.cli import main
from dxn.commands.options import Weights
from dxn.core.errors import UserError
from dxn.runs.saved.loading import load_predictor

pytestmark = pytest.mark.filterwarnings("ignore:::transformers", "ignore:::torchvision")
SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3}
VISION = {**SIZES, "intermediate_size": 52, "image_size": 40, "patch_size": 8}
LABELS = ["red square", "Blue circle", "a green, small triangle", "cat"]
TEMPLATE = "This is a photo of {}."
TEXTS = [*LABELS, "Größe: 12 ÄÖÜ", "x", "one two three four five six seven eight nine ten " * 9]
HALF = [0.5] * 3


def tokenizer():
    """The tokenizer of SigLIP 2 with a small vocabulary."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=[*special, *bytes_], show_progress=False
    )
    trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trained.train_from_iterator([t.lower().replace(" ", "▁") for t in TEXTS], trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    result = transformers.Siglip2Tokenizer(
        vocab=model["vocab"], merges=merges, model_max_length=64, padding_side="right"
    )
    result.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 1)]
    )
    return result


def processor():
    return transformers.SiglipImageProcessor(
        size={"height": 40, "width": 40}, resample=2, image_mean=HALF, image_std=HALF
    )


def save(folder, model, text=None):
    """Save a model with random weights and its preprocessing."""
    model = cases.randomize(model)
    model.save_pretrained(folder)
    processor().save_pretrained(folder)
    (text or tokenizer()).save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def siglip(tmp_path_factory):
    """A folder, and its model: towers with other widths and depths, as in the largest SigLIP 2."""
    folder = tmp_path_factory.mktemp("siglip")
    torch.manual_seed(0)
    text = {**SIZES, "hidden_size": 18, "num_hidden_layers": 2, "intermediate_size": 30}
    text |= {"vocab_size": len(tokenizer()), "projection_size": 24}
    config = transformers.SiglipConfig(text_config=text, vision_config=VISION)
    model = transformers.SiglipModel(config)
    model.logit_scale.data.fill_(3.0)
    return folder, save(folder, model)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Paths of pictures of several sizes."""
    folder = tmp_path_factory.mktemp("photos")
    rand = np.random.default_rng(0)
    for i, (height, width) in enumerate([(40, 40), (61, 43), (17, 90), (120, 100)]):
        pixels = rand.integers(256, size=(height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return sorted(folder.glob("*.png"))


def pixels_of(photos):
    return processor()([Image.open(path) for path in photos], return_tensors="pt")["pixel_values"]


def ids_of(texts):
    options = {"padding": "max_length", "max_length": 64, "truncation": True}
    return tokenizer()(texts, **options, return_tensors="pt")["input_ids"]


def test_texts_are_the_token_ids_of_the_tokenizer_with_padding(siglip):
    adapter = adapter_of(siglip[0], "text", part="text")
    expected = ids_of(TEXTS)
    assert torch.equal(adapter.tokenizer.batch(TEXTS)["ids"], expected)
    for text, ids in zip(TEXTS, expected, strict=True):
        sample = adapter.tokenizer(text)
        assert torch.equal(sample["ids"], ids) and bool(sample["mask"].all())
        assert adapter.tokenizer.length(text) == 64


def test_embeddings_equal_those_of_transformers(siglip, photos):
    folder, peer = siglip
    image = dxn.from_public(str(folder), part="image", dtype="float32")
    text = dxn.from_public(str(folder), part="text", dtype="float32")
    with torch.inference_mode():
        images = peer.get_image_features(pixel_values=pixels_of(photos)).pooler_output
        texts = peer.get_text_features(input_ids=ids_of(TEXTS)).pooler_output
    for path, expected in zip(photos, images, strict=True):
        torch.testing.assert_close(image.embed(image=path), expected, atol=1e-4, rtol=0)
    for row, expected in zip(TEXTS, texts, strict=True):
        torch.testing.assert_close(text.embed(text=row), expected, atol=1e-4, rtol=0)


def probabilities_of(output):
    answer = json.loads(output.read_text())
    return torch.tensor([answer[0][f"p({label})"] for label in LABELS])


def test_labels_become_a_classifier_with_the_similarities_of_transformers(siglip, photos, tmp_path):
    folder, peer = siglip
    texts = [TEMPLATE.replace("{}", label) for label in LABELS]
    with torch.inference_mode():
        output = peer(input_ids=ids_of(texts), pixel_values=pixels_of(photos))
    # The bias is the same for all labels.
    expected = output.logits_per_image.softmax(1)
    labels = f"labels={json.dumps(LABELS, ensure_ascii=False)}"
    command = ["predict", f"weights={folder}", labels, f"template={TEMPLATE}"]
    for path, probabilities in zip(photos, expected, strict=True):
        files = [f"input.image={path}", f"output={tmp_path / 'answer.json'}"]
        assert main([*command, *files, "dtype=float32"]) == 0
        received = probabilities_of(tmp_path / "answer.json")
        torch.testing.assert_close(received, probabilities, atol=1e-4, rtol=0)
    assert main([*command, *files, "dtype=bf16"]) == 0
    received = probabilities_of(tmp_path / "answer.json")
    torch.testing.assert_close(received, expected[-1], atol=0.02, rtol=0)


def test_the_towers_of_clip_become_a_classifier_too(tmp_path):
    save_peer("CLIP, image", tmp_path)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(cases.VOCAB)}, unk_token="w4"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    peer = transformers.CLIPModel.from_pretrained(tmp_path).eval()
    pixels = torch.randint(256, (40, 40, 3), dtype=torch.uint8)
    # The text of CLIP ends with the token 3 here.
    model = load_predictor(None, Weights(str(tmp_path)), labels=["w5", "w7"], template="{} w3")
    adapter = model.adapters["image"]
    normalized = ((pixels / 255 - adapter.mean) / adapter.std).movedim(2, 0)[None]
    with torch.inference_mode():
        output = peer(input_ids=torch.tensor([[5, 3], [7, 3]]), pixel_values=normalized)
    expected = output.logits_per_image[0].softmax(0)
    received = torch.tensor(list(model.predict(image=pixels.numpy())["probabilities"].values()))
    torch.testing.assert_close(received, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["ViT (transformers)", "BERT"])
def test_labels_need_a_checkpoint_with_two_towers(name, tmp_path):
    save_peer(name, tmp_path)
    message = "labels: .*: this checkpoint does not compare inputs with texts"
    with pytest.raises(UserError, match=message):
        load_predictor(None, Weights(str(tmp_path)), labels=["a", "b"])


@pytest.mark.parametrize(
    ("labels", "template", "message"),
    [
        (["a", "a"], "{}", "labels: must be at least two different names, got a, a"),
        (["a"], "{}", "labels: must be at least two different names, got a"),
        (["a", "b"], "a", "template: must contain {}"),
        (["a", " "], "{}", "blank text"),
    ],
)
def test_wrong_labels_are_refused(labels, template, message, siglip):
    with pytest.raises(UserError, match=re.escape(message)):
        load_predictor(None, Weights(str(siglip[0])), labels=labels, template=template)


def test_a_classifier_on_the_mean_of_the_tokens_gives_the_answers_of_transformers(photos, tmp_path):
    names = {i: f"kind {i}" for i in range(5)}
    config = transformers.SiglipConfig(vision_config=VISION, id2label=names, num_labels=5)
    peer = save(tmp_path, transformers.SiglipForImageClassification(config))
    model = dxn.from_public(str(tmp_path), dtype="float32")
    with torch.inference_mode():
        expected = peer(pixel_values=pixels_of(photos)).logits.softmax(1)
    for path, probabilities in zip(photos, expected, strict=True):
        answer = model.predict(image=path)["probabilities"]
        assert list(answer) == list(names.values())
        received = torch.tensor(list(answer.values()))
        torch.testing.assert_close(received, probabilities, atol=1e-4, rtol=0)


@pytest.mark.parametrize("part", ["image", "text"])
def test_a_single_tower_needs_no_part(part, siglip, photos, tmp_path):
    _, whole = siglip
    peer = whole.vision_model if part == "image" else whole.text_model
    peer.save_pretrained(tmp_path)
    processor().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    model = dxn.from_public(str(tmp_path), dtype="float32")
    with torch.inference_mode():
        if part == "image":
            expected = peer(pixel_values=pixels_of(photos[:1])).pooler_output[0]
            received = model.embed(image=photos[0])
        else:
            expected = peer(input_ids=ids_of(TEXTS[:1])).pooler_output[0]
            received = model.embed(text=TEXTS[0])
    torch.testing.assert_close(received, expected, atol=1e-4, rtol=0)


def test_an_image_tower_without_attention_pooling_has_the_mean(tmp_path):
    config = transformers.SiglipVisionConfig(**VISION, vision_use_head=False)
    peer = save(tmp_path, transformers.SiglipVisionModel(config))
    path = tmp_path / "x.png"
    Image.new("RGB", (40, 40), (200, 30, 90)).save(path)
    with torch.inference_mode():
        expected = peer(pixel_values=pixels_of([path])).last_hidden_state[0].mean(0)
    received = dxn.from_public(str(tmp_path), dtype="float32").embed(image=path)
    torch.testing.assert_close(received, expected, atol=1e-4, rtol=0)


def test_texts_that_are_padded_at_the_start_are_refused(siglip, tmp_path):
    text = tokenizer()
    text.padding_side = "left"
    siglip[1].save_pretrained(tmp_path)
    text.save_pretrained(tmp_path)
    message = f"{tmp_path}: dxn does not support a SigLIP whose texts are padded at the start"
    assert_refused(tmp_path, message, part="text")


def test_a_model_for_images_of_any_aspect_ratio_is_refused(tmp_path):
    vision = {**SIZES, "intermediate_size": 52, "patch_size": 8, "num_patches": 16}
    text = {**SIZES, "intermediate_size": 30, "vocab_size": 11}
    config = transformers.Siglip2Config(text_config=text, vision_config=vision)
    transformers.Siglip2Model(config).save_pretrained(tmp_path)
    message = f"{tmp_path}: dxn does not support a SigLIP 2 for images of any aspect ratio (NaFlex)"
    assert_refused(tmp_path, message, part="image")


def test_both_towers_are_fine_tuned(siglip, photos, tmp_path, capsys):
    folder, _ = siglip
    lines = ["image,text,label"]
    for i in range(24):
        name = f"{i}.png"
        Image.new("RGB", (20 + i, 30), (10 * i, 99, 250 - 10 * i)).save(tmp_path / name)
        lines.append(f"{name},number {i},{'ab'[i % 2]}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    fast = ["trainer.epochs=1", "trainer.device=cpu", "batch_size=8", "data.target=label"]
    for part in ("image", "text"):
        run = tmp_path / part
        options = [f"weights={folder}", f"weights.part={part}", f"adapters=[{part}]"]
        data = ["data=table", f"data.path={tmp_path / 'table.csv'}"]
        assert main(["train", *data, *options, *fast, f"run={run}"]) == 0
        model = dxn.load(run)
        assert model.predict({part: photos[0] if part == "image" else "x"})["prediction"] in "ab"
        if part == "text":
            assert model.adapters["text"].tokenizer.batch(["x"])["ids"].shape == (1, 64)
