"""Option groups of the video adapter."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from dxn.core.randomness import Probability
from dxn.core.schema import options

VideoTokens = Literal["tubelet", "frame"]
SamplingMode = Literal["uniform", "first", "random"]


@options
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

    num_frames: Annotated[int, Ge(1)] = 16
    fps: Annotated[float, Interval(gt=0, le=1000)] | None = None
    mode: SamplingMode = "uniform"
    max_seconds: Annotated[float, Gt(0)] = 60.0
    max_frames: Annotated[int, Ge(1)] = 4000


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
        color: Maximum relative change of the brightness and of the contrast, from 0 to 1.
        time_jitter: With sampling.mode=uniform, maximum shift of each frame in time, as a fraction
            of the distance between frames, from 0 to 1. It triples the memory of the clips.
    """

    crop: Annotated[int, Ge(0)] = 0
    zoom: Annotated[float, Interval(gt=0, le=1)] = 1.0
    flip: bool = False
    color: Probability = 0.0
    time_jitter: Probability = 0.0
