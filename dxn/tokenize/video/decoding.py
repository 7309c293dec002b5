"""The times of the frames of a video file, and the decoding of some of its frames."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dxn.tokenize.base import BadMedia
from dxn.tokenize.media import check_complete, check_seconds, header_seconds

if TYPE_CHECKING:  # see dxn.tokenize.media
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

    from dxn.tokenize.video.reader import VideoSampling

USUAL_FPS = 25  # frames per second, for the last frame of a file that does not say how long it is
# Seconds. Times of files are rounded to milliseconds, so earlier differences are rounding errors.
EPSILON = 1e-4
# Decoders that can start at a keyframe, and leave out frames to which no other frame refers.
SKIPPING = ("h264", "hevc", "mpeg4", "vp8", "vp9")


@dataclass(frozen=True, slots=True)
class Clip:
    """The times of a video file, without its frames.

    Args:
        start: Time of the first frame in the file, in seconds. None: the file stores only times of
            decoding, as AVI does.
        times: Time of each frame relative to the first one in seconds, in ascending order.
        end: End of the last frame in seconds.
        ticks: The same times as in the file, in its unit of time.
        packets: Time of each packet in the unit of the file, and whether it is a keyframe, in the
            order of decoding. None: the packet has no time, or its frame is not shown.
        can_skip: Whether the decoder can leave out packets.
    """

    start: float | None
    times: Sequence[float]
    end: float
    ticks: Sequence[int]
    packets: Sequence[tuple[int | None, bool]]
    can_skip: bool

    def shown(self, wanted: Sequence[float]) -> set[int] | None:
        """Return the ticks of the frames at some times. None: all packets must be decoded."""
        if not self.can_skip or self.start is None:
            return None
        indices = (bisect_right(self.times, time + EPSILON) - 1 for time in wanted)
        return {self.ticks[max(i, 0)] for i in indices}

    def needed(self, shown: set[int]) -> list[bool]:
        """Return whether each packet is needed for these frames, up to the last one that is."""
        needed: list[bool] = []
        pending: list[int] = []  # ticks of frames whose keyframe has not been found
        for ticks, is_key in reversed(self.packets):
            if ticks in shown:
                pending.append(ticks)
            if needed or pending:
                needed.append(bool(pending))
            if is_key and ticks is not None:
                # Frames that are shown before a keyframe can refer to frames before it.
                pending = [other for other in pending if other < ticks]
        return needed[::-1]


def read_times(container: InputContainer, stream: VideoStream, sampling: VideoSampling) -> Clip:
    """Read the times of all frames from a container, without decoding any frame.

    Raises:
        BadMedia: If the file has no frames, exceeds a limit of `sampling`, or is truncated.
    """
    announced = header_seconds(container, stream)
    check_frames(stream.frames, sampling.max_frames)
    check_seconds(announced or 0, sampling.max_seconds)
    # Numbers instead of the fractions of PyAV, which take most of the time of this function.
    units = {
        other.index: (other.time_base.numerator, other.time_base.denominator)
        for other in container.streams
        if other.time_base is not None
    }
    ticks: list[int] = []
    packets: list[tuple[int | None, bool]] = []
    length = 0.0  # of the last packet
    last = 0.0  # end of the packets of all streams: the announced duration may be that of the sound
    for packet in container.demux():
        index = packet.stream_index
        if packet.size == 0 or index not in units:
            continue
        tick = packet.dts if packet.pts is None else packet.pts
        tick = None if packet.is_discard else tick
        if index == stream.index:
            packets.append((tick, packet.is_keyframe))
        if tick is None:
            continue
        numerator, denominator = units[index]
        begin = tick * numerator / denominator
        seconds = (packet.duration or 0) * numerator / denominator
        last = max(last, begin + seconds)
        if index != stream.index:
            continue
        length = seconds
        ticks.append(tick)
        # Headers can be wrong, so the limits are checked again.
        check_frames(len(ticks), sampling.max_frames)
        check_seconds((tick - ticks[0]) * numerator / denominator, sampling.max_seconds)
    if not ticks:
        raise BadMedia("no frames in it")
    # Files store frames in the order of decoding. If frames are shown in another order, but the
    # times are in the same one, they are those of decoding.
    ordered = sorted(ticks)
    are_shown = not stream.codec_context.has_b_frames or ordered != ticks
    numerator, denominator = units[stream.index]
    times = [(tick - ordered[0]) * numerator / denominator for tick in ordered]
    first = ordered[0] * numerator / denominator
    end = times[-1] + (length or 1 / float(stream.average_rate or USUAL_FPS))
    check_seconds(end, sampling.max_seconds)
    check_complete(max(end, last - first), announced)
    can_skip = stream.codec_context.name in SKIPPING
    return Clip(first if are_shown else None, times, end, ordered, packets, can_skip)


def decode(
    container: InputContainer,
    stream: VideoStream,
    clip: Clip,
    max_frames: int,
    shown: set[int] | None,
) -> Iterator[tuple[float, VideoFrame]]:
    """Yield the time of each decoded frame in seconds, relative to the first one, and the frame.

    Args:
        container: The opened file.
        stream: Its video stream.
        clip: Its times.
        max_frames: Maximum number of frames.
        shown: Ticks of the frames that are needed. Others can be left out. None: all of them.
    """
    assert stream.time_base is not None
    unit = stream.time_base
    # As many as other operations have: a process of a loader has one.
    stream.codec_context.thread_count = torch.get_num_threads()
    stream.codec_context.thread_type = "AUTO"
    frames = container.decode(stream) if shown is None else _needed(container, stream, clip, shown)
    time = 0.0
    for count, frame in enumerate(frames, 1):
        check_frames(count, max_frames)
        if clip.start is None:
            time = clip.times[min(count, len(clip.times)) - 1]
        elif frame.pts is not None:
            time = (frame.pts - clip.ticks[0]) * unit.numerator / unit.denominator
        yield time, frame


def _needed(
    container: InputContainer, stream: VideoStream, clip: Clip, shown: set[int]
) -> Iterator[VideoFrame]:
    """Decode the frames `shown` and those to which they refer."""
    context = stream.codec_context
    is_gap = False
    packets = (packet for packet in container.demux(stream) if packet.size)
    for packet, is_needed in zip(packets, clip.needed(shown), strict=False):
        if not is_needed:
            is_gap = True
            continue
        if is_gap:
            # As before a seek: the decoder returns the frames that it holds back, and starts again.
            yield from context.decode(None)
            context.flush_buffers()
            is_gap = False
        context.skip_frame = "DEFAULT" if packet.pts in shown else "NONREF"
        yield from packet.decode()
    yield from context.decode(None)


def frames_at(
    decoded: Iterator[tuple[float, VideoFrame]], times: Sequence[float]
) -> Iterator[tuple[VideoFrame, int]]:
    """Yield the frames that are visible at `times`, and the number of times of each of them."""
    done = 0  # times, in ascending order, whose frame is known
    shown: VideoFrame | None = None
    for start, frame in decoded:
        if shown is not None:
            # A search instead of a count, which would be slow for thousands of times.
            before = bisect_left(times, start - EPSILON, lo=done)
            if before > done:
                yield shown, before - done
            done = before
            if done == len(times):
                return
        shown = frame
    if shown is not None and done < len(times):
        yield shown, len(times) - done


def check_frames(count: int, max_frames: int) -> None:
    """Raise BadMedia if a clip has more than max_frames frames."""
    if count > max_frames:
        raise BadMedia(f"{count:,} frames, more than max_frames={max_frames:,}")
