"""Images prepared as a checkpoint's own library prepares them, pixel by pixel."""

import json

import numpy as np
import pytest
import timm
import torch
import transformers
from helpers.checkpoints import adapter_of
from helpers.peers import cases
from PIL import Image
from safetensors.torch import save_file

import dxn
from dxn.core.errors import UserError
from dxn.weights import read_public

pytestmark = pytest.mark.filterwarnings(
    "ignore:::timm", "ignore:::transformers", "ignore:::torchvision"
)
SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
VISION = {**SIZES, "image_size": 40, "patch_size": 8, "projection_dim": 11}
# Width and height: larger, smaller, tall, wide, one pixel wide or high, exactly as wanted.
SHAPES = [
    (101, 67),
    (13, 17),
    (29, 211),
    (211, 31),
    (1, 47),
    (53, 1),
    (24, 24),
    (40, 40),
    (48, 48),
    (49, 48),
]
MODES = ["L", "P", "RGBA", "LA"]
MEAN = [0.41, 0.53, 0.47]
STD = [0.23, 0.29, 0.31]
# Torchvision resizes bilinearly in integers, as dxn does, if the processor has AVX2, and in float32
# otherwise.
LEVELS = 0 if "AVX" in torch.backends.cpu.get_cpu_capability() else 1


def picture(width, height, mode="RGB"):
    """Noise, which shows every misplaced pixel and every wrong weight."""
    rand = np.random.default_rng(width * 1009 + height)
    bands = {"L": (), "P": (), "RGB": (3,), "RGBA": (4,), "LA": (2,)}[mode]
    pixels = rand.integers(256, size=(height, width, *bands), dtype=np.uint8)
    if mode == "P":
        image = Image.fromarray(pixels, "L").convert("P")
        image.putpalette(rand.integers(256, size=768, dtype=np.uint8).tobytes())
        return image
    return Image.fromarray(pixels)


def normalized(adapter, image):
    """The pixels as the model sees them."""
    pixels = adapter.tokenizer(adapter.tokenizer.reader.read(image))["pixels"]
    assert pixels.dtype == torch.uint8
    return (pixels / 255 - adapter.mean[:, None, None]) / adapter.std[:, None, None]


def levels_apart(adapter, image, expected):
    """Differences to expected normalized pixels, in levels of 255."""
    return (normalized(adapter, image) - expected).abs() * adapter.std[:, None, None] * 255


def processed(processor, image):
    """The pixels as a model of transformers sees them."""
    return processor(image, return_tensors="pt")["pixel_values"][0]


def assert_same_pixels(adapter, image, expected):
    """Equal except for the rounding of the division: no pixel differs by a level of 255."""
    apart = levels_apart(adapter, image, expected)
    assert apart.max() < LEVELS + 1e-4, (image.size, image.mode)


# transformers


def save_vit(folder, processor, *, side=24, kind="ViT"):
    config = getattr(transformers, f"{kind}Config")(**SIZES, image_size=side, patch_size=8)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)


def save_deit(folder, processor):
    save_vit(folder, processor, kind="DeiT")


def save_dinov2(folder, processor, **options):
    save_vit(folder, processor, kind="Dinov2", **options)


def save_clip(folder, processor):
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    text = {**SIZES, "vocab_size": 5, "projection_dim": 11, **special}
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=11)
    transformers.CLIPModel(config).save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)


def save_siglip(folder, processor, *, side=40):
    """Save a small model with random weights, and return it."""
    vision = {**SIZES, "image_size": side, "patch_size": 8}
    model = cases.randomize(
        transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**vision))
    )
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model


def vit_processor(**options):
    usual = {"size": {"height": 24, "width": 24}, "image_mean": MEAN, "image_std": STD}
    return transformers.ViTImageProcessor(**{**usual, **options})


def bit_processor(side=56, crop=48, **options):
    usual = {
        "size": {"shortest_edge": side},
        "crop_size": {"height": crop, "width": crop},
        "image_mean": MEAN,
        "image_std": STD,
    }
    return transformers.BitImageProcessor(**{**usual, **options})


def clip_processor(**options):
    usual = {"size": {"shortest_edge": 40}, "crop_size": {"height": 40, "width": 40}}
    return transformers.CLIPImageProcessor(**{**usual, **options})


