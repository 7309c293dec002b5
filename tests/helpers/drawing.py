"""Inputs and tokens for tests of drawings, without any adapter."""

from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image

from dxn.core.tokens import Span, Tokens
from dxn.viz.drawers import Shown

NAN = float("nan")


class Pieces:
    """A tokenizer of text whose tokens are given; with a vocabulary of its own."""

    def __init__(self, pieces=()):
        self.pieces = list(pieces)
        self.vocabulary = SimpleNamespace(decode=lambda ids, **_: self.pieces[ids[0]])

    def __call__(self, raw, rand=None):
        return {"ids": torch.arange(len(self.pieces))}


def text(raw, pieces=()):
    return Shown("text", raw, Pieces(pieces))


def image(raw):
    return Shown("image", raw, None)


def audio(samples, rate):
    return Shown("audio", samples, SimpleNamespace(sample_rate=rate))


def tokens_at(name, coords, *, dim=7, modality=None):
    """One sample (1, N, dim) whose columns have these coordinates."""
    x = torch.randn(1, len(coords), dim)
    points = torch.tensor([coords], dtype=torch.float32)
    span = Span(name, modality or name, 0, len(coords), points)
    return Tokens(x, torch.ones(1, len(coords), dtype=torch.bool), (span,))


def grid(height, width, patch):
    """Boxes of patches, row by row."""
    tops = range(0, height, patch)
    return [(y, x, y + patch, x + patch) for y in tops for x in range(0, width, patch)]


def frames(count, hop, length):
    """Times of overlapping frames."""
    return [(i * hop, i * hop + length) for i in range(count)]


def pixels_of(path):
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def title(axis):
    return axis.get_title(loc="left").replace("\n", " ")


def texts(axis):
    """Texts drawn in an axis, without its titles."""
    return [text.get_text() for text in axis.texts]


def cut_off(figure):
    """Inches by which the drawing exceeds the edges of the picture."""
    drawn = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    return max(-drawn.x0, -drawn.y0, drawn.x1 - width, drawn.y1 - height)


def headline(figure):
    """All texts of the figure itself: the title, and the line below it."""
    return " | ".join(" ".join(text.get_text().split()) for text in figure.texts)
