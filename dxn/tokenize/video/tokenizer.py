"""The tokenizer of the video adapter: clips become frames of the configured size."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from annotated_types import Ge, Interval
from einops import rearrange
from torch import Tensor

from dxn.core.schema import options
from dxn.tokenize.base import Placement, Sample, Tokenizer
from dxn.tokenize.image.augment import ImageAugment
from dxn.tokenize.image.tokenizer import USUAL_PATCH, ImageTokenizer, ResizeOptions
from dxn.tokenize.video.reader import VideoReader, VideoSampling


@options
class VideoAugment:
    """Random augmentation of training clips. All frames of a clip are changed in the same way.

    Args:
        crop: Maximum shift in each direction, in pixels of the frames after they have been reduced
            to image_size. Pixels at the edge are repeated.
        zoom: Minimum fraction of the area in a random crop, which is resized to the full size. 1
            disables it. Smaller fractions need more memory.
        flip: Flip clips horizontally with probability 1/2. This exchanges motion to the left and
            motion to the right.
        jitter: Maximum relative change of contrast and brightness, which are drawn per clip.
    """

    crop: Annotated[int, Ge(0)] = 0
    zoom: Annotated[float, Interval(gt=0, le=1)] = 1.0
    flip: bool = False
    jitter: Annotated[float, Interval(ge=0, lt=1)] = 0.0


CHANNELS = 3


class VideoTokenizer(Tokenizer):
    """Convert a clip to frames of the configured size.

    Args:
        image_size: Size of the resized frames: [height, width], or one number for a square. With
            resize.mode=within, the maximum size.
        sampling: Options of the frames that are read.
        resize: Options of reading and resizing frames.
        augment: Augmentation of training clips.
    """

    reader: VideoReader

    def __init__(
        self,
        *,
        image_size: int | Sequence[int],
        sampling: VideoSampling,
        resize: ResizeOptions,
        augment: VideoAugment,
    ):
        # The frames of a clip are resized and augmented as the channels of one image.
        self.image = ImageTokenizer(
            image_size=image_size,
            resize=resize,
            in_channels=CHANNELS,
            augment=ImageAugment(
                crop=augment.crop, zoom=augment.zoom, flip=augment.flip, jitter=augment.jitter
            ),
        )
        self.sampling = sampling
        self.is_random = augment != VideoAugment() or sampling.mode == "random"
        # Only the frames that `__call__` can need are kept, and larger frames are reduced, so that
        # a data set of clips fits into memory.
        self.reader = VideoReader(
            sampling=sampling,
            num_kept=sampling.num_frames,
            max_pixels=resize.max_pixels,
            reduced_size=self.image.kept_size,
            interpolation=resize.interpolation,
        )

    def plain(self) -> VideoTokenizer:
        """Return a tokenizer whose reader keeps no additional pixels for augmentation."""
        assert self.image.image_size is not None
        return VideoTokenizer(
            image_size=self.image.image_size,
            sampling=self.sampling,
            resize=self.image.resize,
            augment=VideoAugment(),
        )

    def __call__(self, raw: Tensor, rand: random.Random | None = None) -> Sample:
        """Choose frames of raw (T, 3, H, W) and resize them, after augmentation if rand is set.

        Returns:
            pixels uint8 (t, 3, h, w); lengths (), t; sizes (2,), h and w; times (t,), the index of
            each frame in raw; num_read (), T; and pixel_map (6,), the position of the pixels in the
            frames of raw, see `dxn.tokenize.image.augment.PixelMap`.
        """
        times = self._chosen(len(raw), rand)
        sample = self.image(rearrange(raw[times], "t c h w -> (t c) h w"), rand)
        pixels = rearrange(sample["pixels"], "(t c) h w -> t c h w", c=CHANNELS)
        lengths = torch.tensor(len(pixels))
        num_read = torch.tensor(len(raw))
        return {
            **sample,
            "pixels": pixels,
            "lengths": lengths,
            "times": times,
            "num_read": num_read,
        }

    def placement(self, sample: Mapping[str, Tensor]) -> Placement:
        """Return where the frames lie in time. Places are fractions of the clip."""
        times, last = sample["times"].float(), sample["lengths"][..., None] - 1
        start = times[..., :1]
        stop = times.gather(-1, last) + 1
        return Placement(start, stop - start, sample["num_read"][..., None].float())

    def length(self, raw: Tensor) -> float:
        """Return the approximate number of tokens of a clip raw (T, 3, H, W)."""
        return min(len(raw), self.sampling.num_frames) * raw[0, 0].numel() / USUAL_PATCH

    def header(self, cell: Any) -> float:
        """Check the times of the frames and their size, and return the `length` of a clip."""
        count, height, width = self.reader.shape(cell)
        return min(count, self.sampling.num_frames) * height * width / USUAL_PATCH

    def _chosen(self, count: int, rand: random.Random | None) -> Tensor:
        """Return the indices of the frames of a sample, of `count` frames that were read."""
        num_frames = self.sampling.num_frames
        if count <= num_frames or self.sampling.mode == "first":
            return torch.arange(min(count, num_frames))
        if self.sampling.mode == "random":
            last = count - num_frames
            start = last // 2 if rand is None else rand.randint(0, last)
            return torch.arange(start, start + num_frames)
        # One frame of each of num_frames equal parts, as in arXiv:1608.00859, section 3.1.
        step = count / num_frames
        return torch.tensor([int((i + 0.5) * step) for i in range(num_frames)])