def deit_processor():
    return transformers.DeiTImageProcessor(
        size={"height": 29, "width": 29},
        crop_size={"height": 24, "width": 24},
        image_mean=MEAN,
        image_std=STD,
    )


# How to save each, and its processor.
PROCESSORS = {
    "ViT, bilinear": (save_vit, vit_processor),
    "ViT, bicubic": (save_vit, lambda: vit_processor(resample=3)),
    "ViT, not normalized": (save_vit, lambda: vit_processor(do_normalize=False)),
    "ViT, not rescaled": (save_vit, lambda: vit_processor(do_rescale=False)),
    "ViT, from 0 to 2": (save_vit, lambda: vit_processor(rescale_factor=1 / 127.5)),
    "ViT, neither": (save_vit, lambda: vit_processor(do_rescale=False, do_normalize=False)),
    "DeiT, stretched and cropped": (save_deit, deit_processor),
    "DINOv2": (lambda f, p: save_dinov2(f, p, side=32), bit_processor),
    "DINOv2, bilinear": (save_dinov2, lambda: bit_processor(64, 48, resample=2)),
    "DINOv2, wider than high": (
        save_dinov2,
        lambda: bit_processor(size={"height": 24, "width": 40}, do_center_crop=False),
    ),
    # 44 / (44 / 85) is a little less than 85.
    "DINOv2, a crop ratio with a rounding error": (save_dinov2, lambda: bit_processor(85, 44)),
    "CLIP": (save_clip, clip_processor),
}


def same_halves(processor, width, height):
    """Whether half the margin around the crop is rounded in the same direction by both libraries.

    Transformers rounds down, torchvision and dxn to the even number.
    """
    if "crop_size" not in processor.to_dict() or not processor.do_center_crop:
        return True
    size = processor.size
    if size.height:
        sides = (size.height, size.width)
    else:
        sides = (size.shortest_edge * n // min(width, height) for n in (width, height))
    return all((side - processor.crop_size.height) % 4 != 3 for side in sides)


@pytest.mark.parametrize("name", PROCESSORS)
def test_images_are_those_that_the_processor_of_transformers_makes(name, tmp_path):
    save, make = PROCESSORS[name]
    processor = make()
    save(tmp_path, processor)
    adapter = adapter_of(tmp_path, "image", part="image")
    compared = 0
    for width, height in SHAPES:
        if not same_halves(processor, width, height):
            continue
        image = picture(width, height)
        assert_same_pixels(adapter, image, processed(processor, image))
        compared += 1
    assert compared >= 7


def test_half_an_odd_margin_is_rounded_as_by_torchvision(tmp_path):
    """One pixel beyond transformers, but equal to timm and to the authors of CLIP."""
    processor = clip_processor()
    save_clip(tmp_path, processor)
    adapter = adapter_of(tmp_path, "image", part="image")
    image = picture(43, 40)  # torchvision leaves 2 of the margin of 3 on the left
    expected = processed(processor, image)
    assert not torch.allclose(normalized(adapter, image), expected, atol=0.1)
    moved = processed(processor, image.crop((1, 0, 43, 40)))
    assert_same_pixels(adapter, image, moved)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["CLIP", "DINOv2"])
def test_gray_palette_and_transparent_images_are_converted_as_by_transformers(name, mode, tmp_path):
    save, make = PROCESSORS[name]
    processor = make()
    save(tmp_path, processor)
    adapter = adapter_of(tmp_path, "image", part="image")
    image = picture(59, 61, mode)
    assert_same_pixels(adapter, image, processed(processor, image))


# How to save each, and its processor.
USUAL = {
    "ViT": (save_vit, vit_processor),
    "DeiT": (save_deit, deit_processor),
    "DINOv2": (save_dinov2, bit_processor),
    "CLIP": (save_clip, clip_processor),
    "SigLIP": (
        save_siglip,
        lambda: transformers.SiglipImageProcessor(size={"height": 40, "width": 40}),
    ),
}


@pytest.mark.parametrize("is_named", [True, False], ids=["with its class", "without its class"])
@pytest.mark.parametrize("name", USUAL)
def test_without_a_filter_the_processors_default_is_used(name, is_named, tmp_path):
    save, make = USUAL[name]
    processor = make()
    save(tmp_path, processor)
    path = tmp_path / "preprocessor_config.json"
    settings = json.loads(path.read_text())
    removed = ["resample", *([] if is_named else ["image_processor_type"])]
    path.write_text(json.dumps({k: v for k, v in settings.items() if k not in removed}))
    adapter = adapter_of(tmp_path, "image", part="image")
    image = picture(97, 67)
    assert_same_pixels(adapter, image, processed(processor, image))


