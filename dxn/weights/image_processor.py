"""Read how the image processors of transformers prepare images: preprocessor_config.json."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from dxn.core.untrusted import shortened
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.family import Options
from dxn.weights.hf import unsupported
from dxn.weights.preprocessor import Settings, check_keys, class_name, refuse

# Mean and standard deviation of each channel: a common default, and the values of two data sets.
HALF: Settings = {"image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}
IMAGENET: Settings = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
CLIP: Settings = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
BILINEAR, BICUBIC = 2, 3  # values of PIL.Image.Resampling
INTERPOLATIONS = {BILINEAR: "bilinear", BICUBIC: "bicubic"}
LEVELS = 255  # dxn divides pixels by this number
# Settings that every image processor has.
COMMON: Settings = {
    "do_resize": True,
    "do_center_crop": False,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / LEVELS,
    "do_normalize": True,
}
SQUARE: Settings = {**COMMON, "size": {"height": 224, "width": 224}}
CROPPED: Settings = {**COMMON, "size": {"shortest_edge": 224}, "do_center_crop": True}
DETECTION: Settings = {
    **COMMON,
    **IMAGENET,
    "size": {"shortest_edge": 800, "longest_edge": 1333},
    "max_size": 1333,
    "resample": BILINEAR,
    "do_pad": True,
}
# The settings that each image processor reads, with their default values, by its name.
PROCESSORS: dict[str, Settings] = {
    "ViT": {**SQUARE, **HALF, "resample": BILINEAR},
    "DeiT": {
        **SQUARE,
        **HALF,
        "size": {"height": 256, "width": 256},
        "do_center_crop": True,
        "resample": BICUBIC,
    },
    "Siglip": {**SQUARE, **HALF, "resample": BICUBIC},
    "Bit": {**CROPPED, **CLIP, "resample": BICUBIC},
    "CLIP": {**CROPPED, **CLIP, "resample": BICUBIC},
    "Llava": {**CROPPED, **CLIP, "resample": BICUBIC},
    "VideoMAE": {**CROPPED, **HALF, "resample": BILINEAR},
    "Yolos": DETECTION,
    "Detr": DETECTION,
    "Eomt": {
        **COMMON,
        **IMAGENET,
        "size": {"shortest_edge": 640, "longest_edge": 640},
        "resample": BILINEAR,
        "do_pad": False,
        "do_split_image": False,
    },
}
# The form of a name such as "ViTImageProcessorFast".
TYPE = re.compile(r"(\w+?)(ImageProcessor|VideoProcessor|FeatureExtractor)(Fast|Pil)?")
# Keys of the file that do not change the pixels of an image in color.
HARMLESS = frozenset(
    {
        "_valid_processor_keys",
        "data_format",
        "device",
        "disable_grouping",
        "do_convert_annotations",
        "do_convert_rgb",
        "do_reduce_labels",
        "do_sample_frames",
        "format",
        "ignore_index",
        "image_seq_length",
        "input_data_format",
        "num_frames",
        "num_labels",
        "pad_and_return_pixel_mask",
        "return_metadata",
    }
)
SIZES = ({"height", "width"}, {"shortest_edge"}, {"shortest_edge", "longest_edge"})


@dataclass(frozen=True)
class ImageProcessor:
    """How an image processor of transformers prepares images.

    Args:
        size: Size after resizing: height and width, shortest_edge, or shortest_edge and
            longest_edge.
        crop_size: Height and width after a center crop. None: images are not cropped.
        interpolation: Interpolation of the pixels.
        normalize: Mean and standard deviation of each channel, for pixels from 0 to 1.
    """

    size: Mapping[str, int]
    crop_size: tuple[int, int] | None
    interpolation: str
    normalize: Options


def read_image_processor(
    checkpoint: Checkpoint, name: str, channels: int, *, without_file: Settings
) -> ImageProcessor:
    """Read preprocessor_config.json.

    Args:
        checkpoint: The checkpoint.
        name: Key in `PROCESSORS` of the family's image processor, if the file does not name one.
        channels: Number of channels of an image.
        without_file: The settings if there is no file. Those that are missing here or in the file
            have the default values of the image processor.

    Raises:
        UserError: If dxn does not support a setting.
    """
    content = checkpoint.preprocessor
    written = class_name(checkpoint)
    if written is not None:
        match = TYPE.fullmatch(written)
        name = match[1] if match is not None else ""
        if name not in PROCESSORS:
            unsupported(checkpoint, f"the image processor {shortened(written)}")
    defaults = PROCESSORS[name]
    check_keys(checkpoint, {*defaults, *HARMLESS})
    chosen = content or without_file
    settings = {**defaults, **{key: chosen[key] for key in chosen if chosen[key] is not None}}
    if not settings["do_resize"]:
        unsupported(checkpoint, "images that are not resized (do_resize=false)")
    if settings["resample"] not in INTERPOLATIONS:
        unsupported(
            checkpoint, f"PIL's resampling filter {settings['resample']} for resizing images"
        )
    return ImageProcessor(
        size=_size(checkpoint, settings, defaults["size"]),
        crop_size=_crop_size(settings),
        interpolation=INTERPOLATIONS[settings["resample"]],
        normalize=_normalize(settings, channels),
    )


def _size(checkpoint: Checkpoint, settings: Settings, default: Settings) -> dict[str, int]:
    """Return the size after resizing. In old files it is a number, whose meaning differs."""
    size = settings["size"]
    if not isinstance(size, Mapping):
        if "shortest_edge" not in default:
            size = {"height": size, "width": size}
        else:
            size = {"shortest_edge": size, "longest_edge": settings.get("max_size")}
    size = {key: side for key, side in size.items() if side is not None}
    if set(size) not in SIZES:
        refuse(checkpoint, "size", size)
    return size


def _crop_size(settings: Settings) -> tuple[int, int] | None:
    """Return the height and the width after a center crop. None: images are not cropped."""
    if not settings["do_center_crop"]:
        return None
    size = settings["crop_size"]
    return (size["height"], size["width"]) if isinstance(size, Mapping) else (size, size)


def _normalize(settings: Settings, channels: int) -> Options:
    """Return the mean and the standard deviation of each channel, for pixels from 0 to 1."""
    # The library multiplies pixels from 0 to 255 by rescale_factor, or leaves them as they are.
    scale = LEVELS * (settings["rescale_factor"] if settings["do_rescale"] else 1)
    # Without normalization: subtract 0 and divide by 1.
    values = {"mean": settings["image_mean"], "std": settings["image_std"]}
    if not settings["do_normalize"]:
        values = {"mean": 0.0, "std": 1.0}
    lists = {k: v if isinstance(v, Sequence) else [v] * channels for k, v in values.items()}
    return {key: [float(x) / scale for x in numbers[:channels]] for key, numbers in lists.items()}


def adapter_options(
    kernel: Tensor, *, image_size: Sequence[int], resize: Options, normalize: Options
) -> Options:
    """Return the options of the image adapter of a vision transformer.

    Args:
        kernel: (D, C, P, P). Kernel of the convolution of the patches.
        image_size: Height and width of an image.
        resize: Options of resizing.
        normalize: Options of normalizing.
    """
    height, width = image_size
    patch_size = kernel.shape[2]
    # A strided convolution ignores an incomplete patch at the end.
    is_dropped = height % patch_size or width % patch_size
    return {
        "image_size": height if height == width else [height, width],
        "patch_size": patch_size,
        "in_channels": kernel.shape[1],
        "pos_embed": "learned",
        "resize": {**resize, **({"pad_end": False} if is_dropped else {})},
        "normalize": normalize,
    }


def image_options(
    checkpoint: Checkpoint,
    kernel: Tensor,
    num_patches: int,
    name: str,
    *,
    image_size: int | None = None,
    without_file: Settings | None = None,
    antialias: bool = False,
) -> Options:
    """Return the options of the image adapter of a family whose images have one size.

    Args:
        checkpoint: The checkpoint.
        kernel: (D, C, P, P). Kernel of the convolution of the patches.
        num_patches: Number of position embeddings of patches.
        name: Key in `PROCESSORS` of the family's image processor.
        image_size: Image size in config.json, for a family whose images have the size in
            preprocessor_config.json. Default: the position embeddings determine the size.
        without_file: Mean and standard deviation of each channel, if there is no file. Default:
            those of the image processor.
        antialias: Whether transformers uses antialiasing to interpolate positions, which is rare.

    Raises:
        UserError: If dxn does not support the preprocessing, or the grid is not square.
    """
    side = math.isqrt(num_patches)
    if side**2 != num_patches:
        unsupported(checkpoint, f"a grid of {num_patches} patches, which is not a square")
    model_size = side * kernel.shape[2]
    usual_size = model_size if image_size is None else image_size
    processor = read_image_processor(
        checkpoint,
        name,
        kernel.shape[1],
        without_file={"size": usual_size, "crop_size": usual_size, **(without_file or {})},
    )
    target, resize = _resize_options(checkpoint, processor)
    if image_size is None:
        if target[0] != target[1]:
            unsupported(
                checkpoint,
                f"images of {target[0]} by {target[1]} pixels for a square grid of patches",
            )
        # A saved preprocessor may have another size than the position embeddings. The last pixels
        # may also be less than a patch, such as 384 pixels for 27 patches of 14.
        if target[0] // kernel.shape[2] != side:
            target = (model_size, model_size)
    resize |= {"pos_grid": [side, side], "pos_antialias": antialias}
    return adapter_options(kernel, image_size=target, resize=resize, normalize=processor.normalize)


def _resize_options(
    checkpoint: Checkpoint, processor: ImageProcessor
) -> tuple[tuple[int, int], Options]:
    """Return the height and the width of an image, and the options of resizing."""
    size, crop_size = processor.size, processor.crop_size
    keeps_ratio = "shortest_edge" in size
    if "longest_edge" in size or (keeps_ratio and crop_size is None):
        # Images would have different sizes, but there are position embeddings for one size only.
        unsupported(checkpoint, "images that keep their aspect ratio and are not cropped")
    resize = {
        "mode": "crop" if keeps_ratio else "stretch",
        "crop_ratio": 1.0,
        "interpolation": processor.interpolation,
    }
    if crop_size is None:
        return (size["height"], size["width"]), resize
    if len({*crop_size}) > 1 or len({*size.values()}) > 1:
        unsupported(checkpoint, "images that are cropped, and are not square before or after it")
    resized, target = next(iter(size.values())), crop_size[0]
    if target > resized:
        unsupported(
            checkpoint, f"a crop of {target} pixels from images of {resized}, padded with black"
        )
    # As in timm, the crop is defined by the ratio of the sizes after and before cropping.
    crop_ratio = target / resized
    # The adapter computes the size before cropping as floor(target / crop_ratio). If rounding makes
    # it one pixel too small, use the next smaller float.
    if math.floor(target / crop_ratio) < resized:
        crop_ratio = math.nextafter(crop_ratio, 0)
    return crop_size, {**resize, "crop_ratio": crop_ratio}
