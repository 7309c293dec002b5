"""LLaVA: a picture in the middle of a text, with logits, texts and losses of transformers."""

import pytest
import torch
import transformers
from helpers.reference import lively_writer
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

import dxn
from dxn.models import beam_search, generate
from dxn.models.decoding.language_model import LanguageModel, prefix_of
from dxn.tokenize.statistics import normalized_pixels

pytestmark = pytest.mark.filterwarnings("ignore:::transformers", "ignore:::torchvision")
VOCAB, IMAGE, NEW = 101, 100, 64
TOWER = {
    "hidden_size": 20,
    "intermediate_size": 28,
    "num_hidden_layers": 4,
    "num_attention_heads": 5,
    "image_size": 28,
    "patch_size": 7,
}
LANGUAGE = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "intermediate_size": 44,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# Encoder, language model and settings.
KINDS = {
    "CLIP and Llama": ("CLIPVision", "Llama", {}),
    "CLIP with its class token and Mistral": (
        "CLIPVision",
        "Mistral",
        {"vision_feature_select_strategy": "full", "vision_feature_layer": 1},
    ),
    "SigLIP and Qwen 2": (
        "SiglipVision",
        "Qwen2",
        {"vision_feature_select_strategy": "full", "multimodal_projector_bias": False},
    ),
}
# The picture in the middle, at the start, at the end, and no picture.
PROMPTS = ["w5 w7 <image> w11 w13", "<image> w3", "w90 w80 w70 w60 w50 <image>", "w13 w17 w19"]


def save_words(folder):
    words = {f"w{i}": i for i in range(VOCAB - 1)} | {"<image>": IMAGE}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<image>"])
    tokenizer.save(str(folder / "tokenizer.json"))


def save(folder, kind, **options):
    """A model with random weights in the public format, and the model of transformers."""
    torch.manual_seed(0)
    tower, language, settings = KINDS[kind]
    config = transformers.LlavaConfig(
        vision_config=getattr(transformers, f"{tower}Config")(**TOWER),
        text_config=getattr(transformers, f"{language}Config")(**LANGUAGE),
        image_token_id=IMAGE,
        **settings,
        **options,
    )
    peer = lively_writer(transformers.LlavaForConditionalGeneration(config)).eval()
    peer.save_pretrained(folder)
    side = {"height": 28, "width": 28}
    processor = (
        transformers.CLIPImageProcessor
        if tower == "CLIPVision"
        else transformers.SiglipImageProcessor
    )
    processor(
        size={"shortest_edge": 28} if tower == "CLIPVision" else side, crop_size=side
    ).save_pretrained(folder)
    save_words(folder)
    return peer


def photo(folder, number, size=(37, 31)):
    path = folder / f"{number}.png"
    rand = torch.Generator().manual_seed(number)
    pixels = torch.randint(256, (*size, 3), generator=rand, dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(path)
    return path


@pytest.fixture(scope="module", params=KINDS)
def models_of(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llava")
    peer = save(folder, request.param)
    return folder, peer, dxn.from_public(str(folder), dtype="float32")


def theirs(prompts, num_tokens, side="left"):
    """The inputs of the library: the token of the picture is repeated."""
    rows = []
    for prompt in prompts:
        row = []
        for word in prompt.split():
            row += [IMAGE] * num_tokens if word == "<image>" else [int(word[1:])]
        rows.append(row)
    longest = max(map(len, rows))
    gaps = [longest - len(row) for row in rows]
    left = side == "left"
    ids = [
        [0] * gap * left + row + [0] * gap * (not left) for row, gap in zip(rows, gaps, strict=True)
    ]
    mask = [
        [0] * gap * left + [1] * len(row) + [0] * gap * (not left)
        for row, gap in zip(rows, gaps, strict=True)
    ]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def batch_of(model, paths, prompts):
    """The batch of dxn, with the pictures of the prompts that have one."""
    samples = model.samples(
        [{"image": str(p)} for p, t in zip(paths, prompts, strict=True) if "<image>" in t]
    )
    batch = samples.collate([samples[0, i] for i in range(len(samples))])
    rows = [i for i, prompt in enumerate(prompts) if "<image>" in prompt]
    batch["image"]["rows"] = torch.tensor(rows)
    ids = [[IMAGE if w == "<image>" else int(w[1:]) for w in prompt.split()] for prompt in prompts]
    longest = max(map(len, ids))
    mask = torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in ids])
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    return {**batch, "#size": len(prompts)}, ids, mask


def pixels_of(model, batch):
    """The normalized pixels of the pictures, which are those of the library's processor."""
    adapter = model.model.adapter("image").adapter
    return normalized_pixels(adapter, batch["image"]["pixels"])


def test_logits_of_texts_with_pictures_are_those_of_transformers(models_of, tmp_path):
    folder, peer, model = models_of
    paths = [photo(tmp_path, i) for i in range(len(PROMPTS))]
    batch, ids, mask = batch_of(model, paths, PROMPTS)
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    pictures = [Image.open(path) for path in paths[:3]]
    pixels = processor(pictures, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(pixels_of(model, batch), pixels, rtol=0, atol=1e-4)
    with torch.inference_mode():
        memory = prefix_of(model.model, batch)
        logits = LanguageModel(model.model)(ids, mask, memory)
        inputs = theirs(PROMPTS, memory.x.shape[1], "right")
        expected = peer(pixel_values=pixels_of(model, batch), **inputs).logits
    for row, prompt in enumerate(PROMPTS):
        place = -1
        for i, word in enumerate(prompt.split()):
            place += memory.x.shape[1] if word == "<image>" else 1
            torch.testing.assert_close(logits[row, i], expected[row, place], rtol=0, atol=1e-4)


@pytest.mark.parametrize("beams", [1, 3])
def test_texts_after_pictures_are_those_of_transformers(models_of, tmp_path, beams):
    _, peer, model = models_of
    paths = [photo(tmp_path, i) for i in range(len(PROMPTS))]
    batch, ids, mask = batch_of(model, paths, PROMPTS)
    memory = prefix_of(model.model, batch)
    language = LanguageModel(model.model)
    options = {"prompt": ids, "mask": mask, "end": None, "max_new": NEW}
    inputs = theirs(PROMPTS, memory.x.shape[1])
    expected = peer.generate(
        pixel_values=pixels_of(model, batch),
        **inputs,
        max_new_tokens=NEW,
        do_sample=False,
        num_beams=beams,
        eos_token_id=None,
    )
    if beams == 1:
        found = generate(language, memory, **options)
    else:
        found = beam_search(language, memory, beams=beams, **options)
    new = expected[:, inputs["input_ids"].shape[1] :].tolist()
    assert [hypothesis.ids for hypothesis in found] == new
    assert sum(len(set(row)) for row in new) > 40