def test_pixels_beyond_the_last_whole_patch_are_dropped(tmp_path):
    processor = transformers.SiglipImageProcessor(size={"height": 44, "width": 44})
    peer = save_siglip(tmp_path, processor, side=44).eval()
    image = picture(97, 67)
    model = dxn.from_public(str(tmp_path), dtype="float32")
    assert model.tokens(image=image).x.shape[1] == 25
    with torch.inference_mode():
        expected = peer(**processor(image, return_tensors="pt")).pooler_output[0]
    np.testing.assert_allclose(model.embed(image=image), expected, atol=1e-4)


def test_the_file_names_the_processor(tmp_path):
    processor = bit_processor()
    save_vit(tmp_path, processor, side=48)
    path = tmp_path / "preprocessor_config.json"
    settings = json.loads(path.read_text())
    del settings["resample"], settings["do_center_crop"]
    path.write_text(json.dumps({**settings, "image_processor_type": "BitImageProcessorFast"}))
    adapter = adapter_of(tmp_path, "image")
    image = picture(101, 67)
    assert_same_pixels(adapter, image, processed(processor, image))


# How to save each, its size as one number, what that means, and the class of its processor.
OLD = {
    "CLIP": (save_clip, 40, {"shortest_edge": 40}, transformers.CLIPImageProcessor),
    "ViT": (save_vit, 24, {"height": 24, "width": 24}, transformers.ViTImageProcessor),
    "DINOv2": (save_dinov2, 24, {"shortest_edge": 24}, transformers.BitImageProcessor),
}


