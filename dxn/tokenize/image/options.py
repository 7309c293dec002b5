"""Option groups of the image adapter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from dxn.core.randomness import check_probability
from dxn.tokenize.image.reader import Interpolation

ResizeMode = Literal["within", "stretch", "crop"]


@dataclass(frozen=True)
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
    crop_ratio: float = 1.0
    interpolation: Interpolation = "bilinear"
    max_pixels: int = 50_000_000
    pos_grid: Sequence[int] | None = None
    pos_antialias: bool = True

    def __post_init__(self) -> None:
        if self.mode not in get_args(ResizeMode):
            raise ValueError(f"resize.mode must be within, stretch or crop, got {self.mode!r}")
        if self.interpolation not in get_args(Interpolation):
            raise ValueError(
                f"interpolation must be bilinear or bicubic, got {self.interpolation!r}"
            )
        if not 0 < self.crop_ratio <= 1:
            raise ValueError(f"crop_ratio must be above 0 and at most 1, got {self.crop_ratio}")
        if self.max_pixels < 1:
            raise ValueError(f"max_pixels must be at least 1, got {self.max_pixels}")
        if self.pos_grid is not None and (len(self.pos_grid) != 2 or min(self.pos_grid) < 1):
            raise ValueError(
                f"resize.pos_grid must be two numbers of at least 1, got {list(self.pos_grid)}"
            )


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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

    crop: int = 0
    zoom: float = 1.0
    flip: bool = False
    randaugment: int = 0
    erase: float = 0.0
    token_dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.crop < 0:
            raise ValueError(f"crop must be at least 0, got {self.crop}")
        if not 0 < self.zoom <= 1:
            raise ValueError(f"zoom must be above 0 and at most 1, got {self.zoom}")
        if not 0 <= self.randaugment <= 30:
            raise ValueError(f"randaugment must be from 0 to 30, got {self.randaugment}")
        check_probability("erase", self.erase)
        if not 0 <= self.token_dropout < 1:
            raise ValueError(
                f"token_dropout must be at least 0 and below 1, got {self.token_dropout}"
            )
