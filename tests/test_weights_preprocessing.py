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
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

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


# Width and height. The margins that a crop of 24, 40 or 48 leaves of these are such that half of one is
# rounded the same way by all; HALVES are the others.
SHAPES = [(101, 67), (13, 17), (29, 211), (211, 31), (1, 47), (53, 1), (24, 24), (40, 40), (48, 48), (49, 48)]
MODES = ["L", "P", "RGBA", "LA"]


def normalised(adapter, image):
    """What the model sees of it: the pixels with mean and deviation taken off."""
    pixels = adapter.prepare(adapter.prepare.read(image))["pixels"]
    assert pixels.dtype == torch.uint8
    return (pixels / 255 - adapter.mean[:, None, None]) / adapter.std[:, None, None]


def theirs_of(processor, image):
    """Of the peer, at float32."""
    return processor(image, return_tensors="pt")["pixel_values"][0]


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
        expected = theirs_of(processor, image)
        torch.testing.assert_close(normalised(adapter, image), expected, atol=2e-6, rtol=0, msg=f"{width}x{height}")
        compared += 1
    assert compared >= 7


