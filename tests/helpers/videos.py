"""Small video files for tests, written by PyAV."""

import struct
import tempfile
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

CODECS = {
    ".mp4": "libx264",
    ".mov": "mpeg4",
    ".mkv": "libx264",
    ".webm": "libvpx-vp9",
    ".avi": "mpeg4",
    ".gif": "gif",
}
SOUND_CODECS = {".mp4": "aac", ".mov": "aac", ".mkv": "aac", ".webm": "libopus", ".avi": "mp3"}
RATE = 16000


def moving_bar(frames=12, height=48, width=64, step=4, direction=1):
    """A white bar of 8 pixels that moves over black, uint8 (T, H, W, 3)."""
    clip = np.zeros((frames, height, width, 3), np.uint8)
    for i, frame in enumerate(clip):
        start = (i if direction > 0 else frames - 1 - i) * step
        frame[:, start : start + 8] = 255
    return clip


def bar_position(frame):
    """The left edge of the bar in a frame (C, H, W), as a fraction of the width."""
    bright = np.flatnonzero(frame[0].float().mean(0).numpy() > 128)
    return bright[0] / frame.shape[2]


def sine(seconds=1.0, hertz=440.0, rate=RATE):
    time = np.arange(round(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * hertz * time)).astype("float32")


def write_video(path, clip=None, *, fps=12, sound=None, times=None, codec=None, options=None):
    """Write a clip (T, H, W, 3), and optionally a mono sound at 16,000 Hz.

    Args:
        path: File to write; its suffix selects the format.
        clip: Frames. None: no pictures.
        fps: Frames per second.
        sound: Waveform (T,).
        times: Times of the frames in milliseconds, for a variable frame rate.
        codec: Codec of the pictures. Default: that of CODECS.
        options: Options of its encoder.
    """
    path = Path(path)
    with av.open(str(path), "w") as container:
        pictures = track = None
        if clip is not None:
            pictures = container.add_stream(
                codec or CODECS[path.suffix], rate=fps, options=options or {}
            )
            pictures.width, pictures.height = clip.shape[2], clip.shape[1]
            pictures.pix_fmt = "rgb8" if path.suffix == ".gif" else "yuv420p"
            if times is not None:
                pictures.codec_context.time_base = pictures.time_base = Fraction(1, 1000)
        if sound is not None:
            track = container.add_stream(SOUND_CODECS.get(path.suffix, "aac"), rate=RATE)
        for i, frame in enumerate(clip if clip is not None else ()):
            encoded = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            if times is not None:
                encoded.pts = times[i]
            container.mux(pictures.encode(encoded))
        if pictures is not None:
            container.mux(pictures.encode())
        if track is not None:
            samples = av.AudioFrame.from_ndarray(sound[None], format="fltp", layout="mono")
            samples.sample_rate = RATE
            container.mux(track.encode(samples))
            container.mux(track.encode())
    return str(path)


def rotated(data, degrees):
    """The bytes of an MP4 whose header asks for a clockwise rotation when it is displayed."""
    cos, sin = {90: (0, 1), 180: (-1, 0), 270: (0, -1)}[degrees]
    data = bytearray(data)
    # ISO/IEC 14496-12, section 8.3.2: the matrix of version 0 starts 40 bytes after the flags.
    matrix = data.index(b"tkhd") + 4 + 40
    values = [cos, sin, 0, -sin, cos, 0, 0, 0]
    data[matrix : matrix + 32] = struct.pack(">8i", *(value * 65536 for value in values))
    return bytes(data)


def as_bytes(suffix, clip=None, **options):
    """The bytes of a file, written to a temporary name."""
    with tempfile.TemporaryDirectory() as folder:
        return Path(write_video(Path(folder) / f"a{suffix}", clip, **options)).read_bytes()
