"""Convert video files to frames."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import av
import numpy as np
from PIL import Image

from dxn.export.programs.image import resized

EPSILON = 1e-4  # seconds; times of a file are rounded
USUAL_FPS = 25  # of a file that does not say it


def read(value: Any, options: Mapping[str, Any]) -> np.ndarray:
    """Return the frames (T, H, W, 3) of a clip that the model reads.

    Args:
        value: Path, file or bytes.
        options: Options of the input in preprocess.json.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it has no pictures, or is too long.
    """
    if isinstance(value, bytes):
        value = io.BytesIO(value)
    with av.open(value) as container:
        start, times, end = _frame_times(container)
        order = times if start is None else None
    if end > options["max_seconds"] or len(times) > options["max_frames"]:
        raise ValueError(
            f"longer than {options['max_seconds']:g} s or {options['max_frames']:,} frames"
        )
    if not isinstance(value, str | os.PathLike):
        value.seek(0)
    wanted = _wanted(times, end, options)
    frames: list[np.ndarray] = []
    with av.open(value) as container:
        for frame, count in _frames_at(_decoded(container, start or 0.0, order), wanted):
            pixels, _ = resized(_upright(frame), options)
            if frames and pixels.shape != frames[0].shape:  # the size can change within a file
                size = frames[0].shape[1::-1]
                pixels = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR))
            frames += [pixels] * count
    if not frames:
        raise ValueError("no frames in it")
    return np.stack(frames)


def prepare(raws: Sequence[np.ndarray], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return pixels uint8 (B, T, 3, H, W), padded at the end, at the bottom and on the right.

    The batch also has lengths (B,) in frames, and sizes (B, 2) of the frames without padding.

    Args:
        raws: Results of `read`.
        options: Options of the input in preprocess.json.
    """
    shapes = np.array([clip.shape[:3] for clip in raws], np.int64)
    pixels = np.zeros((len(raws), *shapes.max(0), 3), np.uint8)
    for row, clip in zip(pixels, raws, strict=True):
        row[: clip.shape[0], : clip.shape[1], : clip.shape[2]] = clip
    pixels = np.ascontiguousarray(pixels.transpose(0, 1, 4, 2, 3))
    return {"pixels": pixels, "lengths": shapes[:, 0], "sizes": shapes[:, 1:]}


def _frame_times(container: Any) -> tuple[float | None, list[float], float]:
    """Return the time of the first frame, the times of all frames relative to it, and their end.

    The first time is None if the file has only the times of decoding, as AVI files have.
    """
    if not container.streams.video:
        raise ValueError("has no pictures")
    stream = container.streams.video[0]
    starts: list[float] = []
    length = 0.0
    for packet in container.demux(stream):
        ticks = packet.dts if packet.pts is None else packet.pts
        if packet.size and ticks is not None and packet.time_base and not packet.is_discard:
            starts.append(float(ticks * packet.time_base))
            length = float((packet.duration or 0) * packet.time_base)
    if not starts:
        raise ValueError("no frames in it")
    ordered = sorted(starts)
    are_shown = not stream.codec_context.has_b_frames or ordered != starts
    starts = ordered
    length = length or 1 / float(stream.average_rate or USUAL_FPS)
    return (
        starts[0] if are_shown else None,
        [start - starts[0] for start in starts],
        starts[-1] + length - starts[0],
    )


def _wanted(times: Sequence[float], end: float, options: Mapping[str, Any]) -> list[float]:
    """Return the times of the frames that the model reads, without augmentation."""
    count, fps = options["num_frames"], options["fps"]
    choices = list(times)
    if fps is not None:
        choices = [i / fps for i in range(max(round(end * fps), 1))]
    if len(choices) <= count:
        return choices
    if options["sampling"] == "first":
        return choices[:count]
    if options["sampling"] == "random":  # the middle, as in a prediction
        start = (len(choices) - count) // 2
        return choices[start : start + count]
    return [(i + 0.5) * end / count for i in range(count)]


def _decoded(
    container: Any, start: float, order: Sequence[float] | None
) -> Iterator[tuple[float, Any]]:
    time = 0.0
    for i, frame in enumerate(container.decode(video=0)):
        if order is not None:
            time = order[min(i, len(order) - 1)]
        elif frame.time is not None:
            time = frame.time - start
        yield time, frame


def _frames_at(
    decoded: Iterator[tuple[float, Any]], times: Sequence[float]
) -> Iterator[tuple[Any, int]]:
    """Yield the frames that are visible at these times, and how many times each of them is."""
    remaining = list(times)
    shown: Any = None
    for start, frame in decoded:
        count = sum(time < start - EPSILON for time in remaining) if shown is not None else 0
        if count:
            yield shown, count
            remaining = remaining[count:]
        if not remaining:
            return
        shown = frame
    if shown is not None:
        yield shown, len(remaining)


def _upright(frame: Any) -> Image.Image:
    """Return a frame, rotated as the file asks for."""
    has_alpha = any(component.is_alpha for component in frame.format.components)
    pixels = frame.to_ndarray(format="rgba" if has_alpha else "rgb24")
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is not None:
        a, b, c, d = np.frombuffer(data, np.int32)[[0, 1, 3, 4]].tolist()
        if abs(b) > abs(a):
            pixels, a, d = pixels.swapaxes(0, 1), c, b
        pixels = pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]
    return Image.fromarray(np.ascontiguousarray(pixels))
