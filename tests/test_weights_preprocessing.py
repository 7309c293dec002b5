"""Pictures, sounds and texts as a checkpoint's own library prepares them: timm's and transformers', value by value."""

import json

import numpy as np
import pytest
import timm
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from dxn.errors import UserError
from dxn.tokenize.media import BadMedia
from dxn.train.bundle import construct
from dxn.weights import read_public

pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers", "ignore:::torchvision")
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def adapter_of(folder, modality, *, part=None, **changed):
    """The adapter that a user of this checkpoint gets; changed: arguments that the user does."""
    public = read_public(str(folder), part=part)
    adapters = {name: construct({**node, **changed}) for name, node in public.nodes()["adapters"].items()}
    public.prepare(adapters)
    return adapters[modality]


# Pictures


def picture(width, height, mode="RGB"):
    """Noise, which no misplaced or differently weighed pixel gets through."""
    draw = np.random.default_rng(width * 1009 + height)
    bands = {"L": (), "P": (), "RGB": (3,), "RGBA": (4,), "LA": (2,)}[mode]
    pixels = draw.integers(256, size=(height, width, *bands), dtype=np.uint8)
    if mode == "P":
        image = Image.fromarray(pixels, "L").convert("P")
        image.putpalette(draw.integers(256, size=768, dtype=np.uint8).tobytes())
        return image
    return Image.fromarray(pixels)


# Width and height: larger, smaller, tall, wide, a pixel wide or high, as large as a model takes them.
SHAPES = [(101, 67), (13, 17), (29, 211), (211, 31), (1, 47), (53, 1), (24, 24), (40, 40), (48, 48), (49, 48)]
MODES = ["L", "P", "RGBA", "LA"]


def normalised(adapter, image):
    """What the model sees of it: the pixels with mean and deviation taken off."""
    pixels = adapter.prepare(adapter.prepare.read(image))["pixels"]
    assert pixels.dtype == torch.uint8
    return (pixels / 255 - adapter.mean[:, None, None]) / adapter.std[:, None, None]


def theirs_of(processor, image):
    """The same by transformers."""
    return processor(image, return_tensors="pt")["pixel_values"][0]


# Torchvision resizes bilinearly in whole numbers, as we do, where the processor has AVX2, and in float32 elsewhere.
LEVELS = 0 if "AVX" in torch.backends.cpu.get_cpu_capability() else 1


def assert_same(adapter, image, expected):
    """Equal but for the rounding of the division; no pixel is a level of 255 off."""
    off = (normalised(adapter, image) - expected).abs() * adapter.std[:, None, None] * 255
    assert off.max() < LEVELS + 1e-4, (image.size, image.mode)


def save_vit(folder, processor, *, side=24, kind="ViT"):
    config = getattr(transformers, f"{kind}Config")(**SIZES, image_size=side, patch_size=8)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)


VISION = {**SIZES, "image_size": 40, "patch_size": 8, "projection_dim": 11}


def save_clip(folder, processor):
    text = {**SIZES, "vocab_size": 5, "projection_dim": 11, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=11)
    transformers.CLIPModel(config).save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)


MEAN, STD = [0.41, 0.53, 0.47], [0.23, 0.29, 0.31]


def vit_processor(**changed):
    given = {"size": {"height": 24, "width": 24}, "image_mean": MEAN, "image_std": STD, **changed}
    return transformers.ViTImageProcessor(**given)


def bit_processor(side=56, crop=48, **changed):
    given = {"size": {"shortest_edge": side}, "crop_size": {"height": crop, "width": crop}, **changed}
    return transformers.BitImageProcessor(**{"image_mean": MEAN, "image_std": STD, **given})


def clip_processor(**changed):
    given = {"size": {"shortest_edge": 40}, "crop_size": {"height": 40, "width": 40}, **changed}
    return transformers.CLIPImageProcessor(**given)


def deit_processor():
    size = {"size": {"height": 29, "width": 29}, "crop_size": {"height": 24, "width": 24}}
    return transformers.DeiTImageProcessor(**size, image_mean=MEAN, image_std=STD)


