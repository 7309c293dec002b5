"""The reader of videos: files in all supported formats, with checks of their content."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from PIL import Image
from torch import Tensor

from dxn.core.files import atomic_file
from dxn.core.schema import options
from dxn.tokenize.base import BadMedia, Reader
from dxn.tokenize.image.reader import (
    ImageReader,
    Interpolation,
    ReducedSize,
    check_pixels,
    pixels_of,
    resize,
    target_size,
)
from dxn.tokenize.media import (
    KINDS,
    open_container,
    padded,
    streams_of,
)
from dxn.tokenize.video.decoding import EPSILON, Clip, check_frames, decode, frames_at, read_times

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


if TYPE_CHECKING:  # see dxn.tokenize.media
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

UNSUPPORTED = f"not a supported video ({KINDS})"
CHANNELS = (1, 3, 4)  # numbers of channels of a picture


FRAME_MS = 100  # duration of a frame of a clip that is written


class VideoReader(Reader):
    """Reads videos.

    Args:
        sampling: Which frames are read, and the limits.
        num_kept: Maximum number of frames that are kept, unless sampling.mode is random. Default:
            sampling.num_frames.
        max_pixels: Maximum number of pixels of a frame. It is checked before a file is decoded.
        reduced_size: Function of the height and width of a frame: the size to which it is reduced.
        interpolation: Interpolation of the pixels: bilinear or bicubic.
    """

    modality = "video"
    formats = (".gif",)
    files = True
    media = "video/*"
    axes = 1
    relative = True

    def __init__(
        self,
        *,
        sampling: VideoSampling = VideoSampling(),
        num_kept: int | None = None,
        max_pixels: int = 50_000_000,
        reduced_size: ReducedSize | None = None,
        interpolation: Interpolation = "bilinear",
    ):
        self.sampling = sampling
        self.num_kept = sampling.num_frames if num_kept is None else num_kept
        self.max_pixels = max_pixels
        self.reduced_size = reduced_size
        self.interpolation: Interpolation = interpolation

    def read(self, cell: Any) -> Tensor:
        """Read the frames of a clip as uint8 (T, 3, H, W).

        The rotation and the mirroring in the header are applied, and transparent pixels are
        composited over white. Times come from the file, so the frame rate can vary.

        Args:
            cell: Path, bytes, uint8 array (T, H, W) or (T, H, W, C), or uint8 Tensor (T, C, H, W)
                or (T, H, W, C). An array has the frame rate sampling.fps.

        Raises:
            BadMedia: If the clip cannot be read or exceeds a limit.
        """
        if isinstance(cell, np.ndarray | Tensor):
            read_frame = self._image_reader().read
            frames = _frames_of_array(cell)
            check_frames(len(frames), self.sampling.max_frames)
            # The index of a frame is its time.
            times = sample_times(
                range(len(frames)), len(frames), self.sampling, self.num_kept, fps=1
            )
            return torch.stack([read_frame(frames[int(time + EPSILON)]) for time in times])
        clip = self._clip(cell)
        wanted = self._wanted(clip)
        return torch.stack(self._frames(cell, clip, wanted, clip.shown(wanted)))

    def _clip(self, cell: Any) -> Clip:
        """Read the times of the frames of a file and check its limits. No frame is decoded."""
        with open_container(cell, UNSUPPORTED, max_pixels=self.max_pixels) as container:
            stream = _video_stream(container, self.max_pixels)
            return read_times(container, stream, self.sampling)

    def _wanted(self, clip: Clip) -> list[float]:
        """Return the times at which frames are shown that are read."""
        sampling = self.sampling
        return sample_times(clip.times, clip.end, sampling, self.num_kept, fps=sampling.fps)

    def _frames(
        self, cell: Any, clip: Clip, wanted: Sequence[float], shown: set[int] | None
    ) -> list[Tensor]:
        """Decode a file, and return the frames at some times.

        Args:
            cell: Path or bytes.
            clip: Times of the frames of the file.
            wanted: Times in ascending order.
            shown: See `decode`.
        """
        read_frame = self._image_reader().read
        pictures: list[Tensor] = []
        decoded_times: set[int | None] = set()
        # Opened again instead of rewound, because not every container can be rewound.
        with open_container(cell, UNSUPPORTED, max_pixels=self.max_pixels) as container:
            stream = _video_stream(container, self.max_pixels)
            decoded = decode(container, stream, clip, self.sampling.max_frames, shown)
            for frame, count in frames_at(decoded, wanted):
                decoded_times.add(frame.pts)
                pixels = read_frame(_upright(frame))
                # The size can change within a file.
                if pictures and pixels.shape != pictures[0].shape:
                    pixels = resize(pixels, pictures[0].shape[1:], self.interpolation)
                pictures += [pixels] * count
        if shown is not None and decoded_times != shown:
            # A packet gave no frame, so the file is decoded without leaving anything out.
            return self._frames(cell, clip, wanted, None)
        if not pictures:
            raise BadMedia("no frames in it")
        return pictures

    def _image_reader(self) -> ImageReader:
        return ImageReader(
            max_pixels=self.max_pixels,
            reduced_size=self.reduced_size,
            interpolation=self.interpolation,
        )

    def shape(self, cell: Any) -> tuple[int, int, int]:
        """Return the number of frames, the height and the width of what `read` returns.

        No frame is decoded. A rotation, which can exchange height and width, is left out of
        account.

        Args:
            cell: Path or bytes.

        Raises:
            BadMedia: If the container cannot be read or exceeds a limit.
        """
        with open_container(cell, UNSUPPORTED, max_pixels=self.max_pixels) as container:
            stream = _video_stream(container, self.max_pixels)
            clip = read_times(container, stream, self.sampling)
            height, width = stream.codec_context.height, stream.codec_context.width
        height, width = target_size(height, width, self.reduced_size) or (height, width)
        return len(self._wanted(clip)), height, width

    def extent(self, cell: Any) -> tuple[float]:
        """Return the seconds of what `read` returns, which is a part of the clip with mode=first.

        An array without sampling.fps has one frame per second.
        """
        sampling = self.sampling
        if isinstance(cell, np.ndarray | Tensor):
            fps = sampling.fps or 1.0
            count = len(_frames_of_array(cell))
            times, end = [i / fps for i in range(count)], count / fps
        else:
            clip = self._clip(cell)
            times, end, fps = clip.times, clip.end, sampling.fps
        if sampling.mode == "first":
            # One more frame: it is shown when the last one that is read ends.
            read = sample_times(times, end, sampling, self.num_kept + 1, fps=fps)
            end = read[-1] if len(read) > self.num_kept else end
        return (end,)

    def write(self, raw: Tensor, path: Path) -> None:
        """Write a clip uint8 (T, C, H, W) to a file that repeats it."""
        first, *others = [Image.fromarray(frame.movedim(0, -1).numpy()) for frame in raw]
        with atomic_file(path) as partial:
            first.save(
                partial, "GIF", save_all=True, append_images=others, duration=FRAME_MS, loop=0
            )

    def describe(self, raws: Sequence[Tensor], cells: Sequence[Any]) -> str:
        """Describe the numbers of frames that are read, and the sizes and rates of the files."""
        if not raws:
            return ""
        counts = sorted(len(raw) for raw in raws)
        parts = [f"{_range(counts, '')} frames are read"]
        rates: list[float] = []
        for cell in cells:
            with suppress(BadMedia):  # the data set reports invalid files itself
                rates.append(frame_rate(cell))
        fps = [rate for rate in rates if rate]
        sizes = ImageReader().describe([], [raw[0] for raw in raws])
        parts.append(f"size after reading: {sizes}")
        if fps:
            parts.append(f"{_range(sorted(fps), ' frames per second')} in the files")
        return "; ".join(parts)


def frame_rate(source: Any) -> float:
    """Return the frames per second that the header of a video announces; 0 if it announces none.

    Raises:
        BadMedia: If the source cannot be read.
    """
    if isinstance(source, np.ndarray | Tensor):
        return 0.0
    with open_container(source, UNSUPPORTED) as container:
        return float(_video_stream(container).average_rate or 0)


def sample_times(
    times: Sequence[float],
    end: float,
    sampling: VideoSampling,
    num_kept: int,
    *,
    fps: float | None,
) -> list[float]:
    """Return the times at which frames are shown that are read, in ascending order.

    Args:
        times: Start of each frame in seconds, in ascending order. The first one is 0.
        end: End of the last frame in seconds.
        sampling: How frames are chosen.
        num_kept: Maximum number of times, unless sampling.mode is random.
        fps: Frames per second of the result. None: those of the file.
    """
    choices = list(times)
    if fps is not None:
        choices = [i / fps for i in range(max(round(end * fps), 1))]
    if sampling.mode == "random" or len(choices) <= num_kept:
        return choices
    if sampling.mode == "first":
        return choices[:num_kept]
    # The middle of each of num_kept equal parts of the clip.
    return [(i + 0.5) * end / num_kept for i in range(num_kept)]


def _frames_of_array(source: np.ndarray | Tensor) -> Tensor:
    """Convert a video array to uint8 (T, C, H, W)."""
    rule = "a video array must be uint8 and have the shape (T, H, W, C) or (T, H, W)"
    frames = pixels_of(source, 4, rule)
    if frames.ndim == 3:
        return frames[:, None]
    # PyTorch puts channels first, but torchvision's readers do not.
    is_last = isinstance(source, np.ndarray) or (
        frames.shape[1] not in CHANNELS and frames.shape[3] in CHANNELS
    )
    return frames.movedim(-1, 1) if is_last else frames


def _video_stream(container: InputContainer, max_pixels: int | None = None) -> VideoStream:
    """Return the first video stream, after checking the size that its header announces."""
    streams = streams_of(container, "video")
    if not streams:
        raise BadMedia("has no pictures: it is an audio file")
    stream = streams[0]
    from av.video.stream import VideoStream

    assert isinstance(stream, VideoStream)
    context = stream.codec_context
    # A stream has no size if its codec is unknown, or if the decoder refused to exceed the limit.
    if context is None or not context.width * context.height:
        reason = "" if max_pixels is None else f", or more than max_pixels={max_pixels:,} pixels"
        raise BadMedia(f"damaged or truncated file{reason}")
    if max_pixels is not None:
        check_pixels(context.width, context.height, max_pixels)
        context.options = {"max_pixels": str(padded(max_pixels))}
    return stream


def _upright(frame: VideoFrame) -> np.ndarray:
    """Return the pixels of a frame (H, W, C), rotated as the file asks for."""
    has_alpha = any(component.is_alpha for component in frame.format.components)
    pixels = frame.to_ndarray(format="rgba" if has_alpha else "rgb24")
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return pixels
    matrix = np.frombuffer(data, np.int32)
    return displayed(pixels, matrix[[0, 1, 3, 4]].tolist())


def displayed(pixels: np.ndarray, matrix: Sequence[int]) -> np.ndarray:
    """Return pixels (H, W, C) as a display matrix asks for: turned by 90 degrees, or mirrored.

    Args:
        pixels: Pixels as they are stored.
        matrix: Factors a, b, c and d with which x and y are shown at (a x + c y, b x + d y).
    """
    a, b, c, d = matrix
    if abs(b) > abs(a):
        pixels, a, d = pixels.swapaxes(0, 1), c, b
    return pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]


def _range(values: Sequence[float], unit: str) -> str:
    """Return the smallest, median and largest of sorted values."""
    if values[0] == values[-1]:
        return f"{values[0]:.4g}{unit}"
    median = statistics.median(values)
    return f"{values[0]:.4g} to {values[-1]:.4g}, median {median:.4g}{unit}"