@pytest.mark.parametrize("name", OLD)
def test_a_size_of_one_number_means_what_it_means_to_the_family(name, tmp_path):
    save, side, meaning, cls = OLD[name]
    save(tmp_path, None)
    settings = {
        "size": side,
        "crop_size": side,
        "resample": 3,
        "image_mean": MEAN,
        "image_std": STD,
        "do_center_crop": name != "ViT",
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    adapter = adapter_of(tmp_path, "image", part="image")
    processor = cls.from_pretrained(tmp_path)
    assert {k: v for k, v in dict(processor.size).items() if v} == meaning
    image = picture(97, 67)
    assert_same_pixels(adapter, image, processed(processor, image))


def test_a_processor_that_was_saved_with_a_tokenizer_is_read(tmp_path):
    processor = clip_processor(image_mean=MEAN, image_std=STD, size={"shortest_edge": 50})
    save_clip(tmp_path, None)
    both = transformers.CLIPProcessor(processor, transformers.CLIPTokenizer())
    both.save_pretrained(tmp_path)
    assert not (tmp_path / "preprocessor_config.json").exists()
    adapter = adapter_of(tmp_path, "image", part="image")
    image = picture(97, 67)
    assert_same_pixels(adapter, image, processed(processor, image))


@pytest.mark.parametrize("name", ["CLIP", "ViT"])
def test_without_a_processor_the_librarys_default_is_used(name, tmp_path):
    save = save_clip if name == "CLIP" else save_vit
    processor = clip_processor()
    if name == "ViT":
        processor = vit_processor(image_mean=[0.5] * 3, image_std=[0.5] * 3)
    save(tmp_path, None)
    adapter = adapter_of(tmp_path, "image", part="image")
    image = picture(97, 67)
    assert_same_pixels(adapter, image, processed(processor, image))


REFUSED = [
    (lambda: vit_processor(resample=1), "PIL's resampling filter 1 for resizing images"),
    (
        lambda: bit_processor(do_center_crop=False),
        "images that keep their aspect ratio and are not cropped",
    ),
    (
        lambda: bit_processor(40, 48),
        "a crop of 48 pixels from images of 40, padded with black",
    ),
    (
        lambda: bit_processor(crop_size={"height": 24, "width": 40}),
        "images that are cropped, and are not square before or after it",
    ),
    (lambda: vit_processor(do_resize=False), r"images that are not resized \(do_resize=false\)"),
    (
        lambda: bit_processor(size={"shortest_edge": 24, "longest_edge": 40}),
        "images that keep their aspect ratio and are not cropped",
    ),
    (
        lambda: bit_processor(size={"max_height": 24, "max_width": 40}),
        r"size=\{'max_height': 24, 'max_width': 40\} in preprocessor_config.json",
    ),
    (lambda: bit_processor(do_pad=True), "do_pad=True in preprocessor_config.json"),
    (
        lambda: transformers.ConvNextImageProcessor(),
        "the image processor 'ConvNextImageProcessor'",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_a_processor_with_an_unsupported_feature_is_refused(make, message, tmp_path):
    save_dinov2(tmp_path, make())
    with pytest.raises(UserError, match=f"dxn does not support {message}"):
        read_public(str(tmp_path))


def test_images_of_another_aspect_ratio_than_the_positions_are_refused(tmp_path):
    save_vit(tmp_path, vit_processor(size={"height": 24, "width": 32}))
    with pytest.raises(UserError, match="images of 24 by 32 pixels for a square grid of patches"):
        read_public(str(tmp_path))


# timm


def save_timm(folder, *, side=40, **settings):
    """Save a model with its pretrained_cfg, and return the transform that timm resolves it to."""
    model = timm.models.VisionTransformer(
        img_size=side, patch_size=8, embed_dim=8, depth=1, num_heads=2
    )
    settings = {
        "input_size": [3, side, side],
        "mean": MEAN,
        "std": STD,
        "interpolation": "bicubic",
        **settings,
    }
    config = {"model_args": {"num_heads": 2}, "pretrained_cfg": settings}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), folder / "model.safetensors")
    resolved = timm.data.resolve_data_config({}, pretrained_cfg=settings)
    return timm.data.create_transform(**resolved, is_training=False)


TIMM = [
    {"crop_pct": 0.9},
    {"crop_pct": 0.875},
    {"crop_pct": 1.0},
    {"crop_pct": 0.9, "interpolation": "bilinear"},
    {"crop_pct": 0.95, "crop_mode": "squash"},
    {"crop_pct": 1.0, "crop_mode": "squash", "interpolation": "bilinear"},
    {"crop_pct": 0.9, "side": 44},  # 5.5 patches
]
# timm resizes with PIL, whose weights are rounded to other integers than torch's, and both round to
# 256 levels after each of two passes. So one level is the smallest difference to be expected. Where
# an image is enlarged or hardly shrinks, one level after the first pass becomes two after the
# second in a few places. NEAR leaves room for float32.
NEAR = 1 + 1e-3


@pytest.mark.parametrize("settings", TIMM, ids=str)
def test_images_are_those_of_timm_within_one_level_of_255_and_rarely_two(settings, tmp_path):
    transform = save_timm(tmp_path, **settings)
    adapter = adapter_of(tmp_path, "image")
    target = settings.get("side", 40) // settings["crop_pct"]
    is_squashed = settings.get("crop_mode") == "squash"
    for width, height in [*SHAPES, (43, 40), (40, 47), (227, 151)]:
        smooth = picture(5, 7).resize((width, height), Image.Resampling.BICUBIC)
        images = [smooth, picture(width, height)]
        if is_squashed and width < target < height:
            # PIL resizes the height first here, and clips other peaks of noise.
            images = [smooth]
        for image in images:
            apart = levels_apart(adapter, image, transform(image.convert("RGB")))
            limit = 1 if min(width, height) > 1.5 * target else 2
            assert apart.max() < limit * NEAR, (width, height)
            assert (apart > NEAR).float().mean() < 2e-3, (width, height)


def test_gray_palette_and_opaque_images_are_those_of_timm_in_color(tmp_path):
    transform = save_timm(tmp_path, crop_pct=0.9)
    adapter = adapter_of(tmp_path, "image")
    opaque = picture(59, 61, "RGBA")
    opaque.putalpha(255)
    for image in (picture(59, 61, "L"), picture(59, 61, "P"), opaque):
        apart = levels_apart(adapter, image, transform(image.convert("RGB")))
        assert apart.max() < NEAR, image.mode


def test_images_of_timm_with_a_border_are_refused(tmp_path):
    save_timm(tmp_path, crop_pct=0.9, crop_mode="border")
    message = r"dxn supports only crop_mode=center and crop_mode=squash, got 'border'"
    with pytest.raises(UserError, match=message):
        read_public(str(tmp_path))