# Of each: how to save it, and what makes its processor.
PROCESSORS = {
    "ViT, bilinear": (save_vit, vit_processor),
    "ViT, bicubic": (save_vit, lambda: vit_processor(resample=3)),
    "ViT, not normalised": (save_vit, lambda: vit_processor(do_normalize=False)),
    "DeiT, stretched and cropped": (lambda f, p: save_vit(f, p, kind="DeiT"), deit_processor),
    "DINOv2": (lambda f, p: save_vit(f, p, side=32, kind="Dinov2"), bit_processor),
    "DINOv2, bilinear": (lambda f, p: save_vit(f, p, kind="Dinov2"), lambda: bit_processor(64, 48, resample=2)),
    # 44 / (44 / 85) is a little less than 85.
    "DINOv2, a share that rounding spoils": (lambda f, p: save_vit(f, p, kind="Dinov2"), lambda: bit_processor(85, 44)),
    "CLIP": (save_clip, clip_processor),
}


def same_halves(processor, width, height):
    """Whether half the margin around the crop is the same rounded down and rounded to the even number."""
    if "crop_size" not in processor.to_dict() or not processor.do_center_crop:
        return True
    size, crop = processor.size, processor.crop_size.height
    if size.height:
        sides = (size.height, size.width)
    else:
        sides = (size.shortest_edge * n // min(width, height) for n in (width, height))
    return all((side - crop) % 4 != 3 for side in sides)


@pytest.mark.parametrize("name", PROCESSORS)
def test_pictures_are_what_the_processor_of_transformers_makes_of_them(name, tmp_path):
    save, make = PROCESSORS[name]
    processor = make()
    save(tmp_path, processor)
    adapter = adapter_of(tmp_path, "image", part="image")
    compared = 0
    for width, height in SHAPES:
        if not same_halves(processor, width, height):
            continue
        image = picture(width, height)
        assert_same(adapter, image, theirs_of(processor, image))
        compared += 1
    assert compared >= 7


def test_half_an_odd_margin_is_rounded_as_torchvision_rounds_it_a_pixel_beyond_transformers(tmp_path):
    processor = clip_processor()
    save_clip(tmp_path, processor)
    adapter = adapter_of(tmp_path, "image", part="image")
    image = picture(43, 40)  # of the margin of 3 torchvision, and so timm and CLIP's authors, leaves 2 at the left
    assert not torch.allclose(normalised(adapter, image), theirs_of(processor, image), atol=0.1)
    assert_same(adapter, image, theirs_of(processor, image.crop((1, 0, 43, 40))))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["CLIP", "DINOv2"])
def test_grey_palettes_and_transparency_become_colours_as_with_transformers(name, mode, tmp_path):
    save, make = PROCESSORS[name]
    processor = make()
    save(tmp_path, processor)
    adapter = adapter_of(tmp_path, "image", part="image")
    image = picture(59, 61, mode)
    assert_same(adapter, image, theirs_of(processor, image))


OLD = {
    "CLIP": (save_clip, 40, {"shortest_edge": 40}),
    "ViT": (save_vit, 24, {"height": 24, "width": 24}),
    "DINOv2": (lambda f, p: save_vit(f, p, kind="Dinov2"), 24, {"shortest_edge": 24}),
}


@pytest.mark.parametrize("name", OLD)
def test_a_size_of_one_number_is_what_it_is_to_the_family(name, tmp_path):
    save, side, meant = OLD[name]
    old = {"size": side, "crop_size": side, "resample": 3, "image_mean": MEAN, "image_std": STD}
    save(tmp_path, None)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**old, "do_center_crop": name != "ViT"}))
    adapter = adapter_of(tmp_path, "image", part="image")
    cls = {"CLIP": "CLIPImageProcessor", "ViT": "ViTImageProcessor", "DINOv2": "BitImageProcessor"}[name]
    processor = getattr(transformers, cls).from_pretrained(tmp_path)
    assert {k: v for k, v in dict(processor.size).items() if v} == meant
    image = picture(97, 67)
    assert_same(adapter, image, theirs_of(processor, image))


def test_a_processor_saved_for_text_and_pictures_together_is_read_too(tmp_path):
    processor = clip_processor(image_mean=MEAN, image_std=STD, size={"shortest_edge": 50})
    save_clip(tmp_path, None)
    transformers.CLIPProcessor(processor, transformers.CLIPTokenizer()).save_pretrained(tmp_path)
    assert not (tmp_path / "preprocessor_config.json").exists()
    adapter = adapter_of(tmp_path, "image", part="image")
    image = picture(97, 67)
    assert_same(adapter, image, theirs_of(processor, image))


