"""Reads single pictures, sounds and clips, and writes pictures."""

import io

from dxn.tokenize.audio.reader import AudioReader
from dxn.tokenize.image.reader import ImageReader
from dxn.tokenize.video.reader import VideoReader


def read_image(source, **options):
    return ImageReader(**options).read(source)


def read_audio(source, **options):
    return AudioReader(**options).read(source)


def read_video(source, **options):
    return VideoReader(**options).read(source)


def encoded(image, kind="PNG", **options):
    """The bytes of a file with a picture of Pillow."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
