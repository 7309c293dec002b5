"""Option groups of the image adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from annotated_types import Ge, Interval, Len

from dxn.core.randomness import Probability
from dxn.core.schema import options
from dxn.tokenize.image.reader import Interpolation

ResizeMode = Literal["within", "stretch", "crop"]


@options
class ResizeOptions:
    """Options of reading an image and resizing it to `image_size`.

    Args:
        mode: Method of resizing: within (shrink larger images, keep the aspect ratio and mask the
            padding), stretch (ignore the aspect ratio) or crop (keep the aspect ratio and crop the
            center).
        crop_ratio: Fraction of the shorter side that the center crop keeps. It has no effect with
            mode=within.
        interpolation: Interpolation of the pixels: bilinear or bicubic.
        max_pixels: Maximum number of pixels. Larger images are rejected.
        pos_grid: Height and width of the grid of learned positions in patches, for images without a
            fixed size, which have image_size=null or mode=within. It is interpolated to the grid of
            each image. Default: the grid of image_size, or of 224.
        pos_antialias: Use antialiasing when learned positions are interpolated to a smaller grid.
    """

    mode: ResizeMode = "within"
    crop_ratio: Annotated[float, Interval(gt=0, le=1)] = 1.0
    interpolation: Interpolation = "bilinear"
    max_pixels: Annotated[int, Ge(1)] = 50_000_000
    pos_grid: Annotated[Sequence[Annotated[int, Ge(1)]], Len(2, 2)] | None = None
    pos_antialias: bool = True


@options
class ImageNormalization:
    """Normalization of the pixels. Before it, pixels are scaled to the range from 0 to 1.

    Args:
        mean: Mean of each channel. Default: computed from the training split.
        std: Standard deviation of each channel. Default: computed from the training split.
    """

    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ValueError(
                f"normalize needs both mean and std, or neither, got {self.mean} and {self.std}"
            )
        if self.mean is not None and self.std is not None:
            # object.__setattr__, because the dataclass is frozen.
            object.__setattr__(self, "mean", tuple(self.mean))
            object.__setattr__(self, "std", tuple(self.std))


@options
class ImageAugment:
    """Random augmentation of training images. It is drawn again in each epoch.

    Args:
        crop: Maximum shift in each direction, in pixels of the image after it has been reduced to
            image_size. Pixels at the edge are repeated.
        zoom: Minimum fraction of the image area in a random crop, which is resized to the full
            size. 1 disables it. Smaller fractions need more memory, because images are kept at a
            higher resolution.
        flip: Flip images horizontally with probability 1/2.
        randaugment: Magnitude from 0 to 30 of two random RandAugment operations
            (arXiv:1909.13719). 0 disables them.
        erase: Probability of erasing a random rectangle (arXiv:1708.04896).
        token_dropout: Fraction of the patches that is dropped from each image (arXiv:2212.00794).
    """

    crop: Annotated[int, Ge(0)] = 0
    zoom: Annotated[float, Interval(gt=0, le=1)] = 1.0
    flip: bool = False
    randaugment: Annotated[int, Interval(ge=0, le=30)] = 0
    erase: Probability = 0.0
    token_dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