def test_without_a_processor_clip_is_cropped_and_vit_stretched_as_theirs_are_by_default(tmp_path):
    image = picture(97, 67)
    for name, save, processor in (("clip", save_clip, clip_processor()), ("vit", save_vit, vit_processor())):
        (tmp_path / name).mkdir()
        save(tmp_path / name, None)
        adapter = adapter_of(tmp_path / name, "image", part="image")
        if name == "vit":
            processor.image_mean = processor.image_std = [0.5] * 3
        assert_same(adapter, image, theirs_of(processor, image))


CANNOT = [
    (lambda: vit_processor(resample=1), "resized by PIL's filter 1, which dxn cannot"),
    (lambda: bit_processor(do_center_crop=False), "pictures that keep their shape and are not cropped"),
    (lambda: bit_processor(40, 48), "a crop of 48 pixels from pictures of 40, filled up with black"),
]


@pytest.mark.parametrize(("make", "message"), CANNOT, ids=[m for _, m in CANNOT])
def test_a_processor_that_does_what_dxn_cannot_is_refused(make, message, tmp_path):
    save_vit(tmp_path, make(), kind="Dinov2")
    with pytest.raises(UserError, match=message):
        read_public(str(tmp_path))


def save_timm(folder, *, side=40, **changed):
    """A model and what its page on the hub says, as timm itself resolves it."""
    model = timm.models.VisionTransformer(img_size=side, patch_size=8, embed_dim=8, depth=1, num_heads=2)
    said = {"input_size": [3, side, side], "mean": MEAN, "std": STD, "interpolation": "bicubic", **changed}
    config = {"model_args": {"num_heads": 2}, "pretrained_cfg": said}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), folder / "model.safetensors")
    return timm.data.create_transform(**timm.data.resolve_data_config({}, pretrained_cfg=said), is_training=False)


TIMM = [
    {"crop_pct": 0.9},
    {"crop_pct": 0.875},
    {"crop_pct": 1.0},
    {"crop_pct": 0.9, "interpolation": "bilinear"},
    {"crop_pct": 0.95, "crop_mode": "squash"},
    {"crop_pct": 1.0, "crop_mode": "squash", "interpolation": "bilinear"},
]


def levels_apart(transform, adapter, image):
    """Of 255, of each value, between timm's and ours."""
    return (transform(image.convert("RGB")) - normalised(adapter, image)).abs() * adapter.std[:, None, None] * 255


# timm resizes with PIL, whose weights are rounded to other whole numbers than torch's, and both round to 256 levels
# after each of two passes. A level apart is as near as they come; where a picture is enlarged or hardly made smaller,
# one of the first pass is in a few places two after the second. NEAR leaves room for float32.
NEAR = 1 + 1e-3


@pytest.mark.parametrize("said", TIMM, ids=str)
def test_pictures_are_what_timm_makes_of_them_but_for_one_level_of_255_and_rarely_two(said, tmp_path):
    transform = save_timm(tmp_path, **said)
    adapter = adapter_of(tmp_path, "image")
    target = 40 // said["crop_pct"]
    for width, height in [*SHAPES, (43, 40), (40, 47), (227, 151)]:
        scene = picture(5, 7).resize((width, height), Image.Resampling.BICUBIC)
        for image in (scene, picture(width, height)):
            if image is not scene and said.get("crop_mode") == "squash" and width < target < height:
                continue  # of noise PIL, which resizes down first and then across here, cuts off other peaks
            apart = levels_apart(transform, adapter, image)
            assert apart.max() < (1 if min(width, height) > 1.5 * target else 2) * NEAR, (width, height)
            assert (apart > NEAR).float().mean() < 2e-3, (width, height)


def test_grey_palettes_and_opaque_pictures_are_what_timm_makes_of_them_in_colour(tmp_path):
    transform = save_timm(tmp_path, crop_pct=0.9)
    adapter = adapter_of(tmp_path, "image")
    opaque = picture(59, 61, "RGBA")
    opaque.putalpha(255)
    for image in (picture(59, 61, "L"), picture(59, 61, "P"), opaque):
        assert levels_apart(transform, adapter, image).max() < NEAR, image.mode


