"""The preprocessor of the video adapter, which runs in data workers."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from dxn.tokenize.examples import random_pictures
from dxn.tokenize.grid import collate_grids
from dxn.tokenize.image.options import ImageAugment, ResizeOptions
from dxn.tokenize.image.preprocessor import USUAL_PATCH, ImagePreprocessor
from dxn.tokenize.media import BadMedia, is_video, matching_fraction
from dxn.tokenize.video.file import read_video, video_header
from dxn.tokenize.video.options import VideoAugment, VideoSampling

CHANNELS = 3
# With time_jitter, this many times as many frames are kept. The middle one of three is the frame
# that is used without augmentation.
OVERSAMPLING = 3


class VideoPreprocessor:
    """Convert a clip to frames of the configured size.

    Args:
        image_size: Size of the resized frames: [height, width], or one number for a square. With
            resize.mode=within, the maximum size.
        sampling: Options of the frames that are read.
        resize: Options of reading and resizing frames.
        augment: Augmentation of training clips.
    """

    modality = "video"
    reads_files = True
    media_type = "video/*"
    has_words = False

    def __init__(
        self,
        *,
        image_size: int | Sequence[int],
        sampling: VideoSampling,
        resize: ResizeOptions,
        augment: VideoAugment,
    ):
        # The frames of a clip are resized and augmented as the channels of one image.
        self.image = ImagePreprocessor(
            image_size=image_size,
            resize=resize,
            in_channels=CHANNELS,
            augment=ImageAugment(crop=augment.crop, zoom=augment.zoom, flip=augment.flip),
        )
        self.sampling = sampling
        self.augment = augment

    def read(self, source: Any) -> Tensor:
        """Read a path, bytes or an array as uint8 (T, 3, H, W).

        Only the frames that `__call__` can need are kept, and larger frames are reduced, so that a
        data set of clips fits into memory.

        Raises:
            BadMedia: If the clip cannot be read or exceeds a limit.
        """
        return read_video(
            source,
            sampling=self.sampling,
            num_kept=self.sampling.num_frames * (OVERSAMPLING if self.augment.time_jitter else 1),
            max_pixels=self.image.resize.max_pixels,
            reduced_size=self.image.kept_size,
            interpolation=self.image.resize.interpolation,
        )

    def without_augment(self) -> VideoPreprocessor:
        """Return a preprocessor whose `read` keeps no additional frames for augmentation."""
        assert self.image.image_size is not None
        return VideoPreprocessor(
            image_size=self.image.image_size,
            sampling=self.sampling,
            resize=self.image.resize,
            augment=VideoAugment(),
        )

    def __call__(self, raw: Tensor, rand: random.Random | None = None) -> dict[str, Tensor]:
        """Choose frames of raw (T, 3, H, W) and resize them, after augmentation if rand is set.

        Returns:
            pixels uint8 (t, 3, h, w); times (t,), the index of each frame in raw; and frame (4,),
            the position of the pixels in the frames of raw, see `Frame` of image_augment.py.
        """
        times = self._chosen(len(raw), rand)
        clip = raw[times]
        if rand is not None and self.augment.color:
            clip = _change_color(clip, self.augment.color, rand)
        sample = self.image(rearrange(clip, "t c h w -> (t c) h w"), rand)
        pixels = rearrange(sample["pixels"], "(t c) h w -> t c h w", c=CHANNELS)
        return {"pixels": pixels, "times": times, "frame": sample["frame"]}

    def collate(self, samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Collate pixels uint8 (B, T, 3, H, W), padded at the end, at the bottom and on the right.

        The batch also has lengths (B,) in frames, sizes (B, 2), the height and width of each clip,
        times (B, T) and frame (B, 4).
        """
        shapes = torch.tensor([sample["pixels"].shape for sample in samples])
        # uint8 needs a quarter of the memory of float32; the adapter converts pixels later.
        batch = torch.zeros(len(samples), *shapes.amax(0).tolist(), dtype=torch.uint8)
        for row, sample in zip(batch, samples, strict=True):
            length, _, height, width = sample["pixels"].shape
            row[:length, :, :height, :width] = sample["pixels"]
        times = [sample["times"] for sample in samples]
        return {
            "pixels": batch,
            "lengths": shapes[:, 0],
            "sizes": shapes[:, 2:],
            "times": torch.nn.utils.rnn.pad_sequence(times, batch_first=True),
            "frame": torch.stack([sample["frame"] for sample in samples]),
            **collate_grids(samples),
        }

    def num_tokens(self, raw: Tensor) -> float:
        """Return the approximate number of tokens of a clip raw (T, 3, H, W)."""
        return min(len(raw), self.sampling.num_frames) * raw[0, 0].numel() / USUAL_PATCH

    def examples(self, count: int, rand: random.Random) -> list[Tensor]:
        """Return random raw values, see `dxn.tokenize.examples`."""
        frames = 2 * self.sampling.num_frames
        return random_pictures(self.image.image_size, CHANNELS, count, rand, frames)

    def recipe(self) -> dict[str, Any]:
        """Return what a program without dxn needs, see `dxn.tokenize.recipes`."""
        return {
            **self.image.recipe(),
            "prepare": "video",
            "num_frames": self.sampling.num_frames,
            "fps": self.sampling.fps,
            "sampling": self.sampling.mode,
            "max_seconds": self.sampling.max_seconds,
            "max_frames": self.sampling.max_frames,
        }

    def accepts(self, values: Sequence[Any]) -> float:
        """Return the fraction of the values that look like videos, see `is_video`."""
        return matching_fraction(values, is_video)

    def summarize(self, raws: Sequence[Tensor], sources: Sequence[Any]) -> str:
        """Summarize the numbers of frames that are read, and the sizes and rates of the sources."""
        if not raws:
            return ""
        counts = sorted(len(raw) for raw in raws)
        parts = [f"{_range(counts, '')} frames are read"]
        rates: list[float] = []
        for source in sources:
            with suppress(BadMedia):  # the data set reports invalid files itself
                rates.append(video_header(source).fps)
        known = [rate for rate in rates if rate]
        sizes = self.image.summarize([], [raw[0] for raw in raws])
        parts.append(f"size after reading: {sizes}")
        if known:
            parts.append(f"{_range(sorted(known), ' frames per second')} in the files")
        return "; ".join(parts)

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
        places = [0.5] * num_frames
        if rand is not None:
            jitter = self.augment.time_jitter
            places = [0.5 + jitter * (rand.random() - 0.5) for _ in places]
        step = count / num_frames
        return torch.tensor([int((i + place) * step) for i, place in enumerate(places)])


def _range(values: Sequence[float], unit: str) -> str:
    """Return the smallest, median and largest of sorted values."""
    if values[0] == values[-1]:
        return f"{values[0]:.4g}{unit}"
    median = statistics.median(values)
    return f"{values[0]:.4g} to {values[-1]:.4g}, median {median:.4g}{unit}"


def _change_color(clip: Tensor, limit: float, rand: random.Random) -> Tensor:
    """Change the contrast and the brightness of a clip uint8 (T, C, H, W)."""
    contrast = 1 + rand.uniform(-limit, limit)
    brightness = 1 + rand.uniform(-limit, limit)
    pixels = clip.float()
    mean = pixels.mean()
    return ((mean + contrast * (pixels - mean)) * brightness).clamp(0, 255).to(torch.uint8)
