"""Option groups of the video adapter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dxn.core.randomness import check_probability

VideoTokens = Literal["tubelet", "frame"]
SamplingMode = Literal["uniform", "first", "random"]


@dataclass(frozen=True)
class VideoSampling:
    """Options of the frames that are read from a clip.

    Args:
        num_frames: Maximum number of frames of a sample. A shorter clip has fewer tokens.
        fps: Frames per second at which a clip is read. Default: all frames of the file.
        mode: Frames that are used of a longer clip: uniform (num_frames frames over the whole
            clip), first (its start) or random (consecutive frames from a random start in training,
            otherwise from the middle).
        max_seconds: Maximum duration in seconds. Longer clips are rejected.
        max_frames: Maximum number of frames of a file. Longer clips are rejected.
    """

    num_frames: int = 16
    fps: float | None = None
    mode: SamplingMode = "uniform"
    max_seconds: float = 60.0
    max_frames: int = 4000

    def __post_init__(self) -> None:
        if self.mode not in get_args(SamplingMode):
            raise ValueError(f"sampling.mode must be uniform, first or random, got {self.mode!r}")
        if self.num_frames < 1:
            raise ValueError(f"sampling.num_frames must be at least 1, got {self.num_frames}")
        if self.fps is not None and not 0 < self.fps <= 1000:
            raise ValueError(
                f"sampling.fps must be above 0 and at most 1000 frames per second, got {self.fps}"
            )
        if not self.max_seconds > 0:
            raise ValueError(f"sampling.max_seconds must be above 0, got {self.max_seconds}")
        if self.max_frames < 1:
            raise ValueError(f"sampling.max_frames must be at least 1, got {self.max_frames}")


@dataclass(frozen=True)
class VideoAugment:
    """Random augmentation of training clips. All frames of a clip are changed in the same way.

    Args:
        crop: Maximum shift in each direction, in pixels of the frames after they have been reduced
            to image_size. Pixels at the edge are repeated.
        zoom: Minimum fraction of the area in a random crop, which is resized to the full size. 1
            disables it. Smaller fractions need more memory.
        flip: Flip clips horizontally with probability 1/2. This exchanges motion to the left and
            motion to the right.
        color: Maximum relative change of the brightness and of the contrast, from 0 to 1.
        time_jitter: With sampling.mode=uniform, maximum shift of each frame in time, as a fraction
            of the distance between frames, from 0 to 1. It triples the memory of the clips.
    """

    crop: int = 0
    zoom: float = 1.0
    flip: bool = False
    color: float = 0.0
    time_jitter: float = 0.0

    def __post_init__(self) -> None:
        # crop and zoom are checked by ImageAugment.
        check_probability("color", self.color)
        check_probability("time_jitter", self.time_jitter)