def test_a_border_around_pictures_of_timm_is_refused(tmp_path):
    save_timm(tmp_path, crop_pct=0.9, crop_mode="border")
    with pytest.raises(UserError, match="pictures are cropped by border, which dxn cannot"):
        read_public(str(tmp_path))


# Sounds

RATE = 16000
# The largest difference allowed. AST's extractor calls the Kaldi filters of torchaudio as we do: equal to the bit.
# Whisper's works its mel filters out in float64, ours in float32: 3e-6 was seen with 80 bins and 1.6e-5 with 128.
AST, WHISPER = 1e-6, 5e-5
# Samples: one window, odd ones, a whole second and a sample either way, longer than either model hears.
LENGTHS = [400, 401, 4999, 15999, 16000, 16001, 27011]


def sounds(length):
    draw = np.random.default_rng(length)
    seconds = np.arange(length) / RATE
    yield "noise", draw.normal(scale=0.1, size=length).astype(np.float32)
    yield "tone", (0.5 * np.sin(2 * np.pi * 440 * seconds)).astype(np.float32)
    yield "silence", np.zeros(length, np.float32)
    yield "noise, then silence", np.where(seconds < 0.2, draw.uniform(-1, 1, length), 0).astype(np.float32)


def heard(adapter, sound):
    """What the model sees of it: mean and deviation are taken off in the adapter's forward."""
    features = adapter.prepare(adapter.prepare.read((sound, RATE)))["features"]
    return (features - adapter.mean) / adapter.std


def save_ast(folder, **changed):
    config = transformers.ASTConfig(**SIZES, max_length=61, num_mel_bins=43)
    transformers.ASTModel(config).save_pretrained(folder)
    extractor = transformers.ASTFeatureExtractor(max_length=61, num_mel_bins=43, **changed)
    extractor.save_pretrained(folder)
    return extractor


@pytest.mark.parametrize(
    "changed", [{}, {"mean": -6.7, "std": 5.3}, {"do_normalize": False}], ids=["AudioSet", "its own", "none"]
)
def test_sounds_are_what_the_extractor_of_ast_makes_of_them(changed, tmp_path):
    extractor = save_ast(tmp_path, **changed)
    adapter = adapter_of(tmp_path, "audio")
    for length in LENGTHS:
        for name, sound in sounds(length):
            expected = extractor(sound, sampling_rate=RATE, return_tensors="pt")["input_values"][0]
            assert expected.shape == (61, 43)
            torch.testing.assert_close(heard(adapter, sound), expected, atol=AST, rtol=0, msg=f"{name} of {length}")


@pytest.mark.parametrize("length", [1, 211, 399])
def test_a_sound_shorter_than_asts_window_which_theirs_refuses_is_filled_up_with_silence(length, tmp_path):
    extractor = save_ast(tmp_path)
    adapter = adapter_of(tmp_path, "audio")
    sound = np.random.default_rng(length).normal(size=length).astype(np.float32)
    with pytest.raises(AssertionError, match="choose a window size"):
        extractor(sound, sampling_rate=RATE)
    filled = np.pad(sound, (0, 400 - length))
    expected = extractor(filled, sampling_rate=RATE, return_tensors="pt")["input_values"][0]
    torch.testing.assert_close(heard(adapter, sound), expected, atol=AST, rtol=0)


