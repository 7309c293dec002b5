"""Texts, pictures, sounds and clips as parts of HTML pages. What comes from data is escaped."""

from __future__ import annotations

import base64
import io
from fractions import Fraction

import av
import numpy as np
import soundfile
from PIL import Image

from dxn.viz.html import data_url, escaped

MAX_SHOWN = 600  # characters of a text that are visible at once
MAX_TEXT = 4000  # characters of a text in the page; the rest is left out
PICTURE_SIDE = 320  # pixels of the longer side of a picture
SMALL = 100  # pixels; a picture below is enlarged without smoothing, so that its pixels are visible
QUALITY = 80  # of a JPEG
COLORS = 64  # of a drawing, which has few of them
MAX_SECONDS = 8.0  # of a recording
MAX_RATE = 16_000  # Hz; enough for speech
MAX_FRAMES = 64  # of a clip
CLIP_RATE = 8  # frames per second at which a clip is played


def paragraph(text: str) -> str:
    """Return a text as HTML. The end of a long text is folded, that of a very long one left out."""
    shown, rest = text[:MAX_SHOWN], text[MAX_SHOWN:MAX_TEXT]
    folded = ""
    if rest:
        left_out = len(text) - MAX_TEXT
        end = f"… and {left_out:,} more characters" if left_out > 0 else ""
        folded = (
            f"<details><summary>{len(rest):,} more characters</summary>"
            f'<p class="text" dir="auto">{escaped(rest)}{end}</p></details>'
        )
    # dir=auto: the first letter decides whether the text runs from right to left.
    return f'<p class="text" dir="auto">{escaped(shown)}{"…" if rest else ""}</p>{folded}'


def picture(pixels: np.ndarray, alt: str, *, drawing: bool = False) -> str:
    """Return a picture as HTML.

    Args:
        pixels: uint8 (H, W, 3).
        alt: Description for readers who do not see the picture.
        drawing: Whether it is a drawing with few colors, which is stored without loss.
    """
    height, width = pixels.shape[:2]
    # Few pixels get larger only on the screen.
    small = " pixels" if max(height, width) < SMALL else ""
    source = picture_source(pixels, drawing=drawing)
    return (
        f'<img class="picture{small}" src="{source}" alt="{escaped(alt)}" '
        f'width="{width}" height="{height}">'
    )


def picture_source(pixels: np.ndarray, *, drawing: bool = False) -> str:
    """Return a reduced copy of a picture, uint8 (H, W, 3), as a data URL."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    if drawing:
        return data_url("image/png", encoded(image.quantize(COLORS), "PNG", optimize=True))
    if max(image.size) < SMALL:  # a small PNG is exact and as small as a JPEG
        return data_url("image/png", encoded(image, "PNG", optimize=True))
    return data_url("image/jpeg", encoded(image, "JPEG", quality=QUALITY))


def reduced(source: str) -> str:
    """Return a smaller copy of a picture that is a data URL of a PNG."""
    content = base64.b64decode(source.partition(",")[2])
    pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    return picture_source(pixels)


def player(samples: np.ndarray, rate: int, label: str, *, max_bytes: int | None = None) -> str:
    """Return the first seconds of a recording as HTML, at a reduced sampling rate.

    Args:
        samples: (S,). Samples from -1 to 1.
        rate: Sampling rate in Hz.
        label: Name of the recording.
        max_bytes: Approximate maximum of its size as a file. None: only its seconds are limited.
    """
    seconds = len(samples) / rate
    samples = samples[: round(MAX_SECONDS * rate)]
    step = -(-rate // MAX_RATE)
    if step > 1:
        # The mean of neighbors is a low-pass filter that is good enough to listen to.
        samples = samples[: len(samples) // step * step].reshape(-1, step).mean(1)
    content = flac(samples, rate // step)
    if max_bytes is not None and len(content) > max_bytes:
        samples = samples[: len(samples) * max_bytes // len(content)]
        content = flac(samples, rate // step)
    shown = len(samples) * step / rate
    # Samples that fill no step are not missed.
    first, whole = (f"{value:,.1f}".removesuffix(".0") for value in (shown, seconds))
    note = f"first {first} of {whole} seconds"
    cut = f'<p class="note">{note}</p>' if seconds - shown > step / rate else ""
    return (
        f'<audio controls preload="metadata" aria-label="{escaped(label)}" '
        f'src="{data_url("audio/flac", content)}"></audio>{cut}'
    )


def flac(samples: np.ndarray, rate: int) -> bytes:
    """Return samples (S,) as the content of a FLAC file, which every browser plays.

    FLAC is lossless, and half as long as WAV.
    """
    content = io.BytesIO()
    soundfile.write(content, np.clip(samples, -1, 1), rate, format="FLAC", subtype="PCM_16")
    return content.getvalue()


def clip(frames: np.ndarray, label: str) -> str:
    """Return a clip as HTML: a video of at most MAX_FRAMES frames.

    Args:
        frames: uint8 (T, H, W, 3).
        label: Name of the clip.
    """
    step = -(-len(frames) // MAX_FRAMES)
    source = data_url("video/mp4", mp4(frames[::step], rate=CLIP_RATE, quality=26))
    # Muted and without autoplay: a page that moves by itself is hard to read.
    return (
        f'<video controls loop muted playsinline aria-label="{escaped(label)}" '
        f'src="{source}"></video>'
    )


def mp4(frames: np.ndarray, *, rate: Fraction | int, quality: int) -> bytes:
    """Return frames as the content of an MP4 file that browsers play.

    Args:
        frames: uint8 (T, H, W, 3).
        rate: Frames per second.
        quality: Constant rate factor of H.264: 0 is nearly lossless, 51 the smallest file.
    """
    # H.264 halves the resolution of colors, so both sides must be even.
    frames = frames[:, : frames.shape[1] // 2 * 2, : frames.shape[2] // 2 * 2]
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options={"crf": str(quality)})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.time_base = 1 / Fraction(rate)
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return file.getvalue()


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    """Return a picture as the content of a file of this kind, such as "PNG"."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
