"""Inputs and tokens for tests of drawings, without any adapter."""

from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image

from dxn.explain.drawers import Shown
from dxn.tokens import Span, Tokens

NAN = float("nan")


class Pieces:
    """A preprocessor of text whose tokens are given; with its own tokenizer."""

    def __init__(self, pieces=()):
        self.pieces = list(pieces)
        self.tokenizer = SimpleNamespace(decode=lambda ids, **_: self.pieces[ids[0]])

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