@pytest.mark.parametrize("bins", [80, 128])
def test_sounds_are_what_the_extractor_of_whisper_makes_of_them(bins, tmp_path):
    config = transformers.WhisperConfig(
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        vocab_size=5,
        num_mel_bins=bins,
        max_source_positions=50,  # of 20 ms: one second
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    transformers.WhisperModel(config).save_pretrained(tmp_path)
    extractor = transformers.WhisperFeatureExtractor(feature_size=bins, chunk_length=1)
    extractor.save_pretrained(tmp_path)
    adapter = adapter_of(tmp_path, "audio")
    for length in [1, 211, 399, *LENGTHS]:
        for name, sound in sounds(length):
            expected = extractor(sound, sampling_rate=RATE, return_tensors="pt")["input_features"][0].T
            assert expected.shape == (100, bins)
            torch.testing.assert_close(heard(adapter, sound), expected, atol=WHISPER, rtol=0, msg=f"{name} of {length}")


# Texts

TEXTS = [
    "The quick brown fox jumps over the lazy dog, and runs away.",
    "Der schnelle braune Fuchs springt über den faulen Hund; ça va où, naïve café?",
    "Быстрая коричневая лиса прыгает. 敏捷的棕色狐狸跳过懒狗。 すばやい茶色の狐。 빠른 갈색 여우",
    "It's they'll we've 12345 2026-11-21 3.14 e-mail@example.org C++ #hash ~/path_name",
    "שלום עולם مرحبا بالعالم",
]
HARD = {
    "plain": "The lazy fox jumps, it's away!",
    "accents and capitals": "CAFÉ Über ÇA NAÏVE straße ẞ İstanbul ǅ ﬁ",
    "combining marks": "cafe\u0301 u\u0308ber a\u0301\u0323\u0302 \u0301alone ｈａｌｆ",
    "emoji": "fox 🦊 family 👨\u200d👩\u200d👧\u200d👦 flag 🇩🇪 thumb 👍🏽 heart ❤\ufe0f",
    "Chinese, Japanese, Korean": "敏捷的fox狐狸 すばやい キツネ 빠른 여우 𠀀𠀁",
    "right to left": "שָׁלוֹם world مرحبا\u200f \u202eabc\u202c",
    "control characters": "a\x00b\x01c\x07d\x1be\x7ff\x85g\ufffdh",
    "soft hyphen": "jum\u00adps over\u00ad",
    "no width": "qui\u200bck \ufeffbrown\u2060fox",
    "only no width": "\u200b\u200d",
    "newlines and tabs": "\n\n the \r\n quick\t\tbrown \u2028fox\u2029 \u00a0 \u3000end \n ",
    "one long word": "quick" * 100,
    "one long number": "1234567890" * 20,
    "long punctuation": "!?" * 71 + "-" * 73 + "'" * 11,
    "special tokens": "[CLS] the [MASK] fox[SEP] <s>quick</s> <mask> [UNK] <unk>",
    "special tokens of GPT": "a<|endoftext|>b <|startoftext|> c <|endoftext|>",
    "special tokens alone": "[MASK]",
    "a special token at the end": "the fox </s>",
    "special tokens only": "<s></s>[CLS][SEP]<|endoftext|>",
    "nearly special": "[MASK [mask] < s > <|endoftext|",
    "words of none of these letters": "ᚠᛇᚻ ⠓⠑⠇⠇⠕ ∮E⋅da",
}


def numbered(*groups):
    return {piece: i for i, piece in enumerate(dict.fromkeys(piece for group in groups for piece in group))}


def bert_tokenizer(*, lowercase):
    trainer = trainers.WordPieceTrainer(vocab_size=300, show_progress=False)
    texts = [text.lower() for text in TEXTS] if lowercase else TEXTS
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(texts, trainer)
    pieces = numbered(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], sorted(tokenizer.get_vocab()))
    return transformers.BertTokenizer(vocab=pieces, do_lower_case=lowercase)


def byte_pieces(specials, *, end=""):
    """Pieces and merges over bytes, all 256 of them known, with the specials in front."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    suffix = {"end_of_word_suffix": end} if end else {}
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False, **suffix)
    tokenizer = Tokenizer(models.BPE(**suffix))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    found = json.loads(tokenizer.to_str())["model"]
    pieces = numbered(specials, alphabet, [letter + end for letter in alphabet], sorted(found["vocab"]))
    return pieces, [tuple(merge) for merge in found["merges"]]


def roberta_tokenizer():
    mask = AddedToken(
        "<mask>", lstrip=True, special=True
    )  # it takes the space before it, as in every RoBERTa published
    return transformers.RobertaTokenizer(*byte_pieces(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]), mask_token=mask)


def gpt2_tokenizer():
    return transformers.GPT2Tokenizer(*byte_pieces(["<|endoftext|>"]))


def clip_tokenizer():
    return transformers.CLIPTokenizer(*byte_pieces(["<|startoftext|>", "<|endoftext|>"], end="</w>"))


LENGTH = 601  # places, of which no text here needs as many


def bert_model(rows):
    return transformers.BertModel(transformers.BertConfig(**SIZES, vocab_size=rows, max_position_embeddings=LENGTH))


def roberta_model(rows):
    config = {"max_position_embeddings": LENGTH + 2, "pad_token_id": 1}
    return transformers.RobertaModel(transformers.RobertaConfig(**SIZES, vocab_size=rows, **config))


def gpt2_model(rows):
    config = {"n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2Model(transformers.GPT2Config(**config, vocab_size=rows, n_positions=LENGTH))


def clip_model(rows):
    text = {**SIZES, "vocab_size": rows, "max_position_embeddings": LENGTH, "projection_dim": 11, "bos_token_id": 0}
    text |= {"eos_token_id": 1, "pad_token_id": 1}
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=11)
    return transformers.CLIPModel(config)


TOKENIZERS = {
    "BERT": (lambda: bert_tokenizer(lowercase=True), bert_model),
    "BERT, cased": (lambda: bert_tokenizer(lowercase=False), bert_model),
    "RoBERTa": (roberta_tokenizer, roberta_model),
    "GPT-2": (gpt2_tokenizer, gpt2_model),
    "CLIP": (clip_tokenizer, clip_model),
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def text_checkpoint(request, tmp_path_factory):
    """Its folder and the peer's tokenizer, which is read from there too."""
    folder = tmp_path_factory.mktemp("text")
    make, model = TOKENIZERS[request.param]
    tokenizer = make()
    model(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, type(tokenizer).from_pretrained(folder)


def ids_of(adapter, text):
    return adapter.prepare(adapter.prepare.read(text))["ids"].tolist()


def test_texts_become_the_ids_that_the_tokenizer_of_transformers_gives(text_checkpoint):
    folder, tokenizer = text_checkpoint
    adapter = adapter_of(folder, "text", part="text")
    assert adapter.prepare.max_len == LENGTH
    for name, text in HARD.items():
        expected = tokenizer(text)["input_ids"]
        assert ids_of(adapter, text) == expected, name
        assert len(expected) < LENGTH, name


@pytest.mark.parametrize("max_len", [2, 5, 17])
def test_a_text_is_cut_where_truncation_of_transformers_cuts_it(max_len, text_checkpoint):
    folder, tokenizer = text_checkpoint
    adapter = adapter_of(folder, "text", part="text", max_len=max_len)
    for name, text in HARD.items():
        whole = tokenizer(text)["input_ids"]
        expected = tokenizer(text, truncation=True, max_length=max_len)["input_ids"]
        assert ids_of(adapter, text) == expected, name
        cut = int(adapter.prepare(text)["cut"])
        assert cut == len(whole) - len(expected), name
        if tokenizer.num_special_tokens_to_add():
            assert expected[-1] == whole[-1], name  # the token that ends a text stays


def test_any_text_becomes_the_same_ids(text_checkpoint):
    folder, tokenizer = text_checkpoint
    adapter = adapter_of(folder, "text", part="text", max_len=31)

    @settings(max_examples=40, deadline=None, database=None)
    @given(st.text(min_size=1).filter(str.strip))
    def check(text):
        assert ids_of(adapter, text) == tokenizer(text, truncation=True, max_length=31)["input_ids"]

    check()


@pytest.mark.parametrize("text", ["", " ", "\n\t \r\n", "\u3000\u00a0\u2028"], ids=ascii)
def test_a_text_without_a_letter_which_theirs_takes_is_bad_with_us(text, text_checkpoint):
    folder, _ = text_checkpoint
    with pytest.raises(BadMedia, match="blank text"):
        adapter_of(folder, "text", part="text").prepare.read(text)


# CLIP's files are not enough to know its tokenizer by, and are refused.
@pytest.mark.parametrize("name", ["BERT", "BERT, cased", "RoBERTa", "GPT-2"])
def test_the_vocabulary_files_of_old_checkpoints_give_the_same_ids(name, tmp_path):
    make, model = TOKENIZERS[name]
    tokenizer = make()
    model(len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    tokenizer.backend_tokenizer.model.save(str(tmp_path))
    adapter = adapter_of(tmp_path, "text")
    for kind, text in HARD.items():
        assert ids_of(adapter, text) == tokenizer(text)["input_ids"], kind
